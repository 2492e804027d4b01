"""Saved models: they need neither scikit-learn nor the trainer, hold no pickle, and anything else is ArtifactError."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pandas as pd
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import hbc
from hbc.ir import store
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


# --- damage ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("saved") / "m.hbc"
    hbc.convert(LogisticRegression().fit(np.hstack([X, X, X]), np.array(["no", "yes"])[Y]), "numpy").save(path)
    return path.read_bytes()


def changed(data: bytes, change: Any) -> bytes:
    """The same zip with its members (a dict of name → bytes) changed."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def document(**updates: Any) -> Any:
    def change(members: dict[str, bytes]) -> None:
        content = json.loads(members["model.json"])
        for key, value in updates.items():
            content[key] = value(content[key]) if callable(value) else value
        members["model.json"] = json.dumps(content).encode()

    return change


def raw(old: bytes, new: bytes) -> Any:
    def change(members: dict[str, bytes]) -> None:
        assert old in members["model.json"]
        members["model.json"] = members["model.json"].replace(old, new)

    return change


def without(key: str) -> Any:
    def change(members: dict[str, bytes]) -> None:
        content = json.loads(members["model.json"])
        del content[key]
        members["model.json"] = json.dumps(content).encode()

    return change


def first_array(content: Any) -> Any:
    def change(members: dict[str, bytes]) -> None:
        name = next(name for name in members if name.startswith("arrays/"))
        if content is None:
            del members[name]
        else:
            members[name] = content(members[name])

    return change


def pickled(_: bytes) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.array([{"a": 1}], object), allow_pickle=True)
    return buffer.getvalue()


def redigest(members: dict[str, bytes]) -> None:
    """Put the digests of the graphs' texts into the manifest, as who means harm would."""
    content = json.loads(members["model.json"])
    for place, variant in enumerate(content["variants"]):
        variant["digest"] = hashlib.sha256(members[f"graphs/{place}.txt"]).hexdigest()
    members["model.json"] = json.dumps(content).encode()


def graph_text(old: str, new: str) -> Any:
    def change(members: dict[str, bytes]) -> None:
        texts = {name: text.decode() for name, text in members.items() if name.startswith("graphs/")}
        assert any(old in text for text in texts.values())
        members |= {name: text.replace(old, new).encode() for name, text in texts.items()}
        redigest(members)

    return change


