"""Links one object file into a shared library for Linux, as `ld -shared` would.

The library has up to four segments, each with rights of its own:

    read          the tables of the loader (symbols, their hash table, names, relocations), constants
    execute       code, and stubs that call functions of other libraries
    write, once   the dynamic table, the Global Offset Table (GOT), constants that hold addresses: read-only once the loader is done
    write         variables

Code of the library reads the library's own variables, as with `ld -Bsymbolic`: a program that has copied an exported variable into itself,
as programs linked against a library do, changes its copy. Programs that look it up by dlsym change the library's.

Unwind tables (.eh_frame) are left out: no exception passes through the code. Nothing is said about which library brings the symbols of
others: memset, memcpy, malloc and free are those of the process, whatever its libc.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from hbc.linker import elf
from hbc.linker.elf import LinkError, ObjectFile, Relocation, Symbol
from hbc.linker.machines import MACHINES, STUB, Machine

POINTER = 8  # bytes
LOAD, DYNAMIC, STACK, READ_ONLY_AFTERWARDS = 1, 2, 0x6474E551, 0x6474E552
"""Kinds of records about segments. STACK: the rights of the stack, which must not execute."""
EXECUTABLE, WRITEABLE, READABLE = 1, 2, 4
"""Rights of segments."""
NEEDED, HASH, STRTAB, SYMTAB, RELA, RELASZ, RELAENT, STRSZ, SYMENT, SONAME, FLAGS = 1, 4, 5, 6, 7, 8, 9, 10, 11, 14, 30
"""Tags of the dynamic table."""
BIND_NOW = 8  # the loader finds all symbols when it loads the library, since the stubs can't find them later


@dataclass(eq=False)
class Piece:
    """A section of the library. The layout gives it its place in the file and its address."""

    name: str
    kind: int
    flags: int
    size: int
    data: bytearray = field(default_factory=bytearray)
    alignment: int = 8
    linked: Piece | None = None
    entry: int = 0
    place: int = 0
    address: int = 0


@dataclass
class Segment:
    """Pieces with the same rights, one after the other."""

    rights: int
    pieces: list[Piece]
    read_only_afterwards: bool = False

    def extent(self, first: bool, page: int) -> tuple[int, int, int, int]:
        """Place in the file, address, size in the file, size in memory. The first segment begins with the file."""
        place, address = (0, 0) if first else (self.pieces[0].place, self.pieces[0].address)
        in_file = max((p.place + p.size for p in self.pieces if p.kind != elf.NOBITS), default=place) - place
        end = self.pieces[-1].address + self.pieces[-1].size
        if self.read_only_afterwards:
            end = _round_up(end, page)  # the loader protects whole pages
        return place, address, in_file, end - address


def shared_library(data: bytes, exports: Sequence[str], name: str = "", needed: Sequence[str] = ()) -> bytes:
    """The bytes of a shared library with the code and data of an object file, which must be position-independent (`-fPIC`).

    exports: the functions and variables that others can look up. name: what programs linked against the library will ask for (its soname).
    needed: other libraries that the loader has to load before (their sonames). Raises LinkError where the object has something that this
    linker does not know, and where it lacks an export.
    """
    made = elf.read_object(data)
    if made.machine not in MACHINES:
        raise LinkError(f"the object file is for machine {made.machine} of ELF, known are {', '.join(map(str, MACHINES))}")
    return _Library(made, MACHINES[made.machine], exports, name, needed).linked()


class _Library:
    def __init__(self, made: ObjectFile, machine: Machine, exports: Sequence[str], name: str, needed: Sequence[str]) -> None:
        self.object, self.machine = made, machine
        self.kept = {i: piece for i in range(len(made.sections)) if (piece := _kept(made, i)) is not None}
        """Section of the object → the piece that it becomes."""
        self.relocations = [r for r in made.relocations if r.section in self.kept]
        self.symbols = self._dynamic_symbols(exports)
        """The numbers of the symbols that the loader looks up, and of those that others look up here."""
        self._choose_entries()
        self.names = _Names()
        self._make_pieces(name, needed)

    def linked(self) -> bytes:
        """The bytes of the library."""
        self._lay_out()
        self._relocate()
        self._fill_loader_tables()
        return self._written()

    # --- what is needed ------------------------------------------------------------------------------------------------

    def _dynamic_symbols(self, exports: Sequence[str]) -> list[int]:
        outside = {r.symbol for r in self.relocations if self._symbol(r).outside}
        found = {s.name: i for i, s in enumerate(self.object.symbols) if s.binding != elf.LOCAL and not s.outside}
        lacking = [name for name in exports if name not in found]
        if lacking:
            raise LinkError(f"the object file has no {', '.join(lacking)}")
        return sorted(outside, key=lambda i: self.object.symbols[i].name) + [found[name] for name in exports]

    def _symbol(self, relocation: Relocation) -> Symbol:
        """The symbol of a relocation, if it is in a section of the library or outside."""
        symbol = self.object.symbols[relocation.symbol]
        if not symbol.outside and symbol.section not in self.kept:
            raise LinkError(f"{self._where(relocation)} means {symbol.name or 'a place'} in section {symbol.section}, left out")
        return symbol

    def _where(self, relocation: Relocation) -> str:
        return f"{self.object.sections[relocation.section].name} + {relocation.offset}"

    def _choose_entries(self) -> None:
        """Which symbols get an entry of the GOT and a stub, and which pointers the loader fills in."""
        machine = self.machine
        self.entries: dict[int, int] = {}
        """Symbol → the place of its entry in the GOT."""
        self.stubs: dict[int, int] = {}
        """Function of another library → the place of its stub."""
        self.pointers: list[Relocation] = []
        for r in self.relocations:
            outside = self._symbol(r).outside
            if r.kind in machine.through_got or (outside and r.kind in machine.calls):
                self.entries.setdefault(r.symbol, POINTER * len(self.entries))
            if outside and r.kind in machine.calls:
                self.stubs.setdefault(r.symbol, STUB * len(self.stubs))
            if r.kind == machine.pointer:
                self.pointers.append(r)
                if not self.kept[r.section].flags & elf.WRITE:
                    raise LinkError(f"{self._where(r)} holds an address, in a section that is never written")
            elif outside and r.kind not in machine.through_got | machine.calls:
                name = self._symbol(r).name
                raise LinkError(
                    f"{self._where(r)}: {name} is outside, and relocation {r.kind} of {machine.name} can't reach it"
                )

    def _make_pieces(self, name: str, needed: Sequence[str]) -> None:
        count = len(self.symbols) + 1
        self.labels = [self.names.add(self.object.symbols[i].name) for i in self.symbols]
        self.tags = [(SONAME, self.names.add(name))] if name else []
        self.tags += [(NEEDED, self.names.add(other)) for other in needed]
        n_loaded = len(self.entries) + len(self.pointers)
        self.dynstr = Piece(".dynstr", elf.STRTAB, elf.ALLOC, len(self.names.data), self.names.data, 1)
        self.dynsym = _table(".dynsym", elf.DYNSYM, elf.SYMBOL.size, count, self.dynstr)
        self.hash = _table(".hash", elf.HASH, 4, 2 + 2 * count, self.dynsym)
        self.rela = _table(".rela.dyn", elf.RELA, elf.RELOCATION.size, n_loaded, self.dynsym)
        tags = len(self.tags) + 7 + (3 if n_loaded else 0)
        self.dynamic = _table(".dynamic", elf.DYNAMIC_SECTION, elf.DYNAMIC.size, tags, self.dynstr, elf.WRITE)
        self.got = _table(".got", elf.PROGBITS, POINTER, len(self.entries), flags=elf.WRITE)
        self.plt = _table(".plt", elf.PROGBITS, STUB, len(self.stubs), flags=elf.EXECUTE)
        self.plt.alignment = STUB

        kept = list(self.kept.values())
        code = [piece for piece in kept if piece.flags & elf.EXECUTE]
        written = [piece for piece in kept if piece.flags & elf.WRITE]
        once = [piece for piece in written if piece.name.startswith(".data.rel.ro")]
        variables = sorted((piece for piece in written if piece not in once), key=lambda piece: piece.kind == elf.NOBITS)
        read = [piece for piece in kept if piece not in code and piece not in written]
        segments = [
            Segment(READABLE, [self.dynsym, self.hash, self.dynstr, self.rela, *read]),
            Segment(READABLE | EXECUTABLE, [*code, self.plt]),
            Segment(READABLE | WRITEABLE, [self.dynamic, self.got, *once], read_only_afterwards=True),
            Segment(READABLE | WRITEABLE, variables),
        ]
        for segment in segments:
            segment.pieces = [piece for piece in segment.pieces if piece.size]
        self.segments = [segment for segment in segments if segment.pieces]

    # --- places and contents -------------------------------------------------------------------------------------------

    def _lay_out(self) -> None:
        """Segments follow each other in the file without gaps. Each begins a page later in memory than in the file, counted from the one
        before it, so that no page of memory has two rights."""
        place = elf.FILE_HEADER.size + elf.SEGMENT.size * (len(self.segments) + 3)
        for number, segment in enumerate(self.segments):
            address = place + number * self.machine.page
            for piece in segment.pieces:
                if piece.alignment > self.machine.page:
                    raise LinkError(f"{piece.name} asks for an alignment of {piece.alignment}, more than a page")
                address = _round_up(address, piece.alignment)
                piece.address, piece.place = address, address - number * self.machine.page
                address += piece.size
                if piece.kind != elf.NOBITS:  # those come last, in the last segment
                    place = piece.place + piece.size
        for symbol, entry in self.stubs.items():
            here = self.plt.address + entry
            self.plt.data[entry : entry + STUB] = self.machine.stub(here, self.got.address + self.entries[symbol])

    def _address(self, symbol: int) -> int:
        found = self.object.symbols[symbol]
        return self.kept[found.section].address + found.offset

    def _relocate(self) -> None:
        for r in self.relocations:
            if r.kind == self.machine.pointer:
                continue  # the loader does
            if r.kind in self.machine.through_got:
                there = self.got.address + self.entries[r.symbol]
            elif r.symbol in self.stubs:
                there = self.plt.address + self.stubs[r.symbol]
            else:
                there = self._address(r.symbol)
            piece = self.kept[r.section]
            try:
                self.machine.relocate(r.kind, piece.data, r.offset, piece.address + r.offset, there + r.addend)
            except LinkError as error:
                raise LinkError(f"{self._where(r)}: {error}") from None

    # --- the tables of the loader --------------------------------------------------------------------------------------

    def _fill_loader_tables(self) -> None:
        for row, (number, label) in enumerate(zip(self.symbols, self.labels, strict=True), 1):
            symbol = self.object.symbols[number]
            about = (elf.WEAK if symbol.binding == elf.WEAK else elf.GLOBAL) << 4 | symbol.kind
            where = (
                (0, 0, 0) if symbol.outside else (self._number(self.kept[symbol.section]), self._address(number), symbol.size)
            )
            elf.SYMBOL.pack_into(self.dynsym.data, elf.SYMBOL.size * row, label, about, elf.DEFAULT, *where)
        names = [self.object.symbols[number].name for number in self.symbols]
        self.hash.data[:] = _hash_table(names)
        relocations = [(self.got.address + at, *self._loaded(s, 0, self.machine.got_pointer)) for s, at in self.entries.items()]
        for r in self.pointers:
            place = self.kept[r.section].address + r.offset
            relocations.append((place, *self._loaded(r.symbol, r.addend, self.machine.pointer)))
        for row, relocation in enumerate(relocations):
            elf.RELOCATION.pack_into(self.rela.data, elf.RELOCATION.size * row, *relocation)
        tags = [*self.tags, (HASH, self.hash.address), (STRTAB, self.dynstr.address), (STRSZ, self.dynstr.size)]
        tags += [(SYMTAB, self.dynsym.address), (SYMENT, elf.SYMBOL.size), (FLAGS, BIND_NOW)]
        if relocations:
            tags += [(RELA, self.rela.address), (RELASZ, self.rela.size), (RELAENT, elf.RELOCATION.size)]
        for row, tag in enumerate([*tags, (0, 0)]):
            elf.DYNAMIC.pack_into(self.dynamic.data, elf.DYNAMIC.size * row, *tag)

    def _loaded(self, symbol: int, addend: int, kind: int) -> tuple[int, int]:
        """What the loader does at a place: symbol << 32 | kind, and the addend."""
        if self.object.symbols[symbol].outside:
            return (self.symbols.index(symbol) + 1) << 32 | kind, addend
        return self.machine.relative, self._address(symbol) + addend

    # --- the file ------------------------------------------------------------------------------------------------------

    @property
    def pieces(self) -> list[Piece]:
        return [piece for segment in self.segments for piece in segment.pieces]

    def _number(self, piece: Piece | None) -> int:
        """The number of a piece among the library's section headers, of which the first is empty."""
        return 0 if piece is None else self.pieces.index(piece) + 1

    def _written(self) -> bytes:
        filled = [piece for piece in self.pieces if piece.kind != elf.NOBITS]
        out = bytearray(max(piece.place + piece.size for piece in filled))
        for piece in filled:
            out[piece.place : piece.place + piece.size] = piece.data
        records = [self._record(segment, number == 0) for number, segment in enumerate(self.segments)]
        records.append(self._part(DYNAMIC, self.dynamic.place, self.dynamic.address, self.dynamic.size, self.dynamic.size))
        (once,) = (segment for segment in self.segments if segment.read_only_afterwards)
        records.append(self._part(READ_ONLY_AFTERWARDS, *once.extent(False, self.machine.page)))
        records.append((STACK, READABLE | WRITEABLE, 0, 0, 0, 0, 0, 16))
        for number, record in enumerate(records):
            elf.SEGMENT.pack_into(out, elf.FILE_HEADER.size + elf.SEGMENT.size * number, *record)
        self._add_section_headers(out, len(records))
        return bytes(out)

    def _record(self, segment: Segment, first: bool) -> tuple[int, ...]:
        place, address, in_file, in_memory = segment.extent(first, self.machine.page)
        return LOAD, segment.rights, place, address, address, in_file, in_memory, self.machine.page

    def _part(self, kind: int, place: int, address: int, in_file: int, in_memory: int) -> tuple[int, ...]:
        """The record of a part of a segment that the loader treats in a way of its own."""
        return (
            kind,
            READABLE if kind == READ_ONLY_AFTERWARDS else READABLE | WRITEABLE,
            place,
            address,
            address,
            in_file,
            in_memory,
            8,
        )

    def _add_section_headers(self, out: bytearray, n_records: int) -> None:
        """Appends section headers and writes the file's header. The loader needs no section headers, but linkers, nm and gdb do."""
        names = _Names()
        headers = [(0,) * 10]
        for piece in self.pieces:
            linked, local = self._number(piece.linked), 1 if piece.kind == elf.DYNSYM else 0
            known = names.add(piece.name), piece.kind, piece.flags, piece.address, piece.place, piece.size
            headers.append((*known, linked, local, piece.alignment, piece.entry))
        label = names.add(".shstrtab")
        headers.append((label, elf.STRTAB, 0, 0, len(out), len(names.data), 0, 0, 1, 0))
        out += names.data
        out += bytes(-len(out) % 8)
        header = (elf.MAGIC, elf.SHARED_LIBRARY, self.machine.number, 1, 0, elf.FILE_HEADER.size, len(out), 0)
        sizes = (elf.FILE_HEADER.size, elf.SEGMENT.size, n_records, elf.SECTION_HEADER.size, len(headers), len(headers) - 1)
        elf.FILE_HEADER.pack_into(out, 0, *header, *sizes)
        for entry in headers:
            out += elf.SECTION_HEADER.pack(*entry)


