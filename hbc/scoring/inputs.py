"""What is scored: files, folders, globs and URLs become fragments, one for each file, with the columns of their hive partitions."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from hbc.errors import ArtifactError, counted
from hbc.lazy import record
from hbc.scoring.formats import FORMATS, PIPE, compression_of, format_of, renamed, suffixes_of
from hbc.scoring.places import Place, files_below, is_hidden, place_of, reaching, same_file

NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
"""What Hive and Spark write for a missing value of a partition."""
WHEN = ("mtime", "LastModified", "last_modified", "updated", "created", "ETag", "etag")
"""The facts of a file, in the words of the file systems, of which one changes with its contents."""


@record
class Fragment:
    """One file to score, and the file that its results go to. It is plain data, which a worker elsewhere can be sent."""

    input: str
    """Its path or URL, "-" for standard input."""
    format: str
    output: str
    """The path or URL of the results, "-" for standard output, "" for none (a trial)."""
    output_format: str
    compression: str
    partitions: tuple[tuple[str, str | None], ...] = ()
    """The columns that its folders name, such as year=2026, as text. None: a missing value."""
    size: int | None = None
    """Its bytes. None: not known, of a pipe."""
    modified: str = ""
    """The time of its last change, as its file system says it."""
    work: str = ""
    """The folder for what is not finished. "": beside the output."""
    rejected: str = ""
    """The file for its bad rows. "": a bad row is an error."""


@record
class Planned:
    """What is to be scored."""

    fragments: list[Fragment]
    """In the order of the sources."""
    folder: Place | None
    """The folder of the results. None: they are one file or a pipe, or there are none."""
    left_out: tuple[str, ...]
    """The files of folders and globs whose suffixes name no format."""


def found_in(
    sources: Sequence[str], input_format: str | None
) -> tuple[list[tuple[Place, str, str, int, str]], bool, tuple[str, ...]]:
    """(place, path below its source, format, bytes, time of change) of all files that the sources name, in order; whether the sources
    are one file; and `Planned.left_out`. A folder gives its files of known formats, sorted, without hidden ones and those that begin
    with _."""
    files: dict[str, tuple[Place, str, str, int, str]] = {}
    left_out: dict[str, None] = {}
    single = len(sources) == 1
    for source in sources:
        place = place_of(source)
        with reaching(place.name):
            with_facts, root = _matches(place, source)
        single = single and root is None
        for path, facts in sorted(with_facts.items()):
            relative = path.rpartition("/")[2] if root is None else path[len(root) :].lstrip("/")
            if root is not None and is_hidden(relative):
                continue
            if root is not None and not (input_format or suffixes_of(path)[0]):
                left_out[_name_of(place, path)] = None
                continue
            name = place.name if root is None else _name_of(place, path)
            if name.encode(errors="replace").decode() != name:
                raise ArtifactError(
                    path=name.encode(errors="replace").decode(), found="a name that is no UTF-8", expected="one that is"
                )
            found = Place(name, place.fs, path, place.local)
            files.setdefault(
                f"{type(place.fs).__name__} {path}",
                (found, relative, format_of(name, input_format), *_stamp(found, facts)),
            )
    if not files:
        known = ", ".join(suffix for each in FORMATS.values() for suffix in each.suffixes)
        raise ArtifactError(path=", ".join(sources), found="no file to score", expected=f"files that end in {known}")
    return list(files.values()), single, tuple(left_out)


def _stamp(place: Place, facts: Mapping[str, Any]) -> tuple[int, str]:
    """(the bytes, the time of the last change) of a file, from what its file system says of it."""
    if place.local:
        found = os.stat(place.path)
        return found.st_size, str(found.st_mtime_ns)
    when = next((facts[key] for key in WHEN if facts.get(key)), "")
    return int(facts["size"] or 0), str(when.timestamp() if hasattr(when, "timestamp") else when)


def changed_since(fragment: Fragment) -> bool:
    """Whether the input has another size or time than the fragment says. Raises FileNotFoundError if it is gone."""
    place = place_of(fragment.input)
    return _stamp(place, place.fs.info(place.path)) != (fragment.size, fragment.modified)


def _matches(place: Place, source: str) -> tuple[Mapping[str, Any], str | None]:
    """Path → facts of the files that a source names, and the folder that they are counted from (None for a file)."""
    if place.is_folder():
        root = place.path.rstrip("/")
        return files_below(root, "**") if place.local else place.fs.find(place.path, detail=True), root
    if place.exists():
        return {place.path: place.fs.info(place.path)}, None
    if not glob.has_magic(place.path):
        raise FileNotFoundError(f"{source}: no such file or folder")
    fixed = place.path[: re.search(r"[*?\[]", place.path).start()]  # type: ignore[union-attr]
    root = fixed.rpartition("/")[0]
    if place.local:
        return files_below(root, place.path[len(root) + 1 :]), root
    found = {path: facts for path, facts in place.fs.glob(place.path, detail=True).items() if facts["type"] != "directory"}
    return found, root


def _name_of(place: Place, path: str) -> str:
    return path if place.local else str(place.fs.unstrip_protocol(path))


def partitions_of(path: str) -> tuple[tuple[str, str | None], ...]:
    """The columns that the folders of a path name, in hive's way: `year=2026/month=07/part.parquet`. A column that two folders name has
    two entries."""
    found: list[tuple[str, str | None]] = []
    for part in path.split("/")[:-1]:
        name, equals, value = part.partition("=")
        if equals and name:
            found.append((unquote(name), None if value == NO_VALUE else unquote(value)))
    return tuple(found)


def partition_types(fragments: Iterable[Fragment]) -> tuple[tuple[str, str], ...]:
    """The type of each column of the partitions: "int64" if all its values are whole numbers, otherwise "string"."""
    values: dict[str, list[str]] = {}
    for fragment in fragments:
        for name, value in fragment.partitions:
            values.setdefault(name, []).extend([] if value is None else [value])
    return tuple(
        (name, "int64" if all(re.fullmatch("-?[0-9]{1,18}", value) for value in known) and known else "string")
        for name, known in values.items()
    )


def fragments_of(
    sources: Sequence[str],
    sink: str | None,
    input_format: str | None = None,
    output_format: str | None = None,
    compression: str | None = None,
) -> Planned:
    """The fragments of the sources.

    Results of one file go to `sink` itself if that has the suffix of a format and is no folder. All others go into the folder `sink`,
    under their paths below their source. Raises ArtifactError if there is nothing to score, if two inputs would have one output, or if
    an output is an input; FileNotFoundError."""
    if PIPE in sources:
        if len(sources) > 1:
            raise ValueError(f"sources: found {PIPE} among others, expected it alone")
        if input_format not in (None, "stream"):
            raise ValueError(f"input_format: found {input_format!r} for standard input, expected a stream of Arrow")
        files, single, left_out = [(Place(PIPE, None, PIPE, False), PIPE, "stream", None, "")], True, ()
    else:
        files, single, left_out = found_in(sources, input_format)  # type: ignore[assignment]
    if sink is None or sink == PIPE:
        form = output_format or "stream"
        if sink == PIPE and form == "parquet":
            raise ValueError("output_format: found parquet, expected for standard output one of stream, csv, jsonl, feather")
        return Planned([_fragment(file, sink or "", form, compression_of(form, compression)) for file in files], None, left_out)
    target = place_of(sink)
    if files[0][1] == PIPE and target.is_folder():
        raise ArtifactError(path=sink, found="a folder, for the results of standard input", expected="the name of a file")
    if single and not target.is_folder() and not sink.endswith("/") and (suffixes_of(sink)[0] or files[0][1] == PIPE):
        form = format_of(sink, output_format)
        fragments = [_fragment(files[0], sink, form, compression_of(form, compression, sink))]
        folder = None
    else:
        if suffixes_of(sink)[0] and not target.is_folder():
            found = f"the name of a file, for the results of {counted(len(files), 'file')}"
            raise ArtifactError(path=sink, found=found, expected="the name of a folder")
        if target.exists() and not target.is_folder():
            raise ArtifactError(path=sink, found="a file", expected="the name of a folder for the results")
        folder = target
        _require_outside(sources, target)
        fragments = _in_folder(files, target, output_format, compression)
    _require_apart(files, fragments, folder)
    return Planned(fragments, folder, left_out)


def _fragment(file: tuple[Place, str, str, int | None, str], output: str, form: str, compression: str) -> Fragment:
    place, _, input_format, size, when = file
    return Fragment(place.name, input_format, output, form, compression, partitions_of(place.path), size, when)


def _in_folder(files: Sequence[Any], folder: Place, output_format: str | None, compression: str | None) -> list[Fragment]:
    """A fragment for each file, with its output below `folder`."""
    names = [relative for _, relative, *_ in files]
    if len(set(names)) < len(names):  # from several sources: their paths from the folder above all tell them apart
        above = os.path.commonpath([place.path.rpartition("/")[0] or "/" for place, *_ in files])
        names = [os.path.relpath(place.path, above) for place, *_ in files]
    fragments, taken = [], dict[str, str]()
    for file, name in zip(files, names, strict=True):
        form = output_format or file[2]
        packed = compression_of(form, compression)
        output = renamed(name, form, packed)
        if output in taken:
            raise ArtifactError(
                path=file[0].name,
                found=f"an input whose results have the same name as those of {taken[output]} ({output})",
                expected="inputs with different names",
                advice="Score them into two folders.",
            )
        taken[output] = file[0].name
        fragments.append(_fragment(file, folder.child(output).name, form, packed))
    return fragments


def _require_apart(files: Sequence[Any], fragments: Sequence[Fragment], folder: Place | None) -> None:
    """Raise ArtifactError if an output is an input, or lies in a folder where the next start would find it as an input."""
    inputs = {_real(file[0]): file[0] for file in files if file[0].fs is not None}
    for fragment in fragments:
        output = place_of(fragment.output)
        given = inputs.get(_real(output))
        if given is None and folder is None:
            given = next(iter(inputs.values()), None)
        if given is not None and same_file(output, given):
            raise ArtifactError(
                path=fragment.output, found=f"the file that is read ({given.name})", expected="another file to write"
            )


def _real(place: Place) -> str:
    return os.path.realpath(place.path) if place.local else place.path


def _require_outside(sources: Sequence[str], target: Place) -> None:
    """Raise ArtifactError if the results would lie in a folder that is read: the next start would take them as inputs."""
    for source in sources:
        place = place_of(source)
        whole = place.is_folder() or "**" in place.path
        above = _real(place).partition("**")[0].rstrip("/")
        if whole and type(place.fs) is type(target.fs) and f"{_real(target).rstrip('/')}/".startswith(f"{above}/"):
            raise ArtifactError(
                path=target.name,
                found=f"a folder in {place.name}, which is read",
                expected="a folder outside of it",
                advice="A second start would take the results as inputs.",
            )
