"""The loop nests of the operators that are more than one expression an element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm import coupling, nearest, transpose
from hbc.compiler.tvm.along_rows import row_dot
from hbc.compiler.tvm.categories import CategoricalTrees
from hbc.compiler.tvm.codegen import Function, Row, flatten
from hbc.compiler.tvm.dots import RowDot
from hbc.compiler.tvm.expressions import Expr, convert, fused, is_nan, larger, number, smaller
from hbc.compiler.tvm.hashes import hashed_values
from hbc.compiler.tvm.mathematics import FORMATS, FUNCTIONS, TURNS, function, turned
from hbc.compiler.tvm.plan import LIBRARY, elements
from hbc.compiler.tvm.powers import MOST, general_power, table_power
from hbc.compiler.tvm.scan import scannable, tree_scan
from hbc.compiler.tvm.search import rank, take_by_column
from hbc.compiler.tvm.trees import tree_walk
from hbc.compiler.tvm.vectors import any_of, broadcast, store, vector
from hbc.ir.graph import Input, Node
from hbc.ops import columns, functions, tensor
from hbc.ops.coupling import PairwiseCoupling
from hbc.ops.hashed_categories import HashedValues
from hbc.ops.nearest import Ascending, Distances, Smallest
from hbc.ops.tree import TreeEnsemble

PARTIAL_SUMS = 4  # of a sum whose order is free: they hide the latency of an addition, and halve the rounding error


def compute(f: Function, node: Node) -> None:
    """Fill the slot of a value."""
    kernel = KERNELS.get(type(node.op))
    if not elements(node.type):
        return
    if kernel is not None:
        kernel(f, node)
    elif isinstance(node.op, tensor.Take) and not node.inputs[0].type.batched:
        _look_up(f, node)
    elif node in f.plan.columns:
        size = transpose.narrow(f, node.type)
        if size:
            with f.whole_vector():
                transpose.deal(f, node, size, f.plan.columns[node].tolist())
        read = f.own(f.plan.columns[node], "i64")
        with f.each_row(partial=size > 0) as row, f.grid([len(read)]) as (column,):
            f.store(node, column, row, f.value(node, [f.constant(read, "i64", column)], row))
    elif isinstance(node.op, Input) and (size := transpose.narrow(f, node.type)):
        with f.whole_vector():
            transpose.deal(f, node, size, list(range(elements(node.type))))
        _row_by_row(f, node, partial=True)
    elif isinstance(node.op, Input) and (size := transpose.side(f, node.type)):
        with f.whole_vector():
            transpose.take_in(f, node, size)
        _row_by_row(f, node, partial=True)
    elif isinstance(node.op, (Input, *LIBRARY)):
        # A row after the other: the caller's rows lie that way, and library calls must not see rows that are not there.
        _row_by_row(f, node)
    else:
        _at_once(f, node)


def _at_once(f: Function, node: Node) -> None:
    with f.grid(node.type.shape[1:]) as index, f.lane() as lane:
        f.store(node, flatten(index, node.type.shape[1:]), f.row(lane), f.value(node, index, f.row(lane)))


def _row_by_row(f: Function, node: Node, partial: bool = False) -> None:
    with f.each_row(partial) as row, f.grid(node.type.shape[1:]) as index:
        f.store(node, flatten(index, node.type.shape[1:]), row, f.value(node, index, row))


def give_back(f: Function, node: Node, output: Any) -> None:
    """Copy the current vector of rows of a value to the caller's array."""
    size = transpose.narrow(f, node.type)
    if size:
        with f.whole_vector():
            transpose.gather(f, node, output, size)
    elif size := transpose.side(f, node.type):
        with f.whole_vector():
            transpose.give_out(f, node, output, size)
    with f.each_row(partial=size > 0) as row, f.grid(node.type.shape[1:]) as index:
        T.buffer_store(output, f.read(node, index, row), [f.base + row.block, *index])


def require(f: Function, node: Node, failed: Any) -> None:
    """Set a lane of `failed` for a row of the current vector of which a condition is not true."""
    shape = node.type.shape[1:]
    with f.whole_vector(), f.grid(shape) as index, f.lane() as lane:
        missed = tirx.Cast("int32", tirx.Not(f.read(node, index, f.row(lane))))
        T.buffer_store(failed, tirx.bitwise_or(failed[lane], missed), [lane])
    with f.each_row(partial=True) as row, f.grid(shape) as index:
        missed = tirx.Cast("int32", tirx.Not(f.read(node, index, row)))
        T.buffer_store(failed, tirx.bitwise_or(failed[0], missed), [0])


