"""From what callers pass (arrays, lists, frames, sparse matrices, tensors) to the arrays of a graph's inputs.

Nothing here looks at values, only at shapes, names and dtypes; what values a model rejects is tested in runtime/limits.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NoReturn

import numpy as np

from hbc.errors import InvalidInputError
from hbc.ir.coded_strings import CodedStrings
from hbc.ir.signature import InputSpec, Kinds, Sample, input_layout
from hbc.ir.types import NUMPY_DTYPES, Array, DType
from hbc.runtime.containers import RESHAPE, open_input
from hbc.runtime.frames import WORTH_CODES, Table, encoded, read_frame
from hbc.runtime.items import read_items
from hbc.runtime.sparse import is_matrix, is_sparse
from hbc.runtime.values import coded_digits, converted, digits, floats, reject_dtype, reject_numbers, reject_strings, strings

MOST_CHOSEN = 256
"""Combinations of dtypes of a frame that are remembered."""


def variant_dtype(dtype: np.dtype[Any]) -> DType:
    """The dtype of the variant that takes an array: f32 for float16 and float32, f64, i64 for integers and bool, else str."""
    if dtype.kind == "f":
        return "f32" if dtype.itemsize <= 4 else "f64"
    return "i64" if dtype.kind in "iub" else "str"


def describe(X: Any) -> Sample:
    """Names and dtypes of a sample's columns. A column that can be neither number nor string counts as f64: it may be unread."""
    try:
        value = open_input(X, mixed=True)
        names = value.string_names() if isinstance(value, Table) else None
    except InvalidInputError as error:
        raise InvalidInputError(**{**error.facts, "where": "the sample X"}) from error
    if isinstance(value, Table):
        return Sample(names, tuple([_sample_dtype(value.column(i)) for i in range(value.width)]))
    if value.ndim == 1:
        return Sample(None, (_sample_dtype(value),))
    if value.ndim != 2:
        raise InvalidInputError(found=f"an array of shape {value.shape}", expected="rows × columns", where="the sample X")
    if value.dtype.kind == "O":
        return Sample(None, tuple(_sample_dtype(column) for column in value.T))
    return Sample(None, (_sample_dtype(value),) * value.shape[1])


def _sample_dtype(values: Array) -> DType:
    if values.dtype.kind in "UT" or any(isinstance(v, str) for v in values.ravel().tolist() if values.dtype.kind == "O"):
        return "str"
    if values.dtype.kind == "O" and len(values) and all(v is None for v in values.tolist()):
        return "str"
    return variant_dtype(values.dtype) if values.dtype.kind in "fiub" else "f64"


def prepare(X: Any, spec: InputSpec, variants: Sequence[Kinds]) -> tuple[Kinds, list[Array]]:
    """The variant for X, and its inputs. Raises InvalidInputError."""
    return Intake(spec, variants)(X)


