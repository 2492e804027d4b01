"""Ranks of columns with few thresholds, for few rows: the thresholds below a number are counted, for a register of columns at once.

    rank[column] = sum(threshold[column, i] < x[row, column] for i)          # 16 columns of float32, 8 of float64

A search of one value (planes.py) takes some 30 instructions, however few thresholds its column has. Here a threshold of 16 columns takes
two. Rows of many columns have few thresholds in each: those of 200 trees of 31 leaves over 300 columns are 20 on average.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.nest.function import Block, Row
from hbc.compiler.tvm.nest.model_data import few_sizes
from hbc.compiler.tvm.tir.dialect import DTYPES, Expr
from hbc.compiler.tvm.tir.vectors import broadcast, many, store, vector
from hbc.ir.graph import Node
from hbc.ops.tree_ranks import RankedTrees

MOST_COUNTED = 32
"""The most thresholds of a column that are counted. Those of 16 columns take as long as some eight searches."""
LEAST_COLUMNS = 4
"""The least columns of a register that are counted: the others there are searched besides."""
UNROLLED = 4  # thresholds of a round


class CountedRanks:
    """Emits the ranks of the columns with few thresholds: `fill(result, first, end, places)`.

    others i64: the columns that it leaves out.
    """

    def __init__(self, f: Block, x: Node, ranked: RankedTrees) -> None:
        self.f, self.x, dtype = f, x, x.type.dtype
        self.lanes = 512 // int(dtype[1:])
        columns = len(ranked.column_feature)
        counts = np.array([len(thresholds) for thresholds in ranked.thresholds], np.int64)
        chosen = np.zeros(-(-columns // self.lanes) * self.lanes, bool)
        chosen[:columns] = (counts <= MOST_COUNTED) & f.dialect.wide
        few = chosen.reshape(-1, self.lanes)
        few = few & (few.sum(axis=1) >= min(LEAST_COLUMNS, columns))[:, None]
        taken = np.flatnonzero(few.any(axis=1))
        self.others = np.flatnonzero(~few.reshape(-1)[:columns])
        self.blocks = len(taken)
        if not self.blocks:
            return
        places = taken[:, None] * self.lanes + np.arange(self.lanes)
        features = ranked.column_feature[np.minimum(places, columns - 1)]
        rounds, edges = [0], []
        for block in taken:
            counted = np.flatnonzero(few[block])
            of_block = [ranked.thresholds[block * self.lanes + i] for i in counted]
            size = -(-max(len(own) for own in of_block) // UNROLLED) * UNROLLED
            table = np.full((size, self.lanes), np.inf, ranked.thresholds[0].dtype)
            for i, own in zip(counted, of_block, strict=True):
                table[: len(own), i] = own
            rounds.append(rounds[-1] + size // UNROLLED)
            edges.append(table)
        missing = np.where(places < columns, ranked.missing_rank[np.minimum(places, columns - 1)], 0)
        self.count, self.columns, self.read = f.size(self.blocks), f.size(columns), f.size(features.size)
        self.edges, self.rounds = f.own(np.concatenate(edges), dtype), f.own(np.array(rounds), "i64")
        self.firsts, self.features = f.own(taken * self.lanes, "i64"), f.own(features, "i64")
        self.identity = np.array_equal(features.reshape(-1)[:columns], np.arange(columns))
        self.missing = f.own(missing, "i32") if missing.any() else None
        self.values = T.alloc_buffer((few_sizes(features.size),), DTYPES[dtype])
        self.found = T.alloc_buffer((self.lanes,), "int32")

    def fill(self, result: Any, first: Expr, end: Expr, places: Any) -> None:
        """Rank the rows from `first` to `end`. Other columns get any numbers here. places: their `planes.Layout`."""
        if not self.blocks:
            return
        f, lanes, dtype = self.f, self.lanes, self.x.type.dtype
        none, one = (broadcast(tirx.const(value, "int32"), lanes) for value in (0, 1))
        with T.serial(first, end) as row:
            with f.repeat(self.columns if self.identity else self.read) as place:
                feature = place if self.identity else T.Bind(f.constant(self.features, "i64", place))
                T.buffer_store(self.values, f.read(self.x, [feature], Row(row)), [place])
            with f.repeat(self.count) as block, f.repeat(1) as origin:
                value = T.Bind(vector(self.values, block * lanes, lanes))
                begin, after = (T.Bind(f.constant(self.rounds, "i64", block + i)) for i in range(2))
                store(self.found, none, origin, lanes)
                with T.serial(begin, after) as step:
                    rank = vector(self.found, origin, lanes)
                    for i in range(UNROLLED):
                        edge = f.constants(self.edges, dtype, (step * UNROLLED + i) * lanes, lanes)
                        rank = T.Bind(tirx.Select(tirx.LT(edge, value), tirx.Add(rank, one), rank))
                    store(self.found, rank, origin, lanes)
                rank = vector(self.found, origin, lanes)
                if self.missing is not None:  # until here, the rank of NaN is 0
                    own = f.constants(self.missing, "i32", block * lanes, lanes)
                    rank = T.Bind(tirx.Select(tirx.EQ(value, value), rank, own))
                if result.dtype == "uint8" and f.dialect.byte_masks:
                    rank = tirx.Sub(rank, broadcast(tirx.const(128, "int32"), lanes))
                at = T.Bind(f.constant(self.firsts, "i64", block))
                with T.If(places.together):
                    with T.Then():
                        store(result, tirx.Cast(many(result.dtype, lanes), rank), at + row * places.row_stride, lanes)
                    with T.Else():
                        store(self.found, rank, origin, lanes)
                        with f.repeat(T.Bind(tirx.Min(self.columns - at, tirx.const(lanes, "int64")))) as i:
                            T.buffer_store(result, tirx.Cast(result.dtype, self.found[i]), [(at + i) * places.stride + row])
