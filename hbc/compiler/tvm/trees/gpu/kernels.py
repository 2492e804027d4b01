"""Registers the tree kernels of this package, a strategy for each form of trees."""

from __future__ import annotations

from functools import partial

from hbc.compiler.tvm.nest.function import Block
from hbc.compiler.tvm.nest.schedule import GpuLaneTrees
from hbc.compiler.tvm.plan.tree_kernels import tree_kernel
from hbc.compiler.tvm.trees.gpu.choice import FORMS
from hbc.compiler.tvm.trees.gpu.lanes import LaneTrees
from hbc.compiler.tvm.trees.gpu.tiles import TiledTrees
from hbc.ir.graph import Node


def emit(form: type[TiledTrees], f: Block, node: Node) -> None:
    """Emit a `TreeEnsemble` for a block of rows. Blocks of one row have one form for all strategies."""
    if isinstance(f.schedule, GpuLaneTrees):
        LaneTrees(f, node, form.bits).emit()
    else:
        form(f, node).emit()


for _name, _form in sorted(FORMS.items()):
    tree_kernel(_name, nanoseconds=lambda op: 1.0, fits=_form.fits)(partial(emit, _form))
