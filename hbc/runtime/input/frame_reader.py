"""Turns frames into the arrays of a graph's inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from hbc.errors import InvalidInputError, counted, shown
from hbc.ir.coded_strings import CodedStrings
from hbc.ir.later import Later
from hbc.ir.signature import Kinds
from hbc.ir.types import Array
from hbc.runtime.input.arrays import ArrayReader
from hbc.runtime.input.columns import listed, names_of, only_categories, variant_dtype
from hbc.runtime.input.frame_view import FrameView
from hbc.runtime.input.values import MOST_SINGLE, beyond_exact, coded_digits, reject_dtype

CATEGORIES = ("pandas.CategoricalDtype", "polars.Categorical", "polars.Enum", "pyarrow.dictionary")
"""The dtypes of categories. LightGBM takes the first one."""

MOST_CHOSEN = 256
"""The most combinations of dtypes of frames that are remembered."""


class FrameReader:
    """Reads frames for a model of these columns. A frame of one plain dtype is read as an array."""

    def __init__(self, arrays: ArrayReader) -> None:
        self.arrays = arrays
        self.known = arrays.known
        self.spec = arrays.spec
        self._frames = self.spec.frames
        self._by_name = self._frames.by_name
        self._chosen: dict[tuple[bool | np.dtype[Any], ...], Kinds] = {}
        """(whether it is of pandas, the dtypes of its columns of numbers) of earlier frames that need no
        conversion → their variant. With 40 columns, looking the variant up takes 2 µs, finding it 25."""
        self._seen: tuple[type[FrameView] | None, Any, Sequence[int]] = (None, None, ())
        """The class and the header of the last frame, and the positions of the model's columns in it."""
        self._alone = self._reads_alone()
        """Whether a frame of one row may be read as a whole."""
        self._layouts: dict[Kinds, list[tuple[np.dtype[Any], list[int]]]] = {}

    def from_frame(self, frame: FrameView, later: int = 0) -> tuple[Kinds, list[Array]]:
        """(the variant for a frame, the inputs of its graph). later: as for Intake. Raises InvalidInputError."""
        known, numbers = self.known, self.known.numbers
        if self.spec.ndim == 1:
            if frame.width != 1:
                raise InvalidInputError(found=f"a frame with {counted(frame.width, 'column')}", expected="a vector")
            return self.arrays.from_array(frame.column(0), None)
        frames = self._frames
        self._require_accepted(frame)
        positions = self.positions(frame)
        for i in () if frame.untyped else known.categories_only:
            self._require_categories(frame, i, positions[i])
        codes = {
            i: self._category_codes(frame, i, positions[i])
            for i in known.category_values
            if frame.pandas or self.spec.columns[i].category_dtype
        }
        self._require_dtypes(frame, positions, codes)
        if positions is known.in_order and not known.texts and not codes and len(numbers) == len(positions) == frame.width:
            block = frame.block()
            if block is not None:
                return self._from_block(frame, positions, block)
        if frame.rows == 1 and self._alone and (found := self._from_row(frame, positions)) is not None:
            return found
        if frames.stacked:
            self._require_stackable(frame, positions)
        for i in known.functions:
            if positions[i] >= 0 and (dtype := frame.own_dtype(positions[i])) is not None:
                known.require_as_float(i, dtype)
            elif positions[i] >= 0 and not frame.pandas and frame.column(positions[i]).dtype.kind == "O":
                known.require_as_float(i, np.dtype(object))  # a column of nulls
        columns: dict[int, Array] = {}
        texts: CodedStrings | Later | None
        if 0 < later < frame.rows and self._can_wait(frame, positions, later):
            texts = self._texts_later(frame, positions)
        else:
            texts = known.coded_strings(lambda i: self._coded(frame, i, positions[i]))
        for i in known.texts if texts is None else ():
            columns[i] = known.strings(i, self._column(frame, i, positions[i]))
        for i in numbers:
            columns[i] = codes[i] if i in codes else frame.column(positions[i])
        if codes and all(columns[i].dtype == np.float32 for i in numbers if i not in codes):
            # So that the others are not widened, unless the source widens them too.
            columns |= {i: p.astype(np.float32) for i, p in codes.items() if not self.spec.columns[i].category_as_object}
        if frame.doubtful and (frames.by_column or self._only_integers(frame)):
            _reject_missing_category(f"X, column {frame.names[frame.doubtful[0]]!r}")
        for i in known.objects_only:
            known.require_objects(i, columns[i], frame.pandas)
        if frames.no_integers or frames.integers_exact:
            self._require_integers(frame, positions, columns)
        given = dict(columns) if known.at_once else columns
        kinds = self._chosen.get((frame.pandas, *[columns[i].dtype for i in numbers]))
        if kinds is None:
            kinds = self._converted(frame, positions, columns)
        self._require_kinds(frame, positions, kinds, columns, codes)
        arrays = known.assembled(kinds, columns, frame.rows, texts)
        tested = [columns[i] for i in numbers] if isinstance(texts, Later) else arrays
        if known.at_once and any(
            isinstance(each, np.ndarray) and each.dtype.kind in "fiu" and beyond_exact(each) for each in tested
        ):
            self._require_one_rounding(frame, positions, given)
        return kinds, arrays

    def _require_accepted(self, frame: FrameView) -> None:
        """Raise InvalidInputError for a frame that the source rejects, whatever its columns hold."""
        frames = self._frames
        if frames.rejected:
            raise InvalidInputError(
                found="a frame",
                expected="an array",
                advice="Of frames the source takes at most such with categories, which another estimator reads in a way that hbc does not "
                "follow. Pass an array with the places of the categories.",
            )
        if frames.libraries and frame.library not in frames.libraries:
            advice = "The source library fails for others, or computes something else of them: X.to_pandas()."
            expected = f"a frame of {' or '.join(frames.libraries)}"
            raise InvalidInputError(found=f"a frame of {frame.library}", expected=expected, advice=advice)
        if frames.rows_required and frame.pandas and not frame.rows:
            raise InvalidInputError(found="a frame of pandas without rows", expected="at least 1 row")
        if frames.integer_categories and frame.pandas and frame.categories() != frames.integer_categories:
            counts = ", ".join(map(str, frames.integer_categories))
            raise InvalidInputError(
                found="other categorical columns",
                expected=f"the categories of fitting: for each categorical column the integers from 0 on ({counts} of them)",
                advice="Make them with pandas.Categorical(column, categories=range(n)).",
            )

    def _require_dtypes(self, frame: FrameView, positions: Sequence[int], codes: Mapping[int, Array]) -> None:
        """Raise InvalidInputError for columns of dtypes that the source takes no numbers from. codes: the columns of categories."""
        known, frames = self.known, self._frames
        for i in known.numbers if frames.no_numbers else ():
            if i not in codes and (rejected := frame.rejected_by(frames.no_numbers, positions[i])):
                advice = "The source library does not take numbers from such a column: X.astype(float)."
                raise InvalidInputError(found=f"the dtype {rejected}", expected="numbers", where=known.where(i), advice=advice)
        if frames.plain_dtypes:
            self._require_plain(frame, positions)
        for i in known.beside_numbers if frame.pandas else ():
            if positions[i] >= 0 and (narrow := frame.column(positions[i]).dtype).itemsize < 8:
                advice = "Beside a number, numpy makes float64 or int64 of a frame of pandas: cast the column, X.astype(float)."
                raise InvalidInputError(found=f"{narrow}", expected="numbers of 64 bits", where=known.where(i), advice=advice)

    def _from_block(self, frame: FrameView, positions: Sequence[int], block: Array) -> tuple[Kinds, list[Array]]:
        """`from_frame` for a frame of numbers that lie in one block of memory."""
        known, frames, numbers = self.known, self._frames, self.known.numbers
        if frames.no_integers or frames.integers_exact:
            self._require_integers(frame, positions, {i: block[:, i] for i in numbers})
        wide = known.widens(block.dtype) or (block.dtype == np.float32 and not frame.pandas and bool(known.frames_as_f64))
        missing = block.dtype.kind == "f" and not frame.pandas and frame.integers(0) is not None  # integers with nulls
        if known.at_once and (wide or missing) and beyond_exact(block):
            self._require_one_rounding(frame, positions, {i: block[:, i] for i in numbers})
        return self.arrays.from_numbers(block.astype(np.float64) if wide else _plain(block))

    def _converted(self, frame: FrameView, positions: Sequence[int], columns: dict[int, Array]) -> Kinds:
        """The variant for the columns. Those of dates and objects become float64 in `columns`. Raises InvalidInputError."""
        known = self.known
        dates: dict[int, Array] = {}
        self._require_no_na(frame, positions, columns)
        for i in known.numbers:
            values = columns[i]
            if values.dtype.kind in "mM":
                dates[i], columns[i] = values, values.astype(np.float64)
            elif values.dtype.kind not in "fiub":
                if not frame.pandas and frame.own_dtype(positions[i]) is not None:
                    advice = "scikit-learn does not make numbers of them: cast the column."
                    raise InvalidInputError(found="Python objects", expected="numbers", where=known.where(i), advice=advice)
                if frame.pandas and frame.rejected_by(CATEGORIES[:1], positions[i]) and any(isinstance(v, str) for v in values):
                    known.require_meant(i)
                    advice = "Some estimators of scikit-learn make numbers of them, and others fail: X.astype(float)."
                    raise InvalidInputError(
                        found="categories that are strings", expected="numbers", where=known.where(i), advice=advice
                    )
                columns[i] = known.floats(i, values, converted=frame.pandas)
        self._require_dates(dates)
        return self._variant(columns, frame.pandas)

    def _require_kinds(
        self, frame: FrameView, positions: Sequence[int], kinds: Kinds, columns: dict[int, Array], codes: dict[int, Array]
    ) -> None:
        """Raise InvalidInputError for columns of which the source would compute something else than their variant does."""
        known = self.known
        for i in known.objects_stay:
            if kinds[i] in ("f32", "f64") and columns[i].dtype in (np.int64, np.uint64) and _some_large(columns[i]):
                raise InvalidInputError(
                    found="an integer of 2**53 or more",
                    expected="smaller ones, or columns of the dtypes of fitting",
                    where=known.where(i),
                    advice="The source library compares integers with its categories, and hbc their float64, since other columns have "
                    "other dtypes than in fitting.",
                )
        for i in known.own_dtype if frame.pandas and not frame.plain else ():
            if kinds[i] == "f32" and i not in codes and frame.rejected_by(CATEGORIES[:1], positions[i]):
                raise InvalidInputError(
                    found="categories of numbers that are float32 with the columns beside them",
                    expected="float32 or float64",
                    where=known.where(i),
                    advice="The source library makes float64 of a frame with categories, where it keeps float32: X.astype(float).",
                )

    def _reads_alone(self) -> bool:
        """Whether a column's values and dtype are all that matters of it, and nothing is tested of some columns only."""
        known, frames = self.known, self._frames
        tested = (known.category_values, known.categories_only, known.beside_numbers, known.functions, known.objects_only)
        told = (frames.no_numbers, frames.plain_dtypes, frames.stacked, frames.no_integers, frames.integers_exact)
        return bool(known.texts) and not any((*tested, *told, known.at_once, known.digits))

    def _from_row(self, frame: FrameView, positions: Sequence[int]) -> tuple[Kinds, list[Array]] | None:
        """The same as `from_frame` for a frame of one row, of dtypes that have come before. None where columns must be read one by one."""
        known = self.known
        row = frame.row([positions[i] for i in known.numbers], [positions[i] for i in known.texts])
        kinds = None if row is None else self._chosen.get((frame.pandas, *row.dtypes))
        if row is None or kinds is None:
            return None
        arrays: list[Array] = []
        for dtype, columns in self._layout(kinds):
            if dtype.kind == "O":
                array = np.empty((1, len(columns)), object)
                array[0] = [row.texts[i] for i in columns]
            else:
                if self.known.objects_stay and any(abs(row.numbers[i]) >= 2**53 for i in columns):
                    return None  # see from_frame
                if dtype != np.float64 and any(row.dtypes[i] != dtype for i in columns):
                    return None  # Python's numbers would be rounded twice
                array = np.array([[row.numbers[i] for i in columns]], dtype)
            arrays.append(array)
        return kinds, arrays

    def _layout(self, kinds: Kinds) -> list[tuple[np.dtype[Any], list[int]]]:
        """For each graph input: its dtype, and its columns, counted among those of numbers or those of strings."""
        found = self._layouts.get(kinds)
        if found is None:
            known = self.known
            found = self._layouts[kinds] = [
                (dtype, [(known.texts if dtype.kind == "O" else known.numbers).index(i) for i in columns])
                for dtype, _, columns in known.layouts[kinds]
            ]
        return found

    def _require_one_rounding(self, frame: FrameView, positions: Sequence[int], columns: Mapping[int, Array]) -> None:
        """Raise InvalidInputError for integers among these numbers that are other float32 through float64 (require_one_rounding)."""
        for i in self.known.at_once:
            values: Array | None = columns.get(i)
            if values is not None and values.dtype.kind == "O":
                values = np.array([v for v in values.tolist() if isinstance(v, int) and -(2**63) <= v < 2**63], np.int64)
            elif values is not None and values.dtype.kind == "f":
                values = frame.integers(positions[i])
            if values is not None:
                self.known.require_one_rounding(i, values)

    def _require_integers(self, frame: FrameView, positions: Sequence[int], columns: Mapping[int, Array]) -> None:
        """Raise InvalidInputError for integers that the estimators of the model read in different ways. Integers of pandas' own dtypes are
        such too, though their column is read as floats."""
        frames = self._frames
        for i, values in columns.items():
            if values.dtype.kind == "f" and frame.pandas and (own := frame.integers(positions[i])) is not None:
                values = own
            whole = values.dtype.kind in "iub"
            if whole and (frames.no_integers or (values.dtype.itemsize > 2 and (np.abs(values) > MOST_SINGLE).any())):
                raise InvalidInputError(
                    found=f"integers ({values.dtype})" if frames.no_integers else "an integer above 2**24",
                    expected="floats" if frames.no_integers else "floats, or integers up to 2**24",
                    where=self.known.where(i),
                    advice="LightGBM reads the integers of a frame as float64, and another estimator computes with them: X.astype(float).",
                )

    def _require_plain(self, frame: FrameView, positions: Sequence[int]) -> None:
        """Raise InvalidInputError for columns that are not of numpy's dtypes of 32 and 64 bits. Categories have a test of their own."""
        for i in self.known.numbers:
            if i in self.known.category_values:
                continue
            dtype = frame.column(positions[i]).dtype
            if frame.own_dtype(positions[i]) is not None or dtype.kind not in "fiu" or dtype.itemsize < 4:
                advice = "The source library hands them on in a frame, which others read by dtype: X.astype(float)."
                raise InvalidInputError(
                    found=f"the dtype {dtype}", expected="numbers of 32 or 64 bits", where=self.known.where(i), advice=advice
                )

    def _variant(self, columns: dict[int, Array], pandas: bool) -> Kinds:
        """The variant for the numbers of a frame. Columns that the source widens before it looks at dtypes are replaced in `columns`."""
        given = tuple([columns[i].dtype for i in self.known.numbers])
        for i in self.known.numbers:
            _plain(columns[i])
        for i in () if pandas else self.known.frames_as_f64:
            if i in columns and columns[i].dtype == np.float32:
                columns[i] = columns[i].astype(np.float64)
        for i in self.known.own_dtype:
            if i in columns:
                self.known.require_width(i, columns[i].dtype)
        for group in self._frames.no_bool_alone:
            self.known.require_no_bool(group[0], *[columns[i].dtype for i in group if i in columns])
        dtypes = tuple([columns[i].dtype for i in self.known.numbers])
        kinds = self._choose(dict(zip(self.known.numbers, dtypes, strict=True)))
        if dtypes == given and len(self._chosen) < MOST_CHOSEN:
            self._chosen[(pandas, *dtypes)] = kinds
        return kinds

    def _require_stackable(self, frame: FrameView, positions: Sequence[int]) -> None:
        """Raise InvalidInputError for columns that the source does not stack unchanged, or that become Python objects in its stack."""
        if not frame.pandas:
            self.known.require_alike(self._frames.stacked, positions, frame)
        for group in () if frame.plain else self._frames.stacked:
            columns = [i for i in group if positions[i] >= 0 and i in self.known.numbers]
            own = [dtype for i in columns if (dtype := frame.own_dtype(positions[i])) is not None and dtype.kind != "O"]
            for i in columns:
                if own and frame.holds_na(positions[i]):
                    advice = "scikit-learn does not stack columns that hold it: X.astype(float)."
                    raise InvalidInputError(
                        found="pandas.NA", expected="numbers or NaN", where=self.known.where(i), advice=advice
                    )
            kinds = {frame.column(positions[i]).dtype.kind == "b" for i in columns}
            mixed = len(own) > 0 or len(kinds) > 1 or (True in kinds and len(set(group)) < len(group))
            computed = any(self.spec.columns[i].function_bits for i in columns)
            told_apart = computed or self.spec.arrays.objects_as_f32 or not self.known.returned.isdisjoint(columns)
            objects = len(columns) > 1 and mixed and told_apart
            if objects or (own and (self.spec.arrays.objects_as_f32 or (len(columns) == 1 and own[0].itemsize < 8))):
                advice = (
                    "The source library stacks them without a conversion, so that they become Python objects or keep a narrower dtype: "
                    "cast the columns, X.astype(float)."
                )
                found = f"dtypes of pandas' own ({own[0]})" if own else "bool beside numbers"
                raise InvalidInputError(
                    found=found, expected="numpy's dtypes", where=self.known.where(columns[0]), advice=advice
                )

    def _require_no_na(self, frame: FrameView, positions: Sequence[int], columns: Mapping[int, Array]) -> None:
        """Raise InvalidInputError for pandas.NA beside a column of Python objects, if the source makes such objects of both."""
        stay = [i for i in self.known.numbers if i in self.known.objects_stay]
        if not any(columns[i].dtype.kind == "O" for i in stay):
            return
        for i in stay:
            if frame.holds_na(positions[i]):
                advice = "The source library makes Python objects of both columns: X.astype(float)."
                raise InvalidInputError(
                    found="pandas.NA beside objects", expected="NaN", where=self.known.where(i), advice=advice
                )

    def _require_dates(self, dates: Mapping[int, Array]) -> None:
        """Raise InvalidInputError for dates that the source does not read as numbers."""
        for i, values in dates.items():
            groups = [group for group in self._frames.dates if i in group]
            stays = i in self.known.objects_stay or any(i in group for group in self._frames.stacked)
            alike = all(j in dates and dates[j].dtype == values.dtype for group in groups for j in group)
            if stays or not groups or not alike:
                reject_dtype(values.dtype, self.known.where(i))

    def _can_wait(self, frame: FrameView, positions: Sequence[int], most: int) -> bool:
        """Whether the columns may be read up to `most` rows at a time. Columns of digits are read by all that they hold. Of categories,
        each part would need all: these are pandas' own, strings, and few."""

        def waits(position: int) -> bool:
            held = frame.categorical(position)
            if held is None:
                return not frame.rejected_by(CATEGORIES, position)
            known = held.categories
            return 4 * len(known) <= most and all(isinstance(value, str) for value in known.tolist())

        texts = self.known.texts
        return (
            frame.in_parts and bool(texts) and self.known.digits.isdisjoint(texts) and all(waits(positions[i]) for i in texts)
        )

    def _texts_later(self, frame: FrameView, positions: Sequence[int]) -> Later:
        def coded(rows: slice, i: int) -> tuple[Array, Array] | None:
            return self._coded(frame.part(rows), i, positions[i])

        def plain(rows: slice, i: int) -> Array:
            return self._column(frame.part(rows), i, positions[i])

        return self.known.strings_later(frame.rows, coded, plain)

    def _coded(self, frame: FrameView, column: int, position: int) -> tuple[Array, Array] | None:
        found = frame.coded(position)
        return coded_digits(self._column(frame, column, position)) if found is None and column in self.known.digits else found

    def _column(self, frame: FrameView, column: int, position: int) -> Array:
        values = frame.column(position)
        whole = frame.whole_numbers(position) if column in self.known.digits and values.dtype.kind == "f" else None
        return values if whole is None else whole

    def _category_codes(self, frame: FrameView, column: int, position: int) -> Array:
        """The places of a column's categories among the fitted ones. Raises InvalidInputError for others, and for other columns."""
        fact, places = self.spec.columns[column], self.known.places[column]
        if frame.untyped:
            return self._record_codes(frame, column, position)
        held = frame.categorical(position)
        if held is None or (places.strict and str(held.categories.dtype) != fact.category_dtype):
            of = f" of {fact.category_dtype}" if places.strict else ""
            raise InvalidInputError(
                found="no categories" if held is None else f"categories of {held.categories.dtype}",
                expected=f"categories{of} in a frame of pandas, as in fit, or their values in records",
                where=self.known.where(column),
                advice="Make them with pandas.Categorical(column, categories=...), or leave a missing one out.",
            )
        if fact.category_as_object:
            self._require_shared(frame, column, held)
        if not places.strict:
            try:
                return places.among(held)
            except (TypeError, ValueError) as error:
                found = f"categories of {held.categories.dtype}, which pandas does not compare with the fitted ones ({error})"
                raise InvalidInputError(found=found, expected=self._fitted(column), where=self.known.where(column)) from error
        place = {value: code for code, value in enumerate(places.values)}
        codes, categories = np.asarray(held.codes), held.categories.tolist()
        if not categories:
            self._reject_no_categories(column)
        if unknown := [value for value in categories if value not in place]:
            self._reject_category(unknown[0], column)
        return np.array([*[place[value] for value in categories], np.nan])[codes]

    def _require_shared(self, frame: FrameView, column: int, held: Any) -> None:
        """Raise InvalidInputError for categories of which another estimator may read other numbers than their places."""
        where, dtype = self.known.where(column), held.categories.dtype
        if not isinstance(dtype, np.dtype) or dtype.kind not in "iufb":
            raise InvalidInputError(found=f"categories of {dtype}", expected=self._fitted(column), where=where)
        for value in held.categories.tolist():
            if not self.known.places[column].knows(value):
                self._reject_category(value, column)
        if (np.asarray(held.codes) < 0).any() and self._only_integers(frame):
            _reject_missing_category(where)

    def _only_integers(self, frame: FrameView) -> bool:
        """Whether pandas makes an array of integers of the frame, if some column is of categories that are integers."""
        return all(frame.categorical(i) is not None or frame.column(i).dtype.kind in "iu" for i in range(frame.width))

    def _require_categories(self, frame: FrameView, column: int, position: int) -> None:
        """Raise InvalidInputError for a column of strings that are no categories, or not those that the source takes."""
        known = self.known.known_strings.get(column)
        if not frame.rejected_by(CATEGORIES if known else CATEGORIES[:1], position):
            raise only_categories(f"a column of {frame.library} without categories", self.known.where(column))
        found = frame.dictionary(position) if known else None
        if found == []:
            self._reject_no_categories(column)
        if known and found and not known.issuperset(found):
            self._reject_category(next(value for value in found if value not in known), column)

    def _reject_no_categories(self, column: int) -> NoReturn:
        raise InvalidInputError(
            found="a categorical column without categories",
            expected=self._fitted(column),
            where=self.known.where(column),
            advice="XGBoost rejects a column that has none, though all its values are missing: cat.set_categories.",
        )

    def _reject_category(self, value: Any, column: int) -> NoReturn:
        raise InvalidInputError(
            found=f"the category {value!r:.60}",
            expected=self._fitted(column),
            where=self.known.where(column),
            advice="Make such values missing, and leave them out of the categories (cat.set_categories).",
        )

    def _record_codes(self, frame: FrameView, column: int, position: int) -> Array:
        """The same for the values of records. Raises InvalidInputError."""
        places, where = self.known.places[column], self.known.where(column)
        if self.spec.columns[column].category_of_frame:
            raise InvalidInputError(
                found="a record",
                expected="a frame of pandas with categories",
                where=where,
                advice="LightGBM does not say for sure which columns had categories in fit: convert the model with such a frame as the "
                "sample, hbc.convert(model, backend, X), and records are taken too.",
            )
        cells = frame.cells(position)
        codes = np.empty(len(cells))
        for row, value in enumerate(cells):
            try:
                codes[row] = places(value)
            except (KeyError, TypeError):
                raise InvalidInputError(
                    found=f"{shown(value)} in row {row}",
                    expected=self._fitted(column),
                    where=where,
                    advice="Make an unknown one missing: None." if places.strict else "",
                ) from None
        return codes

    def _fitted(self, column: int) -> str:
        return f"the categories of fitting, {listed(self.spec.columns[column].category_values)}"

    def _choose(self, dtypes: Mapping[int, np.dtype[Any]]) -> Kinds:
        """The variant for numeric columns of these dtypes."""
        found = {i: "f64" if self.known.widens(dtype) else variant_dtype(dtype) for i, dtype in dtypes.items()}
        for variant in () if self.spec.arrays.narrow_as_f32 else self.known.variants:
            if all(variant[i] in (kind, "unread") for i, kind in found.items()):
                return variant
        if not self._frames.by_column:
            common = np.result_type(*dtypes.values())
            if (narrow := [i for i in self.known.rounding if dtypes[i] == np.float32]) and common != np.float32:
                raise InvalidInputError(
                    found=f"float32 in {listed([self.spec.describe_column(i) for i in narrow])} beside other numbers",
                    expected="numbers of one float dtype, since the source's function computes each column in its own dtype",
                    advice="Cast the columns to one dtype: X.astype(float).",
                )
            # pandas makes an array of objects of bool beside numbers, so that narrow integers are not read as float32.
            mixed = "b" in {dtype.kind for dtype in dtypes.values()} and common.kind != "b"
            return self.known.uniform[
                "f64" if self.known.widens(common) else variant_dtype(common) if mixed else self.known.kind(common)
            ]
        if "f32" not in found.values() and not self._frames.apart:
            return self.known.uniform["f64"]
        first = "f32" if "f32" in found.values() else "i64"
        given = " and ".join(sorted({str(dtypes[i]) for i, kind in found.items() if kind == first}))
        single = [self.spec.describe_column(i) for i, kind in found.items() if kind == first]
        others = [self.spec.describe_column(i) for i, kind in found.items() if kind != first]
        raise InvalidInputError(
            found=f"{given} in {listed(single)} beside other numbers in {listed(others)}",
            expected="numbers of one float dtype, since the source library treats columns of different dtypes differently here",
            advice="Pass such a frame as the sample, hbc.convert(model, backend, X), or cast the columns to one dtype.",
        )

    def positions(self, frame: FrameView) -> Sequence[int]:
        """For each column of the model: its position in the frame, as scikit-learn finds it, or -1 if it
        is missing but nothing reads it. Raises InvalidInputError for other names than the fitted ones."""
        kind, header, positions = self._seen
        if kind is type(frame) and frame.has_header(header):
            return positions
        positions = self._positions(frame)
        self._seen = type(frame), frame.header, positions
        return positions

    def _positions(self, frame: FrameView) -> Sequence[int]:
        fitted, n = self.spec.feature_names, self.spec.n_features
        if self._frames.validated:
            frame.string_names()  # it raises an error for names of different types
        if fitted is None and self._frames.unnamed and frame.string_names() is not None:
            raise InvalidInputError(
                found=f"a frame with the names {listed(frame.names)}",
                expected="an array or a frame without names: the model was fitted without names, and names made of these would be compared",
                advice="Pass X.to_numpy() or pandas.DataFrame(X.to_numpy()).",
            )
        fitted = fitted or names_of(self.spec)
        if fitted is not None and tuple(frame.names) == fitted:
            return self.known.in_order
        names = frame.names_as_text(self._frames.tuples_as_text) if self._frames.text_names else frame.string_names()
        if fitted is not None and names == fitted:
            return self.known.in_order
        if fitted is None or (names is None and not self._frames.by_column):
            if len(frame.names) != n:
                raise InvalidInputError(
                    found=counted(len(frame.names), "column"), expected=counted(n, "column"), advice=self.known.fitted_on()
                )
            return self.known.in_order
        known = set(names or ())
        missing = [name for name in fitted if name not in known]
        if self._by_name:
            picked = (i for i, column in enumerate(self.spec.columns) if column.picked)
            read = {fitted[i] for i in (*self.known.texts, *self.known.numbers, *picked)}
            missing = [name for name in missing if name in read]
            if missing:
                raise InvalidInputError(
                    found=f"a frame without the columns {listed(missing)}" + _in_other_case(missing, names or ()),
                    expected=f"the fitted columns {listed(sorted(read))}",
                    advice="Add them, or rename the columns that hold them.",
                )
            position_of = {name: i for i, name in enumerate(names or ())}
            return [position_of.get(name, -1) for name in fitted]
        unexpected = [name for name in names or () if name not in set(fitted)]
        found = []
        if unexpected:
            found.append(f"feature names unseen at fit time: {listed(unexpected)}")
        if missing:
            alike = _in_other_case(missing, unexpected)
            found.append(f"feature names seen at fit time, yet now missing: {listed(missing)}{alike}")
        raise InvalidInputError(
            found=" and ".join(found) or "the feature names in another order than they were in fit",
            expected=f"the names {listed(fitted)}, in this order",
            advice="Add the missing ones, or rename the columns that hold them."
            if missing
            else "Select them in that order: X[list(model.feature_names_in_)].",
        )


