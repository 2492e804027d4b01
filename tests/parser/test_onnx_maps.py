"""ONNX models whose input is a map, against ONNX Runtime, which takes one map at a time: X is a sequence of dicts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hbc

pytest.importorskip("onnx")
from backends import BACKENDS
from onnx import TensorProto as T
from onnx import helper
from onnx_models import ML, NAN, session

DICTS = [
    {"size": 1.5, "é": -2.0, "unknown": 7.0},
    {"unknown": 1.0},
    {"é": NAN},
    {"size": np.inf, "age": -0.0},
    {"age": 3, "size": True, "é": np.float32(0.1)},
    {"age": 1e300, "size": 1e-60},
    {"age": 2**24 + 1, "size": np.float64(0.1)},
]
WORDS = ["size", "é", "age"]


def vectorizer(
    words: Any = None, key: int = T.STRING, value: int = T.FLOAT, behind: Any = (), more: Any = (), **changed: Any
) -> Any:
    attributes = changed or {"string_vocabulary": WORDS if words is None else words}
    nodes = [helper.make_node("DictVectorizer", ["X"], ["V" if behind else "Y"], domain=ML, **attributes), *behind]
    given = helper.make_value_info("X", helper.make_map_type_proto(key, helper.make_tensor_type_proto(value, [])))
    result = helper.make_tensor_value_info("Y", T.FLOAT, None)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(ML, 3)]
    return helper.make_model(helper.make_graph(nodes, "test", [given, *more], [result]), opset_imports=opsets, ir_version=9)


def one_by_one(model: Any) -> Any:
    found = session(model)
    return np.concatenate([found.run(None, {"X": row})[0] for row in DICTS])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("words", [WORDS, ["age"], ["nothing"], ["é", "size", "é", "é"]], ids=len)
def test_numbers_by_name(words: list[str], backend: str) -> None:
    model = vectorizer(words)
    compiled, expected = hbc.convert(model, backend), one_by_one(model)
    found = compiled.transform(DICTS)
    assert isinstance(found, np.ndarray)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, expected)
    for i in range(len(DICTS)):
        np.testing.assert_array_equal(compiled.transform(DICTS[i : i + 1]), expected[i : i + 1])
    np.testing.assert_array_equal(compiled.transform(DICTS[0]), expected[:1])
    assert compiled.transform([]).shape == (0, len(words))


def test_operators_behind(tmp_path: Path) -> None:
    model = vectorizer(
        behind=[helper.make_node("Scaler", ["V"], ["Y"], domain=ML, offset=[1.0, 2.0, 0.5], scale=[2.0, 0.5, 3.0])]
    )
    compiled = hbc.convert(model, "numpy")
    np.testing.assert_array_equal(compiled.predict(DICTS), one_by_one(model))
    assert not hasattr(compiled, "n_features_in_")
    compiled.save(tmp_path / "model.hbc")
    np.testing.assert_array_equal(hbc.load(tmp_path / "model.hbc").predict(DICTS), one_by_one(model))


def test_exported_pipeline() -> None:
    pytest.importorskip("skl2onnx")
    from skl2onnx import to_onnx
    from skl2onnx.common.data_types import DictionaryType, FloatTensorType, StringTensorType
    from sklearn.feature_extraction import DictVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    rows = [{"a": float(i % 3), "b": i / 7} if i % 2 else {"b": -float(i)} for i in range(40)]
    pipeline = make_pipeline(DictVectorizer(sparse=False), LogisticRegression()).fit(rows, ["x", "y"] * 20)
    types = [("X", DictionaryType(StringTensorType([1]), FloatTensorType([])))]
    model = to_onnx(pipeline, initial_types=types, options={"zipmap": False})
    runs = [session(model).run(None, {"X": row}) for row in rows]
    compiled = hbc.convert(model, "numpy")
    np.testing.assert_array_equal(compiled.predict(rows), np.concatenate([label for label, _ in runs]))
    expected = np.concatenate([probabilities for _, probabilities in runs])
    np.testing.assert_allclose(compiled.predict_proba(rows), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "row", [{}, {"size": "large"}, {"size": None}, {1: 2.0}, {"size": [1.0]}, {"size": 1, 2: 3}, {"age": 10**400}, "size", 3.0]
)
def test_what_onnxruntime_does_not_take_is_rejected(row: Any) -> None:
    compiled = hbc.convert(vectorizer(), "numpy")
    for X in ([row], [*DICTS, row]):
        with pytest.raises(hbc.InvalidInputError):
            compiled.transform(X)


EXTRA = helper.make_tensor_value_info("Z", T.FLOAT, [None, 1])


@pytest.mark.parametrize(
    ("words", "model"),
    [
        ("map of INT64 to FLOAT.*with a tensor", vectorizer(key=T.INT64, int64_vocabulary=[3, 1])),
        ("map of STRING to DOUBLE", vectorizer(value=T.DOUBLE)),
        ("no vocabulary of strings", vectorizer(int64_vocabulary=[3, 1])),
        ("a map beside other inputs", vectorizer(more=[EXTRA])),
        (
            "input 0 is a shape, a sequence or a map",
            vectorizer(behind=[helper.make_node("Binarizer", ["X"], ["Y"], domain=ML)]),
        ),
    ],
)
def test_other_maps_are_refused(words: str, model: Any) -> None:
    with pytest.raises(hbc.UnsupportedOperatorError, match=f"(?s){words}"):
        hbc.convert(model, "numpy")


@pytest.mark.parametrize("kind", ["sequence", "optional"])
def test_what_is_neither_tensor_nor_map_is_refused(kind: str) -> None:
    inner = helper.make_tensor_type_proto(T.FLOAT, [None, 2])
    of = {"sequence": helper.make_sequence_type_proto, "optional": helper.make_optional_type_proto}[kind](inner)
    nodes = [helper.make_node("Identity", ["X"], ["Y"])]
    graph = helper.make_graph(nodes, "test", [helper.make_value_info("X", of)], [helper.make_value_info("Y", of)])
    with pytest.raises(hbc.UnsupportedOperatorError, match=f"is a {kind}, expected a tensor"):
        hbc.convert(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), "numpy")
