"""Variants of models in the cache on disk: kept when they are compiled, found again without optimizer, compiler and their libraries."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from hbc.cache.identity import environment, programs
from hbc.cache.shelf import AnyStore, Shelf
from hbc.cache.store import store
from hbc.compiler.base import CompileOptions, Executable, Signature, code_versions, is_available, load_compiler, recalled
from hbc.ir.graph import Graph
from hbc.ir.lazy_graph import LazyGraph
from hbc.ir.printer import print_graph, read_graph
from hbc.ir.signature import Guard, InputLimits, Limits
from hbc.ir.types import Array, TensorType
from hbc.runtime.host import HostedExecutable
from hbc.runtime.variant import Facts, Recalled
from hbc.version import VERSION

VARIANT = "variant"
"""The name of a variant's own document on its shelf. Those of its methods are there too."""
RUNS = "runs"
"""The name of the document that says only that the backend runs the variant."""


def shelf_of(graph: LazyGraph, settings: Mapping[str, Any]) -> Shelf | None:
    """The shelf of a variant: of its graph, the options of the model (JSON), this computer and these versions. None without a store."""
    found = store()
    if found is None:
        return None
    # $HBC_WITHOUT switches off passes of the optimizer.
    return Shelf.of(found, environment(), os.environ.get("HBC_WITHOUT", ""), settings, graph.identity)


def file_shelf(store: AnyStore, graph: LazyGraph, settings: Mapping[str, Any]) -> Shelf:
    """The shelf of a variant in a saved model, whose store has the code for one level of processors: of its graph and the options of the
    model (JSON). What else the code depends on, `made_by` tells once for the whole store."""
    return Shelf.of(store, os.environ.get("HBC_WITHOUT", ""), settings, graph.identity)


def made_by(backend: str) -> dict[str, str]:
    """What compiles and runs the code of a saved model here: hbc, a digest of its programs, and the backend's libraries with their
    versions; and $HBC_WITHOUT, which leaves out passes, if it is set. Raises BackendUnavailableError."""
    without = os.environ.get("HBC_WITHOUT", "")
    return {"hbc": VERSION, "programs": programs(), **code_versions(backend), **({"HBC_WITHOUT": without} if without else {})}


# --- that it runs --------------------------------------------------------------------------------------------------------


def known_to_run(shelf: Shelf) -> bool:
    """Whether a process found that the backend runs this variant, or compiled it. Then this one need not import the compiler (0.8 s)."""
    return any(shelf.find(name) is not None for name in (RUNS, VARIANT))


def keep_that_it_runs(shelf: Shelf) -> None:
    """Write on the shelf of a variant that the backend runs it."""
    shelf.refer(RUNS, {})


# --- keeping -------------------------------------------------------------------------------------------------------------


def keep(shelf: Shelf, graph: Graph, facts: Facts, executable: Executable) -> None:
    """Put a variant on its shelf: what calls must know of it, and the graph after the optimizer if the host computes a part of it. Its
    methods are put there as they are compiled. Nothing is kept of a variant with parameters that JSON cannot hold."""
    if not executable.keeps_code:
        return
    device = executable.device if isinstance(executable, HostedExecutable) else executable
    assert device is not None
    try:
        document = {
            "facts": _facts_document(facts, shelf.store),
            "signature": _signature_document(device.signature),
            "hosted": _graph_document(graph, shelf.store) if isinstance(executable, HostedExecutable) else None,
            "host_code": isinstance(executable, HostedExecutable) and executable.has_own_code,
        }
    except (TypeError, ValueError):
        return
    shelf.refer(VARIANT, document)
    executable.keep_in(shelf)


def _facts_document(facts: Facts, to: AnyStore) -> dict[str, Any]:
    return {
        "limits": _limits_document(facts.limits, to),
        "looser": {method: _limits_document(limits, to) for method, limits in facts.looser.items()},
        "results": {method: _types_document(types) for method, types in facts.results.items()},
        "gives_rows": sorted(facts.gives_rows),
    }


def _limits_document(limits: Limits, to: AnyStore) -> dict[str, Any]:
    inputs = [
        [_runs(np.atleast_1d(array).tolist()) for array in (entry.allow_nan, entry.allow_inf, entry.limit, entry.allow_na)]
        + [_runs(entry.owners), entry.allow_na.ndim]
        for entry in limits.inputs
    ]
    return {"inputs": inputs, "min_rows": limits.min_rows, "guards": [_guard_document(guard, to) for guard in limits.guards]}


def _guard_document(guard: Guard, to: AnyStore) -> dict[str, Any]:
    check = guard.require.__self__  # type: ignore[attr-defined]
    checked = Graph(guard.graph.inputs, {"value": (check(*guard.graph.outputs["value"]),)})
    accepted = None if guard.accepted is None else _graph_document(guard.accepted, to)
    return {"checked": _graph_document(checked, to), "safe": guard.safe, "accepted": accepted}


def _graph_document(graph: Graph, to: AnyStore) -> dict[str, Any]:
    text, arrays = print_graph(graph)
    return {"text": to.put(text.encode()), "arrays": {key: _array_document(array, to) for key, array in arrays.items()}}


def _array_document(array: Array, to: AnyStore) -> dict[str, Any]:
    """Raises TypeError for objects that JSON cannot hold."""
    if array.dtype.kind in "OT":
        values = [value.item() if isinstance(value, np.generic) else value for value in array.ravel().tolist()]
        if not all(value is None or type(value) in (str, int, float, bool) for value in values):
            raise TypeError("objects that JSON cannot hold")
        return {"dtype": "object", "shape": array.shape, "data": to.put(json.dumps(values).encode())}
    return {"dtype": array.dtype.str, "shape": array.shape, "data": to.put(np.ascontiguousarray(array).tobytes())}


