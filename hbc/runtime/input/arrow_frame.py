"""Reads frames of pyarrow without narwhals, which is faster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hbc.ir.types import Array
from hbc.lazy import cached_property
from hbc.runtime.input.coded import WORTH_CODES, from_arrow
from hbc.runtime.input.frame_view import FEW_ROWS, FrameRow, FrameView, duplicates

ARROW_NUMBERS = {f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)} | {"halffloat", "float", "double"}

ARROW_TEXTS = {"string", "large_string"}

WORTH_A_MATRIX = 4
"""The fewest columns of one type that are read together."""

_last_types: tuple[Any, tuple[str, ...]] = (None, ())
"""The schema of the last table, and the types of its columns."""


class ArrowFrame(FrameView):
    """A pyarrow.Table, read without narwhals. A column takes 1 µs, and 20 µs through narwhals."""

    library = "pyarrow"
    in_parts = True

    @cached_property
    def names(self) -> list[Any]:
        names: list[Any] = self._frame.column_names
        if len(set(names)) < len(names):
            raise duplicates(", ".join(sorted({name for name in names if names.count(name) > 1})[:5]))
        return names

    @property
    def header(self) -> Any:
        return self._frame.schema

    def has_header(self, header: Any) -> bool:
        # 0.1 µs if both tables were cut from one. Making a list of 50 names takes 20.
        return bool(self._frame.schema.equals(header))

    @cached_property
    def width(self) -> int:
        return int(self._frame.num_columns)

    @cached_property
    def _types(self) -> tuple[str, ...]:
        """What each column counts as: one of Arrow's types."""
        return self._stored_types()

    def _stored_types(self) -> tuple[str, ...]:
        """The types of the columns. Those of the last table are kept, since to ask 30 columns for theirs takes 20 µs."""
        global _last_types
        schema, types = self._frame.schema, _last_types
        if types[0] is None or not schema.equals(types[0]):
            _last_types = types = schema, tuple(map(str, schema.types))
        return types[1]

    def block(self) -> Array | None:
        kinds = set(self._types)
        if len(kinds) != 1 or kinds.pop() not in ARROW_NUMBERS:
            return None
        found = _matrix(self._frame)
        return np.column_stack([self.column(index) for index in range(self.width)]) if found is None else found

    @cached_property
    def _few(self) -> dict[int, Array]:
        """The columns of few rows, of those types that many columns have: by number. 20 of them take 9 µs together, and 26 one by one."""
        if self.rows > FEW_ROWS:
            return {}
        found: dict[int, Array] = {}
        for kind in set(self._types) & ARROW_NUMBERS:
            numbers = [index for index, other in enumerate(self._types) if other == kind]
            matrix = _matrix(self._frame.select(numbers)) if len(numbers) >= WORTH_A_MATRIX else None
            if matrix is not None:
                found |= zip(numbers, matrix.T, strict=True)
        return found

    def row(self, numbers: Sequence[int], texts: Sequence[int]) -> FrameRow | None:
        types, frame = self._types, self._frame
        kinds = [types[index] for index in numbers]
        if not ARROW_NUMBERS.issuperset(kinds) or not all(types[index] in ARROW_TEXTS for index in texts):
            return None
        found: dict[int, tuple[np.dtype[Any], Any]] = {}
        for kind in set(kinds):
            same = [index for index in numbers if types[index] == kind]
            matrix = _matrix(frame.select(same))
            if matrix is None or matrix.dtype.kind not in "fi":
                return None
            for index, value in zip(same, matrix[0].tolist(), strict=True):
                found[index] = matrix.dtype, value
        dtypes, values = zip(*[found[index] for index in numbers], strict=True) if numbers else ((), ())
        try:
            return FrameRow(dtypes, values, [frame.column(index)[0].as_py() for index in texts])
        except UnicodeDecodeError:
            return None

    def coded(self, index: int) -> tuple[Array, Array] | None:
        if self.rows < WORTH_CODES:
            return None
        column = self._frame.column(index)
        return from_arrow(lambda: column, None) if self._types[index] in ARROW_TEXTS else None

    def integers(self, index: int) -> Array | None:
        column = self._frame.column(index)
        kind = str(column.type)
        return np.asarray(column.fill_null(0).to_numpy()) if kind in ARROW_NUMBERS and "int" in kind else None

    def _series(self, index: int) -> Any:
        import narwhals.stable.v2 as nw

        return nw.from_native(self._frame.column(index), series_only=True)

    def rejected_by(self, no_numbers: Sequence[str], index: int) -> str:
        kind = self._types[index]
        return kind if f"pyarrow.{kind.partition('<')[0].partition('(')[0]}" in no_numbers else ""

    def dictionary(self, index: int) -> list[Any] | None:
        if not self.rejected_by(("pyarrow.dictionary",), index):
            return None
        return [value for chunk in self._frame.column(index).chunks for value in chunk.dictionary.to_pylist()]

    def column(self, index: int) -> Array:
        kind = self._types[index]
        if kind not in ARROW_NUMBERS and kind not in ARROW_TEXTS:
            return np.full(self.rows, None, object) if kind == "null" else super().column(index)
        few = self._few.get(index)
        return np.asarray(self._frame.column(index).to_numpy()) if few is None else few


def _matrix(table: Any) -> Array | None:
    """The columns of a table of one type of numbers, as a matrix. None if it is in several pieces or has missing values, or if pyarrow is
    too old for it."""
    batches = table.to_batches()
    if len(batches) != 1 or not hasattr(batches[0], "to_tensor"):
        return None
    try:
        return np.asarray(batches[0].to_tensor().to_numpy())
    except (TypeError, ValueError, NotImplementedError):  # missing values; types that it does not know
        return None
