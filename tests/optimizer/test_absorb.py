"""Absorption into trees: every row reaches the source's leaf, with the pass and without it. Rows hold numbers at every cut and one ulp
beside it, NaN, infinities, zeros of both signs and subnormals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest
from installed import older
from lightgbm import LGBMRegressor
from random_trees import random_tree
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestRegressor
from sklearn.impute import SimpleImputer
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import (
    Binarizer,
    FunctionTransformer,
    KBinsDiscretizer,
    MaxAbsScaler,
    MinMaxScaler,
    OneHotEncoder,
    OrdinalEncoder,
    PowerTransformer,
    QuantileTransformer,
    RobustScaler,
    StandardScaler,
)

import hbc
from hbc.compiler.base import CompileOptions, load_compiler
from hbc.ir.graph import Graph, Input, Node
from hbc.ir.ranges import Range
from hbc.ir.types import NUMPY_DTYPES, Array, N
from hbc.ops import tensor as t
from hbc.ops.columns import Rank, SelectColumns
from hbc.ops.encoding import Lookup, OneHot
from hbc.ops.functions import Function
from hbc.ops.missing import Impute
from hbc.ops.scaling import Affine, Binarize, Clip, Standardize
from hbc.ops.tree import TreeEnsemble, join
from hbc.optimizer.columns.simplify import RemoveChecks
from hbc.optimizer.host import PlaceFunctions, ancestors
from hbc.optimizer.trees.absorb import NumbersIntoTrees
from hbc.optimizer.trees.cuts import Curves, Cuts, find_curve_cuts, find_cuts, of_ordinal, ordinal

F = 4
OFFSET, SCALE = np.array([0.1, -3e5, 0.0, 7.25]), np.array([1e-3, -17.7, 1e30, 3.0])
OFFSET32, SCALE32 = OFFSET.astype(np.float32), SCALE.astype(np.float32)
EDGES = np.sort(np.arange(9.0 * F).reshape(F, 9) % 7 - 3)
ZEROS = np.zeros(F)
scaled = Standardize(OFFSET, SCALE)


def with_indicators(x: Node) -> Node:
    return Affine(np.tile(SCALE, 2), np.tile(OFFSET, 2))(t.concat([Impute(OFFSET)(x), t.cast(t.isnan(x), "f64")]))


Chain = tuple[str, Callable[[Node], Node], str]
CHAINS: dict[str, Chain] = {  # the dtype of x, the operators between x and the trees, and what the pass leaves of them
    "scaled": ("f64", scaled, ""),
    "scaled in float32 by float64": ("f32", scaled, ""),
    "scaled in float32": ("f32", Standardize(OFFSET32, SCALE32), ""),
    "widened": ("f32", lambda x: t.cast(x, "f64"), ""),
    "narrowed, then scaled": ("f64", lambda x: scaled(t.cast(x, "f32")), "Cast"),
    "clipped": ("f32", lambda x: Clip(-1.0, 1.5)(Affine(SCALE, OFFSET)(x)), ""),
    "binary, and as it was": ("f64", lambda x: t.concat([x, Binarize(0.3, "f64")(x)]), ""),
    "imputed": ("f32", lambda x: Standardize(OFFSET, None)(Impute(OFFSET32)(x)), ""),
    "imputed, with indicators": ("f64", with_indicators, ""),
    "bins": ("f32", lambda x: scaled(t.cast(Rank(EDGES)(t.cast(x, "f64")), "f32")), ""),
    "integers": ("i64", lambda x: scaled(t.cast(x, "f32")), "Cast"),
    "in two ways": (
        "f32",
        lambda x: t.concat([t.cast(x, "f64"), scaled(t.cast(SelectColumns(np.array([3, 0, 1, 1]))(x), "f64"))]),
        "",
    ),
    "beside what stays": ("f32", lambda x: t.concat([scaled(x), Function("cos")(x)]), "Function Concat"),
    "known categories": ("f64", lambda x: scaled(Lookup(EDGES, 2 * EDGES + 1, ZEROS, -ZEROS, complete=True)(x)), ""),
    "above what stays": ("f64", lambda x: scaled(Function("log1p_abs")(x)), "Function"),
    "beside codes": (
        "f32",
        lambda x: t.concat([t.cast(scaled(x), "f64"), OneHot(np.arange(F), OFFSET32, "f64")(x)]),
        "OneHot Concat",
    ),
}


def numbers(dtype: str, rng: np.random.Generator, rows: int) -> Array:
    x = rng.normal(size=(rows, F)) * 10.0 ** rng.integers(-3, 7, (rows, F))
    return x.astype(NUMPY_DTYPES[dtype])


def random_graph(chain: Chain) -> Graph:
    """Trees behind a chain. Most of their thresholds are numbers that the chain gives."""
    dtype, build, _ = chain
    x = Input("X", dtype, (N, F))()
    y, rng = build(x), np.random.default_rng(0)
    values = Graph((x,), {"y": (y,)}).evaluate(numbers(dtype, rng, 200))["y"][0]
    grown = []
    for _ in range(30):
        tree = random_tree(rng, 20, values.shape[1], values.dtype.str[1:], np.arange(9.0)[:, None], missing=True)
        inner = np.flatnonzero((tree.feature >= 0) & (rng.random(len(tree.feature)) < 0.9))
        tree.threshold[inner] = values[rng.integers(len(values), size=len(inner)), tree.feature[inner]]
        grown.append(tree)
    return Graph((x,), {"apply": (replace(join(grown, np.zeros(1)), output="leaf")(y),)})


def absorb(graph: Graph, backend: str = "numpy", strategy: str = "auto") -> Graph:
    return NumbersIntoTrees(load_compiler(backend), CompileOptions(), strategy)(graph).graph.verify()


def trees_of(graph: Graph) -> Node:
    """The trees that add, where others give leaves."""
    found = [node for node in graph.nodes if isinstance(node.op, TreeEnsemble)]
    (node,) = [node for node in found if node.op.output == "sum"] or found
    return node


def beside(cuts: Array, dtype: str, rng: np.random.Generator, rows: int, infinite: bool = True) -> Array:
    """Rows of numbers at cuts, beside them, and special ones."""
    kind = NUMPY_DTYPES[dtype]
    if kind.kind == "i":
        finite = cuts[np.abs(cuts) < 2**62]
        near = finite.astype(kind)[:, None] + np.arange(-2, 3)
        return rng.choice(np.append(near.ravel(), [0, np.iinfo(kind).min, np.iinfo(kind).max]), (rows, F))
    cuts = np.unique(cuts.astype(kind))
    limits = np.finfo(kind)
    special = [np.nan, -0.0, 0.0, limits.smallest_subnormal, -limits.smallest_subnormal, limits.max, limits.min]
    with np.errstate(over="ignore"):
        near = [cuts, np.nextafter(cuts, kind.type(np.inf)), np.nextafter(cuts, kind.type(-np.inf))]
    pool = np.concatenate([*near, np.array(special, kind), np.array([np.inf, -np.inf], kind)])
    return rng.choice(pool if infinite else pool[~np.isinf(pool)], (rows, F))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CHAINS)
def test_leaves_are_the_same(name: str) -> None:
    before = random_graph(CHAINS[name])
    after = absorb(before)
    dtype, _, left = CHAINS[name]
    assert {type(node.op).__name__ for node in after.nodes} == {"Input", "TreeEnsemble", *left.split()}
    cuts = trees_of(after).op.threshold
    assert cuts.dtype == (np.float64 if dtype == "f64" and left != "Cast" else np.float32)
    X = beside(cuts, dtype, np.random.default_rng(1), 3000)
    np.testing.assert_array_equal(after.evaluate(X)["apply"][0], before.evaluate(X)["apply"][0])
    assert absorb(after) == after


STAY: dict[str, Chain] = {
    "floats are rounded": ("f64", lambda x: t.cast(x, "f32"), ""),
    "thresholds would be wider": ("f64", lambda x: t.cast(scaled(x), "f32"), ""),
    "an exponential, flat where its numbers are small": ("f64", Function("exp"), ""),
    "a cosine": ("f64", Function("cos"), ""),
    "unknown categories": ("f64", Lookup(EDGES, 2 * EDGES, ZEROS - 1, ZEROS), ""),
    "codes that do not rise": ("f64", Lookup(EDGES, np.abs(EDGES), ZEROS, ZEROS, complete=True), ""),
    "a scale of 0 makes NaN of infinities": ("f64", Standardize(None, np.zeros(F)), ""),
    "an offset of NaN": ("f64", Standardize(np.full(F, np.nan), None), ""),
    "nothing": ("f64", lambda x: x, ""),
    "chosen columns": ("f64", lambda x: t.concat([x, SelectColumns(np.array([2, 1]))(x)]), ""),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", STAY)
def test_it_must_not_fire(name: str) -> None:
    graph = random_graph(STAY[name])
    assert absorb(graph) == graph


@pytest.mark.filterwarnings("ignore")
def test_imputation_stays_where_trees_would_have_to_look_for_nan() -> None:
    """Imputation stays only for trees that run as tensor operators, and only if these do not look for NaN anyway."""
    graph = random_graph(CHAINS["imputed"])
    op = trees_of(graph).op
    never = replace(op, missing_left=np.zeros_like(op.missing_left))
    (x,) = trees_of(graph).inputs
    before = Graph(graph.inputs, {"apply": (never(x),)})
    for strategy, left in (("perf_tree_trav", {"Impute"}), ("scan", set())):
        after = absorb(before, "torch", strategy)
        assert {type(node.op).__name__ for node in after.nodes} == {"Input", "TreeEnsemble"} | left
    assert absorb(graph, "torch", "perf_tree_trav") == absorb(graph)


FUNCTIONS: dict[str, Callable[[Node], Node]] = {
    "log": Function("log"),
    "log2": Function("log2"),
    "log10": Function("log10"),
    "log1p": Function("log1p"),
    "sqrt": Function("sqrt"),
    "log1p, scaled": lambda x: Standardize(None, SCALE)(Function("log1p")(x)),
    "log, falling, expm1": lambda x: Function("expm1")(Affine(-ZEROS - 0.1, ZEROS)(Function("log")(x))),
    "scaled, tanh": lambda x: Function("tanh")(Affine(np.full(F, 1e-7), ZEROS)(x)),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "below", "dtype"),
    [(name, ("left", "right", "with 0")[(i + j) % 3], ("f32", "f64")[j]) for i, name in enumerate(FUNCTIONS) for j in (0, 1)],
)
def test_functions_computed_with_errors(name: str, below: str, dtype: str) -> None:
    """Each of the 300 floats on both sides of a cut goes to the same side as before. Where a logarithm is NaN, the trees see NaN."""
    rng = np.random.default_rng(0)
    x = Input("X", dtype, (N, F))()
    y = FUNCTIONS[name](x)
    graph = random_graph((dtype, lambda x: t.cast(FUNCTIONS[name](t.absolute(x)), "f64"), ""))
    op = trees_of(graph).op
    missing = {"left": np.ones(len(op.feature), bool), "right": np.zeros(len(op.feature), bool), "with 0": op.threshold >= 0}[
        below
    ]
    inner = (op.feature >= 0) & np.isfinite(op.threshold) & (op.threshold != 0)
    op = replace(op, threshold=np.where(inner, op.threshold, 0.7), missing_left=missing & (op.feature >= 0))
    before = Graph((x,), {"apply": (op(t.cast(y, "f64")),)})
    after = absorb(before)
    operators = {type(node.op).__name__ for node in after.nodes}
    assert "Function" not in operators
    if below == "left" and "scaled" not in name and name not in ("sqrt", "log, falling, expm1"):
        assert operators == {"Input", "TreeEnsemble"}
    kind = NUMPY_DTYPES[dtype]
    cuts = trees_of(after).op.threshold.astype(kind)
    cuts = cuts[np.isfinite(cuts)]
    near = of_ordinal(ordinal(rng.choice(cuts, 8_000)) + rng.integers(-300, 301, 8_000), kind).reshape(-1, F)
    X = np.concatenate([near, beside(cuts, dtype, rng, 1000), beside(np.array([-1.0, 0.0, 1.0]), dtype, rng, 200)])
    np.testing.assert_array_equal(after.evaluate(X)["apply"][0], before.evaluate(X)["apply"][0])


def test_floats_on_the_wrong_side_of_a_cut_are_found() -> None:
    one, ulp = 1.0, np.spacing(1.0)

    def falls_at_one(x: Array) -> Array:
        return np.where(x == one, one - 3 * ulp, x)

    def cuts_of(function: Callable[[Array], Array], threshold: Array) -> tuple[Cuts, Mapping[int, Mapping[float, float]]]:
        """The cuts of a function whose values are within 16 ulps (of 1) of a monotone function."""

        def enclose(_: Array, low: Array, high: Array) -> Range:
            return Range(function(low) - 16 * ulp, function(high) + 16 * ulp, np.zeros(len(low), bool))

        curves = Curves(lambda _, numbers: function(numbers), enclose)
        none = np.zeros(len(threshold), bool)
        return find_curve_cuts(curves, np.full(len(threshold), -np.inf), threshold, none)

    threshold = one + ulp * np.array([-4, -3, -2, -1, 0, 5])
    cuts, odd = cuts_of(falls_at_one, threshold)
    np.testing.assert_array_equal(cuts.found[[0, 4, 5]], True)
    assert set(odd) == set(np.flatnonzero(cuts.found)) - {0, 4, 5}
    for i in np.flatnonzero(cuts.found).tolist():
        numbers = one + ulp / 2 * np.arange(-20, 20)
        moved = np.array([odd.get(i, {}).get(x, x) for x in numbers.tolist()])
        np.testing.assert_array_equal(moved <= cuts.cut[i], falls_at_one(numbers) <= threshold[i])
    flat, _ = cuts_of(np.tanh, np.array([1e-320, 0.5, np.nextafter(1.0, 0)]))
    np.testing.assert_array_equal(flat.found, [False, True, False])


@pytest.mark.parametrize("steps", [(-1,), (-1, 0, 4), (-3, -1, 0, 4)])
def test_single_floats_are_moved(steps: tuple[int, ...]) -> None:
    """A curve that falls at a single float is mended by taking this float for another. If two tests disagree about it, the curve stays."""
    ulp = np.spacing(1.0)
    x = Input("X", "f64", (N, F))()
    falls = t.where(t.equal(t.mul(x, 2.0), 2.0), 1 - 3 * ulp, x)
    op = trees_of(random_graph(CHAINS["scaled"])).op
    threshold = np.where(op.feature >= 0, 1 + ulp * np.random.default_rng(0).choice(steps, len(op.feature)), 0)
    before = Graph((x,), {"apply": (replace(op, threshold=threshold)(falls),)})
    after = absorb(before)
    assert ("Mul" not in [type(node.op).__name__ for node in after.nodes]) == (len(steps) < 4)
    X = 1 + ulp / 2 * np.random.default_rng(1).integers(-20, 20, (2000, F))
    np.testing.assert_array_equal(after.evaluate(X)["apply"][0], before.evaluate(X)["apply"][0])


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_places_of_floats(dtype: str) -> None:
    kind = np.dtype(dtype)
    info = np.finfo(kind)
    ascending = np.array(
        [-np.inf, info.min, -1, -info.smallest_subnormal, -0.0, 0.0, info.smallest_subnormal, 1, info.max, np.inf], kind
    )
    ordinals = ordinal(ascending)
    assert (np.diff(ordinals) > 0).all()
    assert (np.diff(ordinals)[[0, 3, 4, 5, 8]] == 1).all()
    back = of_ordinal(ordinals, kind)
    np.testing.assert_array_equal(back.view(f"i{kind.itemsize}"), ascending.view(f"i{kind.itemsize}"))


def test_what_is_no_cut_is_not_found() -> None:
    """No cut is found for an interval, for a curve that tells zeros apart, and for infinities that go another way than large numbers."""
    kinds: list[Callable[[Array], Array]] = [
        lambda v: v == np.inf,
        lambda v: v == -np.inf,
        lambda v: np.abs(v) == np.inf,
        lambda v: np.signbit(v) & ~np.isnan(v),
        lambda v: np.isnan(v),
        lambda v: ~np.isnan(v),
        lambda v: v >= 3,
        lambda v: (v >= 3) & (v < np.inf),
    ]
    cuts = find_cuts(
        lambda values: np.array([kind(v) for kind, v in zip(kinds, values, strict=True)]), len(kinds), np.dtype("f8")
    )
    largest = np.finfo("f8").max
    np.testing.assert_array_equal(cuts.found, [True, True, False, False, True, True, True, False])
    np.testing.assert_array_equal(cuts.cut[cuts.found], [largest, -np.inf, np.inf, np.inf, np.nextafter(3.0, 0.0)])
    np.testing.assert_array_equal(cuts.swapped[cuts.found], [True, False, True, False, True])
    np.testing.assert_array_equal(cuts.missing[cuts.found], [True, False, False, False, True])


# --- curves of one column that several operators make ---------------------------------------------------------------------


def signed_logarithm(x: Array) -> Array:
    return np.where(x > 0, np.log1p(np.abs(x)), -np.log1p(np.abs(x)))


CURVES = {
    "powers": lambda: PowerTransformer(),
    "powers, not scaled": lambda: PowerTransformer(standardize=False),
    "powers of positive numbers": lambda: PowerTransformer("box-cox"),
    "quantiles": lambda: QuantileTransformer(n_quantiles=60),
    "quantiles to normal": lambda: QuantileTransformer(n_quantiles=60, output_distribution="normal"),
    "a function of the user": lambda: FunctionTransformer(signed_logarithm),
    "powers of quantiles": lambda: make_pipeline(QuantileTransformer(n_quantiles=60), StandardScaler(), PowerTransformer()),
}


def curved(name: str, dtype: str) -> tuple[Pipeline, Array, Graph]:
    """(a pipeline of a curve and trees, the data that it was fitted on, its graph). Columns have negative, repeated and missing numbers."""
    rng = np.random.default_rng(7)
    X = rng.normal(size=(400, F)) * [1, 100, 1e-3, 5] + [0, 50, 0, -9]
    X[:, 3] = np.round(X[:, 3])
    y = np.abs(X) @ (1 / np.abs(X).max(axis=0)) + 0.1 * rng.normal(size=400)
    X = (np.abs(X) + 0.01 if "positive" in name else X).astype(dtype)
    X[rng.random(X.shape) < 0.05] = np.nan
    trees = LGBMRegressor(n_estimators=10, min_child_samples=5, verbose=-1, n_jobs=1)
    if dtype == "f4":
        trees = HistGradientBoostingRegressor(max_iter=10, random_state=0)
    model = make_pipeline(CURVES[name](), trees).fit(X, y)
    kind = "f32" if dtype == "f4" else "f64"
    (graph,) = (v.graph for v in hbc.convert(model, "numpy").variants.values() if v.graph.inputs[0].type.dtype == kind)
    return model, X, PlaceFunctions(load_compiler("numpy"))(RemoveChecks()(graph)).graph


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", ["f8", "f4"])
@pytest.mark.parametrize("name", CURVES)
def test_curves_of_several_operators(name: str, dtype: str) -> None:
    """Each of the 300 floats on both sides of a cut goes to the same side as before and in the source. Nothing of the curve is left."""
    model, X, before = curved(name, dtype)
    after = absorb(before)
    ahead = {type(node.op).__name__ for node in ancestors(after, list(trees_of(after).inputs))}
    assert ahead <= ({"Input", "Constant", "Less", "Where"} if "positive" in name else {"Input"})
    cuts = trees_of(after).op.threshold.astype(dtype)
    cuts = cuts[np.isfinite(cuts) & (np.abs(cuts) < 1e30)]
    rng = np.random.default_rng(8)
    near = of_ordinal(ordinal(rng.choice(cuts, 6_000)) + rng.integers(-300, 301, 6_000), X.dtype).reshape(-1, F)
    far = X[rng.integers(len(X), size=(1000, F)), np.arange(F)] * X.dtype.type(1.5)
    special = [] if "positive" in name else [beside(cuts, before.inputs[0].type.dtype, rng, 500)]
    for each in (near, X, far, *special):
        np.testing.assert_array_equal(after.evaluate(each)["predict"][0], before.evaluate(each)["predict"][0])
        inside = np.abs(np.nan_to_num(each, posinf=np.inf)) <= 2 * np.nanmax(np.abs(X), axis=0)  # others may overflow
        if "positive" in name:
            inside &= np.nan_to_num(each, nan=1.0) > 1e-4
        if "powers" in name and "positive" not in name and older("sklearn", 1, 9) and each is not X and each is not far:
            continue  # its powers are numpy's, some ulps away: it may put the floats beside a cut elsewhere
        rows = each[inside.all(axis=1)]
        np.testing.assert_allclose(after.evaluate(rows)["predict"][0], model.predict(rows), rtol=1e-9, atol=1e-9)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "function", [lambda x: x * np.abs(x) - x, lambda x: np.where(x < 1, x, 2 - x), lambda x: np.sin(x) + x]
)
def test_curves_that_rise_and_fall_stay(function: Callable[[Array], Array]) -> None:
    rng = np.random.default_rng(7)
    X = rng.normal(size=(400, F))
    trees = LGBMRegressor(n_estimators=10, min_child_samples=5, verbose=-1, n_jobs=1)
    model = make_pipeline(FunctionTransformer(function), trees).fit(X, function(X).sum(axis=1))
    compiled = hbc.convert(model, "numpy")
    (variant,) = (v for v in compiled.variants.values() if v.graph.inputs[0].type.dtype == "f64")
    graph = RemoveChecks()(variant.graph)
    assert absorb(graph) == graph
    np.testing.assert_allclose(compiled.predict(X), model.predict(X), rtol=1e-12)


# --- whole pipelines against their source --------------------------------------------------------------------------------

PIPELINES = {
    "standard": lambda: [StandardScaler()],
    "imputed, min-max": lambda: [SimpleImputer(add_indicator=True), MinMaxScaler(clip=True)],
    "robust, max-abs": lambda: [RobustScaler(), MaxAbsScaler()],
    "median, bins": lambda: [
        SimpleImputer(strategy="median"),
        KBinsDiscretizer(6, encode="ordinal", quantile_method="averaged_inverted_cdf"),
    ],
    "binary": lambda: [StandardScaler(), Binarizer(threshold=0.2)],
    "logarithms": lambda: [FunctionTransformer(np.square), FunctionTransformer(np.log1p), StandardScaler()],
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize(("name", "backend"), [*((name, "numpy") for name in PIPELINES), ("imputed, min-max", "tvm")])
def test_decisions_are_the_source_s(name: str, dtype: str, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tvm" if backend == "tvm" else "numpy")
    rng = np.random.default_rng(2)
    X = rng.normal(size=(300, F)) * [1, 100, 1e-3, 5] + [0, 50, 0, -9]
    steps = PIPELINES[name]()
    if isinstance(steps[0], SimpleImputer):
        X[rng.random(X.shape) < 0.1] = np.nan
    X = X.astype(dtype)
    # A forest's thresholds are float32, LightGBM's float64.
    forest = RandomForestRegressor(10, max_depth=6, random_state=0)
    trees = forest if dtype == "f4" else LGBMRegressor(n_estimators=10, min_child_samples=5, verbose=-1, n_jobs=1)
    model = make_pipeline(*steps, trees).fit(X, rng.normal(size=300))
    on = hbc.convert(model, backend, threads=1)
    kind = "f32" if dtype == "f4" else "f64"
    (variant,) = (v for v in on.variants.values() if v.graph.inputs[0].type.dtype == kind)
    assert "NumbersIntoTrees" in [record.name for record in variant.plan.records if record.changed]
    cuts = trees_of(absorb(RemoveChecks()(variant.graph))).op.threshold
    rows = beside(cuts[np.abs(cuts) < 1e30], kind, rng, 2000, infinite=False)
    rows = np.where(np.abs(rows) > 1e30, rows.dtype.type(1), rows)
    if isinstance(steps[-1], Binarizer):  # it takes no NaN
        rows = np.nan_to_num(rows)
    expected = model.predict(rows)
    np.testing.assert_allclose(on.predict(rows), expected, rtol=1e-9, atol=1e-9)  # of fixed point
    monkeypatch.setenv("HBC_WITHOUT", "NumbersIntoTrees")
    np.testing.assert_allclose(hbc.convert(model, backend, threads=1).predict(rows), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", ["f4", "f8", "i8"])
def test_ordinal_codes_of_known_numbers(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Codes are absorbed if they rise with the numbers; they do not if unknown numbers have a code."""
    rng = np.random.default_rng(4)
    values = np.array([-7, -1, 0, 3, 2**24, 5, 11] if dtype == "i8" else [-7.5, -1, 0, 0.1, 1e30, 5, np.nan]).astype(dtype)
    X = rng.choice(values, (400, F))
    y = rng.normal(size=400)
    for options, fires in (({}, True), ({"handle_unknown": "use_encoded_value", "unknown_value": -1}, False)):
        trees = LGBMRegressor(n_estimators=10, min_child_samples=5, verbose=-1, n_jobs=1)
        model = make_pipeline(OrdinalEncoder(**options), trees).fit(X, y)
        on = hbc.convert(model, "numpy")
        (variant,) = (
            v for v in on.variants.values() if v.graph.inputs[0].type.dtype == {"f4": "f32", "f8": "f64", "i8": "i64"}[dtype]
        )
        assert ("Lookup" not in [type(node.op).__name__ for node in variant.plan.graph.nodes]) == fires
        unknown = X.copy()
        unknown[7, 2] = 4
        np.testing.assert_allclose(on.predict(X), model.predict(X), rtol=1e-12)
        if fires:
            with pytest.raises(ValueError, match="expected one of the categories"):
                on.predict(unknown)
        else:
            np.testing.assert_allclose(on.predict(unknown), model.predict(unknown), rtol=1e-12)
        with monkeypatch.context() as patched:
            patched.setenv("HBC_WITHOUT", "NumbersIntoTrees")
            np.testing.assert_allclose(hbc.convert(model, "numpy").predict(X), model.predict(X), rtol=1e-12)


