"""Kept: a connection of a worker that has a keeper (keeper.py). What comes is read into the connection's slot, and the slot says what is
answered, at each moment and without help of this process: it may be killed at any."""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import socket
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from hbc.serve.keeper import (
    BASE,
    CLOSE,
    DONE,
    ENDS,
    FLAG,
    GONE,
    HEADER,
    INODE,
    LOW,
    ROOM,
    SKIP,
    SLOT,
    SLOTS,
    TAKING,
    TRIED,
    WORDS,
    Left,
    as_message,
    inode_of,
    mark,
    of_message,
)
from hbc.serve.protocol import Connection

if TYPE_CHECKING:
    from hbc.serve.failures import Failure
    from hbc.serve.service import Service

LARGE = 4096 - 8 * WORDS
"""A slot that has held more bytes takes more than a page, and is given back when the connection is idle."""
ANSWERS = WORDS - ENDS
SHARE_SECONDS = 1.0
"""How long a worker that gives connections to a new one takes none."""


class Slots:
    """The slots of a worker's connections, by the number of the file."""

    def __init__(self, memory: mmap.mmap) -> None:
        self.memory = memory
        self.words = memoryview(memory).cast("Q")
        self.spare = memoryview(bytearray(256 << 10))
        """Where the rest of a request is read that is too long to be kept."""
        self._rooms = memoryview(memory)
        self.taking = self._rooms[TAKING * SLOT :][: HEADER.size + ROOM]

    def room(self, slot: int) -> memoryview:
        return self._rooms[slot * SLOT + 8 * WORDS :][:ROOM]

    def begin(self, number: int, found: Left, data: bytes = b"") -> None:
        """Take down a connection, the file with this number. Data: what is left of its requests."""
        slot = min(number, SLOTS)
        at = slot * SLOT // 8
        words = self.words
        words[at + CLOSE : at + WORDS] = EMPTY
        point = mark(found.written, found.read)
        if found.skip:
            words[at + SKIP] = found.skip << 32 | (point & LOW)
        if found.begun:
            words[at + TRIED] = FLAG | (point & LOW)
        if data:
            self.room(slot)[: len(data)] = data
        words[at + BASE] = point
        words[at + INODE] = inode_of(number)  # from now on the slot counts
        words[TAKING * SLOT // 8] = 0

    def give_back(self, slot: int) -> None:
        """Give the memory of a room back, but for its first page."""
        with contextlib.suppress(OSError):
            self.memory.madvise(mmap.MADV_REMOVE, slot * SLOT + mmap.PAGESIZE, SLOT - mmap.PAGESIZE)


NEW = Left(0, 0, 0, 0, False)
EMPTY = memoryview(bytes(8 * (WORDS - CLOSE))).cast("Q")


class KeptConnection(Connection):
    """A connection that may come from another process."""

    kept: Kept
    _skip = 0

    def skip(self, count: int) -> None:
        """Do not answer the next requests, so many: they were answered."""
        self._skip = count
        if count:
            self.known = {}  # so that none takes the short way

    def is_done(self) -> bool:
        """Whether all that has come is answered."""
        cycle = self.cycle
        return not self._reading and (cycle is None or cycle.response_complete) and not self.pipeline

    def is_waiting(self) -> bool:
        """Whether the rest of a request is waited for, and nothing else."""
        cycle = self.cycle
        return bool(self._reading) and (cycle is None or cycle.response_complete)

    def is_last(self, cycle: Any) -> bool:
        """Whether all that has come is answered when this cycle is, and the connection stays open then."""
        return cycle is self.cycle and cycle.keep_alive and not (self._reading or self.pipeline or self._refused)

    def on_headers_complete(self) -> None:
        if self._skip:
            self._reading = "body"
            return
        before = self.cycle
        super().on_headers_complete()
        self._watch(before)

    def on_message_complete(self) -> None:
        before = self.cycle
        super().on_message_complete()
        if self._skip:
            self._skip -= 1
            if not self._skip:
                del self.known
            if not self.parser.should_keep_alive():
                self.transport.close()
        else:
            self._watch(before)

    def _watch(self, before: Any) -> None:
        """Have the answers of a new cycle counted."""
        if self.cycle is not before:
            self.cycle.transport = Watched(self.kept, self.cycle)  # type: ignore[assignment]

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.is_done():
            self.kept.rest()

    def _end(self, error: Failure, status: int | None = None) -> None:
        if self._skip:  # the client was told
            self._refused = True
            self.transport.close()
        else:
            super()._end(error, status)

    def look(self, now: float) -> None:
        super().look(now)
        if self.is_done():
            self.kept.rest()
            self.kept.give_back()


class Watched:
    """The transport of one cycle of uvicorn, which writes the head of an answer and then its body. They are written together: the kernel
    has both or none."""

    def __init__(self, kept: Kept, cycle: Any) -> None:
        self._kept = kept
        self._cycle = cycle
        self._held = b""
        self.close = kept.close
        self.is_closing = kept.is_closing

    def write(self, data: bytes) -> None:
        cycle = self._cycle
        if cycle is None or not cycle.response_started or cycle.chunked_encoding:
            self._kept.write_part(data)
            return
        self._held += data
        if cycle.expected_content_length == 0 or cycle.scope["method"] == "HEAD":
            self._cycle = None  # nothing goes round
            self._kept.write_whole(self._held, cycle)


class Kept(asyncio.BufferedProtocol):
    """Stands between a transport and its Connection: for the transport it is the protocol, for the Connection the transport.

    A request costs two of its calls, get_buffer and buffer_updated, and one write."""

    def __init__(self, slots: Slots, connection: KeptConnection, taken: tuple[Left, bytes] | None = None) -> None:
        self._slots = slots
        self._words = slots.words
        self._memory = slots.memory
        self._connection: KeptConnection | None = connection
        self._taken = taken
        connection.kept = self
        self._receive = connection.data_received
        self._is_done = connection.is_done

    def connection_made(self, transport: Any) -> None:
        connection = self._connection
        assert connection is not None
        self._transport = transport
        self._send = transport.write
        self._waiting = transport.get_write_buffer_size
        self.is_closing = transport.is_closing
        self.pause_reading = transport.pause_reading
        self.resume_reading = transport.resume_reading
        self.get_extra_info = transport.get_extra_info
        number = transport.get_extra_info("socket").fileno()
        self._use(min(number, SLOTS))
        if self._taken is None:
            self._slots.begin(number, NEW)
        connection.admitted = self._taken is not None
        found, data = self._taken or (NEW, b"")
        self._taken = None
        self._written, self._read, self._answers = found.written, found.read, 0
        self._tag = (found.read + 1) & LOW
        connection.skip(found.skip)
        connection.connection_made(self)
        if connection.service.draining:
            connection.drain()
        if data:
            self.buffer_updated(len(data))  # it is in the room already
            if connection.is_waiting():
                self._words[self._at + TRIED] = 0  # nobody has begun with it: it has not come yet
            connection.loop.call_soon(self._pause_again)

    def _pause_again(self) -> None:
        """Stop reading if the Connection has asked for that when nothing was read yet: the transport begins after connection_made."""
        if self._connection is not None and self._connection.flow.read_paused:
            self._transport.pause_reading()

    def _use(self, slot: int) -> None:
        self._slot = slot
        self._room = self._free = self._slots.room(slot)
        self._filled = 0
        self._start = slot * SLOT + 8 * WORDS
        self._at = slot * SLOT // 8
        self._ends = self._at + ENDS
        self._large = False

    def connection_lost(self, error: Exception | None) -> None:  # type: ignore[override]
        connection, self._connection = self._connection, None
        assert connection is not None
        connection.connection_lost(error)
        del self._receive, self._is_done  # nothing goes round, so that no collector has to free it
        words, at, slot = self._words, self._at, self._slot
        large = self._large
        self._use(SLOTS)  # another connection has the slot soon
        words[at + CLOSE] = GONE
        if large:
            self._slots.give_back(slot)

    def eof_received(self) -> bool | None:
        assert self._connection is not None
        return self._connection.eof_received()

    def pause_writing(self) -> None:
        if self._connection is not None:
            self._connection.pause_writing()

    def resume_writing(self) -> None:
        if self._connection is not None:
            self._connection.resume_writing()

    # --- reading -------------------------------------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> Any:
        return self._free

    def buffer_updated(self, nbytes: int) -> None:
        filled = self._filled
        if filled < ROOM:
            start = self._start + filled
            data = self._memory[start : start + nbytes]
        else:
            data = bytes(self._free[:nbytes])
        self._read += nbytes
        self._receive(data)
        if self._is_done() and not self._waiting():
            # All is answered, and the kernel has the answers: the room is free. This is `rest`, without a call.
            self._tag = tag = (self._read + 1) & LOW
            self._words[self._at] = (self._written & LOW) << 32 | tag
            self._answers = 0
            if filled:
                self._large |= filled > LARGE
                self._filled = 0
                self._free = self._room
        else:
            self._filled = filled = filled + nbytes
            self._free = self._room[filled:] if filled < ROOM else self._slots.spare
        if nbytes > LARGE:
            self._large = True

    def rest(self) -> None:
        """Take down that all requests that have come are answered, if the kernel has the answers."""
        if not self._waiting():
            self._tag = (self._read + 1) & LOW
            self._words[self._at] = mark(self._written, self._read)
            self._answers = 0
            self._large |= self._filled > LARGE
            self._filled = 0
            self._free = self._room

    def give_back(self) -> None:
        """Give back the memory that a large request took, if nothing is in the room."""
        if self._large and not self._filled:
            self._large = False
            self._slots.give_back(self._slot)

    def is_idle(self) -> bool:
        """Whether nothing that has come waits for an answer, and no answer for the kernel."""
        return (
            self._connection is not None
            and not self.is_closing()
            and not self._filled
            and self._is_done()
            and not self._waiting()
        )

    def is_busy(self) -> bool:
        """Whether a request is being answered."""
        return self._connection is not None and not self._is_done() and not self._connection.is_waiting()

    def give(self, put: socket.socket) -> None:
        """Put the connection into the inbox. Raises OSError if that is full."""
        number = self.get_extra_info("socket").fileno()
        found = Left(self._written & LOW, self._read & LOW, 0, 0, False)
        self._words[self._at + CLOSE] = GONE  # two must never have it
        try:
            socket.send_fds(put, [as_message(inode_of(number), found, b"")], [number], socket.MSG_DONTWAIT)
        except OSError:
            self._words[self._at + CLOSE] = 0
            raise
        self._transport.abort()  # for this process; the connection stays open

    # --- writing -------------------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Write an answer, or its end."""
        self._written = written = self._written + len(data)
        number = self._answers
        if number < ANSWERS:
            self._words[self._ends + number] = (written & LOW) << 32 | self._tag
        self._answers = number + 1
        self._send(data)

    def write_whole(self, data: bytes, cycle: Any) -> None:
        """Write the answer of a cycle. The kernel may have it, and the client may ask again, long before `rest` is called."""
        connection = self._connection
        if connection is not None and connection.is_last(cycle):
            self._words[self._at + DONE] = mark(self._written + len(data), self._read)
        self.write(data)

    def write_part(self, data: bytes) -> None:
        """Write what comes before the end of an answer."""
        self._written += len(data)
        self._send(data)

    def close(self) -> None:
        self._words[self._at + CLOSE] = FLAG | (self._written & LOW)
        self._transport.close()

    def abort(self) -> None:
        self._words[self._at + CLOSE] = GONE
        self._transport.abort()


class Keeping:
    """What a worker does with a keeper: its connections are kept, and it takes those of workers that have ended out of the inbox. When a
    new worker comes, each of the others puts its share into the inbox. Without that, connections that stay open would all be with those
    which have lived longest."""

    def __init__(self, memory: mmap.mmap, inbox: socket.socket, put: socket.socket) -> None:
        self._slots = Slots(memory)
        self._inbox = inbox
        self._put = put
        self.gives = True
        """Whether connections may be given to other workers. A server that stops gives none: nobody may be left to take them."""
        self._make: Callable[..., Any] | None = None
        self._away = 0
        """How many reasons there are to take nothing from the inbox."""
        self._tasks: set[asyncio.Task[Any]] = set()

    def connection_factory(self, service: Service) -> Callable[..., Any]:
        """What makes the protocol of a new connection, as `connection_class` does."""
        kind = type("KeptConnection", (KeptConnection,), {"service": service, "known": {}})
        return lambda taken=None, **options: Kept(self._slots, kind(**options), taken)

    def begin(self, make: Callable[..., Any]) -> None:
        """Take connections from now on. make: makes a protocol, of what is left."""
        self._make = make
        asyncio.get_running_loop().add_reader(self._inbox, self._take)

    async def share(self, connections: Sequence[Any], workers: int) -> None:
        """Give away one of so many connections, as far as a moment comes at which no request is in them. It takes none meanwhile."""
        loop = asyncio.get_running_loop()
        self._look_away()
        end = loop.time() + SHARE_SECONDS
        try:
            own = [each.kept for each in connections if isinstance(each, KeptConnection)]
            left = len(own) // workers
            while left and self.gives and loop.time() < end:
                with contextlib.suppress(OSError):  # others have not taken yet what was given
                    for each in own:
                        if left and each.is_idle():
                            each.give(self._put)
                            left -= 1
                await asyncio.sleep(0.01)
            await asyncio.sleep(end - loop.time())
        finally:
            self._look_again()

    def stop(self) -> None:
        self._make = None
        asyncio.get_running_loop().remove_reader(self._inbox)

    def _look_away(self) -> None:
        self._away += 1
        asyncio.get_running_loop().remove_reader(self._inbox)

    def _look_again(self) -> None:
        self._away -= 1
        if self._make is not None and not self._away:
            asyncio.get_running_loop().add_reader(self._inbox, self._take)

    def _take(self) -> None:
        """Take one connection. Others come after its answer was written: a request that ends this process takes none with it."""
        slots = self._slots
        try:
            _, rest, _, _ = self._inbox.recvmsg_into([slots.taking], socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:  # another worker has taken it
            return
        if not rest or self._make is None:  # no number of a file was free
            return
        number = int.from_bytes(rest[0][2][:4], sys.byteorder)
        _, found, data = of_message(slots.taking)
        slots.begin(number, found, data)
        connection = socket.socket(fileno=number)
        connection.setblocking(False)
        task = asyncio.get_running_loop().create_task(self._go_on(self._make(taken=(found, data)), connection, found.begun))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _go_on(self, kept: Kept, connection: socket.socket, begun: bool) -> None:
        """Serve a connection. Nothing else is taken while a request is answered that may have ended another worker."""
        if begun:
            self._look_away()
        try:
            with contextlib.suppress(OSError):  # the client has left
                await asyncio.get_running_loop().connect_accepted_socket(lambda: kept, connection)
                while begun and kept.is_busy():
                    await asyncio.sleep(0.005)
        finally:
            if begun:
                self._look_again()
