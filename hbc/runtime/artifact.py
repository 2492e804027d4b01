"""Converts a model to the contents of a saved file, and back: graphs as text,
each array once, no code and no pickle. ir/store.py writes and reads the file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from hbc.errors import ArtifactError
from hbc.ir import store
from hbc.ir.graph import Graph, Node, array_key
from hbc.ir.printer import print_graph, read_graph
from hbc.ir.signature import FRAME_LIBRARIES, FrameOutput, InputSpec, Kinds, ModelInfo, input_layout
from hbc.ir.types import NUMPY_DTYPES, Array, N, TensorType
from hbc.runtime.stored_spec import read_spec, spec_document, tuples

SPARSE_CLASSES = ("csr_matrix", "csr_array", "csc_matrix", "csc_array")
"""The classes of scipy.sparse in which results may come."""

SCALARS = (str, int, float, bool, type(None))


@dataclass(frozen=True)
class Contents:
    """A model without its compiled code. `main` is the variant that is compiled first; `settings` are the options of convert."""

    info: ModelInfo
    spec: InputSpec
    graphs: dict[Kinds, Graph]
    main: Kinds
    settings: dict[str, Any]


def write(file: IO[bytes], contents: Contents) -> None:
    """Write a saved model. Raises ArtifactError for an attribute that is neither number, text nor array."""
    arrays: dict[str, Array] = {}
    variants = []
    for kinds, graph in contents.graphs.items():
        text, used = print_graph(graph)
        arrays.update(used)
        variants.append({"kinds": list(kinds), "graph": text})
    document = {
        "source": contents.info.source,
        "attributes": {name: _encoded(value, arrays, name) for name, value in contents.info.attributes.items()},
        "output_dtypes": contents.info.output_dtypes,
        "without_rows": contents.info.without_rows,
        "sparse": contents.info.sparse,
        "given_back": list(contents.info.given_back),
        "failing": contents.info.failing,
        "frames": {method: asdict(output) for method, output in contents.info.frames.items()},
        "input": spec_document(contents.spec),
        "variants": variants,
        "main": list(contents.main),
        "settings": contents.settings,
    }
    objects = {key: array for key, array in arrays.items() if array.dtype.kind in "OT"}
    document["objects"] = {key: _encoded(array, {}, key) for key, array in objects.items()}
    store.dump(document, {key: array for key, array in arrays.items() if key not in objects}, file)


def read(file: IO[bytes] | str | Path, name: str = "") -> Contents:
    """Read a saved model. `name` stands for the file in messages. Raises ArtifactError for a file that `write` has not written, and
    FileNotFoundError if there is no file."""
    path = name or str(file)
    document, arrays = store.load(file, path)
    try:
        arrays |= {key: _decoded(value, arrays) for key, value in document["objects"].items()}
        attributes = {key: _decoded(value, arrays) for key, value in document["attributes"].items()}
        without_rows = {method: (str(dtype), tuple(shape)) for method, (dtype, shape) in document["without_rows"].items()}
        sparse = _sparse(document.get("sparse", {}))
        frames = {method: _frame(output) for method, output in document.get("frames", {}).items()}
        given_back = tuple(map(str, document.get("given_back", ())))
        dtypes = dict(document["output_dtypes"])
        failing = {str(method): str(reason) for method, reason in document.get("failing", {}).items()}
        info = ModelInfo(str(document["source"]), attributes, dtypes, without_rows, sparse, frames, given_back, failing)
        for dtype in (*info.output_dtypes.values(), *(dtype for dtype, _ in without_rows.values())):
            np.dtype(dtype)
        if not all(0 in shape for _, shape in without_rows.values()):
            raise ValueError("results without rows that have some")
        spec = read_spec(document["input"], document["version"], len(document["main"]))
        if not all(name.isidentifier() and name.endswith("_") and not name.startswith("_") for name in attributes):
            raise ValueError(f"the attributes {', '.join(attributes)}")
        graphs = {}
        for variant in document["variants"]:
            kinds: Kinds = tuple(variant["kinds"])
            graphs[kinds] = graph = _checked(read_graph(variant["graph"], arrays), kinds, spec)
            for method, output in frames.items():
                _check_frame(output, graph.outputs[method], len(kinds))
        main, settings = tuple(document["main"]), dict(document["settings"])
        if not all(name.isidentifier() and not name.startswith("_") for name in failing):
            raise ValueError(f"the methods {', '.join(failing)}")
        if main not in graphs or len({tuple(graph.outputs) for graph in graphs.values()}) != 1:
            raise ValueError("variants that do not belong together")
        return Contents(info, spec, graphs, main, settings)
    except ArtifactError as error:
        raise _broken(path, error.facts["found"]) from error
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise _broken(path, f"{type(error).__name__}: {error}") from error


def _broken(path: str, reason: str) -> ArtifactError:
    return ArtifactError(
        path=path,
        found=f"a damaged or incomplete model ({reason})",
        expected="a file that CompiledModel.save wrote",
        advice="Save the model again; an operator of a third party needs its package installed.",
    )


def _checked(graph: Graph, kinds: Kinds, spec: InputSpec) -> Graph:
    """The graph itself, after a check that its inputs are those of its `kinds`, which the runtime passes."""
    if len(kinds) != spec.n_features:
        raise ValueError(f"{len(kinds)} kinds of columns for {spec.n_features} columns")
    expected = {}
    for name, columns in input_layout(kinds).items():
        shape = (N, len(columns)) if spec.ndim == 2 else (N,)
        expected[name] = TensorType(kinds[columns[0]], shape)  # type: ignore[arg-type]
    found = {node.op.name: node.type for node in graph.inputs}  # type: ignore[attr-defined]
    if not all(method.isidentifier() and not method.startswith("_") for method in graph.outputs):
        raise ValueError(f"the methods {', '.join(graph.outputs)}")
    if found != expected or not set(kinds) <= {*NUMPY_DTYPES, "unread"}:
        raise ValueError(f"a graph with the inputs {found} where {expected} are wanted")
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


def _encoded(value: Any, arrays: dict[str, Array], name: str) -> Any:
    """A value as JSON; plain arrays are put among the arrays."""
    if isinstance(value, np.generic) and value.dtype.kind in "fiub":
        value = np.asarray(value)
    if isinstance(value, np.ndarray) and value.dtype.kind in "OT":
        items = [_encoded(item.item() if isinstance(item, np.generic) else item, arrays, name) for item in value.ravel()]
        return {"objects": items, "shape": list(value.shape)}
    if isinstance(value, np.ndarray) and value.dtype.kind in "fiubU":
        key = "k" + array_key(value)[2]
        arrays[key] = value
        return {"array": key}
    if isinstance(value, (list, tuple)):
        return {type(value).__name__: [_encoded(item, arrays, name) for item in value]}
    if isinstance(value, SCALARS):
        return str(value) if isinstance(value, str) else value
    raise ArtifactError(
        path=name,
        found=f"{value!r:.60} (a {type(value).__name__})",
        expected="numbers and strings",
        advice="It cannot be saved.",
    )


def _decoded(value: Any, arrays: Mapping[str, Array]) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, content),) = ((k, v) for k, v in value.items() if k != "shape")
    if kind == "array":
        array = arrays[content].copy()
        return array[()] if array.ndim == 0 else array
    items = [_decoded(item, arrays) for item in content]
    if kind == "objects":
        result = np.empty(len(items), object)
        result[:] = items
        return result.reshape(value["shape"])
    return {"list": list, "tuple": tuple}[kind](items)
