"""Votes of pairs of classes: for the converters of support vector machines, and of an estimator for each pair."""

from __future__ import annotations

import numpy as np

from hbc.ir.graph import Node
from hbc.ops import tensor as t
from hbc.ops.coupling import class_pairs


def for_class(signed: Node, classes: int) -> Node:
    """For each class the sum over its pairs, in their order, f64[N, classes]. In signed f64[N, 2P], column p is for the first class of pair
    p and column P + p for its second class."""
    first, second = class_pairs(classes)
    size = len(first)
    speaking = [[p if first[p] == c else size + p for p in range(size) if c in (first[p], second[p])] for c in range(classes)]
    return t.sum_(t.take(signed, np.array(speaking), axis=1), 2, ordered=True)


def votes(wins: Node, classes: int) -> Node:
    """The number of pairs that each class wins, f64[N, classes]. wins[N, P]: whether the first class of each pair wins."""
    return for_class(t.cast(t.concat([wins, t.logical_not(wins)]), "f64"), classes)


def one_vs_rest(votes: Node, signed: Node, classes: int) -> Node:
    """votes + s / (3(|s| + 1)) for each class, f64[N, classes], where s is the sum of the confidences for the class
    (sklearn.utils.multiclass._ovr_decision_function). votes f64[N, classes]; signed f64[N, 2P]: the confidences, as `for_class` takes
    them. Its order of additions matters: exact ties between sums decide about a class."""
    s = for_class(signed, classes)
    return t.add(votes, t.div(s, t.mul(t.add(t.absolute(s), 1.0), 3.0)))
