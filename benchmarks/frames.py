"""Frames end to end: 50 mixed columns (10 of strings, of 1,000 categories each) through a ColumnTransformer into LightGBM. scikit-learn's
own pipeline and hbc's, on frames of pandas, polars and pyarrow, with each usual encoder.

Both run in one process, on one core, with one thread. All answers are compared before anything is timed; the two take turns, and
whoever begins changes. A call takes the frame and returns probabilities: nothing is converted before it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
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
from benchmarks import report
from benchmarks.report import MAIN, SOURCE
from benchmarks.session import Run, versions
from benchmarks.side_by_side import cut, in_turns

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


OPTIONS: dict[str, dict[str, Any]] = {"--rows": {"type": int, "help": "of the largest frame"}}


def run(run: Run) -> None:
    size = QUICK if run.quick else FULL
    rows = run.given("rows", size.rows, size.rows)
    size = replace(size, rows=rows, batches=(*size.batches[:-1], rows))
    run.settings.update(size=asdict(size), batches=size.batches)
    rounds, budget = run.given("rounds", 3, 1), run.given("budget", 0.5, 0.05)
    run.on_one_core()
    scored, _ = data(size.rows, 1)
    for encoder in run.steps(run.asked(ENCODERS)):
        model = fitted(encoder, size)
        started = time.perf_counter()
        compiled = hbc.convert(model, "tvm", threads=1)
        seconds = time.perf_counter() - started
        calls: dict[str, Callable[[Any], Any]] = {SOURCE: model.predict_proba, MAIN: compiled.predict_proba}
        for library, make in LIBRARIES.items():
            run.say(f"{encoder}, {library}")
            frame = make(scored)
            engines = in_turns(calls, SOURCE, {rows: cut(frame, rows) for rows in size.batches}, [frame], rounds, budget)
            engines[MAIN]["convert_s"] = seconds
            engines[SOURCE]["versions"] = versions(DISTRIBUTIONS)
            run.results["workloads"][f"{encoder}, {library}"] = {"engines": engines}


def markdown(results: dict[str, Any]) -> str:
    return f"{report.heading(results, 'Frames', LEGEND)}\n\n{report.pairs(results, 'encoder, frame')}\n"
