"""The kernels of `MatMul`, `BlockMatMul` and `ClassProducts`: products of rows and constant matrices."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.nest.function import Chunk, Row
from hbc.compiler.tvm.plan.operators import emits
from hbc.compiler.tvm.plan.sizes import elements
from hbc.compiler.tvm.tir.dialect import DTYPES, Expr
from hbc.compiler.tvm.tir.expressions import fused, number
from hbc.compiler.tvm.tir.vectors import broadcast, once_if, store, vector
from hbc.ir.graph import Node
from hbc.lazy import record
from hbc.ops import tensor
from hbc.ops.coupling import ClassProducts

FEW_ROWS = 4
"""Up to so many rows are multiplied one after the other. A vector of 16 takes as long for one row as for all. A layer of 600 to 512 and its
neighbours, float64, code for Zen 3 on Zen 4: one row 42 µs, four 155, six 240, a vector 208."""
TILES_OF_ROW = 8
"""The tiles of a row that are summed together: so many sums hide the latency of an addition."""
LEAST_WEIGHTS = 256
"""A product of fewer weights has no code for few rows: the whole vector takes a tenth of a microsecond."""


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


@emits(
    ClassProducts,
    rereads=True,
    spreads=True,
    nanoseconds=lambda node: 0.03 * node.op.weights.size,  # type: ignore[attr-defined]
)
def class_products(f: Chunk, node: Node) -> None:
    """Emit `ClassProducts`. The classes share one loop nest, which reads the number of their columns: so the code does not grow with the
    classes."""
    op, (x,) = node.op, node.inputs
    assert isinstance(op, ClassProducts)
    tile, tiles, padded = _tiled(f, node, op.weights.T, len(op.weights))
    by_class = [part.transpose(1, 0, 2).reshape(-1) for part in np.split(padded, op.starts[1:])]
    weights = _Weights(np.concatenate(by_class), len(op.counts), tiles, tile, len(op.weights))
    starts, counts = f.own(op.starts, "i64"), f.own(np.array(op.counts), "i64")

    def place(of: Expr, part: Expr) -> tuple[Expr, Expr, Callable[[Expr, Row], Expr]]:
        start, count = (T.Bind(f.constant(array, "i64", of)) for array in (starts, counts))
        return T.Bind((start * tiles + count * part) * tile), count, lambda i, row: f.read(x, [start + i], row)

    _tiles(f, node, weights, place)


def _tiled(f: Chunk, node: Node, weights: np.ndarray, width: int) -> tuple[int, int, np.ndarray]:
    """(the columns of a tile, the tiles, the weights[…, width] as [rows, tiles, tile] with zeros behind the last column)."""
    tile = min(f.dialect.tile(node.type.dtype, width), max(width, 1))
    tiles = -(-width // tile)
    padded = np.zeros((weights.size // max(width, 1), tiles * tile), weights.dtype)
    padded[:, :width] = weights.reshape(-1, width)
    return tile, tiles, padded.reshape(-1, tiles, tile)


def _product(f: Chunk, node: Node, weights: np.ndarray, x: Callable[[Expr, Expr, Row], Expr]) -> None:
    """Emit y[b, k] = Σ_i x(b, i) · weights[b, i, k]."""
    blocks, inner, width = weights.shape
    tile, tiles, padded = _tiled(f, node, weights, width)
    # No product with these weights is rounded. An fma is as exact then, and made a kernel of GEMM's trees spill 16 bytes on a GPU.
    plain = not f.dialect.llvm and bool(np.isin(weights, (-1, 0, 1)).all())
    tiled = padded.reshape(blocks, inner, tiles, tile).transpose(0, 2, 1, 3)
    _tiles(
        f,
        node,
        _Weights(tiled, blocks, tiles, tile, width),
        lambda block, part: (T.Bind((block * tiles + part) * inner * tile), inner, lambda i, row: x(block, i, row)),
        plain,
    )


@record
class _Weights:
    """The weights of some products, tile by tile. width: the columns of a block of the result, which `tiles` tiles of `tile` hold."""

    numbers: np.ndarray
    blocks: int
    tiles: int
    tile: int
    width: int


Place = Callable[[Expr, Expr], tuple[Expr, Expr | int, Callable[[Expr, Row], Expr]]]
"""(block, tile in it) → where its weights start; how many numbers of a row are multiplied; the i-th of them."""


def _tiles(f: Chunk, node: Node, weights: _Weights, place: Place, plain: bool = False) -> None:
    """Emit products for a vector of rows, or of few rows for each (`_row_by_row`). plain: see `_tile`."""
    tile, dtype = weights.tile, node.type.dtype
    numbers = f.own(weights.numbers, dtype)

    def of_vector() -> None:
        with f.grid([weights.blocks, weights.tiles]) as (block, part):
            start, inner, x = place(block, part)
            weight = lambda i, k: f.constant(numbers, dtype, start + i * tile + k)  # noqa: E731
            _tile(f, node, (tile, weights.width, block, part), inner, x, weight, plain)

    if f.lanes == 1 or f.part == "full" or tile < 2 or tile & (tile - 1) or weights.numbers.size < LEAST_WEIGHTS:
        of_vector()
        return
    few = T.Bind(tirx.Cast("int64", tirx.LE(f.count, tirx.const(FEW_ROWS, "int64"))))
    with once_if(few):
        _row_by_row(f, node, weights, numbers, place)
    with T.serial(few, tirx.const(1, "int64")):  # the reverse of `once_if`
        of_vector()


def _row_by_row(f: Chunk, node: Node, weights: _Weights, numbers: np.ndarray, place: Place) -> None:
    """Emit the same for one row after the other: a register holds columns of the result. Each sum has the same order of additions."""
    tiles, tile, width = weights.tiles, weights.tile, weights.width
    dtype = node.type.dtype
    rest = tiles % TILES_OF_ROW
    for first, groups, together in ((0, tiles // TILES_OF_ROW, TILES_OF_ROW), (tiles - rest, 1, rest)):
        if not groups or not together:
            continue
        sums, found = [f.scratch(tile, dtype) for _ in range(together)], T.alloc_buffer((together * tile,), DTYPES[dtype])
        with f.each_row() as row, f.grid([weights.blocks, groups]) as (block, group):
            part = T.Bind(tirx.Cast("int64", group * TILES_OF_ROW + first))
            start, inner, x = place(block, part)
            for total in sums:
                store(total, broadcast(number(0, dtype), tile), 0, tile)
            with f.repeat(inner) as i:
                value = T.Bind(x(i, row))
                for p, total in enumerate(sums):
                    at = T.Bind(start + (i + inner * p) * tile)
                    with T.vectorized(tirx.const(tile, "int64")) as k:
                        weight = f.constant(numbers, dtype, at + k)
                        T.buffer_store(total, fused(value, weight, total[k], dtype, f.dialect), [k])
            for p, total in enumerate(sums):
                store(found, vector(total, 0, tile), p * tile, tile)
            column = T.Bind(part * tile)
            with f.repeat(T.Bind(tirx.Min(tirx.const(together * tile, "int64"), width - column))) as k:
                f.store(node, block * width + column + k, row, found[k])


def _tile(
    f: Chunk,
    node: Node,
    place: tuple[int, int, Expr, Expr],
    inner: Expr,
    x: Callable[[Expr, Row], Expr],
    weight: Callable[[Expr, int], Expr],
    plain: bool = False,
) -> None:
    """Emit y[b, k] = Σ_i x(i) · weight(i, k) for the columns k of one tile, i from 0 to `inner`. place: (the columns of a tile, the columns
    of a block, the block b, the number of the tile in it). plain: products are rounded before they are added.

    For a vector of rows, the sums stay in registers. Each column has memory of its own. The memory of a whole tile would be too large for
    the stack, and each vector of rows would take a call to allocate it: 4 × 4 elements of float64 would take 3.4 instead of 1.6 ns a row,
    20 × 3 elements 7.8 instead of 5.7.
    """
    tile, width, block, part = place
    dtype = node.type.dtype
    sums = [f.scratch(f.lanes, dtype) for _ in range(tile)]
    for total in sums:
        with f.lane() as lane:
            T.buffer_store(total, number(0, dtype), [lane])
    if not isinstance(inner, int) or inner:
        with f.repeat(inner) as i:
            for k, total in enumerate(sums):
                with f.lane() as lane:
                    factor, value = weight(i, k), x(i, f.row(lane))
                    added = tirx.Add(tirx.Mul(value, factor), total[lane])
                    T.buffer_store(total, added if plain else fused(value, factor, total[lane], dtype, f.dialect), [lane])
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
