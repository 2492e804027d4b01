"""Lowers tree ensembles to tensor operators: by the three strategies of the Hummingbird paper (OSDI 2020), or by nested choices. All are
exact for NaN, ±inf, trees of one leaf and trees of different depths.

A row goes left if `x <= threshold`, or if x is NaN and the node sends NaN left. Leaf values are added in the order of the trees, by an
ordered sum. So an exact tie between classes is decided as in the source library.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from hbc.ir.graph import Node
from hbc.ir.types import Array, N, type_of
from hbc.lazy import record
from hbc.ops import tensor as t
from hbc.ops.tree import TreeEnsemble

GEMM_LIMIT = 1 << 26
"""The most elements of C [T, I, L] that gemm accepts: 256 MiB in float32."""
PERFECT_LIMIT = 1 << 24
"""The most leaves of all padded trees that perf_tree_trav accepts."""
PERFECT_DEPTH = 16
"""The greatest depth that perf_tree_trav accepts. Deeper trees would be padded to sizes that no useful forest has."""


# --- the sum ---------------------------------------------------------------------------------------------------------


@record
class _OrderedTrees:
    """An ensemble with its trees in the order of the sum."""

    op: TreeEnsemble
    """The ensemble, with base 0. For scalar leaves, tree r · K + k is round r of output
    k. Outputs with fewer trees are filled up with trees of one leaf of value 0."""
    outputs: int | None
    """K for scalar leaves, None for vector leaves."""

    def sum(self, values: Node) -> Node:
        """y[N, K], the sum over the trees of the values of the reached leaves: [N, T], or [N, T, K] for vector leaves."""
        if self.outputs is not None:
            values = t.reshape(values, N, self.op.n_trees // self.outputs, self.outputs)
        return t.sum_(values, axis=1, ordered=True)


def _ordered_trees(op: TreeEnsemble) -> _OrderedTrees:
    """The ensemble in the order of its sum. A base that is not 0 becomes a tree of one leaf, which comes first, as in the sum."""
    outputs, trees = op.n_outputs, np.arange(op.n_trees)
    vector = outputs > 1 and op.values.shape[1] == outputs
    first = [op.base] if vector else list(op.base[:, None])
    first = [value if value.any() else None for value in first]
    filler = len(op.feature)  # the node of the leaf of value 0; the leaves of the base follow
    base_nodes = filler + np.cumsum([value is not None for value in first])
    op = _with_leaves(op, [np.zeros(op.values.shape[1]), *(value for value in first if value is not None)])
    if vector:
        roots = op.roots if first[0] is None else np.append(base_nodes, op.roots)
        return _OrderedTrees(replace(op, roots=roots.astype(np.int32), target=np.zeros(len(roots), np.int32)), None)
    columns = []
    for k in range(outputs):
        before = [] if first[k] is None else [base_nodes[k]]
        columns.append(np.append(before, op.roots[trees[op.target == k]]))
    place = np.full((max(map(len, columns)), outputs), filler)
    for k, column in enumerate(columns):
        place[: len(column), k] = column
    target = np.tile(np.arange(outputs, dtype=np.int32), len(place))
    return _OrderedTrees(replace(op, roots=place.ravel().astype(np.int32), target=target), outputs)


def _with_leaves(op: TreeEnsemble, values: list[Array]) -> TreeEnsemble:
    """The ensemble with one more leaf, in no tree, for each of `values`, and with base 0."""
    nothing = np.zeros(len(values), np.int32)
    leaf = len(op.values) + np.arange(len(values), dtype=np.int32)
    return replace(
        op,
        feature=np.append(op.feature, nothing - 1),
        threshold=np.append(op.threshold, nothing.astype(op.threshold.dtype)),
        left=np.append(op.left, leaf),
        right=np.append(op.right, leaf),
        missing_left=np.append(op.missing_left, nothing.astype(bool)),
        values=np.concatenate([op.values, np.stack(values).astype(op.values.dtype)]),
        leaf_ids=np.append(op.leaf_ids, nothing),
        base=np.zeros_like(op.base),
    )


def _goes_left(value: Node, threshold: Node | Array, missing_left: Node | None) -> Node:
    """Whether a row goes left, from its value, the threshold and whether NaN goes left. `missing_left` None: NaN goes right, which is what
    `NaN <= threshold` gives."""
    below = t.less_equal(value, threshold)
    return below if missing_left is None else t.logical_or(below, t.logical_and(t.isnan(value), missing_left))


def _lowering(leaves: Callable[[TreeEnsemble, Node], Node]) -> Callable[[TreeEnsemble, Node], Node]:
    """The lowering of an ensemble by `leaves`, a function that finds the number of the reached leaf in each tree, i32[N, T]."""

    def lower(op: TreeEnsemble, x: Node) -> Node:
        if op.output == "leaf":
            return t.take(op.leaf_ids, leaves(op, x), axis=0)
        trees = _ordered_trees(op)
        scalar = trees.outputs is not None
        return trees.sum(t.take(trees.op.values[:, 0] if scalar else trees.op.values, leaves(trees.op, x), axis=0))

    return lower


# --- tree_trav -------------------------------------------------------------------------------------------------------


def _walk(op: TreeEnsemble, x: Node) -> Node:
    """The number of the leaf that each row reaches in each tree, i32[N, T]. `depth` times, it looks up the node's feature, the row's value,
    the threshold, and the child. For this the nodes are renumbered: the leaves come first, by their own numbers, and are their own
    children. So after the last step the node is the number of the leaf."""
    at_leaf = op.feature < 0
    number = np.where(at_leaf, op.left, len(op.values) + np.cumsum(~at_leaf) - 1)
    inner = np.flatnonzero(~at_leaf)
    themselves = np.arange(len(op.values))

    def table(at_leaves: Array, at_nodes: Array) -> Array:
        return np.concatenate([at_leaves, at_nodes[inner]]).astype(at_nodes.dtype)

    zeros = np.zeros(len(op.values), np.int32)
    feature, threshold, missing_left = (table(zeros, column) for column in (op.feature, op.threshold, op.missing_left))
    left, right = (table(themselves, np.where(at_leaf, 0, number[side]).astype(np.int32)) for side in _children(op))
    roots = number[op.roots].astype(np.int32)

    # The first step starts at the root in every row, so that its look-ups are constants.
    value = t.take(x, feature[roots].astype(np.int64), axis=1)
    missing = t.constant(missing_left[roots][None]) if missing_left[roots].any() else None
    goes_left = _goes_left(value, threshold[roots][None], missing)
    at = t.where(goes_left, t.constant(left[roots][None]), t.constant(right[roots][None]))
    tables = [t.constant(table) for table in (feature, threshold, left, right)]  # made once for all steps
    sends_missing = t.constant(missing_left) if missing_left.any() else None
    for _ in range(int(op.depths.max(initial=0)) - 1):
        node_feature, node_threshold, node_left, node_right = (t.take(table, at, axis=0) for table in tables)
        missing = None if sends_missing is None else t.take(sends_missing, at, axis=0)
        at = t.where(_goes_left(t.take_along(x, node_feature), node_threshold, missing), node_left, node_right)
    return at


def _children(op: TreeEnsemble) -> tuple[Array, Array]:
    """(left, right) with 0 at leaves, where the ensemble's arrays hold the number of the leaf, not a node."""
    at_leaf = op.feature < 0
    return np.where(at_leaf, 0, op.left), np.where(at_leaf, 0, op.right)


