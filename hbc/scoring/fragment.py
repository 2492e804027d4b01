"""`score_fragment` scores one file into one file. It is the unit of work: a thread, or a worker of another engine, calls it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

from hbc.errors import ArtifactError, InvalidInputError
from hbc.scoring.bad_rows import BadRow, bad_row, bisected, first_bad, good_row
from hbc.scoring.formats import PIPE
from hbc.scoring.inputs import Fragment, changed_since
from hbc.scoring.opening import opened
from hbc.scoring.overlap import ahead
from hbc.scoring.places import ADVICE, Place, place_of
from hbc.scoring.readers import ParquetReader, Piece, Reader, reading
from hbc.scoring.scorer import Options, Plan, Scorer, scorer_of
from hbc.scoring.writers import writer_to

MOST_ROWS = 1 << 16
"""The most rows that are computed together."""
TRIED = 1000
"""The rows that a trial reads of each file. If so many first rows are all bad, the file is not one for this model."""
STAGES = 16
"""The share of the memory for one batch: some five are on their way at a time, each with what is made of it."""

Tell = Callable[[int, float], None]
"""Is told the rows of a batch that was written, and the share of the file that is done (0 to 1). It may raise, to end the work."""


def score_fragment(model: str, fragment: Fragment, options: Options, tell: Tell | None = None) -> dict[str, Any]:
    """Score one file, and return what was done: input, output, rows, bad_rows, output_bytes and seconds.

    model: the path of a saved model. All arguments but `tell` are plain data that can be pickled. The same arguments give the same bytes.
    The output appears under its name when it is whole; if two workers score one fragment, both write the same.

    Raises ArtifactError for a file that cannot be read, has changed since the start or cannot be written; InvalidInputError for columns
    that are missing, and for a bad row unless `fragment.rejected` names a file for them.
    """
    started = time.perf_counter()
    scorer = scorer_of(model, options)
    output = place_of(fragment.output)
    folder = place_of(fragment.work) if fragment.work else output.parent
    output.parent.make_folder()
    require_unchanged(fragment)
    with _rejects(fragment, folder) as reject, opened(fragment, options.separator, scorer.kind) as reader:
        plan = scorer.plan(reader, fragment)
        with output.aside(folder) as temporary:
            rows = 0
            with (
                writer_to(temporary, plan.schema, fragment.output_format, fragment.compression, fragment.output) as writer,
                contextlib.closing(ahead(results(scorer, plan, reader, fragment, reject))) as found,
            ):
                for batch, share in found:
                    writer.write(batch)
                    rows += batch.num_rows
                    if tell is not None:
                        tell(batch.num_rows, share)
            require_unchanged(fragment)
    return {
        "input": fragment.input,
        "output": fragment.output,
        "rows": rows,
        "bad_rows": reject.count,
        "output_bytes": output.size(),
        "seconds": round(time.perf_counter() - started, 3),
    }


def try_fragment(model: str, fragment: Fragment, options: Options) -> dict[str, Any]:
    """Compute the first rows of a file and write nothing. Returns input, rows, bad_rows and columns, the names of the output's columns.
    Raises what `score_fragment` raises."""
    scorer = scorer_of(model, options)
    reject = Rejects(fragment.input, bool(fragment.rejected))
    with opened(fragment, options.separator, scorer.kind) as reader:
        plan = scorer.plan(reader, fragment)
        rows = 0
        for piece in _pieces(reader, plan, fragment, TRIED, 1 << 20):
            part = Piece(piece.batch.slice(0, TRIED - rows), piece.first, piece.share, piece.bad, piece.gaps)
            rows += _answered(scorer, plan, part, fragment.input, reject).num_rows
            if rows >= TRIED:
                break
    return {"input": fragment.input, "rows": rows, "bad_rows": reject.count, "columns": plan.schema.names}


def results(scorer: Scorer, plan: Plan, reader: Reader, fragment: Fragment, reject: Rejects) -> Generator[tuple[Any, float]]:
    """Yields (a batch of the output, the share of the file that is done). Another thread reads ahead."""
    rows, at_once = _sizes(scorer.options.memory, plan, reader, fragment)
    with contextlib.closing(ahead(_pieces(reader, plan, fragment, rows, at_once))) as pieces:
        for piece in pieces:
            yield _answered(scorer, plan, piece, fragment.input, reject), piece.share


def _pieces(reader: Reader, plan: Plan, fragment: Fragment, rows: int, at_once: int) -> Generator[Piece]:
    with reading(fragment.input, fragment.format):
        yield from reader.pieces(plan.read, rows, at_once)


def _sizes(memory: int, plan: Plan, reader: Reader, fragment: Fragment) -> tuple[int, int]:
    """(the rows of a batch, the bytes of text that are read together) that fit into the memory."""
    share = max(memory // STAGES, 1)
    at_once = max(min(share // 2, 1 << 23), 1 << 16)
    width = 8 * (len(plan.given) + len(plan.schema))
    if fragment.format in ("parquet", "feather") and fragment.input != PIPE:
        with contextlib.closing(_pieces(reader, plan, fragment, 1024, at_once)) as pieces:
            first = next(pieces, None)
        stored = reader.width(plan.read) if isinstance(reader, ParquetReader) else 0
        if first is not None and first.batch.num_rows:
            width += max(first.batch.nbytes // first.batch.num_rows, stored)
    return max(min(share // width, MOST_ROWS), 1), at_once


def _answered(scorer: Scorer, plan: Plan, piece: Piece, name: str, reject: Rejects) -> Any:
    """The output for a piece: what is kept, and the results, null for a bad row."""
    import pyarrow as pa

    batch, bad = piece.batch, list(piece.bad)
    floats: frozenset[str] = frozenset()

    def answer(part: Any) -> Any:
        return scorer.answer(plan, part, floats)

    if bad and not reject.allowed:
        reject(bad[0])
    try:
        found = answer(batch)
    except InvalidInputError as error:
        floats = scorer.floats(plan, batch)
        if not reject.allowed:
            first = first_bad(batch, answer) if batch.num_rows else None
            if first is None:
                raise _in_file(name, error) from error
            index, wrong = first
            raise bad_row(piece.number(index), wrong, batch, index, good_row(batch, index, answer), answer).error(
                name
            ) from error
        head = batch.slice(0, TRIED)
        if piece.first == 0 and head.num_rows == TRIED and not bisected(head, answer)[0]:
            raise InvalidInputError(**{**error.facts, "where": f"{name}, all of its first {TRIED} rows"}) from error
        try:
            answers, bad_ones = bisected(batch, answer)
        except InvalidInputError as error:  # it rejects the batch, and no row of it
            raise _in_file(name, error) from error
        wrongs = {index for index, _ in bad_ones}
        good = next((index for index in range(batch.num_rows) if index not in wrongs), None)
        bad += [bad_row(piece.number(index), wrong, batch, index, good, answer) for index, wrong in bad_ones]
        found = _with_nulls(pa, answers, [index for index, _ in bad_ones], batch.num_rows, scorer.fields)
    for each in sorted(bad, key=lambda each: each.row):
        reject(each)
    return pa.RecordBatch.from_arrays([*scorer.kept(plan, batch), *found.columns], schema=plan.schema)


def _in_file(name: str, error: InvalidInputError) -> InvalidInputError:
    """The same error, with the name of the file."""
    return InvalidInputError(**{**error.facts, "where": f"{name}, {error.facts['where']}"})


def _with_nulls(pa: Any, answers: Sequence[Any], bad: Sequence[int], rows: int, fields: Sequence[Any]) -> Any:
    """The answers for the good rows, with nulls in between for the bad ones."""
    import numpy as np

    good = np.ones(rows, bool)
    good[list(bad)] = False
    places = pa.array(np.cumsum(good) - 1, mask=~good)
    table = pa.Table.from_batches(answers, pa.schema(fields)).combine_chunks().take(places).combine_chunks()
    return table.to_batches()[0] if rows else table.schema.empty_table()


class Rejects:
    """Takes the bad rows of a file: counts and writes them, or raises the first one as an error. opened: gives the file to write to at the
    first bad row, or None."""

    def __init__(self, name: str, allowed: bool, opened: Callable[[], Any] = lambda: None) -> None:
        self._name, self._opened, self._file = name, opened, None
        self.allowed = allowed
        self.count = 0

    def __call__(self, bad: BadRow) -> None:
        if not self.allowed:
            raise bad.error(self._name)
        if not self.count:
            self._file = self._opened()
        self.count += 1
        if self._file is not None:
            self._file.write(bad.line(self._name).encode())


@contextlib.contextmanager
def _rejects(fragment: Fragment, folder: Place) -> Iterator[Rejects]:
    """A context with the Rejects of a fragment, whose file appears at its end, if there are bad rows."""
    if not fragment.rejected:
        yield Rejects(fragment.input, False)
        return
    place = place_of(fragment.rejected)
    place.remove()
    with contextlib.ExitStack() as stack:

        def opened() -> Any:
            place.parent.make_folder()
            temporary = stack.enter_context(place.aside(folder))
            return stack.enter_context(temporary.fs.open(temporary.path, "wb"))

        yield Rejects(fragment.input, True, opened)


def require_unchanged(fragment: Fragment) -> None:
    """Raise ArtifactError if the input is another file than when the run was planned."""
    if fragment.input != PIPE and changed_since(fragment):
        raise ArtifactError(
            path=fragment.input,
            found="a file that was changed after the start",
            expected="files that stay as they are while they are scored",
            advice=ADVICE,
        )


def score_to_stdout(
    model: str,
    fragments: Sequence[Fragment],
    options: Options,
    bad_rows: Place | None,
    teller: Callable[[Fragment], Tell],
) -> dict[str, Any]:
    """Score fragments one after another to one stream on standard output. Returns rows and bad_rows. Raises what `score_fragment` raises,
    and InvalidInputError if the kept columns of two files have different types. A stream of Arrow that an error ends has no end mark."""
    scorer = scorer_of(model, options)
    done = {"rows": 0, "bad_rows": 0}
    with contextlib.ExitStack() as stack:
        file = None
        if bad_rows is not None:
            temporary = stack.enter_context(bad_rows.aside(bad_rows.parent))
            file = stack.enter_context(temporary.fs.open(temporary.path, "wb"))
        writer, schema = None, None
        for fragment in fragments:
            require_unchanged(fragment)
            reject, tell = Rejects(fragment.input, bad_rows is not None, lambda: file), teller(fragment)
            with opened(fragment, options.separator, scorer.kind) as reader:
                plan = scorer.plan(reader, fragment)
                if writer is None:
                    schema = plan.schema
                    writer = stack.enter_context(
                        writer_to(None, schema, fragment.output_format, fragment.compression, "standard output")
                    )
                if not plan.schema.equals(schema):
                    raise InvalidInputError(
                        found=f"columns to keep of other types ({plan.schema})".replace("\n", ", "),
                        expected=f"those of the first file ({schema})".replace("\n", ", "),
                        where=fragment.input,
                    )
                with contextlib.closing(ahead(results(scorer, plan, reader, fragment, reject))) as found:
                    for batch, share in found:
                        writer.write(batch)
                        done["rows"] += batch.num_rows
                        tell(batch.num_rows, share)
            require_unchanged(fragment)
            done["bad_rows"] += reject.count
    return done
