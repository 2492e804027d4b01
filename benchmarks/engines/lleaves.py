"""lleaves, which compiles LightGBM models by LLVM to code whose size is proportional to the model."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import lleaves

from benchmarks.engines import Task


def load(task: Task) -> Any:
    """The model's text."""
    if task.library != "lightgbm":
        raise NotImplementedError("lleaves compiles LightGBM models only")
    return lleaves.Model(model_file=str(Path(task.folder) / "model.txt"))


def build(model: Any, task: Task) -> Any:
    """Compiled with its default options."""
    model.compile()
    return functools.partial(model.predict, n_jobs=task.threads)
