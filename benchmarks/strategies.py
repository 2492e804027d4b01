"""The strategies of tree ensembles (the paper's Figure 8) on a grid of ensembles and numbers of rows. The cost model is fitted to their
times, and the report says how well it chooses.

The grid has depths, numbers of trees and of leaves; other properties are random with a fixed seed. The order of models is random too, so
that a run that ends early (`--minutes`) has a fair sample. Candidates take turns in one thread. Answers are compared before anything is
timed. Times are processor times (others may use the core too), and the least of several rounds.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from benchmarks import machine, report
from benchmarks.grid import FEW_TREES, WIDE, Model, ensemble, grid
from benchmarks.session import Run
from hbc.builder import Builder
from hbc.compiler.base import CompileOptions, load_compiler
from hbc.compiler.costs import (
    ALONE_WITHOUT_KEYS,
    CALL_WITHOUT_KEYS,
    FAR_COPIED,
    FAR_SELECTED,
    FAR_WITHOUT_KEYS,
    FILE,
    FURTHER_PLANE,
    IN_TURN,
    OF_ONE_TREE,
    RANGE,
    WITHOUT_AVX512,
    WITHOUT_KEYS,
    Shape,
    Work,
    estimate,
    fastest,
    on,
)
from hbc.compiler.memory import LINE
from hbc.ir.graph import Graph, Input
from hbc.ir.types import N

Array = np.ndarray[Any, Any]
SLOW, TOO_OFTEN = 3.0, 2
"""A strategy that took SLOW times as long as the fastest, for TOO_OFTEN numbers of rows in succession, is not measured for more rows."""
LONGEST = 0.2
"""A call that takes more seconds than this is not repeated."""
LONGEST_BEST = 1.0
"""If the fastest strategy takes more seconds than this, its time for ten times the rows is taken to be ten times as long, instead of being
measured. The same holds for a candidate without rivals."""
ROUNDS, ROUND_SECONDS, RACE = 8, 0.002, 0.5
WITHIN = 1.10
BACKENDS = ("tvm", "torch", "torchscript", "onnx")
SINCE = {"torch": "2026-11-26 19:53", "torchscript": "2026-11-26 19:53"}
"""Backend → when its kernels last became faster (UTC). Older measurements would fit the older kernels, and are left out."""
LONE_SINCE, PAIRS_SINCE, TOPS_SINCE = "2026-11-24 21:59", "2026-11-29 03:22", "2026-11-29 09:52"
TWICE_FROM, TWICE_TO = "2026-11-23 07:20", "2026-11-29 12:55"
WALKS_SINCE = "2026-11-29 13:55"
"""When tvm's kernels changed (UTC), see `Kernels`."""
FITS, AS_MEASURED = 6, 0.2
"""How often all is fitted, and the weight of a point's speed as it was measured; that of its fastest strategy is 1."""
QUICK_WALKS = ("znver5",)
"""Processors of `Dialect.quick_walks`."""
FIXED = (FURTHER_PLANE,)
"""Work whose times are not fitted to the grid, though it is there."""
OF_FEW = (CALL_WITHOUT_KEYS, WITHOUT_KEYS, FAR_WITHOUT_KEYS, FAR_COPIED, ALONE_WITHOUT_KEYS, IN_TURN)
"""Work that (nearly) only ensembles of FEW_TREES do, besides that OF_ONE_TREE. Its times are fitted to these, and all others without them:
a time that serves both was wrong for many trees. PyTorch has none, and all its times are fitted to many trees. On Zen 5 they choose well at
96 % of the points of many trees and 92 % of those of few; fitted to both, at 93 and 90 % (known rows, not other halves)."""
OF_LONG_ROWS = (FAR_SELECTED,)
"""Work that is fitted to the grid's long rows besides. Nothing else is: with them others were chosen worse (Zen 4, of 1,272 points 94.7 %
within 10 %, and 95.4 without)."""
LATER = ("ranges",)
"""Strategies of tvm with which some processors with times of their own were not measured yet. There these have the times of the others."""
WITHOUT_PAIRS = ("znver3", "znver4")
"""Processors that scan chunks one by one (`pairing`)."""


