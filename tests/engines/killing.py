"""KilledOnce: a WorkerMethod whose process is killed in the middle of its work, once. Workers import this file."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from hbc.engines.worker import WorkerMethod

MARK, FATAL = "HBC_TEST_KILLED", "HBC_TEST_FATAL"
"""Environment variables: the path of the file that says that a worker has been killed, and the number in the column `visits` at which."""


class KilledOnce(WorkerMethod):
    def answer(self, data: Any) -> Any:
        if int(os.environ[FATAL]) in data.column("visits").to_pylist():
            try:
                Path(os.environ[MARK]).touch(exist_ok=False)
            except FileExistsError:
                return super().answer(data)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().answer(data)
