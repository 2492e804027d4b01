"""Is the choice of `hbc tune` ever slower than that of "auto", and how much faster is it?

The models of three libraries are drawn with a fixed seed from the depths and numbers of trees of strategies.py. Each is converted, and
tuned on random rows, as `hbc tune` does without data. Then both are called on other rows, side by side: in one process, one core, one
thread, in turns. This is done for models that were told the rows of a call (`batch_size`), and for models that were not. Results that
look slower are measured again with more rounds.
"""

from __future__ import annotations

import functools
import itertools
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

import hbc
from benchmarks import report
from benchmarks.answers import check
from benchmarks.grid import DEPTHS, SEED, TREES
from benchmarks.session import Run, versions
from benchmarks.strategies import BACKENDS
from benchmarks.timing import Call
from benchmarks.trained import Array
from benchmarks.trees import FEATURES
from hbc.tuning.search import Tuning

BATCHES = (1, 1_000, 100_000)
TRAINED = 10_000
ROUND = 0.01
"""The seconds of a round."""
ALIKE = 0.05
"""The relative difference from which on two times count as different. `hbc tune` decides by the same number."""
DISTRIBUTIONS = ("hbc", "apache-tvm", "torch", "scikit-learn", "lightgbm", "xgboost-cpu")
LEGEND = (
    "µs of the thread a call: the lower quartile of rounds, in turns. Times tuned: tuned / auto; the slowest first. "
    'Rows told: both were converted with `batch_size`; there "auto" is what it chooses for unknown rows, which was faster than (or is) '
    'what it chooses for so many. Where rows are not told and "auto" stays, the ratio is the noise.'
)


@dataclass(frozen=True)
class Model:
    """A point of the grid. A tree has at most 255 leaves, except in forests."""

    library: str
    depth: int
    trees: int

    def __str__(self) -> str:
        return f"{self.library} {self.trees} × depth {self.depth}"

    def fit(self, X: Array, y: Array) -> Any:
        return FITTED[self.library](self)(X, y)


def _lightgbm(model: Model) -> Any:
    from lightgbm import LGBMClassifier

    leaves = min(1 << model.depth, 255)
    return LGBMClassifier(n_estimators=model.trees, max_depth=model.depth, num_leaves=leaves, n_jobs=1, verbose=-1).fit


def _xgboost(model: Model) -> Any:
    from xgboost import XGBClassifier

    return XGBClassifier(n_estimators=model.trees, max_depth=model.depth, max_leaves=255, n_jobs=1).fit


def _forest(model: Model) -> Any:
    from sklearn.ensemble import RandomForestClassifier

    return RandomForestClassifier(model.trees, max_depth=model.depth, random_state=0).fit


FITTED: dict[str, Callable[[Model], Any]] = {"LightGBM": _lightgbm, "XGBoost": _xgboost, "forest": _forest}


def sample(count: int) -> list[Model]:
    """So many models of the grid, in a random order with a fixed seed."""
    grid = [Model(*each) for each in itertools.product(FITTED, DEPTHS, TREES)]
    return [grid[i] for i in np.random.default_rng(SEED).permutation(len(grid))[:count]]


@functools.cache
def data() -> tuple[Array, Array, Array]:
    """Rows to train on, their labels, and other rows."""
    from sklearn.datasets import make_classification

    X, y = make_classification(TRAINED + max(BATCHES), FEATURES, n_informative=20, random_state=0)
    rows = X.astype(np.float32)
    return rows[:TRAINED], y[:TRAINED], rows[TRAINED:]


def pairs(fitted: Any, backend: str) -> tuple[dict[int | None, tuple[Any, Any]], Tuning]:
    """(a dict, the result of tuning). The dict maps the rows that a model is told, or None, to the model converted before and after
    tuning, both compiled."""

    def converted() -> dict[int | None, Any]:
        return {rows: hbc.convert(fitted, backend, threads=1, batch_size=rows) for rows in (None, *BATCHES)}

    with tempfile.TemporaryDirectory() as folder:
        os.environ["HBC_CACHE"] = folder
        before = converted()
        found = hbc.tune(before[None], BATCHES)
        after = converted()
    return {rows: (before[rows], after[rows]) for rows in before}, found


def side_by_side(calls: dict[str, Call], rows: int, seconds: float) -> dict[str, float]:
    """The µs of a call, by name: the lower quartile of rounds. The calls take turns for so many seconds, at least four rounds. Each
    batch has its own memory."""
    X = data()[2]
    batches = [X[i : i + rows].copy() for i in range(0, min(len(X), 1000 * rows), rows)]
    repeats = {name: max(int(ROUND / _timed(call, batches, 2)), 1) for name, call in calls.items()}
    found: dict[str, list[float]] = {name: [] for name in calls}
    turn, end = 0, time.perf_counter() + seconds
    while turn < 4 or time.perf_counter() < end:
        names = list(calls)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            found[name].append(_timed(calls[name], batches, repeats[name]))
        turn += 1
    return {name: 1e6 * float(np.quantile(each, 0.25)) for name, each in found.items()}


