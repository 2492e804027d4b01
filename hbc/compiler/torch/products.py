"""Products of a matrix in several parts, without copying the parts into one matrix first."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hbc.compiler.torch.exact import Function
from hbc.compiler.torch.rules import PARAMETERS, runs
from hbc.ir.graph import Node, Operator, operator
from hbc.ir.types import Array, TensorType
from hbc.ops import tensor as t
from hbc.ops.linear import Linear

MOST_PARTS = 3
"""The largest number of parts that are multiplied apart. With three parts a call of one row takes as long as with a concatenation. Each
further part would take one more µs, and almost nothing in a concatenation."""


@operator
class Products(Operator):
    """y[N, K] = Σᵢ xᵢ[N, Cᵢ] · coefᵢ[Cᵢ, K] + intercept[K]. coef[Σ Cᵢ, K] holds the coefᵢ one below the other; `cuts` are the rows in it
    where the second and later ones begin."""

    coef: Array
    intercept: Array
    cuts: tuple[int, ...]

    level = "tensor"

    def infer(self, *parts: TensorType) -> TensorType:
        return TensorType(parts[0].dtype, (parts[0].shape[0], self.coef.shape[1]))


def by_parts(node: Node) -> Node | None:
    """`Linear(Concat(x, y))` → `Products(x, y)`; None for other nodes. Without it, the concatenation copies x and y: for 140 columns of
    float64 that takes 0.4 to 0.6 ns a number."""
    if not isinstance(node.op, Linear) or not isinstance(node.inputs[0].op, t.Concat):
        return None
    parts = node.inputs[0].inputs
    if len(parts) > MOST_PARTS:
        return None
    cuts = np.cumsum([part.type.columns for part in parts])[:-1]
    return Products(node.op.coef, node.op.intercept, tuple(map(int, cuts)))(*parts)


@runs(Products)
def _products(op: Products, node: Node) -> Function:
    count = len(node.inputs)

    def products(*operands: Tensor) -> Tensor:
        parts, (intercept, *coefs) = operands[:count], operands[count:]
        total = torch.addmm(intercept, parts[0], coefs[0])
        for part, coef in zip(parts[1:], coefs[1:], strict=True):
            total.addmm_(part, coef)
        return total

    return products


PARAMETERS[Products] = lambda op: (op.intercept, *np.split(op.coef, op.cuts))
