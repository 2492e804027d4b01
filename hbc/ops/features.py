"""Preparing features: scalers, imputers, encoders. Where an operator is `columnwise`, the first axis of its array parameters is the column.

Operators on strings run on the host and have no lowering.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce

import numpy as np

from hbc.ir.graph import Node, Operator, all_finite, always, at_least_one, has_nan, operator
from hbc.ir.texts import Texts
from hbc.ir.types import NUMPY_DTYPES, Array, DType, TensorType, dtype_name, type_of
from hbc.ops import tensor as t
from hbc.ops.columns import Rank, TakeByColumn


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise TypeError(message)


def _require_columns(x: TensorType, *parameters: Array | None) -> None:
    for parameter in parameters:
        fits = parameter is None or (parameter.ndim >= 1 and len(parameter) == x.columns)
        _require(fits, f"a parameter is {'' if parameter is None else type_of(parameter)}, but there are {x.columns} columns")


def _step(function: np.ufunc, x: Array, parameter: Array) -> Array:
    """numpy's in-place `x op= parameter`: computed in the common dtype, rounded to x's."""
    return function(x, parameter).astype(x.dtype)


def _lower_step(op: type[t.Binary], x: Node, parameter: Array) -> Node:
    common = dtype_name(np.result_type(NUMPY_DTYPES[x.type.dtype], parameter.dtype))
    return t.cast(op()(t.cast(x, common), t.constant(parameter, common)), x.type.dtype)


# --- scaling ---------------------------------------------------------------------------------------------------------


@operator
class Standardize(Operator):
    """y[N, F] = (x[N, F] - offset[F]) / scale[F]; x and y of one float dtype; a parameter of None is left out.

    Each step is computed in the common dtype of x and its parameter, and rounded to x's (numpy's `x -= offset; x /= scale`).
    """

    offset: Array | None
    scale: Array | None

    columnwise = True

    @property
    def creates_missing(self) -> bool:
        return has_nan(self.offset, self.scale)

    def monotone(self, *constants: Array | None) -> bool | Array:
        return all_finite(self.offset) & all_finite(self.scale, nonzero=True)

    def infer(self, x: TensorType) -> TensorType:
        _require(x.is_float, "the operand must be a float matrix")
        _require_columns(x, self.offset, self.scale)
        return x

    def evaluate(self, x: Array) -> Array:
        if self.offset is not None:
            x = _step(np.subtract, x, self.offset)
        return x if self.scale is None else _step(np.divide, x, self.scale)

    def lower(self, x: Node) -> Node:
        if self.offset is not None:
            x = _lower_step(t.Sub, x, self.offset)
        return x if self.scale is None else _lower_step(t.Div, x, self.scale)


@operator
class Affine(Operator):
    """y[N, F] = x[N, F] · scale[F] + offset[F]; dtypes and rounding as in Standardize (numpy's `x *= scale; x += offset`)."""

    scale: Array
    offset: Array

    columnwise = True

    @property
    def creates_missing(self) -> bool:
        return has_nan(self.scale, self.offset)

    def monotone(self, *constants: Array | None) -> bool | Array:
        return all_finite(self.offset) & all_finite(self.scale, nonzero=True)

    def infer(self, x: TensorType) -> TensorType:
        _require(x.is_float, "the operand must be a float matrix")
        _require_columns(x, self.scale, self.offset)
        return x

    def evaluate(self, x: Array) -> Array:
        return _step(np.add, _step(np.multiply, x, self.scale), self.offset)

    def lower(self, x: Node) -> Node:
        return _lower_step(t.Add, _lower_step(t.Mul, x, self.scale), self.offset)


@operator
class Clip(Operator):
    """y = x, at least `low` and at most `high` (rounded to x's float dtype); NaN stays NaN (numpy.clip)."""

    low: float
    high: float

    columnwise = True

    def monotone(self, *constants: Array | None) -> bool | Array:
        return self.low <= self.high

    def infer(self, x: TensorType) -> TensorType:
        _require(x.is_float, "the operand must be float")
        return x

    def evaluate(self, x: Array) -> Array:
        return np.clip(x, x.dtype.type(self.low), x.dtype.type(self.high))

    def lower(self, x: Node) -> Node:
        return t.minimum(t.maximum(x, self.low), self.high)


@operator
class Normalize(Operator):
    """y[N, F] = x[N, F] / norm(x)[N]; norm is "l1" Σ|x|, "l2" √Σx² or "max" max|x|. A row whose norm is below ten times the
    dtype's epsilon is kept as it is (sklearn.preprocessing.normalize); float dtype kept."""

    norm: str

    def infer(self, x: TensorType) -> TensorType:
        _require(x.is_float and len(x.shape) == 2, "the operand must be a float matrix")
        return x

    def evaluate(self, x: Array) -> Array:
        if self.norm == "l2":
            norms = np.sqrt(np.einsum("ij,ij->i", x, x))
        else:
            norms = np.abs(x).sum(axis=1) if self.norm == "l1" else np.abs(x).max(axis=1)
        return x / np.where(norms < _least_norm(x.dtype), x.dtype.type(1), norms)[:, None]

    def lower(self, x: Node) -> Node:
        if self.norm == "l2":
            norms = t.sqrt(t.sum_(t.mul(x, x), axis=1, keepdims=True))
        else:
            reduce = t.sum_ if self.norm == "l1" else t.max_
            norms = reduce(t.absolute(x), axis=1, keepdims=True)
        small = t.less(norms, float(_least_norm(NUMPY_DTYPES[x.type.dtype])))
        return t.div(x, t.where(small, t.constant(np.ones((1, 1)), x.type.dtype), norms))


def _least_norm(dtype: np.dtype[np.floating]) -> np.floating:
    return 10 * np.finfo(dtype).eps


@operator
class Binarize(Operator):
    """y = 1 where x > threshold, else 0, in x's dtype; the comparison is made in `dtype` (sklearn.preprocessing.binarize)."""

    threshold: float
    dtype: DType

    columnwise = True
    removes_missing = True
    monotone = always
    jumps = True

    def infer(self, x: TensorType) -> TensorType:
        return x

    def evaluate(self, x: Array) -> Array:
        compared = NUMPY_DTYPES[self.dtype]
        return (x.astype(compared) > compared.type(self.threshold)).astype(x.dtype)

    def lower(self, x: Node) -> Node:
        return t.cast(t.less(t.constant(self.threshold, self.dtype), t.cast(x, self.dtype)), x.type.dtype)


@operator
class Function(Operator):
    """y = function(x), element by element; float dtype kept: log, log1p, sqrt, exp, expm1, tanh, sin, cos, log2, log10, power
    (x to `exponent`); log_abs is ln |x|, log1p_abs ln(1 + |x|).

    `on_host`: it stays in numpy, whose bits are the source's; the backends' own exponentials and logarithms differ by an ulp. Those of
    the C library, which scipy calls, do so too (`by_c_library`, for log, log_abs, exp and expm1): on the host they are its own.
    """

    function: str
    on_host: bool = False
    exponent: float = 1.0
    by_c_library: bool = False

    columnwise = True

    @property
    def creates_missing(self) -> bool:
        return self.function in ("log", "log2", "log10", "log1p", "sqrt", "sin", "cos", "power")

    @property
    def in_numpy(self) -> bool:
        return self.on_host

    @property
    def rises_from(self) -> float | None:
        return _RISE_FROM.get(self.function)

    @property
    def rounds_exactly(self) -> bool:
        """Whether every library gives the same bits (IEEE 754 says so of square roots only)."""
        return self.function == "sqrt"

    def infer(self, x: TensorType) -> TensorType:
        _require(x.is_float, "the operand must be float")
        return x

    def evaluate(self, x: Array) -> Array:
        if self.function == "power":
            return np.power(x, x.dtype.type(self.exponent))
        name = self.function.removesuffix("_abs")
        values = np.abs(x) if self.function.endswith("_abs") else x
        return by_c_library(name, values) if self.on_host and self.by_c_library else np.asarray(getattr(np, name)(values))

    def lower(self, x: Node) -> Node:
        if self.function == "power" and self.exponent in (2, 3):  # two products are off by one unit in the last place at most
            return reduce(t.mul, [x] * int(self.exponent))
        if self.function == "power":
            return t.power(x, self.exponent)
        if self.function in ("log2", "log10"):
            return t.mul(t.log(x), float(1 / np.log(2.0 if self.function == "log2" else 10.0)))
        return _FUNCTIONS[self.function.removesuffix("_abs")]()(t.absolute(x) if self.function.endswith("_abs") else x)


def by_c_library(name: str, x: Array) -> Array:
    """A function of float64 numbers, one by one, as scipy's compiled code calls it: of 50,000 numbers, numpy's log differs for 124."""
    with np.errstate(all="ignore"):
        y = np.asarray(getattr(np, name)(x))
    ordinary = np.isfinite(x) & np.isfinite(y)  # Python raises where others are infinite or NaN
    y[ordinary] = [getattr(math, name)(value) for value in x[ordinary].tolist()]
    return y


_RISE_FROM = {
    **{"log": 0.0, "log2": 0.0, "log10": 0.0, "sqrt": 0.0, "log1p": -1.0},
    **{"exp": -np.inf, "expm1": -np.inf, "tanh": -np.inf},
}
_FUNCTIONS: dict[str, type[t.Unary]] = {
    "log": t.Log,
    "log1p": t.Log1p,
    "sqrt": t.Sqrt,
    "exp": t.Exp,
    "expm1": t.Expm1,
    "tanh": t.Tanh,
    "sin": t.Sin,
    "cos": t.Cos,
}


@operator
class Polynomial(Operator):
    """y[N, K] = Π_d x[N, terms[K, D]] over the factors of a term, -1 being none; multiplied from the last factor to the first
    (the order in which scikit-learn's PolynomialFeatures builds a term of degree d from one of degree d - 1); dtype kept."""

    terms: Array

    def infer(self, x: TensorType) -> TensorType:
        _require(x.is_float and len(x.shape) == 2, "the operand must be a float matrix")
        _require(bool((self.terms < x.columns).all()), f"terms name columns beyond {x.columns}")
        return TensorType(x.dtype, (x.shape[0], len(self.terms)))

    def evaluate(self, x: Array) -> Array:
        one = x.dtype.type(1)
        y = np.ones((len(x), len(self.terms)), x.dtype)
        for factor in self.terms.T[::-1]:
            y = y * np.where(factor < 0, one, x[:, factor])
        return y

    def lower(self, x: Node) -> Node:
        factors = [self._factor(x, factor) for factor in self.terms.T[::-1]]
        y = factors[0]
        for factor in factors[1:]:
            y = t.mul(y, factor)
        return y

    def reads(self, kept: Array, inputs: Sequence[Node], finite: bool = False) -> tuple[Array, ...]:
        return (at_least_one(np.unique(self.terms[kept][self.terms[kept] >= 0])),)

    def narrowed(self, kept: Array, columns: Sequence[Array], inputs: Sequence[Node]) -> tuple[Operator, Array]:
        terms = self.terms[kept]
        used = (terms >= 0).any(axis=0)  # a factor that no term has is 1; one remains for the constant
        terms = terms[:, used] if used.any() else terms[:, :1]
        return Polynomial(np.where(terms < 0, -1, np.searchsorted(columns[0], terms))), kept

    @staticmethod
    def _factor(x: Node, factor: Array) -> Node:
        chosen = t.take(x, np.maximum(factor, 0), axis=1)
        if (factor >= 0).all():
            return chosen
        return t.where(t.constant(factor < 0), t.constant(1.0, x.type.dtype), chosen)


# --- missing values --------------------------------------------------------------------------------------------------


@operator
class Impute(Operator):
    """y[N, F] = fill[F] where x[N, F] is NaN; float dtype kept."""

    fill: Array

    columnwise = True
    removes_missing = True
    monotone = always
    keeps_values = True

    @property
    def creates_missing(self) -> bool:
        return has_nan(self.fill)

    def infer(self, x: TensorType) -> TensorType:
        _require(x.is_float and type_of(self.fill).dtype == x.dtype, f"fill is {type_of(self.fill)}")
        _require_columns(x, self.fill)
        return x

    def evaluate(self, x: Array) -> Array:
        return np.where(np.isnan(x), self.fill, x)

    def lower(self, x: Node) -> Node:
        return t.where(t.isnan(x), t.constant(self.fill), x)


@operator
class MissingText(Operator):
    """y = whether a string is missing; bool. `nan` and `none` say which of NaN and None are missing, `value` is a string that is."""

    nan: bool
    none: bool
    value: str | None

    columnwise = True

    def infer(self, x: TensorType) -> TensorType:
        _require(x.dtype == "str", "the operand must be strings")
        return x.with_dtype("bool")

    def evaluate(self, x: Array) -> Array:
        missing = np.zeros(x.shape, bool)
        if self.nan:
            missing |= np.not_equal(x, x).astype(bool)
        if self.none:
            missing |= np.frompyfunc(lambda item: item is None, 1, 1)(x).astype(bool)
        if self.value is not None:
            missing |= np.equal(x, self.value).astype(bool)
        return missing

    def of_texts(self, x: Texts) -> Array:
        missing = self.evaluate(x.distinct())
        return np.stack([x.looked_up(column, j) for j, column in enumerate(missing.T)], axis=1)


@operator
class ImputeText(Operator):
    """y[N, F] = fill[F] where missing[N, F], else x[N, F]; strings."""

    fill: Array

    elementwise = True

    def infer(self, missing: TensorType, x: TensorType) -> TensorType:
        _require(missing.dtype == "bool" and x.dtype == "str" and missing.shape == x.shape, "the operands must be bool and str")
        _require_columns(x, self.fill)
        return x

    def evaluate(self, missing: Array, x: Array) -> Array:
        return np.where(missing, self.fill.astype(object), x)

    def of_texts(self, missing: Array, x: Texts) -> Texts:
        values = tuple(
            np.append(known, np.array([fill], object)) for known, fill in zip(x.values, self.fill.tolist(), strict=True)
        )
        codes = [
            np.where(missing[:, j], len(known), codes) for j, (codes, known) in enumerate(zip(x.codes, x.values, strict=True))
        ]
        return Texts(tuple(codes), values)


# --- categories ------------------------------------------------------------------------------------------------------

LARGEST_PLACE = 1 << 20
"""Exact in float32."""
SPARSEST = 4
"""Entries of a table for each category, up to which no category is searched for."""


@operator
class Lookup(Operator):
    """y[N, F] = codes[F, k] where categories[F, k] = x[N, F]; missing[F] where x is NaN; unknown[F] where there is no such k.

    categories[F, K] (x's dtype) ascend along K; the last is repeated, or the largest number put, where a column has fewer than
    K: such padding has the code unknown[F]. y has the dtype of the codes.

    complete: there are no unknown numbers (they were rejected), whatever codes they would get: codes[F, k] where categories[F, k] is the
    first that is ≥ x, or the last one; padding has the code of the last category.
    """

    categories: Array
    codes: Array
    unknown: Array
    missing: Array
    complete: bool = False

    columnwise = True
    removes_missing = True
    jumps = True

    @property
    def creates_missing(self) -> bool:
        return has_nan(self.codes, self.unknown, self.missing)

    def monotone(self, *constants: Array | None) -> bool | Array:
        steps = np.diff(self.codes, axis=1)
        return self.complete and np.asarray((steps >= 0).all(axis=1) | (steps <= 0).all(axis=1))

    def infer(self, x: TensorType) -> TensorType:
        _require(type_of(self.categories).dtype == x.dtype, f"categories are {type_of(self.categories)}")
        _require(self.codes.shape == self.categories.shape and self.codes.ndim == 2 and self.codes.shape[1] > 0, "no codes")
        _require_columns(x, self.categories, self.unknown, self.missing)
        dtypes = {type_of(a).dtype for a in (self.codes, self.unknown, self.missing)}
        _require(len(dtypes) == 1, f"codes are of {', '.join(sorted(dtypes))}")
        return x.with_dtype(type_of(self.codes).dtype)

    def evaluate(self, x: Array) -> Array:
        y = np.empty(x.shape, self.codes.dtype)
        for j, (categories, codes) in enumerate(zip(self.categories, self.codes, strict=True)):
            place = np.minimum(np.searchsorted(categories, x[:, j]), len(categories) - 1)
            known = self.complete | (categories[place] == x[:, j])
            y[:, j] = np.where(known, codes[place], self.unknown[j])
        return np.where(np.isnan(x), self.missing, y) if x.dtype.kind == "f" else y

    def lower(self, x: Node) -> Node:
        span = None if self.complete else self._span()
        if span is not None and x.type.dtype in ("i32", "i64", "f32", "f64"):
            return self._taken(x, *span)
        # A category's place is found by counting the smaller ones; then two look-ups a value, however many categories there are. What is
        # above all categories is looked up behind them.
        place, last = Rank(self.categories)(x), self.codes[:, -1:]
        if np.array_equal(self.codes, np.minimum(np.arange(self.codes.shape[1]), last)):  # the places themselves, nearly always
            y = t.cast(t.minimum(place, last[:, 0].astype(np.int32)), type_of(self.codes).dtype)
        else:
            y = TakeByColumn(np.append(self.codes, last, axis=1))(place)
        if not self.complete:
            found = TakeByColumn(np.append(self.categories, self.categories[:, -1:], axis=1))(place)
            y = t.where(t.equal(found, x), y, t.constant(self.unknown))
        return t.where(t.isnan(x), t.constant(self.missing), y) if x.type.is_float else y

    def _span(self) -> tuple[Array, Array] | None:
        """The least and the largest category of each column, i32[F], where all are integers so near to one another that they can be
        places themselves: 10 columns of 200 in float32 take 70 ns a row less than a search for them."""
        known = self._differs()
        values = np.where(known, self.categories, 0).astype(np.float64)
        if (np.abs(values) >= LARGEST_PLACE).any() or (values != np.floor(values)).any():
            return None
        any_known = known.any(axis=1)
        least = np.where(any_known, np.where(known, values, np.inf).min(axis=1), 0).astype(np.int32)
        most = np.where(any_known, np.where(known, values, -np.inf).max(axis=1), 0).astype(np.int32)
        return (least, most) if (most - least < SPARSEST * self.categories.shape[1]).all() else None

    def _differs(self) -> Array:
        """Which categories have other codes than unknown numbers; bool[F, K]."""
        unknown = self.unknown[:, None]
        return (self.codes != unknown) & ((self.codes == self.codes) | (unknown == unknown))

    def _taken(self, x: Node, least: Array, most: Array) -> Node:
        """One look-up a value: a column's table is that of `least` - 1 to `most` + 1, which are unknown, and of NaN."""
        sizes = most - least + 4
        starts = np.cumsum(sizes) - sizes
        table = np.repeat(self.unknown, sizes)
        table[starts + sizes - 1] = self.missing
        column, k = np.nonzero(self._differs())
        table[(starts - least + 1)[column] + self.categories[column, k].astype(np.int64)] = self.codes[column, k]
        below, above = least - 1, most + 1
        inside = t.minimum(t.maximum(x, below.astype(self.categories.dtype)), above.astype(self.categories.dtype))
        place = t.cast(inside, "i32")
        if x.type.is_float:
            missing = t.isnan(x)
            whole = t.cast(t.where(missing, t.constant(below, x.type.dtype), inside), "i32")
            place = t.where(t.equal(t.cast(whole, x.type.dtype), inside), whole, t.constant(below, "i32"))
            place = t.where(missing, t.constant(above + 1, "i32"), place)
        return t.take(table, t.add(place, (starts - below).astype(np.int32)), axis=0)


@operator
class OneHot(Operator):
    """y[N, K] = 1 where x[N, source[K]] = value[K] (NaN equals NaN), else 0; value has x's dtype, y the given one."""

    source: Array
    value: Array
    dtype: DType

    removes_missing = True
    jumps = True

    def infer(self, x: TensorType) -> TensorType:
        _require(
            type_of(self.value).dtype == x.dtype and self.value.shape == self.source.shape, f"value is {type_of(self.value)}"
        )
        in_range = not len(self.source) or 0 <= self.source.min() <= self.source.max() < x.columns
        _require(in_range, f"sources must lie in 0..{x.columns - 1}")
        return TensorType(self.dtype, (x.shape[0], len(self.source)))

    def evaluate(self, x: Array) -> Array:
        chosen = x[:, self.source]
        hot = chosen == self.value
        if x.dtype.kind == "f":
            hot |= np.isnan(chosen) & np.isnan(self.value)
        return hot.astype(NUMPY_DTYPES[self.dtype])

    def lower(self, x: Node) -> Node:
        chosen = t.take(x, self.source, axis=1)
        hot = t.equal(chosen, t.constant(self.value))
        if x.type.is_float and np.isnan(self.value).any():
            hot = t.logical_or(hot, t.logical_and(t.isnan(chosen), t.constant(np.isnan(self.value))))
        return t.cast(hot, self.dtype)

    def reads(self, kept: Array, inputs: Sequence[Node], finite: bool = False) -> tuple[Array, ...]:
        return (np.unique(self.source[kept]),)

    def narrowed(self, kept: Array, columns: Sequence[Array], inputs: Sequence[Node]) -> tuple[Operator, Array]:
        return OneHot(np.searchsorted(columns[0], self.source[kept]), self.value[kept], self.dtype), kept
