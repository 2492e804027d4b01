"""The tree ensembles that every engine runs, with the ratios that hbc has to reach. They are trained once and kept in benchmarks/.cache."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import json
import os
import pickle
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

CACHE = Path(__file__).parent / ".cache"
FEATURES = 28
CATEGORICAL = list(range(10))

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Size:
    """How much of a workload to run: `trees` divides the numbers of trees."""

    name: str = "full"
    training_rows: int = 60_000
    test_rows: int = 20_000
    trees: int = 1


FULL = Size()
QUICK = Size("quick", 3_000, 2_000, 25)


@dataclass(frozen=True)
class Workload:
    """`fit(X, y, trees)` trains the model. `goals` are the least ratios to the fastest peer: 10,000 rows, and one row."""

    name: str
    library: str
    trees: int
    fit: Callable[[Array, Array, int], Any]
    goals: tuple[float, float]
    classes: int = 2
    dtype: str = "float32"
    data: str = "numbers"


@dataclass(frozen=True)
class Prepared:
    """A trained workload on disk: `folder` has model.pkl, the library's own file, rows.npy and expected.npy."""

    workload: Workload
    folder: Path
    facts: dict[str, Any]

    @property
    def rows(self) -> Path:
        return self.folder / "rows.npy"

    @property
    def expected(self) -> Array:
        """The native library's probabilities [N, classes] of the rows."""
        return np.load(self.folder / "expected.npy")


MODEL_FILES = {"lightgbm": "model.txt", "xgboost": "model.json", "sklearn": "model.pkl"}
CORES = len(os.sched_getaffinity(0))


def _lightgbm(X: Array, y: Array, trees: int, leaves: int = 31, categorical: list[int] | None = None) -> Any:
    from lightgbm import LGBMClassifier

    model = LGBMClassifier(n_estimators=trees, num_leaves=leaves, n_jobs=CORES, verbose=-1)
    return model.fit(X, y, categorical_feature=categorical or "auto")


def _xgboost(X: Array, y: Array, trees: int) -> Any:
    from xgboost import XGBClassifier

    return XGBClassifier(n_estimators=trees, max_depth=8, n_jobs=CORES).fit(X, y)


def _hist(X: Array, y: Array, trees: int) -> Any:
    from sklearn.ensemble import HistGradientBoostingClassifier

    return HistGradientBoostingClassifier(max_iter=trees, max_leaf_nodes=31, early_stopping=False, random_state=0).fit(X, y)


def _forest(X: Array, y: Array, trees: int, depth: int | None) -> Any:
    from sklearn.ensemble import RandomForestClassifier

    model = RandomForestClassifier(trees, max_depth=depth, n_jobs=CORES, random_state=0).fit(X, y)
    return model.set_params(n_jobs=1)


WORKLOADS = [
    Workload("lightgbm-500x31", "lightgbm", 500, _lightgbm, (22, 3)),
    Workload("lightgbm-500x255", "lightgbm", 500, functools.partial(_lightgbm, leaves=255), (13, 3)),
    Workload("xgboost-500-depth8", "xgboost", 500, _xgboost, (8.5, 3)),
    Workload("hist-500x31-float64", "sklearn", 500, _hist, (15, 3), dtype="float64"),
    Workload("forest-500-depth8", "sklearn", 500, functools.partial(_forest, depth=8), (1.6, 3)),
    Workload("forest-500-depth8-7classes", "sklearn", 500, functools.partial(_forest, depth=8), (1.5, 3), classes=7),
    Workload("forest-200-unlimited", "sklearn", 200, functools.partial(_forest, depth=None), (3.5, 2)),
    Workload("lightgbm-7classes-200x31", "lightgbm", 200, _lightgbm, (10, 3), classes=7),
    Workload(
        "lightgbm-500x31-categorical",
        "lightgbm",
        500,
        functools.partial(_lightgbm, categorical=CATEGORICAL),
        (10, 3),
        data="categories",
    ),
    Workload("lightgbm-500x31-nan", "lightgbm", 500, _lightgbm, (10, 3), data="missing"),
]


def prepare(workload: Workload, size: Size) -> Prepared:
    """Train a workload, or find it in the cache. A new version of its library trains it anew."""
    distribution = {"lightgbm": "lightgbm", "xgboost": "xgboost-cpu", "sklearn": "scikit-learn"}[workload.library]
    folder = CACHE / size.name / f"{workload.name}-{importlib.metadata.version(distribution)}"
    if not folder.exists():
        _train(workload, size, folder)
    return Prepared(workload, folder, json.loads((folder / "facts.json").read_text()))


def _train(workload: Workload, size: Size, folder: Path) -> None:
    X, y = _data(workload, size.training_rows + size.test_rows)
    trained, tested = slice(size.training_rows), slice(size.training_rows, None)
    model = workload.fit(X[trained], y[trained], max(4, workload.trees // size.trees))
    rows = np.ascontiguousarray(X[tested])

    unfinished = folder.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    (unfinished / "model.pkl").write_bytes(pickle.dumps(model))
    if workload.library == "lightgbm":
        model.booster_.save_model(unfinished / "model.txt")
    elif workload.library == "xgboost":
        model.save_model(unfinished / "model.json")
    np.save(unfinished / "rows.npy", rows)
    np.save(unfinished / "expected.npy", model.predict_proba(rows))
    size_of_file = (unfinished / MODEL_FILES[workload.library]).stat().st_size
    (unfinished / "facts.json").write_text(json.dumps({"model_mib": round(size_of_file / 2**20, 2)}))
    unfinished.rename(folder)


def _data(workload: Workload, n: int) -> tuple[Array, Array]:
    from sklearn.datasets import make_classification

    informative = 20
    X, y = make_classification(n, FEATURES, n_informative=informative, n_classes=workload.classes, random_state=0)
    random = np.random.default_rng(0)
    if workload.data == "categories":
        for column, count in zip(CATEGORICAL, (2, 3, 5, 8, 12, 20, 30, 50, 100, 200), strict=True):
            cuts = np.quantile(X[:, column], np.linspace(0, 1, count + 1)[1:-1])
            X[:, column] = random.permutation(count)[np.searchsorted(cuts, X[:, column])]  # the order of codes has no meaning
    elif workload.data == "missing":
        X[random.random(X.shape) < 0.2] = np.nan
    return X.astype(workload.dtype), y
