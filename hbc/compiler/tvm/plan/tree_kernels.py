"""The table of the tree kernels, by the names of their strategies (`TREE_KERNELS`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from hbc.ir.graph import Node
from hbc.lazy import record
from hbc.ops.tree import TreeEnsemble

Code = TypeVar("Code", bound=Callable[..., None])


@record
class TreeKernel:
    """One way to run tree ensembles.

    kernel: `kernel(f, node)` writes the loops over a block of rows. fits: whether it can run an ensemble within the numerical
    contract. nanoseconds: a rough time for one row, to decide on threads.
    """

    kernel: Callable[..., None]
    fits: Callable[[TreeEnsemble], bool]
    nanoseconds: Callable[[TreeEnsemble], float]


TREE_KERNELS: dict[str, TreeKernel] = {}


def tree_kernel(
    strategy: str, nanoseconds: Callable[[TreeEnsemble], float], fits: Callable[[TreeEnsemble], bool] = lambda op: True
) -> Callable[[Code], Code]:
    """A decorator that registers a kernel under the name of its strategy."""

    def register(code: Code) -> Code:
        TREE_KERNELS[strategy] = TreeKernel(code, fits, nanoseconds)
        return code

    return register


def kernel_of(op: TreeEnsemble, available: tuple[str, ...]) -> TreeKernel:
    """The kernel of an ensemble's strategy. If that kernel does not fit or is not in `available`: the kernel of available[0], which runs
    every ensemble."""
    asked = TREE_KERNELS.get(op.strategy)
    return asked if asked is not None and op.strategy in available and asked.fits(op) else TREE_KERNELS[available[0]]


LEAST_SUMS = 64
"""The fewest outputs of a scan whose columns lie side by side where a block has few rows (nest/function.py)."""


def has_many_sums(node: Node, available: tuple[str, ...]) -> bool:
    """Whether a node is a scan with at least LEAST_SUMS outputs.

    A scan writes an output for up to eight rows at once, though the block may have a single one. Then the other seven numbers stand where
    the following outputs belong, which are written after it."""
    op = node.op
    if not isinstance(op, TreeEnsemble) or op.output != "sum" or op.n_outputs < LEAST_SUMS:
        return False
    return kernel_of(op, available) is TREE_KERNELS["scan"]


def nanoseconds_of(op: Any) -> float:
    """A rough time for one row by an ensemble's strategy; the time of a walk if no kernel has that name."""
    return TREE_KERNELS.get(op.strategy, TREE_KERNELS["walk"]).nanoseconds(op)
