"""Coordinate descent by compiled sweeps: the bits of the source on every processor, sums in its order."""

from __future__ import annotations

import platform

import numpy as np
import pytest
from sklearn.datasets import load_iris
from sklearn.decomposition import NMF
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import hbc
from hbc.compiler.tvm.host.descent import CompiledDescent
from hbc.compiler.tvm.run.targets import machine

TARGETS = (
    [None, *({"kind": "llvm", "mcpu": cpu} for cpu in ("haswell", "x86-64"))] if platform.machine() == "x86_64" else [None]
)
RNG = np.random.default_rng(0)
X = RNG.exponential(size=(300, 4)) @ (RNG.exponential(size=(4, 9)) * (RNG.random((4, 9)) < 0.6)) + 0.05 * RNG.random((300, 9))


def sums(numbers, target=None):
    """The sum that a sweep computes. The gram matrix is zero, so that each number is the negative gradient of its coordinate."""
    gram = np.zeros((numbers.shape[1],) * 2, numbers.dtype)
    descent = CompiledDescent(gram, 0.0, 0.0, 1, machine=machine("cpu", target)).descent(numbers)
    return descent.descend(np.arange(len(gram)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_sums_are_those_of_one_number_after_the_other(dtype, target) -> None:
    form = np.finfo(dtype)
    cases = {
        "none": np.empty((0, 3)),
        "alike": RNG.uniform(0.5, 1, (5000, 2)),
        "far apart": 10.0 ** RNG.uniform(-30, 0, (5000, 3)),
        "ties": 1 + RNG.integers(0, 8, (5000, 2)) * form.eps,
        "too small to count": np.append(1, np.full(5000, form.eps / 4))[:, None],
        "subnormal": RNG.integers(0, 1 << 20, (5000, 1)) * form.smallest_subnormal,
        "infinite": np.append(np.full(5000, form.max / 4), 1)[:, None],
    }
    for name, numbers in cases.items():
        numbers = numbers.astype(dtype)
        with np.errstate(over="ignore"):
            expected = np.add.accumulate(np.append(dtype(0), numbers.T))[-1]
        assert sums(numbers, target) == expected, name
    assert sums(cases["alike"].astype(dtype)) != np.sum(cases["alike"].astype(dtype))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize(
    "options",
    [
        *({}, {"tol": 0, "max_iter": 300}, {"alpha_W": 0.01, "l1_ratio": 0.5}, {"max_iter": 1}),
        {"shuffle": True, "random_state": 3, "init": "nndsvda"},
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:Maximum number of iterations")
def test_bits_of_the_source(dtype, target, options) -> None:
    source = NMF(4, **options).fit(X.astype(dtype))
    compiled = hbc.convert(source, "tvm", target=target)
    scaled = X * 10.0 ** RNG.integers(-9, 9, (300, 1))
    for rows in (X, X[:1], X[:32], X[:65], np.zeros((3, 9)), scaled, np.tile(X, (20, 1))):
        rows = rows.astype(dtype)
        np.testing.assert_array_equal(compiled.transform(rows), source.transform(rows))


def test_a_component_of_zeros_stays() -> None:
    source = NMF(4, max_iter=1000).fit(X)
    source.components_[2] = 0
    found = hbc.convert(source, "tvm").transform(X)
    np.testing.assert_array_equal(found, source.transform(X))
    assert not found[:, 2].any()


def test_the_compiled_sweep_is_what_runs(monkeypatch) -> None:
    """Before other steps and as the last one; not where the target is another machine's."""
    called = []
    descent = CompiledDescent.descent
    monkeypatch.setattr(
        CompiledDescent, "descent", lambda self, products: called.append(len(products)) or descent(self, products)
    )
    iris = load_iris().data
    factors = NMF(3, max_iter=1000)
    for model in (factors, make_pipeline(factors, StandardScaler())):
        source = model.fit(iris)
        hbc.convert(source, "tvm").transform(iris)
        hbc.convert(source, "numpy").transform(iris)
    assert called == [150, 150]
