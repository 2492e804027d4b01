"""Single columns of values, followed back through operators that only choose columns or put them side by side."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from hbc.ir.graph import Node, topological
from hbc.ir.types import DType
from hbc.ops.columns import SelectColumns
from hbc.ops.tensor import Concat, cast, concat

Column = tuple[Node, int]


def earliest(column: Column) -> Column:
    """The earliest column that holds the same numbers: the given one, followed back through SelectColumns and Concat."""
    node, index = column
    while True:
        match node.op:
            case Concat(axis=1):
                for part in node.inputs:
                    if index < part.type.columns:
                        break
                    index -= part.type.columns
                node = part
            case SelectColumns(indices):
                node, index = node.inputs[0], int(indices[index])
            case _:
                return node, index


def side_by_side(columns: Iterable[Column], dtype: DType) -> tuple[Node, dict[Column, int]]:
    """(a matrix [N, F] of the dtype that holds these columns, the position of each column in it). It may hold other columns too.

    If all columns come from one value, the matrix is the whole value: to copy a row for a tree ensemble that could read it in
    place takes longer than leaving some columns out saves.
    """
    read: dict[Node, set[int]] = defaultdict(set)
    for node, index in columns:
        read[node].add(index)
    blocks = []
    position: dict[Column, int] = {}
    start = 0
    for node in topological(read):
        if node not in read:
            continue
        kept = np.array(sorted(read[node]) if len(read) > 1 else range(node.type.columns), np.int64)
        position.update({(node, index): start + i for i, index in enumerate(kept.tolist())})
        start += len(kept)
        blocks.append(cast(node if len(kept) == node.type.columns else SelectColumns(kept)(node), dtype))
    return concat(blocks), position
