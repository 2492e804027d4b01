"""`ahead`: an iterator whose items are made by another thread while the caller is busy with the ones before."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Generator, Iterable
from typing import Any, TypeVar

Item = TypeVar("Item")
_END = object()


def ahead(items: Iterable[Item], depth: int = 1) -> Generator[Item]:
    """Yields the items of an iterable, in order. A thread takes them, at most `depth` before they are asked for, besides the one that it
    is busy with. An error of the iterable is raised here. If the caller stops, the thread ends after the item that it is busy with.

    Reading, computing and writing leave Python for most of their time, and release its lock there: pyarrow and compiled code both do."""
    waiting: queue.Queue[Any] = queue.Queue(depth)
    stopped = threading.Event()
    failed: list[BaseException] = []

    def put(item: Any) -> bool:
        while not stopped.is_set():
            with contextlib.suppress(queue.Full):
                waiting.put(item, timeout=0.2)
                return True
        return False

    def work() -> None:
        iterator = iter(items)
        try:
            for item in iterator:
                if not put(item):
                    break
                del item  # the consumer alone holds it
        except BaseException as error:
            failed.append(error)
        finally:
            close = getattr(iterator, "close", None)
            if close is not None:
                with contextlib.suppress(Exception):
                    close()
        put(_END)

    thread = threading.Thread(target=work, name="hbc score", daemon=True)
    thread.start()
    try:
        while True:
            item = waiting.get()
            if item is _END:
                break
            yield item
            del item
        if failed:
            raise failed[0]
    finally:
        stopped.set()
        thread.join()
        failed.clear()
