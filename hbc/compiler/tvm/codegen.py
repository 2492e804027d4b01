"""One method of a graph as one TIR function: a loop over blocks of rows, and inside it a loop nest for every stored value.

The values of a block lie column after column, rows contiguous, so that every statement computes consecutive rows with one vector
instruction, whatever the number of columns; sums run in order, and a table or a weight is read once for all rows. Intermediates
never leave the cache, and a call allocates nothing but this workspace.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.expressions import DTYPES, Dialect, Expr, convert, element
from hbc.compiler.tvm.plan import ELEMENTWISE, LANES, LIBRARY, STORAGE, Plan, elements
from hbc.ir.graph import Input, Node
from hbc.ir.types import NUMPY_DTYPES, Array, TensorType
from hbc.ops import tensor
from hbc.ops.tree import TreeEnsemble

THREADS_PER_BLOCK = 128  # of a CUDA launch


@dataclass
class Tables:
    """The constants of a function: one array of every storage dtype, which the calls pass, so that code does not depend on them."""

    parts: dict[str, list[Array]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    known: dict[tuple[str, int], int] = field(default_factory=dict)

    def add(self, dtype: str, array: Array) -> int:
        """The offset of an array's elements in the table of its storage dtype. The caller keeps the array alive, since its
        identity is its name."""
        key = (dtype, id(array))
        if key not in self.known:
            self.known[key] = self.sizes.get(dtype, 0)
            self.parts.setdefault(dtype, []).append(array)
            # Sixteen elements: every array begins at a vector's boundary.
            self.sizes[dtype] = self.known[key] + -(-array.size // 16) * 16
        return self.known[key]

    def arrays(self) -> dict[str, Array]:
        joined = {}
        for dtype, parts in self.parts.items():
            table = np.zeros(max(self.sizes[dtype], 1), NUMPY_DTYPES[dtype])
            for part in parts:
                offset = self.known[dtype, id(part)]
                table[offset : offset + part.size] = part.reshape(-1)
            joined[dtype] = table
        return joined


class Function:
    """A TIR function under construction: what the loop nests need to read and write values."""

    def __init__(self, plan: Plan, dialect: Dialect, cuda: bool) -> None:
        self.plan, self.dialect, self.cuda = plan, dialect, cuda
        self.lanes = 1 if cuda else LANES
        self.block = 1 if cuda else plan.rows
        self.tables = Tables()
        self.keep: list[Array] = []  # arrays made on the way, whose identity `tables` relies on
        self.buffers: dict[tuple[str, str], Any] = {}  # pools and tables, by dtype
        self.arguments: dict[Node, Any] = {}  # the caller's arrays
        self.base: Expr = None  # the first row of this block
        self.rows: Expr = None  # the number of rows of this block
        self.chunks: Expr = None  # the number of vectors that hold them

    # --- loops

    @contextmanager
    def each_chunk(self) -> Iterator[Expr]:
        """The first row of every vector of rows. The last vector may reach beyond the block's rows: what it finds there is
        computed with, and read by nobody."""
        if self.cuda:
            yield tirx.const(0, "int64")
            return
        with T.serial(tirx.const(0, "int64"), self.chunks) as chunk:
            yield chunk * self.lanes

    @contextmanager
    def lane(self) -> Iterator[Expr]:
        """The rows of a vector, at once."""
        if self.cuda:
            yield tirx.const(0, "int64")
            return
        with T.vectorized(tirx.const(self.lanes, "int64")) as lane:
            yield lane

    @contextmanager
    def vectors(self) -> Iterator[Expr]:
        """All rows of the block, a vector at a time."""
        with self.each_chunk() as start, self.lane() as lane:
            yield start + lane

    @contextmanager
    def each_row(self) -> Iterator[Expr]:
        """The rows of the block one after the other, for what must not touch rows that are not there."""
        if self.cuda:
            yield tirx.const(0, "int64")
            return
        with T.serial(tirx.const(0, "int64"), self.rows) as row:
            yield row

    @contextmanager
    def grid(self, shape: Sequence[Any]) -> Iterator[list[Expr]]:
        """Loops over the axes of a value without the rows."""
        with ExitStack() as stack:
            yield [
                stack.enter_context(T.serial(tirx.const(0, "int64"), tirx.const(int(size), "int64"))) if size != 1 else 0
                for size in shape
            ]

    @contextmanager
    def repeat(self, count: int) -> Iterator[Expr]:
        with T.serial(tirx.const(0, "int64"), tirx.const(count, "int64")) as index:
            yield index

    # --- reading and writing

    def constant(self, array: Array, dtype: str, position: Expr) -> Expr:
        """One element of a constant array, by its position in C order."""
        storage = STORAGE.get(dtype, dtype)
        if ("table", storage) not in self.buffers:
            length = tirx.Var(f"{storage}_size", "int64")
            self.buffers["table", storage] = tirx.decl_buffer((length,), DTYPES[storage], name=f"{storage}_table")
        value = self.buffers["table", storage][position + self.tables.add(storage, array)]
        return convert(value, storage, "bool") if dtype == "bool" else value

    def own(self, array: Array, dtype: str) -> Array:
        """An array made by the compiler, to be read by `constant`."""
        array = np.ascontiguousarray(array, NUMPY_DTYPES[STORAGE.get(dtype, dtype)])
        self.keep.append(array)
        return array

    def read(self, node: Node, index: Sequence[Expr], row: Expr) -> Expr:
        """One element of a value: `index` along its axes without the rows', `row` within the block."""
        plan = self.plan
        if node in plan.constants:
            return self.constant(plan.constants[node], node.type.dtype, flatten(index, node.type.shape))
        if node in plan.slots:
            return self.load(node, flatten(index, node.type.shape[1:]), row)
        return self.value(node, index, row)

    def value(self, node: Node, index: Sequence[Expr], row: Expr) -> Expr:
        """One element as the node's operator gives it from its operands."""
        op = node.op
        if isinstance(op, Input):
            return self.arguments[node][(self.base + row, *index)]
        if isinstance(op, tensor.Reshape):
            source = node.inputs[0]
            return self.read(source, unflatten(flatten(index, node.type.shape[1:]), source.type.shape[1:]), row)
        if isinstance(op, tensor.Take):
            return self._taken(node, op, index, row)
        if isinstance(op, ELEMENTWISE):
            operands = (self.operand(source, node.type, index, row) for source in node.inputs)
            return element(node, self.dialect, *operands)
        raise NotImplementedError(f"{node!r} has no memory")

    def _taken(self, node: Node, op: tensor.Take, index: Sequence[Expr], row: Expr) -> Expr:
        source, chosen = node.inputs[0], self.plan.constants[node.inputs[1]]
        axis = op.axis - 1
        along = index[axis : axis + chosen.ndim]
        steps = np.diff(chosen.reshape(-1))
        if chosen.ndim == 1 and (len(steps) == 0 or (steps == steps[0]).all()):
            first, step = int(chosen[0]) if chosen.size else 0, int(steps[0]) if len(steps) else 0
            at: Expr = along[0] * step + first
        else:
            indices = self.plan.constants[node.inputs[1]]
            at = self.constant(indices, node.inputs[1].type.dtype, flatten(along, chosen.shape))
            at = tirx.Cast("int64", at)
        return self.read(source, [*index[:axis], at, *index[axis + chosen.ndim :]], row)

    def operand(self, source: Node, target: TensorType, index: Sequence[Expr], row: Expr) -> Expr:
        """The element of an operand that broadcasts to an element of `target`."""
        shape = source.type.shape
        skipped = len(target.shape) - len(shape)
        own = [
            0 if size == 1 or axis + skipped == 0 else index[axis + skipped - 1]
            for axis, size in enumerate(shape)
            if size != "N"
        ]
        return self.read(source, own, row)

    def load(self, node: Node, position: Expr, row: Expr) -> Expr:
        slot = self.plan.slots[node]
        value = self.buffers["pool", slot.dtype][(position + slot.offset) * self.block + row]
        return convert(value, slot.dtype, "bool") if node.type.dtype == "bool" else value

    def store(self, node: Node, position: Expr, row: Expr, value: Expr) -> None:
        slot = self.plan.slots[node]
        if node.type.dtype == "bool":
            value = tirx.Cast(DTYPES[slot.dtype], value)
        T.buffer_store(self.buffers["pool", slot.dtype], value, [(position + slot.offset) * self.block + row])

    def scratch(self, size: int, dtype: str) -> Any:
        """A few values that stay in registers: all indices must be constants or vector lanes."""
        return T.alloc_buffer((size,), DTYPES[dtype], scope="local")


