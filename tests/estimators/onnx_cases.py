"""ONNX models exported by skl2onnx and onnxmltools. The source is ONNX Runtime on one thread. More in tests/parser/test_onnx_input.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from estimators.case import Case

RNG = np.random.default_rng(7)
X = RNG.normal(size=(200, 6)) * [1, 10, 0.1, 3, 1, 2]
Y3 = np.digitize(X[:, 0] + X[:, 1] / 10, [-0.5, 0.7])
Y2 = Y3 > 0
NAMES = np.array(["low", "é", "high"])[Y3]
YR = X @ [1.0, 0.5, -2.0, 0.0, 0.3, 0.1] + np.sin(X[:, 3])
FLOAT32 = "float32 in the source"


def session(model: Any) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


SESSIONS: dict[int, Any] = {}


def run(output: int) -> Callable[[Any, Any], Any]:
    """A call of ONNX Runtime for one of the outputs, on X in the dtype that the model declares."""

    def call(model: Any, matrix: Any) -> Any:
        if id(model) not in SESSIONS:
            SESSIONS.clear()
            SESSIONS[id(model)] = session(model)
        found = SESSIONS[id(model)]
        (entry,) = found.get_inputs()
        dtype = {"tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(int64)": np.int64}[entry.type]
        with np.errstate(all="ignore"):
            data = np.ascontiguousarray(matrix, dtype)
        try:
            value = found.run(None, {entry.name: data})[output]
        except Exception as error:  # one of its kernels rejects the input
            raise ValueError(str(error)) from error
        if not isinstance(value, list):
            return value
        if not len(data):  # no dictionary says how many classes a ZipMap has
            return call(model, np.zeros((1, data.shape[1])))[:0]
        return np.array([list(row.values()) for row in value], np.float32)

    return call


CLASSIFIER = {"predict": run(0), "predict_proba": run(1)}
LONE = {"predict": run(0)}
EITHER = {"predict": run(0), "transform": run(0)}


def sklearn_export(make: Callable[[], Any], y: Any, **options: Any) -> Callable[[], tuple[Any, Any]]:
    def exported() -> tuple[Any, Any]:
        from skl2onnx import to_onnx

        return to_onnx(make().fit(X.astype(np.float32), y), X[:1].astype(np.float32), **options), X

    return exported


def forest() -> Any:
    from sklearn.ensemble import RandomForestClassifier

    return RandomForestClassifier(8, max_depth=4, random_state=0)


def boosting() -> Any:
    from sklearn.ensemble import GradientBoostingClassifier

    return GradientBoostingClassifier(n_estimators=5, max_depth=3, random_state=0)


def scaled_logistic() -> Any:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), LogisticRegression())


def scaled_trees() -> Any:
    from sklearn.ensemble import ExtraTreesRegressor
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import MinMaxScaler

    return make_pipeline(SimpleImputer(), MinMaxScaler(), ExtraTreesRegressor(5, max_depth=5, random_state=0))


def projection() -> Any:
    from sklearn.decomposition import PCA

    return PCA(3)


def perceptron() -> Any:
    from sklearn.neural_network import MLPClassifier

    return MLPClassifier((8,), max_iter=20, random_state=0)


def support_vectors() -> Any:
    from sklearn.svm import SVC

    return SVC(C=0.5)


def sure_support_vectors() -> Any:
    from sklearn.svm import SVC

    return SVC(probability=True, random_state=0)


def lightgbm_export() -> tuple[Any, Any]:
    import lightgbm
    from onnxmltools import convert_lightgbm
    from onnxmltools.convert.common.data_types import FloatTensorType

    model = lightgbm.LGBMClassifier(n_estimators=6, num_leaves=7, verbose=-1).fit(X, Y3)
    return convert_lightgbm(model, initial_types=[("X", FloatTensorType([None, 6]))]), X


def xgboost_export() -> tuple[Any, Any]:
    import xgboost
    from onnxmltools import convert_xgboost
    from onnxmltools.convert.common.data_types import FloatTensorType

    model = xgboost.XGBClassifier(n_estimators=6, max_depth=3).fit(X, Y3)
    return convert_xgboost(model, initial_types=[("X", FloatTensorType([None, 6]))]), X


CASES = [
    Case("ModelProto: random forest of 3 classes, ZipMap", sklearn_export(forest, Y3), options=CLASSIFIER),
    Case(
        "ModelProto: random forest, 2 classes of strings", sklearn_export(forest, np.where(Y2, "yes", "no")), options=CLASSIFIER
    ),
    Case("ModelProto: gradient boosting, 2 classes", sklearn_export(boosting, Y2.astype(int)), options=CLASSIFIER),
    Case("ModelProto: scaler and logistic regression", sklearn_export(scaled_logistic, Y3), options=CLASSIFIER),
    Case("ModelProto: imputer, scaler and extra trees", sklearn_export(scaled_trees, YR), options=LONE),
    Case("ModelProto: PCA", sklearn_export(projection, None), options=EITHER),
    Case("ModelProto: MLP", sklearn_export(perceptron, Y3), options=CLASSIFIER),
    Case("ModelProto: SVC, 3 classes of strings", sklearn_export(support_vectors, NAMES), options=CLASSIFIER),
    Case("ModelProto: SVC with probabilities", sklearn_export(sure_support_vectors, Y3), options=CLASSIFIER),
    Case("ModelProto: LightGBM by onnxmltools", lightgbm_export, options=CLASSIFIER),
    Case("ModelProto: XGBoost by onnxmltools", xgboost_export, options=CLASSIFIER),
]
