"""The work of a tree ensemble in ONNX Runtime on a CPU, for each strategy (see hbc/compiler/costs.py)."""

from __future__ import annotations

from collections.abc import Mapping

from hbc.compiler.costs import Lowered, Shape, Work, beyond
from hbc.compiler.onnx.session import BLOCK_BYTES
from hbc.compiler.onnx.tree import STRATEGY

L2 = 1 << 20
"""The size of the second-level cache, in bytes."""


def runtime(s: Shape, rows: int) -> Mapping[str, float]:
    """The work of ONNX Runtime's own kernel, which walks one row through one tree after the other."""
    levels = rows * s.trees * s.mean_depth
    return {
        "call": 1,
        "row and tree": rows * s.trees,
        "row and further value of a leaf": rows * s.trees * (s.width - 1),
        "row and level of a leaf": levels,
        "row and level of a leaf, by doublings beyond L2": levels * beyond(s.splits * 48, L2),
    }


STRATEGIES: dict[str, Work] = {STRATEGY: runtime, **Lowered(BLOCK_BYTES).strategies}
