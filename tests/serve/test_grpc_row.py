"""gRPC: raw columns of one row become a record. They are answered, and refused, as they are when read as tensors."""

from __future__ import annotations

import asyncio
import io
import random
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("grpc")

from serving import folder, people

from hbc.serve.engine import Engine
from hbc.serve.failures import Failure
from hbc.serve.grpc import tensors
from hbc.serve.grpc.messages import Messages
from hbc.serve.grpc.methods import Methods
from hbc.serve.limits import Limits
from hbc.serve.logs import Log
from hbc.serve.plans import MOST_BYTES, MOST_PLANS, Plans
from hbc.serve.repository import Repository
from hbc.serve.service import Service
from hbc.serve.workers import Family


@pytest.fixture(scope="module")
def methods() -> Iterator[Methods]:
    repository = Repository({}, folder())
    repository.refresh()
    engine = Engine(Limits())
    yield Methods(Service(repository, engine, Limits(), Log(io.StringIO())), Family(repository))
    engine.close()


def outcome(methods: Methods, request: Any) -> Any:
    """What is answered; or the kind of the failure, and what it says."""
    try:
        answer = asyncio.run(methods.ModelInfer(request, None))
    except Failure as failure:
        return failure.kind, failure.message
    return answer.SerializeToString()


FORMATS = {"FP64": "<d", "FP32": "<f", "INT64": "<q", "INT32": "<i", "BOOL": "<?"}
ROW = {"age": ("FP64", 31.5), "fare": ("FP64", 10.25), "sex": ("BYTES", "f"), "port": ("BYTES", "S")}


def raw(datatype: str, value: Any) -> bytes:
    if datatype == "BYTES":
        return struct.pack("<I", len(value.encode())) + value.encode()
    return struct.pack(FORMATS[datatype], value)


def request(
    row: dict[str, tuple[str, Any]] = ROW, outputs: tuple[str, ...] = ("predict", "predict_proba"), **changed: Any
) -> Any:
    made = Messages.ModelInferRequest(model_name="people", id="7", **changed)
    for name, (datatype, value) in row.items():
        made.inputs.add(name=name, datatype=datatype, shape=[1])
        made.raw_input_contents.append(raw(datatype, value))
    for name in outputs:
        made.outputs.add(name=name)
    return made


def is_row(methods: Methods, made: Any) -> bool:
    return tensors.row_of(made, methods._served("people", "")) is not None


def test_a_row_is_answered_as_the_source_does(methods: Methods) -> None:
    X, model = people()
    for place in range(8):
        row = {name: ("BYTES" if isinstance(X[name][place], str) else "FP64", X[name][place]) for name in X}
        made = request(row)
        assert is_row(methods, made)
        answer = asyncio.run(methods.ModelInfer(made, None))
        assert [output.name for output in answer.outputs] == ["predict", "predict_proba"]
        assert [list(output.shape) for output in answer.outputs] == [[1], [1, 2]]
        expected = model.predict_proba(X[place : place + 1])
        np.testing.assert_allclose(np.frombuffer(answer.raw_output_contents[1])[None], expected, rtol=1e-9)
        label = answer.raw_output_contents[0]
        found = label[4:].decode() if answer.outputs[0].datatype == "BYTES" else np.frombuffer(label, "<i8")[0]
        assert found == model.predict(X[place : place + 1])[0]


VALUES: list[tuple[str, tuple[str, Any]]] = [
    *(("age", ("FP64", value)) for value in (-0.0, np.nan, np.inf, -np.inf, 5e-324, 1e308)),
    *(("fare", ("FP32", value)) for value in (31.7, np.nan, np.inf, 3e38)),
    *(("age", ("INT64", value)) for value in (31, -(1 << 63), (1 << 53) + 1)),
    ("age", ("INT32", 31)),
    ("age", ("BOOL", True)),
    *(("sex", ("BYTES", value)) for value in ("", "f\0", "Zürich", "x" * 5000)),
    ("age", ("BYTES", "31")),
    ("sex", ("FP64", 1.0)),
]


