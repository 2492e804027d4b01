"""The optimized graphs and the generated code of some models equal the kept ones (tests/golden)."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("tvm")
pytest.importorskip("lightgbm")
pytest.importorskip("xgboost")
pytest.importorskip("catboost")
pytest.importorskip("skl2onnx")
pytest.importorskip("onnxmltools")
pytest.importorskip("pandas")

from golden.programs import KEPT, difference, file_of, kept, programs

from hbc.compiler.tvm.compiler import EMISSIONS

PROGRAMS = programs()
OF_THE_PLAN = {"CategoricalTrees", "Input", "RowArgMax", "RowDot", "RowProbabilities"}
"""The operators that no printed graph has a line of: the backend puts them into its plan."""


@pytest.mark.every_case
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_generated_is_what_is_kept(name: str) -> None:
    found = difference(name, PROGRAMS[name]())
    assert not found, f"{found}\nIf this is meant: make golden"


def test_no_program_is_left_over() -> None:
    assert {path.name for path in KEPT.iterdir()} == {file_of(name).name for name in PROGRAMS}


def test_every_operator_of_the_backend_is_in_a_program() -> None:
    line = re.compile(r"^    v\d+: [^=]*= (\w+)\(", re.MULTILINE)
    found = {operator for name in PROGRAMS for operator in line.findall(kept(name))}
    assert {op.__name__ for op in EMISSIONS} - found == OF_THE_PLAN
