"""`CompiledModel.bind`: a method for arrays of one dtype and layout."""

from __future__ import annotations

import copy
import gc
import inspect
import pickle
import threading
import weakref
from typing import Any

import numpy as np
import pytest
from backends import installed
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.tree import DecisionTreeRegressor

import hbc

RNG = np.random.default_rng(0)
X = RNG.normal(size=(300, 5))
Y = (X[:, 0] + X[:, 1] > 0).astype(int)
BACKENDS = installed("tvm", "numpy", "onnx")


@pytest.fixture(scope="module", params=BACKENDS)
def model(request: Any) -> Any:
    return hbc.convert(make_pipeline(StandardScaler(), LogisticRegression()).fit(X, Y), request.param, threads=1)


@pytest.mark.parametrize("method", ["predict", "predict_proba", "decision_function"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_what_the_method_returns(model: Any, method: str, dtype: str) -> None:
    handle = model.bind(method, dtype)
    for n in (1, 7, 300):
        data = (X[:n] * 10).astype(dtype)
        expected = getattr(model, method)(data)
        out = handle.empty(n)
        assert (out.shape, out.dtype) == (expected.shape, expected.dtype)
        for _ in range(4):  # arrays that come again are passed in another form
            np.testing.assert_array_equal(handle(data), expected)
            out[...] = 0
            assert handle(data, out) is out
            np.testing.assert_array_equal(out, expected)
        np.testing.assert_array_equal(handle(data.copy(), out), expected)
        data[...] = data[::-1].copy()
        np.testing.assert_array_equal(handle(data, out), getattr(model, method)(data))


@pytest.mark.parametrize("kind", ["<U5", object])
def test_class_labels(kind: Any) -> None:
    source = LogisticRegression().fit(X, np.array(["below", "above"])[Y].astype(kind))
    model = hbc.convert(source, "tvm", threads=1)
    handle = model.bind("predict", np.float64)
    for n in (1, 300):
        data, expected, out = X[:n].copy(), source.predict(X[:n]), handle.empty(n)
        for _ in range(4):
            for found in (model.predict(data), handle(data), handle(data, out)):
                assert found.dtype == expected.dtype
                np.testing.assert_array_equal(found, expected)
            out[...] = "below"


def test_results_are_new_memory(model: Any) -> None:
    handle, data = model.bind("predict_proba"), X.astype(np.float32)
    first = handle(data)
    kept = first.copy()
    handle(-data)
    np.testing.assert_array_equal(first, kept)
    assert not np.shares_memory(first, handle(data))


def test_arrays_are_told_apart(model: Any) -> None:
    handle = model.bind("predict_proba", np.float64)
    out = {n: handle.empty(n) for n in (1, 3)}
    data = {n: X[:n].copy() for n in (1, 3)}
    for n in (1, 1, 1, 3, 1, 3, 3, 3, 1, 1):
        np.testing.assert_array_equal(handle(data[n], out[n]), model.predict_proba(data[n]))
    with pytest.raises(hbc.InvalidInputError, match="out"):
        handle(data[1], out[3])
    handle(data[1], out[1])
    handle(data[1], out[1])
    with pytest.raises(hbc.InvalidInputError, match="out"):
        handle(data[1], out[3])


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (X[:2].astype(np.float32), "float32"),
        (X[:2, :4].copy(), r"\[2, 4\]"),
        (X[:2].astype(">f8"), ">f8"),
        (np.asfortranarray(X[:2]), "not C-contiguous"),
        (X[:4:2], "not C-contiguous"),
        (np.frombuffer(b"." + X[:2].tobytes(), offset=1).reshape(2, -1), "not aligned"),
        (X[0], r"\[5\]"),
        (X[:2].tolist(), "list"),
        (None, "NoneType"),
        (np.ma.masked_array(X[:2]), "MaskedArray"),
    ],
)
def test_other_input_is_rejected(model: Any, bad: Any, words: str) -> None:
    handle = model.bind("predict", np.float64)
    for out in (None, handle.empty(2)):
        with pytest.raises(hbc.InvalidInputError, match=words):
            handle(bad, out)


@pytest.mark.parametrize("shape", [(2,), (2, 3), (3, 2), (2, 2, 1)])
def test_other_outputs_are_rejected(model: Any, shape: tuple[int, ...]) -> None:
    handle = model.bind("predict_proba", np.float64)
    right = handle.empty(2)
    right[:] = 0.0  # what lies in the memory may be too large for float32
    bad = [np.empty(shape), right.astype(np.float32), np.asfortranarray(right), np.empty((4, 2))[::2], right.tolist()]
    right.flags.writeable = False
    for out in bad:
        with pytest.raises(hbc.InvalidInputError, match="out"):
            handle(X[:2], out)
    with pytest.raises(hbc.InvalidInputError, match=r"out: found float64\[2, 2\], read-only, expected"):
        handle(X[:2], right)


