"""`Operator.reads` and `Operator.narrowed` for operators that have no parameters from which to tell their columns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hbc.ir.graph import Node, Operator
from hbc.ir.types import Array


class SideBySide(Operator):
    """The result has the columns of the first input, then those of the second, and so on, if they are joined along `axis` 1."""

    axis: int

    def reads(self, kept: Array, inputs: Sequence[Node], finite: bool = False) -> tuple[Array, ...] | None:
        if self.axis != 1 or any(len(x.type.shape) != 2 for x in inputs):
            return None
        starts = _starts(inputs)
        parts = np.split(kept, np.searchsorted(kept, starts[1:]))
        return tuple(part - start for part, start in zip(parts, starts, strict=True))

    def narrowed(self, kept: Array, columns: Sequence[Array], inputs: Sequence[Node]) -> tuple[Operator, Array]:
        return self, np.concatenate([part + start for part, start in zip(columns, _starts(inputs), strict=True)])


def _starts(inputs: Sequence[Node]) -> Array:
    return np.cumsum([0, *(x.type.width for x in inputs[:-1])])


class Product(Operator):
    """Every column of the result is computed from all columns of the first input and one of the second."""

    def reads(self, kept: Array, inputs: Sequence[Node], finite: bool = False) -> tuple[Array, ...] | None:
        return np.arange(inputs[0].type.width), kept

    def narrowed(self, kept: Array, columns: Sequence[Array], inputs: Sequence[Node]) -> tuple[Operator, Array]:
        return self, columns[1]
