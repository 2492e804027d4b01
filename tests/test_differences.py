"""Where the source library's answer hangs on something unusual (one row, a whole batch, a narrow dtype, ties): equal, or an error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.decomposition import SparsePCA
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import OneHotEncoder

import hbc

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 4))
Y = RNG.integers(0, 3, 60)


class Echo(LogisticRegression):
    """Its decisions are its input."""


@hbc.converts(f"{__name__}.Echo")
def _echo(m: Any, x: Any) -> Any:
    return {"decision_function": x, "predict": x}


def test_one_row_of_a_sparse_pca_is_a_vector_in_the_source_and_rejected_here() -> None:
    model = SparsePCA(2, random_state=0, max_iter=5).fit(X)
    assert model.transform(X[:1]).shape == (2,)
    compiled = hbc.convert(model, "numpy")
    np.testing.assert_allclose(compiled.transform(X[:2]), model.transform(X[:2]))
    with pytest.raises(hbc.InvalidInputError, match="found 1 row, expected at least 2"):
        compiled.transform(X[:1])


def test_decisions_that_add_up_to_one_are_probabilities_to_temperature_scaling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Echo, "decision_function", lambda self, X: np.asarray(X))
    shares = np.abs(X[:, :3]) / np.abs(X[:, :3]).sum(axis=1, keepdims=True)
    model = CalibratedClassifierCV(Echo(), method="temperature", cv=2).fit(X[:, :3], Y)
    compiled = hbc.convert(model, "numpy")
    for data in (X[:, :3], shares, shares[:1], X[:1, :3]):
        np.testing.assert_allclose(compiled.predict_proba(data), model.predict_proba(data), rtol=1e-12)
    with pytest.raises(hbc.InvalidInputError, match="add up to 1"):
        compiled.predict_proba(np.concatenate([X[:, :3], shares]))


@pytest.mark.parametrize("options", [{"handle_unknown": "warn"}, {"handle_unknown": "ignore", "drop": "first"}])
def test_unknown_categories_are_warned_of_as_in_the_source(options: dict[str, Any]) -> None:
    known, other = np.repeat([[0, 1, 5], [1, 2, 6]], 5, axis=0), np.array([[0, 1, 6], [0, 9, 7]])
    model = OneHotEncoder(sparse_output=False, **options).fit(known)
    compiled = hbc.convert(model, "numpy")
    compiled.transform(known)
    with pytest.warns(UserWarning, match="unknown categories") as expected:
        values = model.transform(other)
    with pytest.warns(UserWarning, match="unknown categories") as found:
        np.testing.assert_array_equal(compiled.transform(other), values)
    assert [str(warning.message) for warning in found] == [str(warning.message) for warning in expected]
