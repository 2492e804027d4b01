"""Calls of models on a GPU: what is computed there (by the emulator, tests/cuda_on_cpu), and what hbc says where there is none."""

from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
pytest.importorskip("sklearn")
from cuda_on_cpu import cannot_run, emulated, sanitized, without_races  # noqa: E402
from cuda_on_cpu.resources import no_nvcc  # noqa: E402
from random_trees import RANDOM, random_ensemble  # noqa: E402
from sklearn.ensemble import RandomForestClassifier  # noqa: E402

import hbc  # noqa: E402
from hbc.compiler.base import CompileOptions  # noqa: E402
from hbc.compiler.tvm.compiler import COMPILER  # noqa: E402
from hbc.compiler.tvm.run import targets  # noqa: E402
from hbc.compiler.tvm.run.targets import Machine, machine  # noqa: E402
from hbc.ir.graph import Graph, Input, Node  # noqa: E402
from hbc.ops import tensor as t  # noqa: E402
from hbc.ops.functions import CPower  # noqa: E402
from hbc.ops.linear import Softmax  # noqa: E402

emulates = pytest.mark.skipif(cannot_run() is not None, reason=str(cannot_run()))
no_card = pytest.mark.skipif(tvm.runtime.cuda(0).exist, reason="this computer has a GPU")
CUDA = CompileOptions(device="cuda")
SM_90 = {"kind": "cuda", "arch": "sm_90"}
X = np.random.default_rng(0).normal(size=(300, 6)).astype(np.float32)


def forest() -> RandomForestClassifier:
    return RandomForestClassifier(12, max_depth=5, random_state=0).fit(X, np.digitize(X[:, 0] * X[:, 1], [-0.3, 0.3]))


def run(*outputs: Node, inputs: tuple[Node, ...], arrays: list[Any]) -> tuple[list[Any], list[Any]]:
    graph = Graph(inputs, {"predict": outputs}).verify()
    return COMPILER.compile(graph, CUDA).run("predict", arrays), graph.evaluate(*arrays)["predict"]


@emulates
@pytest.mark.parametrize("seed", [0, 1])
def test_a_kernel_of_several_values(seed: int) -> None:
    op, data = random_ensemble("four registers, classes by tree", 300)
    data = np.concatenate([data, data], axis=1)
    x = Input("x", "f32", ("N", 6))()
    clean = t.where(t.less(t.absolute(x), 1e3), x, np.float32(0))
    weights = np.random.default_rng(0).standard_normal((6, 5)).astype(np.float32)
    outputs = (
        op(x),
        Softmax().lower(op(x)),
        t.argmax(x, axis=1),
        t.maximum(x, t.add(t.mul(x, np.float32(1.1)), np.float32(0.3))),
        t.matmul(clean, weights),
        t.logical_not(t.less(x, np.float32(0.5))),
        t.sigmoid(clean),
    )
    with emulated(seed):
        found, expected = run(*outputs, inputs=(x,), arrays=[data])
    for one, other in zip(found, expected, strict=True):
        small = 1e-5 if other.dtype == np.float32 else 1e-13
        np.testing.assert_allclose(one, other, rtol=small, atol=small)
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_array_equal(found[3], expected[3])


@emulates
@pytest.mark.parametrize("kind", RANDOM)
def test_trees_at_their_thresholds(kind: str) -> None:
    """Sums have the bits of the reference: a walk adds in the order of the trees."""
    op, data = random_ensemble(kind, 300)
    x = Input("x", "f32" if data.dtype == np.float32 else "f64", ("N", data.shape[1]))()
    with emulated(seed=len(kind)):
        for rows in (300, 1):
            (found,), (expected,) = run(op(x), inputs=(x,), arrays=[data[:rows]])
            np.testing.assert_array_equal(found, expected)


@emulates
@pytest.mark.parametrize("exponent", [1 / 3, 0.1, 1.0000000000000002, 2.0**-40, 3.0, 1e-17])
def test_constants_have_all_their_digits(exponent: float) -> None:
    """TVM writes float64 constants with 15 places after the point, unless hbc writes their bits."""
    x = Input("x", "f64", ("N", 1))()
    values = np.array([[2.0], [1e300], [1e-300], [1.0]])
    with emulated():
        (found,), (expected,) = run(CPower(exponent)(x), inputs=(x,), arrays=[values])
    np.testing.assert_array_equal(found, expected)


@emulates
@pytest.mark.parametrize(("strategy", "launches"), [("walk", {(3, 128), (1, 128)}), ("auto", {(10, 512), (1, 512)})])
def test_rows_of_every_kind_of_array(strategy: Any, launches: set[tuple[int, int]]) -> None:
    model = forest()
    want = model.predict_proba(X)
    read_only = X.copy()
    read_only.flags.writeable = False
    with emulated(seed=5) as card:
        compiled = hbc.convert(model, "tvm", device="cuda", strategy=strategy)
        for data in (
            X,
            X.astype(np.float64),
            np.asfortranarray(X),
            np.repeat(X, 2, axis=0)[::2],
            read_only,
            X.astype(">f4"),
            X[:1],
        ):
            np.testing.assert_allclose(compiled.predict_proba(data), want[: len(data)], rtol=1e-6)
        assert compiled.predict_proba(X).tobytes() == compiled.predict_proba(X).tobytes()
        with ThreadPoolExecutor(4) as pool:
            for found in pool.map(lambda _: compiled.predict(X), range(8)):
                np.testing.assert_array_equal(found, model.predict(X))
        assert {(launch.grid, launch.block) for launch in card.launches} == launches


