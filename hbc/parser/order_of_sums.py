"""Where the order in which a library adds the leaves of trees shows in its predictions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TypeGuard

import numpy as np

from hbc.ir.graph import Graph, Node, Operator, topological
from hbc.ir.rewrite import rewrite, substitute
from hbc.ir.types import ATOL, RTOL, Array
from hbc.ops import tensor as t
from hbc.ops.tree import TreeEnsemble

ROWS = 1024
TIMES, MOST_NEAR = 4, 0.5
"""How many times the errors of random rows the tolerance must be where a single output has another order; and the share of these rows that
may need the source's. To add a row again takes half of the time of a walk."""


def in_order(nodes: Sequence[Node], among: Collection[Node] | None = None) -> list[Node]:
    """The nodes, computed from sums of trees with the source's bits: of all ensembles, or of those `among`."""
    exact: dict[Node, Node] = {}
    for node in topological(nodes):
        if _in_any_order(node.op) and (among is None or node in among):
            exact[node] = with_order(node.op, 0.0)(*substitute(node.inputs, exact))
    return substitute(nodes, exact)


def _in_any_order(op: Operator) -> TypeGuard[TreeEnsemble]:
    """Whether op gives sums of trees that may be added in any order, all of them or those far from 0."""
    return isinstance(op, TreeEnsemble) and op.output == "sum" and not (op.exact and not op.near)


def with_needed_order(graph: Graph) -> Graph:
    """The graph, in which sums of trees have the source's bits where a method needs them: before every operator that `jumps`; and before
    arithmetic, where `near` would give them to some rows only.

    A final tree, a bin or an isotonic step was fitted on the very sums of the members, so that its thresholds lie between two of these,
    or at one. Of 6,000 rows behind two GradientBoostingClassifiers, a HistGradientBoostingClassifier took 297 to other leaves with
    strategy="scan", and a QuantileTransformer gave 1,243 other numbers. Methods that return such sums themselves add in any order.

    `near` holds for results only: the mean of two regressors of XGBoost that nearly cancel was off by 26 tolerances.
    """
    outputs, changed = {}, False
    for method, group in graph.outputs.items():
        before: set[Node] = set()  # from which an operator that jumps is computed
        computed: set[Node] = set()  # inputs of operators that do not just hand on their numbers
        for node in reversed(list(topological(group))):
            if node.op.jumps or node in before:
                before.update(node.inputs)
            if node in computed or not (node.op.keeps_values or isinstance(node.op, (t.Cast, t.Reshape))):
                computed.update(node.inputs)
        before.update(node for node in computed if isinstance(node.op, TreeEnsemble) and node.op.near)
        some = any(_in_any_order(node.op) for node in before)
        outputs[method] = tuple(in_order(group, before)) if some else group
        changed = changed or some
    return rewrite(Graph(graph.inputs, outputs), lambda node: None) if changed else graph  # methods share equal nodes


def with_order(trees: TreeEnsemble, near: float | None) -> TreeEnsemble:
    """The trees with what `order_shows` has found."""
    return replace(trees, exact=near is not None, near=near or 0.0)


def order_shows(trees: TreeEnsemble, predict: Callable[[Array], Array] | None = None) -> float | None:
    """None if float32 sums in the order of the trees and precise sums give predictions that differ by no more than the contract's
    tolerance. Otherwise how far from 0 sums need that order (`near` of TreeEnsemble); 0 if all do. `predict` makes predictions of sums,
    both f32[N, K]; without it the sums are the predictions.

    Each addition in float32 is off by up to half a last digit of the sum so far. If that sum is far larger than the leaves or than the
    prediction, the errors exceed the contract. With 100 trees of XGBoost, the worst row of a skewed target (most rows near 0, base score
    14,000) was off by 279 tolerances, of a target of 0 ± 1,000 by 18, of Poisson with means of 1e6 by 1.05. With 2,000 trees it was
    2,300, 25 and 30.

    A bound would not do. Half a last digit for each of 500 trees is 12 tolerances at a margin of 4, where the worst classifier was off by
    0.71. Nor are the errors independent: leaves smaller than half a last digit are lost, all in the same direction. So both sums are
    computed for random rows.
    The order shows if a prediction differs by more than half the tolerance, since other rows may be further off than these. Predictions
    of both signs may also be nearer to 0 than those of the random rows. So the tenth that are nearest to 0 may not differ by more than
    the tolerance of 0. Of 53 regressors of 100 or 500 trees, all 14 that were outside the contract were found so, and 4 more.

    Of a single output that is the prediction, the order shows only near 0, where the tolerance is least: farther from it, TIMES the error
    of the random rows is within the tolerance. So few rows need the order.
    """
    leaves = trees.leaves(_random_rows(trees))
    precise = replace(trees, values=trees.values.astype(np.float64), base=trees.base.astype(np.float64))
    with np.errstate(all="ignore"):
        expected, found = trees.sums(leaves), precise.sums(leaves).astype(np.float32)
        if predict is not None:
            expected, found = predict(expected), predict(found)
        error, size = np.abs(found - expected), np.abs(expected)
        near_zero = np.argsort(size, axis=0)[: ROWS // 10]
        both_signs = (expected.min(axis=0) < 0) & (expected.max(axis=0) > 0)
        least = np.take_along_axis(error, near_zero, axis=0)[:, both_signs]
        if predict is None and trees.n_outputs == 1:
            near = max(TIMES * float(least.max(initial=0.0)) - ATOL, 0.0) / RTOL
            near = max(near, 2 * float(size.max(initial=0.0, where=TIMES * error > ATOL + RTOL * size)))
            if np.isfinite(near) and (size <= near).mean() <= MOST_NEAR:
                return near or None
        return 0.0 if (error > (ATOL + RTOL * size) / 2).any() or (least > ATOL).any() else None


def _random_rows(trees: TreeEnsemble) -> Array:
    """f32[ROWS, F]: each value is the threshold of a random split on its feature, or above all of them, or missing."""
    random = np.random.default_rng(0)
    split = np.flatnonzero(trees.feature >= 0)
    split = split[np.argsort(trees.feature[split], kind="stable")]
    features, first, count = np.unique(trees.feature[split], return_index=True, return_counts=True)
    rows = np.zeros((ROWS, int(features.max(initial=0)) + 1), np.float32)
    choices = np.concatenate([trees.threshold[split], np.array([np.inf, np.nan], np.float32)])
    place = random.integers(0, count + 2, (ROWS, len(features)))
    beyond = place - count
    rows[:, features] = choices[np.where(beyond < 0, first + place, len(split) + beyond)]
    return rows
