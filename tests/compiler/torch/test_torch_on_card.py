"""Arrays that lie on a GPU, given to the backends of PyTorch: they are computed there, on the caller's stream, and the result is an array
of the same library. The GPU is a stand-in: what is asked for on "cuda" lies in the host's memory, and streams are written down."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest import mock

import numpy as np
import pytest
from installed import older

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")
from sklearn.ensemble import AdaBoostClassifier, RandomForestClassifier  # noqa: E402
from sklearn.kernel_approximation import AdditiveChi2Sampler  # noqa: E402
from sklearn.linear_model import LinearRegression, LogisticRegression  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import StandardScaler  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402

import hbc  # noqa: E402
from hbc.compiler.torch import run  # noqa: E402
from hbc.compiler.torch.resident import OnThisCard  # noqa: E402

BOTH = pytest.mark.parametrize("backend", ["torch", "torchscript"])
STREAM = 0x5000
X = np.random.default_rng(0).normal(size=(300, 4)).astype(np.float32)
LABELS = (X[:, 0] > X[:, 1]).astype(np.int64)


class OnGpu(torch.Tensor):  # type: ignore[misc]
    """A tensor that says that it lies on a GPU. asked: the streams on which others wanted such tensors to be ready."""

    number = 1
    asked: ClassVar[list[int]] = []

    @property
    def device(self) -> Any:
        return torch.device("cuda", self.number)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.number

    def __dlpack__(self, stream: int) -> Any:
        self.asked.append(stream)
        return self.as_subclass(torch.Tensor).__dlpack__()


def on_gpu(values: Any) -> Any:
    return torch.as_tensor(values).as_subclass(OnGpu)


class Card(TorchFunctionMode):  # type: ignore[misc]
    """What is asked for on a GPU lies in the host's memory."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def here(value: Any) -> Any:
            return torch.device("cpu") if isinstance(value, torch.device) else value

        device = (kwargs or {}).get("device")
        found = function(*map(here, args), **{name: here(value) for name, value in (kwargs or {}).items()})
        new = function is torch.empty and isinstance(device, torch.device) and device.type == "cuda"
        return found.as_subclass(OnGpu) if new else found


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Python's collector of cycles does not run."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def used() -> Iterator[list[Any]]:
    """The streams on which something was computed, the GPUs that were the current ones meanwhile, and "wait" where the host waited."""
    found: list[Any] = []
    stream = SimpleNamespace(cuda_stream=STREAM, synchronize=lambda: found.append("wait"))

    @contextmanager
    def on(chosen: Any) -> Iterator[None]:
        found.append(chosen)
        yield

    stand_ins: dict[str, Any] = {
        "is_available": lambda: True,
        "device_count": lambda: 2,
        "device": lambda device: on(("current", device)),
        "current_stream": lambda: stream,
        "default_stream": lambda device: ("default", device),
        "ExternalStream": lambda handle, device: (handle, device),
        "stream": on,
    }
    with mock.patch.multiple(torch.cuda, **stand_ins), mock.patch.object(OnGpu, "asked", []), Card():
        yield found


@BOTH
@pytest.mark.parametrize("rows", [300, 1])
def test_on_the_stream_of_the_caller(used: list[Any], backend: str, rows: int) -> None:
    """X goes in without a copy, the result lies in PyTorch's memory on the GPU, and nobody waits for it."""
    model = RandomForestClassifier(5, max_depth=3, random_state=0).fit(X, LABELS)
    compiled, given = hbc.convert(model, backend, device="cuda:1"), on_gpu(X[:rows].copy())
    with (
        mock.patch.object(run.TorchExecutable, "_call", autospec=True, side_effect=run.TorchExecutable._call) as call,
        mock.patch.object(OnThisCard, "to_host", autospec=True, side_effect=OnThisCard.to_host) as to_host,
    ):
        found = compiled.predict_proba(given)
    entered = [tensor.data_ptr() for each in call.call_args_list for tensor in each.args[2]]
    assert entered == [given.data_ptr()] * 2, "the test of the values, and the method"
    assert [np.shape(each.args[1]) for each in to_host.call_args_list] == [(rows,)], "a byte for each row"
    assert type(found) is OnGpu
    assert set(given.asked) == {STREAM}
    card = torch.device("cuda", 1)
    assert set(used) == {("current", card), (STREAM, card)}
    assert used[0] == ("current", card), "PyTorch hands over tensors of the current GPU only"
    assert not found.is_inference(), "PyTorch may compute gradients with it"
    np.testing.assert_array_equal(found.numpy(), compiled.predict_proba(X[:rows]))
    np.testing.assert_allclose(found.numpy(), model.predict_proba(X[:rows]), rtol=1e-6)
    labels = compiled.predict(given)
    np.testing.assert_array_equal(labels.numpy(), model.predict(X[:rows]))
    assert labels.numpy().dtype == model.predict(X).dtype


