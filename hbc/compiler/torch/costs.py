"""The work of a tree ensemble in PyTorch on a CPU, for each strategy (see hbc/compiler/costs.py)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from hbc.compiler.costs import Lowered, Shape, Work, beyond
from hbc.compiler.torch.bits import LEVELS, MANY, MEMORY, MOST_SLOTS, PIECE
from hbc.compiler.torch.few import steps_of
from hbc.compiler.torch.ranked import HALVINGS
from hbc.compiler.torch.ranked import TOP as RANKED_TOP
from hbc.compiler.torch.run import BLOCK_BYTES
from hbc.compiler.torch.scan import FEW as SEARCHED
from hbc.compiler.torch.scan import LANES, walked_at_most
from hbc.compiler.torch.walk import ALIKE, AT_ONCE, AT_ONCE_IN_CHUNKS, LEAST_ROWS, levels
from hbc.compiler.torch.wide import LEAST_WIDE, wide
from hbc.ops.tree_ranks import MOST_IN_PLANE

LOWERED = Lowered(BLOCK_BYTES)
L2 = 1 << 20
"""The size of the second-level cache, in bytes."""


def scan(s: Shape, rows: int, few: int) -> Mapping[str, float]:
    """The work of the strategy "scan": that of "walk" for at most `walked_at_most` walks. For more it takes as many steps as the largest
    tree has splits."""
    if rows * s.trees <= walked_at_most(s.leaves, s.depth):
        return {f"walk: {name}": count for name, count in walk(s, rows, few).items()}
    numbers, halvings = rows * s.columns, _halvings(s)
    ranking = {"searched number": numbers}
    if numbers > SEARCHED:
        ranking = {"halving": halvings, "number and halving": numbers * halvings}
    return {
        "call": 1,
        **ranking,
        "block and step": LOWERED.blocks(rows, 2 * s.trees) * (s.leaves - 1),
        "split": s.splits,
        "row and split": -(-rows // LANES) * LANES * s.splits,
        "row and plane": rows * s.planes,
        "row and value of a leaf": rows * s.trees * s.width,
    }


def walk(s: Shape, rows: int, few: int) -> Mapping[str, float]:
    """The work of the strategy "walk": by blocks for at most `few` walks (rows × trees), level by level for more. Every tree takes as many
    steps as the deepest one."""
    if s.depth and rows * s.trees <= few:
        return _by_blocks(s, rows)
    top, full = levels(s.trees, s.splits + s.trees, s.depth)
    halvings = _halvings(s)
    in_ranks = full >= RANKED_TOP and s.columns * halvings <= HALVINGS * s.trees
    in_chunks = wide(s.columns, s.trees) and not in_ranks
    block = max(AT_ONCE // max(s.trees, 1), LEAST_WIDE if in_chunks else LEAST_ROWS)
    if not in_chunks:
        block = min(block, max(BLOCK_BYTES // max(s.columns * s.bytes, 1), LOWERED.least_rows))
    groups = -(-rows // block) * -(-(min(rows, block) * s.trees) // (AT_ONCE_IN_CHUNKS if in_chunks else AT_ONCE))
    walks, below = rows * s.trees, max(s.depth - full, 0)
    counts = {
        "call": 1,
        "group and level": groups * s.depth,
        "row and tree": walks,
        "row and lower level": walks * below,
        "row and lower level, by doublings of the tables beyond L2": walks * below * beyond(s.splits * (16 + 2 * s.bytes), L2),
        "row and value of a leaf": walks * s.width,
    }
    if min(rows, block) * s.trees <= ALIKE:
        return counts | {"row and full level": walks * full}
    if in_ranks:
        counts |= {"call in ranks": 1, "row, column and halving": rows * s.columns * halvings}
        tested = _levels_by_bits(s, full) if min(rows, block) >= MANY and min(rows, block) * s.trees >= MANY * 512 else 0
        counts |= _by_bits(s, rows, block, tested) if tested else {"row and tree in ranks": walks}
        steps = walks * (full - (tested or RANKED_TOP))
        return counts | {
            "row and full level in ranks": steps,
            "row and full level in ranks, by doublings of the tables beyond L2": steps * beyond(s.trees << (full + 2), L2),
        }
    tables = (s.trees << full) * (4 + s.bytes)
    columns = 0 if in_chunks else s.columns  # to transpose a chunk takes little beside what its many columns are worth
    return counts | {
        "row and column": rows * min(columns, ((1 << top) - 1) * s.trees),  # the others stay where they are
        "row and top level": walks * top,
        "row and full level": walks * (full - top),
        "row and full level, by doublings of the tables beyond L2": walks * (full - top) * beyond(tables, L2),
    }


def _thresholds(s: Shape) -> int:
    """About how many different thresholds there are."""
    return min(MOST_IN_PLANE * s.planes, s.splits)


def _levels_by_bits(s: Shape, full: int) -> int:
    """The number of levels that hbc.compiler.torch.bits tests."""
    levels = min(full, LEVELS)
    while levels and min(s.trees << levels, _thresholds(s)) + s.columns > MOST_SLOTS:
        levels -= 1
    return levels


def _by_bits(s: Shape, rows: int, block: int, levels: int) -> Mapping[str, float]:
    """The work of hbc.compiler.torch.bits for blocks of so many rows."""
    width = -(-min(rows, block, PIECE) // 8)
    pieces, trees = -(-rows // (8 * width)), max(MEMORY // (levels * width << (levels - 1)), 1)
    return {
        "piece by bits": pieces,
        "piece, group and level by bits": pieces * -(-s.trees // trees) * levels,
        "row and column by bits": rows * s.columns,
        "row and slot by bits": rows * (min(s.trees << levels, _thresholds(s)) + s.columns),
        "row and tree by bits": rows * s.trees,
        "row and node by bits": rows * s.trees << levels,
    }


def _halvings(s: Shape) -> int:
    """About how many steps the search for the rank of a number takes: log2 of the thresholds of a column."""
    return (_thresholds(s) // max(s.columns, 1)).bit_length()


def _by_blocks(s: Shape, rows: int) -> Mapping[str, float]:
    """The work of hbc.compiler.torch.few."""
    steps = steps_of(s.depth)
    tests = (1 << -(-s.depth // steps)) - 1
    return {
        "call by blocks": 1,
        "block": steps - 1,
        "row, tree and block": rows * s.trees * steps,
        "row, tree and test of a block": rows * s.trees * steps * tests,
        "row, tree and value by blocks": rows * s.trees * s.width,
    }


def works(few: int) -> dict[str, Work]:
    """The work by strategy. few: the most walks that go by blocks."""
    return {"walk": partial(walk, few=few), "scan": partial(scan, few=few), **LOWERED.strategies}
