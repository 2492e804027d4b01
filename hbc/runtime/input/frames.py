"""`read_frame` opens a frame as a FrameView."""

from __future__ import annotations

from typing import Any

from hbc.errors import InvalidInputError
from hbc.ir.types import Array
from hbc.runtime.input.arrow_frame import ArrowFrame
from hbc.runtime.input.frame_view import FrameView, duplicates, series_values
from hbc.runtime.input.pandas_frame import PandasFrame
from hbc.runtime.input.polars_frame import PolarsFrame

SHORTER: dict[tuple[str, str], type[FrameView]] = {
    ("pandas", "DataFrame"): PandasFrame,
    ("polars", "DataFrame"): PolarsFrame,
    ("pyarrow", "Table"): ArrowFrame,
}
"""(library, class) of a frame → the FrameView that reads it without narwhals."""


def read_frame(X: Any) -> FrameView | Array | None:
    """A FrameView for a frame (or for a FrameView), the values of a series, None for anything else. Raises
    InvalidInputError for a lazy frame, and for two columns of one name."""
    if isinstance(X, FrameView):
        return X
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
        return FrameView(frame)
    if isinstance(frame, nw.Series):
        return series_values(frame, "X")
    return None
