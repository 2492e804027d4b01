"""oneDAL through daal4py's model builders."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import daal4py
from daal4py.mb import convert_model

from benchmarks.engines import Task


def load(task: Task) -> Any:
    """A booster, or scikit-learn's forests in treelite's form."""
    daal4py.daalinit(task.threads)
    folder = Path(task.folder)
    if task.library == "lightgbm":
        import lightgbm

        return lightgbm.Booster(model_file=folder / "model.txt")
    if task.library == "xgboost":
        import xgboost

        return xgboost.Booster({"nthread": task.threads}, model_file=folder / "model.json")
    import treelite

    return treelite.sklearn.import_model(pickle.loads((folder / "model.pkl").read_bytes()))


def build(model: Any, task: Task) -> Any:
    """oneDAL's model of gradient-boosted trees. A forest is given to it as a regressor of the second class's probability."""
    converted = convert_model(model)
    return converted.predict_proba if hasattr(converted, "predict_proba") else converted.predict
