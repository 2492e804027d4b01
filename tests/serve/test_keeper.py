"""What is left of the connections of a worker that ends at any moment: a worker in this process is stopped between any two of its steps."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import socket
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

if sys.platform != "linux":
    pytest.skip("keepers are for Linux", allow_module_level=True)

from serving import numbers, post, settings
from uvicorn.server import ServerState

from hbc.serve import keeper
from hbc.serve.kept import ANSWERS, Keeping, Kept
from hbc.serve.process import Server, Worker, listening

TOO_LONG = "a request was too long to be kept"
PART = "part of an answer was written"


@contextmanager
def connected() -> Iterator[tuple[socket.socket, socket.socket]]:
    """(client, connection) of a listening socket like the server's."""
    with contextlib.ExitStack() as stack:
        (server,) = listening("127.0.0.1", 0)
        for each in (server, *keeper.inbox_of([server])):
            stack.enter_context(closing(each))
        server.setblocking(True)
        client = stack.enter_context(socket.create_connection(server.getsockname(), timeout=30))
        yield client, stack.enter_context(closing(server.accept()[0]))


def test_the_kernel_counts_what_was_read_and_written() -> None:
    with connected() as (client, accepted):
        assert keeper.counts(accepted) == (0, 0)
        client.sendall(b"12345")
        client.send(b"6", socket.MSG_OOB)
        assert accepted.recv(3, socket.MSG_WAITALL) == b"123"
        assert keeper.counts(accepted) == (0, 3)
        assert [accepted.recv(9), accepted.recv(9)] == [b"45", b"6"]
        assert keeper.counts(accepted) == (0, 6)
        accepted.sendall(b"1234567")
        assert keeper.counts(accepted) == (7, 6)
        written = 7
        accepted.setblocking(False)
        try:
            while True:
                written += accepted.send(b"z" * 100_000)
        except BlockingIOError:
            pass
        assert keeper.counts(accepted) == (written, 6)  # most of it waits
        client.sendall(b"789")
        client.shutdown(socket.SHUT_WR)
        accepted.setblocking(True)
        assert accepted.recv(1) == b"7"
        assert keeper.counts(accepted) == (written, 7)
        assert accepted.recv(2, socket.MSG_WAITALL) == b"89"
        assert accepted.recv(1) == b""
        assert keeper.counts(accepted) == (written, 9)  # the end is no byte
    with connected() as (client, accepted):
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        client.close()
        with pytest.raises(ConnectionResetError):
            accepted.recv(1)
        assert keeper.counts(accepted) is None
    assert keeper.is_exact()


class Words:
    """The words of slots. Each change is a moment at which the worker may end."""

    def __init__(self, words: memoryview, moment: Any) -> None:
        self._words = words
        self._moment = moment

    def __setitem__(self, where: Any, value: Any) -> None:
        self._moment()
        self._words[where] = value
        self._moment()


class Wire:
    """A transport with a kernel of its own, which takes some bytes at a time."""

    def __init__(self, accepted: socket.socket, moment: Any) -> None:
        self._accepted = accepted
        self._moment = moment
        self.room = 1 << 60
        """How many bytes the kernel takes now."""
        self.sent = bytearray()
        self.queue = bytearray()
        self.closing = False

    def write(self, data: bytes) -> None:
        self.queue += data
        self.flush()

    def flush(self) -> None:
        self._moment()
        size = min(self.room, len(self.queue))
        self.sent += self.queue[:size]
        self.room -= size
        del self.queue[:size]
        self._moment()

    def get_write_buffer_size(self) -> int:
        return len(self.queue)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._accepted if name == "socket" else default

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    abort = close

    def pause_reading(self) -> None:
        pass

    resume_reading = pause_reading