@dataclass(frozen=True)
class Kernels:
    """What tvm's kernels did when they were measured. Kinds of work that they had not yet must not be fitted to their times.

    pairs: two chunks of a scan went together. tops: many rows were scanned through the tops of trees, before patches. lone: walks of few
    steps made no keys. walks: many rows of some ensembles in patches were walked. twice: trees that are the result, as all of the grid,
    were computed twice (a mistake)."""

    pairs: bool = False
    tops: bool = True
    lone: bool = True
    walks: bool = False
    twice: bool = False

    @classmethod
    def of(cls, machine: dict[str, Any]) -> Kernels:
        """Those of measurements on a machine, by their time. Older ones do not say which processor it was; none of them had pairs."""
        at = machine["time"]
        return cls(
            pairs=at >= PAIRS_SINCE and machine.get("cpu") not in (None, *WITHOUT_PAIRS),
            tops=at >= TOPS_SINCE,
            lone=at >= LONE_SINCE,
            walks=at >= WALKS_SINCE and machine.get("cpu") in QUICK_WALKS,
            twice=TWICE_FROM <= at < TWICE_TO,
        )


@dataclass(frozen=True)
class Point:
    """The seconds of each strategy for a model and a number of rows of a call."""

    model: Model
    shape: Shape
    rows: int
    seconds: dict[str, float]
    kernels: Kernels = Kernels()

    @property
    def best(self) -> float:
        return min(self.seconds.values())


# --- measuring ---------------------------------------------------------------------------------------------------------


def measure(backend: str, model: Model, batches: Sequence[int] = RANGE) -> list[Point]:
    """Measures all candidates of a backend, in turns. Raises AssertionError if an answer differs from the reference's."""
    op = ensemble(model)
    source = Input("X", model.dtype, (N, model.columns))()  # type: ignore[arg-type]
    graph = Graph((source,), {"predict": (op(source),)})
    x = np.random.default_rng(model.seed).random((max(batches), model.columns), np.float32).astype(op.threshold.dtype)
    calls: dict[str, Callable[[Array], Array]] = {}
    candidates = load_compiler(backend).candidates  # type: ignore[attr-defined]
    for strategy in dict.fromkeys(
        name for rows in (1, max(batches)) for name in candidates(op, CompileOptions(batch_size=rows))
    ):
        calls[strategy] = _call(backend, graph, strategy)
        np.testing.assert_allclose(calls[strategy](x[:99]), op.evaluate(x[:99]), rtol=1e-5, atol=1e-5, err_msg=strategy)
    shape, points = Shape.of(op), []
    slow, expected = dict.fromkeys(calls, 0), dict.fromkeys(calls, 0.0)
    for rows in sorted(batches):
        running = {name: call for name, call in calls.items() if slow[name] < TOO_OFTEN}
        alone = len(running) == 1 and rows > 1000
        if points and (alone or min(expected[name] for name in running) > LONGEST_BEST):  # times grow as the rows do
            seconds = {name: expected[name] for name in running}
        else:
            seconds = _race(running, x, rows, expected)
        points.append(Point(model, shape, rows, seconds))
        for name, found in seconds.items():
            expected[name] = 10 * found
            slow[name] = slow[name] + 1 if found > SLOW * points[-1].best else 0
            if 10 * found > LONGEST and found > WITHIN * points[-1].best:
                slow[name] = TOO_OFTEN
    return points


def _call(backend: str, graph: Graph, strategy: str) -> Callable[[Array], Array]:
    """A call as users make it."""
    builder = Builder(backend, CompileOptions(threads=1), strategy)
    executable = builder.compile(builder.plan(graph))
    direct = executable.direct("predict", None)
    if direct is not None:
        return lambda x: direct(x, len(x))  # type: ignore[return-value]
    return lambda x: executable.run("predict", [x])[0]


