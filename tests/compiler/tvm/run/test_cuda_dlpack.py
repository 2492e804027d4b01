"""Arrays that lie on a GPU: they are computed there, on the caller's stream, and the result is an array of the same library. The libraries
here are stand-ins for CuPy, PyTorch and JAX, with memory of the emulator's card."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from ctypes import c_void_p
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest

pd = pytest.importorskip("pandas")
tvm = pytest.importorskip("tvm")
pytest.importorskip("sklearn")
from cuda_on_cpu import Card, cannot_run, emulated  # noqa: E402
from sklearn.compose import make_column_transformer  # noqa: E402
from sklearn.ensemble import RandomForestClassifier  # noqa: E402
from sklearn.linear_model import LinearRegression  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import StandardScaler  # noqa: E402

import hbc  # noqa: E402
from hbc.compiler.tvm.run.card import AsOnCard  # noqa: E402
from hbc.compiler.tvm.run.resident import OnThisCard  # noqa: E402
from hbc.compiler.tvm.trees.gpu import choice  # noqa: E402

pytestmark = pytest.mark.skipif(cannot_run() is not None, reason=str(cannot_run()))
STREAM = 0x5000
X = np.random.default_rng(0).normal(size=(300, 4)).astype(np.float32)
LABELS = (X[:, 0] > X[:, 1]).astype(np.int64)


class OnGpu:
    """An array in a card's memory. asked: the streams on which others wanted it to be ready."""

    number = 0

    def __init__(self, card: Card, values: np.ndarray[Any, Any]) -> None:
        self.card, self.tensor = card, card.tensor(values)
        self.shape, self.dtype, self.device = values.shape, values.dtype, nullcontext()
        self.asked: list[int] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.number

    def __dlpack__(self, stream: int) -> Any:
        self.asked.append(stream)
        return AsOnCard(self.values, 0).__dlpack__()

    @property
    def values(self) -> np.ndarray[Any, Any]:
        """What lies there now."""
        return self.card.array(self.tensor)


@pytest.fixture
def card() -> Iterator[Card]:
    with emulated() as card:
        yield card


def cupy_of(card: Card) -> Any:
    """(a stand-in for CuPy, the class of its arrays)."""
    module = ModuleType("cupy")
    kind = type("ndarray", (OnGpu,), {"__module__": "cupy"})
    module.cuda = SimpleNamespace(get_current_stream=lambda: SimpleNamespace(ptr=STREAM))  # type: ignore[attr-defined]
    module.empty = lambda shape, dtype: kind(card, np.full(shape, 77, dtype))  # type: ignore[attr-defined]
    return module, lambda values: kind(card, values)


def cudf_of(array: Any) -> Any:
    """(a stand-in for cuDF, the class of its frames): frames of pandas whose `to_cupy` brings them to the card. array: see `cupy_of`."""
    module, kept = ModuleType("cudf"), []

    class DataFrame(pd.DataFrame):
        @property
        def _constructor(self) -> Any:
            return DataFrame

        def to_pandas(self) -> pd.DataFrame:
            assert not len(self), "the values stay on the card"
            return pd.DataFrame(self)

        def to_cupy(self, na_value: float) -> Any:
            kept.append(tuple(self.columns))
            return array(np.asfortranarray(self.to_numpy(na_value=na_value)))

    module.DataFrame, module.Series, module.Index, module.kept = DataFrame, (), (), kept  # type: ignore[attr-defined]
    return module


def torch_of(card: Card) -> Any:
    module = ModuleType("torch")
    kind = type("Tensor", (OnGpu,), {"__module__": "torch"})
    module.cuda = SimpleNamespace(  # type: ignore[attr-defined]
        current_stream=lambda: SimpleNamespace(cuda_stream=STREAM), device=lambda device: device
    )
    for name in ("float32", "float64", "int64", "bool"):
        setattr(module, name, f"torch.{name}")
    module.empty = lambda shape, dtype, device: kind(card, np.full(shape, 77, dtype.rpartition(".")[2]))  # type: ignore[attr-defined]

    def tensor(values: Any) -> Any:
        found = kind(card, values)
        found.dtype = f"torch.{values.dtype}"
        return found

    return module, tensor


