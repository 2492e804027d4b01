"""The tensor operators: what every compiler must run. Dtypes never change silently: operands of a binary operator have
one dtype, and `Cast` is the only way to another. Rows (N) are always the first axis, and no operator mixes rows.

The functions below the operators build nodes; they take numbers and arrays for constants.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from hbc.ir.graph import Constant, Node, Operator, always, operator, to_floats
from hbc.ir.narrow import Product, SideBySide
from hbc.ir.rows import Rows
from hbc.ir.types import NUMPY_DTYPES, Array, Dim, DType, DTypeError, TensorType, broadcast_shapes

FLOATS = ("f32", "f64")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise TypeError(message)


class TensorOperator(Operator):
    level = "tensor"


# --- elementwise -----------------------------------------------------------------------------------------------------


class Unary(TensorOperator):
    """y = function(x), element by element; dtype and shape are kept unless the subclass says otherwise."""

    function: ClassVar[Any]  # a numpy ufunc, or a function of an array
    dtypes: ClassVar[tuple[str, ...]] = FLOATS
    result: ClassVar[DType | None] = None
    columnwise = True

    def infer(self, x: TensorType) -> TensorType:
        _require(x.dtype in self.dtypes, f"the operand must be one of {', '.join(self.dtypes)}")
        return x.with_dtype(self.result or x.dtype)

    def evaluate(self, x: Array) -> Array:
        return np.asarray(type(self).function(x))


NUMERIC = ("i8", "u8", "i16", "u16", "i32", "i64", *FLOATS)


@operator
class Neg(Unary):
    """y = -x"""

    function = np.negative
    dtypes = ("i8", "i16", "i32", "i64", *FLOATS)


@operator
class Abs(Unary):
    """y = |x|"""

    function = np.abs
    dtypes = ("i8", "i16", "i32", "i64", *FLOATS)


@operator
class Exp(Unary):
    """y = e^x"""

    function = np.exp


@operator
class Expm1(Unary):
    """y = e^x - 1, accurate near 0"""

    function = np.expm1


@operator
class Log(Unary):
    """y = ln x; -inf at 0, NaN below"""

    function = np.log


@operator
class Log1p(Unary):
    """y = ln(1 + x), accurate near 0"""

    function = np.log1p


@operator
class Sqrt(Unary):
    """y = √x; NaN below 0"""

    function = np.sqrt


@operator
class Tanh(Unary):
    """y = tanh x"""

    function = np.tanh


@operator
class Sin(Unary):
    """y = sin x; NaN of ±inf"""

    function = np.sin


@operator
class Cos(Unary):
    """y = cos x; NaN of ±inf"""

    function = np.cos


def _sigmoid(x: Array) -> Array:
    small = np.exp(-np.abs(x))  # in (0, 1]: nothing overflows
    return np.asarray(np.where(x >= 0, 1, small) / (1 + small))


@operator
class Sigmoid(Unary):
    """y = 1 / (1 + e^-x), without overflow for large |x| (scipy.special.expit)"""

    function = _sigmoid


@operator
class Floor(Unary):
    """y = the largest integer ≤ x, in x's dtype"""

    function = np.floor
    jumps = True


@operator
class IsNan(Unary):
    """y = whether x is NaN; bool"""

    function = np.isnan
    result = "bool"
    monotone = always


@operator
class Not(Unary):
    """y = not x; bool"""

    function = np.logical_not
    dtypes = ("bool",)


@operator
class Cast(TensorOperator):
    """y = x in another dtype, as numpy's astype: to a smaller float by rounding to nearest (overflow is ±inf), float to
    integer towards zero, bool to 0/1. NaN to an integer is undefined: guard it."""

    dtype: DType

    columnwise = True
    rows = "keeps"
    monotone = to_floats

    def of_rows(self, x: Rows) -> Rows:
        return x.with_data(x.data.astype(NUMPY_DTYPES[self.dtype]))

    def infer(self, x: TensorType) -> TensorType:
        if "str" in (x.dtype, self.dtype):
            raise DTypeError("strings have no cast")
        return x.with_dtype(self.dtype)

    def evaluate(self, x: Array) -> Array:
        return x.astype(NUMPY_DTYPES[self.dtype])


