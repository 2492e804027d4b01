"""The command line, as a user types it."""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import time
import warnings
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
import pytest
import sklearn
from installed import ABSENT
from sklearn.base import BaseEstimator
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

import hbc
from hbc.cli import main
from hbc.cli.models import source_of


def run(*arguments: object, ok: bool = True) -> str:
    """Runs a command in this process. A new process would import everything, which takes seconds, on a busy machine half a minute."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
        main(list(map(str, arguments)))
    assert (ended.value.code == 0) is ok, out.getvalue() + err.getvalue()
    return (out if ok else err).getvalue()


def run_alone(*arguments: object, ok: bool = True) -> str:
    """Runs a command in a process of its own, and returns also the output of C libraries."""
    done = subprocess.run([sys.executable, "-m", "hbc", *map(str, arguments)], capture_output=True, text=True)
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
    assert "the file that is read" in run("convert", model, "-o", model, ok=False)
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
        (["convert", "{out}/broken.json", "-o", "{out}/x.hbc"], "cannot be read"),
        (["convert", "{out}", "-o", "{out}/x.hbc"], "found a directory"),
        (["convert", "{out}/folder.json", "-o", "{out}/x.hbc"], "found a directory"),
        (["convert", "{model}", "--trust", "-o", "{out}/x.joblib"], "found the suffix '.joblib'"),
        (["convert", "{out}/x.hbc", "-o", "{out}/y.hbc"], "no such file"),
        (["convert", "{model}", "--trust", "-o", "/proc/x.hbc"], "/proc/x.hbc: found a folder in which no file can be made"),
        (
            ["convert", "{model}", "--trust", "-o", "{out}/x.xyz"],
            "found the suffix '.xyz', expected .hbc, .onnx, .pt, .pt2, .so, .o or .a",
        ),
        (["convert", "{model}", "--trust", "-o", "{out}/x"], "found no suffix"),
        (["explain", "{model}"], "--trust"),
        (
            ["convert", "{model}", "--trust", "-o", "{out}/x.so", "--code", "aarch64"],
            "found --code, which only .hbc files take",
        ),
        (["convert", "{model}", "--trust", "-o", "{out}/x.hbc", "--code", "avx2"], "found 'avx2', expected some of x86-64-v4"),
        (
            ["convert", "{model}", "--trust", "-o", "{out}/x.onnx", "--backend", "torch"],
            "--backend: found torch, expected onnx or none, since it writes .onnx files",
        ),
        (["info", "{model}"], "saved by hbc"),
        (["info", "{model}"], "First: hbc convert {model} --trust -o model.hbc"),
        (["predict", "{model}", "{out}/x.csv"], "First: hbc convert {model} --trust -o model.hbc"),
        (["export", "{model}", "-o", "{out}/x.so"], "hbc convert {model} --trust -o {out}/x.so"),
        (["serve", "{out}/trees.hbc", "--host", "nowhere.invalid"], "nowhere.invalid: "),
        (["serve", "{out}/trees.hbc", "--host", "192.0.2.1"], "192.0.2.1:8000: Cannot assign requested address. --host takes"),
        (
            ["serve", "{out}/trees.hbc", "--certificate", "{out}/trees.hbc", "--key", "{out}/no.pem"],
            "TLS: found {out}/trees.hbc and {out}/no.pem, which cannot be used",
        ),
        (["info", "{out}/nothing.hbc"], "nothing.hbc: no such file"),
        (["explain", "{out}/nothing.hbc"], "nothing.hbc: no such file"),
        (["convert", "{out}/nothing.hbc"], "nothing.hbc: no such file"),
        (["predict", "{out}/model.xyz", "{out}/x.csv"], "expected a .hbc file."),
        (["bench", "{out}/trees.hbc", "{out}/x.csv"], "trees.hbc: found a model saved by hbc, expected the fitted model"),
        (["export", "{out}/trees.hbc", "-o", "{out}/x.onnx", "--onnx"], "--onnx: found it without --triton"),
        (["serve", "{out}/trees.hbc", "--port", "8001", "--grpc-port", "8001"], "found 8001 for both, expected two ports"),
    ],
)
def test_errors_are_one_clear_line(pickled: Path, tmp_path: Path, arguments: list[str], message: str) -> None:
    if message == "cannot be read":
        pytest.importorskip("xgboost")
    (tmp_path / "model.xyz").write_text("")
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "trees.hbc").write_text("")
    if arguments[0] == "serve":
        pytest.importorskip("uvicorn")
    said = run(*(a.format(model=pickled, out=tmp_path) for a in arguments), ok=False)
    assert message.format(model=pickled, out=tmp_path) in said
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


def test_code_for_levels_of_processors(tmp_path: Path) -> None:
    pytest.importorskip("tvm")
    model, output = tmp_path / "model.pkl", tmp_path / "m.hbc"
    model.write_bytes(pickle.dumps(StandardScaler().fit(np.eye(4))))  # of one method, since all are compiled
    run("convert", model, "--trust", "-o", output, "--code", "x86-64-v3, aarch64")
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


@pytest.mark.every_case
@pytest.mark.parametrize("loss", ["Logloss", "MultiClass", "RMSE", "Poisson", "YetiRank"])
def test_files_of_catboost(tmp_path: Path, loss: str) -> None:
    """A file becomes the class whose predictions the model makes."""
    catboost = pytest.importorskip("catboost")
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 3))
    kinds = {"Logloss": "Classifier", "MultiClass": "Classifier", "YetiRank": "Ranker"}
    targets = {"Logloss": np.where(X[:, 0] > 0, "yes", "no"), "MultiClass": rng.integers(0, 3, 200)}
    groups = {"group_id": np.arange(200) // 10} if loss == "YetiRank" else {}
    kind = f"CatBoost{kinds.get(loss, 'Regressor')}"
    fitted = getattr(catboost, kind)(iterations=5, loss_function=loss, verbose=0, allow_writing_files=False)
    fitted.fit(X, targets.get(loss, abs(X[:, 0])), **groups)
    fitted.save_model(str(tmp_path / "model.cbm"))
    compiled = hbc.convert(tmp_path / "model.cbm", backend="numpy")
    assert compiled.info.source == f"catboost.{kind}"
    equal = np.testing.assert_array_equal if "Classifier" in kind else np.testing.assert_allclose
    equal(compiled.predict(X), fitted.predict(X))
    (tmp_path / "cut.cbm").write_bytes((tmp_path / "model.cbm").read_bytes()[:-9])
    assert "as CatBoost writes it" in run("convert", tmp_path / "cut.cbm", "-o", tmp_path / "x.hbc", ok=False)


def test_a_pickle_of_another_version_is_warned_of(pickled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Once, though scikit-learn warns of each estimator."""
    other = re.sub(r"\d", "0", sklearn.__version__)
    (tmp_path / "old.pkl").write_bytes(pickled.read_bytes().replace(sklearn.__version__.encode(), other.encode()))
    source_of(tmp_path / "old.pkl", trust=True)
    assert capsys.readouterr().err.count(f"hbc: warning: {tmp_path}/old.pkl: scikit-learn {other} saved it") == 1


