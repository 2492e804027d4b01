"""The tensor operators in ONNX. Where ONNX, or the kernel of ONNX Runtime, computes something else, a comment says what."""

from __future__ import annotations

import numpy as np

from hbc.compiler.onnx.builder import Builder, emits
from hbc.ir.graph import Constant, Input, Node
from hbc.ir.types import NUMPY_DTYPES, DType, TensorType
from hbc.ops import tensor as t

# ONNX Runtime lacks kernels of some operators for these dtypes. The operators are computed in a dtype that holds all their values.
WIDER: dict[str, DType] = {"bool": "u8", "i16": "i32", "u16": "i32"}

SAME = {
    t.Neg: "Neg",
    t.Abs: "Abs",
    t.Exp: "Exp",
    t.Log: "Log",
    t.Sqrt: "Sqrt",
    t.Tanh: "Tanh",
    t.Sin: "Sin",
    t.Cos: "Cos",
    t.Floor: "Floor",
    t.IsNan: "IsNaN",
    t.Not: "Not",
    t.Add: "Add",
    t.Sub: "Sub",
    t.Mul: "Mul",
    t.Pow: "Pow",
    t.Less: "Less",
    t.LessEqual: "LessOrEqual",
    t.Equal: "Equal",
    t.And: "And",
    t.Or: "Or",
}


def _number(value: float, kind: TensorType) -> np.ndarray:
    return np.asarray(value, NUMPY_DTYPES[kind.dtype])


@emits(Input, Constant)
def _named(b: Builder, op: object, node: Node) -> str:
    return b.name(node)


@emits(*SAME)
def _same(b: Builder, op: t.TensorOperator, node: Node) -> str:
    return b(SAME[type(op)], *b.inputs(node))


@emits(t.Div)
def _div(b: Builder, op: t.Div, node: Node) -> str:
    a, divisor = b.inputs(node)
    one = node.inputs[0].op
    if isinstance(one, Constant) and one.value.size == 1 and one.value.item() == 1:
        # The optimizer of the runtime turns (1 / x) · y into y / x, which rounds once less. It does not touch -(-1 / x).
        return b("Neg", b("Div", -one.value, divisor))
    return b("Div", a, divisor)


@emits(t.Mod)
def _mod(b: Builder, op: t.Mod, node: Node) -> str:
    # For floats ONNX has C's fmod, whose result has the sign of the first operand; numpy's mod has that of the second.
    a, divisor = b.inputs(node)
    zero = _number(0, node.type)
    rest = b("Mod", a, divisor, fmod=1)
    other = b("And", b("Not", b("Equal", rest, zero)), b("Xor", b("Less", rest, zero), b("Less", divisor, zero)))
    return b("Where", other, b("Add", rest, divisor), rest)


@emits(t.MatMul)
def _matmul(b: Builder, op: t.MatMul, node: Node) -> str:
    # Gemm instead of MatMul: the optimizer of the runtime fuses MatMul with a factor behind it, which it rounds to float32 also for float64
    # (an error of 4e-8).
    return b("Gemm", *b.inputs(node))


@emits(t.Cast)
def _cast(b: Builder, op: t.Cast, node: Node) -> str:
    (x,) = b.inputs(node)
    return b.cast(x, op.dtype)


@emits(t.Sigmoid)
def _sigmoid(b: Builder, op: t.Sigmoid, node: Node) -> str:
    # The runtime's Sigmoid is 1e-8 for all x below -18, which is useless if the logarithm is taken. e^-|x| keeps all digits.
    (x,) = b.inputs(node)
    one = _number(1, node.type)
    small = b("Exp", b("Neg", b("Abs", x)))
    numerator = b("Where", b("GreaterOrEqual", x, _number(0, node.type)), one, small)
    return b("Div", numerator, b("Add", small, one))


@emits(t.Expm1)
def _expm1(b: Builder, op: t.Expm1, node: Node) -> str:
    # Kahan's formula: with u = e^x rounded, the errors of u - 1 and ln u cancel in x · (u - 1) / ln u. For u - 1 = -1 and u = ∞ the
    # logarithm is useless, and u - 1 is the result.
    (x,) = b.inputs(node)
    one = _number(1, node.type)
    u = b("Exp", x)
    less_one = b("Sub", u, one)
    inside = b("Mul", less_one, b("Div", x, b("Log", u)))
    at_end = b("Or", b("Equal", less_one, -one), b("Equal", u, _number(np.inf, node.type)))
    return b("Where", b("Equal", u, one), x, b("Where", at_end, less_one, inside))


@emits(t.Log1p)
def _log1p(b: Builder, op: t.Log1p, node: Node) -> str:
    # Kahan's formula: ln u · x / (u - 1) with u = 1 + x rounded.
    (x,) = b.inputs(node)
    one = _number(1, node.type)
    u = b("Add", x, one)
    log = b("Log", u)
    inside = b("Mul", log, b("Div", x, b("Sub", u, one)))
    return b("Where", b("Equal", u, one), x, b("Where", b("Equal", u, _number(np.inf, node.type)), log, inside))


@emits(t.Maximum, t.Minimum)
def _extreme(b: Builder, op: t.Binary, node: Node) -> str:
    return _widened(b, "Max" if isinstance(op, t.Maximum) else "Min", node, *b.inputs(node))


