"""A process that serves: alone, or as one of the workers of a parent (parent.py), which share a listening socket."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import functools
import gc
import logging
import mmap
import os
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn

from hbc.errors import HbcError
from hbc.lazy import record
from hbc.serve.engine import Engine, clock
from hbc.serve.failures import Failure
from hbc.serve.hosts import hosts_of
from hbc.serve.http import Application
from hbc.serve.kept import Keeping
from hbc.serve.limits import Limits, within_files
from hbc.serve.logs import Forward, Log
from hbc.serve.protocol import Connection, connection_class
from hbc.serve.repository import Repository
from hbc.serve.service import Service
from hbc.serve.workers import Family, Lines

BACKLOG = 4096
LINGER_SECONDS = 0.3
"""How long a server that stops still takes what is on its way. Each answer then says that the connection is closed."""


@record
class Settings:
    """All that a server is told. It is passed to workers as JSON."""

    files: Mapping[str, str]
    directory: str | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    workers: int = 1
    threads: int = 1
    poll: float = 2.0
    """The seconds between two looks at the files; 0: look at SIGHUP only."""
    trust_code: bool = False
    backend: str | None = None
    device: str | None = None
    token: str | None = None
    allowed_hosts: Sequence[str] = ()
    """Names by which the server may be called, besides localhost and addresses. (): any name, unless it is reached from this computer
    only and has no token."""
    certificate: str | None = None
    key: str | None = None
    grpc: int | None = None
    """The port for gRPC; None: no gRPC."""
    control: bool = True
    methods: Sequence[str] = ()
    """The methods to serve; (): all."""
    drift: bool = False
    """Whether missing, unknown and outlying values are counted."""
    access_log: bool = False
    quiet: bool = False
    limits: Mapping[str, float] = field(default_factory=dict)


def listening(host: str, port: int) -> list[socket.socket]:
    """A socket for each address of a host. Raises OSError, which names the host, if one is taken or there is none."""
    found: list[socket.socket] = []
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror}. --host takes a name or an address of this computer", host) from error
    for family, kind, protocol, _, address in addresses:
        each = socket.socket(family, kind, protocol)
        each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            each.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            each.bind((address[0], found[0].getsockname()[1] if found else port, *address[2:]))
            each.listen(BACKLOG)  # who connects before the models are loaded waits
        except OSError as error:
            each.close()
            for other in found:
                other.close()
            advice = (
                "--host takes an address of this computer" if error.errno == errno.EADDRNOTAVAIL else "--port names another one"
            )
            raise OSError(error.errno, f"{error.strerror}. {advice}", f"{host}:{port}") from error
        each.setblocking(False)
        each.set_inheritable(True)
        found.append(each)
    return found


def settle() -> None:
    """Free what loading has left behind and models that nobody holds any more, and give their memory back. The collector leaves
    alone what stays. A worker that has compiled a forest of 50 MB has 314 MB of its own, and had 393 without.

    A model refers to itself, so that only the collector frees it. It never looks at what is frozen: without `unfreeze`, each model that
    was replaced stayed for ever (1.2 MB, and a file of the cache). It takes 10 to 15 ms, in which this process answers nobody."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(0)


QUICK_SECONDS = 5.0
"""How long who connects waits for the first models. Then the server answers, that it is not ready."""

ARENA_MAX = -8
"""M_ARENA_MAX of glibc, which Python has no name for."""


def use_one_heap() -> None:
    """Let all threads take memory from one heap. glibc gives each thread one, and `malloc_trim` leaves what is free at the end of any but
    the first: a forest of 46 MB, loaded anew in a thread, left 10 to 20 MB behind. Python's threads take turns anyway."""
    limit = getattr(ctypes.CDLL(None), "mallopt", None)
    if limit is not None:
        limit(ARENA_MAX, 1)


ATTACH_FILTER = 26
"""SO_ATTACH_FILTER of Linux, which Python has no name for."""


def refuse_new(sockets: list[socket.socket]) -> None:
    """Let the kernel drop new connections, so that those which it has accepted already can all be answered before the sockets are closed:
    that would reset them. Only Linux can do so. The filter is one instruction of BPF: drop the packet."""
    if sys.platform != "linux":
        return
    instruction = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0))
    for each in sockets:
        with contextlib.suppress(OSError):
            each.setsockopt(socket.SOL_SOCKET, ATTACH_FILTER, struct.pack("HL", 1, ctypes.addressof(instruction)))


