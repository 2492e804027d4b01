"""The training data that reached each node of a tree (TreeEnsemble.cover): the source's, kept in files, unknown to passes and compilers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import GradientBoostingRegressor, HistGradientBoostingRegressor, RandomForestRegressor
from sklearn.tree import DecisionTreeClassifier

import hbc
from hbc.ir.lazy_graph import LazyGraph
from hbc.ops.tree import TreeEnsemble

RNG = np.random.default_rng(0)
X = RNG.normal(size=(300, 4))
Y = X[:, 0] + X[:, 1] * X[:, 2]
WEIGHTS = RNG.integers(1, 4, 300).astype(float)


def lightgbm(**options: Any) -> Any:
    return pytest.importorskip("lightgbm").LGBMRegressor(n_estimators=4, verbose=-1, **options).fit(X, Y)


def xgboost(**options: Any) -> Any:
    return pytest.importorskip("xgboost").XGBRegressor(n_estimators=4, max_depth=4, **options).fit(X, Y)


def catboost(**options: Any) -> Any:
    cls = pytest.importorskip("catboost").CatBoostRegressor
    return cls(iterations=4, depth=4, verbose=0, allow_writing_files=False, **options).fit(X, Y)


MODELS: dict[str, Any] = {
    "tree, weighted": lambda: DecisionTreeClassifier(max_depth=4).fit(X, Y > 0, sample_weight=WEIGHTS),
    "forest": lambda: RandomForestRegressor(4, max_depth=5, random_state=0).fit(X, Y),
    "gradient boosting": lambda: GradientBoostingRegressor(n_estimators=4).fit(X, Y),
    "histograms": lambda: HistGradientBoostingRegressor(max_iter=4).fit(X, Y),
    "LightGBM": lightgbm,
    "LightGBM, linear leaves": lambda: lightgbm(linear_tree=True),
    "XGBoost": xgboost,
    "XGBoost, pruned": lambda: xgboost(gamma=20.0),
    "XGBoost, dart": lambda: xgboost(booster="dart"),
    "CatBoost": catboost,
    "CatBoost, not oblivious": lambda: catboost(grow_policy="Lossguide"),
}


def ensembles(graph: Any) -> list[TreeEnsemble]:
    return [node.op for node in graph.nodes if isinstance(node.op, TreeEnsemble)]


@pytest.mark.parametrize("name", MODELS)
def test_covers_are_the_sources(name: str, tmp_path: Path) -> None:
    compiled = hbc.convert(MODELS[name](), "numpy")
    compiled.save(tmp_path / "m")
    loaded = hbc.load(tmp_path / "m")
    total = WEIGHTS.sum() if "weighted" in name else 300.0
    for kinds, variant in compiled.variants.items():
        for op, again in zip(ensembles(variant.graph), ensembles(loaded.variants[kinds].graph), strict=True):
            assert op.cover is not None
            np.testing.assert_array_equal(again.cover, op.cover)
            assert again.cover.dtype == op.cover.dtype
            np.testing.assert_allclose(op.cover[op.roots], total)
            inner = op.feature >= 0
            assert inner.any()
            np.testing.assert_allclose(op.cover[op.left[inner]] + op.cover[op.right[inner]], op.cover[inner], rtol=1e-6)
        assert all(op.cover is None for op in ensembles(variant.plan.graph))
    loaded.save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "m").read_bytes()


def test_covers_change_no_identity() -> None:
    graph = hbc.convert(MODELS["forest"](), "numpy").graph
    (op, *_) = ensembles(graph)
    bare = replace(op, cover=None)
    assert op.cover is not None
    assert bare == op
    assert hash(bare) == hash(op)
    (x,) = graph.inputs
    one, other = (type(graph)((x,), {"predict": (each(x),)}) for each in (op, bare))
    assert LazyGraph.of(one).identity == LazyGraph.of(other).identity


def test_covers_of_other_trees_are_refused() -> None:
    graph = hbc.convert(MODELS["forest"](), "numpy").graph
    (op, *_) = ensembles(graph)
    with pytest.raises(TypeError, match="cover is f64"):
        replace(op, cover=op.cover[1:])(*graph.inputs)
