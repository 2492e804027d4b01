"""Another process compiles, and all workers share the memory of large tables. Nothing is left of models that were replaced."""

from __future__ import annotations

import functools
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import pytest

pytest.importorskip("tvm")

from serving import until
from sklearn.ensemble import ExtraTreesClassifier
from sklearn.linear_model import LogisticRegression
from test_workers import Process, served

import hbc
from hbc.cache.folder import is_local
from hbc.serve import plain
from hbc.serve.compiling import Compiler, command_of
from hbc.serve.engine import computed
from hbc.serve.failures import Failure
from hbc.serve.limits import Limits
from hbc.serve.repository import Repository
from hbc.serve.served import Served
from hbc.serve.tensors import asked_outputs

TVM = ("--backend", "tvm", "--methods", "predict_proba")
X = np.random.default_rng(0).normal(size=(4000, 6)).astype(np.float32)


@functools.cache
def forest(seed: int) -> tuple[Any, bytes]:
    """A forest whose tables take some MB, and its file."""
    source = ExtraTreesClassifier(60, random_state=seed).fit(X, np.random.default_rng(seed).integers(0, 2, len(X)))
    with tempfile.TemporaryDirectory() as folder:
        hbc.convert(source, "numpy").save(f"{folder}/forest.hbc")
        return source, Path(folder, "forest.hbc").read_bytes()


def saved(path: Path, seed: int) -> Any:
    """The forest. Its file is put in place at once."""
    source, data = forest(seed)
    path.with_suffix(".new").write_bytes(data)
    path.with_suffix(".new").replace(path)
    return source


def asked(process: Process, method: str = "predict_proba") -> Any:
    body = json.dumps({"rows": X[:50].tolist()}).encode()
    with urlopen(Request(f"http://127.0.0.1:{process.port}/v1/models/forest:{method}", body), timeout=30) as answer:
        return json.load(answer)["predictions"][method]


def maps(process: Process) -> list[str]:
    """What each worker has mapped."""
    return [Path(f"/proc/{worker}/maps").read_text() for worker in process.workers]


def tables(text: str) -> set[str]:
    """The numbers of the mapped files of the cache. Each is mapped for reading only."""
    found = re.findall(r" (\S+) \S+ \S+ (\d+) +\S*/objects/../[0-9a-f]{64}", text)
    assert {permissions for permissions, _ in found} <= {"r--s"}
    return {number for _, number in found}


def compilers(process: Process) -> list[bool]:
    """Whether each worker has the compiler in its memory."""
    return ["libtvm_compiler" in text for text in maps(process)]


@pytest.mark.skipif(not is_local(Path("/tmp")), reason="mapped on Linux's own file systems only")
def test_another_process_compiles_and_all_share_the_tables(tmp_path: Path) -> None:
    path, cache = tmp_path / "forest.hbc", tmp_path / "cache"
    source = saved(path, 1)
    options = [*TVM, "--poll", "0"]
    with served(*options, workers=2, models=(str(path),), cache=cache) as process:
        assert len(process.events("model compiled")) == 1
        assert process.events("worker ended") == []
        first, second = map(tables, maps(process))
        assert first
        assert first == second
        for _ in range(4):
            np.testing.assert_allclose(asked(process), source.predict_proba(X[:50]), rtol=1e-5, atol=1e-6)
        with pytest.raises(HTTPError, match="40"):
            asked(process, "predict")

        after = saved(path, 2)
        process.process.send_signal(signal.SIGHUP)
        until(lambda: len(process.events("model loaded")) == 4, 60)
        for _ in range(4):
            np.testing.assert_allclose(asked(process), after.predict_proba(X[:50]), rtol=1e-5, atol=1e-6)
        assert len(process.events("model compiled")) == 2  # the other worker has waited, and found the code
        assert compilers(process) == [False, False]
        process.process.send_signal(signal.SIGTERM)
        assert process.process.wait(30) == 0

    with served(*options, workers=2, models=(str(path),), cache=cache) as process:
        assert process.events("model compiled") == []
        first, second = map(tables, maps(process))
        assert first
        assert first == second


def holds(worker: int, folder: Path) -> tuple[int, int]:
    """How many files of a folder a worker has open, and how many tables of models are mapped."""
    files = [os.path.realpath(each) for each in Path(f"/proc/{worker}/fd").iterdir()]
    return sum(each.startswith(str(folder)) for each in files), len(tables(Path(f"/proc/{worker}/maps").read_text()))


