"""This checkout beside another one (`--other`), in one run: no model may have become slower.

A process of each converts the same fitted models, on the same core. Both give their answers first, which must agree; then they take turns,
and the one that begins changes. The models are those of the other benchmarks: trees, operators, optimizer, text and frames."""

from __future__ import annotations

import os
import pickle
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import hbc
from benchmarks import frames, operators, optimizer, report, text, trees
from benchmarks.session import Run
from datasets import load_newsgroups

ROOT = Path(__file__).parents[1]
SLOWER = 1.03
"""A ratio of medians above this counts as slower."""

LEGEND = (
    "Medians over the rounds of a round's median call, and of the ratios round by round, this checkout's time over the other's. "
    f"Ratios above {SLOWER:g} come first. *convert*: from the fitted model to the first answer of the variant."
)

Made = tuple[Any, str, Any]
"""A fitted model, the method to call, and rows to call it with."""


def workloads() -> Iterator[tuple[str, Callable[[], Made]]]:
    """Name of a model → the function that makes it."""
    for workload in trees.WORKLOADS:
        yield f"trees: {workload.name}", partial(_trees, workload)
    for name in operators.CONVERTIBLE:
        yield f"operators: {name.rpartition('.')[2]}", partial(_operator, name)
    for name, (_, make) in optimizer.FIGURES.items():
        yield f"optimizer: {name}", partial(_figure, make)
    for name in text.MODELS:
        yield f"text: {name}", partial(_text, name)
    for library in frames.LIBRARIES:
        yield f"frames: {library}", partial(_frame, library)


def _trees(workload: trees.Workload) -> Made:
    prepared = trees.prepare(workload, trees.FULL)
    return prepared.model, "predict_proba", np.load(prepared.rows)[:10_000]


def _operator(name: str) -> Made:
    model = operators.fitted(name, 4)
    method = next(method for method in operators.METHODS if hasattr(model, method))
    with tempfile.TemporaryDirectory() as folder:
        return model, method, np.load(operators.tile(4, 10_000, Path(folder)))


def _figure(make: Callable[[optimizer.Size], Any]) -> Made:
    return make(optimizer.FULL), "predict_proba", optimizer.data(10_000, optimizer.SHAPE, 1)[0]


def _text(name: str) -> Made:
    model = text.MODELS[name]()
    rng = np.random.default_rng(0)
    X: Any = [{f"name {i}": float(i) for i in rng.integers(1, 200, 20)} for _ in range(4000)]
    if name not in ("DictVectorizer", "FeatureHasher"):
        X = load_newsgroups()[:4000]
    model.fit(X[:3000], np.arange(3000) % 4)
    return model, "predict_proba" if hasattr(model, "predict_proba") else "transform", X[3000:]


def _frame(library: str) -> Made:
    return frames.fitted("one-hot", frames.FULL), "predict_proba", frames.LIBRARIES[library](frames.data(10_000, 1)[0])


