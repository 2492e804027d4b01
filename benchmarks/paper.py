"""The paper's Tables 7 and 8: six data sets × random forest, LightGBM and XGBoost (500 trees of depth 8) on every engine, in batches of
10,000 rows and of one, beside the paper's own seconds. It says of each of the paper's claims whether it holds today, for Hummingbird itself
and for hbc; and where hbc is not the fastest. Conversion time and memory are in the tables of each cell.

Models are trained on a sample of the rows, and 20,000 others are scored: the time of a row depends on the trees, which have the paper's
depth. Seconds are for the paper's test split (a fifth of the rows)."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks import report, trees
from benchmarks.engines import EngineFilter
from benchmarks.report import MAIN, SOURCE, microseconds
from benchmarks.session import Run
from benchmarks.side_by_side import Settings, on_engines, processes
from benchmarks.trained import Made, Trained, boosted, depths, forest, trained
from datasets import PAPER, load_paper

OPTIONS = {
    **trees.ENGINE_OPTIONS,
    "--generated": {"action": "store_true", "help": "do not try to download: generated stand-ins"},
}
LIBRARIES = {"forest": "sklearn", "lightgbm": "lightgbm", "xgboost": "xgboost"}
TREES, DEPTH, ROWS = 500, 8, 10_000
TRAINED_ON = {"fraud": 100_000, "epsilon": 15_000, "year": 30_000, "covtype": 30_000, "higgs": 50_000, "airline": 50_000}
"""The rows to train on. Fraud has more, since only one of 579 is a fraud."""
QUICK = ("fraud forest", "year lightgbm", "covtype xgboost")

# Seconds in the paper on 6 cores of a Xeon E5-2690 v4: native library, ONNX-ML, Hummingbird's TVM. None: more than an hour, or not there.
Seconds = tuple[float | None, float | None, float | None]
TABLE_7: dict[str, Seconds] = {
    "fraud forest": (2.5, 7.1, 3.0),
    "fraud lightgbm": (3.4, 5.9, 1.7),
    "fraud xgboost": (1.9, 5.5, 1.6),
    "epsilon forest": (9.8, 18.7, 6.6),
    "epsilon lightgbm": (10.5, 18.9, 4.0),
    "epsilon xgboost": (7.6, 18.9, 4.2),
    "year forest": (1.9, 6.6, 1.4),
    "year lightgbm": (5.0, 7.4, 1.6),
    "year xgboost": (3.1, 8.6, 1.6),
    "covtype forest": (5.9, 18.1, 6.8),
    "covtype lightgbm": (51, 127, 27),
    "covtype xgboost": (42, 122, 26),
    "higgs forest": (102, 258, 118),
    "higgs lightgbm": (198, 271, 69),
    "higgs xgboost": (126, 310, 66),
    "airline forest": (1320, None, 1217),
    "airline lightgbm": (1696, None, 702),
    "airline xgboost": (1316, None, 663),
}
TABLE_8: dict[str, Seconds] = {
    "fraud forest": (1688, 10, 11.6),
    "fraud lightgbm": (354, 12, 10.2),
    "fraud xgboost": (80, 7.8, 10.2),
}
ORIGINAL = "hummingbird:"
LEGEND = (
    "Seconds for the paper's test split: the median over the rounds of a round's median call, one thread (the paper: 6 cores). Ratios "
    "are in one run: above 1 hbc is faster. ≈: some rows' answers are outside the contract's tolerance (rtol 1e-5, atol 1e-6). "
    "Hummingbird: the faster of its backends that run today, torch and torch.jit. Its TVM backend needs Relay, which TVM has removed: the "
    "package index begins with TVM 0.25."
)


def estimator(model: str, classes: int, count: int) -> Any:
    """An unfitted model of the paper. XGBoost may split small leaves, and all learn slowly, so that the last trees are deep too."""
    if model == "forest":
        return forest(classes, count, DEPTH, max_features="sqrt")
    if model == "lightgbm":
        return boosted("lightgbm", classes, count, max_depth=DEPTH, num_leaves=2**DEPTH, learning_rate=0.1)
    return boosted("xgboost", classes, count, max_depth=DEPTH, min_child_weight=0, learning_rate=0.1)


def prepare(cell: str, quick: bool, download: bool) -> Trained:
    """The trained model of a cell, with the facts: whether its data are generated, and how deep the trees are."""
    name, _, model = cell.partition(" ")
    data = PAPER[name]
    count, rows, scored = (10, 2_000, 2_000) if quick else (TREES, TRAINED_ON[name], 2 * ROWS)

    def make() -> Made:
        table = load_paper(name, rows + scored, download)
        y = table.y.astype(int) if data.classes else table.y
        fitted = estimator(model, data.classes, count).fit(table.X[:rows], y[:rows])
        if model == "forest":
            fitted.set_params(n_jobs=1)
        deep = depths(fitted)
        facts = {"generated": table.generated, "mean_depth": round(float(np.mean(deep)), 2), "trees": len(deep)}
        return fitted, table.X[rows:], facts

    method = "predict_proba" if data.classes else "predict"
    return trained(f"paper {cell}", LIBRARIES[model], f"{count} {rows} {scored} {download}", make, method)


def run(run: Run) -> None:
    settings = trees.settings_of(run, Settings((1, ROWS), 3), Settings((1, 1_000), 1, 0.02, convert_limit=20.0))
    engines = trees.engines_of(run)
    with processes(lasting=run.quick) as alive:
        for cell in run.steps(run.asked(TABLE_7, QUICK)):
            run.say(f"{cell}: training, unless it is in the cache")
            model = prepare(cell, run.quick, not (run.options.generated or run.quick))
            found = on_engines(model, engines, settings, run.say, alive)
            run.results["workloads"][cell] = {"model": model.facts, "engines": found}


# --- tables ------------------------------------------------------------------------------------------------------------


def seconds(cell: str, workload: dict[str, Any], engine: str, rows: int) -> float | None:
    """The time of the paper's test split in calls of so many rows."""
    time = microseconds(workload["engines"].get(engine, {}), rows)
    return None if time is None else time / rows * PAPER[cell.partition(" ")[0]].rows / 5 / 1e6


