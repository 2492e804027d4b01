"""`hbc tune`, `bench` and `verify` with --device cuda: on the emulator's card, and without one, where they say so."""

from __future__ import annotations

import json
import pickle
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
pytest.importorskip("sklearn")
pytest.importorskip("pandas")
from cuda_on_cpu import Card, cannot_run, emulated  # noqa: E402
from cuda_on_cpu.resources import no_nvcc  # noqa: E402
from sklearn.ensemble import RandomForestClassifier  # noqa: E402
from test_verify import run  # noqa: E402

import hbc  # noqa: E402
from hbc.compiler.base import CompileOptions  # noqa: E402
from hbc.tuning import choices, machine  # noqa: E402
from hbc.tuning.choices import Choice, Tuned  # noqa: E402

emulates = pytest.mark.skipif(cannot_run() is not None, reason=str(cannot_run()))
X = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a forest as `model.pkl`, the same for tvm on the CPU as `model.hbc`, and rows as `rows.npy`."""
    folder = tmp_path_factory.mktemp("device")
    model = RandomForestClassifier(3, max_depth=3, random_state=0).fit(X, X[:, 0] * X[:, 1] > 0)
    (folder / "model.pkl").write_bytes(pickle.dumps(model))
    hbc.convert(model, "tvm", X=X[:1]).save(folder / "model.hbc")
    np.save(folder / "rows.npy", X)
    return folder


@pytest.fixture
def card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Card]:
    monkeypatch.setenv("HBC_CACHE", str(tmp_path / "cache"))
    with emulated(seed=1, keeps_lanes=True) as card:
        yield card


def commands(folder: Path) -> dict[str, list[object]]:
    source, compiled, rows = (folder / name for name in ("model.pkl", "model.hbc", "rows.npy"))
    return {
        "tune": ["tune", compiled, "--rows", "1,50", "--json"],
        "verify": ["verify", source, compiled, rows, "--trust", "--json"],
        "bench": ["bench", source, rows, "--trust", "--rows", "1,50", "--json"],
    }


@emulates
def test_verify_compares_the_answers_of_the_card(card: Card, folder: Path) -> None:
    said = json.loads(run(*commands(folder)["verify"], "--device", "cuda")[0])
    assert said["device"] == "cuda"
    assert said["agrees"]
    assert card.launches


@emulates
def test_bench_measures_on_the_card(card: Card, folder: Path) -> None:
    said = json.loads(run(*commands(folder)["bench"], "--device", "cuda")[0])
    assert said["device"] == "cuda"
    assert said["engines"]["hbc:tvm"]["agrees"]
    assert set(said["engines"]["hbc:tvm"]["call_seconds"]) == {"1", "50"}
    assert "'cuda'" in said["engines"]["hbc:numpy"]["reason"]
    assert card.launches
    lines = run(*commands(folder)["bench"][:-1], "--backends", "tvm", "--device", "cuda")[0].splitlines()
    assert "rows.npy, hbc on cuda; times" in lines[-1]


@emulates
def test_tune_measures_the_strategies_of_the_card_and_the_choice_is_found_again(card: Card, folder: Path) -> None:
    said = json.loads(run(*commands(folder)["tune"], "--device", "cuda", "-o", folder / "tuned.hbc")[0])
    from hbc.compiler.tvm.trees.gpu.choice import FORMS

    measured = said["seconds"].keys() | said["left_out"].keys()
    assert {"auto", "walk", *FORMS} <= measured
    assert said["left_out"]["scan"] == said["left_out"]["patches"] == "not for trees like these on a GPU"
    assert not any("blocks" in candidate for candidate in measured)
    assert card.launches
    tuned = hbc.load(folder / "tuned.hbc")
    assert tuned.device == "cuda"
    with (folder / "model.pkl").open("rb") as file:
        np.testing.assert_array_equal(tuned.predict_proba(X), pickle.load(file).predict_proba(X))
    assert hbc.load(folder / "model.hbc", device="cuda")._builder.choice == tuned._builder.choice


@emulates
def test_a_choice_is_kept_for_a_kind_of_card(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cards of one kind share it, whatever their numbers. A card of another kind beside the same processor does not take it over."""
    monkeypatch.setenv("HBC_CACHE", str(tmp_path / "cache"))
    choice = Choice("links", threads=1)

    def chosen(device: str, model: Path = folder / "model.hbc") -> Choice | None:
        return hbc.load(model, device=device)._builder.choice

    with emulated(kind=lambda number: "large" if number == 1 else "small"):
        model = hbc.load(folder / "model.hbc", device="cuda")
        choices.keep(Tuned((100,), choice, (choice,), "long ago"), model.graph, "tvm", CompileOptions("cuda"))
        assert [chosen(device) for device in ("cuda", "cuda:0", "cuda:2", "cuda:1", "cpu")] == [choice] * 3 + [None] * 2
        tuned = hbc.load(folder / "model.hbc", device="cuda")
        tuned.save(tmp_path / "tuned.hbc")
        assert [each._builder.choice for each in tuned.across(["cuda:0", "cuda:1", "cuda:2"]).models] == [choice, None, choice]
    with emulated(kind=lambda number: "large"):
        assert chosen("cuda") is None
        assert chosen("cuda", tmp_path / "tuned.hbc") == Choice("links")  # how many threads are good is not known there


FAKE_DRIVER = """
#include <cuda.h>
#include <string.h>
CUresult cuInit(unsigned flags) { return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice* device, int number) {
  *device = number + 7;
  return number < 2 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
CUresult cuDeviceGetName(char* name, int size, CUdevice device) {
  strncpy(name, device == 7 ? "NVIDIA A100" : "NVIDIA H100", size);
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  *value = attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR   ? device + 1
           : attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR ? 0
                                                                       : -1;
  return CUDA_SUCCESS;
}
"""
"""A driver of two GPUs. NVIDIA's header checks that its functions are declared so."""


@pytest.mark.skipif(no_nvcc() is not None, reason=str(no_nvcc()))
def test_the_driver_is_asked_for_the_kind_of_a_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, driver = tmp_path / "driver.c", tmp_path / "libcuda.so"
    source.write_text(FAKE_DRIVER)
    subprocess.run(["nvcc", "-shared", "-Xcompiler", "-fPIC", "-cudart", "none", "-o", driver, source], check=True)
    monkeypatch.setattr(machine, "DRIVER", str(driver))
    kinds = [machine.gpu.__wrapped__(number) for number in range(3)]
    assert kinds == ["NVIDIA A100 of compute capability 8.0", "NVIDIA H100 of compute capability 9.0", "no GPU"]
    monkeypatch.setattr(machine, "DRIVER", str(tmp_path / "none.so"))
    assert machine.gpu.__wrapped__(0) == "no GPU"


@pytest.mark.skipif(tvm.runtime.cuda(0).exist, reason="this computer has a GPU")
@pytest.mark.parametrize("command", ["tune", "verify", "bench"])
def test_without_a_card_they_say_so_and_what_to_do(folder: Path, command: str) -> None:
    said, error = run(*commands(folder)[command], "--device", "cuda", status=1)
    assert said == ""
    assert "no CUDA device" in error
    assert "load it on a computer with an NVIDIA GPU" in error
    assert "It was saved for" not in error