def test_a_warning_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not name the place in hbc's source from which it comes."""
    monkeypatch.setattr(sys.modules["hbc.cli.doctor"], "_gpu", lambda: warnings.warn("look at this", stacklevel=1))
    monkeypatch.setattr(warnings, "filters", [("default", None, UserWarning, None, 0)])
    with pytest.raises(SystemExit):
        main(["doctor", "--quiet"])
    assert capsys.readouterr() == ("", "hbc: warning: look at this\n")


@pytest.mark.parametrize("name", ["model.txt", "model.json", "model.ubj"])
def test_models_of_boosting_libraries(tmp_path: Path, name: str, capfd: pytest.CaptureFixture[str]) -> None:
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
    capfd.readouterr()
    assert "cannot be read" in run("convert", model, "-o", output, ok=False)
    assert capfd.readouterr() == ("", "")  # nothing of the library, which prints its own stack traces
    assert "suffix" in run("convert", model, "-o", model, ok=False)


def test_version() -> None:
    assert run("--version") == f"hbc {hbc.__version__}\n"
    assert run_alone("--version") == f"hbc {hbc.__version__}\n"


def test_completion() -> None:
    """The shell asks for the commands, and for the values of an option."""
    environment = {**os.environ, "_HBC_COMPLETE": "complete_bash", "COMP_WORDS": "hbc convert --backend ", "COMP_CWORD": "3"}
    done = subprocess.run([sys.executable, "-m", "hbc"], capture_output=True, text=True, env=environment)
    assert done.stdout.split() == ["tvm", "torch", "torchscript", "onnx", "numpy"]


