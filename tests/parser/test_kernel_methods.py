"""Kernel methods: refused kernels, rejected sparse and negative input, and the error function against scipy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse, special
from sklearn.datasets import load_iris
from sklearn.decomposition import KernelPCA
from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, DotProduct, Matern, PairwiseKernel
from sklearn.kernel_approximation import AdditiveChi2Sampler, Nystroem, SkewedChi2Sampler
from sklearn.kernel_ridge import KernelRidge
from sklearn.semi_supervised import LabelPropagation
from sklearn.svm import SVC, SVR

import hbc
from hbc.ir.graph import Graph, Input
from hbc.parser.sklearn.shared.error_function import erf

X, Y = load_iris(return_X_y=True)
X, Y = X[::5], Y[::5]


class OwnKernel(RBF):
    pass


def products(a, b):
    return a @ b.T


REFUSED = [
    lambda: SVC(kernel="precomputed").fit(X @ X.T, Y),
    lambda: SVC(kernel=products).fit(X, Y),
    lambda: SVR(kernel="precomputed").fit(X @ X.T, Y),
    lambda: KernelRidge(kernel="precomputed").fit(X @ X.T, Y),
    lambda: KernelPCA(kernel="precomputed").fit(X @ X.T),
    lambda: Nystroem(kernel=lambda a, b: float(a @ b), n_components=4).fit(X),
    lambda: LabelPropagation(kernel=products).fit(X, Y),
    lambda: GaussianProcessRegressor(OwnKernel(), optimizer=None, alpha=1.0).fit(X, Y),
    lambda: GaussianProcessRegressor(Matern(nu=40.0), optimizer=None, alpha=1.0).fit(X, Y),
]


@pytest.mark.parametrize("make", REFUSED)
def test_other_kernels_are_refused(make) -> None:
    model = make()
    with pytest.raises(hbc.UnsupportedOperatorError, match="kernel"):
        hbc.convert(model, "numpy", None if hasattr(model, "n_features_in_") else X)


@pytest.mark.parametrize(
    "model", [KernelRidge(kernel="chi2", gamma=0.1), AdditiveChi2Sampler(), SkewedChi2Sampler(skewedness=0.1)]
)
def test_too_small_numbers_are_rejected(model) -> None:
    compiled = hbc.convert(model.fit(X, Y), "numpy")
    method = "predict" if hasattr(model, "predict") else "transform"
    for value in (-0.1, -5.0):
        bad = X.copy()
        bad[3, 1] = value
        with pytest.raises(ValueError, match=r"negative|skewedness|Negative"):
            getattr(model, method)(bad)
        with pytest.raises(hbc.InvalidInputError):
            getattr(compiled, method)(bad)


def test_a_dense_machine_rejects_sparse_rows() -> None:
    rows = sparse.csr_array(X)
    model = SVC().fit(X, Y)
    with pytest.raises(ValueError, match="sparse"):
        model.predict(rows)
    with pytest.raises(hbc.InvalidInputError):
        hbc.convert(model, "numpy").predict(rows)
    model = SVC().fit(rows, Y)
    np.testing.assert_array_equal(hbc.convert(model, "numpy").predict(rows), model.predict(rows))


def test_break_ties_has_no_prediction_one_vs_one() -> None:
    """The source's `predict` raises for that combination; its decision_function does not."""
    model = SVC(break_ties=True, decision_function_shape="ovo").fit(X, Y)
    compiled = hbc.convert(model, "numpy")
    assert not hasattr(compiled, "predict")
    np.testing.assert_allclose(compiled.decision_function(X), model.decision_function(X))


def test_error_function() -> None:
    values = np.random.default_rng(0).normal(size=(5000, 2)) * [1, 3]
    values[:7, 0] = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-300, 1e200]
    x = Input("x", "f64", ("N", 2))()
    with np.errstate(all="ignore"):
        (found,) = Graph((x,), {"y": (erf(x),)}).evaluate(values)["y"]
    np.testing.assert_allclose(found, special.erf(values), rtol=1e-15)


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("kernel", [DotProduct(), PairwiseKernel(metric="linear")], ids=["product", "pairwise"])
def test_rows_are_multiplied_with_themselves_in_their_own_dtype(kernel) -> None:
    """bool times bool is bool, and integers overflow: the variance is then another one, or negative. The sum of the squares of such
    integers, with which inputs are tested in one pass, overflows too."""
    model = GaussianProcessClassifier(kernel, optimizer=None).fit(X, Y > 0)
    compiled = hbc.convert(model, "numpy")
    rows = np.round(X).astype(np.int64)
    np.testing.assert_allclose(compiled.predict_proba(rows), model.predict_proba(rows), rtol=1e-9)
    for wrong in (X > 3, rows.astype(np.int32), np.full((2, 4), 5 * 10**9)):
        with pytest.raises(hbc.InvalidInputError):
            compiled.predict_proba(wrong)


def test_the_code_of_an_svc_does_not_grow_with_its_classes() -> None:
    """With a product for each class, TVM compiled 50 classes for 94 s."""
    rng = np.random.default_rng(0)

    def machine(classes: int) -> SVC:
        return SVC().fit(rng.normal(size=(20 * classes, 4)), np.arange(20 * classes) % classes)

    few, many = (hbc.convert(machine(classes), "numpy").graph for classes in (3, 12))
    assert len(few.nodes) == len(many.nodes)
    assert [type(node.op) for node in few.nodes] == [type(node.op) for node in many.nodes]
