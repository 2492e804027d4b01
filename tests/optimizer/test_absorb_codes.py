"""Codes of numbers before trees, also of unknown numbers. Whatever the pass puts in place of the codes, every row reaches the leaf of the
source: for known numbers, one ulp beside them, halves, negative and huge numbers, infinities and NaN."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from lightgbm import LGBMClassifier, LGBMRegressor
from random_trees import random_tree
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler, TargetEncoder

import hbc
from hbc.compiler.numpy import NumpyCompiler
from hbc.ir.graph import Graph, Input, Node
from hbc.ir.types import NUMPY_DTYPES, Array, N
from hbc.ops import tensor as t
from hbc.ops.columns import Rank
from hbc.ops.encoding import Lookup, OneHot
from hbc.ops.tree import TreeEnsemble, join
from hbc.optimizer.trees.narrow_codes import NarrowCodes

F = 4
INF, NAN = np.inf, np.nan


def near(known: Array) -> Array:
    """The known numbers and numbers beside them, in their dtype."""
    kind = known.dtype
    if kind.kind == "i":
        return np.unique([*known, *(known - 1), *(known + 1), 2**20, -(2**20), 2**31 - 1, -(2**31)]).astype(kind)
    special = [NAN, INF, -INF, -0.0, np.finfo(kind).smallest_subnormal, 2.0**20, 2.0**31, -(2.0**31), 1e18, -1e30, 1e30]
    beside = [
        np.nextafter(known, kind.type(INF)),
        np.nextafter(known, kind.type(-INF)),
        known + kind.type(0.5),
        known - kind.type(1),
    ]
    return np.concatenate([known, *beside, np.array(special, kind)])


# --- one look-up a value -------------------------------------------------------------------------------------------------

LOOKUPS: dict[str, tuple[list[list[float]], list[list[float]], list[float], list[float], bool]] = {
    "integers": ([[0, 1, 2, 3], [5, 7, 8, 12]], [[3, 1, 0, 2], [5, 5, 6, 9]], [-1, 7], [-2, 7], True),
    "negative ones": ([[-9, -8, -3, 0], [-2, -1, 0, 1]], [[3, 1, 0, 2], [0, 1, 2, 3]], [-1, 7], [4, 7], True),
    "few in one column": ([[0, 1, 2, 3], [4, 4, 4, 4]], [[3, 1, 0, 2], [8, 9, 9, 9]], [-1, 9], [-1, -3], True),
    "padded with the largest": ([[0, 1, 2, 3], [4, INF, INF, INF]], [[3, 1, 0, 2], [8, 9, 9, 9]], [-1, 9], [-1, -3], True),
    "none in one column": ([[0, 1, 2, 3], [INF, INF, INF, INF]], [[3, 1, 0, 2], [9, 9, 9, 9]], [-1, 9], [-1, -3], True),
    "codes that are NaN": ([[0, 1, 2, 3], [0, 1, 2, 3]], [[3, NAN, 0, 2], [0, NAN, 2, 3]], [-1, NAN], [NAN, 1], True),
    "large": ([[2**20 - 2, 2**20 - 1], [-2, -1]], [[1, 2], [3, 4]], [0, 0], [0, 0], True),
    "larger": ([[2**20 - 1, 2**20], [1, 2]], [[1, 2], [3, 4]], [0, 0], [0, 0], False),
    "far from one another": ([[0, 1, 2, 16], [0, 1, 2, 3]], [[3, 1, 0, 2], [3, 1, 0, 2]], [-1, 9], [-1, 9], False),
    "fractions": ([[0, 0.5, 1, 2], [0, 1, 2, 3]], [[3, 1, 0, 2], [3, 1, 0, 2]], [-1, 9], [-1, 9], False),
    "infinity": ([[0, 1, 2, INF], [0, 1, 2, 3]], [[3, 1, 0, 2], [3, 1, 0, 2]], [-1, 9], [-1, 9], False),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", ["f32", "f64", "i32", "i64"])
@pytest.mark.parametrize("name", LOOKUPS)
def test_integers_near_one_another_are_places(name: str, dtype: str) -> None:
    categories, codes, unknown, missing, direct = LOOKUPS[name]
    kind = NUMPY_DTYPES[dtype]
    values = np.array(categories)
    if kind.kind == "i":
        if name in ("fractions", "infinity"):
            pytest.skip("no integers")
        values = np.where(values == INF, np.iinfo(kind).max, values.clip(None, 2**40)) if (values == INF).any() else values
        known = np.array(categories)[np.array(categories) < INF].astype(kind)
        table = np.where(np.array(categories) == INF, 0, values).astype(kind)
        table[np.array(categories) == INF] = np.iinfo(kind).max
    else:
        table = values.astype(kind)
        known = np.unique(table[table < INF])
    op = Lookup(table, np.array(codes, float), np.array(unknown, float), np.array(missing, float))
    x = Input("X", dtype, (N, 2))()
    lowered = Graph((x,), {"transform": (op.lower(x),)})
    assert any(isinstance(node.op, Rank) for node in lowered.nodes) != direct
    X = np.random.default_rng(0).choice(near(np.unique(known)), (2000, 2))
    np.testing.assert_array_equal(lowered.evaluate(X)["transform"][0], op.evaluate(X))


# --- places instead of codes ---------------------------------------------------------------------------------------------

KNOWN = np.array([[-3, 0.1, 2, 5, 1e30], [0, 1, 2, 3, INF], [-1.5, 4, 4.5, 7, 9], [0, 1, 2, 3, 4]])
CODES = np.array([[0.3, -7, NAN, 1e-320, 2], [0, 1, 2, 3, -1], [1 / 3, 1e300, -1e300, 0.1, 0.2], [INF, -INF, 0, -0.0, 5]])
UNKNOWN, MISSING = np.array([0.25, -1, NAN, 7]), np.array([NAN, 3, 0.1, -2])


def lookup(dtype: str) -> Lookup:
    return Lookup(KNOWN.astype(NUMPY_DTYPES[dtype]), CODES, UNKNOWN, MISSING)


def hot(x: Node) -> Node:
    return OneHot(np.array([0, 1]), KNOWN[:2, 1].astype(NUMPY_DTYPES[x.type.dtype]), "f64")(x)


def of_classes(x: Node) -> Node:
    """The graph of a TargetEncoder for several classes: rows of a table, side by side."""
    table = np.random.default_rng(5).normal(size=(6, 3))
    places = Lookup(KNOWN.astype(np.float32), np.tile(np.arange(5), (F, 1)), np.full(F, 5), np.full(F, 5))(x)
    return t.reshape(t.take(table, places, axis=0), "N", 3 * F)


def of_table(x: Node) -> Node:
    """The graph of an encoder of strings behind the places of one column."""
    place = t.cast(t.less(x, 0.5), "i32")
    one = t.take(place, np.array([1]), axis=1)
    return t.take(np.array([0.1, 1e300]), one, axis=0)


Picture = tuple[str, Callable[[Node], Node]]
FIRES: dict[str, Picture] = {  # the dtype of x, and what the trees read of it
    "codes alone": ("f32", lambda x: lookup("f32")(x)),
    "codes of float64": ("f64", lambda x: lookup("f64")(x)),
    "compared in float64": ("f32", lambda x: lookup("f64")(t.cast(x, "f64"))),
    "beside numbers": ("f32", lambda x: t.concat([t.cast(x, "f64"), lookup("f32")(x)])),
    "beside one-hot codes": ("f32", lambda x: t.concat([hot(x), lookup("f32")(x), t.cast(x, "f64")])),
    "one-hot codes compared in float64": ("f32", lambda x: t.concat([hot(t.cast(x, "f64")), lookup("f32")(x)])),
    "several classes": ("f32", lambda x: t.concat([of_classes(x), t.cast(x, "f64")])),
    "a table": ("f32", lambda x: t.concat([of_table(x), t.cast(x, "f64")])),
}
STAYS: dict[str, Picture] = {
    "numbers of float64": ("f64", lambda x: t.concat([x, lookup("f64")(x)])),
    "one-hot codes of float64": ("f64", lambda x: t.concat([hot(x), lookup("f64")(x)])),
    "no codes": ("f32", lambda x: t.concat([t.cast(x, "f64"), hot(x)])),
    "codes of float32 already": ("f32", lambda x: t.cast(lookup("f32")(x), "f32")),
}


def trees_on(picture: Picture) -> Graph:
    """Trees on a picture. Most of their thresholds are numbers that occur in their input."""
    dtype, build = picture
    x = Input("X", dtype, (N, F))()
    y, rng = build(x), np.random.default_rng(0)
    values = Graph((x,), {"y": (y,)}).evaluate(rows_for(dtype, rng, 300))["y"][0]
    grown = []
    for _ in range(30):
        tree = random_tree(rng, 20, values.shape[1], values.dtype.str[1:], np.arange(9.0)[:, None], missing=True)
        inner = np.flatnonzero((tree.feature >= 0) & (rng.random(len(tree.feature)) < 0.8))
        chosen = values[rng.integers(len(values), size=len(inner)), tree.feature[inner]]
        tree.threshold[inner] = np.where(np.isnan(chosen), tree.threshold[inner], chosen)
        moved = inner[rng.random(len(inner)) < 0.3]
        tree.threshold[moved] = np.nextafter(tree.threshold[moved], rng.choice([-INF, INF], len(moved)))
        grown.append(tree)
    return Graph((x,), {"apply": (replace(join(grown, np.zeros(1)), output="leaf")(y),)})


def rows_for(dtype: str, rng: np.random.Generator, rows: int) -> Array:
    known = KNOWN[np.isfinite(KNOWN)].astype(NUMPY_DTYPES[dtype])
    return rng.choice(near(known), (rows, F))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FIRES)
def test_leaves_are_the_same(name: str) -> None:
    before = trees_on(FIRES[name])
    after, notes = NarrowCodes()(before)
    after.verify()
    (trees,) = [node for node in after.nodes if isinstance(node.op, TreeEnsemble)]
    assert trees.op.threshold.dtype == np.float32
    assert len(notes) == 1
    X = rows_for(FIRES[name][0], np.random.default_rng(1), 3000)
    np.testing.assert_array_equal(after.evaluate(X)["apply"][0], before.evaluate(X)["apply"][0])
    assert NarrowCodes()(after).graph == after


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", STAYS)
def test_it_must_not_fire(name: str) -> None:
    graph = trees_on(STAYS[name])
    assert NarrowCodes()(graph).graph == graph


@pytest.mark.filterwarnings("ignore")
def test_codes_that_others_read_stay() -> None:
    """Codes stay if something else reads them, because they would then be looked up twice. Two ensembles can share places."""
    graph = trees_on(FIRES["codes alone"])
    (node,) = graph.outputs["apply"]
    other = replace(node.op, threshold=node.op.threshold + 0.5)(*node.inputs)  # type: ignore[type-var, attr-defined]
    both = NarrowCodes()(Graph(graph.inputs, {"apply": (node,), "predict": (other,)})).graph.verify()
    assert [type(n.op).__name__ for n in both.nodes].count("Lookup") == 1
    assert all(n.op.threshold.dtype == np.float32 for n in both.nodes if isinstance(n.op, TreeEnsemble))
    shared = Graph(graph.inputs, {"apply": (node,), "transform": node.inputs})
    assert NarrowCodes()(shared).graph == shared


# --- whole pipelines against their source --------------------------------------------------------------------------------

SCORES = {"predict": LGBMRegressor, "predict_proba": LGBMClassifier}
ORDINAL = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
ORDINAL_NAN = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=NAN, encoded_missing_value=-2)
RARE = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1, min_frequency=30)
PIPELINES: dict[str, tuple[Any, str, int]] = {  # an encoder, the method, and the number of classes
    "ordinal": (ORDINAL, "predict", 0),
    "ordinal, unknown is NaN": (ORDINAL_NAN, "predict", 0),
    "ordinal, rare ones together": (RARE, "predict", 0),
    "target": (TargetEncoder(random_state=0), "predict", 0),
    "target of two classes": (TargetEncoder(random_state=0), "predict_proba", 2),
    "target of three classes": (TargetEncoder(random_state=0), "predict_proba", 3),
}


def data(values: Array, classes: int) -> tuple[Array, Array]:
    """Two columns of numbers, three of categories."""
    rng = np.random.default_rng(3)
    X = np.concatenate([rng.normal(size=(500, 2)), rng.choice(values, (500, 3))], axis=1).astype(values.dtype)
    effect = dict(zip(np.nan_to_num(values).tolist(), rng.permutation(len(values)).tolist(), strict=True))
    y = X[:, 0] + np.vectorize(effect.get)(np.nan_to_num(X[:, 2:])).sum(axis=1) + rng.normal(size=500)
    if classes:
        y = np.digitize(y, np.quantile(y, np.arange(1, classes) / classes))
    return X, y


def rows_near(X: Array, values: Array) -> Array:
    rng = np.random.default_rng(4)
    beside = near(values[~np.isnan(values)] if values.dtype.kind == "f" else values)
    if X.dtype.kind == "f":
        beside = beside[~np.isinf(beside)]  # neither encoder takes one
    rows = np.concatenate([rng.choice(X[:, :2].ravel(), (1500, 2)), rng.choice(beside, (1500, 3))], axis=1)
    return rows.astype(X.dtype)


VALUES = {
    "integers": [0, 1, 2, 3, 4, 7],
    "fractions, negative and large": [-7, -0.5, 0.1, 5, 1e9, 1e30],
    "missing": [0, 1, 2, 3, 8, NAN],
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", ["f4", "f8", "i8"])
@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("name", PIPELINES)
def test_decisions_are_the_source_s(name: str, kind: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, method, classes = PIPELINES[name]
    if dtype == "i8" and kind != "integers":
        pytest.skip("no integers")
    values = np.array(VALUES[kind]).astype(dtype)
    X, y = data(values, classes)
    columns = ColumnTransformer([("numbers", StandardScaler(), [0, 1]), ("codes", encoder, [2, 3, 4])])
    trees = SCORES[method](n_estimators=10, num_leaves=15, min_child_samples=5, verbose=-1, n_jobs=1)
    model = make_pipeline(columns, trees).fit(X, y)
    rows = rows_near(X, values)
    expected = getattr(model, method)(rows)
    on = hbc.convert(model, "numpy")
    np.testing.assert_allclose(getattr(on, method)(rows), expected, rtol=1e-9, atol=1e-9)
    name_of_kind = {"f4": "f32", "f8": "f64", "i8": "i64"}[dtype]
    (variant,) = (v for v in on.variants.values() if v.graph.inputs[0].type.dtype == name_of_kind)
    fired = [record.name for record in variant.plan.records if record.changed]
    assert ("NarrowCodes" in fired) == (dtype == "f4")
    monkeypatch.setenv("HBC_WITHOUT", "NarrowCodes,CategoriesIntoTrees")
    np.testing.assert_allclose(getattr(hbc.convert(model, "numpy"), method)(rows), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "trees", [HistGradientBoostingRegressor(max_iter=10), RandomForestRegressor(10, max_depth=6, random_state=0)]
)
def test_scaled_codes(trees: Any) -> None:
    """Operators between codes and trees move into the thresholds first."""
    values = np.array(VALUES["integers"], np.float32)
    X, y = data(values, 0)
    model = make_pipeline(
        ColumnTransformer([("codes", ORDINAL, [2, 3, 4])], remainder="passthrough"), StandardScaler(), trees
    ).fit(X, y)
    rows = rows_near(X, values)
    rows = rows[np.isfinite(rows).all(axis=1)]
    np.testing.assert_allclose(hbc.convert(model, "numpy").predict(rows), model.predict(rows), rtol=1e-9, atol=1e-9)


@pytest.mark.filterwarnings("ignore")
def test_codes_beside_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    """One-hot codes are still tested as sets, and all numbers are compared in float32."""
    monkeypatch.setattr(NumpyCompiler, "supports", lambda *_: True)
    monkeypatch.setattr(NumpyCompiler, "choose_strategy", lambda *_: ("scan", "the test says so"))
    values = np.array(VALUES["missing"], np.float32)
    X, y = data(values, 0)
    hots = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    columns = ColumnTransformer([("hot", hots, [2]), ("codes", ORDINAL, [3, 4])], remainder="passthrough")
    model = make_pipeline(columns, LGBMRegressor(n_estimators=30, num_leaves=15, verbose=-1, n_jobs=1)).fit(X, y)
    rows = rows_near(X, values)
    expected = model.predict(rows)
    on = hbc.convert(model, "numpy")
    np.testing.assert_allclose(on.predict(rows), expected, rtol=1e-9, atol=1e-9)
    (variant,) = (v for v in on.variants.values() if v.graph.inputs[0].type.dtype == "f32")
    nodes = variant.plan.graph.nodes
    assert "CategoryPlanes" in [type(node.op).__name__ for node in nodes]
    assert {node.op.threshold.dtype for node in nodes if isinstance(node.op, TreeEnsemble)} == {np.dtype("float32")}
    monkeypatch.setenv("HBC_WITHOUT", "NarrowCodes,CategoriesIntoTrees")
    np.testing.assert_allclose(hbc.convert(model, "numpy").predict(rows), expected, rtol=1e-9, atol=1e-9)