@emits(t.Where)
def _where(b: Builder, op: t.Where, node: Node) -> str:
    condition, *branches = b.inputs(node)
    wider = WIDER.get(node.type.dtype)
    if wider is None:
        return b("Where", condition, *branches)
    return b.cast(b("Where", condition, *(b.cast(branch, wider) for branch in branches)), node.type.dtype)


def _widened(b: Builder, op_type: str, node: Node, *inputs: str) -> str:
    """The result of an ONNX operator, computed in a wider dtype if the runtime has no kernel for the node's own."""
    wider = WIDER.get(node.type.dtype)
    if wider is None:
        return b(op_type, *inputs)
    return b.cast(b(op_type, *(b.cast(x, wider) for x in inputs)), node.type.dtype)


@emits(t.BlockMatMul)
def _block_matmul(b: Builder, op: t.BlockMatMul, node: Node) -> str:
    x, w = b.inputs(node)
    return b("Transpose", b("MatMul", b("Transpose", x, perm=[1, 0, 2]), w), perm=[1, 0, 2])


# --- reductions ------------------------------------------------------------------------------------------------------


@emits(t.Sum)
def _sum(b: Builder, op: t.Sum, node: Node) -> str:
    (x,) = b.inputs(node)
    source = node.inputs[0].type
    wider: DType | None = "i64" if source.dtype in ("bool", "i8", "u8", "i16", "u16") else None
    x = b.cast(x, wider) if wider else x
    length = int(source.shape[op.axis])
    if op.ordered and source.is_float and length > 1:
        total = add_in_order(b, x, op.axis, length, len(source.shape), op.keepdims)
    else:
        total = b("ReduceSum", x, np.asarray([op.axis]), keepdims=int(op.keepdims))
    return b.cast(total, node.type.dtype) if wider else total


def add_in_order(b: Builder, x: str, axis: int, length: int, rank: int, keepdims: bool = False) -> str:
    """The sum along an axis, one term after the other: the last element of a CumSum, which is a plain loop in the runtime. (ReduceSum adds
    in vectors.) The axis is moved to the front, where CumSum adds whole vectors of rows: 0.2 µs a row for 500 terms, against 1.6 along
    the last axis."""
    front = b("Transpose", x, perm=[axis, *(i for i in range(rank) if i != axis)])
    total = b("Gather", b("CumSum", front, np.asarray(0)), np.asarray(length - 1), axis=0)
    return b("Unsqueeze", total, np.asarray([axis])) if keepdims else total


@emits(t.Max, t.Min)
def _reduced_extreme(b: Builder, op: t.Max | t.Min, node: Node) -> str:
    (x,) = b.inputs(node)
    dtype = node.type.dtype
    wider = WIDER.get(dtype)
    kind = "ReduceMax" if isinstance(op, t.Max) else "ReduceMin"
    if wider is not None:
        return b.cast(b.extreme(kind, b.cast(x, wider), op.axis, op.keepdims), dtype)
    extreme = b.extreme(kind, x, op.axis, op.keepdims)
    if not node.type.is_float:
        return extreme
    # Whether the runtime's kernel returns a NaN depends on its position in the vectors, so NaN is looked for separately.
    any_nan = b.any(b("IsNaN", x), op.axis, op.keepdims)
    return b("Where", any_nan, _number(np.nan, node.type), extreme)


@emits(t.CumSum)
def _cumsum(b: Builder, op: t.CumSum, node: Node) -> str:
    (x,) = b.inputs(node)
    return b("CumSum", x, np.asarray(op.axis))


@emits(t.ArgMax)
def _argmax(b: Builder, op: t.ArgMax, node: Node) -> str:
    (x,) = b.inputs(node)
    source = node.inputs[0].type
    wider = WIDER.get(source.dtype)
    largest = b("ArgMax", b.cast(x, wider) if wider else x, axis=op.axis, keepdims=0)
    if not source.is_float:
        return largest
    is_nan = b("IsNaN", x)
    first_nan = b("ArgMax", b.cast(is_nan, "u8"), axis=op.axis, keepdims=0)
    return b("Where", b.any(is_nan, op.axis), first_nan, largest)


# --- movement --------------------------------------------------------------------------------------------------------


@emits(t.Take)
def _take(b: Builder, op: t.Take, node: Node) -> str:
    return b("Gather", *b.inputs(node), axis=op.axis)


@emits(t.TakeAlong)
def _take_along(b: Builder, op: t.TakeAlong, node: Node) -> str:
    return b("GatherElements", *b.inputs(node), axis=1)


@emits(t.Concat)
def _concat(b: Builder, op: t.Concat, node: Node) -> str:
    return b("Concat", *b.inputs(node), axis=op.axis)


@emits(t.Reshape)
def _reshape(b: Builder, op: t.Reshape, node: Node) -> str:
    (x,) = b.inputs(node)
    if not node.type.batched:
        return b("Reshape", x, np.asarray(op.shape, np.int64), allowzero=1)
    rest = [int(size) for size in op.shape[1:]]
    if 0 not in rest:
        return b("Reshape", x, np.asarray([0, *rest]))  # 0 stands for the number of rows of x
    rows = b("Shape", x, start=0, end=1)
    return b("Reshape", x, b("Concat", rows, np.asarray(rest), axis=0), allowzero=1)
