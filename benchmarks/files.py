"""Sizes of what hbc writes: saved models, compiled code in them, C libraries, and the folder that serves them; and the processor
time that saved models take to write and to read."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import hbc
from benchmarks import report, trees
from benchmarks.session import Run
from hbc.builder import read
from hbc.compiler.tvm.run.folder import make_folder

LEVELS = ("x86-64-v3", "aarch64")
MODELS = ("lightgbm-500x31", "lightgbm-500x255")
FOLDER = "serving folder"
LEGEND = (
    "Bytes are exact. Times are the least of several rounds, in milliseconds of the processor. *read whole*: the file and all of its "
    "graphs. Compiled code: all methods, for all dtypes of a matrix."
)


def least(call: Callable[[], object], rounds: int) -> float:
    """The least processor time of a call in milliseconds."""
    times = []
    for _ in range(rounds):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return min(times) * 1e3


def read_whole(path: Path) -> None:
    for graph in read(path, str(path)).graphs.values():
        graph.graph  # noqa: B018


def saved(model: Any, folder: Path, rounds: int) -> dict[str, Any]:
    """How a model is saved → bytes, and milliseconds to write and to read."""
    path = folder / "model.hbc"

    def measured(compress: bool) -> dict[str, float]:
        write = least(lambda: model.save(path, compress=compress), rounds)
        return {"bytes": path.stat().st_size, "write_ms": write, "read_ms": least(lambda: read_whole(path), rounds)}

    return {"save(path)": measured(False), "save(path, compress=True)": measured(True)}


def code(model: Any, folder: Path, levels: Sequence[str]) -> dict[str, Any]:
    """Level of processors → bytes that its code adds to a saved model, and seconds of the processor to compile it."""
    found: dict[str, Any] = {}
    model.save(folder / "code.hbc")
    size = (folder / "code.hbc").stat().st_size
    for level in levels:
        start = time.process_time()
        model.save(folder / "code.hbc", code=level)
        seconds = time.process_time() - start
        found[level] = {"bytes": (folder / "code.hbc").stat().st_size - size, "seconds": seconds}
    return found


def libraries(source: Any, folder: Path, quick: bool) -> dict[str, int]:
    """What is asked of a C library → its bytes. quick: of one method only."""
    model, walked = hbc.convert(source), hbc.convert(source, strategy="walk")
    asked: dict[str, tuple[Any, dict[str, Any]]] = {
        "`predict_proba`": (model, {"methods": ["predict_proba"]}),
        "all methods": (model, {}),
        '`predict_proba`, `dtype="float64"`': (model, {"methods": ["predict_proba"], "dtype": "float64"}),
        '`predict_proba`, `strategy="walk"`': (walked, {"methods": ["predict_proba"]}),
    }
    if quick:
        del asked["all methods"]
    found = {}
    for name, (each, options) in asked.items():
        each.export(folder / "model.so", **options)
        found[name] = (folder / "model.so").stat().st_size
    return found


def serving(folder: Path) -> dict[str, Any]:
    """Part of the folder that `hbc runtime` makes → its bytes, the largest first."""
    make_folder(folder)
    parts = {
        part.name: sum(file.stat().st_size for file in ([part] if part.is_file() else part.rglob("*")) if file.is_file())
        for part in folder.iterdir()
    }
    return dict(sorted(parts.items(), key=lambda part: -part[1]))


def markdown(results: dict[str, Any]) -> str:
    lines = [report.heading(results, "Files", LEGEND), ""]
    for name, found in results["workloads"].items():
        if name == FOLDER:
            lines += ["| `hbc runtime FOLDER` | MB |", "|---|---|"]
            lines += [f"| {part} | {size / 1e6:.1f} |" for part, size in found.items()]
            lines += [f"| **all** | **{sum(found.values()) / 1e6:.1f}** |", ""]
            continue
        lines += [f"**{name}**", "", "| | bytes | write, ms | read whole, ms |", "|---|---|---|---|"]
        lines += [
            f"| `{how}` | {each['bytes']:,} | {each['write_ms']:.0f} | {each['read_ms']:.0f} |"
            for how, each in found["saved"].items()
        ]
        if "code" in found:
            lines += ["", "| compiled code | bytes more | seconds of the processor |", "|---|---|---|"]
            lines += [f"| {level} | {each['bytes']:,} | {each['seconds']:.0f} |" for level, each in found["code"].items()]
        if "libraries" in found:
            lines += ["", "| C library | bytes |", "|---|---|"]
            lines += [f"| {how} | {size:,} |" for how, size in found["libraries"].items()]
        lines.append("")
    return "\n".join(lines)


OPTIONS: dict[str, dict[str, Any]] = {}


def run(run: Run) -> None:
    size = trees.QUICK if run.quick else trees.FULL
    rounds, levels = run.given("rounds", 7, 1), LEVELS[1:] if run.quick else LEVELS
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for each in run.steps(run.asked([FOLDER, *MODELS])):
            if each == FOLDER:
                run.results["workloads"][each] = serving(folder / "serving")
                continue
            source = trees.prepare(trees.BY_NAME[each], size).model
            model = hbc.convert(source)
            run.results["workloads"][each] = {"saved": saved(model, folder, rounds)}
            if each == MODELS[0]:
                made = {"code": code(model, folder, levels), "libraries": libraries(source, folder, run.quick)}
                run.results["workloads"][each] |= made