def fastest(workload: dict[str, Any], rows: int, chosen: EngineFilter) -> str | None:
    """The fastest engine among the chosen ones."""
    found = workload["engines"]
    names = [(time, name) for name in found if chosen(name) and (time := microseconds(found[name], rows)) is not None]
    return min(names)[1] if names else None


def is_peer(name: str) -> bool:
    return not name.startswith("hbc:")


def markdown(results: dict[str, Any]) -> str:
    one, most = min(results["settings"]["batches"]), max(results["settings"]["batches"])
    parts = [
        report.heading(results, "The paper's trees, Tables 7 and 8", LEGEND),
        data_of(results),
        "## Losses\n\n" + losses(results),
    ]
    parts += ["## The paper's claims\n\n" + claims(results)]
    parts += [f"## Table 7: batches of {most:,}\n\n" + table(results, most, TABLE_7)]
    parts += [f"## Table 8: batches of {one}\n\n" + table(results, one, TABLE_8)]
    parts += ["## Every engine, with conversion time and memory"]
    parts += [report.details(name, workload) for name, workload in results["workloads"].items()]
    return "\n\n".join(parts) + "\n"


def data_of(results: dict[str, Any]) -> str:
    """Which data sets are generated, and how deep the trees are."""
    lines = []
    for name in PAPER:
        cells = {cell: found["model"] for cell, found in results["workloads"].items() if cell.startswith(f"{name} ")}
        if cells:
            kind = "generated" if any(facts["generated"] for facts in cells.values()) else "downloaded"
            deep = ", ".join(f"{cell.partition(' ')[2]} {facts['mean_depth']:g}" for cell, facts in cells.items())
            lines.append(f"* {name}: **{kind}**; mean depth of the trees: {deep}")
    return "\n".join(lines)


def losses(results: dict[str, Any]) -> str:
    """Where hbc's fastest backend is not the fastest engine."""
    lines = []
    for cell, workload in results["workloads"].items():
        for rows in sorted(results["settings"]["batches"], reverse=True):
            peer = report.fastest_peer(workload, rows)
            ours = fastest(workload, rows, lambda name: not is_peer(name))
            own = None if ours is None else microseconds(workload["engines"][ours], rows)
            if peer is not None and (own is None or own >= peer[0]):
                lost = "hbc failed" if own is None else f"{peer[0] / own:.2f}× {peer[1]}"
                lines.append(f"* {cell}, {rows:,} row{'s' * (rows > 1)}: {lost}")
    lines += [f"* {line}" for line in report.failures(results)]
    return "\n".join(lines or ["None: hbc is ahead of every engine in every cell that was measured."])


