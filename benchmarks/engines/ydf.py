"""YDF (Yggdrasil decision forests), which imports scikit-learn's forests."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import ydf

from benchmarks.engines import Task


def load(task: Task) -> Any:
    """The estimator."""
    if task.library != "sklearn":
        raise NotImplementedError("ydf imports scikit-learn models only")
    return pickle.loads((Path(task.folder) / "model.pkl").read_bytes())


def build(model: Any, task: Task) -> Any:
    """A call of YDF's model. It takes columns by name; the matrix is given as one feature with several columns."""
    converted = ydf.from_sklearn(model, feature_name="features")
    return lambda X: converted.predict({"features": X}, num_threads=task.threads)