class Intake:
    """Everything about a model's input that can be known before the first call."""

    def __init__(self, spec: InputSpec, variants: Sequence[Kinds]) -> None:
        self.spec = spec
        self.variants = tuple(variants)
        kinds = [{variant[i] for variant in self.variants} for i in range(spec.n_features)]
        self.texts = [i for i, found in enumerate(kinds) if "str" in found]
        self.numbers = [i for i, found in enumerate(kinds) if found - {"str", "unread"}]
        self._arrays, self._frames = spec.arrays, spec.frames
        self._by_name = spec.frames.by_name
        self._own_dtype = spec.having("integer_bits")
        self._integer_bits = [column.integer_bits for column in spec.columns]
        self._signed = [column.signed for column in spec.columns]
        self._functions = spec.having("function_bits")
        self._beside_numbers = spec.having("beside_numbers")
        self._frames_as_f64 = spec.having("frames_as_f64")
        self._objects_stay = frozenset(spec.having("objects_stay"))
        self._returned = frozenset(spec.having("returned"))
        self._objects_only = spec.having("objects_only")
        self._none_apart = frozenset(spec.having("none_apart"))
        self._texts_only = frozenset(spec.having("texts_only"))
        self._digits = frozenset(spec.having("digits"))
        self._in_order = range(spec.n_features)
        self._chosen: dict[tuple[bool | np.dtype[Any], ...], Kinds] = {}
        """The variants of frames that came before and need no conversion, by whether they are of pandas, and the dtypes of `numbers`: of
        40 columns, to look it up takes 2 µs, to find it 25."""
        self.uniform: dict[DType, Kinds] = {}
        for variant in self.variants:
            dtypes = set(variant) - {"str", "unread"}
            for dtype in dtypes or NUMPY_DTYPES:
                if len(dtypes) <= 1:
                    self.uniform.setdefault(dtype, variant)  # type: ignore[arg-type]
        self._seen: tuple[type[Table] | None, Any, Sequence[int]] = (None, None, ())
        """The frame's columns that came last, and their positions."""
        self._layouts = {variant: self._layout(variant) for variant in self.variants}

    def _layout(self, kinds: Kinds) -> list[tuple[np.dtype[Any], list[int] | None, tuple[int, ...]]]:
        """Of every graph input: its dtype, the columns to pick from a matrix (None: the matrix itself), and all its columns."""
        groups = input_layout(kinds).values()
        everything = tuple(range(self.spec.n_features))
        return [(NUMPY_DTYPES[kinds[g[0]]], None if g == everything else list(g), g) for g in groups]

    def __call__(self, X: Any) -> tuple[Kinds, list[Array]]:
        if self.spec.items:
            items = read_items(X, self.spec.items)
            return self.variants[0], [strings(items, "X") if self.spec.items == "documents" else items]
        if is_sparse(X):
            X = self._dense(X)
        value = open_input(X, mixed=bool(self.texts), vector=self.spec.ndim == 1)
        if isinstance(value, Table):
            return self._from_table(value)
        return self._from_array(value, X)

    def _dense(self, X: Any) -> Array:
        """A sparse matrix as the source takes it."""
        sparse = self.spec.sparse
        if not sparse.accepted:
            reject_sparse(X)
        if self._frames.by_column and X.format in ("coo", "dia", "bsr"):
            advice = "scikit-learn cannot pick its columns: X.tocsr()."
            raise InvalidInputError(found=f"a sparse matrix in the format {X.format}", expected="CSR or CSC", advice=advice)
        if sparse.csr_if_named and self.spec.feature_names and not (X.format == "csr" and is_matrix(X)):
            advice = "The source library misses the names of the columns in others: scipy.sparse.csr_matrix(X)."
            raise InvalidInputError(found=f"a sparse matrix ({type(X).__name__})", expected="csr_matrix", advice=advice)
        if sparse.matrices_only and not is_matrix(X):
            advice = "The source library takes scipy's older classes only: scipy.sparse.csr_matrix(X)."
            raise InvalidInputError(found=f"a {type(X).__name__}", expected="a sparse matrix", advice=advice)
        if sparse.floats_only and X.dtype not in (np.float32, np.float64):
            advice = "The source library rejects other sparse matrices: X.astype(numpy.float64)."
            raise InvalidInputError(found=f"a sparse matrix of {X.dtype}", expected="float32 or float64", advice=advice)
        if not sparse.absent_is_missing or X.ndim != 2:
            dense = np.asarray(X.toarray())
            if not sparse.nan and dense.dtype.kind == "f" and np.isnan(dense).any():
                advice = "scikit-learn's trees take missing values in dense matrices only: pass X.toarray()."
                raise InvalidInputError(found="NaN in a sparse matrix", expected="values", advice=advice)
            return dense
        entries = X.tocsr().tocoo()  # tocsr adds up entries of one place
        dense = np.full(X.shape, np.nan, np.result_type(X.dtype, np.float32))
        dense[entries.row, entries.col] = entries.data
        return dense

    # --- arrays --------------------------------------------------------------------------------------------------------

    def _from_array(self, array: Array, X: Any) -> tuple[Kinds, list[Array]]:
        array = self._shaped(array, X)
        if self._frames.required:
            raise InvalidInputError(
                found=_found(array, X),
                expected="a frame, since the model picks its columns by name",
                advice="Pass pandas.DataFrame(X, columns=model.feature_names_in_).",
            )
        if (self.spec.own_dtype or self._returned) and isinstance(X, (list, tuple)) and self._frames.by_column:
            advice = "scikit-learn makes Python objects of it, which come out again: numpy.asarray(X)."
            raise InvalidInputError(found=f"a {type(X).__name__}", expected="an array or a frame", advice=advice)
        if array.dtype.kind in "fiub":
            return self._from_numbers(array)
        if array.dtype.kind not in "OUT":
            reject_dtype(array.dtype, "X")
        if not self._arrays.fixed_width and (np.asarray(X) if isinstance(X, (list, tuple)) else array).dtype.kind in "UT":
            advice = "The source library takes strings as Python objects: numpy.array(X, dtype=object)."
            raise InvalidInputError(found="strings of a fixed width", expected="Python objects", advice=advice)
        for i in self._functions:
            self._require_as_float(i, array.dtype)
        columns: dict[int, Array] = {}
        matrix = array.reshape(-1, 1) if self.spec.ndim == 1 else array
        if self.numbers and array.dtype.kind != "O":
            reject_strings(self._where(self.numbers[0]), matrix[0, self.numbers[0]] if len(matrix) else "")
        texts = self._texts(lambda i: encoded(matrix[:, i])) if array.ndim == 2 and len(matrix) >= WORTH_CODES else None
        for i in self.texts if texts is None else ():
            columns[i] = self._strings(i, matrix[:, i])
        for i in self.numbers:
            columns[i] = self._floats(i, matrix[:, i])
        kinds = self.uniform["f64"]
        return kinds, self._assembled(kinds, columns, len(matrix), texts)

    def _from_numbers(self, array: Array) -> tuple[Kinds, list[Array]]:
        if self.texts and array.dtype.kind in "iub" and self._digits.issuperset(self.texts):
            kinds = self.uniform[self._kind(array.dtype)]
            columns = {i: self._strings(i, array[:, i]) for i in self.texts} | {i: array[:, i] for i in self.numbers}
            return kinds, self._assembled(kinds, columns, len(array))
        if self.texts:
            found = f"numbers ({array.dtype})"
            raise InvalidInputError(
                found=found,
                expected="strings",
                where=self._where(self.texts[0]),
                advice="The model was fitted on strings there.",
            )
        if not array.dtype.isnative or array.dtype.itemsize > 8:
            array = self._native(array)
        for i in self._own_dtype:
            self._require_width(i, array.dtype)
        for i in self._objects_only:
            self._require_objects(i, array.dtype)
        kinds = self.uniform[self._kind(array.dtype)]
        arrays = []
        for dtype, pick, _ in self._layouts[kinds]:
            block = array if pick is None or array.ndim == 1 else array[:, pick]
            if block.dtype != dtype:
                block = converted(block, dtype)
            arrays.append(_aligned(np.ascontiguousarray(block)))
        return kinds, arrays

    def _native(self, array: Array) -> Array:
        """Numbers of the other byte order, or of more than 64 bits, as the source reads them: where it looks for float32 and float64, it
        finds neither in them, and makes float64 of them."""
        widened = [i in self._frames_as_f64 for i in self.numbers]
        single, computed = array.dtype.itemsize <= 4, bool(self._own_dtype) and not self.spec.own_dtype
        native = array.astype(np.float32 if single and not any(widened) else np.float64) if array.dtype.kind == "f" else array
        exact = native is array or all(widened) or (not computed if single else np.array_equal(native, array, equal_nan=True))
        if not exact or self._arrays.plain_floats:
            advice = "The source library does not read them as the numbers that they are, or computes in them: X.astype(float)."
            raise InvalidInputError(found=f"the dtype {array.dtype.str}", expected="numpy's usual dtypes", advice=advice)
        return native

    def _shaped(self, array: Array, X: Any) -> Array:
        """The array with the dimensions of the model's input, or an error that says what to do."""
        n = self.spec.n_features
        if self.spec.ndim == 1:
            if array.ndim == 2 and array.shape[1] == 1:
                return array[:, 0]  # scikit-learn's column_or_1d
            if array.ndim != 1:
                raise InvalidInputError(found=_found(array, X), expected="a vector with a value for every row")
            return array
        expected = f"a matrix with a row for every sample and {_columns(n)}"
        if array.ndim != 2:
            advice = RESHAPE if array.ndim == 1 else "Reshape it: X.reshape(len(X), -1)."
            raise InvalidInputError(found=_found(array, X), expected=expected, advice=advice)
        if array.shape[1] != n:
            raise InvalidInputError(found=_columns(array.shape[1]), expected=_columns(n), advice=self._fitted_on())
        return array

    def _strings(self, column: int, values: Array) -> Array:
        if values.dtype.kind == "f" and column in self._texts_only:
            reject_numbers(values.dtype, self._where(column))
        return strings(digits(values) if column in self._digits else values, self._places[column])

    def _floats(self, column: int, values: Array) -> Array:
        items = values.tolist() if values.dtype.kind == "O" else []
        if column in self._none_apart and None in items:
            advice = "The source library tells None from NaN there, for which the model was fitted. Convert the column: X.astype(float)."
            raise InvalidInputError(found="None", expected="numbers or NaN", where=self._where(column), advice=advice)
        texts = column in self._objects_stay and any(isinstance(item, str) for item in items)
        if items and (texts or column in self._returned or self.spec.own_dtype):
            advice = "The source library does not make numbers of Python objects there. Convert the column: X.astype(float)."
            raise InvalidInputError(
                found="Python objects", expected="numbers of numpy's dtypes", where=self._where(column), advice=advice
            )
        return floats(values, self._where(column))

    def _require_width(self, column: int, dtype: np.dtype[Any]) -> None:
        bits = 32 if dtype.kind == "f" else self._integer_bits[column]
        unsigned = dtype.kind == "u" and (bits == 64 or self._signed[column])
        if dtype.itemsize * 8 < bits or (dtype.kind == "b" and bits > 1) or unsigned:
            wide = "float32 or float64" if dtype.kind == "f" else "int64, float32 or float64"
            advice = (
                "The source library rejects that dtype there, or computes in another one than hbc, with its rounding and overflow: "
                "cast the column."
            )
            raise InvalidInputError(found=f"{dtype}", expected=wide, where=self._where(column), advice=advice)

    def _require_objects(self, column: int, dtype: np.dtype[Any]) -> None:
        if dtype.kind in "iuf":
            advice = (
                "The source library was fitted on Python objects there, which it cannot compare with others: X.astype(object)."
            )
            raise InvalidInputError(found=f"{dtype}", expected="Python objects", where=self._where(column), advice=advice)

    def _require_as_float(self, column: int, dtype: np.dtype[Any]) -> None:
        """Raise InvalidInputError for Python objects or a dtype of pandas' own on which a function does not give what it gives of
        float64."""
        fits = dtype.itemsize * 8 >= self.spec.columns[column].function_bits if dtype.kind in "iu" else dtype == np.float64
        if not fits:
            found = "Python objects" if dtype.kind == "O" else f"a dtype of pandas' own, of {dtype}"
            advice = "The source library's function computes in that dtype, or rejects it: cast the column, X.astype(float)."
            raise InvalidInputError(found=found, expected="numbers of numpy's dtypes", where=self._where(column), advice=advice)

    # --- frames --------------------------------------------------------------------------------------------------------

    def _from_table(self, table: Table) -> tuple[Kinds, list[Array]]:
        if self.spec.ndim == 1:
            if table.width != 1:
                raise InvalidInputError(found=f"a frame with {_columns(table.width)}", expected="a vector")
            return self._from_array(table.column(0), None)
        frames = self._frames
        if frames.libraries and table.library not in frames.libraries:
            advice = "The source library fails for others, or computes something else of them: X.to_pandas()."
            expected = f"a frame of {' or '.join(frames.libraries)}"
            raise InvalidInputError(found=f"a frame of {table.library}", expected=expected, advice=advice)
        place = self.positions(table)
        for i in self.numbers if frames.no_numbers else ():
            if rejected := table.rejected_by(frames.no_numbers, place[i]):
                advice = "The source library does not take numbers from such a column: X.astype(float)."
                raise InvalidInputError(found=f"the dtype {rejected}", expected="numbers", where=self._where(i), advice=advice)
        for i in self._beside_numbers if table.pandas else ():
            if place[i] >= 0 and (narrow := table.column(place[i]).dtype).itemsize < 8:
                advice = "Beside a number, numpy makes float64 or int64 of a frame of pandas: cast the column, X.astype(float)."
                raise InvalidInputError(found=f"{narrow}", expected="numbers of 64 bits", where=self._where(i), advice=advice)
        if place is self._in_order and not self.texts and len(self.numbers) == len(place) == table.width:
            block = table.block()
            if block is not None:
                wide = self._widens(block.dtype) or (
                    block.dtype == np.float32 and not table.pandas and bool(self._frames_as_f64)
                )
                return self._from_numbers(block.astype(np.float64) if wide else _plain(block))
        if frames.stacked:
            self._require_stackable(table, place)
        for i in self._functions:
            if place[i] >= 0 and (dtype := table.own_dtype(place[i])) is not None:
                self._require_as_float(i, dtype)
        columns: dict[int, Array] = {}
        dates: dict[int, Array] = {}
        texts = self._texts(lambda i: self._coded(table, i, place[i]))
        for i in self.texts if texts is None else ():
            columns[i] = self._strings(i, self._column(table, i, place[i]))
        for i in self.numbers:
            columns[i] = table.column(place[i])
        for i in self._objects_only:
            self._require_objects(i, columns[i].dtype)
        kinds = self._chosen.get((table.pandas, *[columns[i].dtype for i in self.numbers]))
        if kinds is None:
            self._require_no_na(table, place, columns)
            for i in self.numbers:
                values = columns[i]
                if values.dtype.kind in "mM":
                    dates[i], columns[i] = values, values.astype(np.float64)
                elif values.dtype.kind not in "fiub":
                    columns[i] = self._floats(i, values)
            self._require_dates(dates)
            kinds = self._variant(columns, table.pandas)
        return kinds, self._assembled(kinds, columns, table.rows, texts)

    def _variant(self, columns: dict[int, Array], pandas: bool) -> Kinds:
        """The variant for a frame's numbers, which are widened where the source does so before it looks at their dtypes."""
        given = tuple([columns[i].dtype for i in self.numbers])
        for i in self.numbers:
            _plain(columns[i])
        for i in () if pandas else self._frames_as_f64:
            if i in columns and columns[i].dtype == np.float32:
                columns[i] = columns[i].astype(np.float64)
        for i in self._own_dtype:
            if i in columns:
                self._require_width(i, columns[i].dtype)
        dtypes = tuple([columns[i].dtype for i in self.numbers])
        kinds = self._choose(dict(zip(self.numbers, dtypes, strict=True)))
        if dtypes == given and len(self._chosen) < MOST_CHOSEN:
            self._chosen[(pandas, *dtypes)] = kinds
        return kinds

    def _require_stackable(self, table: Table, place: Sequence[int]) -> None:
        """Raise InvalidInputError for columns that the source does not stack as they are, or makes Python objects of."""
        if table.plain:
            return
        for group in self._frames.stacked:
            columns = [i for i in group if place[i] >= 0 and i in self.numbers]
            own = [dtype for i in columns if (dtype := table.own_dtype(place[i])) is not None and dtype.kind != "O"]
            for i in columns:
                if own and table.holds_na(place[i]):
                    advice = "scikit-learn does not stack columns that hold it: X.astype(float)."
                    raise InvalidInputError(found="pandas.NA", expected="numbers or NaN", where=self._where(i), advice=advice)
            mixed = len(own) > 0 or len({table.column(place[i]).dtype.kind == "b" for i in columns}) > 1
            computed = any(i in self._functions for i in columns)
            objects = len(columns) > 1 and mixed and (computed or not self._returned.isdisjoint(columns))
            if objects or (len(columns) == 1 and own and own[0].itemsize < 8):
                advice = (
                    "The source library stacks them as they are, which gives Python objects or the narrower dtype: cast the columns, "
                    "X.astype(float)."
                )
                found = f"dtypes of pandas' own ({own[0]})" if own else "bool beside numbers"
                raise InvalidInputError(found=found, expected="numpy's dtypes", where=self._where(columns[0]), advice=advice)

    def _require_no_na(self, table: Table, place: Sequence[int], columns: Mapping[int, Array]) -> None:
        """Raise InvalidInputError for pandas.NA in a column beside one of Python objects, where the source makes objects of both."""
        stay = [i for i in self.numbers if i in self._objects_stay]
        if not any(columns[i].dtype.kind == "O" for i in stay):
            return
        for i in stay:
            if table.holds_na(place[i]):
                advice = "The source library makes Python objects of both columns: X.astype(float)."
                raise InvalidInputError(found="pandas.NA beside objects", expected="NaN", where=self._where(i), advice=advice)

    def _require_dates(self, dates: Mapping[int, Array]) -> None:
        """Raise InvalidInputError for dates that the source does not take for numbers."""
        for i, values in dates.items():
            groups = [group for group in self._frames.dates if i in group]
            stays = i in self._objects_stay or any(i in group for group in self._frames.stacked)
            alike = all(j in dates and dates[j].dtype == values.dtype for group in groups for j in group)
            if stays or not groups or not alike:
                reject_dtype(values.dtype, self._where(i))

    def _texts(self, coded: Callable[[int], tuple[Array, Array] | None]) -> CodedStrings | None:
        """The columns of strings as codes, where all of them come so. (What is no string is None here, and rejected with its row.)"""
        codes, values = [], []
        for i in self.texts:
            column = coded(i)
            if column is None:
                return None
            codes.append(column[0])
            try:
                values.append(self._strings(i, column[1]))
            except InvalidInputError:
                return None
        return CodedStrings(tuple(codes), tuple(values)) if codes else None

    def _coded(self, table: Table, column: int, place: int) -> tuple[Array, Array] | None:
        found = table.coded(place)
        return coded_digits(self._column(table, column, place)) if found is None and column in self._digits else found

    def _column(self, table: Table, column: int, place: int) -> Array:
        values = table.column(place)
        whole = table.whole_numbers(place) if column in self._digits and values.dtype.kind == "f" else None
        return values if whole is None else whole

    def _choose(self, dtypes: Mapping[int, np.dtype[Any]]) -> Kinds:
        """The variant for numeric columns of these dtypes."""
        found = {i: "f64" if self._widens(dtype) else variant_dtype(dtype) for i, dtype in dtypes.items()}
        for variant in () if self._arrays.narrow_as_f32 else self.variants:
            if all(variant[i] in (kind, "unread") for i, kind in found.items()):
                return variant
        if not self._frames.by_column:
            common = np.result_type(*dtypes.values())
            mixed = "b" in {dtype.kind for dtype in dtypes.values()} and common.kind != "b"  # an array of objects, in pandas
            return self.uniform["f64" if self._widens(common) else variant_dtype(common) if mixed else self._kind(common)]
        if "f32" not in found.values() and not self._frames.apart:
            return self.uniform["f64"]
        first = "f32" if "f32" in found.values() else "i64"
        single = [self.spec.describe_column(i) for i, kind in found.items() if kind == first]
        others = [self.spec.describe_column(i) for i, kind in found.items() if kind != first]
        raise InvalidInputError(
            found=f"{NUMPY_DTYPES[first]} in {_listed(single)} beside other numbers in {_listed(others)}",
            expected="numbers of one float dtype, since the source library treats columns of different dtypes differently here",
            advice="Pass such a frame as the sample, hbc.convert(model, backend, X), or cast the columns to one dtype.",
        )

    def _kind(self, dtype: np.dtype[Any]) -> DType:
        """The dtype of the variant for an array of this dtype."""
        narrow = self._arrays.narrow_as_f32 and dtype.kind in "biu" and dtype.itemsize <= 2
        return "f32" if narrow else variant_dtype(dtype)

    def _widens(self, dtype: np.dtype[Any]) -> bool:
        """Whether the source takes a frame's numbers of this dtype for float64, but an array's for something else."""
        return self._frames.integers_as_f64 and dtype.kind in "iub"

    def positions(self, table: Table) -> Sequence[int]:
        """For every column of the model its position in the frame, as scikit-learn finds it; -1 for an unread one that is missing."""
        kind, header, place = self._seen
        if kind is type(table) and table.has_header(header):
            return place
        place = self._positions(table)
        self._seen = type(table), table.header, place
        return place

    def _positions(self, table: Table) -> Sequence[int]:
        fitted, n = self.spec.feature_names, self.spec.n_features
        if fitted is not None and tuple(table.names) == fitted:
            return self._in_order
        names = table.string_names()
        if fitted is None or (names is None and not self._by_name):
            if len(table.names) != n:
                raise InvalidInputError(found=_columns(len(table.names)), expected=_columns(n), advice=self._fitted_on())
            return self._in_order
        known = set(names or ())
        missing = [name for name in fitted if name not in known]
        if self._by_name:
            read = {fitted[i] for i in (*self.texts, *self.numbers)}
            missing = [name for name in missing if name in read]
            if missing:
                raise InvalidInputError(
                    found=f"a frame without the columns {_listed(missing)}",
                    expected=f"the fitted columns {_listed(sorted(read))}",
                    advice="Add them, or rename the columns that hold them.",
                )
            place = {name: i for i, name in enumerate(names or ())}
            return [place.get(name, -1) for name in fitted]
        unexpected = [name for name in names or () if name not in set(fitted)]
        found = []
        if unexpected:
            found.append(f"feature names unseen at fit time: {_listed(unexpected)}")
        if missing:
            found.append(f"feature names seen at fit time, yet now missing: {_listed(missing)}")
        raise InvalidInputError(
            found=" and ".join(found) or "the feature names in another order than they were in fit",
            expected=f"the names {_listed(fitted)}, in this order",
            advice="Select them in that order: X[list(model.feature_names_in_)].",
        )

    # --- both ----------------------------------------------------------------------------------------------------------

    def _assembled(self, kinds: Kinds, columns: Mapping[int, Array], rows: int, texts: CodedStrings | None = None) -> list[Any]:
        arrays: list[Any] = []
        for dtype, _, group in self._layouts[kinds]:
            if texts is not None and dtype.kind == "O":
                arrays.append(texts.select([self.texts.index(i) for i in group]))
                continue
            if self.spec.ndim == 1:
                arrays.append(np.ascontiguousarray(converted(columns[group[0]], dtype)))
                continue
            given = [columns[i] for i in group]
            if rows == 1 and not any(column.dtype.kind == "u" for column in given):  # which may be too large
                with np.errstate(all="ignore"):  # all at once: 50 columns, of which 20 change, in 20 instead of 31 µs
                    arrays.append(np.concatenate(given, dtype=dtype, casting="unsafe")[None])
                continue
            values = [column if column.dtype == dtype else converted(column, dtype) for column in given]
            block = np.empty((rows, len(group)), dtype)
            for j, column in enumerate(values):
                block[:, j] = column
            arrays.append(block)
        return arrays

    def _fitted_on(self) -> str:
        names = self.spec.feature_names
        return f"Pass the columns that the model was fitted on{'' if names is None else f', {_listed(names)}'}, in their order."

    @cached_property
    def _places(self) -> list[str]:
        """What every column is called in an error. To write 50 of them takes 20 µs."""
        return [self._where(i) for i in range(self.spec.n_features)]

    def _where(self, column: int) -> str:
        return "X" if self.spec.ndim == 1 else f"X, {self.spec.describe_column(column)}"


