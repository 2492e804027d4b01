"""The plain JSON of `POST /v1/models/NAME:METHOD`. The answers are those of the source library."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from serving import Running, numbers, people

PREDICT = "/v1/models/people:predict"


def test_records_columns_and_rows_give_the_sources_answers(server: Running) -> None:
    X, model = people()
    records = X[:7].to_dict("records")
    for body in ({"records": records}, {"columns": {name: list(X[name][:7]) for name in X}}):
        found = server.json("POST", "/v1/models/people:predict_proba", body)
        np.testing.assert_allclose(found["predictions"]["predict_proba"], model.predict_proba(X[:7]), rtol=1e-9)
        assert found["classes"] == ["dies", "lives"]
        assert found["model"] == "people"
        assert found["version"] == "1"
        assert server.json("POST", PREDICT, body)["predictions"] == {"predict": list(model.predict(X[:7]))}
    Y, trees = numbers()
    found = server.json("POST", "/v1/models/numbers:predict", {"rows": Y[:7].to_numpy().tolist()})
    np.testing.assert_allclose(found["predictions"]["predict"], trees.predict(Y[:7]), rtol=1e-9)


def test_a_record_has_results_by_the_names_of_classes(server: Running) -> None:
    X, model = people()
    record = X[3:4].to_dict("records")[0]
    found = server.json("POST", "/v1/models/people/versions/1:predict_proba", {"record": record})["predictions"][
        "predict_proba"
    ]
    np.testing.assert_allclose(list(found.values()), model.predict_proba(X[3:4])[0], rtol=1e-9)
    assert list(found) == ["dies", "lives"]
    body = {"record": record, "methods": ["predict", "decision_function"], "id": "a-1"}
    found = server.json("POST", "/v1/models/people:infer", body)
    assert found["id"] == "a-1"
    assert found["predictions"]["predict"] == model.predict(X[3:4])[0]
    assert math.isclose(found["predictions"]["decision_function"], model.decision_function(X[3:4])[0], rel_tol=1e-9)


def test_the_order_of_names_does_not_count(server: Running) -> None:
    """LightGBM takes frames by position. An object of JSON has no order, so that names must decide."""
    Y, trees = numbers()
    row = Y[:1].to_dict("records")[0]
    turned = dict(reversed(row.items()))
    expected = trees.predict(Y[:1])[0]
    path = "/v1/models/numbers:predict"
    for body in ({"record": row}, {"record": turned}):
        assert server.json("POST", path, body)["predictions"]["predict"] == expected
    for body in ({"records": [turned]}, {"columns": {name: [value] for name, value in turned.items()}}):
        assert server.json("POST", path, body)["predictions"]["predict"] == [expected]
    two = [dict(Y.iloc[1]), turned]
    assert server.json("POST", path, {"records": two})["predictions"]["predict"] == list(trees.predict(Y.iloc[[1, 0]]))
    typo = {**row}
    typo["V"] = typo.pop("v")
    for body in ({"record": typo}, {"records": [typo]}, {"columns": {name: [value] for name, value in typo.items()}}):
        error = server.json("POST", path, body, status=400)["error"]
        assert "no 'v' and 'V', which the model does not have" in error


def test_rows_without_names_are_refused_where_names_decide(server: Running) -> None:
    """The answer was the advice to pass a frame of pandas, which no client has."""
    error = server.json("POST", PREDICT, {"rows": [[1.0, "a"]]}, status=400)["error"]
    assert "expected records or columns" in error


def test_missing_values_are_the_sources(server: Running) -> None:
    """null is a missing value; a key that only some records have is missing in the others, as in pandas."""
    Y, trees = numbers()
    rows = Y[:2].to_dict("records")
    gone = {name: value for name, value in rows[1].items() if name != "w"}
    wanted = Y[:2].copy()
    wanted.iloc[1, 1] = np.nan
    expected = list(trees.predict(wanted))
    path = "/v1/models/numbers:predict"
    for second in ({**rows[1], "w": None}, gone):
        assert server.json("POST", path, {"records": [rows[0], second]})["predictions"]["predict"] == expected


BAD: list[tuple[Any, str]] = [
    (b"", "found no JSON"),
    (b"{", "found no JSON"),
    (b"\xff\xfe{}", "found no JSON"),
    (b"[" * 5000, "found no JSON"),
    (b'{"record": {}} x', "found no JSON"),
    (b'{"record": {"age": NaN}}', "found no JSON"),
    (b'"record"', "expected a JSON object"),
    (b"[]", "expected a JSON object"),
    ({}, "found no rows"),
    ({"rows": [], "records": []}, "found records and rows"),
    ({"record": []}, "record: found a list"),
    ({"record": None}, "record: found null"),
    ({"record": {"age": [1, 2], "fare": 1, "sex": "m", "port": "S"}}, "age"),
    ({"record": {"age": {}, "fare": 1, "sex": "m", "port": "S"}}, "age"),
    ({"record": {"age": "old", "fare": 1, "sex": "m", "port": "S"}}, "age"),
    ({"record": {"age": 31}}, "fare"),
    ({"records": {}}, "records: found an object"),
    ({"records": []}, "empty list"),
    ({"records": [{}, 1]}, "records[1]: found 1"),
    ({"columns": []}, "columns: found a list"),
    ({"columns": {"age": 3}}, "columns['age']: found 3"),
    ({"columns": {"age": [1], "fare": [1, 2]}}, "columns['fare']: found 2 values"),
    ({"columns": {"age": []}}, "columns: found empty lists"),
    ({"rows": 3}, "rows: found 3"),
    ({"rows": [[1], [1, 2]]}, ""),
    ({"rows": []}, ""),
    ({"record": {}, "method": "predict"}, "found the key 'method'"),
    ({"record": {}, "id": 3}, "id: found 3"),
    ({"record": {}, "timeout_ms": -1}, "timeout_ms: found -1"),
    ({"record": {}, "methods": ["predict"]}, "the path names"),
]


@pytest.mark.every_case
@pytest.mark.parametrize("case", range(len(BAD)))
def test_what_is_wrong_is_said(server: Running, case: int) -> None:
    body, message = BAD[case]
    error = server.json("POST", PREDICT, body, status=400)["error"]
    assert message in error


def test_unknown_names(server: Running) -> None:
    body = {"record": {}}
    for path in (
        "/v1/models/nobody:predict",
        "/v1/models/people/versions/2:predict",
        "/v1/models/people:fly",
        "/v1/models/..%2fpeople:predict",
    ):
        assert "error" in server.json("POST", path, body, status=404)
    error = server.json("POST", "/v1/models/people:infer", {"record": {}, "methods": ["predict", "fly"]}, status=400)["error"]
    assert "'fly', expected some of" in error
    for method in ("GET", "PUT", "TRACE"):
        status, headers, _ = server.ask(method, PREDICT)
        assert (status, headers["allow"]) == (405, "POST")
    assert server.ask("POST", "/v2")[1]["allow"] in ("GET, HEAD", "HEAD, GET")


def test_numbers_that_json_cannot_hold() -> None:
    """NaN is null, infinities are text: an infinity must not become null silently."""
    from hbc.serve.documents import written
    from hbc.serve.jsonable import jsonable

    values = np.array([1.5, np.nan, np.inf, -np.inf])
    assert json.loads(written(jsonable(values))) == [1.5, None, "Infinity", "-Infinity"]
    assert json.loads(written(jsonable(np.repeat(values, 9)))) == [
        each for each in [1.5, None, "Infinity", "-Infinity"] for _ in range(9)
    ]
    huge = np.array([1.7e308, 1.7e308, -1.7e308])  # finite, though their sum is not
    assert json.loads(written(jsonable(huge))) == huge.tolist()
    single = np.array([0.1], "f4")
    assert json.loads(written(jsonable(single))) == [0.1]  # as a float32 is written, not as the float64 of its bits
    assert jsonable(np.float64("inf")) == "Infinity"
    assert json.loads(written(jsonable(np.array([[1, 2]], np.uint8)))) == [[1, 2]]
    assert json.loads(written(jsonable(np.array(["a", None], object)))) == ["a", None]
