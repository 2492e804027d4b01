"""Builds the TIR function of one method of a graph. On a CPU the emitted program looks like this:

    for block in blocks of 256 rows (4,096 where trees are walked or nothing is kept):
        for ensemble in the tree ensembles:        # each at its place among the segments of the plan
            its tree kernel, for the whole block
        for chunk in the block's vectors of 16 rows:
            for value in the stored values:
                its loop nest over columns; each statement computes the 16 rows at once

The values of a block lie column after column, with their rows contiguous. So every statement computes consecutive rows with one vector
instruction, whatever the number of columns. Sums run in order, and a table or a weight is read once for all rows. Intermediates never
leave the cache, and a call allocates nothing but this workspace. Dot products of rows with few outputs (kernels/row_dots.py) and
probabilities of many classes (kernels/row_probabilities.py) go along the columns of each row instead. On a GPU each thread runs the same
statements for one row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as T  # noqa: N812

import hbc.compiler.tvm.kernels
import hbc.compiler.tvm.trees  # noqa: F401 (both register what they compute)
from hbc.compiler.tvm.nest.function import Block, FunctionBuilder
from hbc.compiler.tvm.nest.model_data import Part
from hbc.compiler.tvm.nest.rows import compute, compute_block, give_back, require
from hbc.compiler.tvm.nest.schedule import Schedule
from hbc.compiler.tvm.plan.interface import Interface
from hbc.compiler.tvm.plan.operators import nanoseconds
from hbc.compiler.tvm.plan.plan import MAX_ROWS, Plan
from hbc.compiler.tvm.plan.sizes import elements
from hbc.compiler.tvm.tir.dialect import DTYPES, Dialect, Expr
from hbc.compiler.tvm.tir.vectors import as_vector, once_if, store, vector
from hbc.ir.graph import Node
from hbc.ir.types import NUMPY_DTYPES, Array, TensorType
from hbc.lazy import record
from hbc.ops.tree import TreeEnsemble


@record
class Kernel(Interface):
    """A TIR function with its interface, and the tables that calls pass. `parts`: by the names of the tables that are data of tree
    ensembles, the arrays in them. few_values: see `Plan.few_values`."""

    function: Any
    tables: tuple[Array, ...]
    table_names: tuple[str, ...]
    parts: Mapping[str, tuple[Part, ...]]
    few_values: bool


def build(
    name: str,
    plan: Plan,
    dialect: Dialect,
    made_once: dict[Any, Any],
    schedule: Schedule,
    bounded: bool = False,
    missing: bool = False,
) -> Kernel:
    """The TIR function of a method, with its tables.

    made_once: arrays that all methods of the graph share; this call adds to them. bounded: test the sum of the squares of the input, which
    must be the only one and hold floats. missing: leave NaN out of that sum.
    """
    f = FunctionBuilder(plan, dialect, made_once, schedule)
    arguments = Arguments(plan, schedule, bounded)
    loops = _loops_by_rows(f, arguments, bounded, missing)
    names = {node: node.op.name for node in plan.inputs}  # type: ignore[attr-defined]
    tables = f.tables.joined() | {model.words.name: _shared(model.joined(), made_once) for model in f.models}
    return Kernel(
        function=_function(name, f, arguments, loops),
        inputs=tuple(names.values()),
        tables=tuple(tables.values()),
        table_names=tuple(tables),
        parts={model.words.name: model.parts for model in f.models},
        few_values=plan.few_values,
        outputs=tuple(arguments.type_of(node) for node in plan.outputs),
        rows=max(min(f.block, MAX_ROWS) // arguments.width, 1),
        block=max(f.block // arguments.width, 1),
        cost=cost(plan) * arguments.width,
        bounded=bounded,
        conditions=len(plan.conditions),
        over_bus=schedule.fewest.stages(names.values()),
    )


class Arguments:
    """The arguments of a function other than its tables.

    inputs: the caller's arrays, by node. results: the arrays to fill, by the number of the output; an output without elements has none.
    first, end: the caller's rows to compute. bound: None if nothing is tested. width: the rows of the plan for each row of the caller.
    good: not an argument but memory of the function: 1 as long as all blocks have passed the tests.
    """

    def __init__(self, plan: Plan, schedule: Schedule, bounded: bool) -> None:
        self.plan = plan
        rows = tirx.Var("n", "int64")
        self.inputs = {
            node: _argument(f"x{i}", self.type_of(node), rows, schedule.numbers_before_loops and node not in plan.slots)
            for i, node in enumerate(plan.inputs)
        }
        self.results = {
            i: _argument(f"y{i}", self.type_of(node), rows) for i, node in enumerate(plan.outputs) if elements(node.type)
        }
        self.width = math.prod(int(size) for size in plan.row or ())
        self.first, self.end = tirx.Var("first", "int64"), tirx.Var("end", "int64")
        self.bound = tirx.Var("bound", "float64") if bounded or plan.conditions else None
        self.good = tirx.decl_buffer((1,), "int64", name="good")

    def type_of(self, node: Node) -> TensorType:
        """The type of an input or output as the caller sees it."""
        return node.type if self.plan.row is None else TensorType(node.type.dtype, ("N", *self.plan.row))

    @property
    def flat(self) -> tuple[dict[Node, Any], dict[int, Any]]:
        """(inputs, results) with the rows of the plan."""
        if self.plan.row is None:
            return self.inputs, self.results
        inputs = {node: as_vector(buffer) for node, buffer in self.inputs.items()}
        return inputs, {i: as_vector(buffer) for i, buffer in self.results.items()}


def _loops_by_rows(f: FunctionBuilder, arguments: Arguments, bounded: bool, missing: bool) -> Any:
    """The statement that computes all rows, by the schedule for so many."""
    loops, schedule = _loops(f, arguments, bounded, missing), f.schedule
    while schedule.few is not None:
        few = tirx.LE(arguments.end - arguments.first, tirx.const(schedule.few_rows, "int64"))
        loops = tirx.IfThenElse(few, _loops(f.under(schedule.few), arguments, bounded, missing), loops)
        schedule = schedule.few
    return loops


def _loops(f: FunctionBuilder, arguments: Arguments, bounded: bool, missing: bool) -> Any:
    """The statement that computes all rows: a loop over blocks."""
    plan, schedule, width = f.plan, f.schedule, arguments.width
    span = (arguments.first, arguments.end) if width == 1 else (arguments.first * width, arguments.end * width)
    with IRBuilder() as builder, f.each_block(*span) as block, ExitStack() as stack:
        given, results = arguments.flat
        names = {node: node.op.name for node in given}  # type: ignore[attr-defined]
        read = schedule.arguments({names[node]: buffer for node, buffer in given.items()}, block.base, arguments.end)
        block.arguments = {node: read[name] for node, name in names.items()}
        if bounded:
            stack.enter_context(_within(block, arguments.bound, missing, arguments.good))
        for part in ("full", "rest") if plan.few_values and schedule.own_code_for_full_vectors else ("all",):
            _allocate(f)
            failed = _none_failed(f) if plan.conditions else None
            for number, segment in enumerate(plan.segments):
                if failed is not None and number == plan.before:
                    stack.enter_context(_unless(block, failed, arguments.bound, arguments.good))
                _segment(block, part, segment, results, failed)
    return builder.get()


def _allocate(f: FunctionBuilder) -> None:
    """Allocate the pools of the plan."""
    for (dtype, shared), columns in f.plan.pools.items():
        size = columns * (f.block if shared else f.lanes)
        f.pools[dtype, shared] = T.alloc_buffer(
            (size,), DTYPES[dtype], scope=f.schedule.value_scope or f.schedule.scope, layout=None
        )


def _none_failed(f: FunctionBuilder) -> Any:
    """Memory that has a lane for each row of a vector, all 0: no row has failed a condition."""
    failed = f.scratch(f.lanes, "i32")
    store(failed, tirx.Broadcast(tirx.const(0, "int32"), f.lanes), 0, f.lanes)
    return failed


def _segment(block: Block, part: str, segment: tuple[Node, ...], results: dict[int, Any], failed: Any) -> None:
    """Compute the values of a segment, test its conditions, and copy its outputs to the caller's arrays."""
    plan = block.plan
    if isinstance(segment[0].op, TreeEnsemble):
        with block.ensemble() as trees:
            compute_block(trees, segment[0])
    with block.each_chunk(part) as chunk:
        for node in segment:
            if not isinstance(node.op, TreeEnsemble):
                with chunk.if_needed(node):
                    compute(chunk, node)
        for node in plan.conditions:
            if node in segment:
                require(chunk, node, failed)
        with block.schedule.writes():
            for i, result in results.items():
                if plan.outputs[i] in segment:
                    give_back(chunk, plan.outputs[i], result)


