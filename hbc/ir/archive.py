"""The container of an artefact: a zip file whose numbers lie in it as they are. Nothing in it is ever executed, unpickled or extracted.

Members are listed in the zip's own directory, in its usual form, so that every tool opens the file. Arrays of numbers are not compressed,
and begin at multiples of 64 bytes (`ALIGNMENT`), so that they can be used where they are; everything else is compressed. The reader is
stricter than zip tools: names that occur twice, members that overlap, encryption and other methods of compression are errors.
"""

from __future__ import annotations

import io
import math
import os
import re
import struct
import weakref
import zipfile
import zlib
from typing import IO, Literal

import numpy as np

from hbc.errors import ArtifactError
from hbc.ir.types import Array

ALIGNMENT = 64
"""Bytes: a line of the processor's cache, and the width of its widest vectors."""
_EPOCH = (1980, 1, 1, 0, 0, 0)  # fixed, so that equal models are equal files
_PADDING = 0xD935
"""The tag of an extra field of zeros, which makes room before a member. Android's zipalign uses the same."""
_LOCAL = struct.Struct("<4s5H3I2H")
"""The header before a member: signature, version, flags, method, time, date, CRC-32, two sizes, the lengths of name and extra fields."""
_NAMES = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)*", re.ASCII)
_HEADER = re.compile(
    rb"\x93NUMPY\x01\0..\{'descr': '([<>|][fiubU]\d{1,9})', 'fortran_order': (True|False), 'shape': \(([\d, ]{0,200})\), \} *\n",
    re.DOTALL,
)
"""What numpy writes before the numbers of an array."""
_HEAD = 1 << 10
"""Bytes that are enough for it."""
_FLAGS = 0x0002 | 0x0004 | 0x0008 | 0x0800
"""The flags that a member may have: how hard it was compressed, sizes behind it, a name in UTF-8."""

WHOLE = 1 << 18
"""Bytes of a file up to which it is read at once. Larger files stay open until their last graph is read: a file of 5.6 MB takes 5 ms."""

EXPANSION = 200
SMALL = 1 << 28
"""The most that a file may unpack to: 256 MiB, or 200 times its own size. Arrays of a large forest reach about 10 times, a zip
bomb 1000 times."""

TEXT_EXPANSION = 16
SMALL_TEXT = 1 << 22
"""The same for each text: 4 MiB, or 16 times its packed size. Python's objects for it can take 30 times as much memory again."""

UNREADABLE = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    KeyError,
    IndexError,
    AttributeError,
    ValueError,
    TypeError,
    EOFError,
    OSError,
    RuntimeError,  # encrypted, unknown compression (NotImplementedError), nested too deeply (RecursionError)
    MemoryError,
    OverflowError,
    SyntaxError,  # numpy parses the header of an array as Python literals
)
"""What a damaged file can raise."""


class Writer:
    """Writes members one after the other. `compress`: arrays too are compressed."""

    def __init__(self, file: IO[bytes], compress: bool = False) -> None:
        self._archive = zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED)
        self._compress = compress

    def text(self, name: str, content: bytes) -> None:
        """Add a text. One that would shrink more than `Archive.text` allows is not compressed."""
        packed = len(zlib.compress(content, 6))
        fits = len(content) <= max(SMALL_TEXT, TEXT_EXPANSION * packed)
        self._write(name, content, zipfile.ZIP_DEFLATED if fits and packed < len(content) else zipfile.ZIP_STORED)

    def array(self, name: str, array: Array) -> None:
        """Add an array in numpy's own format. Its numbers begin at a multiple of 64 bytes, unless it is compressed."""
        buffer = io.BytesIO()
        np.save(buffer, array, allow_pickle=False)
        # numpy's strings have four bytes a character and the length of the longest.
        packed = self._compress or array.dtype.kind not in "fiub"
        self._write(name, buffer.getbuffer(), zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED)

    def data(self, name: str, content: bytes) -> None:
        """Add bytes of any kind."""
        self._write(name, content, zipfile.ZIP_DEFLATED if self._compress else zipfile.ZIP_STORED)

    def _write(self, name: str, content: bytes | memoryview, method: int) -> None:
        member = zipfile.ZipInfo(name, _EPOCH)
        if method == zipfile.ZIP_STORED:
            start = self._archive.fp.tell() + _LOCAL.size + len(name) + 4  # type: ignore[union-attr]
            room = -start % ALIGNMENT
            member.extra = struct.pack("<HH", _PADDING, room) + bytes(room)
        self._archive.writestr(member, content, method, 6)

    def close(self) -> None:
        """Write the directory. The file itself stays open."""
        self._archive.close()


