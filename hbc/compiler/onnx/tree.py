"""Tree ensembles as ai.onnx.ml's TreeEnsemble (version 5), the strategy "onnxml".

Measured on ONNX Runtime 1.31, at every threshold, its two neighbours, NaN, ±inf and -0.0, in float32 and float64: the kernel takes
every branch as the operator says, trees that are a single leaf included. In one thread it adds the leaves in the order of the
trees, in the input's dtype, so that the bits are those of the reference; in several it adds partial sums, in an order of its own.
So where hbc runs a model (in one thread a block of rows) the kernel adds; a model for others has a target a tree, whose values are
added in order behind it, unless no order of adding would round: 500 trees of 31 leaves cost 14 µs a row or 20.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import numpy_helper

from hbc.compiler.onnx.builder import Builder, emits
from hbc.compiler.onnx.tensor import add_in_order
from hbc.ir.graph import Node
from hbc.ir.types import Array, dtype_name
from hbc.ops.columns import Rank
from hbc.ops.tree import TreeEnsemble

STRATEGY = "onnxml"
SUM, NONE, BRANCH_LEQ = 1, 0, 0
LEAST_EDGES = 16
"""Of a Rank, from which on a search is faster than counting (28 features: 255 edges 1.3 µs a row against 9, 16 edges 0.75 both)."""


def runs_natively(op: TreeEnsemble) -> bool:
    """Whether the strategy is ONNX's own."""
    return op.strategy == STRATEGY


@emits(TreeEnsemble, when=runs_natively)
def _tree_ensemble(b: Builder, op: TreeEnsemble, node: Node) -> str:
    (x,) = b.inputs(node)
    if int(op.depths.max(initial=0)) == 0:
        return _without_branches(b, op, x, node)
    at = layout(op)
    if op.output == "leaf":
        return b("Gather", op.leaf_ids[at.leaf], _positions(b, op, x, at), axis=0)
    values = _values_with_base(op, at)
    if values.shape[1] > 1:
        reached = b("Gather", values, _positions(b, op, x, at), axis=0)
        return add_in_order(b, reached, axis=1, length=op.n_trees, rank=3)
    if (b.one_thread and op.values.dtype == _common(op)) or _any_order(op):
        total = _ensemble(b, op, x, _common(op), op.n_outputs, op.target[at.tree], values[:, 0], at)
        total = _cast(b, total, _common(op), op.values.dtype)
    else:
        total = _sum_of_trees(b, op, x, values[:, 0], at)
    bare = np.bincount(op.target, minlength=op.n_outputs) == 0
    return b("Add", total, np.where(bare, op.base, op.base.dtype.type(0))) if bare.any() else total


def _searches(op: Rank) -> bool:
    """Fewer edges are counted faster than searched; integers have no kernel for trees."""
    return op.edges.dtype.kind == "f" and op.edges.shape[1] >= LEAST_EDGES


@emits(Rank, when=_searches)
def _rank(b: Builder, op: Rank, node: Node) -> str:
    # A binary search is a tree: `x <= edge` goes left, NaN always, and the leaves are the ranks.
    (x,) = b.inputs(node)
    ensemble = search_trees(op.edges)
    at = layout(ensemble)
    ranks = _ensemble(b, ensemble, x, op.edges.dtype, len(op.edges), at.tree, ensemble.values[at.leaf, 0], at)
    return b.cast(ranks, "i32")


