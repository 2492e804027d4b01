"""The work of a tree ensemble in PyTorch on a CPU, for each strategy (see hbc/compiler/costs.py)."""

from __future__ import annotations

from collections.abc import Mapping

from hbc.compiler.costs import Lowered, Shape, Work, beyond
from hbc.compiler.torch.run import BLOCK_BYTES
from hbc.compiler.torch.walk import AT_ONCE, LEAST_ROWS, levels

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


def walk(s: Shape, rows: int) -> Mapping[str, float]:
    """The work of the strategy "walk". Every tree takes as many steps as the deepest one."""
    top, full = levels(s.trees, s.splits + s.trees, s.depth)
    block = min(
        max(AT_ONCE // max(s.trees, 1), LEAST_ROWS), max(BLOCK_BYTES // max(s.columns * s.bytes, 1), LOWERED.least_rows)
    )
    groups = -(-rows // block) * -(-(min(rows, block) * s.trees) // AT_ONCE)
    tables = (s.trees << full) * (4 + s.bytes)
    walks, below = rows * s.trees, max(s.depth - full, 0)
    return {
        "call": 1,
        "group and level": groups * s.depth,
        "row and column": rows * min(s.columns, ((1 << top) - 1) * s.trees),  # the others stay where they are
        "row and tree": walks,
        "row and top level": walks * top,
        "row and full level": walks * (full - top),
        "row and lower level": walks * below,
        "row and lower level, by doublings of the tables beyond L2": walks * below * beyond(s.splits * (16 + 2 * s.bytes), L2),
        "row and full level, by doublings of the tables beyond L2": walks * (full - top) * beyond(tables, L2),
        "row and value of a leaf": walks * s.width,
    }


L2 = 1 << 20
"""The size of the second-level cache, in bytes."""
STRATEGIES: dict[str, Work] = {"scan": scan, "walk": walk, **LOWERED.strategies}