def _function(f: Function, node: Node) -> None:
    """One of mathematics.FUNCTIONS: register by register where there is AVX-512, whose instructions have no other operands."""
    (x,), dtype = node.inputs, node.type.dtype
    if not (f.dialect.llvm and f.dialect.wide) or x not in f.plan.slots:  # a Reshape has no place of its own
        return _at_once(f, node)
    lanes = 512 // FORMATS[dtype].bits
    _register_by_register(f, node, lambda x: function(node.op, x, dtype, f.dialect, lanes))


def _register_by_register(f: Function, node: Node, value: Callable[[Expr], Expr]) -> None:
    """y = value(x), for x that has a place of its own."""
    x, shape, lanes = node.inputs[0], node.type.shape[1:], 512 // FORMATS[node.type.dtype].bits
    with f.grid(shape) as index:
        for first in range(0, f.lanes, lanes):
            row, position = f.row(tirx.const(first, "int64")), flatten(index, shape)
            pool, at = f.place(x, position, row)
            result = value(vector(pool, at, lanes))
            pool, at = f.place(node, position, row)
            store(pool, result, at, lanes)


def _turned(f: Function, node: Node) -> None:
    """Sines and cosines, a vector of rows at a time; where an argument is too large for that, by the C library."""
    (x,), dtype, shape = node.inputs, node.type.dtype, node.type.shape[1:]
    if not f.dialect.llvm:
        return _row_by_row(f, node)
    limit, large = number(TURNS, dtype), f.scratch(f.lanes, "i32")
    store(large, broadcast(tirx.const(0, "int32"), f.lanes), 0, f.lanes)
    with f.grid(shape) as index:
        with f.lane() as lane:
            f.store(node, flatten(index, shape), f.row(lane), turned(node.op, f.read(x, index, f.row(lane)), dtype, f.dialect))
        with f.lane() as lane:
            beyond = tirx.LT(limit, tirx.abs(f.read(x, index, f.row(lane))))
            T.buffer_store(large, tirx.bitwise_or(large[lane], tirx.Cast("int32", beyond)), [lane])
    some = any_of(tirx.LT(broadcast(tirx.const(0, "int32"), f.lanes), vector(large, 0, f.lanes)), f.lanes)
    with T.If(some), T.Then(), f.each_row() as row, f.grid(shape) as index:
        beyond = tirx.LT(limit, tirx.abs(f.read(x, index, row)))
        f.store(node, flatten(index, shape), row, tirx.Select(beyond, f.value(node, index, row), f.read(node, index, row)))


def _power(f: Function, node: Node) -> None:
    """x^y, a vector of rows at a time where there is a fused multiply-add."""
    dtype, shape = node.type.dtype, node.type.shape[1:]
    if not (f.dialect.llvm and f.dialect.fused):
        return _row_by_row(f, node)
    x, y = node.inputs
    constant = f.plan.constants.get(y)
    same = f.dialect.wide and x in f.plan.slots and x.type.shape == node.type.shape
    if same and constant is not None and constant.size == 1 and 0 < abs(constant.item()) < MOST[dtype]:
        return _register_by_register(f, node, lambda x: table_power(x, float(constant.item()), dtype, f.dialect))
    lanes = 8 if f.dialect.wide else f.lanes
    operands = [f.scratch(f.lanes, "f64") for _ in node.inputs]
    with f.grid(shape) as index:
        for source, operand in zip(node.inputs, operands, strict=True):
            with f.lane() as lane:
                value = f.operand(source, node.type, index, f.row(lane))
                T.buffer_store(operand, convert(value, dtype, "f64"), [lane])
        for first in range(0, f.lanes, lanes):
            base, exponent = (vector(operand, first, lanes) for operand in operands)
            if constant is not None and constant.size == 1:
                exponent = broadcast(number(float(constant.item()), "f64"), lanes)
            pool, at = f.place(node, flatten(index, shape), f.row(tirx.const(first, "int64")))
            store(pool, general_power(base, exponent, dtype, f.dialect, lanes), at, lanes)


def _concat(f: Function, node: Node) -> None:
    axis = node.op.axis - 1  # type: ignore[attr-defined]
    start = 0
    for source in node.inputs:
        if not elements(source.type):
            continue
        with f.grid(source.type.shape[1:]) as index, f.lane() as lane:
            at = [i + start if place == axis else i for place, i in enumerate(index)]
            f.store(node, flatten(at, node.type.shape[1:]), f.row(lane), f.read(source, index, f.row(lane)))
        start += int(source.type.shape[axis + 1])


# --- reductions


