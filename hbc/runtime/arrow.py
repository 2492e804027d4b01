"""ArrowMethod: methods of a model for batches, tables and streams of Arrow. Arrow goes in, and Arrow comes out."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hbc.errors import BackendUnavailableError, InvalidInputError, counted
from hbc.ir.signature import Column
from hbc.ir.types import NUMPY_DTYPES, Array
from hbc.runtime.calls import ArrayCall, answers
from hbc.runtime.input.arrow_batch import ArrowBatch, Dictionaries, NoRows
from hbc.runtime.input.columns import listed, names_in_data, names_of, own_name
from hbc.runtime.input.frame_view import duplicates
from hbc.runtime.schema import NAMED_BY_CLASS

ROWS_AT_ONCE = 1 << 16
"""The most rows that are computed together. It bounds the memory beside the input: 15 MB for 30 columns."""
BYTES_AT_ONCE = 1 << 26
"""The most bytes of a result that are computed together: 64 MiB."""
MOST_COLUMNS = 10_000
"""The most columns of a result: a schema of 10,000 fields takes as long to write as a batch of them."""
DEFAULT = ("predict", "transform")
"""What `CompiledModel.arrow` takes if it is told no method: the first of these that the model has."""


class ArrowMethod:
    """Some methods of a model for Arrow. `CompiledModel.arrow` makes it.

    What it returns depends on what it is given:

    * a `pyarrow.RecordBatch`, or anything with `__arrow_c_array__`: a `pyarrow.RecordBatch`;
    * a `pyarrow.Table`: a `pyarrow.Table`, with a chunk for each chunk of the input;
    * a `pyarrow.RecordBatchReader`, or anything with `__arrow_c_stream__`: a `pyarrow.RecordBatchReader`, which computes a batch when asked
      for it.

    Frames of polars and pandas are such streams. Each batch is answered as the source answers the frame of pandas that Arrow makes of it
    (`batch.to_pandas()`), or an InvalidInputError names the column, and the row counted from the first one of the input. Columns are found
    by their names, in any order, and others are ignored; a model that was fitted without names takes them by position. A batch without rows
    gives one without rows.

    It may be called from several threads at once, and pickled with its model.

    Example:
        >>> import pyarrow
        >>> score = hbc.convert(forest).arrow("predict_proba")
        >>> score(pyarrow.table(list(X.T), names=["a", "b", "c", "d"])).column_names
        ['predict_proba_False', 'predict_proba_True']
    """

    methods: tuple[str, ...]
    """The names of the methods, in the order of their results."""
    columns: list[str] | None
    """The names of the columns that it reads. It is None if the model knows no names, and takes all columns, in order."""
    schema: Any
    """The pyarrow.Schema of what it returns. It is the same for every input. Where the source's dtype depends on that of the input
    (float32 in, float32 out), a column has the dtype that holds all of them."""

    def __init__(self, model: Any, calls: Sequence[ArrayCall], class_names: Sequence[str] | None) -> None:
        pa = _pyarrow()
        self.methods = tuple(call.method for call in calls)
        self._made_of = model, self.methods, class_names
        self._calls = tuple(calls)
        self._shared = shared = calls[0].shared
        self._spec = spec = shared.spec
        names = names_of(spec) or _own_names(model)
        read = {i for kinds in shared.variants for i, kind in enumerate(kinds) if kind != "unread"}
        self._fitted = (
            None if names is None or spec.ndim == 1 or spec.items else dict(zip(names, range(len(names)), strict=True))
        )
        if self._fitted is not None and spec.frames.by_name:
            self._fitted = {name: i for name, i in self._fitted.items() if i in read}
        self.columns = None if self._fitted is None else list(self._fitted)
        if shared.mixes_rows:
            raise ValueError(
                f"{model.info.source}: a row's result depends on the other rows of the call, so that batches of a table have other results "
                "than the table. Call the method with the whole table."
            )
        if spec.items not in ("", "documents"):
            raise ValueError(f"the model takes {spec.items}, and no columns: call its methods.")
        fields = [field for call in calls for field in _fields(call, model, class_names)]
        twice = (
            sorted({name for name, _ in fields if [other for other, _ in fields].count(name) > 1}) if len(fields) < 1000 else []
        )
        if twice:
            raise ValueError(
                f"methods: the results have two columns of one name ({', '.join(twice[:5])}). Ask for one method at a time."
            )
        self.schema = pa.schema(fields)
        self._rows = max(min(ROWS_AT_ONCE, BYTES_AT_ONCE // (8 * len(fields))), 1)
        self._dictionaries: Dictionaries = {}
        self._seen: tuple[Any, tuple[list[int] | None, Mapping[int, Column]]] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, self._made_of

    def __repr__(self) -> str:
        return f"<ArrowMethod {', '.join(self.methods)} of {self._made_of[0]!r}>"

    def __call__(self, source: Any, *, strings: Collection[str] = ()) -> Any:
        """The results for a batch, table or stream: see the class. Raises InvalidInputError for what the source rejects, at once if
        columns are missing; a stream raises it where it comes to the batch.

        strings: names of columns that are strings, and no categories, although they come as dictionaries. `pyarrow.parquet` reads strings
        so, in less time, if it is told to (`read_dictionary`)."""
        pa = _pyarrow()
        if isinstance(source, pa.RecordBatch):
            return self._one(list(self._answers([source], strings)))
        if isinstance(source, pa.Table):
            self._require_columns(source.schema)
            return pa.Table.from_batches(list(self._answers(source.to_batches(), strings)), self.schema)
        if isinstance(source, pa.RecordBatchReader):
            return self._stream(source, strings)
        if hasattr(source, "__arrow_c_stream__"):
            try:
                reader = pa.RecordBatchReader.from_stream(source)
            except (pa.ArrowException, TypeError) as error:
                raise _rejected(source, f" that is no stream of batches ({error})") from error
            return self._stream(reader, strings)
        if hasattr(source, "__arrow_c_array__"):
            try:
                batch = pa.record_batch(source)
            except (pa.ArrowException, TypeError) as error:
                raise _rejected(source, f" that is no batch ({error})") from error
            return self(batch, strings=strings)
        raise _rejected(source)

    def _stream(self, reader: Any, strings: Collection[str]) -> Any:
        self._require_columns(reader.schema)
        return _pyarrow().RecordBatchReader.from_batches(self.schema, self._answers(reader, strings))

    def _one(self, batches: list[Any]) -> Any:
        pa = _pyarrow()
        if len(batches) == 1:
            return batches[0]
        columns = [pa.concat_arrays([batch.column(i) for batch in batches]) for i in range(len(self.schema))]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _answers(self, batches: Any, strings: Collection[str]) -> Iterator[Any]:
        """Yields the results for batches, in pieces of at most `_rows` rows."""
        start = 0
        for batch in batches:
            for first in range(0, max(batch.num_rows, 1), self._rows):
                piece = batch.slice(first, self._rows) if batch.num_rows > self._rows else batch
                try:
                    yield self._answer(piece, strings)
                except (_pyarrow().ArrowException, UnicodeDecodeError) as error:
                    if "Wrapping" not in str(error) and not isinstance(error, UnicodeDecodeError):
                        raise
                    raise InvalidInputError(found="a string that is no UTF-8", expected="strings in UTF-8") from error
                except InvalidInputError as error:
                    if not start + first or not re.search(r"\brow \d", str(error)):
                        raise
                    where = f"{error.facts.get('where') or 'X'}, counting rows from row {start + first}"
                    raise InvalidInputError(**{**error.facts, "where": where}) from error
            start += batch.num_rows

    def _answer(self, batch: Any, strings: Collection[str]) -> Any:
        pa = _pyarrow()
        view = self._view(batch, strings)
        if not batch.num_rows:
            return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in self.schema], schema=self.schema)
        columns = [column for found in self._results(view) for column in _as_columns(found)]
        arrays = [_arrow(pa, column, field.type) for column, field in zip(columns, self.schema, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _results(self, view: ArrowBatch) -> list[Any]:
        """The result of each method. Those that need no more than the arrays of the input are computed together."""
        shared = self._shared
        X: Any = view
        if self._spec.items:
            if view.width != 1:
                raise InvalidInputError(found=counted(view.width, "column"), expected="one column of documents")
            X = view.column(0)
        together = [] if self._spec.items else [call for call in self._calls if call.answers_rows]
        found = {}
        if together:
            kinds, arrays = shared.intake(X)
            found = dict(zip(together, answers(together, shared.variants[kinds], arrays), strict=True))
        return [found[call] if call in found else call.result_for(X) for call in self._calls]

    def names_in(self, given: Sequence[str]) -> list[str]:
        """The names of the model's columns in data with these names, in order: its own for those that data lack. For models that know
        names (`columns`). Raises InvalidInputError if two names mean one column."""
        found = names_in_data(self._spec, self.columns or (), given)
        return [found.get(name, name) for name in self.columns or ()]

    def own_name(self, name: str) -> str:
        """The model's own name for a column of data."""
        return str(own_name(self._spec, self._fitted or (), name))

    def _require_columns(self, schema: Any) -> None:
        """Raise InvalidInputError for a schema without columns of the model."""
        self._layout(schema)

    def _view(self, batch: Any, strings: Collection[str]) -> ArrowBatch:
        """The columns of a batch that the model reads. Raises InvalidInputError if some are missing."""
        chosen, facts = self._layout(batch.schema)
        return ArrowBatch(batch if chosen is None else batch.select(chosen), facts, self._dictionaries, strings)

    def _layout(self, schema: Any) -> tuple[list[int] | None, Mapping[int, Column]]:
        """What `_chosen` returns. The last one is kept, since the batches of a stream have one schema. Raises InvalidInputError."""
        seen = self._seen
        if seen is not None and schema.equals(seen[0]):
            return seen[1]
        chosen, facts = self._chosen(schema)
        if self._spec.ndim != 1 and not self._spec.items:
            header = schema if chosen is None else _pyarrow().schema([schema.field(place) for place in chosen])
            self._shared.intake.positions(ArrowBatch(NoRows(header), facts, {}))
        self._seen = schema, (chosen, facts)
        return chosen, facts

    def _chosen(self, schema: Any) -> tuple[list[int] | None, Mapping[int, Column]]:
        """(the positions of the model's columns in a schema, or None for all of them; the facts about these, in that order)."""
        if self._fitted is None:
            return None, dict(enumerate(self._spec.columns))
        places: dict[str, int] = {}
        for place, name in enumerate(schema.names):
            if name in self._fitted and name in places:
                raise duplicates(name)
            places[name] = place
        given = names_in_data(self._spec, list(self._fitted), schema.names)
        present = [name for name in self._fitted if name in given]
        if len(present) < len(self._fitted) and names_of(self._spec) is None:  # otherwise the test of the names says it
            missing = [name for name in self._fitted if name not in given]
            raise InvalidInputError(
                found=f"a table without the columns {listed(missing)}",
                expected=f"the names of fit, {listed(list(self._fitted))}",
                advice="Rename the columns that hold them.",
            )
        facts = {at: self._spec.columns[self._fitted[name]] for at, name in enumerate(present)}
        return [places[given[name]] for name in present], facts