def table(results: dict[str, Any], rows: int, paper: dict[str, Seconds]) -> str:
    """A line for each cell: the engines of the paper, hbc, the fastest peer, and what the paper has."""
    heads = ("cell", "native", "ONNX Runtime", "Hummingbird", "fastest peer", "hbc:tvm", "hbc:torchscript", "hbc:torch")
    heads += ("native / hbc", "fastest peer / hbc", "Hummingbird / hbc:torchscript", "paper: native / ONNX-ML / HB-TVM")
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for cell, workload in results["workloads"].items():

        def text(engine: str | None, named: bool = False, cell: str = cell, workload: dict[str, Any] = workload) -> str:
            found = None if engine is None else seconds(cell, workload, engine, rows)
            mark = "" if engine is None else report.MARKS.get(workload["engines"].get(engine, {}).get("status", ""), "")
            return report.figure(found) + mark + (f" ({engine})" if named and engine else "")

        def over(engine: str | None, own: str, workload: dict[str, Any] = workload) -> str:
            pair = [microseconds(workload["engines"].get(each or "", {}), rows) for each in (engine, own)]
            return report.times(None if None in pair else pair[0] / pair[1])  # type: ignore[operator]

        original = fastest(workload, rows, lambda name: name.startswith(ORIGINAL))
        peer = (report.fastest_peer(workload, rows) or (0.0, None))[1]
        cells = [text(SOURCE), text("onnxruntime"), text(original, named=True), text(peer, named=True)]
        cells += [text(engine) for engine in (MAIN, "hbc:torchscript", "hbc:torch")]
        cells += [over(SOURCE, MAIN), over(peer, MAIN), over(original, "hbc:torchscript")]
        theirs = paper.get(cell)
        cells.append("" if theirs is None else " / ".join("–" if each is None else f"{each:g}" for each in theirs))
        lines.append(f"| {cell} | {' | '.join(cells)} |")
    return "\n".join(lines)


@dataclass(frozen=True)
class Claim:
    """A claim of the paper about ratios: `over` is the engine that Hummingbird is compared with. It holds if the ratio is at least `least`
    in every cell that `about` names."""

    text: str
    over: str
    rows: str
    least: float
    about: Callable[[str], bool]

    def ratios(self, results: dict[str, Any], ours: EngineFilter) -> Iterator[tuple[str, float]]:
        """(cell, how many times as fast as the other engine) of the cells that were measured."""
        rows = (max if self.rows == "many" else min)(results["settings"]["batches"])
        for cell, workload in results["workloads"].items():
            if self.about(cell):
                own, other = fastest(workload, rows, ours), microseconds(workload["engines"].get(self.over, {}), rows)
                if own is not None and other is not None:
                    yield cell, other / (microseconds(workload["engines"][own], rows) or np.nan)


def _boosted(cell: str) -> bool:
    return not cell.endswith("forest")


def _any(cell: str) -> bool:
    return True


CLAIMS = (
    Claim(
        "Table 7: boosted trees are faster than LightGBM's and XGBoost's own libraries (1.1 to 3.1×)",
        SOURCE,
        "many",
        1.0,
        _boosted,
    ),
    Claim(
        "Table 7: forests are about as fast as scikit-learn (0.84 to 1.5×)",
        SOURCE,
        "many",
        0.8,
        lambda cell: not _boosted(cell),
    ),
    Claim("Table 7: faster than ONNX-ML in every cell (2.2 to 5.4×)", "onnxruntime", "many", 1.0, _any),
    Claim("Table 8: one row is far faster than the native library (7.8 to 146×)", SOURCE, "one", 7.8, _any),
    Claim("Table 8: one row is about as fast as ONNX-ML (0.76 to 1.2×)", "onnxruntime", "one", 0.76, _any),
)


def claims(results: dict[str, Any]) -> str:
    """Whether each claim holds, for Hummingbird as it installs today, and for hbc."""
    lines = ["| the paper's claim | Hummingbird today | hbc, the fastest of its backends |", "|---|---|---|"]
    for claim in CLAIMS:
        verdicts = [
            _verdict(claim, results, chosen)
            for chosen in (lambda name: name.startswith(ORIGINAL), lambda name: not is_peer(name))
        ]
        lines.append(f"| {claim.text} | {' | '.join(verdicts)} |")
    return "\n".join(lines)


def _verdict(claim: Claim, results: dict[str, Any], chosen: EngineFilter) -> str:
    found = dict(claim.ratios(results, chosen))
    if not found:
        return "not measured"
    values = list(found.values())
    held = sum(value >= claim.least for value in values)
    word = "holds" if held == len(values) else "**does not hold**"
    return (
        f"{word} ({held} of {len(values)} cells; {report.times(min(values))} to {report.times(max(values))}, median "
        f"{report.times(statistics.median(values))})"
    )
