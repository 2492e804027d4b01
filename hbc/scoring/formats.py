"""The formats of files that are scored: their names, suffixes and compressions; and what CSV says without types."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from hbc.errors import ArtifactError, InvalidInputError, meant
from hbc.lazy import record

PIPE = "-"
"""The source and sink that stand for standard input and standard output."""


@record
class Format:
    """A format of files."""

    name: str
    suffixes: tuple[str, ...]
    """The first one is that of files that hbc writes."""
    inside: tuple[str, ...]
    """Compressions that the format itself has, the usual one first. Empty: the whole file is compressed, or not."""


FORMATS = {
    found.name: found
    for found in (
        Format("parquet", (".parquet", ".pq"), ("snappy", "zstd", "gzip", "lz4", "brotli", "none")),
        Format("feather", (".feather", ".arrow", ".ipc"), ("lz4", "zstd", "none")),
        Format("stream", (".arrows",), ("none", "lz4", "zstd")),
        Format("csv", (".csv", ".tsv"), ()),
        Format("jsonl", (".jsonl", ".ndjson", ".json"), ()),
    )
}
MISSING = (
    *("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA", "NULL"),
    *("NaN", "None", "n/a", "nan", "null"),
)
"""The words of a CSV file that are missing values: those of pandas.read_csv."""
AROUND = {"none": "", "gzip": ".gz", "zstd": ".zst", "bz2": ".bz2"}
"""Compression of a whole file → the suffix that it adds."""


def suffixes_of(name: str) -> tuple[str, str]:
    """The format and the compression of a file by its name, "" and "none" where it says nothing."""
    lower = name.lower()
    compression = next((each for each, suffix in AROUND.items() if suffix and lower.endswith(suffix)), "none")
    lower = lower.removesuffix(AROUND[compression])
    for found in FORMATS.values():
        if lower.endswith(found.suffixes):
            return ("", "none") if found.inside and compression != "none" else (found.name, compression)
    return "", "none"


def require_header(file: str, names: Sequence[str], columns: Sequence[Any]) -> None:
    """Raise InvalidInputError if the first line of a file of CSV has no names, but the values of a row. A model that knows no names of
    columns would take the line for names, and have no result for the row. columns: those of the model's schema.

    A line with a text where the model has a number holds names. Numbers that rise may be names, as pandas writes them for an array, and as
    wavelengths are; whole ones beside texts too. Texts are names, unless the model knows one of them as a category."""
    fits = len(names) == len(columns)  # else an error about their number follows
    texts = (
        [column.categories or () if column.dtype in ("str", None) else None for column in columns]
        if fits
        else [None] * len(names)
    )
    row = list(zip(names, texts, strict=True))
    if not all(known is not None or is_number(name) for name, known in row):
        return
    numbers = [float(name) for name, known in row if known is None and name not in MISSING]
    rise = len(numbers) == texts.count(None) and all(a < b for a, b in pairwise(numbers))
    rise = rise and (len(numbers) == len(names) or all(map(float.is_integer, numbers)))
    if (numbers and not rise) or any(known and name in known for name, known in row):
        raise InvalidInputError(
            found=f"the values {', '.join(map(repr, names[:5]))}{' …' if len(names) > 5 else ''} in the first line",
            expected="the names of the columns",
            where=file,
            advice="Put a line with names before the rows: any names, if the model knows none.",
        )


def is_number(text: str) -> bool:
    """Whether a text is a number, or a word for a missing one."""
    try:
        float(text)
    except ValueError:
        return text in MISSING
    return True


def format_of(name: str, asked: str | None = None) -> str:
    """The name of a file's format. asked: the user's word for it. Raises ArtifactError if neither says one."""
    if asked is not None:
        return require_format(asked)
    if found := suffixes_of(name)[0]:
        return found
    known = ", ".join(suffix for each in FORMATS.values() for suffix in each.suffixes)
    raise ArtifactError(
        path=name,
        found="a name that tells no format",
        expected=f"one of the suffixes {known}",
        advice="Or say which format it is: input_format, --input-format.",
    )


def require_format(asked: str) -> str:
    """The name itself. Raises ValueError for what is no format."""
    if asked not in FORMATS:
        raise ValueError(f"format: found {asked!r}, expected one of {', '.join(FORMATS)}{meant(asked, list(FORMATS))}")
    return asked


def compression_of(format_name: str, asked: str | None, name: str = "") -> str:
    """The compression with which a file of this format is written. name: that of the file, whose suffix counts if nothing is asked.
    Raises ValueError for one that the format does not have."""
    inside = FORMATS[format_name].inside
    if asked is None:
        return inside[0] if inside else suffixes_of(name)[1]
    known = inside or tuple(AROUND)
    if asked not in known:
        raise ValueError(f"compression: found {asked!r}, expected for {format_name} one of {', '.join(known)}")
    return asked


def renamed(name: str, format_name: str, compression: str) -> str:
    """The name of the output for an input of this name: the suffix of its new format."""
    found, around = suffixes_of(name)
    around = "" if FORMATS[format_name].inside else AROUND[compression]
    old = next((each for each in AROUND.values() if each and name.lower().endswith(each)), "") if found else ""
    stem = name[: len(name) - len(old)]
    suffix = next((each for each in FORMATS[found].suffixes if stem.lower().endswith(each)), "") if found else ""
    if found == format_name and suffix != ".tsv":
        return stem + around
    return stem[: len(stem) - len(suffix)] + FORMATS[format_name].suffixes[0] + around


def separator_of(name: str, asked: str | None) -> str:
    """What separates the values of a CSV file: a tab in .tsv, otherwise a comma, unless the user names another sign."""
    if asked is None:
        return "\t" if ".tsv" in name.lower()[-8:] else ","
    asked = "\t" if asked == "\\t" else asked
    if len(asked.encode()) != 1 or asked in '"\r\n':
        raise ValueError(f"separator: found {asked!r}, expected one ASCII sign, such as ';' or '\\t'")
    return asked
