"""Cases in which the answer of the source library depends on something unusual: a single row, a whole batch, a narrow dtype, ties. hbc's
answer is equal, or an error."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from backends import installed
from installed import older
from lightgbm import LGBMRegressor
from scipy import sparse
from sklearn.calibration import CalibratedClassifierCV
from sklearn.cluster import BisectingKMeans, KMeans
from sklearn.compose import ColumnTransformer
from sklearn.covariance import EmpiricalCovariance
from sklearn.decomposition import PCA, SparsePCA
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import BaggingClassifier, HistGradientBoostingClassifier
from sklearn.feature_selection import VarianceThreshold
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression, PoissonRegressor
from sklearn.manifold import Isomap, LocallyLinearEmbedding
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import GridSearchCV
from sklearn.multioutput import ClassifierChain, MultiOutputClassifier
from sklearn.naive_bayes import BernoulliNB, GaussianNB
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor, RadiusNeighborsTransformer
from sklearn.neural_network import BernoulliRBM
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    Binarizer,
    FunctionTransformer,
    KBinsDiscretizer,
    MaxAbsScaler,
    MinMaxScaler,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
    PowerTransformer,
    QuantileTransformer,
    SplineTransformer,
    StandardScaler,
)
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor
from xgboost import XGBClassifier

import hbc
from hbc.ir.lazy_graph import LazyGraph
from hbc.ir.rewrite import rewrite
from hbc.ops.tree import TreeEnsemble
from hbc.parser import registry
from hbc.runtime import artifact

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 4))
Y = RNG.integers(0, 3, 60)


class Echo(LogisticRegression):
    """A classifier whose decisions are its input."""


def _echo(m: Any, x: Any) -> Any:
    return {"decision_function": x, "predict": x}


def test_one_row_of_a_sparse_pca_is_a_vector_in_the_source_and_rejected_here() -> None:
    model = SparsePCA(2, random_state=0, max_iter=5).fit(X)
    assert model.transform(X[:1]).shape == (2,)
    compiled = hbc.convert(model, "numpy")
    np.testing.assert_allclose(compiled.transform(X[:2]), model.transform(X[:2]))
    with pytest.raises(hbc.InvalidInputError, match="found 1 row, expected at least 2"):
        compiled.transform(X[:1])


@pytest.mark.skipif(older("sklearn", 1, 8), reason="it has no temperature scaling")
def test_decisions_that_add_up_to_one_are_probabilities_to_temperature_scaling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Echo, "decision_function", lambda self, X: np.asarray(X))
    monkeypatch.setattr(registry, "CONVERTERS", dict(registry.CONVERTERS))
    hbc.converts(f"{__name__}.Echo")(_echo)
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


NARROW = (np.bool_, np.int8, np.uint8, np.int16, np.uint16)


@pytest.mark.parametrize(
    "model", [LogisticRegression(), GaussianNB(), PCA(2), make_pipeline("passthrough", LinearRegression())]
)
def test_narrow_integers_beside_float32_parameters_are_float32(model: Any) -> None:
    """numpy's common dtype."""
    ones = (X > 0).astype(np.float32)
    model.fit(ones, Y)
    compiled = hbc.convert(model, "numpy")
    method = next(name for name in ("predict_proba", "predict", "transform") if hasattr(model, name))
    for dtype in (*NARROW, np.int32):
        expected, found = getattr(model, method)(ones.astype(dtype)), getattr(compiled, method)(ones.astype(dtype))
        np.testing.assert_allclose(found, expected, rtol=1e-5, strict=True)


def test_selected_columns_keep_any_dtype() -> None:
    whole = np.arange(12).reshape(4, 3)
    models = [VarianceThreshold().fit(whole), Binarizer(threshold=4).fit(whole), FunctionTransformer()]
    for model in (*models, make_pipeline(models[0], models[1])):
        compiled = hbc.convert(model, "numpy", whole)
        for dtype in (*NARROW, np.int32, ">f8", ">i4", "float32"):
            found, expected = compiled.transform(whole.astype(dtype)), model.transform(whole.astype(dtype))
            np.testing.assert_array_equal(found, expected, strict=True)
            assert found.dtype == expected.dtype


def test_bagged_probabilities_of_another_number_of_classes() -> None:
    model = BaggingClassifier(HistGradientBoostingClassifier(max_iter=1), n_estimators=1).fit(X, np.zeros(len(X), int))
    with pytest.raises(ValueError, match="broadcast"):
        model.predict_proba(X)
    with pytest.raises(hbc.UnsupportedOperatorError, match="2 probabilities for 1 classes"):
        hbc.convert(model, "numpy")


