"""Several methods for the same rows: what they share is computed once, and every result has the bits that the method has alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.compose import make_column_transformer
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from test_estimators import CASES, converted

import hbc
from hbc.compiler.tvm.run.executable import TvmExecutable
from hbc.errors import BackendUnavailableError
from hbc.ir.coded_strings import dense

RNG = np.random.default_rng(0)
FRAME = pd.DataFrame({"age": RNG.integers(18, 80, 900).astype(float), "town": RNG.choice(["Ulm", "Bonn", "Kiel"], 900)})
TABLE = pa.Table.from_pandas(FRAME)
METHODS = ["predict", "predict_proba", "decision_function"]


@pytest.mark.one_in(100)  # a case compiles all methods alone and together
@pytest.mark.filterwarnings("ignore:Found unknown categories")
@pytest.mark.parametrize("name", CASES)
def test_methods_together_have_the_bits_of_each_alone(name: str) -> None:
    _, X, compiled = converted(CASES[name], "tvm")
    intake = next(iter(compiled._calls.values())).shared.intake
    kinds, arrays = intake(intake.frame_of(X))
    ready = compiled.variants[kinds].ready
    taken = arrays if ready.takes_coded_strings else [dense(array) for array in arrays]
    together = ready.executable.run_together(compiled.methods, taken)
    for method, found in zip(compiled.methods, together, strict=True):
        for one, alone in zip(found, ready.executable.run(method, taken), strict=True):
            assert one.dtype == alone.dtype
            np.testing.assert_array_equal(one, alone)
            if one.dtype.kind == "f":
                np.testing.assert_array_equal(np.signbit(one), np.signbit(alone))


@pytest.fixture(scope="module")
def model() -> Any:
    columns = make_column_transformer((OneHotEncoder(handle_unknown="ignore"), ["town"]), remainder="passthrough")
    model = make_pipeline(columns, GradientBoostingClassifier(n_estimators=20))
    return model.fit(FRAME, np.where((FRAME.age > 40) ^ (FRAME.town == "Ulm"), "left", "stayed"))


@pytest.mark.parametrize("backend", ["numpy", "tvm", "onnx", "torch"])
def test_arrow_gives_for_several_methods_what_each_gives(model: Any, backend: str) -> None:
    compiled = hbc.convert(model, backend)
    for table in (TABLE, TABLE[:3], TABLE[:0]):
        whole = compiled.arrow(METHODS)(table)
        parts = [compiled.arrow(method)(table) for method in METHODS]
        assert whole.equals(pa.Table.from_arrays([c for part in parts for c in part.columns], schema=whole.schema))
    assert whole.num_columns == 4


def test_tvm_computes_what_is_shared_once(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = hbc.convert(model, "tvm")
    score, called = compiled.arrow(METHODS), []
    run = TvmExecutable.run
    monkeypatch.setattr(TvmExecutable, "run", lambda self, method, arrays: called.append(method) or run(self, method, arrays))
    score(TABLE)
    assert called == ["predict + predict_proba + decision_function"]


def test_a_value_that_is_rejected_is_the_first_method_s_error(model: Any) -> None:
    broken = TABLE.set_column(0, "age", pa.array(np.where(np.arange(900) == 777, np.inf, FRAME.age)))
    compiled = hbc.convert(model, "tvm")
    for methods in (METHODS, METHODS[:1]):
        with pytest.raises(hbc.InvalidInputError, match="inf in row 777"):
            compiled.arrow(methods)(broken)


def test_without_a_compiler_the_methods_of_the_file_are_called_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A saved model has the code of each method, and none for several. Where TVM is not installed, that is enough."""
    path = tmp_path / "model.hbc"
    columns = make_column_transformer((OneHotEncoder(handle_unknown="ignore"), ["town"]), remainder="passthrough")
    model = make_pipeline(columns, LogisticRegression()).fit(FRAME, FRAME.town == "Ulm")  # has few methods
    hbc.convert(model, "tvm", FRAME[["age", "town"]]).save(path, code="x86-64-v3")
    expected = hbc.load(path).arrow(METHODS)(TABLE)
    loaded = hbc.load(path, trust_code=True)

    def no_compiler(self: Any, method: str) -> Any:
        raise BackendUnavailableError(backend="tvm", reason="not installed", extra="tvm")

    monkeypatch.setattr(TvmExecutable, "_compiler", no_compiler)
    assert loaded.arrow(METHODS)(TABLE).equals(expected)
