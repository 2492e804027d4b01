"""hbc's flavor of MLflow, with a real tracking store, MLflow's own server and without pickle. The oracle is the source's own answer."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # read when MLflow is imported
pytest.importorskip("lightgbm")
pytest.importorskip("sklearn")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # MLflow warns of its own type hints
    pytest.importorskip("mlflow.pyfunc", reason="MLflow is not installed: pip install '.[mlflow]'")

import mlflow
import pandas as pd
from lightgbm import LGBMClassifier
from mlflow.models import Model, infer_signature
from sklearn.compose import make_column_transformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.feature_extraction import DictVectorizer
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import LabelEncoder, OneHotEncoder, OrdinalEncoder, StandardScaler

import hbc
import hbc.mlflow

pytestmark = pytest.mark.filterwarnings("ignore:Operation with range is deprecated")  # MLflow's use of pandas 3
ROOT = Path(__file__).parents[1]
rng = np.random.default_rng(0)
ROWS = 80
FRAME = pd.DataFrame(
    {
        "age": np.where(rng.random(ROWS) < 0.1, np.nan, rng.normal(40, 9, ROWS)),
        "town": rng.choice(["Köln", "Ulm", "Bonn"], ROWS),
        "visits": rng.integers(0, 9, ROWS),
        "fare": rng.normal(size=ROWS).astype("f4"),
    }
)
Y = np.where(FRAME["visits"] + FRAME["fare"] > 4, "yes", "no")
MIXED = make_pipeline(
    make_column_transformer((StandardScaler(), ["age", "visits", "fare"]), (OneHotEncoder(handle_unknown="ignore"), ["town"])),
    LGBMClassifier(n_estimators=10, min_child_samples=2, n_jobs=1, verbose=-1),
).fit(FRAME, Y)
CATEGORIES = FRAME.assign(town=FRAME["town"].astype("category"), zone=pd.Categorical(rng.choice([10, 20, 30], ROWS)))
TREES = LGBMClassifier(n_estimators=10, min_child_samples=2, min_data_per_group=1, cat_smooth=1, n_jobs=1, verbose=-1)
TREES.fit(CATEGORIES, CATEGORIES["town"].cat.codes + CATEGORIES["zone"].cat.codes)
MATRIX = FRAME[["visits", "fare"]].to_numpy("f8")
FOREST = RandomForestClassifier(5, random_state=0).fit(MATRIX, Y)
TEXTS = ["a few words", "other words here", "nothing of it"]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A tracking store of files. No pickle may be read."""
    monkeypatch.setenv("MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "false")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.chdir(tmp_path)
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri((tmp_path / "store").as_uri())
    yield tmp_path
    mlflow.set_tracking_uri(before)


def pyfunc(folder: Path, source: Any, sample: Any = None, **options: Any) -> Any:
    """The source, compiled and saved into a folder, as MLflow loads it."""
    hbc.mlflow.save_model(hbc.convert(source, "numpy", sample), folder / "m", **options)
    return mlflow.pyfunc.load_model(str(folder / "m"))


def columns(loaded: Any) -> dict[str, tuple[str, bool]]:
    return {
        spec.name: (getattr(spec.type, "name", str(spec.type)), spec.required)
        for spec in loaded.metadata.signature.inputs.inputs
    }


def close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.asarray(found, "f8"), expected, rtol=1e-5, atol=1e-6)


def test_a_logged_model(store: Path) -> None:
    """It comes back from a run and from the registry, with all its methods, and is one file that hbc reads."""
    compiled = hbc.convert(MIXED, "numpy", FRAME)
    with mlflow.start_run() as run:
        info = hbc.mlflow.log_model(compiled, "churn", registered_model_name="churn", metadata={"team": "a"}, tags={"x": 1})
    assert run.info.run_id == info.run_id
    for uri in (info.model_uri, "models:/churn/1"):
        back = hbc.mlflow.load_model(uri)
        assert back.methods == compiled.methods
        assert back.predict(FRAME).tolist() == MIXED.predict(FRAME).tolist()
        close(back.predict_proba(FRAME), MIXED.predict_proba(FRAME))
    assert hbc.mlflow.load_model(info.model_uri, backend="torch").backend == "torch"
    place = Path(mlflow.artifacts.download_artifacts(info.model_uri))
    kept = Model.load(place)
    assert kept.flavors["hbc"]["classes"] == ["no", "yes"]
    assert kept.metadata == {"team": "a"}
    assert {path.suffix for path in place.rglob("*") if path.is_file()} == {"", ".yaml", ".json", ".txt", ".hbc"}
    assert "hbc==" in (place / "requirements.txt").read_text()
    assert "scikit-learn" not in (place / "requirements.txt").read_text()


