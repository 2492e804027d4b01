"""What differs between processors: how relocations are written into instructions, and how a function of another library is called.

The numbers are those of the psABI of x86-64 and of "ELF for the Arm 64-bit Architecture" (AAELF64).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

from hbc.linker.elf import LinkError


@dataclass(frozen=True)
class Machine:
    """One instruction set.

    A Global Offset Table (GOT) holds addresses that the loader fills in. Code reads the address of a symbol of another library from there.
    """

    name: str
    number: int
    """The number that ELF gives it."""
    page: int
    """The largest page of memory, in bytes. Parts of a library with different rights lie in different pages."""
    pointer: int
    """The relocation of 8 bytes that hold an address. The loader applies it too, to an address in another library."""
    got_pointer: int
    """The loader's relocation of an entry of the GOT: the address of a symbol in another library."""
    relative: int
    """The loader's relocation of 8 bytes that hold an address in the library itself."""
    through_got: frozenset[int]
    """The relocations that name the symbol's entry in the GOT, not the symbol."""
    calls: frozenset[int]
    """The relocations of calls. A call of a function in another library goes to a stub, which jumps to the address in the GOT."""
    relocate: Callable[[int, bytearray, int, int, int], None]
    """(kind, section, offset, address of that place, address meant): writes the address. Raises LinkError for a kind that it does not
    know, and for an address that is out of reach."""
    stub: Callable[[int, int], bytes]
    """(address of the stub, address of the entry of the GOT) → its STUB bytes of code."""


STUB = 16
"""The bytes of the code that jumps to a function of another library."""


def _signed(value: int, bits: int) -> int:
    if not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise LinkError(f"an address is {value} bytes away, which does not fit into {bits} bits")
    return value


def _relocate_x86_64(kind: int, code: bytearray, offset: int, here: int, there: int) -> None:
    if kind in (2, 4, 9, 41, 42):  # PC32, PLT32, GOTPCREL, GOTPCRELX, REX_GOTPCRELX
        struct.pack_into("<i", code, offset, _signed(there - here, 32))
    elif kind == 24:  # PC64
        struct.pack_into("<q", code, offset, there - here)
    else:
        raise LinkError(f"relocation {kind} of x86-64 is not known here")


def _stub_x86_64(here: int, entry: int) -> bytes:
    return (b"\xff\x25" + struct.pack("<i", _signed(entry - here - 6, 32))).ljust(STUB, b"\xcc")  # jmp *entry(%rip)


LOW_BITS = {277: 0, 278: 0, 284: 1, 285: 2, 286: 3, 299: 4, 312: 3}
"""Relocations of the low 12 bits of an address (ADD, LDST8 … LDST128 _ABS_LO12_NC, LD64_GOT_LO12_NC) → by how many bits the instruction
shifts them."""


def _relocate_aarch64(kind: int, code: bytearray, offset: int, here: int, there: int) -> None:
    if kind == 261:  # PREL32
        struct.pack_into("<i", code, offset, _signed(there - here, 32))
    elif kind == 260:  # PREL64
        struct.pack_into("<q", code, offset, there - here)
    elif kind in (275, 311):  # ADR_PREL_PG_HI21, ADR_GOT_PAGE
        _fill(code, offset, *_page_bits(here, there))
    elif kind in LOW_BITS:
        shift = LOW_BITS[kind]
        if there & (1 << shift) - 1:
            raise LinkError(f"relocation {kind} of aarch64 to an address that is not a multiple of {1 << shift}")
        _fill(code, offset, (there & 0xFFF) >> shift << 10, 0xFFF << 10)
    elif kind in (282, 283):  # JUMP26, CALL26
        _fill(code, offset, _signed(there - here, 28) >> 2, 0x03FFFFFF)
    else:
        raise LinkError(f"relocation {kind} of aarch64 is not known here")


def _page_bits(here: int, there: int) -> tuple[int, int]:
    """The bits of ADRP for the distance between two pages of 4 KB, and the mask of these bits."""
    pages = _signed((there >> 12) - (here >> 12), 21)
    return (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5, 0x60FFFFE0


def _fill(code: bytearray, offset: int, bits: int, mask: int) -> None:
    """Puts bits into the instruction at `offset`, where the mask has ones."""
    (old,) = struct.unpack_from("<I", code, offset)
    struct.pack_into("<I", code, offset, old & ~mask | bits & mask)


def _stub_aarch64(here: int, entry: int) -> bytes:
    bits, _ = _page_bits(here, entry)
    load = 0xF9400211 | (entry & 0xFFF) >> 3 << 10
    return struct.pack("<IIII", 0x90000010 | bits, load, 0xD61F0220, 0xD503201F)  # adrp x16; ldr x17, [x16, …]; br x17; nop


MACHINES = {
    machine.number: machine
    for machine in (
        Machine(
            name="x86-64",
            number=62,
            page=0x1000,
            pointer=1,
            got_pointer=6,
            relative=8,
            through_got=frozenset({9, 41, 42}),
            calls=frozenset({4}),
            relocate=_relocate_x86_64,
            stub=_stub_x86_64,
        ),
        Machine(
            name="aarch64",
            number=183,
            page=0x10000,
            pointer=257,
            got_pointer=1025,
            relative=1027,
            through_got=frozenset({311, 312}),
            calls=frozenset({282, 283}),
            relocate=_relocate_aarch64,
            stub=_stub_aarch64,
        ),
    )
}
"""The instruction sets by the number that ELF gives them."""
