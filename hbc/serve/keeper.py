"""Keeper: a process beside each worker. When the worker is killed, its connections stay open, and another worker answers what it had not.

**Connections stay open** because the keeper shares the worker's table of open files (Linux: `clone` with CLONE_FILES). What the worker
accepts, the keeper has too, and what the worker closes is closed; neither does anything for it. The keeper sleeps until the worker ends.

**The requests** are in memory that both share: each connection has a slot, and the kernel writes what it receives straight into it
(kept.py). So there is no moment at which a request has been read and is not in the slot.

**What has been answered** the kernel knows to the byte: how many bytes the worker has read from a connection, and how many of its answers
the kernel has taken (`counts`). The slot says where each answer ends. Both together say what is left (`left`): requests without an answer.
An answer of which the kernel has taken a part cannot be given again; that connection is closed.

The keeper sends each connection with what is left of it into the *inbox*, a socket that all workers read, and ends. Whichever worker
takes it goes on with it. If all are dead, it waits in the inbox for the new one.

A request that kills workers must not go round: if a worker ends while it works on a request which another has ended with, that
connection is closed.

This module is imported before the keeper starts, which has what is in memory then: it imports little."""

from __future__ import annotations

import array
import contextlib
import ctypes
import fcntl
import json
import mmap
import os
import platform
import resource
import select
import signal
import socket
import struct
import sys
import traceback
from collections import Counter
from collections.abc import Sequence
from typing import Any

from hbc.lazy import record

# --- the memory -------------------------------------------------------------------------------------------------------

SLOTS = 1 << 15
"""A connection has the slot of its file's number. The last slot is for all numbers above; nothing is kept of these."""
SLOT = 128 << 10
WORDS = 64
ROOM = SLOT - 8 * WORDS
"""The bytes of requests that a slot holds. A longer request is not kept."""

BASE, CLOSE, SKIP, TRIED, DONE, INODE, ENDS = range(7)
"""The words of a slot. BASE: the mark of the first byte in the room, before which all is answered. CLOSE: that the connection is closed
after so many bytes of answers. INODE: of the connection whose words these are (`inode_of`), written after them; the words of another one
count for nothing. SKIP and TRIED: what is known of the requests from a mark on when the connection came
from another worker. DONE: the mark at which all that was read is answered, written before the last of these answers is. From ENDS on: where
the answers after BASE end; each is written before the answer is. A word is written by one instruction, so a kill leaves no half."""

LOW = (1 << 32) - 1
FLAG = 1 << 32
GONE = 1 << 33
"""In CLOSE: the connection is closed, whatever was written."""


TAKING = SLOTS + 1
"""The slot into which the kernel writes a message from the inbox. So there is no moment at which a worker has a connection, and what is
left of it is in no slot. Its first word is the connection's INODE; 0 once the connection has a slot."""


def inode_of(number: int) -> int:
    """The number that the kernel gives each connection. The number of a file soon stands for another one, and a connection has several
    of these while one worker hands it to another."""
    return os.fstat(number).st_ino


def mark(written: int, read: int) -> int:
    """The point of a connection after so many bytes of answers and of requests, as a word."""
    return (written & LOW) << 32 | ((read + 1) & LOW)


def new_memory() -> mmap.mmap:
    """The slots. They take memory when they are written. Raises OSError if there is no such memory."""
    number = os.memfd_create("hbc-connections")
    try:
        size = (TAKING + 1) * SLOT
        os.ftruncate(number, size)
        memory = mmap.mmap(number, size)
    finally:
        os.close(number)
    with contextlib.suppress(OSError):
        memory.madvise(mmap.MADV_NOHUGEPAGE)  # where huge pages are usual, a slot would take 2 MB
    return memory


@record
class Left:
    """What a worker leaves of a connection."""

    written: int
    """The bytes of answers that were written."""
    read: int
    """The bytes of requests before those that are left."""
    length: int
    skip: int
    """How many requests of these were answered: they must not be answered again."""
    begun: bool
    """Whether a worker may have ended because of them."""


