"""The command `hbc doctor`: what is installed here, what works, and what this computer is."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import typer

import hbc
from hbc.cli.terminal import AsJson, Quiet, print_json, progress
from hbc.process import cpus

LIBRARIES = {
    "numpy": "",
    "narwhals": "",
    "apache-tvm": "tvm",
    "torch": "torch",
    "onnx": "onnx",
    "onnxruntime": "onnx",
    "scikit-learn": "sklearn",
    "lightgbm": "lightgbm",
    "xgboost": "xgboost",
    "catboost": "catboost",
    "pandas": "frames",
    "polars": "frames",
    "pyarrow": "frames",
    "scipy": "frames",
    "duckdb": "duckdb",
    "fsspec": "score",
    "starlette": "serve",
    "grpcio": "grpc",
    "mlflow-skinny": "mlflow",
}
"""Distribution → the extra of hbc that installs it, or "" for what hbc cannot do without.
XGBoost's build for CPUs is a distribution of its own, xgboost-cpu (`_version`)."""


def doctor(as_json: AsJson = False, quiet: Quiet = False) -> None:
    """Print what is installed here, and which backends work.

    Each backend compiles and runs a small model. Then follow the computer (processor, cores, memory, GPU), and where hbc keeps files.
    The exit status is 1 if no backend works.

    Example: `hbc doctor --json`
    """
    from hbc.cache.store import store

    backends = {}
    with progress("looking at backends", quiet) as tell:
        for name, available in hbc.backends().items():
            tell(f"trying backend {name}")
            backends[name] = _try_backend(name, available)
        computer = {**_processor(), **_memory(), "GPU": _gpu()}
    kept = store()
    files = "nothing is kept" if kept is None else str(kept.folder)
    if kept is not None and not kept.takes():
        files += " (cannot be written to: each process compiles anew)"
    versions = {"hbc": hbc.__version__, "Python": platform.python_version(), "platform": platform.platform()}
    libraries = {name: _version(name) for name in LIBRARIES}
    if as_json:
        print_json({**versions, "libraries": libraries, "backends": backends, "computer": computer, "cache": files})
    elif not quiet:
        typer.echo(f"hbc {hbc.__version__}, Python {platform.python_version()}, {platform.platform()}")
        for title, facts in {
            "libraries": {name: version or _missing(name) for name, version in libraries.items()},
            "backends": backends,
            "computer": {**computer, "cache": files},
        }.items():
            typer.echo(f"\n{title}")
            for name, value in facts.items():
                typer.echo(f"  {name:<21}{value}")
    if not any(result == "works" for result in backends.values()):
        raise typer.Exit(1)


def _version(distribution: str) -> str | None:
    for name in (distribution, f"{distribution}-cpu"):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def _missing(distribution: str) -> str:
    extra = LIBRARIES[distribution]
    wanted = f"'hbc[{extra}]'" if extra else distribution
    return f"not installed: pip install {wanted}"


def _try_backend(name: str, available: bool) -> str:
    if not available:
        return "not installed"
    from hbc.api import self_test

    try:
        self_test(name)
    except Exception as error:  # a diagnosis: whatever goes wrong is what the user wants to read
        return f"fails: {type(error).__name__}: {error}"
    return "works"


def _processor() -> dict[str, str]:
    model, features = platform.processor() or platform.machine(), "unknown"
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        lines = []
    fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    if fields:
        present = set(fields.get("flags", fields.get("Features", "")).split())
        known = ("sse4_2", "avx2", "fma", "avx512f", "avx512bw", "avx512vbmi", "asimd", "sve")
        features = ", ".join(name for name in known if name in present) or "none that hbc knows"
        numbers = [f"{name} {fields[key]}" for key, name in (("cpu family", "family"), ("model", "model")) if key in fields]
        model = ", ".join([fields.get("model name", model), *numbers])
    return {"processor": model, "cores": f"{cpus()} usable of {os.cpu_count()}", "vector instructions": features}


def _memory() -> dict[str, str]:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return {"memory": "unknown"}
    fields = dict(line.split(":", 1) for line in lines)
    free, whole = (int(fields[key].split()[0]) * 1024 / 1e9 for key in ("MemAvailable", "MemTotal"))
    return {"memory": f"{free:,.1f} GB free of {whole:,.1f}"}


def _gpu() -> str:
    """The NVIDIA GPUs and their driver, as nvidia-smi tells; "none" where there is no such program or no GPU."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return "none (no nvidia-smi)" if sys.platform != "darwin" else "none"
    query = ["--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        done = subprocess.run([program, *query], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"unknown ({error})"
    return "; ".join(done.stdout.strip().splitlines()) if done.returncode == 0 and done.stdout.strip() else "none"