class Ended:
    """A worker whose state is looked at in each moment. `requests`: what the client sends, in order. taken: what is left of the connection
    that the worker takes."""

    def __init__(self, keeping: Keeping, make: Any, accepted: socket.socket, requests: list[bytes], taken: Any = None) -> None:
        self.stream = b"".join(requests)
        self.ends = [0]
        for each in requests:
            self.ends.append(self.ends[-1] + len(each))
        self.read = 0
        self.seen: list[tuple[int, int, int, Any, bytes]] = []
        """(bytes that were written, read, written before the room begins, what is left, its data) in each moment."""
        self.slots = keeping._slots
        self.slot = accepted.fileno()
        self.wire = Wire(accepted, self.moment)
        self.kept: Kept = make(taken=taken)
        self.inode = keeper.inode_of(self.slot)
        if taken is not None:
            found, data = taken
            self.slots.begin(self.slot, found, data)
            self.read = found.read + len(data)
        self.kept._words = Words(self.slots.words, self.moment)  # type: ignore[assignment]
        self.kept.connection_made(self.wire)

    def moment(self) -> None:
        at = self.slot * keeper.SLOT // 8
        words = self.slots.words[at : at + keeper.WORDS].tolist()
        found = keeper.left(words if words[keeper.INODE] == self.inode else [0] * keeper.WORDS, len(self.wire.sent), self.read)
        data = b""
        if isinstance(found, keeper.Left):
            data = keeper.room_of(self.slots.memory, self.slot, found.length)
            message = keeper.as_message(self.inode, found, data)
            assert keeper.of_message(memoryview(message + b"more")) == (self.inode, found, data)
        self.seen.append((len(self.wire.sent), self.read, words[keeper.BASE] >> 32, found, data))

    def receive(self, size: int) -> None:
        """The client's next bytes come."""
        while size and not self.wire.closing:
            buffer = self.kept.get_buffer(65536)
            part = min(size, len(buffer))
            buffer[:part] = self.stream[self.read : self.read + part]
            self.read += part
            self.moment()
            self.kept.buffer_updated(part)
            self.moment()
            size -= part

    async def finish(self) -> None:
        """All comes, and the kernel takes all answers."""
        self.wire.room = 1 << 60
        connection = self.kept._connection
        assert connection is not None
        while self.wire.queue or self.read < len(self.stream) or not connection.is_done():
            self.wire.flush()
            if self.wire.closing:
                break
            self.receive(min(len(self.stream) - self.read, 50_000))
            await asyncio.sleep(0.001)

    def check(self, ends: list[int]) -> dict[str, int]:
        """Test all moments. ends: where the answers end. Returns how often which was found."""
        counted: dict[str, int] = {}
        for written, read, before, found, data in self.seen:
            if isinstance(found, str):
                kind = found
                if not found:
                    assert self.wire.closing
                    assert written == ends[-1]
                elif found == PART:
                    assert written not in ends or ends.index(written) - ends.index(before) > ANSWERS
                else:
                    assert found == TOO_LONG
                    assert read - self.ends[ends.index(before)] > keeper.ROOM
            else:
                kind = "left" if data else "idle"
                done = ends.index(written)  # so many answers were written, the last one wholly
                assert self.ends.index(found.read) + found.skip == done
                assert data == self.stream[found.read : read]
            counted[kind] = counted.get(kind, 0) + 1
        return counted


