"""The command line. Each file of this folder has the commands of one subject; docs/command-line.md shows them all."""

from __future__ import annotations

import sys
import warnings
from typing import Annotated, Any

import typer

import hbc
from hbc.cli.bench import bench
from hbc.cli.convert import convert, export
from hbc.cli.doctor import doctor
from hbc.cli.look import explain, info
from hbc.cli.machine import cache, runtime
from hbc.cli.predict import predict
from hbc.cli.score import score
from hbc.cli.serve import serve
from hbc.cli.terminal import warned
from hbc.cli.tune import tune
from hbc.cli.verify import verify
from hbc.errors import HbcError

app = typer.Typer(
    name="hbc",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Compile fitted scikit-learn, LightGBM, XGBoost, CatBoost and ONNX models: the same answers, many times as fast.",
)
for command in (convert, verify, predict, score, serve, export, explain, info, bench, tune, runtime, doctor):
    app.command()(command)
app.add_typer(cache, name="cache")


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"hbc {hbc.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Compile fitted scikit-learn, LightGBM, XGBoost, CatBoost and ONNX models: the same answers, many times as fast."""


def main(arguments: list[str] | None = None) -> Any:
    """Run the command line. An error that hbc raises becomes one message on stderr and exit status 1, without a traceback. A warning
    becomes one message on stderr."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, category, *where: warned(message)
        try:
            return app(arguments, prog_name="hbc", standalone_mode=True)
        except OSError as error:
            text = str(error) if error.filename is None else f"{error.filename}: {error.strerror}"
        except (HbcError, ValueError) as error:
            text = str(error)
    print(f"hbc: {text}", file=sys.stderr)
    sys.exit(1)
