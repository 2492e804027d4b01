"""The command `hbc score`: scores files of any size with a saved model."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import hbc
from hbc.cli.models import require_saved
from hbc.cli.terminal import AsJson, Backend, Clock, Device, Quiet, now_and_then, print_json, warned
from hbc.errors import counted, requires

if TYPE_CHECKING:
    from hbc.scoring.job import Progress

INTERRUPTED = 130
"""The exit status after Ctrl-C: 128 and the number of the signal, as shells have it."""


def score(
    model: Annotated[Path, typer.Argument(help="A model saved by `hbc convert` or CompiledModel.save.")],
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUT…", help="Files, folders, globs or URLs. -: a stream of Arrow on standard input.", show_default=False
        ),
    ],
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            help="The folder of the results; or a file, for one input. -: a stream of Arrow on standard output.",
            show_default=False,
        ),
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            help="What to compute, such as predict_proba,predict. By default predict, or transform.", show_default=False
        ),
    ] = None,
    keep: Annotated[str, typer.Option(help="Columns of the input to pass on, such as id,day.", show_default=False)] = "",
    dtype: Annotated[
        str | None, typer.Option(help="float32 or float64, for results that are no whole numbers.", show_default=False)
    ] = None,
    input_format: Annotated[
        str | None,
        typer.Option(help="parquet, feather, stream, csv or jsonl. By default by the suffix.", show_default=False),
    ] = None,
    output_format: Annotated[
        str | None, typer.Option(help="The same for the output. By default that of the input.", show_default=False)
    ] = None,
    compression: Annotated[
        str | None,
        typer.Option(help="Of the output, such as zstd, gzip or none. By default that of the format.", show_default=False),
    ] = None,
    separator: Annotated[
        str | None,
        typer.Option(help="What separates the values of CSV. By default a comma, a tab in .tsv.", show_default=False),
    ] = None,
    memory: Annotated[
        str, typer.Option(help="About the most that the process takes, such as 1GiB: more than 400MiB.")
    ] = "1GiB",
    workers: Annotated[
        int | None,
        typer.Option(
            help="Files that are scored at a time. By default one for every four processors, or as many as the engine has workers.",
            show_default=False,
            min=1,
        ),
    ] = None,
    bad_rows: Annotated[
        Path | None,
        typer.Option(
            help="A file for rows that cannot be scored, a line of JSON each; their results are null. By default one is an error.",
            show_default=False,
        ),
    ] = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="Remove what an earlier start has written, and begin anew.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the columns, compute the first 1,000 rows of each file, write nothing.")
    ] = False,
    engine: Annotated[
        str | None, typer.Option(help="ray, spark or dask: its workers score the files.", show_default=False)
    ] = None,
    engine_address: Annotated[
        str | None,
        typer.Option(
            help="Of the engine's cluster, such as ray://host:10001 or spark://host:7077. By default workers on this computer.",
            show_default=False,
        ),
    ] = None,
    backend: Backend = None,
    device: Device = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Score files of any size with a saved model, in bounded memory. A second start goes on where the first was stopped.

    Parquet, Feather (Arrow), CSV and JSON lines. Each input gives one output of the same name, whose rows have the same order. Needs the
    extra `score`. Exit status: 0 if all is scored, 1 after an error, 2 for an unknown option, 130 after Ctrl-C.

    Examples: `hbc score model.hbc sales/ -o scored/ --methods predict_proba --keep id`, and
    `hbc score model.hbc 's3://bucket/day=*/*.parquet' -o s3://bucket/scored`
    """
    require_saved(model)
    if output is None and not dry_run:
        raise typer.BadParameter("found none, expected a file or folder for the results, or --dry-run", param_hint="--output")
    if output == "-" and as_json:
        raise typer.BadParameter(
            "found it with the results on standard output too, expected one of the two", param_hint="--json"
        )
    clock = Clock()
    try:
        with requires("score"), _bar(quiet) as tell:
            done = hbc.score(
                model,
                inputs,
                output,
                methods=methods,
                keep=keep,
                dtype=dtype,
                input_format=input_format,
                output_format=output_format,
                compression=compression,
                separator=separator,
                memory=memory,
                workers=workers,
                bad_rows=bad_rows,
                restart=restart,
                dry_run=dry_run,
                engine=engine,
                engine_address=engine_address,
                backend=backend,
                device=device,
                progress=tell,
            )
    except KeyboardInterrupt:
        print("hbc: interrupted. Files that were finished stay: the same command goes on from there.", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    if done.left_out and not quiet:
        files = ", ".join(done.left_out[:5]) + (f" and {len(done.left_out) - 5} more" if len(done.left_out) > 5 else "")
        warned(f"left out, since the suffix names no format: {files}. --input-format names it for all files.")
    if as_json:
        print_json(done.json())
    elif not quiet:
        typer.echo(_told(done, clock.seconds, bad_rows, dry_run), err=output == "-")


def _told(done: Any, seconds: float, bad_rows: Path | None, dry_run: bool) -> str:
    """What was done, in one line."""
    bad = counted(done.bad_rows, "bad row")
    if dry_run:
        rows = f"{counted(done.rows, 'row')} of {counted(done.files, 'file')} can be scored; columns {', '.join(done.columns)}"
        return f"dry run: {rows}" + (f"; {bad}" if done.bad_rows else "")
    parts = [f"{done.output}: {counted(done.rows, 'row')}", counted(done.files, "file")]
    if done.files_before:
        parts.append(f"{done.files_before:,} finished by an earlier start")
    if done.bad_rows:
        parts.append(f"{bad} in {bad_rows}")
    return ", ".join([*parts, f"{seconds:.1f} s"])


@contextmanager
def _bar(quiet: bool) -> Iterator[Callable[[Progress], None] | None]:
    """A context with a function that shows on stderr how far it is. None: nothing is shown."""
    if quiet:
        yield None
        return
    clock = Clock()

    def far(now: Progress) -> tuple[str, str]:
        speed = now.rows / max(clock.seconds, 0.001)
        return f"{now.files:,} of {now.of:,} files", f"{counted(now.rows, 'row')}, {speed:,.0f} rows/s"

    if not sys.stderr.isatty():
        last = ["opening"]

        def keep(now: Progress) -> None:
            last[0] = ", ".join(far(now))

        with now_and_then(lambda: last[0]):
            yield keep
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.fields[files]}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[done]}", markup=False),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task("", total=1.0, files="opening", done="")

        def tell(now: Progress) -> None:
            files, done = far(now)
            total = None if now.share is None else 1.0
            shown.update(task, total=total, completed=now.share or 0.0, files=files, done=done)

        yield tell