def test_many_rows_in_blocks(used: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "CUDA_BLOCK_BYTES", 1)
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, LABELS)
    compiled = hbc.convert(model, "torch", device="cuda:1")
    with mock.patch.object(run.TorchExecutable, "_call", autospec=True, side_effect=run.TorchExecutable._call) as call:
        found = compiled.predict_proba(on_gpu(X))
    assert call.call_count == 2 * -(-len(X) // run.LEAST_BLOCK), "the test of the values, and the method"
    np.testing.assert_allclose(found.numpy(), model.predict_proba(X), rtol=1e-5, atol=1e-6)


@BOTH
def test_a_library_that_takes_memory_of_others(used: list[Any], backend: str) -> None:
    """The result is complete when it is handed over: that library may read it on any stream."""

    class Array:
        dtype, shape = X.dtype, X.shape

        def __dlpack_device__(self) -> tuple[int, int]:
            return 2, 0

        def __dlpack__(self, stream: int) -> Any:
            return on_gpu(X).__dlpack__(stream)

        def __array_namespace__(self) -> Any:
            return SimpleNamespace(from_dlpack=lambda tensor: ("taken", tensor.numpy()))

    model = LinearRegression().fit(X, X[:, 0])
    word, values = hbc.convert(model, backend, device="cuda").predict(Array())
    assert word == "taken"
    np.testing.assert_allclose(values, model.predict(X), rtol=1e-5)
    assert set(OnGpu.asked) == {1}, "DLPack's number of the default stream"
    assert used[-1] == "wait"
    assert set(used) == {"wait", ("default", torch.device("cuda", 0))}


@BOTH
def test_what_is_refused(used: list[Any], backend: str) -> None:
    """The same as by tvm (tests/compiler/tvm/run/test_cuda_dlpack.py), in the same words."""
    model = RandomForestClassifier(3, max_depth=2, random_state=0).fit(X, np.where(LABELS, "yes", "no"))
    compiled = hbc.convert(model, backend, device="cuda:1")
    far, bad, x = on_gpu(X), X.copy(), torch.from_numpy(X)
    far.number = 0
    bad[17, 2] = np.inf
    for given, text in (
        (far, r"cuda:0, expected one on cuda:1, where the model is"),
        (on_gpu(x.half()), "float16 on a GPU, expected float32 or float64"),
        (on_gpu(x.bfloat16()), "bfloat16 on a GPU, expected float32 or float64"),
        (on_gpu(x[:, :3].contiguous()), r"shape \(300, 3\), expected \[rows, 4\]"),
        (on_gpu(x[0]), r"shape \(4,\), expected \[rows, 4\]"),
        (on_gpu(x.T.contiguous().T), "do not lie one after the other"),
        (on_gpu(x.clone().requires_grad_()), "without a gradient"),
        (on_gpu(torch._neg_view(-x)), r"opposite signs.*resolve_neg"),
        (on_gpu(bad), "inf in row 17"),
        (on_gpu(x[:0]), "0 rows"),
    ):
        with pytest.raises(hbc.InvalidInputError, match=text):
            compiled.predict_proba(given)
    with pytest.raises(hbc.InvalidInputError, match=r"tensor on the CPU.*strings"):
        compiled.predict(on_gpu(X))  # its labels are strings
    with pytest.raises(hbc.InvalidInputError, match="tensor on the CPU"):
        hbc.convert(model, backend).predict_proba(on_gpu(X))
    with pytest.raises(hbc.InvalidInputError, match=r"opposite signs.*resolve_neg"):
        compiled.predict_proba(torch._neg_view(-x))  # a tensor of the host


def test_a_test_of_each_number(used: list[Any]) -> None:
    """This kernel asks for numbers ≥ 0, beside the test that a row is finite."""
    model = AdditiveChi2Sampler().fit(np.abs(X))
    compiled = hbc.convert(model, "torch", device="cuda:1")
    np.testing.assert_allclose(compiled.transform(on_gpu(np.abs(X))).numpy(), model.transform(np.abs(X)), rtol=1e-5, atol=1e-6)
    with pytest.raises(hbc.InvalidInputError) as there:
        compiled.transform(on_gpu(X))
    with pytest.raises(hbc.InvalidInputError) as here:
        compiled.transform(X)
    assert str(there.value) == str(here.value)


def test_stages(used: list[Any]) -> None:
    model = AdaBoostClassifier(n_estimators=3, random_state=0).fit(X, LABELS)
    found = list(hbc.convert(model, "torch", device="cuda:1").staged_predict_proba(on_gpu(X)))
    for stage, expected in zip(found, model.staged_predict_proba(X), strict=True):
        np.testing.assert_allclose(stage.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_no_rows(used: list[Any]) -> None:
    """XGBoost gives (0,) for no rows, and since 3.4 (0, 0), whatever the shape for others is."""
    model = pytest.importorskip("xgboost").XGBRegressor(n_estimators=2, max_depth=2).fit(X, X[:, 0])
    compiled = hbc.convert(model, "torch", device="cuda:1")
    refused = ["apply"] if older("xgboost", 3, 4) else ["apply", "predict"]
    for method in ("apply", "predict"):
        if method in refused:
            with pytest.raises(hbc.InvalidInputError, match="0 rows on a GPU"):
                getattr(compiled, method)(on_gpu(X[:0]))
        else:
            assert tuple(getattr(compiled, method)(on_gpu(X[:0])).shape) == getattr(model, method)(X[:0]).shape


@BOTH
def test_no_memory_left(used: list[Any], backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = LinearRegression().fit(X, X[:, 0])
    compiled = hbc.convert(model, backend, device="cuda:1")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (3_000_000, 8_000_000))

    def full(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(run.TorchExecutable, "_function", lambda self, method: full)
    for given in (on_gpu(X), X):
        with pytest.raises(hbc.DeviceMemoryError, match=r"^cuda:1: no memory for more, of which 3.0 of 8.0 MB are free"):
            compiled.predict(given)
    monkeypatch.setattr(torch.nn.Module, "to", full)
    with pytest.raises(hbc.DeviceMemoryError, match=r"^cuda:1: no memory"):
        hbc.convert(model, backend, device="cuda:1")


@BOTH
@pytest.mark.parametrize(
    ("error", "text"),
    [
        (torch.OutOfMemoryError, "CUDA out of memory."),
        (RuntimeError, "in the TorchScript interpreter:\nRuntimeError: CUDA out of memory."),
        (RuntimeError, "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
    ids=["PyTorch", "TorchScript", "cuBLAS"],
)
@pytest.mark.usefixtures("uncollected")
def test_smaller_blocks_where_memory_is_short(
    used: list[Any], backend: str, error: type[Exception], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks are halved as often as needed. What the failed ones made is gone before the next one."""
    model = LogisticRegression().fit(X, LABELS)
    compiled = hbc.convert(model, backend, device="cuda:1")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (3_000_000, 8_000_000))
    function, sizes, made = run.TorchExecutable._function, list[int](), list[Any]()

    def some(self: Any, method: str) -> Any:
        def compute(x: Any) -> Any:
            sizes.append(len(x))
            assert not any(intermediate() is not None for intermediate in made)
            values = x * 2
            made.append(weakref.ref(values))
            if len(x) > 80:
                raise error(text)
            return function(self, method)(x)

        return compute

    monkeypatch.setattr(run.TorchExecutable, "_function", some)
    for given in (X, on_gpu(X)):
        sizes.clear()
        np.testing.assert_allclose(np.asarray(compiled.predict_proba(given)), model.predict_proba(X), rtol=1e-5, atol=1e-6)
        assert sizes[-4:] == [75] * 4
        assert set(sizes) == {300, 150, 75}


def test_other_errors_stay(used: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = hbc.convert(LinearRegression().fit(X, X[:, 0]), "torch", device="cuda:1")

    def broken(*_: Any) -> Any:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(run.TorchExecutable, "_function", lambda self, method: broken)
    with pytest.raises(RuntimeError, match="illegal memory"):
        compiled.predict(X)
