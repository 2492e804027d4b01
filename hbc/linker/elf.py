"""The format ELF: the records of a file, and an object file read into sections, symbols and relocations."""

from __future__ import annotations

import struct
from dataclasses import dataclass

FILE_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
"""Magic and classes, type, machine, version, entry, places of segments and of section headers, flags, size of this header, size and number
of the segments' records and of the section headers, the number of the section of names."""
SECTION_HEADER = struct.Struct("<IIQQQQIIQQ")
"""Name, kind, flags, address, place in the file, size, linked section, information, alignment, size of an entry."""
SYMBOL = struct.Struct("<IBBHQQ")
"""Name, binding × 16 + kind, visibility, section, value, size."""
RELOCATION = struct.Struct("<QQq")
"""Place, symbol << 32 | kind, addend."""
SEGMENT = struct.Struct("<IIQQQQQQ")
"""Kind, flags, place in the file, address, physical address, size in the file, size in memory, alignment."""
DYNAMIC = struct.Struct("<QQ")
"""Tag, value."""

MAGIC = b"\x7fELF\x02\x01\x01" + bytes(9)
"""ELF of 64 bits, little-endian, version 1, for any operating system."""
OBJECT_FILE, SHARED_LIBRARY = 1, 3
PROGBITS, SYMTAB, STRTAB, RELA, HASH, DYNAMIC_SECTION, NOTE, NOBITS, DYNSYM = 1, 2, 3, 4, 5, 6, 7, 8, 11
"""Kinds of sections. NOBITS: zeros that take no place in the file."""
WRITE, ALLOC, EXECUTE, MERGE, STRINGS, GROUP = 1, 2, 4, 16, 32, 512
"""Flags of sections. ALLOC: the section is in memory when the program runs."""
LOCAL, GLOBAL, WEAK = 0, 1, 2
"""Bindings of symbols."""
DEFAULT = 0
"""The visibility of a symbol that other libraries see."""
UNDEFINED = 0
"""The number of a section that a symbol names which is in none."""


class LinkError(ValueError):
    """An object file holds something that this linker does not know, or lacks a symbol. The message names it."""


@dataclass(frozen=True)
class Section:
    """A part of a file. `size` is in bytes; `data` is empty for NOBITS."""

    name: str
    kind: int
    flags: int
    data: bytes
    size: int
    alignment: int


@dataclass(frozen=True)
class Symbol:
    """A name for a place in a section (its number and an offset). Section UNDEFINED: another file has to bring the symbol."""

    name: str
    kind: int
    binding: int
    section: int
    offset: int
    size: int

    @property
    def outside(self) -> bool:
        return self.section == UNDEFINED


@dataclass(frozen=True)
class Relocation:
    """A place in a section where an address is to be filled in: that of a symbol plus `addend`, in a form that `kind` names."""

    section: int
    offset: int
    kind: int
    symbol: int
    addend: int


@dataclass(frozen=True)
class ObjectFile:
    """What a compiler has written. Sections and symbols keep their numbers. Relocations of what is not in memory are left out."""

    machine: int
    sections: tuple[Section, ...]
    symbols: tuple[Symbol, ...]
    relocations: tuple[Relocation, ...]


def text_at(data: bytes, place: int) -> str:
    """The string that begins at `place` and ends before the next zero byte."""
    return data[place : data.index(b"\0", place)].decode()


def read_object(data: bytes) -> ObjectFile:
    """The sections, symbols and relocations of an object file. Raises LinkError unless it is ELF of 64 bits, little-endian."""
    if len(data) < FILE_HEADER.size or data[:7] != MAGIC[:7]:
        raise LinkError(f"found {data[:7]!r}, expected an object file in the format ELF of 64 bits, little-endian")
    _, kind, machine, _, _, _, headers_at, _, _, _, _, _, count, names = FILE_HEADER.unpack_from(data)
    if kind != OBJECT_FILE:
        raise LinkError(f"found an ELF file of type {kind}, expected an object file (type {OBJECT_FILE})")
    headers = [SECTION_HEADER.unpack_from(data, headers_at + SECTION_HEADER.size * i) for i in range(count)]

    def contents(number: int) -> bytes:
        _, kind, _, _, place, size, *_ = headers[number]
        return b"" if kind == NOBITS else data[place : place + size]

    labels = contents(names)
    sections = tuple(
        Section(text_at(labels, name), kind, flags, contents(i), size, max(alignment, 1))
        for i, (name, kind, flags, _, _, size, _, _, alignment, _) in enumerate(headers)
    )
    symbols: list[Symbol] = []
    relocations: list[Relocation] = []
    for number, (_, kind, _, _, _, _, linked, target, _, _) in enumerate(headers):
        if kind == SYMTAB:
            labels = contents(linked)
            for name, about, _, section, value, size in SYMBOL.iter_unpack(contents(number)):
                symbols.append(Symbol(text_at(labels, name), about & 15, about >> 4, section, value, size))
        elif kind == RELA and sections[target].flags & ALLOC:
            for place, what, addend in RELOCATION.iter_unpack(contents(number)):
                relocations.append(Relocation(target, place, what & 0xFFFFFFFF, what >> 32, addend))
    return ObjectFile(machine, sections, tuple(symbols), tuple(relocations))
