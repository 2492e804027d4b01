"""What commands say of files, processors and sizes is what they take and have."""

from __future__ import annotations

import json
import pickle
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("sklearn")
from sklearn.linear_model import LogisticRegression
from test_commands import run

import hbc
from hbc.cache.store import Store
from hbc.cli.terminal import size_of
from hbc.parser.files import DATA, PICKLES

X = np.random.default_rng(0).normal(size=(50, 3))


@pytest.fixture
def pickled(tmp_path: Path) -> Path:
    path = tmp_path / "model.pkl"
    path.write_bytes(pickle.dumps(LogisticRegression().fit(X, X[:, 0] > 0)))
    return path


def expected(suffixes: tuple[str, ...]) -> str:
    return f"found the suffix '.bin', expected one of {', '.join(suffixes)}."


def test_each_caller_lists_the_suffixes_that_it_takes(pickled: Path) -> None:
    """The command line listed no .hbc, and Python pickles, which it refuses."""
    path = pickled.rename(pickled.with_suffix(".bin"))
    np.save(path.with_name("rows.npy"), X)
    for command in ("convert", "explain", "tune"):
        assert expected((*DATA, *PICKLES, ".hbc")) in run(command, path, ok=False)
    assert expected((*DATA, *PICKLES)) in run("bench", path, path.with_name("rows.npy"), ok=False)
    with pytest.raises(hbc.ArtifactError) as error:
        hbc.convert(path)
    assert str(error.value).endswith(expected(DATA))
    with pytest.raises(hbc.ArtifactError, match=r"A model saved by hbc is ready: hbc\.load reads it"):
        hbc.convert(path.rename(path.with_suffix(".HBC")))


@pytest.mark.parametrize(
    ("output", "target", "said"),
    [
        ("m.so", "nonsense", "found 'nonsense', expected one of x86-64-v4, x86-64-v3, x86-64-v2, aarch64, native; or a target"),
        ("m.so", "{kind", "found '{kind', expected a target of TVM as JSON, such as '{\"kind\": "),
        (
            "m.hbc",
            "nonsense",
            'expected a target of TVM as JSON, such as \'{"kind": "llvm", "mtriple": "aarch64-unknown-linux-gnu"}\' for',
        ),
        ("m.hbc", "aarch64", "To put code for aarch64 into it: --code aarch64."),
        ("m.o", '{"kind": "c"}', 'A target is a dict such as {"kind": "llvm", "mcpu": "haswell"}.'),
    ],
)
def test_targets_are_advised_as_the_command_line_takes_them(pickled: Path, output: str, target: str, said: str) -> None:
    pytest.importorskip("tvm")
    found = run("convert", pickled, "--trust", "-o", pickled.with_name(output), "--target", target, ok=False)
    assert said in found
    assert "--code nonsense" not in found
    if "such as " in found:
        example = found[found.index('{"') : found.index("}", found.index('{"')) + 1]
        assert json.loads(example)["kind"] == "llvm"