def _function(name: str, f: FunctionBuilder, arguments: Arguments, loops: Any) -> Any:
    """The TIR function of the loops. Before them it reads the numbers of the ensembles; after them it returns `good` if there are tests."""
    buffers = [*f.tables.buffers.values(), *(model.words for model in f.models)]
    parameters = [*arguments.inputs.values(), *buffers, *arguments.results.values(), arguments.first, arguments.end]
    body = [*(statement for model in f.models for statement in model.prelude()), loops]
    if arguments.bound is not None:
        parameters.append(arguments.bound)
        good, one = arguments.good, tirx.const(1, "int64")
        body = [tirx.AllocBuffer(good), tirx.BufferStore(good, one, [0]), *body, tirx.Return(good[0])]
    function = tirx.PrimFunc(parameters, tirx.SeqStmt(body) if len(body) > 1 else body[0])
    return function.with_attr("tirx.noalias", True).with_attr("global_symbol", name)


def _shared(data: Array, made_once: dict[Any, Any]) -> Array:
    """An array equal to an ensemble's data: that of another method of the graph if there is one, else the data itself."""
    known: list[Array] = made_once.setdefault("data", [])
    for other in known:
        if np.array_equal(other, data):
            return other
    known.append(data)
    return data


def _argument(name: str, kind: TensorType, rows: Expr, trees: bool = False) -> Any:
    """The buffer of one of the caller's arrays, aligned to its element only, since numpy promises no more. `trees`: only an ensemble
    reads it. Its columns are data there, so the number of columns is read from the call and not part of the code."""
    shape = [rows if size == "N" else int(size) for size in kind.shape]
    if trees and len(shape) == 2:
        shape[1] = tirx.Var(f"{name}_columns", "int64")
    alignment = NUMPY_DTYPES[kind.dtype].itemsize
    return tirx.decl_buffer(shape, DTYPES[kind.dtype], name=name, data_alignment=alignment)