def _timed(call: Call, batches: Sequence[Array], repeats: int) -> float:
    """The seconds of a call, in the time of this thread, because others may use the core too."""
    start = time.thread_time()
    for batch in itertools.islice(itertools.cycle(batches), repeats):
        call(batch)
    return (time.thread_time() - start) / repeats


def one(model: Model, backend: str, seconds: float) -> list[dict[str, Any]]:
    """The results of a model: for the variant that was told no rows, at all numbers of rows; for each other variant, at its own number."""
    fitted, (_, _, rows) = model.fit(*data()[:2]), data()
    made, found = pairs(fitted, backend)
    expected, points = fitted.predict_proba(rows[:1000]), []
    for told, models in made.items():
        calls = {name: each.predict_proba for name, each in zip(("auto", "tuned"), models, strict=True)}
        for count in BATCHES if told is None else (told,):
            times = side_by_side(calls, count, seconds)
            if times["tuned"] > (1 + ALIKE) * times["auto"]:
                times = side_by_side(calls, count, 8 * seconds)
            point = {"model": str(model), **asdict(model), "backend": backend, "rows": count, "told": told is not None}
            verdicts = {check(call(rows[:1000]), expected)["verdict"] for call in calls.values()}
            points.append(point | {"chosen": str(models[1]._builder.choice), "exact": verdicts == {"exact"}, "times_us": times})
    searched = {name: dict(zip(BATCHES, seconds, strict=True)) for name, seconds in found.seconds.items()}
    return [point | {"searched_s": searched} for point in points]


def _ratio(point: dict[str, Any]) -> float:
    return float(point["times_us"]["tuned"] / point["times_us"]["auto"])


# --- tables ------------------------------------------------------------------------------------------------------------


def markdown(results: dict[str, Any]) -> str:
    described, points = results["machine"], results["points"]
    changes = " with uncommitted changes" if described["uncommitted_changes"] else ""
    parts = [
        "# What `hbc tune` chooses, against auto",
        f"{described['time']}, commit {described['commit'][:10]}{changes}, one thread, {described['processor']} "
        f"({', '.join(described['flags'])}), {described['system']}, Python {described['python']}; "
        f"load {described['load_before'][0]:.1f} before, {described['load_after'][0]:.1f} after",
        ", ".join(f"{name} {version}" for name, version in results["versions"].items()),
        f"Of the {results['settings']['models']} models drawn: {', '.join(results['settings']['only'])}.",
        LEGEND,
        *(
            summary(backend, [p for p in points if p["backend"] == backend])
            for backend in dict.fromkeys(p["backend"] for p in points)
        ),
        "| model | backend | rows | told | chosen | auto | tuned | times tuned | answers |\n" + "|---" * 9 + "|",
    ]
    for point in sorted(points, key=lambda p: -_ratio(p)):
        cells = [point["model"], point["backend"], f"{point['rows']:,}", "yes" * point["told"], point["chosen"]]
        cells += [report.figure(point["times_us"][name]) for name in ("auto", "tuned")]
        cells += [report.times(_ratio(point)), "exact" if point["exact"] else "NOT exact"]
        parts[-1] += f"\n| {' | '.join(cells)} |"
    return "\n\n".join(parts) + "\n"


def summary(backend: str, points: Sequence[dict[str, Any]]) -> str:
    """A summary: how often tune chooses differently from "auto", what that gains, where it loses; and the noise between equal choices."""
    lines = [f"| {backend} | points | faster by > 5 % | slower by > 5 % | geometric mean | least | most |", "|" + "---|" * 7]
    for told, asked in ((False, "rows not told"), (True, "rows told")):
        for other, kind in ((False, "auto"), (True, "another choice")):
            some = [p for p in points if p["told"] == told and (p["chosen"] != "auto") == other]
            ratios = np.array([_ratio(p) for p in some])
            if not len(ratios):
                continue
            ends = (np.exp(np.log(ratios).mean()), ratios.min(), ratios.max())
            counts = ((ratios < 1 - ALIKE).sum(), (ratios > 1 + ALIKE).sum())
            lines.append(
                f"| {asked}, {kind} | {len(some)} | {' | '.join(map(str, counts))} | {' | '.join(map(report.times, ends))} |"
            )
    return "\n".join(lines)


OPTIONS: dict[str, dict[str, Any]] = {
    "--backends": {"nargs": "+", "choices": BACKENDS},
    "--models": {"type": int, "help": "of the grid, in its order by a fixed seed"},
    "--seconds": {"type": float, "help": "of a point, for both"},
}


def run(run: Run) -> None:
    backends, models = run.given("backends", ["tvm"], ["tvm"]), run.given("models", 20, 1)
    seconds = run.given("seconds", 1.0, 0.05)
    run.settings["only"] = run.options.only or ["*"]
    run.on_one_core()
    run.results |= {"versions": versions(DISTRIBUTIONS), "points": []}
    drawn = {str(model): model for model in sample(models)}
    chosen = run.asked(drawn)
    for backend, name in run.steps([(backend, name) for backend in backends for name in chosen], ": ".join):
        run.results["points"] += one(drawn[name], backend, seconds)


def status(results: dict[str, Any]) -> int:
    """1 if an answer was not exact, or tuned slower than auto by more than noise."""
    return int(not all(p["exact"] and _ratio(p) <= 1 + ALIKE for p in results["points"]))
