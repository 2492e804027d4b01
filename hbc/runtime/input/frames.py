"""`read_frame` opens a frame as a Table."""

from __future__ import annotations

from typing import Any

from hbc.errors import InvalidInputError
from hbc.ir.types import Array
from hbc.runtime.input.arrow_table import ArrowTable
from hbc.runtime.input.pandas_table import PandasTable
from hbc.runtime.input.polars_table import PolarsTable
from hbc.runtime.input.table import Table, duplicates, series_values

SHORTER: dict[tuple[str, str], type[Table]] = {
    ("pandas", "DataFrame"): PandasTable,
    ("polars", "DataFrame"): PolarsTable,
    ("pyarrow", "Table"): ArrowTable,
}
"""(library, class) of a frame → the Table that reads it without narwhals."""


def read_frame(X: Any) -> Table | Array | None:
    """A Table for a frame, the values of a series, None for anything else. Raises
    InvalidInputError for a lazy frame, and for two columns of one name."""
    known = SHORTER.get((type(X).__module__.partition(".")[0], type(X).__name__))
    if known is not None:
        return known(X)
    import narwhals.stable.v2 as nw

    if type(X).__module__.startswith("narwhals.") and hasattr(X, "to_native"):
        X = X.to_native()
    try:
        frame = nw.from_native(X, allow_series=True, pass_through=True)
    except nw.exceptions.DuplicateError as error:
        raise duplicates(" ".join(str(error).split())[:100]) from error
    if isinstance(frame, nw.LazyFrame):
        raise InvalidInputError(found="a lazy frame", expected="a frame with values", advice="Call X.collect() first.")
    if isinstance(frame, nw.DataFrame):
        return Table(frame)
    if isinstance(frame, nw.Series):
        return series_values(frame, "X")
    return None
