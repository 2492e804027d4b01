"""Tree ensembles as an operator of ai.onnx.ml, TreeEnsemble (version 5) or TreeEnsembleRegressor (before it): the strategy "onnxml".

Measured on ONNX Runtime 1.31 at every threshold, its two neighbouring floats, NaN, ±inf and -0.0, in float32 and float64: its kernel takes
every branch as hbc's TreeEnsemble does, also for trees that are a single leaf. In one thread it adds the leaves in the order of the trees,
in the dtype of the input, so that sums have the bits of the reference. In several threads it adds partial sums in another order.

hbc runs a block of rows in one thread, so there the kernel adds. An exported model may run in several threads. There the kernel gives the
value of each tree as a column of its own, and these are added in order behind it; unless no order of additions would round. For 500
trees of 31 leaves the first takes 14 µs a row, the second 20.

The ONNX operator calls its output columns targets. An ONNX leaf is a leaf in its numbering.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import numpy_helper

from hbc.compiler.onnx.builder import Builder, emits
from hbc.compiler.onnx.tensor import add_in_order
from hbc.ir.graph import Node
from hbc.ir.types import Array, dtype_name
from hbc.lazy import record
from hbc.ops.columns import Rank
from hbc.ops.tree import TreeEnsemble

STRATEGY = "onnxml"
SUM, NONE, BRANCH_LEQ = 1, 0, 0
WITH_DOUBLES = 5
"""The version of ai.onnx.ml whose TreeEnsemble has float64 results. Before it there is TreeEnsembleRegressor: its results are float32."""
LEAST_EDGES = 16
"""The least number of edges of a Rank for which a search is faster than counting. For 28 features and 255 edges a search takes 1.3 µs a
row and counting 9; for 16 edges both take 0.75."""


def runs_natively(op: TreeEnsemble) -> bool:
    """Whether the strategy is ONNX's own operator."""
    return op.strategy == STRATEGY


@emits(TreeEnsemble, when=runs_natively, of_ml=True)
def _tree_ensemble(b: Builder, op: TreeEnsemble, node: Node) -> str:
    (x,) = b.inputs(node)
    if int(op.depths.max(initial=0)) == 0:
        return _without_branches(b, op, x, node)
    at = numbering(op)
    if op.output == "leaf":
        return b("Gather", op.leaf_ids[at.leaf], _positions(b, op, x, at), axis=0)
    values = _values_with_base(op, at)
    if values.shape[1] > 1:
        reached = b("Gather", values, _positions(b, op, x, at), axis=0)
        return add_in_order(b, reached, axis=1, length=op.n_trees, rank=3)
    several = b.dialect.ml >= WITH_DOUBLES or op.values.dtype == np.float32  # the older operator rounds sums to float32
    if several and ((b.dialect.one_thread and op.values.dtype == _common(op)) or _any_order(op)):
        total = _ensemble(b, op, x, _common(op), op.n_outputs, op.target[at.tree], values[:, 0], at)
        total = _cast(b, total, _common(op), op.values.dtype)
    else:
        total = _sum_of_trees(b, op, x, values[:, 0], at)
    bare = np.bincount(op.target, minlength=op.n_outputs) == 0
    return b("Add", total, np.where(bare, op.base, op.base.dtype.type(0))) if bare.any() else total


def _searches(op: Rank) -> bool:
    """Whether a Rank becomes a search tree. Few edges are faster counted than searched, and the runtime has no kernel for trees of
    integers."""
    return op.edges.dtype.kind == "f" and op.edges.shape[1] >= LEAST_EDGES


@emits(Rank, when=_searches, of_ml=True)
def _rank(b: Builder, op: Rank, node: Node) -> str:
    # A binary search is a tree: x goes left if `x <= edge` or x is NaN, and the leaves are the ranks.
    (x,) = b.inputs(node)
    ensemble = search_trees(op.edges)
    at = numbering(ensemble)
    ranks = _ensemble(b, ensemble, x, op.edges.dtype, len(op.edges), at.tree, ensemble.values[at.leaf, 0], at)
    return b.cast(ranks, "i32")


