"""The columns of a model's input: the facts that are known before the first call, tests of one column, and the arrays made from columns."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from hbc.errors import InvalidInputError
from hbc.ir.coded_strings import CodedStrings
from hbc.ir.later import Later
from hbc.ir.signature import InputSpec, Kinds, input_layout
from hbc.ir.types import NUMPY_DTYPES, Array, DType
from hbc.lazy import cached_property
from hbc.runtime.input.frame_view import FrameView, duplicates
from hbc.runtime.input.places import Places
from hbc.runtime.input.values import beyond_exact, converted, decimals, digits, floats, reject_numbers, rounded_twice, strings


def variant_dtype(dtype: np.dtype[Any]) -> DType:
    """The dtype of the variant that takes an array: f32 for float16 and float32, f64, i64 for integers and bool, else str."""
    if dtype.kind == "f":
        return "f32" if dtype.itemsize <= 4 else "f64"
    return "i64" if dtype.kind in "iub" else "str"


class KnownColumns:
    """The facts about a model's columns that are known before the first call. `texts` and `numbers` are the columns that hold strings and
    numbers. The other lists and sets hold the columns for which a field of signature.Column is not neutral."""

    def __init__(self, spec: InputSpec, variants: Sequence[Kinds]) -> None:
        self.spec = spec
        self.variants = tuple(variants)
        kinds = [{variant[i] for variant in self.variants} for i in range(spec.n_features)]
        self.texts = [i for i, found in enumerate(kinds) if "str" in found]
        self.numbers = [i for i, found in enumerate(kinds) if found - {"str", "unread"}]
        self.own_dtype = spec.having("integer_bits")
        self.integer_bits = [column.integer_bits for column in spec.columns]
        self.signed = [column.signed for column in spec.columns]
        self.unsigned = [column.unsigned for column in spec.columns]
        needs = {(self.integer_bits[i], self.signed[i], self.unsigned[i]): i for i in reversed(self.own_dtype)}
        self.distinct_widths = sorted(needs.values())
        """One column for each different requirement on integers. It is enough
        to test these for an array, since its columns have one dtype."""
        self.at_once = spec.having("f32_at_once")
        self.between = spec.having("f64_between")
        self.functions = spec.having("function_bits")
        self.rounding = [i for i in self.functions if self.integer_bits[i] and i in self.numbers]
        """The columns with which a function computes whose result has the dtype of the column, rounded."""
        self.beside_numbers = spec.having("beside_numbers")
        self.frames_as_f64 = spec.having("frames_as_f64")
        self.objects_stay = frozenset(spec.having("objects_stay"))
        self.returned = frozenset(spec.having("returned"))
        self.objects_only = spec.having("objects_only")
        self.none_apart = frozenset(spec.having("none_apart"))
        self.texts_only = frozenset(spec.having("texts_only"))
        self.categories_only = spec.having("categories_only")
        self.category_values = [i for i in spec.having("category_values") if not spec.columns[i].strings]
        self.known_strings = {
            i: frozenset(c.category_values) for i, c in enumerate(spec.columns) if c.strings and c.category_values
        }
        self.categorical = bool(self.category_values or self.categories_only)
        """Whether a record holds categories of pandas in some column, which pandas would not make of it."""
        self.places = {i: Places(spec.columns[i]) for i in self.category_values}
        self.digits = frozenset(spec.having("digits"))
        self.in_order = range(spec.n_features)
        self.uniform: dict[DType, Kinds] = {}
        """The variant for numbers of one dtype."""
        for variant in self.variants:
            dtypes = set(variant) - {"str", "unread"}
            for dtype in dtypes or NUMPY_DTYPES:
                if len(dtypes) <= 1:
                    self.uniform.setdefault(dtype, variant)  # type: ignore[arg-type]
        self.layouts = {variant: self.layout(variant) for variant in self.variants}

    def layout(self, kinds: Kinds) -> list[tuple[np.dtype[Any], list[int] | None, tuple[int, ...]]]:
        """For each graph input: its dtype, the columns to pick from a matrix (None: the matrix itself), and all its columns."""
        groups = input_layout(kinds).values()
        everything = tuple(range(self.spec.n_features))
        return [(NUMPY_DTYPES[kinds[g[0]]], None if g == everything else list(g), g) for g in groups]

    def strings(self, column: int, values: Array) -> Array:
        """The strings of one column. Raises InvalidInputError for numbers, and for other values that are no strings."""
        if values.dtype.kind == "f" and column in self.texts_only:
            reject_numbers(values.dtype, self.where(column))
        numbers_unknown = self.spec.columns[column].numbers_unknown
        return strings(digits(values) if column in self.digits else values, self.titles[column], numbers_unknown)

    def floats(self, column: int, values: Array, converted: bool = True) -> Array:
        """The float64 of a column of Python objects. Raises InvalidInputError for objects that the source does not convert. `converted`:
        they come in an array or a frame of pandas, of which scikit-learn makes numbers where it would take any dtype."""
        items = values.tolist() if values.dtype.kind == "O" else []
        if any(isinstance(item, str) for item in items):
            self.require_meant(column)
        if not converted and any(isinstance(item, (str, bytes, *decimals())) for item in items):
            advice = (
                "scikit-learn makes numbers of them in an array of Python objects or a frame of pandas only: X.astype(float)."
            )
            raise InvalidInputError(
                found="strings or Decimal", expected="numbers of numpy's dtypes", where=self.where(column), advice=advice
            )
        if column in self.none_apart and any(item is None for item in items):
            advice = "The source library tells None from NaN there, for which the model was fitted. Convert the column: X.astype(float)."
            raise InvalidInputError(found="None", expected="numbers or NaN", where=self.where(column), advice=advice)
        if column in self.objects_stay and any(map(_is_large, items)):
            raise InvalidInputError(
                found="a number of 2**53 or more among Python objects",
                expected="numbers of numpy's dtypes",
                where=self.where(column),
                advice="The source library compares Python's integers with its categories one by one: X.astype('int64').",
            )
        if column in self.objects_stay and any(isinstance(item, decimals()) and not _is_float(item) for item in items):
            raise InvalidInputError(
                found="a Decimal that float64 does not hold",
                expected="numbers of numpy's dtypes",
                where=self.where(column),
                advice="The source library keeps Decimals, and compares them with its categories as such: X.astype(float).",
            )
        texts = column in self.objects_stay and any(isinstance(item, str) for item in items)
        if items and (texts or column in self.returned or self.spec.own_dtype):
            reason = (
                "The source library does not make numbers of Python objects there."
                if texts
                else "A result of the source library holds these objects as they are, where hbc has numbers."
            )
            advice = f"{reason} Convert the column: X.astype(float)."
            raise InvalidInputError(
                found="Python objects", expected="numbers of numpy's dtypes", where=self.where(column), advice=advice
            )
        return floats(values, self.where(column))

    def require_meant(self, column: int) -> None:
        """Raise InvalidInputError for strings in a column that the source returns as it is. Nothing in such a model says that it was
        fitted on strings: without a sample, it is converted for numbers."""
        if column in self.returned or self.spec.own_dtype:
            advice = "If the model is meant for strings, pass X to hbc.convert too, as the sample: hbc.convert(model, X=X)."
            raise InvalidInputError(found="strings", expected="numbers", where=self.where(column), advice=advice)

    def require_width(self, column: int, dtype: np.dtype[Any]) -> None:
        """Raise InvalidInputError for a dtype that the source computes differently from float32, float64 or int64."""
        bits = 32 if dtype.kind == "f" else self.integer_bits[column]
        only_unsigned = self.unsigned[column]
        wrong_sign = only_unsigned if dtype == np.int64 else dtype.kind == "u" and (bits == 64 or self.signed[column])
        if dtype.itemsize * 8 < bits or (dtype.kind == "b" and bits > 1) or wrong_sign:
            self._reject_dtype(column, dtype, "" if dtype.kind == "f" else "uint64, " if only_unsigned else "int64, ")

    def require_no_bool(self, column: int, *dtypes: np.dtype[Any]) -> None:
        """Raise InvalidInputError if all columns of a group, of which `column` is the first, are of bool (Frames.no_bool_alone)."""
        if dtypes and all(dtype.kind == "b" for dtype in dtypes):
            self._reject_dtype(column, dtypes[0], "int64, ")

    def _reject_dtype(self, column: int, dtype: np.dtype[Any], integers: str) -> NoReturn:
        advice = (
            "The source library rejects that dtype there, or computes in another one than hbc, with its rounding and overflow: "
            "cast the column."
        )
        expected = f"{integers}float32 or float64"
        raise InvalidInputError(found=f"{dtype}", expected=expected, where=self.where(column), advice=advice)

    def require_one_rounding(self, column: int, integers: Array) -> None:
        """Raise InvalidInputError for integers of which the source and hbc would make different float32, since one of them makes float64
        of them before."""
        if integers.dtype.kind in "iu" and integers.dtype.itemsize == 8 and len(bad := rounded_twice(integers)):
            advice = (
                "The source library makes float32 of it, and through float64 that is another number. Such a number is hardly meant: "
                "pass X.astype(float), or an array of integers."
            )
            raise InvalidInputError(
                found=f"the integer {bad[0]}", expected="integers that float64 holds", where=self.where(column), advice=advice
            )

    def require_objects(self, column: int, values: Array, apart: bool = True) -> None:
        """Raise InvalidInputError for numbers of numpy's dtypes other than bool. `apart` is false for a frame that the source makes one
        array of, as it does of polars' and Arrow's: here with strings, and so of Python objects, which float64 must hold."""
        dtype = values.dtype
        if dtype.kind in "iuf" and (apart or beyond_exact(values)):
            advice = (
                "The source library was fitted on Python objects there, which it cannot compare with others: X.astype(object)."
            )
            raise InvalidInputError(found=f"{dtype}", expected="Python objects", where=self.where(column), advice=advice)

    def require_alike(self, groups: Sequence[Sequence[int]], positions: Sequence[int], frame: FrameView) -> None:
        """Raise InvalidInputError for columns of several dtypes in one of the groups, of each of which the source computes a function. Of
        a frame of polars it makes one array before, while hbc computes each column in its own dtype, as pandas does."""
        for group in groups:
            columns = [i for i in group if i in self.functions and i in self.numbers and positions[i] >= 0]
            if len(dtypes := {frame.column(positions[i]).dtype for i in columns}) > 1:
                found = " and ".join(sorted(map(str, dtypes)))
                advice = "The source library's function computes their common dtype: cast the columns to it."
                raise InvalidInputError(found=found, expected="one dtype", where=self.where(columns[0]), advice=advice)

    def require_as_float(self, column: int, dtype: np.dtype[Any]) -> None:
        """Raise InvalidInputError for Python objects, and for a dtype of pandas'
        own for which a function gives another result than for float64."""
        fits = dtype.itemsize * 8 >= self.spec.columns[column].function_bits if dtype.kind in "iu" else dtype == np.float64
        if not fits:
            found = "Python objects" if dtype.kind == "O" else f"a dtype of pandas' own, of {dtype}"
            advice = "The source library's function computes in that dtype, or rejects it: cast the column, X.astype(float)."
            raise InvalidInputError(found=found, expected="numbers of numpy's dtypes", where=self.where(column), advice=advice)

    def coded_strings(self, coded: Callable[[int], tuple[Array, Array] | None]) -> CodedStrings | None:
        """The columns of strings as codes. None if some column does not come as codes, or holds other
        values than strings: the caller then reads the columns one by one, and its error names the row."""
        codes, values = [], []
        for i in self.texts:
            column = coded(i)
            if column is None:
                return None
            codes.append(column[0])
            try:
                values.append(self.strings(i, column[1]))
            except InvalidInputError:
                return None
        return CodedStrings(tuple(codes), tuple(values)) if codes else None

    def strings_later(
        self, rows: int, coded: Callable[[slice, int], tuple[Array, Array] | None], plain: Callable[[slice, int], Array]
    ) -> Later:
        """The columns of strings, of which rows are read when they are asked for. coded, plain: some rows of a column, as codes and as it
        is."""

        def read(first: int, end: int) -> CodedStrings | Array:
            part = slice(first, end)
            found = self.coded_strings(lambda i: coded(part, i))
            if found is not None:
                return found
            y = np.empty((end - first, len(self.texts)), object)
            for place, i in enumerate(self.texts):
                y[:, place] = self.strings(i, plain(part, i))
            return y

        return Later((rows, len(self.texts)), CodedStrings.dtype, read)

    def kind(self, dtype: np.dtype[Any]) -> DType:
        """The dtype of the variant for an array of this dtype."""
        narrow = self.spec.arrays.narrow_as_f32 and dtype.kind in "biu" and dtype.itemsize <= 2
        return "f32" if narrow else variant_dtype(dtype)

    def widens(self, dtype: np.dtype[Any]) -> bool:
        """Whether the source reads a frame's numbers of this dtype as float64, but not an array's."""
        frames = self.spec.frames
        return frames.integers_as_f64 and not frames.integers_exact and dtype.kind in "iub"

    def assembled(
        self, kinds: Kinds, columns: Mapping[int, Array], rows: int, texts: CodedStrings | Later | None = None
    ) -> list[Any]:
        """The inputs of the graph for these dtypes, made from columns. `texts`: the columns of strings, if they come as codes, or
        later; then the numbers come later too."""
        arrays: list[Any] = []
        for dtype, _, group in self.layouts[kinds]:
            if texts is not None and dtype.kind == "O":
                arrays.append(texts.select([self.texts.index(i) for i in group]))
                continue
            if self.spec.ndim == 1:
                arrays.append(np.ascontiguousarray(converted(columns[group[0]], dtype)))
                continue
            given = [columns[i] for i in group]
            # `converted` rejects unsigned integers that int64 does not hold.
            if rows == 1 and not any(column.dtype.kind == "u" for column in given):
                with np.errstate(all="ignore"):  # all at once: 50 columns, 20 of another dtype, take 20 instead of 31 µs
                    arrays.append(np.concatenate(given, dtype=dtype, casting="unsafe")[None])
                continue
            later = isinstance(texts, Later)
            arrays.append(_matrix_later(given, dtype, rows) if later else _matrix(given, dtype, rows))
        return arrays

    def fitted_on(self) -> str:
        """The advice of an error about the wrong columns."""
        names = self.spec.feature_names
        return f"Pass the columns that the model was fitted on{'' if names is None else f', {listed(names)}'}, in their order."

    @cached_property
    def titles(self) -> list[str]:
        """The name of each column in errors. The list is kept, since writing 50 names takes 20 µs."""
        return [self.where(i) for i in range(self.spec.n_features)]

    def where(self, column: int) -> str:
        """The name of a column in errors."""
        return "X" if self.spec.ndim == 1 else f"X, {self.spec.describe_column(column)}"


def names_of(spec: InputSpec) -> tuple[str, ...] | None:
    """The names of a model's columns, or None where it goes by position."""
    if spec.feature_names is None and spec.frames.numbered:
        return tuple(map(str, range(spec.n_features)))
    return spec.feature_names or spec.frames.names or None


