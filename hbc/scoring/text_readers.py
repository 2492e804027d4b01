"""Reads CSV and JSON lines. The model says what a column of text is: a number, or a string."""

from __future__ import annotations

import codecs
import contextlib
import csv
import io
import json
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from hbc.errors import InvalidInputError, counted
from hbc.scoring.bad_rows import BadRow
from hbc.scoring.formats import MISSING, is_number, separator_of, suffixes_of
from hbc.scoring.inputs import Fragment
from hbc.scoring.readers import Piece, Reader, raw

Texts = Callable[[str], str | None]
FIRST_BLOCK = 1 << 20
DEEPEST = 200
"""The most levels of lists and objects in a line of JSON. Python's own reader, and `_rounds`, could go to some 450."""
EXACT = 2**53
"""From here on float64 does not hold all integers."""
BOOLS = ("true", "True", "TRUE", "false", "False", "FALSE")
"""The words of a column of bool: those of pandas.read_csv."""


def text_reader(fragment: Fragment, separator: str | None, texts: Texts, stack: contextlib.ExitStack) -> Reader:
    """The Reader of a CSV file or of JSON lines. Files that it opens are closed with `stack`."""

    def opened() -> tuple[Any, Callable[[], float]]:
        import pyarrow as pa

        file = stack.enter_context(raw(fragment.input))
        packed = suffixes_of(fragment.input)[1]
        stream = file if packed == "none" else stack.enter_context(pa.CompressedInputStream(file, packed))
        size = max(fragment.size or 1, 1)
        return stream, lambda: min(file.tell() / size, 1.0)

    if fragment.format == "csv":
        return CsvReader(opened, separator_of(fragment.input, separator), texts)
    return JsonReader(opened, texts)


class CsvReader:
    """Reads CSV with a header. All columns are text here: `numbers` makes numbers of those that the model reads so. pyarrow would fix the
    types by the first rows, and fail at a later row of another type."""

    bools: set[str]
    """The columns of numbers whose first value is the word of a bool. pandas has columns of one or the other, so that a later value of
    the other kind is an error. `pieces` adds a column before it yields its first value."""

    def __init__(self, opened: Callable[[], tuple[Any, Callable[[], float]]], separator: str, texts: Texts) -> None:
        self._opened, self._separator, self._texts = opened, separator, texts
        self.bools = set()
        stream, _ = opened()
        lines = csv.reader(io.TextIOWrapper(io.BufferedReader(_Plain(stream)), "utf-8-sig", newline=""), delimiter=separator)
        header = next((line for line in lines if line), None)
        if header is None:
            raise ValueError("no line, where one with the names of the columns is expected")
        self.names: list[str] = header

    def fields(self, columns: Sequence[str]) -> list[Any]:
        import pyarrow as pa

        return [pa.field(name, pa.string()) for name in columns]

    def pieces(self, columns: Sequence[str], rows: int, at_once: int) -> Iterator[Piece]:
        import pyarrow as pa
        from pyarrow import csv

        bad: list[BadRow] = []
        gaps: list[int] = []
        end = secrets.token_hex(8) + self._separator * len(self.names)  # one value more than the header has
        ended = []

        def not_a_row(line: Any) -> str:
            if line.text == end:
                ended.append(True)
                return "skip"
            number = line.number - 2  # it counts from 1, with the header
            found = f"a line of {counted(line.actual_columns, 'value')}"
            bad.append(BadRow(number, found, f"{line.expected_columns}, as in the header", None, line.text[:200]))
            gaps.append(number)
            return "skip"

        stream, share = self._opened()
        found = csv.open_csv(
            _Plain(stream, f"\n{end}".encode()),
            csv.ReadOptions(block_size=at_once, use_threads=False),  # with threads, it may not know the number of a bad line
            csv.ParseOptions(delimiter=self._separator, newlines_in_values=True, invalid_row_handler=not_a_row),
            csv.ConvertOptions(include_columns=list(columns), column_types=dict.fromkeys(columns, pa.string())),
        )
        undecided = [name for name in columns if self._texts(name) == "number"]
        first = 0
        for batch in found:
            undecided = [name for name in undecided if not self._decided(name, batch.column(name))]
            for start in range(0, max(batch.num_rows, 1), rows):
                yield _piece(batch.slice(start, rows), first + start, share(), bad, gaps)
            first += batch.num_rows
        if bad:
            yield _piece(pa.RecordBatch.from_pylist([], pa.schema(self.fields(columns))), first, 1.0, bad, gaps)
        if not ended:  # pyarrow takes the rest of the file for the value, and pandas rejects it
            raise ValueError("a quote that opens and is not closed")

    def _decided(self, name: str, values: Any) -> bool:
        """Whether a column of numbers has its first value among these, which says whether it is one of bool."""
        import pyarrow as pa
        from pyarrow import compute

        known = values.filter(compute.invert(compute.is_in(values, value_set=pa.array(MISSING))))
        if len(known) and known[0].as_py() in BOOLS:
            self.bools.add(name)
        return bool(len(known))


