"""Plans of repeated requests: whatever comes is read as without a plan, and nobody can fill the memory with them."""

from __future__ import annotations

import json
import random
import re
import struct
from typing import Any

import numpy as np
import pytest
from planned import PREDICT, VALUES, as_bytes, document, matrix, model, outcome, planned, with_value, without_plan
from serving import Running, people

from hbc.serve import plans
from hbc.serve.plans import Plans
from hbc.serve.served import Served


@pytest.fixture(scope="module")
def served() -> Served:
    return model("people")


@pytest.fixture(scope="module")
def trees() -> Served:
    return model("numbers")


OTHERS: list[dict[str, Any]] = [
    {"id": "r-2"},
    {"id": ""},
    {"id": 'quoted " and \\'},
    {"id": "été"},
    {"outputs": PREDICT},
    {"outputs": [{"name": "predict_proba", "parameters": {"binary_data": True}}, {"name": "predict"}]},
    {"outputs": [{"name": "predict_proba", "parameters": {"binary_data": False}}], "id": "last"},
    {"parameters": {"binary_data_output": True}},
    {"parameters": {"timeout": 5_000_000}},
    {"parameters": {"timeout": 0}},
    {"parameters": {"sequence_id": 4}},
    {"outputs": [{"name": "fly"}]},
    {"shape": (1, 1)},
    {"shape": (2,)},
]
ROWS = [
    VALUES,
    with_value("age", "FP64", -0.0),
    with_value("age", "FP64", 3),
    with_value("age", "FP64", (1 << 53) + 2),
    with_value("age", "FP64", 1e308),
    with_value("age", "FP32", 31.7),
    with_value("age", "INT64", 31),
    with_value("age", "INT64", -(1 << 63)),
    with_value("sex", "BYTES", "eine längere Zeichenkette"),
    with_value("sex", "BYTES", ""),
    with_value("sex", "BYTES", "]"),
    with_value("sex", "BYTES", 'a"],"data":[5'),
    with_value("sex", "BYTES", "f\0"),
    dict(reversed(VALUES.items())),
]


@pytest.mark.every_case
@pytest.mark.parametrize("first", range(len(OTHERS)))
def test_other_parameters_are_not_those_of_the_plan(served: Served, first: int) -> None:
    """A plan was made of a request without any of these."""
    for beginning in ({}, {"id": "r-1"}):
        body = json.dumps({**beginning, **document()}).encode()
        planned(served, body)
        other = json.dumps({**beginning, **document(**OTHERS[first])}).encode()
        for again in (other, other, other, body):
            assert outcome(served, again) == without_plan(served, again)
        data, length = as_bytes(write=lambda found: json.dumps({**beginning, **found}))  # noqa: B023
        planned(served, data, length)
        changed = as_bytes(write=lambda found: json.dumps({**beginning, **found}), **OTHERS[first])  # noqa: B023
        for again, size in (changed, changed, changed, (data, length)):
            assert outcome(served, again, size) == without_plan(served, again, size)


@pytest.mark.parametrize("raw", [False, True], ids=["JSON", "bytes"])
def test_no_id_is_that_of_the_request_that_made_the_plan(served: Served, trees: Served, raw: bool) -> None:
    """Both have one key where no space stands between the id and the rest."""
    row = as_bytes() if raw else (json.dumps(document()).encode(), None)
    for each, (body, length) in ((served, row), (trees, matrix(np.ones((1, 5)), raw=raw))):
        begin = b'{"id":"mine",'
        planned(each, begin + body[1:], None if length is None else length + len(begin) - 1)
        assert outcome(each, body, length) == without_plan(each, body, length)
        assert outcome(each, body, length)[-1][0] is None
        assert len(each.plans) == 1


