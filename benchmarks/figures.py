"""The figures of the README, from results: the chart docs/pictures/speed.svg and the words beside it, which sentences.py puts
there. `python -m benchmarks render` draws it."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.report import MAIN, fastest_peer, microseconds

ROOT = Path(__file__).parent.parent
CHART = ROOT / "docs" / "pictures" / "speed.svg"
MANY = 10_000  # rows a call
NAMES = {
    "lightgbm-500x31": "LightGBM, 500 trees of 31 leaves",
    "lightgbm-500x255": "LightGBM, 500 trees of 255 leaves",
    "lightgbm-7classes-200x31": "LightGBM, 7 classes",
    "lightgbm-500x31-categorical": "LightGBM, categorical columns",
    "lightgbm-500x31-nan": "LightGBM, missing values",
    "xgboost-500-depth8": "XGBoost, 500 trees of depth 8",
    "hist-500x31-float64": "HistGradientBoosting, 500 trees",
    "forest-500-depth8": "random forest, 500 trees of depth 8",
    "forest-500-depth8-7classes": "random forest, 7 classes",
    "forest-200-unlimited": "random forest, 200 deep trees",
}
"""Workload → the name that readers see."""
PROCESSORS = {"znver3": "AMD Zen 3", "znver4": "AMD Zen 4", "znver5": "AMD Zen 5", "sapphirerapids": "Intel Sapphire Rapids"}
"""LLVM's name of a processor, as benchmarks/results has it → the name that readers know."""
QUOTED = "znver5"
"""The processor whose results the sentences of the README and the docs quote, where it has some: on it most benchmarks have run. Figures
of one machine can be compared, and they do not change with the machine that ran last. docs/benchmarks.md has the tables of all."""
INK, FAINT, OWN, PEER = "#737d87", "#8c959f", "#d9480f", "#adb5bd"  # readable on white and on black


def write() -> None:
    """Draw the chart."""
    CHART.parent.mkdir(parents=True, exist_ok=True)
    draw(read("trees", NAMES), CHART)


def read(name: str, workloads: Iterable[str] = ()) -> dict[str, Any]:
    """The results of a benchmark that have all these workloads, with "on", the folder of their machine: those of `QUOTED`, or the newest.
    Raises FileNotFoundError if there are none."""
    found = [{**report.read(path), "on": path.parent.name} for path in report.RESULTS.glob(f"*/{name}.json.gz")]
    whole = [results for results in found if set(workloads) <= set(results.get("workloads", ()))]
    if not whole:
        raise FileNotFoundError(f"no whole results of {name}: python -m benchmarks {name}")
    return max(whole, key=lambda results: (results["on"] == QUOTED, str(results["machine"]["time"])))


def figures(results: dict[str, Any]) -> list[tuple[str, float, float, float, float]]:
    """(name, µs a row of hbc and of the fastest peer in calls of 10,000 rows, µs of hbc and of the fastest peer for one row) of each
    model. Raises KeyError if one was not measured."""
    found = []
    for workload, name in NAMES.items():
        times = results["workloads"][workload]
        row: list[float] = []
        for rows in (MANY, 1):
            own, peer = microseconds(times["engines"][MAIN], rows), fastest_peer(times, rows)
            if own is None or peer is None:
                raise KeyError(workload)
            row += [own / rows, peer[0] / rows]
        found.append((name, row[0], row[1], row[2], row[3]))
    return found


def two_digits(number: float) -> str:
    """The number in two digits: 0.90, 2.8, 23. From 100 on to the ten: 110."""
    return f"{number:#.2g}".rstrip(".") if number < 99.5 else f"{round(number, -1):.0f}"


def summary(trees: dict[str, Any], cold_start: dict[str, Any]) -> str:
    """What the README says beside the chart."""
    found = figures(trees)
    many = statistics.median(peer / own for _, own, peer, _, _ in found)
    one = statistics.median(peer / own for *_, own, peer in found)
    start = statistics.median(cold_start["workloads"]["lightgbm-500x31"]["hbc, cache"])
    return (
        f"In the median of these models hbc is **{two_digits(many)} times as fast as the fastest other engine** in calls of {MANY:,} rows, "
        f"and {two_digits(one)} times for one row.\n"
        f"A new process loads a saved model and answers after {start:.2f} s of processor time.\n\n"
        "The other engines are the native library, ONNX Runtime, oneDAL, lleaves, treelite, tl2cgen and Hummingbird, in the same run: one "
        f"core ({PROCESSORS.get(trees['on'], trees['on'])}), 28 columns, probabilities included.\n"
    )


def draw(results: dict[str, Any], path: Path) -> None:
    """Write the chart, an SVG file: how many times as fast as the fastest peer, and the time of one row beside that peer's."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    found = figures(results)
    with mpl.rc_context({"svg.hashsalt": "hbc", "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 10}):
        figure = Figure(figsize=(10, 3.9), layout="constrained")
        batch, single = figure.subplots(1, 2, sharey=True)
        places = range(len(found))
        ratios = [peer / own for _, own, peer, _, _ in found]
        batch.barh(places, ratios, 0.62, color=OWN)
        batch.bar_label(batch.containers[0], [f"{two_digits(ratio)}×" for ratio in ratios], padding=3, color=INK)
        batch.axvline(1, color=FAINT, linewidth=1)
        batch.set_title("10,000 rows: times as fast as the fastest peer", color=INK, fontsize=10.5, loc="left")
        batch.set_xlim(0, 1.12 * max(ratios))
        batch.set_yticks(places, [name for name, *_ in found], color=INK)
        batch.invert_yaxis()

        own, peers = [one for *_, one, _ in found], [peer for *_, peer in found]
        single.scatter(peers, places, s=48, color=PEER, zorder=3, label="fastest peer")
        single.scatter(own, places, s=48, color=OWN, zorder=3, label="hbc")
        single.hlines(places, own, peers, color=FAINT, linewidth=1)
        for place, time in enumerate(own):
            single.annotate(
                f"{two_digits(time)}", (time, place), (-7, 0), textcoords="offset points", ha="right", va="center", color=INK
            )
        for place, time in enumerate(peers):
            single.annotate(
                f"{two_digits(time)}", (time, place), (7, 0), textcoords="offset points", ha="left", va="center", color=INK
            )
        single.set_xscale("log")
        single.set_xlim(0.62 * min(own), 1.9 * max(peers))
        single.set_xticks([], minor=True)
        single.set_xticks([3, 10, 30, 100], ["3", "10", "30", "100"])
        single.set_title("One row: µs a call from Python", color=INK, fontsize=10.5, loc="left")
        single.legend(frameon=False, labelcolor=INK, loc="upper right", fontsize=9, handletextpad=0.1)
        for axes in (batch, single):
            axes.tick_params(colors=INK, length=0)
            axes.set_facecolor("none")
            for side in axes.spines.values():
                side.set_visible(False)
        batch.set_xticks([])
        figure.savefig(path, transparent=True, metadata={"Date": None})
