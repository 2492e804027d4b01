"""Converters for OneHotEncoder, OrdinalEncoder, TargetEncoder, LabelEncoder and LabelBinarizer.

Columns of numbers that are compared in the same dtype are encoded together. Strings become integer codes column by column, on the host;
everything after that computes with numbers.
"""

from __future__ import annotations

import functools
import numbers
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from hbc.ir.graph import Node
from hbc.ir.signature import Column, Frames
from hbc.ir.types import NUMPY_DTYPES, Array, DType, dtype_name
from hbc.lazy import record
from hbc.ops import tensor as t
from hbc.ops.checks import CheckValues, WarnValues
from hbc.ops.columns import Categorize, SelectColumns
from hbc.ops.encoding import Lookup, OneHot
from hbc.parser.frame import Frame, Refusal, StringsNeeded, as_frame
from hbc.parser.front_door import ANY_INTEGER, note, note_input
from hbc.parser.registry import (
    ONE_DIMENSIONAL,
    Described,
    Result,
    WithoutRows,
    converts,
    describes,
    public_name,
    returns_without_rows,
)
from hbc.parser.release import since
from hbc.parser.sklearn.shared.common import checked


@record
class Categories:
    """The categories of one column. A position is an index into the source's `categories_`."""

    values: Array
    """The categories without NaN and None: numbers (int64 or float, ascending) or strings."""
    positions: Array
    """The position of each of `values`, i64."""
    nan: int
    """The position of NaN, or -1."""
    none: int
    """The position of None, or -1."""
    size: int
    """The number of positions: of all categories, with NaN and None."""

    @property
    def strings(self) -> bool:
        return self.values.dtype.kind == "U"


def read_categories(categories: Array, name: str) -> Categories:
    """The categories of one column, from the source's array of any dtype. Raises Refusal for categories that hbc cannot compare as the
    source does; `name` is the name of the column in its message."""
    items = categories.tolist()
    nan = next((i for i, item in enumerate(items) if item != item), -1)
    none = next((i for i, item in enumerate(items) if item is None), -1)
    positions = np.array([i for i, item in enumerate(items) if item is not None and item == item], np.int64)
    known = [items[i] for i in positions]
    if all(isinstance(item, str) for item in known) and (known or categories.dtype.kind in "UO"):
        values = np.array(known, dtype=np.str_) if known else np.array([], "<U1")
        if values.tolist() != known:
            raise Refusal(f"{name} has categories that end in a null character.", "Strip it from the data and fit again.")
        return Categories(values, positions, nan, none, len(items))
    if not all(isinstance(item, numbers.Real) for item in known):
        kinds = ", ".join(sorted({type(item).__name__ for item in known}))
        raise Refusal(f"{name} has categories of the types {kinds}.", "Fit it on columns of strings only, or of numbers only.")
    if none >= 0:  # hbc would read None as NaN, but the source tells them apart
        raise Refusal(f"{name} has None among numbers.", "Fit it on a float column, with NaN for missing values.")
    values = np.array(known)
    values = values.astype(np.int64 if values.dtype.kind in "biu" else np.float64 if values.dtype.kind == "O" else values.dtype)
    if categories.dtype.kind == "f":
        values = values.astype(categories.dtype)
    order = np.argsort(values, kind="stable")
    return Categories(values[order], positions[order], nan, -1, len(items))


@record
class Group:
    """Columns that are encoded together."""

    columns: tuple[int, ...]
    """Their numbers in the estimator's input."""
    x: Node
    """The matrix of these columns, [N, len(columns)], in the dtype in which they are compared."""

    @property
    def strings(self) -> bool:
        return self.x.type.dtype == "str"


