"""The builder that loop nests are written into. It makes the loops over rows, reads and writes values, allocates memory, and holds the
model as data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from copy import copy
from typing import Any, NamedTuple, TypeVar

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.memory import aligned
from hbc.compiler.tvm.nest.model_data import ModelData, Tables
from hbc.compiler.tvm.nest.schedule import Schedule
from hbc.compiler.tvm.plan.operators import emission
from hbc.compiler.tvm.plan.plan import ROWS_IN_STATEMENT, Never, Plan, Repeated
from hbc.compiler.tvm.plan.sizes import STORAGE
from hbc.compiler.tvm.plan.tree_kernels import has_many_sums
from hbc.compiler.tvm.tir.dialect import DTYPES, Dialect, Expr
from hbc.compiler.tvm.tir.expressions import convert
from hbc.compiler.tvm.tir.vectors import as_vector, many, once_if, store, vector
from hbc.ir.graph import Input, Node, Operator
from hbc.ir.types import NUMPY_DTYPES, Array, TensorType, dtype_name
from hbc.ops import tensor

Made = TypeVar("Made")

FEW_ROWS = 8
"""The most rows of a block whose columns lie side by side (`side_by_side`). Code may write so many rows at once, though there are fewer."""


class Row(NamedTuple):
    """A row: its number in the block, and its number in the current vector of rows (`lane`) if there is one."""

    block: Expr
    lane: Expr = None


class CallersArray(NamedTuple):
    """An array [N, F] of the caller, whose numbers code reads in runs. dtype: that of what is read, which may not be the array's own."""

    array: Any
    dtype: str

    @property
    def width(self) -> Expr:
        """The numbers of a row."""
        return self.array.shape[1]

    @property
    def bytes(self) -> int:
        """The size of a number of the array."""
        return int(np.dtype(self.array.dtype).itemsize)

    def runs(self) -> Callable[[Expr, int], Expr]:
        """(place in C order, how many) → consecutive numbers as a vector. TVM keeps a run whole only if it begins at a loop variable."""
        flat, dtype = as_vector(self.array), DTYPES[self.dtype]

        def run(place: Expr, lanes: int) -> Expr:
            numbers = vector(flat, place, lanes)
            return numbers if self.array.dtype == dtype else tirx.Cast(many(dtype, lanes), numbers)

        return run


