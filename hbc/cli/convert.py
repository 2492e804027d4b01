"""The commands that write models: `hbc convert` and `hbc export`."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

import hbc
from hbc.cache.levels import LEVELS
from hbc.cli import data
from hbc.cli.models import conversion, is_saved, require_file, require_folder, require_new, source_of
from hbc.cli.terminal import AsJson, Clock, Device, Quiet, Trust, backends, names_in, print_json, progress, quoted, size_of
from hbc.cli.triton import write_triton
from hbc.compiler.base import BACKENDS, EXPORTS, main_method, require_numbers
from hbc.errors import ArtifactError

WRITTEN = ".hbc, .onnx, .pt, .pt2, .so, .o or .a"
"""The suffixes of files that `hbc convert` writes, for messages."""
LIBRARIES = (".so", ".o", ".a")
"""The suffixes of C libraries."""
TARGET = """a target of TVM as JSON, such as '{"kind": "llvm", "mtriple": "aarch64-unknown-linux-gnu"}'"""

Methods = Annotated[
    str | None, typer.Option(help="The methods of an exported file, with commas between them. By default all that it can hold.")
]
Dtype = Annotated[
    str | None,
    typer.Option(
        help="The numbers that an exported file takes: float32, float64 or int64. By default that of the sample, or float32 without one."
    ),
]
Opset = Annotated[int | None, typer.Option(help="The version of ONNX's operators in an .onnx file: 16 to 26. By default 21.")]
Plain = Annotated[
    bool | None, typer.Option("--plain", help="Write an .onnx file of standard operators only, without ai.onnx.ml.")
]
Columns = Annotated[
    bool | None, typer.Option("--columns", help="Give an .onnx file one input for each column, with the name of the column.")
]
Target = Annotated[
    str | None,
    typer.Option(
        help="The processor for a .so, .o or .a: x86-64-v2, x86-64-v3 (by default), x86-64-v4, aarch64, native, or TVM's own as JSON. "
        "A .hbc file takes TVM's own as JSON only; with `hbc convert --code` it gets code for one of these processors."
    ),
]
Name = Annotated[
    str | None,
    typer.Option(help="All functions of a .so, .o or .a begin with hbc_NAME_, so that a program can have several models."),
]
Header = Annotated[Path | None, typer.Option(help="The C header to write beside a .so, .o or .a.")]
Code = Annotated[
    str | None,
    typer.Option(
        help="Levels of processors to put compiled code for into a .hbc file, with commas between them: x86-64-v2, x86-64-v3, x86-64-v4, "
        "aarch64. hbc.load uses it with trust_code=True."
    ),
]


def convert(
    model: Annotated[
        Path,
        typer.Argument(
            help="A fitted model: LightGBM .txt, XGBoost .json or .ubj, CatBoost .cbm, ONNX .onnx, or a pickle (.pkl, .joblib) with "
            "--trust. Or a saved model (.hbc), to write it for another backend or to export it."
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="The file to write: .hbc (for hbc.load), .onnx, .pt (TorchScript), .pt2 (torch.export), or a C library .so, .o or .a. "
            "By default the model's name with .hbc, in this folder.",
        ),
    ] = None,
    sample: Annotated[
        Path | None,
        typer.Option(
            help="Some rows for a model that does not know the names or dtypes of its columns: .csv, .parquet or .npy. Its values "
            "are not used. Exported files take its dtypes."
        ),
    ] = None,
    backend: Annotated[
        str | None,
        typer.Option(
            help="tvm, torch, torchscript, onnx or numpy. By default the one that writes such a file; for .hbc a saved model's own, "
            "otherwise tvm.",
            autocompletion=backends,
        ),
    ] = None,
    device: Device = None,
    strategy: Annotated[
        str | None,
        typer.Option(
            help="How trees are run: auto (by default), gemm, tree_trav, perf_tree_trav, or one of the backend's own."
        ),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(help="How many threads share the rows of a call. By default the backend decides.")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="How many rows a usual call has: a hint for the strategy auto, and no limit.")
    ] = None,
    iteration_range: Annotated[
        str | None,
        typer.Option(
            help="The rounds of LightGBM's or XGBoost's trees that count, such as 0,50 for the first 50; end 0 is the last."
        ),
    ] = None,
    trust: Trust = False,
    methods: Methods = None,
    dtype: Dtype = None,
    opset: Opset = None,
    plain: Plain = None,
    columns: Columns = None,
    target: Target = None,
    name: Name = None,
    header: Header = None,
    code: Code = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Compile a fitted model and write it to a file.

    Example: `hbc convert model.joblib --trust -o model.hbc`, then in Python `hbc.load("model.hbc").predict(X)`.

    A LightGBM or XGBoost file holds a Booster: `predict` returns the result of `Booster.predict`, even if a classifier wrote the file.
    A CatBoost file is read as the classifier, regressor or ranker that it is.
    """
    from hbc import api

    clock = Clock()
    require_file(model)
    saved = is_saved(model)
    output = _default_output(model, saved) if output is None else output
    suffix = output.suffix.lower()
    _require_writable(model, output)
    export_options = _chosen(methods=methods, dtype=dtype, opset=opset, plain=plain, columns=columns, name=name, header=header)
    convert_options = _given(strategy=strategy, threads=threads, batch_size=batch_size)
    wanted = _parsed(target, suffix)
    if suffix in EXPORTS:
        if backend in BACKENDS and suffix not in BACKENDS[backend].exports:
            raise ValueError(f"--backend: found {backend}, expected {EXPORTS[suffix]} or none, since it writes {suffix} files")
        export_options |= _given(target=wanted)
        if code is not None:
            raise ValueError(f"{output}: found --code, which only .hbc files take. For a library see --target.")
    else:
        if export_options:
            raise ValueError(f"{output}: found {_flags(export_options)}, which only exported files take ({', '.join(EXPORTS)})")
        convert_options |= _given(target=wanted)
    if saved and (unfit := _flags([*convert_options, *_given(sample=sample, iteration_range=iteration_range)])):
        raise ValueError(f"{model}: found {unfit}, which a saved model has settled already. Convert the fitted model anew.")
    with progress(f"reading {model.name}", quiet) as tell:
        # What the output cannot hold is found before a compiler is imported: that takes longer than the rest.
        if saved:
            require_numbers(str(output), suffix, *api.saved_input(model))
            compiled = hbc.load(model, device, backend or EXPORTS.get(suffix))
        else:
            found = api.parsed(source_of(model, trust), None if sample is None else data.read(sample), _pair(iteration_range))
            require_numbers(str(output), suffix, found.spec, api.main_variant(found))
            backend = backend or EXPORTS.get(suffix, "tvm")
            tell(f"compiling {model.name} for {backend}")
            compiled = api.compiled(found, api.builder_of(backend, device or "cpu", **convert_options))
        tell(f"writing {output.name}")
        if suffix in EXPORTS:
            compiled.export(output, **export_options)
        else:
            compiled.save(output, code=() if code is None else names_in("--code", code))
    if compiled.device != "cpu" and not _has_gpu() and not quiet:
        typer.echo(f"note: this computer has no NVIDIA GPU; {output.name} is for one that has.", err=True)
    held = _held(compiled, suffix, export_options.get("methods", compiled.methods))
    _report(compiled, held, model, output, code is not None, clock, as_json, quiet)


