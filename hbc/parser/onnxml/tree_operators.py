"""TreeEnsembleClassifier, TreeEnsembleRegressor and TreeEnsemble, as ONNX Runtime computes them
(onnxruntime/core/providers/cpu/ml/tree_ensemble_aggregator.h). Sums start from 0, trees are added in their order, and base values last; all
in float32, or in float64 for float64 input.

A leaf may have weights for some outputs only. A row has a score for an output if some leaf that it reaches has a weight for it. Without a
score it gets 0 there, whatever the base value, unless there are more than two classes: then a base value is a score."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hbc.ir.graph import Node
from hbc.ir.types import NUMPY_DTYPES, Array
from hbc.ops import tensor as t
from hbc.ops.checks import CheckLeast
from hbc.parser.frame import Refusal
from hbc.parser.onnxml.transforms import first_largest, label_of, labels, logistic, post_transform, table_of_labels
from hbc.parser.onnxml.trees import MODES, Nodes, copied_apart, ensemble, exactly, floats, read_nodes, weights_of
from hbc.parser.onnxml.values import ML, Call, implements

NODES = (
    "nodes_falsenodeids",
    "nodes_featureids",
    "nodes_hitrates",
    "nodes_hitrates_as_tensor",
    "nodes_missing_value_tracks_true",
    "nodes_modes",
    "nodes_nodeids",
    "nodes_treeids",
    "nodes_truenodeids",
    "nodes_values",
    "nodes_values_as_tensor",
    "post_transform",
    "base_values",
    "base_values_as_tensor",
)


def _read(call: Call) -> Node:
    """The input in the dtype in which the trees compare it: floats stay, integers become float32."""
    x = call.matrix(0)
    return x if x.type.is_float else t.cast(x, "f32")


@implements(
    "TreeEnsembleRegressor",
    attributes=(
        *NODES,
        "aggregate_function",
        "n_targets",
        "target_ids",
        "target_nodeids",
        "target_treeids",
        "target_weights",
        "target_weights_as_tensor",
    ),
    domain=ML,
)
def tree_ensemble_regressor(call: Call) -> Node:
    x = _read(call)
    nodes = read_nodes(call, "target", int(call.get("n_targets", 0)), x.type.dtype)
    base = exactly(floats(call, "base_values"), x.type.dtype)
    scores = aggregated(nodes, x, call.get("aggregate_function", "SUM"), base)
    return post_transform(t.cast(scores, "f32"), call.get("post_transform", "NONE"), alone=nodes.n_outputs == 1)


@implements(
    "TreeEnsemble",
    attributes=(
        "aggregate_function",
        "leaf_targetids",
        "leaf_weights",
        "membership_values",
        "n_targets",
        "nodes_falseleafs",
        "nodes_falsenodeids",
        "nodes_featureids",
        "nodes_hitrates",
        "nodes_missing_value_tracks_true",
        "nodes_modes",
        "nodes_splits",
        "nodes_trueleafs",
        "nodes_truenodeids",
        "post_transform",
        "tree_roots",
    ),
    domain=ML,
)
def tree_ensemble(call: Call) -> Node:
    """The operator of version 5. It lists leaves apart from nodes, and gives modes and functions as numbers."""
    x = _read(call)
    dtype = x.type.dtype
    modes = call.get("nodes_modes").astype(np.int64)
    size, leaves = len(modes), len(call.get("leaf_weights"))
    if size and modes.max() >= len(MODES):
        raise Refusal("a node has an unknown mode.")

    def child(side: str) -> Array:
        place = call.get(f"nodes_{side}nodeids")
        return np.concatenate([place + size * (call.get(f"nodes_{side}leafs") != 0), np.zeros(leaves, np.int64)])

    true, false = child("true"), child("false")
    if np.any((true < 0) | (true >= size + leaves) | (false < 0) | (false >= size + leaves)):
        raise Refusal("it refers to a node that does not exist.")
    mode = np.concatenate([modes, np.full(leaves, -1)])
    given = call.get("nodes_missing_value_tracks_true")
    missing = np.zeros(size, bool) if given is None or not len(given) else given == 1
    weights, scored = weights_of(
        size + np.arange(leaves),
        call.get("leaf_targetids"),
        call.get("leaf_weights"),
        size + leaves,
        int(call.get("n_targets")),
        dtype,
    )
    roots = np.asarray(call.get("tree_roots"))
    # A tree of a single leaf is written as a root with this leaf on both sides.
    roots = np.where((true[roots] == false[roots]) & (true[roots] >= size), true[roots], roots)
    nodes = Nodes(
        mode,
        np.concatenate([call.get("nodes_featureids"), np.zeros(leaves, np.int64)]),
        np.concatenate([exactly(call.get("nodes_splits"), dtype), np.zeros(leaves, NUMPY_DTYPES[dtype])]),
        true,
        false,
        np.concatenate([missing, np.zeros(leaves, bool)]),
        weights,
        scored,
        roots,
        _member_sets(modes, call.get("membership_values")),
    )
    names = ("AVERAGE", "SUM", "MIN", "MAX")
    transform = {0: "NONE", 3: "SOFTMAX_ZERO", 4: "PROBIT"}.get(int(call.get("post_transform", 0)))
    if transform is None:
        raise Refusal("its post_transform is 1 or 2: ONNX and ONNX Runtime disagree on which is SOFTMAX and which LOGISTIC.")
    scores = aggregated(nodes, x, names[int(call.get("aggregate_function", 1))], np.zeros(0, NUMPY_DTYPES[dtype]))
    return post_transform(scores, transform, alone=nodes.n_outputs == 1)


def _member_sets(modes: Array, values: Array | None) -> dict[int, Array]:
    """node → its set of values, for the BRANCH_MEMBER nodes. In `values` the sets stand in the order of the nodes, each ended by a NaN."""
    nodes = np.flatnonzero(modes == MODES.index("BRANCH_MEMBER"))
    if values is None or not len(nodes):
        return {}
    ends = np.flatnonzero(np.isnan(values))
    if len(ends) < len(nodes) - 1:
        raise Refusal("some of its nodes have no set of values.")
    return dict(
        zip(
            nodes.tolist(), np.split(values[~np.isnan(values)], ends[: len(nodes) - 1] - np.arange(len(nodes) - 1)), strict=True
        )
    )


# --- scores ------------------------------------------------------------------------------------------------------------


def aggregated(nodes: Nodes, x: Node, function: str, base: Array) -> Node:
    """y[N, K] = the sum, average, minimum or maximum over the trees of the weights of the leaves reached, plus base[K]; in x's dtype."""
    if len(base) not in (0, nodes.n_outputs):
        raise Refusal(f"it has {len(base)} base values for {nodes.n_outputs} outputs.")
    if function in ("SUM", "AVERAGE"):
        count = len(nodes.roots) if function == "AVERAGE" else 1
        scores, has = _sums(nodes, x, base=base * count if base.any() else 0.0)
        if function == "AVERAGE":
            scores = t.div(scores, float(len(nodes.roots)))
    elif function in ("MIN", "MAX"):
        scores, has = _extremes(nodes, x, largest=function == "MAX"), _presence(nodes, x)
    else:
        raise Refusal(f"its aggregate function is {function!r}.")
    scores = t.add(scores, base) if base.any() else scores
    return scores if has is None else t.where(has, scores, 0.0)


