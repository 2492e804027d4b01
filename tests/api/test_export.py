"""`CompiledModel.export`: the options that all kinds of files take, and what is refused before anything is compiled. What is in the files
is tested in the folders of their backends."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import make_column_transformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler

import hbc
from hbc.cli import main
from hbc.runtime.model import CompiledModel

X = np.random.default_rng(0).normal(size=(60, 4))
Y = (X[:, 0] > 0).astype(int)


@pytest.fixture(scope="module")
def classifier() -> CompiledModel:
    return hbc.convert(make_pipeline(StandardScaler(), LogisticRegression()).fit(X, Y), "numpy")


def inputs_and_outputs(path: Path) -> tuple[list[str], list[str]]:
    ort = pytest.importorskip("onnxruntime")
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    return [i.type for i in session.get_inputs()], [o.name for o in session.get_outputs()]


def test_only_the_asked_methods_in_their_order(classifier: CompiledModel, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    classifier.export(path, methods=["predict_proba", "predict"])
    assert inputs_and_outputs(path) == (["tensor(float)"], ["predict_proba", "predict"])
    classifier.export(path, methods="decision_function", dtype="float64")
    assert inputs_and_outputs(path) == (["tensor(double)"], ["decision_function"])
    classifier.export(path, dtype=np.int64)
    assert inputs_and_outputs(path)[0] == ["tensor(int64)"]


@pytest.mark.parametrize("suffix", [".onnx", ".pt", ".so"])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"methods": "predict_probas"}, r"methods: found 'predict_probas', expected some of .*predict_proba"),
        ({"methods": []}, r"methods: found nothing, expected some of .*predict"),
        ({"dtype": "float16"}, r"dtype float16: the model is compiled for float32, float64, int64"),
        ({"colour": "red", "dtype": "f4"}, r"unknown option colour; \S+ files take methods, dtype"),
    ],
)
def test_wrong_options_are_refused(
    classifier: CompiledModel, suffix: str, options: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        classifier.export(tmp_path / f"m{suffix}", **options)
    assert not list(tmp_path.iterdir())


def test_strings_are_refused_naming_columns_and_methods(tmp_path: Path) -> None:
    frame = pd.DataFrame({"age": X[:, 0], "city": np.where(Y, "Oslo", "Bonn")})
    columns = make_column_transformer((OneHotEncoder(), ["city"]), remainder="passthrough")
    compiled = hbc.convert(make_pipeline(columns, LogisticRegression()).fit(frame, Y), "numpy")
    with pytest.raises(ValueError, match=re.escape("the model takes strings (column 1 ('city')), which .pt files cannot hold")):
        compiled.export(tmp_path / "m.pt")
    labelled = hbc.convert(LogisticRegression().fit(X, np.where(Y, "yes", "no")), "numpy")
    with pytest.raises(ValueError, match=r"predict returns strings, which \.pt files cannot hold\. Use classes_"):
        labelled.export(tmp_path / "m.pt", methods=["predict", "predict_proba"])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("suffix", [".pt", ".so"])
def test_documents_are_refused_without_advice_that_fails(suffix: str, tmp_path: Path) -> None:
    model = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(["a bee", "cat dog", "bee cat"], [0, 1, 1])
    with pytest.raises(ValueError, match=rf"takes documents, which \{suffix} files cannot hold\. save\(\) it instead"):
        hbc.convert(model, "numpy").export(tmp_path / f"m{suffix}")


def test_operators_of_the_host_are_named(tmp_path: Path) -> None:
    model = make_pipeline(FunctionTransformer(np.sin), RandomForestClassifier(3, max_depth=3)).fit(X, Y)
    with pytest.raises(ValueError, match=r"runs in numpy, outside the compiled code: Function 'sin'"):
        hbc.convert(model, "numpy").export(tmp_path / "m.onnx")


def test_the_command_line_passes_options(classifier: CompiledModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved, path = tmp_path / "m.hbc", tmp_path / "m.onnx"
    classifier.save(saved)
    with pytest.raises(SystemExit, match="0"):
        main(["export", str(saved), "-o", str(path), "--methods", "predict_proba, predict", "--dtype", "float64"])
    assert inputs_and_outputs(path) == (["tensor(double)"], ["predict_proba", "predict"])
    with pytest.raises(SystemExit, match="0"):
        main(["export", str(saved), "-o", str(path), "--opset", "17", "--plain", "--columns", "--methods", "predict"])
    assert inputs_and_outputs(path) == (["tensor(float)"] * 4, ["predict"])
    with pytest.raises(SystemExit, match="1"):
        main(["export", str(saved), "-o", str(tmp_path / "m.pt"), "--plain"])
    assert "unknown option plain; .pt files take methods, dtype" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="1"):
        main(["export", str(saved), "-o", str(tmp_path / "m.exe")])
    assert "expected .so, .o, .a, .pt2, .pt, .onnx" in capsys.readouterr().err