@pytest.mark.parametrize("indicator", [False, True])
def test_an_imputer_of_integers_keeps_any_dtype(indicator: bool) -> None:
    whole = RNG.integers(0, 4, (20, 3))
    model = SimpleImputer(strategy="most_frequent", missing_values=0, add_indicator=indicator).fit(whole)
    compiled = hbc.convert(model, "numpy", whole)
    for dtype in (*NARROW[1:], np.int32, np.uint32, np.float32, np.float64):
        np.testing.assert_array_equal(
            compiled.transform(whole.astype(dtype)), model.transform(whole.astype(dtype)), strict=True
        )


@pytest.mark.parametrize("fill", [5, -1, 300])
@pytest.mark.parametrize("strategy", ["constant", "most_frequent"])
def test_an_imputer_of_signed_integers_rejects_unsigned_ones(strategy: str, fill: int) -> None:
    whole = np.where(np.arange(12).reshape(4, 3) > 8, 1, fill if strategy == "most_frequent" else 2)
    model = SimpleImputer(strategy=strategy, missing_values=1, fill_value=fill).fit(whole)
    compiled = hbc.convert(model, "numpy")
    for dtype in (*NARROW[1:], np.int32, np.uint32, np.int64, np.uint64):
        data = whole.astype(dtype)
        try:
            expected = model.transform(data)
        except ValueError:
            with pytest.raises(hbc.InvalidInputError, match=np.dtype(dtype).name):
                compiled.transform(data)
            continue
        try:
            found = compiled.transform(data)
        except hbc.InvalidInputError:  # the source would fill in a number that does not fit the dtype
            assert not np.iinfo(dtype).min <= fill <= np.iinfo(dtype).max or dtype().dtype.kind == "u"
            continue
        np.testing.assert_array_equal(found, expected, strict=True)


def test_integers_of_any_width_where_only_nan_is_missing() -> None:
    """Integers are never NaN, so nothing is filled in, and any fill_value will do. (A fill_value of -1 once made hbc reject all narrow or
    unsigned integers.)"""
    model = SimpleImputer(strategy="constant", fill_value=-1).fit(X)
    compiled = hbc.convert(model, "numpy")
    whole = np.arange(8).reshape(2, 4)
    with pytest.raises(ValueError, match="cannot be cast"):
        model.transform(whole)
    with pytest.raises(hbc.InvalidInputError, match="float64"):
        compiled.transform(whole)
    model = SimpleImputer(strategy="most_frequent").fit(-np.abs(whole))
    compiled = hbc.convert(model, "numpy")
    for dtype in (*NARROW[1:], np.uint32, np.int64):
        np.testing.assert_array_equal(
            compiled.transform(whole.astype(dtype)), model.transform(whole.astype(dtype)), strict=True
        )


def test_a_likelihood_of_a_sparse_matrix_is_rejected_where_its_projection_is_not() -> None:
    model, data = PCA(2).fit(X), sparse.csr_matrix(X)
    compiled = hbc.convert(model, "numpy")
    np.testing.assert_allclose(compiled.transform(data), model.transform(data))
    with pytest.raises(TypeError, match="Sparse"):
        model.score_samples(data)
    with pytest.raises(hbc.InvalidInputError, match="sparse"):
        compiled.score_samples(data)


def test_python_objects_for_a_function_of_numpy_are_rejected() -> None:
    model = FunctionTransformer(np.log1p).fit(np.abs(X))
    with pytest.raises(TypeError, match="log1p"):
        model.transform(np.abs(X).astype(object))
    with pytest.raises(hbc.InvalidInputError, match="Python objects"):
        hbc.convert(model, "numpy", X).transform(np.abs(X).astype(object))


@pytest.mark.parametrize(
    "encoder", [OneHotEncoder(handle_unknown="ignore"), OrdinalEncoder(), SimpleImputer(strategy="most_frequent")]
)
def test_a_column_of_nan_for_one_of_strings(encoder: Any) -> None:
    """Encoders reject a column of NaN in place of strings. An imputer takes it for missing strings."""
    model = encoder.fit(pd.DataFrame({"a": ["x", "y", np.nan], "b": ["q", "r", "q"]}))
    data = pd.DataFrame({"a": np.full(2, np.nan), "b": ["q", "r"]})
    compiled = hbc.convert(model, "numpy")
    if isinstance(encoder, SimpleImputer):
        np.testing.assert_array_equal(compiled.transform(data), model.transform(data))
        return
    with pytest.raises(TypeError, match="isnan"):
        model.transform(data)
    with pytest.raises(hbc.InvalidInputError, match=r"column 0 \('a'\): found numbers"):
        compiled.transform(data)


