"""A compiled model in scikit-learn's tools. The oracle is the source in the same tool."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import BaseEstimator, clone, is_classifier, is_outlier_detector, is_regressor
from sklearn.calibration import CalibratedClassifierCV
from sklearn.cluster import KMeans
from sklearn.ensemble import IsolationForest, RandomForestClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.inspection import permutation_importance
from sklearn.linear_model import LinearRegression, LogisticRegression, PoissonRegressor
from sklearn.metrics import RocCurveDisplay
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import LabelEncoder, StandardScaler
from sklearn.utils import estimator_html_repr, get_tags
from sklearn.utils.validation import check_is_fitted

import hbc

RNG = np.random.default_rng(0)
X = RNG.normal(size=(120, 3))
Y = (X[:, 0] + X[:, 1] > 0).astype(int)
TARGET = np.abs(X[:, 0] * 2 + RNG.normal(size=120))


@pytest.fixture(scope="module")
def source() -> Any:
    return make_pipeline(StandardScaler(), LogisticRegression()).fit(X, Y)


@pytest.fixture(scope="module")
def model(source: Any) -> Any:
    return hbc.convert(source, "numpy")


SOURCES: dict[str, Any] = {
    "classifier": lambda: LogisticRegression().fit(X, Y),
    "several targets": lambda: RandomForestClassifier(3, random_state=0).fit(X, np.stack([Y, 1 - Y], axis=1)),
    "regressor": lambda: LinearRegression().fit(X, TARGET),
    "regressor, another score": lambda: PoissonRegressor().fit(X, TARGET),
    "regressor in a pipeline, another score": lambda: make_pipeline(StandardScaler(), PoissonRegressor()).fit(X, TARGET),
    "clusterer": lambda: KMeans(2, n_init=1, random_state=0).fit(X),
    "outlier detector": lambda: IsolationForest(n_estimators=5, random_state=0).fit(X),
    "density estimator": lambda: GaussianMixture(2, random_state=0).fit(X),
    "transformer": lambda: StandardScaler().fit(X),
    "pipeline": lambda: make_pipeline(StandardScaler(), LogisticRegression()).fit(X, Y),
    "search": lambda: GridSearchCV(LogisticRegression(), {"C": [0.1, 1]}, cv=2).fit(X, Y),
    "search, its own score": lambda: GridSearchCV(LogisticRegression(), {"C": [1]}, cv=2, scoring="roc_auc").fit(X, Y),
    "frozen": lambda: FrozenEstimator(LinearRegression().fit(X, TARGET)),
}
SCORED = {"classifier", "regressor", "pipeline", "search", "frozen"}


@pytest.mark.every_case
@pytest.mark.parametrize("name", SOURCES)
def test_kind_and_score_are_the_sources(name: str, tmp_path: Path) -> None:
    """Also after saving. Where the source's score is not known to be accuracy or R², there is none."""
    source = SOURCES[name]()
    y = TARGET if is_regressor(source) else Y
    converted = hbc.convert(source, "numpy")
    converted.save(tmp_path / "model.hbc")
    for model in (converted, hbc.load(tmp_path / "model.hbc")):
        assert get_tags(model).estimator_type == get_tags(source).estimator_type
        assert (is_classifier(model), is_regressor(model)) == (is_classifier(source), is_regressor(source))
        assert is_outlier_detector(model) == is_outlier_detector(source)
        assert (get_tags(model).transformer_tags is not None) == (get_tags(source).transformer_tags is not None)
        assert model.n_features_in_ == 3
        check_is_fitted(model)
        if name in SCORED:
            weights = RNG.uniform(size=len(X))
            assert model.score(X, y) == pytest.approx(source.score(X, y), rel=1e-12)
            assert model.score(X, y, weights) == pytest.approx(weighted(source, y, weights), rel=1e-12)
        elif name != "several targets":
            assert not hasattr(model, "score")


def weighted(source: Any, y: Any, weights: Any) -> float:
    """The source's score with weights, which neither a pipeline nor a search passes on."""
    while not isinstance(source, (LogisticRegression, LinearRegression)):
        if isinstance(source, Pipeline):
            return float(np.average(source.predict(X) == y, weights=weights))
        source = source.estimator if isinstance(source, FrozenEstimator) else source.best_estimator_
    return source.score(X, y, weights)


def test_an_encoder_of_labels_is_no_classifier() -> None:
    model = hbc.convert(LabelEncoder().fit(["a", "b"]), "numpy")
    assert not is_classifier(model)
    assert get_tags(model).target_tags.required is False


def test_kinds_of_tree_libraries() -> None:
    lightgbm, xgboost = pytest.importorskip("lightgbm"), pytest.importorskip("xgboost")
    for source, y in (
        (lightgbm.LGBMClassifier(n_estimators=3, verbose=-1), Y),
        (lightgbm.LGBMRegressor(n_estimators=3, verbose=-1), TARGET),
        (xgboost.XGBClassifier(n_estimators=3), Y),
        (xgboost.XGBRegressor(n_estimators=3), TARGET),
    ):
        model = hbc.convert(source.fit(X, y), "numpy")
        assert get_tags(model).estimator_type == get_tags(source).estimator_type
        assert model.score(X, y) == pytest.approx(source.score(X, y), rel=1e-6)


