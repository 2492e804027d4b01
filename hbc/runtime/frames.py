"""Frames of every library (pandas, polars, pyarrow, …) through narwhals, column by column, as scikit-learn would read them."""

from __future__ import annotations

import itertools
import operator
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
    library = "another library"
    plain = True
    """Whether its columns can be stacked as they are: none is of a dtype of pandas' own, and there is no bool among numbers of pandas."""

    def __init__(self, frame: Any) -> None:
        self._frame = frame
        self.rows = len(frame)

    @cached_property
    def names(self) -> list[Any]:
        return list(self._frame.columns)

    @cached_property
    def width(self) -> int:
        return len(self.names)

    @property
    def header(self) -> Any:
        """What tells the frame's columns from those of another of its library."""
        return self.names

    def has_header(self, header: Any) -> bool:
        return bool(self.names == header)

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

    def coded(self, index: int) -> tuple[Array, Array] | None:
        """A column of strings as codes and values (CodedStrings), where its library hands it over in Arrow's form; None for others."""
        import narwhals.stable.v2 as nw

        if self.rows < WORTH_CODES:
            return None
        series = self._series(index)
        if series.implementation.is_pandas_like():
            return None  # objects may be None, NaN or NA, which are not the same to scikit-learn
        own = (nw.String,) if series.implementation.is_pyarrow() else (nw.String, nw.Categorical, nw.Enum)
        return _coded(series.to_arrow, None) if series.dtype in own else None

    def own_dtype(self, index: int) -> np.dtype[Any] | None:
        """What numpy's functions compute in of a column of a dtype of pandas' own (Int8: int8), which `column` may make float64; object
        where they fail, None for other columns."""
        return None

    def holds_na(self, index: int) -> bool:
        """Whether pandas.NA is in a column."""
        return False

    def rejected_by(self, no_numbers: Sequence[str], index: int) -> str:
        """The dtype of a column, if it is among those from which a source library takes no numbers (Frames.no_numbers); otherwise ""."""
        return ""

    def _series(self, index: int) -> Any:
        return self._frame.get_column(self.names[index])

    def column(self, index: int) -> Array:
        """One column: numbers in their own dtype (float64 where some are missing), or objects."""
        return _values(self._series(index), f"X, column {self.names[index]!r}")

    def whole_numbers(self, index: int) -> Array | None:
        """A column of integers or bool, of which `column` makes float64 if its dtype could hold missing values; None for others, and
        where some are missing."""
        series = self._series(index)
        if not (series.dtype.is_integer() or str(series.dtype) == "Boolean") or series.null_count():
            return None
        return np.array(series.to_list(), np.uint64 if str(series.dtype).startswith("U") else np.int64)


