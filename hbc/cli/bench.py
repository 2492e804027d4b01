"""The command `hbc bench`: a model in its own library, in ONNX Runtime and on hbc's backends, side by side on the user's data."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

import hbc
from hbc.cli import data
from hbc.cli.comparison import Comparison, compare
from hbc.cli.models import require_source, source_of
from hbc.cli.terminal import AsJson, Device, Quiet, Trust, names_in, print_json, progress, row_counts
from hbc.compiler.base import backend_name, load_compiler
from hbc.errors import HbcError, InvalidInputError, counted

SOURCE, ONNX = "source", "onnxruntime"
METHODS = ("predict_proba", "predict", "transform")


def bench(
    model: Annotated[Path, typer.Argument(help="The fitted model, as for `hbc convert` (a pickle only with --trust).")],
    path: Annotated[Path, typer.Argument(metavar="DATA", help="Rows to measure on: .csv, .parquet or .npy.")],
    rows: Annotated[str, typer.Option(help="Rows of the calls, with commas between them.")] = "1,10000",
    method: Annotated[
        str | None, typer.Option(help="The method to call. By default predict_proba, predict or transform.")
    ] = None,
    backends: Annotated[
        str | None, typer.Option(help="hbc's backends, with commas between them. By default all that work here.")
    ] = None,
    device: Device = None,
    trust: Trust = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Measure how fast a model is on this machine: in its own library, in ONNX Runtime, and on each of hbc's backends.

    All answers are compared with the source library's first; then the engines take turns, with one thread each as far as they can be told.
    Times are the least of many calls. Data with fewer rows than a call are repeated: then engines whose code branches look faster than
    they are. The exit status is 1 if a backend of hbc answers differently; such a backend is not timed. With --device cuda, hbc's backends
    run on the GPU, and the others on the CPU.

    Example: `hbc bench model.joblib test.parquet --trust --rows 1,100,10000`
    """
    counts = row_counts(rows)
    require_source(model)
    with progress(f"reading {path.name}", quiet) as tell:
        table = data.read(path)
        tell(f"reading {model.name}")
        source = _with_one_thread(source_of(model, trust, also=()))
        chosen = [name for name, available in hbc.backends().items() if available] if backends is None else _asked(backends)
        first = hbc.convert(source, chosen[0], device=device or "cpu", threads=_threads(chosen[0]))
        table = data.suited(path, table, first)
        name = method or next((each for each in METHODS if each in first.methods), first.methods[0])
        if name not in first.methods:
            raise ValueError(f"--method: found {name!r}, expected one of {', '.join(first.methods)}")
        engines = _engines(source, table, name, chosen, first.device, tell)
        found = _checked(engines, table, name, getattr(first, "classes_", None) is not None, tell)
        times = _raced({each: engines[each].call for each in found if found[each].timed}, table, counts, tell)
    facts = {
        "model": str(model),
        "data": str(path),
        "rows": len(table),
        "method": name,
        "device": first.device,
        "hbc": hbc.__version__,
    }
    report = {each: _facts(engines[each], found.get(each), times.get(each)) for each in engines}
    if as_json:
        print_json({**facts, "engines": report})
    elif not quiet:
        for line in _lines(report, counts, facts):
            typer.echo(line)
    if any(each.wrong for engine, each in found.items() if engine.startswith("hbc:")):
        raise typer.Exit(1)


def _asked(backends: str) -> list[str]:
    """The canonical names of the backends that the user wants. Raises ValueError for an unknown one, BackendUnavailableError for one that
    does not work here."""
    names = [backend_name(name) for name in names_in("--backends", backends)]
    for name in names:
        load_compiler(name)
    return names


class Engine:
    """A call of X with the seconds that it took to convert; or the reason why there is none."""

    def __init__(self, make: Callable[[], Callable[[Any], Any] | None], X: Any) -> None:
        self.reason, self.call = "", None
        started = time.perf_counter()
        try:
            self.call = make()
            if self.call is None:
                self.reason = "it has no such method"
            else:
                self.call(X[:1])
        except Exception as error:  # whatever a converter raises for a model that it does not know
            self.reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            self.call = None
        self.seconds = time.perf_counter() - started


class Verdict:
    """How the answers of an engine compare with the source's."""

    def __init__(self, comparison: Comparison, ours: bool) -> None:
        self.wrong, self.largest = not comparison.agrees, comparison.absolute
        self.beyond, self.values = comparison.beyond, comparison.values
        self.timed = comparison.agrees or not ours

    def __str__(self) -> str:
        largest = "" if self.largest is None else f", by {self.largest:.1g} at most"
        return "yes" if not self.wrong else f"NO: {self.beyond:,} of {self.values:,} differ{largest}"