def test_other_values_are_answered_as_tensors_are(methods: Methods, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [request({**ROW, name: value}) for name, value in VALUES]
    cases += [request(dict(reversed(ROW.items()))), request(outputs=()), request(outputs=("fly",))]
    served = methods._served("people", "")
    served.plans = Plans()
    found = [outcome(methods, made) for made in cases]
    assert sum(is_row(methods, made) for made in cases) > len(cases) - 4
    assert len(served.plans) > 4
    assert [outcome(methods, made) for made in cases] == found
    monkeypatch.setattr(tensors, "row_of", lambda *_: None)
    for made, each in zip(cases, found, strict=True):
        assert each == outcome(methods, made), made


def changed(order: random.Random) -> Any:
    """A request with some parts that do not fit."""
    made = request({**ROW, **dict(order.choices(VALUES, k=order.randrange(2)))})
    for _ in range(order.choice((1, 1, 2))):
        place = order.randrange(4)
        tensor, data = made.inputs[place], b"".join(made.raw_input_contents[place : place + 1])
        kind = order.randrange(12)
        if kind == 0:
            tensor.name = order.choice(["age", "fare", "sex", "port", "", "AGE"])
        elif kind == 1:
            tensor.datatype = order.choice(["FP64", "FP32", "INT64", "UINT64", "FP16", "BYTES", "BOOL", "", "fp64"])
        elif kind == 2:
            tensor.shape[:] = order.choice([[], [1], [1, 1], [1, 1, 1], [2], [0], [-1], [1, 2], [1 << 40]])
        elif kind == 3:
            made.raw_input_contents[:] = [each for i, each in enumerate(made.raw_input_contents) if i != place]
        elif kind == 4:
            made.raw_input_contents.append(order.choice([b"", data]))
        elif kind == 5 and len(made.raw_input_contents):
            made.raw_input_contents[min(place, len(made.raw_input_contents) - 1)] = order.choice(
                [b"", data[:-1], data + b"\0", b"\xff" * 8, b"\1\0\0\0\xff", b"\2\0\0\0f", b"\0\0\0\0", data * 2]
            )
        elif kind == 6:
            tensor.contents.fp64_contents.append(1.0)
        elif kind == 7:
            tensor.parameters[order.choice(["shared_memory_region", "other"])].string_param = "x"
        elif kind == 8:
            made.parameters["timeout"].int64_param = order.choice([-1, 0, 10_000_000])
        elif kind == 9:
            made.inputs.add().CopyFrom(tensor)
            made.raw_input_contents.append(data)
        elif kind == 10:
            made.outputs.add(name=order.choice(["predict", "predict_proba", "fly", "predict_0"]))
        else:
            del made.raw_input_contents[:]
    return made


def test_random_changes_are_answered_as_tensors_are(methods: Methods, monkeypatch: pytest.MonkeyPatch) -> None:
    order = random.Random(0)
    cases = [changed(order) for _ in range(1_500)]
    rows = [is_row(methods, made) for made in cases]
    served = methods._served("people", "")
    served.plans = Plans()
    found = [outcome(methods, made) for made in cases]
    assert served.plans._columns
    assert [outcome(methods, made) for made in cases] == found
    order.shuffle(cases)
    found = [outcome(methods, made) for made in cases]
    monkeypatch.setattr(tensors, "row_of", lambda *_: None)
    for made, each in zip(cases, found, strict=True):
        assert each == outcome(methods, made), made
    assert 100 < sum(rows) < 1_400


def test_what_is_kept_of_messages_is_bounded(methods: Methods) -> None:
    served = methods._served("people", "")
    served.plans = Plans()
    for number in range(3 * MOST_PLANS):
        for size in (1, 20_000):
            made = request()
            made.parameters["note"].string_param = f"{number}" * size
            for _ in range(2):
                assert is_row(methods, made)
        assert len(served.plans) <= MOST_PLANS
        assert served.plans.held <= MOST_BYTES
    assert len(served.plans) > 0
    served.plans = Plans()
    for number in range(20):
        assert is_row(methods, request(model_version=str(number)))
        assert len(served.plans) == 0  # each came once


def test_a_signalling_nan_is_no_warning(methods: Methods, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes can hold one, for which numpy warns: it is a missing value, as every NaN is."""
    made = request()
    made.raw_input_contents[0] = struct.pack("<Q", 0x7FF0000000000001)
    kind, message = outcome(methods, made)
    assert kind == "invalid"
    assert "column 0 ('age'): found NaN" in message
    monkeypatch.setattr(tensors, "row_of", lambda *_: None)
    assert outcome(methods, made) == (kind, message)
