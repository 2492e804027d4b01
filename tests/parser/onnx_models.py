"""Makes ONNX models by hand, and compares them with ONNX Runtime."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import hbc

pytest.importorskip("onnx")
from onnx import TensorProto as T
from onnx import helper, numpy_helper

ML = "ai.onnx.ml"
DTYPES = {T.FLOAT: np.float32, T.DOUBLE: np.float64, T.INT64: np.int64, T.INT32: np.int32, T.STRING: object}
NAN = float("nan")
POOL = np.array([-1, 0, -0.0, 1, 2, 3, 0.5, -0.5, 1.25, 0.1, np.nan, np.inf, -np.inf, 2.5, 30, 1e-40, -7.3, 1e10, -1e20, 5])


def matrix(columns: int = 4, rows: int = 200, special: bool = True) -> Any:
    rng = np.random.default_rng(columns)
    plain = rng.normal(size=(rows, columns)).astype(np.float32)
    if special:
        with np.errstate(all="ignore"):
            plain[: rows // 2] = rng.choice(POOL, (rows // 2, columns)).astype(np.float32)
    return plain


def graph(
    nodes: list[Any], inputs: dict[str, tuple[int, Any]], outputs: dict[str, int], constants: Any = None, **versions: int
) -> Any:
    """A model: inputs by name with element type and number of columns, outputs by name with element type."""
    values = [helper.make_tensor_value_info(name, kind, [None, width]) for name, (kind, width) in inputs.items()]
    results = [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()]
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in (constants or {}).items()]
    opsets = [helper.make_opsetid("", versions.get("onnx", 18)), helper.make_opsetid(ML, versions.get("ml", 3))]
    return helper.make_model(
        helper.make_graph(nodes, "test", values, results, initializer=tensors), opset_imports=opsets, ir_version=9
    )


def session(model: Any) -> Any:
    onnxruntime = pytest.importorskip("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def source(model: Any, X: Any) -> list[Any]:
    found = session(model)
    return found.run(None, {entry.name: X for entry in found.get_inputs()})


def assert_agrees(model: Any, X: Any, backend: str = "numpy", rtol: float = 1e-5, atol: float = 1e-6) -> None:
    expected = source(model, X)
    compiled = hbc.convert(model, backend)
    methods = compiled.methods[: len(expected)]
    for method, value in zip(methods, expected, strict=True):
        found = getattr(compiled, method)(X)
        assert found.shape == value.shape
        assert found.dtype.kind == value.dtype.kind
        if value.dtype.kind == "f":
            np.testing.assert_allclose(found, value, rtol=rtol, atol=atol)
        else:
            np.testing.assert_array_equal(found, value)


MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
THRESHOLDS = np.array([-1, 0, 1, 2, 3, 0.5, -0.5, 1.25, 0.1], np.float32)


def at_thresholds(dtype: Any, seed: int = 0) -> Any:
    """300 rows at the thresholds, one ulp beside them, and categories beyond every mask of bits."""
    t = THRESHOLDS.astype(dtype)
    pool = np.concatenate(
        [
            t,
            np.nextafter(t, dtype(9)),
            np.nextafter(t, dtype(-9)),
            np.array([NAN, np.inf, -np.inf, -0.0, 30, 31, 32, 33, 64, 2.5], dtype),
        ]
    )
    return np.random.default_rng(seed).choice(pool, (300, 4)).astype(dtype)


def trees(
    seed: int = 0,
    *,
    n: int = 5,
    outputs: int = 1,
    modes: tuple[str, ...] = MODES[:1],
    columns: str = "all",
    positive: bool = False,
    kind: int = T.FLOAT,
    labels: list[Any] | None = None,
    missing: bool = True,
    **attributes: Any,
) -> Any:
    """A random TreeEnsembleRegressor, or with labels a TreeEnsembleClassifier. `columns`: the outputs for which leaves have weights."""
    rng = np.random.default_rng(seed)
    rows: list[dict[str, Any]] = []

    def grow(tree: int, depth: int, numbers: Any) -> int:
        row: dict[str, Any] = {"tree": tree, "id": next(numbers), "mode": "LEAF", "f": 0, "v": 0.0, "t": 0, "e": 0, "m": 0}
        rows.append(row)
        if depth and (row["id"] == 0 or rng.random() > 0.15):
            row |= {
                "mode": str(rng.choice(modes)),
                "f": int(rng.integers(4)),
                "v": float(rng.choice(THRESHOLDS)),
                "m": int(rng.integers(2)),
            }
            row["t"], row["e"] = grow(tree, depth - 1, numbers), grow(tree, depth - 1, numbers)
        return int(row["id"])

    for tree in range(n):
        grow(tree, 3, itertools.count())
    weights = []
    for row in rows:
        if row["mode"] == "LEAF":
            chosen = {
                "all": range(outputs),
                "cycle": [row["tree"] % outputs],
                "first": [0],
                "second": [1],
                "some": np.flatnonzero(rng.random(outputs) < 0.5).tolist(),
                "one": [int(rng.integers(outputs))],
            }[columns]
            weights += [(row["tree"], row["id"], k, float(np.float32(rng.normal()))) for k in chosen]
    side = "class" if labels else "target"
    attributes |= {
        f"nodes_{name}": [row[key] for row in rows]
        for name, key in (("treeids", "tree"), ("nodeids", "id"), ("featureids", "f"), ("modes", "mode"), ("values", "v"))
    }
    attributes |= {"nodes_truenodeids": [row["t"] for row in rows], "nodes_falsenodeids": [row["e"] for row in rows]}
    attributes = {name: value for name, value in attributes.items() if value != []}
    if missing:
        attributes["nodes_missing_value_tracks_true"] = [row["m"] for row in rows]
    attributes |= {f"{side}_{name}": [w[i] for w in weights] for i, name in enumerate(("treeids", "nodeids", "ids"))}
    attributes[f"{side}_weights"] = [abs(w[3]) / n if positive else w[3] for w in weights]
    if not labels:
        node = helper.make_node("TreeEnsembleRegressor", ["X"], ["Y"], domain=ML, n_targets=outputs, **attributes)
        return graph([node], {"X": (kind, 4)}, {"Y": T.FLOAT})
    strings = isinstance(labels[0], str)
    attributes["classlabels_strings" if strings else "classlabels_int64s"] = labels
    node = helper.make_node("TreeEnsembleClassifier", ["X"], ["label", "probabilities"], domain=ML, **attributes)
    return graph([node], {"X": (kind, 4)}, {"label": T.STRING if strings else T.INT64, "probabilities": T.FLOAT})
