"""The figures in the words of the README and the docs, from results: the text between two marks of a page. `python -m benchmarks
render` writes it, and tests/test_benchmarks.py fails if a page says something else."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks import commands, figures, files, losses, pages, report, scoring
from benchmarks.figures import PROCESSORS, ROOT, read, two_digits
from benchmarks.report import MAIN, microseconds
from benchmarks.strategies import WITHIN, Array, current, judged_together, measured_of, ratios
from hbc.compiler.costs import WITHOUT_AVX512

DOCS = ROOT / "docs"


def speed() -> str:
    """What the README says beside its chart."""
    return figures.summary(read("trees", figures.NAMES), read("cold_start"))


def strategies() -> str:
    """How often the cost model chooses well."""
    paths = sorted(report.RESULTS.glob("*/strategies.json.gz"))
    found = {path.parent.name: measured_of(current(report.read(path))) for path in paths}
    lines = [
        "| backend | measured on | points | share at which the choice is within 10 % of the fastest strategy | the best single strategy |",
        "|---|---|---|---|---|",
    ]
    for backend in ("tvm", WITHOUT_AVX512, "torch", "torchscript", "onnx"):
        measured = {name: points[backend] for name, points in found.items() if backend in points}
        for name, choices in judged_together(backend, measured).items():
            points = measured[name]
            names = sorted({strategy for point in points for strategy in point.seconds})
            single = max((_well(ratios(points, [each] * len(points))), each) for each in names)
            cells = (backend, PROCESSORS.get(name, name), f"{len(points):,}", f"{_well(choices):.0f} %")
            lines.append(f"| {' | '.join(cells)} | {single[0]:.0f} % (`{single[1]}`) |")
    return "\n".join(lines) + "\n"


def _well(ratios: Array) -> float:
    """The percentage of choices that are within 10 % of the best."""
    return 100 * float((ratios <= WITHIN).mean())


LEAVES = (64, 256, 1024)
"""The most leaves of a tree in each line of `scan_or_walk`."""
ROWS = (1, 10, 100, 1000)


def scan_or_walk() -> str:
    """How many times as long as a scan a walk takes, by the leaves of a tree and the rows of a call."""
    found = read("strategies", ["tvm", "torch"])  # of a whole run
    heads = " | ".join(f"{rows:,} row{'s' if rows > 1 else ''}" for rows in ROWS)
    lines = [
        f"The time of a walk over that of a scan: the median over random models of at least 100 trees "
        f"({PROCESSORS.get(found['on'], found['on'])}, one thread).\n",
        f"| leaves of a tree | models | {heads} |",
        "|---|---|" + "---|" * len(ROWS),
    ]
    for fewest, most in itertools.pairwise((0, *LEAVES)):
        times = [
            each["microseconds"]
            for each in found["workloads"]["tvm"]["measured"]
            if fewest < each["model"]["leaves"] <= most
            and each["model"]["trees"] >= 100
            and "scan" in each["microseconds"]["1"]
        ]
        lines.append(
            f"| {fewest + 1:,} to {most:,} | {len(times)} | {' | '.join(_walk_over_scan(times, rows) for rows in ROWS)} |"
        )
    return "\n".join(lines) + "\n"


def _walk_over_scan(times: list[dict[str, dict[str, float]]], rows: int) -> str:
    """The median over the models. A strategy is no longer measured where it has taken over three times as long as another."""
    ratios = []
    for each in times:
        walk, scan = (each[str(rows)].get(strategy) for strategy in ("walk", "scan"))
        ratios.append(walk / scan if walk and scan else math.inf if scan else 0.0)
    middle = statistics.median_low(ratios)
    return "over 3" if middle == math.inf else two_digits(middle)


def tune() -> str:
    """What `hbc tune` gains."""
    points = [point for point in read("tune")["points"] if point["exact"]]
    ratios = [(point["times_us"]["tuned"] / point["times_us"]["auto"], point["told"]) for point in points]
    slowest, best = max(ratios)[0], min(ratio for ratio, told in ratios if told)
    return (
        f"* At {len(points)} points that were measured, the tuned choice takes at most {two_digits(100 * (slowest - 1))} % longer than "
        f'`"auto"`. Told the rows of a call, it is up to {two_digits(1 / best)} times as fast.\n'
    )


TWO_THREADS = ("threads: 1", "threads: 2")
"""The points of the scaling curve of threads that `threads` compares."""


def threads() -> str:
    """What a second thread gains."""
    found = read("scaling", TWO_THREADS)
    one, two = (microseconds(found["workloads"][name]["engines"][MAIN], figures.MANY) for name in TWO_THREADS)
    assert one is not None
    assert two is not None
    model = "a LightGBM classifier of 500 trees with 31 leaves"
    return (
        f"Two threads score {model} {two_digits(one / two)} times as fast as one, in calls of {figures.MANY:,} rows "
        f"({PROCESSORS.get(found['on'], found['on'])}).\n"
    )


def start() -> str:
    """How long a process takes to its first answer."""
    found = read("cold_start")

    def middle(workload: str, engine: str) -> str:
        return f"{statistics.median(found['workloads'][workload][engine]):.2f}"

    trees, large, frame = "lightgbm-500x31", "lightgbm-500x255", "titanic, a frame"
    lines = [
        "| seconds of the processor, whole process | code in the cache | nothing in the cache | ONNX Runtime | its own library |",
        "|---|---|---|---|---|",
    ]
    for name, workload in (("LightGBM, 500 trees of 31 leaves", trees), ("LightGBM, 500 trees of 255 leaves", large)):
        cells = [middle(workload, engine) for engine in ("hbc, cache", "hbc, empty", "ONNX Runtime", "LightGBM")]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    cells = [middle(frame, "hbc, cache"), middle(frame, "hbc, empty"), "–", middle(frame, "scikit-learn")]
    lines.append(
        f"| a pipeline on a frame of pandas (which takes {middle(frame, 'pandas alone')} alone) | {' | '.join(cells)} |"
    )
    return "\n".join(lines) + "\n"


def first_call() -> str:
    """How long compiling takes."""
    found = read("cold_start")
    seconds = []
    for workload in ("titanic, a frame", "lightgbm-500x31"):
        empty, kept = (statistics.median(found["workloads"][workload][how]) for how in ("hbc, empty", "hbc, cache"))
        seconds.append(two_digits(empty - kept))
    return (
        f"The first call of a method compiles it. That takes {seconds[0]} s for a small pipeline on a frame, and {seconds[1]} s for 500 "
        f"trees of 31 leaves ({_name(found)}). The code is kept on disk: the next process does not compile again, and a model of the "
        "same kind may use it too.\n"
    )


def records() -> str:
    """How long one row takes as a record, and otherwise."""
    found = read("records", ["mixed"])

    def time(engine: str) -> str:
        return report.figure(microseconds(found["workloads"]["mixed"]["engines"][engine], 1))

    return (
        f"A record of 20 numbers and 10 strings takes {time('hbc: record')} µs, with LightGBM of 500 trees behind encoders. The compiled "
        f"model's own method takes {time('hbc: frame of pandas')} µs for that row as a frame of pandas, and the source's "
        f"{time(report.SOURCE)} µs ({_name(found)}).\n"
    )


SERVERS = ("FastAPI + native library", "FastAPI + ONNX Runtime", "MLServer", "BentoML", "Ray Serve")
"""What `serving` compares with."""


def serving() -> str:
    """How many requests `hbc serve` and other servers answer."""
    found = read("serving", ["row", "mixed"])
    lines = [
        f"Requests a second at full load, each with one row, on one core ({_name(found)}):\n",
        "| | 20 numbers | 20 numbers and 10 strings |",
        "|---|---|---|",
    ]
    rows, mixed = (found["workloads"][name]["servers"] for name in ("row", "mixed"))
    for name, (first, second) in {
        "hbc serve": ("hbc serve, rows", "hbc serve, records"),
        **{each: (each, each) for each in SERVERS},
    }.items():
        lines.append(f"| {name} | {_requests(rows[first])} | {_requests(mixed[second])} |")
    return "\n".join(lines) + "\n"


def _requests(server: dict[str, Any]) -> str:
    return f"{statistics.median(each['requests_per_second'] for each in server['rounds']):,.0f}"


def score() -> str:
    """How long `hbc score` takes, beside pyarrow alone and other engines."""
    results = read("scoring", ["grouped", "part"])
    whole, part = results["workloads"]["grouped"], results["workloads"]["part"]
    seconds, mib = (scoring.median(whole, scoring.SCORE, figure) for figure in ("seconds", "mib"))
    others = [
        f"{two_digits((scoring.speed(whole, scoring.SCORE) or 0) / rate)} times those of {name}"
        for engine, name in scoring.PEERS.items()
        if (rate := scoring.speed(part, engine))
    ]
    return (
        f"{whole['rows']:,} rows of 30 columns, 10 of them strings, in {whole['files']} files of Parquet take {seconds:.1f} s with "
        f"LightGBM behind scalers and encoders, and {mib:.0f} MiB, on {results['settings']['threads']} cores ({_name(results)}). To read "
        f"the files and write as many numbers takes pyarrow {scoring.median(whole, scoring.ALONE, 'seconds'):.1f} s. The rows a second "
        f"are {', '.join(others)}, of {part['rows']:,} such rows ([Benchmarks](benchmarks.md#scoring-files)).\n"
    )


def memory() -> str:
    """What a worker of `hbc serve` takes."""
    found = read("serving", ["row"])
    servers = found["workloads"]["row"]["servers"]
    memory = statistics.median(each["memory_mib"] for each in servers["hbc serve, v2 JSON"]["rounds"])
    return f"For 500 trees of 31 leaves, a server of one worker has {memory:.0f} MiB ({_name(found)}).\n"


def shown(start: str) -> str:
    """What a command of docs/command-line.md prints, indented."""
    printed = next(each["printed"] for name, each in read("commands")["workloads"].items() if name.startswith(start))
    return "\n" + "".join(f"    {line}".rstrip() + "\n" for line in printed.splitlines()) + "\n"


def _name(results: dict[str, Any]) -> str:
    return PROCESSORS.get(results["on"], str(results["on"]))


def folder() -> str:
    """What the smallest folder that serves takes."""
    parts = read("files", [files.FOLDER])["workloads"][files.FOLDER]
    numpy = parts["numpy"] + parts["numpy.libs"]
    return (
        f"The folder takes {_mb(sum(parts.values()))}: numpy with OpenBLAS {_mb(numpy)}, hbc with TVM's runtime library "
        f"{_mb(parts['hbc'])}, `tvm_ffi` {_mb(parts['tvm_ffi'])}.\n"
    )


def saved() -> str:
    """What saved models take."""
    found = read("files", files.MODELS)["workloads"]
    lines = ["| LightGBM, 28 features, three dtypes | bytes | write, CPU ms | read whole, CPU ms |", "|---|---|---|---|"]
    for name in files.MODELS:
        for how, each in found[name]["saved"].items():
            times = [f"{each[key]:.0f}" for key in ("write_ms", "read_ms")]
            lines.append(
                f"| {figures.NAMES[name].removeprefix('LightGBM, ')}: `{how}` | {each['bytes']:,} | {' | '.join(times)} |"
            )
    return "\n".join(lines) + "\n"


def code() -> str:
    """What compiled code in a saved model takes."""
    levels = read("files", files.MODELS)["workloads"][files.MODELS[0]]["code"]
    words = [f"{each['bytes'] / 1e6:.1f} MB and {each['seconds']:.0f} s of CPU for {level}" for level, each in levels.items()]
    return f"For LightGBM of 500 trees × 31 leaves it takes {', '.join(words)}.\n"


def library() -> str:
    """What C libraries take."""
    sizes = read("files", files.MODELS)["workloads"][files.MODELS[0]]["libraries"]
    lines = [f"| {figures.NAMES[files.MODELS[0]]}, 28 columns, x86-64-v3 | size |", "|---|---|"]
    return "\n".join([*lines, *(f"| {how} | {size / 1e3:.0f} KB |" for how, size in sizes.items())]) + "\n"


def _mb(size: int) -> str:
    return f"{size / 1e6:.0f} MB"


TEXTS: dict[tuple[str, str], Callable[[], str]] = {
    ("README.md", "speed"): speed,
    ("docs/backends.md", "strategies"): strategies,
    ("docs/tree-kernels.md", "scan-or-walk"): scan_or_walk,
    ("docs/backends.md", "tune"): tune,
    ("docs/backends.md", "threads"): threads,
    ("docs/cold-start.md", "start"): start,
    ("docs/quick-start.md", "first-call"): first_call,
    ("docs/records.md", "records"): records,
    ("docs/serving.md", "serving"): serving,
    ("docs/serving.md", "memory"): memory,
    ("docs/scoring.md", "score"): score,
    **{("docs/command-line.md", start): partial(shown, start) for start in commands.SHOWN},
    ("docs/cold-start.md", "folder"): folder,
    ("docs/artefacts.md", "saved"): saved,
    ("docs/artefacts.md", "code"): code,
    ("docs/exporting.md", "library"): library,
    ("docs/optimizer.md", "optimizer"): partial(pages.section, "optimizer"),
    ("docs/benchmarks.md", "losses"): losses.section,
    **{("docs/benchmarks.md", name): partial(pages.section, name) for name in pages.SECTIONS},
}
"""(page, name of the text) → the function that writes it."""


def marks(name: str) -> tuple[str, str]:
    return f"<!-- {name}: generated by `python -m benchmarks render` -->\n", f"<!-- end {name} -->"


def written(page: str, name: str) -> str:
    """The text that a page has now."""
    start, end = marks(name)
    return (ROOT / page).read_text().partition(start)[2].partition(end)[0]


def write() -> None:
    """Write all texts."""
    for (page, name), text in TEXTS.items():
        start, end = marks(name)
        before, found, rest = (ROOT / page).read_text().partition(start)
        if not found:
            raise ValueError(f"{page}: the mark {start.strip()} is missing")
        (ROOT / page).write_text(before + start + text() + end + rest.partition(end)[2])
