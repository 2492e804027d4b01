"""The PyTorch backend: a graph as an `nn.Module` whose constants are buffers and whose methods are the model's.

Threads: PyTorch's number of threads is a setting of the process (`torch.set_num_threads`), which hbc never touches. Without
`threads` a model runs under it, whatever it is. With `threads=k` the OpenMP and MKL limits of the calling thread alone are k
while the call lasts; where PyTorch was built without either, `threads` is refused.
"""

from __future__ import annotations

import ctypes
import functools
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hbc.compiler.base import CompileOptions
from hbc.errors import BackendUnavailableError, InvalidInputError
from hbc.ir.graph import Constant, Graph, Input, Node, Operator, array_key, topological
from hbc.ir.types import NUMPY_DTYPES, Array, N, TensorType
from hbc.ops import tensor as t
from hbc.ops.columns import Rank
from hbc.ops.linear import Linear

# PyTorch stores uint16 but does not calculate with it: such values are int32 whose upper half is kept zero.
DTYPES: dict[str, torch.dtype] = {
    "bool": torch.bool,
    "i8": torch.int8,
    "u8": torch.uint8,
    "i16": torch.int16,
    "u16": torch.int32,
    "i32": torch.int32,
    "i64": torch.int64,
    "f32": torch.float32,
    "f64": torch.float64,
}
OUTSIDE_DTYPES = {**DTYPES, "u16": torch.uint16}

BLOCK_BYTES = 1 << 20
"""Of the widest value of a block of rows, for each thread: intermediates of a block stay in the second-level cache."""
CUDA_BLOCK_BYTES = 1 << 29
"""On a GPU blocks only bound the memory."""

Function = Callable[..., Tensor]


# --- what every operator is ------------------------------------------------------------------------------------------

RULES: dict[type[Operator], Callable[[Any, Node], Function]] = {}
"""From an operator and its node to the function of its inputs' tensors (and then of its PARAMETERS)."""

PARAMETERS: dict[type[Operator], Callable[[Any], tuple[Array, ...]]] = {
    Rank: lambda op: (op.edges,),
    Linear: lambda op: (op.coef, op.intercept),
}
"""The arrays of the model operators that are run as they are."""

SIMPLE: dict[type[Operator], Function] = {
    t.Neg: torch.neg,
    t.Abs: torch.abs,
    t.Exp: torch.exp,
    t.Expm1: torch.expm1,
    t.Log: torch.log,
    t.Log1p: torch.log1p,
    t.Tanh: torch.tanh,
    t.Floor: torch.floor,
    t.IsNan: torch.isnan,
    t.Not: torch.logical_not,
    t.Add: torch.add,
    t.Sub: torch.sub,
    t.Mul: torch.mul,
    t.Div: torch.div,
    t.Pow: torch.pow,
    t.Maximum: torch.maximum,
    t.Minimum: torch.minimum,
    t.Less: torch.lt,
    t.LessEqual: torch.le,
    t.Equal: torch.eq,
    t.And: torch.logical_and,
    t.Or: torch.logical_or,
    t.MatMul: torch.matmul,
}


def runs(kind: type[Operator]) -> Callable[[Callable[[Any, Node], Function]], Callable[[Any, Node], Function]]:
    """Registers the rule of an operator."""

    def register(rule: Callable[[Any, Node], Function]) -> Callable[[Any, Node], Function]:
        RULES[kind] = rule
        return rule

    return register


def _simple(op: Operator, node: Node) -> Function:
    return SIMPLE[type(op)]


RULES.update(dict.fromkeys(SIMPLE, _simple))


@runs(t.Sigmoid)
def _sigmoid(op: t.Sigmoid, node: Node) -> Function:
    def sigmoid(x: Tensor) -> Tensor:
        # torch.sigmoid is 0 below about -88 in float32, where scipy's expit is still a subnormal number.
        small = torch.exp(-torch.abs(x))
        below = 1 + small
        return torch.where(x >= 0, 1 / below, small / below)

    return sigmoid