class _Names:
    """Names one after the other, each with a zero byte at its end. The empty name comes first."""

    def __init__(self) -> None:
        self.data = bytearray(1)

    def add(self, name: str) -> int:
        """Where the name begins, once added."""
        place = len(self.data)
        self.data += name.encode() + b"\0"
        return place


def _kept(made: ObjectFile, number: int) -> Piece | None:
    """The piece that a section becomes; None for those that are not in memory, notes and unwind tables."""
    section = made.sections[number]
    if not section.flags & elf.ALLOC or section.kind == elf.NOTE or section.name.startswith(".eh_frame"):
        return None
    known = elf.WRITE | elf.ALLOC | elf.EXECUTE | elf.MERGE | elf.STRINGS | elf.GROUP
    if section.kind not in (elf.PROGBITS, elf.NOBITS) or section.flags & ~known:
        raise LinkError(
            f"section {section.name} is of kind {section.kind} and has flags {section.flags}, which are not known here"
        )
    flags = section.flags & (elf.WRITE | elf.ALLOC | elf.EXECUTE)
    return Piece(section.name, section.kind, flags, section.size, bytearray(section.data), section.alignment)


def _table(name: str, kind: int, entry: int, count: int, linked: Piece | None = None, flags: int = 0) -> Piece:
    """A table of the loader, of `count` entries that are yet to be filled in."""
    size = entry * count
    return Piece(name, kind, flags | elf.ALLOC, size, bytearray(size), linked=linked, entry=entry)


def _hash_table(names: Sequence[str]) -> bytes:
    """The table by which the loader finds a symbol, the names of which follow the empty one: as many chains as symbols, by the hash of
    their names."""
    count = len(names) + 1
    heads, following = [0] * count, [0] * count
    for number, name in enumerate(names, 1):
        bucket = _hash(name) % count
        heads[bucket], following[number] = number, heads[bucket]
    return struct.pack(f"<{2 + 2 * count}I", count, count, *heads, *following)


def _hash(name: str) -> int:
    """The hash of ELF for names of symbols."""
    value = 0
    for byte in name.encode():
        value = (value << 4) + byte
        high = value & 0xF0000000
        value = (value ^ high >> 24) & ~high & 0xFFFFFFFF
    return value


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
