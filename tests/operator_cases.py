"""THE table of operators: for each one its cases, with their operands. test_operators.py tests them on every backend.

To add an operator, say

    CASES["Standardize"] = [(Standardize(offset, scale), [rows("f32", 3)])]

Arrays are batched operands, all with ROWS rows; `fixed(array)` is an operand without rows. Results are compared exactly unless
TOLERANCES names the operator, with the reason.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from hbc.ir.graph import Operator
from hbc.ir.types import NUMPY_DTYPES, Array, type_of
from hbc.ops import tensor as t
from hbc.ops.barycentre import Barycentre
from hbc.ops.checks import Beside, Check, CheckLeast, CheckNotAll, CheckValues
from hbc.ops.columns import Categorize, Rank, SelectColumns, TakeByColumn
from hbc.ops.coupling import ClassProducts, PairSums, PairwiseCoupling
from hbc.ops.curves import BSplines, Interpolate, InterpolateBothWays, NormalQuantile, OnLines
from hbc.ops.encoding import Lookup, OneHot
from hbc.ops.functions import CExponential, CLogarithm, CPower, Function, Polynomial
from hbc.ops.hashed_categories import HashedValues, HashText, chained
from hbc.ops.linear import Linear, Logistic, LogSoftmax, Softmax, TableSum
from hbc.ops.median import WeightedMedian
from hbc.ops.missing import Impute, ImputeText, MissingText
from hbc.ops.nearest import Ascending, Distances, Present, PresentEntries, Scatter, ScatterEntries, Smallest
from hbc.ops.nmf import CoordinateDescent
from hbc.ops.scaling import Affine, Binarize, Clip, Normalize, Standardize
from hbc.ops.tree import CategoryPlanes, Tree, join

ROWS = 67  # odd, and more than the numbers in a vector register


class Fixed(NamedTuple):
    """An operand that is the same for all rows: a Constant of the graph."""

    array: Array


class Tolerance(NamedTuple):
    """|found - expected| ≤ atol + rtol · |expected| for float32 results; float64 gets 1e-7 of both."""

    rtol: float
    atol: float
    reason: str


CASES: dict[str, list[tuple[Operator, list[Array | Fixed]]]] = {}
TOLERANCES: dict[str, Tolerance] = {}

FLOATS = ("f32", "f64")
INTEGERS = ("i8", "u8", "i16", "u16", "i32", "i64")


def fixed(array: Any, dtype: str | None = None) -> Fixed:
    return Fixed(np.asarray(array, None if dtype is None else NUMPY_DTYPES[dtype]))


def specials(dtype: str) -> Array:
    """NaN, infinities, signed zeros, subnormals, the ends of the range, and numbers around which functions branch."""
    kind = NUMPY_DTYPES[dtype]
    if dtype == "bool":
        return np.array([True, False])
    if kind.kind in "iu":
        info = np.iinfo(kind)
        return np.array([info.min, info.max, 0, 1, info.max // 2], kind)
    info = np.finfo(kind)
    some = [
        np.nan,
        np.inf,
        0.0,
        info.smallest_subnormal,
        info.smallest_subnormal * 1000,
        info.tiny,
        info.max,
        info.eps,
        0.5,
        1.0,
        89.0,
        104.0,
    ]
    return np.array([*some, *(-value for value in some)], kind)


def rows(dtype: str, *shape: int, seed: int = 0, finite: bool = False) -> Array:
    """[ROWS, *shape] of random numbers; every fourth row holds special values (`finite`: none of them)."""
    rng = np.random.default_rng([seed, *shape])
    kind = NUMPY_DTYPES[dtype]
    if dtype == "bool":
        return rng.random((ROWS, *shape)) < 0.5
    if kind.kind in "iu":
        values = rng.integers(0 if kind.kind == "u" else -100, 101, (ROWS, *shape)).astype(kind)
    else:
        values = (rng.standard_normal((ROWS, *shape)) * 3).astype(kind)
    if not finite:
        values[::4] = rng.choice(specials(dtype), values[::4].shape)
    return values


def texts(columns: int) -> Array:
    """Strings, some missing."""
    choices = np.array(["a", "b", "", "ü", "z", None, np.nan], object)
    return choices[np.random.default_rng(columns).integers(0, len(choices), (ROWS, columns))]


def summable(dtype: str, *shape: int) -> Array:
    """As `rows`, without numbers so large that a sum could overflow in one order of its terms and not in another."""
    values = rows(dtype, *shape)
    values[np.isfinite(values) & (np.abs(values) > 1e30)] = 1000
    return values


def indices(dtype: str, size: int, *shape: int) -> Array:
    """[ROWS, *shape] of numbers below `size`."""
    return np.random.default_rng(size).integers(0, size, (ROWS, *shape)).astype(NUMPY_DTYPES[dtype])


def _dtypes(op: type[t.Unary | t.Binary]) -> tuple[str, ...]:
    return op.dtypes


# --- elementwise -----------------------------------------------------------------------------------------------------

FUNCTIONS = Tolerance(
    1e-6, 1e-37, "each library has its own approximation, correct to a few units in the last place; subnormals may be 0"
)
SUMS = Tolerance(1e-5, 1e-5, "the order of the terms is the compiler's")

for unary in (t.Neg, t.Abs, t.Exp, t.Expm1, t.Log, t.Log1p, t.Sqrt, t.Tanh, t.Sigmoid, t.Floor, t.IsNan, t.Not, t.Sin, t.Cos):
    CASES[unary.__name__] = [(unary(), [rows(dtype, 5)]) for dtype in _dtypes(unary)]
TOLERANCES.update(dict.fromkeys(("Exp", "Expm1", "Log", "Log1p", "Tanh", "Sin", "Cos", "Sigmoid", "Pow"), FUNCTIONS))

for binary in (t.Add, t.Sub, t.Mul, t.Div, t.Pow, t.Mod, t.Maximum, t.Minimum, t.Less, t.LessEqual, t.Equal, t.And, t.Or):
    CASES[binary.__name__] = [(binary(), [rows(dtype, 4), rows(dtype, 4, seed=1)]) for dtype in _dtypes(binary)]
    first = _dtypes(binary)[-1]
    CASES[binary.__name__] += [
        (binary(), [rows(first, 4), fixed(rows(first, 4, seed=2)[4])]),
        (binary(), [fixed(rows(first, 3, seed=3)[0][:, None]), rows(first, 1, 4)]),
        (binary(), [rows(first, 4), fixed(rows(first, 1)[0, 0])]),
    ]

CASES["Where"] = [
    (t.Where(), [rows("bool", 4), rows(dtype, 4), rows(dtype, 4, seed=1)]) for dtype in (*FLOATS, *INTEGERS, "bool")
]
CASES["Where"] += [
    (t.Where(), [rows("bool", 1), fixed(specials("f64")[:6]), rows("f64", 1)]),
    (t.Where(), [rows("bool", 3), fixed(1.5, "f32"), fixed(-2.5, "f32")]),
    (t.Where(), [fixed([True, False, True]), rows("f32", 3), rows("f32", 1)]),
]


def _casts() -> list[tuple[Operator, list[Array | Fixed]]]:
    cases: list[tuple[Operator, list[Array | Fixed]]] = []
    for source in (*FLOATS, *INTEGERS, "bool"):
        for target in (*FLOATS, *INTEGERS, "bool"):
            x = rows(source, 3)
            if source in FLOATS and target in INTEGERS:  # the cast of numbers beyond the range is undefined
                top = 120.0 if target[0] == "i" else 250.0
                x = np.clip(np.nan_to_num(x), -top if target[0] == "i" else 0.0, top)
            cases.append((t.Cast(target), [x.astype(NUMPY_DTYPES[source])]))  # type: ignore[arg-type]
    # Halfway between two float32, beyond the largest float32, and below the smallest.
    halves = np.array(
        [1 + 2.0**-24, 1 + 3 * 2.0**-24, 3.4028235677973366e38, 3.4028235677973362e38, 2.0**-150, 1.5 * 2.0**-149]
    )
    cases.append((t.Cast("f32"), [np.tile(halves, (ROWS, 1))]))
    return cases


CASES["Cast"] = _casts()

# --- products and reductions -----------------------------------------------------------------------------------------

CASES["MatMul"] = [(t.MatMul(), [summable(dtype, 5), fixed(rows(dtype, 3, finite=True)[:5])]) for dtype in FLOATS]
CASES["MatMul"] += [(t.MatMul(), [rows("f32", 0), fixed(np.zeros((0, 2)), "f32")])]
CASES["MatMul"] += [(t.MatMul(), [summable(dtype, 20), fixed(rows(dtype, 9, finite=True)[:20])]) for dtype in FLOATS]
CASES["MatMul"] += [(t.MatMul(), [summable(dtype, 20), fixed(rows(dtype, 70, finite=True)[:20])]) for dtype in FLOATS]
CASES["BlockMatMul"] = [
    (t.BlockMatMul(), [summable(dtype, 4, 3), fixed(rows(dtype, 3, 2, finite=True)[:4])]) for dtype in FLOATS
]
CASES["Sum"] = [(t.Sum(1), [summable(dtype, 7)]) for dtype in FLOATS]
# Integers without the ends of their range: ONNX Runtime adds them as floats, and no graph needs sums that overflow.
CASES["Sum"] += [(t.Sum(1), [rows(dtype, 7, finite=True)]) for dtype in INTEGERS]
CASES["Sum"] += [(t.Sum(axis, keepdims), [summable("f32", 3, 2)]) for axis in (1, 2) for keepdims in (False, True)]
CASES["Sum"] += [(t.Sum(1), [rows("f64", 0)])]
ORDERED_SUM = [
    (t.Sum(axis, keepdims, ordered=True), [rows(dtype, 301, 2, finite=finite)])
    for dtype in FLOATS
    for axis, keepdims in ((1, False), (1, True), (2, False))
    for finite in (False, True)
]
ORDERED_SUM += [(t.Sum(1, ordered=True), [rows("f32", 0)]), (t.Sum(1, ordered=True), [rows("i32", 5, finite=True)])]
for reduction in (t.Max, t.Min):
    CASES[reduction.__name__] = [(reduction(1), [rows(dtype, 5)]) for dtype in (*FLOATS, *INTEGERS)]
    CASES[reduction.__name__] += [(reduction(axis, True), [rows("f32", 3, 2)]) for axis in (1, 2)]


def _ties(dtype: str, width: int) -> Array:
    """Equal largest values and several NaN, at every distance."""
    values = np.random.default_rng(width).integers(0, 3, (ROWS, width)).astype(NUMPY_DTYPES[dtype])
    if dtype in FLOATS:
        values[1::3][np.random.default_rng(1).random(values[1::3].shape) < 2 / width] = np.nan
        values[2::3] = np.where(values[2::3] == 0, -np.inf, values[2::3])
        values[0] = [0.0, -0.0] * (width // 2) + [-0.0] * (width % 2)
    return values


CASES["ArgMax"] = [(t.ArgMax(1), [_ties(dtype, width)]) for dtype in (*FLOATS, *INTEGERS) for width in (3, 100)]
CASES["ArgMax"] += [
    (t.ArgMax(2), [_ties("f32", 24).reshape(ROWS, 3, 8)]),
    (t.ArgMax(1), [_ties("f64", 24).reshape(ROWS, 3, 8)]),
]
CASES["CumSum"] = [(t.CumSum(1), [rows("f64", width)]) for width in (1, 7)]
CASES["CumSum"] += [(t.CumSum(axis), [rows("f64", 24).reshape(ROWS, 3, 8)]) for axis in (1, 2)]
TOLERANCES.update(dict.fromkeys(("MatMul", "BlockMatMul", "Sum"), SUMS))


def _many_ties(dtype: str, width: int) -> Array:
    """Rows in which many numbers are equal, and some are infinite or missing."""
    values = np.random.default_rng(width).integers(0, 6, (ROWS, width)).astype(NUMPY_DTYPES[dtype])
    values[::5, ::3] = np.inf
    values[1::7, 1::4] = np.nan
    values[2] = np.inf
    values[3] = np.arange(width)[::-1]
    return values


def _orders(blocks: int) -> Array:
    return np.stack([np.random.default_rng(row).permutation(blocks) for row in range(ROWS)])


CASES["Smallest"] = [
    (t_smallest, [_many_ties(dtype, width)])
    for dtype in FLOATS
    for width, t_smallest in ((40, Smallest(5)), (7, Smallest(7)), (9, Smallest(1)), (30, Smallest(2)), (33, Smallest(20)))
]
CASES["Smallest"] += [
    (Smallest(k), [np.random.default_rng(k).normal(size=(ROWS, 50)).astype(np.float32)]) for k in (9, 10, 24, 31)
]
# So many columns that only candidates are sorted; the last group of columns is smaller than the others.
CASES["Smallest"] += [(Smallest(k), [_many_ties(dtype, 601)]) for dtype in FLOATS for k in (4, 12, 20, 31)]
CASES["Smallest"] += [(Smallest(k), [np.random.default_rng(k).normal(size=(ROWS, 300))]) for k in (3, 5, 10, 15)]
CASES["Smallest"] += [(Smallest(k, ties="heap"), [_many_ties("f64", 250)]) for k in (5, 15)]
CASES["Smallest"] += [(Smallest(k, 4), [_many_ties("f64", 40), _orders(10)]) for k in (1, 2, 6, 20, 31, 40)]
CASES["Smallest"] += [(Smallest(k, 4, "heap"), [_many_ties("f64", 12), _orders(3)]) for k in (5, 12)]
CASES["Smallest"] += [(Smallest(k, ties="heaps"), [_many_ties("f64", 15)]) for k in (4, 15)]
_signed = np.copysign(_many_ties("f64", 9), np.random.default_rng(9).uniform(-1, 1, (ROWS, 9)))  # with -0.0
CASES["Ascending"] = [(Ascending(), [values]) for values in (*(_many_ties("f64", width) for width in (1, 65, 130)), _signed)]
_numbers = np.random.default_rng(3).integers(0, 9, (ROWS, 4))
CASES["Scatter"] = [(Scatter(9), [_numbers, summable("f64", 4)])]
CASES["ScatterEntries"] = [(ScatterEntries(9), [_numbers, summable("f64", 4)])]
CASES["Present"] = [(Present(), [rows("f64", 5)])]
_gram = np.array([[2.0, 0.5, 0.1], [0.5, 1.0, 0.3], [0.1, 0.3, 1.5]])
CASES["CoordinateDescent"] = [
    (CoordinateDescent(_gram.astype(NUMPY_DTYPES[dtype]), 0.1, 0.0, 5, seed), [rows(dtype, 3, finite=True)])
    for dtype, seed in (("f32", -1), ("f64", 0))
]
_differences = np.random.default_rng(4).normal(size=(ROWS, 4, 3))
_differences[1] = 0  # a row that all its neighbours equal
CASES["Barycentre"] = [(Barycentre(1e-3), [_differences])]
TOLERANCES["Barycentre"] = Tolerance(1e-3, 1e-3, "equations of the condition 1e3, solved in two ways: 1e-10 in float64")
CASES["PresentEntries"] = [(PresentEntries(), [rows("f64", 5)])]


def _shares(classes: int) -> Array:
    """Probabilities of one class against another: some are 1/2, some are as certain as possible, and some contradict each other."""
    values = np.random.default_rng(classes).random((ROWS, classes * (classes - 1) // 2))
    values[::3] = np.where(values[::3] < 0.5, 1e-7, 1 - 1e-7)
    values[1::9] = 0.5
    return values


CASES["PairSums"] = [
    (
        PairSums(counts, np.random.default_rng(0).normal(size=(len(counts) - 1, sum(counts))).astype(np.float32)),
        [rows("f32", 8)],
    )
    for counts in ((3, 5), (1, 0, 4, 3), (2, 2, 2, 2))
]
CASES["ClassProducts"] = [
    (
        ClassProducts(counts, np.random.default_rng(0).normal(size=(outputs, sum(counts)))),
        [summable("f64", 8)],
    )
    for counts, outputs in (((3, 5), 1), ((1, 0, 4, 3), 3), ((2, 2, 2, 2), 9), ((8,), 2))
]
TOLERANCES["ClassProducts"] = SUMS
CASES["PairwiseCoupling"] = [
    (PairwiseCoupling(classes, single), [_shares(classes).astype(np.float32 if single else np.float64)])
    for classes in (2, 3, 7)
    for single in (False, True)
]
TOLERANCES["PairwiseCoupling"] = SUMS

# --- movement --------------------------------------------------------------------------------------------------------

CASES["Take"] = [
    (t.Take(0), [fixed(rows("f32", finite=False)), indices("i64", ROWS, 3)]),
    (t.Take(0), [fixed(rows("f64", 3)), indices("i32", ROWS)]),
    (t.Take(0), [fixed(rows("i64", 3)), indices("i64", ROWS, 2)]),
    (t.Take(0), [fixed(rows("bool")), indices("i32", ROWS, 2)]),
    (t.Take(1), [rows("f32", 5), fixed([4, 0, 0, 2])]),
    (t.Take(1), [rows("f64", 5), fixed([1, 2, 3])]),
    (t.Take(1), [rows("u16", 5), fixed(3)]),
    (t.Take(1), [rows("f32", 5), fixed([[4, 0], [1, 1]])]),
    (t.Take(2), [rows("f32", 3, 5), fixed([4, 1], "i32")]),
    (t.Take(1), [rows("f32", 5), fixed([], "i64")]),
]
CASES["TakeAlong"] = [
    (t.TakeAlong(), [rows(dtype, 5), indices(kind, 5, 7)]) for dtype, kind in (("f32", "i32"), ("f64", "i64"), ("u8", "i64"))
]
CASES["Concat"] = [
    (t.Concat(1), [rows(dtype, 2), rows(dtype, 0), rows(dtype, 3, seed=1)]) for dtype in (*FLOATS, "i64", "bool", "u8")
]
CASES["Concat"] += [(t.Concat(2), [rows("f32", 2, 3), rows("f32", 2, 1)]), (t.Concat(1), [rows("f32", 2)])]
CASES["Reshape"] = [
    (t.Reshape(("N", 2, 3)), [rows("f32", 6)]),
    (t.Reshape(("N", 6)), [rows("i64", 3, 2)]),
    (t.Reshape(("N",)), [rows("f64", 1)]),
    (t.Reshape(("N", 0)), [rows("f64", 3, 0)]),
    (t.Reshape(("N", 1, 1)), [rows("bool")]),
]

# --- models ----------------------------------------------------------------------------------------------------------

CASES["Check"] = [(Check("sklearn.Some"), [rows("f32", 3)])]
CASES["SelectColumns"] = [
    (SelectColumns(np.array([2, 0, 0])), [rows("f32", 3)]),
    (SelectColumns(np.array([1, 2])), [rows("i64", 3)]),
    (SelectColumns(np.array([], np.int64)), [rows("f64", 3)]),
]


def _edges(dtype: str) -> Array:
    """Three columns whose edges are values of rows(dtype, 3) and special values, padded with the largest."""
    top = np.array(np.inf if dtype in FLOATS else np.iinfo(NUMPY_DTYPES[dtype]).max, NUMPY_DTYPES[dtype])
    x = rows(dtype, 3)
    columns = [np.unique(values[~np.isnan(values)]) for values in (x[1:40, 0], specials(dtype), x[:4, 2])]
    width = max(map(len, columns)) + 2
    return np.stack([np.concatenate([column, np.full(width - len(column), top)]) for column in columns]).astype(top.dtype)


CASES["Rank"] = [(Rank(_edges(dtype)), [rows(dtype, 3)]) for dtype in ("f32", "f64", "i64")]
CASES["Rank"] += [(Rank(np.full((3, 1), 0.0)), [rows("f64", 3)]), (Rank(np.zeros((2, 0))), [rows("f64", 2)])]
CASES["TakeByColumn"] = [
    (TakeByColumn(rows(dtype, 5)[:7].T.copy()), [indices(index, 7, 5)])
    for dtype, index in (("f64", "i32"), ("f32", "i64"), ("i64", "i32"), ("bool", "i32"))
]
CASES["Categorize"] = [
    (Categorize(np.array([3.0, -1.0, 0.0, np.inf]), nan=7, unknown=9), [rows("f64", 1).round()]),
    (Categorize(np.array([], np.float32), nan=1), [rows("f32", 1)]),
    (Categorize(np.array([5, -3, 0, 40])), [rows("i64", 1)]),
    (
        Categorize(np.array(["b", "a", "ü", ""]), nan=5, none=6, unknown=7),
        [texts(1)],
    ),
]
CASES["HashText"] = [(HashText(), [np.array(["a", "", "ü" * 9, "x" * 20, "y" * 40, "z" * 200], object)[indices("i64", 6, 2)]])]
_COMBINATIONS = np.array([[0, 2], [1, -1]])
_HASHES = [np.unique(hashes[:9]).view(np.int64) for hashes in chained(rows("i64", 3), _COMBINATIONS)]
_ENDS = np.cumsum([0, *(len(hashes) + 1 for hashes in _HASHES)])
CASES["HashedValues"] = [
    (
        HashedValues(
            elements=_COMBINATIONS,
            known=np.concatenate([np.append(hashes, 0) for hashes in _HASHES]),
            starts=_ENDS,
            of=np.array([1, 0, 1]),
            values=np.arange(_ENDS[1] + 2 * (_ENDS[2] - _ENDS[1]), dtype=np.float32),
        ),
        [rows("i64", 3)],
    )
]
CASES["Linear"] = [
    (Linear(rows(dtype, 3, finite=True)[:5], rows(dtype, 3, finite=True)[0]), [summable(dtype, 5)]) for dtype in FLOATS
]
CASES["Softmax"] = [(Softmax(), [rows(dtype, 4)]) for dtype in FLOATS] + [(Softmax(), [rows("f64", 24).reshape(ROWS, 3, 8)])]
CASES["LogSoftmax"] = [(LogSoftmax(), [rows(dtype, 4)]) for dtype in FLOATS]
CASES["Logistic"] = [(Logistic(exact), [rows(dtype, 4)]) for dtype in FLOATS for exact in (False, True)]
TOLERANCES["Linear"] = SUMS
CASES["TableSum"] = [
    (TableSum(summable(dtype, width)[:20]), [indices(places, 20, codes)])
    for dtype, places in (("f32", "i32"), ("f64", "i64"))
    for width, codes in ((1, 3), (3, 1), (9, 4), (40, 5))
]
TOLERANCES["TableSum"] = SUMS
TOLERANCES["Softmax"] = TOLERANCES["LogSoftmax"] = TOLERANCES["Logistic"] = FUNCTIONS

_POINTS = rows("f64", 3, finite=True).round(1)
CASES["Distances"] = [
    (Distances(points.astype(NUMPY_DTYPES[dtype]), metric, 3.0 if metric == "power" else 2.0, weights), [summable(dtype, 3)])
    for dtype in FLOATS
    for metric, weights in (
        ("squared", None),
        ("squared", np.array([0.1, 3.0, 2.0])),
        ("rounded", None),
        ("absolute", None),
        ("power", None),
        ("power", np.array([0.1, 3.0, 2.0])),
        ("canberra", None),
        ("chi2", None),
        ("unequal", None),
        ("largest", None),
    )
    for points in (_POINTS,)
]
CASES["Distances"] += [
    (Distances(rows(dtype, 40, finite=True), metric), [summable(dtype, 40)])
    for dtype, metric in (("f64", "squared"), ("f32", "rounded"))
]
TOLERANCES["Distances"] = FUNCTIONS

# --- features --------------------------------------------------------------------------------------------------------

# Parameters of both dtypes: each step is computed in the wider dtype and rounded to that of x.
_SCALES = [np.array([3.0, 0.1, 1e-3, 1e300]), np.array([3.0, 0.1, 1e-3, 1e38], np.float32)]
CASES["Standardize"] = [(Standardize(1 / scale, scale), [rows(dtype, 4)]) for dtype in FLOATS for scale in _SCALES]
CASES["Standardize"] += [(Standardize(None, _SCALES[0]), [rows("f32", 4)]), (Standardize(_SCALES[0], None), [rows("f64", 4)])]
CASES["Affine"] = [(Affine(scale, 1 / scale), [rows(dtype, 4)]) for dtype in FLOATS for scale in _SCALES]
CASES["Clip"] = [(Clip(-0.1, 2.5), [rows(dtype, 4)]) for dtype in FLOATS] + [(Clip(-np.inf, 1e300), [rows("f64", 4)])]
CASES["Normalize"] = [(Normalize(norm), [summable(dtype, 4)]) for dtype in FLOATS for norm in ("l1", "l2", "max")]
TOLERANCES["Normalize"] = Tolerance(1e-6, 0, "the order of the terms is the compiler's")
CASES["Binarize"] = [(Binarize(0.1, compared), [rows(dtype, 3)]) for dtype in FLOATS for compared in ("f32", "f64")]
CASES["Binarize"] += [(Binarize(2, "i64"), [rows("i64", 3)])]
CASES["CPower"] = [(CPower(exponent), [rows("f64", 3)]) for exponent in (3.0, 1 / 3, 1.5, -0.5)]
TOLERANCES["CPower"] = FUNCTIONS  # torch and ONNX Runtime have other powers. test_neighbors.py compares tvm's bits.
CASES["CLogarithm"] = [(CLogarithm(), [rows("f64", 3)])]
CASES["CExponential"] = [(CExponential(), [rows(dtype, 3)]) for dtype in FLOATS]
TOLERANCES["CLogarithm"] = TOLERANCES["CExponential"] = FUNCTIONS
CASES["Function"] = [(Function(name), [rows("f32", 3)]) for name in ("log", "log1p", "sqrt", "exp", "expm1", "tanh")]
CASES["Function"] += [(Function(name), [rows("f64", 3)]) for name in ("log_abs", "log1p_abs", "sin", "cos", "log2", "log10")]
CASES["Function"] += [(Function("power", exponent=exponent), [rows("f64", 3)]) for exponent in (3.0, -1.5)]
TOLERANCES["Function"] = FUNCTIONS
_STEPS = np.array([[-2.0, -2.0, 0.1, 0.1, 3.0], [0.0, 1.0, 2.0, 5.0, 5.0]])
_POINTS = [(xs, np.cumsum(np.abs(xs), axis=1)) for xs in (_STEPS, _STEPS[:, :1], _STEPS * 1e-310, _STEPS[:, ::4])]
CASES["Interpolate"] = [(Interpolate(xs, np.cumsum(xs, axis=1)), [rows("f64", 2)]) for xs in (_STEPS, _STEPS[:, :1])]
CASES["InterpolateBothWays"] = [
    (InterpolateBothWays(xs, ys), [np.concatenate([xs.T, rows("f64", 2)[xs.shape[1] :]])]) for xs, ys in _POINTS
]
CASES["OnLines"] = [(OnLines(rows("f64", 7, 4)[1:4, :n].copy()), [rows("f64", 3), indices("i32", n - 1, 3)]) for n in (2, 7)]
CASES["NormalQuantile"] = [
    (NormalQuantile(), [np.random.default_rng(7).random((ROWS, 3)) ** 8]),
    (NormalQuantile(), [rows("f64", 2)]),
    (NormalQuantile(exact=True), [rows("f64", 2)]),
]
TOLERANCES["NormalQuantile"] = FUNCTIONS
CASES["BSplines"] = [
    (BSplines(np.sort(rows("f64", 9, finite=True)[:2], axis=1), degree, period, outputs, spreads), [rows("f64", 2)])
    for degree, period, outputs, spreads in ((0, 8, 8, True), (1, 7, 6, False), (3, 5, 5, True), (3, 3, 2, False))
]
CASES["BSplines"] += [(BSplines(np.repeat([[0.0, 1.0, 2.0]], 3, axis=1), 2, 6, 6), [rows("f64", 1)])]
CASES["Polynomial"] = [
    (Polynomial(np.array([[-1, -1, -1], [-1, -1, 0], [-1, 2, 2], [0, 1, 2], [1, 1, 1]])), [rows(dtype, 3)]) for dtype in FLOATS
]
CASES["Impute"] = [(Impute(rows(dtype, 3, finite=True)[0]), [rows(dtype, 3)]) for dtype in FLOATS]
CASES["MissingText"] = [
    (MissingText(nan=nan, none=none, value=value), [texts(2)])
    for nan, none, value in ((True, False, None), (False, True, ""), (False, False, "ü"))
]
CASES["ImputeText"] = [(ImputeText(np.array(["x", "yy"])), [rows("bool", 2), texts(2)])]
CASES["Lookup"] = [
    (
        Lookup(
            np.sort(np.unique(rows(dtype, 2)[1:9])[:10].reshape(2, 5), axis=1),
            np.array([[4, 0, 1, 2, 3], [1, 0, 1, 0, 7]], NUMPY_DTYPES[codes]),
            np.array([-1, 9], NUMPY_DTYPES[codes]),
            np.array([-2, 9], NUMPY_DTYPES[codes]),
        ),
        [rows(dtype, 2)],
    )
    for dtype in ("f32", "f64", "i64")
    for codes in ("f64", "i64")
]
CASES["Lookup"] += [  # integers close to one another, which index a table
    (
        Lookup(
            np.array([[-1, 0, 1], [1, 2, 2]], NUMPY_DTYPES[dtype]),
            np.array([[0.5, 0, 1], [np.nan, 3, -2]]),
            np.array([-1.0, -2]),
            np.array([-2.0, 9]),
        ),
        [rows(dtype, 2)],
    )
    for dtype in ("f32", "f64", "i32", "i64")
]
CASES["OneHot"] = [
    (
        OneHot(np.array([0, 1, 1, 0, 1]), np.array([np.nan, 0.0, np.inf, 1.0, np.nan], NUMPY_DTYPES[dtype]), "f64"),
        [rows(dtype, 2)],
    )
    for dtype in FLOATS
]
CASES["OneHot"] += [(OneHot(np.array([1, 0]), np.array([0, 5]), "f32"), [rows("i64", 2)])]
_YES = np.ones(2, bool)
CASES["Beside"] = [(Beside(), [rows("f64", 3), rows("i64", 2)])]
CASES["CheckLeast"] = [(CheckLeast("Some", least=-1.0, exclusive=True), [rows("f64", 3)])]
CASES["CheckNotAll"] = [
    (
        CheckNotAll(
            "Some", values=np.ones((2, 1), np.int8), counts=np.ones(2, np.int64), nan=_YES, none=_YES, columns=("a", "b")
        ),
        [rows("i8", 2)],
    )
]
CASES["CheckValues"] = [
    (
        CheckValues("Some", values=np.zeros((2, 1)), counts=np.array([1, 0]), nan=_YES, none=_YES, columns=("a", "b")),
        [rows("f64", 2)],
    )
]

# --- trees -----------------------------------------------------------------------------------------------------------


def random_trees(dtype: str, depths: list[int], outputs: int = 1, values: str = "f64", vector: bool = False) -> Any:
    """An ensemble over 5 columns of trees of about the same depth. Its thresholds are values that rows(dtype, 5) has."""
    rng = np.random.default_rng(0)
    x = rows(dtype, 5)
    trees = []
    for depth in depths:
        feature, threshold, left, right = [-1], [0.0], [0], [0]
        level = [0]
        for deep in range(depth):
            below = []
            for node in level if deep == 0 else [node for node in level if rng.random() < 0.8] or level[:1]:
                feature[node] = int(rng.integers(5))
                column = x[:, feature[node]]
                threshold[node] = float(rng.choice(column[np.isfinite(column)]))
                left[node], right[node] = len(feature), len(feature) + 1
                below += [left[node], right[node]]
                feature, left, right = feature + [-1] * 2, left + [0] * 2, right + [0] * 2
                threshold += [0.0] * 2
            level = below
        size = len(feature)
        leaf_values = rng.standard_normal((size, outputs if vector else 1)).astype(NUMPY_DTYPES[values])
        trees.append(
            Tree(
                np.array(feature),
                np.array(threshold, NUMPY_DTYPES[dtype]),
                np.array(left),
                np.array(right),
                rng.random(size) < 0.5,
                leaf_values,
                rng.permutation(size),
            )
        )
    target = None if vector else np.arange(len(trees)) % outputs
    return join(trees, rng.standard_normal(outputs), target)


# Single leaves, mixed depths, scalar leaves for several outputs, vector leaves, both dtypes of values, infinite leaves.
_ENSEMBLES = [
    random_trees("f32", [3, 0, 5, 1, 2, 4, 3], outputs=3, values="f32"),
    random_trees("f64", [2, 6, 4], values="f64"),
    random_trees("f32", [0], values="f64"),
    random_trees("f64", [1, 3, 0, 4], outputs=2, values="f64", vector=True),
    random_trees("f32", [5] * 60, values="f32"),
]
_ENSEMBLES.append(replace(_ENSEMBLES[1], values=np.where(_ENSEMBLES[1].values > 1.5, np.inf, _ENSEMBLES[1].values)))
CASES["TreeEnsemble"] = [
    (replace(op, strategy=strategy, output=output, exact=True), [rows(type_of(op.threshold).dtype, 5)])
    for op in _ENSEMBLES
    for strategy in ("auto", "gemm", "tree_trav", "perf_tree_trav")
    for output in ("sum", "leaf")
]
INEXACT_SUM = [(op, [rows(type_of(op.threshold).dtype, 5)]) for op in _ENSEMBLES]
"""Ensembles whose sums a compiler may add in its own order, which makes a difference in float32 but not in float64."""
CASES["WeightedMedian"] = [
    (WeightedMedian(np.array(weights)), [np.round(rows(dtype, len(weights)), 0)])  # rounded, for equal values
    for dtype in FLOATS
    for weights in ([2.0], [0.5, 0.25, 1.3], [1.0, 0.0, 1.0, 1.0], [0.7, 0.1, 0.4, 0.3, 0.9, 2.2, 0.6])
]
CASES["WeightedMedian"] += [
    (WeightedMedian(np.random.default_rng(width).random(width), staged), [rows(dtype, width)])
    for dtype in FLOATS
    for width in (1, 6)
    for staged in (False, True)
]
CASES["CategoryPlanes"] = [
    (
        CategoryPlanes(
            columns=np.array([0, 2, 0, 1]),
            categories=np.array([1, 2, 5, 0, 1, large, 3]),
            offsets=np.array([0, 3, 3, 6, 7]),
            inside=np.array([False, True, False, True]),
            missing=np.array([True, False, False, True]),
            invalid=np.array([True, False, True, False]),
            truncate_negative=truncate,
        ),
        [rows(dtype, 3)],
    )
    for dtype in FLOATS
    for truncate in (False, True)
    for large in (7, 1 << 23)
]