def test_splines_of_flags_and_small_codes_are_floats() -> None:
    """(They were once cast back to bool and int8.)"""
    gaps = np.where(X > 0.5, np.nan, X)
    for first in (MissingIndicator(features="all"), OrdinalEncoder(dtype=np.int8)):
        model = make_pipeline(first, SplineTransformer(n_knots=3, degree=2)).fit(
            gaps if isinstance(first, MissingIndicator) else X
        )
        data = gaps if isinstance(first, MissingIndicator) else X
        np.testing.assert_allclose(hbc.convert(model, "numpy").transform(data), model.transform(data), atol=1e-15)


@pytest.mark.parametrize("passed", [[("code", OneHotEncoder(), [0, 1])], [("same", "passthrough", [0, 1])]])
def test_zeros_of_a_column_transformer_that_gives_arrays_are_no_missing_values(passed: Any) -> None:
    """The only block comes from a sparse matrix, but the output is dense. In a sparse matrix XGBoost would take zeros for missing."""
    whole = np.round(X[:, :2])
    first = [] if isinstance(passed[0][1], OneHotEncoder) else [OneHotEncoder()]
    steps = [*first, ColumnTransformer(passed, sparse_threshold=0), XGBClassifier(n_estimators=3)]
    model = make_pipeline(*steps).fit(whole, Y)
    np.testing.assert_allclose(hbc.convert(model, "numpy").predict_proba(whole), model.predict_proba(whole), rtol=1e-5)


def test_strings_of_digits_are_no_numbers_to_what_keeps_objects() -> None:
    whole = np.round(X[:, :2])
    digits = whole.astype(str).astype(object)
    for first in (SimpleImputer(strategy="constant"), OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)):
        model = make_pipeline(first, LogisticRegression()).fit(whole, Y)
        compiled = hbc.convert(model, "numpy")
        objects = whole.astype(object)
        np.testing.assert_allclose(compiled.predict_proba(objects), model.predict_proba(objects))
        with pytest.raises(hbc.InvalidInputError, match="Python objects"):
            compiled.predict_proba(digits)
    imputer = hbc.convert(make_pipeline(SimpleImputer(strategy="constant")).fit(whole), "numpy")
    with pytest.raises(hbc.InvalidInputError, match="Python objects"):  # the source gives them back
        imputer.transform(whole.astype(object))


@pytest.mark.parametrize("model", [MissingIndicator(features="all"), SimpleImputer(strategy="most_frequent")])
def test_none_is_not_missing_where_nan_is(model: Any) -> None:
    """None is rejected, also in a column of nulls in a table of pyarrow. (polars turns such a column into NaN.)"""
    gaps = np.where(X[:, :2] > 0.5, np.nan, X[:, :2])
    compiled = hbc.convert(model.fit(gaps), "numpy")
    objects = gaps.astype(object)
    objects[0, 0] = None
    frame = pa.table({"a": pa.nulls(2), "b": [1.0, 2.0]})
    flags = pl.DataFrame({"a": [True, None], "b": [1.0, 2.0]})
    for data in (objects, frame, flags):
        with pytest.raises(hbc.InvalidInputError, match="found None"):
            compiled.transform(data)


def test_none_in_strings_that_go_through_a_frame_is_rejected() -> None:
    """The imputer leaves None, but pandas from 3 on turns it into NaN."""
    data = pd.DataFrame({"a": ["x", None, "y", np.nan] * 5}, dtype=object)
    model = make_pipeline(SimpleImputer(strategy="constant"), OneHotEncoder(sparse_output=False)).set_output(transform="pandas")
    compiled = hbc.convert(model.fit(data), "numpy")
    np.testing.assert_array_equal(compiled.transform(data.iloc[2:4]), model.transform(data.iloc[2:4]))
    assert model.transform(data.iloc[:2]).columns[-1] == ("a_None" if older("pandas", 3) else "a_nan")
    with pytest.raises(hbc.InvalidInputError, match="found None"):
        compiled.transform(data)


