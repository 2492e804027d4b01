"""From which columns of a graph's inputs a column of a value is computed."""

from __future__ import annotations

import numpy as np

from hbc.ir.graph import Input, Node
from hbc.ir.narrow import SideBySide

Place = tuple[Node, int]
"""A value, and the number of one of its columns."""


class Origins:
    """Finds the origins of columns, and keeps what it has found, since the columns of one graph share much."""

    def __init__(self) -> None:
        self._known: dict[Place, frozenset[Place]] = {}

    def of(self, node: Node, column: int) -> frozenset[Place]:
        """The columns of inputs from which this column of a value may be computed: all that an operator does not rule out (`reads`)."""
        known, stack = self._known, [(node, column)]
        while stack:
            place = stack[-1]
            needed = [] if place in known else sources_of(*place)
            missing = [each for each in needed if each not in known]
            if missing:
                stack += missing
                continue
            stack.pop()
            if place not in known:
                own = [frozenset({place})] if isinstance(place[0].op, Input) else []
                known[place] = frozenset[Place]().union(*own, *(known[each] for each in needed))
        return known[node, column]

    def unchanged(self, node: Node, column: int) -> bool:
        """Whether every number of this column is one of an input's, or one that a missing value is replaced by: nothing is computed."""
        if isinstance(node.op, Input):
            return True
        return node.op.keeps(node.inputs) and all(self.unchanged(*place) for place in sources_of(node, column))

    def all_of(self, node: Node) -> list[frozenset[Place]]:
        """The origins of every column of a value."""
        if isinstance(node.op, SideBySide) and node.op.axis == 1 and all(len(x.type.shape) == 2 for x in node.inputs):
            # One by one, each column would look at all parts: 10 s for 1,000 of them.
            return [origin for source in node.inputs for origin in self.all_of(source)]
        return [self.of(node, column) for column in range(node.type.width)]


def sources_of(node: Node, column: int) -> list[Place]:
    """The columns of a node's operands from which one of its columns is computed: all that the operator does not rule out (`reads`)."""
    reads = node.op.reads(np.array([column]), node.inputs) if len(node.type.shape) == 2 else None
    every = [np.arange(source.type.width) for source in node.inputs] if reads is None else reads
    return [
        (source, int(i)) for source, columns in zip(node.inputs, every, strict=True) if source.type.batched for i in columns
    ]
