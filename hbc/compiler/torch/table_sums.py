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
FLOAT32 = OneHotCosts(code=5, added=0.17, column=3, multiplied=0.06, bytes=4, call=200_000)
FEW, MANY = (
    OneHotCosts(code=10, added=2, column=5, multiplied=0.13, bytes=8, call=200_000),
    OneHotCosts(code=60, added=0.4, column=5, multiplied=0.13, bytes=8, call=200_000),
)
"""For float64, with fewer columns than `LEAST_IN_BAG` and with more. Measured on one core of an AMD Zen 3, 1,000 rows of 36 codes: with 5
categories each and 2,500 outputs, sums take 39 µs and products 48; with 2 categories, 29 and 16. In float32 18 and 37, and 16 and 10."""


def in_bag(op: TableSum) -> bool:
    """Whether `embedding_bag` computes it. If not, it is lowered."""
    return op.table.dtype == "float32" or op.table.shape[1] >= LEAST_IN_BAG


def one_hot_costs(outputs: int, dtype: DType) -> OneHotCosts:
    """The costs of products with one-hot codes, for so many outputs."""
    if dtype == "f32":
        return FLOAT32
    return MANY if outputs >= LEAST_IN_BAG else FEW


@runs(TableSum)
def _table_sum(op: TableSum, node: Node) -> Function:
    def table_sum(places: Tensor, table: Tensor) -> Tensor:
        return torch.nn.functional.embedding_bag(places, table, mode="sum")

    return table_sum


PARAMETERS[TableSum] = lambda op: (op.table,)