@pytest.mark.parametrize(
    "first", [VarianceThreshold(), SimpleImputer(strategy="constant"), ColumnTransformer([("same", "passthrough", [0, 1])])]
)
def test_float32_of_a_frame_that_another_estimator_has_read_stays_float32(first: Any) -> None:
    """A scaler reads float32 of a frame of polars as float64, but not float32 of an array that another estimator made."""
    frame = pl.DataFrame(X[:, :2].astype(np.float32), schema=["a", "b"])
    model = make_pipeline(first, StandardScaler()).fit(frame)
    found, expected = hbc.convert(model, "numpy").transform(frame), model.transform(frame)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6, strict=True)


@pytest.mark.parametrize("model", [ColumnTransformer([("same", "passthrough", [1, 0])]), VarianceThreshold()])
def test_python_objects_that_come_out_again_are_rejected(model: Any) -> None:
    compiled = hbc.convert(model.fit(X), "numpy")
    assert model.transform(X.astype(object)).dtype == object
    with pytest.raises(hbc.InvalidInputError, match="Python objects"):
        compiled.transform(X.astype(object))


def test_an_encoder_of_one_category_that_it_drops() -> None:
    """No output reads the column, but it is still checked. (hbc.convert once did not return.)"""
    data = pd.DataFrame({"a": ["x"] * 4, "b": [1.0, 2.0, 3.0, 4.0]})
    parts = [("drop", OneHotEncoder(drop="first", sparse_output=False), ["a"]), ("same", "passthrough", ["b"])]
    model = ColumnTransformer(parts).fit(data)
    compiled = hbc.convert(model, "numpy")
    np.testing.assert_array_equal(compiled.transform(data), model.transform(data))
    with pytest.raises(hbc.InvalidInputError, match="found 'y' in column 'a'"):
        compiled.transform(data.assign(a="y"))


def test_a_model_of_no_columns_says_so() -> None:
    with pytest.raises(hbc.UnsupportedOperatorError, match="no columns at all"):
        hbc.convert(DummyClassifier().fit(X[:, :0], Y), "numpy")


def test_targets_of_float16() -> None:
    halves = np.column_stack([Y, Y % 2]).astype(np.float16)
    for model in (
        KNeighborsClassifier(),
        DecisionTreeClassifier(),
        MultiOutputClassifier(GaussianNB()),
        ClassifierChain(GaussianNB()),
    ):
        model.fit(X, halves[:, 1:] if isinstance(model, ClassifierChain) else halves)
        np.testing.assert_array_equal(hbc.convert(model, "numpy").predict(X), model.predict(X), strict=True)
    with pytest.raises(hbc.UnsupportedOperatorError, match="float16"):
        hbc.convert(KNeighborsRegressor().fit(X, halves), "numpy")


def test_lists_of_bool_stay_bool() -> None:
    flags = X > 0
    model = VarianceThreshold().fit(flags)
    found = hbc.convert(model, "numpy", flags).transform(flags.tolist())
    np.testing.assert_array_equal(found, model.transform(flags.tolist()), strict=True)


@pytest.mark.parametrize(
    "labels", [np.arange(3, dtype=np.uint32), np.array(["a", "b", "c"], object)], ids=["unsigned", "objects"]
)
def test_labels_of_several_targets_keep_their_dtype(labels: Any) -> None:
    """A DummyClassifier turns labels that are Python objects into strings of a fixed width, also for a single target."""
    targets = labels[np.column_stack([Y, Y[::-1]])]
    dummies = [MultiOutputClassifier(DummyClassifier()), GridSearchCV(DummyClassifier(), {}, cv=2)]
    for model in (*dummies, MultiOutputClassifier(GaussianNB()), DecisionTreeClassifier(max_depth=2)):
        model.fit(X, targets[:, 0] if isinstance(model, GridSearchCV) else targets)
        found, expected = hbc.convert(model, "numpy").predict(X), model.predict(X)
        assert found.dtype.kind == expected.dtype.kind
        np.testing.assert_array_equal(found, expected)


def test_bernoulli_thresholds_reject_float16() -> None:
    """The source compares it with a threshold that is rounded to float16."""
    model = BernoulliNB(binarize=0.1).fit(X, Y)
    with pytest.raises(hbc.InvalidInputError, match="float16"):
        hbc.convert(model, "numpy").predict(X.astype(np.float16))


