"""Bits of rows: how the strategy "walk" tests the highest levels of full trees for many rows.

A byte holds one test of eight rows, so that operators on bytes, 0.014 ns an element, decide for eight rows at once. Three steps:

1. Each different test of the ensemble is made once. Ranks set one bit for each number, in the slot of its rank. A test is passed by the
   numbers of the slots above it, which are added up from the last slot to the first, for all columns at once.
2. Each tree takes its tests, a level at a time, from below. The path below a node is that of its left or right child, bit by bit:
   left ^ ((left ^ right) & test).
3. Eight bytes, a bit of the paths of eight rows each, become the paths of eight rows: a transposition of 8 × 8 bits.

Row i · W + w of 8 · W rows has bit i of byte w.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hbc.ir.types import Array

LEVELS = 8
"""The most levels that are tested so: a byte holds the path of a row."""
SEGMENT = 64
"""The number of slots of a segment. The slots of all segments are added up side by side."""
MANY = 256
"""The fewest rows of 512 trees that are tested so. Fewer trees take as many walks. 256 rows of 500 trees of depth 8 take as long as with
bytes, and 2048 rows two thirds of that (airline's LightGBM model, Zen 5)."""
PIECE = 4096
"""The most rows whose tests are in memory together."""
MOST_SLOTS = 1 << 15
"""The largest number of slots. If all levels have more, fewer levels are tested so. With four times as many, 500 trees of 55,000
thresholds take 20 % longer (Zen 5)."""
MEMORY = 1 << 23
"""The bytes of memory for the tests of some trees. With twice as many, a row takes 0 to 5 % longer."""
KEPT = 31 << 20
"""Half of the bytes that the C library is to keep."""


def keep(size: int = KEPT) -> int:
    """`size`. It takes a piece of memory of this size and returns it unread.

    A C library gives a piece so large back to the system. From then on, glibc keeps free memory of up to twice that size. Otherwise it may
    get memory anew for each block of rows, which the system clears first: 3.1 µs a row became 4.7 (500 trees of depth 8, Zen 5)."""
    return torch.empty([size], dtype=torch.uint8).size(0)


def paths_by_bits(
    ranks: Tensor, slots: Tensor, bottoms: Tensor, size: Tensor, tests: Tensor, memory: Tensor, piece: int = PIECE
) -> Tensor:
    """The node behind the highest levels that each row reaches in each tree, u8[T, ·]; the first N columns are those of the rows. The
    parameters are those of `passed` and `paths_of`."""
    parts: list[Tensor] = []
    for first in range(0, ranks.size(1), piece):
        some = ranks.narrow(1, first, min(piece, ranks.size(1) - first))
        parts.append(paths_of(passed(some, slots, bottoms, int(size.item())), tests, memory))
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


def passed(ranks: Tensor, slots: Tensor, bottoms: Tensor, size: int, segment: int = SEGMENT) -> Tensor:
    """The tests that rows pass, u8[sides · size, W]. ranks i32[sides · C, N]: the places in `slots` of each side's numbers; slots, bottoms,
    size: see `pack_bits`."""
    rows = ranks.size(1)
    sides, width = ranks.size(0) // bottoms.size(0), (rows + 7) // 8
    row = torch.arange(rows, dtype=torch.int32)
    group = torch.div(row, width, rounding_mode="floor")
    bits = torch.bitwise_left_shift(torch.ones_like(row), group).to(torch.uint8)
    place = slots.index_select(0, ranks.reshape(-1)).reshape(sides, -1, rows)
    place.add_(torch.arange(sides, dtype=torch.int32).mul_(size).reshape(-1, 1, 1))
    place.mul_(width).add_(row - group * width)
    found = torch.zeros([sides * size * width], dtype=torch.uint8)
    found.scatter_add_(0, place.reshape(-1).to(torch.int64), bits.repeat(ranks.size(0)))
    found = found.reshape(sides, size, width)
    for side in range(sides):  # so that the sum of a column's slots is 0, and the columns before it do not see them
        found[side].index_copy_(0, bottoms, found[side].index_select(0, bottoms).bitwise_not_())
    steps = found.reshape(sides, segment, -1).unbind(1)
    for step in range(segment - 1, 0, -1):
        steps[step - 1].bitwise_xor_(steps[step])
    above = torch.zeros_like(steps[0]).reshape(sides, -1, width)
    above[:, :-1] = steps[0].reshape(sides, -1, width)[:, 1:]
    far = 1
    while far < above.size(1):
        above[:, :-far].bitwise_xor_(above[:, far:].clone())
        far *= 2
    found.reshape(sides, segment, -1).bitwise_xor_(above.reshape(sides, 1, -1))
    return found.reshape(sides * size, width)


def paths_of(found: Tensor, tests: Tensor, memory: Tensor) -> Tensor:
    """The node behind the highest levels that each row reaches in each tree, u8[T, 8 · W]. found: the tests that rows pass; tests: see
    `pack_bits`; memory: bytes, at least 1024 · W."""
    width, trees, levels = found.size(1), tests.size(1), 0
    while (1 << levels) <= tests.size(0):
        levels += 1
    each = levels * width << (levels - 1)
    together = min(max(memory.size(0) // each, 1), trees)
    planes = torch.zeros([8, trees * width], dtype=torch.uint8)
    memory = memory[: together * each].reshape(levels, -1)
    groups = [torch.split(tests.narrow(0, (1 << level) - 1, 1 << level), together, 1) for level in range(levels)]
    passed_tests: list[Tensor] = []
    left: list[Tensor] = []
    right: list[Tensor] = []
    for first in range(0, trees, together):
        count = min(together, trees - first)
        if first == 0 or count < together:  # all groups but the last one have the same views of memory
            passed_tests, left, right = [], [], []
            for bit in range(levels):
                size = (count * width) << (levels - 1 - bit)
                passed_tests.append(memory[bit].narrow(0, 0, size).reshape(-1, width))
                if bit > 0:
                    below = memory.narrow(0, 0, bit)
                    left.append(below.narrow(1, 0, size))
                    right.append(below.narrow(1, size, size))
        for bit in range(levels):
            group = groups[levels - 1 - bit][first // together]
            torch.index_select(found, 0, group.reshape(-1), out=passed_tests[bit])
            if bit > 0:
                to_left = left[bit - 1]
                to_left.bitwise_xor_(right[bit - 1].bitwise_xor_(to_left).bitwise_and_(passed_tests[bit].reshape(-1)))
        planes[:levels].narrow(1, first * width, count * width).copy_(memory.narrow(1, 0, count * width))
    transpose(planes)
    return planes.reshape(8, trees, width).permute(1, 0, 2).reshape(trees, 8 * width)


def transpose(planes: Tensor) -> None:
    """Swaps bit i of byte j with bit j of byte i, for i, j = 0 … 7, in place. planes: u8[8, ·]."""
    half, mask = 4, 15
    while half > 0:
        parts = planes.reshape(4 // half, 2, half, -1)
        low, high = parts.select(1, 0), parts.select(1, 1)
        other = torch.bitwise_right_shift(low, half).bitwise_xor_(high).bitwise_and_(mask)
        high.bitwise_xor_(other)
        low.bitwise_xor_(other.mul_(1 << half))
        half = half // 2
        mask = mask ^ (mask << half)


# --- packing -----------------------------------------------------------------------------------------------------------


def pack_bits(tests: list[Array], columns: int, never: int) -> tuple[Array, ...]:
    """The arrays of `passed` and `paths_of`. tests: of the splits of the highest levels, numbered as in `paths` of ranked.py,
    [2^levels - 1, T]: the rank of the threshold, or `never` where there is no split; the column; and 1 if it is a copy of that column, with
    another number for NaN. Ranks of numbers are less than `never`.

    slots i32[C · never]: the slot of each rank of a column. bottoms i64[C]: the lowest slot of each column. size i64[1]: the number of all
    slots. tests i32[2^levels - 1, T]: the slot from which on rows go right. Where there is no split, it is a lowest one, whose sum is 0.
    tests_with_copies: the same where copies of columns have slots of their own, behind the others; empty if there are no copies.

    The slots of a column follow each other. Slot s has the number s % SEGMENT · segments + s // SEGMENT, so that a step of all segments is
    one piece of memory."""
    rank, column, copy = tests
    slots, bottoms = np.zeros((columns, never), np.int64), np.zeros(columns, np.int64)
    levels, test = len(rank).bit_length(), np.where(rank < never, column * (never + 1) + rank + 1, 0)
    while levels and len(np.unique(test[: (1 << levels) - 1])) + columns > MOST_SLOTS:
        levels -= 1
    rank, column, copy = (each[: (1 << levels) - 1] for each in tests)
    from_slot, end = np.zeros(rank.shape, np.int64), 0
    for c in range(columns):
        mine = (column == c) & (rank < never)
        used, among = np.unique(rank[mine], return_inverse=True)
        slots[c] = end + np.searchsorted(used, np.arange(never))
        bottoms[c], from_slot[mine] = end, end + 1 + among
        end += len(used) + 1
    segments = -(-end // SEGMENT)
    slots, bottoms, from_slot = (each % SEGMENT * segments + each // SEGMENT for each in (slots, bottoms, from_slot))
    with_copies = from_slot + copy * segments * SEGMENT if copy.any() else from_slot[:0]
    return (
        slots.ravel().astype(np.int32),
        bottoms,
        np.array([segments * SEGMENT]),
        from_slot.astype(np.int32),
        with_copies.astype(np.int32),
    )
