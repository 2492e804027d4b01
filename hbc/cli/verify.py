"""The command `hbc verify`: the source model beside the compiled one, on the user's data."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer

import hbc
from hbc.cli import data
from hbc.cli.comparison import Comparison, compare
from hbc.cli.models import methods_of, require_folder, require_saved, require_source, source_of
from hbc.cli.terminal import AsJson, Backend, Device, Quiet, Trust, print_json, progress
from hbc.errors import ArtifactError, counted
from hbc.ir.store import write_atomically


def verify(
    model: Annotated[Path, typer.Argument(help="The fitted model, as for `hbc convert` (a pickle only with --trust).")],
    compiled: Annotated[Path, typer.Argument(help="The model that `hbc convert` made of it: a .hbc file.")],
    path: Annotated[
        Path, typer.Argument(metavar="DATA", help="Rows to compare on: .csv, .parquet or .npy, or - for standard input.")
    ],
    methods: Annotated[
        str | None, typer.Option(help="The methods to compare, with commas between them. By default all.")
    ] = None,
    rtol: Annotated[
        float, typer.Option(min=0.0, help="Numbers a (source) and b agree if |a - b| <= atol + rtol * |a|.")
    ] = 1e-5,
    atol: Annotated[float, typer.Option(min=0.0, help="See --rtol.")] = 1e-6,
    report: Annotated[Path | None, typer.Option(help="Keep the result in a file: .json or .md.")] = None,
    backend: Backend = None,
    device: Device = None,
    trust: Trust = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Compare a fitted model with its compiled form on your data.

    For each method it prints the largest differences, how many labels change, and the time of both. The exit status is 1 if a method
    differs by more than the tolerance, or one label differs. The library that trained the model has to be installed.

    Example: `hbc verify model.joblib model.hbc test.parquet --trust --report verified.md`
    """
    if report is not None and report.suffix.lower() not in (".json", ".md"):
        raise ArtifactError(path=str(report), found=f"the suffix {report.suffix!r}", expected=".json or .md")
    if report is not None:
        require_folder(report)
    require_source(model)
    require_saved(compiled)
    with progress(f"reading {data.name_of(path)}", quiet) as tell:
        rows = data.read(path)
        tell(f"reading {model.name}")
        source = source_of(model, trust, also=())
        tell(f"loading {compiled.name}")
        loaded = hbc.load(compiled, device, backend)
        rows = data.suited(path, rows, loaded)
        found = []
        for method in methods_of(loaded, methods, loaded.methods):
            tell(f"comparing {method} on {counted(len(rows), 'row')}")
            found.append(_compared(source, loaded, method, rows, rtol, atol))
    facts = {
        "model": str(model),
        "compiled": str(compiled),
        "data": str(path),
        "rows": len(rows),
        "source": loaded.info.source,
        "backend": loaded.backend,
        "device": loaded.device,
        "hbc": hbc.__version__,
        "libraries": dict(loaded.info.libraries),
        "time": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "rtol": rtol,
        "atol": atol,
        "agrees": all(each.agrees for each in found),
    }
    if report is not None:
        text = _json(facts, found) if report.suffix.lower() == ".json" else _markdown(facts, found)
        write_atomically(report, lambda file: file.write(text.encode()))
    if as_json:
        print_json({**facts, "methods": [each._asdict() for each in found]})
    elif not quiet:
        for line in _lines(facts, found):
            typer.echo(line)
    if not facts["agrees"]:
        raise typer.Exit(1)


def _compared(source: Any, loaded: Any, method: str, rows: Any, rtol: float, atol: float) -> Comparison:
    from hbc.parser.source import source_call

    call = source_call(source, method)
    if call is None:
        raise ValueError(
            f"{method}: hbc verify does not know how to ask {type(source).__name__} for it. The compiled model was made of "
            f"{loaded.info.source}: if that is another model, name its file; otherwise name the other methods with --methods."
        )
    labels = method == "predict" and getattr(loaded, "classes_", None) is not None
    return compare(method, call, getattr(loaded, method), rows, rtol, atol, labels)


HEADINGS = ("method", "agrees", "largest absolute", "largest relative", "differ", "source", "compiled", "speed")


def _cells(each: Comparison) -> tuple[str, ...]:
    numbers = ("-", "-") if each.absolute is None or each.relative is None else (f"{each.absolute:.2g}", f"{each.relative:.2g}")
    times = [f"{1000 * seconds:,.3g} ms" for seconds in (each.source_seconds, each.compiled_seconds)]
    ratio = each.source_seconds / max(each.compiled_seconds, 1e-9)
    speed = f"{ratio:,.1f} times" if ratio >= 0.1 else f"{ratio:.1g} times"
    return (each.method, "yes" if each.agrees else "NO", *numbers, f"{each.beyond:,} of {each.values:,}", *times, speed)


def _lines(facts: dict[str, Any], found: list[Comparison]) -> list[str]:
    table = [HEADINGS, *map(_cells, found)]
    widths = [max(len(row[i]) for row in table) for i in range(len(HEADINGS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
    return [*lines, *(f"{each.method}: {_where(each)}" for each in found if not each.agrees), _summary(facts, found)]


def _where(each: Comparison) -> str:
    return each.note or f"the first difference beyond the tolerance is in row {each.first_row}"


def _summary(facts: dict[str, Any], found: list[Comparison]) -> str:
    n_wrong = sum(not each.agrees for each in found)
    agree = f"all {len(found)} methods agree" if len(found) > 1 else f"{found[0].method} agrees"
    result = agree if not n_wrong else f"{n_wrong} of {len(found)} methods DIFFER"
    return (
        f"{result} on {counted(facts['rows'], 'row')} (rtol {facts['rtol']:g}, atol {facts['atol']:g}; labels are equal or not)"
    )


def _json(facts: dict[str, Any], found: list[Comparison]) -> str:
    return json.dumps({**facts, "methods": [each._asdict() for each in found]}, indent=1) + "\n"


def _markdown(facts: dict[str, Any], found: list[Comparison]) -> str:
    table = [HEADINGS, ["---"] * len(HEADINGS), *map(_cells, found)]
    rows = "\n".join(f"| {' | '.join(row)} |" for row in table)
    wrong = "".join(f"\n- {each.method}: {_where(each)}" for each in found if not each.agrees)
    versions = ", ".join(f"{name} {version}" for name, version in facts["libraries"].items())
    about = "\n".join(f"- {name}: {value}" for name, value in {**facts, "libraries": versions}.items() if name != "agrees")
    return (
        f"# Comparison of {facts['model']} and {facts['compiled']}\n\n{_summary(facts, found)}.\n{wrong}\n{rows}\n\n{about}\n"
    )
