"""The commands of the command line: `hbc convert`, `hbc export`, `hbc info`, `hbc explain`, `hbc tune`, `hbc cache`, `hbc runtime` and
`hbc doctor`."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

import hbc
from hbc.errors import ArtifactError, HbcError

app = typer.Typer(
    name="hbc",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Compile fitted scikit-learn, LightGBM, XGBoost, CatBoost and ONNX models into tensor programs.",
)

LIBRARIES = {
    "numpy": "numpy",
    "apache-tvm": "tvm",
    "torch": "torch",
    "onnx": "onnx",
    "onnxruntime": "onnx",
    "scikit-learn": "sklearn",
    "lightgbm": "lightgbm",
    "xgboost": "xgboost",
    "pandas": "frames",
    "polars": "frames",
    "pyarrow": "frames",
    "scipy": "frames",
}
"""Distribution → the extra of hbc that installs it. XGBoost's build for CPUs is a distribution of its own, xgboost-cpu (`_version`)."""

WRITTEN = ".hbc, .onnx, .pt, .pt2, .so, .o or .a"
"""The suffixes of files that `hbc convert` writes, for messages."""

Methods = Annotated[
    str | None, typer.Option(help="The methods of an exported file, with commas between them. By default all that it can hold.")
]
Dtype = Annotated[
    str | None,
    typer.Option(
        help="The numbers that an exported file takes: float32, float64 or int64. By default float32 if nothing else is said."
    ),
]
Opset = Annotated[int | None, typer.Option(help="The version of ONNX's operators in an .onnx file.")]
Plain = Annotated[bool | None, typer.Option("--plain", help="An .onnx file of standard operators only, without ai.onnx.ml.")]
Columns = Annotated[bool | None, typer.Option("--columns", help="An .onnx file with one input for each column, by its name.")]
Target = Annotated[
    str | None,
    typer.Option(
        help="The processor for a .so, .o or .a: x86-64-v2, x86-64-v3 (by default), x86-64-v4, aarch64, native, or a target of TVM as JSON."
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


@app.command()
def convert(
    model: Annotated[
        Path,
        typer.Argument(
            help="A fitted model: LightGBM .txt, XGBoost .json or .ubj, ONNX .onnx, or a pickle (.pkl, .joblib) with --trust."
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            help="The file to write: .hbc (for hbc.load), .onnx, .pt (TorchScript), .pt2 (torch.export), or a C library .so, .o or .a.",
        ),
    ],
    backend: Annotated[
        str | None,
        typer.Option(help="tvm, torch, torchscript, onnx or numpy. By default the one that writes the output's suffix."),
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    strategy: Annotated[
        str, typer.Option(help="How trees are run: auto, gemm, tree_trav, perf_tree_trav, or one of the backend's own.")
    ] = "auto",
    trust: Annotated[bool, typer.Option("--trust", help="Load a pickle although that runs code from it.")] = False,
    methods: Methods = None,
    dtype: Dtype = None,
    opset: Opset = None,
    plain: Plain = None,
    columns: Columns = None,
    target: Target = None,
    name: Name = None,
    header: Header = None,
    code: Code = None,
) -> None:
    """Compile a fitted model and write it to a file.

    Example: `hbc convert model.joblib --trust -o model.hbc`, then in Python `hbc.load("model.hbc").predict(X)`.

    A LightGBM or XGBoost file holds a Booster: `predict` returns the result of `Booster.predict`, even if a classifier wrote the file.
    """
    from hbc.compiler.base import EXPORTS
    from hbc.parser.files import READERS, read_model

    suffix = output.suffix.lower()
    _require_new(output, model, {name for name in READERS if name != ".onnx"}, WRITTEN)
    if backend is None:
        backend = EXPORTS.get(suffix, "tvm")
    if suffix not in (".hbc", *EXPORTS):
        raise ArtifactError(path=str(output), found=f"the suffix {suffix!r}" if suffix else "no suffix", expected=WRITTEN)
    chosen = _chosen(
        methods=methods, dtype=dtype, opset=opset, plain=plain, columns=columns, target=target, name=name, header=header
    )
    if chosen and suffix not in EXPORTS:
        raise ValueError(f"{output}: found {_flags(chosen)}, which only exported files take ({', '.join(EXPORTS)})")
    if code is not None and suffix in EXPORTS:
        raise ValueError(f"{output}: found --code, which only .hbc files take. For a library see --target.")
    compiled = hbc.convert(read_model(model, trust), backend, device=device, strategy=strategy)
    if suffix in EXPORTS:
        compiled.export(output, **chosen)
    else:
        compiled.save(output, code=() if code is None else _listed(code))
    typer.echo(f"{output}: {compiled!r}, {output.stat().st_size / 1e3:,.1f} kB")


@app.command()
def export(
    model: Annotated[Path, typer.Argument(help="A model saved by `hbc convert` or CompiledModel.save.")],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", help="What to write: .onnx, .pt (TorchScript), .pt2 (torch.export), or a C library .so, .o or .a."
        ),
    ],
    methods: Methods = None,
    dtype: Dtype = None,
    opset: Opset = None,
    plain: Plain = None,
    columns: Columns = None,
    target: Target = None,
    name: Name = None,
    header: Header = None,
) -> None:
    """Write a saved model to a file for use without hbc.

    Examples: `hbc export model.hbc -o model.onnx --methods predict_proba`, and `hbc export model.hbc -o model.so --header model.h`
    """
    from hbc.compiler.base import EXPORTS

    suffix = output.suffix.lower()
    if suffix not in EXPORTS:
        raise ArtifactError(path=str(output), found=f"the suffix {suffix!r}", expected=", ".join(EXPORTS))
    _require_new(output, model, set(), WRITTEN)
    compiled = hbc.load(model, backend=EXPORTS[suffix])
    compiled.export(
        output,
        **_chosen(
            methods=methods, dtype=dtype, opset=opset, plain=plain, columns=columns, target=target, name=name, header=header
        ),
    )
    typer.echo(f"{output}: {compiled!r}, {output.stat().st_size / 1e3:,.1f} kB")


def _chosen(methods: str | None, target: str | None, **others: Any) -> dict[str, Any]:
    """The options of `CompiledModel.export` that were given."""
    chosen = {"methods": None if methods is None else _listed(methods), "target": _parsed(target), **others}
    return {name: value for name, value in chosen.items() if value is not None}


def _listed(names: str) -> list[str]:
    return [name.strip() for name in names.split(",")]


def _parsed(target: str | None) -> Any:
    """A target of TVM as JSON; a name as it is."""
    if target is None or not target.lstrip().startswith("{"):
        return target
    try:
        return json.loads(target)
    except ValueError:
        raise ValueError(f"--target: found {target!r}, expected a name or JSON") from None


def _flags(names: Iterable[str]) -> str:
    return ", ".join(f"--{name.replace('_', '-')}" for name in names)


def _require_new(output: Path, model: Path, refused: set[str], expected: str) -> None:
    """Raise ArtifactError if `output` is the model itself, or has a suffix in `refused`: it could be a model of another library."""
    suffix = output.suffix.lower()
    if suffix in refused:
        raise ArtifactError(path=str(output), found=f"the suffix {suffix!r} of a model of another library", expected=expected)
    if output.exists() and model.exists() and output.samefile(model):
        raise ArtifactError(path=str(output), found="the model itself", expected="another file to write")


@app.command()
def explain(
    model: Annotated[Path, typer.Argument(help="A model saved by `hbc convert` or CompiledModel.save.")],
    backend: Annotated[str | None, typer.Option(help="Explain it for another backend than it was saved with.")] = None,
    html: Annotated[bool, typer.Option("--html", help="As an HTML document that draws both graphs.")] = False,
) -> None:
    """Print a report on a compiled model: its input, the passes that changed something, the functions that a call starts, the strategy of
    every tree ensemble, and its operators before and after the passes."""
    typer.echo(hbc.load(model, backend=backend).explain(html), nl=False)


@app.command()
def info(
    model: Annotated[Path, typer.Argument(help="A model saved by `hbc convert` or CompiledModel.save.")],
    as_json: Annotated[bool, typer.Option("--json", help="The whole manifest, as JSON.")] = False,
) -> None:
    """Print what a saved model is, without loading it: its source, methods and dtypes, versions, the time of its conversion, your notes,
    and a digest of the whole."""
    from hbc.api import manifest

    found = manifest(model)
    if as_json:
        typer.echo(json.dumps(found, indent=1))
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


@app.command()
def tune(
    model: Annotated[
        Path, typer.Argument(help="A model saved by `hbc convert`, or a model to convert (a pickle only with --trust).")
    ],
    rows: Annotated[str, typer.Option(help="Rows of the calls that matter, with commas between them.")] = "1,1000,100000",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Save the tuned model, to a file for hbc.load.")] = None,
    backend: Annotated[
        str | None, typer.Option(help="tvm, torch, torchscript, onnx or numpy; by default tvm, or a saved model's own.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; by default cpu, or a saved model's own.")] = None,
    trust: Annotated[bool, typer.Option("--trust", help="Load a pickle although that runs code from it.")] = False,
) -> None:
    """Measure on this machine how a model's trees run fastest, and keep it for later.

    It tries the strategies of the backend that are not hopeless by its estimates, then threads and blocks of rows, on random rows around
    the trees' thresholds. The choice is kept in $HBC_CACHE (by default `hbc` in $XDG_CACHE_HOME or ~/.cache). From then on,
    `hbc convert` and `hbc.convert` with strategy auto, and `hbc.load`, make the same choice on this machine for models with the same
    trees (which may differ in the values of leaves).

    Example: `hbc tune model.txt --rows 1,1000,100000 -o model.hbc`
    """
    from hbc.compiler.base import EXPORTS
    from hbc.parser.files import READERS, read_model

    try:
        counts = [int(count) for count in rows.split(",")]
    except ValueError:
        counts = []
    if not counts or min(counts) < 1:
        raise ValueError(
            f"--rows: found {rows!r}, expected positive whole numbers with commas between them, such as 1,1000,100000"
        )
    if output is not None:
        _require_new(output, model, {*EXPORTS, *READERS}, "a name for a saved model, such as model.hbc")
    if model.suffix.lower() in READERS:
        found = hbc.tune(read_model(model, trust), counts, backend=backend or "tvm", device=device or "cpu")
    else:
        found = hbc.tune(hbc.load(model, device, backend), counts)
    typer.echo(str(found))
    typer.echo(f"kept in {found.path}" if found.path else "not kept")
    if output is not None:
        found.model.save(output)
        typer.echo(f"{output}: {found.model!r}, {output.stat().st_size / 1e3:,.1f} kB")


cache = typer.Typer(no_args_is_help=True, help="The compiled code that hbc keeps on disk.")
app.add_typer(cache, name="cache")


@cache.command("info")
def cache_info() -> None:
    """Print where compiled code is kept, and how much of it there is."""
    kept = _store()
    if kept is None:
        typer.echo("Nothing is kept: HBC_CACHE is empty, or other users may write to the folder.")
        return
    usage = kept.usage()
    typer.echo(f"{usage.folder}: {usage.files} files, {usage.bytes / 1e6:,.1f} MB of at most {usage.limit / 1e6:,.0f} MB")


@cache.command("clear")
def cache_clear() -> None:
    """Delete all compiled code. Models compile theirs anew. The choices of `hbc tune` stay."""
    kept = _store()
    if kept is None:
        typer.echo("Nothing is kept.")
        return
    usage = kept.clear()
    typer.echo(f"{usage.folder}: deleted {usage.files} files, {usage.bytes / 1e6:,.1f} MB")


def _store() -> Any:
    from hbc.cache.store import store

    return store()


@app.command()
def runtime(
    folder: Annotated[Path, typer.Argument(help="The folder to make. It must not exist, or be empty.")],
) -> None:
    """Make the smallest folder that runs saved models with compiled code: numpy, tvm_ffi, TVM's runtime library and hbc, as they are
    installed here.

    It is for servers and containers, on this kind of processor with this version of Python. With it in PYTHONPATH, Python needs neither
    TVM's compiler nor any other package for `hbc.load("model.hbc", trust_code=True)`.

    Example: `hbc runtime serving`, then `PYTHONPATH=serving python server.py`
    """
    from hbc.compiler.tvm.run.folder import make_folder

    made = make_folder(folder)
    for name, version in made.versions.items():
        typer.echo(f"{name} {version}" + (" (its runtime library only)" if name == "apache-tvm" else ""))
    typer.echo(f"{folder}: {made.bytes / 1e6:,.1f} MB with hbc {hbc.__version__}, for Python {platform.python_version()}")


@app.command()
def doctor() -> None:
    """Print the installed libraries, the backends that work (each compiles and runs a small model), and the processor's instructions."""
    typer.echo(f"hbc {hbc.__version__}, Python {platform.python_version()}, {platform.platform()}")
    typer.echo("\nlibraries")
    for name, extra in LIBRARIES.items():
        typer.echo(f"  {name:<14}{_version(name) or f'not installed: pip install {chr(39)}hbc[{extra}]{chr(39)}'}")
    typer.echo("\nbackends")
    results = {name: _try_backend(name, available) for name, available in hbc.backends().items()}
    for name, result in results.items():
        typer.echo(f"  {name:<14}{result}")
    typer.echo("\nprocessor")
    for line in _processor():
        typer.echo(f"  {line}")
    if not any(result.startswith("works") for result in results.values()):
        raise typer.Exit(1)


def _version(distribution: str) -> str | None:
    for name in (distribution, f"{distribution}-cpu"):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def _try_backend(name: str, available: bool) -> str:
    if not available:
        return "not installed"
    from hbc.api import self_test

    try:
        self_test(name)
    except Exception as error:  # a diagnosis: whatever goes wrong is what the user wants to read
        return f"fails: {type(error).__name__}: {error}"
    return "works"


def _processor() -> list[str]:
    features: list[str] = []
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        known = dict(line.split(":", 1) for line in lines if ":" in line)
        fields = {key.strip(): value.strip() for key, value in known.items()}
        present = set(fields.get("flags", fields.get("Features", "")).split())
        features = [f for f in ("sse4_2", "avx2", "fma", "avx512f", "avx512bw", "avx512vbmi", "asimd", "sve") if f in present]
        model = fields.get("model name", platform.machine())
    except OSError:
        model = platform.processor() or platform.machine()
    return [model, f"vector instructions: {', '.join(features) or 'unknown'}"]


def main(arguments: list[str] | None = None) -> Any:
    """Run the command line. An error that hbc raises becomes one message on stderr and exit status 1, without a traceback."""
    try:
        return app(arguments, standalone_mode=True)
    except OSError as error:
        message = str(error) if error.filename is None else f"{error.filename}: {error.strerror}"
    except (HbcError, ValueError) as error:
        message = str(error)
    print(f"hbc: {message}", file=sys.stderr)
    sys.exit(1)


if __name__ == "__main__":
    main()
