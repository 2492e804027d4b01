"""Calls without rows, of estimators whose members answer them: the source raises where it cannot join the members' answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse as sp
from installed import reads
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import (
    AdaBoostClassifier,
    BaggingClassifier,
    StackingClassifier,
    StackingRegressor,
    VotingClassifier,
    VotingRegressor,
)
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.multiclass import OneVsOneClassifier, OneVsRestClassifier, OutputCodeClassifier
from sklearn.multioutput import ClassifierChain, MultiOutputClassifier, MultiOutputRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import hbc

xgboost = pytest.importorskip("xgboost")
catboost = pytest.importorskip("catboost")

pytestmark = pytest.mark.filterwarnings("ignore")

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(60, 3))
BINARY, THREE = (X[:, 0] > 0).astype(int), RANDOM.integers(0, 3, 60)

SILENT = {"iterations": 2, "verbose": 0, "allow_writing_files": False, "thread_count": 1}
CLASSIFIERS: dict[str, Callable[[], Any]] = {
    "xgboost": lambda: xgboost.XGBClassifier(n_estimators=2, max_depth=2, n_jobs=1),
    "catboost": lambda: catboost.CatBoostClassifier(**SILENT),
}
REGRESSORS: dict[str, Callable[[], Any]] = {
    "xgboost": lambda: xgboost.XGBRegressor(n_estimators=2, max_depth=2, n_jobs=1),
    "catboost": lambda: catboost.CatBoostRegressor(**SILENT),
}


def pairs(make: Callable[[], Any]) -> list[tuple[str, Any]]:
    return [("a", make()), ("b", make())]


COMPOSITIONS: dict[str, Callable[[Any, Any], Any]] = {
    "soft voting": lambda new, y: VotingClassifier(pairs(new), voting="soft").fit(X, y),
    "hard voting": lambda new, y: VotingClassifier(pairs(new), voting="hard").fit(X, y),
    "stacking": lambda new, y: StackingClassifier(pairs(new), cv=2).fit(X, y),
    "stacking, the same behind": lambda new, y: StackingClassifier(pairs(new), new(), cv=2).fit(X, y),
    "stacking with X": lambda new, y: StackingClassifier(pairs(new), new(), cv=2, passthrough=True).fit(X, y),
    "calibrated": lambda new, y: CalibratedClassifierCV(new(), cv=2).fit(X, y),
    "one or the rest": lambda new, y: OneVsRestClassifier(new()).fit(X, y),
    "one or another": lambda new, y: OneVsOneClassifier(new()).fit(X, y),
    "search": lambda new, y: GridSearchCV(new(), {}, cv=2).fit(X, y),
    "two targets": lambda new, y: MultiOutputClassifier(new()).fit(X, np.c_[y, y]),
    "chain": lambda new, y: ClassifierChain(new()).fit(X, np.c_[y > 0, y > 1]) if y.max() > 1 else None,
    "pipeline": lambda new, y: make_pipeline(FunctionTransformer(), new()).fit(X, y),
    "bagging": lambda new, y: BaggingClassifier(new(), 2).fit(X, y),
}
OF_NUMBERS: dict[str, Callable[[Any], Any]] = {
    "voting": lambda new: VotingRegressor(pairs(new)).fit(X, X[:, 0]),
    "weighted voting": lambda new: VotingRegressor(pairs(new), weights=[1, 2]).fit(X, X[:, 0]),
    "stacking": lambda new: StackingRegressor(pairs(new), cv=2).fit(X, X[:, 0]),
    "stacking, the same behind": lambda new: StackingRegressor(pairs(new), new(), cv=2).fit(X, X[:, 0]),
    "two targets": lambda new: MultiOutputRegressor(new()).fit(X, X[:, :2]),
}
CONTAINERS: dict[str, Any] = {
    "f64": X[:0],
    "f32": X[:0].astype("f4"),
    "i64": X[:0].astype(int),
    "pandas": pd.DataFrame(X)[:0],
    "polars": pl.DataFrame(X[:0]),
    "csr": sp.csr_matrix(X[:0]),
}


def shapes(given: Any) -> list[tuple[Any, Any]]:
    return [(np.shape(each), np.asarray(each).dtype) for each in (given if isinstance(given, list) else [given])]


def assert_no_rows(model: Any) -> None:
    compiled = hbc.convert(model, "numpy")
    for method in (method for method in compiled.methods if hasattr(model, method) and method != "calc_leaf_indexes"):
        for container, given in CONTAINERS.items():
            if not reads("catboost", container) or not reads("lightgbm", container):
                continue
            try:
                expected = shapes(getattr(model, method)(given))
            except Exception:
                expected = None
            try:
                found = shapes(getattr(compiled, method)(given))
            except hbc.InvalidInputError:
                continue
            assert found == expected, (method, container)
    assert len(compiled.predict(X)) == len(X)


@pytest.mark.parametrize("library", CLASSIFIERS)
@pytest.mark.parametrize("name", COMPOSITIONS)
def test_classifiers(name: str, library: str) -> None:
    for y in (BINARY, THREE):
        if (model := COMPOSITIONS[name](CLASSIFIERS[library], y)) is not None:
            assert_no_rows(model)


@pytest.mark.parametrize("library", REGRESSORS)
@pytest.mark.parametrize("name", OF_NUMBERS)
def test_regressors(name: str, library: str) -> None:
    assert_no_rows(OF_NUMBERS[name](REGRESSORS[library]))


@pytest.mark.parametrize("backend", ["numpy", "tvm"])
def test_one_class(backend: str) -> None:
    """An AdaBoostClassifier of one class looks at its input for its predictions only, not for its probabilities."""
    boosted = AdaBoostClassifier().fit(X, np.ones(60, int))
    compiled: Any = hbc.convert(boosted, backend)
    for given in (X[:0], X[:2], np.full((2, 3), np.nan)):
        for method in ("predict_proba", "predict_log_proba"):
            np.testing.assert_array_equal(getattr(compiled, method)(given), getattr(boosted, method)(given), strict=True)
    coded = OutputCodeClassifier(LogisticRegression()).fit(X, np.ones(60, int))
    for source, method in ((boosted, "predict"), (boosted, "decision_function"), (coded, "predict")):
        with pytest.raises(ValueError, match="0 sample"):
            getattr(source, method)(X[:0])
        with pytest.raises(hbc.InvalidInputError, match="0 rows"):
            getattr(hbc.convert(source, backend), method)(X[:0])
