"""Saved models: they need neither scikit-learn nor the trainer, hold no pickle, and anything else is ArtifactError."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import hbc
from hbc.ir import store
from hbc.ir.archive import Archive
from hbc.ir.graph import frozen
from hbc.ir.lazy_graph import LazyGraph
from hbc.ir.signature import Column, InputSpec, ModelInfo
from hbc.runtime import artifact
from hbc.runtime.contents import Contents
from hbc.runtime.format_1 import read_spec_1
from hbc.runtime.origin import Origin
from hbc.runtime.stored_spec import read_spec, spec_document

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 4))
Y = (X.sum(axis=1) > 0).astype(int)
FRAME = pd.DataFrame({"a": X[:, 0], "town": RNG.choice(["Köln", "Ulm", "x" * 30], 60), "b": X[:, 1]})


def mixed() -> Any:
    columns = ColumnTransformer([("n", StandardScaler(), ["a", "b"]), ("s", OneHotEncoder(), ["town"])])
    return make_pipeline(columns, LogisticRegression()).fit(FRAME, np.array(["nein", "ja"])[Y])


MODELS: dict[str, Any] = {
    "labels as text": lambda: (LogisticRegression().fit(X, np.array(["no", "yes"])[Y]), X),
    "labels as objects": lambda: (LogisticRegression().fit(X, np.array(["no", "yes"], object)[Y]), X),
    "labels as bool": lambda: (LogisticRegression().fit(X, Y == 1), X),
    "labels as int8": lambda: (LogisticRegression().fit(X, Y.astype(np.int8)), X),
    "names": lambda: (
        LogisticRegression().fit(pd.DataFrame(X, columns=list("äbcd")), Y),
        pd.DataFrame(X, columns=list("äbcd")),
    ),
    "strings in the input": lambda: (mixed(), FRAME),
    "several outputs": lambda: (RandomForestClassifier(3, max_depth=3, random_state=0).fit(X, np.c_[Y, 1 - Y]), X),
    "LightGBM": lambda: (lightgbm.LGBMClassifier(n_estimators=3, verbose=-1).fit(X, Y), X),
}


def same(found: Any, expected: Any) -> None:
    if isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            same(one, other)
        return
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.dtype == expected.dtype
    if expected.dtype.kind == "f":
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    else:
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("name", ["model.onnx", "model.PT2"])
def test_save_refuses_names_of_exported_files(name: str, tmp_path: Path) -> None:
    """It wrote a .hbc file there without a word."""
    compiled = hbc.convert(StandardScaler().fit([[0.0], [1.0]]), "numpy")
    with pytest.raises(ValueError, match=r"expected a name such as 'model.hbc'. To write a .(onnx|pt2) file, use export"):
        compiled.save(tmp_path / name)
    assert not list(tmp_path.iterdir())
    compiled.save(tmp_path / "model")
    assert hbc.load(tmp_path / "model").methods == compiled.methods


@pytest.mark.parametrize("name", MODELS)
def test_save_and_load(name: str, tmp_path: Path) -> None:
    model, data = MODELS[name]()
    compiled = hbc.convert(model, "numpy")
    path = tmp_path / "model.hbc"
    compiled.save(path)
    loaded = hbc.load(str(path))
    assert loaded.methods == compiled.methods
    assert list(loaded.variants) == list(compiled.variants)
    for kinds, variant in compiled.variants.items():
        assert loaded.variants[kinds].graph == variant.graph
    for method in compiled.methods:
        same(getattr(loaded, method)(data), getattr(compiled, method)(data))
    same(loaded.predict(data), model.predict(data))
    for attribute in compiled._estimator.attributes:
        same(getattr(loaded, attribute), getattr(model, attribute))
    loaded.save(tmp_path / "again.hbc")
    assert (tmp_path / "again.hbc").read_bytes() == path.read_bytes()


def test_equal_models_are_equal_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1767225600")
    for name in ("one", "two"):
        hbc.convert(mixed(), "numpy").save(tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


BLOCKED = (
    "sklearn",
    "lightgbm",
    "xgboost",
    "pandas",
    "scipy",
    "joblib",
    "polars",
    "pyarrow",
    "narwhals",
    "torch",
    "onnx",
    "tvm",
)
BLOCKER = f"""
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {BLOCKED!r}:
            raise ImportError("blocked: " + name)
