"""ONNX graphs in which rows are not the first axis for a while, and positions that are computed, against ONNX Runtime: bagging, AdaBoost,
categorical naive Bayes and several outputs, as skl2onnx exports them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hbc

pytest.importorskip("onnx")
from backends import BACKENDS
from onnx import TensorProto as T
from onnx import helper
from onnx_models import ML, assert_agrees, graph, session

RANDOM = np.random.default_rng(4)
X = RANDOM.normal(size=(150, 4)).astype(np.float32)
WHOLE = RANDOM.integers(0, 3, (150, 4)).astype(np.float32)
Y3 = np.digitize(X[:, 0] + X[:, 1], [-0.7, 0.6])
NAMES, SUM = np.array(["no", "é", "perhaps"])[Y3], X.sum(1)


def bagging(regressor: bool, **options: Any) -> Any:
    from sklearn.ensemble import BaggingClassifier, BaggingRegressor

    return (BaggingRegressor if regressor else BaggingClassifier)(n_estimators=9, random_state=0, **options)


def adaboost() -> Any:
    from sklearn.ensemble import AdaBoostRegressor

    return AdaBoostRegressor(n_estimators=12, random_state=0)


def logistic() -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression()


def several() -> Any:
    from sklearn.multioutput import MultiOutputClassifier

    return MultiOutputClassifier(logistic())


def categorical() -> Any:
    from sklearn.naive_bayes import CategoricalNB

    return CategoricalNB(min_categories=4)


MODELS: dict[str, tuple[Callable[[], Any], Any, Any]] = {
    "bagging of trees": (lambda: bagging(False), X, Y3),
    "bagging of linear models": (lambda: bagging(False, estimator=logistic()), X, NAMES),
    "bagging of columns": (lambda: bagging(True, max_features=2), X, SUM),
    "AdaBoost": (adaboost, X, SUM),
    "categorical naive Bayes": (categorical, WHOLE, NAMES),
    "several outputs": (several, X, np.stack([Y3 > 0, Y3], axis=1).astype(int)),
}


def exported(name: str) -> tuple[Any, Any]:
    from skl2onnx import to_onnx
    from skl2onnx.common.data_types import FloatTensorType

    make, given, y = MODELS[name]
    options = None if given is X and y is SUM else {"zipmap": False}
    return to_onnx(make().fit(given, y), initial_types=[("X", FloatTensorType([None, 4]))], options=options), given


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", MODELS)
def test_exports_of_scikit_learn(name: str, backend: str) -> None:
    pytest.importorskip("skl2onnx")
    model, given = exported(name)
    compiled = hbc.convert(model, backend)
    for rows in (len(given), 1, 7):
        expected = session(model).run(None, {"X": given[:rows]})
        for method, value in zip(compiled.methods, expected, strict=False):
            found = getattr(compiled, method)(given[:rows])
            assert isinstance(found, list) == isinstance(value, list)
            for one, other in zip(found, value, strict=True) if isinstance(found, list) else [(found, value)]:
                assert one.shape == other.shape
                if other.dtype.kind == "f":
                    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
                else:
                    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("place", [4.0, 1e10, -1.0, np.nan])
def test_positions_outside_of_the_table_are_rejected(place: float) -> None:
    """ONNX Runtime fails for those that are too large, and reads other memory for negative ones."""
    pytest.importorskip("skl2onnx")
    model, given = exported("categorical naive Bayes")
    compiled, bad = hbc.convert(model, "numpy"), given[:3].copy()
    bad[1, 2] = place
    with pytest.raises(hbc.InvalidInputError, match="position 0"):
        compiled.predict(bad)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_table_shorter_than_the_positions(backend: str) -> None:
    compiled = hbc.convert(made(*GRAPHS["looked up in a short table"]), backend)
    np.testing.assert_array_equal(compiled.predict(np.array([[2, 1, 0, 0], [1, 2, 0, 0]], np.float32)), [[0.5, 2], [2, 0.5]])
    with pytest.raises(hbc.InvalidInputError, match="position 0"):
        compiled.predict(np.array([[2, 1, 0, 3]], np.float32))


def test_several_outputs_have_no_classes() -> None:
    pytest.importorskip("skl2onnx")
    assert not hasattr(hbc.convert(exported("several outputs")[0], "numpy"), "classes_")


def node(name: str, inputs: str, outputs: str = "Y", **attributes: Any) -> Any:
    return helper.make_node(name, inputs.split(), outputs.split(), domain=ML if name in OF_ML else "", **attributes)


OF_ML = ("ArrayFeatureExtractor", "LabelEncoder")
CONSTANTS = {
    "shape": np.array([1, -1, 4]),
    "zero": np.array([0]),
    "one": np.array([1]),
    "third": np.array(2),
    "two": np.array([2]),
    "four": np.array([4]),
    "back": np.array([-1, 4]),
    "weights": np.array([0.5, 2, -1, 8], np.float32),
    "table": np.array([[0.5, 2, -1, 8], [1, 2, 3, 4]], np.float32),
    "twice": np.array(2, np.float32),
}
LAYERS = [node("Mul", "X twice", "Z"), node("Reshape", "X shape", "a"), node("Unsqueeze", "Z zero", "b")]
PAIR = [*LAYERS, node("Concat", "a b", "ab", axis=0)]
SORTED = [node("TopK", "X four", "values places")]
GRAPHS: dict[str, tuple[list[Any], int]] = {
    "mean": ([*PAIR, node("ReduceMean", "ab zero", keepdims=0)], T.FLOAT),
    "sum, kept and dropped": ([*PAIR, node("ReduceSum", "ab zero", "s"), node("Squeeze", "s zero")], T.FLOAT),
    "turned": ([*PAIR, node("Transpose", "ab", perm=[1, 0, 2])], T.FLOAT),
    "chosen": ([*PAIR, node("Gather", "ab one_", axis=0)], T.FLOAT),
    "cast": ([*PAIR, node("Cast", "ab", "c", to=T.DOUBLE), node("ReduceMean", "c zero", keepdims=0)], T.DOUBLE),
    "columns beside": ([*PAIR, node("Concat", "ab ab", "wide", axis=2), node("ReduceSum", "wide zero", keepdims=0)], T.FLOAT),
    "largest": ([node("TopK", "X two", "Y i")], T.FLOAT),
    "places of the largest": ([node("TopK", "X two", "v Y")], T.INT64),
    "smallest": ([node("TopK", "X two", "v Y", largest=0, axis=1)], T.INT64),
    "taken": ([*SORTED, node("GatherElements", "X places", axis=1)], T.FLOAT),
    "running sums": ([node("CumSum", "X third_")], T.FLOAT),
    "looked up, several a row": (
        [*SORTED, node("ArrayFeatureExtractor", "weights places", "w"), node("Reshape", "w back")],
        T.FLOAT,
    ),
    "looked up in two rows": (
        [node("ArgMax", "X", "i", axis=1), node("ArrayFeatureExtractor", "table i", "w"), node("Transpose", "w", perm=[1, 0])],
        T.FLOAT,
    ),
}
GRAPHS["looked up in a short table"] = (
    [node("TopK", "X two", "v i"), node("ArrayFeatureExtractor", "short i", "w"), node("Reshape", "w pairs")],
    T.FLOAT,
)
CONSTANTS |= {"short": np.array([0.5, 2], np.float32), "pairs": np.array([-1, 2])}
CONSTANTS |= {"one_": np.array(1), "third_": np.array(-1)}


def made(nodes: list[Any], kind: int) -> Any:
    used = {name for each in nodes for name in each.input}
    return graph(nodes, {"X": (T.FLOAT, 4)}, {"Y": kind}, {name: CONSTANTS[name] for name in used & CONSTANTS.keys()})


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", [name for name in GRAPHS if "short" not in name])
def test_graphs(name: str, backend: str) -> None:
    """Equal numbers too: they are sorted by column."""
    given = np.concatenate([X, WHOLE, np.zeros((2, 4)), [[-0.0, 0.0, 0.0, -0.0]]]).astype(np.float32)
    assert_agrees(made(*GRAPHS[name]), given, backend)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_has_no_order_is_rejected(value: float) -> None:
    compiled = hbc.convert(made(*GRAPHS["smallest"]), "numpy")
    with pytest.raises(hbc.InvalidInputError):
        compiled.predict(np.array([[1, 2, value, 3]], np.float32))


REFUSED: dict[str, list[Any]] = {
    "rows summed": [*PAIR, node("ReduceMean", "ab one", keepdims=0)],
    "largest of layers": [*PAIR, node("ReduceMax", "ab zero", keepdims=0)],
    "rows joined": [*PAIR, node("Concat", "ab ab", axis=1)],
    "layers joined with rows": [*PAIR, node("Concat", "ab X", axis=0)],
    "a layer that is not there": [*PAIR, node("Gather", "ab third", axis=0)],
    "layers as they are": [node("Reshape", "X shape")],
    "layers by an axis before the rows": [node("Unsqueeze", "X zero")],
    "layers turned otherwise": [*PAIR, node("Transpose", "ab", perm=[2, 1, 0])],
    "layers in arithmetic": [*PAIR, node("Mul", "ab twice")],
    "unsorted": [node("TopK", "X two", "Y i", sorted=0)],
    "too many": [node("TopK", "X nine", "Y i")],
    "sums from the end": [node("CumSum", "X third_", reverse=1)],
    "sums without the last": [node("CumSum", "X third_", exclusive=1)],
    "sums of rows": [node("CumSum", "X zero_")],
    "unknown places": [node("Cast", "X", "i", to=T.INT64), node("GatherElements", "X i", axis=1)],
    "several places in two rows": [*SORTED, node("ArrayFeatureExtractor", "table places")],
    "a sequence of one": [node("SequenceConstruct", "X")],
}
CONSTANTS |= {"nine": np.array([9]), "zero_": np.array(0)}


@pytest.mark.parametrize("name", REFUSED)
def test_other_uses_are_refused(name: str) -> None:
    with pytest.raises(hbc.UnsupportedOperatorError):
        hbc.convert(made(REFUSED[name], T.FLOAT), "numpy")
