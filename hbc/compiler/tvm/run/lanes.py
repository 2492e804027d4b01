"""Pieces of a large call on their way to the card and back. A lane has memory for one piece on both sides of the bus, and a stream. While
one lane copies, others compute: data of any size passes through a few of them.

Rows cross the bus as they are, not as bytes of ranks. 28 columns of float32 are 112 bytes, 2.2 ns at 50 GB/s; their ranks would be
28, 0.6 ns. The host would gain at most those 1.6 ns a row, and rank them for it: 225 ns of a core with 255 thresholds a column, 55 with
63, 18 with 15 (Zen 3, one thread, as `KBinsDiscretizer`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from threading import Lock
from typing import Any

import numpy as np

from hbc.compiler.tvm.run.card import FROM_CARD, TO_CARD, Card, CudaError
from hbc.errors import DeviceMemoryError
from hbc.ir.types import Array

Kind = tuple[tuple[int, ...], np.dtype[Any]]
"""The shape of a row of an array, and the dtype."""
LANE_BYTES = 16 << 20
"""The bytes of a piece: a bus of 50 GB/s takes 0.3 ms for it, 30 times as long as to start a copy."""
MULTIPLE = 2048
"""Pieces have a multiple of so many rows, which is a block of a card (nest/schedule.py)."""
ALIGNMENT = 256
OVER_BUS_ROWS = 32
"""The most rows of a lane without copies: those of one block. The card writes their results to pinned memory itself. It reads their inputs
there too, if the kernel reads each number once, many at a time (`Interface.over_bus`)."""
OVER_BUS_BYTES = 64 << 10
"""The most bytes of the inputs, or of the results, of such a lane: a bus of 50 GB/s takes 1.3 µs for them."""


class Lane:
    """Memory for a piece of up to `rows` rows, and a stream. One call at a time may use it.

    A call of a few rows is one launch and one wait: the card reads and writes the pinned memory itself. Two copies would take longer than
    the rows: each is begun only when what was put on the stream before has ended.
    """

    def __init__(
        self, card: Card, inputs: Sequence[Kind], results: Sequence[Kind], rows: int, reads_over_bus: bool = False
    ) -> None:
        self.card, self.rows, self.stream = card, rows, card.stream()
        sizes = [rows * _bytes([kind]) for kind in (*inputs, *results)]
        places = np.cumsum([0, *(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes)])
        memory = card.pinned(max(int(places[-1]), 1))
        pinned = [
            memory[place : place + size].view(dtype).reshape(rows, *shape)
            for place, size, (shape, dtype) in zip(places, sizes, (*inputs, *results), strict=False)
        ]
        self.pinned_inputs, self.pinned_results = pinned[: len(inputs)], pinned[len(inputs) :]
        few = rows <= OVER_BUS_ROWS
        self.copies_in = not (few and reads_over_bus and rows * _bytes(inputs) <= OVER_BUS_BYTES)
        self.copies_out = not (few and rows * _bytes(results) <= OVER_BUS_BYTES)
        self.inputs, self.results = (
            [card.memory((rows, *shape), dtype) for shape, dtype in kinds]
            if copied
            else [card.over_bus(array) for array in arrays]
            for kinds, arrays, copied in (
                (inputs, self.pinned_inputs, self.copies_in),
                (results, self.pinned_results, self.copies_out),
            )
        )
        self._outputs: list[Array] = []

    def begin(self, code: Any, tables: Sequence[Any], inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Put a piece on the stream: copies to the card, the launch, copies back. inputs, outputs: the rows of the piece."""
        try:
            self._begin(code, tables, inputs, len((*inputs, *outputs)[0]))  # a graph may read nothing
        except BaseException:
            with suppress(CudaError):
                self.card.wait(self.stream)  # what was put on it uses the lane's memory
            raise
        self._outputs = list(outputs)

    def _begin(self, code: Any, tables: Sequence[Any], inputs: Sequence[Array], rows: int) -> None:
        card = self.card
        for array, pinned, there in zip(inputs, self.pinned_inputs, self.inputs, strict=True):
            pinned[:rows] = array
            if self.copies_in:
                card.copy(pinned[:rows], there, TO_CARD, self.stream)
        card.launch(self.stream, code, (*self.inputs, *tables, *self.results, 0, rows))
        for pinned, there in zip(self.pinned_results, self.results, strict=True) if self.copies_out else ():
            card.copy(pinned[:rows], there, FROM_CARD, self.stream)

    def finish(self) -> None:
        """Wait for the piece, and write its results to the outputs."""
        self.card.wait(self.stream)
        for output, pinned in zip(self._outputs, self.pinned_results, strict=True):
            output[...] = pinned[: len(output)]
        self._outputs = []


class Lanes:
    """The lanes of one method. They are kept for later calls."""

    def __init__(self, card: Card, inputs: Sequence[Kind], results: Sequence[Kind], reads_over_bus: bool = False) -> None:
        self.card, self.inputs, self.results, self.reads_over_bus = card, inputs, results, reads_over_bus
        width = max(_bytes(inputs), _bytes(results), 1)
        self.most = max(LANE_BYTES // width // MULTIPLE, 1) * MULTIPLE
        """The rows of the largest piece."""
        self._idle: list[Lane] = []
        self._lock = Lock()

    def take(self, rows: int) -> Lane:
        """An idle lane of at least so many rows (up to `most`), or a new one. Raises DeviceMemoryError."""
        most = OVER_BUS_ROWS if rows <= OVER_BUS_ROWS else self.most  # few rows have lanes of their own
        with self._lock:
            found = next((lane for lane in self._idle if rows <= lane.rows <= most), None)
            if found is not None:
                self._idle.remove(found)
                return found
        with suppress(DeviceMemoryError):
            return self._lane(min(rounded(rows), max(self.most, rows)))
        # Only here, where the error is gone, has the lane that failed given its memory back.
        with self._lock:
            self._idle.clear()
        return self._lane(rows)

    def _lane(self, rows: int) -> Lane:
        return Lane(self.card, self.inputs, self.results, rows, self.reads_over_bus)

    def give_back(self, lane: Lane) -> None:
        """Keep a lane whose piece is finished."""
        with self._lock:
            self._idle.append(lane)

    def smaller(self) -> bool:
        """Halve the pieces, after the card had no memory for them. False if they are as small as they get."""
        with self._lock:
            self._idle.clear()
            halved = self.most // 2 // MULTIPLE * MULTIPLE
            self.most = halved or self.most
            return halved > 0


def rounded(rows: int) -> int:
    """A number of rows that calls of about so many rows share a lane of."""
    return 1 << max(rows - 1, 31).bit_length()


def _bytes(kinds: Sequence[Kind]) -> int:
    """The bytes of a row."""
    return sum(int(np.prod(shape, dtype=np.int64)) * dtype.itemsize for shape, dtype in kinds)