sys.meta_path.insert(0, Blocker())
import numpy as np, hbc
"""


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-W", "error", "-c", BLOCKER + code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ["labels as objects", "LightGBM", "several outputs"])
def test_load_needs_no_other_library(name: str, tmp_path: Path) -> None:
    model, data = MODELS[name]()
    hbc.convert(model, "numpy").save(tmp_path / "m")
    np.save(tmp_path / "x.npy", data)
    code = f"m = hbc.load({str(tmp_path / 'm')!r}); print(m.predict(np.load({str(tmp_path / 'x.npy')!r})).tolist(), m.explain()[:0])"
    assert run(code).strip() == str(model.predict(data).tolist())


def test_load_with_strings_needs_no_frames(tmp_path: Path) -> None:
    columns = ColumnTransformer([("n", StandardScaler(), [0, 2]), ("s", OneHotEncoder(), [1])])
    model = make_pipeline(columns, LogisticRegression()).fit(FRAME.to_numpy(), Y)
    hbc.convert(model, "numpy").save(tmp_path / "m")
    rows = FRAME.to_numpy()[:4].tolist()
    assert run(f"print(hbc.load({str(tmp_path / 'm')!r}).predict({rows!r}).tolist())").strip() == str(
        model.predict(rows).tolist()
    )


def test_settings_travel_and_can_be_changed(tmp_path: Path) -> None:
    forest = RandomForestClassifier(3, max_depth=3, random_state=0).fit(X, Y)
    hbc.convert(forest, "numpy", strategy="gemm", batch_size=7).save(tmp_path / "m")
    assert hbc.load(tmp_path / "m")._builder.settings() == {
        "backend": "numpy",
        "device": "cpu",
        "strategy": "gemm",
        "threads": None,
        "batch_size": 7,
        "target": None,
    }
    other = hbc.load(tmp_path / "m", backend="torch")
    assert other.backend == "torch"
    np.testing.assert_array_equal(other.predict(X), forest.predict(X))
    with pytest.raises(ValueError, match="known are"):
        hbc.load(tmp_path / "m", backend="abacus")
    with pytest.raises(ValueError, match="device"):
        hbc.load(tmp_path / "m", device="abacus")
    with pytest.raises(hbc.BackendUnavailableError, match="saved for 'numpy'"):
        hbc.load(tmp_path / "m", device="cuda")


def test_a_strategy_of_another_backend_is_left_behind(tmp_path: Path) -> None:
    forest = RandomForestClassifier(3, max_depth=3, random_state=0).fit(X, Y)
    hbc.convert(forest, "numpy", strategy="reference").save(tmp_path / "m")
    assert hbc.load(tmp_path / "m", backend="torch")._builder.strategy == "auto"


# --- older formats --------------------------------------------------------------------------------------------------


ARTIFACTS = Path(__file__).parent / "artifacts"
FROZEN: dict[str, Any] = {
    f"{name}.format{version}": case
    for version in (1, 2)
    for name, case in json.loads((ARTIFACTS / f"format{version}.json").read_text()).items()
}
"""For each file that the last hbc of format 1 wrote (c6552ad), or the first of format 2: a method, an input, and what the source library
returned. These files stay for ever: every later hbc must read them."""


def input_of(document: dict[str, Any]) -> Any:
    if "documents" in document:
        return document["documents"]
    frame = pd.DataFrame(document["data"], columns=document["columns"])
    return frame.assign(**{name: pd.Categorical(frame[name], found) for name, found in document.get("categories", {}).items()})


@pytest.mark.parametrize("name", FROZEN)
def test_files_of_older_hbc(name: str, tmp_path: Path) -> None:
    """They are read as the model that they were, and written in the format of today."""
    case = FROZEN[name]
    compiled = hbc.load(ARTIFACTS / f"{name}.hbc", backend="numpy")
    compiled.save(tmp_path / "m")
    for model in (compiled, hbc.load(tmp_path / "m")):
        found = getattr(model, case["method"])(input_of(case["X"]))
        assert type(found).__name__ == case.get("returns", "ndarray")
        found = found.toarray() if hasattr(found, "toarray") else np.asarray(found)
        if found.dtype.kind == "f":
            np.testing.assert_allclose(found, case["expected"], rtol=1e-6)
        else:
            assert found.tolist() == case["expected"]
        assert model.spec == compiled.spec
    if name.endswith("format2"):
        assert compiled.info.created == "2026-11-18T11:06:40Z"
        assert compiled.info.metadata == {
            "name": name.removesuffix(".format2"),
            "run": 2,
            "ok": True,
            "tags": ["frozen", None, 0.5],
        }


def test_every_field_of_format_1_is_read() -> None:
    """Each of its 34 fields, with a value that is not neutral, changes the spec that it is read as."""
    flags = (
        "by_name",
        "dtype_by_column",
        "frames_only",
        "integers_as_f64",
        "absent_is_missing",
        "narrow_as_f32",
        "float_entries",
    )
    columns = ("strings", "none_apart", "frames_as_f64", "digits", "beside_numbers", "signed", "texts_only", "objects_only")
    others = ("integer_bits", "functions", "objects_stay", "own_dtype", "dates", "stacked", "libraries", "dense_methods")
    old: dict[str, Any] = dict.fromkeys((*flags, "native_order", "plain_floats", "dtypes_apart"), False)
    old |= dict.fromkeys(("sparse", "sparse_nan", "fixed_width"), True) | {name: [] for name in (*columns, *others)}
    old |= {"n_features": 3, "feature_names": ["a", "b", "c"], "ndim": 2, "items": "", "reader": ""}
    values: dict[str, Any] = {"dates": [[0, 1]], "stacked": [[1, 2]], "libraries": ["pandas"], "dense_methods": ["predict"]}
    values |= {"ndim": 1, "items": "dicts", "feature_names": None, "reader": "catboost", "objects_stay": [0, 1, 2]}
    values |= {"integer_bits": [8, 0, 64], "functions": [0, 16, 1], "by_name": True}
    neutral, lists = read_spec_1(old, 3), 0
    assert neutral == InputSpec((Column(),) * 3, ("a", "b", "c"), own_dtype=())
    for name, value in old.items():
        if name == "n_features":
            continue
        changed = values.get(name, not value if isinstance(value, bool) else [1])
        spec = read_spec_1({**old, "dtype_by_column": name == "by_name", name: changed}, 3)
        lists += changed == [1]
        assert spec != neutral
        assert read_spec(json.loads(json.dumps(spec_document(spec))), 3) == spec
    assert lists == 9
    assert read_spec_1({**old, "objects_stay": [0, 1, 2]}, 3).having("returned") == [2]
    assert read_spec_1({**old, "strings": [1]}, 3).having("strings") == [1]


def test_an_older_hbc_reads_what_needs_nothing_new() -> None:
    """Facts about the input that are neutral are not written. One that a reader does not know changes what the model accepts: refused."""
    plain = spec_document(InputSpec((Column(),) * 3))
    assert [plain[name] for name in ("arrays", "frames", "sparse", "columns")] == [{}, {}, {}, [[3, {}]]]
    assert read_spec(plain, 3) == InputSpec((Column(),) * 3)
    for name in ("arrays", "frames", "sparse"):
        with pytest.raises(ValueError, match="facts about its input that this hbc does not know: of_tomorrow"):
            read_spec({**plain, name: {"of_tomorrow": True}}, 3)


# --- what the file says of itself ---------------------------------------------------------------------------------------


def test_what_a_model_says_of_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1767225600")
    compiled = hbc.convert(mixed(), "numpy")
    assert compiled.info.digest is None
    notes = {"name": "churn", "scores": [0.5, None, True], "deep": {"ä": 1}}
    compiled.save(tmp_path / "m", metadata=notes)
    notes["name"] = "changed later"
    info = hbc.load(tmp_path / "m").info
    assert (info.source, info.methods) == ("sklearn.pipeline.Pipeline", compiled.methods)
    assert (info.hbc, info.created) == (hbc.__version__, "2026-01-01T00:00:00Z")
    assert info.libraries == {"sklearn": sklearn.__version__}
    assert info.metadata == {"name": "churn", "scores": [0.5, None, True], "deep": {"ä": 1}}
    with zipfile.ZipFile(tmp_path / "m") as archive:
        assert info.digest == hashlib.sha256(archive.read("model.json")).hexdigest()
    assert "metadata name" in str(info)
    assert json.loads(json.dumps(info.as_dict()))["metadata"] == info.metadata


def test_notes_stay_until_others_are_given(tmp_path: Path) -> None:
    compiled = hbc.convert(LogisticRegression().fit(X, Y), "numpy")
    compiled.save(tmp_path / "one", metadata={"a": 1})
    loaded = hbc.load(tmp_path / "one")
    loaded.info.metadata["a"] = 2
    loaded.save(tmp_path / "two")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    assert pickle.loads(pickle.dumps(loaded)).info.metadata == {"a": 1}
    loaded.save(tmp_path / "three", metadata={})
    assert hbc.load(tmp_path / "three").info.metadata == {}
    assert loaded.info.metadata == {"a": 1}


@pytest.mark.parametrize(
    "notes", [[1], {1: 2}, {"a": np.nan}, {"a": (1, 2)}, {"a": np.float32(1)}, {"a": {1, 2}}, {"a": print}]
)
def test_notes_that_json_does_not_keep_are_refused(notes: Any, tmp_path: Path) -> None:
    with pytest.raises(hbc.ArtifactError, match="expected a dict from strings"):
        hbc.convert(LogisticRegression().fit(X, Y), "numpy").save(tmp_path / "m", metadata=notes)
    assert not list(tmp_path.iterdir())


def test_the_time_must_be_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "yesterday")
    with pytest.raises(ValueError, match="SOURCE_DATE_EPOCH='yesterday': expected whole seconds"):
        hbc.convert(LogisticRegression().fit(X, Y), "numpy")


def test_a_compressed_file_holds_the_same_graphs(tmp_path: Path) -> None:
    compiled = hbc.convert(MODELS["several outputs"]()[0], "numpy")
    compiled.save(tmp_path / "m")
    compiled.save(tmp_path / "small", compress=True)
    assert (tmp_path / "small").stat().st_size < (tmp_path / "m").stat().st_size
    contents, packed = artifact.read(tmp_path / "m"), artifact.read(tmp_path / "small")
    for kinds, lazy in contents.graphs.items():
        assert lazy.graph == packed.graphs[kinds].graph == compiled.variants[kinds].graph
        assert lazy.identity == packed.graphs[kinds].identity == LazyGraph.of(compiled.variants[kinds].graph).identity


def test_arrays_are_read_without_a_second_copy(tmp_path: Path) -> None:
    """An operator takes an array from a file as it is: it is read-only, and nobody else can write to it."""
    hbc.convert(MODELS["several outputs"]()[0], "numpy").save(tmp_path / "m")
    archive = Archive(tmp_path / "m", "m")
    numbers = [archive.array(name) for name in archive.sizes if name.endswith(".npy")]
    assert numbers
    assert all(frozen(array) is array for array in numbers)


def test_a_saved_model_is_known_without_its_operators(tmp_path: Path) -> None:
    """Reading a file imports neither operators nor compilers; a graph does when it is first asked for."""
    hbc.convert(mixed(), "numpy").save(tmp_path / "m")
    code = f"""
