"""Leaf values as integers in fixed point, so that their sums don't depend on the order of trees, rows or threads: `fixed_point` chooses the
coarsest integers that are exact enough. How they are stored is in leaves.py and leaf_rows.py."""

from __future__ import annotations

import numpy as np

from hbc.ir.types import Array
from hbc.lazy import record
from hbc.ops.tree import TreeEnsemble

DIGIT = 6  # bits of a digit: the digits of four trees add up in a byte
FEWEST_DIGITS, MOST_DIGITS = 4, 9
EPS = float(np.finfo(np.float64).eps)  # twice what an operation of float64 rounds, over its result
PRECISE = 1 << 20  # units: an integer of this size has been rounded by a millionth of itself at most


@record
class FixedPoint:
    """Leaf values as integers of `digits` digits of 6 bits: values[:, c] ≈ (integers[:, c] + a number for each tree) / 2^exponent.

    integers i64[L, C], each ≥ 0. start i64[K]: the sums over the trees of their numbers; a row's sums begin with it. base f64[K].
    addend: values[:, c] + addend, as f64, has integers[:, c] + the number of the tree in its lowest bits, beside those of `addend`. None if
    that does not hold for all values.
    total: the sum of a row's integers over all V columns, if it is the same for every row, as it is for probabilities. C is V - 1 then,
    and the last sum follows from the others. None if it differs.
    error: no sum is further from the source's than this.
    close: where two sums of a row are further apart than this, or a single output is further from 0, the source decides for the same label,
    and sums need not have its bits (`near` of TreeEnsemble).
    exact: all sums are exact, here and in the source.
    few: a sum in 1 … few - 1 is too small to be precise to a millionth of its size. 0: there are no such sums.

    A value of 0 is exactly 0 here, and a value of 1 exactly 1 (exponent ≥ 0). No other value becomes 0, and none below 1 becomes 1. So a
    probability is 0 or 1 exactly where it is in the source, and no probability is below 0 or above 1.
    """

    exponent: int
    digits: int
    integers: Array
    start: Array
    addend: float | None
    base: Array
    total: int | None
    error: float
    close: float
    exact: bool
    few: int

    @property
    def columns(self) -> int:
        """The number C of columns of `integers`."""
        return int(self.integers.shape[1])