def left(words: list[int], written: int, read: int) -> Left | str:
    """What is left of the connection with these words of its slot (all 0 if it has none), of which the kernel has taken so many bytes of
    answers and given so many bytes of requests; or why it must be closed, "" if that is how it should end."""
    base, close = words[BASE], words[CLOSE]
    if not base:
        return "just opened or closed" if written or read else Left(0, 0, 0, 0, False)
    if close & GONE or (close & FLAG and close & LOW == written & LOW):
        return ""
    if words[DONE] == mark(written, read):  # also where the room was too small for what is answered
        return Left(written & LOW, read & LOW, 0, 0, False)
    tag = base & LOW
    skip = words[SKIP] >> 32 if words[SKIP] and words[SKIP] & LOW == tag else 0
    if written & LOW != base >> 32:
        try:
            skip += words.index((written & LOW) << 32 | tag, ENDS) - ENDS + 1
        except ValueError:
            return "part of an answer was written"
    begin = (tag - 1) & LOW
    length = (read - begin) & LOW
    if length > ROOM:
        return "a request was too long to be kept"
    if length and words[TRIED] == FLAG | tag:
        return TWICE
    return Left(written & LOW, begin, length, skip, length > 0)


TWICE = "two workers have ended with its request"

HEADER = struct.Struct("<QIIIIB")


def as_message(inode: int, found: Left, data: bytes) -> bytes:
    """What is left of a connection, as it goes into the inbox."""
    return HEADER.pack(inode, found.written, found.read, found.length, found.skip, found.begun) + data


def of_message(message: memoryview) -> tuple[int, Left, bytes]:
    """(inode, what is left of the connection, its requests) of a message. What follows the message counts for nothing."""
    inode, written, read, length, skip, begun = HEADER.unpack_from(message)
    return inode, Left(written, read, length, skip, bool(begun)), bytes(message[HEADER.size :][:length])


def room_of(memory: mmap.mmap, slot: int, length: int) -> bytes:
    """The first bytes of requests in a slot."""
    start = slot * SLOT + 8 * WORDS
    return memory[start : start + length]


# --- what the kernel knows --------------------------------------------------------------------------------------------

ESTABLISHED, CLOSE_WAIT = 1, 8
"""States of TCP: open, and open though the client sends no more."""
SIOCINQ, SIOCOUTQ = 0x541B, 0x5411
COUNTS = struct.Struct("=QQ")
COUNTS_AT = 120
"""Where `struct tcp_info` has tcpi_bytes_acked and tcpi_bytes_received."""


def counts(connection: socket.socket) -> tuple[int, int] | None:
    """(bytes that were written to a connection and taken by the kernel, bytes that were read from it), by whatever process. None
    if it is not open any more. Raises OSError for what is no connection.

    Taken is what the client has confirmed and what waits for that. Given is what has come without what waits to be read. The end of the
    client's stream counts as one byte that has come, and never waits."""
    while True:
        state, confirmed, came = _info(connection)
        waiting, unread = _asked(connection, SIOCOUTQ), _asked(connection, SIOCINQ)
        if _info(connection) == (state, confirmed, came):  # else packets have come in between
            break
    if state not in (ESTABLISHED, CLOSE_WAIT):
        return None
    return confirmed + waiting, came - (state == CLOSE_WAIT) - unread


def _info(connection: socket.socket) -> tuple[int, int, int]:
    data = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    return (data[0], *COUNTS.unpack_from(data, COUNTS_AT))  # type: ignore[return-value]


def _asked(connection: socket.socket, what: int) -> int:
    found = array.array("i", [0])
    fcntl.ioctl(connection, what, found)
    return found[0]


def is_exact() -> bool:
    """Whether this kernel counts as Linux does. One that only resembles it, such as gVisor's, may not."""
    with (
        contextlib.suppress(OSError, struct.error),
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname(), timeout=5) as client,
        listening.accept()[0] as accepted,
    ):
        client.sendall(b"12345")
        accepted.recv(3, socket.MSG_WAITALL)
        accepted.sendall(b"1234567")
        return counts(accepted) == (7, 3) and "0" in os.listdir("/proc/self/fd")
    return False


def inbox_of(sockets: Sequence[socket.socket]) -> list[socket.socket]:
    """[where workers take the connections of one that was killed, where keepers put them]; [] where there are no keepers. sockets: those
    that the server listens at. What clients send as urgent comes in its place in their connections: it would be counted and not read."""
    if sys.platform != "linux":
        return []
    taken, put = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    taken.setblocking(False)
    put.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    for each in sockets:
        each.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
    return [taken, put]


# --- the process ------------------------------------------------------------------------------------------------------

CLONE = {"x86_64": 56, "aarch64": 220}
CLONE_FILES, CLONE_PARENT = 0x400, 0x8000
PR_SET_NAME = 15


