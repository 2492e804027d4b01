"""The pictures of docs/benchmarks.md, one for each machine: SVG without a background, in colours that can be read on white and on black."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import operators, paper, pipelines500, report, scaling, scoring
from benchmarks.figures import FAINT, INK, OWN, PEER, ROOT
from benchmarks.report import MAIN, SOURCE, microseconds

ORIGINAL = "#3b82c4"  # Hummingbird


def path_of(results: Path) -> Path:
    """The picture of a file of results or tables."""
    return ROOT / "docs" / "pictures" / f"{results.name.partition('.')[0]}-{results.parent.name}.svg"


def write() -> None:
    """Draw all pictures whose results there are."""
    for name, draw in DRAWN.items():
        for results in sorted(report.RESULTS.glob(f"*/{name}.json.gz")):
            draw(report.read(results), path_of(results))


@contextmanager
def axes(path: Path, rows: int, columns: int, size: tuple[float, float]) -> Iterator[Any]:
    """An array of axes, written to the path afterwards. The same results give the same bytes."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"svg.hashsalt": "hbc", "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 9}):
        figure = Figure(figsize=size, layout="constrained")
        made = figure.subplots(rows, columns, squeeze=False)
        yield made
        for each in made.flat:
            each.set_facecolor("none")
            each.tick_params(colors=INK, which="both", length=0)
            for text in (each.xaxis.label, each.yaxis.label, *each.get_xticklabels(), *each.get_yticklabels()):
                text.set_color(INK)
            for side in each.spines.values():
                side.set_visible(False)
            each.grid(color=FAINT, alpha=0.35, linewidth=0.6)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, transparent=True, metadata={"Date": None})


