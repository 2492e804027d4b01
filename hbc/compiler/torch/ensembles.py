"""Which of PyTorch's two strategies of its own runs a TreeEnsemble: "scan" tests all splits, "walk" follows the rows."""

from __future__ import annotations

from hbc.compiler.torch import scan, walk
from hbc.compiler.torch.exact import Function
from hbc.compiler.torch.rules import PARAMETERS, ROW_BY_ROW, WORKSPACE, runs
from hbc.ir.graph import Node, Operator
from hbc.ir.types import Array
from hbc.ops.tree import TreeEnsemble

STRATEGIES = {"scan": scan.scannable, "walk": walk.walkable}
"""Strategy → whether it can run an ensemble."""


def runs_as_it_is(op: Operator) -> bool:
    """Whether an operator is an ensemble that one of the strategies runs."""
    return isinstance(op, TreeEnsemble) and op.strategy in STRATEGIES and STRATEGIES[op.strategy](op)


def _parameters(op: TreeEnsemble) -> tuple[Array, ...]:
    return walk.pack(op) if op.strategy == "walk" else scan.pack(op)


def _workspace(op: TreeEnsemble) -> int:
    return walk.row_bytes(op) if op.strategy == "walk" else scan.row_bytes(op)


def _row_by_row(op: TreeEnsemble) -> bool:
    return op.strategy == "walk" and walk.is_wide(op)


PARAMETERS[TreeEnsemble] = _parameters
ROW_BY_ROW[TreeEnsemble] = _row_by_row
WORKSPACE[TreeEnsemble] = _workspace


@runs(TreeEnsemble)
def _trees(op: TreeEnsemble, node: Node) -> Function:
    return walk.walker(op) if op.strategy == "walk" else scan.scanner(op)
