"""Forks, threads, exits and signals: a process ends in good time and without a crash, also while its threads are inside hbc. The
cases of the tvm backend are in process_cases.py."""

from __future__ import annotations

import _thread
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

import process_cases
import pytest

from hbc import process

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
NAMES = list(process_cases.CASES)


@pytest.mark.parametrize(
    ("groups", "files", "limit"),
    [
        ("0::/", {"cpu.max": "150000 100000\n"}, 2),  # a container, which sees its own group at the top
        ("0::/", {"cpu.max": "max 100000\n"}, None),
        ("0::/a/b", {"a/cpu.max": "100000 100000", "a/b/cpu.max": "max 100000"}, 1),  # a service of systemd
        ("0::/kubepods/pod7", {"cpu.max": "300000 100000"}, 3),
        ("3:cpuset:/\n2:cpu,cpuacct:/x\n0::/", {"cpu/x/cpu.cfs_quota_us": "-1", "cpu/x/cpu.cfs_period_us": "100000"}, None),
        ("2:cpu,cpuacct:/x\n0::/", {"cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000"}, 1),
        ("0::/", {}, None),
    ],
)
def test_a_limit_of_cpus_counts(
    groups: str, files: dict[str, str], limit: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in files.items():
        path = tmp_path / "groups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "own").write_text(groups + "\n")
    monkeypatch.setattr(process, "CGROUPS", tmp_path / "groups")
    monkeypatch.setattr(process, "OWN_CGROUPS", tmp_path / "own")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    process._cpu_limit.cache_clear()
    try:
        assert process.cpus() == (limit or 8)
    finally:
        process._cpu_limit.cache_clear()


@process.building
def build(seconds: float = 0.0) -> int:
    time.sleep(seconds)
    return threading.get_ident()


@forks
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_waits_for_what_another_thread_builds() -> None:
    other = threading.Thread(target=build, args=(0.5,))
    start = time.monotonic()
    other.start()
    while process._building.acquire(blocking=False):
        process._building.release()
    child = os.fork()
    if child == 0:
        build()
        os._exit(0)
    assert time.monotonic() - start >= 0.5
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    other.join()


def test_shielded_work_runs_in_another_thread_than_the_main_one(monkeypatch: pytest.MonkeyPatch) -> None:
    own = threading.get_ident()
    assert process.shielded(threading.get_ident) != own

    def fail() -> NoReturn:
        raise KeyError("here")

    with pytest.raises(KeyError, match="here"):
        process.shielded(fail)

    def no_thread(*_: Any) -> NoReturn:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_thread, "start_new_thread", no_thread)
    assert process.shielded(threading.get_ident) == own


def test_compiled_code_holds_the_lock_when_the_interpreter_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    assert process.run_free(lambda n: ("free", n), lambda n: ("held", n), (1,)) == ("free", 1)
    monkeypatch.setattr(process, "_closed", True)
    assert process.run_free(lambda n: ("free", n), lambda n: ("held", n), (1,)) == ("held", 1)
    assert build() == threading.get_ident()
    with ThreadPoolExecutor(1) as pool, pytest.raises(SystemExit):
        pool.submit(build).result()
    assert not process._in_flight


@forks
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_has_none_of_the_calls_of_other_threads() -> None:
    process.flights[process.CALLS] = 3
    try:
        child = os.fork()
        if child == 0:
            os._exit(process.flights[process.CALLS])
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert process.flights[process.CALLS] == 3
    finally:
        process.flights[process.CALLS] = 0


def test_a_thread_that_compiles_keeps_its_folder_when_the_interpreter_ends() -> None:
    """`weakref.finalize` deletes the folders of `tempfile.TemporaryDirectory` before hbc's own hook waits for the thread."""
    code = """
import atexit, threading, time
from hbc.process import building, close, temporary_folder
atexit.register(close)
begun = threading.Event()
@building
def compile():
    with temporary_folder() as folder:
        begun.set()
        time.sleep(0.5)
        (folder / "code.o").write_bytes(b"code")
        print((folder / "code.o").read_bytes(), flush=True)
    print(folder.exists(), flush=True)
threading.Thread(target=compile, daemon=True).start()
begun.wait()
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["b'code'", "False"], done.stderr
    assert not done.stderr


def ends(times: int, *names: str) -> list[str]:
    """The cases that failed, each with its end."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-X", "faulthandler", "-W", "ignore", process_cases.__file__, str(times), *names]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=Path(__file__).parent)
    results = done.stdout.splitlines()
    assert len(results) == times * len(names), done.stderr
    bad = any(not result.endswith(": good") for result in results) or "Exception in thread" in done.stderr
    return [*results, done.stderr] if bad else []


@forks
def test_cases_end_well() -> None:
    """All cases in one test: one process imports and fits what they need."""
    pytest.importorskip("tvm")
    assert not ends(1, *NAMES)


@forks
@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_cases_end_well_every_time(name: str) -> None:
    pytest.importorskip("tvm")
    assert not ends(20, name)


def test_a_subinterpreter_hears_that_libraries_do_not_work(tmp_path: Path) -> None:
    """To import tvm_ffi, torch or onnxruntime there never ends. numpy works, with a warning of its own."""
    new = sys.version_info >= (3, 13)
    module, options = ("_interpreters", '"legacy"') if new else ("_xxsubinterpreters", "isolated=False")
    inner = """
import hbc
from hbc.compiler.base import load_compiler, recalled
heard = []
for act in (lambda: load_compiler("tvm"), lambda: load_compiler("onnx"), lambda: recalled("tvm", None, None, None)):
    try:
        act()
    except hbc.BackendUnavailableError as error:
        heard.append("subinterpreter" in str(error))
load_compiler("numpy")
open(PATH, "w").write(str(heard))
"""
    code = f"import {module} as i; i.run_string(i.create({options}), {inner.replace('PATH', repr(str(tmp_path / 'out')))!r})"
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, capture_output=True, timeout=60)
    assert (tmp_path / "out").read_text() == "[True, True, True]"
