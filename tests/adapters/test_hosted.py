"""What all adapters share, and the handler for AWS Lambda, which needs no package."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hosted_models import FRAME, LISTS, MIXED, NUMBERS, X, close, records, saved

pytest.importorskip("orjson")

from hbc.adapters.aws_lambda import make_handler
from hbc.adapters.hosted import Failure, Hosted, Tensor


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Hosted:
    return Hosted(saved(tmp_path_factory.mktemp("mixed"), "mixed").parent)


def tensors(rows: int) -> list[Tensor]:
    return [
        Tensor("town", "BYTES", FRAME["town"].to_numpy(object)[:rows, None]),
        Tensor("age", "FP64", FRAME["age"].to_numpy()[:rows]),
        Tensor("fare", "FP64", FRAME["fare"].to_numpy()[:rows]),
    ]


def test_tensors(mixed: Hosted, tmp_path: Path) -> None:
    for rows in (1, 4):
        labels, shares = mixed.tensors(tensors(rows), ["predict", "predict_proba"])
        assert (labels.name, labels.datatype, labels.values.tolist()) == (
            "predict",
            "BYTES",
            MIXED.predict(FRAME[:rows]).tolist(),
        )
        close(shares.values, MIXED.predict_proba(FRAME[:rows]))
    (usual,) = mixed.tensors(tensors(2))
    assert usual.name == "predict"
    numbers = Hosted(saved(tmp_path, "numbers"))
    (found,) = numbers.tensors([Tensor("input", "FP32", X[:3])], ["predict_proba"])
    close(found.values, NUMBERS.predict_proba(X[:3]))


@pytest.mark.parametrize("name", LISTS)
def test_lists_that_are_no_tensors(name: str) -> None:
    datatype, shape, values, said = LISTS[name]
    with pytest.raises(Failure, match=f"input 'age': {said}"):
        Hosted.tensor("age", datatype, shape, values)


def test_lists_are_tensors() -> None:
    """Flat or nested, of strings or their bytes; None is a missing value, for which the protocol itself has no word."""
    numbers = Hosted.tensor("X", "FP32", [2, 2], [[1, None], [2.5, 3]]).values
    np.testing.assert_array_equal(numbers, np.array([[1, np.nan], [2.5, 3]], np.float32))
    assert Hosted.tensor("X", "BYTES", [2, 2], [b"K\xc3\xb6ln", "Ulm", None, ""]).values.tolist() == [
        ["Köln", "Ulm"],
        [None, ""],
    ]


def test_rows(mixed: Hosted) -> None:
    assert mixed.rows(records(3)).tolist() == MIXED.predict(FRAME[:3]).tolist()
    close(mixed.rows(records(3), "predict_proba"), MIXED.predict_proba(FRAME[:3]))


def test_what_the_model_rejects_is_a_failure(mixed: Hosted) -> None:
    for call in (
        lambda: mixed.tensors(tensors(1)[:2]),
        lambda: mixed.tensors(tensors(1), ["nothing"]),
        lambda: mixed.tensors([Tensor("age", "FP64", np.array(1.0)), *tensors(1)[1:]]),
        lambda: mixed.rows([{"age": 3}]),
        lambda: mixed.rows(records(1), "nothing"),
        lambda: mixed.json(b"{"),
        lambda: mixed.json(b'{"record": {"age": %s1%s, "town": "Ulm", "fare": 1}}' % (b"[" * 1000, b"]" * 1000)),
        lambda: mixed.json(b'{"record": {"age": "x", "town": "Ulm", "fare": 1}}'),
    ):
        with pytest.raises(Failure) as caught:
            call()
        assert caught.value.status == 400


def test_an_error_of_hbc_itself_is_no_failure(mixed: Hosted, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(value: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(mixed.served.predictors["predict"], "records", broken)
    with pytest.raises(ZeroDivisionError):
        mixed.rows(records(1))


def test_a_handler_for_lambda(tmp_path: Path) -> None:
    handler = make_handler(saved(tmp_path, "mixed"))
    body = json.dumps({"records": records(3), "methods": ["predict", "predict_proba"]})
    expected = MIXED.predict_proba(FRAME[:3])
    events = [
        {"body": body, "isBase64Encoded": False, "httpMethod": "POST"},
        {"body": base64.b64encode(body.encode()).decode(), "isBase64Encoded": True, "version": "2.0"},
    ]
    for event in events:
        answer = handler(event, None)
        assert answer["statusCode"] == 200
        found = json.loads(answer["body"])["predictions"]
        assert found["predict"] == MIXED.predict(FRAME[:3]).tolist()
        close(found["predict_proba"], expected)
    direct = handler({"record": records(1)[0], "methods": ["predict_proba"]}, None)
    close([direct["predictions"]["predict_proba"][label] for label in ("no", "yes")], expected[0])


def test_a_handler_says_what_is_wrong(tmp_path: Path) -> None:
    handler = make_handler(saved(tmp_path, "mixed"))
    for event in (
        {"body": "{"},
        {"body": None},
        {"body": "%%%", "isBase64Encoded": True},
        {"body": '{"record": {"age": 1}}'},
        {"body": '"\ud800"'},
    ):
        answer = handler(event, None)
        assert answer["statusCode"] == 400
        assert json.loads(answer["body"])["error"]
    with pytest.raises(ValueError, match="found the key 'rec'"):
        handler({"rec": {}}, None)


def test_dtypes_of_tensors_are_not_changed(mixed: Hosted) -> None:
    (shares,) = mixed.tensors(tensors(2), ["predict_proba"])
    assert shares.datatype == "FP64"
    assert shares.values.dtype == np.float64
