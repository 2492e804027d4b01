"""Documents iterated by compiled code, against numpy's and the source's."""

from __future__ import annotations

import platform

import numpy as np
import pytest
import scipy.sparse
from sklearn.decomposition import LatentDirichletAllocation

import hbc
from hbc.compiler.tvm.host.topics import CompiledTopics
from hbc.compiler.tvm.run.targets import machine
from hbc.ir.rows import Rows
from hbc.ops.topics import Topics

TARGETS = (
    [None, *({"kind": "llvm", "mcpu": cpu} for cpu in ("haswell", "x86-64"))] if platform.machine() == "x86_64" else [None]
)
RNG = np.random.default_rng(0)


def documents(count: int, width: int, share: float) -> np.ndarray:
    X = (RNG.poisson(3, size=(count, width)) * (RNG.random((count, width)) < share)).astype(np.float64)
    X[1], X[2] = 0, 1  # no word, every word
    return X


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize(
    ("topics", "width", "prior", "max_iter"),
    [(1, 5, 1.0, 100), (3, 40, 0.3, 100), (4, 7, 1e-7, 100), (10, 200, 0.1, 100), (13, 30, 2.0, 1), (5, 9, 0.2, 0)],
)
def test_as_numpy_computes_them(topics, width, prior, max_iter, target) -> None:
    words = RNG.gamma(0.3, size=(topics, width)) + 1e-3
    X = documents(70, width, 0.3)
    expected = Topics(words, prior, 1e-3, max_iter).evaluate(X)
    where = machine("cpu", target)
    if where.missing is not None:
        pytest.skip(where.missing)
    compiled = CompiledTopics(words, prior, 1e-3, max_iter, machine=where)
    np.testing.assert_allclose(compiled.evaluate(X), expected, rtol=1e-10, atol=1e-14)
    np.testing.assert_array_equal(compiled.evaluate(X[:1]), compiled.evaluate(X)[:1])
    assert compiled.evaluate(X[:0]).shape == (0, topics)
    np.testing.assert_allclose(compiled.evaluate(X[1:2]), expected[1:2], rtol=1e-10)
    twice = Rows.beside([Rows.from_dense(X), Rows.from_dense(X)])
    twice = Rows(twice.indptr, twice.indices % width, twice.data, width, unique=False)
    np.testing.assert_allclose(compiled.of_rows(twice), compiled.evaluate(2 * X), rtol=1e-12)


def test_the_sources_answers_by_compiled_code(monkeypatch) -> None:
    X = documents(200, 300, 0.1)
    source = LatentDirichletAllocation(7, max_iter=2, random_state=0).fit(X)
    calls = []
    of_rows = CompiledTopics.of_rows
    monkeypatch.setattr(CompiledTopics, "of_rows", lambda op, x: calls.append(len(x)) or of_rows(op, x))
    model = hbc.convert(source, "tvm")
    for rows in (X, X[:1], scipy.sparse.csr_matrix(X), scipy.sparse.csc_matrix(X), X.astype(np.int64)):
        np.testing.assert_allclose(model.transform(rows), source.transform(rows), rtol=1e-10)
    assert len(calls) == 5
    X = X.astype(np.float32)
    source.fit(X)
    np.testing.assert_array_equal(hbc.convert(source, "tvm").transform(X), source.transform(X))
    assert len(calls) == 5  # where float32 stops is decided by the last bits of numpy's products
