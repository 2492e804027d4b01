"""Sparse matrices as input and output: formats, blocks of rows, errors that name a wrong row, saving."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse
import sklearn
from backends import BACKENDS
from installed import older
from sklearn.cluster import KMeans
from sklearn.decomposition import TruncatedSVD
from sklearn.ensemble import HistGradientBoostingClassifier, StackingClassifier
from sklearn.feature_extraction.text import CountVectorizer, HashingVectorizer, TfidfTransformer, TfidfVectorizer
from sklearn.feature_selection import SelectKBest, VarianceThreshold
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.kernel_approximation import AdditiveChi2Sampler
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline, make_union
from sklearn.preprocessing import (
    Binarizer,
    MaxAbsScaler,
    Normalizer,
    OneHotEncoder,
    PolynomialFeatures,
    RobustScaler,
    StandardScaler,
)
from sklearn.random_projection import GaussianRandomProjection, SparseRandomProjection
from sklearn.tree import DecisionTreeClassifier

import hbc
from hbc.ir.rows import Rows
from hbc.runtime import host, sparse

RANDOM = np.random.default_rng(2)
X = scipy.sparse.random(120, 9, 0.3, random_state=3, format="csr")
Y = RANDOM.integers(0, 2, 120)
DOCUMENTS = [" ".join(RANDOM.choice(["a b", "fox", "dog", "und", "zwei"], 4)) for _ in range(100)]

KEEPING = [
    MaxAbsScaler(),
    StandardScaler(with_mean=False),
    RobustScaler(with_centering=False),
    Normalizer(),
    Binarizer(threshold=0.4),
    PolynomialFeatures(2, include_bias=False),
    SimpleImputer(),
    MissingIndicator(features="all"),
    VarianceThreshold(),
    SelectKBest(k=3),
    make_pipeline(StandardScaler(with_mean=False), SelectKBest(k=3)),
    make_union(MaxAbsScaler(), Normalizer()),
    AdditiveChi2Sampler(),
    SparseRandomProjection(3, random_state=0),
]


def test_a_dense_projection_of_a_sparse_matrix_is_dense() -> None:
    model = GaussianRandomProjection(3, random_state=0).fit(X)
    found = hbc.convert(model, "numpy").transform(X)
    assert isinstance(found, np.ndarray)
    np.testing.assert_allclose(found, model.transform(X))


def assert_same_matrix(found, expected):
    assert type(found) is type(expected)
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found.toarray(), expected.toarray(), rtol=1e-12)


@pytest.mark.parametrize("model", KEEPING, ids=lambda m: type(m).__name__)
def test_formats_are_the_sources(model) -> None:
    model.fit(X, Y)
    compiled = hbc.convert(model, "numpy")
    for matrix in (X, X.tocsc(), X.tocoo(), scipy.sparse.csr_array(X)):
        expected, found = model.transform(matrix), compiled.transform(matrix)
        assert_same_matrix(found, expected)
    if not isinstance(model, Normalizer):
        np.testing.assert_allclose(compiled.transform(X.toarray()), model.transform(X.toarray()))


def test_large_matrices_are_computed_in_blocks(monkeypatch) -> None:
    """No array as large as the whole dense matrix is made. Results are the same as in one piece, and an error names the wrong row."""
    monkeypatch.setattr(sparse, "BLOCK_BYTES", 1000)
    model = LogisticRegression().fit(X, Y)
    compiled = hbc.convert(model, "numpy")
    for matrix in (X, X.tocsc()):
        np.testing.assert_allclose(compiled.predict_proba(matrix), model.predict_proba(matrix))
        np.testing.assert_array_equal(compiled.predict(matrix), model.predict(matrix))
    scaler = MaxAbsScaler().fit(X)
    assert_same_matrix(hbc.convert(scaler, "numpy").transform(X), scaler.transform(X))
    wrong = X.copy()
    wrong.data[-1] = np.nan
    with pytest.raises(
        hbc.InvalidInputError, match=r"NaN in row \d+.*counting rows from row \d+|counting rows from row \d+.*NaN"
    ):
        compiled.predict(wrong)


@pytest.mark.parametrize("backend", ["numpy", "tvm"])
def test_text_is_computed_in_blocks(monkeypatch, backend) -> None:
    monkeypatch.setattr(host, "ROWS_AT_ONCE", 16)
    monkeypatch.setattr(host, "DENSE_BYTES", 300)
    from sklearn.tree import DecisionTreeClassifier

    for model in (
        make_pipeline(TfidfVectorizer(), LogisticRegression()),
        make_pipeline(CountVectorizer(), DecisionTreeClassifier()),
    ):
        model.fit(DOCUMENTS, Y[:100])
        compiled = hbc.convert(model, backend)
        np.testing.assert_array_equal(compiled.predict(DOCUMENTS), model.predict(DOCUMENTS))
        np.testing.assert_allclose(compiled.predict_proba(iter(DOCUMENTS)), model.predict_proba(DOCUMENTS))
    model = HashingVectorizer(n_features=1 << 12).fit(DOCUMENTS)
    assert_same_matrix(hbc.convert(model, backend).transform(DOCUMENTS), model.transform(DOCUMENTS))


@pytest.mark.skipif(older("sklearn", 1, 9), reason="it has no option sparse_interface")
def test_the_class_is_that_of_the_configuration() -> None:
    encoder = OneHotEncoder().fit([["a"], ["b"]])
    with sklearn.config_context(sparse_interface="sparray"):
        compiled = hbc.convert(encoder, "numpy")
        assert_same_matrix(compiled.transform([["b"]]), encoder.transform([["b"]]))
    assert type(hbc.convert(encoder, "numpy").transform([["b"]])) is scipy.sparse.csr_matrix


def test_saved_models_return_the_same(tmp_path) -> None:
    model = CountVectorizer(stop_words=["und"]).fit(DOCUMENTS)
    hbc.convert(model, "numpy").save(tmp_path / "m.hbc")
    assert_same_matrix(hbc.load(tmp_path / "m.hbc").transform(DOCUMENTS), model.transform(DOCUMENTS))


@pytest.mark.parametrize("wrong", ["a text", None, [None, "a"], ["a", np.nan], [b"a"], 3.0, np.zeros((2, 2)), [["a"]]])
def test_what_is_no_document_is_rejected(wrong) -> None:
    compiled = hbc.convert(CountVectorizer().fit(DOCUMENTS), "numpy")
    with pytest.raises(hbc.InvalidInputError):
        compiled.transform(wrong)


def _shout(text):
    return text.upper()


@pytest.mark.parametrize(
    "options", [{"preprocessor": _shout}, {"tokenizer": _shout}, {"analyzer": _shout}, {"strip_accents": _shout}]
)
@pytest.mark.filterwarnings("ignore:The parameter:UserWarning")
def test_functions_are_refused_by_name(options) -> None:
    model = CountVectorizer(**options).fit(DOCUMENTS)
    with pytest.raises(hbc.UnsupportedOperatorError, match="_shout"):
        hbc.convert(model, "numpy")


def test_rows_add_up_what_comes_twice() -> None:
    rows = Rows(np.array([0, 3, 4]), np.array([0, 2, 2, 1]), np.array([1.0, 2.0, 3.0, 4.0]), 3, unique=False)
    dense = np.array([[1.0, 0, 5], [0, 4, 0]])
    np.testing.assert_array_equal(rows.dense(), dense)
    np.testing.assert_array_equal(rows.select(np.array([2, 0, 2])).dense(), dense[:, [2, 0, 2]])
    np.testing.assert_array_equal(rows.matmul(np.eye(3)), dense)
    np.testing.assert_array_equal(Rows.stack([rows, rows]).dense(1, 3), dense[[1, 0]])


@pytest.mark.parametrize("name", ["csr_matrix", "csr_array", "csr_matrix i64", "csc_matrix", "csc_array i64"])
@pytest.mark.parametrize("shape", [(0, 3), (1, 0), (5, 3), (100_000, 3)])
def test_matrices_are_whole_and_share_nothing(name: str, shape: tuple[int, int]) -> None:
    dense = np.arange(np.prod(shape), dtype=float).reshape(shape) % 3
    first, second = (sparse.as_scipy(Rows.from_dense(dense), name) for _ in range(2))
    first.check_format(full_check=True)
    np.testing.assert_array_equal(first.toarray(), dense)
    assert type(first) is getattr(scipy.sparse, name.partition(" ")[0])
    assert {first.indices.dtype, first.indptr.dtype} == {np.dtype(np.int64 if name.endswith(" i64") else np.int32)}
    first.data[:] = -1
    np.testing.assert_array_equal(second.toarray(), dense)
    kept = sparse._template(f"csr{name.partition(' ')[0][3:]}", shape)
    assert kept.indptr.size == kept.indices.size == kept.data.size == 0, "only the shape is kept"


def test_a_rounding_that_decides():
    """scikit-learn multiplies a sparse matrix by 1/scale, and divides a dense one: only a decision behind it can tell."""
    data = np.where(RANDOM.random((50, 3)) < 0.5, RANDOM.normal(size=(50, 3)), 0.0)
    y = data.sum(axis=1) > 0
    sparse = scipy.sparse.csr_matrix(data)
    for last, accepted in ((LogisticRegression(), True), (DecisionTreeClassifier(), False)):
        model = make_pipeline(MaxAbsScaler(), last).fit(sparse, y)
        compiled = hbc.convert(model, "numpy")
        if accepted:
            np.testing.assert_allclose(compiled.predict_proba(sparse), model.predict_proba(sparse))
        else:
            with pytest.raises(hbc.InvalidInputError, match="sparse"):
                compiled.predict(sparse)


def test_missing_values():
    """Trees take them in dense matrices only; an imputer before a tree takes them in both."""
    data = np.where(RANDOM.random((50, 3)) < 0.5, RANDOM.normal(size=(50, 3)), 0.0)
    data[:5, 0] = np.nan
    y = np.arange(50) % 2
    sparse = scipy.sparse.csr_matrix(data)
    tree = hbc.convert(DecisionTreeClassifier().fit(data, y), "numpy")
    tree.predict(data)
    with pytest.raises(hbc.InvalidInputError, match="NaN in a sparse matrix"):
        tree.predict(sparse)
    model = make_pipeline(SimpleImputer(), DecisionTreeClassifier()).fit(sparse, y)
    np.testing.assert_array_equal(hbc.convert(model, "numpy").predict(sparse), model.predict(sparse))
    model = make_pipeline(SimpleImputer(), HistGradientBoostingClassifier(max_iter=2)).fit(data, y)
    with pytest.raises(hbc.InvalidInputError, match="sparse"):  # the second step is the one that takes no sparse matrix
        hbc.convert(model, "numpy").predict(sparse)


@pytest.mark.parametrize("last", [KMeans(2, n_init=1, random_state=0), StandardScaler(with_mean=False)])
@pytest.mark.parametrize("backend", BACKENDS)
def test_integer_counts_become_rows_before_the_device_computes_on(last: Any, backend: str) -> None:
    """The cast of the integers stands before the host's part, so that it cannot be the device's."""
    counts = np.random.default_rng(0).integers(0, 5, (30, 3))
    model = make_pipeline(TfidfTransformer(), TruncatedSVD(2, random_state=0), last).fit(counts)
    compiled = hbc.convert(model, backend)
    for X in (counts, counts.astype(float), scipy.sparse.csr_matrix(counts)):
        np.testing.assert_allclose(compiled.transform(X), model.transform(X), atol=1e-9)


def test_a_dok_matrix_is_no_dict_of_columns() -> None:
    """scipy's class is both a sparse matrix and a dict. An empty one was once a frame without columns."""
    X = scipy.sparse.random(20, 3, 0.5, random_state=0)
    model = make_pipeline(MaxAbsScaler(), LogisticRegression()).fit(X, np.arange(20) % 2)
    compiled = hbc.convert(model, "numpy", scipy.sparse.dok_matrix(X))
    for given in (scipy.sparse.dok_matrix(X), scipy.sparse.dok_array(X), scipy.sparse.dok_matrix((2, 3))):
        np.testing.assert_allclose(compiled.predict_proba(given), model.predict_proba(given))