@pytest.mark.every_case
@pytest.mark.parametrize("first", range(len(ROWS)))
def test_other_values_are_read_as_without_a_plan(served: Served, first: int) -> None:
    for i, second in enumerate(ROWS):
        one, two = (json.dumps(document(row)).encode() for row in (ROWS[first], second))
        served.plans = Plans()
        for body in (one, one, two, two, one):
            assert outcome(served, body) == without_plan(served, body)
        if isinstance(ROWS[first]["age"][1], int) != isinstance(second["age"][1], int) or i == 3 or first == 3:
            continue  # struct writes no such numbers
        served.plans = Plans()
        for body, length in (as_bytes(ROWS[first]), as_bytes(ROWS[first]), as_bytes(second), as_bytes(second)):
            assert outcome(served, body, length) == without_plan(served, body, length)


def test_numbers_beyond_the_json(served: Served) -> None:
    """NaN and infinity as bytes; integers beyond 64 bits, and other types, as JSON."""
    body, length = as_bytes()
    planned(served, body, length)
    for number in (np.nan, np.inf, -np.inf, 5e-324):
        other = body[:length] + struct.pack("<d", number) + body[length + 8 :]
        assert outcome(served, other, length) == without_plan(served, other, length)
        assert repr(float(number)) in str(outcome(served, other, length))
    text = json.dumps(document()).encode()
    planned(served, text)
    for value in (
        b"1e400",
        b"18446744073709551616",
        b"9007199254740993",
        b"null",
        b"true",
        b'"x"',
        b"{}",
        b"[1]",
        b"",
        b"1,2",
        b"01",
    ):
        other = text.replace(b"31.5", value)
        assert outcome(served, other) == without_plan(served, other)
    planned(served, text.replace(b'"FP64"', b'"INT64"').replace(b"31.5", b"31").replace(b"10.25", b"10"))
    for value in (b"9223372036854775807", b"9223372036854775808", b"-9223372036854775809", b"1.0"):
        other = text.replace(b'"FP64"', b'"INT64"').replace(b"31.5", value).replace(b"10.25", b"10")
        assert outcome(served, other) == without_plan(served, other)


def test_wrong_bytes_are_the_usual_error(served: Served) -> None:
    body, length = as_bytes()
    planned(served, body, length)
    text, raw = body[:length], body[length:]
    texts = raw[16:]
    for other in (
        raw[:-1],
        raw + b"\0",
        b"",
        raw[:16] + b"\2" + texts[1:],
        raw[:16] + b"\0" + texts[1:],
        raw[:16] + b"\1\0\0\1" + texts[4:],
        raw[:16] + texts[:4] + b"\xff" + texts[5:],
        raw[:16] + texts[:4] + b"\0" + texts[5:],
    ):
        assert outcome(served, text + other, length) == without_plan(served, text + other, length)
    for shorter in (length - 1, length + 1, 0, len(body), len(body) + 1):
        assert outcome(served, body, shorter) == without_plan(served, body, shorter)
    # Other sizes in the JSON than those of the plan, which are as long as text.
    other = text.replace(b'{"binary_data_size": 8}', b'{"binary_data_size": 9}', 1)
    assert outcome(served, other + raw, length) == without_plan(served, other + raw, length)