def test_what_the_source_rejects_is_rejected(model: Any) -> None:
    handle = model.bind("predict_proba", np.float64)
    data, out = X[:2].copy(), handle.empty(2)
    for _ in range(3):
        handle(data, out)
    for value in (np.nan, np.inf, -np.inf):
        data[1, 3] = value
        with pytest.raises(hbc.InvalidInputError, match="row 1"):
            handle(data, out)
        with pytest.raises(hbc.InvalidInputError, match="row 1"):
            handle(data)
    data[1, 3] = 1e300  # too large for the quick test, not for the model
    np.testing.assert_array_equal(handle(data, out), model.predict_proba(data))
    with pytest.raises(hbc.InvalidInputError):
        handle(data[:0])


def test_arrays_that_cannot_be_written_to(model: Any) -> None:
    data = np.frombuffer(X.tobytes()).reshape(X.shape)
    np.testing.assert_array_equal(model.bind("predict", np.float64)(data), model.predict(X))


def test_missing_values_where_the_model_takes_them() -> None:
    holes = np.where(RNG.random(X.shape) < 0.2, np.nan, X)
    compiled = hbc.convert(DecisionTreeRegressor(max_depth=4).fit(holes, Y), "tvm", threads=1)
    handle = compiled.bind("predict", np.float32)
    data = holes.astype(np.float32)
    np.testing.assert_array_equal(handle(data, handle.empty(len(data))), compiled.predict(data))


def test_threads_share_a_handle(model: Any) -> None:
    handle = model.bind("predict_proba", np.float64)
    expected = model.predict_proba(X)
    failures: list[int] = []

    def work(start: int) -> None:
        out = handle.empty(1)
        data = np.empty((1, 5))
        for i in range(start, start + 300):
            data[...] = X[i % 300]
            if not np.array_equal(handle(data, out)[0], expected[i % 300]) and not np.allclose(
                out[0], expected[i % 300], rtol=1e-12
            ):
                failures.append(i)

    threads = [threading.Thread(target=work, args=(start,)) for start in (0, 50, 100, 150)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_copies_share_the_model(model: Any) -> None:
    handle = model.bind("predict_proba", np.float32)
    data = X[:5].astype(np.float32)
    for other in (copy.copy(handle), copy.deepcopy(handle), copy.deepcopy([handle])[0]):
        assert (type(other), other.method, other.dtype) == (type(handle), "predict_proba", np.float32)
        for _ in range(3):
            np.testing.assert_array_equal(other(data, other.empty(5)), handle(data))
        with pytest.raises(hbc.InvalidInputError, match="float64"):
            other(X[:5])


def test_it_is_not_pickled(model: Any) -> None:
    handle = model.bind("predict_proba")
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(TypeError, match="pickle the model, and bind predict_proba again"):
            pickle.dumps(handle, protocol)


def test_what_cannot_be_bound() -> None:
    compiled = hbc.convert(Ridge().fit(X, Y), "numpy")
    with pytest.raises(ValueError, match="method: found 'transform', expected one of predict"):
        compiled.bind("transform")
    with pytest.raises(ValueError, match="float16"):
        compiled.bind("predict", np.float16)
    assert compiled.bind("predict").dtype == np.float32
    assert hbc.convert(Ridge().fit(X, Y), "numpy", X[:2]).bind("predict").dtype == np.float64
    assert "float32" in repr(compiled.bind("predict"))
    strings = hbc.convert(OneHotEncoder(sparse_output=False).fit([["a"], ["b"]]), "numpy")
    with pytest.raises(ValueError, match="plain matrices"):
        strings.bind("transform")


def test_labels_that_are_strings() -> None:
    compiled = hbc.convert(LogisticRegression().fit(X, np.array(["no", "yes"])[Y]), "tvm", threads=1)
    handle = compiled.bind("predict", np.float64)
    np.testing.assert_array_equal(handle(X), compiled.predict(X))
    np.testing.assert_array_equal(handle(X, handle.empty(len(X))), compiled.predict(X))


def test_it_is_called_as_a_function_is(model: Any) -> None:
    handle = model.bind("predict_proba", np.float64)
    assert str(inspect.signature(handle)) == "(X, out=None)"
    expected, out = model.predict_proba(X[:3]), handle.empty(3)
    for found in (handle(X=X[:3]), handle(X[:3], None), handle(X[:3], out=None)):
        np.testing.assert_array_equal(found, expected)
    for call in (lambda: handle(X[:3], out=out), lambda: handle(out=out, X=X[:3])):
        out[...] = 0
        assert call() is out
        np.testing.assert_array_equal(out, expected)
    for call in (handle, lambda: handle(out=out), lambda: handle(X, out, out), lambda: handle(X, rows=3)):
        with pytest.raises(TypeError, match="argument"):
            call()


def test_in_a_class_it_is_no_method_of_it(model: Any) -> None:
    class Service:
        score = model.bind("predict_proba", np.float64)

    assert Service().score is Service.score
    np.testing.assert_array_equal(Service().score(X[:3]), model.predict_proba(X[:3]))


def test_it_is_freed_with_its_last_reference() -> None:
    """No cycle waits for the garbage collector, which may run long after."""
    gc.disable()
    try:
        compiled = hbc.convert(Ridge().fit(X, Y), "tvm", threads=1)
        handle = compiled.bind("predict", np.float64)
        handle(X[:2])
        kept = weakref.ref(handle.func)
        del handle
        assert kept() is None
    finally:
        gc.enable()
