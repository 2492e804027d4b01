"""What the loop nests of one function need to read and write values: loops over rows, memory, and the model as data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from typing import Any, NamedTuple, TypeVar

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.nest.model_data import ModelData, Tables, aligned
from hbc.compiler.tvm.nest.schedule import Schedule
from hbc.compiler.tvm.plan.operators import emission
from hbc.compiler.tvm.plan.plan import Never, Plan
from hbc.compiler.tvm.plan.sizes import STORAGE
from hbc.compiler.tvm.tir.dialect import DTYPES, Dialect, Expr
from hbc.compiler.tvm.tir.expressions import convert
from hbc.compiler.tvm.tir.vectors import store, vector
from hbc.ir.graph import Input, Node, Operator
from hbc.ir.types import NUMPY_DTYPES, Array, TensorType
from hbc.ops import tensor

Made = TypeVar("Made")


class Row(NamedTuple):
    """A row by its number in the block, and in the current vector if there is one."""

    block: Expr
    lane: Expr = None


class FunctionBuilder:
    """A TIR function under construction: its arguments, its memory, and the model as data. `Block` and `Chunk` add the rows that the code
    is about, inside of the loops over them."""

    def __init__(self, plan: Plan, dialect: Dialect, made_once: dict[Any, Any], schedule: Schedule) -> None:
        self.plan, self.dialect, self.schedule = plan, dialect, schedule
        self.made_once = made_once  # what operators were turned into, shared by all methods
        self.lanes = schedule.lanes
        self.block = schedule.rows_of_block(plan)
        self.tables = Tables()
        self.models: list[ModelData] = []  # one for every ensemble of trees
        self.data: Tables | ModelData = self.tables  # where `constant` reads
        self.keep: list[Array] = []  # arrays made on the way, whose identity `tables` relies on
        self.pools: dict[tuple[str, bool], Any] = {}

    @contextmanager
    def each_block(self, first: Expr, end: Expr) -> Iterator[Block]:
        """The loop over the blocks of the rows from `first` to `end`."""
        with self.schedule.blocks(first, end, self.block) as (base, rows):
            yield Block(self, base, rows)

    # --- loops and memory

    @contextmanager
    def grid(self, shape: Sequence[Any]) -> Iterator[list[Expr]]:
        """Loops over the axes of a value without the rows."""
        with ExitStack() as stack:
            yield [
                stack.enter_context(T.serial(tirx.const(0, "int64"), tirx.const(int(size), "int64"))) if size != 1 else 0
                for size in shape
            ]

    @contextmanager
    def repeat(self, count: Expr) -> Iterator[Expr]:
        """A loop of so many rounds: an int, or the code's own number (`size`)."""
        with T.serial(tirx.const(0, "int64"), tirx.const(count, "int64") if isinstance(count, int) else count) as index:
            yield index

    def scratch(self, size: int, dtype: str) -> Any:
        """A few values that stay in registers: all indices must be constants or vector lanes.

        For LLVM, TVM puts up to 1 KB of scope "global" on the stack; memory of scope "local" it takes from a pool, with a call at
        every round of the loops around it. Single values are a fifth faster on the stack (walks 3.0 to 2.5 µs a row). But LLVM takes
        a set of vectors there to pieces (scans of 31 leaves 0.29 to 0.41 µs a row, of 200 leaves 1.2 to 2.1), and from the pool
        keeps them in registers as long as a loop lasts.
        """
        few = size * NUMPY_DTYPES[dtype].itemsize < 256
        return T.alloc_buffer((size,), DTYPES[dtype], scope=self.schedule.scope if few else "local")

    # --- the model as data

    def size(self, value: int) -> Expr:
        """A number of the model, i64: of an ensemble the code reads it, elsewhere it is a constant."""
        return self.data.number(int(value)) if isinstance(self.data, ModelData) else tirx.const(int(value), "int64")

    def number(self, value: float) -> Expr:
        """The same for an f64."""
        return (
            self.data.number(float(value), "f64") if isinstance(self.data, ModelData) else tirx.const(float(value), "float64")
        )

    def once(self, pack: Callable[..., Made], op: Operator, *made: Any) -> Made:
        """pack(op, *made), made once for all methods of the graph, so that they share its arrays; `made` follows from op."""
        key = (pack, op)
        if key not in self.made_once:
            self.made_once[key] = pack(op, *made)
        result: Made = self.made_once[key]
        return result

    def constant(self, array: Array, dtype: str, position: Expr) -> Expr:
        """One element of a constant array, by its position in C order."""
        storage = STORAGE.get(dtype, dtype)
        value = self.data.elements(array, storage, position)
        return convert(value, storage, "bool") if dtype == "bool" else value

    def constants(self, array: Array, dtype: str, start: Expr, lanes: int) -> Expr:
        """Consecutive elements of a constant array, as a vector."""
        return self.data.elements(array, dtype, start, lanes)

    def own(self, array: Array, dtype: str) -> Array:
        """An array made by the compiler, to be read by `constant`."""
        storage = STORAGE.get(dtype, dtype)
        if isinstance(self.data, ModelData):
            copy = np.ascontiguousarray(array, NUMPY_DTYPES[storage])  # it is copied to its place later
        else:
            copy = aligned(array.size, storage).reshape(array.shape)
            copy[...] = array
        self.keep.append(copy)
        return copy