@pytest.mark.skipif(not is_local(Path("/tmp")), reason="mapped on Linux's own file systems only")
def test_nothing_is_left_of_models_that_were_replaced(tmp_path: Path) -> None:
    """By new files, and by `load` over HTTP."""
    path = tmp_path / "forest.hbc"
    saved(path, 1)
    with served(*TVM, "--poll", "0", models=(str(path),), cache=tmp_path / "cache") as process:
        (worker,) = process.workers
        asked(process)
        before, threads = holds(worker, tmp_path), len(os.listdir(f"/proc/{worker}/task"))
        assert before[1]
        for number in range(6):
            saved(path, number % 2 + 1)
            if number % 3:
                process.process.send_signal(signal.SIGHUP)
            else:
                load(process)
            until(lambda number=number: len(process.events("model loaded")) == number + 2, 60)
            asked(process)
        until(lambda: holds(worker, tmp_path) == before)
        assert len(os.listdir(f"/proc/{worker}/task")) < threads + 6  # a pool has some
        assert compilers(process) == [False]


def load(process: Process) -> None:
    with urlopen(Request(f"http://127.0.0.1:{process.port}/v2/repository/models/forest/load", b""), timeout=60) as answer:
        assert answer.status == 200


def test_a_compiler_that_is_killed_costs_no_request(tmp_path: Path) -> None:
    """The old model answers, the log says why, and the file is tried when it changes or somebody asks."""
    path = tmp_path / "forest.hbc"
    source = saved(path, 1)
    with served(*TVM, "--poll", "0", models=(str(path),), cache=tmp_path / "cache") as process:
        worker = process.process.pid
        saved(path, 2)
        process.process.send_signal(signal.SIGHUP)
        until(lambda: children(worker) != [])
        os.kill(children(worker)[0], signal.SIGKILL)
        until(lambda: len(process.events("model not loaded")) == 1)
        assert "has ended with SIGKILL" in process.events("model not loaded")[0]["reason"]
        np.testing.assert_allclose(asked(process), source.predict_proba(X[:50]), rtol=1e-5, atol=1e-6)
        load(process)
        assert len(process.events("model loaded")) == 2
        assert compilers(process) == [False]
        saved(path, 3)
        process.process.send_signal(signal.SIGHUP)
        until(lambda: children(worker) != [])
        process.process.send_signal(signal.SIGTERM)  # which does not wait for the compiler
        assert process.process.wait(30) == 0
        assert len(process.events("model not loaded")) == 1


def children(process: int) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(process)], capture_output=True, text=True, check=False)
    return [int(line) for line in found.stdout.split()]