def _signature_document(signature: Signature) -> dict[str, Any]:
    """The inputs are pairs in their order, which a dict in JSON would lose: `host10` comes before `host2` there."""
    outputs = {method: _types_document(types) for method, types in signature.outputs.items()}
    return {"inputs": [*zip(signature.inputs, _types_document(signature.inputs.values()), strict=True)], "outputs": outputs}


def _types_document(types: Any) -> list[Any]:
    return [[kind.dtype, list(kind.shape)] for kind in types]


def _runs(values: Sequence[Any]) -> list[list[Any]]:
    """[[value, how often it comes in a row], …]."""
    return [[value, len(list(group))] for value, group in groupby(values)]


# --- finding -------------------------------------------------------------------------------------------------------------


class _Missing(Exception):
    """Something that a document names is not in the store any more."""


def find(shelf: Shelf, backend: str, options: CompileOptions, compiled: Callable[[], Executable]) -> Recalled | None:
    """A variant that `keep` put on this shelf, or None. compiled: compiles the variant, for methods that are not there, and exports."""
    document = shelf.find(VARIANT)
    if document is None:
        return None
    try:
        facts = _facts(document["facts"], shelf.store)
        hosted = document["hosted"]
        signature = _signature(document["signature"])
        if hosted is None:
            executable = recalled(backend, signature, options, lambda: _methods_of(compiled()))
        else:
            executable = _hosted(_graph(hosted, shelf.store), document["host_code"], backend, signature, options, compiled)
    except _Missing:
        return None
    executable.keep_in(shelf)
    return Recalled(facts, executable, shelf.store.place)


def _hosted(
    graph: Graph,
    host_code: bool,
    backend: str,
    signature: Signature,
    options: CompileOptions,
    compiled: Callable[[], Executable],
) -> Executable:
    """The executable of a graph of which the host computes a part. host_code: the compiler has code for operators of that part too."""
    from hbc.optimizer.partition import makes_rows_of_much, partition

    parts = partition(graph)
    if host_code and is_available(backend):  # without the compiler Python computes the same
        parts = parts.with_host(lambda part: load_compiler(backend).on_host(part, options))
    device = recalled(backend, signature, options, lambda: _methods_of(compiled()))
    methods, in_blocks = frozenset(parts.device.outputs), makes_rows_of_much(graph)
    return HostedExecutable(parts.before, device, methods, parts.after, parts.labels, in_blocks)


def _methods_of(executable: Any) -> Any:
    """What compiles the methods of the device's part."""
    device: Any = executable.device if isinstance(executable, HostedExecutable) else executable
    return device.methods


def _facts(document: Mapping[str, Any], of: AnyStore) -> Facts:
    return Facts(
        limits=_limits(document["limits"], of),
        looser={method: _limits(limits, of) for method, limits in document["looser"].items()},
        results={method: _types(types) for method, types in document["results"].items()},
        gives_rows=frozenset(document["gives_rows"]),
    )


def _limits(document: Mapping[str, Any], of: AnyStore) -> Limits:
    inputs = []
    for nan, inf, limit, na, owners, dimensions in document["inputs"]:
        allow_na = np.array(_repeated(na), bool)
        entry = InputLimits(
            np.array(_repeated(nan), bool),
            np.array(_repeated(inf), bool),
            np.array(_repeated(limit), np.float64),
            tuple(_repeated(owners)),
            allow_na if dimensions else allow_na[0],
        )
        inputs.append(entry)
    return Limits(tuple(inputs), document["min_rows"], tuple(_guard(guard, of) for guard in document["guards"]))


def _guard(document: Mapping[str, Any], of: AnyStore) -> Guard:
    checked = _graph(document["checked"], of)
    (node,) = checked.outputs["value"]
    check: Any = node.op
    accepted = None if document["accepted"] is None else _graph(document["accepted"], of)
    return Guard(Graph(checked.inputs, {"value": node.inputs}), check.require, document["safe"], check.whole, accepted)


def _graph(document: Mapping[str, Any], of: AnyStore) -> Graph:
    from hbc.ops import import_all

    import_all()  # graphs are read back by the names of operators
    text = _object(document["text"], of).decode()
    return read_graph(text, {key: _array(array, of) for key, array in document["arrays"].items()})


def _array(document: Mapping[str, Any], of: AnyStore) -> Array:
    data, shape = _object(document["data"], of), tuple(document["shape"])
    if document["dtype"] != "object":
        return np.frombuffer(data, document["dtype"]).reshape(shape)
    values = json.loads(data)
    found = np.empty(len(values), object)
    found[:] = values
    return found.reshape(shape)


def _object(digest: str, of: AnyStore) -> bytes:
    data = of.get(digest)
    if data is None:
        raise _Missing
    return data


def _signature(document: Mapping[str, Any]) -> Signature:
    inputs = {name: TensorType(dtype, tuple(shape)) for name, (dtype, shape) in document["inputs"]}
    return Signature(inputs, {method: _types(types) for method, types in document["outputs"].items()})


def _types(document: Any) -> tuple[TensorType, ...]:
    return tuple(TensorType(dtype, tuple(shape)) for dtype, shape in document)


def _repeated(runs: Sequence[Sequence[Any]]) -> list[Any]:
    return [value for value, count in runs for _ in range(count)]