def _own_names(model: Any) -> tuple[str, ...] | None:
    """The names that a source knows and does not compare: LightGBM takes the columns of a frame by their position, whatever their names."""
    names = getattr(model, "feature_names_in_", None)
    return None if names is None else tuple(map(str, names))


def _again(model: Any, methods: tuple[str, ...], class_names: Sequence[str] | None) -> ArrowMethod:
    return model.arrow(methods, class_names=class_names)


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise BackendUnavailableError(backend="pyarrow", reason="not installed", extra="frames", kind="library") from error
    return pyarrow


def _rejected(source: Any, what: str = "") -> InvalidInputError:
    return InvalidInputError(
        found=f"a {type(source).__name__}{what}",
        expected="a batch, table or stream of Arrow (an object with __arrow_c_stream__ or __arrow_c_array__)",
        advice="The model's own methods take arrays, lists and records.",
    )


# --- the schema of the results -----------------------------------------------------------------------------------------


def _fields(call: ArrayCall, model: Any, class_names: Sequence[str] | None) -> list[tuple[str, Any]]:
    """(name, type) of each column of a method's result. Raises ValueError for a result that columns cannot hold."""
    method, shared = call.method, call.shared
    results = [variant.source.glance().outputs[method] for variant in shared.variants.values()]
    classes = model.schema.outputs[method].classes
    frame = shared.info.frames.get(method)
    if frame is not None and max(frame.origins, default=-1) >= 0:
        raise ValueError(
            f"{method} returns unchanged columns of the input in a frame. Convert the model after "
            'set_output(transform="default"), or keep these columns of the input yourself.'
        )
    fields: list[tuple[str, Any]] = []
    for index, nodes in enumerate(zip(*results, strict=True)):
        shape = tuple(map(int, nodes[0].type.shape[1:]))
        size = int(np.prod(shape))
        if len(fields) + size > MOST_COLUMNS:
            raise ValueError(
                f"{method} has {size:,} numbers a row, and a batch of Arrow would have as many columns; the most are {MOST_COLUMNS:,}. "
                f"Call model.{method}, which can return a sparse matrix."
            )
        own = classes[index] if len(results[0]) > 1 and classes is not None and isinstance(classes[0], tuple) else classes
        kind = _type_of(call, [node.type.dtype for node in nodes], own)
        prefix = f"{method}_{index}" if len(results[0]) > 1 else method
        given = own if class_names is None else class_names
        if method in NAMED_BY_CLASS and own is not None and shape == (len(own),) and not isinstance(own[0], tuple):
            if given is None or len(given) != len(own):
                raise ValueError(
                    f"class_names: found {counted(len(given or ()), 'name')}, expected {len(own)}, in the order of classes_."
                )
            fields += [(f"{prefix}_{name}", kind) for name in given]
        else:
            places = itertools.product(*map(range, shape))
            fields += [("_".join([prefix, *map(str, place)]), kind) for place in places]
    if frame is not None:
        return [(str(name), kind) for name, (_, kind) in zip(frame.names, fields, strict=True)]
    return fields