def _engines(
    source: Any, table: Any, method: str, backends: list[str], device: str, tell: Callable[[str], object]
) -> dict[str, Engine]:
    """Every engine, converted. Raises ValueError if the source has no such method, InvalidInputError if it rejects the data."""
    from hbc.parser.source import onnx_call, source_call

    made = {SOURCE: Engine(lambda: source_call(source, method), table)}
    if made[SOURCE].call is None:
        raise InvalidInputError(
            found=made[SOURCE].reason,
            expected=f"an answer of {type(source).__name__}.{method}",
            where="the first row of the data",
        )
    tell("converting for onnxruntime")
    made[ONNX] = Engine(lambda: onnx_call(source, table, method, threads=1), table)
    for backend in backends:
        tell(f"converting for hbc on {backend}")
        made[f"hbc:{backend}"] = Engine(functools.partial(_compiled_call, source, method, backend, device), table)
    return made


def _compiled_call(source: Any, method: str, backend: str, device: str) -> Callable[[Any], Any]:
    call: Callable[[Any], Any] = getattr(hbc.convert(source, backend, device=device, threads=_threads(backend)), method)
    return call


def _threads(backend: str) -> int | None:
    """The option `threads` of one thread. torch has a number for the whole process, which is the user's."""
    return None if backend.startswith("torch") else 1


def _with_one_thread(source: Any) -> Any:
    """The model, told to use one thread where it has such a parameter."""
    if hasattr(source, "get_params"):
        names = [name for name in source.get_params() if name.rpartition("__")[2] == "n_jobs"]
        return source.set_params(**dict.fromkeys(names, 1))
    return source


def _checked(
    engines: dict[str, Engine], table: Any, method: str, classes: bool, tell: Callable[[str], object]
) -> dict[str, Verdict]:
    """The verdict on each engine that has a call. An engine that fails on the whole data has a reason then."""
    reference, found = engines[SOURCE].call, {}
    assert reference is not None
    for name, engine in engines.items():
        if engine.call is None:
            continue
        tell(f"comparing {name} on {counted(len(table), 'row')}")
        try:
            comparison = compare(method, reference, engine.call, table, 1e-5, 1e-6, labels=classes and method == "predict")
        except HbcError as error:
            engine.reason = str(error)
            continue
        found[name] = Verdict(comparison, name.startswith("hbc:"))
    return found


def _raced(calls: dict[str, Any], table: Any, counts: list[int], tell: Callable[[str], object]) -> dict[str, dict[int, float]]:
    """Engine → rows of a call → seconds."""
    from hbc.tuning.race import batches_of, race

    times: dict[str, dict[int, float]] = {name: {} for name in calls}
    for count in counts:
        tell(f"measuring {count:,} row{'s' * (count != 1)} a call")
        for name, seconds in race(calls, batches_of(table, count), time.perf_counter).items():
            times[name][count] = seconds
    return times


def _facts(engine: Engine, verdict: Verdict | None, times: dict[int, float] | None) -> dict[str, Any]:
    if verdict is None:
        return {"reason": engine.reason}
    facts = {"agrees": not verdict.wrong, "answers": str(verdict), "largest_difference": verdict.largest}
    return {**facts, "convert_seconds": engine.seconds, "call_seconds": times}


def _lines(report: dict[str, dict[str, Any]], counts: list[int], facts: dict[str, Any]) -> list[str]:
    """The table: engines, whether they agree, µs a row and how many times as fast as the source they are."""
    heads = ["engine", "agrees", "converted in"]
    heads += [f"{count:,} row{'s' * (count != 1)}, {word}" for count in counts for word in ("µs a row", "times the source")]
    where = "" if facts["device"] == "cpu" else f", hbc on {facts['device']}"
    source, table, left_out = report[SOURCE]["call_seconds"], [heads], []
    for name, each in report.items():
        if "reason" in each:
            left_out.append(f"{name}: not measured: {each['reason']}")
            continue
        cells = [name, each["answers"], f"{each['convert_seconds']:.2f} s"]
        for count in counts:
            seconds = (each["call_seconds"] or {}).get(count)
            cells += ["-", "-"] if seconds is None else [f"{1e6 * seconds / count:,.3g}", f"{source[count] / seconds:,.3g}"]
        table.append(cells)
    widths = [max(len(row[i]) for row in table) for i in range(len(heads))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
    return [
        *lines,
        *left_out,
        f"{facts['method']} on {counted(facts['rows'], 'row')} of {facts['data']}{where}; times are the least of many calls",
    ]
