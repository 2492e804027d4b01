"""Models whose code is in the cache on disk: they answer without compiler, torch and scikit-learn, and as always."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import make_column_transformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

import hbc
from hbc.compiler.base import CompileOptions
from hbc.tuning import choices

pytest.importorskip("tvm")

ABSENT = ("tvm", "torch", "sklearn", "scipy", "hbc.optimizer.pipeline", "hbc.parser.parse")
"""Modules that a model of the cache does without."""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HBC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def numbers() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 6))
    return RandomForestClassifier(20, max_depth=6, random_state=0).fit(X, np.arange(300) % 3), X


def scaled() -> tuple[Any, Any]:
    X = np.random.default_rng(1).normal(size=(300, 6))
    return make_pipeline(StandardScaler(), LogisticRegression()).fit(X, np.array(["no", "yes"])[(X[:, 0] > 0).astype(int)]), X


def frame() -> tuple[Any, Any]:
    rng = np.random.default_rng(2)
    X = pd.DataFrame({"age": rng.normal(size=200), "town": rng.choice(["Rome", "Oslo", "Bonn"], 200)})
    steps = make_column_transformer((OneHotEncoder(handle_unknown="ignore"), ["town"]), remainder="passthrough")
    return make_pipeline(steps, LogisticRegression()).fit(X, X["town"] == "Oslo"), X


def many_texts() -> tuple[Any, Any]:
    """The host computes 11 inputs of the compiled code, of which each must find its place again."""
    rng = np.random.default_rng(3)
    X = pd.DataFrame({f"c{i}": rng.choice(list("abcdefgh"[: i % 6 + 2]), 200) for i in range(11)})
    model = make_pipeline(make_column_transformer((OrdinalEncoder(), list(X))), RandomForestClassifier(20, random_state=0))
    return model.fit(X, (X["c2"] == X["c10"]) | (X["c9"] == "a")), X


def text() -> tuple[Any, Any]:
    words = np.array(["the", "cat", "sat", "on", "a", "mat", "and", "dog", "ran"])
    X = [" ".join(np.random.default_rng(seed).choice(words, 6)) for seed in range(60)]
    return make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(X, np.arange(60) % 2), X


MODELS = {"numbers": numbers, "scaled": scaled, "frame": frame, "many texts": many_texts, "text": text}

LOAD = """
import pickle, sys
from pathlib import Path
import hbc
model = hbc.load(sys.argv[1])
X, methods, expected = pickle.loads(Path(sys.argv[2]).read_bytes())
answers = [getattr(model, method)(x) for x in X for method in methods]
same = all(a.dtype == b.dtype and (a == b).all() for a, b in zip(answers, expected, strict=True))
print(same, *[name for name in sys.argv[3:] if name in sys.modules])
"""


def answer(*arguments: Any, code: str = LOAD) -> str:
    environment = {**os.environ, "PYTHONPATH": str(Path(hbc.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.returncode, done.stderr
    return done.stdout.strip()


def saved(name: str, folder: Path, single: bool = True) -> tuple[Path, Path]:
    """The model in a file, which has answered for float64 and, if `single`, for float32; inputs and the answers that are expected."""
    import pickle

    model, X = MODELS[name]()
    methods = ["predict_proba", "predict"]
    compiled = hbc.convert(model, "tvm", X)
    inputs = [X, X.astype(np.float32)] if single and isinstance(X, np.ndarray) else [X]
    answers = [getattr(compiled, method)(x) for x in inputs for method in methods]
    compiled.save(folder / "model.hbc")
    (folder / "answers.pkl").write_bytes(pickle.dumps((inputs, methods, answers)))
    return folder / "model.hbc", folder / "answers.pkl"


@pytest.mark.parametrize("name", MODELS)
def test_kept_code_answers_without_the_compiler(name: str, cache: Path, tmp_path: Path) -> None:
    """The model was converted and called in this process: the next one finds all of its methods and dtypes."""
    files = saved(name, tmp_path)
    absent = ABSENT if name != "text" else ("torch", "sklearn", "hbc.parser.parse")  # which compiles code for the host too
    assert answer(*files, *absent) == "True"


def test_kept_code_answers_without_the_compiler_where_models_were_tuned(cache: Path, tmp_path: Path) -> None:
    """A model that was not tuned, and one that was tuned after it had been saved: the choice is understood without the compiler."""
    files, absent = saved("numbers", tmp_path), [each for each in ABSENT if not each.startswith("hbc.")]
    (cache / "tuned").mkdir()
    assert answer(*files, *absent) == "True"
    walked = choices.Choice("walk", threads=1, block=128)
    assert choices.keep(
        choices.Tuned((1,), walked, (walked,), "by the test"), hbc.load(files[0]).graph, "tvm", CompileOptions()
    )
    code = LOAD.replace("(a == b).all()", "abs(a - b).max() < 1e-12") + "assert model._builder.choice.block == 128\n"
    answer(*files, code=code)  # compiles
    assert answer(*files, *absent, code=code) == "True"


CONVERT = """
import pickle, sys
from pathlib import Path
import hbc
found = hbc.convert(sys.argv[1])
X, expected = pickle.loads(Path(sys.argv[2]).read_bytes())
print((found.predict(X) == expected).all(), *[name for name in sys.argv[3:] if name in sys.modules])
"""


def test_conversion_finds_kept_code_without_the_compiler(cache: Path, tmp_path: Path) -> None:
    """That the backend runs the other dtypes is in the cache too."""
    lightgbm = pytest.importorskip("lightgbm")
    import pickle

    X, _ = np.random.default_rng(0).normal(size=(300, 6)), None
    booster = lightgbm.train({"verbose": -1, "num_leaves": 7}, lightgbm.Dataset(X, X[:, 0]), 20)
    booster.save_model(tmp_path / "model.txt")
    compiled = hbc.convert(tmp_path / "model.txt")
    X = X.astype(np.float32)
    (tmp_path / "answers.pkl").write_bytes(pickle.dumps((X, compiled.predict(X))))
    assert answer(tmp_path / "model.txt", tmp_path / "answers.pkl", "tvm", "hbc.optimizer.pipeline", code=CONVERT) == "True"


HEAVY = (
    *(
        "pandas",
        "asyncio",
        "concurrent.futures",
        "email.message",
        "logging",
        "multiprocessing",
        "subprocess",
        "unittest",
        "xml",
    ),
    *(
        "importlib.resources.readers",
        "http",
        "urllib.request",
        "decimal",
        "sqlite3",
        "hbc.optimizer",
        "hbc.assembly",
        "hbc.ops",
    ),
)
"""Modules that take 1 ms and more, or more of hbc, which an answer of kept code for numbers does without."""


def test_kept_code_answers_without_heavy_modules(cache: Path, tmp_path: Path) -> None:
    files = saved("numbers", tmp_path)
    code = LOAD.replace("import pickle, sys", "import sys").replace("from pathlib import Path\n", "")
    code = code.replace("pickle.loads(Path(sys.argv[2]).read_bytes())", "([], [], [])")
    code = code.replace("answers = [", "import numpy as np\nmodel.predict_proba(np.zeros((1, 6)))\nanswers = [")
    assert answer(*files, *HEAVY, code=code) == "True"


def test_code_is_shared_with_a_new_model_of_the_same_kind(cache: Path) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 6)).astype(np.float32)
    for seed in range(2):
        model = RandomForestClassifier(20, max_depth=4, random_state=seed).fit(X, np.arange(300) % 2)
        compiled = hbc.convert(model, "tvm")
        np.testing.assert_allclose(compiled.predict_proba(X), model.predict_proba(X), rtol=1e-12)
    steps = ["looked for compiled code", "imported optimizer and compiler", "optimized", "made ready"]
    state = "  f32: " + ", ".join(rf"{step} in \S+ ms" for step in steps)
    assert re.search(rf"^{state}; predict_proba compiled in \S+ ms$", compiled.explain(), re.M)
    again = hbc.convert(model, "tvm")
    again.predict_proba(X)
    state = r"  f32: found in the cache, looked for compiled code in \S+ ms; predict_proba found in the cache in \S+ ms"
    assert re.search(rf"^{state}$", again.explain(), re.M), "the passes that explain() itself ran are no part of it"


@pytest.mark.parametrize("first", ["torch", "hbc"])
def test_torch_before_and_after(first: str, cache: Path, tmp_path: Path) -> None:
    """torch is left out of tvm_ffi's import, and works beside it in both orders; tensors are taken as input."""
    pytest.importorskip("torch")
    model, _ = saved("numbers", tmp_path)
    code = textwrap.dedent(
        f"""
        import sys
        import numpy as np
        if {first == "torch"}: import torch
        import hbc
        model = hbc.load(sys.argv[1])
        X = np.ones((5, 6))
        expected = model.predict_proba(X)
        assert ("torch" in sys.modules) == {first == "torch"}
        import torch
        assert (model.predict_proba(torch.from_numpy(X)) == expected).all()
        import tvm_ffi
        shared = torch.arange(5.0)
        other = np.from_dlpack(tvm_ffi.from_dlpack(shared))  # read-only with numpy 2.1
        shared[0] = 7
        assert other[0] == 7
        assert np.allclose(hbc.load(sys.argv[1], backend="torch").predict_proba(X), expected)
        assert torch.nn.Linear(6, 2)(torch.ones(3, 6)).sum().backward() is None
        print("good")
        """
    )
    assert answer(model, code=code) == "good"


