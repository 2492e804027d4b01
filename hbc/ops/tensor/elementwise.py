"""Tensor operators that compute each element for itself: arithmetic, functions, comparisons, casts and choices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hbc.ir.graph import Constant, Node, always, never_negative, operator, to_floats
from hbc.ir.magnitudes import by_column
from hbc.ir.ranges import Range, anything, chosen, hull, truth
from hbc.ir.rows import Rows
from hbc.ir.spans import Span, union, wrapped
from hbc.ir.types import NUMPY_DTYPES, Array, DType, DTypeError, TensorType, broadcast_shapes, require
from hbc.ops.tensor.base import FLOATS, NUMERIC, SIGNED, Binary, TensorOperator, Unary
from hbc.ops.tensor.reductions import Sum

# --- of one operand --------------------------------------------------------------------------------------------------


@operator
class Neg(Unary):
    """y = -x"""

    function = np.negative
    dtypes = SIGNED

    def never_positive(self, inputs: Sequence[Node]) -> bool:
        return never_negative(inputs[0])

    def magnitude(self, node: Node, bounds: Sequence[Array]) -> Array:
        return bounds[0]

    def enclose(self, x: Range) -> Range:
        return Range(-x.high, -x.low, x.missing)


@operator
class Abs(Unary):
    """y = |x|"""

    function = np.abs
    dtypes = SIGNED
    non_negative = True

    def magnitude(self, node: Node, bounds: Sequence[Array]) -> Array:
        return bounds[0]

    def enclose(self, x: Range) -> Range:
        return x.absolute()


@operator
class Exp(Unary):
    """y = e^x"""

    function = np.exp
    non_negative = True

    def divides_by_sum(self, inputs: Sequence[Node]) -> bool:
        return True

    def magnitude(self, node: Node, bounds: Sequence[Array]) -> Array | None:
        (x,) = node.inputs
        return np.ones(node.type.width) if x.op.never_positive(x.inputs) else None


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
    non_negative = True

    def magnitude(self, node: Node, bounds: Sequence[Array]) -> Array | None:
        return np.asarray(np.sqrt(bounds[0])) if never_negative(node.inputs[0]) else None


@operator
class Tanh(Unary):
    """y = tanh x"""

    function = np.tanh

    def magnitude(self, node: Node, bounds: Sequence[Array]) -> Array:
        return np.ones(node.type.width)


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
    probability = True


@operator
class Floor(Unary):
    """y = the largest integer ≤ x, in x's dtype"""

    function = np.floor
    jumps = True

    def magnitude(self, node: Node, bounds: Sequence[Array]) -> Array:
        return bounds[0] + 1.0


@operator
class IsNan(Unary):
    """y = whether x is NaN; bool"""

    function = np.isnan
    result = "bool"
    monotone = always

    def enclose(self, x: Range) -> Range:
        return truth(x.missing & x.empty, x.missing)


@operator
class Not(Unary):
    """y = not x; bool"""

    function = np.logical_not
    dtypes = ("bool",)

    def enclose(self, x: Range) -> Range:
        return Range(~x.high, ~x.low, x.missing)


@operator
class Cast(TensorOperator):
    """y = x in another dtype, as numpy's astype: to a smaller float by rounding to nearest (overflow gives ±inf), from float to
    integer towards zero, from bool to 0 or 1. NaN to an integer is undefined: guard it."""

    dtype: DType

    columnwise = True
    rows = "keeps"
    monotone = to_floats
    keeps_sign = True

    def of_rows(self, x: Rows) -> Rows:
        return x.with_data(x.data.astype(NUMPY_DTYPES[self.dtype]))

    def infer(self, x: TensorType) -> TensorType:
        if "str" in (x.dtype, self.dtype):
            raise DTypeError("strings have no cast")
        return x.with_dtype(self.dtype)

    def evaluate(self, x: Array) -> Array:
        return x.astype(NUMPY_DTYPES[self.dtype])

    def keeps(self, inputs: Sequence[Node]) -> bool:
        return bool(np.can_cast(NUMPY_DTYPES[inputs[0].type.dtype], NUMPY_DTYPES[self.dtype]))

    def divides_by_sum(self, inputs: Sequence[Node]) -> bool:
        return divides_by_sum(inputs[0])

    def magnitude(self, node: Node, bounds: Sequence[Array]) -> Array:
        return bounds[0]

    def span(self, node: Node, spans: Sequence[Span]) -> Span:
        return (0, 1) if self.dtype == "bool" else wrapped(spans[0], self.dtype)

    def enclose(self, x: Range) -> Range:
        if self.dtype not in FLOATS:
            return anything(self.evaluate(x.low))
        return Range(self.evaluate(x.low), self.evaluate(x.high), x.missing).without_numbers(x.empty)


