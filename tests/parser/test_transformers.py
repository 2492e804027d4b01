"""Preprocessors that are refused at conversion, and batches that are rejected, as far as the table of estimators cannot hold them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from installed import older
from sklearn.cluster import FeatureAgglomeration
from sklearn.decomposition import DictionaryLearning, SparseCoder
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer, SimpleImputer
from sklearn.linear_model import BayesianRidge, LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, LabelBinarizer, QuantileTransformer, SplineTransformer

import hbc

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(50, 3))
GAPS = np.where(RANDOM.random(X.shape) < 0.2, np.nan, X)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: x + np.random.rand(), "something else when it is called again"),
        (lambda x: x - x.mean(axis=0), ".mean of the array"),
        (lambda x: x if x[0, 0] > 0 else -x, "the array with (0, 0)"),
        (lambda x: x if (x > 0).any() else -x, ".any of the array"),
        (lambda x: math.sqrt(x), "single numbers"),
        (lambda x: np.asarray(x) * 2, "single numbers"),
        (lambda x: x / x.shape[0], "computes with the number of rows"),
        (lambda x: 1 / len(x) * x, "computes with the number of rows"),
        (lambda x: x * math.log(x.shape[0]), "computes with the number of rows"),
        (lambda x: x * np.log(x.shape[0]), "computes with the number of rows"),
        (lambda x: x + np.ones(x.shape), "computes with the number of rows"),
        (lambda x: x if x.shape[0] == 1 else -x, "asks for it. No row depends on how many rows come with it."),
        (lambda x: x if x.shape != (1, 3) else -x, "or asks for it"),
        (lambda x: x if x.shape[0] in (1, 2) else -x, "or asks for it"),
        (lambda x: x if x.shape[0] else -x, "or asks for it"),
        (lambda x: x * getattr(x, "size", 1), ".size of the array"),
        (lambda x: np.round(x, 1), "np.round"),
        (lambda x: np.arctan(x), "arctan"),
        (lambda x: np.sort(x, axis=1), "np.sort"),
        (lambda x: x.sum(axis=0), "over the rows"),
        (lambda x: np.zeros((3, 2)), "does not return"),
        (lambda x: x["a"], "the array with 'a'"),
        (lambda x: x.astype(int), "casts the array to int64"),
        (lambda x: x * np.arange(50.0)[:, None], "combines the rows"),
        (lambda x: x - np.datetime64("2024-01-01"), "np.subtract of dates or other Python objects"),
    ],
)
def test_functions_that_cannot_be_traced_are_refused(function: object, reason: str) -> None:
    with pytest.raises(hbc.UnsupportedOperatorError) as refused:
        hbc.convert(FunctionTransformer(function), "numpy", X)
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * 2 if x.shape == (-x).shape else x,
        lambda x: x - x.sum(axis=1).reshape(x.shape[0], 1),
        lambda x: x * x.shape[1],
        lambda x: x.toarray() if hasattr(x, "toarray") else x + 1,
    ],
)
def test_shapes_may_be_compared_and_taken_over(function: Any) -> None:
    """Equal shapes counted as different, so that another branch was compiled."""
    model = FunctionTransformer(function)
    compiled = hbc.convert(model, "numpy", X)
    for rows in (X, X[:1]):
        np.testing.assert_array_equal(compiled.transform(rows), model.transform(rows))


def test_a_function_of_floats_rejects_integers_when_they_come() -> None:
    model = FunctionTransformer(lambda x: x**-2)
    compiled = hbc.convert(model, "numpy", X)
    np.testing.assert_array_equal(compiled.transform(X), model.transform(X))
    with pytest.raises(hbc.InvalidInputError, match="integers"):
        compiled.transform(np.ones((2, 3), np.int64))


def test_a_function_that_multiplies_rejects_sparse_matrices() -> None:
    compiled = hbc.convert(FunctionTransformer(lambda x: x * x), "numpy", np.eye(3))
    with pytest.raises(hbc.InvalidInputError, match="sparse"):
        compiled.transform(scipy.sparse.csr_matrix(np.eye(3)))


def test_quantiles_of_a_sparse_matrix_are_rejected() -> None:
    compiled = hbc.convert(QuantileTransformer(n_quantiles=5).fit(np.abs(X)), "numpy")
    with pytest.raises(hbc.InvalidInputError, match="sparse"):
        compiled.transform(scipy.sparse.csr_matrix(np.eye(3)))


@pytest.mark.parametrize("backend", ["numpy", "tvm"])
@pytest.mark.parametrize("count", [1, 2, 7, 300])
@pytest.mark.parametrize("kind", ["numbers", "float32", "ties", "equal", "subnormal", "huge"])
def test_quantiles_have_the_bits_of_the_source(kind: str, count: int, backend: str) -> None:
    """At each quantile, and at the numbers beside it: one search stands for the source's two, which differ where quantiles are equal."""
    rng = np.random.default_rng(5)
    data = rng.normal(size=(400, 3))
    if kind in ("ties", "equal"):
        data = np.clip(data.round(1), -0.4, 0.5) if kind == "ties" else np.ones_like(data)
    data *= {"subnormal": 1e-310, "huge": 1e300}.get(kind, 1.0)
    data = data.astype(np.float32 if kind == "float32" else np.float64)
    model = QuantileTransformer(n_quantiles=count).fit(data)
    quantiles = model.quantiles_.astype(data.dtype)
    beside = [np.nextafter(quantiles, quantiles.dtype.type(end)) for end in (-np.inf, np.inf)]
    given = np.concatenate([data, quantiles, *beside, quantiles * 2, rng.normal(size=data.shape).astype(data.dtype)])
    given[::19, 1] = np.nan
    compiled = hbc.convert(model, backend)
    np.testing.assert_array_equal(compiled.transform(given), model.transform(given))
    np.testing.assert_array_equal(compiled.transform(given[:1]), model.transform(given[:1]))


