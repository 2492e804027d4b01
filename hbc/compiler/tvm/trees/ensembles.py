"""Which kernel runs a tree ensemble."""

from __future__ import annotations

from hbc.compiler.tvm.nest.function import Block
from hbc.compiler.tvm.plan.operators import emits
from hbc.compiler.tvm.plan.tree_kernels import kernel_of, nanoseconds_of
from hbc.compiler.tvm.trees.categories import CategoricalTrees
from hbc.ir.graph import Node
from hbc.ops.tree import TreeEnsemble


@emits(TreeEnsemble, CategoricalTrees, nanoseconds=lambda node: nanoseconds_of(node.op))
def trees(f: Block, node: Node) -> None:
    """Emit a tree ensemble by the kernel of its strategy. If that kernel isn't exact enough for the ensemble, the trees are walked.

    `exact` sums are always walked.
    """
    op = node.op
    assert isinstance(op, TreeEnsemble)
    kernel_of(op, f.schedule.tree_kernels).kernel(f, node)