def flatten(index: Sequence[Expr], shape: Sequence[Any]) -> Expr:
    position: Expr = 0
    for at, size in zip(index, shape, strict=True):
        position = position * int(size) + at
    return position


def unflatten(position: Expr, shape: Sequence[Any]) -> list[Expr]:
    if isinstance(position, int):
        return [int(i) for i in np.unravel_index(position, [int(size) for size in shape])]
    index: list[Expr] = []
    for size in reversed(shape):
        index.append(0 if size == 1 else tirx.truncmod(position, tirx.const(int(size), "int64")))
        position = tirx.truncdiv(position, tirx.const(int(size), "int64"))
    return index[::-1]


@dataclass(frozen=True)
class Kernel:
    """A TIR function `name(inputs…, tables…, outputs…, first row, end row)`, and the tables that calls pass."""

    function: Any
    inputs: tuple[Node, ...]
    tables: tuple[Array, ...]
    table_names: tuple[str, ...]  # their storage dtypes
    outputs: tuple[TensorType, ...]
    rows: int  # of a block
    cost: float  # a rough number of nanoseconds a row, to decide on threads


def build(name: str, plan: Plan, dialect: Dialect, cuda: bool = False) -> Kernel:
    """The TIR function of a method."""
    from hbc.compiler.tvm.kernels import compute

    f = Function(plan, dialect, cuda)
    rows = tirx.Var("n", "int64")
    f.arguments = {node: _argument(f"x{i}", node.type, rows) for i, node in enumerate(plan.inputs)}
    outputs = [_argument(f"y{i}", node.type, rows) for i, node in enumerate(plan.outputs)]
    first, end = tirx.Var("first", "int64"), tirx.Var("end", "int64")
    with IRBuilder() as builder, _blocks(f, first, end):
        for dtype, columns in plan.pools.items():
            scope = "local" if cuda else "global"
            f.buffers["pool", dtype] = T.alloc_buffer((columns * f.block,), DTYPES[dtype], scope=scope)
        for node in plan.steps:
            compute(f, node)
        for node, output in zip(plan.outputs, outputs, strict=True):
            _return(f, node, output)
    tables = f.tables.arrays()
    parameters = [*f.arguments.values(), *(f.buffers["table", dtype] for dtype in tables), *outputs, first, end]
    function = tirx.PrimFunc(parameters, builder.get())
    function = function.with_attr("tirx.noalias", True).with_attr("global_symbol", name)
    types = tuple(node.type for node in plan.outputs)
    return Kernel(function, plan.inputs, tuple(tables.values()), tuple(tables), types, f.block, cost(plan))


