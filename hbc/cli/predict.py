"""The command `hbc predict`: the results of a saved model for a small file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import hbc
from hbc.cli import data
from hbc.cli.models import methods_of, require_folder, require_new, require_saved
from hbc.cli.terminal import Backend, Clock, Device, Quiet, progress
from hbc.errors import counted


def predict(
    model: Annotated[Path, typer.Argument(help="A model saved by `hbc convert` or CompiledModel.save.")],
    path: Annotated[
        Path,
        typer.Argument(
            metavar="DATA", help="The rows: .csv, .parquet or .npy, or - for standard input. They must fit into memory."
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="The file to write: .csv, .parquet or .npy. By default, or for -, CSV to standard output."
        ),
    ] = None,
    methods: Annotated[
        str | None, typer.Option(help="The methods, with commas between them. By default predict, or the model's first.")
    ] = None,
    backend: Backend = None,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Write what a saved model computes for each row of a file.

    A method with one number or label for a row is a column of its name; one with several has columns such as predict_proba_CLASS, or
    transform_0. A frame may have more columns than the model takes, such as the target.

    Examples: `hbc predict model.hbc test.parquet -o out.parquet --methods predict,predict_proba`, and
    `head -100 test.csv | hbc predict model.hbc - > out.csv`
    """
    require_saved(model)
    if output == data.PIPE:
        output = None
    if output is not None:
        data.require_suffix(output)
        require_folder(output)
        for given in (model, path):
            require_new(output, given, set(), "another file than the model and the data")
    clock = Clock()
    with progress(f"reading {data.name_of(path)}", quiet) as tell:
        rows = data.read(path)
        tell(f"loading {model.name}")
        loaded = hbc.load(model, device, backend)
        usual = "predict" if "predict" in loaded.methods else loaded.methods[0]
        asked = methods_of(loaded, methods, [usual])
        rows = data.suited(path, rows, loaded)
        tell(f"computing {counted(len(rows), 'row')}")
        columns: dict[str, Any] = {}
        for method in asked:
            columns |= _columns(method, getattr(loaded, method)(rows), loaded.schema.outputs[method])
        if output is not None:
            data.write(output, columns)
    if output is None:
        typer.echo(data.csv_of(columns), nl=False)
    elif not quiet:
        typer.echo(f"{output}: {counted(len(rows), 'row')}, {', '.join(_shortened(list(columns)))}, {clock.seconds:.1f} s")


def _columns(method: str, result: Any, said: Any) -> dict[str, Any]:
    """Column name → values, of the result of a method, with the names that Arrow has. said: what the model's schema says of it. Raises
    ValueError for a result of more than two dimensions."""
    if hasattr(result, "columns"):
        return {str(name): result[name].to_numpy() for name in result.columns}
    if isinstance(result, list):
        own = said.classes if said.classes and isinstance(said.classes[0], tuple) else [None] * len(result)
        parts = (_named(f"{method}_{i}", each, names) for i, (each, names) in enumerate(zip(result, own, strict=True)))
        return {name: values for part in parts for name, values in part.items()}
    return _named(method, result, said.names)


def _named(method: str, result: Any, names: Sequence[Any] | None) -> dict[str, Any]:
    """The same for an array. names: of its columns, None for numbers."""
    values = np.asarray(result.toarray() if hasattr(result, "toarray") else result)
    if values.ndim == 1:
        return {method: values}
    if values.ndim != 2:
        raise ValueError(
            f"--methods: found {method}, whose result has {values.ndim} dimensions, expected one with rows and columns"
        )
    labels = range(values.shape[1]) if names is None else names
    return {f"{method}_{label}": values[:, i] for i, label in enumerate(labels)}


def _shortened(names: list[str]) -> list[str]:
    return names if len(names) <= 6 else [*names[:3], f"… {len(names) - 4} more …", names[-1]]
