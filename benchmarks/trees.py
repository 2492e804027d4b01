"""Tree ensembles on every engine, side by side in one run. Answers are checked before anything is timed, every engine has the same
threads and cores, and the engines take turns. Models are trained once and kept in benchmarks/.cache; each has the ratios that hbc has to
reach."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from benchmarks import engines as registry
from benchmarks import limits, report
from benchmarks.engines import Engine
from benchmarks.session import Run
from benchmarks.side_by_side import Settings, on_engines, processes
from benchmarks.trained import Array, Made, Trained, boosted, cores, forest, trained

FEATURES = 28
CATEGORICAL = list(range(10))

ENGINE_OPTIONS: dict[str, dict[str, Any]] = {
    "--engines": {"nargs": "+", "default": [], "metavar": "ENGINE", "help": "some of the engines, by name or wildcard"},
    "--batches": {"nargs": "+", "type": int, "metavar": "ROWS", "help": "the numbers of rows of a call"},
    "--threads": {"type": int, "help": "the threads of every engine"},
    "--convert-limit": {"type": float, "metavar": "SECONDS", "help": "an engine that takes longer to convert is given up"},
}
OPTIONS = ENGINE_OPTIONS


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
    """`fit(X, y, trees)` trains the model. `goals` are the least ratios to the fastest peer: 10,000 rows, and one row. classes: 0 for a
    regressor. rows: the most rows to train on."""

    name: str
    library: str
    trees: int
    fit: Callable[[Array, Array, int], Any]
    goals: tuple[float, float]
    classes: int = 2
    dtype: str = "float32"
    data: str = "numbers"
    rows: int = 60_000


def _lightgbm(X: Array, y: Array, trees: int, leaves: int = 31, categorical: list[int] | None = None) -> Any:
    return boosted("lightgbm", 2, trees, num_leaves=leaves).fit(X, y, categorical_feature=categorical or "auto")


def _xgboost(X: Array, y: Array, trees: int) -> Any:
    return boosted("xgboost", 2, trees, max_depth=8).fit(X, y)


def _hist(X: Array, y: Array, trees: int) -> Any:
    from sklearn.ensemble import HistGradientBoostingClassifier

    return HistGradientBoostingClassifier(max_iter=trees, max_leaf_nodes=31, early_stopping=False, random_state=0).fit(X, y)


def _forest(X: Array, y: Array, trees: int, depth: int | None) -> Any:
    return forest(2, trees, depth).fit(X, y).set_params(n_jobs=1)


def _unlimited(X: Array, y: Array, trees: int, kind: str) -> Any:
    import sklearn.ensemble

    model = getattr(sklearn.ensemble, kind)(trees, n_jobs=cores(), random_state=0)
    if kind.endswith("Regressor"):
        model.set_params(max_features=0.33)
    return model.fit(X, y).set_params(n_jobs=1)


WORKLOADS = [
    Workload("lightgbm-500x31", "lightgbm", 500, _lightgbm, (22, 3)),
    Workload("lightgbm-500x255", "lightgbm", 500, functools.partial(_lightgbm, leaves=255), (13, 3)),
    Workload("xgboost-500-depth8", "xgboost", 500, _xgboost, (8.5, 3)),
    Workload("hist-500x31-float64", "sklearn", 500, _hist, (15, 3), dtype="float64"),
    Workload("forest-500-depth8", "sklearn", 500, functools.partial(_forest, depth=8), (1.6, 3)),
    Workload("forest-500-depth8-7classes", "sklearn", 500, functools.partial(_forest, depth=8), (3, 8), classes=7),
    Workload("forest-200-unlimited", "sklearn", 200, functools.partial(_forest, depth=None), (3.5, 2)),
    Workload("forest-200-depth10-5classes", "sklearn", 200, functools.partial(_forest, depth=10), (3, 8), classes=5),
    *(
        Workload(
            f"{name}-100-unlimited-regressor",
            "sklearn",
            100,
            functools.partial(_unlimited, kind=kind),
            (6, 5),
            classes=0,
            rows=20_000,
        )
        for name, kind in (("forest", "RandomForestRegressor"), ("extra-trees", "ExtraTreesRegressor"))
    ),
    Workload("extra-trees-100-unlimited", "sklearn", 100, functools.partial(_unlimited, kind="ExtraTreesClassifier"), (6, 5)),
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


BY_NAME = {workload.name: workload for workload in WORKLOADS}


def prepare(workload: Workload, size: Size) -> Trained:
    """Train a workload, or find it in the cache."""

    def make() -> Made:
        rows = min(size.training_rows, workload.rows)
        X, y = _data(workload, rows + size.test_rows)
        model = workload.fit(X[:rows], y[:rows], max(4, workload.trees // size.trees))
        return model, X[rows:], {}

    method = "predict_proba" if workload.classes else "predict"
    return trained(workload.name, workload.library, f"{size} {workload.trees} {workload.data}", make, method)


def _data(workload: Workload, n: int) -> tuple[Array, Array]:
    from sklearn.datasets import make_classification, make_regression

    informative = 20
    if workload.classes:
        X, y = make_classification(n, FEATURES, n_informative=informative, n_classes=workload.classes, random_state=0)
    else:
        X, y = make_regression(n, FEATURES, n_informative=informative, noise=10, random_state=0)
    random = np.random.default_rng(0)
    if workload.data == "categories":
        for column, count in zip(CATEGORICAL, (2, 3, 5, 8, 12, 20, 30, 50, 100, 200), strict=True):
            cuts = np.quantile(X[:, column], np.linspace(0, 1, count + 1)[1:-1])
            X[:, column] = random.permutation(count)[np.searchsorted(cuts, X[:, column])]  # the order of codes has no meaning
    elif workload.data == "missing":
        X[random.random(X.shape) < 0.2] = np.nan
    return X.astype(workload.dtype), y


def settings_of(run: Run, full: Settings, quick: Settings) -> Settings:
    """How to measure, by the options of engines, which are noted."""
    chosen = Settings(
        tuple(run.given("batches", full.batches, quick.batches)),
        run.given("rounds", full.rounds, quick.rounds),
        run.given("budget", full.budget, quick.budget),
        run.given("threads", full.threads, quick.threads),
        run.given("convert-limit", full.convert_limit, quick.convert_limit),
        full.call_limit,
    )
    run.settings.update({**asdict(chosen), "cores": chosen.cores})
    return chosen


def engines_of(run: Run, usual: Sequence[Engine] = registry.DEFAULT) -> Sequence[Engine]:
    """The engines that `--engines` names. Raises ValueError for a name that none has."""
    patterns = run.options.engines
    for pattern in patterns:
        if not registry.matching([pattern]):
            known = ", ".join(engine.name for engine in registry.DEFAULT)
            raise ValueError(f"no engine is called {pattern}; known are {known}, and strategies as in hbc:tvm:walk")
    return registry.matching(patterns) if patterns else usual


def run(run: Run) -> None:
    size = QUICK if run.quick else FULL
    run.settings["size"] = asdict(size)
    settings = settings_of(run, Settings(), Settings((1, 100, 1_000), 2, 0.02, convert_limit=30.0))
    engines = engines_of(run)
    asked = run.asked(BY_NAME, ("lightgbm-500x31", "lightgbm-500x31-categorical"))
    with processes(lasting=run.quick) as alive:
        for name in run.steps(asked):
            workload = BY_NAME[name]
            run.say(f"{name}: training, unless it is in the cache")
            model = prepare(workload, size)
            run.results["workloads"][name] = {
                "model": model.facts,
                "goals": dict(zip(("rows", "one_row"), workload.goals, strict=True)),
                "limit": limits.limit(model),
                "engines": on_engines(model, engines, settings, run.say, alive),
            }


def markdown(results: dict[str, Any]) -> str:
    parts = [
        report.heading(results, "Tree ensembles", report.LEGEND),
        report.summary(results),
        *(report.details(name, workload) for name, workload in results["workloads"].items()),
    ]
    return "\n\n".join(parts) + "\n"