class Block(FunctionBuilder):
    """The code for one block of rows."""

    def __init__(self, function: FunctionBuilder, base: Expr, rows: Expr) -> None:
        vars(self).update(vars(function))  # the same tables, models and memory
        self.base, self.rows = base, rows  # the first row, and how many there are
        self.arguments: dict[Node, Any] = {}  # the caller's arrays

    @contextmanager
    def each_chunk(self, part: str = "all") -> Iterator[Chunk]:
        """The rows of the block, a vector at a time. The last vector may reach beyond the block's rows: what it finds there is
        computed with, and read by nobody. `part`: the vectors that are "full" only, or the "rest" only."""
        with self.schedule.chunks(self.rows, part) as (start, count):
            yield Chunk(self, start, count)

    @contextmanager
    def ensemble(self) -> Iterator[Block]:
        """Code for an ensemble of trees, which is the same for all ensembles that the same way of computing fits.

        In here `constant` and `constants` read from the ensemble's own argument, at places that the code looks up once a call;
        `size` and `number` are looked up likewise. For two ensembles to share compiled code, whatever else depends on
        the model must come from few classes: Python ints and floats in expressions, bounds of Python loops, the sizes of
        `T.alloc_buffer`, `if`s. So write

            with f.repeat(f.size(groups)) as group: …          # not f.repeat(groups)
            plane * f.block + row                              # f.block is a class: a power of two
            T.alloc_buffer((round_up(planes, 16) * f.block,))  # few sizes; an Expr would allocate at every call
            tirx.Mul(total, f.number(scale))                   # not tirx.const(scale, "float64")

        and take each `size` once, outside of loops in Python. Unroll (lanes, trees in lockstep) by constants of the schedule.
        """
        inner = copy(self)
        if self.schedule.numbers_before_loops:  # otherwise they would be read by the host, before the launch
            inner.data = ModelData(f"trees{len(self.models) or ''}")
            self.models.append(inner.data)
        yield inner

    # --- reading and writing

    def read(self, node: Node, index: Sequence[Expr], row: Row) -> Expr:
        """One element of a value: `index` along its axes without the rows', `row` within the block."""
        plan = self.plan
        if node in plan.constants:
            return self.constant(plan.constants[node], node.type.dtype, flatten(index, node.type.shape))
        if node in plan.slots:
            return self.load(node, flatten(index, node.type.shape[1:]), row)
        return self.value(node, index, row)

    def value(self, node: Node, index: Sequence[Expr], row: Row) -> Expr:
        """One element as the node's operator gives it from its operands."""
        op = node.op
        if isinstance(op, Input):
            return self.arguments[node][(self.base + row.block, *index)]
        if isinstance(op, Never):
            return tirx.const(False, "bool")
        if isinstance(op, tensor.Reshape):
            source = node.inputs[0]
            return self.read(source, unflatten(flatten(index, node.type.shape[1:]), source.type.shape[1:]), row)
        if isinstance(op, tensor.Take):
            return self._taken(node, op, index, row)
        element = emission(op).element
        if element is not None:
            operands = (self.operand(source, node.type, index, row) for source in node.inputs)
            return element(node, self.dialect, *operands)
        raise NotImplementedError(f"{node!r} has no memory")

    def _taken(self, node: Node, op: tensor.Take, index: Sequence[Expr], row: Row) -> Expr:
        source, chosen = node.inputs[0], self.plan.constants[node.inputs[1]]
        axis, array = op.axis - 1, chosen
        if source in self.plan.columns:
            chosen = np.searchsorted(self.plan.columns[source], chosen)
        along = index[axis : axis + chosen.ndim]
        steps = np.diff(chosen.reshape(-1))
        if chosen.ndim == 1 and (len(steps) == 0 or (steps == steps[0]).all()):
            first, step = int(chosen[0]) if chosen.size else 0, int(steps[0]) if len(steps) else 0
            at: Expr = along[0] * step + first
        else:
            chosen = self.own(chosen, "i64") if array.dtype != np.int64 or source in self.plan.columns else array
            at = self.constant(chosen, "i64", flatten(along, chosen.shape))
        return self.read(source, [*index[:axis], at, *index[axis + chosen.ndim :]], row)

    def operand(self, source: Node, result: TensorType, index: Sequence[Expr], row: Row) -> Expr:
        """The element of an operand that broadcasts to an element of `result`."""
        shape = source.type.shape
        skipped = len(result.shape) - len(shape)
        own = [
            0 if size == 1 or axis + skipped == 0 else index[axis + skipped - 1]
            for axis, size in enumerate(shape)
            if size != "N"
        ]
        return self.read(source, own, row)

    def load(self, node: Node, position: Expr, row: Row) -> Expr:
        pool, at = self.place(node, position, row)
        value = pool[at]
        return convert(value, self.plan.slots[node].dtype, "bool") if node.type.dtype == "bool" else value

    def store(self, node: Node, position: Expr, row: Row, value: Expr) -> None:
        pool, at = self.place(node, position, row)
        if node.type.dtype == "bool":
            value = tirx.Cast(DTYPES[self.plan.slots[node].dtype], value)
        T.buffer_store(pool, value, [at])

    def store_many(self, node: Node, position: Expr, row: Expr, value: Expr, lanes: int) -> None:
        """The same element of consecutive rows of the block, as a vector; the value is a number and shared."""
        slot = self.plan.slots[node]
        store(self.pools[slot.pool], value, (position + slot.offset) * self.block + row, lanes)

    def place(self, node: Node, position: Expr, row: Row) -> tuple[Any, Expr]:
        slot = self.plan.slots[node]
        at = (position + slot.offset) * self.stride(node)
        return self.pools[slot.pool], at + (row.block if slot.shared else row.lane)

    def stride(self, node: Node) -> int:
        """From one column of a value to the next."""
        return self.block if self.plan.slots[node].shared else self.lanes


