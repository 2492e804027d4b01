"""Scorer: a model and what is asked of it, for batches of raw columns of a file."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Collection
from pathlib import Path
from typing import Any

from hbc.errors import ArtifactError, InvalidInputError, counted
from hbc.lazy import record
from hbc.loaded import loaded_once
from hbc.scoring.formats import require_header
from hbc.scoring.inputs import Fragment
from hbc.scoring.readers import STRINGS, Reader, require_columns

DTYPES = ("float32", "float64")
_LABEL = re.compile(r"predict(_\d+)*")
"""The names of the columns of `predict`, also of several targets."""


@record
class Options:
    """What is asked of the model, as plain data, which a worker elsewhere can be sent."""

    digest: str
    """The SHA-256 of the model's file: a worker refuses another one."""
    methods: tuple[str, ...] = ()
    """Empty: predict, or transform, or the model's first method."""
    keep: tuple[str, ...] = ()
    """The columns of the input that are passed on, before the results."""
    dtype: str | None = None
    """The dtype of results that are no whole numbers and no labels. None: the source's own."""
    memory: int = 1 << 29
    """The bytes that the data of one file may take at a time, in all its stages."""
    separator: str | None = None
    partition_types: tuple[tuple[str, str], ...] = ()
    """The type of each column of the partitions, "int64" or "string", of all files together."""
    backend: str | None = None
    device: str | None = None


@record
class Plan:
    """Which columns of a file are read, and what becomes of them."""

    read: tuple[str, ...]
    """The columns that are read from the file, in the order of its batches."""
    given: tuple[str, ...]
    """The columns that the model takes, in order, of the file or its partitions."""
    fields: tuple[Any, ...]
    """The pyarrow fields of the columns that are kept."""
    schema: Any
    """The pyarrow.Schema of the output: what is kept, then the results."""
    partitions: dict[str, Any]
    """Column → its only value, as a pyarrow scalar, for the columns of partitions that are kept or given to the model."""
    strings: tuple[str, ...]
    """The columns of `given` that are strings, also where the reader gives dictionaries."""
    text: bool
    """All columns are text, of which the model's numbers are made (CSV)."""
    bools: Collection[str] = ()
    """The columns of text with the words of bool, as the Reader finds them."""


class Scorer:
    """A model with the methods that are asked for. It may be used from several threads at once."""

    def __init__(self, model: Any, options: Options) -> None:
        import pyarrow as pa

        self.model, self.options = model, options
        self.method = model.arrow(list(options.methods) or None)
        columns = model.schema.columns
        self._kinds = [
            "text"
            if column.dtype == "str" or (column.name is None and column.dtype is None)
            else None
            if column.kind == "unread"
            else "number"
            for column in columns
        ]
        names = [column.name for column in columns]
        # The method knows LightGBM's names, which the source does not compare.
        known = self.method.columns if None in names else names
        self._by_name = {} if self.method.columns is None else dict(zip(known, self._kinds, strict=True))
        facts = zip(self._by_name, model.spec.columns, strict=False)  # none without names
        self._of_integers = {name for name, fact in facts if {*map(type, fact.category_values)} == {int}}
        cast = None if options.dtype is None else pa.from_numpy_dtype(options.dtype)
        output = model.schema.outputs.get("predict")
        classifies = output is not None and output.classes is not None  # a label that is a float stays what it is
        self.fields = [
            pa.field(field.name, cast)
            if cast is not None and pa.types.is_floating(field.type) and not (classifies and _LABEL.fullmatch(field.name))
            else pa.field(field.name, field.type)
            for field in self.method.schema
        ]
        self._pa = pa
        names = [field.name for field in self.fields]
        if twice := [name for name in options.keep if name in names or options.keep.count(name) > 1]:
            raise ValueError(
                f"keep: found {twice[0]!r}, which is the name of another column of the output; expected names that occur once"
            )

    def kind(self, name: str) -> str | None:
        """How the model reads a column of text: "number", "text", or None if it does not."""
        if self.method.columns is not None:
            return self._by_name.get(self.method.own_name(name))
        return None if name in self.options.keep else self._kinds[0] if len(set(self._kinds)) == 1 else "text"

    def plan(self, reader: Reader, fragment: Fragment) -> Plan:
        """What is read from a file. Raises InvalidInputError if columns are missing, of the model's or of those to keep."""
        pa, keep, name = self._pa, self.options.keep, fragment.input
        types = dict(self.options.partition_types)
        folders = dict(fragment.partitions)
        if self.method.columns is None:
            given = [column for column in reader.names if column not in keep]
            if fragment.format == "csv":
                require_header(name, given, self.model.schema.columns)
            if len(given) != len(self._kinds):
                raise InvalidInputError(
                    found=f"{counted(len(given), 'column')} besides those that are kept",
                    expected=f"{len(self._kinds)}",
                    where=name,
                    advice="The model knows no names of columns, so the file must have its columns only, in their order.",
                )
        else:
            given = self.method.names_in([*reader.names, *folders])
        wanted = list(dict.fromkeys([*given, *keep]))
        chosen = [column for column in wanted if column in folders]
        if both := [column for column in chosen if column in reader.names]:
            raise InvalidInputError(
                found=f"a column {both[0]!r}, and a folder that gives its value ({both[0]}={folders[both[0]]})",
                expected="one of the two",
                where=name,
            )
        named = [column for column, _ in fragment.partitions]
        if twice := [column for column in chosen if named.count(column) > 1]:
            raise InvalidInputError(found=f"two folders that give the column {twice[0]!r}", expected="one", where=name)
        in_file = [column for column in wanted if column not in folders]
        in_file = in_file or reader.names[:1]  # for the number of rows
        require_columns(name, reader.names, [column for column in in_file if column in given], "the columns of the model")
        require_columns(name, reader.names, [column for column in in_file if column in keep], "the columns to keep")
        partitions = {}
        for column in chosen:
            whole = types.get(column) == "int64" and self.kind(column) != "text"
            value = folders[column]
            partitions[column] = pa.scalar(
                int(value) if whole and value is not None else value, pa.int64() if whole else pa.string()
            )
        found = dict(zip(in_file, reader.fields(in_file), strict=True))
        fields = [
            pa.field(column, partitions[column].type if column in partitions else _plain(found[column].type)) for column in keep
        ]
        schema = pa.schema([*fields, *self.fields])
        strings = [column for column in given if column in found and str(found[column].type) in STRINGS]
        text, bools = fragment.format == "csv", getattr(reader, "bools", ())
        return Plan(tuple(in_file), tuple(given), tuple(fields), schema, partitions, tuple(strings), text, bools)

    def kept(self, plan: Plan, batch: Any) -> list[Any]:
        """The columns of a raw batch that are passed on."""
        return [
            self._constant(plan, field.name, batch.num_rows)
            if field.name in plan.partitions
            else _decoded(batch.column(field.name), field.type)
            for field in plan.fields
        ]

    def floats(self, plan: Plan, batch: Any) -> frozenset[str]:
        """The columns of text in a raw batch whose integers float64 must hold. A row alone does not tell."""
        from hbc.scoring.text_readers import mixes_numbers

        read = self._kinds_of(plan) if plan.text else []
        return frozenset(name for name, kind in read if kind == "number" and mixes_numbers(batch.column(name)))

    def _kinds_of(self, plan: Plan) -> list[tuple[str, str | None]]:
        """The columns of `plan.given` that are in the file, and how the model reads them."""
        kinds = self._kinds if self.method.columns is None else map(self.kind, plan.given)
        return [(name, kind) for name, kind in zip(plan.given, kinds, strict=True) if name not in plan.partitions]

    def answer(self, plan: Plan, batch: Any, floats: Collection[str] = ()) -> Any:
        """The results for a raw batch. floats: as `self.floats` gives them for a batch of which this is a part. Raises InvalidInputError
        if a row is bad."""
        from hbc.scoring.text_readers import numbers, strings

        columns = []
        kinds = dict(self._kinds_of(plan))
        for name in plan.given:
            if name in plan.partitions:
                columns.append(self._constant(plan, name, batch.num_rows))
                continue
            column, kind = batch.column(name), kinds[name]
            if plan.text and kind is not None:
                try:
                    column = numbers(column, name in plan.bools, name in floats) if kind == "number" else strings(column)
                except InvalidInputError as error:
                    raise InvalidInputError(**{**error.facts, "where": f"X, column {name!r}"}) from error
            columns.append(_whole(column) if self.method.own_name(name) in self._of_integers else column)
        results = self.method(self._pa.RecordBatch.from_arrays(columns, list(plan.given)), strings=plan.strings)
        arrays = [
            column if column.type == field.type else column.cast(field.type)
            for column, field in zip(results.columns, self.fields, strict=True)
        ]
        return self._pa.RecordBatch.from_arrays(arrays, schema=self._pa.schema(self.fields))

    def _constant(self, plan: Plan, name: str, rows: int) -> Any:
        return self._pa.repeat(plan.partitions[name], rows)


