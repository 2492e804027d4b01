"""The quick way from Python into compiled code: what it takes, what it leaves to others, and that it counts references right."""

from __future__ import annotations

import gc
import pickle
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from lightgbm import LGBMClassifier, LGBMRegressor
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.tree import DecisionTreeRegressor

import hbc
from hbc import process
from hbc.compiler.base import quick_of
from hbc.compiler.tvm.run import entry, executable
from hbc.compiler.tvm.run.entry import usable
from hbc.errors import InvalidInputError

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((300, 6))
Y = (X[:, 0] * X[:, 1] > 0).astype(int)
MODEL = LGBMClassifier(n_estimators=12, num_leaves=7, verbose=-1).fit(X, Y)
LINEAR = LogisticRegression().fit(X, Y)

pytestmark = pytest.mark.skipif(usable() is None, reason="this interpreter has no such way")


@pytest.fixture(params=[executable.WORTH_THE_LOCK, 0.0], ids=["held", "released"], autouse=True)
def lock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test runs with Python's lock held in calls of few rows, and with the lock released in all calls."""
    monkeypatch.setattr(executable, "WORTH_THE_LOCK", request.param)


@pytest.fixture(params=[np.float32, np.float64])
def dtype(request: pytest.FixtureRequest) -> Any:
    return request.param


def warm(model: Any, method: str, dtype: Any) -> Any:
    """The compiled model after a first call, and its quick function for the method."""
    compiled = hbc.convert(model, "tvm", X[:2].astype(dtype), threads=1)
    getattr(compiled, method)(X[:2].astype(dtype))
    return compiled, compiled._calls[method].quick


def odd_arrays(plain: Any) -> Iterator[tuple[str, Any]]:
    """Arrays that are not a plain matrix, by what is odd about them."""
    yield "columns first", np.asfortranarray(np.vstack([plain, plain]))
    yield "every second row", np.repeat(plain, 2, axis=0)[::2]
    yield "every second column", np.repeat(plain, 2, axis=1)[:, ::2]
    yield "backwards", plain[:, ::-1]
    yield "bytes swapped", plain.astype(plain.dtype.newbyteorder())
    yield "not aligned", np.frombuffer(b"x" + plain.tobytes(), plain.dtype, offset=1).reshape(plain.shape)
    yield "a subclass", plain.view(type("Own", (np.ndarray,), {}))
    yield "masked", np.ma.masked_invalid(plain)
    yield "objects", plain.astype(object)
    yield "half", plain.astype(np.float16)
    yield "a list", plain.tolist()
    yield "one row less dimensions", plain[0]
    yield "more dimensions", plain[None]
    yield "too wide", np.hstack([plain, plain])
    yield "too narrow", plain[:, :-1]
    yield "no rows", plain[:0]
    yield "nothing", None
    yield "a number", 1.0
    yield "a scalar", np.float64(1)
    yield "strings", plain.astype(str)
    yield "records", np.zeros(3, [("a", "f4"), ("b", "f4")])
    yield "complex", plain.astype(complex)


@pytest.mark.parametrize("method", ["predict_proba", "raw_score"])
def test_it_answers_as_the_long_way(method: str, dtype: Any) -> None:
    compiled, quick = warm(MODEL, method, dtype)
    for rows in (1, 2, 3, 4, 5, 17, 300):
        x = X[:rows].astype(dtype)
        found = quick(x)
        assert found is not None
        assert found.flags.owndata
        assert found.flags.carray
        expected = MODEL.predict(x, raw_score=True) if method == "raw_score" else MODEL.predict_proba(x)
        assert found.dtype == expected.dtype
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(found, compiled._calls[method](x))


def test_arrays_that_it_leaves_to_others(dtype: Any) -> None:
    _, quick = warm(MODEL, "predict_proba", dtype)
    plain = X[:3].astype(dtype)
    for name, odd in odd_arrays(plain):
        assert quick(odd) is None, name
        assert quick(plain, odd) is None, name


def test_read_only_arrays_and_rows_of_a_larger_one(dtype: Any) -> None:
    _, quick = warm(MODEL, "predict_proba", dtype)
    plain = X.astype(dtype)
    expected = quick(plain[:4].copy())
    fixed = plain[:4].copy()
    fixed.flags.writeable = False
    np.testing.assert_array_equal(quick(fixed), expected)
    np.testing.assert_array_equal(quick(plain[:4]), expected)
    np.testing.assert_array_equal(quick(plain[1:2][:, :]), expected[1:2])