def _in_other_case(missing: Sequence[str], names: Sequence[str]) -> str:
    """For an error about missing names: those of the frame that differ from them in case only; "" if there are none."""
    by_case = {name.casefold(): name for name in names}
    alike = [f"{by_case[name.casefold()]!r} for {name!r}" for name in missing if name.casefold() in by_case]
    return f" (there is {listed(alike)}, which differs in case)" if alike else ""


def _reject_missing_category(where: str) -> NoReturn:
    advice = "pandas makes another number of it in an array (-9223372036854775808): convert the column, X.astype(float)."
    raise InvalidInputError(found="a missing one among categories of integers", expected="numbers", where=where, advice=advice)


def _some_large(integers: Array) -> bool:
    """Whether some are 2**53 or more, where float64 does not hold all integers."""
    return bool(((integers >= 2**53) | (integers.astype(np.float64) <= -(2.0**53))).any())


def _plain(column: Array) -> Array:
    """The column itself. Raises InvalidInputError for numbers of the other byte order, and of more than 64 bits."""
    if not column.dtype.isnative or column.dtype.itemsize > 8:
        advice = "scikit-learn computes in it: X.astype(float)."
        raise InvalidInputError(
            found=f"a frame of the dtype {column.dtype.str}", expected="numpy's usual dtypes", advice=advice
        )
    return column