class Binary(TensorOperator):
    """y = function(a, b) with numpy's broadcasting; both operands have one dtype."""

    function: ClassVar[Any]  # a numpy ufunc
    dtypes: ClassVar[tuple[str, ...]] = NUMERIC
    result: ClassVar[DType | None] = None
    elementwise = True

    def infer(self, a: TensorType, b: TensorType) -> TensorType:
        _require(a.dtype == b.dtype, "both operands must have the same dtype")
        _require(a.dtype in self.dtypes, f"operands must be one of {', '.join(self.dtypes)}")
        return TensorType(self.result or a.dtype, broadcast_shapes(a.shape, b.shape))

    def evaluate(self, a: Array, b: Array) -> Array:
        return np.asarray(type(self).function(a, b))


@operator
class Add(Binary):
    """y = a + b; integers wrap"""

    function = np.add


@operator
class Sub(Binary):
    """y = a - b; integers wrap"""

    function = np.subtract


@operator
class Mul(Binary):
    """y = a · b, rounded before anything is added to it: compilers must not contract it into a fused multiply-add"""

    function = np.multiply


@operator
class Div(Binary):
    """y = a / b, IEEE: x/0 is ±inf, 0/0 NaN. A compiler must not replace it by a product with 1/b."""

    function = np.divide
    dtypes = FLOATS


@operator
class Pow(Binary):
    """y = a^b; 0^0 is 1, NaN for negative a and fractional b"""

    function = np.power
    dtypes = FLOATS


@operator
class Mod(Binary):
    """y = a - b · ⌊a / b⌋ without rounding before the end (C's fmod, plus b where its sign is not b's); 0 has b's sign; NaN for
    b = 0 and infinite a (numpy.remainder)"""

    function = np.remainder
    dtypes = FLOATS
    jumps = True


@operator
class Maximum(Binary):
    """y = the larger; NaN if either is NaN"""

    function = np.maximum


@operator
class Minimum(Binary):
    """y = the smaller; NaN if either is NaN"""

    function = np.minimum


@operator
class Less(Binary):
    """y = a < b; false if either is NaN"""

    function = np.less
    result = "bool"


@operator
class LessEqual(Binary):
    """y = a ≤ b; false if either is NaN"""

    function = np.less_equal
    result = "bool"


@operator
class Equal(Binary):
    """y = a = b; false if either is NaN"""

    function = np.equal
    dtypes = (*NUMERIC, "bool")
    result = "bool"


@operator
class And(Binary):
    """y = a and b; bool"""

    function = np.logical_and
    dtypes = ("bool",)


@operator
class Or(Binary):
    """y = a or b; bool"""

    function = np.logical_or
    dtypes = ("bool",)


@operator
class Where(TensorOperator):
    """y = a where condition, else b; the three broadcast, a and b have one dtype"""

    elementwise = True

    def infer(self, condition: TensorType, a: TensorType, b: TensorType) -> TensorType:
        _require(condition.dtype == "bool", "the condition must be bool")
        _require(a.dtype == b.dtype, "both branches must have the same dtype")
        return TensorType(a.dtype, broadcast_shapes(condition.shape, a.shape, b.shape))

    def evaluate(self, condition: Array, a: Array, b: Array) -> Array:
        return np.where(condition, a, b)


# --- products and reductions -----------------------------------------------------------------------------------------


@operator
class MatMul(Product, TensorOperator):
    """y[N, K] = Σ_f x[N, f] · w[f, K]; one float dtype, w has no rows. The order of the sum is the compiler's."""

    def infer(self, x: TensorType, w: TensorType) -> TensorType:
        _require(x.dtype == w.dtype and x.is_float, "operands must have one float dtype")
        _require(len(x.shape) == 2 and len(w.shape) == 2 and not w.batched, "operands must be [N, F] and [F, K]")
        _require(x.shape[1] == w.shape[0], "inner dimensions differ")
        return TensorType(x.dtype, (x.shape[0], w.shape[1]))

    rows = "takes"

    def of_rows(self, x: Rows, w: Array) -> Array:
        return x.matmul(w)

    def evaluate(self, x: Array, w: Array) -> Array:
        return x @ w