@contextmanager
def _unless(f: Block, failed: Any, bound: Expr, good: Any) -> Iterator[None]:
    """Runs the rest of a block's code only if no row of it failed, or if the bound is NaN. Sets good[0] to 0 otherwise."""
    some = tirx.call_llvm_pure_intrin("int32", f"llvm.vector.reduce.or.v{f.lanes}i32", vector(failed, 0, f.lanes))
    fits = T.Bind(tirx.Cast("int64", tirx.Or(tirx.EQ(some, tirx.const(0, "int32")), tirx.isnan(bound))))
    T.buffer_store(good, tirx.Mul(good[0], fits), [0])
    with once_if(fits):
        yield


SQUARES = 16  # the caller's values that are squared at once


@contextmanager
def _within(f: Block, bound: Expr, missing: bool, good: Any) -> Iterator[None]:
    """Runs the code of a block only if the sum of the squares of its inputs is at most `bound`, or if `bound` is NaN. Sets good[0] to 0
    otherwise. `missing`: NaN is left out of the sum. The sum is the cheapest test for NaN, infinities and values that are too large."""
    ((node, argument),) = f.arguments.items()
    dtype = node.type.dtype
    width = argument.shape[1] if len(argument.shape) == 2 else 1
    values = as_vector(argument)
    start, count = T.Bind(f.base * width), T.Bind(f.rows * width)
    vectors = T.Bind(tirx.truncdiv(count, tirx.const(SQUARES, "int64")))
    sums, rest = f.scratch(SQUARES, dtype), f.scratch(1, dtype)
    zero = tirx.const(0, DTYPES[dtype])
    zeros = tirx.Broadcast(zero, SQUARES)
    store(sums, zeros, 0, SQUARES)
    T.buffer_store(rest, zero, [0])
    with T.serial(tirx.const(0, "int64"), vectors) as i:
        value = T.Bind(vector(values, start + i * SQUARES, SQUARES))
        store(sums, tirx.Add(vector(sums, 0, SQUARES), _square(value, zeros, missing)), 0, SQUARES)
    with T.serial(vectors * SQUARES, count) as i:
        value = T.Bind(values[start + i])
        T.buffer_store(rest, tirx.Add(rest[0], _square(value, zero, missing)), [0])
    half = SQUARES // 2
    while half:
        store(sums, tirx.Add(vector(sums, 0, half), vector(sums, half, half)), 0, half)
        half //= 2
    total = tirx.Cast("float64", tirx.Add(sums[0], rest[0]))
    fits = T.Bind(tirx.Cast("int64", tirx.Or(tirx.LE(total, bound), tirx.isnan(bound))))
    T.buffer_store(good, tirx.Mul(good[0], fits), [0])
    with once_if(fits):
        yield


def _square(value: Expr, zero: Expr, missing: bool) -> Expr:
    """value²; with `missing`, 0 for NaN. TVM's Max gives its second operand unless the first is larger, and NaN is not."""
    square = tirx.Mul(value, value)
    return tirx.Max(square, zero) if missing else square


def cost(plan: Plan) -> float:
    """Roughly the nanoseconds that a row takes."""
    return max(sum((nanoseconds(node) for node in plan.steps), 0.0), 1.0)