def test_an_imputer_rejects_a_batch_of_nothing_but_gaps() -> None:
    """A row of missing values among other rows is imputed. A batch of such rows alone is rejected, because the source does not iterate."""
    model = IterativeImputer(tol=10.0).fit(GAPS)
    compiled = hbc.convert(model, "numpy")
    for rows in (1, 5000):
        with pytest.raises(hbc.InvalidInputError, match="every value is missing"):
            compiled.transform(np.full((rows, 3), np.nan))
    batch = np.tile(GAPS, (90, 1))[:4097]
    batch[4096] = np.nan
    np.testing.assert_allclose(compiled.transform(batch), model.transform(batch), rtol=1e-7)


def test_an_imputer_that_draws_random_numbers_is_refused() -> None:
    model = IterativeImputer(BayesianRidge(), sample_posterior=True, tol=10.0).fit(GAPS)
    with pytest.raises(hbc.UnsupportedOperatorError, match="random numbers"):
        hbc.convert(model, "numpy")


def test_searches_for_sparse_codes_are_refused() -> None:
    with pytest.raises(hbc.UnsupportedOperatorError, match="lasso_lars"):
        hbc.convert(SparseCoder(np.eye(3), transform_algorithm="lasso_lars").fit(X), "numpy")


@pytest.mark.parametrize("labels", [[1.0, 2.5], [1.0, np.nan]])
def test_a_binarizer_of_three_classes_rejects_what_is_no_label(labels: list[float]) -> None:
    with pytest.raises(hbc.InvalidInputError):
        hbc.convert(LabelBinarizer().fit([1.0, 2.0, 3.0]), "numpy").transform(np.array(labels))


def test_a_binarizer_of_two_classes_rejects_others() -> None:
    """With a third label, the source's result would have two columns."""
    with pytest.raises(hbc.InvalidInputError):
        hbc.convert(LabelBinarizer().fit(["no", "yes"]), "numpy").transform(np.array(["no", "perhaps"]))


def test_unknown_labels_are_warned_of_once() -> None:
    """The warning has the source's words, and comes once for all rows of a call, although the host takes a few thousand rows of strings
    at a time."""
    from sklearn.preprocessing import MultiLabelBinarizer

    model = MultiLabelBinarizer().fit([("red", "blue")])
    sets = [("red", "pink")] * 5000 + [(2, None)]
    with pytest.warns(UserWarning, match="unknown class") as expected:
        indicators = model.transform(sets)
    with pytest.warns(UserWarning, match="unknown class") as found:
        np.testing.assert_array_equal(hbc.convert(model, "numpy").transform(sets), indicators)
    assert [str(warning.message) for warning in found] == [str(warning.message) for warning in expected]


@pytest.mark.parametrize("sets", [[1, 2], [None], [[["red"]]], "red", {"red": 1}])
def test_what_is_no_set_of_labels(sets: object) -> None:
    from sklearn.preprocessing import MultiLabelBinarizer

    with pytest.raises(hbc.InvalidInputError, match="labels"):
        hbc.convert(MultiLabelBinarizer().fit([("red", "blue")]), "numpy").transform(sets)
    with pytest.raises(hbc.UnsupportedOperatorError, match=r"label \(1, 2\) is of type tuple"):
        hbc.convert(MultiLabelBinarizer().fit([[(1, 2)]]), "numpy")


HOLES = np.random.default_rng(0).normal(size=(30, 2))
HOLES[3, 1] = np.nan