def _plain(kind: Any) -> Any:
    """The type of a kept column in the output: that of its values, for a dictionary."""
    import pyarrow as pa

    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _decoded(column: Any, kind: Any) -> Any:
    return column if column.type == kind else column.cast(kind)


def _whole(column: Any) -> Any:
    """A column of floats as int64, if it holds whole numbers, as categories are that are integers: CSV does not tell them apart, and pandas
    makes floats of integers with missing values. Other columns as they are."""
    import pyarrow as pa

    if not pa.types.is_floating(column.type):
        return column
    try:
        return column.cast(pa.int64())
    except pa.ArrowInvalid:  # a fraction, or a number that is too large
        return column


# --- the scorer of a saved model --------------------------------------------------------------------------------------------

_given: dict[tuple[str, Options], list[Scorer]] = {}
_lock = threading.Lock()


def scorer_of(model: str, options: Options, data: bytes | None = None) -> Scorer:
    """The Scorer of a saved model, which is loaded once in a process. data: the bytes of its file, which itself may be out of reach. Raises
    what `hbc.load` raises, and ArtifactError if the file is not that of `options.digest`."""

    def read() -> bytes:
        contents = Path(model).read_bytes() if data is None else data
        if hashlib.sha256(contents).hexdigest() != options.digest:
            raise ArtifactError(
                path=model, found="another model than at the start", expected="the file that the run was started with"
            )
        return contents

    with _lock:
        if given := _given.get((model, options)):
            return given[-1]
    loaded = loaded_once(options.digest, read, model, options.device, options.backend)  # type: ignore[arg-type]
    return Scorer(loaded, options)


def give_scorer(model: str, options: Options, scorer: Scorer) -> None:
    """Let `scorer_of` return this one in this process until `forget_scorer`: of a model that is loaded already. Calls of `hbc.score` at
    the same time may give several for the same options."""
    with _lock:
        _given.setdefault((model, options), []).append(scorer)


def forget_scorer(model: str, options: Options) -> None:
    """Take back what one `give_scorer` gave."""
    with _lock:
        given = _given[model, options]
        given.pop()
        if not given:
            del _given[model, options]


def digest_of(model: str) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    return hashlib.sha256(Path(model).read_bytes()).hexdigest()
