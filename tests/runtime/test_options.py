"""The options of `predict` that LightGBM and XGBoost have, as their users write them."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pytest
import xgboost
from sklearn.ensemble import VotingRegressor
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import hbc

RNG = np.random.default_rng(0)
X = RNG.normal(size=(80, 3)).astype("f4")
Y = (X[:, 0] > 0).astype(int) + (X[:, 1] > 1)


@pytest.fixture(scope="module", params=["two classes", "three classes"])
def labels(request: Any) -> Any:
    return np.minimum(Y, 1) if request.param == "two classes" else Y


@pytest.mark.every_case
def test_lightgbm(labels: Any) -> None:
    source = lightgbm.LGBMClassifier(n_estimators=4, verbose=-1, min_child_samples=5).fit(X, labels)
    for theirs in (source, source.booster_):
        model = hbc.convert(theirs, "numpy")
        for option in ("raw_score", "pred_leaf"):
            for method in {"predict", "predict_proba"} & {*model.methods}:
                expected = getattr(theirs, method)(X, **{option: True})
                found = getattr(model, method)(X, **{option: True})
                np.testing.assert_allclose(found, expected, rtol=1e-12)
                assert found.shape == expected.shape
        usual = {"raw_score": False, "start_iteration": 0, "num_iteration": None, "pred_leaf": False, "pred_contrib": False}
        np.testing.assert_array_equal(model.predict(X, **usual), model.predict(X))


@pytest.mark.every_case
def test_xgboost(labels: Any) -> None:
    source = xgboost.XGBClassifier(n_estimators=4).fit(X, labels)
    model = hbc.convert(source, "numpy")
    expected = source.predict(X, output_margin=True)
    found = model.predict(X, output_margin=True)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    np.testing.assert_array_equal(model.predict(X, iteration_range=(0, 0), validate_features=True), model.predict(X))
    booster = source.get_booster()
    expected = booster.predict(xgboost.DMatrix(X), pred_leaf=True)
    np.testing.assert_array_equal(hbc.convert(booster, "numpy").predict(X, pred_leaf=True), expected)


def test_signatures_show_the_options() -> None:
    source = lightgbm.LGBMClassifier(n_estimators=2, verbose=-1).fit(X, Y)
    model = hbc.convert(source, "numpy")
    shown = inspect.signature(model.predict)
    assert list(shown.parameters)[:3] == ["X", "raw_score", "start_iteration"]
    assert shown.parameters["raw_score"].default is False
    assert model.predict.__name__ == "predict"
    np.testing.assert_array_equal(model.predict(X, True), model.predict(X, raw_score=True))
    np.testing.assert_array_equal(model.predict(X=X), model.predict(X))
    for call in (lambda: model.predict(X, rounds=3), lambda: model.predict(), lambda: model.predict(raw_score=True)):
        with pytest.raises(TypeError, match=r"predict\(\)"):
            call()


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "rounds": (
        {"num_iteration": 2},
        r"option num_iteration: found 2 .*, expected the source's default\..*iteration_range=\(first, end\)",
    ),
    "the first round": ({"start_iteration": 1}, "option start_iteration: found 1"),
    "contributions": ({"pred_contrib": True}, "no contributions"),
    "no truth value": ({"raw_score": 2}, "found 2 .*, expected the source's default or True"),
    "two outputs": ({"raw_score": True, "pred_leaf": True}, "found raw_score and pred_leaf, expected one of them"),
}


@pytest.mark.every_case
@pytest.mark.parametrize("name", REFUSED)
def test_other_options_say_what_to_do(name: str) -> None:
    options, message = REFUSED[name]
    data = lightgbm.Dataset(X, np.minimum(Y, 1))
    model = hbc.convert(lightgbm.train({"objective": "binary", "verbose": -1}, data, 3), "numpy")
    with pytest.raises(hbc.InvalidInputError, match=message):
        model.predict(X, **options)


def test_fewer_rounds_of_xgboost() -> None:
    source = xgboost.XGBRegressor(n_estimators=4).fit(X, X[:, 0])
    model = hbc.convert(source, "numpy")
    with pytest.raises(hbc.InvalidInputError, match=r"iteration_range: found \(0, 2\).*hbc\.convert\(model, iteration_range="):
        model.predict(X, iteration_range=(0, 2))
    with pytest.raises(hbc.InvalidInputError, match="base_margin"):
        model.predict(X, base_margin=X[:, 0])
    cut = hbc.convert(source, "numpy", iteration_range=(0, 2))
    np.testing.assert_allclose(cut.predict(X), source.predict(X, iteration_range=(0, 2)), rtol=1e-6)


LAST = {
    "lightgbm classifier": lambda: lightgbm.LGBMClassifier(n_estimators=4, verbose=-1, min_child_samples=5),
    "lightgbm regressor": lambda: lightgbm.LGBMRegressor(n_estimators=4, verbose=-1, min_child_samples=5, objective="poisson"),
    "xgboost classifier": lambda: xgboost.XGBClassifier(n_estimators=4),
    "xgboost regressor": lambda: xgboost.XGBRegressor(n_estimators=4, objective="count:poisson"),
}


@pytest.mark.every_case
@pytest.mark.parametrize("last", LAST)
def test_pipelines_hand_options_on(last: str, labels: Any, tmp_path: Path) -> None:
    library, kind = last.split()
    y = np.abs(X[:, 0]) if kind == "regressor" else labels
    source = make_pipeline(StandardScaler(), make_pipeline("passthrough", LAST[last]())).fit(X, y)
    hbc.convert(source, "numpy").save(tmp_path / "m.hbc")
    options = {"lightgbm": ("raw_score", "pred_leaf"), "xgboost": ("output_margin",)}[library]
    rounds = {"lightgbm": {"num_iteration": 2}, "xgboost": {"iteration_range": (0, 2)}}[library]
    for model in (hbc.convert(source, "numpy"), hbc.convert(source), hbc.load(tmp_path / "m.hbc")):
        for option in options:
            for method in ("predict", "predict_proba") if last == "lightgbm classifier" else ("predict",):
                expected = getattr(source, method)(X, **{option: True})
                found = getattr(model, method)(X, **{option: True})
                np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
                assert found.shape == expected.shape
        with pytest.raises(hbc.InvalidInputError, match=r"option \w+: found .*2.*iteration_range=\(first, end\)"):
            model.predict(X, **rounds)
        np.testing.assert_array_equal(model.predict(X, **{options[0]: False}), model.predict(X))
        if library == "xgboost":
            with pytest.raises(hbc.InvalidInputError, match=r"option pred_leaf: found True.*has no method apply"):
                model.predict(X, pred_leaf=True)


def test_probabilities_of_xgboost_take_options() -> None:
    source = xgboost.XGBClassifier(n_estimators=4).fit(X, Y)
    model = hbc.convert(source, "numpy")
    np.testing.assert_array_equal(
        model.predict_proba(X, validate_features=True, iteration_range=(0, 0)), model.predict_proba(X)
    )
    with pytest.raises(hbc.InvalidInputError, match=r"predict_proba, option iteration_range: found \(0, 2\)"):
        model.predict_proba(X, iteration_range=(0, 2))
    with pytest.raises(hbc.InvalidInputError, match="base_margin"):
        model.predict_proba(X, base_margin=X[:, 0])


RANGES = ((0, 3), (2, 5), (1, 0), (0, 6))
"""Of six rounds; 0 is the end."""


@pytest.mark.every_case
@pytest.mark.parametrize("rounds", RANGES)
@pytest.mark.parametrize("kind", ["gbdt", "rf", "dart"])
def test_some_rounds_of_lightgbm(rounds: tuple[int, int], kind: str, labels: Any) -> None:
    options = {"boosting_type": kind, "subsample": 0.7, "subsample_freq": 1, "min_child_samples": 5, "verbose": -1}
    source = lightgbm.LGBMClassifier(n_estimators=6, **options).fit(X, labels)
    first, end = rounds
    theirs = {"start_iteration": first, "num_iteration": (end or 6) - first}
    for model in (source, source.booster_, make_pipeline("passthrough", source)):
        compiled = hbc.convert(model, "numpy", iteration_range=rounds)
        for method in {"predict", "predict_proba"} & {*compiled.methods}:
            np.testing.assert_allclose(getattr(compiled, method)(X), getattr(model, method)(X, **theirs), rtol=1e-12)
    compiled = hbc.convert(source, "numpy", iteration_range=rounds)
    np.testing.assert_allclose(compiled.raw_score(X), source.predict(X, raw_score=True, **theirs), rtol=1e-12)
    np.testing.assert_array_equal(compiled.apply(X), source.predict(X, pred_leaf=True, **theirs))


@pytest.mark.every_case
@pytest.mark.parametrize("rounds", RANGES)
@pytest.mark.parametrize(
    "options", [{}, {"booster": "dart", "rate_drop": 0.5}, {"num_parallel_tree": 2, "subsample": 0.7}], ids=str
)
def test_some_rounds_of_xgboost(rounds: tuple[int, int], options: dict[str, Any], labels: Any) -> None:
    source = xgboost.XGBClassifier(n_estimators=6, random_state=0, **options).fit(X, labels)
    theirs = {"iteration_range": (rounds[0], rounds[1] or 6)}
    compiled = hbc.convert(source, "numpy", iteration_range=rounds)
    np.testing.assert_allclose(compiled.predict_proba(X), source.predict_proba(X, **theirs), rtol=1e-5)
    np.testing.assert_array_equal(compiled.predict(X), source.predict(X, **theirs))
    booster = source.get_booster()
    sliced = booster[slice(*theirs["iteration_range"])]  # its pred_leaf takes ranges from 0 only, and says so
    leaves = sliced.predict(xgboost.DMatrix(X), pred_leaf=True)
    np.testing.assert_array_equal(compiled.apply(X), leaves.reshape(len(X), -1))
    found = hbc.convert(booster, "numpy", iteration_range=rounds)
    data = xgboost.DMatrix(X)
    np.testing.assert_allclose(found.raw_score(X), booster.predict(data, output_margin=True, **theirs), rtol=1e-5, atol=1e-6)


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("given", "message"),
    {
        (0, 7): r"found \(0, 7\), expected rounds of the 4 that the model has",
        (4, 0): r"found \(4, 0\), expected rounds of the 4",
        (2, 2): r"found \(2, 2\) .*, expected \(first, end\)",
        3: "found 3 .*, expected",
        (1, 2, 3): r"found \(1, 2, 3\) .*, expected",
    }.items(),
    ids=str,
)
def test_rounds_that_there_are_not(given: Any, message: str) -> None:
    for source in (
        lightgbm.LGBMRegressor(n_estimators=4, verbose=-1, min_child_samples=5),
        xgboost.XGBRegressor(n_estimators=4),
    ):
        with pytest.raises(ValueError, match=f"iteration_range: {message}"):
            hbc.convert(source.fit(X, X[:, 0]), "numpy", iteration_range=given)


def test_rounds_of_other_models() -> None:
    trees = [(str(seed), xgboost.XGBRegressor(n_estimators=2, random_state=seed)) for seed in range(2)]
    for source, found in (
        (LogisticRegression().fit(X, Y), "no model"),
        (VotingRegressor(trees).fit(X, X[:, 0]), "several models"),
    ):
        with pytest.raises(ValueError, match=f"iteration_range: found {found} of LightGBM or XGBoost"):
            hbc.convert(source, "numpy", iteration_range=(0, 1))


def test_other_models_have_no_options() -> None:
    model = hbc.convert(LogisticRegression().fit(X, Y), "numpy")
    with pytest.raises(TypeError, match="unexpected keyword argument 'raw_score'"):
        model.predict(X, raw_score=True)