def _race(calls: dict[str, Callable[[Array], Array]], x: Array, rows: int, expected: dict[str, float]) -> dict[str, float]:
    """The least seconds of a call, by candidate. Calls cycle through different rows, because a branch predictor would learn them. A
    candidate that is expected to take LONGEST is called once."""
    batches = [x[i : i + rows] for i in range(0, min(len(x), 64 * rows), rows)]
    seconds, repeats = {}, {}
    for name, call in calls.items():
        if expected[name] < LONGEST:
            call(batches[0])
        seconds[name] = np.inf
        for _ in range(3):  # a single call may have been disturbed
            if seconds[name] < LONGEST / 4 or seconds[name] == np.inf:
                start = time.process_time()
                call(batches[-1])
                seconds[name] = min(seconds[name], max(time.process_time() - start, 1e-6))
        repeats[name] = max(int(ROUND_SECONDS / seconds[name]), 1)
    best, end = min(seconds.values()), time.process_time() + RACE
    for turn in range(ROUNDS):
        if turn > 1 and time.process_time() > end:
            break
        for name, call in calls.items():
            if seconds[name] > min(LONGEST, 2 * SLOW * best):
                continue
            start = time.process_time()
            for i in range(repeats[name]):
                call(batches[i % len(batches)])
            seconds[name] = min(seconds[name], (time.process_time() - start) / repeats[name])
    return seconds


# --- fitting -----------------------------------------------------------------------------------------------------------


def costs_of(backend: str, measured: dict[str, Any]) -> str:
    """The name in costs.json of the times of a backend on the machine of these measurements."""
    return WITHOUT_AVX512 if backend == "tvm" and "avx512f" not in measured["machine"]["flags"] else backend


def work_of(costs: str, kernels: Kernels = Kernels()) -> Mapping[str, Work]:
    """The work by strategy, for a name in costs.json. kernels: those of tvm that were measured."""
    if not costs.startswith("tvm"):
        return load_compiler(costs).work  # type: ignore[attr-defined, no-any-return]
    from hbc.compiler.tvm.costs import strategies

    found = strategies(costs != WITHOUT_AVX512, kernels.pairs, kernels.tops, kernels.lone, kernels.walks)
    if kernels.twice:
        found = found | {name: functools.partial(_twice, work) for name, work in found.items() if name != "select"}
    return found


def _twice(work: Work, shape: Shape, rows: int) -> Mapping[str, float]:
    return {name: count if name == "call" else 2 * count for name, count in work(shape, rows).items()}


def work_at(costs: str, strategy: str, point: Point, rows: int) -> Mapping[str, float]:
    """The work of a strategy at a point, for so many rows."""
    return work_of(costs, point.kernels)[strategy](point.shape, rows)


Times = Mapping[str, Mapping[str, float]]
"""The coefficients in nanoseconds, by strategy and kind of work."""


def fit(costs: str, points: Sequence[Point], known: Times = MappingProxyType({})) -> dict[str, dict[str, float]]:
    """The coefficients in nanoseconds by strategy and kind of work, fitted to the times of `points`.

    Others use the processor too. Some points were measured while it was half as fast, all strategies alike, since these take turns. No
    choice depends on that, and so each point's times are brought to its fitted speed, and fitted again."""
    found = _fit(costs, points, known)
    for _ in range(FITS - 1):
        found = _fit(costs, [_at_fitted_speed(costs, point, found) for point in points], known)
    return found


def _at_fitted_speed(costs: str, point: Point, factors: Times) -> Point:
    """The point with all times multiplied by the same number, so that they fit best. Those far behind the fastest count less."""
    found = {
        name: estimate(factors[name], work_at(costs, name, point, point.rows)) for name in point.seconds if name in factors
    }
    weights = {name: point.best / point.seconds[name] for name, nanoseconds in found.items() if nanoseconds > 0}
    logs = sum(weight * math.log(1e-9 * found[name] / point.seconds[name]) for name, weight in weights.items())
    speed = math.exp(logs / (sum(weights.values()) + AS_MEASURED))
    return replace(point, seconds={name: seconds * speed for name, seconds in point.seconds.items()})


