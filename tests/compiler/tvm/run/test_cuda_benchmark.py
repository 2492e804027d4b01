"""The benchmark of GPUs, rehearsed whole without one: the pack, answers, times, tables, and what a stopped run does when it goes on."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

for library in ("tvm", "torch", "lightgbm", "sklearn", "matplotlib"):
    pytest.importorskip(library)
from cuda_on_cpu import cannot_run  # noqa: E402

from benchmarks import report  # noqa: E402
from benchmarks.card import pack  # noqa: E402

MODELS = ("lightgbm 500 × depth 8", "frame: strings and numbers → lightgbm")


def benchmark(folder: Path, *options: str) -> str:
    command = [sys.executable, "-m", "benchmarks", "gpu", "--quick", "--budget", "0.001", "--out", str(folder / "gpu.json.gz")]
    place = ["--pack", str(folder / "pack"), *options]
    done = subprocess.run([*command, *place], capture_output=True, text=True, cwd=pack.ROOT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.skipif(cannot_run() is not None, reason=str(cannot_run()))
def test_the_run_on_a_card_is_rehearsed(tmp_path: Path) -> None:
    benchmark(tmp_path, "--emulate", "--only", *MODELS)
    found = report.read(tmp_path / "gpu.json.gz")
    workloads = found["workloads"]
    assert list(workloads) == [
        *(f"answers: {name}" for name in MODELS),
        *(f"{kind}: {MODELS[0]}" for kind in ("times", "torch", "cpu")),
        f"cpu: {MODELS[1]}",
    ]
    engines: dict[str, Any] = {engine: each for step in workloads.values() for engine, each in step["engines"].items()}
    assert {each["status"] for each in engines.values()} == {"exact"}
    for strategy in ("walk", "levels", "links", "far_links"):
        assert f"hbc:tvm:{strategy}" in engines
        for way in ("kernel", "resident", "host"):
            assert set(engines[f"hbc:tvm:{strategy}, {way}"]["times_us"]) == {"1", "10", "100", "1000"}
    assert engines["torch gemm"]["times_us"]
    text = (tmp_path / "gpu.md").read_text()
    assert "The times say nothing" in text
    assert f"| {MODELS[0]} | links | exact |" in text
    assert "<svg" in (tmp_path / "gpu.svg").read_text()
    if shutil.which("nvcc"):
        assert list((tmp_path / "pack" / "code").glob("*-sm_90.fatbin"))

    # It goes on where it was stopped, by what lies in the pack, and does nothing twice.
    del workloads[f"torch: {MODELS[0]}"]
    report.write(found, tmp_path / "pack" / "gpu.json.gz", "")
    (tmp_path / "gpu.json.gz").unlink()
    said = benchmark(tmp_path, "--emulate", "--only", *MODELS)
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


def test_the_calls_of_the_device_tool_fit_its_limits(tmp_path: Path) -> None:
    """A command has at most 2,000 characters."""
    folder = pack.CACHE
    parts = [folder.with_name(f"{folder.name}-tvm-{number}") for number in (0, 1)]
    text = pack.calls(folder, parts, 8)
    assert "benchmarks/.cache/gpu-tvm-1" in text
    assert all(len(line) < 2000 for line in text.splitlines())
    assert "--minutes 8" in text
