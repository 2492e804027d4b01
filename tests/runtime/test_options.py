"""The options of `predict` that LightGBM and XGBoost have, as their users write them."""

from __future__ import annotations

from typing import Any

import lightgbm
import numpy as np
import pytest
import xgboost
from sklearn.linear_model import LogisticRegression

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


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "rounds": ({"num_iteration": 2}, r"option num_iteration: found 2, expected the source's default\..*num_iteration=…"),
    "the first round": ({"start_iteration": 1}, "option start_iteration: found 1"),
    "contributions": ({"pred_contrib": True}, "no contributions"),
    "no truth value": ({"raw_score": 2}, "found 2, expected the source's default or True"),
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
    with pytest.raises(hbc.InvalidInputError, match=r"iteration_range: found \(0, 2\).*booster\[start:end\]"):
        model.predict(X, iteration_range=(0, 2))
    with pytest.raises(hbc.InvalidInputError, match="base_margin"):
        model.predict(X, base_margin=X[:, 0])
    cut = hbc.convert(source.get_booster()[0:2], "numpy")
    np.testing.assert_allclose(cut.predict(X), source.predict(X, iteration_range=(0, 2)), rtol=1e-6)


def test_other_models_have_no_options() -> None:
    model = hbc.convert(LogisticRegression().fit(X, Y), "numpy")
    with pytest.raises(TypeError, match="unexpected keyword argument 'raw_score'"):
        model.predict(X, raw_score=True)