def _fit(costs: str, points: Sequence[Point], known: Times) -> dict[str, dict[str, float]]:
    """`fit` to the times as they are, by non-negative least squares of relative errors.

    Times far behind the fastest count less, since no choice depends on them. Work such as "walk: row and step" is that of another strategy,
    which stands before this one, and has its coefficient; the `known` one if that was not measured. All work of such a strategy is among
    the results. FIXED work has the known coefficient, too, and so has work OF_FEW trees where none of these was measured. The other
    work of strategies that have such work, and all of PyTorch's, is fitted to many trees."""
    found: dict[str, dict[str, float]] = {}
    for strategy in work_of(costs):
        used = [point for point in points if strategy in point.seconds]
        if not used:
            continue
        counts = [work_at(costs, strategy, point, point.rows) for point in used]
        names = list(dict.fromkeys(name for row in counts for name in row))
        parts = [name.partition(": ") for name in names]
        shared = {"".join(each): {**known, **found}.get(each[0], {}).get(each[2], 0.0) for each in parts if each[1]}
        shared |= {name: known.get(strategy, {}).get(name, 0.0) for name in names if name in FIXED or _of_few(name)}
        own = [name for name in names if name not in shared]
        few = [name for name in names if _of_few(name)]
        every = list(zip(used, counts, strict=True))
        pairs = [pair for pair in every if pair[0].model.columns not in WIDE]
        of_few = [pair for pair in pairs if pair[0].model.trees in FEW_TREES]
        of_many = [pair for pair in pairs if pair[0].model.trees not in FEW_TREES]
        alone = of_many and (few or not costs.startswith("tvm"))
        fitted = shared | _least_squares(strategy, of_many if alone else pairs, own, shared)
        fitted |= _least_squares(strategy, of_few, few, fitted)
        fitted |= _least_squares(strategy, every, [name for name in names if name in OF_LONG_ROWS], fitted)
        for other in [each for each in found if any(name.startswith(f"{each}: ") for name in shared)]:
            fitted |= {f"{other}: {name}": time for name, time in found[other].items()}
        found[strategy] = {name: value for name, value in fitted.items() if value > 0}
    return found


def _of_few(name: str) -> bool:
    return name in OF_FEW or name.endswith(OF_ONE_TREE)


def _least_squares(
    strategy: str, used: Sequence[tuple[Point, Mapping[str, float]]], names: Sequence[str], others: Mapping[str, float]
) -> dict[str, float]:
    """The coefficients of some kinds of work, by these points and their work. others: those of all other kinds. Empty without points."""
    from scipy.optimize import nnls

    if not used or not names:
        return {}
    times = np.array([1e9 * point.seconds[strategy] for point, _ in used])
    rest = np.array([estimate({**others, **dict.fromkeys(names, 0.0)}, row) for _, row in used])
    weight = np.array([point.best / point.seconds[strategy] for point, _ in used])
    counts = np.array([[row.get(name, 0.0) for name in names] for _, row in used])
    estimated = times
    for _ in range(2):  # relative to the mean of both: twice and half the time are the same error
        factor = weight / np.sqrt(times * estimated)
        matrix = counts * factor[:, None]
        scale = np.maximum(matrix.max(axis=0), 1e-300)
        values = nnls(matrix / scale, factor * (times - rest), maxiter=10_000)[0] / scale
        estimated = np.maximum(counts @ values + rest, 1.0)
    return {name: float(f"{value:.3g}") for name, value in zip(names, values, strict=True)}


def chosen(costs: str, factors: dict[str, dict[str, float]], points: Sequence[Point], known: bool) -> list[str]:
    """The choice of the cost model at each point. `known`: it is told the number of rows; otherwise it chooses for RANGE. A fit of few
    points may find that some work takes no time: a call takes a nanosecond at least."""
    answers = []
    for point in points:
        names = [name for name in point.seconds if name in factors]
        rows = (point.rows,) if known else RANGE
        answers.append(fastest({n: [max(estimate(factors[n], work_at(costs, n, point, r)), 1.0) for r in rows] for n in names}))
    return answers


def ratios(points: Sequence[Point], choices: Iterable[str | None]) -> Array:
    """The time of each choice, divided by the time of the best choice. Infinite if it was not measured, because it was slow."""
    return np.array([point.seconds.get(c or "", np.inf) / point.best for point, c in zip(points, choices, strict=True)])


