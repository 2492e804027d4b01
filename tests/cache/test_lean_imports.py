"""What tvm_ffi and TVM import and hbc does not use is not imported, and works all the same for others in the process."""

from __future__ import annotations

import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import hbc

pytest.importorskip("tvm")

COMPILER = "import numpy, hbc.compiler.tvm.compiler"
CALLS = "import numpy, hbc.compiler.tvm.run.executable"


def run(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
        env={"PYTHONPATH": str(Path(hbc.__file__).parents[1])} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.returncode, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("imports", "absent"),
    [
        (COMPILER, ["torch", "tvm.relax", "tvm.topi"]),
        (CALLS, ["torch", "tvm", "tvm_ffi.cpp", "email.message", "logging", "subprocess"]),
    ],
)
def test_it_is_not_imported(imports: str, absent: list[str]) -> None:
    assert run(f"import sys; {imports}; print(*[name for name in {absent} if name in sys.modules])") == ""


TELLS_OF_ERRORS = """
#include <stddef.h>
#include <unistd.h>

struct { const char *data; size_t size; } none = {"", 0};

void *TVMFFIBacktrace(const char *file, int line, const char *function, int beyond) {
  if (write(1, "an error of C++\\n", 16)) return &none;
  return &none;
}
"""
"""Takes the place of the function that finds the calls that led to an error of TVM's C++."""


@pytest.mark.skipif(sys.platform != "linux" or shutil.which("gcc") is None, reason="no gcc, or not Linux")
def test_tvm_makes_no_errors(tmp_path: Path) -> None:
    """The first one of a process takes up to 1.2 s of processor time, though TVM catches it."""
    (tmp_path / "tells.c").write_text(TELLS_OF_ERRORS)
    tells = str(tmp_path / "tells.so")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", tells, tmp_path / "tells.c"], check=True)
    assert "error" in run(f"{COMPILER}\nimport tvm\ntry: tvm.ir.Op.get('no such')\nexcept Exception: pass", LD_PRELOAD=tells)
    assert run(COMPILER, LD_PRELOAD=tells) == ""


def test_operators_have_the_names_that_tvm_gives_them() -> None:
    names = "import tvm; print(*[(name, tvm.ir.Op.get(name).get_attr('TScriptPrinterName')) for name in sorted(tvm.ir.Op.list_op_names())])"
    found = run(f"{COMPILER}\n{names}")
    assert "'cuda.__shfl_sync'" in found
    # TVM by itself warns beside torch before 2.10, for which it would compile an extension.
    assert found == run(f"import warnings; warnings.simplefilter('ignore'); {names}")


USES = {
    "attribute": "import tvm; assert tvm.relax.op.add is not None",
    "import": "import tvm.relax; assert tvm.relax.op.add is not None",
    "from tvm": "from tvm import relax; assert relax.Var is not None; import tvm.relax as again; assert again.Var is relax.Var",
    "part": "import tvm.relax.transform; assert tvm.relax.transform.LegalizeOps is not None",
    "script": """
        from tvm.script import ir as I, relax as R, tirx as T
        import tvm
        x = tvm.relax.Var("x", tvm.relax.TensorType([4], "float32"))
        """,
    "cpp": "import tvm_ffi; assert callable(tvm_ffi.cpp.load_inline); import tvm_ffi.cpp as cpp; assert cpp.build is tvm_ffi.cpp.build",
    "metadata": """
        from importlib.metadata import distribution, metadata, version
        assert version("numpy") == numpy.__version__
        assert metadata("numpy")["Name"] == "numpy"
        """,
    "backend": "import tvm; assert tvm.backend is not None",
    "torch": "import torch; assert torch.arange(3).sum() == 3",
}


@pytest.mark.parametrize("use", USES)
def test_others_can_use_it(use: str) -> None:
    if use == "torch":
        pytest.importorskip("torch")
    run(f"import warnings\n{COMPILER}\nwarnings.simplefilter('ignore')\n{textwrap.dedent(USES[use])}")


DRIVER = "class CUstream(int): pass\nimport subprocess\n"


def test_the_driver_of_nvidia_waits_too(tmp_path: Path) -> None:
    """A driver of its own stands for NVIDIA's, which takes no streams on a computer without a GPU."""
    (tmp_path / "cuda" / "bindings").mkdir(parents=True)
    (tmp_path / "cuda" / "bindings" / "driver.py").write_text(DRIVER)
    assert (
        run(f"""
        import sys; sys.path.insert(0, {str(tmp_path)!r})
        {CALLS}
        import tvm_ffi
        echo = tvm_ffi.convert(lambda x: x)
        assert echo(3) == 3 and echo("a") == "a" and echo(numpy.ones(2)) is not None
        print(*[name for name in ("cuda.bindings.driver", "subprocess") if name in sys.modules])
        from cuda.bindings import driver
        assert driver is sys.modules["cuda.bindings.driver"]
        print(type(echo(driver.CUstream(5))).__name__)  # a pointer, where an integer would stay one
        """)
        == "c_void_p"
    )


def test_nothing_is_missing_for_those_that_wait_in_several_threads() -> None:
    """The first use of a module that was put off may come from several threads at once."""
    run(f"""
        {CALLS}
        from concurrent.futures import ThreadPoolExecutor
        from importlib.metadata import metadata
        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(lambda _: metadata("numpy")["Name"], range(64))) == ["numpy"] * 64
        """)