def _argument(name: str, kind: TensorType, rows: Expr) -> Any:
    """The caller's array: numpy aligns no better than to the element."""
    shape = [rows if size == "N" else int(size) for size in kind.shape]
    alignment = NUMPY_DTYPES[kind.dtype].itemsize
    return tirx.decl_buffer(shape, DTYPES[kind.dtype], name=name, data_alignment=alignment)


@contextmanager
def _launch(tag: str, extent: Expr) -> Iterator[Expr]:
    """The threads along one axis of a CUDA launch."""
    index = tirx.Var(tag.replace(".", "_"), "int32")
    axis = tirx.IterVar((tirx.const(0, "int32"), extent), index, tirx.IterVar.ThreadIndex, tag)
    with T.attr(axis, "thread_extent", extent):
        yield index


@contextmanager
def _blocks(f: Function, first: Expr, end: Expr) -> Iterator[None]:
    """The loop over blocks; on a GPU, a thread for every row."""
    if f.cuda:
        size = THREADS_PER_BLOCK
        count = tirx.Cast("int32", tirx.truncdiv(end - first + (size - 1), tirx.const(size, "int64")))
        with _launch("blockIdx.x", count) as block, _launch("threadIdx.x", tirx.const(size, "int32")) as thread:
            f.base = T.Bind(first + tirx.Cast("int64", block) * size + tirx.Cast("int64", thread))
            f.rows = f.chunks = tirx.const(1, "int64")
            with T.If(tirx.LT(f.base, end)), T.Then():
                yield
        return
    blocks = tirx.truncdiv(end - first + (f.block - 1), tirx.const(f.block, "int64"))
    with T.serial(tirx.const(0, "int64"), blocks) as block:
        f.base = T.Bind(first + block * f.block)
        f.rows = T.Bind(tirx.Min(tirx.const(f.block, "int64"), end - f.base))
        f.chunks = T.Bind(tirx.truncdiv(f.rows + (LANES - 1), tirx.const(LANES, "int64")))
        yield


def _return(f: Function, node: Node, output: Any) -> None:
    """Copy a value to the caller's array."""
    with f.each_row() as row, f.grid(node.type.shape[1:]) as index:
        T.buffer_store(output, f.read(node, index, row), [f.base + row, *index])


def cost(plan: Plan) -> float:
    """A rough number of nanoseconds a row."""
    total = 0.0
    for node in plan.steps:
        op, size = node.op, elements(node.type)
        if isinstance(op, LIBRARY):
            total += 8.0 * size
        elif isinstance(op, TreeEnsemble):
            total += 1.5 * float(op.depths.sum())
        elif isinstance(op, (tensor.MatMul, tensor.BlockMatMul)):
            total += 0.03 * size * int(node.inputs[1].type.shape[-2])
        else:
            total += 0.3 * (size + sum(elements(source.type) for source in node.inputs if source.type.batched))
    return total