def search_trees(edges: Array) -> TreeEnsemble:
    """Balanced trees, one for each feature, whose outputs are those of Rank(edges), in the dtype of the edges."""
    counts = (edges < np.inf).sum(axis=1)  # +inf is padding
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
    """The bytes of the widest value between the features and the sums of one row, in a model for one thread; 0 if there is none."""
    if op.output == "sum" and op.values.shape[1] == 1 and op.values.dtype == _common(op):
        return 0
    return 8 * op.n_trees * op.values.shape[1]


def _common(op: TreeEnsemble) -> np.dtype[Any]:
    """The dtype that holds both thresholds and leaves; the kernel takes one dtype for both."""
    return np.promote_types(op.threshold.dtype, op.values.dtype)


def _cast(b: Builder, x: str, source: np.dtype[Any], target: np.dtype[Any]) -> str:
    return x if source == target else b.cast(x, dtype_name(target))


def _any_order(op: TreeEnsemble) -> bool:
    """Whether leaves can be added in any order, because no sum of them is ever rounded. That is so if all are multiples of one unit, and no
    sum has more units than the mantissa can count: votes, counts, or one tree for each output."""
    if op.values.shape[1] > 1 or not (np.isfinite(op.values).all() and np.isfinite(op.base).all()):
        return False
    if len(np.unique(op.target)) == op.n_trees and not op.base.any():
        return True
    at = numbering(op)
    largest = np.zeros(op.n_trees)
    np.maximum.at(largest, at.tree, np.abs(op.values[at.leaf, 0].astype(np.float64)))
    bound = float(largest.sum() + np.abs(op.base.astype(np.float64)).max())
    if bound == 0:
        return True
    unit = 2.0 ** (int(np.ceil(np.log2(bound))) - np.finfo(op.values.dtype).nmant)
    multiples = np.concatenate([op.values[:, 0], op.base]).astype(np.float64) / unit
    return bool((multiples == np.round(multiples)).all())


def _values_with_base(op: TreeEnsemble, at: Numbering) -> Array:
    """The values of the ONNX leaves, [L, V]. The base is added to the leaves of the first tree of each target, which gives the same
    sums."""
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
    """The result of an ensemble whose trees are all single leaves: it is the same for all rows. (An ONNX node would have to read a feature,
    and there may be none.)"""
    row = op.evaluate(np.zeros((1, node.inputs[0].type.columns), op.threshold.dtype))
    shape = b("Concat", b("Shape", x, start=0, end=1), np.asarray(row.shape[1:]), axis=0)
    return b("Expand", row, shape)


def _positions(b: Builder, op: TreeEnsemble, x: str, at: Numbering) -> str:
    """The number of the ONNX leaf that each row reaches in each tree, i64[N, T]. Each tree has a target of its own, and the weight of a
    leaf is its number."""
    dtype = op.threshold.dtype
    exact = dtype if len(at.leaf) <= 2 ** (np.finfo(dtype).nmant + 1) else np.dtype(np.float64)
    return b.cast(_ensemble(b, op, x, exact, op.n_trees, at.tree, np.arange(len(at.leaf)), at), "i64")


def _sum_of_trees(b: Builder, op: TreeEnsemble, x: str, values: Array, at: Numbering) -> str:
    """The sums of the trees by target, [N, K], added in the order of the trees. The operator gives the value of each tree as a column: the
    trees of one target stand side by side, filled up with columns of zeros to the same number for each target."""
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


@record
class Numbering:
    """The nodes of an ensemble as ONNX numbers them: inner nodes and leaves apart. A tree that is a single leaf gets an inner node whose
    two children are this leaf. All arrays are i64."""

    node: Array
    """For each ONNX inner node, its number in TreeEnsemble."""
    true_id: Array
    """The number of its left child, among the inner nodes or the leaves."""
    true_leaf: Array
    """1 if the left child is a leaf, else 0."""
    false_id: Array
    """The number of its right child."""
    false_leaf: Array
    """1 if the right child is a leaf, else 0."""
    roots: Array
    """The inner node at the root of each tree."""
    leaf: Array
    """For each ONNX leaf, its number among TreeEnsemble's leaves (the row in `values`)."""
    tree: Array
    """The tree of each ONNX leaf."""


