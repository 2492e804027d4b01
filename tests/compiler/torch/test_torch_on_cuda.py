"""What PyTorch's programs would do on a GPU, without one: operators never look at values (a copy to the host would stop the GPU's queue),
all of their memory moves with `.to(device)`, and the branches for GPUs compute the same."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")
from sklearn.ensemble import GradientBoostingClassifier, RandomForestRegressor  # noqa: E402
from sklearn.linear_model import LogisticRegression  # noqa: E402
from sklearn.neighbors import KNeighborsClassifier  # noqa: E402
from sklearn.neural_network import MLPClassifier  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import StandardScaler  # noqa: E402

import hbc  # noqa: E402

X = np.random.default_rng(0).normal(size=(200, 6)).astype(np.float32)
Y = (X[:, 0] > X[:, 1]).astype(np.int64)
STRATEGIES = ("gemm", "tree_trav", "perf_tree_trav", "scan", "walk")
MODELS: dict[str, Any] = {
    "forest": RandomForestRegressor(5, max_depth=4, random_state=0),
    "boosting": GradientBoostingClassifier(n_estimators=5, random_state=0),
    "pipeline": make_pipeline(StandardScaler(), LogisticRegression()),
    "network": make_pipeline(StandardScaler(), MLPClassifier((8,), tol=1.0, random_state=0)),
    "neighbours": KNeighborsClassifier(3),
}
CASES = [(name, strategy) for name in MODELS for strategy in (STRATEGIES if name in ("forest", "boosting") else ("auto",))]


@contextmanager
def as_on_a_gpu() -> Iterator[None]:
    """A context in which tensors say that they lie on a GPU."""
    with mock.patch.object(torch.Tensor, "is_cuda", True):
        yield


@pytest.fixture(scope="module", params=CASES, ids=lambda case: f"{case[0]}, {case[1]}")
def case(request: Any) -> Any:
    name, strategy = request.param
    model = MODELS[name].fit(X, Y)
    return request.param, model, hbc.convert(model, "torch", X=X[:1], strategy=strategy).module


def test_no_operator_looks_at_values(case: Any) -> None:
    """Tensors of the device "meta" have no values: whoever reads one of them fails, and so does whoever mixes them with others."""
    (name, _), model, module = case
    if name == "neighbours":
        pytest.skip("neighbours look which rows have ties: the heap is for those alone")
    there = copy.deepcopy(module).to("meta")
    with as_on_a_gpu():
        found = there(torch.empty((7, 6), device="meta"))
    assert found.device.type == "meta"
    expected = model.predict_proba(X[:7]) if hasattr(model, "predict_proba") else model.predict(X[:7])
    assert tuple(found.shape) == expected.shape


def test_the_branches_for_gpus_compute_the_same(case: Any) -> None:
    _, model, module = case
    with torch.inference_mode():
        usual = module(torch.from_numpy(X))
        with as_on_a_gpu():
            found = module(torch.from_numpy(X))
    expected = model.predict_proba(X) if hasattr(model, "predict_proba") else model.predict(X)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.numpy(), usual.numpy(), rtol=1e-6)
