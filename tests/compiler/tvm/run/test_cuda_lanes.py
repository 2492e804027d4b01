"""Large calls on a GPU: rows pass in pieces through a few lanes, copied and computed at the same time (run/lanes.py). The emulator's card
does nothing before someone waits for it, or does it when chance says so."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
pytest.importorskip("sklearn")
from cuda_on_cpu import cannot_run, emulated  # noqa: E402
from sklearn.ensemble import RandomForestClassifier  # noqa: E402
from sklearn.preprocessing import StandardScaler  # noqa: E402

import hbc  # noqa: E402
from hbc.compiler.tvm.run import card as of_cuda  # noqa: E402
from hbc.compiler.tvm.run import lanes  # noqa: E402
from hbc.compiler.tvm.run.card import CudaError  # noqa: E402
from hbc.compiler.tvm.run.lanes import MULTIPLE, Lane  # noqa: E402

emulates = pytest.mark.skipif(cannot_run() is not None, reason=str(cannot_run()))
no_card = pytest.mark.skipif(tvm.runtime.cuda(0).exist, reason="this computer has a GPU")
ROWS = 5 * MULTIPLE + 77
X = np.random.default_rng(0).normal(size=(ROWS, 4)).astype(np.float32)
PIECE = MULTIPLE * 4 * 4  # bytes


def forest() -> RandomForestClassifier:
    return RandomForestClassifier(5, max_depth=3, random_state=0).fit(X[:300], X[:300, 0] > X[:300, 1])


@emulates
@pytest.mark.parametrize(("seed", "threads"), [(0, 1), (1, 1), (2, 4), (3, 4)])
def test_many_rows_pass_in_pieces(seed: int, threads: int) -> None:
    model = forest()
    with mock.patch.object(lanes, "LANE_BYTES", PIECE), emulated(seed, keeps_lanes=True) as card:
        compiled = hbc.convert(model, "tvm", device="cuda", threads=threads)
        for data in (X, X[: MULTIPLE + 1], X):
            np.testing.assert_allclose(compiled.predict_proba(data), model.predict_proba(data), rtol=1e-6)
        assert len(card.launches) == 6 + 2 + 6
        assert card.at_once >= 2, "no piece was copied while another was computed"
        assert len(card.streams) <= 2 * threads + 2, "lanes are not used again"


@emulates
def test_data_larger_than_the_card() -> None:
    """Pieces get smaller until they fit. Nothing of the call is lost."""
    scaler = StandardScaler().fit(X)
    with mock.patch.object(lanes, "LANE_BYTES", 4 * PIECE), emulated(1, size=X.nbytes, keeps_lanes=True) as card:
        compiled = hbc.convert(scaler, "tvm", device="cuda", threads=1)
        np.testing.assert_allclose(compiled.transform(X), scaler.transform(X), rtol=1e-6)
        assert card.used <= card.size < 2 * X.nbytes
        assert len(card.launches) > 2


@emulates
def test_a_card_without_room_says_so() -> None:
    with emulated(size=1000):
        compiled = hbc.convert(forest(), "tvm", device="cuda")
        with pytest.raises(
            hbc.DeviceMemoryError, match=r"cuda:0: no memory for .* MB, of which .* are free.*another GPU"
        ) as caught:
            compiled.predict(X)
    assert isinstance(caught.value, hbc.HbcError)
    assert isinstance(caught.value, MemoryError)


@emulates
def test_a_launch_that_fails_leaves_the_model_usable() -> None:
    model = forest()
    with emulated(keeps_lanes=True) as card:
        compiled = hbc.convert(model, "tvm", device="cuda")
        compiled.predict(X[:10])
        broken = mock.patch.object(type(card), "wait", side_effect=CudaError(700, "an illegal memory access"))
        with broken, pytest.raises(CudaError, match="illegal memory access"):
            compiled.predict(X[:10])
        np.testing.assert_array_equal(compiled.predict(X[:10]), model.predict(X[:10]))


def test_a_lane_that_cannot_begin_waits_before_its_memory_is_freed() -> None:
    card = mock.Mock(**{"pinned.return_value": np.zeros(1 << 12, np.uint8), "launch.side_effect": ValueError("no")})
    lane = Lane(card, [((2,), np.dtype("f4"))], [((), np.dtype("f8"))], 8)
    with pytest.raises(ValueError, match="no"):
        lane.begin(None, (), [np.zeros((8, 2), "f4")], [np.zeros(8)])
    assert [call[0] for call in card.method_calls][-2:] == ["launch", "wait"]


# --- CUDA's own library, which needs no card to say that there is none


@no_card
@pytest.mark.skipif(of_cuda.runtime() is None, reason="no libcudart")
def test_the_runtime_library_says_why_there_is_no_gpu() -> None:
    assert of_cuda.why_none()
    with pytest.raises(hbc.BackendUnavailableError) as caught:
        hbc.convert(forest(), "tvm", device="cuda")
    assert of_cuda.why_none() in str(caught.value)
    for use in (lambda card: card.stream(), lambda card: card.pinned(10), lambda card: card.wait(None)):
        with pytest.raises(CudaError, match=r"CUDA: .*\(error \d+\)"):
            use(of_cuda.Card(0))


class Library:
    """CUDA's runtime library of a computer whose driver is like this."""

    def __init__(self, code: int, driver: int) -> None:
        self.code, self.driver = code, driver
        self.cudaGetErrorString = lambda code: b"a text"
        self.cudaGetLastError = lambda: 0
        self.cudaGetDeviceCount = lambda place: code
        self.cudaRuntimeGetVersion = self._writes(13000)
        self.cudaDriverGetVersion = self._writes(driver)

    def _writes(self, number: int) -> Any:
        def call(place: Any) -> int:
            place._obj.value = number
            return 0

        return call


@pytest.mark.parametrize(
    ("code", "driver", "text"),
    [
        (35, 12040, "driver is for CUDA 12.4, and CUDA 13.0 is needed: update the driver"),
        (35, 0, "no NVIDIA driver is installed"),
        (100, 13000, "sees no GPU"),
        (999, 13000, "a text"),
        (0, 13000, ""),
    ],
)
def test_the_reason_is_said(code: int, driver: int, text: str) -> None:
    with mock.patch.object(of_cuda, "runtime", return_value=Library(code, driver)):
        assert text in of_cuda.why_none()
    with mock.patch.object(of_cuda, "runtime", return_value=None):
        assert "libcudart" in of_cuda.why_none()