def _always(nodes: Nodes) -> Array:
    """Whether every row has a score, for each output: some tree has a weight for it in every leaf. bool[K]."""
    number, _, _, tree = copied_apart(nodes)
    filled = nodes.scored[number] | (nodes.mode[number] >= 0)[:, None]
    starts = np.searchsorted(tree, np.arange(len(nodes.roots)))
    return np.asarray(np.logical_and.reduceat(filled, starts, axis=0).any(axis=0))


def _sums(nodes: Nodes, x: Node, *, exact: bool = False, base: Array | float = 0.0) -> tuple[Node, Node | None]:
    """(the sums of the weights of the leaves that a row reaches [N, K], whether the row has a score bool[N, K]). The second is None if all
    rows have all scores. A single output has a score in any case. `exact`, `base`: see `ensemble`."""
    if nodes.n_outputs == 1 or _always(nodes).all():
        operator, read = ensemble(nodes, x, exact=exact, base=base)
        return operator(read), None
    counted = np.concatenate([nodes.weights, nodes.scored.astype(nodes.weights.dtype)], axis=1)
    both = replace(nodes, weights=counted, scored=np.concatenate([nodes.scored, nodes.scored], axis=1))
    operator, read = ensemble(both, x, exact=exact, base=np.append(base, np.zeros(nodes.n_outputs)) if np.ndim(base) else base)
    found = operator(read)
    sums, counts = (t.take(found, half, axis=1) for half in np.split(np.arange(2 * nodes.n_outputs), 2))
    return sums, t.less(0.0, counts)


