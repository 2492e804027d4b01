"""One row as a server gets it: records (dicts and tuples of Python values) through `bind_record`, and frames and lists of one row through
`predict_proba`, beside the source on a frame of pandas of this row.

All run in one process, on one core, with one thread. All answers are compared with the source's before anything is timed; the calls take
turns, and whoever begins changes. Calls cycle through the rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
from lightgbm import LGBMClassifier
from sklearn.compose import ColumnTransformer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

import hbc
from benchmarks import report
from benchmarks.report import SOURCE
from benchmarks.session import Run, versions
from benchmarks.side_by_side import in_turns

NUMBERS, TEXTS = 20, 10
DISTRIBUTIONS = ("hbc", "apache-tvm", "scikit-learn", "lightgbm", "pandas", "polars", "pyarrow")
RECORD, FRAME = {"mixed": 12.0, "numbers": 5.0}, 60.0
"""The goals in µs: of a record, by workload, and of a frame."""

LEGEND = (
    "One row through predict_proba, µs a call: median over the rounds of a round's median. mixed: 20 numbers, scaled, some missing, and "
    "10 columns of strings, one-hot and ordinal, some missing → LGBMClassifier of 500 trees of 31 leaves. numbers: 20 numbers → the same "
    "trees. A record is what `json.loads` gives: str, float, None. Goals: a record 12 and 5 µs, a frame of one row 60 µs."
)


def is_text(name: str) -> bool:
    return name.startswith("s")


def of_polars(record: dict[str, Any]) -> pl.DataFrame:
    return pl.DataFrame([record], schema={name: pl.String if is_text(name) else pl.Float64 for name in record})


def of_arrow(record: dict[str, Any]) -> pa.Table:
    schema = pa.schema([(name, pa.string() if is_text(name) else pa.float64()) for name in record])
    return pa.Table.from_pylist([record], schema)


FORMS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "frame of pandas": lambda record: pd.DataFrame([record]),
    "frame of polars": of_polars,
    "table of pyarrow": of_arrow,
    "list of one dict": lambda record: [record],
}


@dataclass(frozen=True)
class Size:
    name: str = "full"
    train: int = 5_000
    rows: int = 200
    trees: int = 500


FULL, QUICK = Size(), Size("quick", 1_000, 20, 20)


def data(rows: int, seed: int) -> tuple[pd.DataFrame, Any]:
    """(a frame, its labels)."""
    rng = np.random.default_rng(seed)
    numbers = rng.normal(size=(rows, NUMBERS))
    codes = [rng.integers(0, 4 + 3 * j, rows) for j in range(TEXTS)]
    y = numbers[:, 0] + numbers[:, 1] ** 2 + (codes[3] == 1) + rng.normal(size=rows) > 1
    numbers[rng.random(numbers.shape) < 0.02] = np.nan
    texts = [np.array([f"category-{j}-{code}" for code in column], object) for j, column in enumerate(codes)]
    for column in texts:
        column[rng.random(rows) < 0.05] = None
    columns = {f"n{j}": numbers[:, j] for j in range(NUMBERS)}
    return pd.DataFrame(columns | {f"s{j}": pd.Series(texts[j], dtype=object) for j in range(TEXTS)}), y.astype(int)


def fitted(workload: str, size: Size) -> tuple[Any, pd.DataFrame]:
    """(the model, rows to score)."""
    (frame, y), (scored, _) = data(size.train, 0), data(size.rows, 1)
    trees = LGBMClassifier(n_estimators=size.trees, num_leaves=31, n_jobs=1, verbose=-1, random_state=0)
    numbers, texts = list(frame)[:NUMBERS], list(frame)[NUMBERS:]
    if workload == "numbers":
        return trees.fit(frame[numbers].fillna(0), y), scored[numbers].fillna(0)
    parts = [
        ("numbers", StandardScaler(), numbers),
        ("one-hot", OneHotEncoder(handle_unknown="ignore"), texts[::2]),
        ("ordinal", OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1), texts[1::2]),
    ]
    return make_pipeline(ColumnTransformer(parts), trees).fit(frame, y), scored


OPTIONS: dict[str, dict[str, Any]] = {}


def taking(form: str, call: Callable[[Any], Any]) -> Callable[[dict[str, Any]], Any]:
    """The call on one form of a row. It takes 0.06 µs more."""
    return lambda row: call(row[form])


def run(run: Run) -> None:
    size = QUICK if run.quick else FULL
    run.settings.update(size=asdict(size), batches=[1])
    rounds, budget = run.given("rounds", 7, 1), run.given("budget", 0.5, 0.02)
    run.on_one_core()
    for workload in run.steps(run.asked(RECORD)):
        model, scored = fitted(workload, size)
        compiled = hbc.convert(model, "tvm", scored, threads=1)
        record = compiled.bind_record("predict_proba")
        forms = dict(FORMS)
        records = [
            {name: None if value != value else value for name, value in row.items()} for row in scored.to_dict("records")
        ]
        rows = [
            {"record": each, "tuple": tuple(each.values()), SOURCE: scored[i : i + 1]}
            | {
                form: make({k: np.nan if v is None and not is_text(k) else v for k, v in each.items()})
                for form, make in forms.items()
            }
            for i, each in enumerate(records)
        ]

        calls = {SOURCE: taking(SOURCE, model.predict_proba)}
        calls |= {f"hbc: {form}": taking(form, record) for form in ("record", "tuple")}
        calls |= {f"hbc: {form}": taking(form, compiled.predict_proba) for form in forms}
        run.say(workload)
        engines = in_turns(calls, SOURCE, {1: rows}, rows, rounds, budget)
        engines[SOURCE]["versions"] = versions(DISTRIBUTIONS)
        run.results["workloads"][workload] = {"engines": engines}


def markdown(results: dict[str, Any]) -> str:
    names = dict.fromkeys(name for workload in results["workloads"].values() for name in workload["engines"])
    lines = [f"| one row as | {' | '.join(f'{name}: p50 / p99 | goal' for name in results['workloads'])} |"]
    lines.append("|" + "---|" * (1 + 2 * len(results["workloads"])))
    for name in names:
        cells = []
        for workload, found in results["workloads"].items():
            engine = found["engines"][name]
            goal = None if name == SOURCE else RECORD[workload] if name in ("hbc: record", "hbc: tuple") else FRAME
            p50, p99 = (report.microseconds(engine, 1, figure) for figure in ("p50", "p99"))
            status = "" if engine["status"] == "exact" else f" ({engine['status']})"
            cells.append(f"{report.figure(p50)} / {report.figure(p99)}{status} | {report.figure(goal)}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return f"{report.heading(results, 'Records', LEGEND)}\n\n" + "\n".join(lines) + "\n"
