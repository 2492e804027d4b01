"""Ratios and tables of a run's results, and the files that keep them."""

from __future__ import annotations

import gzip
import json
import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hbc.errors import counted

MAIN, SOURCE = "hbc:tvm", "native"
MARKS = {"exact": "", "inexact": " ≈"}
NAMED = 30
"""The most workloads of a run that joined tables name; of more they give the number."""
LEGEND = (
    "µs a row: median over the rounds of a round's median call, results included. One row: p50 / p99 of the whole Python call. "
    "The fastest peer in bold. ≈: some rows' answers are outside the contract's tolerance (rtol 1e-5, atol 1e-6). "
    "Ratios: fastest peer / hbc, in one run."
)


CACHE, RESULTS = Path(__file__).parent / ".cache", Path(__file__).parent / "results"


def write(results: dict[str, Any], path: Path, tables: Callable[[dict[str, Any]], str]) -> None:
    """Writes the results to `path`, as compressed JSON (the same bytes for the same results), and then their tables beside it: where these
    fail, the results are not lost."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    with open(unfinished, "wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as packed:
        packed.write(json.dumps(results, ensure_ascii=False).encode())
    unfinished.replace(path)
    tables_of(path).write_text(tables(results))


def read(path: Path) -> dict[str, Any]:
    """The results in a file."""
    found: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return found


def tables_of(path: Path) -> Path:
    """The file of the tables beside a file of results."""
    return path.with_name(path.name.partition(".")[0] + ".md")


def failures(results: dict[str, Any]) -> list[str]:
    """A line "workload: engine: status" for each engine of hbc that has no exact answers."""
    return [
        f"{name}: {engine}: {found['status']}"
        for name, workload in results["workloads"].items()
        for engine, found in workload.get("engines", {}).items()
        if engine.startswith("hbc:") and found["status"] != "exact"
    ]


def microseconds(engine: dict[str, Any], rows: int | str, figure: str = "p50") -> float | None:
    """The time of a call in µs: the median over the rounds. None if it was not measured."""
    rounds = engine.get("times_us", {}).get(str(rows))
    return statistics.median(each[figure] for each in rounds) if rounds else None


def fastest_peer(workload: dict[str, Any], rows: int | str) -> tuple[float, str] | None:
    """(the time of a call in µs, the name) of the fastest peer. None if no peer was measured."""
    times = [
        (time, name)
        for name, found in workload["engines"].items()
        if not name.startswith("hbc:") and found["status"] in MARKS and (time := microseconds(found, rows)) is not None
    ]
    return min(times, default=None)


def ratio(workload: dict[str, Any], engine: str, rows: int | str) -> float | None:
    """How many times faster than the fastest peer an engine is."""
    own, fastest = microseconds(workload["engines"].get(engine, {}), rows), fastest_peer(workload, rows)
    return None if own is None or fastest is None else fastest[0] / own


def summary(results: dict[str, Any]) -> str:
    """A table with a line for each workload: hbc against the fastest peer at the largest batch and at one row, with the goals; and the
    limit of the processor (benchmarks/limits.py) as a part of the time of the largest batch."""
    batches = results["settings"]["batches"]
    ends = ((max(batches), "rows"), (min(batches), "one_row"))
    headings = [f"{rows:,} row{'s' * (rows > 1)}: µs a row | ratio | fastest peer | goal" for rows, _ in ends]
    lines = [f"| {MAIN} | {' | '.join(headings)} | limit of the trees, µs a row | share |", "|" + "---|" * (3 + 4 * len(ends))]
    for name, workload in results["workloads"].items():
        cells = []
        for rows, goal in ends:
            time, peer = microseconds(workload["engines"].get(MAIN, {}), rows), fastest_peer(workload, rows)
            cells += [figure(None if time is None else time / rows), times(ratio(workload, MAIN, rows))]
            cells += ["–" if peer is None else peer[1], times(workload["goals"][goal])]
        limit, most = (workload.get("limit") or {}).get("us"), max(batches)
        time = microseconds(workload["engines"].get(MAIN, {}), most)
        cells += [figure(limit), "–" if limit is None or time is None else f"{limit * most / time:.0%}"]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    failed = failures(results)
    return "\n".join(["## Summary", "", *lines, *(["", "hbc failed: " + "; ".join(failed)] if failed else [])])


def details(name: str, workload: dict[str, Any]) -> str:
    """A table with a line for each engine."""
    engines = workload["engines"]
    batches = next((list(found["times_us"]) for found in engines.values() if "times_us" in found), [])
    fastest = {rows: found[1] for rows in batches if (found := fastest_peer(workload, rows)) is not None}
    columns = ["1 row, p50 / p99" if rows == "1" else f"{int(rows):,}" for rows in batches]
    lines = [
        f"| engine | {' | '.join([*columns, 'largest difference', 'converted in s', 'MiB'])} |",
        "|" + "---|" * (4 + len(columns)),
    ]
    for engine, found in engines.items():
        if found["status"] not in MARKS:
            continue
        cells = [_cell(found, rows, bold=fastest.get(rows) == engine) for rows in batches]
        cells += [f"{found['answers']['largest_difference']:.0e}{MARKS[found['status']]}", f"{found['convert_s']:.2f}"]
        cells += [figure(found["convert_peak_mib"])]
        lines.append(f"| {engine} | {' | '.join(cells)} |")
    for engine in engines:
        ratios = [ratio(workload, engine, rows) for rows in batches]
        if engine.startswith("hbc:") and any(ratios):
            lines.append(f"| *ratio of {engine}* | {' | '.join(map(times, ratios))} | | | |")
    missing = [f"- {engine}: {_reason(found)}" for engine, found in engines.items() if found["status"] not in MARKS]
    return "\n".join(
        [f"### {name} (model: {workload['model']['model_mib']} MiB)", "", *lines, *(["", *missing] if missing else [])]
    )


def heading(results: dict[str, Any], title: str, legend: str) -> str:
    """The heading of a report: the subject, the runs, the machine and the versions."""
    machine, settings = results["machine"], results["settings"]
    versions: dict[str, str] = {}
    runs: dict[str, tuple[dict[str, Any], list[str]]] = {}
    for name, workload in results["workloads"].items():
        run = machine_of(results, workload)
        runs.setdefault(run["time"], (run, []))[1].append(name)
        for found in workload.get("engines", {}).values():
            versions |= found.get("versions", {})
    blas = ", ".join(machine.get("blas", []))
    about = (
        f"{machine['processor']}, {counted(machine['cores'], 'core')} ({', '.join(machine['flags'])}), {machine['memory_gib']} GiB, "
        f"{machine['system']}, Python {machine['python']}{', ' + blas if blas else ''}"
    )
    lines = [
        f"# {title}, {settings['size']['name']} size, {settings['threads']} thread(s)",
        *([_joined(list(runs.values())), about] if len(runs) > 1 else [_when(machine), f"{about}; {_load(machine)}"]),
        ", ".join(f"{name} {version}" for name, version in sorted(versions.items())),
        legend,
    ]
    return "\n\n".join(lines)


def machine_of(results: dict[str, Any], workload: dict[str, Any]) -> dict[str, Any]:
    """The machine of the run that measured a workload, with its time, commit and load: joined results have that of each workload."""
    return workload.get("machine", results["machine"])  # type: ignore[no-any-return]


def _joined(runs: list[tuple[dict[str, Any], list[str]]]) -> str:
    """A line for each run, the oldest first: when it was, and the names of its workloads, or how many they are."""
    lines = [
        f"* {_when(machine)}; {_load(machine)}: {'; '.join(names) if len(names) <= NAMED else f'{len(names)} of them'}"
        for machine, names in sorted(runs, key=lambda run: str(run[0]["time"]))
    ]
    return "\n".join(["Joined from several runs. Each workload is of the last run that measured it:", "", *lines])


def _when(machine: dict[str, Any]) -> str:
    changes = " with uncommitted changes" if machine["uncommitted_changes"] else ""
    return f"{machine['time']}, commit {machine['commit'][:10]}{changes}"


def _load(machine: dict[str, Any]) -> str:
    return f"load {machine['load_before'][0]:.1f} before, {machine['load_after'][0]:.1f} after"


def _cell(found: dict[str, Any], rows: str, bold: bool) -> str:
    time = microseconds(found, rows)
    text = figure(None if time is None else time / int(rows))
    if rows == "1" and time is not None:
        text += f" / {figure(microseconds(found, rows, 'p99'))}"
    return f"**{text}**" if bold else text


def figure(value: float | None) -> str:
    """A number with three significant digits."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def times(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}×"


