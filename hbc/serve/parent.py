"""The server as a whole: one process that serves, or a parent that starts, watches and stops several."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import ssl
import subprocess
import tempfile
import time
from dataclasses import asdict
from typing import Any

from hbc.errors import ArtifactError
from hbc.serve.compiling import command_of
from hbc.serve.keeper import inbox_of
from hbc.serve.limits import Limits
from hbc.serve.logs import Log
from hbc.serve.process import Settings, Worker, listening, refuse_new
from hbc.serve.workers import Lines


def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT, and end when all accepted requests are answered. SIGHUP looks at the files again. Raises HbcError
    if a file that was named cannot be loaded, OSError if the address is taken, ValueError for settings that do not fit."""
    Limits(**settings.limits)  # type: ignore[arg-type]
    if settings.grpc == 0 and settings.workers > 1:
        raise ValueError("port of gRPC: found 0, expected one that all workers can listen at")
    if (settings.certificate is None) != (settings.key is None):
        raise ValueError("TLS: found one of certificate and key, expected both")
    if settings.certificate is not None and settings.key is not None:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(settings.certificate, settings.key)
        except OSError as error:
            raise ValueError(
                f"TLS: found {settings.certificate} and {settings.key}, which cannot be used ({error}), expected a certificate and its "
                "private key in the format PEM"
            ) from error
    sockets = listening(settings.host, settings.port)
    try:
        if settings.workers == 1:
            Worker(settings, sockets).run()
        else:
            Parent(settings, sockets).run()
    finally:
        for each in sockets:
            each.close()


class Parent:
    """The process that starts workers and watches them. It hands on SIGTERM, SIGINT and SIGHUP, and what one worker says to the others."""

    def __init__(self, settings: Settings, sockets: list[socket.socket]) -> None:
        self._settings = settings
        self._sockets = sockets
        self._log = Log(quiet=settings.quiet)
        self._selector = selectors.DefaultSelector()
        self._workers: dict[int, subprocess.Popen[bytes]] = {}
        self._controls: dict[int, tuple[socket.socket, Lines]] = {}
        """The way to each worker, and what it says. It is heard to its end, which comes when the worker and its keeper have ended: what a
        killed worker has said last counts, too."""
        self._unloaded: set[str] = set()
        self._stopping = False
        self._ready = 0
        self._folder = tempfile.TemporaryDirectory(prefix="hbc-serve-")
        self._inbox = [] if settings.certificate else inbox_of(sockets)  # keys are lost with a process
        self._keepers: dict[int, int] = {}
        """The keepers, and their workers."""

    def run(self) -> None:
        """Raises ArtifactError if the first worker ends before it is ready."""
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        self._selector.register(wake_read, selectors.EVENT_READ, None)
        received: list[int] = []
        before = {
            s: signal.signal(s, lambda sig, _: received.append(sig))
            for s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
        }
        previous = signal.set_wakeup_fd(wake_write)
        try:
            self._start()  # alone: what it compiles, the others find in the cache
            while self._workers or self._controls:
                for key, _ in self._selector.select(timeout=1.0):
                    if key.data is None:
                        os.read(wake_read, 4096)
                    else:
                        self._read(key.data)
                while received:
                    self._signal(received.pop(0))
                self._watch()
        finally:
            signal.set_wakeup_fd(previous)
            for each, handler in before.items():
                signal.signal(each, handler)
            os.close(wake_read)
            os.close(wake_write)
            for end in self._inbox:
                end.close()
            self._bury(0)
            self._folder.cleanup()

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        sockets = [each.fileno() for each in self._sockets]
        inbox = [each.fileno() for each in self._inbox]
        command = command_of("hbc.serve.worker", str(theirs.fileno()))
        process = subprocess.Popen(command, pass_fds=[theirs.fileno(), *sockets, *inbox], stdin=subprocess.DEVNULL)
        theirs.close()
        told = {
            "settings": asdict(self._settings),
            "sockets": sockets,
            "inbox": inbox,
            "folder": self._folder.name,
            "unloaded": sorted(self._unloaded),
            "first": not self._ready,
        }
        ours.sendall(json.dumps(told).encode() + b"\n")
        ours.setblocking(False)
        self._workers[process.pid] = process
        self._selector.register(ours, selectors.EVENT_READ, process.pid)
        lines = Lines(lambda message, pid=process.pid: self._hear(pid, message))  # type: ignore[misc]
        self._controls[process.pid] = ours, lines

    def _read(self, pid: int) -> None:
        control, lines = self._controls[pid]
        if not lines.read(control):
            self._selector.unregister(control)
            control.close()
            del self._controls[pid]

    def _hear(self, pid: int, message: dict[str, Any]) -> None:
        if message["what"] == "ready":
            self._ready += 1
            self._tell_others(pid, {"what": "share", "workers": self._settings.workers})
            while not self._stopping and len(self._workers) < self._settings.workers:
                self._start()
            return
        if message["what"] == "keeper":
            self._keepers[message["process"]] = pid
            return
        (self._unloaded.add if message["what"] == "unload" else self._unloaded.discard)(message["name"])
        self._tell_others(pid, message)

    def _tell_others(self, pid: int, message: dict[str, Any]) -> None:
        for other in self._workers:
            if other != pid and other in self._controls:
                with contextlib.suppress(OSError):
                    self._controls[other][0].sendall(json.dumps(message).encode() + b"\n")

    def _signal(self, number: int) -> None:
        if number == signal.SIGCHLD:
            return
        if number != signal.SIGHUP and not self._stopping:
            self._stopping = True
            refuse_new(self._sockets)
        for process in self._workers.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM if number == signal.SIGINT else number)

    def _watch(self) -> None:
        """Start another worker for one that has ended. Raises ArtifactError if none has ever been ready."""
        for pid, process in list(self._workers.items()):
            if process.poll() is None:
                continue
            del self._workers[pid]
            if pid in self._controls:
                self._read(pid)  # before another starts, which is told what this one has said
            if self._stopping:
                continue
            if not self._ready:
                raise ArtifactError(
                    path="worker",
                    found=f"exit status {process.returncode} before it was ready",
                    expected="a worker that serves",
                )
            self._log.tell("worker ended", level="error", worker=pid, status=process.returncode)
            time.sleep(0.05)  # one that ends at once must not be started in a tight loop
            if len(self._workers) < self._settings.workers:  # its last word may have been that it is ready
                self._start()
        self._bury()

    def _bury(self, options: int = os.WNOHANG) -> None:
        """Hear of the end of keepers, which would remain as zombies."""
        for each, worker in list(self._keepers.items()):
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(each, options)[0]:
                    del self._keepers[each]
                    if worker in self._workers and self._workers[worker].poll() is None:
                        # The connections of this worker would be lost if it ended.
                        self._log.tell("keeper ended", level="error", keeper=each, worker=worker)