def _reduce(f: Function, node: Node, combine: Callable[[Expr, Expr], Expr], start: float | None, partial: int = 1) -> None:
    """total = combine(total, element) along an axis: from `start` on, or else from element 0.

    With `partial` > 1 the elements are dealt out to so many totals, combined at the end."""
    (source,) = node.inputs
    axis, shape = node.op.axis - 1, source.type.shape[1:]  # type: ignore[attr-defined]
    size = int(shape[axis])
    dtype = "i8" if source.type.dtype == "bool" else source.type.dtype
    keepdims = len(node.type.shape) == len(source.type.shape)
    partial = partial if size >= 4 * partial else 1

    with f.grid([1 if i == axis else n for i, n in enumerate(shape)]) as outer:
        totals = [f.scratch(f.lanes, dtype) for _ in range(partial)]

        def term(k: Expr, lane: Expr) -> Expr:
            value = f.read(source, [k if i == axis else at for i, at in enumerate(outer)], f.row(lane))
            return tirx.Cast("int8", value) if source.type.dtype == "bool" else value

        def add(total: tirx.Buffer, k: Expr) -> None:
            with f.lane() as lane:
                T.buffer_store(total, combine(total[lane], term(k, lane)), [lane])

        for total in totals:
            with f.lane() as lane:
                T.buffer_store(total, number(start, dtype) if start is not None else term(0, lane), [lane])
        first = 0 if start is not None else 1
        rounds = (size - first) // partial
        if rounds:
            with f.repeat(rounds) as step:
                for i, total in enumerate(totals):
                    add(total, step * partial + (first + i))
        for k in range(first + rounds * partial, size):
            add(totals[0], k)
        while len(totals) > 1:
            for left, right in zip(totals[::2], totals[1::2], strict=True):
                with f.lane() as lane:
                    T.buffer_store(left, combine(left[lane], right[lane]), [lane])
            totals = totals[::2]
        index = outer if keepdims else [at for i, at in enumerate(outer) if i != axis]
        with f.lane() as lane:
            value = convert(totals[0][lane], dtype, "bool") if node.type.dtype == "bool" else totals[0][lane]
            f.store(node, flatten(index, node.type.shape[1:]), f.row(lane), value)


def _sum(f: Function, node: Node) -> None:
    op = node.op
    assert isinstance(op, tensor.Sum)
    if node.type.dtype == "bool":
        return _reduce(f, node, tirx.Max, 0)  # numpy's sum of bools as bool is their disjunction
    return _reduce(f, node, tirx.Add, 0, 1 if op.ordered else PARTIAL_SUMS)


def _max(f: Function, node: Node) -> None:
    _reduce(f, node, lambda a, b: larger(a, b, node.type.dtype, f.dialect), None)


def _min(f: Function, node: Node) -> None:
    _reduce(f, node, lambda a, b: smaller(a, b, node.type.dtype, f.dialect), None)


def _cumsum(f: Function, node: Node) -> None:
    (source,) = node.inputs
    axis, shape = node.op.axis - 1, source.type.shape[1:]  # type: ignore[attr-defined]
    with f.grid([1 if i == axis else n for i, n in enumerate(shape)]) as outer:
        total = f.scratch(f.lanes, node.type.dtype)
        with f.lane() as lane:
            T.buffer_store(total, number(0, node.type.dtype), [lane])
        with f.repeat(int(shape[axis])) as k:
            index = [k if i == axis else at for i, at in enumerate(outer)]
            with f.lane() as lane:
                T.buffer_store(total, total[lane] + f.read(source, index, f.row(lane)), [lane])
            with f.lane() as lane:
                f.store(node, flatten(index, shape), f.row(lane), total[lane])


def _argmax(f: Function, node: Node) -> None:
    (source,) = node.inputs
    axis, shape = node.op.axis - 1, source.type.shape[1:]  # type: ignore[attr-defined]
    dtype = "i8" if source.type.dtype == "bool" else source.type.dtype

    with f.grid([1 if i == axis else n for i, n in enumerate(shape)]) as outer:
        best, place = f.scratch(f.lanes, dtype), f.scratch(f.lanes, "i64")

        def term(k: Expr, lane: Expr) -> Expr:
            value = f.read(source, [k if i == axis else at for i, at in enumerate(outer)], f.row(lane))
            return tirx.Cast("int8", value) if source.type.dtype == "bool" else value

        def beats(x: Expr, best: Expr) -> Expr:
            above = tirx.LT(best, x)
            return tirx.Or(above, tirx.And(is_nan(x), tirx.EQ(best, best))) if source.type.is_float else above

        with f.lane() as lane:
            T.buffer_store(best, term(0, lane), [lane])
        with f.lane() as lane:
            T.buffer_store(place, tirx.const(0, "int64"), [lane])
        with T.serial(tirx.const(1, "int64"), tirx.const(int(shape[axis]), "int64")) as k:
            # The candidate is stored, since it is compared and then kept.
            candidate = f.scratch(f.lanes, dtype)
            with f.lane() as lane:
                T.buffer_store(candidate, term(k, lane), [lane])
            with f.lane() as lane:
                T.buffer_store(place, tirx.Select(beats(candidate[lane], best[lane]), k, place[lane]), [lane])
            with f.lane() as lane:
                T.buffer_store(best, tirx.Select(beats(candidate[lane], best[lane]), candidate[lane], best[lane]), [lane])
        index = [at for i, at in enumerate(outer) if i != axis]
        with f.lane() as lane:
            f.store(node, flatten(index, node.type.shape[1:]), f.row(lane), place[lane])


