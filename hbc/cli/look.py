"""The commands that tell what a model is: `hbc explain` and `hbc info`."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from hbc.cli.models import compiled_of, conversion, require_file
from hbc.cli.terminal import Backend, Quiet, Trust, print_json, progress
from hbc.errors import ArtifactError
from hbc.parser.files import READERS


def explain(
    model: Annotated[
        Path, typer.Argument(help="A model saved by `hbc convert`, or a model to convert (a pickle only with --trust).")
    ],
    backend: Backend = None,
    html: Annotated[bool, typer.Option("--html", help="As an HTML document that draws both graphs.")] = False,
    trust: Trust = False,
    quiet: Quiet = False,
) -> None:
    """Print a report on a compiled model.

    It has the model's input, the passes that changed something, the functions that a call starts, the strategy of every tree ensemble,
    and the operators before and after the passes.

    Examples: `hbc explain model.hbc`, and `hbc explain model.txt --backend onnx --html > report.html`
    """
    with progress(f"compiling {model.name}", quiet):
        said = compiled_of(model, trust, backend).explain(html)
    typer.echo(said if html else fitted(said), nl=False)


def fitted(text: str) -> str:
    """The text with lines no longer than the terminal is wide: what is broken goes on, indented, in the next line. If standard output is
    no terminal, the text itself, so that programs find each fact in one line."""
    if not sys.stdout.isatty():
        return text
    width, lines = shutil.get_terminal_size().columns, []
    for line in text.splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        broken = textwrap.wrap(line, width, subsequent_indent=f"{indent}    ", break_long_words=False, break_on_hyphens=False)
        lines += broken or [""]
    return "".join(f"{line}\n" for line in lines)


def info(
    model: Annotated[Path, typer.Argument(help="A model saved by `hbc convert` or CompiledModel.save.")],
    as_json: Annotated[bool, typer.Option("--json", help="The whole manifest, as JSON.")] = False,
) -> None:
    """Print what a saved model is, without loading it.

    That is its source, methods and dtypes, versions, the time of its conversion, your notes, and a digest of the whole.

    Example: `hbc info model.hbc`
    """
    from hbc.api import manifest

    require_file(model, "a model saved by hbc")
    if model.suffix.lower() in READERS:
        raise ArtifactError(
            path=str(model),
            found="a file of another library",
            expected="a model saved by hbc",
            advice=f"First: {conversion(model, f'{model.stem}.hbc')}",
        )
    found = manifest(model)
    if as_json:
        print_json(found)
        return
    sizes = [size for size, _ in found["members"].values()]
    variants = found["variants"] if found["version"] > 1 else []
    kinds = (", ".join(f"{count} x {kind}" for count, kind in variant["kinds"]) for variant in variants)
    facts = {
        "format": found["version"],
        "source": found["source"],
        "methods": ", ".join(found.get("methods", ())),
        "libraries": ", ".join(f"{name} {version}" for name, version in found.get("libraries", {}).items()),
        "hbc": found.get("hbc"),
        "created": found.get("created"),
        "inputs": "; ".join(kinds),
        "compiled code": ", ".join(
            f"{level} ({_bytes_of(found, members):,} bytes)" for level, members in found.get("code", {}).items()
        ),
        "settings": ", ".join(f"{name} {value}" for name, value in found["settings"].items() if value is not None),
        "size": f"{model.stat().st_size:,} bytes, {sum(sizes):,} unpacked, {len(sizes)} members",
        "digest": found["digest"],
        **{f"metadata {name}": json.dumps(value) for name, value in found.get("metadata", {}).items()},
    }
    for name, value in facts.items():
        if value:
            typer.echo(f"{name}: {value}")


def _bytes_of(manifest: Mapping[str, Any], members: Iterable[str]) -> int:
    """The bytes that some members of a saved model take when they are unpacked. One that is missing takes none."""
    sizes: Mapping[str, tuple[int, int]] = manifest["members"]
    return sum(sizes[name][0] for name in members if name in sizes)
