"""Runs graphs by ONNX Runtime."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from hbc.compiler.base import CompileOptions, Executable
from hbc.compiler.onnx.builder import NEWEST, VERSIONS, Dialect, build, input_name, output_names
from hbc.compiler.onnx.tree import row_bytes
from hbc.errors import BackendUnavailableError
from hbc.ir.graph import Constant, Graph, Node
from hbc.ir.types import NUMPY_DTYPES, Array
from hbc.lazy import record
from hbc.ops.tensor import BlockMatMul, MatMul
from hbc.ops.tree import TreeEnsemble
from hbc.process import SOURCE, building, cpus, renew_after_fork, show

BLOCK_BYTES = 2 << 20
"""The size of the widest value of a block of rows. It is chosen so that the intermediate values of a block stay in the second-level
cache."""
CUDA_BLOCK_BYTES = 1 << 29
"""The same on a GPU, where blocks only limit the memory."""
LEAST_BLOCK = 64
"""The least number of rows of a block."""
MOST_PRINTED = 8
"""Entries of an attribute that HBC_DEBUG=4 shows."""
PARALLEL_BYTES = 4 << 20
"""The bytes that a call must read and write to be worth several threads. It then takes about 1 ms."""


CUDA = "CUDAExecutionProvider"
CUDA_OPSET = 17
"""The newest opset for a GPU. The runtime takes no kernel for CUDA that was registered for an older version of an operator: from opset 18
on, and mostly from 21 on, there are operators that it would run on the CPU (onnxruntime#26065, #26393, #27729)."""


def _probe(opset: int, ir_version: int) -> bytes:
    """The smallest model of a dialect."""
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["N"])
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["N"])
    body = onnx.helper.make_graph([onnx.helper.make_node("Neg", ["x"], ["y"])], "probe", [x], [y])
    model = onnx.helper.make_model(body, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=ir_version)
    return bytes(model.SerializeToString())


@functools.cache
def newest(most: int = NEWEST) -> Dialect:
    """The newest dialect that both onnx and onnxruntime know, up to an opset, for one thread. Raises BackendUnavailableError if onnxruntime
    is too old."""
    for opset, ir_version, ml in VERSIONS:
        if opset > min(most, onnx.defs.onnx_opset_version()) or ir_version > onnx.IR_VERSION:
            continue
        try:
            ort.InferenceSession(_probe(opset, ir_version), _session_options(), providers=["CPUExecutionProvider"])
        except Exception:  # the error for an opset that is too new has no class of its own
            continue
        return Dialect(opset, ir_version, ml, one_thread=True)
    raise BackendUnavailableError(backend="onnx", reason=f"onnxruntime {ort.__version__} is too old", extra="onnx")


def dialect_for(device: str) -> Dialect:
    """The dialect for a device. Raises BackendUnavailableError if onnxruntime is too old."""
    return newest(NEWEST if device == "cpu" else CUDA_OPSET)


@functools.cache
def require_device(device: str) -> None:
    """Raise BackendUnavailableError if onnxruntime cannot run a model on a device ("cpu", "cuda", "cuda:1", …)."""
    if device == "cpu":
        return
    if device.partition(":")[0] != "cuda":
        raise BackendUnavailableError(backend="onnx", reason=f"it has no device {device!r}, only 'cpu' and 'cuda'")
    dialect = dialect_for(device)
    if CUDA not in ort.get_available_providers():
        raise BackendUnavailableError(
            backend="onnx",
            reason=f"device {device!r} is not there: this onnxruntime has no {CUDA}",
            advice="Install onnxruntime-gpu in place of onnxruntime: pip uninstall onnxruntime, then pip install onnxruntime-gpu.",
        )
    try:
        opened(_probe(dialect.opset, dialect.ir), device)
    except BackendUnavailableError:
        raise
    except Exception as error:  # the runtime's own errors have no class for this; any model would raise it
        raise _not_started(device, str(error)) from error


def opened(model: bytes, device: str) -> Any:
    """A session of a model on a device. Raises BackendUnavailableError where the runtime has chosen the CPU instead."""
    if device == "cpu":
        return ort.InferenceSession(model, _session_options(), providers=["CPUExecutionProvider"])
    # TF32 would round the factors of float32 products to 11 bits. With the fall-back, errors of the GPU would move the session to the CPU.
    cuda = (CUDA, {"device_id": int(device.partition(":")[2] or 0), "use_tf32": 0})
    session = ort.InferenceSession(model, _session_options(), providers=[cuda, "CPUExecutionProvider"], enable_fallback=0)
    if CUDA not in session.get_providers():
        raise _not_started(device, "it gives no reason")
    return session


def _not_started(device: str, reason: str) -> BackendUnavailableError:
    return BackendUnavailableError(
        backend="onnx",
        reason=f"onnxruntime could not start its {CUDA} for device {device!r} ({reason})",
        advice="It needs that GPU, NVIDIA's driver, and the versions of CUDA and cuDNN that it was built for: "
        "pip install 'onnxruntime-gpu[cuda,cudnn]', and call onnxruntime.preload_dlls() first.",
    )


def _session_options() -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.inter_op_num_threads = 1
    options.intra_op_num_threads = 1
    # hbc has optimized the graph already. The runtime's own optimizations change results (see tensor.py) and save no time.
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options