# --- arithmetic of two operands --------------------------------------------------------------------------------------


class Arithmetic(Binary):
    """Keeps or reverses the order of each operand, whatever the other one is: the ends of intervals give the ends of the result."""

    def span(self, node: Node, spans: Sequence[Span]) -> Span:
        one, other = spans
        if one is None or other is None:
            return None
        exact = [int(self.evaluate(np.array(a, object), np.array(b, object))) for a in one for b in other]
        return wrapped((min(exact), max(exact)), node.type.dtype)

    def unknown(self, a: Range, b: Range) -> Any:
        """For each element: whether the ends of the ranges do not tell the range of the result; bool of the ranges' shape."""
        return False

    def enclose(self, a: Range, b: Range) -> Range:
        ends = [self.evaluate(x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
        low, high = np.minimum.reduce(ends), np.maximum.reduce(ends)
        unknown = np.isnan(low) | self.unknown(a, b)
        empty = a.empty | b.empty
        y = Range(low, high, a.missing | b.missing).without_numbers(empty)
        return chosen(unknown & ~empty, anything(low), y)


@operator
class Add(Arithmetic):
    """y = a + b; integers wrap"""

    function = np.add
    keeps_sign = True

    def magnitude(self, node: Node, bounds: Sequence[Array]) -> Array:
        return np.add(*bounds)


@operator
class Sub(Arithmetic):
    """y = a - b; integers wrap"""

    function = np.subtract

    def never_negative(self, inputs: Sequence[Node]) -> bool:
        return self.divides_by_sum(inputs)

    def divides_by_sum(self, inputs: Sequence[Node]) -> bool:
        """1 - p of probabilities p."""
        one, p = inputs
        return isinstance(one.op, Constant) and bool((one.op.value == 1).all()) and p.op.probability

    def magnitude(self, node: Node, bounds: Sequence[Array]) -> Array:
        return np.add(*bounds)


@operator
class Mul(Arithmetic):
    """y = a · b, rounded before anything is added to it: compilers must not contract it into a fused multiply-add"""

    function = np.multiply
    keeps_sign = True

    def never_negative(self, inputs: Sequence[Node]) -> bool:
        return inputs[0] is inputs[1] or super().never_negative(inputs)

    def never_positive(self, inputs: Sequence[Node]) -> bool:
        return any(never_negative(a) and b.op.never_positive(b.inputs) for a, b in (inputs, inputs[::-1]))

    def magnitude(self, node: Node, bounds: Sequence[Array]) -> Array:
        return np.multiply(*bounds)

    def unknown(self, a: Range, b: Range) -> Array:
        """True where the ranges may hold 0 · ∞, which is NaN."""
        return (a.has_infinity & b.has_zero) | (b.has_infinity & a.has_zero)


@operator
class Div(Arithmetic):
    """y = a / b, IEEE: x/0 is ±inf, 0/0 NaN. A compiler must not replace it by a product with 1/b."""

    function = np.divide
    dtypes = FLOATS
    keeps_sign = True

    def never_positive(self, inputs: Sequence[Node]) -> bool:
        a, b = inputs
        return a.op.never_positive(a.inputs) and never_negative(b)

    def magnitude(self, node: Node, bounds: Sequence[Array]) -> Array | None:
        part, divisor = node.inputs
        if _is_share(part, divisor):
            return np.ones(node.type.width)
        divisors = divisor.inputs[1:] if isinstance(divisor.op, Where) else [divisor]
        smallest = [by_column(d.op.value).min(axis=0) for d in divisors if isinstance(d.op, Constant)]
        return bounds[0] / np.minimum.reduce(smallest) if len(smallest) == len(divisors) else None

    def unknown(self, a: Range, b: Range) -> Array:
        return b.has_zero


def _is_share(part: Node, whole: Node) -> bool:
    """Whether numbers ≥ 0 are divided by their own sum, or by another number where that is 0."""
    if isinstance(whole.op, Where):
        whole = whole.inputs[2]
    return isinstance(whole.op, Sum) and whole.inputs[0] is part and divides_by_sum(part)


def divides_by_sum(node: Node) -> bool:
    """`Operator.divides_by_sum` of a value."""
    return node.op.divides_by_sum(node.inputs)


@operator
class Pow(Binary):
    """y = a^b; 0^0 is 1, NaN for negative a and fractional b"""

    function = np.power
    dtypes = FLOATS


@operator
class Mod(Binary):
    """y = a - b · ⌊a / b⌋, rounded only at the end (C's fmod, plus b where its sign is not b's). 0 has b's sign; NaN for b = 0 and for
    infinite a (numpy.remainder)"""

    function = np.remainder
    dtypes = FLOATS
    jumps = True


class Extreme(Arithmetic):
    """The larger or the smaller of two numbers."""

    def magnitude(self, node: Node, bounds: Sequence[Array]) -> Array:
        return np.maximum(*bounds)


@operator
class Maximum(Extreme):
    """y = the larger; NaN if either is NaN"""

    function = np.maximum

    def never_negative(self, inputs: Sequence[Node]) -> bool:
        return any(map(never_negative, inputs))


@operator
class Minimum(Extreme):
    """y = the smaller; NaN if either is NaN"""

    function = np.minimum


# --- comparisons and logic -------------------------------------------------------------------------------------------


class Order(Binary):
    """A comparison that is true of the ends of two intervals if it is true of all numbers in them."""

    result = "bool"

    def enclose(self, a: Range, b: Range) -> Range:
        always = self.evaluate(a.high, b.low) & ~(a.missing | b.missing)
        sometimes = self.evaluate(a.low, b.high) & ~a.empty & ~b.empty
        return truth(always, sometimes)


@operator
class Less(Order):
    """y = a < b; false if either is NaN"""

    function = np.less

    def span(self, node: Node, spans: Sequence[Span]) -> Span:
        return (0, 0) if node.inputs[0] is node.inputs[1] else (0, 1)


@operator
class LessEqual(Order):
    """y = a ≤ b; false if either is NaN"""

    function = np.less_equal


@operator
class Equal(Binary):
    """y = a = b; false if either is NaN"""

    function = np.equal
    dtypes = (*NUMERIC, "bool")
    result = "bool"

    def magnitude(self, node: Node, bounds: Sequence[Array]) -> Array:
        """0 where integers never get as far as a constant."""
        x, number = node.inputs
        is_beyond = (
            not x.type.is_float and isinstance(number.op, Constant) and bool((bounds[0] < np.abs(number.op.value).min()).all())
        )
        return np.full(node.type.width, 0.0 if is_beyond else 1.0)

    def enclose(self, a: Range, b: Range) -> Range:
        always = (a.low == a.high) & (b.low == b.high) & (a.low == b.low) & ~a.missing & ~b.missing
        sometimes = (a.low <= b.high) & (b.low <= a.high) & ~a.empty & ~b.empty
        return truth(always, sometimes)


class Logical(Binary):
    """Two truth values together; more true operands never make it false."""

    dtypes = ("bool",)

    def enclose(self, a: Range, b: Range) -> Range:
        return Range(self.evaluate(a.low, b.low), self.evaluate(a.high, b.high), a.missing | b.missing)


@operator
class And(Logical):
    """y = a and b; bool"""

    function = np.logical_and


@operator
class Or(Logical):
    """y = a or b; bool"""

    function = np.logical_or


@operator
class Where(TensorOperator):
    """y = a where condition, else b; the three broadcast, a and b have one dtype"""

    elementwise = True

    def infer(self, condition: TensorType, a: TensorType, b: TensorType) -> TensorType:
        require(condition.dtype == "bool", "the condition must be bool")
        require(a.dtype == b.dtype, "both branches must have the same dtype")
        return TensorType(a.dtype, broadcast_shapes(condition.shape, a.shape, b.shape))

    def evaluate(self, condition: Array, a: Array, b: Array) -> Array:
        return np.where(condition, a, b)

    def never_negative(self, inputs: Sequence[Node]) -> bool:
        return all(map(never_negative, inputs[1:]))

    def divides_by_sum(self, inputs: Sequence[Node]) -> bool:
        return all(map(divides_by_sum, inputs[1:]))

    def magnitude(self, node: Node, bounds: Sequence[Array]) -> Array:
        condition, a, b = bounds
        return np.maximum(a, b) if condition.any() else b

    def span(self, node: Node, spans: Sequence[Span]) -> Span:
        return (0, 1) if node.type.dtype == "bool" else union(spans[1:])

    def enclose(self, condition: Range, a: Range, b: Range) -> Range:
        a, b = (Range(*np.broadcast_arrays(x.low, x.high, x.missing, condition.low)[:3]) for x in (a, b))
        return chosen(condition.low, a, chosen(condition.high, hull(a, b), b))
