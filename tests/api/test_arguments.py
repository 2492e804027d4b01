"""Values of the wrong type in each argument: the error names the argument. In numpy's own words it does not."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from lightgbm import LGBMClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import FunctionTransformer
from xgboost import XGBClassifier

import hbc
import hbc.engines.polars

X = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
Y = X[:, 0] > 0
ODD = [
    X,
    X[0],
    np.array(1.5),
    np.empty(0),
    pd.DataFrame(X),
    pd.Series(["predict"]),
    pd.NA,
    float("nan"),
    -1,
    {"a": 1},
    [X],
    b"x",
    object(),
]
MODELS = [
    LogisticRegression().fit(X, Y),
    LGBMClassifier(n_estimators=2, verbose=-1, n_jobs=1).fit(X, Y),
    XGBClassifier(n_estimators=2, n_jobs=1).fit(X, Y),
]


def functions(folder: Path) -> Iterator[tuple[str, Callable[..., Any], dict[str, Any]]]:
    """(name, public function or method, arguments that it takes)."""
    for source in MODELS:
        model = hbc.convert(source, "numpy")
        name = type(source).__name__
        for method in model.methods:
            yield f"{name}.{method}", getattr(model, method), {"X": X}
        yield f"{name}.explain", model.explain, {}
        yield f"{name}.save", model.save, {"path": folder / "model.hbc"}
        yield f"{name}.export", model.export, {"path": folder / "model.onnx"}
        yield f"{name}.warm_up", model.warm_up, {}
        yield f"{name}.bind", model.bind, {"method": "predict"}
        yield f"{name}.bind_record", model.bind_record, {"method": "predict"}
        yield f"{name}.arrow", model.arrow, {}
        yield f"{name}.empty", model.bind("predict_proba").empty, {}
        yield f"{name}.rows", model.bind_record("predict").rows, {}
    pd.DataFrame(X).add_prefix("c").to_csv(folder / "rows.csv", index=False)
    path = folder / "model.hbc"
    hbc.convert(MODELS[0], "numpy").save(path)
    yield "convert", hbc.convert, {"model": MODELS[0], "backend": "numpy"}
    yield "load", hbc.load, {"path": path}
    yield "tune", hbc.tune, {"model": MODELS[0], "rows": (1,), "backend": "numpy"}
    yield "score", hbc.score, {"model": path, "source": folder / "rows.csv", "sink": folder / "out.csv", "restart": True}
    yield "polars", hbc.engines.polars.predict, {"model": hbc.load(path), "columns": ["a", "b", "c"]}


def test_wrong_types_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a sink may be any name
    complaints = []
    for name, function, usual in functions(tmp_path):
        for argument in inspect.signature(function).parameters:
            if argument == "options":
                continue
            for odd in ODD:
                try:
                    function(**{**usual, argument: odd})
                except Exception as error:
                    said = str(error)
                else:
                    continue
                words = (
                    "truth value",
                    "ambiguous",
                    "unhashable",
                    "not iterable",
                    "iteration over",
                    "not callable",
                    "has no attribute",
                )
                if any(word in said for word in words):
                    complaints.append(f"{name}({argument}={odd!r:.30}): {said}")
    assert not complaints, "\n".join(complaints)


@pytest.mark.parametrize("source", MODELS[1:])
def test_options_that_are_off_are_the_usual_call(source: Any) -> None:
    model = hbc.convert(source, "numpy")
    off = {"raw_score": np.False_, "num_iteration": None, "start_iteration": np.int64(0), "pred_leaf": 0}
    if isinstance(source, XGBClassifier):
        off = {"output_margin": 0, "validate_features": np.True_, "iteration_range": (0, 0), "pred_leaf": None}
    assert (model.predict(X, **off) == source.predict(X)).all()


def test_an_array_in_the_place_of_an_option_is_refused_by_name() -> None:
    for source, option in zip(MODELS[1:], ("raw_score", "output_margin"), strict=True):
        with pytest.raises(hbc.InvalidInputError, match=f"predict, option {option}: found array.*of type ndarray"):
            hbc.convert(source, "numpy").predict(X, operator.itemgetter(slice(None))(X))


@pytest.mark.parametrize(
    "X", [np.array([["a", "b"]]), np.array([["a", "b"]], object), [["a", "b"]], pd.DataFrame({"u": ["a"], "v": ["b"]})]
)
def test_strings_for_a_model_that_was_converted_without_a_sample(X: Any) -> None:
    """Nothing in a step that returns its input says that it was fitted on strings."""
    source = FunctionTransformer().fit(X)
    with pytest.raises(hbc.InvalidInputError, match=r"found strings, expected numbers.*hbc\.convert\(model, X=X\)"):
        hbc.convert(source, "numpy").transform(X)
    assert hbc.convert(source, "numpy", X).transform(X).tolist() == [["a", "b"]]