def _piece(batch: Any, first: int, share: float, waiting: list[BadRow], gaps: Sequence[int]) -> Piece:
    """The Piece with those of the waiting lines that stand before its end. They wait no longer. pyarrow tells of lines before it gives
    the rows that stand above them."""
    end = Piece(batch, first, share, (), gaps).number(batch.num_rows)
    told = tuple(each for each in waiting if each.row < end)
    del waiting[: len(told)]
    return Piece(batch, first, share, told, gaps)


class _Plain(io.RawIOBase):
    """The bytes of a pyarrow stream, and then `end`. A read gives all bytes that are asked for, as long as there are any: pyarrow's reader
    of CSV fails at a first block without the end of a line, such as a header alone."""

    def __init__(self, stream: Any, end: bytes = b"") -> None:
        self._stream, self._end = stream, end

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = bytes(self._stream.read(size))
        while size < 0 or len(data) < size:
            more = bytes(self._stream.read(size if size < 0 else size - len(data)))
            if not more:
                room = len(self._end) if size < 0 else size - len(data)
                data, self._end = data + self._end[:room], self._end[room:]
                break
            data += more
        return data

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


class JsonReader:
    """Reads JSON lines: an object a line. A key that a line lacks is a missing value, but some line of the first block must have it."""

    def __init__(self, opened: Callable[[], tuple[Any, Callable[[], float]]], texts: Texts) -> None:
        self._stream, self._share = opened()
        self._texts, self._rest = texts, b""
        self._first = self._block(FIRST_BLOCK).removeprefix(codecs.BOM_UTF8)  # programs of Windows write it
        if self._first.lstrip()[:1] == b"[":
            raise ValueError("a list, where each line should be an object of its own")
        self._guessed = self._inferred()
        self.names: list[str] = self._guessed.names

    def _inferred(self) -> Any:
        """The schema of the lines of the first block that can be read. The first value of a column says whether it has numbers, strings
        or others: a line with a value of another kind is a bad row, if that column is read."""
        import pyarrow as pa

        found: dict[str, Any] = {}
        block = self._first
        tables, bad = self._tables(block, None)
        while bad and not tables:
            mixed = next(filter(None, (re.search(r"Column\(/(.*?)/.*\) changed", what) for _, what, *_ in bad)), None)
            if mixed is None or mixed.group(1) in found:
                row, what, *_ = bad[0]
                raise ValueError(f"row {row}, {what}")
            # A list of values of several kinds, in every line: no type of Arrow has them. The column may be one that nothing reads.
            found[mixed.group(1)] = pa.field(mixed.group(1), pa.string())
            block = _without(mixed.group(1), block)
            tables, bad = self._tables(block, None)
        for table in tables:
            for field in table.schema:
                both = [pa.schema([each]) for each in (found.get(field.name), field) if each is not None]
                with contextlib.suppress(pa.ArrowTypeError):
                    found[field.name] = pa.unify_schemas(both, promote_options="permissive").field(0)
        return pa.schema(list(found.values()))

    def fields(self, columns: Sequence[str]) -> list[Any]:
        import pyarrow as pa

        found = []
        for name in columns:
            kind, guessed = self._texts(name), self._guessed.field(name).type
            if kind == "number":
                chosen = guessed if pa.types.is_boolean(guessed) else pa.float64()
            elif kind is not None or pa.types.is_null(guessed):
                chosen = pa.string()
            else:
                chosen = _without_times(guessed)
            found.append(pa.field(name, chosen))
        return found

    def pieces(self, columns: Sequence[str], rows: int, at_once: int) -> Iterator[Piece]:
        import pyarrow as pa

        schema = pa.schema(self.fields(columns))
        block, first = self._first, 0
        while block:
            tables, bad = self._tables(block, schema)
            told = [BadRow(first + row, *rest) for row, *rest in bad]
            gaps, at = [each.row for each in told], 0
            for table in tables or [schema.empty_table()]:
                for batch in table.select(list(columns)).combine_chunks().to_batches(rows) or [None]:
                    batch = batch or pa.RecordBatch.from_pylist([], schema)
                    yield _piece(batch, first + at, self._share(), told, gaps)
                    at += batch.num_rows
            first += at + len(gaps)
            block = self._block(at_once)

    def _block(self, size: int) -> bytes:
        """The next whole lines, about `size` bytes. Empty at the end of the file."""
        data = self._rest
        while True:
            more = self._stream.read(size)
            data += more
            end = data.rfind(b"\n") + 1
            if not more:
                self._rest = b""
                return data if data.strip() else b""
            if end and data[:end].strip():
                self._rest = data[end:]
                return data[:end]

    def _tables(self, block: bytes, schema: Any) -> tuple[list[Any], list[tuple[int, str, str, str | None, Any]]]:
        """(the tables of the lines that can be read, in order; number, found, expected, column and value of each other line)."""
        if not block.strip():
            return [], []
        try:
            return [self._table(block, schema)], []
        except ValueError:
            lines = [line for line in block.split(b"\n") if line.strip()]
        tables, bad = [], []

        def visit(part: list[bytes], first: int) -> None:
            try:
                tables.append(self._table(b"\n".join(part), schema))
            except ValueError as error:
                if len(part) == 1:
                    bad.append((first, *_told(part[0], error, schema)))
                    return
                visit(part[: len(part) // 2], first)
                visit(part[len(part) // 2 :], first + len(part) // 2)

        visit(lines, 0)
        return tables, bad

    def _table(self, block: bytes, schema: Any) -> Any:
        """The table of a block of lines. schema: the columns to read; None: all, of the types that they seem to have. Raises ValueError."""
        import pyarrow as pa
        from pyarrow import json as arrow_json

        if _NO_OBJECT.search(block):  # pyarrow 26 crashes at a first line `null`
            raise ValueError("a line that is no object")
        lines = len(_LINE.findall(block))
        if _is_deep(block, lines):  # pyarrow crashes at 100,000 levels
            raise ValueError(
                f"more than {DEEPEST} levels of lists and objects in a line, or an object that the line does not end"
            )
        block.decode()  # pyarrow passes wrong UTF-8 on
        if schema is None:
            parsing = arrow_json.ParseOptions(unexpected_field_behavior="infer")
        else:
            parsing = arrow_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
        try:
            table = arrow_json.read_json(pa.BufferReader(block), arrow_json.ReadOptions(block_size=len(block) + 1), parsing)
        except pa.ArrowException as error:  # not all of them are a ValueError
            raise ValueError(str(error)) from error
        if table.num_rows != lines:
            raise ValueError("several objects in a line")
        if schema is not None and _LARGE.search(block):
            doubtful = [field for field in schema if "double" in str(field.type)]
            for line in block.split(b"\n") if doubtful else ():
                item = json.loads(line) if line.strip() else {}
                for field in doubtful:
                    if _rounds(item.get(field.name), field.type):
                        raise ValueError(f"Column(/{field.name}) was rounded")
        return table


_NO_OBJECT = re.compile(rb"^[ \t\r]*[^ \t\r\n{]", re.MULTILINE)
_LINE = re.compile(rb"^[ \t\r]*\{", re.MULTILINE)
_OPEN_END = re.compile(rb"[^} \t\r\n][ \t\r]*$", re.MULTILINE)
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"')
_INTEGER = re.compile(r"[+-]?\d+", re.ASCII)
_LARGE = re.compile(rb"[^.\d]-?\d{16,}(?![.\deE])")
"""An integer that float64 may not hold, or its digits in a string."""


def _is_deep(block: bytes, lines: int) -> bool:
    """Whether lines that begin with an object may have more than DEEPEST lists and objects in one another, or an object that goes on in the
    next line. The usual block is known by the numbers of its signs."""
    ended = block.count(b"}\n") + block.endswith(b"}")
    if ended != lines and _OPEN_END.search(block):
        return True
    if block.count(b"[") + block.count(b"{") - lines < DEEPEST:
        return False
    return any(_depth(line) > DEEPEST for line in block.split(b"\n"))


def _depth(line: bytes) -> int:
    """How many lists and objects of a line of JSON are in one another."""
    signs = np.frombuffer(_STRING.sub(b"", line), np.uint8)
    opened, closed = (np.isin(signs, np.frombuffer(brackets, np.uint8)).astype(np.int64) for brackets in (b"[{", b"]}"))
    return int(np.cumsum(opened - closed).max(initial=0))


def _without(name: str, block: bytes) -> bytes:
    """The lines of a block without a key of their objects. Lines that are no JSON stay as they are."""

    def line_without(line: bytes) -> bytes:
        try:
            item = json.loads(line)
        except (ValueError, RecursionError):
            return line
        return (
            json.dumps({key: value for key, value in item.items() if key != name}).encode() if isinstance(item, dict) else line
        )

    return b"\n".join(line_without(line) for line in block.split(b"\n") if line.strip())


def _rounds(value: Any, kind: Any) -> bool:
    """Whether a value of JSON has an integer that its column of this Arrow type would round."""
    import pyarrow as pa

    if pa.types.is_floating(kind):
        return isinstance(value, int) and not _is_held(str(value))
    if pa.types.is_struct(kind) and isinstance(value, dict):
        return any(_rounds(value.get(field.name), field.type) for field in kind)
    return pa.types.is_list(kind) and isinstance(value, list) and any(_rounds(each, kind.value_type) for each in value)


def _is_held(text: str) -> bool:
    """Whether float64 holds a number. Those with a fraction or an exponent count as held."""
    if not _INTEGER.fullmatch(text):
        return True
    try:
        return int(float(text)) == int(text)
    except (OverflowError, ValueError):  # more than 308 digits, more than 4,300
        return False


def _without_times(kind: Any) -> Any:
    """The Arrow type with strings for times: pyarrow takes strings for times where all look so."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_without_times(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(_without_times(kind.value_type))
    return pa.string() if pa.types.is_temporal(kind) else kind


def _told(line: bytes, error: ValueError, schema: Any) -> tuple[str, str, str | None, Any]:
    """(found, expected, column, value) of a line that cannot be read."""
    text = line.decode(errors="replace").strip()
    column = re.search(r"Column\(/(.*?)\) (changed|was (?:specified twice|rounded)?)", str(error))
    try:
        item = json.loads(text)
    except RecursionError:
        return f"a line that cannot be read ({error})", "an object", None, text[:200]
    except ValueError as wrong:
        return f"a line that is no JSON ({wrong})", "an object", None, text[:200]
    name = column.group(1) if column else None
    if "\ufffd" in text and "\ufffd".encode() not in line:
        return "a line that is no UTF-8", "an object in UTF-8", None, text[:200]
    if column and isinstance(item, dict) and name in item and schema is not None:
        found, expected = f"a value of the type {type(item[name]).__name__}", f"one of the type {schema.field(name).type}"
        if column.group(2).endswith("twice"):
            found, expected = "a key that occurs twice", "one value"
        elif column.group(2).endswith("rounded"):
            found, expected = "an integer that float64 does not hold", "a smaller one, or a string"
        return found, expected, name, item[name]
    return f"a line that cannot be read ({error})", "an object", None, text[:200]


def numbers(values: Any, bools: bool = False, floats: bool = False) -> Any:
    """The numbers of a column of text: float64, or int64 where float64 does not hold them, unless `floats`. bools: of one of the words for
    True and False. Raises InvalidInputError for other text, and for integers that would be rounded."""
    import pyarrow as pa
    from pyarrow import compute

    values = strings(values)
    if bools:
        if not compute.all(compute.is_in(values, value_set=pa.array([*BOOLS, None])), min_count=0).as_py():
            raise InvalidInputError(
                found="text that is no bool", expected="True, False or a missing value, as in the rows above"
            )
        return compute.cast(compute.cast(compute.utf8_lower(values), pa.bool_()), pa.float64())
    try:
        found = compute.cast(values, pa.float64())
    except pa.ArrowInvalid:
        values = compute.utf8_trim_whitespace(values)  # " NA" is text to pandas too, which the source rejects
        try:
            found = compute.cast(values, pa.float64())
        except pa.ArrowInvalid as error:
            raise InvalidInputError(found="text that is no number", expected="a number or a missing value") from error
    large = _large(found)
    if not large.any():
        return found
    if not floats:
        with contextlib.suppress(pa.ArrowInvalid):
            return compute.cast(values, pa.int64())
    if not all(map(_is_held, compute.unique(values.filter(pa.array(large))).to_pylist())):
        raise InvalidInputError(
            found="an integer of 2**53 or more beside other numbers or missing values",
            expected="integers that float64 holds",
            advice="pandas would round it. Keep the column in Parquet, with a type of its own.",
        )
    return found


def mixes_numbers(values: Any) -> bool:
    """Whether a column of text has missing values or numbers with a fraction, so that float64 must hold its integers. Text that is no
    number does not count."""
    from pyarrow import compute

    values = strings(values)
    if values.null_count:
        return True
    others = values.filter(compute.invert(compute.match_substring_regex(values, r"^\s*[+-]?\d+\s*$")))
    return any(is_number(text) for text in compute.unique(others).to_pylist())


def _large(values: Any) -> Any:
    """Whether each number of a column of float64 is from 2**53 on; False for null."""
    array = np.abs(values.fill_null(0).to_numpy(zero_copy_only=False))
    with np.errstate(invalid="ignore"):
        return array >= EXACT


def strings(values: Any) -> Any:
    """A column of text with null for the words that mean a missing value.

    The nulls are an array: with one null for all, pyarrow before 24 reads other memory if `values` is a part of a longer array."""
    import pyarrow as pa
    from pyarrow import compute

    missing = compute.is_in(values, value_set=pa.array(MISSING))
    return compute.if_else(missing, pa.nulls(len(values), pa.string()), values)
