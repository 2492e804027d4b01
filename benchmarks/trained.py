"""Models that are trained once and kept in benchmarks/.cache, each in a folder that every engine can read."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import pickle
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import report
from benchmarks.engines import Engine, Task

Array = np.ndarray[Any, Any]

MODEL_FILES = {"lightgbm": "model.txt", "xgboost": "model.json", "sklearn": "model.pkl"}
DISTRIBUTIONS = {"lightgbm": "lightgbm", "xgboost": "xgboost-cpu", "sklearn": "scikit-learn"}


def cores() -> int:
    """The cores that this process may use now. With more threads than cores, those of LightGBM wait for each other without sleep: on one
    core, 20 trees of 255 leaves then take 87 s instead of 3."""
    return len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Trained:
    """A trained model on disk: `folder` has model.pkl, the library's own file, rows.npy and expected.npy. `facts`: sizes, and whatever
    the one that trained it has noted."""

    name: str
    library: str
    folder: Path
    facts: dict[str, Any]
    method: str = "predict_proba"

    @property
    def rows(self) -> Path:
        return self.folder / "rows.npy"

    @property
    def expected(self) -> Array:
        """The source library's answers for the rows."""
        return np.load(self.folder / "expected.npy")

    @property
    def model(self) -> Any:
        return pickle.loads((self.folder / "model.pkl").read_bytes())

    def task(self, engine: Engine, threads: int) -> Task:
        facts = self.facts
        return Task(
            self.library,
            str(self.folder),
            facts["features"],
            facts["dtype"],
            threads,
            engine.option,
            self.method,
        )


Made = tuple[Any, Array, dict[str, Any]]
"""A fitted model, the rows to score, and facts to note."""


def trained(name: str, library: str, key: str, make: Callable[[], Made], method: str = "predict_proba") -> Trained:
    """The model of that name and key (whatever it depends on), which `make` trains unless it is in the cache. A new version of its library
    trains it anew."""
    version = importlib.metadata.version(DISTRIBUTIONS[library])
    folder = report.CACHE / "models" / f"{name}-{version}-{hashlib.sha256(key.encode()).hexdigest()[:8]}"
    if not folder.exists():
        _write(folder, library, method, *make())
    return Trained(name, library, folder, json.loads((folder / "facts.json").read_text()), method)


def _write(folder: Path, library: str, method: str, model: Any, rows: Array, facts: dict[str, Any]) -> None:
    rows = np.ascontiguousarray(rows)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="unfinished-", dir=folder.parent) as beside:
        unfinished = Path(beside) / folder.name
        unfinished.mkdir()
        (unfinished / "model.pkl").write_bytes(pickle.dumps(model))
        if library == "lightgbm":
            model.booster_.save_model(unfinished / "model.txt")
        elif library == "xgboost":
            model.save_model(unfinished / "model.json")
        expected = getattr(model, method)(rows)
        np.save(unfinished / "rows.npy", rows)
        np.save(unfinished / "expected.npy", expected)
        facts = {
            "model_mib": round((unfinished / MODEL_FILES[library]).stat().st_size / 2**20, 2),
            "features": rows.shape[1],
            "dtype": str(rows.dtype),
            "classes": expected.shape[1] if expected.ndim == 2 else 0,
            **facts,
        }
        (unfinished / "facts.json").write_text(json.dumps(facts))
        try:
            unfinished.rename(folder)
        except OSError:
            if not folder.exists():
                raise  # otherwise another process was faster, with the same model


# --- estimators with the options that several benchmarks vary ------------------------------------------------------------


def boosted(library: str, classes: int, trees: int, **options: Any) -> Any:
    """An unfitted LightGBM or XGBoost estimator; 0 classes: a regressor. It trains on all cores."""
    if library == "lightgbm":
        import lightgbm

        kind = lightgbm.LGBMClassifier if classes else lightgbm.LGBMRegressor
        return kind(n_estimators=trees, n_jobs=cores(), verbose=-1, random_state=0, **options)
    import xgboost

    return (xgboost.XGBClassifier if classes else xgboost.XGBRegressor)(n_estimators=trees, n_jobs=cores(), **options)


def forest(classes: int, trees: int, depth: int | None, **options: Any) -> Any:
    """An unfitted random forest."""
    from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

    kind = RandomForestClassifier if classes else RandomForestRegressor
    return kind(trees, max_depth=depth, n_jobs=cores(), random_state=0, **options)


def depths(model: Any) -> list[int]:
    """The depth of each tree of a fitted ensemble of scikit-learn, LightGBM or XGBoost."""
    if hasattr(model, "booster_"):
        frame = model.booster_.trees_to_dataframe()
        return [int(depth) - 1 for depth in frame.groupby("tree_index")["node_depth"].max()]
    if hasattr(model, "get_booster"):
        return [_depth_of(json.loads(tree)) for tree in model.get_booster().get_dump(dump_format="json")]
    return [int(tree.get_depth()) for tree in np.ravel(model.estimators_)]


def _depth_of(node: dict[str, Any]) -> int:
    return 1 + max(map(_depth_of, node["children"])) if "children" in node else 0