def test_pyfunc_answers_as_the_source(store: Path) -> None:
    loaded = pyfunc(store, MIXED, FRAME)
    assert columns(loaded) == {
        "age": ("Any", False),
        "town": ("string", False),
        "visits": ("Any", False),
        "fare": ("Any", False),
    }
    assert loaded.predict(FRAME).tolist() == MIXED.predict(FRAME).tolist()
    shuffled = FRAME.assign(further=1.0)[["further", *FRAME.columns[::-1]]]  # names count, not order
    shares = loaded.predict(shuffled, params={"method": "predict_proba"})
    assert list(shares.columns) == ["no", "yes"]
    close(shares, MIXED.predict_proba(FRAME))
    close(loaded.predict(FRAME, params={"method": "raw_score"}), MIXED.predict(FRAME, raw_score=True))
    assert isinstance(loaded.get_raw_model(), hbc.CompiledModel)
    indexed = loaded.predict(FRAME[20:23], params={"method": "predict_proba"})
    assert list(indexed.index) == [20, 21, 22]


@pytest.mark.parametrize("sample", [None, FRAME], ids=["no sample", "sample"])
def test_numbers_of_every_dtype(store: Path, sample: Any) -> None:
    """MLflow's own types would refuse int64 and bool where a model knows floats, and floats where it knows integers."""
    loaded = pyfunc(store, MIXED, sample, method="predict_proba")
    numbers = (range(ROWS), np.arange(ROWS, dtype="i1"), np.arange(ROWS) / 4, [None, 2.5] * (ROWS // 2))
    for name in ("age", "visits"):
        for values in (*numbers, np.arange(ROWS) % 2 == 0):
            frame = FRAME.assign(**{name: values})
            close(loaded.predict(frame), MIXED.predict_proba(frame))
    missing = FRAME.assign(age=np.nan)
    for values in (None, [None, np.nan] * (ROWS // 2)):
        close(loaded.predict(FRAME.assign(age=pd.Series(values, range(ROWS), object))), MIXED.predict_proba(missing))
    objects = FRAME.assign(visits=FRAME["visits"].astype(object).where(FRAME.index > 0, None))
    close(loaded.predict(objects), MIXED.predict_proba(objects.astype({"visits": float})))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Spark warns of pandas 3, and MLflow of Spark
def test_spark_udf(store: Path) -> None:
    """MLflow's function for columns of Spark."""
    pytest.importorskip("pyspark", reason="Spark is not installed: pip install '.[spark]'")
    from pyspark.sql import SparkSession

    pyfunc(store, MIXED, FRAME, method="predict_proba")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    local = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1", "spark.ui.enabled": "false"}
    session = SparkSession.builder.master("local[1]").config(map=local).getOrCreate()
    try:
        given = FRAME.assign(age=range(ROWS))  # long, in Spark
        udf = mlflow.pyfunc.spark_udf(session, str(store / "m"), result_type="array<double>", env_manager="local")
        rows = session.createDataFrame(given).withColumn("shares", udf(*given.columns)).toPandas()
        close(rows["shares"].tolist(), MIXED.predict_proba(given))
    finally:
        session.stop()


def test_the_method(store: Path) -> None:
    """It is chosen when the model is saved, when it is loaded, or for a call."""
    chosen = pyfunc(store, MIXED, FRAME, method="predict_proba")
    close(chosen.predict(FRAME), MIXED.predict_proba(FRAME))
    assert [spec.name for spec in chosen.metadata.signature.outputs.inputs] == ["no", "yes"]
    assert chosen.predict(FRAME, params={"method": "predict"}).tolist() == MIXED.predict(FRAME).tolist()
    loaded = mlflow.pyfunc.load_model(str(store / "m"), model_config={"method": "raw_score", "backend": "torch"})
    close(loaded.predict(FRAME), MIXED.predict(FRAME, raw_score=True))
    assert loaded.get_raw_model().backend == "torch"
    with pytest.raises(mlflow.MlflowException, match="method: found 'guess', expected one of predict"):
        chosen.predict(FRAME, params={"method": "guess"})
    with pytest.raises(ValueError, match="method: found 'guess'"):
        hbc.mlflow.save_model(chosen.get_raw_model(), store / "other", method="guess")


def test_categories_of_pandas(store: Path) -> None:
    """MLflow's types have no categories: strings and integers stand for them. LightGBM takes what it has not seen for missing."""
    loaded = pyfunc(store, TREES, CATEGORIES, method="predict_proba")
    assert columns(loaded)["town"] == ("string", False)
    assert columns(loaded)["zone"] == ("Any", False)
    plain = CATEGORIES.astype({"town": str, "zone": int, "visits": float})
    close(loaded.predict(plain), TREES.predict_proba(CATEGORIES))
    missing = plain.assign(town=[None, "Rome", *plain["town"][2:]])
    expected = CATEGORIES.assign(town=CATEGORIES["town"].where(CATEGORIES.index > 1))
    close(loaded.predict(missing), TREES.predict_proba(expected))
    # Without a signature, categories arrive as they are.
    raw = pyfunc(store / "raw", TREES, CATEGORIES, method="predict_proba", signature=False)
    assert raw.metadata.signature is None
    close(raw.predict(CATEGORIES), TREES.predict_proba(CATEGORIES))
    close(raw.predict(CATEGORIES.astype({"town": str})), TREES.predict_proba(CATEGORIES))


def test_a_matrix(store: Path) -> None:
    loaded = pyfunc(store, FOREST)
    assert repr(loaded.metadata.signature.inputs) == "[Tensor('float64', (-1, 2))]"
    assert loaded.predict(MATRIX).tolist() == FOREST.predict(MATRIX).tolist()
    for wrong in (MATRIX[:, :1], MATRIX.astype("f4")):  # MLflow itself refuses another shape and another dtype
        with pytest.raises(mlflow.MlflowException, match="does not match expected"):
            loaded.predict(wrong)


def test_a_matrix_with_strings(store: Path) -> None:
    rows = np.array([["Ulm", "a"], ["Bonn", "b"], ["Ulm", "b"]], object)
    source = make_pipeline(OrdinalEncoder(), LinearRegression()).fit(rows, [1.0, 2.0, 4.0])
    loaded = pyfunc(store, source, rows)
    assert repr(loaded.metadata.signature.inputs) == "[Tensor('object', (-1, 2))]"
    close(loaded.predict(rows), source.predict(rows))


def test_items(store: Path) -> None:
    words = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(TEXTS, [0, 1, 0])
    loaded = pyfunc(store / "texts", words, method="predict_proba")
    close(loaded.predict(TEXTS), words.predict_proba(TEXTS))
    close(loaded.predict(pd.DataFrame({"text": TEXTS})), words.predict_proba(TEXTS))
    dicts = [{"a": 1.0}, {"b": 2.0, "a": 1.0}, {}]
    counts = make_pipeline(DictVectorizer(), LogisticRegression()).fit(dicts, [0, 1, 0])
    loaded = pyfunc(store / "dicts", counts, method="predict_proba")
    close(loaded.predict(np.array(dicts, object)), counts.predict_proba(dicts))


def test_a_vector(store: Path) -> None:
    source = IsotonicRegression(out_of_bounds="clip").fit(MATRIX[:, 0], MATRIX[:, 1])
    close(pyfunc(store, source).predict(MATRIX[:, 0]), source.predict(MATRIX[:, 0]))
    labels = LabelEncoder().fit(["b", "a"])
    assert pyfunc(store / "labels", labels).predict(np.array(["b", "a"], object)).tolist() == [1, 0]


def test_a_transformer(store: Path) -> None:
    """A sparse result is made dense: MLflow's server cannot write another. A frame stays a frame."""
    loaded = pyfunc(store / "sparse", OneHotEncoder().fit(FRAME[["town"]]), FRAME[["town"]])
    close(loaded.predict(FRAME), OneHotEncoder().fit(FRAME[["town"]]).transform(FRAME[["town"]]).toarray())
    scaler = StandardScaler().set_output(transform="pandas").fit(FRAME[["age", "fare"]])
    loaded = pyfunc(store / "frame", scaler, FRAME[["age", "fare"]])
    pd.testing.assert_frame_equal(loaded.predict(FRAME), scaler.transform(FRAME[["age", "fare"]].astype("f8")))


def test_columns_that_nothing_reads(store: Path) -> None:
    """They are not in the signature: a frame may have strings there, or lack them."""
    source = make_pipeline(make_column_transformer((StandardScaler(), ["fare"])), LinearRegression()).fit(FRAME, MATRIX[:, 0])
    loaded = pyfunc(store, source, FRAME)
    assert columns(loaded) == {"fare": ("Any", True)}  # a linear model takes no missing value
    close(loaded.predict(FRAME.astype({"fare": float})), source.predict(FRAME.astype({"fare": float})))
    close(loaded.predict(FRAME[["fare"]].astype(float)), source.predict(FRAME.astype({"fare": float})))


def test_several_targets(store: Path) -> None:
    """A list of arrays becomes a dict of them."""
    source = RandomForestClassifier(3, random_state=0).fit(MATRIX, np.stack([Y, Y[::-1]], axis=1))
    loaded = pyfunc(store, source, method="predict_proba")
    assert loaded.metadata.signature.outputs is None
    found = loaded.predict(MATRIX)
    for i, expected in enumerate(source.predict_proba(MATRIX)):
        close(found[f"predict_proba_{i}"], expected)
    assert loaded.predict(MATRIX, params={"method": "predict"}).tolist() == source.predict(MATRIX).tolist()


def test_rows_without_a_signature(store: Path) -> None:
    """Then MLflow hands over what it is given."""
    loaded = pyfunc(store, MIXED, FRAME, signature=False, method="predict_proba")
    rows = FRAME[["age", "town", "visits"]].assign(fare=FRAME["fare"].astype(float))[:5]
    expected = MIXED.predict_proba(rows)
    close(loaded.predict(rows), expected)
    close(loaded.predict(rows.to_dict("records")), expected)
    close(loaded.predict(rows.to_dict("list")), expected)
    close(loaded.predict({name: rows[name].to_numpy() for name in rows}), expected)
    close(loaded.predict(rows.iloc[0].to_dict()), expected[:1])


def test_what_is_refused(store: Path) -> None:
    """A column that may miss values is optional for MLflow. It must still be there."""
    loaded = pyfunc(store, MIXED, FRAME)
    with pytest.raises(mlflow.MlflowException, match="fare"):
        loaded.predict(FRAME.drop(columns="fare"))
    with pytest.raises(mlflow.MlflowException, match=r"column 0 \('age'\): found the string 'x'"):
        loaded.predict(FRAME.assign(age="x"))
    with pytest.raises(TypeError, match="found a Pipeline, expected a CompiledModel"):
        hbc.mlflow.save_model(MIXED, store / "other")
    hbc.mlflow.save_model(loaded.get_raw_model(), store / "empty", signature=False, input_example=False)
    assert Model.load(store / "empty").signature is None
    data = store / "empty/data/model.hbc"
    data.write_bytes(data.read_bytes()[:-100])
    with pytest.raises(hbc.ArtifactError):
        hbc.mlflow.load_model(str(store / "empty"))
    Model().add_flavor("sklearn").save(store / "MLmodel")
    with pytest.raises(hbc.ArtifactError, match="found a model without the flavor hbc"):
        hbc.mlflow.load_model(str(store))


def test_an_example_of_the_caller(store: Path) -> None:
    """The signature is what MLflow infers from it."""
    rows = FRAME[:2].assign(visits=[1.0, np.nan], fare=[0.5, 0.25])
    loaded = pyfunc(store, MIXED, FRAME, input_example=rows, method="predict_proba")
    inferred = infer_signature(rows, pd.DataFrame({"no": [0.1], "yes": [0.9]}))
    assert loaded.metadata.signature.inputs == inferred.inputs
    assert loaded.metadata.signature.outputs == inferred.outputs
    assert loaded.input_example.equals(rows)
    with pytest.raises(mlflow.MlflowException, match="does not match the model signature"):
        hbc.mlflow.save_model(
            loaded.get_raw_model(), store / "other", input_example=rows.assign(age="x"), signature=loaded.metadata.signature
        )


def test_csv_needs_the_types_of_an_example(store: Path) -> None:
    """MLflow's server reads CSV by the types of the signature, and knows none for Any."""
    from mlflow.pyfunc.scoring_server import parse_csv_input

    frame = FRAME[:6].astype({"visits": float, "fare": float})
    text = frame.to_csv(index=False)
    untyped = pyfunc(store, MIXED, FRAME)
    with pytest.raises(mlflow.MlflowException, match="CSV"):
        parse_csv_input(io.StringIO(text), untyped.metadata.get_input_schema())
    compiled = untyped.get_raw_model()
    hbc.mlflow.save_model(compiled, store / "typed", input_example=frame.head())
    typed = mlflow.pyfunc.load_model(str(store / "typed"))
    rows = parse_csv_input(io.StringIO(text), typed.metadata.get_input_schema())
    assert typed.predict(rows).tolist() == MIXED.predict(frame).tolist()


def test_an_example_that_the_model_rejects_is_left_out(store: Path) -> None:
    """Here every row that is made without the data is out of bounds."""
    source = IsotonicRegression(out_of_bounds="raise").fit([7.0, 8.0, 9.0], [1.0, 2.0, 3.0])
    loaded = pyfunc(store, source)
    assert loaded.input_example is None
    close(loaded.predict(np.array([8.5])), [2.5])


def test_requirements(store: Path) -> None:
    assert hbc.mlflow.get_default_pip_requirements("tvm") == [f"hbc[tvm]=={hbc.__version__}"]
    assert hbc.mlflow.get_default_pip_requirements("torchscript") == [f"hbc[torch]=={hbc.__version__}"]
    assert hbc.mlflow.get_default_pip_requirements("numpy") == [f"hbc=={hbc.__version__}"]
    compiled = hbc.convert(FOREST, "numpy")
    for i, (options, wanted) in enumerate(
        [
            ({"extra_pip_requirements": ["polars>=1"]}, {f"hbc=={hbc.__version__}", "polars>=1"}),
            ({"pip_requirements": ["./hbc.whl"]}, {"./hbc.whl"}),
        ]
    ):
        hbc.mlflow.save_model(compiled, store / str(i), **options)  # type: ignore[arg-type]
        lines = (store / str(i) / "requirements.txt").read_text().splitlines()
        assert wanted <= set(lines)


def test_pickles_of_a_compiled_model(tmp_path: Path) -> None:
    """They hold the bytes of the file, and no class of the source: a process without scikit-learn reads them."""
    joblib = pytest.importorskip("joblib")
    compiled = hbc.convert(MIXED, "numpy", FRAME)
    joblib.dump(compiled, tmp_path / "m.joblib")
    for back in (pickle.loads(pickle.dumps(compiled)), joblib.load(tmp_path / "m.joblib")):
        assert back.predict(FRAME).tolist() == MIXED.predict(FRAME).tolist()
    code = (
        "import pickle, sys; model = pickle.load(open(sys.argv[1], 'rb')); "
        "model.bind_record('predict')({'age': 1.0, 'town': 'Ulm', 'visits': 2, 'fare': 0.5}); "
        "print(type(model).__name__, [name for name in ('sklearn', 'lightgbm', 'pandas') if name in sys.modules])"
    )
    (tmp_path / "m.pickle").write_bytes(pickle.dumps(compiled))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "m.pickle")], env=environment, capture_output=True, text=True
    )
    assert done.stdout == "CompiledModel []\n", done.stderr


@contextlib.contextmanager
def serving(model: Path) -> Iterator[Any]:
    """`mlflow models serve`: a function that posts JSON to /invocations and returns (status, JSON)."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "models", "serve", "-m", str(model), "--env-manager", "local", "-h", "127.0.0.1"]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    log = (model / "log").open("w")
    process = subprocess.Popen(
        [*command, "-p", str(port), "-w", "1"],
        env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)},
        stdout=log,
        stderr=log,
        start_new_session=True,
    )

    def post(body: Any) -> tuple[int, Any]:
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/invocations", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    try:
        end = time.monotonic() + 120
        while True:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/ping", timeout=5).close()
                break
            over = process.poll() is not None or time.monotonic() > end
            assert not over, (model / "log").read_text()[-3000:]
            time.sleep(0.2)
        yield post
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        log.close()


@pytest.mark.slow
def test_mlflow_models_serve(store: Path) -> None:
    """Started as docs/mlflow.md says, with pickle forbidden, for a frame with a missing value."""
    pyfunc(store, MIXED, FRAME, method="predict_proba")
    with serving(store / "m") as post:
        rows = FRAME[:3].assign(fare=FRAME["fare"][:3].astype(float))
        split = {"columns": list(rows), "data": rows.astype(object).where(rows.notna(), None).values.tolist()}
        status, answer = post({"dataframe_split": split})
        assert status == 200, answer
        close(pd.DataFrame(answer["predictions"])[["no", "yes"]], MIXED.predict_proba(rows))
        records = [{"age": None, "town": None, "visits": 3, "fare": 0.1}, {"age": 30.5, "town": "Rome", "visits": 3, "fare": 1}]
        status, answer = post({"dataframe_records": records, "params": {"method": "predict"}})
        frame = pd.DataFrame(records)
        assert (status, answer) == (200, {"predictions": MIXED.predict(frame).tolist()})
        records = [{"age": None, "town": "Ulm", "visits": 2.5, "fare": 1}]  # null alone, and no integer
        status, answer = post({"dataframe_records": records})
        assert status == 200, answer
        close(
            pd.DataFrame(answer["predictions"])[["no", "yes"]],
            MIXED.predict_proba(pd.DataFrame(records).astype({"age": float})),
        )
        status, answer = post({"dataframe_records": [{"age": 1.0, "town": "Ulm", "visits": 3}]})
        assert status == 400
        assert "fare" in answer["message"]
        status, answer = post(json.loads((store / "m/serving_input_example.json").read_text()))
        assert status == 200, answer
