"""JoinColumns: pictures before and after, executed with NaN and infinities, graphs in which it must not fire, and random ColumnTransformers
against scikit-learn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from random_trees import stump
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    Binarizer,
    FunctionTransformer,
    KBinsDiscretizer,
    MinMaxScaler,
    OneHotEncoder,
    OrdinalEncoder,
    PowerTransformer,
    QuantileTransformer,
    SplineTransformer,
    StandardScaler,
    TargetEncoder,
)

import hbc
from hbc.ir.graph import Graph, Input, Node
from hbc.ir.types import N, dtype_name
from hbc.ops import tensor as t
from hbc.ops.columns import Categorize, Rank, SelectColumns, TakeByColumn
from hbc.ops.curves import BSplines, Interpolate
from hbc.ops.encoding import Lookup, OneHot
from hbc.ops.functions import Function
from hbc.ops.missing import Impute
from hbc.ops.scaling import Clip, Standardize
from hbc.optimizer.columns import join
from hbc.optimizer.columns.join import JoinColumns
from hbc.optimizer.columns.simplify import RemoveChecks
from hbc.optimizer.partition import MANY_COLUMNS

F = 6
NAN, INF = np.nan, np.inf
ROWS = np.array([[1.0, -2.0, 3.0, 0.5, 2.0, 7.0], [NAN, INF, -INF, NAN, 1e308, -1.0], [-0.0, 5e-324, 1.0, 2.0, 3.0, 4.0]])


def col(x: Node, *places: int) -> Node:
    return SelectColumns(np.array(places))(x)


def each(x: Node, step: Callable[[Node, int], Node], order: Sequence[int] = range(F)) -> list[Node]:
    return [step(col(x, j), j) for j in order]


def scaled(x: Node, *j: int) -> Node:
    places = np.array(j, float)
    return Standardize(places, places + 1)(Impute(-places)(x))


def shifted(x: Node, j: int) -> Node:
    """y = |x| · j, or x where it is negative: operators whose constants have a number, one for each column, or none."""
    return t.where(t.less(x, t.constant(0.0)), x, t.mul(t.absolute(x), t.constant(np.array([float(j)]))))


def looked_up(x: Node, j: int, complete: bool = False) -> Node:
    known = np.array([np.arange(4.0 + j % 3)])
    return Lookup(known, known * 10 + j, np.array([-1.0 - j]), np.array([-9.0 - j]), complete)(x)


def in_table(x: Node, j: int) -> Node:
    place = Rank(np.array([[1.0, 2.0, 3.0, INF][: 2 + j % 2]]))(x)
    return t.take(np.arange(4.0) + 10 * j, place, axis=0)


def spread(x: Node, j: int) -> Node:
    """Columns of three numbers, through values of three axes."""
    wide = t.mul(t.reshape(x, N, 1, 1), t.constant(np.array([1.0, 2.0, float(j)])))
    return t.reshape(t.add(wide, t.constant(np.full((1, 1), float(j)))), N, 3)


def splines(x: Node, j: int) -> Node:
    return BSplines(np.arange(8.0)[None] * (j + 1), 2, 5, 5)(x)


Build = Callable[[Node], Node]
EVERY = list(range(F))
FIRES: dict[str, tuple[Build, Build]] = {
    "scalers": (lambda x: t.concat(each(x, scaled)), lambda x: scaled(x, *EVERY)),
    "in another order": (
        lambda x: t.concat(each(x, scaled, [2, 0, 5, 1])),
        lambda x: Standardize(np.array([2.0, 0, 5, 1]), np.array([3.0, 1, 6, 2]))(
            Impute(-np.array([2.0, 0, 5, 1]))(col(x, 2, 0, 5, 1))
        ),
    ),
    "others between": (
        lambda x: t.concat([scaled(col(x, 0), 0), t.neg(x), *each(x, scaled, [1, 2, 3])]),
        lambda x: SelectColumns(np.array([0, 4, 5, 6, 7, 8, 9, 1, 2, 3]))(t.concat([scaled(col(x, 0, 1, 2, 3), 0, 1, 2, 3), t.neg(x)])),
    ),
    "a part twice": (
        lambda x: t.concat([*(parts := each(x, scaled, [0, 1, 2, 3])), parts[1]]),
        lambda x: SelectColumns(np.array([0, 1, 2, 3, 1]))(scaled(col(x, 0, 1, 2, 3), 0, 1, 2, 3)),
    ),
    "constants": (
        lambda x: t.concat(each(x, shifted)),
        lambda x: t.where(t.less(x, t.constant(0.0)), x, t.mul(t.absolute(x), t.constant(np.arange(6.0)))),
    ),
    "edges of two lengths": (
        lambda x: t.concat([Rank(np.array([[1.0, 2.0, 3.0][: 2 + j % 2]]))(col(x, j)) for j in range(F)]),
        lambda x: Rank(np.array([[1.0, 2.0, INF if j % 2 == 0 else 3.0] for j in range(F)]))(x),
    ),
    "blocks of columns": (
        lambda x: t.concat([scaled(col(x, j, j + 1), j, j + 1) for j in (0, 2, 4, 0)]),
        lambda x: scaled(col(x, 0, 1, 2, 3, 4, 5, 0, 1), 0, 1, 2, 3, 4, 5, 0, 1),
    ),
}  # fmt: skip
SAME: dict[str, Build] = {
    "look-ups": lambda x: t.concat(each(x, looked_up)),
    "look-ups without unknown numbers": lambda x: t.concat(each(x, lambda c, j: looked_up(c, j, True))),
    "tables": lambda x: t.concat(each(x, in_table)),
    "tables by column": lambda x: t.concat(each(x, lambda c, j: TakeByColumn(np.array([[1.0, j, 3.0]]))(Rank(np.array([[0.0, j]]))(c)))),
    "one-hot": lambda x: t.concat(each(x, lambda c, j: OneHot(np.zeros(j + 1, int), np.append(np.arange(1.0 * j), NAN), "f64")(c))),
    "a category dropped": lambda x: t.concat(each(x, lambda c, j: col(OneHot(np.zeros(3, int), np.arange(3.0), "f64")(c), 0, 2))),
    "three axes": lambda x: t.concat(each(x, spread)),
    "splines": lambda x: t.concat(each(x, splines)),
    "lines": lambda x: t.concat(each(x, lambda c, j: Interpolate(np.array([[-1.0, 0, 2]]), np.array([[j, 1.0, 2]]))(c))),
    "functions": lambda x: t.concat(each(x, lambda c, j: Function("expm1")(Function("log1p_abs")(c)))),
    "of a product": lambda x: t.concat(each(t.matmul(x, t.constant(np.eye(F))), scaled)),
}  # fmt: skip
STAYS: dict[str, Build] = {
    "few": lambda x: t.concat(each(x, scaled, [0, 1, 2])),
    "selections alone": lambda x: t.concat([col(x, j) for j in EVERY]),
    "other limits": lambda x: t.concat(each(x, lambda c, j: Clip(-0.0 if j % 2 else 0.0, float(1 + j // 2))(c))),
    "other functions": lambda x: t.concat(each(x, lambda c, j: Function(("exp", "expm1", "tanh")[j % 3])(c))),
    "categories of one column": lambda x: t.concat(each(x, lambda c, j: Categorize(np.array([float(j)]))(c))),
    "sums": lambda x: t.concat([t.sum_(col(x, j, 0), 1, keepdims=True) for j in EVERY]),
    "of two values": lambda x: t.concat([scaled(col(x, 0), 0), scaled(col(x, 1), 1), *each(t.neg(x), scaled, [2, 3])]),
    "broadcast": lambda x: t.concat([t.add(col(x, j), col(x, j, 0)) for j in EVERY]),
}  # fmt: skip


def graph(build: Build) -> Graph:
    x = Input("X", "f64", (N, F))()
    return Graph((x,), {"transform": (build(x),)}).verify()


def same(before: Graph, after: Graph, rows: Any = ROWS) -> None:
    for group, other in zip(before.evaluate(rows).values(), after.verify().evaluate(rows).values(), strict=True):
        for one, two in zip(group, other, strict=True):
            assert one.dtype == two.dtype
            assert np.ascontiguousarray(one).tobytes() == np.ascontiguousarray(two).tobytes()


@pytest.mark.parametrize("name", FIRES)
def test_pictures(name: str) -> None:
    before, after = map(graph, FIRES[name])
    found = JoinColumns()(before)
    assert str(found.graph) == str(after)
    assert len(found.notes) == 1
    same(before, found.graph)


@pytest.mark.parametrize("name", SAME)
def test_numbers_stay(name: str) -> None:
    before = graph(SAME[name])
    after = JoinColumns()(before).graph
    assert not any(type(node.op).__name__ == "Concat" for node in after.nodes)
    same(before, after)


@pytest.mark.parametrize("name", STAYS)
def test_must_not_fire(name: str) -> None:
    before = graph(STAYS[name])
    found = JoinColumns()(before)
    assert found.graph is before
    assert not found.notes


def test_values_that_something_else_reads_stay() -> None:
    """A chain is not computed twice."""
    x = Input("X", "f64", (N, F))()
    parts = each(x, scaled)
    for outputs in (
        {"transform": (t.concat(parts),), "other": (parts[0],)},
        {"transform": (t.concat(parts), t.neg(parts[5].inputs[0]))},
    ):
        before = Graph((x,), outputs)
        after = JoinColumns()(before).graph
        assert sum(isinstance(node.op, Impute) for node in after.nodes) == 2
        same(before, after)


def test_a_joined_matrix_before_another() -> None:
    x = Input("X", "f64", (N, F))()
    first = t.concat(each(x, scaled))
    before = Graph((x,), {"transform": (t.concat(each(t.matmul(first, t.constant(np.eye(F))), shifted)),)})
    found = JoinColumns()(before)
    assert len(found.notes) == 2
    assert sum(isinstance(node.op, Impute) for node in found.graph.nodes) == 1
    same(before, found.graph)


def test_neighbours_before_trees() -> None:
    """Trees would read each column through a selection."""
    x = Input("X", "f64", (N, F))()
    parts = each(x, scaled)
    mixed = t.concat([*parts[:4], t.neg(x), *parts[4:]])
    before = Graph((x,), {"predict": (stump(0, 0.0)(mixed),)})
    after = JoinColumns()(before).graph
    assert not any(isinstance(node.op, SelectColumns) and len(node.op.indices) > 4 for node in after.nodes)
    assert sum(isinstance(node.op, Impute) for node in after.nodes) == 3
    same(before, after)


def test_searches_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scalers of any number of columns are one matrix; of what is looked up, at most WIDEST columns are."""
    monkeypatch.setattr(join, "WIDEST", 4)
    for build, pieces in ((scaled, 1), (looked_up, 2)):
        before = graph(lambda x, build=build: t.concat([build(col(x, j), j) for j in (0, 0, 0, 3, 3, 3)]))
        after = JoinColumns()(before).graph
        assert sum(type(node.op) in (Lookup, Standardize) for node in after.nodes) == pieces
        same(before, after)


