"""The scorer that engines send to their workers."""

from __future__ import annotations

import hashlib
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from engine_cases import METHODS, NAMES, TABLE, require_same
from sklearn.linear_model import LinearRegression

import hbc
from hbc import loaded
from hbc.engines.worker import WorkerMethod
from hbc.errors import ArtifactError, InvalidInputError
from hbc.scoring.inputs import fragments_of
from hbc.scoring.job import Task, run_task
from hbc.scoring.scorer import Options, scorer_of


@pytest.mark.parametrize("form", [lambda t: t, lambda t: t.combine_chunks().to_batches()[0]])
def test_answers_stand_beside_what_is_kept(model: Path, form: Callable[[pa.Table], Any]) -> None:
    scorer = pickle.loads(pickle.dumps(WorkerMethod(model, METHODS, ("id", "noted"))))
    given = form(TABLE)
    found = scorer(given)
    assert type(found) is type(given)
    require_same(found if isinstance(found, pa.Table) else pa.Table.from_batches([found]))
    assert scorer.results.names == NAMES
    assert scorer.reads(TABLE.column_names) == ["id", "noted", "town", "age", "fare", "visits"]
    assert scorer(given.slice(0, 0)).schema == found.schema
    (streamed,) = scorer.stream([given])
    assert streamed.equals(found)


def test_a_column_of_the_model_can_be_kept(model: Path) -> None:
    found = WorkerMethod(hbc.load(model), keep="town")(TABLE)
    assert found.column_names == ["town", "predict"]
    assert found["town"].to_pylist() == TABLE["town"].to_pylist()


def test_a_model_without_names_takes_what_is_not_kept() -> None:
    X = np.random.default_rng(0).normal(size=(50, 2))
    source = LinearRegression().fit(X, X @ [1.0, 2.0])
    scorer = WorkerMethod(hbc.convert(source, "numpy", X), keep="id")
    found = scorer(pa.table({"a": X[:, 0], "id": range(50), "b": X[:, 1]}))
    np.testing.assert_allclose(found["predict"], source.predict(X))
    assert scorer.reads(["a", "id", "b"]) == ["id", "a", "b"]
    assert scorer.names == ["0", "1"]
    with pytest.raises(InvalidInputError, match="3"):
        scorer(pa.table({"a": X[:, 0], "id": range(50), "b": X[:, 1], "c": X[:, 1]}))


def test_what_is_refused(model: Path, tmp_path: Path) -> None:
    scorer = WorkerMethod(model, keep="id")
    for missing in ("id", "town"):
        with pytest.raises(InvalidInputError, match=f"expected also '{missing}'") as raised:
            scorer(TABLE.drop_columns([missing]))
        assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)  # as workers send it to the caller
    for twice in ("id", "town"):
        with pytest.raises(InvalidInputError, match=rf"two columns of one name \({twice}\)"):
            scorer(TABLE.append_column(twice, TABLE[twice]))
    assert scorer(TABLE.append_column("noted", TABLE["noted"])).equals(scorer(TABLE))
    with pytest.raises(ValueError, match="'id' twice"):
        WorkerMethod(model, keep=["id", "id"])
    with pytest.raises(ValueError, match="'predict' twice"):
        WorkerMethod(model, keep="predict")
    for argument in ("methods", "keep", "class_names"):
        for wrong in (3, np.array("id"), [3]):
            with pytest.raises(ValueError, match=f"{argument}: found .*, expected (the|a) name"):
                WorkerMethod(model, **{argument: wrong})
    with pytest.raises(ValueError, match="'transform'"):
        WorkerMethod(model, "transform")
    with pytest.raises(FileNotFoundError):
        WorkerMethod(tmp_path / "none.hbc")
    (tmp_path / "text.hbc").write_text("no model")
    with pytest.raises(ArtifactError, match=r"text\.hbc"):
        WorkerMethod(tmp_path / "text.hbc")