@pytest.mark.parametrize(("name", "make"), [("cupy", cupy_of), ("torch", torch_of)])
def test_on_the_stream_of_the_library(card: Card, name: str, make: Any) -> None:
    model = RandomForestClassifier(5, max_depth=3, random_state=0).fit(X, LABELS)
    compiled = hbc.convert(model, "tvm", device="cuda")
    module, array = make(card)
    with mock.patch.dict(sys.modules, {name: module}):
        given = array(X)
        with mock.patch.object(card, "wait", wraps=card.wait) as waits:
            found = compiled.predict_proba(given)
        assert type(found) is type(given)
        assert set(given.asked) == {STREAM}
        assert waits.call_count == 1, "only for the answer of the test of the values"
        assert (found.values == 77).all(), "nobody has waited for the result"
        card.wait(c_void_p(STREAM))
        np.testing.assert_allclose(found.values, model.predict_proba(X), rtol=1e-6)
        labels = compiled.predict(array(X))
        card.wait(c_void_p(STREAM))
        np.testing.assert_array_equal(labels.values, model.predict(X))
        assert labels.values.dtype == model.predict(X).dtype


def test_a_library_that_takes_memory_of_others(card: Card) -> None:
    """The result is complete when it is handed over: that library may read it on any stream."""
    space = SimpleNamespace(from_dlpack=lambda tensor: ("taken", card.array(tensor).copy()))
    kind = type("Array", (OnGpu,), {"__array_namespace__": lambda self: space})
    model = LinearRegression().fit(X, X[:, 0])
    compiled = hbc.convert(model, "tvm", device="cuda")
    given = kind(card, X)
    word, values = compiled.predict(given)
    assert word == "taken"
    assert set(given.asked) == {1}, "DLPack's number of the default stream"
    np.testing.assert_allclose(values, model.predict(X), rtol=1e-5)
    other = compiled.predict(OnGpu(card, X))
    np.testing.assert_array_equal(card.array(other), values)


def test_an_array_that_begins_anywhere(card: Card) -> None:
    """Kernels of trees read 16 bytes of a row at once. The memory of a part of another array need not begin at a multiple of these."""
    forest = RandomForestClassifier(10, max_depth=4, random_state=0).fit(X, LABELS)
    given = OnGpu(card, X)
    there = np.empty(X.size + 5, np.float32)
    first = -there.ctypes.data // 4 % 4 + 1
    shifted = there[first : first + X.size].reshape(X.shape)
    shifted[...] = X
    assert shifted.ctypes.data % 16 == 4
    given.tensor = card.over_bus(shifted)
    with mock.patch.object(choice, "FEW_ROWS", 0), mock.patch.object(card, "copied", wraps=card.copied) as copies:
        model = hbc.convert(forest, device="cuda")
        for array, copied in ((OnGpu(card, X), 0), (given, 2)):  # for the test of the values, and for the answer
            np.testing.assert_array_equal(card.array(model.predict_proba(array)), forest.predict_proba(X))
            assert copies.call_count == copied