def test_multi_softmax_gives_int32() -> None:
    model = XGBClassifier(n_estimators=2, max_depth=2, objective="multi:softmax").fit(X, Y)
    np.testing.assert_array_equal(hbc.convert(model, "numpy").predict(X), model.predict(X), strict=True)


SINGLE = np.abs(X).astype(np.float32)


@pytest.mark.parametrize(
    "model",
    [
        KMeans(2, n_init=1).fit(SINGLE),
        BisectingKMeans(2).fit(SINGLE),
        PoissonRegressor().fit(SINGLE, Y),
        BernoulliRBM(2, n_iter=1).fit(SINGLE),
    ],
    ids=lambda model: type(model).__name__,
)
@pytest.mark.filterwarnings("ignore:X has feature names")
def test_float32_of_polars_is_float64(model: Any) -> None:
    """check_array looks at the dtypes of pandas' frames only. Lloyd's kernel then rejects float64 beside centres of float32."""
    frame, compiled = pl.DataFrame(SINGLE), hbc.convert(model, "numpy")
    method = "predict" if hasattr(model, "predict") and not hasattr(model, "transform") else "transform"
    expected = getattr(model, method)(frame)
    np.testing.assert_allclose(getattr(compiled, method)(frame), expected, rtol=1e-12, strict=True)
    if hasattr(model, "cluster_centers_"):
        with pytest.raises(ValueError, match="dtype mismatch"):
            model.predict(frame)
        with pytest.raises(hbc.InvalidInputError, match="float32"):
            compiled.predict(frame)


@pytest.mark.parametrize(
    ("targets", "constant"),
    [
        (np.array(["no", "yes", "perhaps"])[Y], None),
        (np.array(["no", "yes", "perhaps"])[Y], "no"),
        (np.array([3, 5, 7], "i4")[Y], 5),
        (np.array([3, 5, 7], "u4")[Y], None),
        (np.array([3, 5, 7], "u1")[Y], 5),
        (np.array([["a", "b"], ["a", "long"], ["c", "b"]])[Y], None),
        (np.array([["a", "b"], ["a", "long"], ["c", "b"]], object)[Y], np.array(["a", "long"], object)),
    ],
)
def test_constant_labels_have_a_dtype_of_their_own(targets: Any, constant: Any) -> None:
    """numpy.tile makes it of the labels that DummyClassifier gives: a width of strings, and int64 of a number of Python."""
    model = DummyClassifier(strategy="prior" if constant is None else "constant", constant=constant).fit(X, targets)
    np.testing.assert_array_equal(hbc.convert(model, "numpy").predict(X), model.predict(X), strict=True)


@pytest.mark.parametrize(
    ("model", "data"),
    [
        (SimpleImputer(strategy="most_frequent").fit(X), X > 0),
        (MissingIndicator(features="all").fit(X), X > 0),
        (LGBMRegressor(n_estimators=2, verbose=-1).fit(X, Y), sparse.csr_array(X.astype(np.int64))),
        (KMeans(2, n_init=1).fit(X), X.astype(np.float32)),
    ],
)
def test_dtypes_that_the_source_rejects(model: Any, data: Any) -> None:
    method = "predict" if hasattr(model, "predict") else "transform"
    with pytest.raises((TypeError, ValueError)):
        getattr(model, method)(data)
    with pytest.raises(hbc.InvalidInputError):
        getattr(hbc.convert(model, "numpy"), method)(data)


@pytest.mark.parametrize(
    "change",
    [
        {"left": 10**6},
        {"right": -5},
        {"left": 0},  # back to the root
        {"roots": 10**6},
        {"feature": -7},
        {"target": 3},
        {"leaf_ids": None},
    ],
    ids=lambda change: " ".join(change),
)
def test_trees_that_lead_nowhere_are_found_when_a_file_is_loaded(change: dict[str, int | None], tmp_path: Any) -> None:
    ((name, number),) = change.items()
    model = hbc.convert(DecisionTreeRegressor(max_depth=3, random_state=0).fit(X, Y), "numpy")

    def damaged(node: Any) -> Any:
        if (
            not isinstance(node.op, TreeEnsemble)
            or number == getattr(node.op, name)[0]
            or len(node.op.leaf_ids) < len(node.op.values)
        ):
            return None
        array = getattr(node.op, name).copy()
        array[0] = 0 if number is None else number
        return replace(node.op, **{name: array[1:] if number is None else array})(*node.inputs)

    model.save(tmp_path / "model.hbc")
    contents = artifact.read(tmp_path / "model.hbc")
    file = io.BytesIO()
    graphs = {kinds: LazyGraph.of(rewrite(lazy.graph, damaged)) for kinds, lazy in contents.graphs.items()}
    artifact.write(file, replace(contents, graphs=graphs))
    (tmp_path / "damaged.hbc").write_bytes(file.getvalue())
    hbc.load(tmp_path / "model.hbc").predict(X)
    with pytest.raises(hbc.ArtifactError):
        hbc.load(tmp_path / "damaged.hbc")


