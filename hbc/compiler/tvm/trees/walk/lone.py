"""Walks that compare numbers as they stand in a row, for one tree or a few: a row has more columns than its walks take steps.

Other walks first turn every number that some node compares into a key. One tree of 231 nodes asks a row for 9 of its 37 numbers. Here a
node has a number of x's dtype, and a link: `left << 32 | whether NaN goes right << 31 | column`. A step is

    node = left(node) + (threshold(node) < x[row, column(node)] or x[row, column(node)] is NaN and goes right)

A leaf points to itself, by a threshold that no number exceeds. All walks take as many steps as the deepest tree has levels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.nest.function import Block, Row
from hbc.compiler.tvm.tir.dialect import Expr
from hbc.compiler.tvm.tir.expressions import is_nan, let
from hbc.compiler.tvm.trees.categories import n_features
from hbc.ir.graph import Node
from hbc.ir.types import Array
from hbc.lazy import record
from hbc.ops.tree import TreeEnsemble

RIGHT, LEFT = 31, 32
"""The bits of a link where the side of NaN and the left child begin."""


@record
class LoneNodes:
    """An ensemble as these walks read it: for each node its threshold, its link, and for a leaf its row in `values` [D, V]. `depth`: of
    the deepest tree."""

    thresholds: Array
    links: Array
    places: Array
    values: Array
    depth: int


def walks_alone(op: TreeEnsemble) -> bool:
    """Whether the steps of a row's walks are fewer than the numbers that some node compares. (Category sets are tested once a row.)"""
    return n_features(op) is None and int(op.depths.sum()) < len(np.unique(op.feature[op.feature >= 0]))


def pack_lone(op: TreeEnsemble, number: Array, count: int, place: Array, values: Array) -> LoneNodes:
    """Pack an ensemble whose nodes have these numbers (-1: in no tree), of `count`, and whose leaves these rows of `values`."""
    reached = np.flatnonzero(number >= 0)
    inner, leaf = reached[op.feature[reached] >= 0], reached[op.feature[reached] < 0]
    thresholds = np.full(count, np.inf, op.threshold.dtype)
    thresholds[number[inner]] = op.threshold[inner]
    links = np.arange(count) << LEFT
    right = (~op.missing_left[inner]).astype(np.int64) << RIGHT
    links[number[inner]] = number[op.left[inner]].astype(np.int64) << LEFT | right | op.feature[inner]
    places = np.zeros(count, np.int64)
    places[number[leaf]] = place[op.left[leaf]]
    return LoneNodes(thresholds, links, places, values, int(op.depths.max(initial=0)))


class LoneWalk:
    """Emits such walks, as `Walk` emits the others."""

    def __init__(self, f: Block, packed: LoneNodes, x: Node, walks: int) -> None:
        self.f, self.x, self.walks = f, x, walks
        self.thresholds, self.dtype = f.own(packed.thresholds, x.type.dtype), x.type.dtype
        self.links, self.of_leaf = f.own(packed.links, "i64"), f.own(packed.places, "i64")
        self.depth = f.size(packed.depth)
        self.places = f.scratch(walks, "i64")  # the rows of `values` for the leaves in which the last walks ended

    def fill(self, row: Expr, seen: Any = None) -> None:
        """Nothing: there are no keys."""

    def without_nan(self) -> LoneWalk | None:
        """None: rows with NaN are walked as the others are."""
        return None

    def run(self, walks: list[tuple[Expr, Expr]]) -> None:
        """Walk all (tree, row) at once, and store in `places` where they end."""
        at = self.f.scratch(len(walks), "i64")
        for i, (tree, _) in enumerate(walks):
            T.buffer_store(at, tree, [i])
        with self.f.repeat(self.depth):
            for i, (_, row) in enumerate(walks):
                T.buffer_store(at, self._step(at[i], row), [i])
        for i in range(len(walks)):
            T.buffer_store(self.places, self.f.constant(self.of_leaf, "i64", at[i]), [i])

    def _step(self, node: Expr, row: Expr) -> Expr:
        """The child to which a row goes from a node."""
        threshold = self.f.constant(self.thresholds, self.dtype, node)

        def bits(link: Expr, first: int, count: int) -> Expr:
            return tirx.bitwise_and(tirx.shift_right(link, _whole(first)), _whole((1 << count) - 1))

        def onward(link: Expr, value: Expr) -> Expr:
            above = tirx.Cast("int64", tirx.LT(threshold, value))
            missing = tirx.bitwise_and(tirx.Cast("int64", is_nan(value)), bits(link, RIGHT, 1))
            return tirx.Add(tirx.shift_right(link, _whole(LEFT)), tirx.bitwise_or(above, missing))

        def read(link: Expr) -> Expr:
            value = self.f.read(self.x, [bits(link, 0, RIGHT)], Row(row))
            return let(value, lambda value: onward(link, value))

        return let(self.f.constant(self.links, "i64", node), read)


def _whole(value: int) -> Any:
    return tirx.const(value, "int64")