def test_a_file_that_does_not_say(model: Any, tmp_path: Path) -> None:
    """Files of earlier versions: what has labels is a classifier, and has no score."""
    model.save(tmp_path / "new.hbc")
    with zipfile.ZipFile(tmp_path / "new.hbc") as new, zipfile.ZipFile(tmp_path / "old.hbc", "w") as old:
        for member in new.infolist():
            data = new.read(member)
            if member.filename == "model.json":
                document = json.loads(data)
                assert document.pop("estimator") == {"kind": "classifier", "score": "accuracy", "options": ""}
                data = json.dumps(document).encode()
            old.writestr(member.filename, data)
    loaded = hbc.load(tmp_path / "old.hbc")
    assert is_classifier(loaded)
    assert not hasattr(loaded, "score")


# --- tools -------------------------------------------------------------------------------------------------------------


def test_a_clone_shares_the_model(model: Any) -> None:
    assert clone(model) is model
    assert model.get_params() == {}
    assert model.set_params() is model


@pytest.mark.every_case
@pytest.mark.parametrize("ask", [lambda m: m.fit(X, Y), lambda m: m.fit(X, Y, sample_weight=Y), lambda m: m.set_params(C=1)])
def test_a_compiled_model_does_not_learn(model: Any, ask: Any) -> None:
    with pytest.raises(
        hbc.FrozenModelError, match=r"(fit|set_params\(C\)): .*compiled from a fitted sklearn.pipeline.Pipeline.*Fit"
    ):
        ask(model)


def test_frozen(source: Any, model: Any) -> None:
    theirs, ours = FrozenEstimator(source), FrozenEstimator(model)
    assert ours.fit(X, Y) is ours
    for method in ("predict", "predict_proba", "decision_function"):
        expected = cross_val_predict(theirs, X, Y, method=method)
        np.testing.assert_allclose(cross_val_predict(ours, X, Y, method=method), expected, rtol=1e-12)
    np.testing.assert_array_equal(cross_val_score(ours, X, Y), cross_val_score(theirs, X, Y))
    np.testing.assert_array_equal(
        cross_val_score(ours, X, Y, scoring="roc_auc", n_jobs=2), cross_val_score(theirs, X, Y, scoring="roc_auc")
    )


def test_calibrated(source: Any, model: Any) -> None:
    theirs, ours = (CalibratedClassifierCV(FrozenEstimator(each)).fit(X, Y) for each in (source, model))
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), rtol=1e-9)


def test_permutation_importance(source: Any, model: Any) -> None:
    theirs, ours = (permutation_importance(each, X, Y, n_repeats=3, random_state=0) for each in (source, model))
    np.testing.assert_array_equal(ours.importances, theirs.importances)


def test_roc_curve(source: Any, model: Any) -> None:
    pytest.importorskip("matplotlib").use("Agg")
    theirs, ours = (RocCurveDisplay.from_estimator(each, X, Y) for each in (source, model))
    assert ours.roc_auc == theirs.roc_auc


def test_the_last_step_of_a_pipeline() -> None:
    scaler = StandardScaler().fit(X)
    source = LogisticRegression().fit(scaler.transform(X), Y)
    model = hbc.convert(source, "numpy")
    theirs, ours = Pipeline([("scaler", scaler), ("model", source)]), Pipeline([("scaler", scaler), ("model", model)])
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), rtol=1e-12)
    assert ours.score(X, Y) == theirs.score(X, Y)
    assert is_classifier(ours)
    assert "CompiledModel" in repr(ours)
    assert "CompiledModel" in estimator_html_repr(ours)
    with pytest.raises(hbc.FrozenModelError):
        ours.fit(X, Y)
    frozen = make_pipeline(StandardScaler(), FrozenEstimator(model)).fit(X, Y)
    np.testing.assert_allclose(frozen.predict_proba(X), theirs.predict_proba(X), rtol=1e-12)


def test_the_protocol_is_scikit_learns() -> None:
    """Every method that a compiled model adds for its tools is one that estimators have."""
    added = [name for name in vars(hbc.CompiledModel.__base__) if name.startswith("__sklearn") or not name.startswith("_")]
    for name in set(added) - {"fit", "__sklearn_is_fitted__", "__sklearn_clone__"}:
        assert hasattr(BaseEstimator, name), name


def test_scikit_learn_is_not_imported(model: Any, tmp_path: Path) -> None:
    """A saved model loads and predicts where scikit-learn is missing."""
    model.save(tmp_path / "model.hbc")
    np.save(tmp_path / "X.npy", X[:5])
    code = (
        "import sys; sys.modules['sklearn'] = None\n"
        "import hbc, numpy as np\n"
        f"m = hbc.load({str(tmp_path / 'model.hbc')!r})\n"
        f"print(m.predict(np.load({str(tmp_path / 'X.npy')!r})).tolist(), m.get_params())"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == f"{model.predict(X[:5]).tolist()} {{}}\n"
