"""`Operator.alike` and `Operator.joined` of operators that compute each column by itself. (It knows nodes and operators by their fields
only, since hbc/ir/graph.py imports it.)"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from hbc.ir.types import Array


def of_columns(op: Any, node: Any) -> Any:
    """What such an operator must have in common with others: all parameters but the numbers of its arrays, whose first axis is the column.
    None for other operators."""
    arrays = op._arrays
    by_column = all(array.ndim and len(array) == node.type.width for array in arrays.values())
    if not (op.columnwise or op.elementwise) or op.mixes_rows or not by_column:
        return None
    plain = [(name, repr(getattr(op, name))) for name in op.parameters if name not in arrays]  # 0.0 is not -0.0
    return (*plain, *((name, str(array.dtype), array.shape[1:]) for name, array in arrays.items()))


def with_all_columns(nodes: Sequence[Any]) -> Any:
    """The operator of the first node with the parameters of all, one after the other."""
    op = nodes[0].op
    return op._with({name: np.concatenate([getattr(node.op, name) for node in nodes]) for name in op._arrays})


def starts(nodes: Sequence[Any]) -> Array:
    """The numbers of the columns at which the nodes begin, side by side."""
    return np.array([0, *accumulate(node.type.width for node in nodes[:-1])])


def shifted(nodes: Sequence[Any], name: str) -> Array:
    """The parameter of all nodes, one after the other. It names columns of their first operands, which stand side by side."""
    first = starts([node.inputs[0] for node in nodes])
    return np.concatenate([getattr(node.op, name) + start for node, start in zip(nodes, first, strict=True)])


def one_below_the_other(tables: Sequence[Array], paddings: Sequence[Any]) -> Array:
    """The rows of all tables [F, K], made as long as the longest with the padding of each table, a number or [F, 1]."""
    longest = max(table.shape[1] for table in tables)
    whole = np.empty((sum(map(len, tables)), longest), tables[0].dtype)
    row = 0
    for table, padding in zip(tables, paddings, strict=True):
        rows = whole[row : row + len(table)]
        rows[:, : table.shape[1]], rows[:, table.shape[1] :] = table, padding
        row += len(table)
    return whole
