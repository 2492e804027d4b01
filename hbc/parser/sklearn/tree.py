"""Converters for estimators made of `sklearn.tree._tree.Tree`: sklearn.tree, the forests of sklearn.ensemble, and IsolationForest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hbc.ir.graph import Node
from hbc.ir.signature import Sparse
from hbc.ir.types import FLOAT32_LIMIT, Array, N
from hbc.ops import tensor as t
from hbc.ops.tree import Tree, TreeEnsemble, join
from hbc.parser.boosting import leaves, rounded_down
from hbc.parser.front_door import note_input
from hbc.parser.labels import labels
from hbc.parser.registry import Result, converts
from hbc.parser.sklearn.shared.common import checked
from hbc.parser.sklearn.shared.members import added_in_order
from hbc.parser.sparsity import is_sparse, may_be_sparse


def single(m: Any, x: Node, *, allow_nan: bool, allow_inf: bool = False) -> Node:
    """x as float32, checked as the source checks it for trees: `validate_data(dtype=float32)`. NaN is never accepted in sparse matrices."""
    limit = float("inf") if allow_inf else FLOAT32_LIMIT  # check_array(dtype=float32) rejects larger numbers
    allow_nan = allow_nan and not is_sparse(x)
    if allow_nan and may_be_sparse(x, missing=True):
        note_input(Sparse(nan=False))
    return t.cast(checked(m, x, allow_nan=allow_nan, allow_inf=allow_inf, limit=limit), "f32")


def accepts_nan(m: Any) -> bool:
    """Whether m accepts NaN (BaseDecisionTree._support_missing_values)."""
    return bool(m.__sklearn_tags__().input_tags.allow_nan)


def read_tree(tree: Any, values: Array, features: Array | None = None) -> Tree:
    """A fitted `tree_` with `values` ([nodes, V]) in place of its own. `features`: the columns of x that it was fitted on; None: all."""
    leaf = tree.children_left < 0
    used = np.maximum(tree.feature, 0)
    return Tree(
        feature=np.where(leaf, -1, used if features is None else np.asarray(features)[used]),
        threshold=rounded_down(np.where(leaf, 0.0, tree.threshold)),
        left=tree.children_left,
        right=tree.children_right,
        missing_left=tree.missing_go_to_left.astype(bool) & ~leaf,
        values=values,
        cover=tree.weighted_n_node_samples,
    )


def _ensemble(trees: Sequence[Any]) -> TreeEnsemble:
    """The trees as an ensemble with their own values. A leaf holds a vector: outputs × classes, one output after the other."""
    read = [read_tree(tree, tree.value.reshape(tree.node_count, -1)) for tree in trees]
    return join(read, np.zeros(read[0].values.shape[1]))


def _mean(x: Node, trees: Sequence[Any], averaged: bool) -> tuple[Node, TreeEnsemble]:
    """(the sum of the trees, [N, V], divided by their number if `averaged`; the ensemble)."""
    ensemble = _ensemble(trees)
    total = ensemble(x)
    return (t.div(total, float(len(trees))) if averaged else total), ensemble


def _classifier(m: Any, x: Node, trees: Sequence[Any], averaged: bool) -> Result:
    mean, ensemble = _mean(x, trees, averaged)
    width = trees[0].value.shape[2]
    counts = [int(count) for count in np.atleast_1d(m.n_classes_)]
    starts = [k * width for k in range(len(counts))]
    proba = [_columns(mean, start, count) for start, count in zip(starts, counts, strict=True)]
    # For several outputs the source's trees take the argmax over a row padded to the largest number of classes. The padding is 0 and comes
    # last, so it is never the first maximum, and can be left out.
    if len(counts) == 1:
        predict = labels(m.classes_, t.argmax(proba[0], 1))
    else:
        decisive = [added_in_order(p) for p in proba] if averaged else proba
        each = [t.reshape(labels(c, t.argmax(p, 1)), N, 1) for c, p in zip(m.classes_, decisive, strict=True)]
        predict = t.concat(each)
    return {
        "predict": predict,
        "predict_proba": tuple(proba),
        "predict_log_proba": tuple(t.log(p) for p in proba),
        "apply": _applied(ensemble, x, averaged),
    }


def _regressor(m: Any, x: Node, trees: Sequence[Any], averaged: bool) -> Result:
    mean, ensemble = _mean(x, trees, averaged)
    return {
        "predict": t.reshape(mean, N) if m.n_outputs_ == 1 else mean,
        "apply": _applied(ensemble, x, averaged),
    }


def _applied(ensemble: TreeEnsemble, x: Node, forest: bool) -> Node:
    """The leaves reached, as `apply` returns them: i64[N, T] for a forest, i64[N] for a single tree."""
    return leaves(ensemble, x) if forest else t.reshape(leaves(ensemble, x), N)


def _columns(x: Node, start: int, count: int) -> Node:
    return x if (start, count) == (0, x.type.columns) else t.take(x, np.arange(start, start + count), axis=1)


@converts("sklearn.tree.DecisionTreeClassifier", "sklearn.tree.ExtraTreeClassifier")
def tree_classifier(m: Any, x: Node) -> Result:
    return _classifier(m, single(m, x, allow_nan=accepts_nan(m)), [m.tree_], averaged=False)


@converts("sklearn.tree.DecisionTreeRegressor", "sklearn.tree.ExtraTreeRegressor")
def tree_regressor(m: Any, x: Node) -> Result:
    return _regressor(m, single(m, x, allow_nan=accepts_nan(m)), [m.tree_], averaged=False)


@converts("sklearn.ensemble.RandomForestClassifier", "sklearn.ensemble.ExtraTreesClassifier")
def forest_classifier(m: Any, x: Node) -> Result:
    x = single(m, x, allow_nan=accepts_nan(m.estimators_[0]))
    return _classifier(m, x, [tree.tree_ for tree in m.estimators_], averaged=True)


@converts("sklearn.ensemble.RandomForestRegressor", "sklearn.ensemble.ExtraTreesRegressor")
def forest_regressor(m: Any, x: Node) -> Result:
    x = single(m, x, allow_nan=accepts_nan(m.estimators_[0]))
    return _regressor(m, x, [tree.tree_ for tree in m.estimators_], averaged=True)


@converts("sklearn.ensemble.IsolationForest")
def isolation_forest(m: Any, x: Node) -> Result:
    x = single(m, x, allow_nan=True, allow_inf=True)
    every = m._max_features == m.n_features_in_
    trees = []
    for number, (tree, features) in enumerate(zip(m.estimators_, m.estimators_features_, strict=True)):
        depths = m._decision_path_lengths[number] + m._average_path_length_per_tree[number] - 1.0
        trees.append(read_tree(tree.tree_, np.asarray(depths, np.float64)[:, None], None if every else features))
    depth = t.reshape(replace(join(trees, np.zeros(1)), exact=True)(x), N)
    denominator = float(len(trees) * _average_path_length(m._max_samples))
    # For a single training sample the source would divide by 0, and defines the score as 1/2 instead.
    exponent = t.div(depth, denominator) if denominator else t.add(t.mul(depth, 0.0), 1.0)
    scores = t.neg(t.power(t.constant(2.0), t.neg(exponent)))
    cut = _first_depth(lambda d: -(2 ** -(d / denominator if denominator else 1.0)) - m.offset_ >= 0)
    return {
        # The score of a training row can equal offset_, and then the last bit of a power would decide its class. So the sum of depths,
        # which is exact, is compared with the depth at which numpy's own score reaches offset_.
        "predict": t.where(t.less(depth, cut), t.constant(-1), t.constant(1)),
        "decision_function": t.sub(scores, float(m.offset_)),
        "score_samples": scores,
    }


def _average_path_length(n: int) -> float:
    """The average path length in an isolation tree of n samples (sklearn.ensemble._iforest._average_path_length)."""
    if n <= 2:
        return float(n == 2)
    return float(2.0 * (np.log(np.array([n]) - 1.0) + np.euler_gamma)[0] - 2.0 * (n - 1.0) / n)


def _first_depth(inside: Callable[[Array], Any]) -> float:
    """The smallest float64 ≥ 0 for which a monotone condition holds; inf if there is none. Found by bisection over bit patterns."""
    low, high = 0, int(np.array(np.inf).view(np.int64))
    while low < high:
        middle = (low + high) // 2
        if np.all(inside(np.array([middle]).view(np.float64))):
            high = middle
        else:
            low = middle + 1
    return float(np.array([low]).view(np.float64)[0])