def test_several_processes_start_with_an_empty_cache(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = saved("scaled", tmp_path, single=False)
    monkeypatch.setenv("HBC_CACHE", str(tmp_path / "another"))
    environment = {**os.environ, "PYTHONPATH": str(Path(hbc.__file__).parents[1])}
    command = [sys.executable, "-c", LOAD, *map(str, files)]
    started = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    assert [process.communicate()[0].strip() for process in started] == ["True"] * 4
    assert not list((tmp_path / "another").rglob("*.tmp"))
    assert answer(*files, *ABSENT) == "True"


@pytest.mark.parametrize("damage", ["cut", "flipped", "replaced", "deleted"])
def test_damaged_files_are_noticed_and_compiled_anew(damage: str, cache: Path, tmp_path: Path) -> None:
    files = saved("scaled", tmp_path, single=False)
    objects = sorted(path for path in (cache / "code").rglob("*") if path.is_file())
    for number, path in enumerate(objects):
        data = bytearray(path.read_bytes())
        if damage == "cut":
            path.write_bytes(data[: len(data) // 2])
        elif damage == "flipped":
            data[len(data) // 2] ^= 1
            path.write_bytes(data)
        elif damage == "replaced":
            path.write_bytes(objects[number - 1].read_bytes())
        else:
            path.unlink()
    assert answer(*files) == "True"
    assert answer(*files, *ABSENT) == "True"


def test_killed_while_it_writes(cache: Path, tmp_path: Path) -> None:
    files = saved("scaled", tmp_path, single=False)
    for folder in (cache / "code").rglob("*"):
        if folder.is_dir():
            (folder / "half.0123456789abcdef.tmp").write_bytes(b"half")
    assert answer(*files, *ABSENT) == "True"


def test_other_options_and_versions_are_other_code(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = saved("numbers", tmp_path)
    loaded = hbc.load(files[0])
    loaded.predict(np.ones((1, 6)))
    assert "found in the cache" in loaded.explain()
    from hbc.cache import identity

    monkeypatch.setattr(identity, "_distributions", lambda: ["apache_tvm-0.28.0.dist-info"])
    identity.environment.cache_clear()
    try:
        other = hbc.load(files[0])
        other.predict(np.ones((1, 6)))
        assert "found in the cache" not in other.explain().replace("looked for in the cache", "")
    finally:
        identity.environment.cache_clear()


def test_read_only_cache(cache: Path, tmp_path: Path) -> None:
    """A cache that another user filled for all cannot be written to. Root may write anywhere: a file takes the folder's place."""
    files = saved("scaled", tmp_path, single=False)
    import shutil

    shutil.rmtree(cache)
    cache.write_text("no folder")
    assert answer(*files) == "True"