def fixed_point(op: TreeEnsemble) -> FixedPoint | None:
    """The coarsest fixed point that is exact enough, or None if even MOST_DIGITS digits are not.

    Its error is below 1e-10 of the typical sum of small leaves, one from each tree of an output, with random signs. For float32 it is
    below 1e-6 of that sum, a tenth of the source's own error. Small is the size that a tenth of a tree's leaves don't exceed. Small leaves
    are the measure because a few leaves may be huge: rows that don't reach those have small sums.
    """
    values, base = op.values.astype(np.float64), op.base.astype(np.float64)
    double, limits = op.values.dtype == np.float64, np.finfo(op.values.dtype)
    n_trees, tree = max(op.n_trees, 1), _tree_of_leaf(op)
    spans = _each(np.maximum, values, tree, n_trees) - _each(np.minimum, values, tree, n_trees)
    small = np.stack([_small(size, tree, n_trees) for size in np.abs(values).T], axis=1)
    added = _by_output(op, np.ones_like(small))
    trees = max(int(added.max(initial=0)), 1)  # that add to the same output
    # The rounding errors of an output's T leaves are independent. Six standard deviations of their sum are 6 · sqrt(T / 12) units. The
    # typical sum of small leaves also has a factor of sqrt(T): it is `typical` · sqrt(T).
    typical = np.sqrt(_by_output(op, small**2) / np.maximum(added, 1))
    scale = float(typical.min(initial=np.inf, where=typical > 0)) / np.sqrt(3.0)
    # An integer may be off by as many units as there are columns: see `_balanced`.
    room = 2 * (values.shape[1] + 1)
    for digits in range(FEWEST_DIGITS, MOST_DIGITS + 1):
        exponent = _exponent(max(float(spans.max(initial=0)), 2.0**-900), DIGIT * digits, room)
        if 2.0**-exponent <= (1e-10 if double else 1e-6) * scale:
            break
    else:
        return None
    # Sums wrap from 2^63 on. No output's sum is above `most`, nor is the sum of all its columns.
    most = _each(np.maximum, np.abs(values).sum(axis=1, keepdims=True).repeat(values.shape[1], axis=1), tree, n_trees)
    if np.ldexp(_by_output(op, most).max(initial=0.0), exponent) + room * trees >= 2.0**62:
        return None
    integers, total = _integers(values, exponent), None
    if double and (balanced := _balanced(values, integers, exponent)) is not None:
        integers, total = balanced[0][:, :-1], balanced[1] * op.n_trees
    least = _each(np.minimum, integers, tree, n_trees)
    start = np.zeros(op.n_outputs, np.int64)
    start[: op.n_outputs if total is None else -1] = _by_output(op, least)
    of_trees = _each(np.maximum, np.abs(values), tree, n_trees)
    largest = float((_by_output(op, of_trees) + np.abs(base)).max())
    exact = (
        np.array_equal(np.ldexp(np.rint(np.ldexp(values, exponent)), -exponent), values)
        and not base.any()
        and largest * 2.0 ** (exponent - _common_zeros(integers)) < 2.0**limits.nmant
    )
    # Here each leaf is off by a unit at most, and what is changed by `_balanced` by a unit a column and by what it takes for rounding.
    unit = 2.0**-exponent
    if total is not None:
        unit = (values.shape[1] + 1) * unit + 2 * values.shape[1] * EPS * float(np.abs(values).max())
    # The source rounds each partial sum by half of its last digit at most. What was rounded up makes the next sums larger: hence exp.
    half, eps = float(limits.eps) / 2, float(limits.eps)
    partial = _by_output(op, of_trees * _still_to_add(op.target)[:, None]) + added * np.abs(base)
    error = trees * unit + half * float(np.exp(2 * trees * half) * partial.max()) + 2 * EPS * largest
    # Labels may follow from quotients of sums, or from probabilities: these round, and small differences are lost.
    close = max((1 if op.n_outputs == 1 else 2) * error + 4 * eps * (1 + largest), op.near)
    positive = double and not exact and not base.any() and bool((values >= 0).all())
    few = PRECISE * trees if positive and np.ldexp(values.min(initial=np.inf, where=values > 0), exponent) < PRECISE else 0
    addend = _addend(values[:, : integers.shape[1]], integers, exponent)
    return FixedPoint(exponent, digits, integers - least[tree], start, addend, base, total, error, close, exact, few)


def _exponent(span: float, bits: int, room: int) -> int:
    """The largest exponent with span · 2^exponent + room ≤ 2^bits, for an even `room`."""
    mantissa, exponent = np.frexp(span)
    return int(bits - exponent - (np.ldexp(mantissa, bits) > 2.0**bits - room))


def _addend(values: Array, integers: Array, exponent: int) -> float | None:
    """`FixedPoint.addend` for f64 values and their integers, numbers of the trees included."""
    with np.errstate(over="ignore"):
        addend = np.ldexp(np.float64(1.5), 52 - exponent)
        added = values + addend
    same = np.isfinite(addend) and np.array_equal(bits_of(added) - bits_of(addend), integers)
    return float(addend) if same else None


def _integers(values: Array, exponent: int) -> Array:
    """i64: values · 2^exponent, rounded. No value but 0 becomes 0, and none between -1 and 1 becomes ±1: these get the integer beside."""
    rounded = np.abs(np.rint(np.ldexp(values, exponent)))
    rounded = np.where(values != 0, np.maximum(rounded, 1), 0)
    below_one = (np.abs(values) < 1) & (exponent > 0)
    rounded = np.where(below_one, np.minimum(rounded, 2.0**exponent - 1), rounded)
    return np.copysign(rounded, values).astype(np.int64)