# --- categories ---------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", ["f4", "f8", "i8"])
def test_codes_are_tested_as_they_came(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fractions, negative and large numbers are not categories; NaN can be one."""
    pytest.importorskip("tvm")
    rng = np.random.default_rng(3)
    codes = rng.integers(0, 9, (400, F)).astype(dtype)
    if dtype != "i8":
        codes[rng.random(codes.shape) < 0.1] = np.nan
    encoder = ColumnTransformer(
        [("scaled", StandardScaler(), [0, 1]), ("hot", OneHotEncoder(handle_unknown="ignore", sparse_output=False), [3, 1, 2])]
    )
    trees = LGBMRegressor(n_estimators=20, num_leaves=15, verbose=-1, n_jobs=1, min_child_samples=5)
    model = make_pipeline(encoder, trees).fit(codes, np.nan_to_num(codes).sum(axis=1) + rng.normal(size=400))
    on = hbc.convert(model, threads=1)
    kind = {"f4": "f32", "f8": "f64", "i8": "i64"}[dtype]
    (variant,) = (v for v in on.variants.values() if v.graph.inputs[0].type.dtype == kind)
    operators, reached = set(), list(variant.plan.graph.outputs["predict"])
    while reached:
        node = reached.pop()
        operators.add(type(node.op).__name__)
        reached += node.inputs
    assert "CategoryPlanes" in operators
    assert not {"Standardize", "OneHot", "Equal", "Div"} & operators
    near = np.concatenate([np.arange(-2, 11), [2**20, 2**20 + 3, 2**24 + 1, 2**31, -(2**31)]]).astype(dtype)
    if dtype != "i8":
        fractions = [
            near - near.dtype.type(0.5),
            np.nextafter(near, near.dtype.type(-9)),
            np.nextafter(near, near.dtype.type(99)),
        ]
        near = np.concatenate([near, *fractions, np.array([np.nan, -0.0, 1e-40, 1e30], dtype)])
    rows = rng.choice(near, (2000, F))
    expected = model.predict(rows)
    np.testing.assert_allclose(on.predict(rows), expected, rtol=1e-9, atol=1e-9)
    for few in (1, 3, 40):
        np.testing.assert_allclose(on.predict(rows[:few]), expected[:few], rtol=1e-9, atol=1e-9)
    monkeypatch.setenv("HBC_WITHOUT", "NumbersIntoTrees,CategoriesIntoTrees")
    np.testing.assert_allclose(hbc.convert(model, threads=1).predict(rows), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.filterwarnings("ignore")
def test_float32_trees_take_float64_thresholds_where_numpy_would_compute_in_front_of_them() -> None:
    """The normal quantile has the source's bits in numpy only. The 300 floats beside each cut decide as the source does."""
    pytest.importorskip("tvm")
    rng = np.random.default_rng(4)
    X = rng.normal(size=(400, F))
    quantiles = QuantileTransformer(n_quantiles=60, output_distribution="normal")
    model = make_pipeline(quantiles, RandomForestRegressor(8, max_depth=6, random_state=0)).fit(X, rng.normal(size=400))
    compiled = hbc.convert(model, "tvm", X[:1], threads=1)
    (variant,) = (v for v in compiled.variants.values() if v.graph.inputs[0].type.dtype == "f64")
    assert not variant.plan.hosted
    cuts = trees_of(variant.plan.graph).op.threshold
    assert cuts.dtype == np.float64
    rows = of_ordinal(ordinal(rng.choice(cuts, 6_000)) + rng.integers(-300, 301, 6_000), X.dtype).reshape(-1, F)
    for each in (rows, X, 3 * X):
        np.testing.assert_allclose(compiled.predict(each), model.predict(each), rtol=1e-9, atol=1e-9)  # of fixed point
    scaled = make_pipeline(StandardScaler(), RandomForestRegressor(2, random_state=0)).fit(X, X[:, 0])
    (variant,) = (v for v in hbc.convert(scaled, "tvm", X[:1]).variants.values() if v.graph.inputs[0].type.dtype == "f64")
    assert trees_of(variant.plan.graph).op.threshold.dtype == np.float32  # others stay, since float64 is slower