class Checkout:
    """The process of one checkout. Its methods raise the errors that the process reports."""

    def __init__(self, root: Path, core: int) -> None:
        # This file and the timing loop are ours; hbc is the checkout's.
        code = f"import sys; sys.path[:0] = [{str(root)!r}]; import hbc; sys.path[:1] = [{str(ROOT)!r}]; "
        code += "from benchmarks.engines.checkout import serve; serve()"
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        self.process = subprocess.Popen(
            ["taskset", "-c", str(core), sys.executable, "-c", code],
            cwd=tempfile.gettempdir(),
            env={**os.environ, **threads, "HBC_CACHE": tempfile.mkdtemp(prefix="hbc-nothing-tuned-")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def ask(self, what: str, value: Any) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        pickle.dump((what, value), self.process.stdin)
        self.process.stdin.flush()
        reply = pickle.load(self.process.stdout)
        if isinstance(reply, Exception):
            raise reply
        return reply


def one(made: Made, here: Checkout, there: Checkout, rounds: int, budget: float, batches: Sequence[int]) -> dict[str, Any]:
    """The comparison of one model: `identical` (whether answers have the same bits), `convert_s` (seconds here, there), and `times_us`,
    by rows of a call the pairs (µs here, µs there) of all rounds."""
    with tempfile.NamedTemporaryFile(suffix=".pkl") as file:
        file.write(pickle.dumps(made))
        file.flush()
        (ours, answer), (theirs, expected) = (side.ask("convert", file.name) for side in (here, there))
    same = answer.dtype == expected.dtype and np.array_equal(answer, expected, equal_nan=answer.dtype.kind == "f")
    times: dict[str, list[tuple[float, float]]] = {}
    for turn in range(rounds):
        for rows in batches:
            sides = (here, there) if turn % 2 else (there, here)
            found = {side: side.ask("measure", (rows, budget)) for side in sides}
            times.setdefault(str(rows), []).append((found[here], found[there]))
    return {"identical": bool(same), "convert_s": (ours, theirs), "times_us": times}


def ratios(found: dict[str, Any]) -> dict[str, float]:
    """The ratio of times here / there, by rows of a call; "convert": that of converting."""
    by_rows = {rows: statistics.median(ours / theirs for ours, theirs in times) for rows, times in found["times_us"].items()}
    return {**by_rows, "convert": found["convert_s"][0] / found["convert_s"][1]}


def markdown(results: dict[str, Any]) -> str:
    lines = ["| model | rows | this checkout, µs | the other, µs | ratio | same bits |", "|---|---|---|---|---|---|"]
    cells = []
    for name, found in results["workloads"].items():
        for rows, ratio in ratios(found).items():
            pairs = found["times_us"].get(rows) or [tuple(1e6 * seconds for seconds in found["convert_s"])]
            ours, theirs = (statistics.median(side) for side in zip(*pairs, strict=True))
            cells.append((ratio, f"| {name} | {rows} | {ours:,.1f} | {theirs:,.1f} | {ratio:.3f} | {found['identical']} |"))
    medians = {
        rows: statistics.median(ratios(found)[rows] for found in results["workloads"].values())
        for rows in ("1", "10000", "convert")
        if all(rows in ratios(found) for found in results["workloads"].values())
    }
    summary = ", ".join(f"{rows}: {ratio:.3f}" for rows, ratio in medians.items())
    heading = report.heading(results, "This checkout and another", LEGEND)
    return (
        "\n".join(
            [heading, "", f"Median ratio by rows: {summary}.", "", *lines, *(line for _, line in sorted(cells, reverse=True))]
        )
        + "\n"
    )


OPTIONS: dict[str, dict[str, Any]] = {
    "--other": {
        "type": Path,
        "required": True,
        "help": "the folder of the other checkout (git worktree add ../before REVISION)",
    },
    "--batches": {"type": int, "nargs": "+", "metavar": "ROWS", "help": "the numbers of rows of a call"},
}


def run(run: Run) -> None:
    rounds, budget = run.given("rounds", 5, 1), run.given("budget", 0.1, 0.02)
    batches = run.given("batches", [1, 10_000], [1, 1_000])
    core = max(os.sched_getaffinity(0))
    run.settings["cores"] = [core]
    here, there = Checkout(ROOT, core), Checkout(run.options.other.resolve(), core)
    makers = dict(workloads())
    for name in run.steps(run.asked(makers)):
        try:
            run.results["workloads"][name] = one(makers[name](), here, there, rounds, budget, batches)
        except (ValueError, TypeError, hbc.HbcError) as error:
            run.results.setdefault("left_out", {})[name] = str(error).splitlines()[0]


def status(results: dict[str, Any]) -> int:
    """1 if a ratio is above SLOWER or answers differ."""
    found = results["workloads"].values()
    return int(any(not each["identical"] or max(ratios(each).values()) > SLOWER for each in found))
