"""How large a value inside the graph can be, given how large the inputs are: interval arithmetic on magnitudes."""

from __future__ import annotations

import numpy as np

from hbc.ir.graph import Constant, Graph, Input, Node
from hbc.ir.types import NUMPY_DTYPES, Array
from hbc.ops import tensor as t
from hbc.ops.checks import Check
from hbc.ops.columns import Categorize, Rank, SelectColumns
from hbc.ops.curves import Interpolate, NormalQuantile
from hbc.ops.features import Affine, Binarize, Clip, Function, Impute, Lookup, Normalize, OneHot, Polynomial, Standardize
from hbc.ops.linear import Linear, Logistic, LogSoftmax, Softmax
from hbc.ops.nearest import Distances, Smallest
from hbc.ops.text import DivideByNorm, Entries, Weigh
from hbc.ops.tree import TreeEnsemble

CANDIDATES = (1e100, 1e50, 1e30, 1e18, 1e12, 1e9, 1e6, 1e4, 1e2, 10.0, 1.0)
MARGIN = 1e-3  # for the rounding of intermediate steps, far more than it takes


def safe_magnitude(graph: Graph, limit: float = np.inf) -> float:
    """A magnitude such that inputs up to it give values of the graph's only output, and of every step, that are finite and at most
    `limit`; 0.0 where that is not known."""
    ((value,),) = graph.outputs.values()
    for candidate in CANDIDATES:
        largest = _largest(graph, value, candidate)
        if largest is None:
            return 0.0
        if np.isfinite(largest) and largest <= limit * MARGIN:
            return candidate
    return 0.0


def _largest(graph: Graph, value: Node, inputs: float) -> float | None:
    """The largest magnitude of the value; inf where a step can overflow, None where an operator is not known here."""
    bounds: dict[Node, Array] = {}
    for node in graph.nodes:
        if isinstance(node.op, Input):
            bound: Array | None = np.full(_width(node), inputs)
        else:
            bound = _bound(node, [bounds[source] for source in node.inputs])
        if bound is None:
            return None
        if node.type.is_float and not (_fits(bound, node.type.dtype) | _is_infinite(node)).all():
            return np.inf
        bounds[node] = np.broadcast_to(bound, _width(node))
    return float(bounds[value].max(initial=0.0))


def _fits(bound: Array, dtype: str) -> Array:
    return np.asarray(bound <= MARGIN * float(np.finfo(NUMPY_DTYPES[dtype]).max))


def _is_infinite(node: Node) -> Array | bool:
    """The columns that are infinite whatever the input is, not because a step overflows."""
    match node.op:
        case Constant():
            return True
        case Distances(points):
            return np.asarray(~np.isfinite(points).all(axis=1))
    return False


def _width(node: Node) -> int:
    last = node.type.shape[-1] if node.type.shape else 1
    return last if isinstance(last, int) else 1


