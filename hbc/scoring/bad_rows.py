"""Rows that the model rejects: `bisected` finds them in a batch."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any

from hbc.errors import InvalidInputError
from hbc.lazy import record


@record
class BadRow:
    """A row of a file that cannot be scored."""

    row: int
    """Its number in the file, from 0."""
    found: str
    expected: str
    column: str | None
    value: Any
    advice: str = ""

    def error(self, file: str) -> InvalidInputError:
        """The error that names the file, the row, the column and the value."""
        where = f"{file}, row {self.row} (the first is 0)"
        found = self.found
        if self.column is not None:
            where += f", column {self.column!r}"
            found += "" if self.value is None or str(self.value) in found else f" (the value {_shown(self.value)})"
        advice = f"{self.advice} To score the others: bad_rows=FILE, on the command line --bad-rows FILE.".lstrip()
        return InvalidInputError(found=found, expected=self.expected, where=where, advice=advice)

    def line(self, file: str) -> str:
        """The row in a file of bad rows: one line of JSON."""
        reason = f"found {self.found}, expected {self.expected}"
        no_json = isinstance(self.value, float) and not math.isfinite(self.value)
        value = str(self.value) if no_json else self.value
        facts = {"file": file, "row": self.row, "column": self.column, "value": value, "reason": reason}
        return json.dumps(facts, ensure_ascii=False, default=str) + "\n"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def bisected(batch: Any, answer: Callable[[Any], Any]) -> tuple[list[Any], list[tuple[int, InvalidInputError]]]:
    """(the answers for the good rows of a batch, in order; the number in the batch and the error of each bad row). `answer` raises
    InvalidInputError for a batch with a bad row. If it rejects the batch, and no single row of it, that error is raised.

    Each bad row takes as many calls as the batch can be halved: 16 for 65,536 rows."""
    answers: list[Any] = []
    bad: list[tuple[int, InvalidInputError]] = []

    def visit(part: Any, first: int) -> None:
        before = len(bad)
        try:
            answers.append(answer(part))
        except InvalidInputError as error:
            if part.num_rows <= 1:
                bad.append((first, error))
                return
            half = part.num_rows // 2
            visit(part.slice(0, half), first)
            visit(part.slice(half), first + half)
            if len(bad) == before:
                raise

    visit(batch, 0)
    return answers, bad


def first_bad(batch: Any, answer: Callable[[Any], Any]) -> tuple[int, InvalidInputError] | None:
    """The number and the error of the first row of a batch that `answer` rejects, None if it rejects no single row."""
    first, part = 0, batch
    while part.num_rows > 1:
        half = part.num_rows // 2
        try:
            answer(part.slice(0, half))
        except InvalidInputError:
            part = part.slice(0, half)
        else:
            first, part = first + half, part.slice(half)
    try:
        answer(part)
    except InvalidInputError as error:
        return first, error
    return None


def bad_row(
    row: int, error: InvalidInputError, batch: Any, index: int, good: int | None, answer: Callable[[Any], Any]
) -> BadRow:
    """The BadRow of a row of a file, which is that of the number `index` in the batch. good: the number of a row that `answer` takes."""
    facts = error.facts
    found = re.sub(r"(,| (at|in))? row 0\b", "", facts["found"])
    quoted = re.search(r"column (?:\d+ \()?(?:'(.*?)'|\"(.*?)\")", facts["where"])
    column = next((group for group in quoted.groups() if group), None) if quoted else None
    if column is None:
        column = _culprit(batch, index, good, answer) if good is not None else _named(batch.slice(index, 1), found)
    value = None if column is None or column not in batch.schema.names else _value(batch, column, index)
    return BadRow(row, found, facts["expected"], column, value, facts["advice"])


def _culprit(batch: Any, bad: int, good: int, answer: Callable[[Any], Any]) -> str | None:
    """The first column whose value in the bad row is rejected in the good row too; None if no single one is. Some errors are about all
    numbers of a row, and name no column."""
    one, other = batch.slice(good, 1), batch.slice(bad, 1)
    for place, name in enumerate(batch.schema.names):
        columns = [*one.columns[:place], other.column(place), *one.columns[place + 1 :]]
        try:
            answer(type(batch).from_arrays(columns, schema=batch.schema))
        except InvalidInputError:
            return str(name)
    return None


def _named(row: Any, found: str) -> str | None:
    """The only column whose value stands in the words of an error, None if there is none or several."""
    names = [name for name in row.schema.names if repr(_value(row, name, 0)) in found]
    return str(names[0]) if len(names) == 1 else None


def _value(batch: Any, name: str, index: int) -> Any:
    """The value of a column in a row. In a string that is no UTF-8, signs stand for the wrong bytes."""
    found = batch.column(name)[index]
    try:
        return found.as_py()
    except UnicodeDecodeError:
        return found.cast("binary").as_py().decode(errors="replace")


def good_row(batch: Any, first: int, answer: Callable[[Any], Any]) -> int | None:
    """The number of a row that `answer` takes, if all rows before `first` are such, or one of the next few is."""
    if first:
        return first - 1
    for index in range(1, min(batch.num_rows, 20)):
        try:
            answer(batch.slice(index, 1))
        except InvalidInputError:
            continue
        return index
    return None
