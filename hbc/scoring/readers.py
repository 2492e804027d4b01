"""Reads Parquet and Arrow in batches of bounded size. A Reader gives the columns that are asked for."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from hbc.errors import ArtifactError, HbcError, InvalidInputError, counted, meant
from hbc.lazy import record
from hbc.scoring.bad_rows import BadRow
from hbc.scoring.formats import PIPE
from hbc.scoring.places import ADVICE, place_of

BUFFER = 1 << 20
"""Bytes that are read at a time of each column of a Parquet file: without it, pyarrow reads all bytes of a column of a row group."""
STRINGS = ("string", "large_string")
"""Arrow's types of strings, which may be read as dictionaries."""
CODED_ROWS = 1 << 14
"""The fewest rows of a batch, and of a row group on average, for which strings are read as dictionaries: each row group has a dictionary of
its own, at which pyarrow ends a batch."""
CODED_BYTES, MOST_CODED = 2, 1 << 25
"""The most bytes a value, and of a column in a row group, that strings read as dictionaries take in the file. They bound the dictionary,
which grows by all strings of the row group that are not in the file's own."""


@record
class Piece:
    """Some rows of a file, in order."""

    batch: Any
    """A pyarrow.RecordBatch of the columns that were asked for."""
    first: int
    """The number of its first row in the file, from 0."""
    share: float
    """How much of the file is read, from 0 to 1."""
    bad: tuple[BadRow, ...] = ()
    """Lines that hold no row. They stand before `first`, or between the rows, and count as rows."""
    gaps: Sequence[int] = ()
    """The numbers of the lines that hold no row, ascending, from those before `first` to those of this piece or later."""

    def number(self, index: int) -> int:
        """The number in the file of a row of the batch."""
        found = self.first + index
        for gap in self.gaps:
            if gap > found:
                break
            found += 1
        return found


class Reader(Protocol):
    """An open file."""

    names: list[str]
    """Its columns."""

    def fields(self, columns: Sequence[str]) -> list[Any]:
        """The pyarrow.Field of some columns, as `pieces` gives them."""
        ...

    def pieces(self, columns: Sequence[str], rows: int, at_once: int) -> Iterator[Piece]:
        """Yields the rows in pieces of at most `rows`, with these columns in this order. at_once: the bytes of text to read together."""
        ...


@contextlib.contextmanager
def reading(name: str, form: str) -> Iterator[None]:
    """A context in which errors of a library become an ArtifactError that names the file."""
    try:
        yield
    except (HbcError, FileNotFoundError):
        raise
    except (OSError, ValueError, KeyError, NotImplementedError, TypeError, EOFError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ArtifactError(
            path=name,
            found=f"a file that cannot be read ({reason})",
            expected=f"a whole file of the format {form}",
            advice=ADVICE,
        ) from error


@contextlib.contextmanager
def raw(name: str, mapped: bool = False) -> Iterator[Any]:
    """A context with the bytes of a file as a pyarrow file. mapped: as memory, which costs none. Raises ArtifactError for a pipe or a
    device, which cannot be read twice."""
    import pyarrow as pa

    place = place_of(name)
    if place.local:
        if place.exists() and not os.path.isfile(place.path):
            advice = f"A stream of Arrow can be piped: {PIPE!r} as the source. Write other formats to a file."
            raise ArtifactError(path=name, found="a pipe or a device", expected="a regular file", advice=advice)
        with (pa.memory_map if mapped else pa.OSFile)(place.path, "r") as file:
            yield file
    else:
        with place.fs.open(place.path, "rb") as inner, pa.PythonFile(inner, "r") as file:
            yield file


class ParquetReader:
    """Reads Parquet page by page, so that a large row group takes no more memory than a small one.

    Strings that the model reads come as dictionaries where the file has them so, and `fields` says that they are strings. 1,000,000 rows of
    20 numbers and 10 strings take 0.20 s of a core to read then, instead of 0.45, and 0.23 to score, instead of 0.34 (znver5).

    texts: name → how the model reads a column of text, as for `opened`."""

    def __init__(self, source: Any, texts: Callable[[str], str | None]) -> None:
        self._source, self._texts = source, texts
        self._file = _parquet(source)
        self._schema = self._file.schema_arrow
        self._rows = self._file.metadata.num_rows
        self.names: list[str] = _without_index(self._schema)

    def fields(self, columns: Sequence[str]) -> list[Any]:
        return [self._schema.field(name) for name in columns]

    def pieces(self, columns: Sequence[str], rows: int, at_once: int) -> Iterator[Piece]:
        first, coded = 0, self._coded(columns, rows)
        file = _parquet(self._source, metadata=self._file.metadata, read_dictionary=coded) if coded else self._file
        for batch in file.iter_batches(rows, columns=list(columns)):
            done = first + batch.num_rows
            yield Piece(batch.select(list(columns)), first, done / max(self._rows, 1))
            first = done
        if first != self._rows:
            raise ValueError(f"{counted(first, 'row')} of the {self._rows} that its end tells")

    def width(self, columns: Sequence[str]) -> int:
        """The bytes of a row of these columns, as they are stored, in the row group where they are the most. Strings may be short in the
        first rows, and long in others. (Those of a dictionary may take more memory than this.)"""
        metadata, wanted = self._file.metadata, set(columns)
        paths = [metadata.schema.column(place).path for place in range(metadata.num_columns)]
        chosen = [
            place for place, path in enumerate(paths) if path in wanted or path.split(".")[0] in wanted
        ]  # a name may have dots
        groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
        sizes = [
            sum(group.column(place).total_uncompressed_size for place in chosen) // max(group.num_rows, 1) for group in groups
        ]
        return max(sizes, default=0)

    def _coded(self, columns: Sequence[str], rows: int) -> list[str]:
        """The columns of these that are read as dictionaries: of strings that the model reads, few different ones."""
        metadata = self._file.metadata
        if rows < CODED_ROWS or self._rows < CODED_ROWS * metadata.num_row_groups:
            return []
        texts = [name for name in columns if self._texts(name) == "text" and str(self._schema.field(name).type) in STRINGS]
        places = {metadata.schema.column(place).path: place for place in range(metadata.num_columns)} if texts else {}
        groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)] if texts else []
        return [name for name in texts if all(_few(group.column(places[name])) for group in groups)]


