"""The work of a tree ensemble in PyTorch on a CPU, for each strategy (see hbc/compiler/costs.py)."""

from __future__ import annotations

from collections.abc import Mapping

from hbc.compiler.costs import Lowered, Shape, Work
from hbc.compiler.torch.run import BLOCK_BYTES

LOWERED = Lowered(BLOCK_BYTES)


def scan(s: Shape, rows: int) -> Mapping[str, float]:
    """The work of the strategy "scan", which takes as many steps as the largest tree has splits."""
    return {
        "call": 1,
        "block and step": LOWERED.blocks(rows, 2 * s.trees) * (s.leaves - 1),
        "split": s.splits,
        "row and split": rows * s.splits,
        "row and column": rows * s.columns,
        "row and plane": rows * s.planes,
        "row and value of a leaf": rows * s.trees * s.width,
    }


STRATEGIES: dict[str, Work] = {"scan": scan, **LOWERED.strategies}
