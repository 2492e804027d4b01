"""Ranks of columns for many rows: the numbers of 64 rows of a tile of columns are turned, and each column is then searched for all of them.

    for chunk in the block's chunks of 64 rows:
        for tile in tiles:
            numbers = the columns of the tile, turned
            for search in searches:                # register_ranks.py and line_ranks.py; each has the columns that suit it
                for column of the tile:
                    ranks[column, chunk] = search(numbers[column])

What is turned stays in the first cache. With AVX2, 10,000 rows of the paper's epsilon (2,000 columns, 500 trees of depth 8) take 0.71
times as long so (forest; LightGBM: 0.74) as with all columns of a chunk turned before the first is searched. Tiles in the outer loop would
read thresholds less often, and rows from more pages: the forest took 0.97 times as long, LightGBM 1.05 (Zen 4).
Long rows are ranked 16 at a time on Zen 4 (column_tiles.py). For few rows, planes.py has other searches.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.nest.function import Block
from hbc.compiler.tvm.tir.dialect import Expr
from hbc.compiler.tvm.trees.ranks import line_ranks
from hbc.compiler.tvm.trees.ranks.column_tiles import CHUNK, FEW_ROWS, ColumnTiles
from hbc.compiler.tvm.trees.ranks.line_ranks import ROWS_STORED, LineSearch
from hbc.compiler.tvm.trees.ranks.register_ranks import (
    LEVELS,
    LEVELS_OF_LONG_ROWS,
    RegisterSearch,
    SignSearch,
    kinds,
    kinds_by_sign,
)
from hbc.ir.graph import Node
from hbc.ops.tree_ranks import RankedTrees

FEW_LARGE = 8
"""Long rows have at most one column in so many with more than 63 thresholds, since these are read for every 16 rows."""


class TurnedRanks:
    """Emits the ranks of the columns that one of the searches suits.

    others i64: the columns that it leaves out. rows: of a group.
    """

    def __init__(self, f: Block, x: Node, ranked: RankedTrees, in_bytes: bool) -> None:
        """in_bytes: whether ranks are bytes."""
        self.f, dtype = f, x.type.dtype
        by_sign = in_bytes and f.dialect.wide and f.dialect.byte_masks
        in_registers = kinds_by_sign(ranked, dtype) if by_sign else kinds(f, ranked, dtype)
        rest = np.setdiff1d(np.arange(len(ranked.thresholds)), [column for kind in in_registers for column in kind[2]])
        in_lines = line_ranks.kinds(f, ranked, dtype, rest)
        self.others = rest[:0] if in_lines else rest
        large = sum(len(thresholds) >= 1 << min(LEVELS) for thresholds in ranked.thresholds)
        few_rows = by_sign and FEW_LARGE * large <= len(ranked.thresholds)
        self.tiles = ColumnTiles(f, x, ranked, np.setdiff1d(np.arange(len(ranked.thresholds)), self.others), few_rows)
        self.chunk = self.tiles.chunk
        if self.chunk == FEW_ROWS:
            in_registers = kinds_by_sign(ranked, dtype, LEVELS_OF_LONG_ROWS)
        trees = [(SignSearch if by_sign else RegisterSearch)(f, ranked, kind, self.tiles) for kind in in_registers]
        self.rows = min((tree.rows for tree in trees), default=ROWS_STORED)
        lines = [LineSearch(f, ranked, kind, self.tiles) for kind in in_lines]
        self.searches: list[SignSearch | RegisterSearch | LineSearch] = [*trees, *lines]

    def fill(self, result: Any, rows: Expr, least: int) -> Expr:
        """Rank the first rows of the block, as many as make whole groups; without AVX-512 all rows if at least `least` are left behind
        whole chunks. result: the ranks, u8 or u16, column after column. Returns the number of ranked rows.

        Groups have 16 rows on Zen 4. With 64, 32 rows of 28 columns were ranked one by one, which took 1.8 µs and not 1.3."""
        if not self.searches:
            return tirx.const(0, "int64")
        f, numbers = self.f, self.tiles.memory()
        if f.dialect.wide:
            ranked = T.Bind(rows // self.rows * self.rows)
        else:
            rest = T.Bind(rows % CHUNK)
            ranked = T.Bind(tirx.Select(tirx.LT(rest, tirx.const(least, "int64")), rows - rest, rows))
        chunks = T.Bind((ranked + (self.chunk - 1)) // self.chunk)
        with T.serial(tirx.const(0, "int64"), chunks) as chunk, f.repeat(f.size(self.tiles.count)) as tile:
            first = T.Bind(chunk * self.chunk)
            count = T.Bind(tirx.Min(ranked - first, tirx.const(self.chunk, "int64")))
            self.tiles.turn(numbers, tile, first, count)
            for search in self.searches:
                search.emit(result, numbers, first, count, tile)
        return ranked