def test_doctor_as_json() -> None:
    found = json.loads(run("doctor", "--json"))
    assert found["backends"]["numpy"] == "works"
    assert found["libraries"]["numpy"] == np.__version__
    assert {"catboost", "narwhals"} <= set(found["libraries"])
    assert set(found["computer"]) == {"processor", "cores", "vector instructions", "memory", "GPU"}
    assert run("doctor", "--quiet") == ""


class Unknown(BaseEstimator):
    def fit(self, X: object, y: object = None) -> Unknown:
        self.fitted_ = True
        return self

    def transform(self, X: object) -> object:
        return X


def test_a_step_without_converter_is_named_before_a_sample_is_asked_for(tmp_path: Path) -> None:
    """Neither pipeline knows how many columns it takes. A sample helps only the second one."""
    X = np.arange(12.0).reshape(4, 3)
    first, second = tmp_path / "first.pkl", tmp_path / "second.pkl"
    first.write_bytes(pickle.dumps(make_pipeline(Unknown(), StandardScaler(), make_pipeline(Unknown())).fit(X)))
    second.write_bytes(pickle.dumps(make_pipeline(FunctionTransformer(np.log1p), StandardScaler()).fit(X)))
    said = run("convert", first, "--trust", "-o", tmp_path / "m.hbc", "--backend", "numpy", ok=False)
    assert "Unknown at model.steps[0] 'unknown'" in said
    assert "model.steps[2] 'pipeline'.steps[0] 'unknown'" in said
    assert "sample" not in said


def test_a_sample_of_the_input(tmp_path: Path) -> None:
    """In each of the formats. A model whose first step keeps no number of columns needs it."""
    pandas = pytest.importorskip("pandas")
    X = pandas.DataFrame({"a": [1.0, 2.0, 4.0], "b": [3.0, 5.0, 1.0]})
    fitted = make_pipeline(FunctionTransformer(), FunctionTransformer()).fit(X)
    model, output = tmp_path / "model.pkl", tmp_path / "m.hbc"
    model.write_bytes(pickle.dumps(fitted))
    X.to_csv(tmp_path / "X.csv", index=False)
    X.to_parquet(tmp_path / "X.parquet")
    np.save(tmp_path / "X.npy", X.to_numpy())
    for name in ("X.csv", "X.parquet", "X.npy"):
        run("convert", model, "--trust", "-o", output, "--backend", "numpy", "--sample", tmp_path / name)
        np.testing.assert_array_equal(hbc.load(output).transform(X), fitted.transform(X))
    (tmp_path / "broken.parquet").write_text("a,b")
    for name, message in {
        "broken.parquet": "cannot be read",
        "X.txt": "no such file",
        "model.pkl": "found the suffix '.pkl'",
    }.items():
        assert message in run("convert", model, "--trust", "-o", output, "--sample", tmp_path / name, ok=False)


def test_a_saved_model_is_exported_and_moved(pickled: Path, tmp_path: Path) -> None:
    """`convert model.hbc -o x.onnx` writes what `export` writes; `convert model.hbc -o other.hbc` moves it to another backend."""
    onnxruntime = pytest.importorskip("onnxruntime")
    X, _ = load_breast_cancer(return_X_y=True)
    saved = tmp_path / "m.hbc"
    options = ("--threads", 1, "--batch-size", 10, "--quiet")
    assert run("convert", pickled, "--trust", "-o", saved, "--backend", "numpy", *options) == ""
    settings = json.loads(run("info", saved, "--json"))["settings"]
    assert (settings["threads"], settings["batch_size"]) == (1, 10)
    written = {}
    for command in ("convert", "export"):
        output = tmp_path / f"{command}.onnx"
        said = json.loads(run(command, saved, "-o", output, "--methods", "predict_proba", "--json"))
        assert said["bytes"] == output.stat().st_size
        written[command] = onnxruntime.InferenceSession(output).run(None, {"X": X.astype("f4")})
    expected = pickle.loads(pickled.read_bytes()).predict_proba(X.astype("f4"))
    for found in written.values():
        assert len(found) == 1
        np.testing.assert_allclose(found[0], expected, rtol=1e-5)
    run("convert", saved, "-o", tmp_path / "moved.hbc", "--backend", "onnx")
    assert json.loads(run("info", tmp_path / "moved.hbc", "--json"))["settings"]["backend"] == "onnx"
    assert "settled already" in run("convert", saved, "-o", tmp_path / "n.hbc", "--threads", 2, ok=False)
    assert "found no model saved by hbc" in run("export", pickled, "-o", tmp_path / "n.onnx", ok=False)


