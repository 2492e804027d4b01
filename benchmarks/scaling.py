"""Scaling curves: the time of a row against the rows of a call, trees, depth, leaves, features, classes and threads, on hbc and its
fastest peers, with the derived limit of the processor beside it. A cliff is a step of a curve where hbc's time grows much more than the
limit does, or than the work does where no limit is known."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks import limits, report, trees
from benchmarks.engines import Engine, matching
from benchmarks.report import MAIN, microseconds
from benchmarks.session import Run
from benchmarks.side_by_side import Processes, Settings, on_engines, processes
from benchmarks.trained import Array, Made, Trained, boosted, forest, trained

OPTIONS = trees.ENGINE_OPTIONS
ENGINES = ("hbc:tvm", "native", "onnxruntime", "daal4py")
CLIFF = 2.0
"""Flagged: hbc's time grows so many times as much as the work or the limit, from one point of a curve to the next."""


@dataclass(frozen=True)
class Point:
    """A model of a curve. `rows` are trained on; leaves None: as many as the depth allows; depth None: unlimited."""

    curve: str
    value: int
    library: str = "lightgbm"
    trees: int = 500
    leaves: int | None = 31
    depth: int | None = None
    features: int = 28
    classes: int = 2
    rows: int = 30_000
    batches: tuple[int, ...] = (1, 10_000)
    threads: int = 1

    @property
    def name(self) -> str:
        return f"{self.curve}: {'unlimited' if self.value == UNLIMITED else f'{self.value:,}'}"

    def fit(self, X: Array, y: Array) -> Any:
        if self.library == "sklearn":
            return forest(self.classes, self.trees, self.depth, max_leaf_nodes=self.leaves).fit(X, y).set_params(n_jobs=1)
        if self.library == "xgboost":
            return boosted("xgboost", self.classes, self.trees, max_depth=self.depth, min_child_weight=0).fit(X, y)
        leaves, depth = self.leaves or 2 ** (self.depth or 8), self.depth or -1
        options = {"num_leaves": leaves, "max_depth": depth, "min_child_samples": 5}
        return boosted("lightgbm", self.classes, self.trees, **options).fit(X, y)


UNLIMITED = 99
BASE = Point("", 0)


