"""treelite's interpreter, GTIL."""

from __future__ import annotations

import functools
import pickle
from pathlib import Path
from typing import Any

import treelite

from benchmarks.engines import Task


def load(task: Task) -> Any:
    """treelite's own form of the model."""
    folder = Path(task.folder)
    if task.library == "lightgbm":
        return treelite.frontend.load_lightgbm_model(folder / "model.txt")
    if task.library == "xgboost":
        return treelite.frontend.load_xgboost_model(folder / "model.json")
    return treelite.sklearn.import_model(pickle.loads((folder / "model.pkl").read_bytes()))


def build(model: Any, task: Task) -> Any:
    """Nothing is compiled."""
    return functools.partial(treelite.gtil.predict, model, nthread=task.threads)
