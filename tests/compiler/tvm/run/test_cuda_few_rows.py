"""Calls of a few rows on a GPU: one launch and one wait, and no copy. What hbc asks of CUDA's runtime library is counted with a stand-in
for it, and the kernels run on the processor (tests/cuda_on_cpu)."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
pytest.importorskip("sklearn")
import tvm_ffi  # noqa: E402
from cuda_on_cpu import cannot_run, emulated, sanitized, without_races  # noqa: E402
from sklearn.ensemble import RandomForestClassifier  # noqa: E402
from sklearn.linear_model import LinearRegression  # noqa: E402
from sklearn.neural_network import MLPRegressor  # noqa: E402

import hbc  # noqa: E402
from hbc.compiler.tvm import compiler  # noqa: E402
from hbc.compiler.tvm.run import card as of_cuda  # noqa: E402
from hbc.compiler.tvm.run.card import AsOnCard, Card  # noqa: E402
from hbc.compiler.tvm.run.cuda import CudaExecutable  # noqa: E402
from hbc.compiler.tvm.run.lanes import OVER_BUS_ROWS  # noqa: E402
from hbc.compiler.tvm.trees.gpu import choice  # noqa: E402
from hbc.compiler.tvm.trees.gpu.choice import STAGED_BYTES  # noqa: E402

pytestmark = pytest.mark.skipif(cannot_run() is not None, reason=str(cannot_run()))
X = np.random.default_rng(0).normal(size=(300, 7)).astype(np.float32)


def forest(columns: int = 7, trees: int = 12) -> RandomForestClassifier:
    data = np.resize(X, (300, columns))
    return RandomForestClassifier(trees, max_depth=5, random_state=0).fit(
        data, np.digitize(data[:, 0] * data[:, 1], [-0.3, 0.3])
    )


class Runtime:
    """What stands for CUDA's runtime library. calls: the names of what was asked of it."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.kept: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cuda"):
            raise AttributeError(name)

        def call(*arguments: Any) -> int:
            self.calls.append(name)
            if name == "cudaMallocHost":
                place, size = arguments
                self.kept.append(ctypes.create_string_buffer(size.value + 256))
                place._obj.value = -(-ctypes.addressof(self.kept[-1]) // 256) * 256
            if name == "cudaMemcpyAsync":
                to, source, size, _, _ = arguments
                ctypes.memmove(to.value, source.value, size.value)
            return 0

        return call


class Counted(Card):
    """A card whose memory is that of the host. A launch is a call too."""

    def memory(self, shape: Any, dtype: Any) -> Any:
        return tvm_ffi.from_dlpack(AsOnCard(np.zeros(shape, dtype), 0))

    def launch(self, stream: Any, function: Any, arguments: Any) -> None:
        of_cuda.runtime().calls.append("launch")
        super().launch(stream, function, arguments)


@pytest.fixture
def calls() -> Iterator[list[str]]:
    """What is asked of CUDA."""
    library = Runtime()
    executable = type("Executable", (CudaExecutable,), {"_card": Counted(0)})
    with (
        emulated(keeps_lanes=True),
        mock.patch.object(of_cuda, "runtime", return_value=library),
        mock.patch.object(compiler, "CudaExecutable", executable),
    ):
        yield library.calls


TREES, OTHERS = ["launch", "cudaStreamSynchronize"], ["cudaMemcpyAsync", "launch", "cudaStreamSynchronize"]
MANY = ["cudaMemcpyAsync", "launch", "cudaMemcpyAsync", "cudaStreamSynchronize"]


@pytest.mark.parametrize(
    ("model", "method", "few"),
    [
        (forest(), "predict_proba", TREES),
        (forest(), "predict", TREES),
        (forest(STAGED_BYTES // 4 + 1, 2), "predict_proba", OTHERS),  # its rows are too long for shared memory
        (LinearRegression().fit(X, X[:, 0]), "predict", OTHERS),
        (MLPRegressor(hidden_layer_sizes=(100, 100), tol=10.0, random_state=0).fit(X, X[:, 0]), "predict", TREES),
    ],
    ids=["forest", "labels", "long rows", "linear", "a block for each row"],
)
def test_calls_of_a_few_rows(calls: list[str], model: Any, method: str, few: list[str]) -> None:
    """After the first call. Rows that fill more than a block are copied."""
    data = np.resize(X, (300, model.n_features_in_))
    compiled = hbc.convert(model, "tvm", device="cuda")
    for rows in (1, 2, OVER_BUS_ROWS, OVER_BUS_ROWS + 1, 300, 1):
        for _ in range(2):
            calls.clear()
            found = getattr(compiled, method)(data[-rows:])
            np.testing.assert_allclose(found, getattr(model, method)(data[-rows:]), rtol=1e-5, atol=1e-6)
        assert calls == (few if rows <= OVER_BUS_ROWS else MANY)


def test_values_that_the_source_rejects_are_sent_nowhere(calls: list[str]) -> None:
    compiled = hbc.convert(forest(), "tvm", device="cuda")
    compiled.predict(X[:1])
    for bad in (np.inf, 3e38):
        data = X[:3].copy()
        data[2, 5] = bad
        calls.clear()
        if bad == np.inf:
            with pytest.raises(hbc.InvalidInputError, match="row 2"):
                compiled.predict(data)
            assert not calls
        else:
            np.testing.assert_array_equal(compiled.predict(data), forest().predict(data))


@pytest.mark.parametrize("again", [sanitized, without_races])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("rows", [1, 31, 33, 77])
def test_rows_in_shared_memory_pass_the_checks_of_memory(again: Any, dtype: str, rows: int) -> None:
    model, data = forest(), X[:rows].astype(dtype)
    with emulated(seed=rows) as card, mock.patch.object(choice, "LANE_ROWS", 31):
        compiled = hbc.convert(model, "tvm", device="cuda")
        np.testing.assert_allclose(compiled.predict_proba(data), model.predict_proba(data), rtol=1e-6)
    (launch,) = card.launches
    assert launch.grid == (rows if rows <= 31 else -(-rows // 32))
    for found, array in zip(again(launch), [a for a in launch.arguments if isinstance(a, np.ndarray)], strict=True):
        np.testing.assert_array_equal(found, array)


def test_rows_of_all_sizes_have_the_same_bits() -> None:
    """Those that fit in shared memory, and the first that do not; in blocks of 32 and alone."""
    widest = STAGED_BYTES // (32 * 4)
    for columns in (widest - 1, widest, widest + 1):
        model, data = forest(columns, trees=3), np.resize(X, (40, columns))
        with emulated(seed=3) as card, mock.patch.object(choice, "LANE_ROWS", 1):
            compiled = hbc.convert(model, "tvm", device="cuda", strategy="levels")
            together = compiled.predict_proba(data)
            assert together.tobytes() == b"".join(compiled.predict_proba(data[i : i + 1]).tobytes() for i in range(40))
        np.testing.assert_allclose(together, model.predict_proba(data), rtol=1e-6)
        assert {launch.block for launch in card.launches} == {512}