@runs(t.Cast)
def _cast(op: t.Cast, node: Node) -> Function:
    dtype = DTYPES[op.dtype]
    return lambda x: x.to(dtype)


@runs(t.BlockMatMul)
def _block_matmul(op: t.BlockMatMul, node: Node) -> Function:
    return lambda x, w: torch.bmm(x.transpose(0, 1), w).transpose(0, 1)


@runs(t.Sum)
def _sum(op: t.Sum, node: Node) -> Function:
    axis, keepdims, dtype = op.axis, op.keepdims, DTYPES[node.type.dtype]
    if not op.ordered or not node.type.is_float:  # integers wrap: their sum has no order
        return lambda x: torch.sum(x, axis, keepdims, dtype=dtype)

    def ordered(x: Tensor) -> Tensor:
        total = _scripted(ordered_sum)(x, axis)
        return total.unsqueeze(axis) if keepdims else total

    return ordered


def ordered_sum(x: Tensor, axis: int) -> Tensor:
    """The terms along an axis added one after the other, starting from 0.

    cumsum will not do (float32 is accumulated in double), nor will sum (pairwise). index_add into a single row adds the rows in
    order on a CPU: 88 µs for 256 rows × 500 terms, against 700 µs for 500 additions called one by one. On a GPU it is atomic.
    """
    terms = x.movedim(axis, 0)
    rest = terms.size()[1:]
    total = torch.zeros(rest, dtype=x.dtype, device=x.device).reshape(1, -1)
    flat = terms.reshape(terms.size(0), total.size(1)).contiguous()
    if x.is_cuda:
        for i in range(flat.size(0)):
            total = total + flat[i]
    elif flat.numel() > 0:
        total = total.index_add(0, torch.zeros([flat.size(0)], dtype=torch.int64, device=x.device), flat)
    return total.reshape(rest)


def exact_sqrt(x: Tensor) -> Tensor:
    """√x, correctly rounded: torch.sqrt on a CPU is MKL's, which is one unit off for 17 % of float32 and 1.3 % of float64 numbers.

    √ of a float32 is at least four float64 units away from the middle of two float32, so an error of one unit does not matter.
    For float64 the complex root is the C library's (2.2 times as slow); its real part is 0 below 0.
    """
    if x.is_cuda:
        return torch.sqrt(x)
    if x.dtype == torch.float32:
        return torch.sqrt(x.to(torch.float64)).to(torch.float32)
    root = torch.sqrt(torch.complex(x, torch.zeros_like(x))).real
    return torch.where(x > 0, root, torch.where(x == 0, x, float("nan")))


@runs(t.Sqrt)
def _sqrt(op: t.Sqrt, node: Node) -> Function:
    return lambda x: _scripted(exact_sqrt)(x)


