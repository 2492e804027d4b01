"""The optimized graphs and the generated code of 58 models equal the kept ones (tests/golden)."""

from __future__ import annotations

import pytest

pytest.importorskip("tvm")
pytest.importorskip("lightgbm")
pytest.importorskip("xgboost")
pytest.importorskip("catboost")
pytest.importorskip("skl2onnx")
pytest.importorskip("onnxmltools")
pytest.importorskip("pandas")

from golden.programs import KEPT, difference, file_of, programs

PROGRAMS = programs()


@pytest.mark.every_case
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_generated_is_what_is_kept(name: str) -> None:
    found = difference(name, PROGRAMS[name]())
    assert not found, f"{found}\nIf this is meant: make golden"


def test_no_program_is_left_over() -> None:
    assert {path.name for path in KEPT.iterdir()} == {file_of(name).name for name in PROGRAMS}
