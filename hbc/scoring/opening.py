"""`opened` gives the Reader of a file of any format."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

from hbc.scoring.formats import PIPE
from hbc.scoring.inputs import Fragment
from hbc.scoring.readers import ArrowReader, ParquetReader, Reader, raw, reading
from hbc.scoring.text_readers import text_reader


@contextlib.contextmanager
def opened(fragment: Fragment, separator: str | None, texts: Callable[[str], str | None]) -> Iterator[Reader]:
    """A context with the Reader of a fragment.

    separator: the user's, for CSV. texts: name → how the model reads a column of text ("number", "text"; None: it does not).
    Raises ArtifactError for a file that cannot be read, FileNotFoundError."""
    with contextlib.ExitStack() as stack:
        with reading(fragment.input, fragment.format):
            if fragment.format in ("csv", "jsonl"):
                reader: Reader = text_reader(fragment, separator, texts, stack)
            elif fragment.format == "parquet":
                reader = ParquetReader(stack.enter_context(raw(fragment.input)), texts)
            elif fragment.input != PIPE:
                reader = ArrowReader(stack.enter_context(raw(fragment.input, mapped=True)), False)
            elif sys.stdin is None:
                raise ValueError("standard input is closed")
            else:
                reader = ArrowReader(sys.stdin.buffer, True)
        yield reader