def _presence(nodes: Nodes, x: Node) -> Node | None:
    """Whether a row has a score, as `_sums` gives it."""
    return _sums(replace(nodes, weights=np.zeros_like(nodes.weights)), x)[1]


def _extremes(nodes: Nodes, x: Node, *, largest: bool) -> Node:
    """The largest or smallest weights of the leaves that a row reaches, [N, K]. For a single output, a leaf without a weight is 0."""
    reduce, neutral = (t.max_, -np.inf) if largest else (t.min_, np.inf)
    columns = []
    for k in range(nodes.n_outputs):
        weights = nodes.weights[:, k : k + 1]
        if nodes.n_outputs > 1:
            weights = np.where(nodes.scored[:, k : k + 1], weights, weights.dtype.type(neutral))
        operator, read = ensemble(replace(nodes, weights=weights, scored=np.ones_like(weights, bool)), x)
        count = operator.n_trees
        each = replace(
            operator, target=np.arange(count, dtype=np.int32), base=np.zeros(count, operator.base.dtype), exact=False, near=0.0
        )
        columns.append(reduce(each(read), axis=1, keepdims=True))
    return t.concat(columns)


# --- classifiers -------------------------------------------------------------------------------------------------------


@implements(
    "TreeEnsembleClassifier",
    attributes=(
        *NODES,
        "class_ids",
        "class_nodeids",
        "class_treeids",
        "class_weights",
        "class_weights_as_tensor",
        "classlabels_int64s",
        "classlabels_strings",
    ),
    domain=ML,
)
def tree_ensemble_classifier(call: Call) -> tuple[Node, Node]:
    x = _read(call)
    names = table_of_labels(call)
    size = len(names)
    nodes = read_nodes(call, "class", size, x.type.dtype)
    base = exactly(floats(call, "base_values"), x.type.dtype)
    transform = call.get("post_transform", "NONE")
    if size == 1:
        return _one_class(nodes, x, base, transform, names)
    if len(base) not in ((0, 1, 2) if size == 2 else (0, size)):
        raise Refusal(f"it has {len(base)} base values for {size} classes.")
    scored = np.asarray(nodes.scored[nodes.mode < 0].any(axis=0))
    sparse = not len(base) and bool(np.any(scored & ~_always(nodes)))
    if size == 2:
        return _two_classes(nodes, x, base, transform, names)
    if sparse:
        scores, has = _sums(nodes, x, exact=True)
        assert has is not None
        return labels(names, _best_of_those(scores, has)), post_transform(t.cast(scores, "f32"), transform)
    operator, read = ensemble(nodes, x, exact=bool(base.any()))
    scores = operator(read)
    scores = t.add(scores, base) if base.any() else scores
    candidates = np.flatnonzero(scored | (len(base) > 0))
    best = first_largest(scores if len(candidates) == size else t.take(scores, candidates, axis=1), 1)
    return labels(names[candidates], best), post_transform(t.cast(scores, "f32"), transform)


def _best_of_those(scores: Node, has: Node) -> Node:
    """The position of the first largest of the scores that a row has, i64[N], as a loop with `>` finds it: if the first one is NaN or -inf
    and the others are too, it is the first. A row without any score is rejected, since ONNX Runtime looks for its label outside its
    table."""
    counts = t.sum_(t.cast(has, "f32"), axis=1, keepdims=True)
    counts = CheckLeast("onnx.TreeEnsembleClassifier", min_rows=0, least=1.0)(counts)
    has = t.logical_and(has, t.less(0.0, counts))
    first = t.argmax(t.cast(has, "u8"), 1)
    leading = t.max_(t.where(t.logical_and(has, t.logical_not(t.isnan(scores))), scores, -np.inf), axis=1)
    best = t.argmax(t.where(t.logical_and(has, t.logical_not(t.isnan(scores))), scores, -np.inf), 1)
    begins = t.reshape(t.take_along(scores, t.reshape(first, "N", 1)), "N")
    return t.where(t.logical_or(t.isnan(begins), t.equal(leading, -np.inf)), first, best)