class Encoder:
    """The input of OneHotEncoder, OrdinalEncoder or TargetEncoder in groups of columns (`groups`), and the categories of each column.
    If the source rejects unknown categories or warns of them, the groups are checked for them."""

    def __init__(self, m: Any, x: Node | Frame) -> None:
        self.m = m
        frame = as_frame(x)
        if not len(frame):
            raise Refusal("it is given no columns at all.", "Remove it from the pipeline.")
        self.categories = [read_categories(np.asarray(c), frame.name(i)) for i, c in enumerate(m.categories_)]
        strings = [i for i, c in enumerate(self.categories) if c.strings]
        frame.need_strings(strings)
        note(frame.select(strings), Column(texts_only=True, numbers_unknown=True))
        for i in strings:
            c = self.categories[i]
            note(frame.select([i]), Column(knows_none=c.none >= 0, knows_nan=c.nan >= 0))
        self.groups = list(self._groups(frame))

    def _groups(self, frame: Frame) -> Iterable[Group]:
        kinds: dict[tuple[DType, DType], list[int]] = {}
        for i, (column, categories) in enumerate(zip(frame.columns, self.categories, strict=True)):
            kind = column.node.type.dtype
            if categories.strings:
                kinds.setdefault(("str", "str"), []).append(i)
                continue
            if kind == "str":
                raise Refusal(f"{frame.name(i)} holds strings, but the estimator was fitted on numbers there.")
            compared = np.result_type(NUMPY_DTYPES[kind], categories.values.dtype)  # the dtype in which the source compares
            kinds.setdefault((kind, dtype_name(compared)), []).append(i)
        for (kind, common), columns in kinds.items():
            if kind != "str":
                note(frame.select(columns), Column(objects_stay=True))
                objects = frame.select([i for i in columns if np.asarray(self.m.categories_[i]).dtype.kind == "O"])
                note(objects, Column(objects_only=True))
                if not any(c.strings for c in self.categories):  # a frame of polars or Arrow then becomes an array of numbers
                    note_input(Frames(libraries=("pandas",)), objects)
                note(frame.select([i for i in columns if self.categories[i].nan >= 0]), Column(none_apart=True))
                large = [i for i in columns if _is_large(np.asarray(self.m.categories_[i]))]
                signed = [i for i in large if self.m.categories_[i].dtype.kind == "i"]
                note(frame.select(signed), Column(integer_bits=ANY_INTEGER, signed=True))
                note(frame.select([i for i in large if i not in signed]), Column(integer_bits=ANY_INTEGER, unsigned=True))
                if getattr(self.m, "handle_unknown", "ignore") != "error":
                    note(frame.select([i for i in columns if _loses_bool(self.categories[i])]), Column(integer_bits=8))
            x = frame.select(columns).matrix(strings=True)
            x = checked(self.m, x, allow_nan=True, allow_inf=kind == "str")
            x = x if common == "str" else t.cast(x, common)
            if getattr(self.m, "handle_unknown", "ignore") == "error":  # TargetEncoder has no such option
                x = self._known(x, columns, [frame.name(i) for i in columns])
            elif become := self._warning():
                x = self._known(x, columns, [str(i) for i in columns], become)
            yield Group(tuple(columns), x)

    def _known(self, x: Node, columns: list[int], names: list[str], become: str = "") -> Node:
        categories = [self.categories[i] for i in columns]
        return known_values(public_name(type(self.m)), x, categories, names, become)

    def _warning(self) -> str:
        """The words of OneHotEncoder's warning for the code of unknown categories; "" if it does not warn."""
        drops = getattr(self.m, "drop", None) is not None
        infrequent = "the infrequent category." if since(1, 8) else "all zeros"  # the source said so of both
        match getattr(self.m, "handle_unknown", ""):
            case "warn":
                return infrequent
            case "infrequent_if_exist" if drops:
                return infrequent
            case "ignore" if drops:
                return "all zeros"
        return ""

    def infrequent(self, i: int) -> Array | None:
        """The code of each position of column i, if rare categories share the last code; None if they do not. (The source's
        `_default_to_infrequent_mappings`.)"""
        mappings = self.m._default_to_infrequent_mappings if self.m._infrequent_enabled else None
        mapping: Array | None = None if mappings is None else mappings[i]
        return mapping

    def encode(self, group: Group, table: Callable[[int], tuple[Array, Any]], dtype: DType) -> Node:
        """The codes of all values of a group, [N, len(group.columns)] of `dtype`. `table(i)` gives two things for column i: the code of
        each position, and the code of unknown values."""
        kind = NUMPY_DTYPES[dtype]
        if group.strings:
            coded = [self._encode_strings(group, j, *table(i), kind) for j, i in enumerate(group.columns)]
            return t.concat(coded)
        width = max(1, *(len(self.categories[i].values) for i in group.columns), 1)
        complete = getattr(self.m, "handle_unknown", "") == "error"
        x = _known_as_float(group.x, [self.categories[i] for i in group.columns]) if complete else group.x
        values = NUMPY_DTYPES[x.type.dtype]
        last = np.inf if values.kind == "f" else np.iinfo(values).max
        categories = np.full((len(group.columns), width), last, values)
        codes = np.zeros(categories.shape, kind)
        unknown, missing = np.zeros(len(categories), kind), np.zeros(len(categories), kind)
        for j, i in enumerate(group.columns):
            c = self.categories[i]
            by_position, other = table(i)
            categories[j, : len(c.values)] = c.values
            codes[j] = unknown[j] = missing[j] = other
            codes[j, : len(c.values)] = by_position[c.positions]
            if complete and len(c.values):
                codes[j, len(c.values) :] = codes[j, len(c.values) - 1]
            if c.nan >= 0:
                missing[j] = by_position[c.nan]
        return Lookup(categories, codes, unknown, missing, complete)(x)

    def _encode_strings(self, group: Group, j: int, by_position: Array, unknown: Any, dtype: np.dtype[Any]) -> Node:
        c = self.categories[group.columns[j]]
        # One code for each string of `values`, then those of NaN, of None and of unknown strings.
        tail = [by_position[c.nan] if c.nan >= 0 else unknown, by_position[c.none] if c.none >= 0 else unknown, unknown]
        codes = np.concatenate([by_position[c.positions].astype(dtype), np.array(tail).astype(dtype)])
        size = len(c.values)
        column = group.x if group.x.type.columns == 1 else SelectColumns(np.array([j]))(group.x)
        return t.take(codes, t.reshape(Categorize(c.values, size, size + 1, size + 2)(column), "N", 1), axis=0)


