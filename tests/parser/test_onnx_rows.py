"""ONNX models whose inputs are declared with a number of rows ([1, F], [100, F]): the rows are free where the graph works row by row. X
of that many rows gives what ONNX Runtime gives; other numbers of rows give what the same export with free rows gives."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pandas as pd
import pytest

import hbc

pytest.importorskip("onnx")
pytest.importorskip("skl2onnx")
from backends import BACKENDS
from onnx import TensorProto as T
from onnx import helper
from onnx_models import graph, session
from skl2onnx import to_onnx
from skl2onnx.common.data_types import FloatTensorType
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import make_column_transformer
from sklearn.decomposition import PCA
from sklearn.ensemble import GradientBoostingClassifier, IsolationForest, RandomForestRegressor, VotingClassifier
from sklearn.feature_selection import SelectKBest
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.multiclass import OneVsRestClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline, make_union
from sklearn.preprocessing import Binarizer, KBinsDiscretizer, MinMaxScaler, Normalizer, OneHotEncoder, PolynomialFeatures
from sklearn.preprocessing import StandardScaler as Scaler
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier

RANDOM = np.random.default_rng(3)
X = RANDOM.normal(size=(100, 3)).astype(np.float32)
Y3 = np.digitize(X[:, 0] + X[:, 1], [-0.7, 0.6])
Y2, NAMES, SUM = Y3 > 0, np.array(["no", "yes", "perhaps"])[Y3], X.sum(1)

MODELS = {
    "scaler": (Scaler(), None),
    "PCA": (PCA(2), None),
    "normalizer": (Normalizer(), None),
    "polynomials": (PolynomialFeatures(2), None),
    "bins": (KBinsDiscretizer(3, encode="ordinal"), None),
    "imputer": (make_pipeline(SimpleImputer(), MinMaxScaler()), None),
    "union": (make_union(Scaler(), Binarizer()), None),
    "columns": (make_column_transformer((Scaler(), [0, 2]), (Binarizer(), [1])), None),
    "selector": (SelectKBest(k=2), Y2),
    "linear": (make_pipeline(Scaler(), LinearRegression()), SUM),
    "linear of two": (LinearRegression(), X[:, :2] + 1),
    "two classes": (LogisticRegression(), Y2),
    "three classes": (LogisticRegression(), Y3),
    "names of classes": (make_pipeline(Scaler(), LogisticRegression()), NAMES),
    "tree": (DecisionTreeClassifier(max_depth=3), NAMES),
    "forest": (RandomForestRegressor(4, max_depth=3, random_state=0), SUM),
    "boosting": (GradientBoostingClassifier(n_estimators=3), Y3),
    "SVC": (SVC(), Y3),
    "naive Bayes": (GaussianNB(), Y3),
    "network": (MLPClassifier((4,), max_iter=20, random_state=0), Y3),
    "votes": (VotingClassifier([("a", LogisticRegression()), ("b", GaussianNB())], voting="soft", flatten_transform=False), Y3),
    "calibrated": (CalibratedClassifierCV(LogisticRegression(), cv=2), Y2),
    "one versus rest": (OneVsRestClassifier(LogisticRegression()), Y3),
    "isolation": (IsolationForest(n_estimators=5, random_state=0), None),
}
MAY_REFUSE = {"isolation", "bins", "normalizer", "calibrated", "votes", "one versus rest", "naive Bayes", "polynomials"}
"""Whose operators hbc does not convert in every version of skl2onnx: refused with free rows, they may be so with others."""


@pytest.mark.filterwarnings("ignore")
def exported(name: str, rows: int | None) -> Any:
    model, y = MODELS[name]
    options = {"zipmap": False} if hasattr(model, "predict_proba") or name == "SVC" else None
    opset = {"": 18, "ai.onnx.ml": 3}  # skl2onnx writes forests of isolation in no later one
    types = [("X", FloatTensorType([rows, 3]))]
    return to_onnx(model.fit(X, y), initial_types=types, options=options, target_opset=opset)


def run(model: Any, given: Any) -> list[Any]:
    found = session(model)
    return [np.asarray(value) for value in found.run(None, given if isinstance(given, dict) else {"X": given})]


def assert_gives(compiled: Any, given: Any, expected: list[Any]) -> None:
    for method, value in zip(compiled.methods, expected, strict=False):
        found = getattr(compiled, method)(given)
        assert found.shape == value.shape
        assert found.dtype.kind == value.dtype.kind
        if value.dtype.kind == "f":
            np.testing.assert_allclose(found, value, rtol=1e-5, atol=1e-6)
        else:
            np.testing.assert_array_equal(found, value)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("rows", [1, 100])
@pytest.mark.parametrize("name", MODELS)
def test_exports_of_scikit_learn(name: str, rows: int) -> None:
    free = exported(name, None)
    try:
        hbc.convert(free, "numpy")
    except hbc.UnsupportedOperatorError:
        assert name in MAY_REFUSE
        pytest.skip("not converted with free rows either")
    compiled = hbc.convert(exported(name, rows), "numpy")
    assert compiled.n_features_in_ == 3
    assert_gives(compiled, X[:rows], run(exported(name, rows), X[:rows]))
    for other in (X, X[:1], X[:7]):
        assert_gives(compiled, other, run(free, other))


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend(backend: str) -> None:
    model = exported("names of classes", 1)
    compiled = hbc.convert(model, backend, X)  # whose sample was "found 3 columns, expected 1"
    assert_gives(compiled, X[:1], run(model, X[:1]))
    assert_gives(compiled, X, run(exported("names of classes", None), X))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("rows", [1, 100])
@pytest.mark.parametrize("library", ["lightgbm", "xgboost"])
def test_exports_of_boosted_trees(library: str, rows: int) -> None:
    onnxmltools = pytest.importorskip("onnxmltools")
    from onnxmltools.convert.common.data_types import FloatTensorType as Floats

    trained = pytest.importorskip(library)
    prefix, convert = {
        "lightgbm": ("LGBM", onnxmltools.convert_lightgbm),
        "xgboost": ("XGB", onnxmltools.convert_xgboost),
    }[library]
    options = {"verbose": -1} if library == "lightgbm" else {}
    for kind, y in (("Regressor", SUM), ("Classifier", Y2.astype(int)), ("Classifier", Y3)):
        model = getattr(trained, prefix + kind)(n_estimators=4, max_depth=3, **options).fit(X, y)
        extra = {"zipmap": False} if library == "lightgbm" else {}
        fixed, free = (convert(model, initial_types=[("X", Floats([n, 3]))], **extra) for n in (rows, None))
        compiled = hbc.convert(fixed, "numpy")
        assert_gives(compiled, X[:rows], run(fixed, X[:rows]))
        assert_gives(compiled, X[:9], run(free, X[:9]))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("rows", [1, 100])
def test_inputs_of_one_column_each(rows: int) -> None:
    """As skl2onnx exports what was fitted on a frame; strings too."""
    from skl2onnx import convert_sklearn
    from skl2onnx.common.data_types import StringTensorType

    colour = np.array(["red", "green", "blue"])[Y3]
    frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "colour": colour})
    columns = make_column_transformer((Scaler(), ["a", "b"]), (OneHotEncoder(sparse_output=False), ["colour"]))
    model = make_pipeline(columns, LogisticRegression()).fit(frame, Y2)

    def of(n: int | None) -> Any:
        types = [(name, (StringTensorType if name == "colour" else FloatTensorType)([n, 1])) for name in frame]
        return convert_sklearn(model, initial_types=types, options={"zipmap": False})

    def cells(part: Any) -> dict[str, Any]:
        return {name: part[[name]].to_numpy(object if name == "colour" else np.float32) for name in part}

    compiled = hbc.convert(of(rows), "numpy")
    assert_gives(compiled, frame[:rows], run(of(rows), cells(frame[:rows])))
    assert_gives(compiled, frame[:9], run(of(None), cells(frame[:9])))


# --- shapes that exporters write the rows into -------------------------------------------------------------------------


def declared(nodes: list[Any], rows: int, constants: Any = None, columns: int = 3) -> Any:
    model = copy.deepcopy(graph(nodes, {"X": (T.FLOAT, columns)}, {"Y": T.FLOAT}, constants))
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = rows
    return model


def reshaped(*shape: int) -> tuple[list[Any], dict[str, Any]]:
    return [helper.make_node("Reshape", ["X", "c"], ["Y"])], {"c": np.array(shape, np.int64)}


@pytest.mark.parametrize("rows", [1, 5])
def test_rows_in_shapes(rows: int) -> None:
    """A Reshape or Slice to exactly the declared number of rows, for which ONNX Runtime gives the expected results."""
    wide = RANDOM.normal(size=(rows, 4)).astype(np.float32)
    slice_of_all = [helper.make_node("Slice", ["X", "start", "stop", "axes"], ["Y"])]
    bounds = {"start": np.array([0]), "stop": np.array([rows]), "axes": np.array([0])}
    for nodes, constants in (reshaped(rows, 4), reshaped(rows, 2, 2), reshaped(rows, -1, 2), (slice_of_all, bounds)):
        model = declared(nodes, rows, constants, columns=4)
        compiled = hbc.convert(model, "numpy")
        (expected,) = run(model, wide)
        np.testing.assert_array_equal(compiled.predict(wide), expected)
        more = np.concatenate([wide, wide[::-1], wide])
        np.testing.assert_array_equal(compiled.predict(more), np.concatenate([expected, expected[::-1], expected]))


@pytest.mark.parametrize(
    ("rows", "nodes", "constants"),
    [
        (5, *reshaped(3, 5)),
        (5, *reshaped(15)),
        (1, *reshaped(3)),
        (1, *reshaped(3, 1)),
        (5, [helper.make_node("Add", ["X", "c"], ["Y"])], {"c": np.ones((5, 3), np.float32)}),
        (5, [helper.make_node("Add", ["X", "c"], ["Y"])], {"c": np.ones((5, 1), np.float32)}),
        (1, [helper.make_node("Add", ["X", "c"], ["Y"])], {"c": np.ones((5, 3), np.float32)}),
        (5, [helper.make_node("Concat", ["X", "c"], ["Y"], axis=1)], {"c": np.ones((5, 1), np.float32)}),
        (5, [helper.make_node("ReduceSum", ["X", "c"], ["Y"])], {"c": np.array([0])}),
        (1, [helper.make_node("ReduceSum", ["X"], ["Y"])], None),
        (1, [helper.make_node("Squeeze", ["X", "c"], ["Y"])], {"c": np.array([0])}),
        (1, [helper.make_node("Squeeze", ["X"], ["Y"])], None),
        (3, [helper.make_node("Transpose", ["X"], ["Y"], perm=[1, 0])], None),
        (3, [helper.make_node("MatMul", ["c", "X"], ["Y"])], {"c": np.ones((3, 3), np.float32)}),
        (
            5,
            [helper.make_node("Slice", ["X", "a", "b", "c"], ["Y"])],
            {"a": np.array([0]), "b": np.array([4]), "c": np.array([0])},
        ),
    ],
)
def test_what_mixes_rows_or_holds_their_number_is_refused(rows: int, nodes: list[Any], constants: Any) -> None:
    with pytest.raises(hbc.UnsupportedOperatorError):
        hbc.convert(declared(nodes, rows, constants), "numpy")


def test_inputs_of_different_rows_are_refused() -> None:
    """One of them may stand for all rows of the other."""
    model = graph([helper.make_node("Add", ["X", "Z"], ["Y"])], {"X": (T.FLOAT, 1), "Z": (T.FLOAT, 1)}, {"Y": T.FLOAT})
    model.graph.input[1].type.tensor_type.shape.dim[0].dim_value = 1
    with pytest.raises(hbc.UnsupportedOperatorError, match="different numbers of rows"):
        hbc.convert(model, "numpy")


def test_an_input_that_does_not_convert_is_the_error_of_a_sample_too() -> None:
    model = graph([helper.make_node("Relu", ["X"], ["Y"])], {"X": (T.FLOAT16, 3)}, {"Y": T.FLOAT16})
    for sample in (None, X):
        with pytest.raises(hbc.UnsupportedOperatorError, match="FLOAT16"):
            hbc.convert(model, "numpy", sample)