def _bound(node: Node, sources: list[Array]) -> Array | None:
    op = node.op
    with np.errstate(all="ignore"):
        match op:
            case Check() | t.Cast() | t.Neg() | t.Abs():
                return sources[0]
            case SelectColumns():
                return sources[0][op.indices]
            case t.Concat(axis=1):
                return np.concatenate(sources)
            case Standardize():
                bound = sources[0] + np.abs(0.0 if op.offset is None else op.offset.astype(np.float64))
                return bound if op.scale is None else bound / np.abs(op.scale.astype(np.float64))
            case Affine():
                return sources[0] * np.abs(op.scale.astype(np.float64)) + np.abs(op.offset.astype(np.float64))
            case Clip():
                return np.minimum(sources[0], max(abs(op.low), abs(op.high)))
            case Impute():
                return np.maximum(sources[0], np.abs(op.fill.astype(np.float64)))
            case OneHot():
                return np.ones(len(op.source))
            case Polynomial():
                factors = np.append(np.maximum(sources[0], 1.0), 1.0)  # at least 1, so that no product on the way is larger
                return factors[op.terms].prod(axis=1)
            case Rank():
                return np.full(op.edges.shape[0], float(op.edges.shape[1]))
            case Lookup():
                codes = np.column_stack([op.codes, op.unknown, op.missing]).astype(np.float64)
                return np.nanmax(np.abs(codes), axis=1, initial=0.0)
            case Categorize():
                return np.full(1, float(max(len(op.categories), abs(op.nan), abs(op.none), abs(op.unknown))))
            case Function("tanh" | "sin" | "cos"):
                return np.ones(node.type.columns)
            case Function("log_abs"):
                return np.maximum(np.log(sources[0]), 745.0)  # of the smallest positive number
            case Function("log1p_abs"):
                return np.log1p(sources[0])
            case Interpolate():
                return np.abs(op.ys).max(axis=1)
            case NormalQuantile():
                return np.full(node.type.columns, 8.0)
            case Function("exp" | "expm1"):
                return np.exp(sources[0])
            case Entries():
                return sources[0]
            case Weigh(idf, sublinear=False):
                return sources[0] * np.abs(1.0 if idf is None else idf)
            case Binarize() | Normalize() | DivideByNorm() | Softmax() | Logistic() | t.Tanh() | t.Sigmoid():
                return np.ones(_width(node))
            case Distances():
                return _distances(node, sources[0])
            case Smallest(k):
                found = np.isfinite(np.sort(sources[0])[:k]) & _has_numbers(node.inputs[0])
                return np.where(found, len(sources[0]) - 1.0, float(len(sources[0])))
            case t.TakeAlong():
                found = _is_smallest(node) and (sources[1] < len(sources[0])).all()
                return np.sort(sources[0])[: _width(node)] if found else np.full(_width(node), sources[0].max(initial=0.0))
            case t.Equal() if _is_beyond(node.inputs[1], node.inputs[0], sources[0]):
                return np.zeros(_width(node))
            case t.IsNan() | t.Less() | t.LessEqual() | t.Equal() | t.And() | t.Or() | t.Not():
                return np.ones(_width(node))
            case TreeEnsemble(output="sum"):
                return np.abs(op.base.astype(np.float64)) + op.n_trees * np.abs(op.values.astype(np.float64)).max(initial=0.0)
            case LogSoftmax():
                return np.full(_width(node), 2 * sources[0].max() + np.log(_width(node)))
            case t.Exp() if isinstance(node.inputs[0].op, LogSoftmax) or _never_positive(node.inputs[0]):
                return np.ones(_width(node))
            case t.Div() if _is_share(node):
                return np.ones(_width(node))
            case t.Sum(axis=axis):
                size, last = int(node.inputs[0].type.shape[axis]), axis == len(node.inputs[0].type.shape) - 1
                return np.full(_width(node), sources[0].sum()) if last else sources[0] * size
            case t.CumSum(axis=axis):
                return np.full(_width(node), sources[0].max() * int(node.type.shape[axis]))
            case t.Max() | t.Min() | t.Reshape() | t.Take():
                same = _width(node) == len(sources[0]) and not isinstance(op, t.Take)
                return sources[0] if same else np.full(_width(node), sources[0].max(initial=0.0))
            case t.ArgMax(axis=axis):
                return np.full(_width(node), float(node.inputs[0].type.shape[axis]))
            case t.Floor():
                return sources[0] + 1.0
            case Constant(value):
                return _by_column(value).max(axis=0)
            case Linear():
                return sources[0] @ np.abs(op.coef.astype(np.float64)) + np.abs(op.intercept.astype(np.float64))
            case t.MatMul() if isinstance(node.inputs[1].op, Constant):
                return sources[0] @ np.abs(node.inputs[1].op.value.astype(np.float64))
            case t.Add() | t.Sub():
                return np.add(*sources)
            case t.Mul():
                return np.multiply(*sources)
            case t.Div() if isinstance(node.inputs[1].op, Constant):
                return sources[0] / _by_column(node.inputs[1].op.value).min(axis=0)
            case t.Div() if isinstance(node.inputs[1].op, t.Where):
                divisors = node.inputs[1].inputs[1:]
                if all(isinstance(d.op, Constant) for d in divisors):
                    return sources[0] / np.minimum(*(_by_column(d.op.value).min(axis=0) for d in divisors))  # type: ignore[attr-defined]
            case t.Sqrt() if _never_negative(node.inputs[0]):
                return np.sqrt(sources[0])
            case t.Where():
                return np.maximum(sources[1], sources[2]) if sources[0].any() else sources[2]
            case t.Reshape():
                return np.full(_width(node), sources[0].max(initial=0.0))
            case t.Maximum() | t.Minimum():
                return np.maximum(*sources)
    return None


