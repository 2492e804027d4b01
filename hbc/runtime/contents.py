"""What a saved model of any format is made of, and whether its parts fit together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from hbc.ir.graph import Graph, Node
from hbc.ir.lazy_graph import LazyGraph
from hbc.ir.signature import FRAME_LIBRARIES, FrameOutput, InputSpec, Kinds, ModelInfo, input_layout
from hbc.ir.types import NUMPY_DTYPES, Array, N, TensorType
from hbc.lazy import record
from hbc.runtime.origin import Origin
from hbc.runtime.stored_code import StoredCode
from hbc.runtime.stored_spec import tuples

SPARSE_CLASSES = ("csr_matrix", "csr_array", "csc_matrix", "csc_array")
"""The classes of scipy.sparse in which results may come."""

Build = Callable[[Callable[[], Graph]], Graph]
"""Calls the function that reads a graph, perhaps after it has loaded operators, and returns the graph, perhaps after a test."""


@record
class Contents:
    """A model. `main` is the variant that is compiled first; `settings` are the options of convert. code: the compiled code that a file
    has besides."""

    info: ModelInfo
    spec: InputSpec
    graphs: dict[Kinds, LazyGraph]
    main: Kinds
    settings: dict[str, Any]
    origin: Origin
    code: StoredCode | None = None


def info_of(document: Mapping[str, Any], arrays: Mapping[str, Array]) -> ModelInfo:
    """The record of the source estimator, from the document of an artefact of either format."""
    attributes = {key: decoded(value, arrays) for key, value in document["attributes"].items()}
    without_rows = {method: (str(dtype), tuple(shape)) for method, (dtype, shape) in document["without_rows"].items()}
    sparse = _sparse(document.get("sparse", {}))
    frames = {method: _frame(output) for method, output in document.get("frames", {}).items()}
    given_back = tuple(map(str, document.get("given_back", ())))
    dtypes = dict(document["output_dtypes"])
    failing = {str(method): str(reason) for method, reason in document.get("failing", {}).items()}
    for dtype in (*dtypes.values(), *(dtype for dtype, _ in without_rows.values())):
        np.dtype(dtype)
    if not all(0 in shape for _, shape in without_rows.values()):
        raise ValueError("results without rows that have some")
    if not all(name.isidentifier() and name.endswith("_") and not name.startswith("_") for name in attributes):
        raise ValueError(f"the attributes {', '.join(attributes)}")
    require_public(failing)
    # Older files do not say what scikit-learn's tools ask: what predicts labels is a classifier.
    predicts = "predict" in document.get("methods", ("predict",))
    usual = {"kind": "classifier" if "classes_" in attributes and predicts else "", "score": "", "options": ""}
    kind, score, options = (str({**usual, **document.get("estimator", {})}[key]) for key in ("kind", "score", "options"))
    if score not in ("", "accuracy", "r2"):
        raise ValueError(f"the score {score!r}")
    source = str(document["source"])
    return ModelInfo(source, attributes, dtypes, without_rows, sparse, frames, given_back, failing, kind, score, options)


def require_public(methods: Iterable[str]) -> None:
    """Raise ValueError for methods that no estimator has."""
    if not all(method.isidentifier() and not method.startswith("_") for method in methods):
        raise ValueError(f"the methods {', '.join(methods)}")


def require_fitting(kinds: Kinds, spec: InputSpec) -> None:
    """Raise ValueError unless a variant's kinds are dtypes of all columns. To be called before anything is made of the columns."""
    if len(kinds) != spec.n_features:
        raise ValueError(f"{len(kinds)} kinds of columns for {spec.n_features} columns")
    if not set(kinds) <= {*NUMPY_DTYPES, "unread"}:
        raise ValueError(f"columns of {', '.join(map(str, set(kinds)))}")


def checked_graph(graph: Graph, kinds: Kinds, info: ModelInfo, spec: InputSpec) -> Graph:
    """The graph itself, after a check that its inputs are those of its `kinds`, which the runtime passes, and that it computes the
    columns of the frames."""
    expected = {}
    for name, columns in input_layout(kinds).items():
        shape = (N, len(columns)) if spec.ndim == 2 else (N,)
        expected[name] = TensorType(kinds[columns[0]], shape)  # type: ignore[arg-type]
    found = {node.op.name: node.type for node in graph.inputs}  # type: ignore[attr-defined]
    if found != expected:
        raise ValueError(f"a graph with the inputs {found} where {expected} are wanted")
    for method, output in info.frames.items():
        _check_frame(output, graph.outputs[method], len(kinds))
    return graph


def _frame(document: Mapping[str, Any]) -> FrameOutput:
    fields: dict[str, Any] = {key: tuples(value) for key, value in document.items()}
    output = FrameOutput(**fields)
    if output.library not in FRAME_LIBRARIES or not all(isinstance(name, str) for name in output.names):
        raise ValueError(f"a frame of {output.library}")
    return output


def _check_frame(output: FrameOutput, nodes: tuple[Node, ...], n_features: int) -> None:
    """Raise ValueError unless the frame's columns are there: in the input, or among the graph's results."""
    made = sum(origin < 0 for origin in output.origins)
    width = sum(node.type.columns if len(node.type.shape) == 2 else 1 for node in nodes)
    if len(output.names) != len(output.origins) or (made and made != width) or max(output.origins, default=-1) >= n_features:
        raise ValueError(f"a frame of {len(output.names)} columns, {made} of them computed, for results of {width} columns")


def _sparse(document: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {
        method: (str(dense), str(csr), str(csc)) for method, (dense, csr, csc) in document.items()
    }
    unknown = {name.removesuffix(" i64").removesuffix(" *") for names in found.values() for name in names} - {
        "",
        *SPARSE_CLASSES,
    }
    if unknown:
        raise ValueError(f"sparse results of the classes {', '.join(sorted(unknown))}")
    return found


def decoded(value: Any, arrays: Mapping[str, Array]) -> Any:
    """The value that is written as this JSON."""
    if not isinstance(value, dict):
        return value
    ((kind, content),) = ((k, v) for k, v in value.items() if k != "shape")
    if kind == "array":
        array = arrays[content].copy()
        return array[()] if array.ndim == 0 else array
    if kind == "float":
        return float(content)
    items = [decoded(item, arrays) for item in content]
    if kind == "objects":
        result = np.empty(len(items), object)
        result[:] = items
        return result.reshape(value["shape"])
    return {"list": list, "tuple": tuple}[kind](items)
