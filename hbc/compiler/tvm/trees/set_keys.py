"""The keys of category sets: a byte for each set, which is not 0 if the row goes right.

The sets of a column have the same category of a row. So there is one bit of each of them for every category, and a few words of these bits
are all that a row needs:

    word = bits[category of x[row, column], i]                                        # one bit of each of 64 sets
    keys[64 i … 64 i + 63] = each byte of the word eight times, & (1, 2, 4, … 128)

One row of 200 XGBoost trees of depth 8, which test 17,500 sets, takes 1.9 µs so, and 107 with the sets as
columns of 0 and 1 before the trees (Zen 4).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.nest.function import Block
from hbc.compiler.tvm.tir.dialect import Expr
from hbc.compiler.tvm.tir.vectors import shuffled, store
from hbc.compiler.tvm.trees.categories import Codes, n_features, pack_sets, sets_of
from hbc.ir.graph import Node
from hbc.ir.types import Array
from hbc.lazy import record
from hbc.ops.tree import TreeEnsemble

AT_ONCE = 64
"""The sets whose bits are a word."""
IN_LANE = 16
"""The bytes of a vector among which every processor with SSSE3 permutes bytes."""
BITS_OF_BYTES = 0x8040201008040201 - (1 << 64)
"""The bits 0 … 7 of eight bytes, as an i64."""


@record
class TurnedSets:
    """The category sets that splits test, turned: for every bit of a column's categories, the bits of all sets that test the column.

    width: the feature that is the first set.
    place i64[S]: the byte of each set's key; -1 for sets that no split tests. size: how many bytes there are, a multiple of AT_ONCE.
    words i64[C]: the words of bits that a column has for each of its categories. bits i64: they begin at starts[c] + bit · words[c].
    first i64[C]: where the keys of a column begin.
    """

    width: int
    place: Array
    size: int
    words: Array
    starts: Array
    first: Array
    bits: Array


def turn_sets(op: TreeEnsemble) -> TurnedSets:
    """Turn the category sets of a `CategoricalTrees`."""
    sets, width = pack_sets(op), n_features(op)
    assert width is not None
    tested = np.unique(op.feature[op.feature >= width]) - width
    place = np.full(len(sets_of(op).columns), -1)
    words, starts, first, parts = [], [], [], []
    bits = size = 0
    for column, count in enumerate(sets.counts.tolist()):
        mine = tested[sets.set_column[tested] == column]
        of_column = -(-len(mine) // AT_ONCE)
        place[mine] = size + np.arange(len(mine))
        right = np.zeros((of_column * AT_ONCE, count), bool)
        right[: len(mine)] = sets.goes_right(mine)[:, :count]
        parts.append(np.packbits(right.T, axis=1, bitorder="little").reshape(-1).view(np.int64))
        words.append(of_column)
        starts.append(bits)
        first.append(size)
        bits += count * of_column
        size += of_column * AT_ONCE
    return TurnedSets(width, place, size, np.array(words), np.array(starts), np.array(first), np.concatenate(parts))


class SetKeys:
    """Emits the keys of a row's category sets."""

    def __init__(self, f: Block, op: TreeEnsemble, x: Node) -> None:
        turned = f.once(turn_sets, op)
        self.f, self.codes, self.bits = f, Codes(f, op, x), f.own(turned.bits, "i64")
        self.words, self.starts, self.first = (f.own(a, "i64") for a in (turned.words, turned.starts, turned.first))

    def fill(self, row: Expr, bytes_: Any, start: Expr) -> None:
        """Compute the keys of a row, from bytes_[start] on."""
        f, codes = self.f, self.codes
        codes.fill(row)
        with f.repeat(codes.count) as column:
            words = T.Bind(f.constant(self.words, "i64", column))
            bit = tirx.Cast("int64", codes.number[column * f.block + row])
            first = T.Bind(f.constant(self.starts, "i64", column) + bit * words)
            at = T.Bind(start + f.constant(self.first, "i64", column))
            with f.repeat(words) as i:
                word = tirx.Broadcast(f.constant(self.bits, "i64", first + i), AT_ONCE // 8)
                # From the vector's own lane of 16 bytes, all of which are the same two words.
                places = [j // IN_LANE * IN_LANE + j // 8 for j in range(AT_ONCE)]
                spread = shuffled([tirx.reinterpret(f"uint8x{AT_ONCE}", word)], places)
                own = tirx.reinterpret(f"uint8x{AT_ONCE}", tirx.Broadcast(tirx.const(BITS_OF_BYTES, "int64"), AT_ONCE // 8))
                store(bytes_, tirx.bitwise_and(spread, own), at + i * AT_ONCE, AT_ONCE)