@record
class _Session:
    """The session of one method."""

    runtime: Any
    """The onnxruntime.InferenceSession."""
    inputs: tuple[tuple[int, str], ...]
    """(position among the graph's inputs, name) of each input that the method reads."""
    outputs: list[str]
    """The names of its outputs."""
    block: int
    """The number of rows of a block, which suits the cache."""
    parallel: int
    """The least number of rows that are worth a second thread."""

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        results: list[Array] = self.runtime.run(self.outputs, {name: arrays[index] for index, name in self.inputs})
        return results


class OnnxExecutable(Executable):
    """Runs a graph in ONNX Runtime, with one session for each method. A session is made at the method's first call, from the part of the
    graph that the method needs, because the runtime would compute the other parts too.

    Each session has one thread. Large calls are cut into blocks of rows, which are shared by threads of this model. Reasons: results are
    the same for every number of threads (the runtime's own threads add the trees of an ensemble in another order), intermediate values
    stay in the cache, and no thread waits busily between calls.
    """

    def __init__(self, graph: Graph, options: CompileOptions) -> None:
        self.graph = graph
        self.options = options
        require_device(options.device)
        self._threads = (options.threads or cpus()) if options.device == "cpu" else 1
        self._inherited: list[Any] = []
        self._begin()
        renew_after_fork(self)

    def _begin(self) -> None:
        self._sessions: dict[str, _Session] = {}
        self._pool: ThreadPoolExecutor | None = None

    def run(self, method: str, arrays: Sequence[Array]) -> list[Array]:
        session = self._sessions.get(method) or self._open(method)
        rows = len(arrays[0])
        if rows <= session.block and (rows < session.parallel or self._threads == 1):
            return session.run(arrays)
        count = -(-rows // session.block)
        if self._threads > 1 and rows >= session.parallel:
            count = -(-count // self._threads) * self._threads  # the same number for each thread
        block = -(-rows // count)
        parts = [[array[i : i + block] for array in arrays] for i in range(0, rows, block)]
        results = self._on_threads(session, parts) if self._threads > 1 else [session.run(part) for part in parts]
        return [np.concatenate(blocks) for blocks in zip(*results, strict=True)]

    @building
    def _open(self, method: str) -> _Session:
        if method not in self._sessions:
            part = Graph((), {method: self.graph.outputs[method]})
            nodes = set(part.nodes)
            needed = [(i, node) for i, node in enumerate(self.graph.inputs) if node in nodes]
            model = build(part, [node for _, node in needed], dialect_for(self.options.device))
            show(SOURCE, lambda: printed(model))
            runtime = opened(model.SerializeToString(), self.options.device)
            widest, work = _row_bytes(part)
            block = (CUDA_BLOCK_BYTES if self.options.device != "cpu" else BLOCK_BYTES) // widest
            self._sessions[method] = _Session(
                runtime,
                tuple((i, input_name(node)) for i, node in needed),
                output_names(part.outputs)[method],
                max(block, LEAST_BLOCK),
                max(PARALLEL_BYTES // work, 2 * self._threads),
            )
        return self._sessions[method]

    def _on_threads(self, session: _Session, parts: Sequence[Sequence[Array]]) -> list[list[Array]]:
        pool = self._pool
        if pool is None:
            self._pool = pool = ThreadPoolExecutor(self._threads, thread_name_prefix="hbc-onnx")
        try:
            futures = [pool.submit(session.run, part) for part in parts]
        except RuntimeError:  # the interpreter ends, or there are as many threads as may be
            return [session.run(part) for part in parts]
        return [future.result() for future in futures]

    def after_fork(self) -> None:
        """Forgets the sessions in a forked child, which does not inherit their threads. The child makes its own, and keeps a reference
        to the old ones so that they are never destroyed."""
        self._inherited.append((self._sessions, self._pool))
        self._begin()


def printed(model: onnx.ModelProto) -> str:
    """The model as text, without the data of its initializers, and with the first entries of long attributes (trees) only."""
    short = onnx.ModelProto()
    short.CopyFrom(model)
    for initializer in short.graph.initializer:
        for data in ("raw_data", "string_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data"):
            initializer.ClearField(data)
    for attribute in (attribute for node in short.graph.node for attribute in node.attribute):
        for values in (attribute.floats, attribute.ints, attribute.strings):
            del values[MOST_PRINTED:]
        attribute.t.ClearField("raw_data")
    return onnx.printer.to_text(short)


def _row_bytes(graph: Graph) -> tuple[int, int]:
    """(the bytes of the widest value, the bytes of all that is read and written), for one row."""
    widest = work = 1
    for node in graph.nodes:
        size = _bytes(node) if node.type.batched else 0
        if isinstance(node.op, TreeEnsemble):
            work += 8 * int(node.op.depths.sum())
            size = max(size, row_bytes(node.op))
        elif isinstance(node.op, (MatMul, BlockMatMul)):
            work += 4 * sum(source.op.value.size for source in node.inputs if isinstance(source.op, Constant))
        widest = max(widest, size)
        work += size
    return widest, work


def _bytes(node: Node) -> int:
    """The bytes of a value for one row."""
    return math.prod(int(size) for size in node.type.shape[1:]) * NUMPY_DTYPES[node.type.dtype].itemsize
