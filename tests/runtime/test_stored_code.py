"""Compiled code in saved models: used where the caller trusts the file, the processor has its level and the same hbc made it; otherwise not
even read."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mutations import MUTATIONS, mutate
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import make_pipeline

import hbc
from hbc import builder
from hbc.cache import identity, levels
from hbc.compiler.base import CompileOptions
from hbc.errors import ArtifactError
from hbc.ir.archive import Archive
from hbc.ir.types import NUMPY_DTYPES
from hbc.kept import file_shelf
from hbc.runtime import artifact
from hbc.tuning import choices

pytest.importorskip("tvm")
import tvm_ffi

from hbc.compiler.tvm.run.kept import UNTESTED, find_method

X = np.random.default_rng(0).normal(size=(50, 3))
MODEL = LogisticRegression().fit(X, np.arange(50) % 3)
P = MODEL.predict_proba(X)
ABSENT = ("tvm", "torch", "sklearn", "scipy", "hbc.optimizer.pipeline", "hbc.parser.parse")
LEVELS = ["x86-64-v2", "x86-64-v3"]

LOAD = """
import sys
import numpy as np
import hbc
model = hbc.load(sys.argv[1], trust_code=True)
X, expected = np.load(sys.argv[2]), np.load(sys.argv[3])
wanted = {"predict_proba": expected, "predict": expected.argmax(1)}
same = [np.allclose(getattr(model, m)(x), e, rtol=1e-5) for x in (X, X.astype("f4")) for m, e in wanted.items()]
print(all(same), *[name for name in sys.argv[4:] if name in sys.modules])
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """model.hbc with code for two levels, X.npy, and the source's probabilities in P.npy."""
    folder = tmp_path_factory.mktemp("code")
    hbc.convert(MODEL, "tvm", X).save(folder / "model.hbc", code=LEVELS)
    np.save(folder / "X.npy", X)
    np.save(folder / "P.npy", P)
    return folder


@pytest.fixture
def has_v3() -> None:
    if "x86-64-v3" not in levels.own_levels():
        pytest.skip("this processor lacks x86-64-v3")


def edited(path: Path, target: Path, change: Any) -> Path:
    """A copy of a saved model with each member under code/ as `change` gives it, and the manifest as it was."""
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            new.writestr(name, change(name, content) if name.startswith("code/") else content)
    return target


def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The members that are read from now on."""
    read: list[str] = []
    place = Archive._place
    monkeypatch.setattr(Archive, "_place", lambda self, name: read.append(name) or place(self, name))
    return read


def flipped(name: str, content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 1])


def run(code: str, *arguments: Any) -> str:
    environment = {**os.environ, "PYTHONPATH": str(Path(hbc.__file__).parents[1]), "HBC_CACHE": ""}
    command = [sys.executable, "-W", "error", "-c", code, *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    return done.stdout.strip()


@pytest.mark.usefixtures("has_v3")
def test_trusted_code_answers_without_the_compiler(folder: Path) -> None:
    """There is no cache on disk: all methods and dtypes come from the file."""
    assert run(LOAD, folder / "model.hbc", folder / "X.npy", folder / "P.npy", *ABSENT) == "True"


def test_untrusted_code_is_not_read(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also where all of it is damaged."""
    read = reads(monkeypatch)
    loaded = hbc.load(edited(folder / "model.hbc", tmp_path / "m.hbc", flipped))
    np.testing.assert_allclose(loaded.predict_proba(X), P, rtol=1e-12)
    assert read
    assert not [name for name in read if name.startswith("code/")]
    assert f"compiled code in the file: for {', '.join(LEVELS)}; not read, since" in loaded.explain()
    for bad in ("no", 1, None):
        with pytest.raises(ValueError, match="expected True or False"):
            hbc.load(folder / "model.hbc", trust_code=bad)  # type: ignore[arg-type]


@pytest.mark.usefixtures("has_v3")
@pytest.mark.parametrize("member", ["index.json", "object"])
def test_damaged_code_is_noticed(member: str, folder: Path, tmp_path: Path) -> None:
    def change(name: str, content: bytes) -> bytes:
        return flipped(name, content) if name.endswith("index.json") == (member == "index.json") else content

    path = edited(folder / "model.hbc", tmp_path / "m.hbc", change)
    with pytest.raises(ArtifactError, match="damaged"):
        hbc.load(path, trust_code=True, warm_up=True)