def _known_as_float(x: Node, categories: list[Categories]) -> Node:
    """x as float32 if it holds integers and float32 represents every category exactly (|category| <= 2^24); otherwise x. Trees behind the
    encoder test floats, so that its codes can move into their thresholds."""
    wide = any(np.abs(c.values.astype(np.float64)).max(initial=0) > 1 << 24 for c in categories)
    return x if x.type.is_float or wide else t.cast(x, "f32")


def _is_large(values: Array) -> bool:
    """Whether these are integers that float64 does not tell apart: the source compares signed ones with unsigned ones as float64."""
    return values.dtype.kind in "iu" and bool((np.abs(values.astype(np.float64)) >= 2**53).any())


def _loses_bool(c: Categories) -> bool:
    """Whether the source fails for unknown values in a column of bool. It replaces them by the first category, which becomes True in an
    array of bool. It fails if that category is neither 0 nor 1, and 1 is no category."""
    first = c.values[c.positions == 0]
    return len(first) > 0 and first[0] not in (0, 1) and 1 not in c.values


def known_values(owner: str, x: Node, categories: list[Categories], names: list[str], become: str = "") -> Node:
    """x. A call is rejected for a value that is not among the categories of its column. With `become` it warns instead;
    `become` describes the encoding of such values. `owner` and `names` name the class and the columns in the message."""
    rows = [c.values for c in categories]
    dtype = np.result_type(*rows) if categories[0].strings else NUMPY_DTYPES[x.type.dtype]
    values = np.zeros((len(rows), max(map(len, rows))), dtype)
    for target, row in zip(values, rows, strict=True):
        target[: len(row)] = row
    check = functools.partial(WarnValues, become=become) if become else CheckValues
    return check(
        owner,
        allow_nan=True,
        allow_inf=True,
        min_rows=0,
        values=values,
        counts=np.array([len(row) for row in rows]),
        nan=np.array([c.nan >= 0 for c in categories]),
        none=np.array([c.none >= 0 for c in categories]),
        columns=tuple(names),
    )(x)


def output_dtype(dtype: Any) -> DType:
    """hbc's name of a numpy dtype. Raises Refusal for dtypes that an encoder's output cannot have here, strings among them."""
    try:
        name = dtype_name(dtype)
    except TypeError:
        name = "str"
    if name == "str":
        raise Refusal(f"its output dtype is {np.dtype(dtype)}.", "Choose float32, float64, bool or a signed integer dtype.")
    return name


@converts("sklearn.preprocessing.OneHotEncoder", frame=True)
def one_hot_encoder(m: Any, x: Node | Frame) -> Result:
    """Each output column compares one input column with one code (or directly with one category): 1 where they are equal, else 0. The
    result is dense here; the source returns a sparse matrix by default."""
    dtype = output_dtype(m.dtype)
    encoder = Encoder(m, x)
    codes, unknown = zip(*(_one_hot_codes(encoder, i) for i in range(len(encoder.categories))), strict=True)
    dropped = m._drop_idx_after_grouping
    blocks, features = [], []
    for group in encoder.groups:
        by_value = not group.strings and all(encoder.infrequent(i) is None for i in group.columns)
        # In a column of integers nothing equals the category NaN, so it needs a code: its output column stays 0.
        by_value = by_value and (group.x.type.is_float or all(encoder.categories[i].nan < 0 for i in group.columns))
        # Integers from 2**53 on can be one float64. The source finds the first of them.
        by_value = by_value and all(_differ(encoder.categories[i].values, group.x.type.dtype) for i in group.columns)
        source: list[int] = []
        value: list[Any] = []
        for j, i in enumerate(group.columns):
            kept = [k for k in range(int(codes[i].max()) + 1) if dropped is None or dropped[i] is None or k != dropped[i]]
            source += [j] * len(kept)
            value += [_value(encoder.categories[i], k) for k in kept] if by_value else kept
            features += [i] * len(kept)
        coded = group.x if by_value else encoder.encode(group, lambda i: (codes[i], unknown[i]), "i64")
        values = np.array(value, NUMPY_DTYPES[coded.type.dtype])
        blocks.append(OneHot(np.array(source, np.int64), values, dtype)(coded))
    return _in_order(blocks, features)


