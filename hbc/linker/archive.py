"""Writes an archive of one object file, as `ar rcs` would: a library for static linking."""

from __future__ import annotations

from collections.abc import Sequence

MAGIC = b"!<arch>\n"
MEMBER = "model.o"  # the name of the object file


def archive(code: bytes, symbols: Sequence[str]) -> bytes:
    """The bytes of an archive (`.a`) with one object file. symbols: the functions in it that linkers shall find. The archive
    has no time and no owner, so that equal code gives equal bytes."""
    names = b"".join(symbol.encode() + b"\0" for symbol in symbols)
    size = 4 + 4 * len(symbols) + len(names)
    place = len(MAGIC) + 60 + size + size % 2  # where the object file begins
    index = len(symbols).to_bytes(4, "big") + place.to_bytes(4, "big") * len(symbols) + names
    return MAGIC + _member("/", index) + _member(f"{MEMBER}/", code)


def _member(name: str, data: bytes) -> bytes:
    header = f"{name:<16}{0:<12}{0:<6}{0:<6}{644:<8}{len(data):<10}`\n"
    return header.encode() + data + b"\n" * (len(data) % 2)
