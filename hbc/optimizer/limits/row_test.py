"""The test of a call's values as a graph, for arrays that lie on a GPU."""

from __future__ import annotations

import numpy as np

from hbc.ir.graph import Graph, Node
from hbc.ir.rewrite import substitute
from hbc.ir.signature import Limits
from hbc.ir.types import NUMPY_DTYPES
from hbc.ops import tensor as t


def surely_accepted(graph: Graph, limits: Limits) -> Graph | None:
    """A graph of the same inputs, with a bool for each row as its output "accepted": no limit and no guard rejects a row for which it is
    true. It may be false for rows that pass. None where no operator can tell."""
    tests: list[Node] = []
    for node, entry in zip(graph.inputs, limits.inputs, strict=True):
        if not node.type.is_float:
            if node.type.dtype == "str" or not np.isinf(entry.limit).all() or not np.isinf(limits.safe):
                return None
            continue
        dtype = np.dtype(NUMPY_DTYPES[node.type.dtype])
        most = entry.largest(dtype, limits.safe)
        missing = t.logical_and(t.isnan(node), entry.allow_nan)
        tests.append(t.logical_or(t.less_equal(t.absolute(node), most), missing))
    for guard in limits.tests:
        if guard.accepted is None:
            return None
        own = {node.op.name: node for node in graph.inputs}  # type: ignore[attr-defined]
        inputs = {node: own[node.op.name] for node in guard.accepted.inputs}  # type: ignore[attr-defined]
        tests += substitute(guard.accepted.outputs["accepted"], inputs)
    if not tests:
        return None
    accepted, *others = map(_of_rows, tests)
    for other in others:
        accepted = t.logical_and(accepted, other)
    return Graph(graph.inputs, {"accepted": (accepted,)}).verify()


def _of_rows(test: Node) -> Node:
    """bool[N] of bool[N] or bool[N, C]: whether all of a row is true."""
    if len(test.type.shape) == 1:
        return test
    return t.less_equal(np.float32(1), t.min_(t.where(test, np.float32(1), np.float32(0)), axis=1))
