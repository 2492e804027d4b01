"""ONNX models as input, against ONNX Runtime: every operator with its attributes, inputs of several kinds, the names of methods, and
what is refused. Trees stand in test_onnx_trees.py, whole exported models in the table (tests/estimators/onnx_cases.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import hbc

pytest.importorskip("onnx")
from backends import BACKENDS
from onnx import TensorProto as T
from onnx import helper, numpy_helper
from onnx_models import DTYPES, ML, MODES, NAN, assert_agrees, at_thresholds, graph, matrix, session, source, trees

THREE = [10, 11, 12]

# --- operators of ONNX itself ------------------------------------------------------------------------------------------


def single(value: Any) -> Any:
    return np.asarray(value, np.float32)


def integer(value: Any) -> Any:
    return np.asarray(value, np.int64)


W = np.random.default_rng(1).normal(size=(4, 3)).astype(np.float32)
OPERATORS: list[tuple[str, list[Any], dict[str, Any], int]] = [
    *((name, [single(c)], {}, T.FLOAT) for name in ("Add", "Sub", "Mul", "Div", "Pow") for c in ([[1, 2, 0.5, 3]], 2)),
    *((name, [single([0.5])], {}, T.BOOL) for name in ("Less", "Greater", "LessOrEqual", "GreaterOrEqual", "Equal")),
    *(
        (name, [], {}, T.FLOAT)
        for name in (
            "Neg",
            "Abs",
            "Exp",
            "Log",
            "Sqrt",
            "Tanh",
            "Sigmoid",
            "Floor",
            "Ceil",
            "Reciprocal",
            "Relu",
            "Sign",
            "Identity",
        )
    ),
    ("IsNaN", [], {}, T.BOOL),
    ("IsInf", [], {}, T.BOOL),
    ("LeakyRelu", [], {}, T.FLOAT),
    ("LeakyRelu", [], {"alpha": 0.3}, T.FLOAT),
    *((name, [single([[0, 1, 2, -1]])], {}, T.FLOAT) for name in ("Max", "Min", "Sum", "Mean")),
    ("Clip", [single(0), single(1)], {}, T.FLOAT),
    *(
        (name, [integer([axis])], {"keepdims": keep}, T.FLOAT)
        for name in ("ReduceSum", "ReduceMean", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSumExp")
        for axis, keep in ((1, 0), (-1, 1))
    ),
    *(
        (name, [], {"axis": axis, "keepdims": keep}, T.INT64)
        for name in ("ArgMax", "ArgMin")
        for axis, keep in ((1, 0), (-1, 1))
    ),
    *(("Cast", [], {"to": kind}, kind) for kind in (T.INT64, T.INT32, T.DOUBLE, T.BOOL, T.FLOAT)),
    ("Reshape", [integer([-1, 2, 2])], {}, T.FLOAT),
    ("Reshape", [integer([0, 2, -1])], {}, T.FLOAT),
    ("Flatten", [], {}, T.FLOAT),
    ("Unsqueeze", [integer([1])], {}, T.FLOAT),
    ("Unsqueeze", [integer([-1])], {}, T.FLOAT),
    ("Gather", [integer([2, 0, -1])], {"axis": 1}, T.FLOAT),
    ("Gather", [integer(1)], {"axis": 1}, T.FLOAT),
    ("Slice", [integer([1]), integer([3]), integer([1])], {}, T.FLOAT),
    ("Slice", [integer([-1]), integer([-9]), integer([1]), integer([-2])], {}, T.FLOAT),
    ("Slice", [integer([0]), integer([2**62]), integer([0])], {}, T.FLOAT),
    ("Transpose", [], {"perm": [0, 1]}, T.FLOAT),
    ("Dropout", [], {}, T.FLOAT),
    ("Concat", [], {"axis": 1}, T.FLOAT),
]
PLAIN: list[tuple[str, list[Any], dict[str, Any], int]] = [
    ("MatMul", [W], {}, T.FLOAT),
    ("MatMul", [W[:, 0].copy()], {}, T.FLOAT),
    ("Gemm", [W, W[0].copy()], {}, T.FLOAT),
    ("Gemm", [W, W[0].copy()], {"alpha": 0.5, "beta": 2.0}, T.FLOAT),
    ("Gemm", [W.T.copy()], {"transB": 1}, T.FLOAT),
    ("Gemm", [W, single(0.5)], {"alpha": 2.0}, T.FLOAT),
    ("Gemm", [W], {"alpha": 2.0}, T.FLOAT),
    *(("Gemm", [W, single(np.inf)], {"alpha": alpha, "beta": 0.0}, T.FLOAT) for alpha in (1.0, 2.0)),
    ("Softmax", [], {}, T.FLOAT),
    ("LogSoftmax", [], {}, T.FLOAT),
    ("Softsign", [], {}, T.FLOAT),
    ("ReduceMax", [integer([1])], {"keepdims": 0}, T.FLOAT),
    ("ReduceMin", [integer([-1])], {"keepdims": 1}, T.FLOAT),
]


def operator_model(
    name: str, constants: list[Any], attributes: dict[str, Any], kind: int, columns: int = 4, onnx: int = 18
) -> Any:
    named = {f"c{i}": value for i, value in enumerate(constants)}
    node = helper.make_node(name, ["X", *named], ["Y"], **attributes)
    return graph([node], {"X": (T.FLOAT, columns)}, {"Y": kind}, named, onnx=onnx)


@pytest.mark.parametrize("case", OPERATORS, ids=lambda case: f"{case[0]}{case[2] or ''}")
def test_operator(case: tuple[str, list[Any], dict[str, Any], int]) -> None:
    """Inputs hold NaN, ±inf, -0.0 and subnormal numbers."""
    X = matrix()
    if case[0] in ("ReduceProd", "ReduceL2", "ReduceSumSquare", "ReduceSum", "ReduceMean", "ReduceL1"):
        X[np.abs(X) > 100] = 3  # large sums could overflow or not, depending on their order
    assert_agrees(operator_model(*case), X)


@pytest.mark.parametrize("case", PLAIN, ids=lambda case: f"{case[0]}{case[2] or ''}")
def test_operator_of_ordinary_numbers(case: tuple[str, list[Any], dict[str, Any], int]) -> None:
    assert_agrees(operator_model(*case), matrix(special=False))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", [T.INT32, T.INT64])
@pytest.mark.parametrize("name", ["ReduceSum", "ReduceProd", "ReduceL1", "ReduceSumSquare", "ArgMax", "ArgMin"])
def test_integers_that_do_not_fit(name: str, kind: int, backend: str) -> None:
    """ONNX Runtime computes sums and products of integers in float64; the result is the nearest integer of the dtype."""
    large = 2**62 if kind == T.INT64 else 2**30
    X = np.array([[large, large, large], [-large, -large, -large], [large, 1 - large, 5], [1 - 2 * large, 0, 7], [3, 4, -5]])
    X = X.astype(DTYPES[kind])
    if kind == T.INT64:
        X = np.concatenate([X, [[-(2**63), 5, 2**63 - 1], [2**53 + 1, 0, 0]]])
    arg = name.startswith("Arg")
    named = {} if arg else {"axes": integer([1])}
    node = helper.make_node(name, ["X", *named], ["Y"], **({"axis": 1} if arg else {}))
    assert_agrees(graph([node], {"X": (kind, 3)}, {"Y": T.INT64 if arg else kind}, named), X, backend)


def test_clip_of_one_side_leaves_no_infinity() -> None:
    X = np.array([[np.inf, -np.inf, np.nan, 2.0]], np.float32)
    for inputs in (["X", "bound"], ["X", "", "bound"]):
        node = helper.make_node("Clip", inputs, ["Y"])
        assert_agrees(graph([node], {"X": (T.FLOAT, 4)}, {"Y": T.FLOAT}, {"bound": single(1.0)}), X)


@pytest.mark.parametrize("backend", BACKENDS)
def test_computed_nan_is_rejected_where_a_reduction_depends_on_its_place(backend: str) -> None:
    nodes = [helper.make_node("Log", ["X"], ["logarithms"]), helper.make_node("ReduceMin", ["logarithms", "axes"], ["Y"])]
    compiled = hbc.convert(graph(nodes, {"X": (T.FLOAT, 2)}, {"Y": T.FLOAT}, {"axes": integer([1])}), backend)
    np.testing.assert_array_equal(compiled.predict(np.array([[1, 0]], np.float32)), [[-np.inf]])
    with pytest.raises(hbc.InvalidInputError, match="computes nan"):
        compiled.predict(np.array([[1, 2], [3, -1]], np.float32))


@pytest.mark.parametrize("columns", [10, 33])
@pytest.mark.parametrize("name", ["ArgMax", "ArgMin"])
def test_nan_is_passed_over_by_argmax(name: str, columns: int) -> None:
    assert_agrees(operator_model(name, [], {"axis": 1}, T.INT64, columns), matrix(columns))


def test_older_versions_have_axes_as_attributes() -> None:
    X = matrix(special=False)
    assert_agrees(operator_model("ReduceSum", [], {"axes": [1]}, T.FLOAT, onnx=11), X)
    assert_agrees(operator_model("Unsqueeze", [], {"axes": [1]}, T.FLOAT, onnx=11), X)
    assert_agrees(operator_model("Slice", [], {"axes": [1], "starts": [0], "ends": [2]}, T.FLOAT, onnx=9), X)
    assert_agrees(operator_model("Softmax", [], {}, T.FLOAT, onnx=11), X)
    assert_agrees(operator_model("Clip", [], {"min": 0.0, "max": 1.0}, T.FLOAT, onnx=9), X)


def test_split_where_and_shapes() -> None:
    nodes = [
        helper.make_node("Split", ["X", "sizes"], ["a", "b"], axis=1),
        helper.make_node("Less", ["a", "half"], ["low"]),
        helper.make_node("And", ["low", "low"], ["both"]),
        helper.make_node("Not", ["both"], ["no"]),
        helper.make_node("Or", ["both", "no"], ["any"]),
        helper.make_node("Xor", ["both", "low"], ["none"]),
        helper.make_node("Xor", ["any", "low"], ["high"]),
        helper.make_node("Or", ["none", "high"], ["either"]),
        helper.make_node("And", ["either", "high"], ["picked"]),
        helper.make_node("Where", ["picked", "a", "half"], ["chosen"]),
        helper.make_node("Shape", ["X"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["rows"], axis=0),
        helper.make_node("Concat", ["rows", "three"], ["wanted"], axis=0),
        helper.make_node("ConstantOfShape", ["wanted"], ["ones"], value=numpy_helper.from_array(single([1]))),
        helper.make_node("Squeeze", ["chosen", "axis"], ["vector"]),
        helper.make_node("Unsqueeze", ["vector", "axis"], ["column"]),
        helper.make_node("Cast", ["any"], ["all"], to=T.FLOAT),
        helper.make_node("Concat", ["column", "b", "ones", "all"], ["Y"], axis=1),
    ]
    constants = {
        "sizes": integer([1, 3]),
        "half": single([0.5]),
        "zero": integer([0]),
        "three": integer([3]),
        "axis": integer([1]),
    }
    model = graph(nodes, {"X": (T.FLOAT, 4)}, {"Y": T.FLOAT}, constants)
    assert_agrees(model, matrix())


@pytest.mark.parametrize("backend", BACKENDS)
def test_operators_on_every_backend(backend: str) -> None:
    """All of them side by side in one graph."""
    nodes, constants, names = [], {}, []
    for number, (name, values, attributes, _) in enumerate([*OPERATORS, *PLAIN]):
        if name in ("Softmax", "LogSoftmax", "Pow", "Exp", "ReduceMax", "ReduceMin"):
            continue
        given = {f"c{number}_{i}": value for i, value in enumerate(values)}
        constants |= given
        nodes.append(helper.make_node(name, ["X", *given], [f"y{number}"], **attributes))
        nodes.append(helper.make_node("Cast", [f"y{number}"], [f"f{number}"], to=T.FLOAT))
        names.append(f"f{number}")
    sums = []
    for name in names:
        flat, total = f"{name}_flat", f"{name}_sum"
        nodes.append(helper.make_node("Flatten", [name], [flat]))
        nodes.append(helper.make_node("ReduceMean", [flat, "one"], [total], keepdims=1))
        sums.append(total)
    nodes.append(helper.make_node("Concat", sums, ["Y"], axis=1))
    constants["one"] = integer([1])
    model = graph(nodes, {"X": (T.FLOAT, 4)}, {"Y": T.FLOAT}, constants)
    assert_agrees(model, np.abs(matrix(special=False)) + np.float32(0.01), backend)


# --- operators of ai.onnx.ml -------------------------------------------------------------------------------------------

TEXTS = np.random.default_rng(0).choice(np.array(["a", "b", "c", "é", "", "zz"], object), (100, 2))
WHOLE = np.random.default_rng(1).integers(-2, 5, (100, 2))
HALVES = np.random.default_rng(2).choice([0.0, 1.5, np.nan, -1], (100, 2)).astype(np.float32)
VECTORS = np.random.default_rng(3).normal(size=28).tolist()
NUMBERS = matrix(special=False)
MISSING = np.where(np.arange(len(NUMBERS))[:, None] % 17 == 0, np.float32(np.nan), NUMBERS)


def learned(name: str, X: Any, *kinds: int, ml: int = 3, **attributes: Any) -> tuple[str, Any, Any]:
    """A test of one operator: its name, the model and the input."""
    entry = next(kind for kind, dtype in DTYPES.items() if X.dtype == dtype)
    names = ["label", "probabilities"][: len(kinds)] if len(kinds) > 1 else ["Y"]
    node = helper.make_node(name, ["X"], names, domain=ML, **attributes)
    kinds = kinds or (T.FLOAT,)
    about = " ".join(f"{key}={value}" for key, value in attributes.items() if isinstance(value, (str, int)))
    model = graph([node], {"X": (entry, X.shape[1])}, dict(zip(names, kinds, strict=True)), ml=ml)
    return f"{name} {X.dtype} {about}", model, X


def encoder(X: Any, kind: int, ml: int = 2, **attributes: Any) -> tuple[str, Any, Any]:
    return learned("LabelEncoder", X, kind, ml=ml, **attributes)


def weights(n: int) -> dict[str, Any]:
    return {"coefficients": VECTORS[: 4 * n], "intercepts": VECTORS[:n]}


def tensors(*values: Any) -> list[Any]:
    return [numpy_helper.from_array(np.asarray(value)) for value in values]


K1, V1, D1 = tensors([0, 1, 3], single([0.5, 0.25, 1]), single([9]))
FEATURES = [
    *(
        learned("Scaler", matrix().astype(dtype) if dtype is not np.int64 else np.repeat(WHOLE, 2, axis=1), offset=o, scale=s)
        for dtype in (np.float32, np.float64, np.int64)
        for o, s in (([0.1, 0.2, -3, 1e8], [1.5, 0.3, 1e-3, 7.0]), ([0.1], [0.3]))
    ),
    *(
        learned("Normalizer", X, norm=norm)
        for norm in ("MAX", "L1", "L2")
        for X in (matrix(), matrix().astype(np.float64), np.repeat(WHOLE, 2, axis=1))
    ),
    learned("Binarizer", NUMBERS, threshold=0.1),
    learned("Imputer", matrix(), imputed_value_floats=[1.0, 2, 3, 4], replaced_value_float=NAN),
    learned("Imputer", matrix(), imputed_value_floats=[9.0], replaced_value_float=1.0),
    learned("Imputer", WHOLE, T.INT64, imputed_value_int64s=[9, 8], replaced_value_int64=2),
    learned("OneHotEncoder", WHOLE, cats_int64s=[0, 4, 2], zeros=1),
    learned("OneHotEncoder", np.where(np.isnan(HALVES), np.float32(2.7), HALVES), cats_int64s=[0, 1, 2], zeros=1),
    learned("OneHotEncoder", TEXTS, cats_strings=["a", "c", "é"], zeros=1),
    learned("FeatureVectorizer", NUMBERS, inputdimensions=[4]),
    encoder(TEXTS, T.INT64, keys_strings=["a", "b", "é"], values_int64s=[3, 2, 1], default_int64=-7),
    encoder(TEXTS, T.FLOAT, keys_strings=["a", "b", "é"], values_floats=[3.0, 2, 1]),
    encoder(TEXTS, T.STRING, keys_strings=["a", "b"], values_strings=["x", "y"], default_string="?"),
    encoder(WHOLE, T.FLOAT, keys_int64s=[0, 1, 3], values_floats=[0.5, 0.25, NAN], default_float=NAN),
    encoder(WHOLE, T.STRING, keys_int64s=[0, 1, 3], values_strings=["p", "q", "r"]),
    encoder(WHOLE, T.INT64, keys_int64s=[0, 1, 3], values_int64s=[5, 6, 7]),
    encoder(HALVES, T.INT64, keys_floats=[0.0, 1.5, NAN], values_int64s=[5, 6, 7]),
    encoder(HALVES, T.INT64, ml=4, keys_floats=[0.0, 1.5, NAN], values_int64s=[5, 6, 7]),
    encoder(HALVES, T.FLOAT, keys_floats=[0.0, 1.5], values_floats=[5.0, 6], default_float=0.5),
    encoder(HALVES, T.STRING, keys_floats=[0.0, 1.5], values_strings=["m", "n"]),
    encoder(TEXTS, T.INT64, ml=1, classes_strings=["a", "b", "c"], default_int64=-1),
    encoder(WHOLE, T.STRING, ml=1, classes_strings=["a", "b", "c"], default_string="no"),
    encoder(WHOLE, T.FLOAT, ml=4, keys_tensor=K1, values_tensor=V1, default_tensor=D1),
    learned("CategoryMapper", TEXTS, T.INT64, cats_strings=["a", "b"], cats_int64s=[5, 6], default_int64=-3),
    learned("CategoryMapper", WHOLE, T.STRING, cats_strings=["a", "b"], cats_int64s=[0, 1], default_string="d"),
]
LINEAR = [
    *(
        learned(
            "LinearRegressor", MISSING, targets=n, coefficients=VECTORS[: 4 * n], intercepts=VECTORS[:n], post_transform=post
        )
        for n in (1, 2)
        for post in ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO")
    ),
    *(
        learned(
            "LinearClassifier",
            MISSING,
            kind,
            T.FLOAT,
            coefficients=VECTORS[: 4 * n],
            intercepts=VECTORS[:n],
            post_transform=post,
            **given,
        )
        for n in (2, 3)
        for post in ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO")
        for kind, given in (
            (T.INT64, {"classlabels_ints": [4, 5, 6][:n]}),
            (T.STRING, {"classlabels_strings": ["u", "v", "w"][:n]}),
        )
    ),
    learned("LinearClassifier", MISSING, T.INT64, T.FLOAT, coefficients=VECTORS[:4], intercepts=[0.5], classlabels_ints=[3, 4]),
    *(
        learned(
            "SVMRegressor",
            NUMBERS,
            kernel_type=kernel,
            kernel_params=[0.3, 0.5, 3.0],
            coefficients=VECTORS[:7],
            n_supports=7,
            rho=[0.2],
            support_vectors=VECTORS,
            one_class=one,
        )
        for kernel in ("LINEAR", "POLY", "RBF", "SIGMOID")
        for one in (0, 1)
    ),
]


@pytest.mark.parametrize("case", [*FEATURES, *LINEAR], ids=lambda case: case[0])
def test_learned_operator(case: tuple[str, Any, Any]) -> None:
    assert_agrees(*case[1:])


@pytest.mark.parametrize("backend", BACKENDS[1:])
@pytest.mark.parametrize("case", [*FEATURES[2:12:3], *FEATURES[18::4], *LINEAR[1::7]], ids=lambda case: case[0])
def test_learned_operator_on_every_backend(case: tuple[str, Any, Any], backend: str) -> None:
    assert_agrees(*case[1:], backend)


# --- whole models ------------------------------------------------------------------------------------------------------


def boosted(name: str) -> Any:
    """A small model of LightGBM or XGBoost, exported by onnxmltools."""
    import lightgbm as lgb
    import xgboost as xgb
    from onnxmltools import convert_lightgbm, convert_xgboost
    from onnxmltools.convert.common.data_types import FloatTensorType

    X = np.where(np.random.default_rng(5).random(NUMBERS.shape) < 0.1, np.float32(np.nan), NUMBERS)
    X[:, 3] = np.random.default_rng(6).integers(0, 12, len(X))
    y = np.nan_to_num(X[:, 0]) + (X[:, 3] % 3)
    two, three, counts = (y > 1).astype(int), np.digitize(y, [0.5, 1.5]), np.round(np.abs(y))
    small = {"n_estimators": 12, "num_leaves": 6, "verbose": -1, "min_child_samples": 5}
    models: dict[str, Any] = {
        "lgb binary": lambda: lgb.LGBMClassifier(**small).fit(X, two),
        "lgb three classes": lambda: lgb.LGBMClassifier(**small).fit(X, three),
        "lgb regression": lambda: lgb.LGBMRegressor(**small).fit(X, y),
        "lgb poisson": lambda: lgb.LGBMRegressor(objective="poisson", **small).fit(X, counts),
        "lgb forest": lambda: lgb.LGBMRegressor(boosting_type="rf", bagging_fraction=0.6, bagging_freq=1, **small).fit(X, y),
        "lgb categories": lambda: lgb.LGBMRegressor(**small).fit(X, y, categorical_feature=[3]),
        "xgb binary": lambda: xgb.XGBClassifier(n_estimators=8, max_depth=3).fit(X, two),
        "xgb three classes": lambda: xgb.XGBClassifier(n_estimators=8, max_depth=3).fit(X, three),
        "xgb regression": lambda: xgb.XGBRegressor(n_estimators=8, max_depth=3).fit(X, y),
        "xgb poisson": lambda: xgb.XGBRegressor(objective="count:poisson", n_estimators=8, max_depth=3).fit(X, counts),
    }
    convert = convert_lightgbm if name.startswith("lgb") else convert_xgboost
    options = {"zipmap": False} if name.startswith("lgb") else {}
    return convert(models[name](), initial_types=[("X", FloatTensorType([None, 4]))], **options), X


@pytest.mark.parametrize(
    "name",
    [
        *(f"lgb {kind}" for kind in ("binary", "three classes", "regression", "poisson", "forest", "categories")),
        *(f"xgb {kind}" for kind in ("binary", "three classes", "regression", "poisson")),
    ],
)
def test_boosted_trees(name: str) -> None:
    pytest.importorskip("onnxmltools")
    model, X = boosted(name)
    assert_agrees(model, X)


# --- inputs, methods, refusals -----------------------------------------------------------------------------------------


def mixed_frame() -> tuple[Any, Any]:
    """A pipeline over numbers and strings, exported with an input a column; and its frame."""
    from skl2onnx import to_onnx
    from skl2onnx.common.data_types import FloatTensorType, Int64TensorType, StringTensorType
    from sklearn.compose import ColumnTransformer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"height": rng.normal(size=80), "age": rng.integers(0, 9, 80), "city": rng.choice(["Rome", "Oslo", "Łódź"], 80)}
    )
    y = np.where(frame["height"] + (frame["city"] == "Oslo") > 0.3, "yes", "no")
    prepare = ColumnTransformer(
        [("s", StandardScaler(), ["height", "age"]), ("o", OneHotEncoder(handle_unknown="ignore"), ["city"])]
    )
    model = make_pipeline(prepare, LogisticRegression()).fit(frame, y)
    kinds = [("height", FloatTensorType([None, 1])), ("age", Int64TensorType([None, 1])), ("city", StringTensorType([None, 1]))]
    return to_onnx(model, initial_types=kinds), frame


@pytest.mark.parametrize("kernel", ["LINEAR", "POLY", "RBF", "SIGMOID"])
def test_kernels_of_large_and_small_numbers(kernel: str) -> None:
    """Infinities, numbers whose kernel is none of float32, and numbers so large that x² - 2xv + v² would have no digit left."""
    X = np.array([[1e30, 1], [-1e30, 2], [np.inf, 0], [1e-45, 0], [1, -1e-45], [1e6, 1e6], [1e6 + 1, 1e6]], np.float32)
    vectors = [1.0, -0.5, -2.0, 0.25, 1e6, 1e6]
    attributes = {"kernel_type": kernel, "kernel_params": [0.5, 0.0, 2.0], "coefficients": [1.0, -2.0, 3.0], "rho": [0.0]}
    for one_class in (0, 1):
        node = helper.make_node(
            "SVMRegressor",
            ["X"],
            ["Y"],
            domain=ML,
            n_supports=3,
            support_vectors=vectors,
            one_class=one_class,
            **attributes,
        )
        assert_agrees(graph([node], {"X": (T.FLOAT, 2)}, {"Y": T.FLOAT}), X)


@pytest.mark.parametrize("backend", BACKENDS)
def test_inputs_by_name(backend: str) -> None:
    model, frame = mixed_frame()
    inputs = {
        "height": frame[["height"]].to_numpy(np.float32),
        "age": frame[["age"]].to_numpy(np.int64),
        "city": frame[["city"]].to_numpy(object),
    }
    label, probabilities = session(model).run(None, inputs)
    compiled = hbc.convert(model, backend)
    assert compiled.methods == ("predict", "predict_proba")
    assert list(compiled.classes_) == ["no", "yes"]
    shuffled = frame[["city", "height", "age"]]
    np.testing.assert_array_equal(compiled.predict(shuffled), label)
    expected = np.array([[row["no"], row["yes"]] for row in probabilities])
    np.testing.assert_allclose(compiled.predict_proba(shuffled), expected, rtol=1e-5, atol=1e-6)
    unknown = frame.assign(city="Atlantis")
    assert compiled.predict_proba(unknown).shape == (80, 2)


def test_integer_inputs_reject_fractions() -> None:
    model = operator_on_integers()
    compiled = hbc.convert(model, "numpy")
    np.testing.assert_array_equal(compiled.predict(WHOLE.astype(np.float64)), WHOLE + 3)
    for value in (2.5, NAN, np.inf, 1e300):
        with pytest.raises(hbc.InvalidInputError):
            compiled.predict(np.array([[1.0, value]]))


def operator_on_integers() -> Any:
    return graph([helper.make_node("Add", ["X", "c"], ["Y"])], {"X": (T.INT64, 2)}, {"Y": T.INT64}, {"c": integer([3])})


def test_other_dtypes_are_cast_to_the_declared_one() -> None:
    model = trees(modes=MODES)
    compiled = hbc.convert(model, "numpy")
    X = np.repeat(WHOLE, 2, axis=1)
    (expected,) = source(model, X.astype(np.float32))
    for dtype in (np.int64, np.int8, np.float64):
        np.testing.assert_allclose(compiled.predict(X.astype(dtype)), expected, rtol=1e-6)


def test_objects_bytes_and_paths(tmp_path: Path) -> None:
    model = trees()
    X = at_thresholds(np.float32)
    expected = hbc.convert(model, "numpy").predict(X)
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    for form in (model.SerializeToString(), path, str(path)):
        np.testing.assert_array_equal(hbc.convert(form, "numpy").predict(X), expected)
    hbc.convert(model, "torch").save(tmp_path / "model.hbc")
    np.testing.assert_allclose(hbc.load(tmp_path / "model.hbc").predict(X), expected, rtol=1e-6)
    with pytest.raises(hbc.ArtifactError, match="cannot be read"):
        hbc.convert(b"no model", "numpy")
    with pytest.raises(FileNotFoundError):
        hbc.convert(tmp_path / "nothing.onnx", "numpy")


def test_names_of_methods() -> None:
    relu = helper.make_node("Relu", ["X"], ["Y"])
    twice = helper.make_node("Add", ["X", "X"], ["my score:0"])
    lone = graph([relu], {"X": (T.FLOAT, 2)}, {"Y": T.FLOAT})
    assert hbc.convert(lone, "numpy").methods == ("predict", "transform")
    assert hbc.convert(trees(), "numpy").methods == ("predict",)
    classifier = hbc.convert(trees(outputs=3, labels=THREE), "numpy")
    assert classifier.methods == ("predict", "predict_proba")
    np.testing.assert_array_equal(classifier.classes_, THREE)
    several = graph([relu, twice], {"X": (T.FLOAT, 2)}, {"Y": T.FLOAT, "my score:0": T.FLOAT})
    assert hbc.convert(several, "numpy").methods == ("Y", "my_score_0")


def test_unknown_number_of_columns_needs_a_sample() -> None:
    model = graph([helper.make_node("Relu", ["X"], ["Y"])], {"X": (T.FLOAT, None)}, {"Y": T.FLOAT})
    with pytest.raises(hbc.InvalidInputError, match="sample"):
        hbc.convert(model, "numpy")
    X = matrix(special=False)
    np.testing.assert_array_equal(hbc.convert(model, "numpy", X).predict(X), np.maximum(X, 0))


def test_refusals_name_the_operator() -> None:
    nodes = [helper.make_node("Erf", ["X"], ["a"]), helper.make_node("Hardmax", ["a"], ["Y"])]
    with pytest.raises(hbc.UnsupportedOperatorError, match="Erf, Hardmax"):
        hbc.convert(graph(nodes, {"X": (T.FLOAT, 2)}, {"Y": T.FLOAT}), "numpy")


@pytest.mark.parametrize(
    ("name", "constants", "attributes"),
    [
        ("Softmax", [], {"axis": 0}),
        ("Reshape", [integer([-1])], {}),
        ("Reshape", [integer([-1, 2])], {}),
        ("Flatten", [], {"axis": 0}),
        ("Gather", [integer([0])], {"axis": 0}),
        ("Slice", [integer([0]), integer([2]), integer([0])], {}),
        ("Transpose", [], {"perm": [1, 0]}),
        ("ReduceSum", [integer([0])], {}),
        ("ArgMax", [], {"axis": 0}),
        ("ArgMax", [], {"axis": 1, "select_last_index": 1}),
        ("IsInf", [], {"detect_negative": 0}),
    ],
)
def test_what_mixes_rows_is_refused(name: str, constants: list[Any], attributes: dict[str, Any]) -> None:
    with pytest.raises(hbc.UnsupportedOperatorError, match=name):
        hbc.convert(operator_model(name, constants, attributes, T.FLOAT), "numpy")
