"""Tensor operators that multiply matrices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hbc.ir.graph import Constant, Node, operator
from hbc.ir.magnitudes import magnitudes
from hbc.ir.narrow import Product
from hbc.ir.rows import Rows
from hbc.ir.types import Array, TensorType, require
from hbc.ops.tensor.base import TensorOperator


@operator
class MatMul(Product, TensorOperator):
    """y[N, K] = Σ_f x[N, f] · w[f, K]; one float dtype, w has no rows. The order of the sum is the compiler's."""

    rows = "takes"

    def infer(self, x: TensorType, w: TensorType) -> TensorType:
        require(x.dtype == w.dtype and x.is_float, "operands must have one float dtype")
        require(len(x.shape) == 2 and len(w.shape) == 2 and not w.batched, "operands must be [N, F] and [F, K]")
        require(x.shape[1] == w.shape[0], "inner dimensions differ")
        return TensorType(x.dtype, (x.shape[0], w.shape[1]))

    def of_rows(self, x: Rows, w: Array) -> Array:
        return x.matmul(w)

    def evaluate(self, x: Array, w: Array) -> Array:
        return x @ w

    def magnitude(self, node: Node, bounds: Sequence[Array]) -> Array | None:
        w = node.inputs[1].op
        return np.asarray(bounds[0] @ magnitudes(w.value)) if isinstance(w, Constant) else None


@operator
class BlockMatMul(TensorOperator):
    """y[N, T, L] = Σ_i x[N, T, i] · w[T, i, L]: one matrix product per block t (the GEMM strategy has a block for each tree)"""

    def infer(self, x: TensorType, w: TensorType) -> TensorType:
        require(x.dtype == w.dtype and x.is_float, "operands must have one float dtype")
        require(len(x.shape) == 3 and len(w.shape) == 3 and not w.batched, "operands must be [N, T, I] and [T, I, L]")
        require(x.shape[1:] == w.shape[:2], "blocks or inner dimensions differ")
        return TensorType(x.dtype, (*x.shape[:2], w.shape[2]))

    def evaluate(self, x: Array, w: Array) -> Array:
        return np.matmul(x.transpose(1, 0, 2), w).transpose(1, 0, 2)