def start(told: dict[str, Any], control: socket.socket) -> mmap.mmap | None:
    """Start the keeper of this process, which has one thread. Returns the slots; None if nothing can be kept here. told: what the parent
    has told this process. control: to the parent, whose child the keeper is, as this process is.

    `clone` is called as such: no function of Python or of C's library has CLONE_FILES without shared memory. Locks of the libraries are
    free, since there is one thread."""
    number = CLONE.get(platform.machine())
    if number is None or not hasattr(os, "pidfd_open") or not is_exact():
        return None
    try:
        memory = new_memory()
        worker = os.getpid()
        ended = os.pidfd_open(worker)
        ports = [_port(number) for number in told["sockets"]]  # now: a worker that stops closes them
    except OSError:
        return None
    libc = ctypes.PyDLL(None)  # which keeps the interpreter's lock
    made = libc.syscall(ctypes.c_long(number), ctypes.c_ulong(CLONE_FILES | CLONE_PARENT), None, None, None, None)
    if made < 0:
        return None
    if made > 0:
        return memory
    try:
        # Not the worker: it may be killed before it can say so, and nobody would wait for this process when it ends.
        control.sendall(json.dumps({"what": "keeper", "process": os.getpid()}).encode() + b"\n")
        for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(each, signal.SIG_IGN)  # it ends when the worker does
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # the worker may fill the table that far
        libc.prctl(ctypes.c_int(PR_SET_NAME), b"hbc-keeper", None, None, None)
        poll = select.poll()
        poll.register(ended, select.POLLIN)
        poll.poll()
        _hand_over(memory, told, worker, ports)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


def _hand_over(memory: mmap.mmap, told: dict[str, Any], worker: int, ports: Sequence[int]) -> None:
    """Send the connections of a worker that has ended into the inbox: those to these ports. The process owns the table of files alone
    now."""
    taken, put = told["inbox"]
    os.close(taken)  # if nobody else can read there, sending fails
    inbox = socket.socket(fileno=put)
    closed: Counter[str] = Counter()
    found: list[tuple[socket.socket, bytes, Left]] = []
    """(connection, message, what is left)"""
    given_up = []
    just_taken, taken_rest, taken_data = of_message(memoryview(memory)[TAKING * SLOT :])
    for number in map(int, os.listdir("/proc/self/fd")):
        connection = _connection(number, ports)
        if connection is None:
            if number > 2 and number != put:
                with contextlib.suppress(OSError):
                    os.close(number)  # others may wait for it: a lock, the end of a pipe
            continue
        slot = min(number, SLOTS)
        inode = inode_of(number)
        words = memoryview(memory)[slot * SLOT :][: 8 * WORDS].cast("Q").tolist()
        known = counts(connection)
        if known is None:
            rest: Left | str = ""
        elif inode == just_taken:
            rest = taken_rest
        elif slot == SLOTS:
            rest = "the worker had too many connections"
        else:
            rest = left(words if words[INODE] == inode else [0] * WORDS, *known)
        if isinstance(rest, Left):
            data = taken_data if inode == just_taken else room_of(memory, slot, rest.length)
            found.append((connection, as_message(inode, rest, data), rest))
            continue
        if rest:
            closed[rest] += 1
        if rest == TWICE:
            given_up.append(room_of(memory, slot, 200).split(b"\r\n")[0].decode("latin-1"))
        connection.close()
    given = asked = 0
    # What may have ended the worker comes last, and each of these alone (kept.Keeping): so it ends no others.
    for connection, message, rest in sorted(found, key=lambda each: each[2].begun):
        try:
            socket.send_fds(inbox, [message], [connection.fileno()])
            given += 1
            asked += bool(rest.length)
        except OSError as error:
            closed[str(error)] += 1
        connection.close()
    if given or closed:
        from hbc.serve.logs import Log

        log = Log(quiet=told["settings"]["quiet"])
        log.tell("connections kept", worker=worker, connections=given, with_requests=asked, closed=dict(closed))
        for request in given_up:
            log.failed("request given up", RuntimeError(TWICE), request=request)


def _port(number: int) -> int:
    with socket.socket(fileno=os.dup(number)) as listening:
        port: int = listening.getsockname()[1]
        return port


def _connection(number: int, ports: Sequence[int]) -> socket.socket | None:
    """A file as a connection to one of these ports; None for any other file."""
    try:
        found = socket.socket(fileno=number)
    except OSError:
        return None
    try:
        is_tcp = found.family in (socket.AF_INET, socket.AF_INET6) and found.type == socket.SOCK_STREAM
        listens = found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        if is_tcp and not listens and found.getsockname()[1] in ports:
            return found
    except OSError:
        pass
    found.detach()
    return None