@operator
class BlockMatMul(TensorOperator):
    """y[N, T, L] = Σ_i x[N, T, i] · w[T, i, L]: one matrix product per block t (the GEMM strategy's, a block a tree)"""

    def infer(self, x: TensorType, w: TensorType) -> TensorType:
        _require(x.dtype == w.dtype and x.is_float, "operands must have one float dtype")
        _require(len(x.shape) == 3 and len(w.shape) == 3 and not w.batched, "operands must be [N, T, I] and [T, I, L]")
        _require(x.shape[1:] == w.shape[:2], "blocks or inner dimensions differ")
        return TensorType(x.dtype, (*x.shape[:2], w.shape[2]))

    def evaluate(self, x: Array, w: Array) -> Array:
        return np.matmul(x.transpose(1, 0, 2), w).transpose(1, 0, 2)


class Reduction(TensorOperator):
    """Along one axis (never the rows'), which goes away or stays with length 1."""

    axis: int
    keepdims: bool

    def infer(self, x: TensorType) -> TensorType:
        _require(0 <= self.axis < len(x.shape), f"there is no axis {self.axis}")
        _require(not (x.batched and self.axis == 0), "rows cannot be reduced")
        return TensorType(x.dtype, (*x.shape[: self.axis], *(1,) * self.keepdims, *x.shape[self.axis + 1 :]))


@operator
class Sum(Reduction):
    """y = Σ x along axis; dtype kept. `ordered`: terms are added strictly in index order, so that the bits are those of a
    plain loop (the sum over trees, where an exact tie decides a class label)."""

    axis: int
    keepdims: bool = False
    ordered: bool = False

    def evaluate(self, x: Array) -> Array:
        if not self.ordered:
            return x.sum(axis=self.axis, keepdims=self.keepdims, dtype=x.dtype)
        total = np.zeros_like(x.take(0, self.axis)) if x.shape[self.axis] else x.sum(axis=self.axis, dtype=x.dtype)
        for index in range(x.shape[self.axis]):
            total = total + x.take(index, self.axis)
        return np.expand_dims(total, self.axis) if self.keepdims else total


@operator
class Max(Reduction):
    """y = the largest along axis; NaN if any is NaN"""

    axis: int
    keepdims: bool = False

    def evaluate(self, x: Array) -> Array:
        return np.asarray(x.max(axis=self.axis, keepdims=self.keepdims))


@operator
class Min(Reduction):
    """y = the smallest along axis; NaN if any is NaN"""

    axis: int
    keepdims: bool = False

    def evaluate(self, x: Array) -> Array:
        return np.asarray(x.min(axis=self.axis, keepdims=self.keepdims))


@operator
class CumSum(TensorOperator):
    """y = the sums of x's first 1, 2, … elements along axis, added strictly in index order; f64 (PyTorch adds f32 in f64)"""

    axis: int

    def infer(self, x: TensorType) -> TensorType:
        _require(x.dtype == "f64" and 0 <= self.axis < len(x.shape), f"the operand must be f64 with an axis {self.axis}")
        _require(not (x.batched and self.axis == 0), "rows cannot be added up")
        return x

    def evaluate(self, x: Array) -> Array:
        return np.cumsum(x, axis=self.axis)


@operator
class ArgMax(TensorOperator):
    """y = the index of the largest along axis, i64; the first of equals, and the first NaN if there is one"""

    axis: int

    def infer(self, x: TensorType) -> TensorType:
        _require(0 <= self.axis < len(x.shape) and not (x.batched and self.axis == 0), "rows cannot be reduced")
        return TensorType("i64", (*x.shape[: self.axis], *x.shape[self.axis + 1 :]))

    def evaluate(self, x: Array) -> Array:
        return np.asarray(x.argmax(axis=self.axis))


# --- movement --------------------------------------------------------------------------------------------------------