from hbc.runtime import artifact
import hbc.runtime.model
found = artifact.read({str(tmp_path / "m")!r})
print({{lazy.methods[-1] for lazy in found.graphs.values()}}, {{len(lazy.identity) for lazy in found.graphs.values()}})
print([name for name in sys.modules if name.startswith(("hbc.ops", "hbc.compiler", "hbc.optimizer", "hbc.parser"))])
"""
    methods, imported = run(code).splitlines()
    assert methods == "{'predict_log_proba'} {64}"
    assert imported == "['hbc.compiler', 'hbc.compiler.base']"


# --- writing -----------------------------------------------------------------------------------------------------------


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "m"
    path.write_bytes(b"old")

    def fail(file: Any) -> None:
        file.write(b"half")
        raise RuntimeError("disk full")

    with pytest.raises(RuntimeError):
        store.write_atomically(path, fail)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["m"]
    compiled = hbc.convert(LogisticRegression().fit(X, Y), "numpy")
    compiled.save(path)
    assert hbc.load(path).n_features_in_ == 4
    mask = os.umask(0)
    os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~mask
    for wrong in (tmp_path, tmp_path / "no" / "m"):
        with pytest.raises(hbc.ArtifactError):
            compiled.save(wrong)
    with pytest.raises(hbc.ArtifactError):
        compiled.export(tmp_path / "no" / "m.onnx")
    with pytest.raises(ValueError, match=r"\.a, \.o, \.onnx, \.pt, \.pt2, \.so"):
        compiled.export(tmp_path / "m.exe")


@pytest.mark.parametrize("suffix", [".onnx", ".pt", ".so"])
def test_export_from_any_backend(suffix: str, tmp_path: Path) -> None:
    for labels in (Y, np.array(["no", "yes"])[Y]):
        compiled = hbc.convert(LogisticRegression().fit(X, labels), "numpy")
        path = tmp_path / f"m{suffix}"
        if labels is Y or suffix != ".pt":
            compiled.export(path)
        else:
            with pytest.warns(UserWarning, match=r"leaves out methods: predict returns strings"):
                compiled.export(path)
        assert path.stat().st_size > 0
        path.unlink()
    with pytest.raises(ValueError, match="strings"):
        hbc.convert(mixed(), "numpy").export(tmp_path / "m.pt")


ATTRIBUTES: dict[str, Any] = {
    "objects": np.array(["a", None, 1, 2.5, True], object),
    "matrix of objects": np.array([["a", "b"], ["c", "d\0"]], object),
    "list of arrays": [np.array([1, 2]), np.array(["a", "b"])],
    "tuple": (1, "a"),
    "scalars": 3.5,
    "numpy scalar": np.int32(3),
    "text": "ä\ud800",
    "float16": np.arange(3, dtype=np.float16),
    "big-endian": np.arange(3, dtype=">f8"),
    "empty": np.zeros((0, 2)),
    "NaN": np.array([np.nan, np.inf]),
    "none": None,
}


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_attributes_come_back_as_they_were(name: str) -> None:
    value = ATTRIBUTES[name]
    found = round_trip(value)
    assert type(found) is type(value)
    for one, other in zip(*([found], [value]) if not isinstance(value, (list, tuple)) else (found, value), strict=True):
        assert type(one) is type(other)
        if isinstance(other, np.ndarray):
            assert one.dtype == other.dtype
            assert one.shape == other.shape
            np.testing.assert_array_equal(one, other)
        else:
            assert one == other


def round_trip(value: Any) -> Any:
    model = hbc.convert(LogisticRegression().fit(X, Y), "numpy")
    graphs = {kinds: LazyGraph.of(variant.graph) for kinds, variant in model.variants.items()}
    buffer = io.BytesIO()
    info = ModelInfo("a.B", {"value_": value}, {})
    artifact.write(buffer, Contents(info, InputSpec((Column(),) * 4), graphs, model._main, {}, Origin()))
    buffer.seek(0)
    return artifact.read(buffer).info.attributes["value_"]


def test_attributes_that_are_no_data_are_refused() -> None:
    with pytest.raises(hbc.ArtifactError, match="cannot be saved"):
        round_trip(LogisticRegression())
