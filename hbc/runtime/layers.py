"""The layout of a drawn graph: boxes in layers, each below the boxes that it is computed from, and lines that run round boxes (the method
of Sugiyama, Tagawa and Toda, 1981).

    layers      each box as near as possible to the boxes that read it
    bends       a line that passes a layer gets a place of its own there, like a narrow box
    order       left to right like the neighbours, layer after layer, down and up, as long as fewer lines cross
    places      each box as near as possible to the middle of its neighbours, without touching the next box
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

Box = Hashable
SWEEPS = 12
GAP = 18.0  # pixels between the boxes of a layer
EDGE = 1.0  # the pixels beside the outermost boxes
BEND = 6.0  # the width in pixels of a bend


class Bend(NamedTuple):
    """The place where a line from one box to another passes a layer."""

    source: Box
    target: Box
    layer: int


class Layout(NamedTuple):
    """middles: the x of the middle of each box and bend. layers: their number from the top. width: of the drawing."""

    middles: Mapping[Box, float]
    layers: Mapping[Box, int]
    width: float

    def line(self, source: Box, target: Box) -> list[Box]:
        """The boxes and bends that a line goes through, from above."""
        passed = range(self.layers[source] + 1, self.layers[target])
        return [source, *(Bend(source, target, layer) for layer in passed), target]


def layout(sources: Mapping[Box, Sequence[Box]], widths: Mapping[Box, float]) -> Layout:
    """The layout of boxes. sources: for each box those above it; a box comes after its sources. widths: in pixels."""
    number = _layers(sources)
    size = dict(widths)
    above: dict[Box, list[Box]] = {box: [] for box in sources}
    for target, boxes in sources.items():
        for source in boxes:
            bends = [Bend(source, target, layer) for layer in range(number[source] + 1, number[target])]
            for upper, lower in pairwise([source, *bends, target]):
                above.setdefault(lower, []).append(upper)
            for bend in bends:
                number[bend], size[bend] = bend.layer, BEND
    below: dict[Box, list[Box]] = {box: [] for box in above}
    for lower, uppers in above.items():
        for upper in uppers:
            below[upper].append(lower)
    rows: list[list[Box]] = [[] for _ in range(max(number.values(), default=-1) + 1)]
    for box in above:
        rows[number[box]].append(box)
    rows = _ordered(rows, above, below)
    middles = _middles(rows, above, below, size)
    left = min((middles[box] - size[box] / 2 for box in middles), default=0.0) - EDGE
    right = max((middles[box] + size[box] / 2 for box in middles), default=0.0) + EDGE
    return Layout({box: middle - left for box, middle in middles.items()}, number, right - left)


def _layers(sources: Mapping[Box, Sequence[Box]]) -> dict[Box, int]:
    """The layer of each box: just above the highest box that reads it, so that few lines are long. What nothing reads is at the end."""
    height: dict[Box, int] = {}
    for box in reversed(list(sources)):
        height.setdefault(box, 0)
        for source in sources[box]:
            height[source] = max(height.get(source, 0), height[box] + 1)
    top = max(height.values(), default=0)
    return {box: top - height[box] for box in sources}


def _ordered(rows: list[list[Box]], above: Mapping[Box, list[Box]], below: Mapping[Box, list[Box]]) -> list[list[Box]]:
    """The layers, in an order in which few lines cross."""
    best, fewest = rows, _crossings(rows, above)
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        neighbours = above if down else below
        place = {box: i for row in rows for i, box in enumerate(row)}
        ordered = []
        for row in rows if down else reversed(rows):
            middle = {box: _mean([place[other] for other in neighbours[box]], place[box]) for box in row}
            row = sorted(row, key=middle.__getitem__)
            place.update({box: i for i, box in enumerate(row)})
            ordered.append(row)
        rows = ordered if down else ordered[::-1]
        crossings = _crossings(rows, above)
        if crossings < fewest:
            best, fewest = rows, crossings
    return best


def _crossings(rows: list[list[Box]], above: Mapping[Box, list[Box]]) -> int:
    """The number of pairs of lines that cross."""
    place = {box: i for row in rows for i, box in enumerate(row)}
    count = 0
    for row in rows:
        ends = [place[upper] for box in row for upper in sorted(above[box], key=place.__getitem__)]
        count += sum(first > second for i, first in enumerate(ends) for second in ends[i + 1 :])
    return count


def _middles(
    rows: list[list[Box]], above: Mapping[Box, list[Box]], below: Mapping[Box, list[Box]], size: Mapping[Box, float]
) -> dict[Box, float]:
    middles: dict[Box, float] = {}
    for row in rows:
        x = 0.0
        for box in row:
            middles[box] = x + size[box] / 2
            x += size[box] + GAP
    for sweep in range(SWEEPS):
        last = sweep == SWEEPS - 1
        for row in rows if sweep % 2 == 0 else reversed(rows):
            neighbours = [above[box] + below[box] if last else above[box] if sweep % 2 == 0 else below[box] for box in row]
            wanted = [
                _mean([middles[other] for other in near], middles[box]) for box, near in zip(row, neighbours, strict=True)
            ]
            middles.update(zip(row, _apart(wanted, [size[box] for box in row]), strict=True))
    return middles


def _apart(wanted: list[float], sizes: list[float]) -> list[float]:
    """The numbers nearest to the wanted ones (by the sum of squares) whose boxes do not touch: without the widths before them they must not
    fall, and runs that do get their mean (pool adjacent violators)."""
    offsets = [0.0]
    for left, right in pairwise(sizes):
        offsets.append(offsets[-1] + (left + right) / 2 + GAP)
    runs: list[tuple[float, int]] = []  # (sum, count)
    for number, offset in zip(wanted, offsets, strict=True):
        runs.append((number - offset, 1))
        while len(runs) > 1 and runs[-2][0] / runs[-2][1] > runs[-1][0] / runs[-1][1]:
            total, count = runs.pop()
            runs[-1] = runs[-1][0] + total, runs[-1][1] + count
    starts = [total / count for total, count in runs for _ in range(count)]
    return [start + offset for start, offset in zip(starts, offsets, strict=True)]


def _mean(numbers: Sequence[float], otherwise: float) -> float:
    return sum(numbers) / len(numbers) if numbers else otherwise
