"""`hbc.score` over the files of engine_cases with an engine, beside a run without one."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import hbc
from hbc.scoring import job
from hbc.scoring.fragment import score_fragment

MARK = "HBC_TEST_KILLED"
FATAL = "003.parquet"
OPTIONS: dict[str, Any] = {"methods": ["predict", "predict_proba"], "keep": ["id", "noted"]}


def killed_once(task: job.Task, data: bytes) -> dict[str, Any]:
    """`run_task`, but the worker is killed when it has written a part of one file, once."""

    def tell(rows: int, share: float) -> None:
        if task.fragment.input.endswith(FATAL):
            try:
                Path(os.environ[MARK]).touch(exist_ok=False)
            except FileExistsError:
                return
            os.kill(os.getpid(), signal.SIGKILL)

    job.scorer_of(task.model, task.options, data)
    return score_fragment(task.model, task.fragment, task.options, tell)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.parquet"))}


def require_same_files(engine: str, model: Path, files: Path, folder: Path, **options: Any) -> None:
    """A run with an engine gives the bytes of a run without one, and a second start finds nothing left to do."""
    hbc.score(model, files, folder / "local", **OPTIONS)
    loaded = hbc.load(model)
    done = hbc.score(loaded, files, folder / engine, engine=engine, **OPTIONS, **options)
    assert (done.files, done.files_before, done.rows) == (8, 0, 4_000)
    assert contents(folder / engine) == contents(folder / "local")
    again = hbc.score(loaded, files, folder / engine, engine=engine, **OPTIONS, **options)
    assert (again.files, again.files_before) == (0, 8)
