"""The kernel of `TableSum`: sums of rows of a table, along the columns of the table.

    for a tile of columns, 64 bytes:
        for as many rows as sums fit in the registers:
            for each column of places:
                sums[row] += table[places[row, column], tile]   # a register or two a row
            y[tile, rows] = sums                                # squares are turned in registers

The table lies tile by tile, so that the part that a vector of rows reads is dense: 180 rows of a tile are 11 KB, which stay in the first
cache. Row by row, 2,500 columns in float64 lie 20 KB apart, each in a page of its own, and at powers of two all in one set of the cache.

A code and output in float64 takes 0.1 ns while the table is in a cache, of 0.04 for two registers a clock (Zen 3): 36 codes of 5
categories each and 2,500 outputs take 9.6 µs a row, and one row 28. When each number was looked up by itself, stored, and added later, that
was 450 and 4,500; a product with the one-hot codes takes 26 and 750. Beyond the caches memory sets the time, since 16 rows read the whole
table: 7.5 MB with 10 categories take 25 to 60 µs a row, a product 58. Where few of the table's rows are read it is less: 144 MB with 200
categories take 107, a product 1,660.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.costs import OneHotCosts
from hbc.compiler.tvm.nest.function import Chunk, Row
from hbc.compiler.tvm.nest.transpose import turned
from hbc.compiler.tvm.plan.operators import emits
from hbc.compiler.tvm.plan.sizes import bytes_of, elements
from hbc.compiler.tvm.tir.dialect import Expr
from hbc.compiler.tvm.tir.vectors import shuffled, store, vector
from hbc.ir.graph import Node
from hbc.ir.types import Array, DType
from hbc.lazy import record
from hbc.ops.linear import TableSum

TILE_BYTES = 64
"""The bytes of a tile: a cache line, where there are registers for its sums."""
ONE_HOT: Mapping[DType, OneHotCosts] = {
    "f64": OneHotCosts((0.78, 0), (0.46, 0), added=0.055, column=0.04, multiplied=0.055, bytes=8, call=500),
    "f32": OneHotCosts((0.8, 0), (0.46, 0), added=0.03, column=0.05, multiplied=0.03, bytes=4, call=500),
}
"""By the dtype of the weights. Measured on one core of an AMD Zen 4, 5,000 rows of 30 codes in float64, ns a row and code: sums of rows
of a table take 0.84 for one output and 2.8 for 40, whatever the number of categories (integers 0.49 and 2.4). Products take 0.33 and
5.2 with 3 categories, 0.90 and 19 with 12. Code for AVX2 takes 0.78 and 2.9, and 0.40 and 5.6, 1.1 and 23."""
SUMS = 8
"""The registers for sums, of 16; with AVX-512 twice as many, of 32. So many hide the latency of an addition."""


@record
class Tiles:
    """Some columns of a table, from column `first` on, in `count` tiles. A tile has `registers` · `lanes` columns, of which the first
    `columns` are columns of the table, and the others are 0. `array`: [count, rows of the table, registers · lanes]."""

    first: int
    count: int
    registers: int
    lanes: int
    columns: int
    array: Array

    @property
    def width(self) -> int:
        return self.registers * self.lanes


def _tiles(f: Chunk, table: Array, dtype: str) -> Iterator[Tiles]:
    """The tiles of a table: those of full width, and one for the columns that are left over."""
    rows, columns = table.shape
    most = max(f.schedule.register_bits(f.dialect) // (8 * bytes_of(dtype)), 1)
    lanes = min(most, 1 << (columns - 1).bit_length())
    sums = 2 * SUMS if f.dialect.wide else SUMS
    registers = min(max(TILE_BYTES // (most * bytes_of(dtype)), 1), max(sums // lanes, 1), -(-columns // lanes))
    width = registers * lanes
    whole = columns // width
    if whole:
        array = table[:, : whole * width].reshape(rows, whole, width).transpose(1, 0, 2)
        yield Tiles(0, whole, registers, lanes, width, f.own(array, dtype))
    if rest := columns - whole * width:
        registers = -(-rest // lanes)
        array = np.zeros((1, rows, registers * lanes), table.dtype)
        array[0, :, :rest] = table[:, whole * width :]
        yield Tiles(whole * width, 1, registers, lanes, rest, f.own(array, dtype))


@emits(TableSum, rereads=True, nanoseconds=lambda node: 0.1 * elements(node.type) * elements(node.inputs[0].type))
def table_sum(f: Chunk, node: Node) -> None:
    """Emit the sums of a vector of rows. A row is added up in the order of its places, whatever other rows there are."""
    op = node.op
    assert isinstance(op, TableSum)
    for tiles in _tiles(f, op.table, node.type.dtype):
        with f.grid([tiles.count]) as (tile,):
            column = tile * tiles.width + tiles.first
            if f.lanes > 1:
                together = max(tiles.lanes, SUMS // tiles.registers)
                with f.whole_vector(), f.grid([f.lanes // together]) as (group,):
                    _rows_at_once(f, node, tiles, tile, column, group * together, together)
            with f.each_row(partial=f.lanes > 1) as one:
                for register, total in enumerate(_sums(f, node, tiles, tile, [one])):
                    for lane in range(tiles.lanes):
                        if (at := register * tiles.lanes + lane) < tiles.columns:
                            f.store(node, column + at, one, total if tiles.lanes == 1 else shuffled([total], [lane]))


def _rows_at_once(f: Chunk, node: Node, tiles: Tiles, tile: Expr, column: Expr, first: Expr, rows: int) -> None:
    """Emit the sums of `rows` rows of the vector, from row `first` on, and write them in squares."""
    sums = _sums(f, node, tiles, tile, [f.row(first + r) for r in range(rows)])
    for start in range(0, rows, tiles.lanes):
        for register in range(tiles.registers):
            square = [sums[(start + r) * tiles.registers + register] for r in range(tiles.lanes)]
            pool, at = f.place(node, column + register * tiles.lanes, f.row(first + start))
            with T.serial(at, at + 1) as origin:  # TVM keeps a run of elements whole only if it begins at a loop variable
                for lane, values in enumerate(turned(square)):
                    if register * tiles.lanes + lane < tiles.columns:
                        store(pool, values, origin + lane * f.stride(node), tiles.lanes)


def _sums(f: Chunk, node: Node, tiles: Tiles, tile: Expr, rows: list[Row]) -> list[Expr]:
    """The sums of a tile's columns for some rows: registers, those of a row side by side."""
    (places,) = node.inputs
    dtype, lanes = node.type.dtype, tiles.lanes
    sums = [[f.scratch(lanes, dtype) for _ in range(tiles.registers)] for _ in rows]
    begin = T.Bind(tile * (tiles.array.shape[1] * tiles.width))

    def chosen(code: Expr, row: Row) -> list[Expr]:
        place = tirx.Cast("int64", f.read(places, [code], row))
        start = T.Bind(begin + place * tiles.width)
        return [f.constants(tiles.array, dtype, start + register * lanes, lanes) for register in range(tiles.registers)]

    for row, totals in zip(rows, sums, strict=True):
        for total, value in zip(totals, chosen(tirx.const(0, "int64"), row), strict=True):
            store(total, value, 0, lanes)
    with T.serial(tirx.const(1, "int64"), tirx.const(places.type.columns, "int64")) as code:
        for row, totals in zip(rows, sums, strict=True):
            for total, value in zip(totals, chosen(code, row), strict=True):
                store(total, tirx.Add(vector(total, 0, lanes), value), 0, lanes)
    return [T.Bind(vector(total, 0, lanes)) for totals in sums for total in totals]