def test_arrays_out_of_a_pickle_are_taken(dtype: Any) -> None:
    """Their dtype is equal to numpy's own one, and another object. By the long way one row took 0.9 µs more."""
    _, quick = warm(MODEL, "predict_proba", dtype)
    plain = X[:4].astype(dtype)
    unpickled = pickle.loads(pickle.dumps(plain))
    assert unpickled.dtype is not plain.dtype
    np.testing.assert_array_equal(quick(unpickled), quick(plain))
    for other in {np.float32, np.float64, np.float16, np.int32} - {dtype}:
        assert quick(pickle.loads(pickle.dumps(plain.astype(other)))) is None
    swapped = pickle.loads(pickle.dumps(plain.dtype.newbyteorder()))
    assert quick(plain.astype(swapped)) is None


def test_out_must_fit(dtype: Any) -> None:
    _, quick = warm(MODEL, "predict_proba", dtype)
    x = X[:3].astype(dtype)
    out = np.full((3, 2), 9.0)
    assert quick(x, out) is out
    np.testing.assert_array_equal(out, quick(x))
    fixed = np.empty((3, 2))
    fixed.flags.writeable = False
    for odd in (np.empty((2, 2)), np.empty((4, 2)), np.empty((3, 3)), np.empty(3), np.empty((3, 2), np.float32), fixed):
        before = odd.copy()
        assert quick(x, odd) is None
        np.testing.assert_array_equal(odd, before)
    assert quick(x, np.empty((3, 4))[:, ::2]) is None
    assert quick(x, np.empty((2, 3)).T) is None


def test_one_dimensional_results() -> None:
    model = LinearRegression().fit(X, X[:, 0] + 1)
    _, quick = warm(model, "predict", np.float64)
    out = np.empty(2)
    assert quick(X[:2], out) is out
    np.testing.assert_allclose(out, model.predict(X[:2]))
    assert quick(X[:2], np.empty((2, 1))) is None
    assert quick(X[:2]).shape == (2,)


def test_values_that_the_source_rejects_take_the_long_way(dtype: Any) -> None:
    compiled, quick = warm(LINEAR, "predict_proba", dtype)
    good = X[:2].astype(dtype)
    assert quick(good) is not None
    for bad in (np.nan, np.inf, -np.inf):
        x = good.copy()
        x[1, 3] = bad
        assert quick(x) is None
        assert quick(x, np.empty((2, 2))) is None
        with pytest.raises(InvalidInputError):
            compiled.predict_proba(x)
        with pytest.raises(InvalidInputError):
            compiled.bind("predict_proba", dtype)(x, np.empty((2, 2)))
    large = np.full_like(good, np.finfo(dtype).max / 2)
    np.testing.assert_allclose(compiled.predict_proba(large), LINEAR.predict_proba(large))


@pytest.mark.parametrize(
    "model", [LGBMRegressor(n_estimators=9, num_leaves=7, verbose=-1), DecisionTreeRegressor(max_leaf_nodes=30)], ids=repr
)
def test_several_dtypes_by_one_function(model: Any) -> None:
    """scikit-learn's trees reject numbers beyond float32, which no integer is."""
    model.fit(X, X[:, 0])
    compiled = hbc.convert(model, "tvm", threads=1)
    whole = np.round(X[:5] * 3).astype(np.int64)
    whole[0, :2] = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    inputs = [X[:5].astype(np.float32), X[:5], whole]
    for x in inputs:
        compiled.predict(x)
    quick = compiled._calls["predict"].quick
    for x in [*inputs, *inputs[::-1]]:
        np.testing.assert_allclose(quick(x), model.predict(x), rtol=1e-5, atol=1e-6)
        handle = compiled.bind("predict", x.dtype)
        np.testing.assert_array_equal(handle(x), quick(x))
        for other in inputs:
            if other.dtype != x.dtype:
                with pytest.raises(InvalidInputError):
                    handle(other)


def passing_on(dtype: Any) -> tuple[Any, list[Any]]:
    """A quick function that passes on what it does not take, and what it has passed on."""
    compiled, _ = warm(MODEL, "predict_proba", dtype)
    passed: list[Any] = []

    def otherwise(*values: Any, **named: Any) -> Any:
        passed.append((values, named))
        return "passed on"

    call = compiled._calls["predict_proba"]
    quick = quick_of(call.short[np.dtype(dtype)][0], 1, otherwise)
    assert quick is not None
    return quick.function, passed