def _distances(node: Node, x: Array) -> Array | None:
    op = node.op
    assert isinstance(op, Distances)
    dtype = node.inputs[0].type.dtype
    reach = x + np.abs(op.points.astype(np.float64))
    weights = 1.0 if op.weights is None else op.weights
    match op.metric:
        case "squared":
            total = (reach * reach / weights).sum(axis=1)
        case "absolute":
            total = reach.sum(axis=1)
        case "largest":
            total = reach.max(axis=1)
        case "power":
            total = (reach**op.p * weights).sum(axis=1)
        case "canberra" | "unequal":
            total = np.full(len(reach), float(reach.shape[1]))
        case _:
            return None
    # Differences and sums of f32 are rounded to it.
    return np.where(_fits(reach.max(axis=1), dtype) & _fits(total, dtype), total, np.inf)


def _has_numbers(x: Node) -> bool:
    """Whether these are distances of rows without NaN, or what is above 0 is chosen, which NaN is not."""
    if isinstance(x.op, t.Where) and isinstance(x.inputs[0].op, t.Less):
        return x.inputs[0].inputs[1] is x.inputs[1] and isinstance(x.inputs[2].op, Constant)
    if not isinstance(x.op, Distances) or x.op.creates_missing:
        return False
    (x,) = x.inputs
    while isinstance(x.op, t.Cast):
        (x,) = x.inputs
    return isinstance(x.op, Check) and not x.op.allow_nan


def _is_smallest(node: Node) -> bool:
    """Whether TakeAlong takes the smallest of its operand's own numbers, in their order: the i-th is at most the i-th smallest bound."""
    x, places = node.inputs
    if isinstance(places.op, t.Minimum):
        places = places.inputs[0]
    return isinstance(places.op, Smallest) and places.inputs[0] is x


def _is_beyond(number: Node, x: Node, bound: Array) -> bool:
    """Whether x, integers, never gets as far as a number."""
    return not x.type.is_float and isinstance(number.op, Constant) and bool((bound < np.abs(number.op.value).min()).all())


def _never_negative(node: Node) -> bool:
    """Besides what `_at_least_zero` says, numbers of which there need not be one above 0."""
    match node.op:
        case t.Sqrt() | t.Abs():
            return True
        case Distances(metric=metric, weights=weights):
            return metric != "chi2" and (weights is None or bool((weights >= 0).all()))
        case t.Mul():
            return node.inputs[0] is node.inputs[1] or all(map(_never_negative, node.inputs))
        case t.Maximum():
            return any(map(_never_negative, node.inputs))
        case t.Add() | t.Div():
            return all(map(_never_negative, node.inputs))
        case t.Where():
            return all(map(_never_negative, node.inputs[1:]))
        case t.Cast() | Check() | t.TakeAlong() | t.Sum():
            return _never_negative(node.inputs[0])
    return _at_least_zero(node)


def _never_positive(node: Node) -> bool:
    match node.op:
        case t.Neg():
            return _never_negative(node.inputs[0])
        case t.Mul():
            return any(_never_negative(a) and _never_positive(b) for a, b in (node.inputs, node.inputs[::-1]))
        case t.Div():
            return _never_positive(node.inputs[0]) and _never_negative(node.inputs[1])
        case Constant(value):
            return bool((value <= 0).all())
    return False


def _is_share(node: Node) -> bool:
    """Whether a division is that of numbers ≥ 0 by their own sum, or by another number where that is 0."""
    part, whole = node.inputs
    if isinstance(whole.op, t.Where):
        whole = whole.inputs[2]
    return isinstance(whole.op, t.Sum) and whole.inputs[0] is part and _at_least_zero(part)


def _at_least_zero(node: Node) -> bool:
    op = node.op
    if isinstance(op, Constant):
        return bool((op.value >= 0).all())
    if isinstance(op, Interpolate):
        return bool((op.ys >= 0).all())
    if isinstance(op, t.Sub):  # 1 - p
        one, p = node.inputs
        return isinstance(one.op, Constant) and bool((one.op.value == 1).all()) and isinstance(p.op, Logistic)
    if isinstance(op, t.Take):
        return _at_least_zero(node.inputs[0])
    if isinstance(op, t.Where):
        return all(map(_at_least_zero, node.inputs[1:]))
    if isinstance(op, (t.Concat, t.Reshape, t.Cast)):
        return all(map(_at_least_zero, node.inputs))
    return isinstance(op, (Logistic, Softmax, t.Sigmoid, t.Exp))


def _by_column(value: Array) -> Array:
    """Magnitudes as a matrix [rows, columns]."""
    magnitudes = np.abs(value.astype(np.float64))
    return magnitudes.reshape(-1, value.shape[-1] if value.ndim else 1)