def _parquet(source: Any, **options: Any) -> Any:
    """A pyarrow.parquet.ParquetFile. pre_buffer would hold whole row groups (arrow#39808). Without the checksums, damaged numbers would be
    scored."""
    from pyarrow import parquet

    return parquet.ParquetFile(source, buffer_size=BUFFER, pre_buffer=False, page_checksum_verification=True, **options)


def _few(chunk: Any) -> bool:
    """Whether a column of a row group has a dictionary, and few bytes."""
    size = chunk.total_uncompressed_size
    return bool(chunk.has_dictionary_page and size <= min(CODED_BYTES * chunk.num_values, MOST_CODED))


class ArrowReader:
    """Reads an Arrow file (Feather), or a stream of batches. A batch of the file is the unit: one that is packed is unpacked whole."""

    def __init__(self, source: Any, pipe: bool) -> None:
        import pyarrow as pa

        self._pa, self._source = pa, source
        self._is_file = not pipe and source.read(6) == b"ARROW1"
        if not pipe:
            source.seek(0)
        if self._is_file:
            self._schema = pa.ipc.open_file(source).schema
            source.seek(0)
        else:
            self._stream = pa.ipc.open_stream(source)
            self._schema = self._stream.schema
        self.names: list[str] = _without_index(self._schema)

    def fields(self, columns: Sequence[str]) -> list[Any]:
        return [self._schema.field(name) for name in columns]

    def pieces(self, columns: Sequence[str], rows: int, at_once: int) -> Iterator[Piece]:
        first = 0
        for batch, share in self._batches(columns):
            chosen = batch.select(list(columns))
            for start in range(0, chosen.num_rows, rows):
                part = chosen.slice(start, rows)
                yield Piece(part, first + start, share)
            first += chosen.num_rows

    def _batches(self, columns: Sequence[str]) -> Iterator[tuple[Any, float]]:
        if self._is_file:
            chosen = [self._schema.get_field_index(name) for name in columns]
            options = self._pa.ipc.IpcReadOptions(included_fields=chosen)
            self._source.seek(0)
            file = self._pa.ipc.open_file(self._source, options=options)
            for index in range(file.num_record_batches):
                yield file.get_batch(index), (index + 1) / file.num_record_batches
        else:
            for batch in self._stream:
                yield batch, 0.0


def _without_index(schema: Any) -> list[str]:
    """The names of the columns, without the index that pandas writes beside them."""
    stored = (schema.pandas_metadata or {}).get("index_columns", ())
    index = {name for name in stored if isinstance(name, str) and name.startswith("__index_level_")}
    return [name for name in schema.names if name not in index]


def require_columns(file: str, names: Sequence[str], wanted: Sequence[str], why: str) -> None:
    """Raise InvalidInputError unless each wanted column is there once."""
    missing = [name for name in wanted if name not in names]
    if missing:
        close = meant(missing[0], list(names)) if len(missing) == 1 else ""
        between = next((sign for sign in ";\t|" if len(names) == 1 and sign in names[0]), "")
        option = f"separator={between!r}, on the command line --separator"
        other = f" If {between!r} stands between columns: {option}." if between else ""
        raise InvalidInputError(
            found=f"no column {', '.join(map(repr, missing[:10]))}{close}{' …' if len(missing) > 10 else ''}",
            expected=why,
            where=file,
            advice=f"The file has the columns {', '.join(map(repr, names[:20]))}{' …' if len(names) > 20 else ''}.{other}",
        )
    twice = [name for name in wanted if list(names).count(name) > 1]
    if twice:
        raise InvalidInputError(found=f"two columns {twice[0]!r}", expected="one of each name", where=file)