class FunctionBuilder:
    """Builds one TIR function: its memory, its tables, and the model as data.

    Inside the loop over blocks of rows a `Block` takes its place, inside the loop over vectors of rows a `Chunk`. They know the rows that
    the code computes.
    """

    def __init__(self, plan: Plan, dialect: Dialect, made_once: dict[Any, Any], schedule: Schedule) -> None:
        self.plan, self.dialect, self.schedule = plan, dialect, schedule
        self.made_once = made_once  # the results of `once`, which all methods of the graph share
        self.lanes = schedule.lanes
        self.block = schedule.rows_of_block(plan)
        self.tables = Tables()
        self.models: list[ModelData] = []  # one for each tree ensemble
        self.data: Tables | ModelData = self.tables  # where `constant`, `size` and `number` read
        self.keep: list[Array] = []  # the arrays of `own`: `tables` knows arrays by identity, so they must stay alive
        self.pools: dict[tuple[str, bool], Any] = {}  # the memory of the pools of the plan
        self.side_by_side = {node for node in plan.slots if has_many_sums(node, schedule.tree_kernels)}
        """Values whose columns lie side by side where a block has few rows. Else each would be in cache lines of its own."""

    def under(self, schedule: Schedule) -> FunctionBuilder:
        """A builder of the same function, with the same tables, for code of another schedule."""
        other = copy(self)
        other.schedule, other.lanes, other.block, other.pools = schedule, schedule.lanes, schedule.rows_of_block(self.plan), {}
        return other

    @contextmanager
    def each_block(self, first: Expr, end: Expr) -> Iterator[Block]:
        """Loop over the blocks of the rows from `first` to `end`."""
        with self.schedule.blocks(first, end, self.block) as (base, rows):
            yield Block(self, base, rows)

    # --- loops and memory

    def grid(self, shape: Sequence[Any]) -> AbstractContextManager[list[Expr]]:
        """Loop over the axes of a shape without rows. Yields the index of each axis; 0 for an axis of size 1."""
        return self.schedule.grid([int(size) for size in shape])

    @contextmanager
    def repeat(self, count: Expr) -> Iterator[Expr]:
        """Loop `count` times. Yields the number of the round. count: an int, or an expression (see `size`)."""
        with T.serial(tirx.const(0, "int64"), tirx.const(count, "int64") if isinstance(count, int) else count) as index:
            yield index

    def scratch(self, size: int, dtype: str) -> Any:
        """Memory for a few values that LLVM keeps in registers. All indices must be constants or vector lanes.

        TVM puts up to 1 KB of scope "global" on the stack. Memory of scope "local" comes from a pool, by a call in every round of the
        loops around it. Single values are a fifth faster on the stack: walks take 2.5 µs a row instead of 3.0. Sets of vectors are faster
        from the pool, where LLVM keeps them in registers as long as a loop lasts. On the stack it takes them apart: scans of 31 leaves
        take 0.41 µs a row instead of 0.29, scans of 200 leaves 2.1 instead of 1.2.
        """
        few = size * NUMPY_DTYPES[dtype].itemsize < 256
        return T.alloc_buffer((size,), DTYPES[dtype], scope=self.schedule.scope if few else "local")

    # --- the model as data

    def size(self, value: int) -> Expr:
        """A number of the model, i64. In the code of an ensemble it is read from the ensemble's data; elsewhere it is a constant."""
        return self.data.number(int(value)) if isinstance(self.data, ModelData) else tirx.const(int(value), "int64")

    def number(self, value: float) -> Expr:
        """The same as `size` for an f64."""
        return (
            self.data.number(float(value), "f64") if isinstance(self.data, ModelData) else tirx.const(float(value), "float64")
        )

    def once(self, pack: Callable[..., Made], op: Operator, *made: Any) -> Made:
        """pack(op, *made). It is computed once for all methods of the graph, so that they share its arrays. `made` must follow from op."""
        key = (pack, op)
        if key not in self.made_once:
            self.made_once[key] = pack(op, *made)
        result: Made = self.made_once[key]
        return result

    def constant(self, array: Array, dtype: str, position: Expr) -> Expr:
        """The element of a constant array at a position in C order."""
        storage = STORAGE.get(dtype, dtype)
        value = self.data.elements(array, storage, position)
        return convert(value, storage, "bool") if dtype == "bool" else value

    def constants(self, array: Array, dtype: str, start: Expr, lanes: int) -> Expr:
        """Consecutive elements of a constant array, as a vector."""
        return self.data.elements(array, dtype, start, lanes)

    def own(self, array: Array, dtype: str) -> Array:
        """An array that the compiler made, in its storage dtype: in this form `constant` and `constants` read it."""
        storage = STORAGE.get(dtype, dtype)
        if isinstance(self.data, ModelData):
            copy = np.ascontiguousarray(array, NUMPY_DTYPES[storage])  # `ModelData.joined` copies it to its place
        else:
            copy = aligned(array.size, storage).reshape(array.shape)
            copy[...] = array
        self.keep.append(copy)
        return copy