KINDS: dict[str, Callable[[int], Any]] = {
    "scaler": lambda i: make_pipeline(SimpleImputer(strategy=["mean", "median"][i % 2]), StandardScaler(with_mean=i % 3 > 0)),
    "bins": lambda i: KBinsDiscretizer(2 + i % 5, encode=["ordinal", "onehot-dense"][i % 2], strategy="uniform"),
    "log": lambda i: FunctionTransformer(np.log1p),
    "power": lambda i: PowerTransformer(standardize=i % 3 > 0),
    "quantile": lambda i: QuantileTransformer(n_quantiles=10 + i % 2),
    "spline": lambda i: SplineTransformer(n_knots=3 + i % 2),
    "range": lambda i: make_pipeline(SimpleImputer(), MinMaxScaler(clip=True)),
    "above": lambda i: Binarizer(threshold=i / 7),
    "hot": lambda i: OneHotEncoder(sparse_output=False, handle_unknown="ignore"),
    "place": lambda i: OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1),
    "mean": lambda i: TargetEncoder(),
    "untouched": lambda i: "passthrough",
}  # fmt: skip
WITH_GAPS, OF_CATEGORIES = ("scaler", "range"), ("hot", "place", "mean")


def random_transformer(seed: int) -> tuple[Any, np.ndarray]:
    """A fitted ColumnTransformer of some 40 columns with a pipeline each, in any order, and rows for it."""
    draw = np.random.default_rng(seed)
    chosen = draw.choice(list(KINDS), 3, replace=False)
    kinds = draw.choice(chosen, 40)
    if seed % 2:
        kinds = np.sort(kinds)
    X = np.abs(draw.normal(size=(200, 40)))
    for j, kind in enumerate(kinds):
        if kind in OF_CATEGORIES:
            X[:, j] = draw.integers(0, 3 + j % 6, 200)
        elif kind in WITH_GAPS:
            X[draw.random(200) < 0.1, j] = np.nan
    columns = draw.permutation(40)
    steps = [(f"t{i}", KINDS[kinds[j]](i), [int(j)]) for i, j in enumerate(columns)]
    return ColumnTransformer(steps).fit(X, draw.integers(0, 2, 200)), X


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(24))
def test_random_transformers(seed: int) -> None:
    """The joined graph has the bits of the separate one; a compiled model has scikit-learn's numbers and rejects what it rejects."""
    model, X = random_transformer(seed)
    for dtype in ("f4", "f8"):
        rows = X.astype(dtype)
        compiled = hbc.convert(model, "numpy", rows)
        parsed = {variant.graph.inputs[0].type.dtype: variant.graph for variant in compiled.variants.values()}
        before = RemoveChecks()(parsed[dtype_name(rows.dtype)])
        after = JoinColumns()(before).graph
        assert len(after.nodes) < len(before.nodes)
        odd = rows.copy()
        odd[::3, ::2], odd[1::3, 1::3], odd[2::5, 3::4] = np.nan, np.inf, -0.0
        for some in (rows, odd, rows[:1], rows[:0]):
            same(before, after, some)
        found, expected = compiled.transform(rows), model.transform(rows)
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(
            found, expected, rtol=1e-12 if dtype == "f8" else 1e-5, atol=1e-6 if dtype == "f4" else 1e-12
        )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("encoder", ["hot", "place", "mean"])