def _value(categories: Categories, position: int) -> Any:
    """The number that stands at a position of `categories_`."""
    if position == categories.nan:
        return np.nan
    return categories.values[np.flatnonzero(categories.positions == position)[0]]


def _differ(values: Array, dtype: DType) -> bool:
    """Whether all values are different numbers of that dtype."""
    return len(np.unique(values.astype(NUMPY_DTYPES[dtype]))) == len(values)


def _one_hot_codes(encoder: Encoder, i: int) -> tuple[Array, int]:
    """(the code of each position of column i, the code of unknown values).
    The code -1 gives a row of zeros (`_map_infrequent_categories`)."""
    mapping = encoder.infrequent(i)
    if mapping is None:
        return np.arange(encoder.categories[i].size), -1
    shared = encoder.m.handle_unknown in ("infrequent_if_exist", "warn" if since(1, 8) else "")  # before, "warn" gives zeros
    return mapping, int(mapping[encoder.m._infrequent_indices[i][0]]) if shared else -1


def _in_order(blocks: list[Node], features: list[int]) -> Node:
    """The blocks as one matrix, with its columns in the order of the input
    features. `features`: the input feature of each column of the blocks."""
    y = t.concat(blocks)
    order = np.argsort(features, kind="stable")
    return y if np.array_equal(order, np.arange(len(order))) else SelectColumns(order)(y)


@converts("sklearn.preprocessing.OrdinalEncoder", frame=True)
def ordinal_encoder(m: Any, x: Node | Frame) -> Result:
    dtype = output_dtype(m.dtype)
    encoder = Encoder(m, x)
    unknown = m.unknown_value if m.handle_unknown == "use_encoded_value" else 0

    def table(i: int) -> tuple[Array, Any]:
        mapping = encoder.infrequent(i)
        by_position = np.arange(encoder.categories[i].size) if mapping is None else mapping
        by_position = by_position.astype(NUMPY_DTYPES[dtype])
        missing = m._missing_indices.get(i)
        if missing is not None:
            # The missing category is the last one, and the mapping of rare categories leaves it out.
            by_position = np.append(by_position[:missing], np.array([m.encoded_missing_value]).astype(by_position.dtype))
        return by_position, unknown

    blocks = [encoder.encode(group, table, dtype) for group in encoder.groups]
    return _in_order(blocks, [i for group in encoder.groups for i in group.columns])


@converts("sklearn.preprocessing.TargetEncoder", frame=True)
def target_encoder(m: Any, x: Node | Frame) -> Result:
    """Each category becomes its smoothed mean target, an unknown one the mean target of all rows. There is one column for each feature,
    or for each feature and class if there are several classes."""
    encoder = Encoder(m, x)
    classes = len(m.classes_) if m.target_type_ == "multiclass" else 1
    means = np.broadcast_to(np.asarray(m.target_mean_, np.float64), classes)
    # For several classes one table serves all features. It has a row for each category of each feature, then one for unknown values.
    sizes = [categories.size for categories in encoder.categories]
    starts = np.cumsum([0, *sizes])
    values = [np.stack(m.encodings_[i * classes : (i + 1) * classes], axis=1) for i in range(len(sizes))]
    table = np.concatenate([*values, means[None]]).astype(np.float64)
    blocks = []
    for group in encoder.groups:
        if classes == 1:
            blocks.append(encoder.encode(group, lambda i: (values[i][:, 0], means[0]), "f64"))
        else:
            codes = encoder.encode(group, lambda i: (starts[i] + np.arange(sizes[i]), starts[-1]), "i64")
            blocks.append(t.reshape(t.take(table, codes, axis=0), "N", len(group.columns) * classes))
    return _in_order(blocks, [i for group in encoder.groups for i in group.columns for _ in range(classes)])


LABEL_ENCODER = "sklearn.preprocessing.LabelEncoder"
LABEL_BINARIZER = "sklearn.preprocessing.LabelBinarizer"
ONE_DIMENSIONAL.update((LABEL_ENCODER, LABEL_BINARIZER))


