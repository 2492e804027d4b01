"""What the tree kernels for many rows execute beside the walks: ranks of rows, copies of tiles, sums, results.

nvcc says of each instruction from which line of the source it is. So it is executed as often as the loops around that line say, whose
rounds follow from the model, if it lies in these loops: nvcc puts before a loop what is alike in all rounds. Where nvcc has written the
code of a round several times, it reads memory at as many places.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from hbc.compiler.tvm.nest.schedule import LANES
from hbc.compiler.tvm.trees.gpu.memory import LINE
from hbc.compiler.tvm.trees.gpu.planes import FIRST_LEVELS, PAIRED, PackedPlanes, pack_planes
from hbc.compiler.tvm.trees.gpu.tile_sizes import PIECE
from hbc.compiler.tvm.trees.gpu.tiles import WORD, TiledTrees, pack_staged, passes_of, staged_levels
from hbc.ir.types import Array, dtype_name
from hbc.ops.tree import TreeEnsemble

ALL, WAVEFRONTS = "all", "wavefronts"


class Instruction(NamedTuple):
    """An instruction of a kernel, the line of the source from which it is, and the loops in which nvcc has put it, by the lines of their
    branches back. What is alike in all rounds of a loop lies before it, whatever its line."""

    text: str
    line: int
    loops: frozenset[int] = frozenset()


class Beside(NamedTuple):
    """What a warp of rows needs beside the walks: instructions by their pipe, ALL of them, and WAVEFRONTS of shared memory and L1.

    rows: once. trees: for each tree.
    """

    rows: Counter[str]
    trees: Counter[str]


class Loop:
    """A loop of the source: its first line, its last one, and how often the code of a round is executed in one round of the loop around."""

    def __init__(self, outer: Loop | None, first: int) -> None:
        self.outer, self.first, self.last, self.rounds = outer, first, first, 1.0

    def around(self) -> list[Loop]:
        """The loops around this one, the outermost first, and itself."""
        return [*(self.outer.around() if self.outer else []), self]


def loops_of(lines: Sequence[str], first: int) -> dict[int, Loop]:
    """The innermost loop of the lines of a function that are in one. first: the line where it begins. Lines count from 1."""
    found: dict[int, Loop] = {}
    blocks: list[Loop | None] = []  # those that are open; None: of an `if` or the function
    for number, line in enumerate(lines[first - 1 :], first):
        if line.strip().startswith("}"):
            closed = blocks.pop()
            if closed:
                closed.last = number
        inner = next((loop for loop in reversed(blocks) if loop), None)
        if line.endswith("{"):
            blocks.append(Loop(inner, number) if re.match(r"\s*(for|while) \(", line) else None)
        if not blocks:
            break
        if inner := next((loop for loop in reversed(blocks) if loop), None):
            found[number] = inner
    return found


def beside(
    op: TreeEnsemble,
    x: Array,
    form: type[TiledTrees],
    source: str,
    code: Sequence[Instruction],
    walk: range,
    pipe: Callable[[str], str],
) -> Beside:
    """What `code` executes without its part `walk`, in which rows walk trees. x: rows of a call. pipe: that of an instruction."""
    lines = source.splitlines()
    start = max(number for number, line in enumerate(lines, 1) if "__global__" in line and line.endswith("{"))
    inner = loops_of(lines, start)
    loops = list(dict.fromkeys(inner.values()))
    reads = Counter(each.line for each in code if re.search(r"\bLD[GS]", each.text))
    walking = Counter(inner[code[number].line] for number in walk if code[number].line in inner).most_common(1)[0][0]
    passes, tile, tree, *_ = walking.around()
    own = {loop: [line for line in range(loop.first + 1, loop.last) if inner[line] is loop] for loop in loops}
    within = {loop: [other for other in loops if other.outer is loop] for loop in [None, *loops]}

    def written(loop: Loop) -> int:
        """How often nvcc has written the code of a round."""
        return min((reads[line] for line in own[loop] if reads[line]), default=1)

    tiles, rows = form.tiles_of(op)[0], form.rows_of_thread(op)
    threads = form.threads(op) * WORD // rows
    passes.rounds = passes_of(op, form.room_for(form.threads(op)))
    tile.rounds = tiles.count / passes.rounds
    tree.rounds = op.n_trees / tiles.count
    ranking = next(loop for loop in loops if passes not in loop.around() and len(within[loop]) >= 2)
    copies = {
        outer: [loop for loop in within[outer] if any("cp_async" in lines[line - 1] for line in own[loop])]
        for outer in (None, ranking, tile)
    }
    of_tiles = np.diff(tiles.pieces).mean(), tree.rounds * form.head_bytes / PIECE
    ranked, dtype, staged = form.ranked(op), dtype_name(op.threshold.dtype), staged_levels(op, form)
    columns = np.array([loop_rounds(lines[loop.first - 1]) for loop in ranking.around()])  # a group of them after the other
    for loop, rounds in zip(ranking.around(), columns, strict=True):
        loop.rounds = rounds
    packed = pack_staged(form, op) if staged else pack_planes(ranked, dtype)
    upper = packed.levels - 2 * packed.pairs
    of_column = np.array((packed.thresholds.itemsize << upper).sum() / columns.prod() / PIECE)
    if staged:  # the first loop copies those of the first column
        copies[None] = copies[None][1:]
    for copying, sizes in ((copies[None], of_tiles), (copies[tile], of_tiles), (copies[ranking], [of_column])):
        for loop, pieces in zip(copying, sizes, strict=False):
            loop.rounds = float(np.ceil(np.maximum(pieces - np.arange(0, threads, LANES), 0) / threads).mean()) / written(loop)
    *searches, planes = [loop for loop in within[ranking] if loop not in copies[ranking]]
    lines_of_step = dict(zip(searches, lines_of_search(packed, bool(staged), x), strict=False))
    for search, rounds in zip(searches, (upper - FIRST_LEVELS, packed.pairs), strict=False):
        search.rounds = rounds.sum() / columns.prod() / written(search)
    planes.rounds = form.planes(op) * 8 / form.bits / columns.prod() / written(planes)
    own_rows = np.arange(LANES) * rows
    lines_of_row, lines_of_result = (
        pieces_of_read(own_rows * width * size)
        for width, size in ((x.shape[1], x.itemsize), (op.n_outputs, op.values.itemsize))
    )
    found = Beside(Counter(), Counter())
    # Where the code of a round is written several times, some of it lies behind the loop, for the last rounds.
    once = {loop.first for loop in loops if written(loop) == 1 and any(loop.first in each.loops for each in code)}
    for number, (text, line, within_loops) in enumerate(code):
        if number in walk:
            continue
        around = inner[line].around() if line in inner else []
        around = [loop for loop in around if loop.first in within_loops or loop.first not in once]
        times = float(np.prod([loop.rounds for loop in around])) / rows
        into = found.trees if tile in around else found.rows
        into[pipe(text)] += times
        into[ALL] += times
        if moved := re.search(r"\b(LDGSTS|LDG|LDS|STS|STG)\b\S*", text):
            size: float = 4 if ".128" in moved[0] else 2 if ".64" in moved[0] else 1
            if moved[1] == "STG":
                size = lines_of_result
            elif moved[1] == "LDG" and re.search(r"\bx\d*_ptr\b", lines[line - 1]):
                size = lines_of_row
            elif moved[1] in ("LDG", "LDS") and around and around[-1] in lines_of_step:
                size = lines_of_step[around[-1]]
            into[WAVEFRONTS] += times * size
    for name in found.trees:
        found.trees[name] /= op.n_trees
    return found


def loop_rounds(line: str) -> int:
    """The rounds of a loop, as its line says them."""
    return int(re.findall(r"< \(int64_t\)(\d+)", line)[0])


def pieces_of_read(places: Array) -> int:
    """The lines of L1 in which the bytes of a warp's read lie."""
    return len(np.unique(places // LINE))


def lines_of_search(planes: PackedPlanes, staged: bool, x: Array) -> tuple[float, float]:
    """What a warp reads in a step of the search for the ranks of a row each, on average, in a level and in a pair of them: lines of L1, or
    wavefronts of levels that are staged in shared memory."""
    size, of_levels, of_pairs = planes.thresholds.itemsize, list[float](), list[float]()

    def read(places: Array, cost: Callable[[Array], float]) -> float:
        return float(np.mean([cost(warp * size) for warp in places.reshape(-1, LANES)]))

    for feature, levels, start, pairs in zip(planes.feature, planes.levels, planes.start, planes.pairs, strict=True):
        at, value = np.ones(len(x), np.int64), x[:, feature]
        for level in range(levels - 2 * pairs):
            if level >= FIRST_LEVELS:
                of_levels.append(read(start + at, wavefronts_of_read if staged else pieces_of_read))
            at = 2 * at + (planes.thresholds[start + at] < value)
        for _ in range(pairs):
            places = start + PAIRED * at
            of_pairs.append(read(places, pieces_of_read))
            at = PAIRED * at + sum((planes.thresholds[places + i] < value).astype(np.int64) for i in range(PAIRED - 1))
    return float(np.mean(of_levels)), float(np.mean(of_pairs or [0.0]))


def wavefronts_of_read(places: Array) -> int:
    """The wavefronts in which a warp reads words of shared memory that begin at these bytes: the most words of a bank."""
    return int(np.bincount(np.unique(places // WORD) % LANES).max())
