"""`hbc.score`: a model, files to score, and where the results go."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import os
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from numbers import Integral
from pathlib import Path
from typing import Any

from hbc.arguments import flag, require, require_function, texts
from hbc.errors import ArtifactError, meant
from hbc.lazy import record
from hbc.process import cpus
from hbc.runtime.model import CompiledModel
from hbc.scoring.formats import PIPE, require_format, separator_of
from hbc.scoring.inputs import fragments_of, partition_types
from hbc.scoring.job import ENGINES, Job, Progress
from hbc.scoring.places import place_of, same_file
from hbc.scoring.scorer import DTYPES, Options, Scorer, digest_of, forget_scorer, give_scorer, scorer_of

BESIDE_DATA = 400 << 20
"""The bytes that Python, hbc with its compiler, and pyarrow take themselves."""
LEAST = 64 << 20
UNITS = {
    "": 1,
    "b": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "ki": 1 << 10,
    "mi": 1 << 20,
    "gi": 1 << 30,
    "ti": 1 << 40,
}


@record
class Summary:
    """What `hbc.score` did."""

    output: str | None
    """The file or folder of the results."""
    files: int
    """The files that were scored."""
    files_before: int
    """The files that an earlier start had finished."""
    rows: int
    """The rows of all of them."""
    bad_rows: int
    """The rows among them that could not be scored."""
    columns: tuple[str, ...]
    """The columns of the output. Empty if no file was opened."""
    seconds: float
    left_out: tuple[str, ...] = ()
    """The files of folders and globs that were not scored, since their suffixes name no format. Hidden ones, and those that begin with _,
    are not among them."""

    def json(self) -> dict[str, Any]:
        """The summary as a dict, which `json.dumps` writes."""
        return asdict(self)


def score(
    model: CompiledModel | str | os.PathLike[str],
    source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    sink: str | os.PathLike[str] | None,
    *,
    methods: str | Sequence[str] | None = None,
    keep: str | Sequence[str] = (),
    dtype: str | None = None,
    input_format: str | None = None,
    output_format: str | None = None,
    compression: str | None = None,
    separator: str | None = None,
    memory: str | int = "1GiB",
    workers: int | None = None,
    bad_rows: str | os.PathLike[str] | None = None,
    restart: bool = False,
    dry_run: bool = False,
    engine: str | None = None,
    engine_address: str | None = None,
    backend: str | None = None,
    device: str | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Summary:
    """Score files of any size in bounded memory, and go on where an earlier start was stopped. docs/scoring.md has all of it.

    Args:
        model: a CompiledModel, or the path of a saved one.
        source: files, folders, globs and URLs of fsspec, one or several; "-" for a stream of Arrow on standard input. Parquet, Feather (or
            Arrow), CSV and JSON lines are told by their suffixes. Folders such as `year=2026` are columns too.
        sink: the folder of the results, with one file for each input under the same name; or a file, for one input; "-" for a stream of
            Arrow on standard output. None with `dry_run`.
        methods: what to compute, by default `predict`, or `transform`.
        keep: columns of the input to pass on, before the results.
        dtype: "float32" or "float64" for results that are no whole numbers and no labels. By default the source's own.
        input_format, output_format: "parquet", "feather", "stream", "csv" or "jsonl". By default the suffix tells the input's, and
            the output has the same.
        compression: of the output, such as "zstd". By default snappy for Parquet, lz4 for Feather, none for others.
        separator: between the values of CSV that is read. By default a comma, or a tab in .tsv.
        memory: about the most that the process takes, such as "1GiB", or a number of bytes: more than 400 MiB.
        workers: files that are scored at a time, by default one for every four processors, or as many as the engine has workers.
        bad_rows: a file for the rows that cannot be scored, a line of JSON each. Their results are null. By default one is an error.
        restart: remove what an earlier start has written, and begin anew.
        dry_run: check the columns and compute the first 1,000 rows of each file, and write nothing.
        engine: "ray", "spark" or "dask": its workers score the files, and must see them under the same names. By default threads of this
            process.
        engine_address: of its cluster, such as "ray://host:10001", "spark://host:7077" or "tcp://host:8786". By default the one that this
            process is connected to, or workers on this computer.
        backend, device: as in `hbc.load`.
        progress: is called with a Progress after each batch.

    Returns:
        A Summary.

    Raises:
        InvalidInputError: a column is missing, or a row is bad.
        ArtifactError: a file cannot be read or written, another run writes to the same place, or an earlier start had another model, other
            options or other inputs.
        FileNotFoundError: a source names nothing.
        ValueError: an option is wrong.

    Example:
        >>> import pandas
        >>> pandas.DataFrame(X).add_prefix("c").to_parquet("rows.parquet")
        >>> hbc.score(hbc.convert(forest), "rows.parquet", "scored.parquet").rows
        200
    """
    started = time.perf_counter()
    try:
        named = [source] if isinstance(source, (str, os.PathLike)) else list(source)
    except TypeError:  # no iterable, or an array without axes
        named = [source]  # type: ignore[list-item]
    if wrong := [each for each in named if not isinstance(each, (str, os.PathLike))]:
        advice = "A model's own methods take data in memory."
        raise TypeError(
            f"source: found {type(wrong[0]).__name__}, expected the names of files, folders, globs or URLs. {advice}"
        )
    sources = [os.fspath(each) for each in named]
    target = None if sink is None else os.fsdecode(sink)
    plain = {
        "dtype": dtype,
        "input_format": input_format,
        "output_format": output_format,
        "compression": compression,
        "separator": separator,
        "engine": engine,
        "engine_address": engine_address,
        "backend": backend,
        "device": device,
    }
    for name, text in plain.items():
        require(name, text, str, "a string or None")
    require("bad_rows", bad_rows, (str, os.PathLike), "the name of a file or None")
    require("workers", workers, Integral, "a positive integer or None")
    require("memory", memory, (str, int), "a number of bytes, such as 1GiB or 500MB")
    require_function("progress", progress)
    restart, dry_run = flag("restart", restart), flag("dry_run", dry_run)
    separator_of("", separator)
    _check(target, dtype, input_format, output_format, dry_run, engine, engine_address, sources)
    asked = tuple(() if methods is None else _names("methods", methods, "the name of a method, or several"))
    planned = fragments_of(sources, target, input_format, output_format, compression)
    fragments = planned.fragments
    at_once = max(1, min(len(fragments), workers or max(1, cpus() // 4))) if engine is None else 1
    with contextlib.ExitStack() as stack:
        path = _path_of(model, engine, stack)
        options = Options(
            digest=_digest_of(model, path),
            methods=asked,
            keep=tuple(_names("keep", keep, "the name of a column, or several")),
            dtype=dtype,
            memory=max(_bytes(memory) - BESIDE_DATA, LEAST) // at_once,
            separator=separator,
            partition_types=partition_types(fragments),
            backend=backend,
            device=device,
        )
        if isinstance(model, CompiledModel):
            give_scorer(path, options, Scorer(model, options))
            stack.callback(forget_scorer, path, options)
        scorer = scorer_of(path, options)
        names = (*options.keep, *(field.name for field in scorer.fields))
        job = Job(path, fragments, planned.folder, options, None if bad_rows is None else place_of(bad_rows), progress)
        if bad_rows is not None:
            _require_free(job, path)
        if dry_run:
            found, before = job.try_all(restart), 0
        elif target == PIPE:
            found, before = [job.to_stdout()], 0
        else:
            found, before = job.run(restart, at_once if engine is None else workers, engine, engine_address)
    return Summary(
        output=None if dry_run else target,
        files=len(fragments) - before,
        files_before=before,
        rows=sum(each["rows"] for each in found),
        bad_rows=sum(each["bad_rows"] for each in found),
        columns=names,
        seconds=round(time.perf_counter() - started, 3),
        left_out=planned.left_out,
    )


# --- arguments -------------------------------------------------------------------------------------------------------------


def _check(
    sink: str | None,
    dtype: str | None,
    input_format: str | None,
    output_format: str | None,
    dry_run: bool,
    engine: str | None,
    engine_address: str | None,
    sources: Sequence[str],
) -> None:
    """Raise ValueError for an option that is wrong in itself."""
    if dtype is not None and dtype not in DTYPES:
        raise ValueError(f"dtype: found {dtype!r}, expected one of {', '.join(DTYPES)}")
    for form in (input_format, output_format):
        if form is not None:
            require_format(form)
    if sink is None and not dry_run:
        raise ValueError("sink: found None, expected a file or folder for the results, '-', or dry_run=True")
    if engine is not None and engine not in ENGINES:
        raise ValueError(f"engine: found {engine!r}, expected one of {', '.join(ENGINES)}{meant(engine, list(ENGINES))}")
    if engine is None and engine_address is not None:
        raise ValueError(f"engine_address: found {engine_address!r} without an engine, expected engine too")
    if engine is not None and PIPE in (sink, *sources):
        raise ValueError(f"engine: found {engine!r} with standard input or output, expected files, which its workers can open")
    if not sources or "" in sources:
        raise ValueError(f"source: found {'an empty name' if sources else 'no names'}, expected files, folders, globs or URLs")
    if sink == "":
        raise ValueError("sink: found an empty name, expected a file or folder for the results, or '-'")


def _names(argument: str, given: str | Sequence[str], expected: str) -> list[str]:
    """Names as a list. A string has commas between them. Raises ValueError for what are no names."""
    found = [name.strip() for name in given.split(",") if name.strip()] if isinstance(given, str) else given
    return texts(argument, found, expected)


def _bytes(memory: str | int) -> int:
    """A number of bytes. Raises ValueError for what is none, and for less than the process takes without data."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?\s*", str(memory).lower())
    if found is None or found.group(2) not in UNITS:
        raise ValueError(f"memory: found {memory!r}, expected a number of bytes, such as 1GiB or 500MB")
    size = int(float(found.group(1)) * UNITS[found.group(2)])
    if size < BESIDE_DATA:
        least = f"{BESIDE_DATA >> 20}MiB, which Python, the compiler and pyarrow take"
        raise ValueError(f"memory: found {memory!r}, expected more than {least}")
    return size


