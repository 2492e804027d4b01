"""The models that a process keeps for its next jobs: a worker loads each once, for `hbc.score` and for the engines."""

from __future__ import annotations

import threading
from collections.abc import Callable

from hbc.compiler.base import BackendName, DeviceName
from hbc.loading import load_bytes
from hbc.process import renew_after_fork
from hbc.runtime.model import CompiledModel

MOST = 4
"""The models that a process keeps. Workers outlive the jobs that they work for."""


class _Loaded:
    """The models that this process keeps."""

    def __init__(self) -> None:
        self.models: dict[tuple[str, DeviceName | None, BackendName | None], CompiledModel] = {}
        """The SHA-256 of a file, device and backend → its model. The last one that was asked for is the last one here."""
        self.lock = threading.Lock()
        renew_after_fork(self)

    def after_fork(self) -> None:
        """Another thread of the parent may have held the lock, to load a model. No thread of the child would release it."""
        self.lock = threading.Lock()


_loaded = _Loaded()


def loaded_once(
    digest: str,
    read: Callable[[], bytes],
    name: str,
    device: DeviceName | None = None,
    backend: BackendName | None = None,
    model: CompiledModel | None = None,
) -> CompiledModel:
    """The model of the file with a SHA-256: the one that was asked for before, or `model`, or a new one, of what `read` returns. Raises
    what `read` and `load_bytes` raise."""
    models, key = _loaded.models, (digest, device, backend)
    with _loaded.lock:  # two threads would load it twice
        found = models.pop(key, None) or model or load_bytes(read(), name, device, backend)
        models[key] = found
        while len(models) > MOST:
            del models[next(iter(models))]
        return found
