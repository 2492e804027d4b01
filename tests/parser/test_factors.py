"""NMF and topics: warnings and rejected inputs of the source, batches that must not be cut, and the computations on the host."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import scipy.sparse
from sklearn.base import clone
from sklearn.decomposition import NMF, LatentDirichletAllocation, MiniBatchNMF
from sklearn.impute import SimpleImputer
from sklearn.manifold import LocallyLinearEmbedding
from sklearn.pipeline import make_pipeline

import hbc
from hbc.ops.topics import Topics
from hbc.runtime import sparse

RNG = np.random.default_rng(0)
X = RNG.exponential(size=(300, 3)) @ RNG.exponential(size=(3, 7))


@pytest.fixture(scope="module")
def model() -> NMF:
    return NMF(3, max_iter=1000, random_state=0).fit(X)


def quietly(model, X):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.transform(X)


@pytest.mark.parametrize("options", [{}, {"solver": "mu"}, {"solver": "mu", "beta_loss": 1.5}])
def test_iterations_that_end_are_warned_of(options) -> None:
    source = NMF(3, init="random", random_state=0, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        source.fit(X)
    compiled = hbc.convert(source.set_params(max_iter=10, tol=1e-12), "numpy")
    with pytest.warns(UserWarning, match="Maximum number of iterations 10 reached. Increase it to improve convergence."):
        found = compiled.transform(X)
    np.testing.assert_allclose(found, quietly(source, X), rtol=1e-10, atol=1e-12)
    source.set_params(tol=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hbc.convert(source, "numpy").transform(X)


def test_rows_of_a_sparse_matrix_stay_together(model, monkeypatch) -> None:
    """Large sparse matrices are cut into blocks, but not for a model whose rows depend on each other."""
    monkeypatch.setattr(sparse, "BLOCK_BYTES", 1024)
    rows = scipy.sparse.csr_array(np.where(X > 3, X, 0))
    compiled = hbc.convert(model, "onnx")
    np.testing.assert_allclose(compiled.transform(rows), model.transform(rows), rtol=1e-9, atol=1e-12)
    parts = np.concatenate([compiled.transform(rows[i : i + 10]) for i in range(0, 300, 10)])
    assert np.abs(parts - model.transform(rows)).max() > 1e-6


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rows", [1, 9, 300])
def test_few_rows_are_descended_as_many_are(dtype, rows) -> None:
    source = NMF(3, max_iter=1000, random_state=0, alpha_W=0.01).fit(X.astype(dtype))
    expected = source.transform(X[:rows].astype(dtype))
    found = hbc.convert(source, "numpy").transform(X[:rows].astype(dtype))
    if dtype == np.float32:
        np.testing.assert_array_equal(found, expected)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_documents_of_one_length_are_multiplied_as_single_ones_are(dtype) -> None:
    """Results in float32 are equal bit for bit, because a rounding error can decide when the iteration of a document stops."""
    words = RNG.gamma(0.3, size=(10, 30)).astype(dtype) + dtype(1e-3)
    documents = (RNG.poisson(2, size=(40, 30)) * (RNG.random((40, 30)) < 0.2)).astype(dtype)
    documents[3], documents[5, 1:] = 0, 0
    topics = Topics(words, 0.1, 1e-3, 100)
    found, alone = topics.evaluate(documents), np.concatenate([topics.evaluate(row[None]) for row in documents])
    if dtype == np.float32:
        np.testing.assert_array_equal(found, alone)
    np.testing.assert_allclose(found, alone, rtol=1e-12)


def test_rejected_as_in_the_source(model) -> None:
    topics = LatentDirichletAllocation(2, max_iter=1, random_state=0).fit(X)
    logs = clone(model).set_params(solver="mu", beta_loss=0, init="random").fit(X)
    zeros = np.where(X < 3, 0, X)
    for source, rows in ((model, -X), (model, X.astype("f4")), (topics, -X), (logs, zeros)):
        with pytest.raises((ValueError, TypeError)):
            source.transform(rows)
        with pytest.raises(hbc.InvalidInputError):
            hbc.convert(source, "numpy").transform(rows)
    mini = MiniBatchNMF(2, init="random", random_state=0, max_iter=500).fit(X)
    with pytest.raises(ValueError, match="NaN"):
        quietly(mini, -X)
    with pytest.raises(hbc.InvalidInputError, match="negative numbers"):
        hbc.convert(mini, "numpy").transform(-X)


@pytest.mark.filterwarnings("ignore:Maximum number of iterations")
@pytest.mark.parametrize("cls", [NMF, MiniBatchNMF])
def test_csc_is_rejected_where_the_source_mixes_up_its_entries(cls) -> None:
    """It is taken with beta_loss=2, which needs no entries."""
    options = {"solver": "mu"} if cls is NMF else {}
    x = scipy.sparse.csr_matrix(np.round(np.random.default_rng(0).uniform(size=(9, 4)), 1) * (np.arange(4) > 0))
    x[::2, 1] = 0
    x.eliminate_zeros()
    for beta in (2, 1):
        model = cls(2, beta_loss=beta, init="random", random_state=0, **options).fit(x)
        compiled = hbc.convert(model, "numpy")
        np.testing.assert_allclose(compiled.transform(x), model.transform(x))
        if beta == 2:
            np.testing.assert_allclose(compiled.transform(x.tocsc()), model.transform(x.tocsc()))
            continue
        assert not np.allclose(model.transform(x.tocsc()), model.transform(x))
        with pytest.raises(hbc.InvalidInputError, match="expected CSR"):
            compiled.transform(x.tocsc())
    imputed = make_pipeline(SimpleImputer(), model).fit(x)
    with pytest.raises(hbc.InvalidInputError, match="sparse"):
        hbc.convert(imputed, "numpy").transform(x)


@pytest.mark.filterwarnings("ignore:Maximum number of iterations")
def test_rows_of_zeros_have_no_divergence_to_reduce() -> None:
    model = NMF(2, solver="mu", beta_loss=0.5, init="random", random_state=0).fit(np.eye(4))
    rows = np.zeros((3, 4))
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(hbc.convert(model, "numpy").transform(rows), model.transform(rows))


def test_refused() -> None:
    shuffled = NMF(2, shuffle=True, max_iter=1000).fit(X)
    singular = LocallyLinearEmbedding(reg=1e-9).fit(X[:60])
    for source, reason in ((shuffled, "random_state"), (singular, "reg")):
        with pytest.raises(hbc.UnsupportedOperatorError, match=reason):
            hbc.convert(source, "numpy")