DAMAGE: dict[str, Any] = {
    "no document": lambda m: m.pop("model.json"),
    "not JSON": lambda m: m.update({"model.json": b"{"}),
    "binary document": lambda m: m.update({"model.json": b"\xff\xfe\x00"}),
    "deeply nested document": lambda m: m.update({"model.json": b"[" * 100_000}),
    "a list": lambda m: m.update({"model.json": b"[]"}),
    "another format": document(format="onnx"),
    "newer version": document(version=99),
    "no version": without("version"),
    "version of another type": document(version="1"),
    "no variants": without("variants"),
    "no attributes": without("attributes"),
    "an attribute of Python's own": document(attributes={"__class__": 3}),
    "a private method": graph_text("'predict':", "'_run':"),
    "empty variants": document(variants=[]),
    "variants of another type": document(variants=3),
    "no input": without("input"),
    "unknown field of the input": document(input=lambda spec: {**spec, "colour": "red"}),
    "another width": document(input=lambda spec: {**spec, "columns": [[3, {}]]}),
    "more columns than memory has": document(input=lambda spec: {**spec, "columns": [[10**12, {}]]}),
    "unknown field of a column": document(input=lambda spec: {**spec, "columns": [[12, {"colour": "red"}]]}),
    "field of a column of another type": document(input=lambda spec: {**spec, "columns": [[12, {"integer_bits": "many"}]]}),
    "group of columns that are not there": document(
        input=lambda spec: {**spec, "frames": {**spec["frames"], "stacked": [[0, 12]]}}
    ),
    "names for other columns": document(input=lambda spec: {**spec, "feature_names": ["a"]}),
    "the fields of an older version": document(version=1),
    "kinds of another dtype": document(variants=lambda v: [{**v[0], "kinds": [[12, "i32"]]}, *v[1:]]),
    "kinds of a text": document(variants=lambda v: [{**v[0], "kinds": [[12, "complex"]]}, *v[1:]]),
    "kinds for more columns than memory has": document(variants=lambda v: [{**v[0], "kinds": [[10**12, "f32"]]}, *v[1:]]),
    "kinds for a negative number of columns": document(variants=lambda v: [{**v[0], "kinds": [[-12, "f32"]]}, *v[1:]]),
    "two variants for the same dtypes": document(variants=lambda v: [v[0], {**v[1], "kinds": v[0]["kinds"]}, *v[2:]]),
    "a main variant that is not there": document(main=3),
    "other methods": document(methods=["predict"]),
    "another claim about rows": document(variants=lambda v: [{**one, "mixes_rows": True} for one in v]),
    "no arrays": document(arrays={}),
    "arrays of a variant left out": document(variants=lambda v: [{**one, "arrays": []} for one in v]),
    "another digest of an array": document(arrays=lambda a: dict.fromkeys(a, "0" * 64)),
    "another digest of a graph": document(variants=lambda v: [{**one, "digest": "0" * 64} for one in v]),
    "metadata of another type": document(metadata=[1]),
    "versions of another type": document(libraries={"sklearn": 1.8}),
    "NaN in the manifest": raw(b'"metadata": {}', b'"metadata": {"a": NaN}'),
    "a number beyond all floats": raw(b'"metadata": {}', b'"metadata": {"a": 1e999}'),
    "a number of more digits than Python reads": raw(b'"metadata": {}', b'"metadata": {"a": 1' + b"0" * 5000 + b"}"),
    "a name that occurs twice": raw(b'"version": 2', b'"version": 2, "version": 2'),
    "a member that is not listed": lambda m: m.update({"arrays/k0123.npy": _npy(np.zeros(2))}),
    "a path that leads out": lambda m: m.update({"arrays/../../evil.npy": b"x"}),
    "an absolute path": lambda m: m.update({"/etc/evil": b"x"}),
    "a path of Windows": lambda m: m.update({"C:\\evil": b"x"}),
    "missing graph": lambda m: m.pop("graphs/1.txt"),
    "a graph of other arrays": lambda m: (m.update({"graphs/0.txt": m["graphs/1.txt"]}), redigest(m)),
    "a manifest that unpacks to gigabytes": lambda m: m.update({"model.json": b" " * 5_000_000 + m["model.json"]}),
    "a graph of too many parentheses": lambda m: (m.update({"graphs/0.txt": b"(" * 100_000}), redigest(m)),
    "a graph of too many terms": lambda m: (m.update({"graphs/0.txt": b"-" * 100_000 + b"1"}), redigest(m)),
    "unknown dtype": document(output_dtypes={"predict": "no dtype"}),
    "no settings": without("settings"),
    "settings without a backend": document(settings={}),
    "settings of other types": document(settings=lambda s: {**s, "threads": "many"}),
    "unknown operator": graph_text("Linear(", "Evil("),
    "code instead of a graph": lambda m: (
        m.update({"graphs/0.txt": b"import os; os.system('touch /tmp/x/evil')"}),
        redigest(m),
    ),
    "a call in a graph": graph_text("Linear(", "__import__('os').system("),
    "a wrong type in a graph": graph_text("f64[N, 1]", "f64[N, 2]"),
    "missing array": first_array(None),
    "truncated array": first_array(lambda data: data[:-3]),
    "longer array": first_array(lambda data: data + b"x"),
    "pickle as an array": first_array(pickled),
    "text as an array": first_array(lambda data: b"hello"),
    "array of another shape": first_array(lambda data: _npy(np.zeros(3))),
    "array that claims to be huge": first_array(lambda data: _claiming((10**15,))),
    "array of negative size": first_array(lambda data: _claiming((-1,))),
}