class PandasTable(Table):
    """A pandas.DataFrame: the same by a shorter way. Through narwhals a column takes 80 µs, and a frame of one row with 16
    columns takes longer to read than to score; here a column takes 1 µs."""

    pandas = True
    library = "pandas"

    def __init__(self, frame: Any) -> None:
        self._frame = frame
        self._columns = frame.columns
        self.width = len(self._columns)
        self.rows = len(frame)
        # What pandas holds: blocks of columns of one dtype, ndarrays or arrays of its own, and where a column stands in them. No
        # public way to it takes less than 11 µs a column, its own private one 0.5, this one 0.1.
        try:
            manager = frame._mgr
            self._blocks = [block.values for block in manager.blocks]
            self._place = list(zip(manager.blknos.tolist(), manager.blklocs.tolist(), strict=True))
        except AttributeError:
            self._blocks = [frame.iloc[:, index].array for index in range(self.width)]
            self._place = [(index, 0) for index in range(self.width)]

    @cached_property
    def names(self) -> list[Any]:
        names: list[Any] = self._columns.tolist()
        if len(set(names)) < len(names):
            twice = [str(name) for name in self._columns[self._columns.duplicated()]]
            raise _duplicates(", ".join(twice[:5]))
        return names

    @cached_property
    def plain(self) -> bool:  # type: ignore[override]
        return (
            all(isinstance(held, np.ndarray) for held in self._blocks)
            and len({held.dtype == bool for held in self._blocks}) < 2
        )

    @property
    def header(self) -> Any:
        return self._columns

    def has_header(self, header: Any) -> bool:
        # Of frames cut from one, 0.2 µs; to make a list of 50 names takes 6.
        return bool(self._columns.equals(header))

    def _held(self, index: int) -> Any:
        number, place = self._place[index]
        held = self._blocks[number]
        return held if held.ndim == 1 else held[place]

    def own_dtype(self, index: int) -> np.dtype[Any] | None:
        dtype = self._held(index).dtype
        if isinstance(dtype, np.dtype):
            return dtype if dtype.kind == "O" else None
        return np.dtype(getattr(dtype, "numpy_dtype", getattr(dtype, "subtype", object)))

    def holds_na(self, index: int) -> bool:
        held = self._held(index)
        return type(getattr(held.dtype, "na_value", None)).__name__ == "NAType" and bool(held.isna().any())

    def rejected_by(self, no_numbers: Sequence[str], index: int) -> str:
        dtype = self._held(index).dtype
        kind = f"pandas.{type(dtype).__name__}"
        return str(dtype) if kind in no_numbers or (f"{kind} with NA" in no_numbers and self.holds_na(index)) else ""

    def block(self) -> Array | None:
        dtypes = {values.dtype for values in self._blocks}
        kind = next(iter(dtypes)) if len(dtypes) == 1 else None
        return np.asarray(self._frame.to_numpy()) if isinstance(kind, np.dtype) and kind.kind in "fiu" else None

    def coded(self, index: int) -> tuple[Array, Array] | None:
        if self.rows < WORTH_CODES:
            return None
        held = self._held(index)
        kind = type(held.dtype).__name__
        if kind == "CategoricalDtype":
            return _of_categories(held)
        if kind == "StringDtype":
            return _coded(held.__arrow_array__, held.dtype.na_value)
        return encoded(held) if isinstance(held, np.ndarray) and held.dtype.kind == "O" else None

    def _series(self, index: int) -> Any:
        import narwhals.stable.v2 as nw

        return nw.from_native(self._frame[self.names[index]], series_only=True)

    def column(self, index: int) -> Array:
        number, place = self._place[index]
        held = self._blocks[number]
        if isinstance(held, np.ndarray):
            return held[place]  # type: ignore[no-any-return]
        held = held if held.ndim == 1 else held[place]
        kind = type(held.dtype).__name__
        if kind == "SparseDtype":
            raise InvalidInputError(
                found=f"a sparse column ({held.dtype})",
                expected="dense ones",
                where=f"X, column {self.names[index]!r}",
                advice="scikit-learn makes a sparse matrix of a frame of them: pass that, X.sparse.to_coo(), or X.sparse.to_dense().",
            )
        if kind == "DatetimeTZDtype":  # of which scikit-learn cannot make floats
            raise InvalidInputError(
                found=f"dates with a time zone ({held.dtype})",
                expected="numbers or strings",
                where=f"X, column {self.names[index]!r}",
                advice="Convert them to numbers first (for example days since a fixed date).",
            )
        if kind == "StringDtype":
            return _few_strings(held) if self.rows <= FEW_ROWS else np.asarray(held)
        if kind == "CategoricalDtype" and _is_text(held.categories.dtype):
            if self.rows <= FEW_CATEGORIES and min(held.codes.tolist(), default=0) >= 0:
                return np.fromiter(map(held.__getitem__, range(self.rows)), object, self.rows)
            return np.asarray(held)
        return np.asarray(held) if isinstance(held.dtype, np.dtype) else super().column(index)


def _is_text(dtype: Any) -> bool:
    """Whether pandas keeps strings so, or any objects."""
    return dtype.kind == "O" and (isinstance(dtype, np.dtype) or type(dtype).__name__ == "StringDtype")


def _few_strings(held: Any) -> Array:
    """A few strings of pandas: by its own way one takes 4 µs, and this way 1."""
    column = held.__arrow_array__() if type(held).__name__ == "ArrowStringArray" else None
    return np.asarray(held) if column is None or column.null_count else np.array(column.to_pylist(), object)