# --- perf_tree_trav --------------------------------------------------------------------------------------------------


def _perfect(op: TreeEnsemble, x: Node) -> Node:
    """The number of the leaf that each row reaches in each tree, i32[N, T]. Every tree is padded to depth
    D. Then node i of a level has the children 2i and 2i + 1 on the next level, and no child is looked up.
    Level d has a table of T·2^d nodes. A leaf above depth D is repeated down to it, so that both sides of
    every node below end at that leaf. Raises NotImplementedError beyond PERFECT_DEPTH or PERFECT_LIMIT."""
    depth = int(op.depths.max(initial=0))
    if depth > PERFECT_DEPTH or op.n_trees << depth > PERFECT_LIMIT:
        raise NotImplementedError(
            f"strategy 'perf_tree_trav' pads every tree to depth {depth}, which makes 2^{depth} leaves in each of {op.n_trees} trees "
            f"(the limits are depth {PERFECT_DEPTH} and {PERFECT_LIMIT} leaves)"
        )
    nodes = op.roots.astype(np.int64)
    at: Node | None = None
    for _ in range(max(depth, 1)):
        inner = op.feature[nodes] >= 0
        feature = np.where(inner, op.feature[nodes], 0).astype(np.int32)
        threshold, missing_left = op.threshold[nodes], op.missing_left[nodes] & inner
        if at is None:
            value = t.take(x, feature.astype(np.int64), axis=1)
            cut: Node | Array = threshold[None]
            missing = t.constant(missing_left[None]) if missing_left.any() else None
            double = t.constant(2 * np.arange(op.n_trees, dtype=np.int32)[None])
        else:
            value = t.take_along(x, t.take(feature, at, axis=0))
            cut = t.take(threshold, at, axis=0)
            missing = t.take(missing_left, at, axis=0) if missing_left.any() else None
            double = t.add(at, at)
        at = t.add(double, t.cast(t.logical_not(_goes_left(value, cut, missing)), "i32"))
        children = np.stack([np.where(inner, side[nodes], nodes) for side in (op.left, op.right)], axis=1)
        nodes = children.ravel()
    assert at is not None
    return t.take(op.left[nodes], at, axis=0)