def _log(axis: Any, steps: tuple[int, ...] = (1,)) -> None:
    """Label a logarithmic axis with plain numbers, at these steps of each power of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=steps))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 10 else f"{value:.3g}"))
    axis.set_minor_formatter(NullFormatter())


def _title(each: Any, text: str) -> None:
    each.set_title(text, loc="left", fontsize=9, color=INK)


def draw_paper(results: dict[str, Any], path: Path) -> None:
    """For each cell how many times as fast as the native library: hbc, its fastest peer, Hummingbird today and in the paper."""
    cells = list(results["workloads"])
    batches = sorted(results["settings"]["batches"], reverse=True)
    with axes(path, 1, 2, (10, 1.1 + 0.27 * len(cells))) as made:
        for each, rows, table in zip(made.flat, (batches[0], batches[-1]), (paper.TABLE_7, paper.TABLE_8), strict=True):
            series: dict[str, list[float]] = {
                name: [] for name in ("fastest peer", "Hummingbird today", "Hummingbird in the paper", "hbc")
            }
            for cell in cells:
                workload = results["workloads"][cell]
                native = microseconds(workload["engines"].get(SOURCE, {}), rows)
                peer = report.fastest_peer(workload, rows)
                original = paper.fastest(workload, rows, lambda name: name.startswith(paper.ORIGINAL))
                ours = paper.fastest(workload, rows, lambda name: not paper.is_peer(name))
                theirs = table.get(cell, (None, None, None))
                series["fastest peer"].append(_over(native, peer and peer[0]))
                series["Hummingbird today"].append(
                    _over(native, original and microseconds(workload["engines"][original], rows))
                )
                series["Hummingbird in the paper"].append(_over(theirs[0], theirs[2]))
                series["hbc"].append(_over(native, ours and microseconds(workload["engines"][ours], rows)))
            places = np.arange(len(cells))
            for (name, values), colour in zip(series.items(), (PEER, ORIGINAL, ORIGINAL, OWN), strict=True):
                hollow = name.endswith("paper")
                each.scatter(values, places, s=42, color="none" if hollow else colour, edgecolors=colour, label=name, zorder=3)
            each.axvline(1, color=FAINT, linewidth=1)
            each.set_xscale("log")
            each.set_yticks(places, cells if each is made.flat[0] else [""] * len(cells))
            each.invert_yaxis()
            _title(each, f"{rows:,} row{'s' * (rows > 1)} a call: times as fast as the native library")
            _log(each.xaxis)
        handles, names = made.flat[0].get_legend_handles_labels()
        made.flat[0].figure.legend(
            handles, names, frameon=False, labelcolor=INK, loc="outside lower center", ncols=4, fontsize=8
        )


def _over(a: float | None, b: Any) -> float:
    return math.nan if a is None or not b else a / b


def draw_shares(series: dict[str, list[float]], title: str, path: Path) -> None:
    """How many times as fast, ascending, against the share of all."""
    with axes(path, 1, 1, (7.5, 3.6)) as made:
        (each,) = made.flat
        for (name, values), colour in zip(series.items(), (OWN, ORIGINAL, PEER), strict=False):
            known = np.sort([max(value, 1e-2) for value in values])
            each.plot(100 * (np.arange(len(known)) + 0.5) / max(len(known), 1), known, color=colour, linewidth=2, label=name)
        each.axhline(1, color=INK, linewidth=1)
        each.set_yscale("log")
        each.set_xlabel("% of all")
        _title(each, title)
        _log(each.yaxis)
        each.legend(frameon=False, labelcolor=INK, loc="upper left", fontsize=8)


def draw_pipelines(results: dict[str, Any], path: Path) -> None:
    engine = pipelines500.engines_of(results)[0]
    series = {
        f"{rows:,} row{'s' * (rows > 1)} a call": list(pipelines500.speedups(results, engine, rows).values())
        for rows in results["settings"]["batches"]
    }
    count = len(next(iter(series.values())))
    draw_shares(series, f"{count} pipelines: times as fast as scikit-learn ({engine})", path)


def draw_operators(results: dict[str, Any], path: Path) -> None:
    found = [each for each in results["workloads"].values() if "skipped" not in each]
    series = {}
    for title, engine in (("scikit-learn", operators.NATIVE), ("ONNX Runtime", operators.ONNX)):
        pairs = [[microseconds(each["engines"][name], each["rows"]) for name in (engine, MAIN)] for each in found]
        series[f"over {title}"] = [pair[0] / pair[1] for pair in pairs if None not in pair]  # type: ignore[operator]
    draw_shares(series, f"{len(found)} operators: times as fast ({MAIN})", path)


def draw_scaling(results: dict[str, Any], path: Path) -> None:
    """µs a row along each curve: hbc, its fastest peer and the limit; cliffs are marked."""
    found = scaling.curves(results)
    columns = min(3, len(found))
    with axes(path, math.ceil(len(found) / columns), columns, (3.4 * columns, 2.6 * math.ceil(len(found) / columns))) as made:
        for each, (curve, steps) in zip(made.flat, found.items(), strict=False):
            names = [f"{step.rows:,}" if curve == "batch" else step.name.partition(": ")[2] for step in steps]
            for word, colour, values in (
                ("fastest peer", PEER, [math.nan if step.peer is None else step.peer[0] for step in steps]),
                ("limit", ORIGINAL, [step.limit or math.nan for step in steps]),
                ("hbc", OWN, [step.own or math.nan for step in steps]),
            ):
                each.plot(range(len(steps)), values, color=colour, marker="o", markersize=3, linewidth=1.5, label=word)
            marks = [(i, step.own) for i, step in enumerate(steps) if step.cliff]
            each.scatter([i for i, _ in marks], [own for _, own in marks], s=90, facecolors="none", edgecolors=INK, zorder=4)
            each.set_yscale("log")
            each.set_xticks(range(len(names)), names, rotation=60, fontsize=7)
            _title(each, f"{curve}: µs a row")
            _log(each.yaxis, (1, 3))
        made.flat[0].legend(frameon=False, labelcolor=INK, fontsize=7)
        for each in made.flat[len(found) :]:
            each.set_axis_off()


def draw_scoring(results: dict[str, Any], path: Path) -> None:
    """Millions of rows a second of every engine over the part, and of hbc and pyarrow over all files."""
    found = results["workloads"]["part"]
    speeds = {scoring.PEERS.get(engine, engine): scoring.speed(found, engine) for engine in found["engines"]}
    whole = {
        f"{engine}, {name}": scoring.speed(results["workloads"][name], engine)
        for name in ("grouped", "single")
        for engine in (scoring.SCORE, scoring.LOOP, scoring.ALONE)
    }
    with axes(path, 1, 2, (10, 2.6)) as made:
        for each, rates, title in zip(made.flat, (speeds, whole), (f"{found['rows']:,} rows", "all files"), strict=True):
            known = sorted((rate / 1e6, name) for name, rate in rates.items() if rate is not None)
            colours = [OWN if name.startswith("hbc") else PEER for _, name in known]
            each.barh([name for _, name in known], [rate for rate, _ in known], color=colours, height=0.6)
            _title(each, f"{title}: millions of rows a second")


DRAWN: dict[str, Callable[[dict[str, Any], Path], None]] = {
    "paper": draw_paper,
    "pipelines500": draw_pipelines,
    "operators": draw_operators,
    "scaling": draw_scaling,
    "scoring": draw_scoring,
}
"""Benchmark → the function that draws its picture."""
