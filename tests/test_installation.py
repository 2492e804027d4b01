"""What is installed: every package has a pinned version, and the wheel works in an environment that has nothing else."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
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


@pytest.mark.slow
def test_the_wheel_in_an_empty_environment(tmp_path: Path) -> None:
    """It takes 12 s, and is slow because it needs a package index, for numpy and scikit-learn."""
    pytest.importorskip("build")
    source, outside = tmp_path / "source", {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    shutil.copytree(ROOT / "hbc", source / "hbc", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(source)]
    subprocess.run(build, check=True, capture_output=True, env=outside)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {"hbc/py.typed", "hbc/compiler/costs.json"} <= set(names)
    assert not [name for name in names if name.startswith(("tests", "benchmarks", "datasets"))]
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "empty"], check=True, env=outside)
    python = tmp_path / "empty" / "bin" / "python"
    pip = [python, "-m", "pip", "install", "--quiet", "--no-compile", "--constraint", ROOT / "constraints.txt"]
    subprocess.run([*pip, wheel], check=True, env=outside)
    code = "import hbc, sys; print(hbc.__version__, 'sklearn' in sys.modules)"

    def said(code: str) -> list[str]:
        return subprocess.run(
            [python, "-I", "-c", code], check=True, capture_output=True, text=True, cwd=tmp_path
        ).stdout.split()

    assert said(code)[1] == "False"
    subprocess.run([*pip, f"{wheel}[sklearn]"], check=True, env=outside)
    code = (
        "import numpy as np, hbc; from sklearn.linear_model import LogisticRegression; "
        "X = np.arange(12.0).reshape(6, 2); m = LogisticRegression().fit(X, [0, 0, 1, 0, 1, 1]); "
        "c = hbc.convert(m, backend='numpy'); print(np.abs(c.predict_proba(X) - m.predict_proba(X)).max() < 1e-12, hbc.__file__)"
    )
    agree, where = said(code)
    assert agree == "True"
    assert str(tmp_path) in where