# --- gemm ------------------------------------------------------------------------------------------------------------


@record
class _Blocks:
    """The tensors of the paper's gemm strategy, with a block for each of T trees. Blocks are padded to I inner nodes and L leaves."""

    feature: Array
    """[T, I] the columns of x that the nodes compare. (In the paper, A has one-hot columns for them.)"""
    threshold: Array
    """[T, I]"""
    missing_left: Array
    """[T, I] whether NaN goes left."""
    c: Array
    """[T, I, L] 1 if the leaf is below the node's left child, -1 if it is below the right child, otherwise 0."""
    d: Array
    """[T, L] the left turns on the way to the leaf. L for padding, which no sum over I nodes reaches."""
    leaf: Array
    """[T, L] the numbers of the leaves."""


def _blocks(op: TreeEnsemble) -> _Blocks:
    """The tensors of the gemm strategy. Raises NotImplementedError if C would have more than GEMM_LIMIT elements."""
    most = max(int(op.leaf_counts.max(initial=1)), 2)
    size = op.n_trees * (most - 1) * most
    if size > GEMM_LIMIT:
        raise NotImplementedError(
            f"strategy 'gemm' needs a matrix of {most - 1} nodes × {most} leaves for each of {op.n_trees} trees, {size} numbers in all "
            f"(the limit is {GEMM_LIMIT})"
        )
    feature = np.zeros((op.n_trees, most - 1), np.int64)
    threshold = np.zeros((op.n_trees, most - 1), op.threshold.dtype)
    missing_left = np.zeros((op.n_trees, most - 1), bool)
    c = np.zeros((op.n_trees, most - 1, most), np.float32)
    d = np.full((op.n_trees, most), most, np.float32)
    leaf = np.zeros((op.n_trees, most), np.int32)
    for tree, root in enumerate(op.roots):
        nodes, paths = np.array([root]), np.zeros((1, most - 1), np.float32)
        inner_count = leaf_count = 0
        while len(nodes):
            at_leaf = op.feature[nodes] < 0
            ends = slice(leaf_count, leaf_count + int(at_leaf.sum()))
            leaf[tree, ends] = op.left[nodes[at_leaf]]
            c[tree, :, ends] = paths[at_leaf].T
            d[tree, ends] = (paths[at_leaf] > 0).sum(axis=1)
            leaf_count = ends.stop
            nodes, paths = nodes[~at_leaf], paths[~at_leaf]
            columns = inner_count + np.arange(len(nodes))
            inner_count += len(nodes)
            for table, source in ((feature, op.feature), (threshold, op.threshold), (missing_left, op.missing_left)):
                table[tree, columns] = source[nodes]
            turned = [paths.copy(), paths.copy()]
            for side, sign in zip(turned, (1, -1), strict=True):
                side[np.arange(len(nodes)), columns] = sign
            nodes, paths = np.concatenate([op.left[nodes], op.right[nodes]]), np.concatenate(turned)
    return _Blocks(feature, threshold, missing_left, c, d, leaf)