@emulates
@pytest.mark.parametrize("again", [sanitized, without_races])
def test_a_forest_passes_the_checks_of_memory(again: Any) -> None:
    with emulated(seed=5) as card:
        hbc.convert(forest(), "tvm", device="cuda", strategy="walk").predict_proba(X[:150])
    (launch,) = card.launches
    assert launch.grid == 2
    for found, array in zip(again(launch), [a for a in launch.arguments if isinstance(a, np.ndarray)], strict=True):
        np.testing.assert_array_equal(found, array)


@emulates
def test_the_emulator_leaves_nothing_behind() -> None:
    before = Machine.missing
    with emulated():
        hbc.convert(forest(), "tvm", device="cuda").predict(X)
        assert Machine.missing is None
    assert Machine.missing is before


# --- no card


@no_card
def test_without_a_gpu_convert_says_so() -> None:
    with pytest.raises(hbc.BackendUnavailableError, match="no CUDA device") as caught:
        hbc.convert(forest(), "tvm", device="cuda")
    assert isinstance(caught.value, hbc.HbcError)
    for part in ('hbc.load(path, device="cuda")', 'target={"kind": "cuda", "arch": "sm_90"}'):
        assert part in str(caught.value)


@no_card
def test_a_gpu_of_a_number_that_is_not_there() -> None:
    """A number that no GPU has is said at `convert`, and with the number of GPUs if there are some."""
    with pytest.raises(hbc.BackendUnavailableError, match="no CUDA device"):
        hbc.convert(forest(), "tvm", device="cuda:3")
    with mock.patch.object(tvm.runtime, "cuda", lambda number: SimpleNamespace(exist=number < 2, compute_version="8.0")):
        with pytest.raises(hbc.BackendUnavailableError, match=r"2 CUDA devices.*none is 'cuda:3'.*cuda:0"):
            hbc.convert(forest(), "tvm", device="cuda:3")
        assert machine("cuda:1", None).arch == "sm_80"
        assert machine("cuda:1", None).missing is None
        assert machine("cuda:3", None).arch == "sm_90"
        assert machine("cuda:1", SM_90).arch == "sm_90"


@no_card
def test_a_saved_model_is_not_loaded_for_a_gpu_that_is_not_there(tmp_path: Path) -> None:
    hbc.convert(forest(), "tvm").save(tmp_path / "forest.hbc")
    with pytest.raises(hbc.BackendUnavailableError, match="no CUDA device"):
        hbc.load(tmp_path / "forest.hbc", device="cuda").predict(X)


def test_a_target_for_a_gpu_is_one() -> None:
    with pytest.raises(hbc.InvalidInputError, match=r"kind 'llvm'.*expected 'cuda'"):
        hbc.convert(forest(), "tvm", device="cuda", target={"kind": "llvm", "mcpu": "haswell"})
    with pytest.raises(hbc.InvalidInputError, match=r"kind 'vulkan'.*expected 'llvm' or 'cuda'"):
        hbc.convert(forest(), "tvm", target={"kind": "vulkan"})


@no_card
@pytest.mark.skipif(no_nvcc() is not None, reason=str(no_nvcc()))
def test_code_for_a_named_gpu_is_compiled_and_not_run(tmp_path: Path) -> None:
    """An export would hold CUDA C that the other computer compiles with --use_fast_math: it is refused too."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled = hbc.convert(forest(), "tvm", device="cuda", target=SM_90)
    for use in (lambda: compiled.predict(X), lambda: compiled.export(tmp_path / "forest.so")):
        with pytest.raises(hbc.BackendUnavailableError, match=r"no CUDA device.*hbc\.load\(path, device=\"cuda\"\)"):
            use()
    assert not list(tmp_path.iterdir())
    with pytest.raises(hbc.BackendUnavailableError, match=r"does not know the GPU 'sm_999'.*nvcc --list-gpu-code") as caught:
        hbc.convert(forest(), "tvm", device="cuda", target=SM_90 | {"arch": "sm_999"})
    assert len(str(caught.value)) < 400, "not the whole code"


@no_card
def test_a_model_for_a_named_gpu_is_loaded_for_the_device_that_is_there(tmp_path: Path) -> None:
    """Its code would not run on the processor, nor on an older GPU."""
    model = forest()
    with mock.patch.object(targets, "nvcc", return_value=b""):
        hbc.convert(model, "tvm", device="cuda", target=SM_90).save(tmp_path / "forest.hbc")
    np.testing.assert_allclose(
        hbc.load(tmp_path / "forest.hbc", device="cpu").predict_proba(X), model.predict_proba(X), rtol=1e-6
    )
    with pytest.raises(hbc.BackendUnavailableError, match="no CUDA device"):  # and is not compiled for the named GPU
        hbc.load(tmp_path / "forest.hbc", device="cuda")