@describes(LABEL_ENCODER, LABEL_BINARIZER)
def _one_column(m: Any) -> Described:
    return 1, None


@returns_without_rows(LABEL_ENCODER)
def _floats(m: Any) -> WithoutRows:
    return {"transform": ("<f8", (0,))}


@converts(LABEL_ENCODER)
def label_encoder(m: Any, x: Node) -> Result:
    """`transform` gives the position of each label in `classes_`, i64[N]. Unknown labels are rejected. The source first converts numbers to
    the dtype of the classes (`column_or_1d(y, dtype=classes_.dtype)`), so that floats are truncated if the classes are integers."""
    categories = read_categories(np.asarray(m.classes_), "the labels")
    if categories.strings != (x.type.dtype == "str"):
        if not categories.strings:
            raise Refusal("it was fitted on numbers, but is given strings.")
        raise StringsNeeded([0])
    if categories.strings:
        x = known_values(LABEL_ENCODER, t.reshape(x, "N", 1), [categories], ["y"])
        return t.reshape(Categorize(categories.values, categories.nan, categories.none, 0)(x), "N")
    dtype = np.asarray(m.classes_).dtype
    if dtype.kind in "bi":
        x = t.cast(checked(m, x, min_rows=0), dtype_name(dtype))  # check_array rejects NaN and inf where it casts to integers
    values = categories.values
    common = values.dtype if dtype.kind == "f" else np.result_type(NUMPY_DTYPES[x.type.dtype], values.dtype)
    x = t.reshape(t.cast(x, dtype_name(common)), "N", 1)
    x = known_values(LABEL_ENCODER, x, [categories], ["y"])
    zero, missing = np.zeros(1, np.int64), np.array([max(categories.nan, 0)])
    if not len(values):
        return t.reshape(t.cast(t.isnan(x), "i64"), "N") if x.type.is_float else t.reshape(t.sub(x, x), "N")
    return t.reshape(Lookup(values[None, :].astype(common), categories.positions[None, :], zero, missing)(x), "N")


@converts(LABEL_BINARIZER)
def label_binarizer(m: Any, x: Node) -> Result:
    """`transform` gives pos_label in the column of the label's class, and neg_label elsewhere. For two classes there is only the last
    column, and for a single class there is one column of neg_label.

    For up to two classes unknown labels are rejected, because the source's result would have another shape.
    """
    if m.y_type_.startswith("multilabel"):
        raise Refusal("it was fitted on an indicator matrix, which it returns unchanged.", "Leave it out, or fit it on labels.")
    categories = read_categories(np.asarray(m.classes_), "the labels")
    if categories.strings != (x.type.dtype == "str"):
        if not categories.strings:
            raise Refusal("it was fitted on numbers, but is given strings.")
        raise StringsNeeded([0])
    x = t.reshape(checked(m, x), "N", 1)
    if categories.strings:
        x = known_values(LABEL_BINARIZER, x, [categories], ["y"]) if categories.size <= 2 else _no_none(x)
        codes = Categorize(categories.values, -1, -1, -1)(x)
        hits = t.equal(codes, np.arange(categories.size))
    else:
        common = dtype_name(np.result_type(NUMPY_DTYPES[x.type.dtype], categories.values.dtype))
        x = t.cast(x, common)
        values = categories.values.astype(NUMPY_DTYPES[common])
        if categories.size <= 2:
            x = known_values(LABEL_BINARIZER, x, [replace(categories, values=values)], ["y"])
        elif x.type.is_float:  # the source rejects numbers that are not whole, which are no labels
            x = checked(m, t.where(t.equal(t.floor(x), x), x, np.nan))
        hits = t.equal(x, values)
    hits = hits if categories.size > 2 else _last_column(hits, categories.size == 2)
    return t.where(hits, t.constant(m.pos_label, "i64"), t.constant(m.neg_label, "i64"))


def _no_none(x: Node) -> Node:
    """x, a column of strings. A call is rejected for None and NaN, where the source fails."""
    return CheckValues(
        LABEL_BINARIZER,
        allow_nan=True,
        allow_inf=True,
        min_rows=0,
        values=np.zeros((1, 0), "<U1"),
        counts=np.zeros(1, np.int64),
        nan=np.ones(1, bool),
        none=np.ones(1, bool),
        columns=("y",),
        allowed=False,
    )(x)


def _last_column(hits: Node, counts: bool) -> Node:
    last = SelectColumns(np.array([hits.type.columns - 1]))(hits)
    return last if counts else t.logical_and(last, t.constant(np.zeros(1, bool)))