def test_the_cache_says_small_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit of 100,000 bytes was "at most 0 MB"."""
    monkeypatch.setenv("HBC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HBC_CACHE_LIMIT", "100000")
    Store(tmp_path / "cache" / "code").put(b"x" * 36)
    assert "1 file, 36 bytes of at most 100.0 kB" in run("cache", "info")
    assert "deleted 1 file, 36 bytes" in run("cache", "clear")
    assert list(map(size_of, (0, 999, 1_000, 999_949, 1 << 20, 1 << 30))) == [
        "0 bytes",
        "999 bytes",
        "1.0 kB",
        "999.9 kB",
        "1.0 MB",
        "1,073.7 MB",
    ]


def test_a_model_behind_a_url_is_not_read() -> None:
    """It was "s3:/bucket/model.hbc: no such file"."""
    for command in (["info"], ["explain"], ["score", "s3://bucket/sales", "-o", "out"], ["export", "-o", "m.onnx"]):
        said = run(command[0], "s3://bucket/model.hbc", *command[1:], ok=False)
        assert (
            "s3://bucket/model.hbc: no such file. A model is read from this computer, not from a URL: copy it here first"
            in said
        )


@pytest.mark.parametrize("read", [hbc.load, hbc.convert])
@pytest.mark.parametrize("path", ["s3://bucket/model.txt", Path("s3://bucket/model.txt")], ids=["str", "Path"])
def test_python_reads_no_url(read: Any, path: Any) -> None:
    """`hbc.load` said "No such file or directory: 's3:/bucket/model.txt'"."""
    with pytest.raises(FileNotFoundError, match=r"^s3://bucket/model\.txt: no such file\. .* copy it here first$"):
        read(path)
    with pytest.raises(FileNotFoundError, match=r"absent\.txt"):
        read("absent.txt")


def test_commands_in_messages_can_be_pasted(pickled: Path) -> None:
    folder = pickled.parent / "my models; rm"
    folder.mkdir()
    path = pickled.rename(folder / "it's.pkl")
    saved = folder / "a model.hbc"
    said = run("convert", path, "--trust", "-o", saved, "--backend", "numpy")
    verify = said.partition("; hbc verify ")[2].partition(" DATA")[0]
    assert shlex.split(verify) == [str(path), str(saved)]
    said = run("export", saved, "--triton", folder / "repo" / "m")
    assert shlex.split(said.partition("next: ")[2]) == ["tritonserver", "--model-repository", str(folder / "repo")]
    advice = run("predict", path, path, ok=False).partition("First: ")[2]
    assert shlex.split(advice)[:3] == ["hbc", "convert", str(path)]


@pytest.mark.parametrize(
    ("name", "said"), [("LGBMClassifier", "X: found 0 rows, expected at least 1."), ("XGBClassifier", "predict")]
)
def test_a_file_without_rows_is_said_to_be_empty(tmp_path: Path, name: str, said: str) -> None:
    """The columns of objects that pandas makes of a header alone were found to be no numbers. XGBoost answers with no rows."""
    library = pytest.importorskip({"L": "lightgbm", "X": "xgboost"}[name[0]])
    options = {"verbose": -1} if name[0] == "L" else {}
    for rows, header in ((pd.DataFrame(X, columns=list("abc")), "c,b,a,more"), (X, "a,b,c")):
        hbc.convert(getattr(library, name)(n_estimators=2, **options).fit(rows, X[:, 0] > 0), "numpy").save(tmp_path / "m.hbc")
        (tmp_path / "none.csv").write_text(header + "\n")
        found = run("predict", tmp_path / "m.hbc", tmp_path / "none.csv", ok=said == "predict")
        assert said in found
        assert "object" not in found


def test_doctor_says_that_the_cache_cannot_be_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HBC_CACHE", str(tmp_path / "file"))
    assert "code (cannot be written to: each process compiles anew)" in run("doctor")


@pytest.mark.filterwarnings("ignore:.* leaves out methods:UserWarning")
def test_the_result_leaves_out_what_files_of_pytorch_leave_out(tmp_path: Path) -> None:
    """It named labels, which the line before had said that the file leaves out, and all methods of a .pt2 file, which has one."""
    pytest.importorskip("torch")
    hbc.convert(LogisticRegression().fit(X, np.where(X[:, 0] > 0, "good", "bad")), "numpy").save(tmp_path / "m.hbc")
    for suffix, held in ((".pt", ["decision_function", "predict_proba", "predict_log_proba"]), (".pt2", ["predict_proba"])):
        said = run("convert", str(tmp_path / "m.hbc"), "-o", str(tmp_path / f"m{suffix}"), "--json")
        assert json.loads(said)["methods"] == held


def test_the_next_step_uses_the_code_in_the_file(tmp_path: Path) -> None:
    pytest.importorskip("tvm")
    hbc.convert(LogisticRegression().fit(X, X[:, 0] > 0), "numpy").save(tmp_path / "m.hbc")
    path = str(tmp_path / "coded.hbc")
    assert f"next: hbc.load({path!r}, trust_code=True)" in run(
        "convert", str(tmp_path / "m.hbc"), "-o", path, "--backend", "tvm", "--code", "x86-64-v3"
    )
