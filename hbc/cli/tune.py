"""The command `hbc tune`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import hbc
from hbc.cli import data
from hbc.cli.models import is_saved, require_file, require_new, source_of
from hbc.cli.terminal import AsJson, Backend, Device, Quiet, Trust, print_json, progress, row_counts, size_of


def tune(
    model: Annotated[
        Path, typer.Argument(help="A model saved by `hbc convert`, or a model to convert (a pickle only with --trust).")
    ],
    rows: Annotated[str, typer.Option(help="Rows of the calls that matter, with commas between them.")] = "1,1000,100000",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Save the tuned model, to a file for hbc.load.")] = None,
    sample: Annotated[
        Path | None, typer.Option(help="Data to measure on: .csv, .parquet or .npy. By default random rows.")
    ] = None,
    backend: Backend = None,
    device: Device = None,
    trust: Trust = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Measure on this machine how a model's trees run fastest, and keep it for later.

    It measures the backend's strategies, without those that its cost model expects to be much slower; then numbers of threads, and sizes
    of blocks. Without --sample the rows are random, around the trees' thresholds. The choice is kept in $HBC_CACHE (by default `hbc` in
    $XDG_CACHE_HOME or ~/.cache). From then on `hbc convert`, `hbc.convert` and `hbc.load` use it on this machine for the same trees. Only
    the values of their leaves may differ.

    Example: `hbc tune model.txt --rows 1,1000,100000 -o model.hbc`
    """
    from hbc.compiler.base import EXPORTS
    from hbc.parser.files import READERS

    counts = row_counts(rows)
    require_file(model)
    if output is not None:
        require_new(output, model, {*EXPORTS, *READERS}, "a name for a saved model, such as model.hbc")
    with progress(f"reading {model.name}", quiet) as tell:
        X = None if sample is None else data.read(sample)
        if is_saved(model):
            found = hbc.tune(hbc.load(model, device, backend), counts, X, tell=tell)
        else:
            source = source_of(model, trust)
            found = hbc.tune(source, counts, X, backend=backend or "tvm", device=device or "cpu", tell=tell)
        if output is not None:
            found.model.save(output)
    if as_json:
        kept = None if found.path is None else str(found.path)
        saved = None if output is None else str(output)
        facts = {"rows": found.rows, "seconds": found.seconds, "left_out": found.left_out}
        print_json({"chosen": found.chosen, **facts, "kept": kept, "output": saved})
    elif not quiet:
        typer.echo(str(found))
        typer.echo(f"kept in {found.path}" if found.path else "not kept")
        if output is not None:
            typer.echo(f"{output}: {found.model!r}, {size_of(output.stat().st_size)}")