TRICKS = [
    b'{"id": "a",}',
    b'{"id": "a", {"inputs": []}',
    b'{"id": "a", "id": "b", "inputs": INPUTS}',
    b'{"id": "a", "inputs": INPUTS, "id": "b"}',
    b'{"id": "a", "inputs": INPUTS, "id": null}',
    b'{"id": "a", "inputs": INPUTS, "id": 7}',
    b'{"inputs": INPUTS, "inputs": INPUTS}',
    b'{"inputs": INPUTS, "data": [1]}',
    b'{"data": [1], "inputs": INPUTS}',
    b'{"inputs": INPUTS, "outputs": [{"name": "predict", "data": [3]}]}',
    b'{"inputs": INPUTS} ',
    b'{"inputs": INPUTS}}',
    b'{"inputs": INPUTS',
    b' {"id" :"x" , "inputs":INPUTS}',
    b'{"id": "\xff", "inputs": INPUTS}',
    b'{"id": "a\\u0062", "inputs": INPUTS}',
    b'{"note": "\\"data\\":[1]", "inputs": INPUTS}',
    b'{"note": "[", "inputs": INPUTS, "more": "]"}',
]
INPUTS = [
    b'[{"name":"age","datatype":"FP64","shape":[1],"data":[1.5]},{"name":"fare","datatype":"FP64","shape":[1],"data":[2.5]},'
    b'{"name":"sex","datatype":"BYTES","shape":[1],"data":["f"]},{"name":"port","datatype":"BYTES","shape":[1],"data":["S"]}]',
]
INPUTS += [
    INPUTS[0].replace(b'"data":[1.5]', b'"data":[9.5],"data":[1.5]'),
    INPUTS[0].replace(b'"data":[1.5]', b'"dat\\u0061":[1.5]'),
    INPUTS[0].replace(b'"data":[1.5]', b'"data" :[1.5]'),
    INPUTS[0].replace(b'"data":[1.5]', b'"data": [ 1.5 ]'),
    INPUTS[0].replace(b'["f"]', b'["]"]'),
    INPUTS[0].replace(b'["f"]', b'["f","data":[3]'),
    INPUTS[0].replace(b'["f"]', b'[["f"]]'),
    INPUTS[0].replace(b"[1.5]", b"[[1.5]]"),
    INPUTS[0].replace(b"[1.5]", b"[1.5").replace(b"[2.5]", b"2.5]"),
    INPUTS[0].replace(b"[1.5]", b'["').replace(b"[2.5]", b'"]'),
    INPUTS[0].replace(b"[1.5]", b"[1],[2]"),
    INPUTS[0].replace(b"[1.5]", b"[1.5],[").replace(b"[2.5]", b"]"),
    INPUTS[0].replace(b"[1.5]", b"1.5").replace(b"[2.5]", b"2.5,[1],[2]"),
    INPUTS[0].replace(b"[1.5]", b'{"data":[1.5]}'),
    INPUTS[0].replace(b'"name":"age"', b'"name":"age","note":{"data":[1]}'),
    INPUTS[0].replace(b'"f"', b'"\xff"'),
    INPUTS[0].replace(b'"f"', b'"\\ud800"'),
    INPUTS[0].replace(b'"f"', b'"\\ud83d\\ude00"'),
]


def test_tricks_are_read_as_without_a_plan(served: Served) -> None:
    """All of them one after the other, twice, with the plans of those before."""
    bodies = [trick.replace(b"INPUTS", inputs) for trick in TRICKS for inputs in INPUTS]
    expected = {body: without_plan(served, body) for body in bodies}
    served.plans = Plans()
    order = random.Random(1)
    for _ in range(4):
        order.shuffle(bodies)
        for body in bodies:
            assert outcome(served, body) == expected[body], body
    assert len(served.plans) > 5


def other_sizes(order: random.Random, body: bytes, length: int) -> tuple[bytes, int]:
    """The request with some of the sizes in its JSON, and some of the lengths in its bytes, raised or lowered; its bytes sometimes too, so
    that it is right again."""
    text, raw = body[:length], body[length:]
    sizes = list(re.finditer(rb'"binary_data_size": (\d+)', text))
    place = order.randrange(len(sizes))
    size = int(sizes[place][1])
    start = sum(int(each[1]) for each in sizes[:place])
    by = order.choice((-4, -1, 0, 1, 2, 5, 95, 1000))
    if order.random() < 0.8:
        text = text[: sizes[place].start(1)] + b"%d" % max(size + by, 0) + text[sizes[place].end(1) :]
    end = start + size
    if order.random() < 0.8:
        raw = (
            raw[:end] + b"\xc3\xa9"[: max(by, 0)] + b"y" * max(by - 2, 0) + raw[end:] if by > 0 else raw[: end + by] + raw[end:]
        )
    if order.random() < 0.8:
        raw = raw[:start] + struct.pack("<I", max(size - 4 + by, 0)) + raw[start + 4 :]
    return text + raw, len(text)