def test_the_output_is_named_after_the_model(pickled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("convert", pickled, "--trust", "--backend", "numpy").startswith("model.hbc: sklearn.pipeline.Pipeline for numpy")
    assert Path("model.hbc").exists()
    assert "found a file of this name" in run("convert", pickled, "--trust", ok=False)


def test_a_target_is_for_libraries_or_json(pickled: Path, tmp_path: Path) -> None:
    pytest.importorskip("tvm")
    target = json.dumps({"kind": "llvm", "mtriple": "aarch64-linux-gnu"})
    run("convert", pickled, "--trust", "-o", tmp_path / "m.hbc", "--target", target)
    assert "aarch64" in run("info", tmp_path / "m.hbc")
    assert "--code" in run("convert", pickled, "--trust", "-o", tmp_path / "n.hbc", "--target", "aarch64", ok=False)


BROKEN = {
    "broken.txt": ("lightgbm", "its library says: Unknown model format"),
    "broken.json": ("xgboost", "its library says: "),
    "broken.pkl": ("joblib", "it is no pickle, or a damaged one"),
}
ONE_BY_ONE = """
import sys
from hbc.cli import main
for line in sys.stdin:
    try: main(line.split())
    except SystemExit as ended: print(ended.code, file=sys.stderr, flush=True)
"""


def test_nothing_of_other_libraries_is_printed(tmp_path: Path) -> None:
    """Nor by their code in C. One process reads all files: it imports three libraries."""
    named = {name: message for name, (library, message) in BROKEN.items() if library not in ABSENT}
    commands = "".join(f"convert {tmp_path / name} --trust -o {tmp_path / 'm.hbc'}\n" for name in named)
    for name in named:
        (tmp_path / name).write_text("hello")
    done = subprocess.run([sys.executable, "-c", ONE_BY_ONE], input=commands, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")
    lines = done.stderr.splitlines()
    for (name, message), said, status in zip(named.items(), lines[::2], lines[1::2], strict=True):
        assert status == "1"
        assert said.startswith(f"hbc: {tmp_path / name}: found a file that cannot be read ({message}")
        assert not re.search(r"\d\d:\d\d:\d\d|\.h:", said)


def test_python_reads_what_the_command_reads(pickled: Path, tmp_path: Path) -> None:
    lightgbm = pytest.importorskip("lightgbm")
    X, y = load_breast_cancer(return_X_y=True)
    booster = lightgbm.LGBMClassifier(n_estimators=5, verbose=-1).fit(X, y).booster_
    booster.save_model(tmp_path / "m.txt")
    for path in (tmp_path / "m.txt", str(tmp_path / "m.txt")):
        np.testing.assert_allclose(hbc.convert(path, "numpy").predict(X), booster.predict(X), rtol=1e-12)
    assert "lightgbm.Booster" in run("explain", tmp_path / "m.txt", "--backend", "numpy")
    for path, message in {pickled: "found a pickle", tmp_path: "found a directory", tmp_path / "m.hbc": "no such file"}.items():
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            hbc.convert(path)


def test_lists_of_names_have_no_gaps(pickled: Path, tmp_path: Path) -> None:
    """`--methods ""` wrote a file without columns, or served all methods."""
    model, data = tmp_path / "model.hbc", tmp_path / "X.npy"
    run("convert", pickled, "-o", model, "--trust", "--backend", "numpy")
    np.save(data, np.zeros((2, 4)))
    for command in (["predict", model, data], ["convert", pickled, "-o", tmp_path / "m.so", "--trust"], ["serve", model]):
        for names in ("", "predict,,"):
            told = run(*command, "--methods", names, ok=False)
            assert f"--methods: found {names!r}, expected names with commas between them" in told


def test_a_backend_that_was_meant(pickled: Path, tmp_path: Path) -> None:
    said = run("convert", pickled, "--trust", "-o", tmp_path / "m.hbc", "--backend", "tmv", ok=False)
    assert said == "hbc: unknown backend 'tmv' (did you mean 'tvm'?); known are tvm, torch, torchscript, onnx, numpy\n"


def test_progress_is_for_terminals(pickled: Path, tmp_path: Path) -> None:
    """On a terminal, stderr has a line that tells what is being done. Not in a pipe, and not with --quiet."""
    pty = pytest.importorskip("pty")
    run("convert", pickled, "--trust", "--backend", "numpy", "-o", tmp_path / "model.hbc")
    command = [sys.executable, "-m", "hbc", "convert", str(tmp_path / "model.hbc"), "--backend", "numpy", "-o"]
    shown = {}
    for option in ("--json", "--quiet"):
        ours, theirs = pty.openpty()
        environment = {**os.environ, "TERM": "xterm"}
        done = subprocess.run(
            [*command, str(tmp_path / "m.hbc"), option], stdout=subprocess.PIPE, stderr=theirs, env=environment
        )
        os.close(theirs)
        shown[option] = b""
        with contextlib.suppress(OSError):  # Linux: nobody writes any more
            while part := os.read(ours, 10_000):
                shown[option] += part
        os.close(ours)
        assert done.returncode == 0
    assert b"reading model.hbc" in shown["--json"]
    assert shown["--quiet"] == b""


def test_a_log_has_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a terminal, `hbc tune` and others printed nothing for minutes."""
    from hbc.cli import terminal
    from hbc.cli.score import _bar
    from hbc.scoring.job import Progress

    def wait_for(line: str) -> None:
        said, until = "", time.monotonic() + 60
        while not re.search(line, said) and time.monotonic() < until:
            time.sleep(0.01)
            said += capsys.readouterr().err
        assert re.search(line, said), said

    monkeypatch.setattr(terminal, "FIRST_LINE", 0.05)
    with terminal.progress("reading") as tell:
        wait_for(r"^hbc: \d+ s: reading\n")
        tell("measuring walk")
        wait_for(r"(?m)^hbc: \d+ s: measuring walk$")
    with _bar(quiet=False) as bar:
        wait_for(r"(?m)^hbc: \d+ s: opening$")
        assert bar is not None
        bar(Progress(3000, 0.25, 1, 4))
        wait_for(r"(?m)^hbc: \d+ s: 1 of 4 files, 3,000 rows, [\d,]+ rows/s$")
    capsys.readouterr()
    for quiet in (terminal.progress("reading", quiet=True), _bar(quiet=True)):
        with quiet:
            time.sleep(0.2)
    assert capsys.readouterr().err == ""


def test_another_librarys_file_is_not_loaded(tmp_path: Path) -> None:
    (tmp_path / "trees.txt").write_text("tree\n")
    with pytest.raises(hbc.ArtifactError, match=r"no zip archive.*hbc\.convert\('trees\.txt'\)"):
        hbc.load(tmp_path / "trees.txt")
    with pytest.raises(hbc.ArtifactError, match="found a directory"):
        hbc.load(tmp_path)


def test_a_folder_for_results_that_is_not_there(pickled: Path, tmp_path: Path) -> None:
    """Before anything is loaded."""
    (tmp_path / "x.hbc").write_text("")
    said = run("predict", tmp_path / "x.hbc", tmp_path / "x.csv", "-o", tmp_path / "nowhere" / "x.csv", ok=False)
    assert said == f"hbc: {tmp_path}/nowhere/x.csv: found no such folder, expected an existing folder to write to.\n"


def test_what_has_an_extra_and_is_no_backend(pickled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "orjson", None)
    if hasattr(hbc, "serve"):
        monkeypatch.setattr(hbc, "serve", hbc.serve)  # another import replaces it; later tests want this one
    for name in [name for name in sys.modules if name.startswith("hbc.serve")]:
        monkeypatch.delitem(sys.modules, name)
    said = run("serve", "x.hbc", ok=False)
    assert said.startswith("hbc: extra 'serve' is not available: ")
    assert said.endswith("Install it with: pip install 'hbc[serve]'.\n")
    monkeypatch.setitem(sys.modules, "hbc.compiler.tvm.run.folder", None)
    said = run("runtime", tmp_path / "serving", ok=False)
    assert said.startswith("hbc: backend 'tvm' is not available: ")


def test_lines_of_explain_fit_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    from hbc.cli.look import fitted

    text = "passes:\n    " + "word " * 60 + "\n\nend\n"
    assert fitted(text) == text  # standard output is no terminal
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    shown = fitted(text)
    assert max(map(len, shown.splitlines())) <= 60
    assert shown.split() == text.split()
    assert shown.splitlines()[2].startswith(" " * 8 + "word")


def test_text_for_files_of_numbers_is_refused_before_a_compiler_is_imported(tmp_path: Path) -> None:
    """Of a saved model, before anything of it but the manifest is read."""
    pandas = pytest.importorskip("pandas")
    from sklearn.preprocessing import OneHotEncoder

    frame = pandas.DataFrame({"city": ["Bern", "Oslo"]})
    hbc.convert(OneHotEncoder().fit(frame), "numpy").save(tmp_path / "m.hbc")
    code = (
        "import sys; from hbc.cli import main\n"
        "for suffix in sys.argv[2:]:\n"
        "    try: main(['convert', sys.argv[1], '-o', sys.argv[1] + suffix])\n"
        "    except SystemExit as ended: print(ended.code, [name for name in ('torch', 'tvm', 'sklearn') if name in sys.modules])"
    )
    suffixes = (".pt", ".pt2", ".so")
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "m.hbc"), *suffixes], capture_output=True, text=True)
    for suffix, line in zip(suffixes, done.stderr.splitlines(), strict=True):
        assert f"takes strings (column 0 ('city')), which {suffix} files cannot hold" in line
    assert done.stdout.splitlines() == ["1 []"] * 3


def test_the_result_names_the_methods_that_the_file_has(tmp_path: Path) -> None:
    X, y = load_breast_cancer(return_X_y=True)
    hbc.convert(make_pipeline(StandardScaler(), LogisticRegression()).fit(X, y), "numpy").save(tmp_path / "m.hbc")
    pytest.importorskip("onnx")
    said = run("convert", str(tmp_path / "m.hbc"), "-o", str(tmp_path / "m.onnx"), "--methods", "predict_proba")
    assert "(predict_proba)" in str(said)


@pytest.mark.skipif(os.name != "posix", reason="ended by a signal")
@pytest.mark.parametrize(("name", "status"), [("typer", -signal.SIGINT), ("hbc.scoring.run", 130)])
def test_an_interrupt_while_something_is_imported_shows_no_traceback(tmp_path: Path, name: str, status: int) -> None:
    """`typer` is imported before the command line runs, the other by the command `score`."""
    code = """
import os, signal, sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == NAME:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
from hbc.__main__ import main
main()
"""
    (tmp_path / "m.hbc").write_text("")
    command = ["score", tmp_path / "m.hbc", tmp_path / "x.csv", "-o", tmp_path / "out"]
    done = subprocess.run([sys.executable, "-c", code.replace("NAME", repr(name)), *command], capture_output=True, text=True)
    assert done.returncode == status
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["out.csv", "out.npy", "report.md", "report.json"])
def test_a_full_disk_leaves_no_half_of_a_file(
    pickled: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`hbc predict` and the report of `hbc verify` were written in place."""

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    model, output = tmp_path / "model.hbc", tmp_path / name
    run("convert", pickled, "--trust", "--backend", "numpy", "-o", model)
    np.save(tmp_path / "x.npy", load_breast_cancer().data[:20])
    monkeypatch.setattr(os, "fsync", full)
    output.write_text("before")
    if name.startswith("out"):
        found = run("predict", model, tmp_path / "x.npy", "-o", output, ok=False)
    else:
        found = run("verify", pickled, model, tmp_path / "x.npy", "--trust", "--report", output, ok=False)
    assert f"{name}: found a place that cannot be written to (No space left on device)" in found
    assert (output.read_text(), len(os.listdir(tmp_path))) == ("before", 3)


def test_closed_streams(pickled: Path, tmp_path: Path) -> None:
    """A closed standard input was an AttributeError. A file that is written got the number of a closed standard output."""
    saved, model = tmp_path / "saved.hbc", tmp_path / "model.hbc"
    run("convert", pickled, "--trust", "--backend", "numpy", "-o", saved)
    hbc_with = f"exec {sys.executable} -m hbc"
    shell = functools.partial(subprocess.run, shell=True, capture_output=True, text=True, cwd=tmp_path)
    done = shell(f"{hbc_with} convert {saved} --backend numpy -o {model} <&- >&- 2>&-")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert hbc.load(model).predict(load_breast_cancer().data[:3]).tolist() == [0, 0, 0]
    done = shell(f"{hbc_with} predict {model} - <&-")
    assert (done.returncode, done.stderr) == (1, "hbc: standard input: found a closed stream, expected data.\n")


def test_an_empty_name_of_a_model() -> None:
    assert "found a directory, expected a file with a model" in run("convert", "", ok=False)