def test_strings(encoder: str) -> None:
    """Codes of many columns of strings are one matrix of the host, and are looked up together."""
    draw = np.random.default_rng(1)
    X = draw.choice(np.array(["a", "b", "c", "d"], object), (60, MANY_COLUMNS + 3))
    steps = [(f"t{j}", KINDS[encoder](j), [j]) for j in range(X.shape[1])]
    model = ColumnTransformer(steps).fit(X, draw.integers(0, 2, 60))
    compiled = hbc.convert(model, "numpy", X)
    assert "parts are computed together" in compiled.explain()
    rows = X.copy()
    rows[::7, ::2], rows[::5, 1::3] = "unknown", np.nan
    np.testing.assert_allclose(compiled.transform(rows), model.transform(rows), rtol=1e-12)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backend", ["tvm", "torch", "torchscript", "onnx"])
def test_backends(backend: str) -> None:
    if not hbc.backends()[backend]:
        pytest.skip(f"{backend} is not installed")
    draw = np.random.default_rng(2)
    X = np.abs(draw.normal(size=(50, 12)))
    kinds = ["scaler", "bins", "spline", "quantile"]
    model = ColumnTransformer([(f"t{j}", KINDS[kinds[j % 4]](0), [j]) for j in range(12)], n_jobs=1)
    model = ColumnTransformer([*model.transformers, ("more", KINDS["spline"](0), [0])]).fit(X)
    compiled = hbc.convert(model, backend)
    np.testing.assert_allclose(compiled.transform(X), model.transform(X), rtol=1e-12, atol=1e-14)


@pytest.mark.filterwarnings("ignore")
def test_an_error_names_the_column() -> None:
    X = np.arange(80.0).reshape(10, 8)
    model = ColumnTransformer([(f"t{j}", KBinsDiscretizer(3, encode="ordinal"), [j]) for j in range(8)]).fit(X)
    compiled = hbc.convert(model, "numpy")
    rows = X.copy()
    rows[4, 6] = np.nan
    with pytest.raises(hbc.InvalidInputError, match="column 6"):
        compiled.transform(rows)
