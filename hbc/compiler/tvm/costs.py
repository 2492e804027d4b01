"""The work of a tree ensemble on a CPU, for each strategy: how often each kind of work is done.

hbc/compiler/costs.py multiplies these counts by fitted times to choose a strategy. Processors without AVX-512 have times of their own: a
scan, in registers of half the size, takes them three times as long, and a walk no longer.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping

from hbc.compiler.costs import (
    ALONE_WITHOUT_KEYS,
    CALL_WITHOUT_KEYS,
    FAR_COPIED,
    FAR_SELECTED,
    FAR_WITHOUT_KEYS,
    FURTHER_PLANE,
    IN_TURN,
    KEYS_IN_MEMORY,
    OF_ONE_TREE,
    WITHOUT_KEYS,
    Shape,
    Work,
    beyond,
)
from hbc.compiler.memory import LINE
from hbc.compiler.tvm.plan.plan import ROWS_IN_STATEMENT, WALK_BYTES, WALK_ROWS
from hbc.compiler.tvm.trees.leaves.leaves import WIDTHS, WIDTHS_IN_PARTS
from hbc.compiler.tvm.trees.patches.packed_patches import IN_REGISTERS, LANES, MOST_COLUMNS, MOST_IN_REGISTERS, passed
from hbc.compiler.tvm.trees.patches.patches import REGISTERS_OF_ROWS, few_in_patches
from hbc.compiler.tvm.trees.patches.scanned_tops import EXITS, LEAST_ROWS, LEVELS
from hbc.compiler.tvm.trees.patches.walked_rows import many_rows_walk
from hbc.compiler.tvm.trees.pieces.pieces_scan import (
    EVERY,
    PAIR,
    ROWS_FOR_ALL,
    ROWS_FOR_ALL_IN_HALVES,
    VECTORS_OF_PIECES,
    least_of_whole,
)
from hbc.compiler.tvm.trees.ranges.ranges import SIDE, least_rows, short
from hbc.compiler.tvm.trees.ranges.scanned_rows import rows_for_chunk
from hbc.compiler.tvm.trees.ranks.column_tiles import CHUNK, LONG_ROW, SPARE, SPARE_OF_FEW_ROWS
from hbc.compiler.tvm.trees.ranks.planes import HALF, LEAST_TOGETHER, ROWS_IN_VECTOR, ROWS_OF_PLANES
from hbc.compiler.tvm.trees.scan.one_tree_scan import ROWS_ALONE
from hbc.compiler.tvm.trees.scan.packed_lanes import PAGE, TREES_IN_VECTOR
from hbc.compiler.tvm.trees.scan.scan import (
    KEY_OF_SET,
    TEST_OF_CHUNK,
    few_rows_in_lanes,
    most_alone,
    patching,
    rows_alone,
    rows_take_patches,
    walking,
)
from hbc.compiler.tvm.trees.scan.scan_few_rows import (
    FEW_PLANES,
    MOST_PLANES,
    MOST_PLANES_IN_HALVES,
    ROWS_TOGETHER,
    SETS_OF_STEP,
    halves_pay,
    pages_pay,
    registers_of,
)
from hbc.compiler.tvm.trees.scan.turns import take_turns, time_of_turns
from hbc.compiler.tvm.trees.walk.walk import TREES_IN_TILE, WALKS

L1, L2 = 32 << 10, 512 << 10
"""The sizes of the first- and second-level caches, in bytes."""
BYTES_OF_SPLIT, LARGE_MODEL = 19, 1 << 20
"""The bytes of a split in a record of a scan with AVX-512, and the bytes of all splits from which on these take longer to load where the
planes come from L2 as well."""
LONGER_FROM_L2 = 0.3
"""How much longer a scan of 256 rows takes then, for each doubling of their planes beyond L1. 300 trees of 800 leaves take 2.0 µs a row
with 28 planes, 3.3 with 308, 3.6 with 725; a forest of 1,000 trees of 842 leaves with 3,116 planes 18.9 instead of 10 (Zen 4), 12.4 instead
of 7.3 (Zen 5). Turns (scan/turns.py) take less. 300 trees of 200 leaves take the same with 28 and 197 planes."""
PARTS_FOR_FULL_ONES = 0.8
"""The parts that trees of more than 256 leaves have beside the first, for each that the rest would fill."""
COST_OF_HALF, COST_OF_WIDE_HALF = 0.65, 0.75
"""The time of a chunk of 32 rows over that of one of 64, with AVX2 and on Zen 4."""
COST_OF_PAIR = 0.73
"""The time of two chunks of 64 rows that are scanned together over that of two alone (Zen 5)."""
TREES_AT_ONCE = 16
"""The trees of a row that go through patches at once. The visits to patches of fewer trees wait for each other."""
LINES_AHEAD = 2
"""The cache lines of a row that the processor brings before code reads them: one tree over 28 float32 columns takes at most 10 ns a row
longer with rows from memory (Zen 4)."""
LINES_OF_STREAM = 13
"""The same for vectors of 16 rows (strategy "select"): rows of 100 columns, of float64 too, take no longer from memory."""
FREE_COLUMNS = 4
"""The columns that take the strategy "select" no time."""
MEAN_RANGE, MEAN_SHORT_RANGE = 204, 108
"""The leaves of a range, and of a short one, on average."""
COLUMNS_OF_SET = 0.1
"""The keys of columns that a walk makes in the time of the key of a category set, 0.024 ns on Zen 4."""
SPLITS_OF_SET = 2.5
"""The splits that a chunk of 64 rows tests in the time of a category set: 1.7 ns, with AVX2 2.2 (Zen 4)."""
SPLITS_IN_PATCH = 10
"""The splits of a patch, on average."""


def _far_lines(s: Shape, rows: int, most: float = math.inf, ahead: int = LINES_AHEAD) -> float:
    """The cache lines of a row for which code waits, at most so many, by the doublings of the lines of all rows beyond L2. ahead: the lines
    that come by themselves."""
    return min(max(s.lines - ahead, 0), most) * beyond(rows * s.lines * LINE, L2)


def walk(s: Shape, rows: int, lone: bool = True) -> Mapping[str, float]:
    """The work of walk.py: 16 rows walk a tree together, and all wait for the deepest. Each of the last rows walks up to 16 trees together.
    lone: whether walks of fewer steps than columns make no keys (lone.py). These wait for the lines of a row that is far away. One tree
    over 100 float32 columns (seven lines) takes 43 ns a row in calls of 1,000 and 120 in calls of 100,000 at depth 40, 15 and 95 at depth
    12. 20 trees of 200 leaves over 300 columns (19 lines) take 0.78 µs a row in calls of 10,000, over 1,661 columns (104) 2.4 (Zen 4)."""
    leaves = {"row and tree": rows * s.trees, "row and value of a leaf": rows * s.trees * s.width}
    single = rows % WALKS
    together = rows - single
    if lone and s.columns > s.steps:
        levels = -(-s.trees // WALKS) * s.steps / max(s.trees, 1)
        return leaves | {
            CALL_WITHOUT_KEYS: 1,
            WITHOUT_KEYS: together * s.steps,
            FAR_WITHOUT_KEYS: together * _far_lines(s, rows, s.steps),
            ALONE_WITHOUT_KEYS: single * levels,
        }
    node, steps = 2 * s.bytes, s.steps
    tile = node * 2 * s.splits / max(s.trees, 1) * TREES_IN_TILE
    read = -(-together // WALK_ROWS) * min(2 * s.splits, min(together, WALK_ROWS) * steps)
    return leaves | {
        "call": 1,
        "row and column": rows * (s.columns + COLUMNS_OF_SET * s.sets),
        "row and step": together * steps,
        "row and level of a leaf": together * s.mean_depth * s.trees,
        "row and step, by doublings beyond L1": together * steps * beyond(tile, L1),
        "row and step, by doublings beyond L2": together * steps * beyond(tile, L2),
        "node read by a block, by doublings beyond L2": read * beyond(node * 2 * s.splits, L2),
        "single row and step": single * steps,
        "single row and step, by doublings beyond L1": single * steps * beyond(node * 2 * s.splits, L1),
        "single row and step, by doublings beyond L2": single * steps * beyond(node * 2 * s.splits, L2),
    }


def patches(s: Shape, rows: int, wide: bool = True, tops: bool = True, walks: bool = False) -> Mapping[str, float]:
    """The work of patches.py: rows go from patch to patch; for few rows, all trees of a row go together. Keys are those of a walk. wide:
    with AVX-512. tops: whether many rows are scanned through the tops of trees (scanned_tops.py). walks: whether many rows are walked where
    that is faster (walked_rows.py)."""
    few = not wide or few_in_patches(rows, s.columns)
    if walks and not few and rows >= LEAST_ROWS and many_rows_walk(s):
        return _named("walk", walk(s, rows))
    passes = passed(s.splits, s.trees)
    parts = (rows + EVERY - LEAST_ROWS) // EVERY if tops and not few else 0
    scanned, in_tops = min(parts * EVERY, rows), min(s.splits, (EXITS - 1) * s.trees)
    visits, behind = (rows - scanned) * s.trees * passes, scanned * s.trees * max(passes - LEVELS, 0)
    many_registers = wide and LANES * REGISTERS_OF_ROWS < s.columns <= MOST_IN_REGISTERS
    size = IN_REGISTERS.words * 4 * s.splits / SPLITS_IN_PATCH
    read = visits if few else -(-rows // WALK_ROWS) * min(s.splits / SPLITS_IN_PATCH, visits + behind)
    return {
        "call": 1,
        "walk: row and column": rows * s.columns,
        "row and value of a leaf": rows * s.trees * s.width,
        "row and patch": visits,
        IN_TURN: (rows - scanned) * passes * max(1 - s.trees / TREES_AT_ONCE, 0) if few else 0,
        "row and patch of keys in many registers": visits if many_registers else 0,
        KEYS_IN_MEMORY: visits if wide and s.columns > MOST_IN_REGISTERS else 0,
        "row and patch, by doublings beyond L2": (visits + behind) * beyond(size / (1 if few else max(s.trees, 1)), L2),
        "patch read, by doublings beyond L2": read * beyond(size, L2),
        "row and column, scanned": scanned * s.columns,
        "row and tree, scanned": scanned * s.trees,
        "row and further plane, scanned": scanned * max(s.planes - s.columns, 0) * in_tops / max(s.splits, 1),
        "256 rows and split of a top": parts * in_tops,
        "row and patch behind a top": behind,
    }


def ranges(s: Shape, rows: int, wide: bool = True, walks: bool = False) -> Mapping[str, float]:
    """The work of ranges.py: many rows are sorted and scanned, fewer go through patches; with AVX2 they are scanned as they stand, or
    walked. Ranks are those of a scan. wide: with AVX-512. walks: see `patches`."""
    leaves = s.splits / s.trees + 1
    size = max(leaves / (MEAN_SHORT_RANGE if short(leaves, wide) else MEAN_RANGE), 1.0)  # the ranges of a tree
    block = min(WALK_ROWS, 1 << int(WALK_BYTES / (2 * s.bytes * s.columns)).bit_length() - 1)  # `most_rows` of plan.py
    if min(rows, block) < least_rows(size, wide):
        if wide and s.bytes == 4 and s.columns <= MOST_COLUMNS:
            return _named("patches", patches(s, rows, walks=walks))
        least = None if wide else rows_for_chunk(leaves)
        _, chunks, rest = (0, 0, rows) if least is None else _chunks(rows, least, wide, HALF)
        few: dict[str, float] = _named("walk", walk(s, int(rest)))
        if chunks:
            few |= _named("scan", _ranked(s, rows, wide, LEAST_TOGETHER, True) | {"64 rows and split": chunks * s.splits})
            few["row and value of a leaf"] = (rows - rest) * s.trees * s.width
        return few
    blocks = -(-rows // block)
    chunks = blocks * (-(-rows // (blocks * ROWS_IN_VECTOR)))
    # Of the rows of a range, the last chunk is half full.
    scanned = chunks + blocks * size * (0.5 if wide else 0.5 * HALF / ROWS_IN_VECTOR)
    return {
        "call": 1,
        **_named("scan", _ranked(s, rows, wide, LEAST_TOGETHER, True)),
        "row and value of a leaf": rows * s.trees * s.width,
        "64 rows and range": chunks * s.trees * size,
        "64 sorted rows and split": scanned * s.splits / size,
        "64 sorted rows and tile of planes": scanned * s.trees * -(-s.planes // SIDE),
    }


def _named(kernel: str, work: Mapping[str, float]) -> dict[str, float]:
    """Work that has the times of another strategy."""
    return {f"{kernel}: {name}": count for name, count in work.items()}


def scan(s: Shape, rows: int, wide: bool = True, pairs: bool = False) -> Mapping[str, float]:
    """The work of scan.py: chunks of 64 rows. The last few rows, and all rows for leaf numbers, are scanned by scan_few_rows.py.
    Where bytes cannot number leaves, patches take them; where there are too many planes, and without patches, walks. Their work has the
    name of the kernel in front. wide: with AVX-512. pairs: whether two chunks are scanned together (`pairing`); elsewhere a chunk may have
    32 rows."""
    small, least = s.leaves <= WIDTHS[-1], ROWS_IN_VECTOR if pairs else HALF
    if small and s.trees == 1:
        return _one_tree_scan(s, rows, wide, least)
    longest = -(-s.trees // TREES_IN_VECTOR) * (s.leaves - 1) if s.longest is None else s.longest
    steps = s.steps + s.sets // SETS_OF_STEP
    if wide:
        in_lanes = small and s.planes <= MOST_PLANES and (s.planes <= PAGE or pages_pay(s.planes, longest, steps))
    else:
        in_lanes = small and s.planes <= MOST_PLANES_IN_HALVES and halves_pay(s.planes, longest * TREES_IN_VECTOR, steps)
    patchable = wide and s.bytes == 4 and s.columns <= MOST_COLUMNS and not s.sets
    in_patches = not small and patchable and rows_take_patches(s.splits, s.trees, s.steps, s.columns)
    trees, splits, leaves = s.trees, s.splits, s.leaves
    if not small:  # larger trees become parts, with the splits above them (small_trees.py)
        parts = s.splits / max(WIDTHS[-1] - s.mean_depth, WIDTHS[0]) * PARTS_FOR_FULL_ONES
        trees, splits, leaves = s.trees + int(parts), s.splits + int(parts * s.mean_depth), WIDTHS[-1]
    if in_lanes:
        few = few_rows_in_lanes(s.splits + s.trees > 128 * s.trees, s.planes, least, wide, s.trees, s.outputs, s.width)
    else:
        going = patching(s.splits, s.trees, s.columns) if in_patches else walking(s.steps)
        going, tests = going + KEY_OF_SET * s.sets, TEST_OF_CHUNK[wide] * s.sets
        few = rows_alone(trees, int(splits), s.width, leaves, going, s.columns, s.planes, least, wide, tests)
    together, chunks, rest = (0, 0, rows) if s.numbers else _chunks(rows, few, wide, least, pairs)
    values = trees * s.width
    tables = next(width for width in WIDTHS if leaves <= width) // WIDTHS[0]
    gathered = 0 if wide or leaves <= WIDTHS_IN_PARTS[1] else chunks * values
    at_once, least_together = (rows, ROWS_OF_PLANES + 1) if in_lanes else (rows - rest, LEAST_TOGETHER)
    ranked = _ranked(s, at_once, wide, least_together, bool(chunks), wide and not pairs)
    longer = 0.0
    if wide:
        longer = LONGER_FROM_L2 * min(beyond(splits * BYTES_OF_SPLIT, LARGE_MODEL), 1) * beyond(s.planes * EVERY, L1)
        if not in_lanes and not s.sets and take_turns(s.columns, s.planes):
            longer = min(longer, time_of_turns(s.columns, s.planes) / splits)
    work: dict[str, float] = {
        "call": 1,
        **ranked,
        "row and output": 0 if s.numbers else rows * s.outputs,  # numbers are stored as they are
        "256 rows and split": together * splits * (1 + longer),
        "64 rows and split": (chunks - together) * splits + chunks * SPLITS_OF_SET * s.sets,
        "64 rows and value of a leaf": 0 if gathered else chunks * values * tables,
        "64 rows and gathered value of a leaf": gathered,
        "64 rows and tree": chunks * trees,
        "64 rows": chunks,
    }
    if in_lanes:
        # A lane with a smaller tree, or with none, takes as long as the others.
        splits = longest * TREES_IN_VECTOR
        if not wide and s.planes > FEW_PLANES:
            splits += splits // 2  # by measurement: more look-ups for each
        elif s.planes > PAGE:
            splits = splits * (3 + registers_of(s.planes)) // (3 + registers_of(PAGE))
        fours = min((rest + (ROWS_TOGETHER - 1 - most_alone(wide))) // ROWS_TOGETHER, rest)
        alone = max(rest - fours * ROWS_TOGETHER, 0)
        return work | {
            "four rows and split, trees in lanes": fours * splits,
            "single row and split, trees in lanes": alone * splits,
            "row and tree, trees in lanes": rest * s.trees,
            "row and further value of a leaf, trees in lanes": rest * (values - s.trees),
        }
    kernel, counts = ("patches", patches(s, 1)) if in_patches else ("walk", walk(s, 1))
    return work | {
        f"{kernel}: {name}": rest * count for name, count in counts.items() if name not in ("call", CALL_WITHOUT_KEYS)
    }


def _chunks(rows: int, few: int, wide: bool, least: int, pairs: bool = False) -> tuple[int, float, int]:
    """(chunks that are scanned four at once, all chunks of 64 rows, the rows that are left), where fewer than `few` rows are left. least:
    the rows of the smallest chunk."""
    halves = least == HALF
    for_all = ROWS_FOR_ALL if wide else ROWS_FOR_ALL_IN_HALVES
    together = (rows + EVERY - for_all) // EVERY * VECTORS_OF_PIECES
    behind = rows - together * ROWS_IN_VECTOR
    paired = 2 * (max(behind + PAIR - ROWS_IN_VECTOR - 1 - few // 2, 0) // PAIR) if pairs else 0
    whole = max(together + paired, (rows + ROWS_IN_VECTOR - least_of_whole(few, least, wide)) // ROWS_IN_VECTOR)
    half = max((rows - whole * ROWS_IN_VECTOR + least - few) // least, 0) if halves else 0
    cost_of_half = COST_OF_WIDE_HALF if wide else COST_OF_HALF
    return (
        together,
        whole - (1 - COST_OF_PAIR) * paired + cost_of_half * half,
        max(rows - whole * ROWS_IN_VECTOR - half * least, 0),
    )


def _searched_alone(rows: int, least: int) -> int:
    """The rows whose numbers are searched one after the other (AVX2)."""
    return rows % CHUNK if rows % CHUNK < least else 0


def _one_tree_scan(s: Shape, rows: int, wide: bool, least: int) -> Mapping[str, float]:
    """The work of one_tree_scan.py. Nothing is added. So what is done for each row, and for a chunk of rows, has times of its own. least:
    the rows of the smallest chunk."""
    together, chunks, rest = _chunks(rows, ROWS_ALONE, wide, least)
    own = {"row and output": rows * s.outputs, "64 rows": chunks, "single row and step": rest * s.depth}
    return {
        "call": 1,
        **_ranked(s, rows - rest, wide, LEAST_TOGETHER, bool(chunks), wide and least == HALF),
        "256 rows and split": together * s.splits,
        "64 rows and split": (chunks - together) * s.splits,
        **{name + OF_ONE_TREE: count for name, count in own.items()},
    }


def _ranked(s: Shape, ranked: int, wide: bool, least: int, chunks: bool, squares: bool = False) -> dict[str, float]:
    """The work of finding the ranks of so many rows. Without AVX-512, fewer than `least` rows of a chunk are searched one by one. chunks:
    whether there are any; only for these are narrow columns ranked in another way. squares: whether long rows are transposed in squares,
    16 rows at a time (Zen 4). Numbers that are not transposed are copied one by one, and nothing asks for them before: five trees of 31
    leaves over 1,000 columns, most of which they do not read, take 0.43 µs a row in calls of 10,000, and 0.10 in calls of 100 (Zen 4)."""
    narrow, planes, bits = s.narrow if chunks else 0, s.planes if wide else s.columns, 8 * s.bytes
    one_by_one = 0 if wide else _searched_alone(ranked, least)
    spare = SPARE_OF_FEW_ROWS if squares and s.lines >= LONG_ROW else SPARE * s.bytes
    copied = chunks and spare * s.columns < s.lines * LINE  # column_tiles.py
    return {
        FAR_COPIED: ranked * _far_lines(s, ranked) if copied else 0,
        f"row and column of {bits} bits": (ranked - one_by_one) * (s.columns - narrow),
        f"single row and column of {bits} bits": one_by_one * (s.columns - narrow),
        "row and narrow column": ranked * narrow,
        "row and plane": ranked * (planes - narrow),
        FURTHER_PLANE: ranked * (s.planes - planes),
    }


def select(s: Shape, rows: int) -> Mapping[str, float]:
    """The work of the strategy "select": every choice of every tree, for vectors of 16 rows. A last one that is not full takes longer. The
    first columns hardly count: 10,000 rows of 14 splits take 0.5 ns each over 4 columns, and 2.6 over 11 (Zen 5). Lines that are far away
    do: a tree of 16 leaves over 15 lines of 2,000 columns takes 15 ns a row in calls of 1,000, and 105 in calls of 100,000 (Zen 4)."""
    vectors, last = divmod(rows, ROWS_IN_STATEMENT)
    choices = s.splits * (1 if s.numbers else s.width)
    return {
        "call": 1,
        "row and column": rows * max(s.columns - FREE_COLUMNS, 0),
        FAR_SELECTED: rows * _far_lines(s, rows, ahead=LINES_OF_STREAM),
        "16 rows and choice": vectors * choices,
        "last rows and choice": choices if last else 0,
        "16 rows": vectors,
    }


@functools.cache
def strategies(
    wide: bool = True, pairs: bool = False, tops: bool = True, lone: bool = True, walks: bool = False
) -> dict[str, Work]:
    """The strategies to choose from, with their work. wide: with AVX-512. pairs, tops, lone, walks: see `scan`, `patches` and `walk`.

    The three of the Hummingbird paper are never faster here: 1,000 rows of 100 trees of depth 6 take 0.84 ms by perf_tree_trav, 0.5 ms
    walked, 0.1 ms scanned.

    Code of patches for Zen 3 was measured on Zen 5 only. A visit has the time that makes the ratio to a walk of Zen 3 what it was there,
    for one row of 100 extra-trees of 784 columns (0.69; for 100 rows it was 0.39)."""
    return {
        "walk": functools.partial(walk, lone=lone),
        "patches": functools.partial(patches, wide=wide, tops=tops, walks=walks),
        "scan": functools.partial(scan, wide=wide, pairs=pairs),
        "ranges": functools.partial(ranges, wide=wide, walks=walks),
        "select": select,
    }
