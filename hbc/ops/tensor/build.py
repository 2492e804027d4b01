"""Functions that build nodes of tensor operators. They take numbers and arrays for constants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hbc.ir.graph import Constant, Node
from hbc.ir.types import NUMPY_DTYPES, Array, Dim, DType
from hbc.ops.tensor.base import FLOATS, TensorOperator, Unary
from hbc.ops.tensor.elementwise import (
    Abs,
    Add,
    And,
    Cast,
    Cos,
    Div,
    Equal,
    Exp,
    Expm1,
    Floor,
    IsNan,
    Less,
    LessEqual,
    Log,
    Log1p,
    Maximum,
    Minimum,
    Mod,
    Mul,
    Neg,
    Not,
    Or,
    Pow,
    Sigmoid,
    Sin,
    Sqrt,
    Sub,
    Tanh,
    Where,
)
from hbc.ops.tensor.indexing import Concat, Reshape, Take, TakeAlong
from hbc.ops.tensor.products import BlockMatMul, MatMul
from hbc.ops.tensor.reductions import ArgMax, CumSum, Max, Min, Sum

Operand = Node | Array | np.generic | float | int | bool


def constant(value: Any, dtype: DType | None = None) -> Node:
    """A constant node, of the given dtype or the value's own."""
    return Constant(np.asarray(value, None if dtype is None else NUMPY_DTYPES[dtype]))()


def _operands(*values: Operand) -> list[Node]:
    """Nodes, and constants in the dtype of the first node. Raises TypeError where that dtype would change an integer or a truth value."""
    dtype = next((v.type.dtype for v in values if isinstance(v, Node)), None)
    nodes = []
    for value in values:
        if isinstance(value, Node):
            nodes.append(value)
            continue
        node = constant(value) if dtype is None else constant(value, dtype)
        exact = dtype in FLOATS or bool(np.all(node.op.evaluate() == np.asarray(value)))
        if not exact:  # the sentence has the digits of a whole array: it took a third of the time of lowering
            raise TypeError(f"{value!r} is not exact in {dtype}, the dtype of the other operand: cast that first")
        nodes.append(node)
    return nodes


def _unary(op: type[Unary]) -> Callable[[Node], Node]:
    return lambda x: op()(x)


def _binary(op: type[TensorOperator]) -> Callable[[Operand, Operand], Node]:
    return lambda a, b: op()(*_operands(a, b))


def _extreme(op: type[Max | Min]) -> Callable[..., Node]:
    return lambda x, axis, keepdims=False: op(axis, keepdims)(x)


def _along(op: type[ArgMax | CumSum]) -> Callable[[Node, int], Node]:
    return lambda x, axis: op(axis)(x)


neg, absolute, exp, expm1, log, log1p = map(_unary, (Neg, Abs, Exp, Expm1, Log, Log1p))
sqrt, tanh, sigmoid, floor, isnan, logical_not, sin, cos = map(_unary, (Sqrt, Tanh, Sigmoid, Floor, IsNan, Not, Sin, Cos))
add, sub, mul, div, power, mod = map(_binary, (Add, Sub, Mul, Div, Pow, Mod))
maximum, minimum, less, less_equal, equal = map(_binary, (Maximum, Minimum, Less, LessEqual, Equal))
logical_and, logical_or, matmul, block_matmul = map(_binary, (And, Or, MatMul, BlockMatMul))
max_, min_, argmax, cumsum = _extreme(Max), _extreme(Min), _along(ArgMax), _along(CumSum)


def cast(x: Node, dtype: DType) -> Node:
    """x in another dtype; x itself where nothing changes."""
    return x if x.type.dtype == dtype else Cast(dtype)(x)


def where(condition: Node, a: Operand, b: Operand) -> Node:
    return Where()(condition, *_operands(a, b))


def sum_(x: Node, axis: int, keepdims: bool = False, ordered: bool = False) -> Node:
    return Sum(axis, keepdims, ordered)(x)


def take(values: Node | Array, indices: Node | Array, axis: int) -> Node:
    values = values if isinstance(values, Node) else constant(values)
    indices = indices if isinstance(indices, Node) else constant(indices, "i64")
    return Take(axis)(values, indices)


def take_along(x: Node, indices: Node) -> Node:
    return TakeAlong()(x, indices)


def concat(nodes: list[Node], axis: int = 1) -> Node:
    return nodes[0] if len(nodes) == 1 else Concat(axis)(*nodes)


def reshape(x: Node, *shape: Dim) -> Node:
    return x if x.type.shape == shape else Reshape(shape)(x)