def test_sparse_matrices_that_the_source_reads_otherwise() -> None:
    """Sparse matrices are rejected where the source rejects them (trees of neighbours, a Binarizer with a threshold below 0) or computes
    something else (products of the columns of a graph of neighbours)."""
    for model in (KNeighborsRegressor(algorithm="kd_tree").fit(X, Y), Binarizer(threshold=-1.0)):
        method = "predict" if hasattr(model, "predict") else "transform"
        with pytest.raises(ValueError, match="sparse"):
            getattr(model, method)(sparse.csr_array(X))
        with pytest.raises(hbc.InvalidInputError, match="sparse"):
            getattr(hbc.convert(model, "numpy", X), method)(sparse.csr_array(X))
    graph = make_pipeline(RadiusNeighborsTransformer(radius=1.5), PolynomialFeatures()).fit(X)
    with pytest.raises(hbc.UnsupportedOperatorError, match="graph of neighbours"):
        hbc.convert(graph, "numpy")


@pytest.mark.parametrize("changed", [{"include_bias": False}, {"interaction_only": True}])
def test_polynomials_that_were_changed_after_fit(changed: dict[str, bool]) -> None:
    """The source's result has columns that nothing has written, or too few for its terms."""
    model = PolynomialFeatures(2).fit(X)
    with pytest.raises(hbc.UnsupportedOperatorError, match="changed after fit"):
        hbc.convert(model.set_params(**changed), "numpy")
    same = PolynomialFeatures(1).fit(X).set_params(interaction_only=True, degree=3)  # degree counts at fit only
    np.testing.assert_array_equal(hbc.convert(same, "numpy").transform(X), same.transform(X))


@pytest.mark.parametrize("last", [None, GaussianNB()])
def test_a_sparse_matrix_for_the_rest_of_the_columns(last: Any) -> None:
    """scikit-learn's tags leave out the remainder of a ColumnTransformer, which may not take sparse matrices."""
    columns = ColumnTransformer([("a", MaxAbsScaler(), [0])], remainder=MinMaxScaler(), sparse_threshold=0)
    model = make_pipeline(columns, *([] if last is None else [last])).fit(X, Y)
    searched = GridSearchCV(model, {}, cv=2, scoring=lambda *_: 0.0).fit(X, Y)
    method = "transform" if last is None else "predict"
    for each in (columns if last is None else model, model, searched):
        compiled = hbc.convert(each, "numpy")
        np.testing.assert_allclose(getattr(compiled, method)(X), getattr(each, method)(X))
        with pytest.raises(TypeError, match="dense data is required"):
            getattr(each, method)(sparse.csr_matrix(X))
        with pytest.raises(hbc.InvalidInputError, match="sparse"):
            getattr(compiled, method)(sparse.csr_matrix(X))


def test_the_square_of_a_sparse_matrix_is_a_product_of_matrices() -> None:
    square, root = FunctionTransformer(np.square).fit(X), FunctionTransformer(np.log1p).fit(X)
    data = sparse.csr_matrix(np.abs(X[:4]))
    assert not np.allclose(square.transform(data).toarray(), data.toarray() ** 2)
    with pytest.raises(hbc.InvalidInputError, match="sparse"):
        hbc.convert(square, "numpy", X).transform(data)
    found = hbc.convert(root, "numpy", X).transform(data)
    np.testing.assert_array_equal(found.toarray() if sparse.issparse(found) else found, root.transform(data).toarray())


def test_a_pipeline_without_the_methods_of_its_last_step() -> None:
    model = make_pipeline(StandardScaler(), EmpiricalCovariance()).fit(X)
    with pytest.raises(hbc.UnsupportedOperatorError, match="computes mahalanobis only, which a pipeline does not have"):
        hbc.convert(model, "numpy")
    found = hbc.convert(model[-1], "numpy").mahalanobis(hbc.convert(model[:-1], "numpy").transform(X))
    np.testing.assert_allclose(found, model[-1].mahalanobis(model[:-1].transform(X)))


