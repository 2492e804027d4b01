"""Running a ModelProto by ONNX Runtime."""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Sequence
from typing import IO, Any

import onnx
import onnxruntime as ort

from hbc.compiler.base import CompileOptions
from hbc.compiler.onnx.builder import build, output_names
from hbc.errors import BackendUnavailableError
from hbc.ir.graph import Graph, Input, Node
from hbc.ir.store import write_atomically
from hbc.ir.types import Array

# Opsets whose operators these emitters were tested with, and the IR version that came with each, newest first.
VERSIONS = ((26, 13), (25, 13), (24, 12), (23, 11), (22, 10), (21, 10))


@functools.cache
def versions() -> tuple[int, int]:
    """The newest opset and IR version that both onnx and onnxruntime know."""
    for opset, ir_version in VERSIONS:
        if opset > onnx.defs.onnx_opset_version() or ir_version > onnx.IR_VERSION:
            continue
        x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["N"])
        y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["N"])
        body = onnx.helper.make_graph([onnx.helper.make_node("Neg", ["x"], ["y"])], "probe", [x], [y])
        model = onnx.helper.make_model(body, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=ir_version)
        try:
            ort.InferenceSession(model.SerializeToString(), _session_options(1), providers=["CPUExecutionProvider"])
        except Exception:  # what is raised for an opset from the future has no class of its own
            continue
        return opset, ir_version
    raise BackendUnavailableError(backend="onnx", reason=f"onnxruntime {ort.__version__} is too old", extra="onnx")


def providers(device: str) -> list[Any]:
    """The execution providers for a device. Raises BackendUnavailableError where onnxruntime has none."""
    if device == "cpu":
        return ["CPUExecutionProvider"]
    kind, _, index = device.partition(":")
    if kind != "cuda":
        raise BackendUnavailableError(backend="onnx", reason=f"it has no device {device!r}, only 'cpu' and 'cuda'")
    if "CUDAExecutionProvider" not in ort.get_available_providers():
        raise BackendUnavailableError(
            backend="onnx",
            reason=f"this onnxruntime has no CUDAExecutionProvider for device {device!r}",
            advice="Install onnxruntime-gpu in place of onnxruntime.",
        )
    return [("CUDAExecutionProvider", {"device_id": int(index or 0)}), "CPUExecutionProvider"]


def _session_options(threads: int | None) -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.inter_op_num_threads = 1
    # 0 would let the runtime pin its threads to cores.
    options.intra_op_num_threads = threads or _available_cores()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    return options


def _available_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class OnnxExecutable:
    """A session a method, made at its first call from the part of the graph that the method needs: the runtime does not skip
    what a call does not ask for."""

    def __init__(self, graph: Graph, options: CompileOptions) -> None:
        self.graph = graph
        self.options = options
        self._providers = providers(options.device)
        self._sessions: dict[str, tuple[Any, list[tuple[int, str]], list[str]]] = {}
        self._lock = threading.Lock()
        self._inherited: list[Any] = []
        _EXECUTABLES.add(self)

    def run(self, method: str, arrays: Sequence[Array]) -> list[Array]:
        session, inputs, outputs = self._sessions.get(method) or self._session(method)
        results: list[Array] = session.run(outputs, {name: arrays[index] for index, name in inputs})
        return results

    def _session(self, method: str) -> tuple[Any, list[tuple[int, str]], list[str]]:
        with self._lock:
            if method not in self._sessions:
                part = Graph((), {method: self.graph.outputs[method]})
                needed = [node for node in self.graph.inputs if node in set(part.nodes)]
                model = build(part, needed, *versions())
                session = ort.InferenceSession(
                    model.SerializeToString(), _session_options(self.options.threads), providers=self._providers
                )
                positions = [(self.graph.inputs.index(node), _input_name(node)) for node in needed]
                self._sessions[method] = session, positions, output_names(part.outputs)[method]
        return self._sessions[method]

    def after_fork(self) -> None:
        """The threads of a session do not come along into a child process: it makes its own, and never touches the old ones."""
        self._inherited.append(self._sessions)
        self._sessions = {}
        self._lock = threading.Lock()

    def export(self, path: str) -> None:
        export(self.graph, path)


def _input_name(node: Node) -> str:
    assert isinstance(node.op, Input)
    return node.op.name


def export(graph: Graph, path: str) -> None:
    """Write the model with all methods as outputs. Raises ValueError for a suffix other than .onnx."""
    if not path.lower().endswith(".onnx"):
        raise ValueError(f"{path}: the onnx backend exports only .onnx files")
    content = build(graph, graph.inputs, *versions()).SerializeToString()

    def write(file: IO[bytes]) -> None:
        file.write(content)

    write_atomically(path, write)


_EXECUTABLES: weakref.WeakSet[OnnxExecutable] = weakref.WeakSet()


def _after_fork() -> None:
    for executable in list(_EXECUTABLES):
        executable.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