def test_what_it_does_not_take_is_passed_on(dtype: Any) -> None:
    quick, passed = passing_on(dtype)
    plain, out = X[:3].astype(dtype), np.empty((3, 2))
    for name, odd in odd_arrays(plain):
        for values in ((odd,), (plain, odd)):
            assert quick(*values) == "passed on", name
            assert passed.pop() == (values, {}), name
    for values, named in (
        ((), {}),
        ((plain, out, out), {}),
        ((plain,), {"others": out}),
        ((plain, out), {"out": out}),
        ((), {"X": plain, "out": out}),
        ((), {"out": out}),
        ((plain,), {"out": out, "X": plain}),
        ((plain,), {"out": None}),
    ):
        assert quick(*values, **named) == "passed on"
        given, by_name = passed.pop()
        assert len(given) == len(values)
        assert all(a is b for a, b in zip(given, values, strict=True))
        assert {name: id(value) for name, value in by_name.items()} == {name: id(value) for name, value in named.items()}
    assert not passed


def test_out_may_be_named(dtype: Any) -> None:
    quick, passed = passing_on(dtype)
    plain, out = X[:3].astype(dtype), np.full((3, 2), 9.0)
    assert quick(plain, out=out) is out
    assert quick(plain, **{"".join(["o", "ut"]): out}) is out or passed  # a name that is not interned may be passed on
    np.testing.assert_array_equal(out, quick(plain))


def test_errors_of_the_other_function_come_through(dtype: Any) -> None:
    compiled, _ = warm(MODEL, "predict_proba", dtype)

    def otherwise(*values: Any) -> Any:
        raise KeyError(len(values))

    quick = quick_of(compiled._calls["predict_proba"].short[np.dtype(dtype)][0], 1, otherwise)
    assert quick is not None
    before = sys.getrefcount(X)
    for _ in range(100):
        with pytest.raises(KeyError):
            quick.function(X[:2].tolist(), X)
    assert sys.getrefcount(X) == before


def test_a_handle_runs_no_python(dtype: Any) -> None:
    """For arrays that its quick way takes."""
    compiled, _ = warm(MODEL, "predict_proba", dtype)
    handle, plain, out, run = compiled.bind("predict_proba", dtype), X[:2].astype(dtype), np.empty((2, 2)), []
    sys.setprofile(lambda frame, event, argument: run.append(frame.f_code.co_name) if event == "call" else None)
    try:
        handle(plain)
        handle(plain, out)
        handle(plain, out=out)
    finally:
        sys.setprofile(None)
    assert run == []


LABELS = {"str": np.array(["below", "above"]), "object": np.array(["below", "above"], object), "bool": np.array([False, True])}


@pytest.mark.parametrize("kind", LABELS)
def test_class_labels(kind: str, dtype: Any) -> None:
    model = LogisticRegression().fit(X, LABELS[kind][Y])
    compiled, quick = warm(model, "predict", dtype)
    plain = X[:3].astype(dtype)
    expected = model.predict(plain)
    out = np.empty_like(expected)
    for found in (quick(plain), quick(plain, out), quick(plain, out=out), compiled.predict(plain)):
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)
    assert quick(plain, out) is out
    for name, odd in odd_arrays(plain):
        assert quick(odd) is None, name
        assert odd is None or quick(plain, odd) is None, name
    for wrong in (out[:2], out.astype("<U9"), np.repeat(out, 2)[::2]):
        before = wrong.copy()
        assert quick(plain, wrong) is None
        np.testing.assert_array_equal(wrong, before)
        with pytest.raises(InvalidInputError):
            compiled.bind("predict", dtype)(plain, wrong)
    fixed = out.copy()
    fixed.flags.writeable = False
    assert quick(plain, fixed) is None
    for other in {np.float32, np.float64} - {dtype}:
        compiled.predict(X[:2].astype(other))
        np.testing.assert_array_equal(quick(X[:5].astype(other)), model.predict(X[:5].astype(other)))


def calls_seen(quick: Any) -> bool:
    """Whether this thread sees another one inside a call of 100,000 rows. It repeats the call until then, at most 200 times."""
    x, stop = np.zeros((100_000, 6), np.float32), threading.Event()

    def work() -> None:
        for _ in range(200):
            if stop.is_set():
                return
            assert quick(x) is not None

    thread = threading.Thread(target=work)
    thread.start()
    seen = False
    while thread.is_alive() and not seen:
        seen = process.flights[process.CALLS] == 1
    stop.set()
    thread.join()
    assert process.flights[process.CALLS] == 0
    return seen


def test_many_rows_do_not_hold_the_lock() -> None:
    _, quick = warm(MODEL, "predict_proba", np.float32)
    assert calls_seen(quick)


