"""Sums of rows of a table (`TableSum`) in PyTorch: by `embedding_bag`, which keeps no row but the sum, where that is the fastest way."""

from __future__ import annotations

import torch
from torch import Tensor

from hbc.compiler.costs import OneHotCosts
from hbc.compiler.torch.exact import Function
from hbc.compiler.torch.rules import PARAMETERS, runs
from hbc.ir.graph import Node
from hbc.ir.types import DType
from hbc.ops.linear import TableSum

LEAST_IN_BAG = 32
"""The fewest columns of a table of float64 for `embedding_bag`. For each row of the table it calls a function of BLAS, which takes 65 ns
and 0.4 for each column, where an index_select and a sum take 8 ns and 2 for each column (AMD Zen 3). For float32 it has code of its own,
which is always faster: 4 ns and 0.15."""
FLOAT32 = OneHotCosts((5, 27_000), (2.7, 7_000), added=0.09, column=2.3, multiplied=0.03, bytes=4, call=35_000)
ONE, FEW, MANY = (
    OneHotCosts((4.2, 27_000), (1.7, 7_000), added=1.3, column=1.5, multiplied=0.1, bytes=8, call=35_000),
    OneHotCosts((7.2, 27_000), (4.5, 7_000), added=1, column=2.5, multiplied=0.1, bytes=8, call=35_000),
    OneHotCosts((40, 27_000), (33, 7_000), added=0.16, column=5, multiplied=0.04, bytes=8, call=35_000),
)
"""For float64, with one output, fewer than `LEAST_IN_BAG`, and more. Measured on one core of an AMD Zen 4, 2,000 to 10,000 rows of 30
codes, ns a row and code: with 3 categories each sums take 5.0 for one output, 17 for 10 and 92 for 300, and products 4.7, 11 and 56; with 8
categories 6, 18 and 90, and 14, 29 and 121. In float32 with 3 categories 6, 6 and 33, and 6, 11 and 41."""


def in_bag(op: TableSum) -> bool:
    """Whether `embedding_bag` computes it. If not, it is lowered."""
    return op.table.dtype == "float32" or op.table.shape[1] >= LEAST_IN_BAG


def one_hot_costs(outputs: int, dtype: DType) -> OneHotCosts:
    """The costs of products with one-hot codes, for so many outputs."""
    if dtype == "f32":
        return FLOAT32
    return MANY if outputs >= LEAST_IN_BAG else FEW if outputs > 1 else ONE


@runs(TableSum)
def _table_sum(op: TableSum, node: Node) -> Function:
    def table_sum(places: Tensor, table: Tensor) -> Tensor:
        return torch.nn.functional.embedding_bag(places, table, mode="sum")

    return table_sum


PARAMETERS[TableSum] = lambda op: (op.table,)