class Worker:
    """A process that serves. control: the socket to the parent, if there is one. folder: where the workers' statistics are. keeping: of its
    connections, if it has a keeper."""

    def __init__(
        self,
        settings: Settings,
        sockets: list[socket.socket],
        control: socket.socket | None = None,
        folder: Path | None = None,
        keeping: Keeping | None = None,
    ) -> None:
        self.settings = settings
        self.keeping = keeping
        self._sockets = sockets
        self._control = control
        self.log = Log(quiet=settings.quiet)
        limits = within_files(Limits(**settings.limits))  # type: ignore[arg-type]
        directory = None if settings.directory is None else Path(settings.directory)
        files = {name: Path(path) for name, path in settings.files.items()}
        self.repository = Repository(
            files,
            directory,
            trust_code=settings.trust_code,
            backend=settings.backend,
            device=settings.device,
            drift=settings.drift,
            methods=settings.methods,
            put_off=True,
            tell=self.log.tell,
            released=self.settle_soon,
        )
        self.family = Family(self.repository, folder, control)
        engine = Engine(limits, settings.threads, lambda error: self.log.failed("model failed", error))
        self.service = Service(
            self.repository,
            engine,
            limits,
            self.log,
            token=settings.token,
            control=settings.control,
            access_log=settings.access_log,
            hosts=hosts_of([each.getsockname()[0] for each in sockets], settings.token, settings.allowed_hosts),
        )
        self.grpc: Any = None
        """The server of gRPC, if there is one."""
        self.first = True
        """Whether no other worker serves already. If one does, this one takes no connections before its models are loaded, and a file that
        was named need not be good."""
        self.connections: Callable[[], Iterable[Any]] = tuple
        """The connections over HTTP that there are."""
        self._background: set[asyncio.Task[Any]] = set()
        self._unsettled = False
        self._finishing = False

    def run(self) -> None:
        """Load the models, and serve them until a signal. Raises HbcError for a file that was named and cannot be loaded."""
        use_one_heap()
        if not self.first:
            self.load()
        server = Server(self)
        server.run(self._sockets)
        self.service.engine.close()
        if server.failure is not None:
            raise server.failure

    def load(self) -> None:
        """Load the models for the first time. Raises HbcError as `run` does."""
        self.repository.refresh()
        settle()
        if self.first:
            self.repository.require_named()

    async def start_grpc(self) -> None:
        """Listen for gRPC, if that was asked for. Raises OSError if the address is taken."""
        settings = self.settings
        if settings.grpc is None:
            return
        from hbc.serve.grpc.server import GrpcServer, Tls

        tls = (
            None
            if settings.certificate is None or settings.key is None
            else Tls(Path(settings.certificate), Path(settings.key))
        )
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        self.grpc = GrpcServer(self.service, self.family, f"{host}:{settings.grpc}", tls)
        await self.grpc.start()

    def started(self) -> None:
        """Called when the server listens, and the models are loaded."""
        address = self._sockets[0].getsockname()
        scheme = "http" if self.settings.certificate is None else "https"
        host = f"[{address[0]}]" if ":" in address[0] else address[0]
        models = [f"{s.name}/{s.version}" for s in self.repository.all()]
        also = {} if self.grpc is None else {"grpc": self.grpc.address}
        self.log.tell("ready", url=f"{scheme}://{host}:{address[1]}", **also, models=models)
        self.family.send({"what": "ready"})
        if self.settings.poll:
            self._start(self._poll())
        if self._control is not None:
            self._control.setblocking(False)
            lines = Lines(self._hear)
            asyncio.get_running_loop().add_reader(self._control, self._read, lines)

    def stopping(self) -> None:
        """Called when the server begins to stop. The sockets of several workers are their parent's."""
        self.service.draining = True
        self.repository.stop()
        if self.keeping is not None:
            self.keeping.gives = False
        if self._control is None:
            refuse_new(self._sockets)

    def look(self) -> None:
        """Look at the files in a thread."""
        self._start(asyncio.to_thread(self._refresh))

    def settle_soon(self) -> None:
        """Have `settle` called at the next tick. Any thread may call this, also while the garbage collector runs."""
        self._unsettled = True

    def tick(self) -> None:
        """Called ten times a second."""
        if self._unsettled:
            self._unsettled = False
            self._start(asyncio.to_thread(settle))
        if self.repository.unfinished and not self._finishing:
            self._finishing = True
            self._start(asyncio.to_thread(self._finish))

    def _finish(self) -> None:
        try:
            self.family.finish()
        except Exception as error:  # the models that there are stay
            self.log.failed("models not finished", error)
        finally:
            self._finishing = False

    def _start(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(self.settings.poll)
            await asyncio.to_thread(self._refresh)

    def _refresh(self) -> None:
        try:
            self.family.refresh()
        except Exception as error:  # the models that there are stay
            self.log.failed("models not looked at", error)

    def _read(self, lines: Lines) -> None:
        """Hear what the parent says. If it is gone, end as after SIGTERM."""
        assert self._control is not None
        if not lines.read(self._control):
            asyncio.get_running_loop().remove_reader(self._control)
            os.kill(os.getpid(), signal.SIGTERM)

    def _hear(self, message: dict[str, Any]) -> None:
        if message["what"] == "share":
            if self.keeping is not None and not self.service.draining:
                self._start(self.keeping.share(list(self.connections()), message["workers"]))
            return
        self._start(asyncio.to_thread(self._change, message["what"], message["name"]))

    def _change(self, what: str, name: str) -> None:
        with contextlib.suppress(Failure):  # the process that was asked has said so
            self.family.follow(what, name)


class Server(uvicorn.Server):
    """uvicorn's server, with Connection, and an end that loses no request."""

    def __init__(self, worker: Worker) -> None:
        settings, limits = worker.settings, worker.service.limits
        protocol: Any = (worker.keeping.connection_factory if worker.keeping else connection_class)(worker.service)
        config = uvicorn.Config(
            Application(worker.service, worker.family),
            http=protocol,
            ws="none",
            loop="uvloop",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=BACKLOG,
            timeout_graceful_shutdown=int(limits.drain_seconds) or 1,
            ssl_certfile=settings.certificate,
            ssl_keyfile=settings.key,
        )
        super().__init__(config)
        self._worker = worker
        worker.connections = lambda: self.server_state.connections
        self._look = False
        """Whether SIGHUP has asked to look at the files."""
        self._loading: asyncio.Future[None] | None = None
        """What loads the models for the first time. The server answers meanwhile that it lives and is not ready: compiling may take
        minutes, and Kubernetes ends a server that says nothing for so long."""
        self.failure: BaseException | None = None
        """Why the models could not be loaded for the first time, which ends the server."""
        forward = Forward(worker.log)
        for name in ("uvicorn", "uvicorn.error", "asyncio"):
            logger = logging.getLogger(name)
            logger.handlers = [forward] if name != "uvicorn.error" else []
            logger.propagate = name == "uvicorn.error"

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self._worker.first:
            self._loading = asyncio.get_running_loop().run_in_executor(None, self._worker.load)
            await self._quickly(self._loading)
        await super().startup(sockets)
        await self._worker.start_grpc()
        if self._loading is None:
            self._begin()

    async def _quickly(self, loading: asyncio.Future[None]) -> None:
        """Wait until the models are loaded, but not for long: who connects waits too, and is not told to come again. Where the code is in
        the cache, this is a fraction of a second."""
        begin = clock()
        while not loading.done() and clock() - begin < QUICK_SECONDS:
            await asyncio.wait([loading], timeout=0.1)
            if self.should_exit:
                self._worker.log.tell("stopped")
                os._exit(0)  # nothing was accepted yet

    def _begin(self) -> None:
        """Be ready: the models are loaded."""
        self._worker.started()
        if self._worker.keeping is not None:
            options = {"config": self.config, "server_state": self.server_state, "app_state": self.lifespan.state}
            self._worker.keeping.begin(functools.partial(self.config.http_protocol_class, **options))

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():  # only there Python handles signals
            yield
            return
        before = {each: signal.signal(each, self.handle_exit) for each in (signal.SIGINT, signal.SIGTERM)}
        before[signal.SIGHUP] = signal.signal(signal.SIGHUP, self.handle_look)
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True

    def handle_look(self, sig: int, frame: FrameType | None) -> None:
        self._look = True

    async def on_tick(self, counter: int) -> bool:
        if self._look:
            self._look = False
            self._worker.look()
        if self._loading is None:
            self._worker.tick()
        elif self._loading.done():
            self.failure = self._loading.exception()
            self._loading = None
            if self.failure is None:
                self._begin()
            else:
                self.should_exit = True
        if counter % 10 == 0:
            now = clock()
            for connection in list(self.server_state.connections):
                if isinstance(connection, Connection):
                    connection.look(now)
            self._worker.family.write()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer what has come and what is on its way, then close."""
        self._worker.stopping()
        self._worker.log.tell("stopping", connections=len(self.server_state.connections))
        for connection in list(self.server_state.connections):
            if isinstance(connection, Connection):
                connection.drain()
        grpc = self._worker.grpc
        if grpc is not None:
            grpc.drain()
        await asyncio.sleep(LINGER_SECONDS)
        if self._worker.keeping is not None:
            self._worker.keeping.stop()
        if grpc is None:
            await super().shutdown(sockets)
        else:
            await asyncio.gather(super().shutdown(sockets), grpc.stop(self._worker.service.limits.drain_seconds))
        self._worker.family.write()
        self._worker.log.tell("stopped")
        if self._loading is not None:
            os._exit(0)  # all is answered, and a compiler in this process cannot be stopped


def work(control: socket.socket, told: dict[str, Any], memory: mmap.mmap | None) -> None:
    """Be a worker, of which the parent has told this. memory: of its connections, if it has a keeper."""
    settings = Settings(**told["settings"])
    sockets = [socket.socket(fileno=number) for number in told["sockets"]]
    keeping = None if memory is None else Keeping(memory, *(socket.socket(fileno=number) for number in told["inbox"]))
    worker = Worker(settings, sockets, control, Path(told["folder"]), keeping)
    if keeping is None and told["inbox"]:
        worker.log.tell("connections are not kept", reason="this system does not have what it takes")
    worker.first = told["first"]
    for name in told["unloaded"]:
        worker.repository.leave_out(name)
    try:
        worker.run()
    except HbcError as error:
        sys.exit(f"hbc: {error}")