def test_random_changes_are_read_as_without_a_plan(served: Served) -> None:
    """Bytes of requests with plans are changed, left out, doubled and exchanged. The JSON, what is behind it and their border vary."""
    order = random.Random(0)
    texts = [json.dumps({**begin, **document(row)}).encode() for row in ROWS for begin in ({}, {"id": "x"})]
    with_bytes = [as_bytes(row, id="x") for row in ROWS if type(row["age"][1]) is float or row["age"][0] == "INT64"]
    pieces = [
        b'"data":',
        b"]",
        b"[",
        b'"',
        b"\\",
        b",",
        b"{",
        b"}",
        b"1",
        b'"id": "y",',
        b" ",
        b"8",
        b"\0",
        b"\xc3",
        b'"shape": [1]',
    ]
    accepted = 0
    for turn in range(3_000):
        if turn % 100 == 0:
            served.plans = Plans()
            for text in texts * 2:
                outcome(served, text)
            for data in with_bytes * 2:
                outcome(served, *data)
        body, length = (order.choice(texts), None) if turn % 2 else order.choice(with_bytes)
        if length is not None and order.random() < 0.5:
            body, length = other_sizes(order, body, length)
        for _ in range(order.choice((0, 1, 1, 2)) if length is not None else order.choice((1, 1, 2))):
            at, end = sorted(order.randrange(len(body) + 1) for _ in range(2))
            if order.random() < 0.7:
                end = at + order.randrange(3)
            body = body[:at] + (order.choice(pieces) if order.random() < 0.7 else body[at:end] * 2) + body[end:]
        if length is not None and order.random() < 0.3:
            length += order.choice((-1, 1, 2))
        found = outcome(served, body, length)
        assert found == without_plan(served, body, length), (body, length)
        accepted += found[1] == "record"
    assert accepted > 100


