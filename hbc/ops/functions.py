"""Mathematical functions of each number, and products of columns."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce

import numpy as np

from hbc.ir.graph import Node, Operator, at_least_one, operator
from hbc.ir.ranges import Range, anything, rising
from hbc.ir.types import Array, TensorType, require
from hbc.ops import tensor as t


@operator
class Function(Operator):
    """y = function(x), element by element; float dtype kept. Functions: log, log1p, sqrt, exp, expm1, tanh, sin, cos, log2, log10,
    power (x to `exponent`), log_abs (ln |x|) and log1p_abs (ln(1 + |x|)).

    `on_host`: it stays in numpy, whose bits are the source's; the backends' own exponentials and logarithms differ by an ulp.
    `by_c_library`: the source computes it through scipy with the C library, whose bits differ from numpy's too (log, log_abs,
    exp and expm1). On the host, hbc then calls the C library as well.
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
        """Whether every library gives the same bits. IEEE 754 promises this for square roots only."""
        return self.function == "sqrt"

    def infer(self, x: TensorType) -> TensorType:
        require(x.is_float, "the operand must be float")
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

    def magnitude(self, node: Node, bounds: Sequence[Array]) -> Array | None:
        match self.function:
            case "tanh" | "sin" | "cos":
                return np.ones(node.type.columns)
            case "log1p_abs":
                return np.log1p(bounds[0])
            case "exp" | "expm1":
                return np.exp(bounds[0])
        return None

    @property
    def _of_magnitude(self) -> Function:
        """The function that `log_abs` and `log1p_abs` compute of |x|; others as they are."""
        name = self.function.removesuffix("_abs")
        return self if name == self.function else replace(self, function=name)

    @property
    def encloses(self) -> bool:
        return self._of_magnitude.rises_from is not None

    def enclose(self, x: Range) -> Range:
        plain = self._of_magnitude
        if plain.rises_from is None:
            return anything(x.low)
        return rising(plain.evaluate, (x if plain is self else x.absolute()).at_least(plain.rises_from), ULPS)


def by_c_library(name: str, x: Array, *more: float) -> Array:
    """The function of each float64 number (and of the numbers `more`) as the C library computes it, which the compiled code of scipy and
    scikit-learn calls. Of 50,000 numbers, numpy's log differs for 124."""
    with np.errstate(all="ignore"):
        y = np.asarray(getattr(np, NUMPY_NAMES.get(name, name))(x, *more))
    ordinary = np.isfinite(x) & np.isfinite(y)  # Python raises an error where numpy gives infinity or NaN
    function, constants = getattr(math, name), map(itertools.repeat, more)
    y[ordinary] = list(map(function, x[ordinary].tolist(), *constants))  # 0.03 µs a number, a comprehension 0.1
    return y


NUMPY_NAMES = {"pow": "power"}
"""numpy's names of functions that have another name in the C library."""


@operator
class CPower(Operator):
    """y = x^exponent, f64, of numbers that are never negative, with the bits of the C library's pow (sklearn.metrics.DistanceMetric under
    Minkowski's metric).

    A search tree goes to the nearer child first, and to the left one if both are equally near: one bit of a power changes which of two
    equally distant points is a neighbour. In 1 of 7 BallTrees with p=3 over points with whole coordinates, `power` chose other neighbours
    than the source. ONNX Runtime and torch have no such power. Theirs differ for 2 % of the numbers, and so may the choice.
    """

    exponent: float

    columnwise = True

    def infer(self, x: TensorType) -> TensorType:
        require(x.dtype == "f64", "the operand must be f64")
        return x

    def evaluate(self, x: Array) -> Array:
        return by_c_library("pow", x, self.exponent)

    def lower(self, x: Node) -> Node:
        return t.power(x, self.exponent)

    def magnitude(self, node: Node, bounds: Sequence[Array]) -> Array | None:
        return np.power(bounds[0], self.exponent) if self.exponent > 0 else None


@operator
class CLogarithm(Operator):
    """y = ln x, f64, with the bits of the C library's log, which the compiled code of scipy calls. Only code that calls this library runs
    it as it is; elsewhere it becomes another logarithm, which differs for 0.2 % of the numbers."""

    columnwise = True

    def infer(self, x: TensorType) -> TensorType:
        require(x.dtype == "f64", "the operand must be f64")
        return x

    def evaluate(self, x: Array) -> Array:
        return by_c_library("log", x)

    def lower(self, x: Node) -> Node:
        return t.log(x)


@operator
class CExponential(Operator):
    """y = e^x, f32 or f64, with the bits of the C library's exp and expf, which scipy, LightGBM and XGBoost call. Only code that calls this
    library runs it as it is; elsewhere it becomes another exponential, which differs for 1 to 2 % of the numbers."""

    columnwise = True

    def infer(self, x: TensorType) -> TensorType:
        require(x.is_float, "the operand must be float")
        return x

    def evaluate(self, x: Array) -> Array:
        return by_c_library("exp", x)

    def lower(self, x: Node) -> Node:
        return t.exp(x)

    def magnitude(self, node: Node, bounds: Sequence[Array]) -> Array:
        return np.asarray(np.exp(bounds[0]))


ULPS = 4
"""How far numpy's logarithms and exponentials are from the exact ones at most: its own tests, and those of the vector library in it,
hold them to that (numpy/_core/tests/test_umath_accuracy.py)."""

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
    """y[N, K] = Π_d x[N, terms[K, D]] over the factors of each term; -1 is no factor. The product is made from the last factor to
    the first, since scikit-learn's PolynomialFeatures builds a term of degree d from one of degree d - 1. Float dtype kept."""

    terms: Array

    def infer(self, x: TensorType) -> TensorType:
        require(x.is_float and len(x.shape) == 2, "the operand must be a float matrix")
        require(bool((self.terms < x.columns).all()), f"terms name columns beyond {x.columns}")
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
        used = (terms >= 0).any(axis=0)  # a place that no term uses is 1; one place remains for the constant term
        terms = terms[:, used] if used.any() else terms[:, :1]
        return Polynomial(np.where(terms < 0, -1, np.searchsorted(columns[0], terms))), kept

    @staticmethod
    def _factor(x: Node, factor: Array) -> Node:
        chosen = t.take(x, np.maximum(factor, 0), axis=1)
        if (factor >= 0).all():
            return chosen
        return t.where(t.constant(factor < 0), t.constant(1.0, x.type.dtype), chosen)

    def looks_up(self, inputs: Sequence[Node]) -> Mapping[str | int, range]:
        return {"terms": range(-1, inputs[0].type.columns)}

    def magnitude(self, node: Node, bounds: Sequence[Array]) -> Array:
        factors = np.append(np.maximum(bounds[0], 1.0), 1.0)  # at least 1, so that no product on the way is larger
        return np.asarray(factors[self.terms].prod(axis=1))
