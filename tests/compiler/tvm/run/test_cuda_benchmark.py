"""The benchmark of GPUs, rehearsed whole without one: the pack, answers, times, tables, and what a stopped run does when it goes on."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

for library in ("tvm", "torch", "lightgbm", "sklearn", "matplotlib"):
    pytest.importorskip(library)
from cuda_on_cpu import cannot_run  # noqa: E402

from benchmarks import machine, report  # noqa: E402
from benchmarks.card import pack  # noqa: E402
from benchmarks.card.devices import Emulated  # noqa: E402

MODELS = ("lightgbm 500 × depth 8", "frame: strings and numbers → lightgbm")


TWICE = """
import shutil, sys
from pathlib import Path
from benchmarks import report
from benchmarks.__main__ import main

step, folder, *arguments = sys.argv[1:]
results = Path(folder, "gpu.json.gz")
status = main(arguments)
shutil.copytree(folder, Path(folder, "first"), ignore=shutil.ignore_patterns("pack"))
found = report.read(results)
del found["workloads"][step]
report.write(found, Path(folder, "pack", results.name), str)
results.unlink()
print("again", file=sys.stderr, flush=True)
sys.exit(status or main(arguments))
"""
"""A run of the benchmark, and a second one that finds all in the pack but for one step. One process, since imports are a third of it."""


def benchmark(folder: Path, without: str, *options: str) -> str:
    """What the second run of `TWICE` says. The files of the first one are in the folder "first"."""
    arguments = ["gpu", "--quick", "--budget", "0.001", "--out", str(folder / "gpu.json.gz"), "--pack", str(folder / "pack")]
    done = subprocess.run(
        [sys.executable, "-c", TWICE, without, str(folder), *arguments, *options],
        capture_output=True,
        text=True,
        cwd=pack.ROOT,
        env={**os.environ, **dict.fromkeys(machine.THREADS, "1")},  # else it would start again, without the second run
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stderr.partition("again\n")[2]


@pytest.mark.skipif(cannot_run() is not None, reason=str(cannot_run()))
def test_the_run_on_a_card_is_rehearsed(tmp_path: Path) -> None:
    said = benchmark(tmp_path, f"torch: {MODELS[0]}", "--emulate", "--only", *MODELS)
    first = tmp_path / "first"
    found = report.read(first / "gpu.json.gz")
    workloads = found["workloads"]
    assert list(workloads) == [
        *(f"answers: {name}" for name in MODELS),
        *(f"{kind}: {MODELS[0]}" for kind in ("times", "torch", "cpu")),
        f"cpu: {MODELS[1]}",
    ]
    engines: dict[str, Any] = {engine: each for step in workloads.values() for engine, each in step["engines"].items()}
    assert {each["status"] for each in engines.values()} == {"exact"}
    for strategy in ("walk", "levels", "int8_gemm", "links", "far_links"):
        assert f"hbc:tvm:{strategy}" in engines
        for way in ("kernel", "resident", "host"):
            assert set(engines[f"hbc:tvm:{strategy}, {way}"]["times_us"]) == {"1", "10", "100"}
    assert engines["torch gemm"]["times_us"]
    text = (first / "gpu.md").read_text()
    assert "The times say nothing" in text
    assert f"| {MODELS[0]} | links | exact |" in text
    assert "<svg" in (first / "gpu.svg").read_text()
    if shutil.which("nvcc"):
        assert list((tmp_path / "pack" / "code").glob("*-sm_90.fatbin"))

    # It goes on where it was stopped, by what lies in the pack, and does nothing twice.
    del workloads[f"torch: {MODELS[0]}"]
    assert re.findall(r"gpu \d/\d: (.*)", said) == [f"torch: {MODELS[0]}", "done"]
    again = report.read(tmp_path / "gpu.json.gz")["workloads"]
    assert again.keys() - workloads.keys() == {f"torch: {MODELS[0]}"}
    assert all(again[name] == workload for name, workload in workloads.items())


def test_code_of_the_pack_is_taken_instead_of_compiling(tmp_path: Path) -> None:
    from hbc.compiler.tvm.run import targets

    (tmp_path / "code").mkdir()
    pack.code_of(tmp_path, "a kernel", "sm_90").write_bytes(b"its code")
    with pack.with_code(tmp_path) as counts:
        assert targets.nvcc("a kernel", "sm_90") == b"its code"
    assert counts == {"found": 1, "compiled": 0}


@pytest.mark.skipif(cannot_run() is not None, reason=str(cannot_run()))
def test_a_pack_has_the_code_of_all_calls_and_is_added_to(tmp_path: Path) -> None:
    """A model that tests its rows has a kernel of its own for rows on the card."""
    from hbc.compiler.tvm.run import targets

    scaler, forest = "scaler → logistic regression", "forest of 3 classes"
    with (
        mock.patch.object(targets, "nvcc", lambda source, arch: f"{arch} {source}".encode()),
        mock.patch.object(pack.shutil, "which", lambda name: name),
    ):
        judged = pack.make(tmp_path, [scaler], True, print)
        assert len(list((tmp_path / "code").iterdir())) == 2
        assert judged[scaler]["auto"]["verdict"] == "exact"
        assert list(pack.make(tmp_path, [forest], True, print)) == [forest]
    assert list(pack.read(tmp_path)[1]) == [forest, scaler]
    packed = pack.read(tmp_path)[1][scaler]
    card = Emulated()
    with card.running():
        call = getattr(packed.model("tvm", "cuda"), packed.method)
        for rows in (packed.rows, packed.rows[:1], card.there(packed.rows)):
            call(rows)
    assert all(pack.code_of(tmp_path, launch.source, "sm_90").exists() for launch in card.card.launches)


def test_files_are_split_by_size() -> None:
    sizes = {"a": 5, "b": 40, "c": 30, "d": 20, "e": 55, "f": 10}
    groups = pack.split(sizes, 60)
    assert groups == [["e", "a"], ["b", "d"], ["c", "f"]]
    assert pack.split({}, 60) == []
    assert pack.split({"a": 60, "b": 60}, 60) == [["a"], ["b"]]
    with pytest.raises(ValueError, match=r"large has 61 bytes, .* room for 60"):
        pack.split({"small": 1, "large": 61}, 60)


def made_up(folder: Path, sizes: dict[str, int]) -> None:
    for name, size in sizes.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.truncate(size)


@pytest.mark.parametrize(("mebibytes", "n_calls"), [(55, 4), (100, 2), (200, 1)])
def test_the_calls_of_the_device_tool_fit_its_limits(tmp_path: Path, mebibytes: int, n_calls: int) -> None:
    """A call carries 64 MiB with the repository; a command has at most 2,000 characters. No file is left out, and none comes twice."""
    sizes = {f"gpu/models/{i}.hbc": size << 20 for i, size in enumerate((35, 29, 14, 11, 6, 2, 2))}
    sizes |= {"gpu/pack.json": 1000, "gpu-site/tvm.zip": 6 << 20} | {f"gpu-site/compiler.xz.{i:02}": 8 << 20 for i in range(8)}
    made_up(tmp_path, sizes)
    text = pack.calls(tmp_path / "gpu", tmp_path / "gpu-site", 8, mebibytes << 20)
    folders = [Path(found) for found in re.findall(r"carry: (\S+) ", text)]
    assert len(folders) == n_calls
    carried = [(path, folder) for folder in folders for path in folder.rglob("*") if path.is_file()]
    for folder in folders:
        assert sum(path.stat().st_size for path, owner in carried if owner == folder) <= mebibytes << 20
    names = sorted(str(path.relative_to(folder)) for path, folder in carried)
    assert names == sorted(name.replace("gpu-site/", "site/").replace("gpu/", "pack/") for name in sizes)
    assert all(len(part) < 2000 for part in re.split(r"command:", text))
    assert f"timeout_s: {8 * 60 + 110}" in text
    assert "--minutes 8" in text
    assert 8 * 60 + 110 <= 600


def test_the_room_of_a_call_is_what_the_repository_leaves(tmp_path: Path) -> None:
    run = ["git", "-C", str(tmp_path)]
    subprocess.run([*run, "init", "-q"], check=True)
    made_up(tmp_path, {"tracked": 1000, "new": 200, "ignored": 5000, ".gitignore": 0})
    (tmp_path / ".gitignore").write_text("ignored\n")
    subprocess.run([*run, "add", "tracked"], check=True)
    with mock.patch.object(pack, "ROOT", tmp_path):
        assert pack.room_of_a_call() == (62 << 20) - 1000 - 200 - len("ignored\n")