class Chunk(Block):
    """The code for one vector of rows."""

    def __init__(self, block: Block, start: Expr, count: Expr) -> None:
        vars(self).update(vars(block))
        self.start, self.count = start, count  # the first row, in the block, and how many there are
        self.flags: dict[frozenset[Node], Expr] = {}  # whether some row meets one of these conditions

    def row(self, lane: Expr) -> Row:
        """A row of the current vector."""
        return Row(self.start + lane, lane)

    @contextmanager
    def lane(self) -> Iterator[Expr]:
        """The rows of the current vector, at once."""
        with self.schedule.vector() as lane:
            yield lane

    @contextmanager
    def each_row(self, partial: bool = False) -> Iterator[Row]:
        """The rows of the current vector one after the other, for what must not touch rows that are not there; `partial`: only
        of a vector that is not full."""
        with self.schedule.each_row(self.count, partial) as row:
            yield self.row(row)

    @contextmanager
    def whole_vector(self) -> Iterator[None]:
        """What is done only where the current vector is full. (A loop of one or no round: under an `if`, TVM's lowering spoils
        vectors of indices.)"""
        with T.serial(tirx.const(0, "int64"), tirx.truncdiv(self.count, tirx.const(self.lanes, "int64"))):
            yield

    @contextmanager
    def if_needed(self, node: Node) -> Iterator[None]:
        """The code that computes a value, run only where a row of the current vector has a use for it."""
        why = self.plan.needed.get(node)
        if why is None or self.lanes == 1:
            yield
            return
        if why not in self.flags:
            some = self.scratch(self.lanes, "i32")
            store(some, tirx.Broadcast(tirx.const(0, "int32"), self.lanes), 0, self.lanes)
            for condition in sorted(why, key=self.plan.order.__getitem__):
                with self.grid(condition.type.shape[1:]) as index, self.lane() as lane:
                    met = tirx.Cast("int32", self.read(condition, index, self.row(lane)))
                    T.buffer_store(some, tirx.bitwise_or(some[lane], met), [lane])
            name = f"llvm.vector.reduce.or.v{self.lanes}i32"
            any_row = tirx.call_llvm_pure_intrin("int32", name, vector(some, 0, self.lanes))
            self.flags[why] = T.Bind(tirx.Cast("int64", tirx.LT(tirx.const(0, "int32"), any_row)))
        # A loop of one or no round: under an `if`, TVM's lowering spoils vectors of indices.
        with T.serial(tirx.const(0, "int64"), self.flags[why]):
            yield


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
