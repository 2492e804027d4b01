"""Methods that somebody replaced on an instance are refused at every depth: hbc would compile what the class computes."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import (
    AdaBoostClassifier,
    BaggingClassifier,
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
    VotingClassifier,
)
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.tree import DecisionTreeClassifier

import hbc

X = np.random.default_rng(0).normal(size=(40, 3))
Y = (X[:, 0] > 0).astype(int)


def scaler() -> StandardScaler:
    return StandardScaler().fit(X)


def linear() -> LogisticRegression:
    return LogisticRegression().fit(X, Y)


PLACES: dict[str, tuple[Any, Any, str, str]] = {
    "alone": (lambda: linear(), lambda m: m, "predict", "model"),
    "a method that others call": (lambda: linear(), lambda m: m, "decision_function", "model"),
    "a private one": (lambda: linear(), lambda m: m, "_predict_proba_lr", "model"),
    "the pipeline": (lambda: make_pipeline(scaler(), linear()), lambda m: m, "predict_proba", "model"),
    "a step": (lambda: make_pipeline(scaler(), linear()), lambda m: m[0], "transform", r"model\.steps\[0\] 'standardscaler'"),
    "the last step": (lambda: make_pipeline(scaler(), linear()), lambda m: m[-1], "predict", r"model\.steps\[1\]"),
    "in a union": (
        lambda: make_pipeline(FeatureUnion([("a", scaler()), ("b", scaler())]), LogisticRegression()).fit(X, Y),
        lambda m: m[0].transformer_list[1][1],
        "transform",
        r"model\.steps\[0\].*'b'",
    ),
    "in columns": (
        lambda: Pipeline([("c", ColumnTransformer([("s", StandardScaler(), [0, 1])])), ("l", LogisticRegression())]).fit(X, Y),
        lambda m: m[0].named_transformers_["s"],
        "transform",
        r"model\.steps\[0\] 'c'.*'s'",
    ),
    "in a search": (
        lambda: GridSearchCV(make_pipeline(StandardScaler(), LogisticRegression()), {}, cv=2).fit(X, Y),
        lambda m: m.best_estimator_[0],
        "transform",
        r"model\.best_estimator_.*steps\[0\]",
    ),
    "in a forest": (
        lambda: RandomForestClassifier(3).fit(X, Y),
        lambda m: m.estimators_[2],
        "predict_proba",
        r"model\.estimators_\[2\]",
    ),
    "in boosted trees": (
        lambda: make_pipeline(StandardScaler(), GradientBoostingClassifier(n_estimators=2)).fit(X, Y),
        lambda m: m[-1].estimators_[1, 0],
        "predict",
        r"model\.steps\[1\].*\.estimators_\[1, 0\]",
    ),
    "in a histogram": (
        lambda: HistGradientBoostingClassifier(max_iter=2).fit(X, Y),
        lambda m: m._predictors[0][0],
        "predict",
        r"model\._predictors\[0\]\[0\]",
    ),
    "in bagged trees": (
        lambda: BaggingClassifier(n_estimators=2).fit(X, Y),
        lambda m: m.estimators_[0],
        "predict",
        r"model\.estimators_\[0\]",
    ),
    "a tree of a forest in a vote": (
        lambda: VotingClassifier([("a", LogisticRegression()), ("b", RandomForestClassifier(2))]).fit(X, Y),
        lambda m: m.estimators_[1].estimators_[0],
        "predict_proba",
        r"model\.estimators_\[1\].*\.estimators_\[0\]",
    ),
    "a tree of a boosted vote": (
        lambda: AdaBoostClassifier(n_estimators=2).fit(X, X[:, 0] * X[:, 1] > 0),
        lambda m: m.estimators_[1],
        "predict",
        r"model\.estimators_\[1\]",
    ),
    "a calibrator": (
        lambda: CalibratedClassifierCV(LogisticRegression(), cv=2).fit(X, Y),
        lambda m: m.calibrated_classifiers_[1].calibrators[0],
        "predict",
        r"model\.calibrated_classifiers_\[1\]",
    ),
    "in a vote": (
        lambda: VotingClassifier([("a", LogisticRegression()), ("b", LogisticRegression(C=2))]).fit(X, Y),
        lambda m: m.estimators_[1],
        "predict",
        "model.*estimators",
    ),
}


@pytest.mark.parametrize("name", PLACES)
def test_a_replaced_method_is_refused_with_its_path(name: str) -> None:
    make, find, method, path = PLACES[name]
    model = make()
    hbc.convert(model, "numpy")
    for replacement in (lambda *args: np.zeros(len(X)), mock.Mock(), getattr(find(model), method)):
        setattr(find(model), method, replacement)
        with pytest.raises(hbc.UnsupportedOperatorError, match=rf"{path}.*: its {method} was replaced.*del model\.{method}"):
            hbc.convert(model, "numpy")
        delattr(find(model), method)
    np.testing.assert_allclose(hbc.convert(model, "numpy").predict(X), model.predict(X))


def test_every_replacement_is_named() -> None:
    model = make_pipeline(scaler(), linear())
    model[0].transform = model[1].predict = model[1].predict_proba = lambda X: X
    with pytest.raises(hbc.UnsupportedOperatorError, match=r"(?s)its transform was.*its predict and predict_proba were"):
        hbc.convert(model, "numpy")


def test_what_is_no_replacement() -> None:
    """Callables that belong on an instance, and methods of training."""
    model = linear()
    model.fit = model.score = mock.Mock()
    model.note = model.__repr__ = lambda: "mine"
    np.testing.assert_array_equal(hbc.convert(model, "numpy").predict(X), model.predict(X))
    function = FunctionTransformer(np.log1p).fit(X)
    np.testing.assert_array_equal(hbc.convert(function, "numpy").transform(X**2), function.transform(X**2))
    texts = CountVectorizer(token_pattern=r"\w").fit(["a b", "c"])
    assert hbc.convert(texts, "numpy").transform(["a c"]).toarray().tolist() == texts.transform(["a c"]).toarray().tolist()


@pytest.mark.parametrize("library", ["lightgbm", "xgboost"])
def test_models_of_other_libraries(library: str) -> None:
    module = pytest.importorskip(library)
    model = {"lightgbm": "LGBMClassifier", "xgboost": "XGBClassifier"}[library]
    model = getattr(module, model)(n_estimators=2, **({"verbose": -1} if library == "lightgbm" else {})).fit(X, Y)
    hbc.convert(model, "numpy")
    model.predict_proba = lambda X: X
    with pytest.raises(hbc.UnsupportedOperatorError, match="its predict_proba was replaced"):
        hbc.convert(model, "numpy")
    del model.predict_proba
    model._Booster.predict = lambda X: X
    with pytest.raises(hbc.UnsupportedOperatorError, match=r"Booster at model\._Booster: its predict was replaced"):
        hbc.convert(model, "numpy")


def test_what_an_ensemble_has_cloned_may_be_anything() -> None:
    """Its clones have the methods of the class."""
    template = DecisionTreeClassifier(max_depth=2)
    template.predict_proba = mock.Mock()
    model = BaggingClassifier(template, n_estimators=2).fit(X, Y)
    np.testing.assert_array_equal(hbc.convert(model, "numpy").predict(X), model.predict(X))
