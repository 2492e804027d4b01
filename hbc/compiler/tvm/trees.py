"""Tree ensembles by walking: correct for every ensemble, and the way for deep trees and for single rows.

A node is two words: the threshold, and the left child's number with the column to compare; the right child follows the left.
Leaves point to themselves, so that all walks of a tree take the same number of steps, and sixteen of them, interleaved, hide
each other's latency: sixteen rows of one tree, or for the last rows sixteen trees of one row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.categories import Codes, n_features, pack_sets
from hbc.compiler.tvm.codegen import Function, Row, aligned
from hbc.compiler.tvm.expressions import DTYPES, Expr, is_nan, let
from hbc.ir.graph import Node
from hbc.ir.types import Array, DType
from hbc.ops.tree import TreeEnsemble

WALKS = 16  # walks in flight: a step waits for two loads, and as many walks fill that time (measured 1.6-1.9 cycles a step)


@dataclass(frozen=True)
class Packed:
    """An ensemble as a walk reads it.

    planes: (feature, whether NaN stands below all numbers): the columns that nodes compare. A column where NaN stays NaN sends
    it right, one where it is replaced by -inf sends it left. The last column, of -inf alone, is the leaves'.
    words: of every node the threshold's bits (a leaf's number), and `left << shift | plane`.
    """

    planes: tuple[tuple[int, bool], ...]
    words: Array
    shift: int
    roots: Array
    depths: Array


def pack(op: TreeEnsemble) -> Packed:
    """Number the nodes of a tree level by level, brothers side by side."""
    source, tree, left = _levels(op)
    order = np.argsort(tree, kind="stable")
    number = np.empty_like(order)
    number[order] = np.arange(len(order))
    source, left = source[order], left[order]
    inner = op.feature[source] >= 0
    left = np.where(inner, number[left], np.arange(len(order)))
    keys = op.feature[source].astype(np.int64) * 2 + op.missing_left[source]
    used, plane = np.unique(keys[inner], return_inverse=True)
    planes = tuple((int(key) // 2, bool(key % 2)) for key in used)
    column = np.full(len(order), len(planes), np.int64)
    column[inner] = plane
    single = op.threshold.dtype == np.float32
    shift = max(len(planes).bit_length(), 1)
    if single and len(order) < 2 ** (31 - shift):
        words = np.empty((len(order), 2), np.int32)
        words[:, 0] = np.where(inner, op.threshold[source].view(np.int32), op.left[source])
    else:
        words, shift = np.empty((len(order), 2), np.int64), 24
        bits = op.threshold[source].view(np.int32 if single else np.int64)
        words[:, 0] = np.where(inner, bits, op.left[source])
    words[:, 1] = left << shift | column
    kept = aligned(words.size, "i32" if words.dtype == np.int32 else "i64").reshape(words.shape)
    kept[...] = words
    return Packed(planes, kept, shift, number[: op.n_trees].copy(), op.depths.astype(np.int64))


def _levels(op: TreeEnsemble) -> tuple[Array, Array, Array]:
    """All nodes of all trees, level after level: their numbers in the operator, their trees, and the places of their left
    children in this list (0 at leaves)."""
    nodes, trees = [op.roots.astype(np.int64)], [np.arange(op.n_trees)]
    lefts = []
    end = op.n_trees
    while len(nodes[-1]):
        level, tree = nodes[-1], trees[-1]
        inner = op.feature[level] >= 0
        left = np.zeros(len(level), np.int64)
        left[inner] = end + 2 * np.arange(int(inner.sum()))
        lefts.append(left)
        end += 2 * int(inner.sum())
        nodes.append(np.stack([op.left[level[inner]], op.right[level[inner]]], axis=1).reshape(-1).astype(np.int64))
        trees.append(np.repeat(tree[inner], 2))
    return np.concatenate(nodes), np.concatenate(trees), np.concatenate([*lefts, np.zeros(0, np.int64)])


class Walk:
    """The code of walks over one packed ensemble."""

    def __init__(self, f: Function, op: TreeEnsemble, packed: Packed, dtype: str) -> None:
        self.f, self.op, self.packed, self.dtype = f, op, packed, dtype
        self.word: DType = "i32" if packed.words.dtype == np.int32 else "i64"
        self.words = packed.words
        self.planes: Any = None

    def prepare(self, x: Node) -> None:
        """Memory for the columns that nodes compare."""
        f, self.x = self.f, x
        if n_features(self.op) is not None:
            self.codes = Codes(f, self.op, x)
        scope = "local" if f.cuda else "global"
        self.planes = T.alloc_buffer(((len(self.packed.planes) + 1) * f.block,), DTYPES[self.dtype], scope=scope)
        self.features = f.own(np.array([feature for feature, _ in self.packed.planes], np.int64), "i64")
        self.below = f.own(np.array([low for _, low in self.packed.planes], np.int8), "i8")

    def fill(self) -> None:
        """The columns that nodes compare, from all rows of the block."""
        f = self.f
        planes = len(self.packed.planes)
        with f.each_chunk():
            if self.x in f.plan.slots:
                with f.repeat(planes) as plane, f.lane() as lane:
                    self._put(plane, f.row(lane))
            else:
                with f.each_row() as row, f.repeat(planes) as plane:
                    self._put(plane, row)
            with f.lane() as lane:
                T.buffer_store(self.planes, self.lowest, [f.start + lane + planes * f.block])

    def fill_row(self, row: Expr) -> None:
        """The columns that nodes compare, from one row."""
        f, planes = self.f, len(self.packed.planes)
        width = n_features(self.op)
        numbers = planes if width is None else sum(feature < width for feature, _ in self.packed.planes)
        with f.repeat(numbers) as plane:
            self._put(plane, Row(row))
        if numbers < planes:
            assert width is not None
            packed = f.once(pack_sets, self.op)
            self.codes.fill(row)
            bytes_, columns = f.own(packed.bytes, "u8"), f.own(packed.set_column, "i64")
            with f.repeat(planes - numbers) as i:
                tested = T.Bind(f.constant(self.features, "i64", i + numbers) - width)
                test = self.codes.test(bytes_, tested * packed.bytes.shape[1], f.constant(columns, "i64", tested), row)
                value = tirx.Cast(DTYPES[self.dtype], tirx.LT(tirx.const(0, "uint8"), test))
                T.buffer_store(self.planes, value, [(i + numbers) * f.block + row])
        T.buffer_store(self.planes, self.lowest, [row + planes * f.block])

    @property
    def lowest(self) -> Expr:
        return tirx.const(-np.inf, DTYPES[self.dtype])

    def _put(self, plane: Expr, row: Row) -> None:
        f = self.f
        column = f.constant(self.features, "i64", plane)
        missing = is_nan(f.read(self.x, [column], row))
        low = f.constant(self.below, "bool", plane)
        value = tirx.Select(tirx.And(low, missing), self.lowest, f.read(self.x, [column], row))
        T.buffer_store(self.planes, value, [plane * f.block + row.block])

    def run(self, rows: list[Expr], roots: list[Expr], depth: Expr, use: Callable[[int, Expr], None]) -> None:
        """Walk from roots[i] with rows[i], all at once; then `use(i, number of the leaf)`."""
        f = self.f
        at = f.scratch(len(rows), "i64")
        for i, root in enumerate(roots):
            T.buffer_store(at, root, [i])
        with T.serial(tirx.const(0, "int64"), depth):
            for i, row in enumerate(rows):
                T.buffer_store(at, self._step(at[i], row), [i])
        for i in range(len(rows)):
            use(i, tirx.Cast("int64", f.constant(self.words, self.word, at[i] * 2)))

    def _step(self, node: Expr, row: Expr) -> Expr:
        f, word, shift = self.f, DTYPES[self.word], self.packed.shift
        threshold = f.constant(self.words, self.word, node * 2)
        if self.word == "i64" and self.dtype == "f32":
            threshold = tirx.Cast("int32", threshold)
        threshold = tirx.reinterpret(DTYPES[self.dtype], threshold)

        def onward(link: Expr) -> Expr:
            plane = tirx.Cast("int64", tirx.bitwise_and(link, tirx.const((1 << shift) - 1, word)))
            left = tirx.Cast("int64", tirx.shift_right(link, tirx.const(shift, word)))
            goes_left = tirx.LE(self.planes[plane * f.block + row], threshold)
            return tirx.Add(left, tirx.Cast("int64", tirx.Not(goes_left)))

        return let(f.constant(self.words, self.word, node * 2 + 1), onward)


class Sums:
    """What is done with the leaves that walks end in: their values are added in the order of the trees, or their numbers stored."""

    def __init__(self, f: Function, node: Node) -> None:
        op = node.op
        assert isinstance(op, TreeEnsemble)
        self.f, self.node, self.op = f, node, op
        self.packed = f.once(pack, op)
        self.walk = Walk(f, op, self.packed, node.inputs[0].type.dtype)
        self.walk.prepare(node.inputs[0])
        self.target = f.own(op.target, "i64") if op.target.any() and op.values.shape[1] == 1 else None

    @property
    def outputs(self) -> int:
        """The number of sums."""
        return self.op.n_outputs if self.op.output == "sum" else 0

    def start(self, column: Expr, row: Row) -> None:
        """Begin a sum with base."""
        value = self.f.constant(self.op.base, self.node.type.dtype, column)
        self.f.store(self.node, column, row, value)

    def use(self, tree: Expr, number: Expr, leaf: Expr) -> None:
        f, node, op, row = self.f, self.node, self.op, Row(number)
        if op.output == "leaf":
            f.store(node, tree, row, f.constant(op.leaf_ids, "i64", leaf))
            return
        width = op.values.shape[1]
        first = 0 if self.target is None else f.constant(self.target, "i64", tree)
        with f.grid([width]) as (column,):
            value = f.constant(op.values, node.type.dtype, leaf * width + column)
            f.store(node, first + column, row, tirx.Add(f.load(node, first + column, row), value))


class RowWalk:
    """One row after the other, several trees in flight."""

    def __init__(self, sums: Sums) -> None:
        f, self.sums = sums.f, sums
        self.trees = sums.op.n_trees
        self.together = min(WALKS, max(self.trees, 1))
        self.rounds = -(-self.trees // self.together)
        padded = np.zeros((2, self.rounds * self.together), np.int64)
        padded[0, : self.trees], padded[1, : self.trees] = sums.packed.roots, sums.packed.depths
        self.roots = f.own(padded[0], "i64")
        self.depths = f.own(padded[1].reshape(self.rounds, self.together).max(axis=1), "i64")

    def run(self, row: Expr) -> None:
        """Walk for one row, whose columns are filled in and whose sums have begun."""
        f, together = self.sums.f, self.together
        with f.repeat(self.rounds) as step:

            def add(i: int, leaf: Expr) -> None:
                tree = step * together + i
                if self.trees % together and i >= self.trees % together:
                    with T.If(tirx.LT(tree, tirx.const(self.trees, "int64"))), T.Then():
                        self.sums.use(tree, row, leaf)
                else:
                    self.sums.use(tree, row, leaf)

            starts = [f.constant(self.roots, "i64", step * together + i) for i in range(together)]
            self.sums.walk.run([row] * together, starts, f.constant(self.depths, "i64", step), add)

    def run_alone(self, row: Expr) -> None:
        """Everything for one row."""
        self.sums.walk.fill_row(row)
        with self.sums.f.grid([self.sums.outputs]) as (column,):
            self.sums.start(column, Row(row))
        self.run(row)


def tree_walk(f: Function, node: Node) -> None:
    """The sums of the leaves' values, or the leaves' numbers, of a `TreeEnsemble`."""
    sums = Sums(f, node)
    packed, walk = sums.packed, sums.walk
    walk.fill()
    with f.each_chunk(), f.grid([sums.outputs]) as (column,), f.lane() as lane:
        sums.start(column, f.row(lane))
    count = 1 if f.cuda else WALKS
    groups = f.rows // count
    roots, depths = f.own(packed.roots, "i64"), f.own(packed.depths, "i64")
    with f.repeat(sums.op.n_trees) as tree, T.serial(tirx.const(0, "int64"), groups) as group:
        rows = [group * count + i for i in range(count)]
        starts = [f.constant(roots, "i64", tree)] * count
        walk.run(rows, starts, f.constant(depths, "i64", tree), lambda i, leaf: sums.use(tree, rows[i], leaf))
    if not f.cuda:
        single = RowWalk(sums)
        with T.serial(groups * WALKS, f.rows) as row:
            single.run(row)
