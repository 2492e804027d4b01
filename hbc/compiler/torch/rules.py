"""Rules: how PyTorch computes each operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hbc.compiler.torch.exact import Function, exact_sqrt, exporting, filled, ordered_sum, scripted, select, tracing
from hbc.ir.graph import Constant, Node, Operator
from hbc.ir.types import Array, N, TensorType
from hbc.ops import tensor as t
from hbc.ops.columns import Rank
from hbc.ops.encoding import OneHot
from hbc.ops.linear import Linear
from hbc.ops.missing import Impute

# PyTorch stores uint16 but does not calculate with it. Such values are held as int32 whose upper half is kept zero.
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

RULES: dict[type[Operator], Callable[[Any, Node], Function]] = {}
"""Operator class → rule: (operator, its node) → the function that computes it, from the tensors of its inputs and then its PARAMETERS."""

PARAMETERS: dict[type[Operator], Callable[[Any], tuple[Array, ...]]] = {
    Rank: lambda op: (op.edges,),
    Linear: lambda op: (op.coef, op.intercept),
    Impute: lambda op: (op.fill,),
}
"""Operator class → the arrays of such an operator that become buffers. Only for model operators, which hold arrays themselves."""

WORKSPACE: dict[type[Operator], Callable[[Any], int]] = {}
"""Operator class → the bytes that such an operator needs inside for one row, if that is more than its result."""

ROW_BY_ROW: dict[type[Operator], Callable[[Any], bool]] = {}
"""Operator class → whether such an operator reads one row after the other, so that the cache need not keep its operand."""

BY_COLUMN: dict[type[Operator], Callable[[Any, Node], Function]] = {}
"""Rules for values that are stored column after column. Only operators that read columns as fast as rows read these (program.py)."""

UNSIGNED: dict[type[Operator], Callable[[Any, Node], Function]] = {}
"""Rules for values that only products read, so that their zeros may lose their sign."""

SIMPLE: dict[type[Operator], Function] = {
    t.Neg: torch.neg,
    t.Abs: torch.abs,
    t.Exp: torch.exp,
    t.Expm1: torch.expm1,
    t.Log: torch.log,
    t.Log1p: torch.log1p,
    t.Tanh: torch.tanh,
    t.Sin: torch.sin,
    t.Cos: torch.cos,
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
    """A decorator that registers the rule of an operator class."""

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


@runs(t.Mod)
def _mod(op: t.Mod, node: Node) -> Function:
    step = 2.0**700 if node.type.dtype == "f64" else 2.0**100

    def mod(a: Tensor, b: Tensor) -> Tensor:
        # torch.fmod is NaN if a / b overflows, so the remainder is first taken by large multiples of b.
        rest = torch.fmod(torch.fmod(torch.fmod(a, b * step * step), b * step), b)
        return torch.where(
            rest == 0, torch.copysign(torch.zeros_like(rest), b), torch.where((rest < 0) != (b < 0), rest + b, rest)
        )

    return mod


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
    if not op.ordered or not node.type.is_float:  # sums of integers overflow to the same number in any order
        return lambda x: torch.sum(x, axis, keepdims, dtype=dtype)

    def ordered(x: Tensor) -> Tensor:
        total = scripted(ordered_sum)(x, axis)
        return total.unsqueeze(axis) if keepdims else total

    return ordered


@runs(t.Sqrt)
def _sqrt(op: t.Sqrt, node: Node) -> Function:
    return lambda x: scripted(exact_sqrt)(x)


@runs(t.Where)
def _where(op: t.Where, node: Node) -> Function:
    kind = DTYPES[node.type.dtype]
    # Missing values are mostly rare, so the processor predicts the branches of torch.where: 1.2 instead of 2.6 ns (5 % missing, float64).
    if kind.itemsize < 4 or isinstance(node.inputs[0].op, t.IsNan):
        return torch.where
    if not kind.is_floating_point:
        return lambda condition, a, b: torch.where(condition, a, b) if exporting() else scripted(select)(condition, a, b)
    bits = torch.int32 if kind.itemsize == 4 else torch.int64

    def where(condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
        # TorchScript has no view of other bits, and numbers by their bits have no gradient.
        if tracing() or a.requires_grad or b.requires_grad or exporting():
            return torch.where(condition, a, b)
        return select(condition, a.view(bits), b.view(bits)).view(kind)

    return where


@runs(t.Max)
def _max(op: t.Max, node: Node) -> Function:
    return lambda x: torch.amax(x, op.axis, op.keepdims)


@runs(t.Min)
def _min(op: t.Min, node: Node) -> Function:
    return lambda x: torch.amin(x, op.axis, op.keepdims)


@runs(t.CumSum)
def _cumsum(op: t.CumSum, node: Node) -> Function:
    return lambda x: torch.cumsum(x, op.axis)


@runs(t.ArgMax)
def _argmax(op: t.ArgMax, node: Node) -> Function:
    # torch.argmax is documented to return the first of equal numbers. On CPU and GPU it takes NaN for the largest, as numpy does.
    if node.inputs[0].type.dtype == "bool":
        return lambda x: torch.argmax(x.to(torch.uint8), op.axis)
    return lambda x: torch.argmax(x, op.axis)


@runs(t.Take)
def _take(op: t.Take, node: Node) -> Function:
    indices = node.inputs[1].type
    axis = op.axis
    neighbours = _neighbours(node.inputs[1].op)
    if neighbours is not None:
        start, count = neighbours
        return lambda x, _: x.narrow(axis, start, count)
    if len(indices.shape) == 1:
        return lambda x, i: torch.index_select(x, axis, i)
    shape = reshaper(node.type)
    if indices.batched:
        return lambda x, i: torch.index_select(x, 0, i.reshape(-1)).reshape(shape(i))
    return lambda x, i: torch.index_select(x, axis, i.reshape(-1)).reshape(shape(x))


def _neighbours(chosen: Operator) -> tuple[int, int] | None:
    """(first, count) if `chosen` is a constant first, first + 1, …: such columns are a view without a copy. Otherwise None."""
    if not isinstance(chosen, Constant) or chosen.value.ndim != 1 or not len(chosen.value):
        return None
    start, count = int(chosen.value[0]), len(chosen.value)
    return (start, count) if np.array_equal(chosen.value, np.arange(start, start + count)) else None


def _take_by_column(op: t.Take, node: Node) -> Function:
    """The rule of Take for values stored column after column. To copy whole columns takes half the time of an index_select along rows: 0.8
    instead of 1.6 ns a float64, and 0.5 ns if x is already stored so."""
    if op.axis != 1 or _neighbours(node.inputs[1].op) is not None:
        return _take(op, node)
    return lambda x, i: torch.index_select(x.t(), 0, i).t()


@runs(t.TakeAlong)
def _take_along(op: t.TakeAlong, node: Node) -> Function:
    return lambda x, i: torch.gather(x, 1, i.to(torch.int64))


@runs(t.Concat)
def _concat(op: t.Concat, node: Node) -> Function:
    return lambda *parts: torch.cat(parts, op.axis)


def _concat_by_column(op: t.Concat, node: Node) -> Function:
    return lambda *parts: torch.cat([part.t() for part in parts], 0).t()


def _hot(op: OneHot, choose: Function) -> Function:
    """OneHot, where `choose` selects the columns. The comparison is in place: it then has the dtype of the numbers and uses vector
    instructions. With whole columns that takes 0.6 ns a float64; a comparison to bool and a cast take 1.4 ns more."""
    dtype = DTYPES[op.dtype]

    def one_hot(x: Tensor, source: Tensor, value: Tensor) -> Tensor:
        return choose(x, source).eq_(value).to(dtype)

    def with_missing(x: Tensor, source: Tensor, value: Tensor, missing: Tensor) -> Tensor:
        chosen = choose(x, source)
        return torch.logical_or(torch.eq(chosen, value), torch.logical_and(torch.isnan(chosen), missing)).to(dtype)

    return with_missing if _encodes_nan(op) else one_hot


def _encodes_nan(op: OneHot) -> bool:
    """Whether NaN is one of the values."""
    return op.value.dtype.kind == "f" and bool(np.isnan(op.value).any())


@runs(OneHot)
def _one_hot(op: OneHot, node: Node) -> Function:
    return _hot(op, lambda x, i: torch.index_select(x, 1, i))


def _one_hot_by_column(op: OneHot, node: Node) -> Function:
    return _hot(op, lambda x, i: torch.index_select(x.t(), 0, i).t())


def _one_hot_parameters(op: OneHot) -> tuple[Array, ...]:
    parameters = op.source.astype(np.int64), op.value
    return (*parameters, np.isnan(op.value)) if _encodes_nan(op) else parameters


PARAMETERS[OneHot] = _one_hot_parameters
WORKSPACE[OneHot] = lambda op: op.value.nbytes
BY_COLUMN.update({t.Take: _take_by_column, t.Concat: _concat_by_column, OneHot: _one_hot_by_column})


@runs(t.Reshape)
def _reshape(op: t.Reshape, node: Node) -> Function:
    shape = reshaper(node.type)
    return lambda x: x.reshape(shape(x))


def reshaper(kind: TensorType) -> Callable[[Tensor], list[int]]:
    """A function that gives the sizes of a value, from a tensor with as many rows. (The number of rows is read from the tensor, because
    a trace must not fix it, and -1 would be ambiguous for zero columns.)"""
    sizes = [0 if size == N else int(size) for size in kind.shape]
    if not kind.batched:
        return lambda _: sizes
    return lambda x: [x.size(0), *sizes[1:]]


@runs(Linear)
def _linear(op: Linear, node: Node) -> Function:
    return lambda x, coef, intercept: torch.addmm(intercept, x, coef)


@runs(Impute)
def _impute(op: Impute, node: Node) -> Function:
    # Missing values are mostly rare, so the processor predicts the branches of torch.where.
    return lambda x, fill: torch.where(torch.isnan(x), fill, x)


def _impute_unsigned(op: Impute, node: Node) -> Function:
    if not np.isfinite(op.fill).all():  # 0 · ∞ is NaN
        return _impute(op, node)
    return lambda x, fill: torch.where(torch.isnan(x), fill, x) if exporting() else scripted(filled)(x, fill)


UNSIGNED[Impute] = _impute_unsigned
WORKSPACE[Impute] = lambda op: 2 * op.fill.nbytes


@runs(Rank)
def _rank(op: Rank, node: Node) -> Function:
    def rank(x: Tensor, edges: Tensor) -> Tensor:
        places = torch.searchsorted(edges, x.t().contiguous(), out_int32=True).t()
        return torch.where(torch.isnan(x), 0, places)  # searchsorted places NaN last, but its rank is 0

    return rank


def _wrapped(function: Function) -> Function:
    """The same function with a u16 result: an int32, modulo 2^16."""
    return lambda *args: torch.bitwise_and(function(*args), 0xFFFF)


WRAPPING = (t.Add, t.Sub, t.Mul, t.Sum, t.Cast)


def function_of(node: Node, by_column: bool = False, unsigned: bool = False) -> Function:
    """The function that computes a node. `by_column`: its value may be stored column after column. `unsigned`: its zeros may lose their
    sign."""
    allowed = [RULES, *[BY_COLUMN] * by_column, *[UNSIGNED] * unsigned]
    rule = next(rules[type(node.op)] for rules in reversed(allowed) if type(node.op) in rules)
    function = rule(node.op, node)
    return _wrapped(function) if node.type.dtype == "u16" and isinstance(node.op, WRAPPING) else function