class Archive:
    """The members of an artefact, by name. Only the directory is read at once. Raises ArtifactError for what is no artefact, or damaged;
    FileNotFoundError where there is no file."""

    def __init__(self, file: IO[bytes] | str | os.PathLike[str], path: str) -> None:
        self.path = path
        try:
            self._source, self._members = _opened(file)
        except FileNotFoundError:
            raise
        except UNREADABLE as error:
            raise unreadable(path, error) from error

    def __contains__(self, name: str) -> bool:
        return name in self._members

    @property
    def sizes(self) -> dict[str, tuple[int, int]]:
        """By name of every member: its bytes, unpacked and packed."""
        return {name: (member.file_size, member.compress_size) for name, (member, _) in self._members.items()}

    def data(self, name: str) -> bytes:
        """The bytes of any member. The caller compares their digest. Raises one of UNREADABLE if it is damaged or missing."""
        member, _ = self._members[name]
        packed = self._source.read(*self._place(name))
        found = _inflated(packed, member.file_size) if member.compress_type == zipfile.ZIP_DEFLATED else packed
        return found.tobytes()

    def text(self, name: str) -> str:
        """A text member. Raises one of UNREADABLE if it is damaged, missing, or unpacks to much more than its size."""
        member, _ = self._members[name]
        if member.file_size > max(SMALL_TEXT, TEXT_EXPANSION * member.compress_size):
            raise ValueError(f"{member.compress_size} bytes of {name} that unpack to {member.file_size}")
        content = self.data(name)
        if zlib.crc32(content) != member.CRC:
            raise ValueError(f"{name} is damaged")
        return content.decode()

    def array(self, name: str) -> Array:
        """An array member, read-only. The caller compares its digest, which says more than a CRC-32. Raises one of UNREADABLE if it is
        missing, or no array of numbers or strings."""
        start, size = self._place(name)
        member, _ = self._members[name]
        packed = member.compress_type == zipfile.ZIP_DEFLATED
        content = _inflated(self._source.read(start, size), member.file_size) if packed else None
        head = self._source.read(start, min(size, _HEAD)) if content is None else content
        length = 10 + int.from_bytes(head[8:10].tobytes(), "little")
        header = _HEADER.fullmatch(head[:length].tobytes())
        if header is None:
            raise ValueError(f"{name} is no array of numbers")
        dtype, shape = np.dtype(header[1].decode()), tuple(map(int, header[3].replace(b",", b" ").split()))
        if math.prod(shape) * dtype.itemsize != member.file_size - length:
            raise ValueError(f"{member.file_size - length} bytes for an array of {dtype}{shape}")
        order: Literal["C", "F"] = "F" if header[2] == b"True" else "C"
        array: Array = np.empty(shape, dtype, order)
        if array.nbytes:
            numbers = array.reshape(-1, order=order).view(np.uint8)
            if content is None:
                self._source.fill(numbers, start + length)
            else:
                numbers[:] = content[length:]
        array.setflags(write=False)
        return array

    def _place(self, name: str) -> tuple[int, int]:
        """(where the packed bytes of a member begin, how many there are)."""
        member, end = self._members[name]
        start, size = member.header_offset, member.compress_size
        signature, _, flags, method, *_, length, extra = _LOCAL.unpack(self._source.read(start, _LOCAL.size).data)
        same = self._source.read(start + _LOCAL.size, length).tobytes() == name.encode()
        if not same or (signature, flags, method) != (b"PK\3\4", member.flag_bits, member.compress_type):
            raise ValueError(f"two descriptions of {name} that differ")
        start += _LOCAL.size + length + extra
        if start + size > end or (method == zipfile.ZIP_STORED and size != member.file_size):
            raise ValueError(f"{name} overlaps the next member")
        return start, size


