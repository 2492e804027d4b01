"""Few rows of models without trees on a GPU: the threads of a block share one row (nest/row_blocks.py). The kernels run on the processor
(tests/cuda_on_cpu)."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")
pytest.importorskip("sklearn")
from cuda_on_cpu import cannot_run, emulated, sanitized, without_races
from sklearn.decomposition import PCA
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import KBinsDiscretizer, Normalizer, OneHotEncoder, PolynomialFeatures, SplineTransformer
from sklearn.svm import SVC

import hbc
from hbc.compiler.tvm.nest import row_blocks
from hbc.compiler.tvm.nest.row_blocks import THREADS

pytestmark = pytest.mark.skipif(cannot_run() is not None, reason=str(cannot_run()))
X = np.random.default_rng(0).normal(size=(120, 9)).astype(np.float32)
Y = np.digitize(X[:, 0] * X[:, 1], [-0.3, 0.3])
MODELS: dict[str, Any] = {
    "layers, wider than a block": MLPClassifier((THREADS + 22, 30), tol=1.0, random_state=0),
    "support vectors": SVC(probability=True),
    "neighbours": KNeighborsClassifier(5),
    "neighbours in heaps": KNeighborsClassifier(40, weights="distance"),
    "kernels": GaussianProcessRegressor(random_state=0),
    "products": make_pipeline(PolynomialFeatures(2), Normalizer(), PCA(8), LogisticRegression()),
    "ranks": make_pipeline(KBinsDiscretizer(40, encode="onehot-dense", quantile_method="linear"), Ridge()),
    "codes": make_pipeline(
        KBinsDiscretizer(5, encode="ordinal", quantile_method="linear"), OneHotEncoder(sparse_output=False), Ridge()
    ),
    "curves": make_pipeline(SplineTransformer(), GaussianNB()),
}


def fitted(name: str) -> tuple[Any, str]:
    """(a fitted model, its method)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = MODELS[name].fit(X, Y)
    return model, "predict_proba" if hasattr(model, "predict_proba") else "predict"


@pytest.mark.parametrize("name", MODELS)
def test_few_rows_have_the_bits_of_many(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_blocks, "LEAST_NANOSECONDS", 0.0)
    monkeypatch.setattr(row_blocks, "MOST_ROWS", 40)
    model, method = fitted(name)
    with emulated(seed=len(name)) as card:
        call = getattr(hbc.convert(model, "tvm", device="cuda"), method)
        many, few, one = call(X), call(X[:40]), call(X[7:8])
        assert [(launch.grid, launch.block) for launch in card.launches] == [(1, 128), (40, THREADS), (1, THREADS)]
        assert few.tobytes() == many[:40].tobytes()
        assert one.tobytes() == many[7:8].tobytes()
    np.testing.assert_allclose(many, getattr(model, method)(X), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("again", [without_races, sanitized])
@pytest.mark.parametrize("name", MODELS)
def test_checks_of_memory(again: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_blocks, "LEAST_NANOSECONDS", 0.0)
    model, method = fitted(name)
    with emulated(seed=3) as card:
        getattr(hbc.convert(model, "tvm", device="cuda"), method)(X[:3])
    (launch,) = card.launches
    assert (launch.grid, launch.block) == (3, THREADS)
    for found, array in zip(again(launch), [a for a in launch.arguments if isinstance(a, np.ndarray)], strict=True):
        np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize(
    ("model", "rows", "grid"),
    [
        (MLPClassifier((100, 100), tol=1.0, random_state=0), THREADS, THREADS),
        (MLPClassifier((100, 100), tol=1.0, random_state=0), THREADS + 1, 2),
        (LogisticRegression(), 5, 1),  # a thread computes a row soon
    ],
    ids=["few rows", "more rows", "little to compute"],
)
def test_which_calls_have_a_block_for_each_row(model: Any, rows: int, grid: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_blocks, "MOST_ROWS", THREADS)
    with warnings.catch_warnings(), emulated() as card:
        warnings.simplefilter("ignore")
        data = np.resize(X, (rows, 9))
        found = hbc.convert(model.fit(X, Y), "tvm", device="cuda").predict_proba(data)
    assert [launch.grid for launch in card.launches] == [grid]
    np.testing.assert_allclose(found, model.predict_proba(data), rtol=1e-5, atol=1e-6)
