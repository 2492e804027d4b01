"""What the caller has told PyTorch does not change the results of a model, or is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")
from sklearn.linear_model import Ridge  # noqa: E402

import hbc  # noqa: E402

X = np.random.default_rng(0).normal(size=(2000, 64)).astype(np.float32)
MODEL = Ridge().fit(X, X @ np.random.default_rng(1).normal(size=(64, 30)).astype(np.float32))
BOTH = pytest.mark.parametrize("backend", ["torch", "torchscript"])


@BOTH
@pytest.mark.parametrize(
    "setting",
    [
        pytest.param(lambda: torch.autocast("cpu", torch.bfloat16), id="autocast"),
        pytest.param(lambda: torch.device("meta"), id="default device"),
    ],
)
def test_settings_of_the_thread(backend: str, setting: Callable[[], AbstractContextManager[Any]]) -> None:
    """Autocast makes bfloat16 of the factors of products."""
    before = hbc.convert(MODEL, backend, X=X)
    with setting():
        inside = hbc.convert(MODEL, backend, X=X)
        found = [compiled.predict(rows) for compiled in (before, inside) for rows in (X, X, X[:1])]
    for values in (*found, inside.predict(X)):
        np.testing.assert_allclose(values, MODEL.predict(X[: len(values)]), rtol=1e-5, atol=1e-5)


@pytest.fixture
def precision() -> Iterator[Callable[[str], None]]:
    """PyTorch's function that sets how products of float32 are computed in this process."""
    before = torch.get_float32_matmul_precision()
    yield torch.set_float32_matmul_precision
    torch.set_float32_matmul_precision(before)


@BOTH
def test_rounded_factors_are_refused(backend: str, precision: Callable[[str], None]) -> None:
    compiled = hbc.convert(MODEL, backend, X=X)
    compiled.predict(X[:1])
    for setting in ("medium", "high"):
        precision(setting)
        for rows in (X, X[:1]):
            with pytest.raises(hbc.InvalidInputError, match=f"found '{setting}', expected 'highest'"):
                compiled.predict(rows)
        np.testing.assert_allclose(compiled.predict(X.astype(np.float64)), MODEL.predict(X.astype(np.float64)), rtol=1e-10)
    precision("highest")
    np.testing.assert_allclose(compiled.predict(X), MODEL.predict(X), rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(not hasattr(torch.backends.mkldnn, "matmul"), reason="this PyTorch has one setting for all devices")
def test_the_settings_of_one_kind_of_device(precision: Callable[[str], None]) -> None:
    compiled = hbc.convert(MODEL, "torch", X=X)
    precision("highest")
    try:
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        np.testing.assert_allclose(compiled.predict(X), MODEL.predict(X), rtol=1e-5, atol=1e-5)
        torch.backends.mkldnn.matmul.fp32_precision = "bf16"
        with pytest.raises(hbc.InvalidInputError, match="found 'bf16', expected 'highest'"):
            compiled.predict(X)
    finally:
        torch.backends.cuda.matmul.fp32_precision = torch.backends.mkldnn.matmul.fp32_precision = "ieee"