class PolarsTable(Table):
    """A polars.DataFrame: the same, and shorter for few rows, which are read row by row. Column by column a row of 50 takes 0.6 ms,
    and this way 0.03."""

    library = "polars"

    def block(self) -> Array | None:
        kinds = set(map(_numpy_dtype, self._frame.dtypes))
        kind = kinds.pop() if len(kinds) == 1 else None
        return None if kind is None or kind.kind not in "fiu" else np.asarray(self._frame.to_numpy())

    @cached_property
    def _few(self) -> list[Array | None]:
        """The columns, where nothing is missing; None for others."""
        rows = self._frame.rows() if self.rows else []
        columns = zip(*rows, strict=True) if rows else [()] * self.width
        return [
            None if dtype is None or None in values else np.array(values, dtype)
            for values, dtype in zip(columns, map(_numpy_dtype, self._frame.dtypes), strict=True)
        ]

    def coded(self, index: int) -> tuple[Array, Array] | None:
        if self.rows < WORTH_CODES:
            return None
        series = self._frame.to_series(index)
        known = series.dtype.base_type().__name__ in ("String", "Categorical", "Enum")
        return _coded(series.to_arrow, None) if known else None

    def rejected_by(self, no_numbers: Sequence[str], index: int) -> str:
        kind = str(self._frame.dtypes[index])
        return kind if f"polars.{kind}" in no_numbers else ""

    def _series(self, index: int) -> Any:
        import narwhals.stable.v2 as nw

        return nw.from_native(self._frame.to_series(index), series_only=True)

    def column(self, index: int) -> Array:
        few = self._few[index] if self.rows <= FEW_ROWS else None
        if few is not None:
            return few
        series = self._frame.to_series(index)
        dtype = _numpy_dtype(series.dtype)
        if dtype is None or (dtype.kind == "b" and series.null_count()):
            return super().column(index)
        return np.asarray(series.to_numpy())


class ArrowTable(Table):
    """A pyarrow.Table: the same by a shorter way. Through narwhals a column takes 20 µs, and this way 1."""

    library = "pyarrow"

    @cached_property
    def names(self) -> list[Any]:
        names: list[Any] = self._frame.column_names
        if len(set(names)) < len(names):
            raise _duplicates(", ".join(sorted({name for name in names if names.count(name) > 1})[:5]))
        return names

    @property
    def header(self) -> Any:
        return self._frame.schema

    def has_header(self, header: Any) -> bool:
        return bool(self._frame.schema.equals(header))  # of tables cut from one, 0.1 µs; to make a list of 50 names takes 20

    @cached_property
    def width(self) -> int:
        return int(self._frame.num_columns)

    def block(self) -> Array | None:
        kinds = set(self._frame.schema.types)
        plain = len(kinds) == 1 and str(kinds.pop()) in ARROW_NUMBERS
        return np.column_stack([self.column(index) for index in range(self.width)]) if plain else None

    def coded(self, index: int) -> tuple[Array, Array] | None:
        if self.rows < WORTH_CODES:
            return None
        column = self._frame.column(index)
        return _coded(lambda: column, None) if str(column.type) in ARROW_TEXTS else None

    def _series(self, index: int) -> Any:
        import narwhals.stable.v2 as nw

        return nw.from_native(self._frame.column(index), series_only=True)

    def rejected_by(self, no_numbers: Sequence[str], index: int) -> str:
        kind = str(self._frame.schema.types[index])
        return kind if f"pyarrow.{kind.partition('<')[0]}" in no_numbers else ""

    def column(self, index: int) -> Array:
        column = self._frame.column(index)
        kind = str(column.type)
        return np.asarray(column.to_numpy()) if kind in ARROW_NUMBERS or kind in ARROW_TEXTS else super().column(index)


ARROW_NUMBERS = {f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)} | {"halffloat", "float", "double"}
ARROW_TEXTS = {"string", "large_string"}


def _numpy_dtype(dtype: Any) -> Any:
    """The dtype that a polars column without missing values has in numpy; None where that is not said here."""
    return NUMPY.get(str(dtype))


NUMPY = {f"{kind}{bits}": np.dtype(f"{kind.lower()}{bits}") for kind in ("Int", "UInt") for bits in (8, 16, 32, 64)}
NUMPY |= {"Float32": np.dtype("f4"), "Float64": np.dtype("f8"), "Boolean": np.dtype("?"), "String": np.dtype("O")}

