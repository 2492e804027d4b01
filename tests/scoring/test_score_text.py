"""CSV and JSON lines whose values are not what they seem, or whose lines are broken."""

from __future__ import annotations

import codecs
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scoring_rows import FEATURES, frame_of
from sklearn.linear_model import LinearRegression

import hbc
from hbc.scoring.text_readers import _is_deep

HEADER = "id,age,rooms,town\n"


def told(path: Path) -> list[dict[str, Any]]:
    """The lines of a file of bad rows."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def json_line(**others: Any) -> str:
    return json.dumps({"id": "7", "age": 31.5, "rooms": 3, "town": "Oslo", **others})


@pytest.mark.parametrize("where", ["id", "town"])
def test_a_quote_that_is_not_closed(where: str, model: Path, tmp_path: Path) -> None:
    """pyarrow takes all lines that follow for one value, and they would have no results."""
    rows = [["1", "40", "3", "Oslo"], ["2", "41", "3", "Oslo"], ["3", "42", "3", "Oslo"]]
    rows[0][FEATURES.index(where) + 1 if where in FEATURES else 0] = '"open'
    path = tmp_path / "x.csv"
    path.write_text(HEADER + "".join(",".join(row) + "\n" for row in rows))
    with pytest.raises(ValueError, match="EOF inside string"):
        pd.read_csv(path)
    for options in ({}, {"bad_rows": tmp_path / "bad"}):
        with pytest.raises(hbc.HbcError, match=r"a quote that opens and is not closed|found a line of 1 value"):
            hbc.score(model, path, tmp_path / "out.csv", keep="id", **options)
        assert not (tmp_path / "out.csv").exists()
    path.write_text(path.read_text()[:-1] + '"')  # and here it is closed, without an end of the line
    pd.read_csv(path)
    hbc.score(model, path, tmp_path / "out.csv", keep="id", bad_rows=tmp_path / "bad")


@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\n\n"])
def test_every_end_of_a_file(end: str, model: Path, source: Any, tmp_path: Path) -> None:
    frame = frame_of(5)[["id", *FEATURES]]
    text = frame.to_csv(index=False).rstrip("\n") + end
    (tmp_path / "x.csv").write_bytes(text.encode())
    hbc.score(model, tmp_path / "x.csv", tmp_path / "out.parquet", keep="id")
    assert pd.read_parquet(tmp_path / "out.parquet").predict.tolist() == source.predict(frame[FEATURES]).tolist()


@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\n\n"])
def test_a_header_alone(end: str, model: Path, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes((HEADER.rstrip("\n") + end).encode())
    assert hbc.score(model, tmp_path / "x.csv", tmp_path / "out.csv", keep="id").rows == 0
    assert pd.read_csv(tmp_path / "out.csv").columns.tolist() == ["id", "predict"]


def test_bad_rows_stand_in_the_order_of_the_file(model: Path, tmp_path: Path) -> None:
    """pyarrow tells of a broken line before it gives the rows above it. The file does not depend on the memory."""
    lines = [f"{i:07},{i % 7}.5,{i % 9},Oslo,{'z' * 370}" for i in range(15_000)]
    for i in range(1000, 15_000, 1201):
        lines[i] = "1,young,1,Oslo,"
    for i in range(1500, 15_000, 1001):
        lines[i] = "1,2"
    rows = [i for i, line in enumerate(lines) if not line.endswith("z")]
    (tmp_path / "x.csv").write_text("id,age,rooms,town,note\n" + "\n".join(lines))
    keys = ("id", "age", "rooms", "town", "note")
    objects = [json.dumps(dict(zip(keys, line.split(","), strict=False))) for line in lines]
    objects = [re.sub(r'"(age|rooms)": "([\d.]+)"', r'"\1": \2', each) for each in objects]
    (tmp_path / "x.jsonl").write_text(
        "\n".join("{" if line == "1,2" else each for line, each in zip(lines, objects, strict=True))
    )
    for name in ("x.csv", "x.jsonl"):
        files = []
        for memory in ("450MB", "1GiB"):
            hbc.score(model, tmp_path / name, tmp_path / "out.parquet", bad_rows=tmp_path / "bad", memory=memory)
            assert [each["row"] for each in told(tmp_path / "bad")] == rows
            files.append((tmp_path / "bad").read_bytes())
        assert files[0] == files[1]


@pytest.mark.parametrize(
    ("values", "bad"),
    [
        (["True", "FALSE", "", "true"], []),
        (["", "True", "NA"], []),
        (["True", "1.5", "False"], [1]),
        (["1.5", "True", "2"], [1]),
        (["", "1", "True"], [2]),
    ],
)
def test_a_column_of_csv_has_bools_or_numbers(values: list[str], bad: list[int], tmp_path: Path) -> None:
    """As in pandas, however the rows fall into batches."""
    frame = pd.DataFrame({"a": [0.0, 1.0, 2.0], "b": [1.0, 0.0, 3.0]})
    source = LinearRegression().fit(frame, [1.0, 2.0, 5.0])
    many = [value or "0" for value in values for _ in range(100_000)] if "" not in values else values
    (tmp_path / "x.csv").write_text("a,b\n" + "".join(f"{value},1\n" for value in many))
    read = pd.read_csv(tmp_path / "x.csv", low_memory=False)
    compiled = hbc.convert(source, "numpy", frame)
    if "" in values:  # LinearRegression rejects missing values
        summary = hbc.score(compiled, tmp_path / "x.csv", tmp_path / "y.parquet", bad_rows=tmp_path / "bad")
        reasons = {each["row"]: each["reason"] for each in told(tmp_path / "bad")}
        assert [row for row, reason in reasons.items() if "text that is no" in reason] == bad
        assert summary.rows == len(values)
    elif bad:
        with pytest.raises(ValueError, match="could not convert string to float"):
            source.predict(read)
        with pytest.raises(hbc.InvalidInputError, match=f"row {bad[0] * 100_000} .*text that is no (bool|number)"):
            hbc.score(compiled, tmp_path / "x.csv", tmp_path / "y.parquet")
    else:
        hbc.score(compiled, tmp_path / "x.csv", tmp_path / "y.parquet")
        np.testing.assert_allclose(pd.read_parquet(tmp_path / "y.parquet").predict, source.predict(read))


@pytest.mark.parametrize(
    ("others", "column", "reason"),
    [
        ({"age": "31"}, "age", "found a value of the type str, expected one of the type double"),
        ({"age": True}, "age", "found a value of the type bool, expected one of the type double"),
        ({"rooms": [1]}, "rooms", "found a value of the type list, expected one of the type double"),
        ({"town": 5}, "town", "found a value of the type int, expected one of the type string"),
        ({"id": {"a": 1}}, "id", "found a value of the type dict, expected one of the type string"),
        ({"age": 2**53 + 1}, "age", "found an integer that float64 does not hold, expected a smaller one, or a string"),
    ],
)
@pytest.mark.parametrize("row", [1, 500])
def test_one_value_of_another_kind_is_a_bad_row(
    others: dict[str, Any], column: str, reason: str, row: int, model: Path, tmp_path: Path
) -> None:
    """It was an error of the whole file, also with `bad_rows`."""
    lines = [json_line(note="x" * 4000) for _ in range(501)]  # more than the first MiB
    lines[row] = json_line(**others)
    (tmp_path / "x.jsonl").write_text("\n".join(lines))
    with pytest.raises(hbc.InvalidInputError, match=rf"x\.jsonl, row {row} .*{column}.*{re.escape(reason.split(',')[0])}"):
        hbc.score(model, tmp_path / "x.jsonl", tmp_path / "out.parquet", keep="id")
    summary = hbc.score(model, tmp_path / "x.jsonl", tmp_path / "out.parquet", keep="id", bad_rows=tmp_path / "bad")
    assert [(each["row"], each["column"]) for each in told(tmp_path / "bad")] == [(row, column)]
    assert summary.rows == 500


def test_columns_that_are_not_read_may_have_values_of_all_kinds(model: Path, source: Any, tmp_path: Path) -> None:
    lines = [json_line(more=more) for more in (1, "a", [1], {"a": 2}, None, 2**70)] + ['{"more": 1, ' + json_line()[1:]]
    (tmp_path / "x.jsonl").write_text("\n".join(lines))
    assert hbc.score(model, tmp_path / "x.jsonl", tmp_path / "out.parquet").rows == 7


def test_lists_of_values_of_several_kinds_in_every_line(model: Path, tmp_path: Path) -> None:
    lines = [json_line(more=[1, "a"], other=[{"b": [1, [2]]}], id=number) for number in range(3)]
    (tmp_path / "x.jsonl").write_text("\n".join([*lines, "null"]))
    options: dict[str, Any] = {"restart": True, "bad_rows": tmp_path / "bad"}
    assert hbc.score(model, tmp_path / "x.jsonl", tmp_path / "out.parquet", keep="id", **options).rows == 3
    assert hbc.score(model, tmp_path / "x.jsonl", tmp_path / "out.parquet", keep=["id", "other"], **options).rows == 0
    assert [each["column"] for each in told(tmp_path / "bad")] == ["other"] * 3 + [None]
    (tmp_path / "x.jsonl").write_text(json_line(**{"a/b": [1, "a"]}))
    with pytest.raises(hbc.ArtifactError, match=r"row 0, .* Column\(/a/b/\[\]\) changed"):
        hbc.score(model, tmp_path / "x.jsonl", tmp_path / "out.parquet", **options)


def test_kept_integers_of_json_are_not_rounded(model: Path, tmp_path: Path) -> None:
    """pyarrow makes float64 of integers beside a larger one, or one with a fraction."""
    large, other = 2**64 + 3, 2**53 + 1
    (tmp_path / "x.jsonl").write_text("\n".join(json_line(id=each) for each in (1.5, other, large, 12, {"a": large})))
    summary = hbc.score(model, tmp_path / "x.jsonl", tmp_path / "out.parquet", keep="id", bad_rows=tmp_path / "bad")
    assert [each["value"] for each in told(tmp_path / "bad")] == [other, large, {"a": large}]
    assert (summary.rows, pd.read_parquet(tmp_path / "out.parquet").id.tolist()) == (2, [1.5, 12])
    (tmp_path / "x.jsonl").write_text("\n".join(json_line(id=each) for each in ({"a": [1.5]}, {"a": [large]})))
    hbc.score(model, tmp_path / "x.jsonl", tmp_path / "out.parquet", keep="id", bad_rows=tmp_path / "bad")
    assert [each["value"] for each in told(tmp_path / "bad")] == [{"a": [large]}]


def test_digits_in_strings_are_no_integers(model: Path, tmp_path: Path) -> None:
    lines = [json_line(id="12345678901234567890", age=1e200), json_line(age=float(2**60))]
    (tmp_path / "x.jsonl").write_text("\n".join(lines))
    assert hbc.score(model, tmp_path / "x.jsonl", tmp_path / "out.parquet", keep="id").rows == 2


def test_times_in_lists_are_passed_on_as_they_are(model: Path, tmp_path: Path) -> None:
    whens = [{"when": ["2026-01-02", "2026-01-02T03:04:05Z"]}, "2026-01-02"]
    for when in whens:
        (tmp_path / "x.jsonl").write_text(json_line(id=when))
        hbc.score(model, tmp_path / "x.jsonl", tmp_path / "out.jsonl", keep="id", restart=True)
        assert json.loads((tmp_path / "out.jsonl").read_text())["id"] == when


def test_a_byte_order_mark(model: Path, source: Any, frame: pd.DataFrame, tmp_path: Path) -> None:
    """Programs of Windows write it, before JSON too. In CSV it was always taken."""
    for suffix, text in ((".jsonl", frame.to_json(orient="records", lines=True)), (".csv", frame.to_csv(index=False))):
        path = tmp_path / f"in{suffix}"
        path.write_bytes(codecs.BOM_UTF8 + text.encode())
        assert hbc.score(model, path, tmp_path / f"out{suffix}.parquet").rows == len(frame)
        found = pd.read_parquet(tmp_path / f"out{suffix}.parquet")
        path.write_text(text)
        hbc.score(model, path, tmp_path / f"without{suffix}.parquet")
        pd.testing.assert_frame_equal(found, pd.read_parquet(tmp_path / f"without{suffix}.parquet"))
    (tmp_path / "none.jsonl").write_bytes(codecs.BOM_UTF8)
    (tmp_path / "no.jsonl").write_bytes(b"")
    said = []
    for name in ("none", "no"):
        with pytest.raises(hbc.HbcError) as error:
            hbc.score(model, tmp_path / f"{name}.jsonl", tmp_path / "out.parquet")
        said.append(str(error.value).replace("none.jsonl", "no.jsonl"))
    assert said[0] == said[1]


def test_json_that_is_no_utf8(model: Path, tmp_path: Path) -> None:
    """pyarrow would pass the bytes on, to a file whose strings no one can read."""
    (tmp_path / "x.jsonl").write_bytes(json_line().encode() + b"\n" + json_line(id="#").encode().replace(b"#", b"\xfc"))
    hbc.score(model, tmp_path / "x.jsonl", tmp_path / "out.parquet", keep="id", bad_rows=tmp_path / "bad")
    assert [(each["row"], each["reason"]) for each in told(tmp_path / "bad")] == [
        (1, "found a line that is no UTF-8, expected an object in UTF-8")
    ]


@pytest.mark.parametrize(("opened", "closed"), [("[", "]"), ('{"x":', "}"), ('["[]\\"]",', "]")])
@pytest.mark.parametrize("depth", [150, 400, 2_000, 200_000])
def test_deep_json_is_a_bad_row(opened: str, closed: str, depth: int, model: Path, tmp_path: Path) -> None:
    """pyarrow crashed the process, and Python's reader raised RecursionError."""
    deep = json_line(age=2**60, more="#").replace('"#"', f"{opened * depth}1{closed * depth}")
    for first in (json_line(), json_line(more=[1, "a"])):
        (tmp_path / "x.jsonl").write_text("\n".join([first, deep, json_line()]))
        summary = hbc.score(model, tmp_path / "x.jsonl", tmp_path / "out.parquet", bad_rows=tmp_path / "bad", restart=True)
        assert (summary.rows, [each["row"] for each in told(tmp_path / "bad")]) == ((3, []) if depth == 150 else (2, [1]))