def halves(points: Sequence[Point]) -> tuple[list[Point], list[Point]]:
    return [p for p in points if p.model.seed % 2], [p for p in points if not p.model.seed % 2]


# --- reading, writing --------------------------------------------------------------------------------------------------


def as_json(points: Sequence[Point]) -> list[dict[str, Any]]:
    """An entry for each model: the microseconds of a call, by rows and strategy."""
    return [
        {
            "model": asdict(model),
            "shape": asdict(group[0].shape),
            "microseconds": {p.rows: {name: float(f"{1e6 * s:.4g}") for name, s in p.seconds.items()} for p in group},
        }
        for model, group in ((model, list(each)) for model, each in itertools.groupby(points, key=lambda p: p.model))
    ]


def from_json(entries: Sequence[dict[str, Any]], kernels: Kernels = Kernels()) -> list[Point]:
    return [
        Point(Model(**e["model"]), _shape(e), int(rows), {name: t / 1e6 for name, t in times.items()}, kernels)
        for e in entries
        for rows, times in e["microseconds"].items()
    ]


def _shape(entry: dict[str, Any]) -> Shape:
    """The shape in an entry of `as_json`. Older ones do not have its cache lines: all columns of a row are read, or nearly all lines."""
    shape, columns = entry["shape"], entry["model"]["columns"]
    return Shape(**{"lines": min(-(-columns * shape["bytes"] // LINE), shape["columns"])} | shape)


def table(measured: dict[str, list[Point]]) -> str:
    """A table of how often a choice is within 10 % of the best one, and its mean time divided by the best one's. A choice is the cost
    model's, fitted to the other half of the models, or always the same strategy."""
    lines = ["| backend | points | choice | within 10 % | on average | at worst |", "|---|---|---|---|---|---|"]
    for backend, points in measured.items():
        for name, found in judged(backend, points).items():
            finite = found[np.isfinite(found)] if np.isfinite(found).any() else np.full(1, np.inf)
            missing = f", {1 - len(finite) / len(found):.0%} not measured" if len(finite) < len(found) else ""
            figures = f"{np.mean(found <= WITHIN):.1%} | {np.mean(finite):.2f}×{missing} | {finite.max():.1f}×"
            lines.append(f"| {backend} | {len(points)} | {name} | {figures} |")
    return "\n".join(lines)


def judged(costs: str, points: list[Point]) -> dict[str, Array]:
    """The `ratios` of every way to choose, by name."""
    found: dict[str, list[Array]] = {}
    known = json.loads(FILE.read_text())["nanoseconds"].get(costs, {})  # for a strategy that a short run has not measured
    for train, test in itertools.permutations(halves(points)):
        factors = _fitted(costs, train, known)
        ways: dict[str, list[str]] = {
            "cost model, rows known": chosen(costs, factors, test, known=True),
            "cost model, rows unknown": chosen(costs, factors, test, known=False),
        }
        ways |= {f"always {name}": [name] * len(test) for name in work_of(costs)}
        for name, choices in ways.items():
            found.setdefault(name, []).append(ratios(test, choices))
    return {name: np.concatenate(parts) for name, parts in found.items()}


def judged_together(costs: str, points: dict[str, list[Point]]) -> dict[str, Array]:
    """The `ratios` of the cost model that knows the rows, by processor. `points` are those of each. The model is fitted to one half of the
    models, on all processors and on those that `have_own` times, and judged on the other half, both ways."""
    found: dict[str, list[Array]] = {name: [] for name in points}
    known = json.loads(FILE.read_text())["nanoseconds"].get(costs, {})
    parts = {name: halves(each) for name, each in points.items()}
    for train, test in ((0, 1), (1, 0)):
        together = _fitted(costs, [point for each in parts.values() for point in each[train]], known)
        for name, each in parts.items():
            factors = _fitted(costs, each[train], together) if have_own(costs, each[train]) else together
            found[name].append(ratios(each[test], chosen(costs, factors, each[test], known=True)))
    return {name: np.concatenate(each) for name, each in found.items()}


OPTIONS: dict[str, dict[str, Any]] = {
    "--backends": {"nargs": "+", "choices": BACKENDS},
    "--fit": {"action": "store_true", "help": "measure nothing: fit to what is in the file, and judge"},
}


def run(run: Run) -> None:
    """Measures for `--minutes`, all backends together. What an earlier run found for other backends is kept. A whole run writes the cost
    model."""
    backends = run.given("backends", ["tvm", "torch"], ["tvm", "torch"])
    minutes = run.given("minutes", 10.0, 0.3)
    found: dict[str, Any] = report.read(run.path)["workloads"] if run.path.exists() else {}
    run.results["workloads"] = found
    for place, backend in enumerate([] if run.options.fit else backends):
        end = time.monotonic() + 60 * minutes / len(backends)
        described, points = machine.describe() | {"cpu": machine.name()}, []
        for model in grid():
            if time.monotonic() > end:
                break
            points += measure(backend, model, RANGE[:-1] if run.quick else RANGE)
            run.say(f"{backend} ({place + 1} of {len(backends)}): {len(points)} points")
        found[backend] = {"machine": described | {"load_after": os.getloadavg()}, "measured": as_json(points)}
    if run.path.is_relative_to(report.RESULTS):
        paths = [path for path in sorted(report.RESULTS.glob("*/strategies.json.gz")) if path != run.path]
        results = {path.parent.name: report.read(path) for path in paths} | {run.path.parent.name: run.results}
        known = json.loads(FILE.read_text())
        FILE.write_text(json.dumps(cost_model(known, results), indent=1, ensure_ascii=False) + "\n")


def cost_model(known: dict[str, Any], results: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """The content of costs.json: what is `known`, with the coefficients of all strategies that were measured in place of the old ones.
    `results` are those of all processors, by LLVM's names, and the fit is to all their points that are `current`. Processors that
    `have_own` coefficients get these, too.

    A strategy that was not measured keeps its coefficients, and so does a backend: estimates are made for all strategies of a backend, and
    fail for one without. (The measurements of PyTorch on Zen 4 are older than its "walk", and a fit to them alone dropped it.)"""
    factors, machines = dict(known["nanoseconds"]), dict(known["machines"])
    measured: dict[str, dict[str, dict[str, Any]]] = {}
    for processor, each in results.items():
        for backend, found in current(each)["workloads"].items():
            measured.setdefault(costs_of(backend, found), {})[processor] = found
    for costs, parts in measured.items():
        points = {name: from_json(part["measured"], Kernels.of(part["machine"])) for name, part in parts.items()}
        factors[costs] = _fitted(costs, [point for some in points.values() for point in some], factors.get(costs, {}))
        machines[costs] = [part["machine"] for part in parts.values()]
        for processor, some in points.items():
            if have_own(costs, some):
                factors[on(costs, processor)] = _fitted(costs, some, factors[costs])
                machines[on(costs, processor)] = [parts[processor]["machine"]]
    return {"machines": machines, "nanoseconds": factors}


def have_own(costs: str, points: Sequence[Point]) -> bool:
    """Whether a processor, whose points these are, has times of its own: it has AVX-512, and all strategies of tvm but those of LATER were
    measured there."""
    return costs == "tvm" and {name for point in points for name in point.seconds} >= {*work_of(costs)} - {*LATER}


def _fitted(costs: str, points: Sequence[Point], known: Times) -> dict[str, dict[str, float]]:
    """`fit`, with the `known` times of all work that none of these points has."""
    found = fit(costs, points, known)
    for strategy, times in found.items():
        counts = [work_at(costs, strategy, point, point.rows) for point in points if strategy in point.seconds]
        done = {name for each in counts for name, count in each.items() if count > 0}
        known_ones = known.get(strategy, {}).items()
        times |= {name: time for name, time in known_ones if name not in done and name not in times}
    return {**known, **found}  # type: ignore[dict-item]


def current(results: dict[str, Any]) -> dict[str, Any]:
    """The results without the backends whose kernels became faster since (`SINCE`). PyTorch's "scan" walks few rows of few trees
    (`walked_at_most`), so there it has the times of "walk", also where an older run scanned."""
    found = {name: each for name, each in results["workloads"].items() if each["machine"]["time"] >= SINCE.get(name, "")}
    for name in {"torch", "torchscript"} & found.keys():
        found[name] = found[name] | {"measured": [_walked(entry) for entry in found[name]["measured"]]}
    return results | {"workloads": found}


def _walked(entry: dict[str, Any]) -> dict[str, Any]:
    """An entry of `as_json` for a model in PyTorch, in which "scan" has the times of "walk" for few rows."""
    from hbc.compiler.torch.scan import walked_at_most

    times, shape = {}, entry["shape"]
    most = walked_at_most(shape["leaves"], shape["depth"])
    for rows, found in entry["microseconds"].items():
        both = int(rows) * shape["trees"] <= most and found.keys() >= {"scan", "walk"}
        times[rows] = found | {"scan": found["walk"]} if both else found
    return entry | {"microseconds": times}


def measured_of(results: dict[str, Any]) -> dict[str, list[Point]]:
    """The points by the names of their times in costs.json."""
    return {
        costs_of(backend, each): from_json(each["measured"], Kernels.of(each["machine"]))
        for backend, each in results["workloads"].items()
    }


def markdown(results: dict[str, Any]) -> str:
    """The report: what was measured, the table, and for which models the cost model chooses well."""
    legend = "One thread, least of several rounds. The cost model is fitted to one half of the models and judged on the other, both ways."
    parts, measured = ["# Strategies of tree ensembles", legend], measured_of(results)
    for (backend, points), found in zip(measured.items(), results["workloads"].values(), strict=True):
        about, models = found["machine"], len({point.model for point in points})
        load = f"load {about['load_before'][0]:.1f} before, {about['load_after'][0]:.1f} after"
        versions = f"{about['processor']} ({', '.join(about['flags'])}), {about['system']}, Python {about['python']}"
        parts.append(
            f"{backend}: {models} of {len(grid())} models; {about['time']}, commit {about['commit'][:10]}, {versions}; {load}"
        )
    parts += [figure_8(measured), table(measured)]
    for backend, points in measured.items():
        where = [p for train, test in itertools.permutations(halves(points)) for p in test]
        found = judged(backend, points)["cost model, rows known"]
        parts.append(f"## {backend}: share within 10 %, rows known")
        for name, key in KEYS.items():
            values = np.array([key(point) for point in where])
            parts.append(
                f"* by {name}: " + ", ".join(f"{v:,}: {np.mean(found[values == v] <= WITHIN):.0%}" for v in np.unique(values))
            )
    return "\n\n".join(parts) + "\n"


def figure_8(measured: dict[str, list[Point]]) -> str:
    """The paper's claims of Figure 8, and what holds here: GEMM is the fastest strategy for shallow trees, and at one row; a traversal is
    for deep trees. A share is that of the points at which the strategy is the fastest of those measured."""
    lines = [
        "## Figure 8: which strategy is the fastest",
        "",
        "| backend | trees | rows | points | fastest |",
        "|---|---|---|---|---|",
    ]
    for backend, points in measured.items():
        for heads, deep in (("depth to 3", (0, 3)), ("4 to 8", (4, 8)), ("from 9", (9, 99))):
            for rows, span in (("1", (1, 1)), ("10 to 100", (10, 100)), ("from 1,000", (1000, 10**9))):
                some = [p for p in points if deep[0] <= p.model.depth <= deep[1] and span[0] <= p.rows <= span[1]]
                if some:
                    names = [min(p.seconds, key=p.seconds.__getitem__) for p in some]
                    shares = {
                        name: names.count(name) / len(names) for name in sorted(set(names), key=names.count, reverse=True)
                    }
                    text = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
                    lines.append(f"| {backend} | {heads} | {rows} | {len(some)} | {text} |")
    return "\n".join(lines)


KEYS: dict[str, Callable[[Point], int]] = {
    "rows": lambda point: point.rows,
    "depth": lambda point: point.model.depth,
    "trees": lambda point: point.model.trees,
}
