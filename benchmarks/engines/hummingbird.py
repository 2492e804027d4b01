"""hummingbird-ml 0.4.12, the original, with the strategy that it chooses itself."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hummingbird.ml import constants, convert

from benchmarks.engines import Task


def load(task: Task) -> Any:
    """The estimator."""
    torch.set_num_threads(task.threads)
    return pickle.loads((Path(task.folder) / "model.pkl").read_bytes())


def build(model: Any, task: Task) -> Any:
    """`option` is its backend: torch or torch.jit, which is traced with some rows."""
    rows = np.load(Path(task.folder) / "rows.npy", mmap_mode="r")[:100]
    converted = convert(model, task.option, np.array(rows), extra_config={constants.N_THREADS: task.threads})
    return getattr(converted, task.method)
