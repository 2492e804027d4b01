"""What type checkers, `help` and `dir` show of a compiled model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

import hbc
from hbc.compiler import base
from hbc.compiler.base import ALIASES, BACKENDS
from hbc.ir.graph import Graph, Input
from hbc.ir.lazy_graph import LazyGraph
from hbc.ir.signature import Column, InputSpec, ModelInfo
from hbc.ir.types import N
from hbc.runtime.model import CompiledModel
from hbc.runtime.origin import new_origin

ROOT = Path(hbc.__file__).parents[1]

RIGHT = """
from typing import Any

import numpy as np
import hbc

m: hbc.CompiledModel = hbc.convert(object(), "tvm", device="cuda:0", strategy="walk")
labels: np.ndarray[Any, Any] = m.predict(np.ones((2, 3)))
m.predict_proba([[1.0, 2.0], [3.0, 4.0]], raw_score=True)
m.predict([{"age": 3, "city": "Rome"}])
m.predict({"age": [3], "city": ["Rome"]})
print(m.classes_.dtype, m.n_features_in_ + 1, m.score([[1.0]], [1]))
hbc.load("model.hbc", backend="numpy").save("other.hbc")
"""
WRONG = {
    "m.prdict(3)": "attr-defined",
    "m.predict()": "call-arg",
    "m.predict(object())": "arg-type",
    "m.predict([[1.0]], raw_scores=True)": "call-arg",
    'hbc.convert(m, "tmv")': "arg-type",
    'hbc.convert(m, strategy="wlak")': "arg-type",
    'hbc.load("model.hbc", device="gpu")': "arg-type",
    "hbc.covert(m)": "attr-defined",
}


def mypy(script: str, folder: Path) -> list[str]:
    """The errors in a user's script. hbc's own files are followed silently, as those of installed packages are."""
    (folder / "user.py").write_text(script)
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--config-file=", "user.py"]
    environment = {"MYPYPATH": str(ROOT), "PATH": "", "HOME": str(folder)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert not done.stderr
    return [line for line in done.stdout.splitlines() if ": error:" in line]


def test_a_users_script_is_clean(tmp_path: Path) -> None:
    """And each wrong line of another is an error."""
    pytest.importorskip("mypy")
    assert mypy(RIGHT, tmp_path) == []
    start = "import hbc\n\nm: hbc.CompiledModel = hbc.load('model.hbc')\n"
    errors = mypy(start + "\n".join(WRONG), tmp_path)
    found = [(int(line.split(":")[1]) - 4, line.rpartition("[")[2].rstrip("]")) for line in errors]
    assert found == list(enumerate(WRONG.values())), errors


def test_literals_are_what_there_is() -> None:
    assert set(get_args(base.BackendName)) == {*BACKENDS, *ALIASES}
    known = {strategy for name, there in hbc.backends().items() if there for strategy in hbc.strategies(name)}
    assert known <= set(get_args(base.StrategyName))
    assert not all(hbc.backends().values()) or known == set(get_args(base.StrategyName))


def test_dir_shows_what_is_public() -> None:
    assert set(dir(hbc)) == {*hbc.__all__, "__version__"}


@pytest.fixture
def model() -> Any:
    x = Input("X", "f64", (N, 2))()
    from hbc.builder import Builder

    graphs = {("f64", "f64"): LazyGraph.of(Graph((x,), {"predict": (x,), "odd_output": (x,)}))}
    builder = Builder("numpy", base.CompileOptions())
    spec = InputSpec((Column(),) * 2)
    return CompiledModel(ModelInfo("a.B", {}, {}), spec, graphs, builder, ("f64", "f64"), new_origin({}))  # type: ignore[arg-type]


def test_methods_say_what_they_return(model: Any) -> None:
    assert "[rows] or [rows, targets]" in model.predict.__doc__
    assert "`odd_output`" in model.odd_output.__doc__
    for method in (model.predict, model.odd_output):
        assert "Raises InvalidInputError" in method.__doc__
    np.testing.assert_array_equal(model.odd_output([[1.0, 2.0]]), [[1.0, 2.0]])


def test_a_missing_method_lists_those_there_are(model: Any) -> None:
    with pytest.raises(
        AttributeError, match=r"'CompiledModel' object has no attribute 'transform'; .*methods predict, odd_output"
    ):
        model.transform([[1.0, 2.0]])
    assert not hasattr(model, "__array__")