def answer_ends(data: bytes) -> list[int]:
    ends = [0]
    while ends[-1] < len(data):
        head, _, _ = data[ends[-1] :].partition(b"\r\n\r\n")
        ends.append(ends[-1] + len(head) + 4 + int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
    return ends


def alike(answers: bytes) -> list[bytes]:
    """Answers, without what says that the connection is closed: where the last request is none, it depends on how far others are."""
    ends = answer_ends(answers)
    found = [answers[begin:end].replace(b"connection: close\r\n", b"") for begin, end in itertools.pairwise(ends)]
    return found[:-1] if found[-1].endswith(b'"the request is no HTTP/1.1."}') else found


def requests_of(chance: random.Random, slow: bool) -> list[bytes]:
    X, _ = numbers()
    body = json.dumps({"rows": [X.iloc[0].tolist()]}).encode()
    one = post("/v1/models/numbers:predict", body, close=False)
    many = post("/v1/models/numbers:predict", json.dumps({"rows": [[0, 1, 2, 3, 4]] * 1500}).encode(), close=False)
    chunked = one.replace(b"Content-Length: %d" % len(body), b"Transfer-Encoding: chunked").replace(
        body, b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    )
    other = [b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n", b"HEAD /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"]
    kinds = [one, one, one, post("/v1/models/none:predict", body, close=False)]
    if slow:
        kinds += [*other[:1], many, chunked, post("/v2/repository/index", b"", close=False)]
    last = [one, one.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"), b"no request\r\n\r\n"]
    return [chance.choice(kinds) for _ in range(chance.choice([1, 3, 12, 80]))] + [chance.choice(last)]


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("narrow", [False, True])
def test_no_answer_is_lost_or_given_twice(slow: bool, narrow: bool) -> None:
    """Whenever a worker ends, the requests that are handed on are those without an answer. slow: also some of which the answer takes more
    than one step. narrow: the kernel takes answers piece by piece."""
    chance = random.Random(slow + 2 * narrow)
    total: dict[str, int] = {}

    async def main() -> None:
        worker = Worker(settings(), [], keeping=Keeping(keeper.new_memory(), inbox, put))
        worker.repository.refresh()
        server = Server(worker)
        server.config.load()
        for _ in range(6):
            state = ServerState()
            with connected() as (_, accepted):
                requests = requests_of(chance, slow)

                def make(state: ServerState = state, taken: Any = None) -> Any:
                    options = {"config": server.config, "server_state": state, "app_state": {}}
                    return server.config.http_protocol_class(taken=taken, **options)

                assert worker.keeping is not None
                ended = Ended(worker.keeping, make, accepted, requests)
                while ended.read < len(ended.stream) and not ended.wire.closing:
                    if narrow:
                        ended.wire.room = chance.choice([0, 50, 200, 1 << 20])
                        ended.wire.flush()
                    ended.receive(min(len(ended.stream) - ended.read, chance.choice([1, 40, 200, 400, 3000, 70_000])))
                    for _ in range(chance.choice([0, 1, 5])):
                        await asyncio.sleep(0)
                await ended.finish()
                answers = bytes(ended.wire.sent)
                if not ended.wire.closing:
                    ended.kept._connection.look(0.0)  # type: ignore[union-attr]
                    ended.moment()
                    assert ended.seen[-1][3] == keeper.Left(len(answers), ended.read, 0, 0, False)
                ends = answer_ends(answers)
                assert len(ends) - 1 in (len(requests), len(requests) - requests[-1].startswith(b"no request"))
                for kind, count in ended.check(ends).items():
                    total[kind] = total.get(kind, 0) + count
                ended.kept.connection_lost(None)
                ended.moment()
                assert ended.seen[-1][3] == ""

                kept = [each for each in ended.seen if isinstance(each[3], keeper.Left)]
                for written, read, _, found, data in chance.sample(kept, min(len(kept), 20)):
                    after = Ended(worker.keeping, make, accepted, requests, (found, data))
                    assert after.read == read
                    await after.finish()
                    assert alike(answers[:written] + after.wire.sent) == alike(answers), (written, found)
                    after.kept.connection_lost(None)
        worker.service.engine.close()

    inbox, put = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with inbox, put:
        asyncio.run(main())
    assert total["left"] > 100
    if narrow and not slow:  # in wide sockets, it is found where many answers wait
        assert PART in total


def test_a_connection_is_kept_once_its_long_request_is_answered() -> None:
    """The kernel has the answer before the worker takes down that the room is free. The client may have sent its next request by then."""
    long = post("/v1/models/numbers:predict", json.dumps({"rows": [[0, 1, 2, 3, 4]] * 9000}).encode(), close=False)
    assert len(long) > keeper.ROOM

    async def main() -> None:
        worker = Worker(settings(), [], keeping=Keeping(keeper.new_memory(), inbox, put))
        worker.repository.refresh()
        server = Server(worker)
        server.config.load()
        with connected() as (_, accepted):

            def make(taken: Any) -> Any:
                options = {"config": server.config, "server_state": ServerState(), "app_state": {}}
                return server.config.http_protocol_class(taken=taken, **options)

            assert worker.keeping is not None
            ended = Ended(worker.keeping, make, accepted, [long])
            await ended.finish()
            ends = answer_ends(bytes(ended.wire.sent))
            assert ended.check(ends).keys() == {"left", "idle", TOO_LONG}
            answered = [found for written, _, _, found, _ in ended.seen if written == ends[1]]
            assert len(answered) > 2
            assert answered == [keeper.Left(ends[1], len(long), 0, 0, False)] * len(answered)
            ended.kept.connection_lost(None)
        worker.service.engine.close()

    inbox, put = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with inbox, put:
        asyncio.run(main())