def test_plans_are_bounded(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    served.plans = Plans()
    for number in range(3 * plans.MOST_PLANS):
        for body in [json.dumps(document(note=number)).encode()] * 2:
            assert outcome(served, body)[1] == "record"
        assert len(served.plans) <= plans.MOST_PLANS
    padding = "x" * 20_000
    for number in range(3 * plans.MOST_BYTES // len(padding)):
        body, length = as_bytes(note=f"{padding}{number}")
        for _ in range(2):
            assert outcome(served, body, length)[1] == "record"
        assert served.plans.held <= plans.MOST_BYTES
    before = len(served.plans)
    body = json.dumps(document(note="x" * plans.LONGEST)).encode()
    for _ in range(3):
        assert outcome(served, body)[1] == "record"
    assert len(served.plans) == before
    monkeypatch.setattr(plans, "MOST_SEEN", 8)
    for number in range(50):
        outcome(served, json.dumps(document(only_once=number)).encode())
        assert len(served.plans._seen) <= 8
    assert len(served.plans) == before


def test_a_request_that_comes_once_makes_no_plan(served: Served) -> None:
    served.plans = Plans()
    for number in range(10):
        outcome(served, json.dumps(document(note=number)).encode())
    assert len(served.plans) == 0


def test_a_plan_without_columns_enough_is_none(served: Served) -> None:
    """What is no record has no plan: several rows, a column left out, BOOL as bytes."""
    for body, length in (
        (json.dumps(document(shape=(2,))).encode(), None),
        (json.dumps({"inputs": document()["inputs"][:3]}).encode(), None),
        as_bytes(with_value("age", "BOOL", True)),
    ):
        served.plans = Plans()
        for _ in range(3):
            assert outcome(served, body, length) == without_plan(served, body, length)
        assert len(served.plans) == 0


def test_matrices_are_read_as_without_a_plan(trees: Served) -> None:
    order = np.random.default_rng(0)
    one, two = order.normal(size=(2, 1, 5))
    cases = [
        *(
            matrix(values, datatype, raw)
            for values in (one, two, order.normal(size=(3, 5)))
            for datatype in ("FP64", "FP32")
            for raw in (0, 1)
        ),
        *(matrix(one, raw=raw, id="a", outputs=PREDICT, parameters={"timeout": 7}) for raw in (False, True)),
        *(matrix([[1, 2, 3, 4, 5]], datatype, raw) for datatype in ("FP64", "INT64", "FP16") for raw in (False, True)),
        matrix([[np.nan, np.inf, -np.inf, -0.0, 5e-324]], raw=True),
        matrix([[1e300, 1.5, -1e300, -0.0, 5e-324]]),
        matrix([[1e300, 1.5, -1e300, -0.0, 5e-324]]),
        matrix(np.zeros((0, 5)), raw=True),
        matrix(np.zeros((0, 5))),
        matrix(np.zeros((1, 6)), raw=True),
        matrix(np.zeros(5), raw=True),
    ]
    json_row = matrix(one)[0]
    for old, new in (
        (b"[0.", b"[7, 0."),
        (b'"data": [', b'"data": [[1.5], '),
        (b'"data": [', b'"data": [true, '),
        (b"]}]", b"1e5]}]"),
        (b"FP64", b"FP32"),
    ):
        cases.append((json_row.replace(old, new), None))
    body, length = matrix(one, raw=True)
    assert length is not None
    cases += [(body[:-1], length), (body + b"x", length), (body, length - 1), (body, length + 1), (body[:length], length)]
    expected = [without_plan(trees, *case) for case in cases]
    trees.plans = Plans()
    for _ in range(3):
        for case, found in zip(cases, expected, strict=True):
            assert outcome(trees, *case) == found, case
    assert len(trees.plans) > 8
    for case, found in zip(cases[:12], expected, strict=False):
        text, start = case
        plan = trees.plans.of_json(text) if start is None else trees.plans.of_bytes(text[:start], text)
        assert plan is not None, (case, found)


def test_random_changes_of_matrices_are_read_as_without_a_plan(trees: Served) -> None:
    order = random.Random(0)
    values = np.random.default_rng(1).normal(size=(2, 5))
    known = [
        matrix(values[:rows], datatype, raw, id="x")
        for rows in (1, 2)
        for datatype in ("FP64", "FP32")
        for raw in (False, True)
    ]
    pieces = [
        b'"data": [',
        b"]",
        b"[",
        b'"',
        b",",
        b"1",
        b"5",
        b"-",
        b"e",
        b".",
        b"{",
        b"}",
        b"null",
        b" ",
        b"\0",
        b'"id": "y",',
    ]
    accepted = 0
    for turn in range(1_500):
        if turn % 100 == 0:
            trees.plans = Plans()
            for body, length in known * 2:
                outcome(trees, body, length)
        body, length = known[turn % len(known)]
        for _ in range(order.choice((1, 1, 2))):
            at = order.randrange(len(body))
            body = body[:at] + order.choice(pieces) + body[at + order.choice((0, 1, 1, 2)) :]
        found = outcome(trees, body, length)
        assert found == without_plan(trees, body, length), (body, length)
        accepted += found[1] == "matrix"
    assert accepted > 50


def test_answers_over_http_are_the_sources(server: Running) -> None:
    """Ids, rows and the outputs asked for change from one request to the next; the answers are those of the source."""
    X, model = people()
    asked = [
        [],
        [{"name": "predict_proba"}],
        [
            {"name": "predict_proba", "parameters": {"binary_data": True}},
            {"name": "predict", "parameters": {"binary_data": False}},
        ],
    ]
    for row in range(12):
        values = {name: ("BYTES" if isinstance(X[name][row], str) else "FP64", X[name][row]) for name in X}
        outputs = asked[row % 3]
        given = {"outputs": outputs} if outputs else {}
        for body, length in (
            (json.dumps({"id": f"r{row}", **document(values, **given)}).encode(), None),
            as_bytes(values, **given),
        ):
            headers = {} if length is None else {"Inference-Header-Content-Length": str(length)}
            status, sent, data = server.ask("POST", "/v2/models/people/infer", body, headers)
            assert status == 200, data
            end = int(sent.get("inference-header-content-length", len(data)))
            answer = json.loads(data[:end])
            assert answer.get("id") == (f"r{row}" if length is None else None)
            assert [each["name"] for each in answer["outputs"]] == [each["name"] for each in outputs or [{"name": "predict"}]]
            for output in answer["outputs"]:
                found = output["data"] if "data" in output else np.frombuffer(data[end:])
                expected = getattr(model, output["name"])(X[row : row + 1]).ravel()
                if output["name"] == "predict":
                    assert found == expected.tolist()
                else:
                    np.testing.assert_allclose(found, expected, rtol=1e-9)
