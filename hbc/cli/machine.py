"""The commands about this computer: `hbc cache` and `hbc runtime`."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Annotated, Any

import typer

import hbc
from hbc.cli.terminal import AsJson, print_json, size_of
from hbc.errors import counted, requires

cache = typer.Typer(no_args_is_help=True, help="Show or delete the compiled code that hbc keeps on disk.")


@cache.command("info")
def cache_info(as_json: AsJson = False) -> None:
    """Print where compiled code is kept, and how much of it there is."""
    kept = _store()
    if as_json:
        print_json(None if kept is None else {**kept.usage()._asdict(), "folder": str(kept.usage().folder)})
    elif kept is None:
        typer.echo("Nothing is kept: HBC_CACHE is empty, or other users may write to the folder.")
    else:
        usage = kept.usage()
        typer.echo(f"{usage.folder}: {counted(usage.files, 'file')}, {size_of(usage.bytes)} of at most {size_of(usage.limit)}")


@cache.command("clear")
def cache_clear() -> None:
    """Delete all compiled code. Models compile theirs anew. The choices of `hbc tune` stay."""
    kept = _store()
    if kept is None:
        typer.echo("Nothing is kept.")
        return
    usage = kept.clear()
    typer.echo(f"{usage.folder}: deleted {counted(usage.files, 'file')}, {size_of(usage.bytes)}")
    if left := kept.usage().files:
        typer.echo(f"{usage.folder}: {counted(left, 'file')} cannot be deleted, or were written meanwhile", err=True)
        raise typer.Exit(1)


def _store() -> Any:
    from hbc.cache.store import store

    return store()


def runtime(
    folder: Annotated[Path, typer.Argument(help="The folder to make. It must not exist, or be empty.")],
) -> None:
    """Make the smallest folder that runs saved models with compiled code.

    It has numpy, tvm_ffi, TVM's runtime library and hbc, as they are installed here. It is for servers and containers, on this kind of
    processor with this version of Python. With it in PYTHONPATH, Python needs neither TVM's compiler nor any other package for
    `hbc.load("model.hbc", trust_code=True)`.

    Example: `hbc runtime serving`, then `PYTHONPATH=serving python server.py`
    """
    with requires("tvm", kind="backend"):
        from hbc.compiler.tvm.run.folder import make_folder
    made = make_folder(folder)
    for name, version in made.versions.items():
        typer.echo(f"{name} {version}" + (" (its runtime library only)" if name == "apache-tvm" else ""))
    typer.echo(f"{folder}: {made.bytes / 1e6:,.1f} MB with hbc {hbc.__version__}, for Python {platform.python_version()}")
