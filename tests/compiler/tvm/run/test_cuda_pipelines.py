"""Whole pipelines on a GPU: one launch each, and the table of docs/gpu.md that says so. The kernels run on the processor
(tests/cuda_on_cpu)."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")
pytest.importorskip("lightgbm")
pytest.importorskip("sklearn")
from cuda_on_cpu import cannot_run, emulated, sanitized, without_races
from cuda_on_cpu.resources import no_nvcc, resources, sources_of
from lightgbm import LGBMClassifier
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA
from sklearn.ensemble import RandomForestClassifier, StackingClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
    StandardScaler,
)

import hbc

pytestmark = pytest.mark.skipif(cannot_run() is not None, reason=str(cannot_run()))
DOCS = Path(__file__).parents[4] / "docs" / "gpu.md"
NUMBERS, CATEGORIES = [0, 1, 2, 3], [4, 5, 6, 7]


def forest() -> Any:
    return RandomForestClassifier(10, max_depth=6, random_state=0)


def boosted() -> Any:
    return LGBMClassifier(n_estimators=20, num_leaves=15, n_jobs=1, verbose=-1)


def beside(encoder: Any) -> Any:
    """Numbers that are imputed and scaled, beside encoded categories."""
    scaled = make_pipeline(SimpleImputer(), StandardScaler())
    return ColumnTransformer([("numbers", scaled, NUMBERS), ("categories", encoder, CATEGORIES)])


ONE_HOT = "ColumnTransformer (SimpleImputer, StandardScaler; OneHotEncoder of 4 columns)"
PIPELINES: dict[str, Callable[[], Any]] = {
    "StandardScaler, LogisticRegression": lambda: make_pipeline(SimpleImputer(), StandardScaler(), LogisticRegression()),
    "SimpleImputer, StandardScaler, LGBMClassifier": lambda: make_pipeline(SimpleImputer(), StandardScaler(), boosted()),
    f"{ONE_HOT}, RandomForestClassifier": lambda: make_pipeline(beside(OneHotEncoder(handle_unknown="ignore")), forest()),
    f"{ONE_HOT}, LGBMClassifier": lambda: make_pipeline(beside(OneHotEncoder(handle_unknown="ignore")), boosted()),
    "the same with OrdinalEncoder, RandomForestClassifier": lambda: make_pipeline(beside(OrdinalEncoder()), forest()),
    "MinMaxScaler, FunctionTransformer (log1p), RandomForestClassifier": lambda: make_pipeline(
        SimpleImputer(), MinMaxScaler(), FunctionTransformer(np.log1p), forest()
    ),
    "PolynomialFeatures of degree 2, RandomForestClassifier": lambda: make_pipeline(
        SimpleImputer(), PolynomialFeatures(2), forest()
    ),
    "Normalizer, RandomForestClassifier": lambda: make_pipeline(SimpleImputer(), Normalizer(), forest()),
    "StandardScaler, PCA, RandomForestClassifier": lambda: make_pipeline(SimpleImputer(), StandardScaler(), PCA(4), forest()),
    "StandardScaler, StackingClassifier of a forest and an LGBMClassifier": lambda: make_pipeline(
        SimpleImputer(), StandardScaler(), StackingClassifier([("forest", forest()), ("boosted", boosted())], cv=2)
    ),
}
"""Row of the table → its pipeline. SimpleImputer stands before those that take no NaN."""


def fitted(name: str) -> tuple[Any, Any]:
    """A pipeline, and rows with gaps and, from the 300th on, categories that the fit has not seen."""
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(size=(300, 4)), rng.integers(0, 6, (300, 4))], axis=1).astype(np.float32)
    X[:, :4][rng.random((300, 4)) < 0.1] = np.nan
    y = (np.nan_to_num(X[:, 0] * X[:, 1]) + X[:, 4] > 2).astype(int)
    model = PIPELINES[name]().fit(X, y)
    odd = X[:40].copy()
    odd[:, 4:] += 0 if "Ordinal" in name else 100 * rng.integers(0, 2, (40, 4))
    return model, np.concatenate([X, odd])


@pytest.mark.parametrize("name", PIPELINES)
def test_a_pipeline_is_one_launch(name: str) -> None:
    model, X = fitted(name)
    with emulated(seed=len(name)) as card:
        compiled = hbc.convert(model, "tvm", device="cuda")
        for data in (X, X[:1], X.astype(np.float64)):
            for method in ("predict", "predict_proba"):
                before = len(card.launches)
                want, found = getattr(model, method)(data), getattr(compiled, method)(data)
                np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)
                assert len(card.launches) - before == 1 == int(table()[name][0])


@pytest.mark.parametrize("again", [sanitized, without_races])
@pytest.mark.parametrize("few_rows", [(0, 0), (1 << 14, 0), (1 << 14, 1 << 10)])
@pytest.mark.parametrize("strategy", ["walk", "levels", "links"])
def test_columns_that_trees_compute_pass_the_checks_of_memory(
    again: Any, few_rows: tuple[int, int], strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of a part of a Concat, only its own columns are read."""
    for limit, rows in zip(("FEW_ROWS", "LANE_ROWS"), few_rows, strict=True):
        monkeypatch.setattr(f"hbc.compiler.tvm.trees.gpu.choice.{limit}", rows)
    model, X = fitted(f"{ONE_HOT}, RandomForestClassifier")
    with emulated(seed=7) as card:
        found = hbc.convert(model, "tvm", device="cuda", strategy=strategy).predict_proba(X[-77:])
    np.testing.assert_allclose(found, model.predict_proba(X[-77:]), rtol=1e-6)
    (launch,) = card.launches
    assert "condval" in launch.source, "the parts of the Concat are not computed by the trees"
    for array, other in zip(again(launch), [a for a in launch.arguments if isinstance(a, np.ndarray)], strict=True):
        np.testing.assert_array_equal(array, other)


# --- the table of docs/gpu.md


def table() -> dict[str, tuple[str, ...]]:
    """Row → its other cells."""
    text = DOCS.read_text().partition("## Whole pipelines")[2].partition("\n## ")[0]
    rows = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in re.findall(r"^\|.*\|$", text, re.MULTILINE)]
    return {name: tuple(rest) for name, *rest in rows[2:]}


def test_the_table_has_all_pipelines() -> None:
    assert list(table()) == list(PIPELINES)


@pytest.mark.slow
@pytest.mark.skipif(no_nvcc() is not None, reason=str(no_nvcc()))
@pytest.mark.parametrize("name", PIPELINES)
def test_local_memory_of_the_table(name: str) -> None:
    """That of `predict_proba` on sm_90, for many rows and for few."""
    (method, source), *_ = ((m, s) for m, s in sources_of(fitted(name)[0]) if m == "f32 predict_proba")
    found = {row.kernel: row for row in resources({method: source}) if row.arch == "sm_90"}
    many, few = found[method], found.get(f"{method}, few rows")
    assert all(row.spills == 0 for row in found.values())
    assert table()[name][1:] == (str(many.local), "none" if few is None else str(few.local)), found
