"""Plans of requests with bytes, where the JSON says the sizes of strings: those of any length have one plan, and no size that lies is
believed."""

from __future__ import annotations

import json
import struct

import pytest
from planned import PREDICT, VALUES, as_bytes, model, outcome, planned, with_value, without_plan

from hbc.serve import plans
from hbc.serve.plans import Plans
from hbc.serve.served import Served


@pytest.fixture(scope="module")
def served() -> Served:
    return model("people")


@pytest.fixture(scope="module")
def trees() -> Served:
    return model("numbers")


def by_plan(served: Served, body: bytes, length: int) -> bool:
    return served.plans.of_bytes(body[:length], body) is not None


TEXTS = [
    "",
    "f",
    "male",
    "Zürich",
    "東京",
    "\0",
    "%d",
    "%",
    '"binary_data_size":9}',
    "x" * 5,
    "x" * 6,
    "x" * 95,
    "x" * 96,
    "x" * 9_999,
]


def test_strings_of_other_lengths_have_one_plan(served: Served) -> None:
    """Their sizes are other JSON: with one, two, three and four digits."""
    for order in (list(VALUES), ["sex", "age", "port", "fare"], ["port", "sex", "fare", "age"]):
        values = {name: VALUES[name] for name in order}
        for others in ({}, {"id": "a", "outputs": PREDICT}, {"note": "100 %d %s %", "parameters": {"timeout": 9}}):
            served.plans = Plans()
            for place, sex in enumerate(TEXTS):
                for port in ("S", sex, TEXTS[place - 1]):
                    row = {**values, "sex": ("BYTES", sex), "port": ("BYTES", port)}
                    body, length = as_bytes(row, lambda found: json.dumps({**others, **found}))  # noqa: B023
                    assert outcome(served, body, length) == without_plan(served, body, length)
                    assert by_plan(served, body, length) or (place, port) == (0, "S")  # the first of all
            assert len(served.plans) == 1


def test_no_size_that_lies_is_believed(served: Served) -> None:
    """Sizes that are other than the bytes, or written in other ways; lengths that lead out of the body, or into the next string."""
    body, length = as_bytes(with_value("sex", "BYTES", "abcdef"))
    planned(served, body, length)
    assert by_plan(served, body, length)
    text, raw = body[:length], body[length:]
    size = b'{"binary_data_size": 10}'
    assert text.count(size) == 1
    sizes = [
        b"0",
        b"-1",
        b"-10",
        b"-0",
        b"3",
        b"4",
        b"9",
        b"11",
        b"010",
        b"+10",
        b"10.0",
        b"1e1",
        b"10.5",
        b"1e400",
        b"NaN",
        b"null",
    ]
    sizes += [
        b"true",
        b'"10"',
        b"[10]",
        b"{}",
        b"",
        b"%d",
        b"10%",
        b"4294967306",
        b"9223372036854775818",
        b"18446744073709551626",
    ]
    sizes += [b"1_0", b" 10", b"10 ", b"\t10", b"10,10", b"10//", "１０".encode(), b"10\0", b"9" * 400]
    sizes += [
        b'9, "binary_data_size": 10',
        b'10, "binary_data_size": 9',
        b'10, "data": [1]',
        b'9, "binary_data\\u005fsize": 10',
    ]
    sizes += [
        b'10, "binary_data\\u005fsize": 9',
        b'10}, "parameters": {"binary_data_size": 9',
        b'10}, "data": ["x"], "x": {"y": 1',
    ]
    changed = [text.replace(size, size.replace(b"10", other)) for other in sizes]
    changed += [
        text.replace(size, other) for other in (b"{}", b"10", b"[]", b"null", size + size, b'{"binary_data_siz\\u0065": 10}')
    ]
    for other in changed:
        assert outcome(served, other + raw, len(other)) == without_plan(served, other + raw, len(other)), other
    served.plans = Plans()
    accepted = 0
    for other in changed * 3:  # all of them with the plans of the others
        found = outcome(served, other + raw, len(other))
        assert found == without_plan(served, other + raw, len(other)), other
        accepted += found[1] == "record"
    assert accepted >= 3 * 3
    planned(served, body, length)
    lengths = [0, 1, 5, 7, 11, 12, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xFFFFFFFC, len(raw), len(body)]
    at = raw.index(b"abcdef") - 4
    for number in lengths:
        other = raw[:at] + struct.pack("<I", number) + raw[at + 4 :]
        for said in (10, number, number + 4):  # the JSON says what it said, and what the bytes say
            lies = text.replace(size, size.replace(b"10", b"%d" % said))
            for behind in (other, other[:-1], other + b"\0", other[:at], other[: at + 4], other[: at + 5]):
                assert outcome(served, lies + behind, len(lies)) == without_plan(served, lies + behind, len(lies))
    assert len(served.plans) == 1


def test_marks_in_other_keys_are_no_values(served: Served, trees: Served) -> None:
    """A key that ends as the mark does, beside a tensor with its own in another spelling, has the number by which the gaps are tried."""
    for number in ("0.0", "0", "1"):
        for asked in (number, number, "5.0", number):
            body = b'{"x\\"data":[%b],"inputs":[{"name":"input","shape":[1,1],"datatype":"FP64","dat\\u0061":[%b]}]}' % (
                asked.encode(),
                number.encode(),
            )
            assert outcome(trees, body) == without_plan(trees, body)
    body, length = as_bytes()
    text, raw = body[:length], body[length:]
    for place, each in enumerate(VALUES):
        spelled = json.loads(text)
        tensor = spelled["inputs"][place]
        tensor["parameters"] = {"SIZE": 8 if place < 2 else 5}
        tensor["y"] = {'x"binary_data_size': "NUMBER"}
        for number in (place, place, 7, 8, 5, place):
            other = json.dumps(spelled).replace("SIZE", "binary_data\\u005fsize")
            changed = other.replace('"NUMBER"', str(number)).encode()
            found = outcome(served, changed + raw, len(changed))
            assert found == without_plan(served, changed + raw, len(changed)), (each, changed)
            assert found[1] == "record", found


def test_plans_that_begin_alike_are_few(served: Served) -> None:
    served.plans = Plans()
    for number in range(3 * plans.MOST_ALIKE):
        body, length = as_bytes(note=number)
        for _ in range(2):
            assert outcome(served, body, length) == without_plan(served, body, length)
        assert by_plan(served, body, length)
        assert len(served.plans) <= plans.MOST_ALIKE
    (alike,) = served.plans._bytes.values()
    assert len({plan.text for plan in alike}) == plans.MOST_ALIKE
