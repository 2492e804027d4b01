"""The kernels of `MatMul` and `BlockMatMul`: products of rows and constant matrices."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.nest.function import Chunk, Row
from hbc.compiler.tvm.plan.operators import emits
from hbc.compiler.tvm.plan.sizes import elements
from hbc.compiler.tvm.tir.dialect import Expr
from hbc.compiler.tvm.tir.expressions import fused, number
from hbc.ir.graph import Node
from hbc.ops import tensor


def _nanoseconds(node: Node) -> float:
    return 0.03 * elements(node.type) * int(node.inputs[1].type.shape[-2])


@emits(tensor.MatMul, rereads=lambda node: node.type.columns > 1, spreads=True, nanoseconds=_nanoseconds)
def matmul(f: Chunk, node: Node) -> None:
    """Emit `MatMul`."""
    x, w = node.inputs
    weights = f.plan.constants[w]
    _product(f, node, weights[None], lambda block, i, row: f.read(x, [i], row))


@emits(tensor.BlockMatMul, rereads=True, spreads=True, nanoseconds=_nanoseconds)
def block_matmul(f: Chunk, node: Node) -> None:
    """Emit `BlockMatMul`."""
    x, w = node.inputs
    _product(f, node, f.plan.constants[w], lambda block, i, row: f.read(x, [block, i], row))


def _product(f: Chunk, node: Node, weights: np.ndarray, x: Callable[[Expr, Expr, Row], Expr]) -> None:
    """Emit y[b, k] = Σ_i x(b, i) · weights[b, i, k]. For a vector of rows, the sums of a tile of columns k stay in registers.

    Each column has memory of its own. The memory of a whole tile would be too large for the stack, and each vector of rows would take a
    call to allocate it: 4 × 4 elements of float64 would take 3.4 instead of 1.6 ns a row, 20 × 3 elements 7.8 instead of 5.7.
    """
    blocks, inner, width = weights.shape
    dtype = node.type.dtype
    tile = min(f.dialect.tile(dtype, width), max(width, 1))
    tiles = -(-width // tile)
    padded = np.zeros((blocks, inner, tiles * tile), weights.dtype)
    padded[:, :, :width] = weights
    # No product with these weights is rounded. An fma is as exact then, and made a kernel of GEMM's trees spill 16 bytes on a GPU.
    plain = not f.dialect.llvm and bool(np.isin(weights, (-1, 0, 1)).all())
    tiled = f.own(padded.reshape(blocks, inner, tiles, tile).transpose(0, 2, 1, 3), dtype)
    with f.grid([blocks, tiles]) as (block, part):
        sums = [f.scratch(f.lanes, dtype) for _ in range(tile)]
        for total in sums:
            with f.lane() as lane:
                T.buffer_store(total, number(0, dtype), [lane])
        if inner:
            with f.repeat(inner) as i:
                for k, total in enumerate(sums):
                    with f.lane() as lane:
                        weight = f.constant(tiled, dtype, ((block * tiles + part) * inner + i) * tile + k)
                        value = x(block, i, f.row(lane))
                        added = tirx.Add(tirx.Mul(value, weight), total[lane])
                        T.buffer_store(total, added if plain else fused(value, weight, total[lane], dtype, f.dialect), [lane])
        for k in range(tile):
            column = part * tile + k

            def put(k: int = k, column: Expr = column) -> None:
                with f.lane() as lane:
                    f.store(node, block * width + column, f.row(lane), sums[k][lane])

            if width % tile:
                with T.If(tirx.LT(column, tirx.const(width, "int64"))), T.Then():
                    put()
            else:
                put()
