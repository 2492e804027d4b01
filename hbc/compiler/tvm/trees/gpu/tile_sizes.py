"""Which trees of an ensemble a tile has, and how many bytes of shared memory tiles take.

Blocks for many rows have small tiles, since the planes of their rows take most of the memory. In blocks for few rows each of 15 warps walks
another tree, so a tile has 15 trees where there is room for them. There is room for two tiles, most often: the next one is copied while the
warps walk the trees of the other.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hbc.compiler.tvm.nest.schedule import MOST_SHARED, WALKERS
from hbc.ir.types import Array
from hbc.lazy import record

PIECE = 16
"""The bytes that a thread copies at once. Every tree begins at a multiple of them."""
PLANE_BYTES = 64 << 10
"""The most bytes of a block's planes. So 16 bits say where the byte of a plane and row lies."""
BLOCK_BYTES = 80 << 10
"""The bytes of shared memory that a block for many rows takes, about: so an SM of sm_80 has room for two blocks (it has 164 KB, and the
driver takes 1 KB for each block)."""
TILE_BYTES, LARGE_TILE_BYTES = 8 << 10, 16 << 10
"""The bytes of a tile of such a block, about: what BLOCK_BYTES leave, from the first number to the second. 8 KB are a piece for each of 512
threads. In all 16 warps together a tile takes about 210 clocks of an SM beside the walks (docs/gpu.md), so larger ones are better."""
THRESHOLD_BYTES = 16 << 10
"""The most bytes of the thresholds of two columns that pass through shared memory before the tiles: 2,048 of float32 each."""
MOST_TILE_BYTES = MOST_SHARED - PLANE_BYTES
"""The most bytes of a tree."""
FEW_TILE_BYTES = 16 << 10
"""The bytes of a tile of a block for few rows, about, if it has more than 15 trees."""
MOST_FEW_TILE_BYTES = 40 << 10
"""The most bytes of such a tile, if it has 15 trees or fewer and there is room for two: those of depth 8 with float64 leaves take 38 KB."""
STAGED_BYTES = 16 << 10
"""The most bytes of the 32 rows of a block for few rows that are copied to shared memory."""


@record
class Tiles:
    """The tiles of one kernel. All arrays are i64. The trees are numbered output by output.

    first [G + 1]: output g has the tiles first[g]:first[g + 1]. trees [N + 1]: tile n has the trees trees[n]:trees[n + 1]. pieces [N + 1]:
    where its bytes begin, in pieces. size: the bytes of shared memory for the largest one. places: how many tiles are in shared memory at
    once, 1 or 2; 0 if the trees stay in the card's memory.
    """

    first: Array
    trees: Array
    pieces: Array
    size: int
    places: int

    @property
    def count(self) -> int:
        return len(self.trees) - 1

    @property
    def early(self) -> bool:
        """Whether a tile is copied before the threads wait for it: there are two places, or it is the only one."""
        return self.places == 2 or self.places == self.count == 1

    @property
    def bytes(self) -> int:
        """The bytes of shared memory that they take."""
        return self.size * self.places


def tiles_for_many(sizes: Array, head: int, outputs: Sequence[Array], room: int) -> Tiles:
    """The tiles of a block for many rows. sizes: the bytes of each tree, multiples of a piece. head: further bytes of each in shared
    memory, such a multiple too. outputs: the trees of each output. room: the bytes of shared memory for tiles."""
    usual = min(max((room - (MOST_SHARED - BLOCK_BYTES)) // 2, TILE_BYTES), LARGE_TILE_BYTES)
    return _tiles(sizes, head, outputs, room, [_cut(sizes[trees] + head, usual, 1) for trees in outputs])


def tiles_for_few(sizes: Array, head: int, outputs: Sequence[Array], room: int) -> Tiles:
    """The same of a block for few rows."""
    largest = int(sizes.max(initial=0)) + head
    most = min(MOST_FEW_TILE_BYTES, max(room // 2 if largest <= room // 2 else room, largest))
    cuts = [_cut(sizes[trees] + head, FEW_TILE_BYTES, WALKERS, most) for trees in outputs]
    return _tiles(sizes, head, outputs, room, cuts)


def _cut(sizes: Array, usual: int, together: int, most: int = 0) -> list[int]:
    """How many trees each tile has, one at least. A tile of more than `together` trees has a multiple of so many, and `usual` bytes at
    most. Others have `most` bytes at most."""
    ends, counts, at = np.cumsum(sizes), list[int](), 0
    while at < len(sizes):
        before = int(ends[at] - sizes[at])
        small, large = (int(np.searchsorted(ends, before + limit, "right")) - at for limit in (usual, most))
        count = small // together * together or min(large, together)
        if at + small == len(sizes):  # the last ones, of any number
            count = small
        counts.append(max(count, 1))
        at += counts[-1]
    return counts


def _tiles(sizes: Array, head: int, outputs: Sequence[Array], room: int, cuts: Sequence[list[int]]) -> Tiles:
    counts = np.array([count for cut in cuts for count in cut], np.int64)
    trees = np.concatenate([[0], np.cumsum(counts)])
    order = np.concatenate([*outputs, np.zeros(0, np.int64)]).astype(np.int64)
    ends = np.concatenate([[0], np.cumsum(sizes[order])])
    pieces = ends[trees] // PIECE
    size = int((np.diff(pieces) * PIECE + counts * head).max(initial=0))
    first = np.concatenate([[0], np.cumsum([len(cut) for cut in cuts])]).astype(np.int64)
    return Tiles(first, trees, pieces, size, 2 if len(counts) > 1 and 2 * size <= room else 1)
