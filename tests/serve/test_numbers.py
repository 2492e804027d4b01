"""Large arrays of numbers in JSON are read as the usual way reads them, to the last bit, and refused with the same words."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
from serving import Running, all_served, numbers

from hbc.serve import numbers as large
from hbc.serve import plain, v2
from hbc.serve.engine import failure_of
from hbc.serve.failures import Failure
from hbc.serve.limits import Limits
from hbc.serve.messages import Head
from hbc.serve.served import Served

pytest.importorskip("simdjson")


@pytest.fixture(scope="module")
def served() -> dict[str, Served]:
    return all_served()


def outcome(served: Served, body: bytes, protocol: str) -> Any:
    """(the answers for a request, how it is read), or the error."""
    limits = Limits(columns=50, rows=1000)
    try:
        if protocol == "plain":
            request, hint = plain.read(served, "predict", body, limits, 100.0)
        else:
            request, hint = v2.read(served, Head("POST", ""), body, limits, 100.0)  # type: ignore[assignment]
        outputs = getattr(served.predictors["predict"], request.form)(request.value)
    except Failure as failure:
        return failure.kind, failure.message
    except Exception as error:
        known = failure_of(error)
        assert known is not None, body[:200]
        return known.kind, known.message.replace(" (from a list)", "")
    about = (hint.request_id, hint.names) if hasattr(hint, "names") else hint
    return outputs["predict"].tobytes(), request.methods, request.rows, request.deadline, about


def usual(served: Served, body: bytes, protocol: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    with monkeypatch.context() as changed:
        changed.setattr(large, "simdjson", None)
        return outcome(served, body, protocol)


def rows(count: int = 60, **others: Any) -> bytes:
    return json.dumps({"rows": numbers()[0][:count].to_numpy().tolist(), **others}).encode()


def tensor(count: int = 60, datatype: str = "FP64", **others: Any) -> bytes:
    flat = numbers()[0][:count].to_numpy().ravel().tolist()
    return json.dumps(
        {"inputs": [{"name": "input", "datatype": datatype, "shape": [count, 5], "data": flat}], **others}
    ).encode()


def was_cut(body: bytes, protocol: str) -> bool:
    return (plain._with_matrix(body) if protocol == "plain" else v2._with_array(body)) is not None


@pytest.mark.every_case
@pytest.mark.parametrize("protocol", ["plain", "v2"])
def test_numbers_are_the_same_to_the_last_bit(protocol: str) -> None:
    random_bits = np.random.default_rng(0).integers(0, 1 << 63, 3000).view(np.float64)
    found = random_bits[np.isfinite(random_bits)].tolist()
    found += [
        5e-324,
        2.2250738585072014e-308,
        2.225073858507201e-308,
        1.7976931348623157e308,
        -0.0,
        0.1,
        1e22,
        1e23,
        123456789012345680.0,
    ]
    found += [9007199254740993, (1 << 63) - 1, -(1 << 63), (1 << 64) - 1, 0, 0.5]
    found = found[: len(found) // 3 * 3]
    nested: Any = np.array(found, object).reshape(-1, 3).tolist()
    texts = [json.dumps(found if protocol == "v2" else nested), json.dumps(found if protocol == "v2" else nested, indent=1)]
    for text in texts[: 1 + (protocol == "v2")]:
        data = text.encode()
        values = large._numbers(data)
        assert values is not None
        assert values.flags.carray
        expected = np.asarray(json.loads(text), np.float64)
        assert values.dtype == np.float64
        assert values.shape == expected.shape
        assert values.tobytes() == expected.tobytes()


PLAIN = [
    rows(),
    rows(methods=["predict"], id="r"),
    rows(timeout_ms=50),
    rows(id="[[1, 2]]"),
    b'{"id": "[[1, 2]]", ' + rows()[1:],
    b'{"rows": [[1.5]], ' + rows()[1:],
    rows()[:-1] + b', "rows": [[1, 2, 3, 4, 5.5]]}',
    rows()[:-1] + b', "columns": {"v": [1]}}',
    rows(id=str(large.STAND_IN)),
    rows()[:-1] + b', "timeout_ms": %d}' % large.STAND_IN,
    b'{"rows": %d, "id": ' % large.STAND_IN + rows()[9:],
    b'{"rows": %d}' % large.STAND_IN,
    rows().replace(b"]]", b"]]7"),
    rows().replace(b"]]", b"]]e1"),
    rows().replace(b"]]", b"]].5"),
    rows().replace(b"[[", b"-[["),
    rows().replace(b"[[", b"[[[").replace(b"]]", b"]]]"),
    rows().replace(b"], [", b", ", 1),
    rows().replace(b"], [", b"], [1.5], [", 1),
    rows().replace(b"], [", b"], 1.5, [", 1),
    rows().replace(b"], [", b"], [], [", 1),
    rows().replace(b"], [", b"], null, [", 1),
    rows().replace(b"[[", b"[[null, "),
    rows().replace(b"[[", b"[[true, "),
    rows().replace(b"[[", b'[["1.5", '),
    rows().replace(b"[[", b"[[NaN, "),
    rows().replace(b"[[", b"[[1e400, "),
    rows().replace(b"[[", b"[[01, "),
    rows().replace(b"]]", b", ]]"),
    rows() + b"x",
    rows()[:-2],
    b"\xef\xbb\xbf" + rows(),
    json.dumps({"rows": [[1, 2, 3, 4, 5]] * 500}).encode(),
    json.dumps({"rows": [[1, 2, 3, 4, 5]] * 500 + [[1, 2, 3, 4, 5.5]]}).encode(),
    json.dumps({"rows": [[1 << 63, 2, 3, 4, 5.5]] * 300}).encode(),
    json.dumps({"rows": [[1 << 70, 2, 3, 4, 5.5]] * 300}).encode(),
    json.dumps({"rows": [[0.25] * 6] * 300}).encode(),
    json.dumps({"rows": [[0.25] * 60] * 100}).encode(),
    json.dumps({"rows": [[0.25] * 5] * 1001}).encode(),
    json.dumps({"rows": [[0.25] * 5] * 300}, indent=2).encode(),
    json.dumps({"rows": [0.25] * 1500}).encode(),
    json.dumps({"rows": [[]] * 3000}).encode(),
    json.dumps({"rows": [[[0.25]] * 5] * 500}).encode(),
]
V2 = [
    tensor(),
    tensor(datatype="FP32"),
    tensor(datatype="FP16"),
    tensor(datatype="INT64"),
    tensor(datatype="BYTES"),
    tensor(datatype="FP65"),
    tensor(id="a", outputs=[{"name": "predict"}], parameters={"timeout": 5}),
    tensor().replace(b"[60, 5]", b"[5, 60]"),
    tensor().replace(b"[60, 5]", b"[60, 4]"),
    tensor().replace(b"[60, 5]", b"[60, 5, 1]"),
    tensor().replace(b"[60, 5]", b"[60, -5]"),
    tensor().replace(b'"data": [', b'"data": [[').replace(b"]}]", b"]]}]"),
    tensor().replace(b'"data": [', b'"data": [1e300, ').replace(b"FP64", b"FP32").replace(b"[60, 5]", b"[301, 1]"),
    tensor().replace(b'"data": [', b'"data": ["x", '),
    tensor().replace(b'"data": [', b'"data": [true, '),
    tensor().replace(b'"data": [', b'"data": [1], "data": ['),
    tensor()[:-3] + b', "data": [1]}]}',
    tensor()[:-1] + b', "inputs": []}',
    tensor()[:-1] + b', "data": [1]}',
    b'{"data": [' + b"0.5, " * 1200 + b"0.5], " + tensor()[1:],
    b'{"note": "\\"data\\": [' + b"0.5, " * 1200 + b'0.5]", ' + tensor()[1:],
    tensor(id=str(large.STAND_IN)),
    b'{"note": %d, ' % large.STAND_IN + tensor()[1:],
    tensor().replace(b"]}]", b'], "parameters": {"binary_data_size": 8}}]'),
    json.dumps({"inputs": [{"name": "input", "datatype": "FP64", "shape": [500, 5], "data": [1, 2, 3, 4, 5] * 500}]}).encode(),
]


def test_requests_are_read_as_usual(served: dict[str, Served], monkeypatch: pytest.MonkeyPatch) -> None:
    cut = 0
    for protocol, bodies in (("plain", PLAIN), ("v2", V2)):
        for body in bodies:
            for name in served:
                assert outcome(served[name], body, protocol) == usual(served[name], body, protocol, monkeypatch), body[:200]
            cut += was_cut(body, protocol)
    assert cut > 20


def test_random_changes_are_read_as_usual(served: dict[str, Served], monkeypatch: pytest.MonkeyPatch) -> None:
    order = random.Random(0)
    pieces = [
        b"[",
        b"]",
        b"]]",
        b"[[",
        b", ",
        b"1",
        b"-",
        b".",
        b"e",
        b"e5",
        b"null",
        b'"',
        b'"data": [',
        b"}",
        b"{",
        b" ",
        b"\0",
        b"\xff",
    ]
    model, answered = served["numbers"], 0
    for turn in range(600):
        protocol = ("plain", "v2")[turn % 2]
        body = rows(50, id="x") if protocol == "plain" else tensor(50, id="x")
        for _ in range(order.choice((1, 1, 2))):
            at = order.choice((order.randrange(len(body)), order.randrange(60), len(body) - 1 - order.randrange(40)))
            end = at + order.choice((0, 0, 1, 2))
            body = body[:at] + order.choice(pieces) + body[end:]
        found = outcome(model, body, protocol)
        assert found == usual(model, body, protocol, monkeypatch), body
        answered += found[0] != "invalid"
    assert answered > 20


def test_a_batch_over_http_is_the_sources(server: Running) -> None:
    X, model = numbers()
    expected = model.predict(X[:60])
    for _ in range(2):
        answer = server.json("POST", "/v1/models/numbers:predict", rows())
        np.testing.assert_allclose(answer["predictions"]["predict"], expected, rtol=1e-9)
        (output,) = server.json("POST", "/v2/models/numbers/infer", tensor())["outputs"]
        np.testing.assert_allclose(output["data"], expected, rtol=1e-9)