def test_checksum(folder: Path, tmp_path: Path) -> None:
    path = folder / "model.hbc"
    checksum = hashlib.sha256(path.read_bytes()).hexdigest()
    loaded = hbc.load(path, checksum=checksum.upper())
    np.testing.assert_allclose(loaded.predict_proba(X), P, rtol=1e-12)
    with pytest.raises(ArtifactError, match=checksum):
        hbc.load(edited(path, tmp_path / "m.hbc", flipped), checksum=checksum)
    for bad in ("", "0" * 63, "g" * 64, 7):
        with pytest.raises(ValueError, match="64 hexadecimal digits"):
            hbc.load(path, checksum=bad)  # type: ignore[arg-type]


def without_code(model: Any) -> bool:
    """Whether a model does not use the code of its file, and answers right."""
    np.testing.assert_allclose(model.predict_proba(X), P, rtol=1e-12)
    return "predict_proba found in the saved model" not in model.explain()


def with_features(monkeypatch: pytest.MonkeyPatch, level: str) -> None:
    """Make hbc see a processor that has the features of a level and no other."""
    kind, features = levels.LEVELS[level]
    monkeypatch.setattr("platform.machine", lambda: kind)
    monkeypatch.setattr(levels, "processor", lambda: ("", features))


def test_code_for_better_processors_is_not_read(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It would end with an illegal instruction."""
    path = tmp_path / "m.hbc"
    hbc.load(folder / "model.hbc").save(path, code="x86-64-v3")
    with_features(monkeypatch, "x86-64-v2")
    read = reads(monkeypatch)
    loaded = hbc.load(path, trust_code=True)
    assert without_code(loaded)
    assert not [name for name in read if name.startswith("code/")]
    assert "compiled code in the file: for x86-64-v3; not used: this processor has x86-64-v2\n" in loaded.explain()


def test_the_best_level_is_taken(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for level in ("x86-64-v2", "x86-64-v3"):
        with_features(monkeypatch, level)
        read = reads(monkeypatch)
        assert hbc.load(folder / "model.hbc", trust_code=True)._builder.code.level == level  # type: ignore[attr-defined]
        assert {name for name in read if name.startswith("code/")} >= {f"code/{level}/index.json"}
        assert not [name for name in read if name.endswith("index.json") and level not in name]


@pytest.mark.usefixtures("has_v3")
@pytest.mark.parametrize("made", ["hbc", "programs", "tvm", "tvm_ffi"])
def test_code_of_other_versions_is_not_used(made: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = builder.made_by
    monkeypatch.setattr(builder, "made_by", lambda backend: {**usual(backend), made: "of another day"})
    loaded = hbc.load(folder / "model.hbc", trust_code=True)
    assert without_code(loaded)
    assert re.search(f"not used: it was made by {made} [^,]+, and here is {made} of another day", loaded.explain())


@pytest.mark.usefixtures("has_v3")
def test_code_of_other_passes_is_not_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was not, and `explain` said that it was."""
    monkeypatch.setenv("HBC_WITHOUT", "PruneTrees")
    loaded = hbc.load(folder / "model.hbc", trust_code=True)
    assert without_code(loaded)
    assert "not used: it was made by HBC_WITHOUT none, and here is HBC_WITHOUT PruneTrees\n" in loaded.explain()


def test_programs_are_told_apart_by_their_contents(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By content alone: not by the time of the last change, as the cache on this computer does."""
    digests = []
    for name, text in {"a": "x = 1", "b": "x = 1", "c": "x = 2"}.items():
        (tmp_path / name / "cache").mkdir(parents=True)
        (tmp_path / name / "module.py").write_text(text)
        monkeypatch.setattr(identity, "__file__", str(tmp_path / name / "cache" / "identity.py"))
        digests.append(identity.programs.__wrapped__())
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.usefixtures("has_v3")
def test_code_is_for_one_set_of_options(folder: Path) -> None:
    """Of two models that differ only in their options, none takes the code of the other."""
    path = folder / "model.hbc"
    contents = artifact.read(path)
    (graph,) = [graph for kinds, graph in contents.graphs.items() if kinds == contents.main]
    saved = builder.Builder.from_settings(contents.settings).with_code(contents.code, trusted=True)

    def never() -> Any:
        raise AssertionError

    assert saved.recall(graph, never)
    for options in ({"threads": 2}, {"batch_size": 1}):
        assert replace(saved, options=replace(saved.options, **options)).recall(graph, never) is None
    assert replace(saved, strategy="gemm").recall(graph, never) is None


@pytest.fixture
def forest(tmp_path: Path) -> tuple[Path, Any]:
    model = RandomForestRegressor(8, max_depth=4, random_state=0).fit(X, X[:, 0])  # of few methods
    return tmp_path / "forest.hbc", hbc.convert(model, "tvm", X)


@pytest.mark.usefixtures("has_v3")
def test_the_choice_of_tune(forest: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A choice made on this computer counts more than the code in the file. A file with a choice has code for it, but for the threads and
    blocks of rows, which are this computer's."""
    monkeypatch.setenv("HBC_CACHE", str(tmp_path / "cache"))
    path, model = forest
    model.save(path, code="x86-64-v3")
    walked = choices.Choice("walk", threads=1, block=128)
    tuned = choices.Tuned((1,), walked, (walked,), "by the test")
    assert choices.keep(tuned, model.graph, "tvm", CompileOptions())
    loaded = hbc.load(path, trust_code=True)
    assert "not used: hbc tune chose walk, 1 thread, blocks of 128 rows on this computer" in loaded.explain()
    loaded.save(path, code="x86-64-v3")
    again = hbc.load(path, trust_code=True)
    assert (again.predict(X) == model.predict(X)).all()
    assert "predict found in the saved model" in again.explain()


def test_levels_of_this_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr("sys.platform", "linux")
    for level in ("x86-64-v2", "x86-64-v3", "x86-64-v4"):
        monkeypatch.setattr(levels, "processor", lambda level=level: ("", levels.LEVELS[level][1]))
        assert levels.own_levels()[0] == level
    monkeypatch.setattr(levels, "processor", lambda: ("", levels.LEVELS["x86-64-v3"][1].replace(" fma", "")))
    assert levels.own_levels() == ("x86-64-v2",)
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert levels.own_levels() == ("aarch64",)


LINUX_NAMES = {"sahf": "lahf_lm", "bmi": "bmi1", "lzcnt": "abm", "sse3": "pni", "crc32": "sse4_2"}
ALL_HAVE = {"64bit", "cmov", "cx8", "fxsr", "mmx", "nopl", "sse", "sse2", "x87"}  # every processor of x86-64


@pytest.mark.parametrize("level", [level for level, (kind, _) in levels.LEVELS.items() if kind == "x86_64"])
def test_a_level_has_all_that_its_code_may_use(level: str) -> None:
    """Every feature that LLVM may use for the level is one that this computer must have before it takes the code."""
    import tvm

    from hbc.compiler.tvm.library.processors import target_named
    from hbc.compiler.tvm.run.targets import _tuning, machine

    used = set(map(str, tvm.target.codegen.llvm_get_cpu_features(machine("cpu", target_named(level)).target)))
    names = {LINUX_NAMES.get(name, name.replace(".", "_")) for name in used - ALL_HAVE if not _tuning(name)}
    assert "ssse3" in names
    assert names <= set(levels.LEVELS[level][1].split())


def test_what_cannot_be_saved_is_refused(folder: Path, tmp_path: Path) -> None:
    model = hbc.load(folder / "model.hbc")
    with pytest.raises(ValueError, match="found 'x86-64-v5', expected some of x86-64-v4, x86-64-v3, x86-64-v2, aarch64"):
        model.save(tmp_path / "m.hbc", code="x86-64-v5")
    with pytest.raises(ValueError, match="the model is for 'numpy' on 'cpu'"):
        hbc.load(folder / "model.hbc", backend="numpy").save(tmp_path / "m.hbc", code="x86-64-v3")
    with pytest.raises(ValueError, match=r"the model is for the target .*'haswell'"):
        hbc.convert(MODEL, target={"kind": "llvm", "mcpu": "haswell"}).save(tmp_path / "m.hbc", code="x86-64-v3")
    assert not (tmp_path / "m.hbc").exists()


def test_equal_models_are_equal_files(tmp_path: Path) -> None:
    hbc.convert(LinearRegression().fit(X, X[:, 0]), "tvm", X).save(tmp_path / "first.hbc", code=LEVELS)  # has one method
    hbc.load(tmp_path / "first.hbc").save(tmp_path / "second.hbc", code=LEVELS)
    assert (tmp_path / "second.hbc").read_bytes() == (tmp_path / "first.hbc").read_bytes()


@pytest.mark.usefixtures("has_v3")
def test_parts_on_the_host(tmp_path: Path) -> None:
    """Text is read by Python, before code that comes from the file."""
    texts = [f"{a} cat {b}" for a in ("a", "the", "my") for b in ("sat", "ran", "ate", "slept")]
    model = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(texts, np.arange(12) % 2)
    hbc.convert(model, "tvm").save(tmp_path / "m.hbc", code="x86-64-v3")
    loaded = hbc.load(tmp_path / "m.hbc", trust_code=True)
    np.testing.assert_allclose(loaded.predict_proba(texts), model.predict_proba(texts), rtol=1e-12)
    assert "predict_proba found in the saved model" in loaded.explain()


# --- damage --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "listed",
    [
        {"x86-64-v3": {"model.json": "0" * 64}},
        {"x86-64-v3": {"code/x86-64-v3/index.json": 7}},
        {"x86-64-v3": {"code/x86-64-v3/index.json": "z" * 64}},
        {"x86-64-v3": 7},
        [1],
    ],
)
def test_odd_lists_of_code(listed: Any, folder: Path, tmp_path: Path) -> None:
    """They are errors for callers who do not trust the file too."""
    path = with_manifest(folder / "model.hbc", tmp_path / "m.hbc", lambda document: {**document, "code": listed})
    for trusted in (False, True):
        with pytest.raises(ArtifactError):
            hbc.load(path, trust_code=trusted)


@pytest.mark.usefixtures("has_v3")
@pytest.mark.parametrize(
    "index", [b"{", b"[]", b"{}", b'{"made_by": 1, "references": {}}', b'{"made_by": {}, "references": 1}']
)
def test_an_index_of_something_else(index: bytes, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The manifest has its digest, as whoever wrote such a file would see to."""
    monkeypatch.setattr(builder, "own_levels", lambda: ("x86-64-v3",))
    member = "code/x86-64-v3/index.json"

    def listing(document: Any) -> Any:
        document["code"]["x86-64-v3"][member] = hashlib.sha256(index).hexdigest()
        return document

    path = edited(folder / "model.hbc", tmp_path / "a.hbc", lambda name, content: index if name == member else content)
    path = with_manifest(path, tmp_path / "m.hbc", listing)
    with pytest.raises(ArtifactError, match="damaged compiled code"):
        hbc.load(path, trust_code=True)


def with_manifest(path: Path, target: Path, change: Any) -> Path:
    """A copy of a saved model with another manifest."""
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            new.writestr(name, json.dumps(change(json.loads(content))) if name == "model.json" else content)
    return target


TRUSTING = MUTATIONS.replace('backend="numpy"', "trust_code=True, warm_up=True").replace("size=(3, 12)", "size=(3, 3)")


@pytest.mark.usefixtures("has_v3")
def test_mutations_are_noticed_or_harmless(folder: Path, tmp_path: Path) -> None:
    """Also where the code is trusted and run. What no reader looks at (code for other processors) may change."""
    assert TRUSTING.count("trust_code=True") == 2
    _, memory = mutate(TRUSTING, (folder / "model.hbc").read_bytes(), tmp_path, 0, 300)
    assert memory < 1 << 30


# --- other processors ----------------------------------------------------------------------------------------------------

RUN = """
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tvm/ffi/c_api.h>

void TVMFFIErrorSetRaisedFromCStr(const char* kind, const char* message) { puts(message); }
void TVMFFIErrorSetRaisedFromCStrParts(const char* kind, const char** parts, int32_t n) {
  for (int i = 0; i < n; i++) puts(parts[i]);
}
static void* allocate(int kind, int id, uint64_t bytes, int code, int bits) { return aligned_alloc(128, (bytes + 127) / 128 * 128); }
static int release(int kind, int id, void* place) { free(place); return 0; }

static TVMFFIAny arguments[16];
static DLTensor tensors[16];
static int64_t shapes[16][2];

/* main LIBRARY [t CODE BITS FILE DIMENSIONS SIZE…] … [i INTEGER] … [f FLOAT] …: the last tensor is written back. */
int main(int n, char** words) {
  void* library = dlopen(words[1], RTLD_LAZY);
  if (!library) { puts(dlerror()); return 1; }
  TVMFFISafeCallType run = (TVMFFISafeCallType)dlsym(library, "__tvm_ffi_run");
  void** memory = dlsym(library, "__TVMBackendAllocWorkspace");
  if (memory) { *memory = allocate; *(void**)dlsym(library, "__TVMBackendFreeWorkspace") = release; }
  int count = 0, last = 0;
  char* name = 0;
  for (int at = 2; at < n; count++) {
    const char* kind = words[at++];
    TVMFFIAny* argument = arguments + count;
    if (*kind == 'i') { argument->type_index = kTVMFFIInt; argument->v_int64 = atoll(words[at++]); continue; }
    if (*kind == 'f') { argument->type_index = kTVMFFIFloat; argument->v_float64 = atof(words[at++]); continue; }
    DLTensor* tensor = tensors + count;
    tensor->device.device_type = kDLCPU;
    tensor->dtype.code = atoi(words[at++]);
    tensor->dtype.bits = atoi(words[at++]);
    tensor->dtype.lanes = 1;
    name = words[at++];
    tensor->ndim = atoi(words[at++]);
    tensor->shape = shapes[count];
    size_t bytes = tensor->dtype.bits / 8;
    for (int i = 0; i < tensor->ndim; i++) bytes *= shapes[count][i] = atoll(words[at++]);
    tensor->data = aligned_alloc(64, (bytes + 63) / 64 * 64);
    FILE* file = fopen(name, "rb");
    if (!file || fread(tensor->data, 1, bytes, file) != bytes) { puts(name); return 1; }
    fclose(file);
    argument->type_index = kTVMFFIDLTensorPtr;
    argument->v_ptr = tensor;
    last = count;
  }
  TVMFFIAny result;
  memset(&result, 0, sizeof result);
  if (!run || run(0, arguments, count, &result)) return 1;
  size_t bytes = tensors[last].dtype.bits / 8;
  for (int i = 0; i < tensors[last].ndim; i++) bytes *= shapes[last][i];
  FILE* file = fopen(name, "wb");
  return fwrite(tensors[last].data, 1, bytes, file) != bytes || fclose(file);
}
"""
CODES = {"i": 0, "u": 1, "f": 2}  # DLPack's numbers for kinds of numbers
RUNNERS = {
    "aarch64": ("aarch64-linux-gnu-gcc", ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"]),
    "x86-64-v2": ("gcc", ["qemu-x86_64", "-cpu", "Nehalem"]),
    "x86-64-v3": ("gcc", ["qemu-x86_64", "-cpu", "Haswell"]),
    "x86-64-v4": ("gcc", []),  # qemu has no AVX-512
}


def described(array: Any, path: Path) -> list[str]:
    """A tensor for the program RUN: its description, and its numbers in a file."""
    path.write_bytes(array.tobytes())
    shape = list(map(str, array.shape))
    return ["t", str(CODES[array.dtype.kind]), str(array.dtype.itemsize * 8), str(path), str(len(shape)), *shape]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("model", [MODEL, RandomForestClassifier(8, max_depth=4, random_state=0)], ids=["linear", "trees"])
@pytest.mark.parametrize("level", RUNNERS)
def test_each_level_computes_the_same(
    level: str, model: Any, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program in C calls the code in the file. An emulator runs it as a processor of just this level: code that needs a better one ends
    with an illegal instruction."""
    compiler, emulator = RUNNERS[level]
    if any(shutil.which(tool) is None for tool in (compiler, *emulator[:1])):
        pytest.skip(f"no {compiler} or no emulator")
    if not emulator and level not in levels.own_levels():
        pytest.skip(f"this processor lacks {level}")
    rows = X.astype(dtype)
    model = model.fit(X, np.arange(50) % 3)
    hbc.convert(model, "tvm").save(tmp_path / "m.hbc", code=level)
    contents = artifact.read(tmp_path / "m.hbc")
    (graph,) = [
        graph for kinds, graph in contents.graphs.items() if set(kinds) == {{"float32": "f32", "float64": "f64"}[dtype]}
    ]
    assert contents.code is not None
    settings = builder.Builder.from_settings(contents.settings)._settings_of_code()
    monkeypatch.setattr("hbc.compiler.tvm.run.kept.load_library", lambda library, found: library)
    found = find_method(file_shelf(contents.code.of(level), graph, settings), "predict_proba", UNTESTED)
    assert found is not None
    interface, library, tables = found
    assert int.from_bytes(library[18:20], "little") == (183 if level == "aarch64" else 62)  # type: ignore[index]
    (tmp_path / "code.so").write_bytes(library)  # type: ignore[arg-type]
    (tmp_path / "main.c").write_text(RUN)
    headers = f"-I{tvm_ffi.libinfo.find_include_path()}", f"-I{tvm_ffi.libinfo.find_dlpack_include_path()}"
    subprocess.run([compiler, "main.c", "-o", "main", *headers, "-rdynamic", "-ldl"], cwd=tmp_path, check=True)
    (output,) = interface.outputs
    answer = np.zeros((50, *output.shape[1:]), NUMPY_DTYPES[output.dtype])
    tensors = [described(array, tmp_path / f"{i}.bin") for i, array in enumerate((rows, *tables, answer))]
    call = [*chain(*tensors), "i", "0", "i", "50", *(["f", "inf"] if interface.tests else [])]
    done = subprocess.run([*emulator, "./main", "./code.so", *call], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stdout + done.stderr
    answer = np.fromfile(tmp_path / f"{len(tensors) - 1}.bin", answer.dtype).reshape(answer.shape)
    np.testing.assert_allclose(answer, model.predict_proba(rows), rtol=1e-12 if dtype == "float64" else 1e-5)