@operator
class Take(TensorOperator):
    """y = values taken along an axis by indices (i32 or i64, in range, not negative), numpy.take.

    Either a table is looked up for every row (values have no rows, axis 0; indices [N, …]), or constant indices choose
    columns of batched values (axis ≥ 1). The indices' shape replaces the axis.
    """

    axis: int

    def infer(self, values: TensorType, indices: TensorType) -> TensorType:
        _require(indices.dtype in ("i32", "i64"), "indices must be i32 or i64")
        _require(0 <= self.axis < len(values.shape), f"there is no axis {self.axis}")
        if values.batched:
            _require(self.axis >= 1 and not indices.batched, "batched values are taken by constant indices, axis ≥ 1")
        else:
            _require(self.axis == 0 or not indices.batched, "a table is looked up along axis 0")
        return TensorType(values.dtype, (*values.shape[: self.axis], *indices.shape, *values.shape[self.axis + 1 :]))

    def evaluate(self, values: Array, indices: Array) -> Array:
        return values.take(indices, axis=self.axis)


@operator
class TakeAlong(TensorOperator):
    """y[n, t] = x[n, indices[n, t]]; indices i32 or i64, in range (numpy.take_along_axis, axis 1)"""

    def infer(self, x: TensorType, indices: TensorType) -> TensorType:
        _require(indices.dtype in ("i32", "i64"), "indices must be i32 or i64")
        _require(len(x.shape) == 2 and len(indices.shape) == 2, "operands must be [N, F] and [N, T]")
        _require(x.batched and indices.batched, "operands must have rows")
        return TensorType(x.dtype, indices.shape)

    def evaluate(self, x: Array, indices: Array) -> Array:
        return np.take_along_axis(x, indices, axis=1)


@operator
class Concat(SideBySide, TensorOperator):
    """y = the inputs one after the other along axis ≥ 1; one dtype"""

    axis: int = 1

    keeps_values = True
    rows = "keeps"

    def infer(self, *types: TensorType) -> TensorType:
        first = types[0]
        _require(1 <= self.axis < len(first.shape), f"there is no axis {self.axis} to join along")
        total = 0
        for kind in types:
            _require(kind.dtype == first.dtype, "inputs must have the same dtype")
            _require(
                len(kind.shape) == len(first.shape)
                and all(a == b for i, (a, b) in enumerate(zip(kind.shape, first.shape, strict=True)) if i != self.axis),
                "inputs differ outside the axis",
            )
            total += int(kind.shape[self.axis])
        return TensorType(first.dtype, (*first.shape[: self.axis], total, *first.shape[self.axis + 1 :]))

    def of_rows(self, *parts: Rows) -> Rows:
        return Rows.beside(parts)

    def evaluate(self, *arrays: Array) -> Array:
        return np.concatenate(arrays, axis=self.axis)


@operator
class Reshape(TensorOperator):
    """y = x with another shape, same order of elements (C); a batched x keeps its rows: shape starts with N"""

    shape: tuple[Dim, ...]

    def infer(self, x: TensorType) -> TensorType:
        result = TensorType(x.dtype, self.shape)
        _require(result.batched == x.batched, "rows must stay rows")
        sizes = [int(np.prod([d for d in shape if d != "N"], dtype=np.int64)) for shape in (x.shape, self.shape)]
        _require(sizes[0] == sizes[1], f"{x} has not the elements of {result}")
        return result

    def evaluate(self, x: Array) -> Array:
        return x.reshape([len(x) if d == "N" else d for d in self.shape])


# --- building nodes --------------------------------------------------------------------------------------------------

Operand = Node | Array | np.generic | float | int | bool


def constant(value: Any, dtype: DType | None = None) -> Node:
    """A constant node, of the given dtype or the value's own."""
    return Constant(np.asarray(value, None if dtype is None else NUMPY_DTYPES[dtype]))()


def _operands(*values: Operand) -> list[Node]:
    """Constants take the dtype of the nodes they meet; a number that this would change is the caller's error (TypeError)."""
    dtype = next((v.type.dtype for v in values if isinstance(v, Node)), None)
    nodes = []
    for value in values:
        if isinstance(value, Node):
            nodes.append(value)
            continue
        node = constant(value) if dtype is None else constant(value, dtype)
        exact = dtype in FLOATS or bool(np.all(node.op.evaluate() == np.asarray(value)))
        _require(exact, f"{value!r} is not exact in {dtype}")
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