def test_a_sparse_sample_is_not_expanded() -> None:
    """As an array, the sample would have 2⁵⁰ bytes."""
    rows = scipy.sparse.coo_matrix((2**45, 4))
    model = LogisticRegression().fit(np.eye(4), [0, 1, 0, 1])
    assert hbc.convert(model, "numpy", rows).predict(np.eye(4)).tolist() == model.predict(np.eye(4)).tolist()


def test_a_projection_of_density_1_is_dense() -> None:
    """Its matrix is no sparse one, whose product with a sparse matrix would be sparse."""
    model = make_pipeline(MaxAbsScaler(), SparseRandomProjection(2, density=1.0, random_state=0)).fit(X)
    found, expected = hbc.convert(model, "numpy").transform(X), model.transform(X)
    assert isinstance(expected, np.ndarray)
    np.testing.assert_allclose(found, expected, atol=1e-9)


@pytest.mark.parametrize("holder", ["matrix", "array"])
def test_stacking_keeps_the_format_of_its_input(holder: str) -> None:
    """Beside predictions it puts X itself (`passthrough`)."""
    dense = np.where(np.arange(120).reshape(40, 3) % 4 == 0, 0.0, np.arange(120).reshape(40, 3) / 50)
    members = [("a", LogisticRegression()), ("b", LogisticRegression(C=0.1))]
    for source in (
        StackingClassifier(members, cv=2, passthrough=True),
        StackingClassifier(members[:1], cv=2, passthrough=True),
    ):
        given = getattr(scipy.sparse, f"csr_{holder}")(dense)
        compiled = hbc.convert(source.fit(given, np.arange(40) % 3), "numpy")
        for made in (given, given.tocsc()):
            expected, found = source.transform(made), compiled.transform(made)
            assert type(found) is type(expected)
            np.testing.assert_allclose(found.toarray(), expected.toarray(), rtol=1e-6, atol=1e-9)