def test_deep_json_over_several_lines(model: Path, tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text(json_line() + '\n{"x":\n{"x":\n{"x":1\n}}}')
    with pytest.raises(hbc.InvalidInputError, match=r"row 1 .*no JSON"):
        hbc.score(model, tmp_path / "x.jsonl", tmp_path / "out.parquet")
    block = b'{"x":\n' * 200_000
    assert _is_deep(block, block.count(b"\n"))


@pytest.mark.parametrize("digits", [309, 400, 4_290, 5_000])
def test_long_integers_of_json(digits: int, model: Path, tmp_path: Path) -> None:
    """It was an OverflowError."""
    (tmp_path / "x.jsonl").write_text(f"{json_line(age='#')}\n{json_line()}".replace('"#"', "7" * digits))
    assert hbc.score(model, tmp_path / "x.jsonl", tmp_path / "out.parquet", bad_rows=tmp_path / "bad").rows == 1
    assert [each["row"] for each in told(tmp_path / "bad")] == [0]


def test_integers_that_float64_does_not_hold_are_bad_rows(source: Any, model: Path, tmp_path: Path) -> None:
    """They stopped the whole file, also with `bad_rows`, and so did 2**60, which float64 holds."""
    ages = ["1.5", str(2**60), str(2**53 + 1), "", "7" * 400, "x", f" {2**53 + 2} ", f"-{2**60 + 1}", "12"]
    (tmp_path / "x.csv").write_text(HEADER + "".join(f"{row},{age},3,Oslo\n" for row, age in enumerate(ages)))
    hbc.score(model, tmp_path / "x.csv", tmp_path / "out.parquet", keep="id", bad_rows=tmp_path / "bad")
    assert [(each["row"], each["column"], each["value"]) for each in told(tmp_path / "bad")] == [
        (row, "age", ages[row]) for row in (2, 4, 5, 7)
    ]
    found = pd.read_parquet(tmp_path / "out.parquet").set_index("id").predict
    held = pd.DataFrame(
        {"age": [1.5, 2.0**60, np.nan, 2.0**53 + 2, 12], "rooms": 3, "town": "Oslo"}, index=["0", "1", "3", "6", "8"]
    )
    assert found.dropna().to_dict() == dict(zip(held.index, source.predict(held[FEATURES]), strict=True))
    with pytest.raises(
        hbc.InvalidInputError, match=r"row 2 \(the first is 0\), column 'age': found an integer of 2\*\*53 or more"
    ):
        hbc.score(model, tmp_path / "x.csv", tmp_path / "out.parquet", restart=True)
    (tmp_path / "x.csv").write_text(HEADER + f"0,{2**53 + 1},3,Oslo\n1,x,3,Oslo\n")
    assert hbc.score(model, tmp_path / "x.csv", tmp_path / "out.parquet", bad_rows=tmp_path / "bad", restart=True).rows == 2
    assert [each["row"] for each in told(tmp_path / "bad")] == [1]