# --- products


def _matmul(f: Function, node: Node) -> None:
    x, w = node.inputs
    weights = f.plan.constants[w]
    _product(f, node, weights[None], lambda block, i, row: f.read(x, [i], row))


def _block_matmul(f: Function, node: Node) -> None:
    x, w = node.inputs
    _product(f, node, f.plan.constants[w], lambda block, i, row: f.read(x, [block, i], row))


def _product(f: Function, node: Node, weights: np.ndarray, x: Callable[[Expr, Expr, Row], Expr]) -> None:
    """y[b, k] = Σ_i x(b, i) · weights[b, i, k]: a tile of columns k for a vector of rows stays in registers. Each column has memory of its
    own: that of a whole tile is too much for the stack, and takes a call for every vector of rows (4 × 4 elements of float64: 3.4 instead
    of 1.6 ns a row, 20 × 3: 7.8 instead of 5.7)."""
    blocks, inner, width = weights.shape
    dtype = node.type.dtype
    tile = min(f.dialect.tile(dtype), max(width, 1))
    tiles = -(-width // tile)
    padded = np.zeros((blocks, inner, tiles * tile), weights.dtype)
    padded[:, :, :width] = weights
    packed = f.own(padded.reshape(blocks, inner, tiles, tile).transpose(0, 2, 1, 3), dtype)
    with f.grid([blocks, tiles]) as (block, part):
        sums = [f.scratch(f.lanes, dtype) for _ in range(tile)]
        for total in sums:
            with f.lane() as lane:
                T.buffer_store(total, number(0, dtype), [lane])
        if inner:
            with f.repeat(inner) as i:
                for k, total in enumerate(sums):
                    with f.lane() as lane:
                        weight = f.constant(packed, dtype, ((block * tiles + part) * inner + i) * tile + k)
                        T.buffer_store(total, fused(x(block, i, f.row(lane)), weight, total[lane], dtype, f.dialect), [lane])
        for k in range(tile):
            column = part * tile + k

            def put(k: int = k, column: Expr = column) -> None:
                with f.lane() as lane:
                    f.store(node, block * width + column, f.row(lane), sums[k][lane])

            if width % tile:
                with T.If(tirx.LT(column, tirx.const(width, "int64"))), T.Then():
                    put()
            else:
                put()


# --- look-ups


def _look_up(f: Function, node: Node) -> None:
    """Rows of a table chosen by every row's indices."""
    table, indices = node.inputs
    array = f.plan.constants[table]
    count = len(indices.type.shape) - 1
    with f.each_row() as row, f.grid(node.type.shape[1:]) as index:
        place = tirx.Cast("int64", f.read(indices, index[:count], row))
        position = place * int(np.prod(array.shape[1:], dtype=np.int64)) + flatten(index[count:], array.shape[1:])
        value = f.constant(array, node.type.dtype, position)
        f.store(node, flatten(index, node.type.shape[1:]), row, value)


def _take_along(f: Function, node: Node) -> None:
    x, indices = node.inputs
    with f.each_row() as row, f.grid(node.type.shape[1:]) as index:
        place = tirx.Cast("int64", f.read(indices, index, row))
        f.store(node, index[0], row, f.read(x, [place], row))


def _trees(f: Function, node: Node) -> None:
    """A scan where it was asked for and is exact enough; leaf numbers and exact sums are always walked for."""
    op = node.op
    assert isinstance(op, TreeEnsemble)
    (tree_scan if op.strategy == "scan" and scannable(op) else tree_walk)(f, node)


KERNELS: dict[type, Callable[[Function, Node], None]] = {
    **{kind: _function for kind in FUNCTIONS if isinstance(kind, type)},
    functions.Function: _function,
    tensor.Sin: _turned,
    tensor.Cos: _turned,
    tensor.Pow: _power,
    tensor.Concat: _concat,
    tensor.Sum: _sum,
    tensor.Max: _max,
    tensor.Min: _min,
    tensor.ArgMax: _argmax,
    tensor.CumSum: _cumsum,
    tensor.MatMul: _matmul,
    tensor.BlockMatMul: _block_matmul,
    columns.TakeByColumn: take_by_column,
    tensor.TakeAlong: _take_along,
    columns.Rank: rank,
    HashedValues: hashed_values,
    RowDot: row_dot,
    Distances: nearest.distances,
    Smallest: nearest.smallest,
    Ascending: nearest.ascending,
    PairwiseCoupling: coupling.coupling,
    TreeEnsemble: _trees,
    CategoricalTrees: _trees,
}