def search_trees(edges: Array) -> TreeEnsemble:
    """A balanced tree a feature, whose sum is `Rank(edges)`."""
    counts = (edges < np.inf).sum(axis=1)  # the rest is padding
    starts = np.cumsum(counts) - counts
    total, n = int(counts.sum()), len(edges)
    # Node i < total is edge i; leaf r of feature f, whose rank is r, comes after them.
    leaves = total + starts + np.arange(n)
    left, right = np.zeros(total, np.int64), np.zeros(total, np.int64)
    feature, low, high = np.flatnonzero(counts), np.zeros(np.count_nonzero(counts), np.int64), counts[counts > 0]
    while len(feature):
        middle = (low + high) // 2
        for child, lo, hi in ((left, low, middle), (right, middle + 1, high)):
            child[starts[feature] + middle] = np.where(lo == hi, leaves[feature] + lo, starts[feature] + (lo + hi) // 2)
        feature, low, high = (np.concatenate(pair) for pair in ((feature, feature), (low, middle + 1), (middle, high)))
        feature, low, high = (values[low < high] for values in (feature, low, high))
    ranks = np.concatenate([np.arange(count + 1) for count in counts])
    numbers = np.arange(total + n)
    return TreeEnsemble(
        roots=np.where(counts == 0, leaves, starts + counts // 2).astype(np.int32),
        feature=np.concatenate([np.repeat(np.arange(n), counts), np.full(total + n, -1)]).astype(np.int32),
        threshold=np.concatenate([edges[edges < np.inf], np.zeros(total + n, edges.dtype)]),
        left=np.concatenate([left, numbers]).astype(np.int32),
        right=np.concatenate([right, numbers]).astype(np.int32),
        missing_left=np.ones(total + total + n, bool),
        values=ranks[:, None].astype(edges.dtype),
        target=np.arange(n, dtype=np.int32),
        leaf_ids=ranks,
        base=np.zeros(n, edges.dtype),
        strategy=STRATEGY,
    )


def row_bytes(op: TreeEnsemble) -> int:
    """The bytes of the widest value that a row has between its features and its sums, in a model for one thread."""
    if op.output == "sum" and op.values.shape[1] == 1 and op.values.dtype == _common(op):
        return 0
    return 8 * op.n_trees * op.values.shape[1]


def _common(op: TreeEnsemble) -> np.dtype[Any]:
    """The dtype that holds thresholds and leaves: the kernel has one for both."""
    return np.promote_types(op.threshold.dtype, op.values.dtype)


def _cast(b: Builder, x: str, source: np.dtype[Any], target: np.dtype[Any]) -> str:
    return x if source == target else b.cast(x, dtype_name(target))


def _any_order(op: TreeEnsemble) -> bool:
    """Whether no sum of leaves is ever rounded, so that they can be added in any order: all are multiples of a unit, of which
    no sum has more than the mantissa holds (votes, counts, leaves of one tree)."""
    if op.values.shape[1] > 1 or not (np.isfinite(op.values).all() and np.isfinite(op.base).all()):
        return False
    if len(np.unique(op.target)) == op.n_trees and not op.base.any():
        return True
    at = layout(op)
    largest = np.zeros(op.n_trees)
    np.maximum.at(largest, at.tree, np.abs(op.values[at.leaf, 0].astype(np.float64)))
    bound = float(largest.sum() + np.abs(op.base.astype(np.float64)).max())
    if bound == 0:
        return True
    unit = 2.0 ** (int(np.ceil(np.log2(bound))) - np.finfo(op.values.dtype).nmant)
    multiples = np.concatenate([op.values[:, 0], op.base]).astype(np.float64) / unit
    return bool((multiples == np.round(multiples)).all())


def _values_with_base(op: TreeEnsemble, at: Layout) -> Array:
    """The value of every ONNX leaf; the first tree of each target has the base in its leaves, which is the same sum."""
    values = op.values[at.leaf]
    if values.shape[1] > 1:
        first = at.tree == 0
        values[first] = op.base + values[first]
        return values
    _, first_trees = np.unique(op.target, return_index=True)
    first = np.isin(at.tree, first_trees)
    values[first, 0] = op.base[op.target[at.tree[first]]] + values[first, 0]
    return values


def _without_branches(b: Builder, op: TreeEnsemble, x: str, node: Node) -> str:
    """Single leaves only: the same for all rows, and no feature that ONNX could be told to read."""
    row = op.evaluate(np.zeros((1, node.inputs[0].type.columns), op.threshold.dtype))
    shape = b("Concat", b("Shape", x, start=0, end=1), np.asarray(row.shape[1:]), axis=0)
    return b("Expand", row, shape)


def _positions(b: Builder, op: TreeEnsemble, x: str, at: Layout) -> str:
    """Which ONNX leaf a row reaches in every tree, i64[N, T]: a target a tree, a leaf's number as its weight."""
    dtype = op.threshold.dtype
    exact = dtype if len(at.leaf) <= 2 ** (np.finfo(dtype).nmant + 1) else np.dtype(np.float64)
    return b.cast(_ensemble(b, op, x, exact, op.n_trees, at.tree, np.arange(len(at.leaf)), at), "i64")


def _sum_of_trees(b: Builder, op: TreeEnsemble, x: str, values: Array, at: Layout) -> str:
    """The value of every tree by itself, the trees of a target side by side and filled up with zeros; then their ordered sums."""
    counts = np.bincount(op.target, minlength=op.n_outputs)
    width = int(counts.max())
    order = np.argsort(op.target, kind="stable")
    place = np.empty(op.n_trees, np.int64)
    place[order] = (
        np.arange(op.n_trees) - (np.cumsum(counts) - counts)[op.target[order]] + width * op.target[order].astype(np.int64)
    )
    trees = _ensemble(b, op, x, _common(op), op.n_outputs * width, place[at.tree], values, at)
    trees = _cast(b, trees, _common(op), op.values.dtype)
    if op.n_outputs > 1:
        trees = b("Reshape", trees, np.asarray([0, op.n_outputs, width]))
        return add_in_order(b, trees, axis=2, length=width, rank=3)
    return add_in_order(b, trees, axis=1, length=width, rank=2, keepdims=True)


@dataclass(frozen=True)
class Layout:
    """Interior nodes and leaves in two numberings, as ONNX wants them; a tree that is a single leaf gets a node whose two
    children are that leaf. `leaf` and `tree` tell of every ONNX leaf which of the operator's leaves it is, and in which tree."""

    node: Array
    true_id: Array
    true_leaf: Array
    false_id: Array
    false_leaf: Array
    roots: Array
    leaf: Array
    tree: Array


def layout(op: TreeEnsemble) -> Layout:
    tree_of = _trees(op)
    single = op.roots[op.feature[op.roots] < 0]
    interior = np.flatnonzero((op.feature >= 0) & (tree_of >= 0))
    leaves = np.flatnonzero((op.feature < 0) & (tree_of >= 0))
    number = np.zeros(len(op.feature), np.int64)
    number[leaves] = np.arange(len(leaves))
    number[interior] = np.arange(len(interior))
    is_leaf = (op.feature < 0).astype(np.int64)
    left, right = op.left[interior], op.right[interior]
    stumps = number[single]
    ones = np.ones(len(single), np.int64)
    roots = number[op.roots]
    roots[op.feature[op.roots] < 0] = len(interior) + np.arange(len(single))
    return Layout(
        node=np.concatenate([interior, single]),
        true_id=np.concatenate([number[left], stumps]),
        true_leaf=np.concatenate([is_leaf[left], ones]),
        false_id=np.concatenate([number[right], stumps]),
        false_leaf=np.concatenate([is_leaf[right], ones]),
        roots=roots,
        leaf=op.left[leaves].astype(np.int64),
        tree=tree_of[leaves],
    )


def _trees(op: TreeEnsemble) -> Array:
    """The tree of every node; -1 for nodes that no root reaches."""
    tree_of = np.full(len(op.feature), -1, np.int64)
    nodes, trees = op.roots.astype(np.int64), np.arange(op.n_trees)
    while len(nodes):
        tree_of[nodes] = trees
        inner = op.feature[nodes] >= 0
        nodes, trees = nodes[inner], trees[inner]
        nodes, trees = np.concatenate([op.left[nodes], op.right[nodes]]), np.concatenate([trees, trees])
    return tree_of


def _ensemble(
    b: Builder, op: TreeEnsemble, x: str, dtype: np.dtype[Any], targets: int, target: Array, weight: Array, at: Layout
) -> str:
    """The ONNX operator: the sums, by target, of the weights of the leaves reached; all of it in one dtype."""
    return b(
        "TreeEnsemble",
        _cast(b, x, op.threshold.dtype, dtype),
        domain="ai.onnx.ml",
        n_targets=targets,
        aggregate_function=SUM,
        post_transform=NONE,
        nodes_featureids=np.maximum(op.feature[at.node], 0).tolist(),
        nodes_splits=numpy_helper.from_array(
            np.where(op.feature[at.node] < 0, 0, op.threshold[at.node]).astype(dtype), "splits"
        ),
        nodes_modes=numpy_helper.from_array(np.full(len(at.node), BRANCH_LEQ, np.uint8), "modes"),
        nodes_missing_value_tracks_true=op.missing_left[at.node].astype(np.int64).tolist(),
        nodes_truenodeids=at.true_id.tolist(),
        nodes_trueleafs=at.true_leaf.tolist(),
        nodes_falsenodeids=at.false_id.tolist(),
        nodes_falseleafs=at.false_leaf.tolist(),
        leaf_targetids=target.tolist(),
        leaf_weights=numpy_helper.from_array(weight.astype(dtype), "weights"),
        tree_roots=at.roots.tolist(),
    )