def test_the_lock_is_held_when_the_interpreter_ends() -> None:
    _, quick = warm(MODEL, "predict_proba", np.float32)
    process.flights[process.CLOSED] = 1
    try:
        assert not calls_seen(quick)
    finally:
        process.flights[process.CLOSED] = 0


@pytest.mark.filterwarnings("ignore:Setting the shape on a NumPy array:DeprecationWarning")  # since 2.5
def test_shapes_may_change_during_a_call() -> None:
    """`X.shape = …` frees the memory of the old shape."""
    _, quick = warm(MODEL, "predict_proba", np.float32)
    x, stop = X.astype(np.float32), threading.Event()
    expected, flat = quick(x.copy()), x.reshape(-1).shape

    def reshape() -> None:
        while not stop.is_set():
            x.shape = flat
            x.shape = X.shape

    thread = threading.Thread(target=reshape)
    thread.start()
    for _ in range(3000):
        found = quick(x)
        assert found is None or np.array_equal(found, expected)
    stop.set()
    thread.join()


def test_arrays_are_held_during_a_call() -> None:
    """Other threads drop their references to the arrays of a call while it computes."""
    _, quick = warm(MODEL, "predict_proba", np.float32)
    plain, expected = X.astype(np.float32), quick(X.astype(np.float32))
    wrong = []

    def work() -> None:
        for _ in range(300):
            if not np.array_equal(quick(plain.copy()), expected) or not np.array_equal(
                quick(plain, np.empty((300, 2))), expected
            ):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_errors_of_the_code_take_the_long_way() -> None:
    _, quick = warm(MODEL, "predict_proba", np.float32)
    x, out = X[:3].astype(np.float32), np.empty((3, 2))
    before = [sys.getrefcount(each) for each in (x, out, None)]
    quick.__self__[entry.COUNT] -= 1  # an argument is missing
    for _ in range(1000):
        assert quick(x) is None
        assert quick(x, out) is None
    quick.__self__[entry.COUNT] += 1
    assert max(abs(a - b) for a, b in zip(before, map(sys.getrefcount, (x, out, None)), strict=True)) < 100
    assert process.flights[process.CALLS] == 0
    assert quick(x) is not None


def test_references_are_counted_right() -> None:
    compiled, quick = warm(LINEAR, "predict_proba", np.float32)
    x, bad, out = X[:1].astype(np.float32), np.full((1, 6), np.nan, np.float32), np.empty((1, 2))
    seen = [x, bad, out, np.dtype(np.float32), np.dtype(np.float64), None, np.ndarray, quick.__self__]
    before = [sys.getrefcount(each) for each in seen]
    blocks = sys.getallocatedblocks()
    for _ in range(2000):
        quick(x)
        quick(x, out)
        quick(bad)
        quick(bad, out)
        quick(None)
        compiled.predict_proba(x)
    assert max(abs(a - b) for a, b in zip(before, (sys.getrefcount(each) for each in seen), strict=True)) < 100
    assert abs(sys.getallocatedblocks() - blocks) < 500


def test_it_outlives_its_model() -> None:
    compiled, quick = warm(MODEL, "predict_proba", np.float32)
    x = X[:2].astype(np.float32)
    expected = quick(x)
    del compiled
    gc.collect()
    hbc.convert(RandomForestClassifier(3, max_depth=3).fit(X, Y), "tvm").predict(X[:2])
    np.testing.assert_array_equal(quick(x), expected)
    del quick
    gc.collect()


def test_several_threads() -> None:
    compiled, quick = warm(MODEL, "predict_proba", np.float32)
    handle, wrong = compiled.bind("predict_proba"), []
    expected = quick(X[:12].astype(np.float32))

    def work(start: int) -> None:
        x, out = X[start : start + 3].astype(np.float32), handle.empty(3)
        for _ in range(2000):
            if not (
                np.array_equal(quick(x), expected[start : start + 3])
                and np.array_equal(handle(x, out), expected[start : start + 3])
            ):
                wrong.append(start)

    threads = [threading.Thread(target=work, args=(3 * i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_without_it_the_answers_are_the_same(monkeypatch: pytest.MonkeyPatch, dtype: Any) -> None:
    x = X[:3].astype(dtype)
    _, quick = warm(MODEL, "predict_proba", dtype)
    expected = quick(x)
    monkeypatch.setattr(entry, "usable", lambda: None)
    compiled, none = warm(MODEL, "predict_proba", dtype)
    assert none(x) is None
    np.testing.assert_array_equal(compiled.predict_proba(x), expected)
    handle, out = compiled.bind("predict_proba", dtype), np.empty((3, 2))
    for _ in range(3):
        assert handle(x, out) is out
        np.testing.assert_array_equal(out, expected)
