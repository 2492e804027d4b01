"""`hbc runtime`: the smallest folder that runs saved models. Models with compiled code answer in it, and nothing else is imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import hbc
from hbc.cache.levels import own_levels
from hbc.compiler.tvm.run import folder as making
from hbc.compiler.tvm.run.folder import make_folder
from hbc.errors import ArtifactError, BackendUnavailableError
from hbc.kept import made_by

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="compiled code is saved for Linux")

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 4))
TEXTS = [f"{a} cat {b}" for a in ("a", "the", "my") for b in ("sat", "ran", "ate", "slept", "hid")]
MODELS: dict[str, tuple[Any, Any]] = {
    "trees": (
        make_pipeline(StandardScaler(), RandomForestClassifier(3, max_depth=4, random_state=0)).fit(X, X[:, 0] > 0),
        X.tolist(),
    ),
    "text": (make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(TEXTS, np.arange(15) % 2), TEXTS),
}

ANSWER = """
import json, sys
sys.path.insert(0, sys.argv[1])
import hbc
model, inputs = hbc.load(sys.argv[2], trust_code=True), json.loads(sys.argv[3])
answers = [getattr(model, method)(inputs).tolist() for method in ("predict_proba", "predict")]
files = {name.partition(".")[0]: getattr(module, "__file__", None) or "" for name, module in list(sys.modules.items())}
others = sorted(name for name, file in files.items() if file and not file.startswith((sys.argv[1], sys.base_prefix)))
own = sorted(name for name, file in files.items() if file.startswith(sys.argv[1]))
print(json.dumps([answers, own, others]))
"""


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "serving"
    made = make_folder(folder)
    assert made.versions == {name: distribution(name).version for name in (*making.NEEDED, "apache-tvm")}
    assert made.bytes < 100e6
    return folder


def alone(*arguments: Any, ok: bool = True, code: str = ANSWER) -> str:
    """Runs Python without any installed package: -I leaves out $PYTHONPATH, -S site-packages."""
    command = [sys.executable, "-I", "-S", "-W", "error", "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "HBC_CACHE": ""}, check=False)
    assert (not done.returncode) is ok, done.stderr
    return done.stdout if ok else done.stderr


@pytest.mark.parametrize("name", MODELS)
def test_models_answer(name: str, serving: Path, tmp_path: Path) -> None:
    """With no package but those in the folder, of which it imports all. TVM's compiler, scipy, scikit-learn, pandas are not there."""
    if not own_levels():
        pytest.skip("this processor has no level that code is compiled for")
    model, inputs = MODELS[name]
    hbc.convert(model, "tvm").save(tmp_path / "m.hbc", code=own_levels()[-1])
    (proba, labels), own, others = json.loads(alone(serving, tmp_path / "m.hbc", json.dumps(inputs)))
    np.testing.assert_allclose(proba, model.predict_proba(inputs), rtol=1e-12, atol=1e-12)
    assert proba == hbc.load(tmp_path / "m.hbc", trust_code=True).predict_proba(inputs).tolist()
    assert labels == model.predict(inputs).tolist()
    assert own == ["hbc", "numpy", "tvm_ffi", "typing_extensions"]
    assert others == []


def test_models_without_code_say_what_is_missing(serving: Path, tmp_path: Path) -> None:
    compiled = hbc.convert(LinearRegression().fit(X, X[:, 0]), "tvm")
    compiled.save(tmp_path / "plain.hbc")
    said = alone(serving, tmp_path / "plain.hbc", "[]", ok=False)
    assert "BackendUnavailableError: backend 'tvm' is not available: tvm not installed" in said
    compiled.save(tmp_path / "other.hbc", code="aarch64" if "aarch64" not in own_levels() else "x86-64-v2")
    said = alone(serving, tmp_path / "other.hbc", "[]", ok=False)
    assert "Compiled code in the file: for aarch64; not used: this processor has" in said or "for x86-64-v2; not used" in said
    said = alone(
        serving,
        tmp_path / "other.hbc",
        "[]",
        ok=False,
        code=ANSWER.replace("trust_code=True", "trust_code=False"),
    )
    assert "not read, since hbc.load was not told to trust it" in said


def test_what_is_no_model_is_said_before_what_is_missing(serving: Path) -> None:
    """`hbc.convert(3)` complained of TVM."""
    code = "import sys; sys.path.insert(0, sys.argv[1]); import hbc; hbc.convert({})"
    for model, said in {"3": "builtins.int at model: it is not a model", "'no.txt'": "no.txt: no such file"}.items():
        assert said in alone(serving, ok=False, code=code.format(model))


def test_the_folder_has_the_same_programs(serving: Path) -> None:
    """Otherwise code that was saved here would not be used there."""
    there = alone(
        serving, code="import sys; sys.path.insert(0, sys.argv[1]); from hbc.kept import made_by; print(made_by('tvm'))"
    )
    assert there == f"{made_by('tvm')}\n"
    assert "unknown" not in there


def test_nothing_is_compiled_at_the_start(serving: Path, tmp_path: Path) -> None:
    """Python's own compiled files are there, and hold in a copy of the folder with other times."""
    sources = list(serving.rglob("*.py"))
    assert len(list(serving.rglob("*.pyc"))) == len(sources) > 500
    assert not [path for path in serving.rglob("*") if path.name == "tests" or path.suffix in (".h", ".pyi")]
    assert (serving / "apache_tvm.licenses" / "LICENSE").read_text()
    assert oct(serving.stat().st_mode & 0o777) == "0o755"


def test_what_is_there_stays(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("kept")
    for name in ("file", "full"):
        with pytest.raises(ArtifactError, match="expected the name of a new folder"):
            make_folder(tmp_path / name)
    with pytest.raises(ArtifactError, match="no such folder to make it in"):
        make_folder(tmp_path / "nowhere" / "serving")
    assert (tmp_path / "full" / "file").read_text() == (tmp_path / "file").read_text() == "kept"


def test_a_changed_library_is_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left of the folder."""
    read = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read(path) + b" " * (path.name == "libtvm_runtime.so"))
    with pytest.raises(ArtifactError, match=r"libtvm_runtime\.so: found a file with the sha256"):
        make_folder(tmp_path / "serving")
    assert not list(tmp_path.iterdir())


def test_a_library_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(making, "NEEDED", ("numpy", "apache-tvm-none"))
    with pytest.raises(BackendUnavailableError, match=r"apache-tvm-none is not installed.*pip install 'hbc\[tvm\]'"):
        make_folder(tmp_path / "serving")
    assert not list(tmp_path.iterdir())
