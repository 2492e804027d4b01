"""Votes of pairs of classes, as libsvm counts them: for the converters of support vector machines."""

from __future__ import annotations

import numpy as np

from hbc.ir.graph import Node
from hbc.ir.types import Array
from hbc.ops import tensor as t


def pairs(classes: int) -> tuple[Array, Array]:
    """The two classes of each pair (first, second), in libsvm's order of pairs: i64[P] each."""
    first, second = np.triu_indices(classes, 1)
    return first, second


def for_class(signed: Node, classes: int) -> Node:
    """For each class the sum over its pairs, f64[N, classes]. In signed[N, 2P], column p is for the first class of pair p and column P + p
    for its second class."""
    first, second = pairs(classes)
    size = len(first)
    speaking = [[p if first[p] == c else size + p for p in range(size) if c in (first[p], second[p])] for c in range(classes)]
    return t.sum_(t.take(signed, np.array(speaking), axis=1), 2, ordered=True)


def votes(wins: Node, classes: int) -> Node:
    """The number of pairs that each class wins, f64[N, classes]. wins[N, P]: whether the first class of each pair wins."""
    return for_class(t.cast(t.concat([wins, t.logical_not(wins)]), "f64"), classes)