def export(
    model: Annotated[Path, typer.Argument(help="A model saved by `hbc convert` or CompiledModel.save.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="What to write: .onnx, .pt (TorchScript), .pt2 (torch.export), or a C library .so, .o or .a."
        ),
    ] = None,
    triton: Annotated[
        Path | None,
        typer.Option(
            help="Instead of a file: the folder of a model for Triton's model repository. Its name is the model's name.",
            metavar="FOLDER",
        ),
    ] = None,
    triton_onnx: Annotated[
        bool, typer.Option("--onnx", help="With --triton: the model is run by ONNX Runtime, and Triton's image needs no hbc.")
    ] = False,
    methods: Methods = None,
    dtype: Dtype = None,
    opset: Opset = None,
    plain: Plain = None,
    columns: Columns = None,
    target: Target = None,
    name: Name = None,
    header: Header = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Write a saved model to a file for use without hbc. The same as `hbc convert model.hbc -o OUTPUT`.

    Examples: `hbc export model.hbc -o model.onnx --methods predict_proba`, `hbc export model.hbc -o model.so --header model.h`, and
    `hbc export model.hbc --triton repository/house-prices`
    """
    if (output is None) == (triton is None):
        found = "neither" if output is None else "both"
        raise ValueError(f"--output, --triton: found {found}, expected one: a file to write, or a folder for Triton")
    if triton_onnx and triton is None:
        raise ValueError("--onnx: found it without --triton. An .onnx file is asked for by its name: --output model.onnx")
    suffix = "" if output is None else output.suffix.lower()
    if output is not None and suffix not in EXPORTS:
        raise ArtifactError(path=str(output), found=f"the suffix {suffix!r}", expected=", ".join(EXPORTS))
    require_file(model, "a model saved by hbc")
    if not is_saved(model):
        advice = f"`hbc convert` takes other models: {conversion(model, 'model.hbc' if output is None else output)}"
        raise ArtifactError(path=str(model), found="no model saved by hbc", expected="a .hbc file", advice=advice)
    options: dict[str, Any] = {
        **{"methods": methods, "dtype": dtype, "opset": opset, "plain": plain, "columns": columns},
        **{"target": target, "name": name, "header": header},
    }
    if triton is not None:
        write_triton(model, triton, triton_onnx, _chosen(**options), as_json, quiet)
        return
    convert(model, output, **options, as_json=as_json, quiet=quiet)


def _default_output(model: Path, saved: bool) -> Path:
    if saved:
        raise ValueError(f"{model}: found a saved model and no --output, expected the name of a file to write: {WRITTEN}")
    output = Path(model.name).with_suffix(".hbc")
    if output.exists():
        raise ValueError(f"{output}: found a file of this name; say with -o that it shall be replaced")
    return output


def _require_writable(model: Path, output: Path) -> None:
    """Raise an error if the output cannot be written: before anything is compiled."""
    from hbc.parser.files import READERS

    require_new(output, model, {name for name in READERS if name != ".onnx"}, WRITTEN)
    if output.suffix.lower() not in (".hbc", *EXPORTS):
        found = f"the suffix {output.suffix!r}" if output.suffix else "no suffix"
        raise ArtifactError(path=str(output), found=found, expected=WRITTEN)
    require_folder(output)
    try:
        with tempfile.TemporaryFile(dir=output.absolute().parent):
            pass
    except OSError as error:
        expected = "one with space and permission for a new file"
        raise ArtifactError(path=str(output), found="a folder in which no file can be made", expected=expected) from error


def _held(compiled: Any, suffix: str, methods: Sequence[str]) -> Sequence[str]:
    """Those of the methods that a file holds which was written with this suffix: PyTorch's have no strings, and a .pt2 file has one."""
    if suffix not in (".pt", ".pt2"):
        return methods
    numeric = [name for name in methods if all(node.type.dtype != "str" for node in compiled.graph.outputs[name])]
    return numeric if suffix == ".pt" else [main_method(numeric)]


def _report(
    compiled: Any, methods: Sequence[str], model: Path, output: Path, has_code: bool, clock: Clock, as_json: bool, quiet: bool
) -> None:
    size = output.stat().st_size
    if as_json:
        facts = {"backend": compiled.backend, "device": compiled.device, "methods": list(methods)}
        print_json({"output": str(output), "bytes": size, "seconds": clock.seconds, "source": compiled.info.source, **facts})
    elif not quiet:
        held = ", ".join(methods)
        typer.echo(
            f"{output}: {compiled.info.source} for {compiled.backend} on {compiled.device} ({held}), {size_of(size)}, "
            f"{clock.seconds:.1f} s"
        )
        typer.echo(f"next: {_next(model, output, has_code)}")


def _next(model: Path, output: Path, has_code: bool) -> str:
    """What the user may want to do with the file."""
    match output.suffix.lower():
        case ".hbc":
            hint = f"hbc.load({str(output)!r}{', trust_code=True' * has_code}) in Python"
            return (
                hint
                if is_saved(model)
                else f"{hint}; hbc verify {quoted(model)} {quoted(output)} DATA compares the two on your data"
            )
        case ".onnx":
            return f"onnxruntime.InferenceSession({str(output)!r}) in Python"
        case ".pt":
            return f"torch.jit.load({str(output)!r}) in Python"
        case ".pt2":
            return f"torch.export.load({str(output)!r}).module() in Python"
        case _:
            return "call it from C; docs/exporting.md shows how"


def _has_gpu() -> bool:
    """Whether this computer has an NVIDIA GPU, as far as its driver tells. On systems without /proc it counts as having one."""
    return sys.platform != "linux" or Path("/proc/driver/nvidia/gpus").is_dir() or Path("/dev/nvidiactl").exists()


def _chosen(methods: str | None, **others: Any) -> dict[str, Any]:
    """The options of `CompiledModel.export` that were given."""
    return _given(methods=None if methods is None else names_in("--methods", methods), **others)


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _pair(text: str | None) -> Any:
    """The numbers of --iteration-range; what is no such text as it is, for hbc.convert to refuse."""
    try:
        return None if text is None else tuple(map(int, text.split(",")))
    except ValueError:
        return text


def _parsed(target: str | None, suffix: str) -> Any:
    """What --target says for a file of this suffix: a target of TVM as JSON; for a library a name too, as it is. Raises ValueError."""
    if target is None:
        return None
    if target.lstrip().startswith("{"):
        try:
            return json.loads(target)
        except ValueError:
            raise ValueError(f"--target: found {target!r}, expected {TARGET}") from None
    if suffix == ".hbc":
        level = f" To put code for {target} into it: --code {target}." if target in LEVELS else ""
        raise ValueError(f"--target: found {target!r}, expected {TARGET} for a .hbc file.{level}")
    if suffix in LIBRARIES and target not in (*LEVELS, "native"):
        raise ValueError(f"--target: found {target!r}, expected one of {', '.join(LEVELS)}, native; or {TARGET}")
    return target


def _flags(names: Iterable[str]) -> str:
    return ", ".join(f"--{name.replace('_', '-')}" for name in names)
