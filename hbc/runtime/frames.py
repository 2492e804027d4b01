"""Frames of every library (pandas, polars, pyarrow, …) through narwhals, column by column, as scikit-learn would read them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from hbc.errors import BackendUnavailableError, InvalidInputError
from hbc.ir.signature import FrameOutput
from hbc.ir.types import Array


class Table:
    """A frame. A column is read when it is asked for, so that columns nobody needs may hold anything."""

    pandas = False

    def __init__(self, frame: Any) -> None:
        self._frame = frame
        self.names: list[Any] = list(frame.columns)
        self.rows = len(frame)

    def string_names(self) -> tuple[str, ...] | None:
        """The names, where all are strings. Mixed with others they are an error, as in scikit-learn."""
        text = [isinstance(name, str) for name in self.names]
        if any(text) and not all(text):
            kinds = sorted({type(name).__name__ for name in self.names})
            raise InvalidInputError(
                found=f"column names of different types ({', '.join(kinds)})",
                expected="names that are all strings",
                advice="Convert them: X.columns = X.columns.astype(str).",
            )
        return tuple(self.names) if text and all(text) else None

    def block(self) -> Array | None:
        """All columns as one matrix, where they are numbers of one plain dtype."""
        kinds = set(self._frame.schema.values())
        if len(kinds) != 1 or not next(iter(kinds)).is_numeric():
            return None
        values = np.asarray(self._frame.to_numpy())
        return values if values.dtype.kind in "fiu" and values.ndim == 2 else None

    @cached_property
    def _few(self) -> list[Array | None]:
        """The columns of a few rows, read row by row, where nothing is missing; None for others. Column by column a row of 50 takes
        0.6 ms, and this way 0.1."""
        if self.rows > FEW_ROWS or not self._frame.implementation.is_polars():
            return [None] * len(self.names)
        columns = zip(*self._frame.rows(), strict=True) if self.rows else [()] * len(self.names)
        return [
            None if dtype is None or None in values else np.array(values, dtype)
            for values, dtype in zip(columns, map(_numpy_dtype, self._frame.schema.values()), strict=True)
        ]

    def coded(self, index: int) -> tuple[Array, Array] | None:
        """A column of strings as codes and values (Texts), where its library hands it over in Arrow's form; None for others.
        To encode 20,000 strings takes 0.7 ms, and to make objects of them 0.8 and to look these up 2."""
        return _coded(self._series(index)) if self.rows >= WORTH_CODES else None

    def _series(self, index: int) -> Any:
        return self._frame.get_column(self.names[index])

    def column(self, index: int) -> Array:
        """One column: numbers in their own dtype (float64 where some are missing), or objects."""
        few = self._few[index]
        return _values(self._series(index), f"X, column {self.names[index]!r}") if few is None else few

    def whole_numbers(self, index: int) -> Array | None:
        """A column of integers or bool, of which `column` makes float64 if its dtype could hold missing values; None for others, and
        where some are missing."""
        series = self._series(index)
        if not (series.dtype.is_integer() or str(series.dtype) == "Boolean") or series.null_count():
            return None
        return np.array(series.to_list(), np.uint64 if str(series.dtype).startswith("U") else np.int64)


class PandasTable(Table):
    """A pandas.DataFrame: the same by a shorter way. Through narwhals a column takes 80 µs, and a frame of one row with 16
    columns takes longer to read than to score; here a column of a plain dtype takes 8 µs."""

    pandas = True

    def __init__(self, frame: Any) -> None:
        if not frame.columns.is_unique:
            names = [str(name) for name in frame.columns[frame.columns.duplicated()]]
            raise _duplicates(", ".join(names[:5]))
        super().__init__(frame)

    def block(self) -> Array | None:
        dtypes = set(self._frame.dtypes.tolist())
        plain = len(dtypes) == 1 and all(isinstance(dtype, np.dtype) and dtype.kind in "fiu" for dtype in dtypes)
        return np.asarray(self._frame.to_numpy()) if plain else None

    @cached_property
    def _few(self) -> list[Array | None]:
        dtypes = self._frame.dtypes.tolist()
        if self.rows > FEW_ROWS or not all(_is_plain(dtype) for dtype in dtypes):
            return [None] * len(dtypes)
        columns = self._frame.to_numpy(object).T
        return [
            values.astype(dtype) if isinstance(dtype, np.dtype) else values
            for values, dtype in zip(columns, dtypes, strict=True)
        ]

    def _series(self, index: int) -> Any:
        import narwhals.stable.v2 as nw

        return nw.from_native(self._frame[self.names[index]], series_only=True)

    def column(self, index: int) -> Array:
        few = self._few[index]
        if few is not None:
            return few
        series = self._frame[self.names[index]]
        if isinstance(series.dtype, np.dtype) or type(series.dtype).__name__ == "StringDtype":
            return np.asarray(series.to_numpy())
        return _values(self._series(index), f"X, column {self.names[index]!r}")


def _is_plain(dtype: Any) -> bool:
    """Whether a pandas column of the dtype is the same by way of Python objects."""
    return dtype.kind in "fiubO" if isinstance(dtype, np.dtype) else type(dtype).__name__ == "StringDtype"


def _numpy_dtype(dtype: Any) -> Any:
    """The dtype that a polars column without missing values has in numpy; None where that is not said here."""
    return NUMPY.get(str(dtype))


NUMPY = {f"{kind}{bits}": f"{kind.lower()}{bits}" for kind in ("Int", "UInt") for bits in (8, 16, 32, 64)}
NUMPY |= {"Float32": "float32", "Float64": "float64", "Boolean": "bool", "String": "object"}

FEW_ROWS = 64
"""Rows up to which a frame is read row by row: at 64 rows of polars, and 256 of pandas, both ways take the same time."""
WORTH_CODES = 2048
"""Rows from which on it takes less time to encode a column of 1,000 different strings than to look at them one by one."""


def _coded(series: Any) -> tuple[Array, Array] | None:
    import narwhals.stable.v2 as nw

    kind = series.implementation
    if series.dtype not in (nw.String, nw.Categorical, nw.Enum) or (kind.is_pyarrow() and series.dtype != nw.String):
        return None
    missing: Any = None
    if kind.is_pandas_like():
        native = series.to_native().dtype
        if type(native).__name__ not in ("StringDtype", "CategoricalDtype"):
            return None  # objects may be None, NaN or pandas.NA, which are not the same to scikit-learn
        missing = native.na_value
    try:
        column = series.to_arrow()
        column = column.combine_chunks() if hasattr(column, "combine_chunks") else column
        column = column.dictionary_encode()
        if str(column.dictionary.type) not in ("string", "large_string") or column.dictionary.null_count:
            return None
        codes, known = column.indices, column.dictionary.to_numpy(zero_copy_only=False)
    except (ImportError, AttributeError, ValueError, TypeError, NotImplementedError):  # without pyarrow, or what it cannot do
        return None
    values = np.empty(len(known) + 1, object)
    values[:-1], values[-1] = known, missing
    if codes.null_count:
        codes = codes.cast("int64").fill_null(len(known))
        return np.asarray(codes.to_numpy(zero_copy_only=False)), values
    return np.asarray(codes.to_numpy(zero_copy_only=False)), values[:-1]


def _values(series: Any, where: str) -> Array:
    """A narwhals series as scikit-learn would read it."""
    import narwhals.stable.v2 as nw

    if series.implementation.is_pyarrow() and series.dtype in (nw.Categorical, nw.Enum) and series.null_count():
        # pyarrow's own conversion, and so scikit-learn, takes a missing value for some other category.
        raise InvalidInputError(
            found="missing values in a dictionary column of pyarrow",
            expected="strings",
            where=where,
            advice="Decode the column: pyarrow.compute.cast(column, pyarrow.string()).",
        )
    values: Array = np.asarray(series.to_numpy())
    if values.dtype == object and series.dtype == nw.Boolean:
        missing = np.asarray(series.is_null().to_numpy(), bool)
        values = np.array([np.nan if gone else value for gone, value in zip(missing, values, strict=True)], np.float64)
    if series.implementation.is_pandas_like() and values.dtype.kind in "fiub":
        nullable = hasattr(series.to_native().dtype, "na_value")
        if nullable and series.dtype not in (nw.Categorical, nw.Unknown):
            values = values.astype(np.float64)  # check_array reads pandas' nullable dtypes as float64, float32 too
    if values.ndim != 1:
        raise InvalidInputError(found="lists", expected="numbers or strings", where=where)
    return values


def read_frame(X: Any) -> Table | Array | None:
    """A Table for a frame, the values of a series, None for anything else."""
    if type(X).__module__.partition(".")[0] == "pandas" and type(X).__name__ == "DataFrame":
        return PandasTable(X)
    import narwhals.stable.v2 as nw

    if type(X).__module__.startswith("narwhals.") and hasattr(X, "to_native"):
        X = X.to_native()
    try:
        frame = nw.from_native(X, allow_series=True, pass_through=True)
    except nw.exceptions.DuplicateError as error:
        raise _duplicates(" ".join(str(error).split())[:100]) from error
    if isinstance(frame, nw.LazyFrame):
        raise InvalidInputError(found="a lazy frame", expected="a frame with values", advice="Call X.collect() first.")
    if isinstance(frame, nw.DataFrame):
        return Table(frame)
    if isinstance(frame, nw.Series):
        return _values(frame, "X")
    return None


def make_frame(
    output: FrameOutput, X: Any, compute: Callable[[], Sequence[Array]], positions: Callable[[Table], Sequence[int]]
) -> Any:
    """A result as scikit-learn's `set_output` gives it, by the same constructors. compute() gives the blocks of computed columns,
    positions(table) the places of the model's columns in a frame. Raises InvalidInputError."""
    import narwhals.stable.v2 as nw

    if type(X).__module__.startswith("narwhals.") and hasattr(X, "to_native"):
        X = X.to_native()
    try:
        library: Any = nw.Implementation.from_string(output.library).to_native_namespace()
    except ImportError as error:
        raise BackendUnavailableError(
            backend=output.library, reason="not installed, and the result is a frame of it", extra="frames"
        ) from error
    own, array = isinstance(X, library.DataFrame), isinstance(X, np.ndarray)
    keeps = max(output.origins, default=-1) >= 0
    if output.native and not own and not (array and output.arrays):
        raise InvalidInputError(
            found=f"a {type(X).__name__}",
            expected=f"a frame of {output.library}" + (" or an array" if output.arrays else ""),
            advice="Columns of the input come back as they are, in their own dtypes: convert the input first.",
        )
    places: Sequence[int] = range(len(output.origins))
    if keeps and own:
        table = read_frame(X)
        places = positions(table) if isinstance(table, Table) else places
        gone = [output.names[i] for i, origin in enumerate(output.origins) if origin >= 0 and places[origin] < 0]
        if gone:
            raise InvalidInputError(found="a frame without columns that the result has", expected=", ".join(gone[:5]))
    blocks = list(compute()) if not own or min(output.origins, default=-1) < 0 else []
    if keeps:
        blocks = _with_own(output, X, blocks, places, own)
    if output.library == "polars":
        names = list(output.names)
        if len(blocks) == 1 and not own:
            return library.DataFrame(blocks[0], schema=names, orient="row")
        columns: list[Any] = []
        for block in blocks:
            frame = block if isinstance(block, library.DataFrame) else library.DataFrame(block, orient="row")
            columns += frame.get_columns()
        return library.DataFrame([column.alias(name) for column, name in zip(columns, names, strict=True)])
    index = X.index if output.index and isinstance(X, (library.DataFrame, library.Series)) else None
    parts = [
        block if isinstance(block, library.DataFrame) else library.DataFrame(block, index=index, copy=False) for block in blocks
    ]
    frame = parts[0] if len(parts) == 1 else library.concat(parts, axis=1)
    frame.columns = np.array(output.names, object)
    return frame


def _with_own(output: FrameOutput, X: Any, blocks: list[Array], places: Sequence[int], frame: bool) -> list[Any]:
    """The blocks, cut where columns of the input stand between theirs."""
    parts: list[Any] = []
    block, used = 0, 0
    for kept, group in itertools.groupby(output.origins, key=lambda origin: origin >= 0):
        run = list(group)
        if kept:
            chosen = [places[origin] if frame else origin for origin in run]
            by_place = X if isinstance(X, np.ndarray) or not hasattr(X, "iloc") else X.iloc
            parts.append(by_place[:, chosen])
            continue
        left = len(run)
        while left:
            step = min(left, blocks[block].shape[1] - used)
            parts.append(blocks[block][:, used : used + step])
            left, used = left - step, used + step
            if used == blocks[block].shape[1]:
                block, used = block + 1, 0
    return parts


def _duplicates(names: str) -> InvalidInputError:
    return InvalidInputError(
        found=f"two columns of one name ({names})",
        expected="different column names",
        advice="Rename them, or pass X.to_numpy().",
    )
