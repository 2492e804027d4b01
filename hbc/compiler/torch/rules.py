"""What every operator is in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hbc.compiler.torch.exact import Function, exact_sqrt, ordered_sum, scripted, select, tracing
from hbc.ir.graph import Constant, Node, Operator
from hbc.ir.types import Array, N, TensorType
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


@runs(t.Mod)
def _mod(op: t.Mod, node: Node) -> Function:
    step = 2.0**700 if node.type.dtype == "f64" else 2.0**100

    def mod(a: Tensor, b: Tensor) -> Tensor:
        # torch.fmod is NaN where a / b overflows: by multiples of b first.
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
    if not op.ordered or not node.type.is_float:  # integers wrap: their sum has no order
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
    if kind.itemsize < 4:
        return torch.where
    if not kind.is_floating_point:
        return lambda condition, a, b: scripted(select)(condition, a, b)
    bits = torch.int32 if kind.itemsize == 4 else torch.int64

    def where(condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
        if tracing():  # TorchScript has no view of other bits
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