def _reason(found: dict[str, Any]) -> str:
    if found["status"] == "failed":
        return str(found["reason"])
    wrong, largest = found["answers"]["rows_wrong"], found["answers"]["largest_difference"]
    return f"wrong answers, not timed: {wrong:.1%} of the rows differ by more than 1e-3, by {largest:.2g} at most"


def pairs(results: dict[str, Any], first: str, source: str = "scikit-learn") -> str:
    """A table of the source and hbc: µs a row of both for each size of batch, and their ratio; `first` is the head of the first column."""
    batches = results["settings"]["batches"]
    heads = [f"{rows:,} row{'s' * (rows > 1)}: {source} | {MAIN} | ratio" for rows in reversed(batches)]
    lines = [f"| {first} | {' | '.join(heads)} | rows a second | answers |", "|" + "---|" * (3 + 3 * len(batches))]
    for name, workload in results["workloads"].items():
        cells = []
        for rows in reversed(batches):
            theirs, ours = (microseconds(workload["engines"][engine], rows) for engine in (SOURCE, MAIN))
            assert theirs is not None
            assert ours is not None
            cells += [figure(theirs / rows), figure(ours / rows), times(theirs / ours)]
        most = microseconds(workload["engines"][MAIN], max(batches))
        cells += [f"{1e6 * max(batches) / (most or math.nan):,.0f}", workload["engines"][MAIN]["status"]]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)
