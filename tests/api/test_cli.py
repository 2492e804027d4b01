"""The command line, as a user types it."""

from __future__ import annotations

import io
import json
import pickle
import re
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import hbc
from hbc.cli import main


def run(*arguments: object, ok: bool = True) -> str:
    """Runs a command in this process. A new process would import everything, which takes seconds, on a busy machine half a minute."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
        main(list(map(str, arguments)))
    assert (ended.value.code == 0) is ok, out.getvalue() + err.getvalue()
    return (out if ok else err).getvalue()


def run_alone(*arguments: object, ok: bool = True) -> str:
    """Runs a command in a process of its own, and returns also the output of C libraries."""
    done = subprocess.run([sys.executable, "-m", "hbc.cli", *map(str, arguments)], capture_output=True, text=True)
    assert (done.returncode == 0) is ok, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout if ok else done.stderr


@pytest.fixture(scope="module")
def pickled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    X, y = load_breast_cancer(return_X_y=True)
    path = tmp_path_factory.mktemp("models") / "model.pkl"
    path.write_bytes(pickle.dumps(make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(X, y)))
    return path


WRITERS = {".hbc": "tvm", ".onnx": "onnx", ".pt": "torch", ".so": "tvm"}


@pytest.mark.parametrize("suffix", WRITERS)
def test_convert_writes_every_kind_of_file(pickled: Path, tmp_path: Path, suffix: str) -> None:
    pytest.importorskip(WRITERS[suffix])
    output = tmp_path / f"model{suffix}"
    assert str(output) in run("convert", pickled, "--trust", "-o", output)
    assert output.stat().st_size > 0


def test_an_onnx_model_is_never_overwritten(pickled: Path, tmp_path: Path) -> None:
    """.onnx is what hbc writes, and what it reads."""
    fitted, model, output = pickle.loads(pickled.read_bytes()), tmp_path / "model.onnx", tmp_path / "model.hbc"
    X, _ = load_breast_cancer(return_X_y=True)
    exported = pytest.importorskip("skl2onnx").to_onnx(fitted, X[:1].astype(np.float32))
    model.write_bytes(exported.SerializeToString())
    assert "the model itself" in run("convert", model, "-o", model, ok=False)
    run("convert", model, "-o", output, "--backend", "numpy")
    np.testing.assert_array_equal(hbc.load(output).predict(X), fitted.predict(X))


def test_a_converted_model_scores(pickled: Path, tmp_path: Path) -> None:
    output = tmp_path / "model.hbc"
    run_alone("convert", pickled, "--trust", "-o", output, "--backend", "numpy")
    X, _ = load_breast_cancer(return_X_y=True)
    expected = pickle.loads(pickled.read_bytes()).predict_proba(X)
    np.testing.assert_allclose(hbc.load(output).predict_proba(X), expected, rtol=1e-7)
    assert "Linear" in run("explain", output)
    assert "</svg>" in run("explain", output, "--html")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["convert", "{model}", "-o", "{out}/x.hbc"], "--trust"),
        (["convert", "nothing.pkl", "--trust", "-o", "{out}/x.hbc"], "no such file"),
        (["convert", "{model}", "--trust", "-o", "{out}/x.hbc", "--backend", "jax"], "unknown backend 'jax'; known are"),
        (["convert", "{model}", "--trust", "-o", "{out}/nowhere/x.hbc"], "no such folder"),
        (["convert", "{out}/model.xyz", "-o", "{out}/x.hbc"], "suffix"),
        (["convert", "{out}/broken.json", "-o", "{out}/x.hbc"], "cannot read"),
        (["convert", "{out}", "-o", "{out}/x.hbc"], "suffix"),
        (["convert", "{out}/folder.json", "-o", "{out}/x.hbc"], "found a folder"),
        (["convert", "{model}", "--trust", "-o", "{out}/x.joblib"], "found the suffix '.joblib'"),
        (["convert", "{out}/x.hbc", "-o", "{out}/y.hbc"], "no such file"),
        (
            ["convert", "{model}", "--trust", "-o", "{out}/x.xyz"],
            "found the suffix '.xyz', expected .hbc, .onnx, .pt, .pt2, .so, .o or .a",
        ),
        (["convert", "{model}", "--trust", "-o", "{out}/x"], "found no suffix"),
        (["explain", "{model}"], "saved by hbc"),
        (
            ["convert", "{model}", "--trust", "-o", "{out}/x.so", "--code", "aarch64"],
            "found --code, which only .hbc files take",
        ),
        (["convert", "{model}", "--trust", "-o", "{out}/x.hbc", "--code", "avx2"], "found 'avx2', expected some of x86-64-v4"),
        (["info", "{model}"], "saved by hbc"),
        (["info", "{out}/nothing.hbc"], "nothing.hbc: No such file"),
        (["explain", "{out}/nothing.hbc"], "nothing.hbc: No such file"),
    ],
)
def test_errors_are_one_clear_line(pickled: Path, tmp_path: Path, arguments: list[str], message: str) -> None:
    if message == "cannot read":
        pytest.importorskip("xgboost")
    (tmp_path / "model.xyz").write_text("")
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "broken.json").write_text("{")
    said = run(*(a.format(model=pickled, out=tmp_path) for a in arguments), ok=False)
    assert message in said
    assert not list(tmp_path.glob("x.*"))


def test_info_says_what_a_file_is(pickled: Path, tmp_path: Path) -> None:
    run("convert", pickled, "--trust", "--backend", "numpy", "-o", tmp_path / "m.hbc")
    hbc.load(tmp_path / "m.hbc").save(tmp_path / "noted.hbc", metadata={"run": 17})
    said = run("info", tmp_path / "noted.hbc")
    assert "source: sklearn." in said
    assert "metadata run: 17" in said
    found = json.loads(run("info", tmp_path / "noted.hbc", "--json"))
    assert found["digest"] in said
    assert found["members"]["model.json"][0] > 1000
    old = Path(__file__).parents[1] / "runtime" / "artifacts" / "columns.format1.hbc"
    assert "format: 1\nsource: sklearn.pipeline.Pipeline" in run("info", old)


def test_code_for_levels_of_processors(pickled: Path, tmp_path: Path) -> None:
    pytest.importorskip("tvm")
    output = tmp_path / "m.hbc"
    run("convert", pickled, "--trust", "-o", output, "--code", "x86-64-v3, aarch64")
    found = re.search(r"compiled code: x86-64-v3 \(([\d,]+) bytes\), aarch64 \(([\d,]+) bytes\)\n", run("info", output))
    assert found
    assert all(int(size.replace(",", "")) > 10_000 for size in found.groups())
    assert list(json.loads(run("info", output, "--json"))["code"]) == ["x86-64-v3", "aarch64"]


def test_doctor_says_what_works() -> None:
    said = run("doctor")
    for backend in hbc.backends():
        assert backend in said
    assert "works" in said
    assert "vector instructions" in said


@pytest.mark.parametrize("command", [[], ["convert"], ["info"], ["explain"], ["doctor"]])
def test_help_is_worth_reading(command: list[str]) -> None:
    said = run(*command, "--help")
    assert "Usage" in said
    assert len(said) > 200


@pytest.mark.parametrize("name", ["model.txt", "model.json", "model.ubj"])
def test_models_of_boosting_libraries(tmp_path: Path, name: str) -> None:
    """A library's own files are read by the library, and hold a Booster."""
    X, y = load_breast_cancer(return_X_y=True)
    if name.endswith(".txt"):
        lightgbm = pytest.importorskip("lightgbm")
        booster = lightgbm.LGBMClassifier(n_estimators=5, verbose=-1).fit(X, y).booster_
        expected = booster.predict(X)
    else:
        xgboost = pytest.importorskip("xgboost")
        booster = xgboost.XGBClassifier(n_estimators=5).fit(X, y).get_booster()
        expected = booster.inplace_predict(X)
    model, output = tmp_path / name, tmp_path / "model.hbc"
    booster.save_model(model)
    run("convert", model, "-o", output, "--backend", "numpy")
    np.testing.assert_allclose(hbc.load(output).predict(X), expected, rtol=1e-6)

    whole = model.read_bytes()
    model.write_bytes(whole[: len(whole) // 2])
    said = run_alone("convert", model, "-o", output, ok=False)
    assert "cannot read" in said
    assert "Stack trace" not in said
    assert "suffix" in run("convert", model, "-o", model, ok=False)