def test_a_file_that_changes_changes_no_job(model: Path, tmp_path: Path) -> None:
    """Workers that start late get the same model as the others."""
    path = tmp_path / "model.hbc"
    path.write_bytes(model.read_bytes())
    scorer = WorkerMethod(path, METHODS, "id")
    sent = pickle.dumps(scorer)
    path.write_bytes(b"another")
    loaded._loaded.models.clear()
    require_same(pickle.loads(sent)(TABLE), ("id",))


def test_a_process_loads_a_model_once(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loads = []

    def counted(data: bytes, name: str, *options: Any) -> hbc.CompiledModel:
        loads.append(name)
        return load_bytes(data, name, *options)

    load_bytes = loaded.load_bytes
    monkeypatch.setattr(loaded, "load_bytes", counted)
    monkeypatch.setattr(loaded, "_loaded", loaded._Loaded())
    scorers = [WorkerMethod(model), WorkerMethod(model, METHODS)]
    sent = [pickle.dumps(scorer) for scorer in scorers * 4]
    loaded._loaded.models.clear()
    loads.clear()
    threads = [threading.Thread(target=lambda data=data: pickle.loads(data)(TABLE.slice(0, 9))) for data in sent]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    data = model.read_bytes()
    asked = Options(hashlib.sha256(data).hexdigest())
    assert scorer_of("out of reach", asked, data).model is scorer_of("out of reach", asked).model is scorers[0]._model()
    assert loads == [str(model)]  # by `hbc score`, too


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_process_that_is_forked_while_a_model_is_loaded(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child waited for ever for the thread that loads it, which it does not have."""
    monkeypatch.setattr(loaded, "_loaded", loaded._Loaded())
    begun, over = threading.Event(), threading.Event()

    def read() -> bytes:
        begun.set()
        over.wait()
        return model.read_bytes()

    thread = threading.Thread(target=loaded.loaded_once, args=("slow", read, "slow"))
    thread.start()
    begun.wait()
    child = os.fork()
    if not child:
        signal.alarm(20)
        loaded.loaded_once("quick", model.read_bytes, "quick")
        os._exit(0)
    over.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0


def test_old_models_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaded, "_loaded", loaded._Loaded())
    X = np.random.default_rng(0).normal(size=(20, 1))
    scorers = [WorkerMethod(hbc.convert(LinearRegression().fit(X, X[:, 0] * i), "numpy", X)) for i in range(6)]
    assert len(loaded._loaded.models) == loaded.MOST
    for i, scorer in enumerate(pickle.loads(pickle.dumps(scorers))):  # the first two are loaded again
        np.testing.assert_allclose(scorer(pa.table({"x": X[:, 0]}))["predict"], X[:, 0] * i, atol=1e-12)
    assert len(loaded._loaded.models) == loaded.MOST


def test_a_task_of_hbc_score_keeps_its_model(model: Path, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the process forgets it meanwhile, since others work there with more models than it keeps."""
    monkeypatch.setattr(loaded, "_loaded", loaded._Loaded())
    monkeypatch.setattr(loaded, "MOST", 0)
    data = model.read_bytes()
    fragments = fragments_of([str(files)], str(tmp_path), None, None, None).fragments
    task = Task("out of reach", fragments[0], Options(hashlib.sha256(data).hexdigest()))
    assert run_task(task, data)["rows"] == TABLE.num_rows // len(fragments)
    with pytest.raises(FileNotFoundError):
        scorer_of(task.model, task.options)


def test_a_worker_needs_no_source_library(model: Path, tmp_path: Path) -> None:
    (tmp_path / "scorer").write_bytes(pickle.dumps(WorkerMethod(model, METHODS)))
    code = (
        "import pickle, sys, pyarrow as pa; scorer = pickle.load(open(sys.argv[1], 'rb'));"
        "scorer(pa.table({'town': ['Ulm'], 'age': [3.0], 'fare': pa.array([1.0], 'float32'), 'visits': [3]}));"
        "assert 'sklearn' not in sys.modules, 'scikit-learn'; assert 'hbc.parser.parse' not in sys.modules, 'parser'"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path / "scorer"], check=True)
