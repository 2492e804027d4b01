"""What a caller must know of a compiled function, besides its code and its tables."""

from __future__ import annotations

from hbc.ir.types import TensorType
from hbc.lazy import record


@record
class Interface:
    """A function `name(inputs…, tables…, outputs…, first row, end row)`. Inputs and outputs without elements are not passed.

    A function that `tests` its input takes one more argument after the rows, the bound (f64; NaN means no test). It returns 1 if all blocks
    of rows passed, else 0. It does not compute blocks that fail, so that no code sees such values. There are two tests:
    `bounded`: the sum of the squares of a block's input must be at most the bound. A sum with NaN fails, unless the function was built for
    `missing` values, which it leaves out. `conditions`: so many values must be true for all rows of the block.
    """

    inputs: tuple[str, ...]
    outputs: tuple[TensorType, ...]
    rows: int
    """Threads get multiples of so many rows."""
    block: int
    """The rows that share the reading of the model."""
    cost: float
    """Roughly the nanoseconds that a row takes, to decide on threads."""
    bounded: bool
    conditions: int
    over_bus: bool
    """Whether a GPU may read the inputs of a few rows from the host's memory: the code reads each number once, many at a time."""

    @property
    def tests(self) -> bool:
        """Whether the function tests its input."""
        return self.bounded or self.conditions > 0
