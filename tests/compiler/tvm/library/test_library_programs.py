"""Programs in C, Rust, Go and Python that call a library and cannot import hbc. What docs/exporting.md shows is what runs here."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from exported_library import is_x86_64
from installed import older
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import hbc

GUIDE = (Path(__file__).parents[4] / "docs" / "exporting.md").read_text()
EMULATOR = ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"]

rng = np.random.default_rng(0)
X = rng.normal(size=(200, 3))
LABELS = np.where(X @ [1.0, -2.0, 0.5] > 0, "repaid", "default")
MODEL = hbc.convert(make_pipeline(StandardScaler(), LogisticRegression()).fit(X, LABELS))
ROWS = np.array([[0.5, -1.0, 2.0], [-0.25, 1.5, 0.0]], np.float32)
EXPECTED = [f"{p:.4f}" for p in MODEL.predict_proba(ROWS)[:, 1]]

pytestmark = pytest.mark.skipif(not is_x86_64() or os.uname().sysname != "Linux", reason="made for Linux on x86-64")


def example(language: str) -> str:
    """The last block of the guide in a language."""
    return re.findall(rf"```{language}\n(.*?)```", GUIDE, re.DOTALL)[-1]


def needs(*programs: str) -> None:
    missing = [program for program in programs if shutil.which(program) is None]
    if missing:
        pytest.skip(f"no {', '.join(missing)}")


def run(folder: Path, *command: str, **environment: str) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env={**os.environ, **environment})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the library in all formats, its header and the programs."""
    place = tmp_path_factory.mktemp("programs")
    for name in ("libmodel.so", "model.o", "libmodel.a"):
        MODEL.export(place / name, header=place / "model.h")
    (place / "main.c").write_text(example("c"))
    (place / "main.py").write_text(example("python"))
    (place / "main.rs").write_text(example("rust"))
    (place / "main.go").write_text(example("go"))
    return place


def says_what_is_expected(said: str) -> None:
    assert re.findall(r"repaid:? (0\.\d{4})", said) == EXPECTED


@pytest.mark.parametrize("linked", [["-L.", "-lmodel", "-Wl,-rpath,."], ["model.o"], ["libmodel.a"]])
@pytest.mark.parametrize("compiler", ["gcc", "g++", "clang"])
def test_c(compiler: str, linked: list[str], folder: Path) -> None:
    """The header is valid C and C++ without a warning."""
    needs(compiler)
    options = ["-x", "c++"] if compiler == "g++" else ["-std=c99", "-pedantic"]
    flags = [*options, "-Wall", "-Wextra", "-Werror", "main.c", "-x", "none", "-o", "main"]
    run(folder, compiler, *flags, *linked)
    says_what_is_expected(run(folder, "./main"))
    dependencies = run(folder, "ldd", "./main")
    assert "tvm" not in dependencies


def test_two_models_in_one_program(folder: Path) -> None:
    needs("gcc")
    other = hbc.convert(LogisticRegression().fit(X, LABELS))
    other.export(folder / "other.o", name="other", header=folder / "other.h")
    (folder / "two.c").write_text(
        '#include "model.h"\n#include "other.h"\n#include <stdio.h>\n'
        "int main(void) { float x[3] = {0.5f, -1.0f, 2.0f}; double a[2], b[2];\n"
        'int bad = hbc_predict_proba(x, 1, a) | hbc_other_predict_proba(x, 1, b); printf("%d %.4f %.4f\\n", bad, a[1], b[1]); return 0; }\n'
    )
    run(folder, "gcc", "-Wall", "-Werror", "two.c", "libmodel.a", "other.o", "-o", "two")
    expected = [f"{model.predict_proba(ROWS[:1])[0, 1]:.4f}" for model in (MODEL, other)]
    assert run(folder, "./two").split() == ["0", *expected]


def test_python_without_hbc(folder: Path) -> None:
    """-S and -I: a Python without any installed package. hbc, numpy and tvm cannot be imported."""
    blocked = "import sys; sys.modules.update(dict.fromkeys(('hbc', 'numpy', 'tvm', 'tvm_ffi')))\n"
    (folder / "alone.py").write_text(blocked + (folder / "main.py").read_text())
    says_what_is_expected(run(folder, sys.executable, "-S", "-I", "alone.py"))


@pytest.mark.skipif(older("sklearn", 1, 9), reason="LogisticRegression of scikit-learn 1.7 has float64 coefficients")
def test_a_result_of_float32(folder: Path) -> None:
    """The program in Python asks the library for the type of its result."""
    model = hbc.convert(LogisticRegression().fit(X.astype(np.float32), LABELS))
    (folder / "single").mkdir()
    model.export(folder / "single" / "libmodel.so", methods="predict_proba")
    expected = model.predict_proba(ROWS)
    assert expected.dtype == np.float32
    said = run(folder / "single", sys.executable, "../main.py")
    assert re.findall(r"repaid (0\.\d{4})", said) == [f"{p:.4f}" for p in expected[:, 1]]


def test_rust(folder: Path) -> None:
    needs("rustc")
    run(folder, "rustc", "-O", "main.rs", "-L", ".", "-C", "link-arg=-Wl,-rpath,.", "-o", "main_rust")
    says_what_is_expected(run(folder, "./main_rust"))


def test_go(folder: Path) -> None:
    needs("go", "gcc")
    module = folder / "go"
    module.mkdir()
    for name in ("main.go", "model.h", "libmodel.a"):
        shutil.copy(folder / name, module)
    (module / "go.mod").write_text("module example\n")
    run(module, "go", "build", "-o", "main", ".", CGO_ENABLED="1", GOFLAGS="-mod=mod", GOCACHE=str(module / "cache"))
    says_what_is_expected(run(module, "./main"))


def test_aarch64(folder: Path) -> None:
    needs("aarch64-linux-gnu-gcc", EMULATOR[0])
    for name in ("libarm.so", "arm.o"):
        MODEL.export(folder / name, target="aarch64", header=folder / "model.h")
    for linked in (["-L.", "-larm", "-Wl,-rpath,."], ["arm.o"]):
        run(folder, "aarch64-linux-gnu-gcc", "-Wall", "-Werror", "main.c", "-o", "main_arm", *linked)
        says_what_is_expected(run(folder, *EMULATOR, "./main_arm"))


@pytest.mark.parametrize("cpu", ["qemu64", "Nehalem", "Haswell"])
def test_older_processors(cpu: str, folder: Path) -> None:
    """A processor without AVX2 gets an error code from the library for x86-64-v3, no illegal instruction."""
    needs("gcc", "qemu-x86_64")
    run(folder, "gcc", "main.c", "model.o", "-o", "main_static", "-static")
    done = subprocess.run(["qemu-x86_64", "-cpu", cpu, "./main_static"], cwd=folder, capture_output=True, text=True)
    if cpu == "Haswell":
        says_what_is_expected(done.stdout)
    else:
        assert done.returncode == 1
        assert "this processor lacks instructions" in done.stderr
