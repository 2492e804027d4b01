"""The library that trained the model, by the fastest of its own Python calls."""

from __future__ import annotations

import functools
import pickle
from pathlib import Path
from typing import Any

from benchmarks.engines import Task


def load(task: Task) -> Any:
    """The library's own object for predictions."""
    folder = Path(task.folder)
    if task.library == "lightgbm":
        import lightgbm

        return lightgbm.Booster(model_file=folder / "model.txt")
    if task.library == "xgboost":
        import xgboost

        return xgboost.Booster({"nthread": task.threads}, model_file=folder / "model.json")
    return pickle.loads((folder / "model.pkl").read_bytes())


def build(model: Any, task: Task) -> Any:
    """A direct call of a Booster, since its scikit-learn wrapper only adds time."""
    if task.library == "lightgbm":
        return functools.partial(model.predict, num_threads=task.threads)
    if task.library == "xgboost":
        return functools.partial(model.inplace_predict, validate_features=False)
    if "n_jobs" in model.get_params():
        model.set_params(n_jobs=task.threads)
    return getattr(model, task.method)