class Block(FunctionBuilder):
    """Builds the code for one block of rows."""

    def __init__(self, function: FunctionBuilder, base: Expr, rows: Expr) -> None:
        vars(self).update(vars(function))  # the same tables, models and memory
        self.base, self.rows = base, rows  # the first row, and how many there are
        self.step: Expr = self.block  # from one output of `side_by_side` to the next
        if self.side_by_side:
            one, few, block = (tirx.const(value, "int64") for value in (1, FEW_ROWS, self.block))
            several = tirx.Select(tirx.LE(rows, few), few, block)
            self.step = T.Bind(tirx.Select(tirx.EQ(rows, one), one, several))
        self.arguments: dict[Node, Any] = {}  # the caller's arrays

    def beginning(self, rows: Expr) -> Block:
        """The block's first `rows` rows, as a block."""
        other = copy(self)
        other.rows = rows
        return other

    def callers_array(self, x: Node) -> CallersArray | None:
        """The caller's array whose numbers are those of x, as they stand or converted. None: x is computed in another way."""
        source = x.inputs[0] if isinstance(x.op, tensor.Cast) and x not in self.plan.slots else x
        if source not in self.arguments or "bool" in (source.type.dtype, x.type.dtype):
            return None
        return CallersArray(self.arguments[source], x.type.dtype)

    @contextmanager
    def each_chunk(self, part: str = "all") -> Iterator[Chunk]:
        """Loop over the rows of the block, a vector at a time. The last vector may reach beyond the rows of the block. The code then
        computes with whatever stands there, and nobody reads the results. `part`: "all" vectors, the "full" ones, or the "rest"."""
        with self.schedule.chunks(self.rows, part) as (start, count):
            yield Chunk(self, start, count, part)

    @contextmanager
    def ensemble(self) -> Iterator[Block]:
        """Build code for a tree ensemble that other ensembles of the same kind can share.

        In here `constant` and `constants` read from an argument of the ensemble's own, at places that the code looks up once a call.
        `size` and `number` are looked up there too. Two ensembles share compiled code only if everything else in it is equal. So
        whatever else depends on the model must have few possible values: Python ints and floats in expressions, bounds of Python loops,
        the sizes of `T.alloc_buffer`, conditions of Python `if`s. Write

            with f.repeat(f.size(groups)) as group: …          # not f.repeat(groups)
            plane * f.block + row                              # f.block has few values: powers of two
            T.alloc_buffer((round_up(planes, 16) * f.block,))  # few sizes; an Expr would allocate at every call
            tirx.Mul(total, f.number(scale))                   # not tirx.const(scale, "float64")

        and take each `size` once, outside of Python loops. Unroll by constants of the schedule (lanes, trees in lockstep).
        """
        inner = copy(self)
        if self.schedule.numbers_before_loops:  # on a GPU the host would read them, before the launch
            inner.data = ModelData(f"trees{len(self.models) or ''}")
            self.models.append(inner.data)
        yield inner

    # --- reading and writing

    def read(self, node: Node, index: Sequence[Expr], row: Row) -> Expr:
        """One element of a value: of a constant array, from memory, or computed here. index: along its axes without the rows."""
        plan = self.plan
        if node in plan.constants:
            return self.constant(plan.constants[node], node.type.dtype, flatten(index, node.type.shape))
        if node in plan.slots:
            return self.load(node, flatten(index, node.type.shape[1:]), row)
        return self.value(node, index, row)

    def value(self, node: Node, index: Sequence[Expr], row: Row) -> Expr:
        """One element of a value, computed from its operands. Raises NotImplementedError if the operator needs loops of its own."""
        op = node.op
        if isinstance(op, Input):
            return self.arguments[node][(self.base + row.block, *index)]
        if isinstance(op, Never):
            return tirx.const(False, "bool")
        if isinstance(op, Repeated):
            return self._repeated(op, row)
        if isinstance(op, tensor.Reshape):
            source = node.inputs[0]
            return self.read(source, unflatten(flatten(index, node.type.shape[1:]), source.type.shape[1:]), row)
        if isinstance(op, tensor.Take):
            return self._taken(node, op, index, row)
        if isinstance(op, tensor.Concat):
            return self._part(node, op, index, row)
        element = emission(op).element
        if element is not None:
            operands = (self.operand(source, node.type, index, row) for source in node.inputs)
            return element(node, self.dialect, *operands)
        raise NotImplementedError(f"{node!r} needs loops of its own, but the plan gives it no memory")

    def _repeated(self, op: Repeated, row: Row) -> Expr:
        """One element of a `Repeated`. The table is long enough for a vector that begins anywhere in it."""
        width, array = op.value.size, self.once(_wrapped, op)
        if ROWS_IN_STATEMENT % width == 0:
            first: Expr = 0
        else:
            assert isinstance(self, Chunk)
            first = tirx.truncmod(self.base + self.start, tirx.const(width, "int64"))
        return self.constant(array, dtype_name(op.value.dtype), first + row.lane)

    def _taken(self, node: Node, op: tensor.Take, index: Sequence[Expr], row: Row) -> Expr:
        """One element of a `Take`. Places in equal steps are computed; others are read from a table."""
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

    def _part(self, node: Node, op: tensor.Concat, index: Sequence[Expr], row: Row) -> Expr:
        """One element of a `Concat`. Only the operand that has it is computed."""
        axis, start, parts = op.axis - 1, 0, list[tuple[int, Expr]]()
        at = index[axis]
        for source in node.inputs:
            width = int(source.type.shape[op.axis])
            elsewhere = isinstance(at, int) and not start <= at < start + width
            if width and not elsewhere:
                parts.append((start + width, self.read(source, [*index[:axis], at - start, *index[axis + 1 :]], row)))
            start += width
        value = parts[-1][1]
        for end, part in reversed(parts[:-1]):
            value = tirx.if_then_else(tirx.LT(at, tirx.const(end, "int64")), part, value)
        return value

    def operand(self, source: Node, result: TensorType, index: Sequence[Expr], row: Row) -> Expr:
        """The element of an operand that broadcasting pairs with the element `index` of the result."""
        shape = source.type.shape
        skipped = len(result.shape) - len(shape)
        own = [
            0 if size == 1 or axis + skipped == 0 else index[axis + skipped - 1]
            for axis, size in enumerate(shape)
            if size != "N"
        ]
        return self.read(source, own, row)

    def load(self, node: Node, position: Expr, row: Row) -> Expr:
        """One element of a value from its memory. position: in C order, without the rows."""
        pool, at = self.place(node, position, row)
        value = pool[at]
        return convert(value, self.plan.slots[node].dtype, "bool") if node.type.dtype == "bool" else value

    def store(self, node: Node, position: Expr, row: Row, value: Expr) -> None:
        """Write one element of a value to its memory."""
        pool, at = self.place(node, position, row)
        if node.type.dtype == "bool":
            value = tirx.Cast(DTYPES[self.plan.slots[node].dtype], value)
        T.buffer_store(pool, value, [at])

    def store_many(self, node: Node, position: Expr, row: Expr, value: Expr, lanes: int) -> None:
        """Write one element of consecutive rows of the block, given as a vector. For numbers that are stored for the whole block."""
        pool, at = self.place(node, position, Row(row))
        store(pool, value, at, lanes)

    def place(self, node: Node, position: Expr, row: Row) -> tuple[Any, Expr]:
        """(pool, index): where an element of a value lies in memory."""
        slot = self.plan.slots[node]
        apart = node in self.side_by_side
        at = slot.offset * self.block + position * self.step if apart else (position + slot.offset) * self.stride(node)
        return self.pools[slot.pool], at + (row.block if slot.shared else row.lane)

    def stride(self, node: Node) -> Expr:
        """The distance from one column of a value to the next in its pool."""
        if node in self.side_by_side:
            return self.step
        return self.block if self.plan.slots[node].shared else self.lanes


