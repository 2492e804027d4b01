"""Saved models that are damaged, or made by someone who means harm: ArtifactError, or the same answers."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mutations import MUTATIONS, mutate
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression

import hbc
from hbc.ops.vectorizers.analyze import Analyze
from hbc.ops.vectorizers.strings import pack
from hbc.parser.sklearn import feature_extraction
from hbc.runtime import artifact

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 4))
Y = (X.sum(axis=1) > 0).astype(int)


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
    with pytest.raises(hbc.ArtifactError, match=r"version 99.*newer hbc saved it: install that one"):
        hbc.load(tmp_path / "m")


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


# --- the zip itself --------------------------------------------------------------------------------------------------------


def refused(data: bytes, path: Path, match: str) -> None:
    path.write_bytes(data)
    with pytest.raises(hbc.ArtifactError, match=match):
        hbc.load(path, backend="numpy")


def entries(data: bytes) -> list[tuple[int, str]]:
    """(where its entry in the zip's directory begins, its name) of every member."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        start, found = archive.start_dir, []
        for member in archive.infolist():
            found.append((start, member.filename))
            start += 46 + len(member.filename) + len(member.extra) + len(member.comment)
    return found


def patched(data: bytes, *changes: tuple[int, bytes]) -> bytes:
    found = bytearray(data)
    for place, content in changes:
        found[place : place + len(content)] = content
    return bytes(found)


def test_members_that_occur_twice(saved: bytes, tmp_path: Path) -> None:
    buffer = io.BytesIO(saved)
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(buffer, "a") as archive:
        archive.writestr("model.json", archive.read("model.json"))
    refused(buffer.getvalue(), tmp_path / "m", "'model.json' twice")


def test_members_that_overlap(saved: bytes, tmp_path: Path) -> None:
    (_, _), (second, name), (third, other), *_ = entries(saved)
    assert name.startswith("graphs/")
    assert other.startswith("graphs/")
    offset = saved[second + 42 : second + 46]
    refused(patched(saved, (third + 42, offset)), tmp_path / "m", "overlaps|differ|twice")
    inside = (int.from_bytes(offset, "little") + 10).to_bytes(4, "little")
    refused(patched(saved, (third + 42, inside)), tmp_path / "m", "overlaps|differ")


def test_encrypted_members_and_other_compressions(saved: bytes, tmp_path: Path) -> None:
    for place, name in entries(saved):
        refused(patched(saved, (place + 8, b"\1")), tmp_path / "m", f"{name} with flags 1")
        refused(patched(saved, (place + 10, b"\x0c")), tmp_path / "m", f"{name} with flags 0 and compression 12")


def test_names_of_the_directory_and_before_the_member_are_one(saved: bytes, tmp_path: Path) -> None:
    place, name = next((place, name) for place, name in entries(saved) if name == "graphs/0.txt")
    start = int.from_bytes(saved[place + 42 : place + 46], "little")
    refused(patched(saved, (start + 30, b"graphs/9.txt")), tmp_path / "m", f"two descriptions of {name}")


def test_texts_that_unpack_to_much_more(saved: bytes, tmp_path: Path) -> None:
    data = changed(saved, lambda members: members.update({"model.json": b" " * (1 << 26) + members["model.json"]}))
    refused(data, tmp_path / "m", r"bytes of model\.json that unpack to 67")


def test_a_file_that_changes_after_it_was_loaded(tmp_path: Path) -> None:
    """Files of more than 256 KiB are read when a graph is needed. Deleted and replaced ones are read all the same."""
    wide = hbc.convert(LogisticRegression().fit(np.tile(X, 10_000), Y), "numpy")
    path = tmp_path / "m"
    wide.save(path)
    data = path.read_bytes()
    assert len(data) > 1 << 18
    deleted, overwritten = artifact.read(path), artifact.read(path)
    with open(path, "r+b") as file:
        file.seek(len(data) // 2)
        file.write(bytes(1000))
    with pytest.raises(hbc.ArtifactError, match="is damaged"):
        [lazy.graph for lazy in overwritten.graphs.values()]
    with open(path, "r+b") as file:
        file.truncate(5000)
    with pytest.raises(hbc.ArtifactError, match=r"ends before|is damaged"):
        [lazy.graph for lazy in overwritten.graphs.values()]
    path.write_bytes(data)
    path.unlink()
    for kinds, lazy in deleted.graphs.items():
        assert lazy.graph == wide.variants[kinds].graph


# --- mutations -----------------------------------------------------------------------------------------------------------


def test_mutations_are_noticed_or_harmless(saved: bytes, tmp_path: Path) -> None:
    read, memory = mutate(MUTATIONS, saved, tmp_path, 0, 300)
    assert read < 100
    assert memory < 1 << 30


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_many_mutations_are_noticed_or_harmless(saved: bytes, part: int, tmp_path: Path) -> None:
    """20,000 in all."""
    _, memory = mutate(MUTATIONS, saved, tmp_path, 1000 + part * 2000, 1000 + (part + 1) * 2000)
    assert memory < 1 << 30


LEAVES = """
import io, json, random, sys, warnings, zipfile
from pathlib import Path
import numpy as np
import hbc
warnings.simplefilter("error")
path, first, last = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
with zipfile.ZipFile(path) as archive:
    members = {name: archive.read(name) for name in archive.namelist()}
manifest, target = json.loads(members["model.json"]), path.with_name("mutated")
rows = np.random.default_rng(0).normal(size=(3, 12))
ODD = (None, True, False, 0, 1, -1, 2, 10**9, 10**30, 0.5, "", "f32", "X", "__class__", "../x", [], {}, [1], [[]], [[1, "f32"]], {"a": 1},
       {"array": "k"}, {"list": []}, {"objects": [1], "shape": [3]}, "x" * 1000, [[10**8, {}]], [[12, {}]] * 3)
read = 0
for seed in range(first, last):
    chance = random.Random(seed)
    document = json.loads(json.dumps(manifest))
    places = []
    def walk(value):
        for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
            places.append((value, key))
            walk(value[key])
    walk(document)
    for _ in range(chance.choice((1, 1, 2))):
        owner, key = chance.choice(places)
        if chance.random() < 0.15 and key in (owner if isinstance(owner, dict) else range(len(owner))):
            del owner[key]
        elif isinstance(owner, dict) or key < len(owner):
            owner[key] = chance.choice(ODD)
    with zipfile.ZipFile(target, "w") as archive:
        for name, content in {**members, "model.json": json.dumps(document).encode()}.items():
            archive.writestr(name, content)
    try:
        model = hbc.load(target, backend="numpy")
        str(model.info), repr(model)
        read += 1
        model.predict_proba(rows)
    except (hbc.HbcError, AttributeError) as error:
        assert isinstance(error, hbc.HbcError) or "predict_proba" in str(error), seed
    except Exception as error:
        raise AssertionError(seed) from error
# ru_maxrss would begin with the memory of the process that started this one.
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM")) if sys.platform == "linux" else "- 0"
print(json.dumps([read, int(peak.split()[1]) * 1024]))
"""


def test_odd_values_in_the_manifest(saved: bytes, tmp_path: Path) -> None:
    """A value of the manifest that is replaced on purpose can make another model, but no other error and no flood of memory."""
    _, memory = mutate(LEAVES, saved, tmp_path, 0, 200)
    assert memory < 1 << 30


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_many_odd_values_in_the_manifest(saved: bytes, part: int, tmp_path: Path) -> None:
    _, memory = mutate(LEAVES, saved, tmp_path, 1000 + part * 1000, 1000 + (part + 1) * 1000)
    assert memory < 1 << 30


@pytest.mark.parametrize(
    ("data", "ends"),
    [
        (b"aus\xffbm", [2, 3, 5, 6]),  # no UTF-8
        ("aübm".encode(), [2, 3, 4, 5]),  # inside a letter
        (b"aubmuu", [2, 3, 5, 7]),
        (b"aubmuu", [2, 1, 5, 6]),
        (b"aubmuu", [-1, 3, 5, 6]),
    ],
)
def test_strings_that_somebody_has_changed(
    data: bytes, ends: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With digests that fit, the file loaded, and the first call raised UnicodeDecodeError."""
    source = CountVectorizer().fit(["aus bei", "mit und"])
    damaged = np.frombuffer(data, np.uint8), np.array(ends)
    monkeypatch.setattr(feature_extraction, "pack", lambda terms: damaged if list(terms) else pack(terms))
    hbc.convert(source, backend="numpy").save(tmp_path / "model.hbc")
    with pytest.raises(hbc.ArtifactError):
        hbc.load(tmp_path / "model.hbc").transform(["aus"])


@pytest.mark.parametrize(("name", "value"), [("pattern", "("), ("analyzer", "words"), ("accents", "all")])
def test_documents_that_nothing_can_cut(name: str, value: str) -> None:
    """A pattern that is none was an error of `re` at the first call, and other accents counted as "unicode"."""
    analyze = Analyze("word", True, None, r"\w+", 1, 1, *pack(["the"]))
    analyze.require_sound()
    with pytest.raises(ValueError, match=re.escape(repr(value))):
        replace(analyze, **{name: value}).require_sound()