def numbering(op: TreeEnsemble) -> Numbering:
    """The ONNX numbering of the nodes that some root reaches."""
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
    return Numbering(
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
    """The tree of every node, i64[M]; -1 for nodes that no root reaches."""
    tree_of = np.full(len(op.feature), -1, np.int64)
    nodes, trees = op.roots.astype(np.int64), np.arange(op.n_trees)
    while len(nodes):
        tree_of[nodes] = trees
        inner = op.feature[nodes] >= 0
        nodes, trees = nodes[inner], trees[inner]
        nodes, trees = np.concatenate([op.left[nodes], op.right[nodes]]), np.concatenate([trees, trees])
    return tree_of


def _ensemble(
    b: Builder, op: TreeEnsemble, x: str, dtype: np.dtype[Any], targets: int, target: Array, weight: Array, at: Numbering
) -> str:
    """Adds the ONNX operator, and returns the name of its result [N, targets]: for each target the sum of the weights of the leaves
    reached. `target` and `weight` are those of each ONNX leaf. Everything is computed in one dtype."""
    if b.dialect.ml < WITH_DOUBLES:
        return _by_regressor(b, op, x, dtype, targets, target, weight)
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


def _by_regressor(
    b: Builder, op: TreeEnsemble, x: str, dtype: np.dtype[Any], targets: int, target: Array, weight: Array
) -> str:
    """The same by TreeEnsembleRegressor, whose results are float32. Where a weight is no float32, the operator gives the number of the
    leaf, and a table the weight; a target then has one tree at most."""
    narrow = weight.astype(np.float32)
    if (narrow == weight).all():
        return _cast(b, _regressor(b, op, x, targets, target, narrow), np.dtype(np.float32), dtype)
    if len(weight) >= 1 << np.finfo(np.float32).nmant:
        raise ValueError(f"this opset cannot number {len(weight)} leaves: trees of so many need opset 21")
    numbers = _regressor(b, op, x, targets, target, np.arange(1, len(weight) + 1, dtype=np.float32))
    table = np.concatenate([np.zeros(1, dtype), weight.astype(dtype)])  # a target without a tree is 0
    return b("Gather", table, b.cast(numbers, "i64"))


def _regressor(b: Builder, op: TreeEnsemble, x: str, targets: int, target: Array, weight: Array) -> str:
    """Adds a TreeEnsembleRegressor, and returns the name of its result f32[N, targets]. It numbers the nodes of each tree from 0, and the
    root comes first."""
    tree_of = _trees(op)
    reached = np.flatnonzero(tree_of >= 0)
    is_root = np.zeros(len(op.feature), bool)
    is_root[op.roots] = True
    order = reached[np.lexsort((reached, ~is_root[reached], tree_of[reached]))]
    trees = tree_of[order]
    starts = np.searchsorted(trees, np.arange(op.n_trees))
    number = np.zeros(len(op.feature), np.int64)
    number[order] = np.arange(len(order)) - starts[trees]
    leaf = op.feature[order] < 0
    leaves = np.flatnonzero((op.feature < 0) & (tree_of >= 0))  # in the order of Numbering
    thresholds = np.where(leaf, 0, op.threshold[order]).astype(op.threshold.dtype)
    if thresholds.dtype == np.float64:
        numbers = {
            "nodes_values_as_tensor": numpy_helper.from_array(thresholds, "splits"),
            "target_weights_as_tensor": numpy_helper.from_array(weight.astype(np.float64), "weights"),
        }
    else:
        numbers = {"nodes_values": thresholds.tolist(), "target_weights": weight.tolist()}
    return b(
        "TreeEnsembleRegressor",
        x,
        domain="ai.onnx.ml",
        n_targets=targets,
        aggregate_function="SUM",
        post_transform="NONE",
        nodes_treeids=trees.tolist(),
        nodes_nodeids=number[order].tolist(),
        nodes_featureids=np.maximum(op.feature[order], 0).tolist(),
        nodes_modes=np.where(leaf, "LEAF", "BRANCH_LEQ").tolist(),
        nodes_truenodeids=np.where(leaf, 0, number[op.left[order]]).tolist(),
        nodes_falsenodeids=np.where(leaf, 0, number[op.right[order]]).tolist(),
        nodes_missing_value_tracks_true=(op.missing_left[order] & ~leaf).astype(np.int64).tolist(),
        target_treeids=tree_of[leaves].tolist(),
        target_nodeids=number[leaves].tolist(),
        target_ids=target.tolist(),
        **numbers,
    )
