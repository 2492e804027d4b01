"""Exported .onnx files: opsets, plain files, one input a column, metadata. The answers are compared with those of the source."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

import hbc  # noqa: E402
from hbc.compiler.onnx.builder import NEWEST, OLDEST  # noqa: E402

OPSETS = range(OLDEST, min(NEWEST, onnx.defs.onnx_opset_version()) + 1)


def session(path: Path | bytes, threads: int = 2) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def outputs(path: Path | bytes, feeds: dict[str, Any]) -> dict[str, Any]:
    running = session(path)
    return dict(zip([output.name for output in running.get_outputs()], running.run(None, feeds), strict=True))


def domains(path: Path) -> set[str]:
    """The domains of the operators in a file, also of those in the bodies of loops."""
    found, graphs = set(), [onnx.load(path).graph]
    for graph in graphs:
        found |= {node.domain for node in graph.node}
        graphs += [attribute.g for node in graph.node for attribute in node.attribute if attribute.HasField("g")]
    return found


def properties(path: Path) -> dict[str, str]:
    return {prop.key: prop.value for prop in onnx.load(path).metadata_props}


# --- models ------------------------------------------------------------------------------------------------------------


def people() -> tuple[Any, Any]:
    """A frame with gaps in numbers and in texts, and what is to be predicted."""
    pd = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    age = np.where(rng.random(120) < 0.1, np.nan, rng.integers(18, 80, 120))
    city = rng.choice(np.array(["Bonn", "Łódź", "São Paulo", None], object), 120)
    frame = pd.DataFrame({"age": age, "city": city, "notes": "unread", "income": rng.normal(50, 9, 120)})
    return frame, np.where(np.nan_to_num(age, nan=40) + (city == "Bonn") * 9 > 45, "yes", "no")


@pytest.fixture(scope="module")
def pipeline() -> tuple[Any, Any, Any]:
    """(fitted pipeline, frame, compiled)."""
    pytest.importorskip("sklearn")
    from sklearn.compose import make_column_transformer
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    frame, y = people()
    columns = make_column_transformer(
        (make_pipeline(SimpleImputer(), StandardScaler()), ["income", "age"]), (OneHotEncoder(), ["city"])
    )
    fitted = make_pipeline(columns, RandomForestClassifier(20, max_depth=5, random_state=0)).fit(frame, y)
    return fitted, frame, hbc.convert(fitted, "numpy", frame)


def texts(column: Any, properties: dict[str, str]) -> Any:
    markers = {"None": properties["hbc.none"], "nan": properties["hbc.nan"]}
    marked = [markers.get(str(value), value) for value in column]
    return np.array(marked, object).reshape(-1, 1)


# --- opsets ------------------------------------------------------------------------------------------------------------


def cases() -> dict[str, tuple[Any, Any]]:
    pytest.importorskip("sklearn")
    from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import PowerTransformer
    from sklearn.svm import SVC

    rng = np.random.default_rng(0)
    X = rng.normal(size=(150, 5))
    y = (X[:, 0] > 0).astype(int) + (X[:, 1] > 0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SVC(probability=True) is deprecated
        return {
            "forest": (RandomForestClassifier(7, max_depth=6, random_state=0).fit(X, y), X),
            "boosting": (HistGradientBoostingClassifier(max_iter=6).fit(np.where(rng.random(X.shape) < 0.2, np.nan, X), y), X),
            "coupling": (make_pipeline(PowerTransformer(), SVC(probability=True, random_state=0)).fit(X, y), X),
            "neighbours": (KNeighborsClassifier(4, weights="distance").fit(X, y), X),
        }


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("opset", OPSETS)
def test_every_opset_gives_the_same(opset: int, plain: bool, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    for model, X in cases().values():
        compiled = hbc.convert(model, "numpy")
        for dtype in (np.float32, np.float64):
            compiled.export(path, opset=opset, plain=plain, dtype=dtype)
            tolerances = {"rtol": 1e-5, "atol": 1e-6} if dtype is np.float32 else {"rtol": 1e-9, "atol": 1e-12}
            written = onnx.load(path)
            assert {found.domain: found.version for found in written.opset_import}[""] == opset
            assert domains(path) <= ({""} if plain else {"", "ai.onnx.ml"})
            graph = compiled.variants[(("f32" if dtype is np.float32 else "f64"),) * 5].graph
            for rows in (150, 1, 0):
                data = X[:rows].astype(dtype)
                expected = [value for values in graph.evaluate(data).values() for value in values]
                found = outputs(path, {"X": data}).values()
                for one, other in zip(found, expected, strict=True):
                    assert (one.shape, one.dtype) == (other.shape, other.dtype)
                    np.testing.assert_allclose(one, other, **tolerances)


def test_opsets_that_hbc_does_not_write(tmp_path: Path) -> None:
    sklearn = pytest.importorskip("sklearn.preprocessing")
    compiled = hbc.convert(sklearn.StandardScaler().fit(np.eye(3)), "numpy")
    for wrong in (OLDEST - 1, NEWEST + 1, "17", True, 17.5):
        with pytest.raises(ValueError, match=rf"opset={wrong!r}: expected a whole number from {OLDEST} to \d+"):
            compiled.export(tmp_path / "m.onnx", opset=wrong)
    for name in ("plain", "columns"):
        with pytest.raises(ValueError, match=f"{name}: found 'no' .*, expected True or False"):
            compiled.export(tmp_path / "m.onnx", **{name: "no"})
    assert not list(tmp_path.iterdir())


# --- columns and metadata ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"opset": OLDEST}, {"plain": True}])
def test_one_input_a_column(pipeline: Any, options: dict[str, Any], tmp_path: Path) -> None:
    fitted, frame, compiled = pipeline
    path = tmp_path / "m.onnx"
    compiled.export(path, columns=True, **options)
    assert {i.name: (i.type, i.shape) for i in session(path).get_inputs()} == {
        "age": ("tensor(double)", ["N", 1]),
        "income": ("tensor(double)", ["N", 1]),
        "city": ("tensor(string)", ["N", 1]),
    }
    feeds = {name: frame[[name]].to_numpy() for name in ("age", "income")}
    found = outputs(path, {**feeds, "city": texts(frame["city"], properties(path))})
    np.testing.assert_array_equal(found["predict"], fitted.predict(frame))
    np.testing.assert_allclose(found["predict_proba"], fitted.predict_proba(frame), rtol=1e-12)
    assert ("ai.onnx.ml" in domains(path)) is not options.get("plain", False)


def test_metadata(pipeline: Any, tmp_path: Path) -> None:
    fitted, frame, compiled = pipeline
    path = tmp_path / "m.onnx"
    compiled.export(path)
    found = properties(path)
    assert found["hbc.version"] == hbc.__version__
    assert found["hbc.source"] == "sklearn.pipeline.Pipeline"
    assert json.loads(found["hbc.feature_names"]) == ["age", "city", "notes", "income"]
    assert json.loads(found["hbc.classes"]) == ["no", "yes"]
    inputs = json.loads(found["hbc.inputs"])
    assert inputs == {"X": ["age", "income"], "S": ["city"]}
    assert {i.name: i.doc_string for i in onnx.load(path).graph.input} == {"X": "columns: age, income", "S": "columns: city"}
    feeds = {"X": frame[inputs["X"]].to_numpy(), "S": texts(frame["city"], found)}
    np.testing.assert_array_equal(outputs(path, feeds)["predict"], fitted.predict(frame))
    compiled.export(path, columns=True)
    assert "hbc.inputs" not in properties(path)


def test_names_of_columns_that_hbc_uses_itself(tmp_path: Path) -> None:
    """Values inside a file have names too: v0, c0, X … A column may have any of these names."""
    pd, sklearn = pytest.importorskip("pandas"), pytest.importorskip("sklearn.linear_model")
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(30, 6)), columns=["v0", "c0", "X", "_v1", "S", "v1_step"])
    model = sklearn.LogisticRegression().fit(frame, frame["v0"] > 0)
    path = tmp_path / "m.onnx"
    hbc.convert(model, "numpy").export(path, columns=True, dtype="float64")
    found = outputs(path, {name: frame[[name]].to_numpy() for name in frame})
    np.testing.assert_allclose(found["predict_proba"], model.predict_proba(frame), rtol=1e-12)
    taken = frame.rename(columns={"X": "predict"})
    compiled = hbc.convert(sklearn.LogisticRegression().fit(taken, frame["v0"] > 0), "numpy")
    with pytest.raises(
        ValueError, match=re.escape("columns=True: found a column 'predict', expected other names than the methods'")
    ):
        compiled.export(tmp_path / "taken.onnx", columns=True)
    unnamed = hbc.convert(sklearn.LogisticRegression().fit(frame.to_numpy(), frame["v0"] > 0), "numpy")
    unnamed.export(path, columns=True)
    assert [i.name for i in session(path).get_inputs()] == [f"x{i}" for i in range(6)]


def test_vectors_have_no_columns(tmp_path: Path) -> None:
    sklearn = pytest.importorskip("sklearn.preprocessing")
    compiled = hbc.convert(sklearn.LabelEncoder().fit([3, 5]), "numpy")
    with pytest.raises(ValueError, match="this one takes a vector"):
        compiled.export(tmp_path / "m.onnx", columns=True)
