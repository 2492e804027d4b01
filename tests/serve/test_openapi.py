"""The OpenAPI document: every example is sent, and answered."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from serving import Running, folder, numbers, running, settings
from sklearn.ensemble import ExtraTreesClassifier
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.multioutput import MultiOutputClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import LabelEncoder, OrdinalEncoder, StandardScaler

import hbc

Y, _ = numbers()
MODELS = {
    "matrix": lambda: LinearRegression().fit(Y.to_numpy(), Y.v),
    "scaler": lambda: StandardScaler().fit(Y),
    "frame": lambda: StandardScaler().set_output(transform="pandas").fit(Y),
    "words": lambda: make_pipeline(CountVectorizer(), LogisticRegression()).fit(
        ["a few words", "of text", "more text"], [1, 0, 1]
    ),
    "vectors": lambda: CountVectorizer().fit(["a few words of text"]),
    "labels": lambda: LabelEncoder().fit(["b", "a"]),
    "codes": lambda: OrdinalEncoder().fit(pd.DataFrame({"s": ["u", "v", "u"], "t": ["x", "y", "z"]})),
    "several": lambda: MultiOutputClassifier(ExtraTreesClassifier(3, random_state=0)).fit(Y, np.c_[Y.v > 0, Y.w > 0]),
    "integers": lambda: ExtraTreesClassifier(3, random_state=0).fit(Y, (Y.v > 0) * 3),
}


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server with models of every kind of input and output."""
    place: Path = tmp_path_factory.mktemp("models")
    for name, make in MODELS.items():
        hbc.convert(make(), backend="numpy").save(place / f"{name}.hbc")
    with running(settings(files={"people": str(folder() / "people.hbc")}, directory=str(place))) as found:
        assert {served.name for served in found.worker.repository.all()} == {"people", *MODELS}
        yield found


def test_every_example_is_answered(every: Running) -> None:
    document = every.json("GET", "/openapi.json")
    assert document["openapi"].startswith("3.1")
    sent = 0
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            for name, example in content.get("examples", {"": {"value": None}}).items():
                status, _, data = every.ask(method.upper(), path, example["value"])
                assert status == 200, (path, name, example["value"], data[:300])
                if path.startswith("/v1/models/"):
                    answer = json.loads(data)
                    assert answer["predictions"]
                sent += 1
    assert sent > 60


def test_v2_gives_what_the_metadata_says(every: Running) -> None:
    """The names, datatypes and widths of the outputs of every model are those of its metadata."""
    document = every.json("GET", "/openapi.json")
    for served in every.worker.repository.all():
        said = every.json("GET", f"/v2/models/{served.name}")
        path = f"/v2/models/{served.name}/infer"
        body = dict(
            document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["examples"]["one row"]["value"]
        )
        body["outputs"] = [{"name": method} for method in served.methods]
        answer = every.json("POST", path, body)
        found = {each["name"]: (each["datatype"], [-1, *each["shape"][1:]]) for each in answer["outputs"]}
        wanted = {each["name"]: (each["datatype"], each["shape"]) for each in said["outputs"]}
        assert found == wanted, served.name


def test_results_of_other_kinds_are_the_sources(every: Running) -> None:
    """Frames, sparse matrices, several targets, items."""
    rows = Y[:2].to_dict("records")

    def asked(model: str, method: str, body: Any) -> dict[str, Any]:
        return every.json("POST", f"/v1/models/{model}:{method}", body)["predictions"]

    source = MODELS["frame"]()
    found = asked("frame", "transform", {"records": rows})
    frame = source.transform(Y[:2])
    assert list(found) == [f"transform_{name}" for name in frame]
    np.testing.assert_allclose(np.array(list(found.values())).T, frame.to_numpy(), rtol=1e-9)
    several = MODELS["several"]()
    found = asked("several", "predict_proba", {"records": rows})
    for place, part in enumerate(several.predict_proba(Y[:2])):
        np.testing.assert_allclose(found[f"predict_proba_{place}"], part, rtol=1e-9)
    vectors = MODELS["vectors"]()
    texts = ["words of words", "text"]
    assert asked("vectors", "transform", {"rows": texts})["transform"] == vectors.transform(texts).toarray().tolist()
    assert asked("labels", "transform", {"rows": ["a", "b"]})["transform"] == [0, 1]
    assert every.json("POST", "/v1/models/labels:transform", {"rows": ["c"]}, status=400)["error"]
    assert asked("integers", "predict", {"record": rows[0]})["predict"] == int(MODELS["integers"]().predict(Y[:1])[0])
    assert list(asked("integers", "predict_proba", {"record": rows[0]})["predict_proba"]) == ["0", "3"]
    error = every.json("POST", "/v1/models/matrix:predict", {"record": {"a": 1}}, status=400)["error"]
    assert "without names" in error


def test_results_are_described_in_words(every: Running) -> None:
    text = every.ask("GET", "/openapi.json")[2].decode()
    assert "predict: text for each row." in text
    assert "predict_proba: 2 × number for each row; for a record an object" in text
    assert "<U" not in text


def test_what_the_schema_forbids_is_refused(every: Running) -> None:
    """And what it allows is not: schemathesis found each of these."""
    document = every.json("GET", "/openapi.json")
    schemas = document["components"]["schemas"]
    form = next(each for each in schemas["people.Body"]["oneOf"] if "columns" in each["properties"])["properties"]
    assert form["columns"]["additionalProperties"] == {"type": "array"}
    most = form["timeout_ms"]["exclusiveMaximum"]
    columns = {"age": [1.0], "fare": [1.0], "sex": ["m"], "port": ["S"]}
    for more, timeout, status in (({}, most / 2, 200), ({}, most, 400), ({"x": [0]}, 1e6, 200), ({"x": {}}, 1e6, 400)):
        body = {"columns": {**columns, **more}, "timeout_ms": timeout}
        every.json("POST", "/v1/models/people:predict", body, status)
    tensors = document["paths"]["/v2/models/people/infer"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert tensors["properties"]["inputs"]["minItems"] == 1
    every.json("POST", "/v2/models/people/infer", {"inputs": []}, 400)