FEW_ROWS = 64
"""Rows up to which a frame of polars is read row by row: there, both ways take the same time."""
FEW_CATEGORIES = 16
"""Rows up to which a column of pandas' categories is read row by row, 1.5 µs each: its own way takes 10 to 35, narwhals 200."""
WORTH_CODES = 512
"""Rows from which on it takes less time to encode a column of strings than to look at them one by one: of few different ones a
quarter, of 1,000 different ones as much."""


def encoded(values: Array) -> tuple[Array, Array] | None:
    """Codes and values of a column of Python objects; None where most of them are different, or some have no hash. For 100 different
    ones of 100,000, what follows takes half the time, this included."""
    items = values.tolist()
    try:
        if len(set(items[:WORTH_CODES])) > WORTH_CODES // 2:
            return None
        places = {item: place for place, item in enumerate(set(items))}
    except TypeError:
        return None
    kinds = set(map(type, places))
    if not all(issubclass(kind, (str, float, type(None))) or kind.__name__ == "NAType" for kind in kinds):
        return None  # 1 and True are equal, but not the same
    known = np.empty(len(places), object)
    known[:] = list(places)
    found = operator.itemgetter(*items)(places)  # 12 ns an item; map and fromiter 27
    return np.frombuffer(bytes(found), np.uint8) if len(places) <= 256 else np.fromiter(found, np.int64, len(items)), known


def _of_categories(held: Any) -> tuple[Array, Array] | None:
    """Codes and values of a column of pandas' categories, where these are strings."""
    known, codes = np.asarray(held.categories, object), np.asarray(held.codes)
    if len(known) > len(codes) or not all(isinstance(value, str) for value in known.tolist()):
        return None
    missing = codes < 0
    if not missing.any():
        return codes, known
    values = np.empty(len(known) + 1, object)
    values[:-1], values[-1] = known, held.dtype.na_value
    return np.where(missing, len(known), codes.astype(np.int64)), values


def _coded(to_arrow: Callable[[], Any], missing: Any) -> tuple[Array, Array] | None:
    """Codes and values of a column of strings; what is missing becomes `missing`. To encode 20,000 strings takes 0.7 ms, and to make
    objects of them 0.8 and to look these up 2."""
    try:
        column = to_arrow()
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
    if series.dtype in (nw.Int128, nw.UInt128):
        advice = "Convert the column to Int64 or Float64."
        raise InvalidInputError(found=f"integers of 128 bits ({series.dtype})", expected="numbers", where=where, advice=advice)
    values: Array = np.asarray(series.to_numpy())
    if series.implementation.is_pyarrow() and str(series.to_native().type) == "null":
        return np.full(len(values), None, object)  # which is NaN to most, but not to all
    if values.dtype == object and series.dtype == nw.Boolean and series.implementation.is_pandas_like():
        missing = np.asarray(series.is_null().to_numpy(), bool)
        values = np.array([np.nan if gone else value for gone, value in zip(missing, values, strict=True)], np.float64)
    if series.implementation.is_pandas_like() and values.dtype.kind in "fiub":
        nullable = hasattr(series.to_native().dtype, "na_value")
        if nullable and series.dtype not in (nw.Categorical, nw.Unknown):
            values = values.astype(np.float64)  # check_array reads pandas' nullable dtypes as float64, float32 too
    if values.ndim != 1:
        raise InvalidInputError(found="lists", expected="numbers or strings", where=where)
    return values


SHORTER: dict[tuple[str, str], type[Table]] = {
    ("pandas", "DataFrame"): PandasTable,
    ("polars", "DataFrame"): PolarsTable,
    ("pyarrow", "Table"): ArrowTable,
}


def read_frame(X: Any) -> Table | Array | None:
    """A Table for a frame, the values of a series, None for anything else."""
    known = SHORTER.get((type(X).__module__.partition(".")[0], type(X).__name__))
    if known is not None:
        return known(X)
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
    if isinstance(X, np.ndarray) and X.dtype.kind in "fiu" and not (X.dtype.isnative and X.dtype.itemsize <= 8):
        advice = "The source library makes a frame of that dtype, or rejects it: X.astype(float)."
        raise InvalidInputError(found=f"the dtype {X.dtype.str}", expected="numpy's usual dtypes", advice=advice)
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