@pytest.mark.skipif(older("sklearn", 1, 8), reason="it has no option handle_missing")
@pytest.mark.parametrize("extrapolation", ["continue", "error", "periodic"])
def test_sparse_splines_of_missing_values_are_refused(extrapolation: str) -> None:
    """The source sets the places of the first column to 0, whichever column has the gap: the others keep splines of another row."""
    model = SplineTransformer(handle_missing="zeros", extrapolation=extrapolation, sparse_output=True)
    assert model.fit(HOLES).transform(HOLES)[3, model.n_features_out_ // 2 :].sum() > 0
    with pytest.raises(hbc.UnsupportedOperatorError, match="other rows of the call"):
        hbc.convert(model, "numpy")
    one = model.fit(HOLES[:, 1:])
    np.testing.assert_allclose(
        hbc.convert(one, "numpy").transform(HOLES[:, 1:]).toarray(), one.transform(HOLES[:, 1:]).toarray()
    )


@pytest.mark.skipif(older("sklearn", 1, 8), reason="it has no option handle_missing")
def test_splines_take_none_for_no_missing_value() -> None:
    model = SplineTransformer(handle_missing="zeros", extrapolation="continue").fit(HOLES)
    rows = [[0.1, None], [0.2, 0.3]]
    assert np.isnan(model.transform(rows)).any()
    with pytest.raises(hbc.InvalidInputError, match="None"):
        hbc.convert(model, "numpy").transform(rows)


@pytest.mark.skipif(older("sklearn", 1, 8), reason="it has no option handle_missing")
@pytest.mark.parametrize("extrapolation", ["constant", "linear", "continue", "error", "periodic"])
def test_splines_of_missing_values_before_an_estimator_that_rejects_nan(extrapolation: str) -> None:
    model = make_pipeline(SplineTransformer(handle_missing="zeros", extrapolation=extrapolation), LinearRegression())
    model.fit(HOLES, HOLES[:, 0])
    np.testing.assert_allclose(hbc.convert(model, "numpy").predict(HOLES), model.predict(HOLES), rtol=1e-7)


@pytest.mark.parametrize("dtype", ["i8", "f4"])
def test_sparse_splines_reject_rounded_bounds_as_the_source_does(dtype: str) -> None:
    model = SplineTransformer(extrapolation="linear", sparse_output=True).fit([[0.6], [5.3], [2.2]])
    for row in (1, 9):
        X, compiled = np.array([[row]], dtype), hbc.convert(model, "numpy")
        try:
            expected = model.transform(X).toarray()
        except ValueError:
            assert row == 9
            with pytest.raises(hbc.InvalidInputError):
                compiled.transform(X)
        else:
            np.testing.assert_allclose(compiled.transform(X).toarray(), expected)


@pytest.mark.parametrize(
    ("model", "dtype"),
    [
        (FeatureAgglomeration(2, pooling_func=np.max), "i2"),
        (FeatureAgglomeration(2, pooling_func=np.max), ">f8"),
        (SimpleImputer(strategy="constant", add_indicator=True), ">f8"),
        (DictionaryLearning(2, max_iter=2, transform_algorithm="threshold", random_state=0), "i2"),
    ],
)
def test_dtypes_of_results(model: Any, dtype: str) -> None:
    if isinstance(model, DictionaryLearning) and older("sklearn", 1, 9):
        pytest.skip("it computes small integers in float32")
    X = (HOLES[:, [0, 0, 0]] * [3, 5, 7]).astype("f4")
    if isinstance(model, SimpleImputer):
        X[4, 1] = np.nan
    found = hbc.convert(model.fit(X), "numpy").transform(X.astype(dtype))
    np.testing.assert_allclose(found, model.transform(X.astype(dtype)), rtol=1e-6, strict=True)


def test_another_pooling_function_is_named() -> None:
    model = FeatureAgglomeration(2, pooling_func=np.median).fit(X)
    with pytest.raises(hbc.UnsupportedOperatorError, match=r"pooling function is median\. Use numpy's mean"):
        hbc.convert(model, "numpy")


def test_sums_of_unsigned_integers_are_rejected() -> None:
    """The source's are unsigned."""
    model = FeatureAgglomeration(2, pooling_func=np.sum).fit(HOLES[:, [0, 0, 0]] * [3, 5, 7])
    compiled, X = hbc.convert(model, "numpy"), np.arange(9).reshape(3, 3)
    np.testing.assert_array_equal(compiled.transform(X), model.transform(X), strict=True)
    with pytest.raises(hbc.InvalidInputError, match="uint8"):
        compiled.transform(X.astype(np.uint8))
