"""What the optimizer's passes gain. The paper's Figures 9 (feature-selection push-down) and 10 (injection) with the pass on and off; a
ColumnTransformer and curves of columns before LightGBM against the bare trees; and pipelines of three to ten
operators at one row against the bare model.

All run in one process, on one core, with one thread. `HBC_WITHOUT` leaves passes out while a model is converted and first called. All
answers are compared with scikit-learn's before anything is timed; engines take turns, and whoever begins changes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
from lightgbm import LGBMClassifier
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA
from sklearn.feature_selection import SelectPercentile, f_classif
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    MaxAbsScaler,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    PowerTransformer,
    QuantileTransformer,
    RobustScaler,
    StandardScaler,
)

import hbc
from benchmarks import report
from benchmarks.session import Run, versions
from benchmarks.side_by_side import in_turns
from benchmarks.timing import Call
from hbc.optimizer.pipeline import NEEDED

BACKENDS = ("tvm", "torch")
SELECTION = ("PushSelection", "MergeColumns")
DISTRIBUTIONS = ("hbc", "apache-tvm", "torch", "scikit-learn", "lightgbm")
SOURCE = "scikit-learn"
SHAPE = (89, 29, 3)  # numbers, categories, values of each: those of Nomao, the paper's data set for these figures
TREES_SHAPE = (20, 10, 10)

LEGEND = (
    "ms of a whole call of predict_proba, array in, probabilities out; µs where there is one row. Medians over the rounds of a round's "
    "median call; ratios in one run. *all*: every pass; *without*: every pass but PushSelection; *alone*: none but PushSelection "
    "(and MergeColumns); *none*: none that is optional, as the paper's baseline. none / alone is the paper's ratio."
)


@dataclass(frozen=True)
class Size:
    name: str = "full"
    train: int = 10_000
    rows: int = 10_000
    trees: int = 500
    tree_rows: int = 100_000
    one_in: int = 1  # of the figures and curves
    chains: tuple[int, ...] = (3, 5, 7, 10)


FULL, QUICK = Size(), Size("quick", 1_000, 500, 30, 2_000, 4, (3, 10))


def data(rows: int, shape: tuple[int, int, int], seed: int) -> tuple[Any, Any]:
    """(columns, labels). Columns are numbers, 5 % of them missing, and then categories as numbers. Some of both decide the labels."""
    numbers, categories, values = shape
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, numbers))
    codes = rng.integers(0, values, (rows, categories))
    effects = np.random.default_rng(7).normal(size=(categories, values))
    score = x[:, :20] @ np.linspace(2, 0.1, min(20, numbers)) + effects[np.arange(categories), codes][:, :10].sum(axis=1)
    x[rng.random(x.shape) < 0.05] = np.nan
    return np.hstack([x, codes]), (score + rng.normal(size=rows) > 0.5).astype(int)


def columns(shape: tuple[int, int, int], scaled: bool = False) -> Any:
    """Numbers are imputed (and scaled), categories encoded."""
    numbers, categories, _ = shape
    first = make_pipeline(SimpleImputer(), StandardScaler()) if scaled else SimpleImputer()
    encoder = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    return ColumnTransformer(
        [("numbers", first, list(range(numbers))), ("codes", encoder, list(range(numbers, numbers + categories)))]
    )


def selecting(percent: int, size: Size) -> Any:
    model = LogisticRegression(max_iter=500)
    steps = (columns(SHAPE), StandardScaler(), SelectPercentile(f_classif, percentile=percent), model)
    return make_pipeline(*steps).fit(*data(size.train, SHAPE, 0))


def sparse(strength: float, size: Size) -> Any:
    model = LogisticRegression(C=strength, l1_ratio=1, solver="liblinear", max_iter=500)
    return make_pipeline(columns(SHAPE), StandardScaler(), model).fit(*data(size.train, SHAPE, 0))


PUSH_DOWN = "Figure 9: SelectPercentile behind imputer, one-hot encoder and scaler"
INJECTION = "Figure 10: L1 LogisticRegression behind imputer, one-hot encoder and scaler"
FIGURES: dict[str, tuple[str, Callable[[Size], Any]]] = {
    **{f"{percent} % of the columns": (PUSH_DOWN, partial(selecting, percent)) for percent in (20, 40, 60, 80)},
    **{f"C = {strength:g}": (INJECTION, partial(sparse, strength)) for strength in (0.001, 0.01, 0.1, 1.0)},
}


def optional(compiled: Any) -> set[str]:
    """The passes that can be left out."""
    return {record.name for variant in compiled.variants.values() for record in variant.plan.records} - set(NEEDED)


def converted(model: Any, backend: str, X: Any, without: Sequence[str] = ()) -> Any:
    """The model, compiled for the dtype of X; compilation happens at the first call, so one is made."""
    os.environ["HBC_WITHOUT"] = ",".join(without)
    try:
        compiled = hbc.convert(model, backend, threads=1)
        compiled.predict_proba(X[:1])
    finally:
        del os.environ["HBC_WITHOUT"]
    return compiled


def figures(size: Size) -> Iterator[tuple[str, str, dict[str, Call], Any]]:
    """Workloads: a group, a name, the engines, and the rows to score."""
    scored, _ = data(size.rows, SHAPE, 1)
    for name, (group, make) in list(FIGURES.items())[:: size.one_in]:
        model = make(size)
        calls: dict[str, Call] = {SOURCE: model.predict_proba}
        for backend in BACKENDS:
            whole = converted(model, backend, scored)
            passes = optional(whole)
            left_out = {"without": {"PushSelection"}, "alone": passes - set(SELECTION), "none": passes}
            calls[f"hbc:{backend}:all"] = whole.predict_proba
            for variant, some in left_out.items():
                calls[f"hbc:{backend}:{variant}"] = converted(model, backend, scored, sorted(some)).predict_proba
        yield group, name, calls, scored


def trees(size: Size) -> Iterator[tuple[str, str, dict[str, Call], Any]]:
    X, y = data(size.train, TREES_SHAPE, 0)
    booster = LGBMClassifier(n_estimators=size.trees, num_leaves=31, n_jobs=1, verbose=-1)
    model = make_pipeline(columns(TREES_SHAPE, scaled=True), booster).fit(X, y)
    scored, _ = data(size.tree_rows, TREES_SHAPE, 1)
    name = "ColumnTransformer (imputer and scaler; one-hot encoder) → LightGBM"
    yield name, f"{len(scored):,} rows", beside_bare(model, scored), scored


def beside_bare(model: Any, scored: Any) -> dict[str, Call]:
    """The engines of a pipeline: with all passes, with none, its trees alone on the transformed data, and the source."""
    encoded = np.ascontiguousarray(model[:-1].transform(scored))
    bare, whole = converted(model[-1], "tvm", encoded), converted(model, "tvm", scored)
    without = converted(model, "tvm", scored, sorted(optional(whole)))
    return {
        SOURCE: model.predict_proba,
        "hbc:tvm:all": whole.predict_proba,
        "hbc:tvm:none": without.predict_proba,
        "hbc:tvm:bare": lambda _: bare.predict_proba(encoded),
    }


def curves(size: Size) -> Iterator[tuple[str, str, dict[str, Call], Any]]:
    """Transforms of 20 columns that move into thresholds."""
    makers: dict[str, Callable[[], Any]] = {
        "PowerTransformer": PowerTransformer,
        "QuantileTransformer": QuantileTransformer,
        "QuantileTransformer to normal": partial(QuantileTransformer, output_distribution="normal"),
    }
    X, y = data(size.train, (20, 0, 3), 0)
    scored, _ = data(size.rows, (20, 0, 3), 1)
    for name, make in list(makers.items())[:: size.one_in]:
        booster = LGBMClassifier(n_estimators=size.trees, num_leaves=31, n_jobs=1, verbose=-1)
        model = make_pipeline(SimpleImputer(), make(), booster).fit(X, y)
        yield "A curve of each column → LightGBM", name, beside_bare(model, scored), scored


CHAIN = (SimpleImputer, StandardScaler, MinMaxScaler, RobustScaler, MaxAbsScaler, Normalizer, StandardScaler, MinMaxScaler, PCA)


def chains(size: Size) -> Iterator[tuple[str, str, dict[str, Call], Any]]:
    """Pipelines of so many operators, the model among them."""
    X, y = data(size.train, (28, 1, 3), 0)
    scored, _ = data(1_000, (28, 1, 3), 1)
    makers: dict[str, Callable[[], Any]] = {
        "LogisticRegression": lambda: LogisticRegression(max_iter=500),
        "LightGBM": lambda: LGBMClassifier(n_estimators=size.trees, num_leaves=31, n_jobs=1, verbose=-1),
    }
    for model_name, make in makers.items():
        for count in size.chains:
            model = make_pipeline(*(step() for step in CHAIN[: count - 1]), make()).fit(X, y)
            encoded = np.ascontiguousarray(model[:-1].transform(scored))
            whole, bare = converted(model, "tvm", scored), converted(model[-1], "tvm", encoded)
            rows = [(scored[i : i + 1].copy(), encoded[i : i + 1].copy()) for i in range(len(scored))]
            calls: dict[str, Call] = {
                "hbc:tvm:all": _first(whole.predict_proba),
                "hbc:tvm:bare": _second(bare.predict_proba),
                SOURCE: _first(model.predict_proba),
            }
            yield "One row, p50 in µs", f"{count} operators, {model_name}", calls, rows


def _first(call: Call) -> Call:
    return lambda pair: call(pair[0])


def _second(call: Call) -> Call:
    return lambda pair: call(pair[1])


WORKLOADS = {"figures": figures, "trees": trees, "curves": curves, "chains": chains}
OPTIONS: dict[str, dict[str, Any]] = {}


def run(run: Run) -> None:
    size = QUICK if run.quick else FULL
    run.settings["size"] = asdict(size)
    rounds, budget = run.given("rounds", 5, 1), run.given("budget", 0.3, 0.03)
    run.on_one_core()
    for part in run.steps(run.asked(WORKLOADS)):
        for group, name, calls, rows in WORKLOADS[part](size):
            run.say(f"{group}: {name}")
            batches = rows if isinstance(rows, list) else [rows]
            count = 1 if isinstance(rows, list) else len(rows)
            engines = in_turns(calls, SOURCE, {count: batches}, batches[:100], rounds, budget)
            engines[SOURCE]["versions"] = versions(DISTRIBUTIONS)
            run.results["workloads"][f"{group}: {name}"] = {"group": group, "name": name, "rows": count, "engines": engines}


# --- tables ------------------------------------------------------------------------------------------------------------


def _time(workload: dict[str, Any], engine: str) -> float:
    """The time of a call in milliseconds, or in microseconds for one row."""
    time = report.microseconds(workload["engines"][engine], workload["rows"])
    assert time is not None
    return time if workload["rows"] == 1 else time / 1000


def _row(workload: dict[str, Any]) -> list[tuple[str, str]]:
    """The cells under their heads."""

    def time(engine: str) -> float:
        return _time(workload, engine)

    engines, cells = workload["engines"], [("", workload["name"]), (SOURCE, report.figure(time(SOURCE)))]
    if "hbc:tvm:without" in engines:
        for backend in BACKENDS:
            each = {variant: time(f"hbc:{backend}:{variant}") for variant in ("none", "alone", "without", "all")}
            cells.append((f"{backend}: none / alone / without / all", " / ".join(map(report.figure, each.values()))))
            cells.append(("none / alone", f"**{report.times(each['none'] / each['alone'])}**"))
            cells.append(("without / all", report.times(each["without"] / each["all"])))
            cells.append(("none / all", report.times(each["none"] / each["all"])))
    else:
        whole, bare = time("hbc:tvm:all"), time("hbc:tvm:bare")
        cells += [("tvm: all", report.figure(whole)), ("bare model", report.figure(bare))]
        if workload["rows"] == 1:
            cells.append(("more than the bare model (goal: 5 µs)", f"{whole - bare:+.1f} µs"))
        else:
            cells.append(("times the bare model (goal: 1.3×)", report.times(whole / bare)))
            cells.append(("none", report.figure(time("hbc:tvm:none"))))
        cells.append((f"{SOURCE} / all", report.times(time(SOURCE) / whole)))
    return [*cells, ("answers", "exact" if not report.failures({"workloads": {"": workload}}) else "NOT exact")]


def markdown(results: dict[str, Any]) -> str:
    parts = [report.heading(results, "The optimizer", LEGEND)]
    for group in dict.fromkeys(workload["group"] for workload in results["workloads"].values()):
        rows = [_row(workload) for workload in results["workloads"].values() if workload["group"] == group]
        heads = [head for head, _ in rows[0]]
        lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
        lines += [f"| {' | '.join(cell for _, cell in row)} |" for row in rows]
        parts += [f"## {group}", "\n".join(lines)]
    return "\n\n".join(parts) + "\n"
