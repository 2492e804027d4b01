"""`hbc export --triton`: the folder of a model for Triton's model repository."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

import hbc
from hbc.adapters import triton_folder
from hbc.cli.terminal import Clock, print_json, progress, quoted

ONNX_OPTIONS = {"methods", "dtype", "opset", "plain", "columns"}


def write_triton(model: Path, folder: Path, onnx: bool, options: dict[str, Any], as_json: bool, quiet: bool) -> None:
    """Write the folder, and say so. Raises ValueError for options that it does not take."""
    clock = Clock()
    runs = "ONNX Runtime" if onnx else "hbc"
    unfit = set(options) - (ONNX_OPTIONS if onnx else set())
    if unfit:
        flags = ", ".join(f"--{name}" for name in sorted(unfit))
        raise ValueError(f"--triton: found {flags}, which this folder does not take")
    with progress(f"reading {model.name}", quiet) as tell:
        if onnx:
            compiled = hbc.load(model, backend="onnx")
            tell(f"writing {folder}")
            triton_folder.write_onnx(folder, compiled, **options)
        else:
            triton_folder.write_python(folder, model)
    if as_json:
        print_json({"output": str(folder), "runs": runs, "seconds": clock.seconds})
    elif not quiet:
        typer.echo(f"{folder}: a model for Triton, run by {runs}, {clock.seconds:.1f} s")
        typer.echo(f"next: tritonserver --model-repository {quoted(folder.absolute().parent)}")
