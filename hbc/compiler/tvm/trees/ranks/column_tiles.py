"""Tiles of columns that trees compare: 16 of float32, or 8 of float64; fewer where a row has fewer. The numbers of 64 rows of a tile are
turned, so that those of a column lie together. A tile takes at most 4 KB, and stays in the first cache while its columns are ranked."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.memory import LINE
from hbc.compiler.tvm.nest.function import Block, CallersArray, Row
from hbc.compiler.tvm.nest.transpose import SMALLEST, turned
from hbc.compiler.tvm.tir.dialect import DTYPES, Expr
from hbc.compiler.tvm.tir.vectors import as_vector, prefetch, store
from hbc.ir.graph import Node
from hbc.ir.types import Array
from hbc.ops.tree_ranks import RankedTrees

CHUNK = 64
"""Rows that are ranked together: the ranks of a column in bytes fill a cache line."""
FEW_ROWS = 16
"""The same where rows are long and Zen 4 searches by signs (register_ranks.py). The processor prefetches 16 streams from memory, but not
64: to read float32 rows of 2,000 columns takes 0.30 and 0.65 µs a row, with requests of code 0.55. 10,000 rows of 500 LightGBM trees of
depth 8 over them take 1.3 and 2.1 µs a row."""
SPARE, SPARE_OF_FEW_ROWS = 2, 28
"""Rows are transposed in squares if these have at most so many numbers for each that is compared; FEW_ROWS of long rows, if they have at
most so many bytes. Else numbers are copied one by one. 20,000 float32 rows of 1,000 columns take 0.45 of the time in squares if 60 trees
compare 295 columns (2.9 numbers for each), 0.64 if 40 trees compare 100 (6.7), but 1.5 if 10 compare 29 (10.5). In groups of 64 rows the
second ones take 1.2 (AVX2)."""
LONG_ROW = 4
"""The fewest tiles of a long row, a cache line each. 20 trees of 31 leaves over 64 columns take 0.92 of the time so, 40 over 128 columns
0.87."""
TILES_AHEAD = 2
"""So many tiles ahead code asks for a long row, since the processor begins anew at each page: ranks of 2,000 columns take 0.65 µs a row in
C, with 0 tiles 0.79, with 8 0.84."""


class ColumnTiles:
    """The tiles that have some columns of `ranked`, and the code that turns the rows of one.

    count: of tiles. size: the columns of a tile. chunk: the rows that are turned together.
    """

    def __init__(self, f: Block, x: Node, ranked: RankedTrees, columns: Array, few_rows: bool) -> None:
        """columns i64: the places in `ranked` of those that are wanted. few_rows: whether only FEW_ROWS of long rows are read together."""
        self.f, self.x, self.chunk = f, x, CHUNK
        bits = int(x.type.dtype[1:])
        self.lanes = 512 // bits
        self.features = np.unique(ranked.column_feature[columns]).astype(np.int64)
        array = f.callers_array(x)
        begins, size = _runs(self.features, x.type.columns, self.lanes)
        long_rows = few_rows and array is not None and size == self.lanes and len(begins) >= LONG_ROW
        spare = SPARE_OF_FEW_ROWS * 8 // bits if long_rows else SPARE
        in_squares = array is not None and x.type.columns >= SMALLEST and 0 < size * len(begins) <= spare * len(self.features)
        self.array = array if in_squares else None
        """The caller's rows, if they are transposed in squares, with columns that nobody compares too. None: number by number."""
        if in_squares:
            if long_rows:
                self.chunk = FEW_ROWS
            self.begins, self.size = begins, size
            self.side = min(self.size, f.schedule.register_bits(f.dialect) // bits)
            self._tile = np.maximum(np.searchsorted(self.begins, ranked.column_feature, side="right") - 1, 0)
            self._place = ranked.column_feature - self.begins[self._tile]
        else:
            self.begins, self.size = np.arange(0, len(self.features), self.lanes, dtype=np.int64), self.lanes
            self._tile, self._place = np.divmod(np.searchsorted(self.features, ranked.column_feature), self.size)
        self.count = len(self.begins)

    def ordered(self, columns: Array) -> tuple[Array, Array, Array]:
        """(some columns, tile after tile; i64[C] their places in their tiles; i64[tiles + 1] the first of each tile)."""
        columns = columns[np.argsort(self._tile[columns], kind="stable")]
        return columns, self._place[columns], np.searchsorted(self._tile[columns], np.arange(self.count + 1))

    def memory(self) -> Any:
        """Room for the numbers of a tile: that of row r in place p stands at p · chunk + r."""
        return T.alloc_buffer((self.size * self.chunk,), DTYPES[self.x.type.dtype])

    def turn(self, numbers: Any, tile: Expr, first: Expr, rows: Expr) -> None:
        """Emit the numbers of a tile for `rows` rows of the block, from `first` on."""
        f = self.f
        start = T.Bind(f.constant(f.own(self.begins, "i64"), "i64", tile))
        if self.array is not None:
            self._prefetch(self.array, start, first, rows)
            whole = self.chunk < CHUNK
            squares = tirx.const(self.chunk // self.side, "int64") if whole else T.Bind(rows // self.side)
            for begin in range(0, self.size, self.side):
                self._transpose(self.array, numbers, start, begin, first, squares)
            if whole:
                return
            with T.serial(squares * self.side, rows) as row, f.repeat(self.size) as place:
                self._copy(numbers, start + place, first, row, place)
            return
        features = f.own(self.features, "i64")
        count = T.Bind(tirx.Min(f.size(len(self.features)) - start, tirx.const(self.size, "int64")))
        with f.repeat(count) as place:
            feature = T.Bind(f.constant(features, "i64", start + place))
            with f.repeat(rows) as row:
                self._copy(numbers, feature, first, row, place)

    def _copy(self, numbers: Any, feature: Expr, first: Expr, row: Expr, place: Expr) -> None:
        """Copy one number, that of a row behind `first`."""
        T.buffer_store(numbers, self.f.read(self.x, [feature], Row(first + row)), [place * self.chunk + row])

    def _prefetch(self, array: CallersArray, start: Expr, first: Expr, rows: Expr) -> None:
        """Bring the tile's columns of the next chunk near. Only in blocks that are full: behind others come no rows. Rows of a cache line
        or less come by themselves. Of few rows, bring a later tile near."""
        if self.size < self.lanes:
            return
        f = self.f
        flat = as_vector(array.array)
        if self.chunk < CHUNK:
            ahead = T.Bind((f.base + first) * array.width + start + TILES_AHEAD * self.size)
            for row in range(self.chunk):
                for line in range(0, self.size, LINE // array.bytes):
                    prefetch(flat[ahead + row * array.width + line])
            return
        full = tirx.EQ(f.rows, tirx.const(f.block, "int64"))
        with T.serial(tirx.const(0, "int64"), tirx.Select(full, rows, tirx.const(0, "int64"))) as row:
            for line in range(0, self.size, LINE // array.bytes):
                prefetch(flat[(f.base + first + CHUNK + row) * array.width + start + line])

    def _transpose(self, array: CallersArray, numbers: Any, start: Expr, begin: int, first: Expr, squares: Expr) -> None:
        """numbers[place · chunk + row] = x[first + row, start + place] for the places of one register, from `begin` on."""
        side, f = self.side, self.f
        numbers_of, width = array.runs(), array.width
        with T.serial(tirx.const(0, "int64"), squares) as part:
            outside = (f.base + first + part * side) * width + start + begin
            with ExitStack() as stack:
                # Loops of one round: TVM keeps a run of elements whole only if it begins at a loop variable.
                origin = stack.enter_context(T.serial(outside, outside + 1))
                inside = stack.enter_context(T.serial(part * side, part * side + 1))
                rows = [T.Bind(numbers_of(origin + i * width, side)) for i in range(side)]
                for j, column in enumerate(turned(rows)):
                    store(numbers, column, inside + (begin + j) * self.chunk, side)


def _runs(features: Array, width: int, most: int) -> tuple[Array, int]:
    """(i64: where runs of features begin that cover the ascending `features` of a matrix of `width`; the size of a run, at most `most`)."""
    size, begins = min(most, 1 << max(width.bit_length() - 1, 0)), list[int]()
    for feature in features.tolist():
        if not begins or feature >= begins[-1] + size:
            begins.append(min(feature, width - size))
    return np.array(begins, np.int64), size