def own_name(spec: InputSpec, fitted: Container[str], name: Any) -> Any:
    """A model's own name for a column of data: LightGBM writes _ for the spaces in the names that it is fitted on, and compares none."""
    spaced = names_of(spec) is None and name not in fitted and isinstance(name, str)
    return name.replace(" ", "_") if spaced else name


def names_in_data(spec: InputSpec, fitted: Sequence[str], given: Sequence[Any]) -> dict[str, str]:
    """Fitted name → the name of the same column in data (`own_name`), without columns that data lack. Raises InvalidInputError if two
    columns of the data have a fitted name, none of them exactly."""
    there, known = set(given), set(fitted)
    found = {name: name for name in fitted if name in there}
    for name in given if len(found) < len(fitted) else ():
        own = own_name(spec, known, name)
        if own in known and own not in there:
            if own in found:
                raise duplicates(name)
            found[own] = name
    return found


def listed(names: Sequence[Any]) -> str:
    """At most five names, and how many there are, for messages."""
    return ", ".join(map(str, names[:5])) + (f", … ({len(names)} in all)" if len(names) > 5 else "")


def _matrix(columns: Sequence[Array], dtype: np.dtype[Any], rows: int) -> Array:
    """A matrix of columns. Raises InvalidInputError for integers that `dtype` does not hold."""
    block = np.empty((rows, len(columns)), dtype)
    for j, column in enumerate(columns):
        block[:, j] = column if column.dtype == dtype else converted(column, dtype)
    return block


def _matrix_later(columns: Sequence[Array], dtype: np.dtype[Any], rows: int) -> Later:
    """The same matrix, whose rows are gathered when they are asked for."""

    def read(first: int, end: int) -> Array:
        return _matrix([column[first:end] for column in columns], dtype, end - first)

    return Later((rows, len(columns)), dtype, read)


def _is_large(item: Any) -> bool:
    """Whether it is a number from 2**53 on, where float64 does not hold all integers."""
    size: Any = abs(item) if isinstance(item, (int, float, np.number)) else 0
    return bool(2**53 <= size < np.inf)


def _is_float(decimal: Any) -> bool:
    """Whether float64 holds a Decimal."""
    return bool(decimal.is_finite() and decimal == float(decimal))


def only_categories(found: str, where: str) -> InvalidInputError:
    """The error for strings that the source takes as categories of pandas only (Column.categories_only)."""
    advice = "Make them with pandas.Categorical: X.astype({column: 'category'})."
    return InvalidInputError(found=found, expected="categories in a frame of pandas, as in fit", where=where, advice=advice)