def test_a_column_transformer_of_an_identity_knows_whether_it_is_sparse() -> None:
    """The output of an identity is its input, so the search for the estimator that made it once went in a circle."""
    columns = ColumnTransformer([("same", FunctionTransformer(), [0, 1])], remainder="passthrough")
    model = make_pipeline(columns, MaxAbsScaler(), LogisticRegression()).fit(X, Y)
    np.testing.assert_allclose(hbc.convert(model, "numpy", X).predict_proba(X), model.predict_proba(X))


def test_what_is_computed_in_the_dtype_of_the_input_has_it_still() -> None:
    """A Binarizer gives int8 for int8, which a mixture then squares in int8."""
    ones = X.round()
    model = make_pipeline(Binarizer(), GaussianMixture(2, random_state=0)).fit(ones)
    compiled = hbc.convert(model, "numpy")
    np.testing.assert_array_equal(compiled.predict(ones), model.predict(ones))
    with pytest.raises(hbc.InvalidInputError, match="int8"):
        compiled.predict(ones.astype(np.int8))


@pytest.mark.parametrize("backend", installed("numpy", "torch"))
@pytest.mark.parametrize("transformer", [PowerTransformer("box-cox"), QuantileTransformer(output_distribution="normal")])
def test_a_bin_shows_every_ulp_of_what_scipy_computes(transformer: Any, backend: str) -> None:
    """Bins begin at values of the transform, so that one ulp changes the bin. scipy calls the logarithm of the C library, from which
    numpy's differs for 0.2 % of numbers."""
    X = np.exp(np.random.default_rng(0).normal(size=(4000, 2)))
    transformed = transformer.fit_transform(X)
    bins = KBinsDiscretizer(5, encode="ordinal", strategy="uniform").fit(transformed)
    for column, values in enumerate(transformed.T):
        bins.bin_edges_[column] = np.unique(values)[::2]
    bins.n_bins_ = np.array([len(edges) - 1 for edges in bins.bin_edges_])
    pipeline = make_pipeline(transformer, bins)
    np.testing.assert_array_equal(hbc.convert(pipeline, backend).transform(X), pipeline.transform(X))


@pytest.mark.parametrize("embedding", [Isomap(n_neighbors=5), LocallyLinearEmbedding(n_neighbors=5)])
def test_rows_whose_distances_cannot_be_squared_are_rejected(embedding: Any) -> None:
    """(Isomap once gave NaN for float32 rows of 1.7e19, for which the source gives numbers.)"""
    compiled = hbc.convert(embedding.fit(X), "numpy")
    with pytest.raises(hbc.InvalidInputError, match=r"found 1\.7.*e\+19"):
        compiled.transform(np.full((2, 4), 1.7e19, np.float32))
    far = np.full((2, 4), 1e2, np.float32)
    np.testing.assert_allclose(compiled.transform(far), embedding.transform(far), rtol=1e-3)


def test_rows_so_far_away_that_an_isomap_is_rounding_are_rejected() -> None:
    """(For rows at 1e18, the source gives -20480, and hbc gave -22528.)"""
    model = Isomap(n_neighbors=5).fit(X)
    compiled = hbc.convert(model, "numpy")
    far = X[:4] * 1e6
    np.testing.assert_allclose(compiled.transform(far), model.transform(far), rtol=1e-7)
    for data in (X[:4] * 1e18, X[:4].astype(np.float32) * 1e6):
        with pytest.raises(hbc.InvalidInputError, match="KernelPCA"):
            compiled.transform(data)


def test_an_isomap_of_equal_points() -> None:
    model = Isomap(n_components=1, n_neighbors=3).fit(np.ones((9, 4)))
    np.testing.assert_array_equal(hbc.convert(model, "numpy").transform(X), model.transform(X))


def test_a_column_that_a_frame_gives_as_it_is_counts_as_read() -> None:
    """The column is the only one of its dtype, so no operator reads its graph input; nothing reads the third column of the frame."""
    frame = pd.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0], "c": [5, 6]})
    model = ColumnTransformer([("same", "passthrough", ["a", "c"])]).set_output(transform="pandas").fit(frame)
    pd.testing.assert_frame_equal(hbc.convert(model, "numpy", frame).transform(frame), model.transform(frame))
