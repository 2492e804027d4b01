"""`python -m benchmarks.frames`: frames end to end, 50 mixed columns (10 of strings, of 1,000 categories each) through a
ColumnTransformer into LightGBM: scikit-learn's own pipeline and hbc's, on frames of pandas, polars and pyarrow, with each usual encoder.

Both run in one process, on one core, with one thread. All answers are compared before anything is timed; the two take turns, and
whoever begins changes. A call takes the frame and returns probabilities: nothing is converted before it."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
from lightgbm import LGBMClassifier
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler, TargetEncoder

import hbc
from benchmarks import machine, report
from benchmarks.pairs import OURS, SOURCE, compare, table, versions
from benchmarks.run import RESULTS
from benchmarks.trees import CACHE

FLOATS, INTEGERS, TEXTS, CATEGORIES = 36, 4, 10, 1000
GOAL = 10.0
DISTRIBUTIONS = ("hbc", "apache-tvm", "scikit-learn", "lightgbm", "pandas", "polars", "pyarrow")

ENCODERS: dict[str, Callable[[], Any]] = {
    "one-hot": lambda: OneHotEncoder(handle_unknown="ignore"),
    "ordinal": lambda: OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1),
    "target": TargetEncoder,
}
LIBRARIES: dict[str, Callable[[pd.DataFrame], Any]] = {
    "pandas": lambda frame: frame,
    "pandas objects": lambda frame: frame.astype({name: object for name in frame if name.startswith("s")}),
    "polars": pl.from_pandas,
    "pyarrow": lambda frame: pa.Table.from_pandas(frame, preserve_index=False),
}

LEGEND = (
    "50 columns (36 floats with 2 % missing, 4 integers, 10 of strings of 1,000 categories, 0.1 % of them unknown) → ColumnTransformer "
    "(imputer and scaler; encoder) → LGBMClassifier. µs a row of a whole call of predict_proba, frame in, probabilities out: median "
    f"over the rounds of a round's median call. The goal is {GOAL:g}× at the largest batch."
)


@dataclass(frozen=True)
class Size:
    name: str = "full"
    train: int = 20_000
    rows: int = 100_000
    trees: int = 500
    batches: tuple[int, ...] = (1, 1_000, 100_000)


FULL, QUICK = Size(), Size("quick", 2_000, 2_000, 30, (1, 2_000))


def data(rows: int, seed: int) -> tuple[pd.DataFrame, Any]:
    """(a frame, its labels). Categories are as unevenly frequent as usual, and matter as much as numbers."""
    rng = np.random.default_rng(seed)
    numbers = rng.normal(size=(rows, FLOATS))
    integers = rng.integers(0, 100, (rows, INTEGERS))
    codes = (CATEGORIES * rng.random((rows, TEXTS)) ** 2).astype(int)
    effects = np.random.default_rng(7).normal(size=(TEXTS, CATEGORIES))
    score = (
        numbers[:, :8].sum(axis=1) + integers[:, 0] / 50 + effects[np.arange(TEXTS), codes].sum(axis=1) + rng.normal(size=rows)
    )
    numbers[rng.random(numbers.shape) < 0.02] = np.nan
    names = np.array([f"category-{i:04d}" for i in range(CATEGORIES)], object)
    texts = names[codes]
    texts[rng.random(texts.shape) < 0.001] = "never seen"
    columns = {f"x{j}": numbers[:, j] for j in range(FLOATS)} | {f"n{j}": integers[:, j] for j in range(INTEGERS)}
    frame = pd.DataFrame(columns | {f"s{j}": texts[:, j] for j in range(TEXTS)})
    return frame, (score > 1).astype(int)


def fitted(encoder: str, size: Size) -> Any:
    frame, y = data(size.train, 0)
    texts = [name for name in frame.columns if name.startswith("s")]
    numbers = [name for name in frame.columns if not name.startswith("s")]
    parts = [("numbers", make_pipeline(SimpleImputer(), StandardScaler()), numbers), ("texts", ENCODERS[encoder](), texts)]
    trees = LGBMClassifier(n_estimators=size.trees, num_leaves=31, n_jobs=1, verbose=-1, random_state=0)
    return make_pipeline(ColumnTransformer(parts), trees).fit(frame, y)


def run(encoder: str, size: Size, rounds: int, budget: float) -> dict[str, dict[str, Any]]:
    """One encoder, with every library's frames."""
    model = fitted(encoder, size)
    started = time.perf_counter()
    compiled = hbc.convert(model, "tvm", threads=1)
    seconds = time.perf_counter() - started
    calls: dict[str, Callable[[Any], Any]] = {SOURCE: model.predict_proba, OURS: compiled.predict_proba}
    scored, _ = data(size.rows, 1)
    found: dict[str, dict[str, Any]] = {}
    for library, make in LIBRARIES.items():
        frame = make(scored)
        engines = compare(calls, frame, size.batches, rounds, budget)
        engines[OURS]["convert_s"] = seconds
        engines[SOURCE]["versions"] = versions(DISTRIBUTIONS)
        found[f"{encoder}, {library}"] = {"engines": engines}
    return found


def markdown(results: dict[str, Any]) -> str:
    return f"{report.heading(results, 'Frames', LEGEND)}\n\n{table(results, 'encoder, frame')}\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 1 if hbc was not exact anywhere."""
    options = _parser().parse_args(arguments)
    size = QUICK if options.quick else replace(FULL, rows=options.rows, batches=(*FULL.batches[:-1], options.rows))
    described, core = machine.describe(), max(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})
    out = options.out or (CACHE / "frames.json" if options.quick or options.only or size != FULL else RESULTS / "frames.json")
    settings = {"size": asdict(size), "rounds": options.rounds, "budget": options.budget, "threads": 1, "cores": [core]}
    results: dict[str, Any] = {
        "machine": described,
        "settings": {**settings, "batches": size.batches},
        "workloads": {},
    }
    for encoder in ENCODERS:
        if not options.only or encoder in options.only:
            results["workloads"] |= run(encoder, size, options.rounds, options.budget)
            print(f"{time.strftime('%H:%M:%S')} {encoder}", file=sys.stderr, flush=True)
    report.finish(results, out, markdown)
    return 1 if report.failures(results) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.frames", description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], choices=list(ENCODERS), metavar="ENCODER")
    parser.add_argument("--quick", action="store_true", help="small models and frames: does everything work?")
    parser.add_argument("--rows", type=int, default=FULL.rows)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--budget", type=float, default=0.5, help="seconds of a measurement")
    parser.add_argument("--out", type=Path, help="the JSON file; the table goes beside it")
    return parser


if __name__ == "__main__":
    machine.with_one_thread("benchmarks.frames")
    sys.exit(main())