def _points() -> list[Point]:
    def curve(name: str, values: tuple[int, ...], make: Callable[[int], Point]) -> list[Point]:
        return [replace(make(value), curve=name, value=value) for value in values]

    boost = replace(BASE, library="xgboost", leaves=None)
    deep = replace(BASE, library="sklearn", leaves=None, trees=100)
    return [
        replace(BASE, curve="batch", value=0, batches=(1, 2, 4, 8, 16, 32, 64, 100, 256, 1_000, 10_000, 100_000, 1_000_000)),
        *curve("trees", (10, 30, 100, 300, 1_000, 5_000), lambda n: replace(BASE, trees=n)),
        *curve("depth, XGBoost", (2, 4, 6, 8, 10, 12), lambda n: replace(boost, depth=n, trees=200)),
        *curve(
            "depth, forest",
            (2, 4, 6, 8, 10, 12, 16, 20, UNLIMITED),
            lambda n: replace(deep, depth=None if n == UNLIMITED else n),
        ),
        *curve(
            "leaves", (4, 8, 16, 31, 63, 127, 255, 300, 400, 511, 1_023, 4_095), lambda n: replace(BASE, leaves=n, trees=100)
        ),
        *curve("features", (4, 10, 28, 100, 300, 1_000, 2_000), lambda n: replace(BASE, features=n, trees=200, rows=10_000)),
        *curve(
            "classes",
            (2, 3, 5, 10, 30, 100, 300, 1_000),
            lambda n: replace(BASE, classes=n, trees=max(1, 1000 // n), rows=20_000),
        ),
        *curve("threads", (1, 2, 4, 8, 16, 32, 64), lambda n: replace(BASE, threads=n, batches=(1, 10_000, 100_000))),
    ]


LEGEND = (
    "µs a row, median over the rounds of a round's median call, one thread but for the curve of threads. *growth*: hbc's time over that of "
    f"the point before. **cliff**: the growth is more than {CLIFF:g} times that of the limit (the least cycles of hbc's kernel, "
    "`benchmarks/limits.py`), or of the work where no limit is known and for one row (splits that a row passes, and exponentials; for "
    "batches it must not grow at all)."
)


def data(point: Point) -> tuple[Array, Array]:
    """(columns, classes): 20 of the columns decide, with interactions and noise."""
    random = np.random.default_rng(point.features * 1009 + point.classes)
    scored = max(20_000 if point.features <= 300 else 10_000, *point.batches)
    X = random.standard_normal((point.rows + scored, point.features), np.float32)
    used = X[:, : min(20, point.features)]
    hidden = np.sin(used @ random.normal(size=(used.shape[1], 24)).astype(np.float32) / 2)
    score = hidden @ random.normal(size=(24, point.classes)).astype(np.float32)
    y = (score + random.gumbel(size=score.shape)).argmax(axis=1)
    y[: point.classes * (point.rows // (2 * point.classes))] = np.tile(
        np.arange(point.classes), point.rows // (2 * point.classes)
    )
    return X, y


def prepare(point: Point) -> Trained:
    def make() -> Made:
        X, y = data(point)
        model = point.fit(X[: point.rows], y[: point.rows])
        return model, X[point.rows :], {}

    name = f"scaling {point.library} {point.trees} {point.leaves} {point.depth} {point.features} {point.classes}"
    return trained(name, point.library, repr((replace(point, curve="", value=0, threads=1), data.__doc__)), make)


def run(run: Run) -> None:
    usual = Settings(BASE.batches, 3, 0.1, convert_limit=120.0)
    settings = trees.settings_of(run, usual, replace(usual, rounds=1, budget=0.02))
    engines = trees.engines_of(run, matching(ENGINES))
    cores = len(settings_cores())
    points = {point.name: point for point in _points() if point.threads <= cores}
    quick = ("batch: 0", "trees: 10", "trees: 30", "leaves: 8", "leaves: 31")
    with processes(lasting=run.quick) as alive:
        for name in run.steps(run.asked(points, quick)):
            point = points[name]
            if run.quick:
                few = tuple(batch for batch in point.batches if batch <= 10_000)
                point = replace(point, trees=min(point.trees, 30), rows=3_000, batches=few)
            run.say(f"{name}: training, unless it is in the cache")
            run.results["workloads"][name] = one(point, engines, settings, run, alive)


def settings_cores() -> list[int]:
    """All cores that this process may use."""
    return Settings(threads=10**6).cores


def one(point: Point, engines: Any, settings: Settings, run: Run, alive: Processes) -> dict[str, Any]:
    """One model: its times, its limit, and the least work of one row."""
    model = prepare(point)
    chosen: tuple[Engine, ...] = tuple(engines)
    if point.trees * max(point.leaves or 0, 1) > 100_000 or point.classes > 30:
        chosen = tuple(engine for engine in chosen if engine.name != "daal4py")  # it converts for many minutes
    found = on_engines(model, chosen, replace(settings, batches=point.batches, threads=point.threads), run.say, alive)
    facts = {
        "model": model.facts,
        "curve": point.curve,
        "value": point.value,
        "batches": point.batches,
        "threads": point.threads,
    }
    return {**facts, "limit": limits.limit(model, max(point.batches)), "work": limits.work(model), "engines": found}


# --- tables ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """A point of a curve at a number of rows a call: µs a row of hbc, of its fastest peer, and of the limit; `growth` over the point
    before, and `allowed`, that of the limit or of the work."""

    name: str
    rows: int
    own: float | None
    peer: tuple[float, str] | None
    limit: float | None
    growth: float | None
    allowed: float | None

    @property
    def cliff(self) -> bool:
        return self.growth is not None and self.allowed is not None and self.growth > CLIFF * max(self.allowed, 1.0)


def curves(results: dict[str, Any]) -> dict[str, list[Step]]:
    """Curve → its steps: for each number of rows along the values; the curve of batches along the rows."""
    found: dict[str, list[Step]] = {}
    names: dict[str, list[str]] = {}
    for name, workload in results["workloads"].items():
        names.setdefault(workload["curve"], []).append(name)
    for curve, some in names.items():
        if curve == "batch":
            found[curve] = _along([(some[0], rows) for rows in results["workloads"][some[0]]["batches"]], results, batch=True)
            continue
        for rows in results["workloads"][some[0]]["batches"]:
            steps = _along([(name, rows) for name in some], results)
            found[f"{curve}, {rows:,} row{'s' * (rows > 1)} a call"] = steps
    return found


def _along(places: list[tuple[str, int]], results: dict[str, Any], batch: bool = False) -> list[Step]:
    steps: list[Step] = []
    before: tuple[float, float] | None = None
    for name, rows in places:
        workload = results["workloads"][name]
        time, peer = microseconds(workload["engines"].get(MAIN, {}), rows), report.fastest_peer(workload, rows)
        own = None if time is None else time / rows
        limit = (workload.get("limit") or {}).get("us")
        cost = (
            1.0
            if batch or workload["curve"] == "threads"
            else limit
            if rows > 1 and limit
            else workload.get("work") or math.nan
        )
        growth = None if own is None or before is None else own / before[0]
        allowed = None if before is None or math.isnan(cost / before[1]) else cost / before[1]
        steps.append(Step(name, rows, own, None if peer is None else (peer[0] / rows, peer[1]), limit, growth, allowed))
        before = before if own is None else (own, cost)
    return steps


def markdown(results: dict[str, Any]) -> str:
    found = curves(results)
    cliffs = [
        f"* {curve}: at {_place(step, curve)} a row costs {report.times(step.growth)} that of the point before (allowed: "
        f"{report.times(step.allowed)})"
        for curve, steps in found.items()
        for step in steps
        if step.cliff
    ]
    losses = [
        f"* {curve}, {_place(step, curve)}: {step.peer[0] / step.own:.2f}× {step.peer[1]}"
        for curve, steps in found.items()
        for step in steps
        if step.own is not None and step.peer is not None and step.own >= step.peer[0]
    ]
    failed = [f"* {line}" for line in report.failures(results)]
    parts = [report.heading(results, "Scaling curves", LEGEND)]
    parts += ["## Losses\n\n" + "\n".join(losses + failed or ["None."]), "## Cliffs\n\n" + "\n".join(cliffs or ["None."])]
    for curve, steps in found.items():
        lines = ["| | hbc:tvm | limit | fastest peer | ratio | growth | allowed | |", "|" + "---|" * 8]
        for step in steps:
            peer = "–" if step.peer is None else f"{report.figure(step.peer[0])} ({step.peer[1]})"
            ratio = None if step.peer is None or step.own is None else step.peer[0] / step.own
            cells = [_place(step, curve), report.figure(step.own), report.figure(step.limit), peer, report.times(ratio)]
            cells += [report.times(step.growth), report.times(step.allowed), "**cliff**" if step.cliff else ""]
            lines.append(f"| {' | '.join(cells)} |")
        parts.append(f"## {curve[0].upper()}{curve[1:]}\n\n" + "\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _place(step: Step, curve: str) -> str:
    return f"{step.rows:,} row{'s' * (step.rows > 1)}" if curve == "batch" else step.name.partition(": ")[2]