def reject_sparse(X: Any) -> NoReturn:
    advice = (
        "The source library rejects sparse matrices here, takes what they leave out for missing values (XGBoost behind another "
        "estimator), or rounds them otherwise than dense ones in front of a decision (x · (1/scale) for x / scale before a "
        "tree), which hbc does not follow: pass X.toarray() if zeros are meant."
    )
    raise InvalidInputError(found=f"a sparse matrix ({type(X).__name__})", expected="a dense one", advice=advice)


def as_given(found: Any, X: Any, spec: InputSpec, positions: Callable[[Table], Sequence[int]]) -> Any:
    """A result of X's own numbers in X's own dtype: that of an array, list or sparse matrix, or the common one of a frame's columns
    (`own_dtype`)."""
    dtype = np.asarray(X).dtype if isinstance(X, (list, tuple)) else getattr(X, "dtype", None)
    if dtype is None and isinstance(table := read_frame(X), Table):
        stacked, place = {i for group in spec.frames.stacked for i in group}, positions(table)
        own = {i: table.own_dtype(place[i]) for i in spec.own_dtype or ()}
        kinds = {i: (own[i] if i in stacked else None) or table.column(place[i]).dtype for i in own}
        dtype = np.result_type(*kinds.values())
        others = {own[i] for i in own.keys() - stacked} - {None}
        if others and (others != {np.dtype(object)} or any(kind.kind == "b" for kind in kinds.values())):
            dtype = np.dtype(np.float64)  # check_array reads all columns so, of nullable dtypes, and of bool beside categories
    if not isinstance(dtype, np.dtype) or dtype.kind not in "fiub" or dtype == found.dtype:
        return found
    return found.astype(dtype.newbyteorder("=") if spec.arrays.native_order else dtype)


def _aligned(array: Array) -> Array:
    return array if array.flags.aligned else array.copy()


def _found(array: Array, X: Any) -> str:
    name = {1: "a vector", 2: "a matrix"}.get(array.ndim, "an array")
    return f"{name} of shape {array.shape}" + (
        "" if X is None or isinstance(X, np.ndarray) else f" (from a {type(X).__name__})"
    )


def _plain(column: Array) -> Array:
    """A frame's numbers, if they are of the dtypes that frames usually have."""
    if not column.dtype.isnative or column.dtype.itemsize > 8:
        advice = "scikit-learn computes in it: X.astype(float)."
        raise InvalidInputError(
            found=f"a frame of the dtype {column.dtype.str}", expected="numpy's usual dtypes", advice=advice
        )
    return column


def _columns(n: int) -> str:
    return "1 column" if n == 1 else f"{n} columns"


def _listed(names: Sequence[str]) -> str:
    """At most five names, as scikit-learn's messages have it."""
    return ", ".join(map(str, names[:5])) + (f", … ({len(names)} in all)" if len(names) > 5 else "")