def _one_class(nodes: Nodes, x: Node, base: Array, transform: str, names: Array) -> tuple[Node, Node]:
    """(labels [N], scores f32[N, 1]) of a classifier of one class. ONNX Runtime returns the label 1 where the score is above 0,
    otherwise 0, whatever the model's label is. If that is a string, it reads beyond its table of labels."""
    if names.dtype.kind == "U":
        raise Refusal("it has one class, whose label is a string.")
    if len(base) > 1:
        raise Refusal(f"it has {len(base)} base values for 1 class.")
    operator, read = ensemble(nodes, x, exact=True)
    score = t.add(operator(read), base) if base.any() else operator(read)
    won = t.reshape(t.less(0.0, score), "N")
    return t.cast(won, "i64"), post_transform(t.cast(score, "f32"), transform, alone=True)


def _two_classes(nodes: Nodes, x: Node, base: Array, transform: str, names: Array) -> tuple[Node, Node]:
    """(labels [N], scores f32[N, 2]) of a classifier of two classes.

    If all weights are for one class, the second label is chosen where the score is above 0.5; above 0 if a weight is negative. Otherwise
    the second score decides (the first for rows that have no second), and ONNX Runtime returns the labels 0 and 1 if the model's labels
    are integers, whatever these are. A row without a second score has one score, of which ONNX Runtime makes two."""
    scored = nodes.scored[nodes.mode < 0].any(axis=0)
    positive, alone = bool(np.all(nodes.weights[nodes.scored] >= 0)), bool(scored.sum() == 1)
    first, second, both = _binary_scores(nodes, x, base)
    if not alone and len(base) == 1 and both is not True:
        raise Refusal(
            "it has one base value, and some leaves have no weight for the second class: ONNX Runtime then leaves a score unset."
        )
    decisive = _where(both, second, first)
    won = t.reshape(t.less(0.5 if positive and alone else 0.0, decisive), "N")
    label = label_of(np.arange(2) if not alone and names.dtype.kind != "U" else names, won)
    pair = t.concat([first, second])
    scores = post_transform(t.cast(pair, "f32"), transform)
    if len(base) == 2 or both is True:
        return label, scores
    score = t.cast(first, "f32")
    if transform == "LOGISTIC":
        single = t.concat([logistic(t.neg(score)), logistic(score)])
    else:
        single = t.concat([t.sub(1.0, score) if positive and alone else t.neg(score), score])
    return label, _where(both, scores, single)


def _binary_scores(nodes: Nodes, x: Node, base: Array) -> tuple[Node, Node, Node | bool]:
    """(the first scores [N, 1], the second ones [N, 1], whether a row has a second score: for all rows, or bool[N, 1]). They include the
    base values. Of two base values, ONNX Runtime adds the second to the first sum where a row has a second score, and there the first
    score is the second one negated. Elsewhere it adds the first to the first sum."""
    scored, always = np.asarray(nodes.scored[nodes.mode < 0].any(axis=0)), _always(nodes)
    if (scored == always).all():
        operator, read = ensemble(nodes, x, exact=True)
        scores = operator(read)
        has: list[Node | bool] = [bool(found) for found in scored]
    else:
        scores, found = _sums(nodes, x, exact=True)
        assert found is not None
        has = [t.take(found, np.array([k]), axis=1) for k in range(2)]
    first, second = (t.take(scores, np.array([k]), axis=1) for k in range(2))
    sums = first  # 0 for rows without a first score
    if len(base) == 2:
        second = _where(has[1], t.add(first, base[1:]), second)
        first = _where(has[1], t.neg(second), t.add(first, base[:1]))
    elif base.any():
        first = t.add(first, base)
    if base.any():
        first = _where(has[0], first, sums)
    return first, second, has[1]


def _where(condition: Node | bool, one: Node, other: Node) -> Node:
    """`one` where the condition holds, otherwise `other`."""
    return t.where(condition, one, other) if isinstance(condition, Node) else one if condition else other
