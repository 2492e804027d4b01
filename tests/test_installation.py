"""What is installed: every package has a pinned version, and the distributions work in an environment that has nothing else."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
REQUIREMENT = re.compile(r"^([\w.-]+)(?:\[([\w,]*)\])?([^;]*)(?:;(.*))?$")


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def required(extras: tuple[str, ...]) -> set[str]:
    """The packages that `pip install hbc[extras]` brings, as far as they are installed here, with theirs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    waiting = [*project["dependencies"], *(f"hbc[{extra}]" for extra in extras)]
    found: set[str] = set()
    while waiting:
        name, asked, _, marker = REQUIREMENT.match(waiting.pop().replace(" ", "")).groups()  # type: ignore[union-attr]
        if name == "hbc":
            waiting += [line for extra in asked.split(",") for line in project["optional-dependencies"][extra]]
        elif plain(name) not in found and "extra==" not in (marker or ""):
            try:
                waiting += importlib.metadata.requires(name) or []
            except importlib.metadata.PackageNotFoundError:
                continue
            found.add(plain(name))
    return found


def test_every_package_is_pinned() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    pinned = {plain(line.partition("==")[0]) for line in lines if "==" in line}
    assert len(pinned) == len(lines)
    needed = {name for name in required(("test", "docs")) if not name.startswith(("nvidia", "triton", "cuda"))}
    assert {"numpy", "typer", "narwhals", "pytest"} <= needed
    assert needed <= pinned, "add them to constraints.txt"


def test_the_page_of_versions() -> None:
    from support_table import versions_in_page, versions_table

    assert versions_in_page() == versions_table(), "run: python tests/support_table.py"


USER = """
import numpy as np
from sklearn.linear_model import LogisticRegression  # type: ignore[import-untyped]

import hbc

X = np.arange(12.0).reshape(6, 2)
source = LogisticRegression().fit(X, [0, 0, 1, 0, 1, 1])
model = hbc.convert(source, backend="numpy")
print(bool(np.abs(model.predict_proba(X) - source.predict_proba(X)).max() < 1e-12), hbc.__file__)
"""
WRONG = """
import hbc

model = hbc.convert(object(), backend="tmv")
model.prdict(3)
hbc.load("m.hbc", devce="cpu")
hbc.convrt(1)
"""
"""A mistake in each line from the fourth on."""


@pytest.mark.slow
def test_the_distributions_in_an_empty_environment(tmp_path: Path) -> None:
    """The source archive, and the wheel that is built of it: it runs alone, and shows its types to mypy and to pyright.
    It takes 40 s, and is slow because it needs a package index, for numpy, scikit-learn and the type checkers."""
    pytest.importorskip("build")
    pytest.importorskip("hatchling")
    source, outside = tmp_path / "source", {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    shutil.copytree(ROOT / "hbc", source / "hbc", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "CHANGELOG.md", "SECURITY.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path), str(source)]
    subprocess.run(build, check=True, capture_output=True, env=outside)
    (wheel,), (archive,) = tmp_path.glob("*.whl"), tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        kept = {name.partition("/")[2] for name in packed.getnames()}
    names = zipfile.ZipFile(wheel).namelist()
    assert {"hbc/py.typed", "hbc/compiler/costs.json"} <= set(names)
    assert {"hbc/py.typed", "hbc/compiler/costs.json", "LICENSE", "CHANGELOG.md", "pyproject.toml"} <= kept
    assert not [name for name in (*names, *kept) if name.startswith(("tests", "benchmarks", "datasets"))]
    assert {name for name in kept if name.endswith(".py")} == {name for name in names if name.endswith(".py")}
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "empty"], check=True, env=outside)
    python = tmp_path / "empty" / "bin" / "python"
    pip = [python, "-m", "pip", "install", "--quiet", "--no-compile", "--constraint", ROOT / "constraints.txt"]
    subprocess.run([*pip, wheel], check=True, env=outside)

    def said(*command: str | Path) -> str:
        return subprocess.run([python, *command], capture_output=True, text=True, cwd=tmp_path, env=outside).stdout

    assert said("-I", "-c", "import hbc, sys; print(hbc.__version__, 'sklearn' in sys.modules)").split()[1] == "False"
    assert said("-I", "-m", "hbc", "--version").startswith("hbc ")
    subprocess.run([*pip, f"{wheel}[sklearn]", "mypy", "pyright[nodejs]==1.1.414"], check=True, env=outside)
    (tmp_path / "user.py").write_text(USER)
    (tmp_path / "wrong.py").write_text(WRONG)
    agree, where = said("user.py").split()
    assert agree == "True"
    assert str(tmp_path / "empty") in where
    assert said("-m", "mypy", "--strict", "user.py").startswith("Success")
    lines = range(4, 8)
    assert re.findall(r"wrong\.py:(\d+): error", said("-m", "mypy", "--strict", "wrong.py")) == [str(line) for line in lines]
    options = ("--outputjson", "--pythonpath", python)
    checked = json.loads(said("-m", "pyright", *options, "user.py", "wrong.py"))["generalDiagnostics"]
    found = [(Path(each["file"]).name, each["range"]["start"]["line"] + 1) for each in checked if each["severity"] == "error"]
    assert found == [("wrong.py", line) for line in lines]


WITHOUT_EXTRAS = """
import sys
for name in sys.argv[1].split():
    sys.modules[name] = None  # as if it were not installed
import hbc.cli, hbc.adapters.hosted, hbc.adapters.triton_folder, hbc.serve.served, hbc.scoring.run
"""


def test_the_command_line_and_the_adapters_need_no_extra() -> None:
    """`pip install '.[tvm]'` gives a command `hbc` that starts: each command imports what it needs."""
    absent = "orjson uvicorn httptools uvloop starlette simdjson grpc torch onnx onnxruntime sklearn lightgbm xgboost catboost scipy "
    absent += "pandas polars pyarrow duckdb fsspec mlflow ray pyspark dask daft"
    done = subprocess.run([sys.executable, "-c", WITHOUT_EXTRAS, absent], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
