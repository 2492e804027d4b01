"""The engine: batches, the bounded queue, deadlines, and requests that nobody waits for any more."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest
from serving import all_served, numbers, people

from hbc.serve.engine import Engine, Request, clock
from hbc.serve.failures import Failure
from hbc.serve.limits import Limits
from hbc.serve.served import Served


@pytest.fixture
def served() -> dict[str, Served]:
    return all_served()


class Gate:
    """Makes a model slow: its calls wait until the gate is open. `calls`: the rows of each."""

    def __init__(self, served: Served, method: str) -> None:
        self.open = threading.Event()
        self.calls: list[int] = []
        served.cost.fixed = 10.0  # never in the event loop
        predictor = served.predictors[method]
        for form in ("record", "records", "matrix"):
            setattr(predictor, form, self._slow(getattr(predictor, form), form))

    def _slow(self, inner: Callable[[Any], Any], form: str) -> Callable[[Any], Any]:
        def slow(X: Any) -> Any:
            assert self.open.wait(30)
            self.calls.append(1 if form == "record" else len(X))
            return inner(X)

        return slow


def run(work: Callable[[], Awaitable[Any]]) -> Any:
    return asyncio.run(asyncio.wait_for(work(), 60))  # type: ignore[arg-type]


def test_forms_answer_as_the_source(served: dict[str, Served]) -> None:
    X, model = people()
    records = X[:4].to_dict("records")
    forms: list[tuple[Any, Any]] = [("records", records), ("columns", {name: list(X[name][:4]) for name in X})]

    async def work() -> None:
        engine = Engine()
        for form, value in forms:
            answer = await engine.answer(Request(served["people"], ("predict", "predict_proba"), form, value, 4))
            assert list(answer.outputs["predict"]) == list(model.predict(X[:4]))
            np.testing.assert_allclose(answer.outputs["predict_proba"], model.predict_proba(X[:4]), rtol=1e-9)
        one = await engine.answer(Request(served["people"], ("predict",), "record", records[2], 1))
        assert one.outputs == {"predict": model.predict(X[2:3])[0]}
        Y, trees = numbers()
        answer = await engine.answer(Request(served["numbers"], ("predict",), "matrix", Y[:9].to_numpy(), 9))
        np.testing.assert_allclose(answer.outputs["predict"], trees.predict(Y[:9]), rtol=1e-9)
        engine.close()

    run(work)


def test_what_waits_is_computed_together(served: dict[str, Served]) -> None:
    """Each gets its own rows; a bad request fails alone; others are computed as if it were not there."""
    X, model = numbers()
    values = X.to_numpy()
    target = served["numbers"]
    gate = Gate(target, "predict")

    async def work() -> list[Any]:
        engine = Engine()
        sizes = [1, 3, 2, 5, 1, 4]
        requests, start = [], 0
        for size in sizes:
            requests.append(Request(target, ("predict",), "matrix", values[start : start + size].copy(), size))
            start += size
        requests.append(Request(target, ("predict",), "matrix", values[:2, :4].copy(), 2))  # too narrow
        tasks = [asyncio.ensure_future(engine.answer(request)) for request in requests]
        while engine.waiting < len(requests) - 1:
            await asyncio.sleep(0.001)
        gate.open.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert engine.waiting == 0
        assert target.pending == 0
        engine.close()
        return list(results)

    *good, bad = run(work)
    expected = model.predict(X)
    start = 0
    for answer in good:
        found = answer.outputs["predict"]
        np.testing.assert_array_equal(found, expected[start : start + len(found)])
        start += len(found)
    assert start == 16
    assert isinstance(bad, Failure)
    assert bad.kind == "invalid"
    assert gate.calls[:2] == [1, 15]


def test_a_bad_row_is_the_error_of_its_own_request(served: dict[str, Served]) -> None:
    X, model = people()
    target = served["people"]
    gate = Gate(target, "predict")
    rows = X[:3].to_dict("records")
    rows[1]["age"] = float("inf")  # StandardScaler rejects it

    async def work() -> list[Any]:
        engine = Engine()
        blocker = asyncio.ensure_future(engine.answer(Request(target, ("predict",), "record", rows[0], 1)))
        await asyncio.sleep(0.01)
        tasks = [asyncio.ensure_future(engine.answer(Request(target, ("predict",), "record", row, 1))) for row in rows]
        while engine.waiting < 3:
            await asyncio.sleep(0.001)
        gate.open.set()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        await blocker
        engine.close()
        return list(found)

    first, second, third = run(work)
    assert first.outputs["predict"] == model.predict(X[:1])[0]
    assert third.outputs["predict"] == model.predict(X[2:3])[0]
    assert second.kind == "invalid"
    assert "inf" in second.message.lower()
    assert gate.calls == [1, 3, 1, 1, 1]


def test_records_of_other_types_are_computed_apart(served: dict[str, Served]) -> None:
    X, _ = numbers()
    floats = X[:1].to_dict("records")[0]
    signatures = [
        Request(served["numbers"], ("predict",), "record", row, 1).signature()
        for row in (floats, {**floats, "v": 1}, dict(reversed(floats.items())), floats)
    ]
    assert signatures[0] == signatures[3]
    assert len(set(signatures)) == 3


def test_the_queue_is_bounded_and_freed(served: dict[str, Served]) -> None:
    """A full queue refuses; cancelled and late requests leave it."""
    X, _ = numbers()
    target = served["numbers"]
    gate = Gate(target, "predict")

    def request(deadline: float | None = None) -> Request:
        return Request(target, ("predict",), "matrix", X[:1].to_numpy(), 1, deadline)

    async def work() -> None:
        engine = Engine(Limits(queue=2))
        running = asyncio.ensure_future(engine.answer(request()))
        await asyncio.sleep(0.01)
        cancelled = asyncio.ensure_future(engine.answer(request()))
        late = asyncio.ensure_future(engine.answer(request(clock() + 0.05)))
        await asyncio.sleep(0)
        assert engine.waiting == 2
        with pytest.raises(Failure, match="waiting") as busy:
            await engine.answer(request())
        assert busy.value.kind == "busy"
        assert busy.value.retry_after
        cancelled.cancel()
        with pytest.raises(Failure, match="time is over") as over:
            await late
        assert over.value.kind == "late"
        assert engine.waiting == 0
        last = asyncio.ensure_future(engine.answer(request()))
        gate.open.set()
        assert len((await last).outputs["predict"]) == len((await running).outputs["predict"]) == 1
        assert gate.calls == [1, 1]
        assert target.pending == 0
        engine.close()

    run(work)


def test_a_delay_gathers_requests(served: dict[str, Served]) -> None:
    X, _ = numbers()
    target = served["numbers"]
    gate = Gate(target, "predict")
    gate.open.set()

    async def work() -> None:
        engine = Engine(Limits(delay=0.2, batch=6))
        full = [
            asyncio.ensure_future(engine.answer(Request(target, ("predict",), "matrix", X[:2].to_numpy(), 2))) for _ in range(3)
        ]
        await asyncio.gather(*full)
        assert gate.calls == [6]  # a full batch does not wait for the delay
        await engine.answer(Request(target, ("predict",), "matrix", X[:2].to_numpy(), 2))
        assert gate.calls == [6, 2]
        engine.close()

    run(work)


def test_errors_of_the_model_are_reported_and_not_shown(served: dict[str, Served]) -> None:
    target = served["numbers"]
    reported: list[Exception] = []

    def broken(X: Any) -> Any:
        raise RuntimeError("secret")

    target.predictors["predict"].matrix = broken  # type: ignore[method-assign]

    async def work() -> None:
        engine = Engine(report=reported.append)
        for seconds in (0.0, 10.0):
            target.cost.fixed = seconds
            with pytest.raises(Failure, match="the model failed") as error:
                await engine.answer(Request(target, ("predict",), "matrix", np.zeros((1, 5)), 1))
            assert error.value.kind == "internal"
            assert "secret" not in error.value.message
        engine.close()

    run(work)
    assert [str(error) for error in reported] == ["secret", "secret"]