def _matches(blocks: _Blocks, x: Node) -> Node:
    """bool[N, T, L]: true at the leaf that a row reaches. X·A is computed as a selection of columns, since a product would
    make NaN from 0·inf. Decisions are 0 or 1, and their sums are at most I in magnitude, which float32 holds exactly."""
    trees, inner = blocks.feature.shape
    value = t.take(x, blocks.feature.ravel(), axis=1)
    missing = t.constant(blocks.missing_left.reshape(1, -1)) if blocks.missing_left.any() else None
    decided = t.cast(_goes_left(value, blocks.threshold.reshape(1, -1), missing), "f32")
    turns = t.block_matmul(t.reshape(decided, N, trees, inner), blocks.c)
    return t.equal(turns, blocks.d[None])


def _gemm_leaves(blocks: _Blocks, x: Node) -> Node:
    """The number of the leaf that each row reaches in each tree, i32[N, T]. One more
    product gives the index of the leaf in its block, exact up to 2^24 leaves."""
    trees, most = blocks.leaf.shape
    places = np.broadcast_to(np.arange(most, dtype=np.float32)[None, :, None], (trees, most, 1))
    place = t.block_matmul(t.cast(_matches(blocks, x), "f32"), places)
    row = t.constant(most * np.arange(trees, dtype=np.int32)[None])
    return t.take(blocks.leaf.ravel(), t.add(t.cast(t.reshape(place, N, trees), "i32"), row), axis=0)


def gemm(op: TreeEnsemble, x: Node) -> Node:
    """The lowering by three products, with a block for each tree: T = X·A ≤ B;
    T = T·C == D; R = T·E. Then R is summed over the trees in their order."""
    if op.output == "leaf":
        return t.take(op.leaf_ids, _gemm_leaves(_blocks(op), x), axis=0)
    trees = _ordered_trees(op)
    op, blocks = trees.op, _blocks(trees.op)
    scalar = trees.outputs is not None
    if not np.isfinite(op.values).all():  # 0·inf would be NaN
        return trees.sum(t.take(op.values[:, 0] if scalar else op.values, _gemm_leaves(blocks, x), axis=0))
    reached = t.cast(_matches(blocks, x), type_of(op.values).dtype)
    result = t.block_matmul(reached, op.values[blocks.leaf])
    return trees.sum(t.reshape(result, N, op.n_trees) if scalar else result)


# --- select ----------------------------------------------------------------------------------------------------------


def select(op: TreeEnsemble, x: Node) -> Node:
    """The lowering by nested choices between the values of leaves: `where(x[f] <= t, left, right)` for every split. It has no
    look-ups and no jumps, but computes every split for every row, and the graph grows with the trees: it is for a few small trees."""
    columns = {int(f): t.take(x, np.array([f]), axis=1) for f in np.unique(op.feature[op.feature >= 0])}
    first = t.take(x, np.array([0]), axis=1)
    nothing = t.less(first, first)  # false for every x: it gives a result for each row, even for trees that read no column
    tests: dict[int, Node] = {}

    def chosen(node: int, values: Array) -> Node:
        if op.feature[node] < 0:
            return t.constant(values[op.left[node]].reshape(1, 1))
        left, right = (chosen(int(child[node]), values) for child in (op.left, op.right))
        column, threshold = columns[int(op.feature[node])], op.threshold[node]
        if op.missing_left[node]:  # NaN is not greater
            return t.where(tests.setdefault(node, t.less(threshold, column)), right, left)
        return t.where(tests.setdefault(node, t.less_equal(column, threshold)), left, right)

    if op.output == "leaf":
        zero = t.cast(nothing, "i64")
        return t.concat([t.add(zero, chosen(int(root), op.leaf_ids)) for root in op.roots])
    zero = t.cast(nothing, type_of(op.values).dtype)
    totals = [t.add(zero, base) for base in op.base]
    for root, target in zip(op.roots, op.target, strict=True):
        for column, values in enumerate(op.values.T):
            totals[target + column] = t.add(totals[target + column], chosen(int(root), values))
    return t.concat(totals)


LOWERINGS: dict[str, Callable[[TreeEnsemble, Node], Node]] = {
    "gemm": gemm,
    "tree_trav": _lowering(_walk),
    "perf_tree_trav": _lowering(_perfect),
    "select": select,
}