def _claiming(shape: tuple[int, ...]) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "<f8", "fortran_order": False, "shape": shape})
    return buffer.getvalue() + bytes(64)


def _npy(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_models(saved: bytes, name: str, tmp_path: Path) -> None:
    path = tmp_path / "m.hbc"
    path.write_bytes(changed(saved, DAMAGE[name]))
    with pytest.raises(hbc.ArtifactError, match=r"m\.hbc") as caught:
        hbc.load(path)
    assert caught.value.facts["found"]
    assert os.listdir(tmp_path) == ["m.hbc"]


def test_an_unchanged_copy_loads(saved: bytes, tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(changed(saved, lambda members: None))
    assert hbc.load(tmp_path / "m").n_features_in_ == 12


def test_newer_version_says_upgrade(saved: bytes, tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(changed(saved, document(version=99)))
    with pytest.raises(hbc.ArtifactError, match=r"version 99.*newer hbc: upgrade"):
        hbc.load(tmp_path / "m")


ARTIFACTS = Path(__file__).parent / "artifacts"
FORMAT_1: dict[str, Any] = json.loads((ARTIFACTS / "format1.json").read_text())
"""For each file that the last hbc of format 1 wrote (c6552ad): a method, an input, and what the source library returned."""


@pytest.mark.parametrize("name", FORMAT_1)
def test_files_of_format_1(name: str, tmp_path: Path) -> None:
    """They are read as the model that they were, and written in the format of today."""
    case = FORMAT_1[name]
    compiled = hbc.load(ARTIFACTS / f"{name}.format1.hbc", backend="numpy")
    compiled.save(tmp_path / "m")
    frame = pd.DataFrame(case["X"]["data"], columns=case["X"]["columns"])
    for model in (compiled, hbc.load(tmp_path / "m")):
        np.testing.assert_allclose(getattr(model, case["method"])(frame), case["expected"], rtol=1e-6)
        assert model.spec == compiled.spec


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


@pytest.mark.parametrize("part", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_truncated_files(saved: bytes, part: float, tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(saved[: int(len(saved) * part)])
    with pytest.raises(hbc.ArtifactError, match="cannot be read"):
        hbc.load(tmp_path / "m")


@pytest.mark.parametrize("place", range(0, 100, 9))
def test_flipped_bits_are_noticed_or_harmless(saved: bytes, place: int, tmp_path: Path) -> None:
    data = bytearray(saved)
    data[len(data) * place // 100] ^= 0x55
    (tmp_path / "m").write_bytes(data)
    probe = np.zeros((2, 12))
    (tmp_path / "good").write_bytes(saved)
    try:
        found = hbc.load(tmp_path / "m").predict_proba(probe)
    except hbc.ArtifactError:
        return
    np.testing.assert_array_equal(found, hbc.load(tmp_path / "good").predict_proba(probe))


FOREIGN = {
    "text": b"hello",
    "an empty file": b"",
    "a pickle": b"\x80\x04N.",
    "an empty zip": b"PK\x05\x06" + b"\x00" * 18,
}


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_files(name: str, tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(FOREIGN[name])
    with pytest.raises(hbc.ArtifactError, match="saved by hbc"):
        hbc.load(tmp_path / "m")


def test_folders_and_missing_files(tmp_path: Path) -> None:
    with pytest.raises(hbc.ArtifactError):
        hbc.load(tmp_path)
    with pytest.raises(FileNotFoundError):
        hbc.load(tmp_path / "nothing")
    with pytest.raises(TypeError):
        hbc.load(3)  # type: ignore[arg-type]


def test_bombs_are_not_unpacked(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "m", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("model.json", "{}")
        archive.writestr("arrays/k.npy", bytes(300_000_000))
    with pytest.raises(hbc.ArtifactError, match="unpack to 300000002"):
        hbc.load(tmp_path / "m")


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
    with pytest.raises(ValueError, match=r"\.a, \.o, \.onnx, \.pt, \.so"):
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
