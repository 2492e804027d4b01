"""Coordinate descent of NMF (hbc/ops/nmf.py). One compiled function makes a sweep over the coordinates of all rows; all models share it.

    for 64 (or 32) rows, for i in order:
        gradient = gram[i] · y - products[i]                  # for each row
        change[i] = |gradient|, or |min(gradient, 0)| where y[i] is 0
        y[i] = max(y[i] - gradient / gram[i, i], 0)
    total += changes, one after the other                     # rounded exactly as the source's sum

Python repeats the sweep until `total` is small enough.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Any

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.memory import writable
from hbc.compiler.tvm.run.cache import compiled
from hbc.compiler.tvm.run.code import Code
from hbc.compiler.tvm.run.executable import as_tensor
from hbc.compiler.tvm.run.targets import Machine
from hbc.compiler.tvm.tir.dialect import DTYPES, Dialect, Expr
from hbc.compiler.tvm.tir.expressions import larger, number, product
from hbc.compiler.tvm.tir.lines import FORMATS
from hbc.compiler.tvm.tir.vectors import as_vector, broadcast, shuffled, vector
from hbc.ir.graph import Node
from hbc.ir.rewrite import Rule
from hbc.ir.types import Array, dtype_name
from hbc.lazy import cached_property, record
from hbc.ops.nmf import CoordinateDescent, Descent

BLOCK = 256
"""The bytes of a block of rows: four registers of AVX-512, whose sums hide each other's latency. TVM would take larger memory from a
pool."""
SUM = 40
"""The nanoseconds that one coordinate of a block of rows takes, besides one for each component. (A sweep over 628 of them, with 4
components, takes 29 to 53 µs: see `add_in_order`.)"""
ZERO = tirx.const(0, "int64")


def compiled_descent(machine: Machine) -> Rule:
    """The rule `CoordinateDescent` → `CompiledDescent`."""

    def rule(node: Node) -> Node | None:
        op = node.op
        if type(op) is not CoordinateDescent:
            return None
        return CompiledDescent(op.gram, op.l1, op.tol, op.max_iter, op.seed, machine=machine)(*node.inputs)

    return rule


@record(eq=False, repr=False)
class CompiledDescent(CoordinateDescent):
    """`CoordinateDescent` whose sweeps run the compiled function."""

    machine: Machine = field(kw_only=True)

    def descent(self, products: Array) -> Descent:
        return _Sweeps(self._sweep, self.gram, products)

    @cached_property
    def _sweep(self) -> Code:
        return compiled(sweep(dtype_name(self.gram.dtype), self.machine.dialect), self.machine)


class _Sweeps:
    """The coordinates of all rows, y[blocks, components, rows of a block].

    The last block is padded with rows of zeros. They stay zeros, and their gradients are 0.
    """

    def __init__(self, sweep: Code, gram: Array, products: Array) -> None:
        count, rows = len(gram), BLOCK // gram.itemsize
        self.rows = len(products)
        blocks = max(-(-self.rows // rows), 1)
        self.sweep = sweep.for_work(blocks * count * (count + SUM))
        padded = np.zeros((blocks * rows, count), gram.dtype)
        padded[: self.rows] = products
        turned = padded.reshape(blocks, rows, count).transpose(0, 2, 1).copy()
        self.y, self.total = np.zeros_like(turned), np.zeros(2, gram.dtype)
        arrays = (writable(gram), turned, self.y, np.empty_like(turned), self.total)
        self.arguments = list(map(as_tensor, arrays))

    def descend(self, order: Array) -> float:
        """Make one sweep over the coordinates in `order`. Returns the sum of the changes."""
        self.sweep(order, *self.arguments)
        return float(self.total[0])

    def result(self) -> Array:
        """The coordinates, [rows, components]."""
        return self.y.transpose(0, 2, 1).reshape(-1, self.y.shape[1])[: self.rows]


def sweep(kind: str, dialect: Dialect) -> tirx.PrimFunc:
    """`sweep(order i64[K], gram[K, K], products, y, changes, total[2])` in TIR, for a float dtype (`kind`).

    It changes each coordinate of y once, in `order`, as sklearn/decomposition/_cdnmf_fast.pyx does. total[0] becomes the sum of the
    changes, component by component. products, y and changes have the shape [blocks, K, rows of a block].
    """
    dtype, size = DTYPES[kind], FORMATS[kind].bits // 8
    rows = BLOCK // size
    count, blocks = tirx.Var("components", "int64"), tirx.Var("blocks", "int64")
    zero, block_of_rows = number(0, kind), tirx.const(rows, "int64")

    def argument(name: str, *shape: Expr, dtype: str = dtype) -> Any:
        return tirx.decl_buffer(shape, dtype, name=name, data_alignment=size)

    order, gram = argument("order", count, dtype="int64"), argument("gram", count, count)
    products, y, changes = (argument(name, blocks, count, block_of_rows) for name in ("products", "y", "changes"))
    total = argument("total", tirx.const(2, "int64"))

    with IRBuilder() as descent, T.serial(ZERO, blocks) as block, T.serial(ZERO, count) as place:
        gradient = T.alloc_buffer((rows,), dtype)
        i = T.Bind(order[place])
        own = T.Bind(gram[i, i])
        with T.vectorized(block_of_rows) as row:
            T.buffer_store(gradient, tirx.Mul(products[block, i, row], number(-1, kind)), [row])
        with T.serial(ZERO, count) as j, T.vectorized(block_of_rows) as row:
            term = product(gram[i, j], y[block, j, row], kind, dialect)
            T.buffer_store(gradient, tirx.Add(gradient[row], term), [row])
        with T.vectorized(block_of_rows) as row:
            falling = tirx.Select(tirx.LT(gradient[row], zero), gradient[row], zero)
            projected = tirx.Select(tirx.EQ(y[block, i, row], zero), falling, gradient[row])
            T.buffer_store(changes, tirx.abs(projected), [block, place, row])
        with T.If(tirx.Not(tirx.EQ(own, zero))), T.Then(), T.vectorized(block_of_rows) as row:
            moved = tirx.Sub(y[block, i, row], tirx.Div(gradient[row], own))
            T.buffer_store(y, larger(moved, zero, kind, dialect), [block, i, row])

    with IRBuilder() as summation, T.serial(ZERO, count) as place, T.serial(ZERO, blocks) as block:
        start = (block * count + place) * rows
        # A loop of one round: TVM keeps a run of elements whole only if it begins at a loop variable.
        with T.serial(start, start + 1) as at:
            add_in_order(total, as_vector(changes), at, rows, kind)

    cleared = [tirx.BufferStore(total, zero, [i]) for i in range(2)]
    body = tirx.SeqStmt([*cleared, descent.get(), summation.get()])
    return tirx.PrimFunc([order, gram, products, y, changes, total], body).with_attr("tirx.noalias", True)


def add_in_order(total: Any, terms: Any, start: Expr, count: int, kind: str) -> None:
    """Emit: add terms[start : start + count], numbers ≥ 0, to total[0]. The result equals, bit for bit, adding one after the other.

    total[1] is the largest power of two that total[0] has reached. Until the sum reaches the next one, each addition rounds the number to a
    multiple of the same unit and is then exact. So all numbers can be rounded at once and added in any order. Only ties depend on the sum,
    since they are rounded to even. With ties, and where the sum passes a power of two, numbers are added one by one, at 4 cycles each.

    40,000 gradients of iris: in the first sweep 1 % of the blocks are added one by one, and the sweep takes 29 µs. After 200 sweeps the
    gradients are a few units of the numbers that cancelled, 75 % of the blocks have ties, and a sweep takes 53 µs.
    """
    form = FORMATS[kind]
    power = T.Bind(total[1])
    values = T.Bind(vector(terms, start, count))
    rounded = T.Bind(tirx.Sub(tirx.Add(broadcast(power, count), values), broadcast(power, count)))
    off = folded(tirx.abs(tirx.Sub(values, rounded)), count, tirx.Max)
    after = T.Bind(tirx.Add(total[0], folded(rounded, count, tirx.Add)))
    no_tie = tirx.LT(off, tirx.Mul(power, number(2.0 ** -(form.digits + 1), kind)))
    with T.If(tirx.And(no_tie, tirx.LT(after, tirx.Mul(power, number(2, kind))))):
        with T.Then():
            T.buffer_store(total, after, [0])
        with T.Else():
            with T.serial(ZERO, tirx.const(count, "int64")) as i:
                T.buffer_store(total, tirx.Add(total[0], terms[start + i]), [0])
            exponent = tirx.const((1 << (form.bits - 1)) - (1 << form.digits), form.integer)
            bits = tirx.bitwise_and(tirx.reinterpret(form.integer, total[0]), exponent)
            T.buffer_store(total, tirx.reinterpret(DTYPES[kind], bits), [1])


def folded(value: Expr, lanes: int, join: Callable[[Expr, Expr], Expr]) -> Expr:
    """All lanes of a vector combined by `join`: its halves, then the halves of the result, and so on."""
    while lanes > 1:
        lanes //= 2
        whole = T.Bind(value)
        value = join(shuffled([whole], list(range(lanes))), shuffled([whole], list(range(lanes, 2 * lanes))))
    return value