def select(condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """a where the condition holds, else b, for int32 and int64, by masks: torch.where on a CPU branches for every element, which
    takes 3.3 ns where conditions are as random as those of trees, against 0.5 ns (0.8 ns for int64)."""
    if condition.is_cuda or max(condition.numel(), a.numel(), b.numel()) < 4096:
        return torch.where(condition, a, b)
    mask = condition.to(a.dtype).neg()
    return torch.bitwise_and(torch.bitwise_xor(a, b), mask).bitwise_xor_(b)


@runs(t.Where)
def _where(op: t.Where, node: Node) -> Function:
    kind = DTYPES[node.type.dtype]
    if kind.itemsize < 4:
        return torch.where
    if not kind.is_floating_point:
        return lambda condition, a, b: _scripted(select)(condition, a, b)
    bits = torch.int32 if kind.itemsize == 4 else torch.int64

    def where(condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
        if _tracing():  # TorchScript has no view of other bits
            return torch.where(condition, a, b)
        return select(condition, a.view(bits), b.view(bits)).view(kind)

    return where


def _tracing() -> bool:
    return bool(torch.jit.is_tracing())  # type: ignore[attr-defined]


def _scripted(function: Function) -> Function:
    """A traced graph must keep a function's choice between CPU and GPU, so that it stays exact wherever it is loaded."""
    return _script(function) if _tracing() else function


@functools.cache
def _script(function: Function) -> Any:
    from hbc.compiler.torchscript import quiet_jit

    with quiet_jit():
        return torch.jit.script(function)


@runs(t.Max)
def _max(op: t.Max, node: Node) -> Function:
    return lambda x: torch.amax(x, op.axis, op.keepdims)


@runs(t.Min)
def _min(op: t.Min, node: Node) -> Function:
    return lambda x: torch.amin(x, op.axis, op.keepdims)


@runs(t.ArgMax)
def _argmax(op: t.ArgMax, node: Node) -> Function:
    # torch.argmax documents that it returns the first of equals; its comparison takes NaN for the largest, on CPU and GPU.
    if node.inputs[0].type.dtype == "bool":
        return lambda x: torch.argmax(x.to(torch.uint8), op.axis)
    return lambda x: torch.argmax(x, op.axis)


@runs(t.Take)
def _take(op: t.Take, node: Node) -> Function:
    indices = node.inputs[1].type
    axis = op.axis
    chosen = node.inputs[1].op
    if isinstance(chosen, Constant) and chosen.value.ndim == 1 and len(chosen.value):
        start, stop = int(chosen.value[0]), int(chosen.value[-1]) + 1
        if np.array_equal(chosen.value, np.arange(start, stop)):  # neighbours are a view
            return lambda x, _: x.narrow(axis, start, stop - start)
    if len(indices.shape) == 1:
        return lambda x, i: torch.index_select(x, axis, i)
    shape = reshaper(node.type)
    if indices.batched:
        return lambda x, i: torch.index_select(x, 0, i.reshape(-1)).reshape(shape(i))
    return lambda x, i: torch.index_select(x, axis, i.reshape(-1)).reshape(shape(x))


@runs(t.TakeAlong)
def _take_along(op: t.TakeAlong, node: Node) -> Function:
    return lambda x, i: torch.gather(x, 1, i.to(torch.int64))


@runs(t.Concat)
def _concat(op: t.Concat, node: Node) -> Function:
    return lambda *parts: torch.cat(parts, op.axis)


@runs(t.Reshape)
def _reshape(op: t.Reshape, node: Node) -> Function:
    shape = reshaper(node.type)
    return lambda x: x.reshape(shape(x))


def reshaper(kind: TensorType) -> Callable[[Tensor], list[int]]:
    """The sizes of a value, given a tensor with as many rows (which a trace must not fix; -1 would be ambiguous without columns)."""
    sizes = [0 if size == N else int(size) for size in kind.shape]
    if not kind.batched:
        return lambda _: sizes
    return lambda x: [x.size(0), *sizes[1:]]


@runs(Linear)
def _linear(op: Linear, node: Node) -> Function:
    return lambda x, coef, intercept: torch.addmm(intercept, x, coef)


@runs(Rank)
def _rank(op: Rank, node: Node) -> Function:
    def rank(x: Tensor, edges: Tensor) -> Tensor:
        places = torch.searchsorted(edges, x.t().contiguous(), out_int32=True).t()
        return torch.where(torch.isnan(x), 0, places)  # searchsorted sorts NaN last

    return rank


def _wrapped(function: Function) -> Function:
    """A u16 result: int32 modulo 2^16."""
    return lambda *args: torch.bitwise_and(function(*args), 0xFFFF)


WRAPPING = (t.Add, t.Sub, t.Mul, t.Sum, t.Cast)


def function_of(node: Node) -> Function:
    function = RULES[type(node.op)](node.op, node)
    return _wrapped(function) if node.type.dtype == "u16" and isinstance(node.op, WRAPPING) else function


# --- the module ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """values[result] = function(*values[arguments]); `dead` values are not needed afterwards."""

    function: Function
    arguments: tuple[int, ...]
    result: int
    dead: tuple[int, ...]


@dataclass(frozen=True)
class Method:
    """The steps of one method over numbered values: first the graph's inputs, then the buffers it reads."""

    buffers: tuple[str, ...]
    steps: tuple[Step, ...]
    results: tuple[int, ...]
    size: int
    row_bytes: int
    """Of the widest value."""


class Program(nn.Module):
    """A graph. Every method of the model is a method, called `entry(name)`: it takes the graph's inputs, and returns its value, or a
    tuple of several."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self._names: dict[tuple[Any, ...], str] = {}
        self._methods = {name: self._schedule(graph, group) for name, group in graph.outputs.items()}
        self._input_types = [node.type for node in graph.inputs]
        self._result_types = {name: [node.type for node in group] for name, group in graph.outputs.items()}
        for name in graph.outputs:
            object.__setattr__(self, entry(name), functools.partial(self.compute, name))

    def _hold(self, array: Array) -> str:
        """The name of the buffer with these bits."""
        key = array_key(array)
        if key not in self._names:
            self._names[key] = f"constant{len(self._names)}"
            kind = t.constant(array).type.dtype
            self.register_buffer(self._names[key], torch.tensor(array.astype(np.int32) if kind == "u16" else array))
        return self._names[key]

    def _schedule(self, graph: Graph, results: Sequence[Node]) -> Method:
        operands: dict[Node, list[Node | str]] = {}  # a string is the name of a buffer
        for node in topological(results):
            if not isinstance(node.op, (Input, Constant)):
                sources = [self._hold(source.op.value) if isinstance(source.op, Constant) else source for source in node.inputs]
                parameters = PARAMETERS[type(node.op)](node.op) if type(node.op) in PARAMETERS else ()
                operands[node] = [*sources, *map(self._hold, parameters)]
        buffers = tuple(dict.fromkeys(source for sources in operands.values() for source in sources if isinstance(source, str)))
        values: list[Node | str] = [*graph.inputs, *buffers, *operands]
        number = {value: i for i, value in enumerate(values)}
        needed = {number[node] for node in results}
        steps: list[Step] = []
        for node in reversed(operands):
            arguments = tuple(number[source] for source in operands[node])
            dead = tuple(sorted(set(arguments) - needed))
            needed.update(arguments)
            steps.append(Step(function_of(node), arguments, number[node], dead))
        width = max(row_bytes(node.type) for node in (*operands, *graph.inputs))
        return Method(buffers, tuple(reversed(steps)), tuple(number[node] for node in results), len(number), width)

    def compute(self, name: str, *inputs: Tensor) -> Any:
        method = self._methods[name]
        values: list[Any] = [None] * method.size
        for i, (value, kind) in enumerate(zip(inputs, self._input_types, strict=True)):
            values[i] = value.to(torch.int32) if kind.dtype == "u16" else value
        for i, buffer in enumerate(method.buffers, len(inputs)):
            values[i] = self._buffers[buffer]
        for step in method.steps:
            values[step.result] = step.function(*[values[i] for i in step.arguments])
            for i in step.dead:
                values[i] = None
        results = [
            values[i].to(torch.uint16) if kind.dtype == "u16" else values[i]
            for i, kind in zip(method.results, self._result_types[name], strict=True)
        ]
        return results[0] if len(results) == 1 else tuple(results)

    def row_bytes(self, name: str) -> int:
        return self._methods[name].row_bytes


def entry(name: str) -> str:
    """What a method is called in a module: its own name, or `apply_`, since modules have an `apply` already."""
    return f"{name}_" if hasattr(nn.Module, name) else name


def row_bytes(kind: TensorType) -> int:
    """The memory of one row of a value; 0 for a constant."""
    return math.prod(int(size) for size in kind.shape[1:]) * NUMPY_DTYPES[kind.dtype].itemsize if kind.batched else 0


# --- running ---------------------------------------------------------------------------------------------------------


class _Writable:
    """A read-only array's memory as if it could be written to: PyTorch knows no read-only tensors and warns. Nothing in a
    Program writes to its inputs."""

    def __init__(self, array: Array) -> None:
        self.array = array  # keeps the memory
        interface = array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}


def tensor_of(array: Array) -> Tensor:
    """A tensor on the array's own memory."""
    return torch.from_numpy(array if array.flags.writeable else np.asarray(_Writable(array)))


@functools.cache
def _thread_limits() -> tuple[Callable[[int], Any], Callable[[int], int] | None] | None:
    """OpenMP's and MKL's calls that limit the calling thread alone; None where this PyTorch has no OpenMP that can be found."""
    folder = Path(torch.__file__).parent / "lib"
    libraries = [path for pattern in ("libgomp*", "libomp*", "libiomp5*") for path in sorted(folder.glob(pattern))]
    if not libraries:
        return None
    try:
        set_openmp = ctypes.CDLL(str(libraries[0])).omp_set_num_threads
        torch_cpu = next(iter(sorted(folder.glob("*torch_cpu.*"))), None)
        set_mkl = getattr(ctypes.CDLL(str(torch_cpu)), "MKL_Set_Num_Threads_Local", None) if torch_cpu else None
    except (OSError, AttributeError):
        return None
    set_openmp.argtypes = [ctypes.c_int]
    set_openmp.restype = None
    if set_mkl is not None:
        set_mkl.argtypes = [ctypes.c_int]
        set_mkl.restype = ctypes.c_int
    return set_openmp, set_mkl


@contextmanager
def limited_threads(count: int) -> Iterator[int]:
    """At most `count` threads for what the calling thread computes inside; other threads are not affected."""
    limits = _thread_limits()
    assert limits is not None  # compile() has checked it
    set_openmp, set_mkl = limits
    before = torch.get_num_threads()  # also lets PyTorch set this thread up, which would undo the limit if it came later
    set_openmp(count)
    mkl_before = set_mkl(count) if set_mkl else 0
    try:
        yield count
    finally:
        set_openmp(before)
        if set_mkl:
            set_mkl(mkl_before)


_PROCESS = os.getpid()


@dataclass(frozen=True)
class TorchExecutable:
    """`program` is a Program, or the same traced."""

    program: Any
    graph: Graph
    device: torch.device
    threads: int | None
    widths: dict[str, int] = field(default_factory=dict)

    def run(self, method: str, arrays: Sequence[Array]) -> list[Array]:
        tensors = [tensor_of(array) for array in arrays]
        return [result.numpy() for result in self.run_tensors(method, tensors, torch.device("cpu"))]

    def run_tensors(self, method: str, tensors: Sequence[Tensor], to: torch.device | None = None) -> list[Tensor]:
        """As `run`, for tensors on any device; results are new memory on the device `to` (this model's, if not given)."""
        to = self.device if to is None else to
        kinds = [node.type for node in self.graph.outputs[method]]
        rows = len(tensors[0])
        with torch.inference_mode(), self._threads() as threads:
            block = self.block_rows(method, threads)
            if rows <= block:
                return _owned(self._call(method, tensors), tensors, to)
            results = [
                torch.empty((rows, *map(int, kind.shape[1:])), dtype=OUTSIDE_DTYPES[kind.dtype], device=to) for kind in kinds
            ]
            for start in range(0, rows, block):
                values = self._call(method, [tensor[start : start + block] for tensor in tensors])
                for result, value in zip(results, values, strict=True):
                    result[start : start + block] = value
        return results

    def block_rows(self, method: str, threads: int) -> int:
        """Rows at a time, such that the intermediate values stay in cache."""
        size = CUDA_BLOCK_BYTES if self.device.type == "cuda" else BLOCK_BYTES * threads
        return max(64, size // max(self.widths[method], 1))

    def _call(self, method: str, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        results = getattr(self.program, entry(method))(*[tensor.to(self.device) for tensor in tensors])
        return results if isinstance(results, tuple) else (results,)

    def _threads(self) -> AbstractContextManager[int]:
        """Yields how many threads there are."""
        if self.device.type != "cpu":
            return nullcontext(1)
        # The threads of OpenMP's pool do not survive a fork: the child would wait for them forever.
        count = self.threads if os.getpid() == _PROCESS else 1
        if count is None or _thread_limits() is None:
            return nullcontext(torch.get_num_threads())
        return limited_threads(count)

    def export(self, path: str) -> None:
        from hbc.compiler.torchscript import export

        export(self.graph, self.device, path)


def _owned(values: Sequence[Tensor], inputs: Sequence[Tensor], to: torch.device) -> list[Tensor]:
    """Contiguous tensors on a device, each with memory of its own and no more than it needs."""
    taken = {tensor.untyped_storage().data_ptr() for tensor in inputs}
    results = []
    for value in values:
        result = value.to(to).contiguous()
        storage = result.untyped_storage()
        if storage.data_ptr() in taken or storage.nbytes() > result.nbytes:
            result = result.clone()
        taken.add(result.untyped_storage().data_ptr())
        results.append(result)
    return results


# --- the compiler ----------------------------------------------------------------------------------------------------


def checked_device(backend: str, options: CompileOptions) -> torch.device:
    """The device asked for. Raises BackendUnavailableError where it is not there, InvalidInputError for options that have no meaning."""
    kind, _, index = options.device.partition(":")
    if kind not in ("cpu", "cuda") or (index and not index.isdigit()) or (kind == "cpu" and index not in ("", "0")):
        reason = f"it has no device {options.device!r}, only 'cpu', 'cuda' and 'cuda:<number>'"
        raise BackendUnavailableError(backend=backend, reason=reason)
    if kind == "cuda" and not torch.cuda.is_available():
        raise BackendUnavailableError(
            backend=backend,
            reason=f"device {options.device!r} is not there: PyTorch {torch.__version__} sees no CUDA GPU",
            advice="Install a PyTorch built for CUDA on a machine with a GPU, or choose device='cpu'.",
        )
    if kind == "cuda" and index and int(index) >= torch.cuda.device_count():
        raise BackendUnavailableError(
            backend=backend, reason=f"device {options.device!r} is not there: PyTorch sees {torch.cuda.device_count()} GPUs"
        )
    if options.threads is not None and kind == "cpu" and _thread_limits() is None:
        raise InvalidInputError(
            found=f"threads={options.threads}",
            expected="none",
            where="threads",
            advice="This PyTorch has one number of threads for the whole process only: call torch.set_num_threads yourself.",
        )
    return torch.device(options.device if kind == "cuda" else "cpu")


class TorchCompiler:
    name = "torch"
    strategies: tuple[str, ...] = ()
    handles_strings = False

    def supports(self, op: Operator) -> bool:
        return type(op) in RULES or isinstance(op, (Input, Constant))

    def choose_strategy(self, op: Operator, options: CompileOptions) -> tuple[str, str]:
        return choose_strategy(op, options)

    def compile(self, graph: Graph, options: CompileOptions) -> TorchExecutable:
        device = checked_device(self.name, options)
        program = Program(graph).to(device).eval()
        return TorchExecutable(
            program, graph, device, options.threads, {name: program.row_bytes(name) for name in graph.outputs}
        )


def choose_strategy(op: Any, options: CompileOptions) -> tuple[str, str]:
    """One of the three strategies that lower to tensor operators, by what was measured on a CPU (2.13, one thread).

    gemm is the fastest for up to 4 rows while its matrices are small (100 trees of depth 5, one row: 89 µs against 145; of 500:
    180 against 155). Otherwise perf_tree_trav is (500 trees of depth 5: 7.5 µs a row against tree_trav's 15; depth 8: 13 against
    25), until padding leaves the cache (200 trees of depth 16: 36 against 20).
    """
    depth, leaves = int(op.depths.max(initial=0)), int(op.leaf_counts.max(initial=1))
    if options.batch_size is not None and options.batch_size <= 4 and op.n_trees * leaves**2 <= 1 << 18:
        return "gemm", f"{options.batch_size} rows a call, and {op.n_trees} trees of at most {leaves} leaves"
    if depth <= 10 or (depth <= 14 and op.n_trees << depth <= 1 << 21):
        return "perf_tree_trav", f"depth {depth}: padding to 2^{depth} leaves a tree costs less than looking up children"
    return "tree_trav", f"depth {depth} is too much for padding"


COMPILER = TorchCompiler()