class Chunk(Block):
    """Builds the code for one vector of rows."""

    def __init__(self, block: Block, start: Expr, count: Expr, part: str) -> None:
        vars(self).update(vars(block))
        self.start, self.count = start, count  # the first row, in the block, and how many there are
        self.part = part  # of the vectors of the block: "all", the "full" ones, or the "rest", which is one that is not full
        self.flags: dict[frozenset[Node], Expr] = {}  # conditions → whether some row meets one of them

    def row(self, lane: Expr) -> Row:
        """A row of the current vector."""
        return Row(self.start + lane, lane)

    @contextmanager
    def lane(self) -> Iterator[Expr]:
        """Loop over the rows of the current vector, all at once: a vector instruction computes them."""
        with self.schedule.vector() as lane:
            yield lane

    @contextmanager
    def each_row(self, partial: bool = False) -> Iterator[Row]:
        """Loop over the rows of the current vector, one after the other, for code that must not touch rows that don't exist.
        `partial`: only if the vector is not full."""
        with self.schedule.each_row(self.count, partial and self.part != "rest") as row:
            yield self.row(row)

    @contextmanager
    def whole_vector(self) -> Iterator[None]:
        """Run the code only if the current vector is full."""
        none, lanes = tirx.const(0, "int64"), tirx.const(self.lanes, "int64")
        with once_if(none if self.part == "rest" else tirx.truncdiv(self.count, lanes)):
            yield

    @contextmanager
    def if_needed(self, node: Node) -> Iterator[None]:
        """Run the code that computes a value only if a row of the current vector needs the value (`Plan.needed`)."""
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
        with once_if(self.flags[why]):
            yield


def _wrapped(op: Repeated) -> Array:
    """The numbers, and behind them those for a vector of rows again, as `constant` reads them."""
    size, dtype = op.value.size + ROWS_IN_STATEMENT, dtype_name(op.value.dtype)
    array = aligned(size, STORAGE.get(dtype, dtype))
    array[:] = np.resize(op.value, size)
    return array


def flatten(index: Sequence[Expr], shape: Sequence[Any]) -> Expr:
    """The position of an element in C order."""
    position: Expr = 0
    for at, size in zip(index, shape, strict=True):
        position = position * int(size) + at
    return position


def unflatten(position: Expr, shape: Sequence[Any]) -> list[Expr]:
    """The index of the element at a position in C order: the reverse of `flatten`."""
    if isinstance(position, int):
        return [int(i) for i in np.unravel_index(position, [int(size) for size in shape])]
    index: list[Expr] = []
    for size in reversed(shape):
        index.append(0 if size == 1 else tirx.truncmod(position, tirx.const(int(size), "int64")))
        position = tirx.truncdiv(position, tirx.const(int(size), "int64"))
    return index[::-1]
