"""hbc itself: the methods of a converted estimator, as its users call them."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import hbc
from benchmarks.engines import Task


def load(task: Task) -> Any:
    """The estimator; the backend's libraries are imported here, so that they do not count as conversion."""
    hbc.strategies(task.option.partition(":")[0])
    return pickle.loads((Path(task.folder) / "model.pkl").read_bytes())


def build(model: Any, task: Task) -> Any:
    """A call of one compiled model, for all batch sizes. `option` is backend:strategy:mcpu; the last two parts may be left out."""
    backend, strategy, processor = (*task.option.split(":"), "", "")[:3]
    target = {"kind": "llvm", "mcpu": processor} if processor else None
    compiled = hbc.convert(model, backend, strategy=strategy or "auto", threads=task.threads, target=target)
    return getattr(compiled, task.method)
