"""Which loop nest computes a value."""

from __future__ import annotations

from collections.abc import Callable

from hbc.compiler.tvm.kernels import coupling, nearest
from hbc.compiler.tvm.kernels.functions import elementary, power, sine
from hbc.compiler.tvm.kernels.hashes import hashed_values
from hbc.compiler.tvm.kernels.look_ups import concat, look_up, take_along
from hbc.compiler.tvm.kernels.products import block_matmul, matmul
from hbc.compiler.tvm.kernels.reductions import argmax, cumsum, max_, min_, sum_
from hbc.compiler.tvm.kernels.row_dots import row_dot
from hbc.compiler.tvm.kernels.search import rank, take_by_column
from hbc.compiler.tvm.nest import transpose
from hbc.compiler.tvm.nest.elementwise import NAMES
from hbc.compiler.tvm.nest.function import Function
from hbc.compiler.tvm.nest.rows import at_once, row_by_row
from hbc.compiler.tvm.plan.plan import LIBRARY, elements
from hbc.compiler.tvm.plan.row_dots import RowDot
from hbc.compiler.tvm.tir.mathematics import FUNCTIONS
from hbc.compiler.tvm.trees.categories import CategoricalTrees
from hbc.compiler.tvm.trees.scan import scannable, tree_scan
from hbc.compiler.tvm.trees.walk import tree_walk
from hbc.ir.graph import Input, Node
from hbc.ops import columns, functions, tensor
from hbc.ops.coupling import PairwiseCoupling
from hbc.ops.hashed_categories import HashedValues
from hbc.ops.nearest import Ascending, Distances, Smallest
from hbc.ops.tree import TreeEnsemble


def compute(f: Function, node: Node) -> None:
    """Fill the slot of a value."""
    kernel = KERNELS.get(type(node.op))
    if not elements(node.type):
        return
    if kernel is not None:
        kernel(f, node)
    elif isinstance(node.op, tensor.Take) and not node.inputs[0].type.batched:
        look_up(f, node)
    elif node in f.plan.columns:
        size = transpose.narrow(f, node.type)
        if size:
            with f.whole_vector():
                transpose.deal(f, node, size, f.plan.columns[node].tolist())
        read = f.own(f.plan.columns[node], "i64")
        with f.each_row(partial=size > 0) as row, f.grid([len(read)]) as (column,):
            f.store(node, column, row, f.value(node, [f.constant(read, "i64", column)], row))
    elif isinstance(node.op, Input) and (size := transpose.narrow(f, node.type)):
        with f.whole_vector():
            transpose.deal(f, node, size, list(range(elements(node.type))))
        row_by_row(f, node, partial=True)
    elif isinstance(node.op, Input) and (size := transpose.side(f, node.type)):
        with f.whole_vector():
            transpose.take_in(f, node, size)
        row_by_row(f, node, partial=True)
    elif isinstance(node.op, (Input, *LIBRARY)):
        # A row after the other: the caller's rows lie that way, and library calls must not see rows that are not there.
        row_by_row(f, node)
    else:
        at_once(f, node)


def _trees(f: Function, node: Node) -> None:
    """A scan where it was asked for and is exact enough; leaf numbers and exact sums are always walked for."""
    op = node.op
    assert isinstance(op, TreeEnsemble)
    (tree_scan if op.strategy == "scan" and scannable(op) else tree_walk)(f, node)


KERNELS: dict[type, Callable[[Function, Node], None]] = {
    **{kind: elementary for kind, name in NAMES.items() if name in FUNCTIONS},
    functions.Function: elementary,
    tensor.Sin: sine,
    tensor.Cos: sine,
    tensor.Pow: power,
    tensor.Concat: concat,
    tensor.Sum: sum_,
    tensor.Max: max_,
    tensor.Min: min_,
    tensor.ArgMax: argmax,
    tensor.CumSum: cumsum,
    tensor.MatMul: matmul,
    tensor.BlockMatMul: block_matmul,
    columns.TakeByColumn: take_by_column,
    tensor.TakeAlong: take_along,
    columns.Rank: rank,
    HashedValues: hashed_values,
    RowDot: row_dot,
    Distances: nearest.distances,
    Smallest: nearest.smallest,
    Ascending: nearest.ascending,
    PairwiseCoupling: coupling.coupling,
    TreeEnsemble: _trees,
    CategoricalTrees: _trees,
}