LOADING = """
import sys, threading
import numpy as np
from hbc.serve.process import settle, use_one_heap

def private():
    with open("/proc/self/smaps_rollup") as file:
        return sum(int(line.split()[1]) for line in file if line.startswith("Private_"))

def load():
    np.ones(1 << 20)  # once such an array was freed, glibc takes the next ones from the heap
    arrays = [np.ones(1 << 19) for _ in range(10)]
    del arrays

if sys.argv[1] == "one":
    use_one_heap()
settle()
before = private()
for _ in range(2):
    thread = threading.Thread(target=load)
    thread.start()
    thread.join()
settle()
print(private() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has a heap for each thread")
def test_threads_give_the_memory_of_what_they_loaded_back() -> None:
    usual = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    one, many = (subprocess.check_output([sys.executable, "-c", LOADING, heaps], env=usual) for heaps in ("one", "many"))
    assert int(one) < 1 << 10 < 4 << 10 < int(many)


def linear(path: Path) -> Any:
    source = LogisticRegression().fit(X, X[:, 0] > 0)
    hbc.convert(source, "tvm").save(path)
    return source


def test_methods_that_few_ask_for_are_compiled_later(tmp_path: Path, monkeypatch: Any) -> None:
    """A repository is ready without them; a request for one is told to come again; `finish` puts the model in place with all. Who finds
    all code in the cache needs no `finish`, and methods that were asked for are never put off."""
    source = linear(tmp_path / "model.hbc")
    monkeypatch.setenv("HBC_CACHE", str(tmp_path / "cache"))
    told: list[str] = []

    def repository(**options: Any) -> Repository:
        found = Repository({"m": tmp_path / "model.hbc"}, tell=lambda event, **_: told.append(event), **options)
        found.refresh()
        return found

    found = repository(put_off=True)
    before = found.get("m")
    assert found.ready
    assert found.unfinished
    assert before.first == ("predict", "predict_proba")
    assert set(before.later) == set(before.methods) - set(before.first) != set()
    body = json.dumps({"rows": X[:3].tolist()}).encode()
    assert computed(before, *asked_of(before, "predict_proba", body)).keys() == {"predict_proba"}
    for ask in (
        lambda: asked_of(before, "decision_function", body),
        lambda: asked_of(before, "infer", body[:-1] + b', "methods": ["predict", "decision_function"]}'),
        lambda: asked_outputs(before, ["predict", "decision_function"]),
    ):
        with pytest.raises(Failure, match="decision_function is being compiled") as failure:
            ask()
        assert (failure.value.status, failure.value.retry_after) == (503, 2)
    found.refresh()
    assert found.get("m") is before
    found.finish()
    after = found.get("m")
    assert (after.later, after.methods, found.unfinished, told.count("model compiled")) == ((), before.methods, False, 2)
    for method in after.methods:
        outputs = computed(after, *asked_of(after, method, body))
        np.testing.assert_allclose(outputs[method], getattr(source, method)(X[:3].astype(float)), rtol=1e-5, atol=1e-6)
    for options in ({"put_off": True}, {}, {"put_off": True, "methods": ["decision_function"]}):
        assert repository(**options).get("m").later == ()
    assert told.count("model compiled") == 2
    monkeypatch.setenv("HBC_CACHE", str(tmp_path / "another"))
    named = repository(put_off=True, methods=["decision_function"])
    assert (named.get("m").methods, named.get("m").later, named.unfinished) == (("decision_function",), (), False)
    assert told.count("model compiled") == 3


def test_models_are_loaded_while_another_is_finished(tmp_path: Path, monkeypatch: Any) -> None:
    """`finish` waits for the processor, maybe for minutes. A model that is put into the folder meanwhile, and one that is unloaded, need
    not wait. What was replaced meanwhile is not put back."""
    linear(tmp_path / "a.hbc")
    monkeypatch.setenv("HBC_CACHE", str(tmp_path / "cache"))
    found = Repository({}, tmp_path, put_off=True)
    found.refresh()
    compile_it, seen = Compiler.compile, []

    def slowly(compiler: Compiler, path: Path, first: bool, later: bool = False) -> None:
        if later and not seen:
            linear(tmp_path / "b.hbc")
            found.refresh()
            seen.extend(each.name for each in found.all())
        compile_it(compiler, path, first, later)
        if later:
            found.unload("a")

    monkeypatch.setattr(Compiler, "compile", slowly)
    found.finish()
    assert seen == ["a", "b"]
    assert [each.name for each in found.all()] == ["b"]
    found.finish()
    assert [each.later for each in found.all()] == [()]


def asked_of(model: Served, method: str, body: bytes) -> tuple[Any, Any, Any]:
    request, _ = plain.read(model, method, body, Limits(), 0.0)
    return request.methods, request.form, request.value


def test_workers_finish_what_was_put_off(tmp_path: Path) -> None:
    """One of them compiles the rest, all find it, and the process that compiles ends."""
    source = linear(tmp_path / "forest.hbc")
    with served("--poll", "0", workers=2, models=(str(tmp_path / "forest.hbc"),), cache=tmp_path / "cache") as process:
        until(lambda: loaded_whole(process) == 2, 60)
        for method in ("predict_proba", "decision_function") * 3:
            expected = getattr(source, method)(X[:50].astype(float))
            np.testing.assert_allclose(asked(process, method), expected, rtol=1e-5, atol=1e-6)
        assert len(process.events("model compiled")) == 2
        assert compilers(process) == [False, False]
        until(lambda: not any(children(worker) for worker in process.workers))


def loaded_whole(process: Process) -> int:
    return sum("without" not in event for event in process.events("model loaded"))


def test_a_cache_that_keeps_little(tmp_path: Path, monkeypatch: Any) -> None:
    """The server compiles itself what the cache does not keep: the tables take more."""
    path = tmp_path / "forest.hbc"
    source = saved(path, 1)
    monkeypatch.setenv("HBC_CACHE_LIMIT", "1000000")
    with served(*TVM, models=(str(path),), cache=tmp_path / "cache") as process:
        np.testing.assert_allclose(asked(process), source.predict_proba(X[:50]), rtol=1e-5, atol=1e-6)
        assert len(process.events("model compiled")) == 1


def test_a_model_with_none_of_the_methods_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "forest.hbc"
    saved(path, 1)
    repository = Repository({"forest": path}, methods=["transform"])
    repository.refresh()
    (entry,) = repository.index()
    assert entry["state"] != "READY"
    assert "found no method transform, expected one of " in entry["reason"]
    assert "predict_proba" in entry["reason"].rpartition("expected")[2]


def test_modules_in_the_current_folder_are_not_run(tmp_path: Path) -> None:
    for name in ("json", "runpy", "numpy", "hbc"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('run')")
    told = json.dumps({"options": {}, "methods": []})
    found = subprocess.run(
        command_of("hbc.serve.compiling", told), cwd=tmp_path, input="", capture_output=True, text=True, check=False
    )
    assert (found.returncode, found.stderr) == (0, "")