def _directory(stream: IO[bytes]) -> dict[str, tuple[zipfile.ZipInfo, int]]:
    """By name every member, and the place where it must end at the latest."""
    with zipfile.ZipFile(stream) as archive:
        members = sorted(archive.infolist(), key=lambda member: member.header_offset)
        ends = [*(member.header_offset for member in members[1:]), archive.start_dir]
    packed, unpacked = sum(member.compress_size for member in members), sum(member.file_size for member in members)
    if unpacked > max(SMALL, EXPANSION * packed):
        raise ValueError(f"{packed} bytes that unpack to {unpacked}")
    found = {}
    for member, end in zip(members, ends, strict=True):
        name = member.filename
        if name in found or not _NAMES.fullmatch(name):
            raise ValueError(f"the member {name!r}" + " twice" * (name in found))
        if member.flag_bits & ~_FLAGS or member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"{name} with flags {member.flag_bits} and compression {member.compress_type}")
        if member.header_offset < 0 or member.header_offset + _LOCAL.size + len(name) + member.compress_size > end:
            raise ValueError(f"{name} overlaps the next member")
        found[name] = member, end
    return found


def unreadable(path: str, error: BaseException) -> ArtifactError:
    """The error for a file that cannot be read at all."""
    if isinstance(error, IsADirectoryError):
        found = "a directory"
    elif isinstance(error, zipfile.BadZipFile):
        found = "a file that cannot be read (it is no zip archive, as saved models are, or a damaged one)"
    else:
        found = f"a file that cannot be read ({type(error).__name__}: {error})"
    advice = ""
    if not path.endswith(".hbc") and (os.path.isfile(path) or not os.path.exists(path)):  # no device
        import shlex

        name = os.path.basename(path)
        command = f"hbc convert {shlex.quote(name)}"
        advice = f"If another library wrote it: hbc.convert({name!r}), or `{command}` (with --trust for a pickle)."
    return ArtifactError(path=path, found=found, expected="a model saved by hbc (CompiledModel.save)", advice=advice)


def _inflated(content: Array, size: int) -> Array:
    """The unpacked bytes, of which there must be `size`."""
    stream = zlib.decompressobj(-zlib.MAX_WBITS)
    found = stream.decompress(content.data, size + 1)  # 0 would stand for any number
    if len(found) != size or not stream.eof or stream.unused_data:
        raise ValueError("packed bytes of another size")
    return np.frombuffer(found, np.uint8)


class _Source:
    """The bytes of a file."""

    def fill(self, target: Array, start: int) -> None:
        """Fill a contiguous array of bytes with those from `start` on. Raises EOFError if there are not as many."""
        raise NotImplementedError

    def read(self, start: int, size: int) -> Array:
        """Some of the bytes. Raises EOFError if there are not as many."""
        found = np.empty(size, np.uint8)
        self.fill(found, start)
        return found


class _Bytes(_Source):
    """A file that was read at once."""

    def __init__(self, stream: IO[bytes], size: int) -> None:
        stream.seek(0)
        self._content = np.frombuffer(stream.read(size), np.uint8)

    def fill(self, target: Array, start: int) -> None:
        found = self._content[start : start + len(target)]
        if len(found) != len(target):
            raise EOFError(f"the file ends before byte {start + len(target)}")
        target[:] = found


class _File(_Source):
    """A file that stays open. It can be replaced or deleted meanwhile. If it is written over instead, digests tell."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        weakref.finalize(self, os.close, descriptor)

    def fill(self, target: Array, start: int) -> None:
        # The file keeps no position for this, which forked processes would share.
        done = 0
        while done < len(target):
            count = os.preadv(self._descriptor, [target[done:].data], start + done)
            if not count:
                raise EOFError(f"the file ends before byte {start + len(target)}")
            done += count


def _opened(file: IO[bytes] | str | os.PathLike[str]) -> tuple[_Source, dict[str, tuple[zipfile.ZipInfo, int]]]:
    """(the file to read from, its members)."""
    if not isinstance(file, (str, os.PathLike)):
        return _Bytes(file, file.seek(0, os.SEEK_END)), _directory(file)
    with open(file, "rb") as stream:
        members = _directory(stream)
        size = stream.seek(0, os.SEEK_END)
        if size <= WHOLE or not hasattr(os, "preadv"):
            return _Bytes(stream, size), members
        return _File(os.dup(stream.fileno())), members
