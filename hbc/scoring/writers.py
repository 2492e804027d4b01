"""Writes results as Parquet, Feather, a stream of Arrow, CSV or JSON lines."""

from __future__ import annotations

import contextlib
import datetime
import decimal
import errno
import itertools
import json
import math
import os
import sys
from collections.abc import Iterator
from typing import Any

from hbc.errors import ArtifactError
from hbc.scoring.places import Place, writing

GROUP_ROWS = 1 << 17
"""The most rows of a row group, or of a batch in a Feather file."""
GROUP_BYTES = 1 << 26
"""The most bytes of a row group before it is packed, by the size of the first rows: 64 MiB. The bounds do not depend on the memory that
the user allows: a run that goes on with less memory writes the same bytes."""
FIRST_ROWS = 1024


class Writer:
    """Writes batches of one schema. `write` and `close` raise OSError if the place is full."""

    def __init__(self, sink: Any, schema: Any, form: str, compression: str) -> None:
        import pyarrow as pa

        self._pa, self._schema, self._form = pa, schema, form
        self._waiting: list[Any] = []
        self._rows = 0
        self._group: int | None = None
        self._inner: Any
        self._sink = sink
        packed = None if compression == "none" else compression
        if form == "parquet":
            from pyarrow import parquet

            self._inner = parquet.ParquetWriter(sink, schema, compression=compression)
        elif form in ("feather", "stream"):
            new = pa.ipc.new_file if form == "feather" else pa.ipc.new_stream
            self._inner = new(sink, schema, options=pa.ipc.IpcWriteOptions(compression=packed))
        else:
            if packed is not None:
                self._sink = pa.CompressedOutputStream(sink, packed)
            if form == "csv":
                from pyarrow import csv

                self._inner = csv.CSVWriter(self._sink, schema)

    def write(self, batch: Any) -> None:
        """Write a batch, or keep it until a row group is full."""
        if self._form == "jsonl":
            self._sink.write(json_lines(batch))
        elif self._form == "csv" and len(self._schema) == 1 and batch.column(0).null_count:
            self._write_with_blanks(batch)
        elif self._form in ("csv", "stream"):
            self._inner.write_batch(batch)
        elif batch.num_rows:
            if self._group is None:
                first = batch.slice(0, FIRST_ROWS)
                self._group = max(1, min(GROUP_ROWS, GROUP_BYTES * first.num_rows // max(first.nbytes, 1)))
            self._waiting.append(batch)
            self._rows += batch.num_rows
            while self._rows >= self._group:
                self._write_group(self._group)

    def _write_with_blanks(self, batch: Any) -> None:
        """Write one column as CSV, with "" for null, as pandas does: null would be an empty line, which most readers skip."""
        valid, first = batch.column(0).is_valid().to_pylist(), 0
        for one, run in itertools.groupby(valid):
            rows = len(list(run))
            if one:
                self._inner.write_batch(batch.slice(first, rows))
            else:
                self._sink.write(b'""\n' * rows)
            first += rows

    def _write_group(self, rows: int) -> None:
        """Write the first `rows` of the waiting batches as one group."""
        taken, left = [], rows
        while left:
            batch = self._waiting.pop(0)
            taken.append(batch.slice(0, left))
            if batch.num_rows > left:
                self._waiting.insert(0, batch.slice(left))
            left -= taken[-1].num_rows
        self._rows -= rows
        table = self._pa.Table.from_batches(taken, self._schema)
        if self._form == "parquet":
            self._inner.write_table(table, row_group_size=rows)
        else:
            for batch in table.combine_chunks().to_batches():  # several if the strings of a column have more than 2 GiB
                self._inner.write_batch(batch)

    def close(self) -> None:
        """Write what waits, and the end of the file."""
        if self._rows:
            self._write_group(self._rows)
        if self._form != "jsonl":
            self._inner.close()
        if isinstance(self._sink, self._pa.CompressedOutputStream):
            self._sink.close()

    def abandon(self) -> None:
        """Forget what is not written yet: nothing is written later, when Python removes the object."""
        if self._form == "parquet":
            self._inner.is_open = False


@contextlib.contextmanager
def writer_to(place: Place | None, schema: Any, form: str, compression: str, name: str) -> Iterator[Writer]:
    """A context with a Writer to a place (None: standard output). name: what messages call it. Raises ArtifactError for types that the
    format does not hold, and for a place that cannot be written to."""
    import pyarrow as pa

    with writing(name), contextlib.ExitStack() as stack:
        if place is None:
            if sys.stdout is None:
                raise OSError(errno.EBADF, "it is closed")
            own = stack.enter_context(open(os.dup(sys.stdout.fileno()), "wb"))  # closing it does not close standard output
            sink = stack.enter_context(pa.PythonFile(own, "w"))
        elif place.local:
            sink = stack.enter_context(pa.OSFile(place.path, "wb"))
        else:
            sink = stack.enter_context(pa.PythonFile(stack.enter_context(place.fs.open(place.path, "wb")), "w"))
        try:
            writer = Writer(sink, schema, form, compression)
            try:
                yield writer
                writer.close()
            except BaseException:
                writer.abandon()
                raise
            if not sink.closed:
                sink.flush()
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, UnicodeDecodeError) as error:
            raise ArtifactError(
                path=name,
                found=f"columns that {form} does not hold ({error})",
                expected="columns of numbers, strings and times",
                advice="Choose another format: output_format, --output-format parquet.",
            ) from error


def json_lines(batch: Any) -> bytes:
    """The rows of a batch as JSON, one a line. NaN and infinities are null there, as pandas writes them."""
    names = [json.dumps(name, ensure_ascii=False) + ": " for name in batch.schema.names]
    columns = [_json_values(column) for column in batch.columns]
    return b"".join(
        ("{" + ", ".join(map(str.__add__, names, values)) + "}\n").encode() for values in zip(*columns, strict=True)
    )


def _json_values(column: Any) -> list[str]:
    values = column.to_pylist()
    return [json.dumps(_finite(value), ensure_ascii=False, default=_json_value) for value in values]


def _finite(value: Any) -> Any:
    """The value with None for NaN and infinities, also in lists and structs."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, (list, tuple)) else value


def _json_value(value: Any) -> str:
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return str(value)
    import pyarrow as pa

    raise pa.ArrowNotImplementedError(f"a {type(value).__name__} has no form in JSON")