def _path_of(model: CompiledModel | str | os.PathLike[str], engine: str | None, stack: contextlib.ExitStack) -> str:
    """The path of a model. One in memory is saved for the workers of an engine; for this process, it needs a name only."""
    if isinstance(model, (str, os.PathLike)):
        return os.path.abspath(os.fspath(model))
    if not isinstance(model, CompiledModel):
        found = type(model).__name__
        raise TypeError(
            f"model: found {found}, expected a CompiledModel, as hbc.convert returns it, or the path of a saved one"
        )
    if engine is None:
        return f"a model in memory ({model.info.source})"
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="hbc-score-"))
    path = os.path.join(folder, "model.hbc")
    Path(path).write_bytes(_contents(model))
    return path


def _digest_of(model: CompiledModel | str | os.PathLike[str], path: str) -> str:
    return hashlib.sha256(_contents(model)).hexdigest() if isinstance(model, CompiledModel) else digest_of(path)


def _contents(model: CompiledModel) -> bytes:
    """The file of a model without the time of its conversion, so that converting the same source again gives the same file."""
    same = copy.copy(model)
    same._origin = type(model._origin)()
    return same._bytes()


def _require_free(job: Job, model: str) -> None:
    """Raise ArtifactError if the file for bad rows is one that is read or written besides."""
    place = job.bad_rows
    assert place is not None
    if place.is_folder():
        raise ArtifactError(path=place.name, found="a folder", expected="the name of a file for the bad rows")
    used = [name for each in job.fragments for name in (each.input, each.output) if name not in ("", PIPE)]
    if any(same_file(place, place_of(name)) for name in [*used, model]):
        raise ArtifactError(
            path=place.name, found="a file that is read or written besides", expected="another file for the bad rows"
        )