def _type_of(call: ArrayCall, kinds: Sequence[str], classes: Any) -> Any:
    """The Arrow type that holds a method's result for every variant of the model. Raises ValueError for other Python objects."""
    pa = _pyarrow()
    known = call.shared.info.output_dtypes.get(call.method)
    dtype = np.dtype(known) if known is not None else np.result_type(*{NUMPY_DTYPES[kind] for kind in kinds})
    if dtype.kind in "fiub":
        return pa.from_numpy_dtype(dtype)
    types = {type(value) for group in classes or () for value in (group if isinstance(group, tuple) else (group,))}
    for python, arrow in ((bool, pa.bool_()), (int, pa.int64()), (float, pa.float64())):
        if types == {python}:
            return arrow
    if types <= {str}:
        return pa.string()
    found = ", ".join(sorted(kind.__name__ for kind in types))
    raise ValueError(f"{call.method} returns Python objects of several types ({found}), which a column of Arrow cannot hold.")


# --- results as columns ------------------------------------------------------------------------------------------------


def _as_columns(found: Any) -> Iterator[Array]:
    """Yields the columns of a result: an array, a list of several, or a sparse matrix."""
    for array in found if isinstance(found, list) else [found]:
        whole = array.toarray() if hasattr(array, "toarray") else array
        if whole.ndim == 1:
            yield whole
        else:
            yield from whole.reshape(len(whole), -1).T


def _arrow(pa: Any, column: Array, kind: Any) -> Any:
    """A column of a result in Arrow's form. Raises InvalidInputError for a number that the type of the schema does not hold."""
    try:
        if column.dtype.kind in "OUT":
            return pa.array(column, kind, from_pandas=True)
        stored = np.packbits(column, bitorder="little") if column.dtype.kind == "b" else np.ascontiguousarray(column)
        buffers = [None, pa.py_buffer(stored)]  # pa.array imports pandas, which takes longer than hbc does
        return pa.Array.from_buffers(pa.from_numpy_dtype(column.dtype), len(column), buffers).cast(kind)
    except pa.ArrowException as error:
        raise InvalidInputError(
            found=f"a result that the column's type {kind} does not hold ({error})",
            expected="columns of one dtype",
            advice="Cast the columns of the input to the dtype that the model was fitted with.",
        ) from error