def test_a_frame_of_cudf(card: Card) -> None:
    """Its columns are found by their names, and stay on the card. The host reads frames of several dtypes."""
    frame = pd.DataFrame(X, columns=list("abcd"))
    frame.loc[3, "b"] = np.nan
    forest = RandomForestClassifier(10, max_depth=4, random_state=0).fit(frame, LABELS)
    picks = make_column_transformer((StandardScaler(), ["d", "b"]))
    picking = make_pipeline(picks, RandomForestClassifier(5, max_depth=3, random_state=0)).fit(frame, LABELS)
    cupy, array = cupy_of(card)
    cupy.ascontiguousarray = lambda given: array(np.ascontiguousarray(given.values))
    cudf = cudf_of(array)
    with mock.patch.dict(sys.modules, {"cupy": cupy, "cudf": cudf}):
        other = cudf.DataFrame(frame[["d", "c", "b", "a"]].assign(e="text"))
        for model, given, columns in ((forest, cudf.DataFrame(frame), "abcd"), (picking, other, "bd")):
            compiled = hbc.convert(model, "tvm", device="cuda")
            found = compiled.predict_proba(given)
            card.wait(c_void_p(STREAM))
            assert cudf.kept.pop() == tuple(columns)
            np.testing.assert_allclose(found.values, model.predict_proba(frame), rtol=1e-6)
        with pytest.raises(hbc.InvalidInputError, match="without the columns b"):
            compiled.predict_proba(other.drop(columns="b"))
        with pytest.raises(hbc.InvalidInputError, match="inf in row 0"):
            compiled.predict_proba(other.assign(b=np.float32(np.inf)))
        mixed = frame.astype(np.float64).assign(b=1)
        on_host = compiled.predict_proba(cudf.DataFrame(mixed))
        assert type(on_host) is np.ndarray
        np.testing.assert_allclose(on_host, picking.predict_proba(mixed), rtol=1e-6)


def test_values_are_tested_on_the_card(card: Card) -> None:
    """Only a byte for each row comes back. X itself is copied only if a row may be rejected."""
    scaler = StandardScaler().fit(X)
    compiled = hbc.convert(scaler, "tvm", device="cuda")
    bad = X.copy()
    bad[17, 2] = np.inf
    sent: list[int] = []
    to_host = OnThisCard.to_host

    def counted(self: Any, given: Any, stream: int) -> Any:
        found = to_host(self, given, stream)
        sent.append(found.nbytes)
        return found

    with mock.patch.object(OnThisCard, "to_host", counted):
        found = compiled.transform(OnGpu(card, X))
        np.testing.assert_allclose(card.array(found), scaler.transform(X), rtol=1e-6)
        assert sent == [len(X)]
        with pytest.raises(hbc.InvalidInputError, match="inf in row 17") as there:
            compiled.transform(OnGpu(card, bad))
        assert sent == [len(X), len(X), X.nbytes]
    with pytest.raises(hbc.InvalidInputError) as here:
        compiled.transform(bad)
    assert str(there.value) == str(here.value)
    missing = np.where(X > 2, np.float32(np.nan), X)
    np.testing.assert_allclose(card.array(compiled.transform(OnGpu(card, missing))), scaler.transform(missing), rtol=1e-6)


def test_what_cannot_stay_on_the_card_is_refused(card: Card) -> None:
    model = RandomForestClassifier(3, max_depth=2, random_state=0).fit(X, np.where(LABELS, "yes", "no"))
    compiled = hbc.convert(model, "tvm", device="cuda")
    far = OnGpu(card, X)
    far.number = 1
    strided = type(
        "Strided",
        (OnGpu,),
        {"__dlpack__": lambda self, stream: AsOnCard(self.values[:, ::-1][:, ::-1].T.copy().T, 0).__dlpack__()},
    )
    for given, text in (
        (far, r"cuda:1.*cuda:0, where the model is"),
        (OnGpu(card, X.astype(np.float16)), "float16 on a GPU, expected float32 or float64"),
        (OnGpu(card, X[:, :3].copy()), r"shape \(300, 3\), expected \[rows, 4\]"),
        (strided(card, X), "do not lie one after the other"),
    ):
        with pytest.raises(hbc.InvalidInputError, match=text):
            compiled.predict_proba(given)
    with pytest.raises(hbc.InvalidInputError, match=r"tensor on the CPU.*strings"):
        compiled.predict(OnGpu(card, X))  # its labels are strings
    with pytest.raises(hbc.InvalidInputError, match="0 rows"):
        compiled.predict_proba(OnGpu(card, X[:0].copy()))
    with pytest.raises(hbc.InvalidInputError, match="tensor on the CPU"):
        hbc.convert(model, "tvm").predict_proba(OnGpu(card, X))