def _balanced(values: Array, integers: Array, exponent: int) -> tuple[Array, int] | None:
    """(integers, total): the integers changed so that those of each leaf add up to `total`.

    The difference goes to the largest of a leaf's values that are rounded. None if the values of the leaves don't all add up to the same
    whole number, apart from rounding, or if the change would turn another value into 0, or a value below 1 into 1.
    """
    columns = values.shape[1]
    if columns < 2 or not len(values) or exponent < 0:
        return None
    sums = values.sum(axis=1)
    common = np.rint(sums[0])
    if np.abs(sums - common).max() > 2 * columns * np.finfo(np.float64).eps * np.abs(values).max():
        return None
    total = int(common) << exponent
    lacking = total - integers.sum(axis=1)
    rounded = np.ldexp(integers.astype(np.float64), -exponent) != values
    column = np.where(rounded, np.abs(values), -1.0).argmax(axis=1)
    leaf = np.arange(len(values))
    result = integers.copy()
    result[leaf, column] += lacking
    changed, value = np.abs(result[leaf, column]), np.abs(values[leaf, column])
    kept = rounded[leaf, column] & (changed > 0) & ((changed < 1 << exponent) | (value > 1))
    return (result, total) if np.all(kept | (lacking == 0)) else None


def _each(combine: np.ufunc, values: Array, tree: Array, trees: int) -> Array:
    """Each tree's leaves combined, for example by np.maximum: [T, V] from [L, V]."""
    order = np.argsort(tree, kind="stable")
    return combine.reduceat(values[order], np.searchsorted(tree[order], np.arange(trees)), axis=0)


def _small(sizes: Array, tree: Array, trees: int) -> Array:
    """[T] from [L]: for each tree, the size that a tenth of its leaves other than 0 don't exceed. 0 for a tree whose leaves are all 0."""
    sizes, tree = sizes[sizes > 0], tree[sizes > 0]
    order = np.lexsort((sizes, tree))
    starts = np.searchsorted(tree[order], np.arange(trees + 1))
    result = np.zeros(trees)
    some = np.diff(starts) > 0
    result[some] = sizes[order][(starts[:-1] + (np.diff(starts) - 1) // 10)[some]]
    return result


def _by_output(op: TreeEnsemble, values: Array) -> Array:
    """For each output, the sum over its trees: [K] from [T, V]. If `values` has fewer columns than the leaves, one sum for each of them."""
    result = np.zeros(op.n_outputs if op.values.shape[1] == values.shape[1] else values.shape[1], values.dtype)
    for column in range(values.shape[1]):
        np.add.at(result, op.target + column, values[:, column])
    return result


def _still_to_add(target: Array) -> Array:
    """i64[T]: for each tree, how many trees add to the same outputs from it on. So many partial sums have its value."""
    order = np.argsort(target, kind="stable")
    ordered = target[order]
    count = np.empty(len(order), np.int64)
    count[order] = np.searchsorted(ordered, ordered, side="right") - np.arange(len(order))
    return count


def _common_zeros(integers: Array) -> int:
    """The number of trailing zero bits that all integers share."""
    common = int(np.bitwise_or.reduce(integers, axis=None, initial=0))
    return (common & -common).bit_length() - 1 if common else 0


def _tree_of_leaf(op: TreeEnsemble) -> Array:
    """i64[L]: the tree of each leaf."""
    tree = np.zeros(len(op.values), np.int64)
    nodes, trees = op.roots, np.arange(op.n_trees)
    while len(nodes):
        leaf = op.feature[nodes] < 0
        tree[op.left[nodes[leaf]]] = trees[leaf]
        nodes, trees = nodes[~leaf], trees[~leaf]
        nodes, trees = np.concatenate([op.left[nodes], op.right[nodes]]), np.concatenate([trees, trees])
    return tree


def bits_of(values: Array) -> Array:
    """f64 → i64 of the same bits."""
    return np.asarray(values, np.float64).view(np.int64)
