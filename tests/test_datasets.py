"""The paper's data sets: their stand-ins have the shapes, types and balance of the real ones, and trees grow on them as deep as in the
paper. Downloads are compared with their checksums, and kept."""

from __future__ import annotations

import bz2
import hashlib
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.paper import estimator
from benchmarks.trained import depths
from datasets import PAPER, load_paper, paper

BALANCE = {"fraud": 492 / 284_807, "epsilon": 0.5, "higgs": 0.53, "airline": 0.48}


@pytest.mark.parametrize("name", PAPER)
def test_stand_ins_have_the_shape_of_the_real_ones(name: str) -> None:
    data, table = PAPER[name], load_paper(name, 4000, download=False)
    assert table.generated
    assert table.X.shape == (4000, data.columns)
    assert table.X.dtype == table.y.dtype == np.float32
    assert np.isfinite(table.X).all()
    if data.classes:
        assert set(table.y) == set(range(data.classes))
    if name in BALANCE:
        assert table.y.mean() == pytest.approx(BALANCE[name], abs=0.001)
    again = load_paper(name, 4000, download=False)
    assert np.array_equal(table.X, again.X)


def test_stand_ins_have_the_types_of_the_real_ones() -> None:
    for name in ("airline", "covtype"):
        X = load_paper(name, 2000, download=False).X
        assert np.array_equal(X, np.round(X))  # integers
    covtype = load_paper("covtype", 20_000, download=False)
    assert (covtype.X[:, 10:14].sum(axis=1) == 1).all()
    assert (covtype.X[:, 14:].sum(axis=1) == 1).all()
    assert np.bincount(covtype.y.astype(int))[1] / 20_000 == pytest.approx(0.488, abs=0.01)
    assert np.allclose(np.linalg.norm(load_paper("epsilon", 100, download=False).X, axis=1), 1, atol=1e-5)
    year = load_paper("year", 20_000, download=False).y
    assert year.min() >= 1922
    assert year.max() <= 2011
    assert 1998 < np.median(year) < 2005


@pytest.mark.parametrize("library", ["sklearn", "lightgbm", "xgboost"])
@pytest.mark.parametrize("name", PAPER)
def test_trees_reach_the_depth_of_the_paper(name: str, library: str) -> None:
    """8, nearly all of them: a leaf that is pure before would make every engine faster."""
    if library != "sklearn":
        pytest.importorskip(library)
    data = PAPER[name]
    table = load_paper(name, 3000 if name == "epsilon" else 20_000, download=False)
    X, y = table.X[:, :200], table.y
    model = estimator("forest" if library == "sklearn" else library, data.classes, 5)
    found = depths(model.fit(X, y))
    assert len(found) == 5 * (data.classes if data.classes > 2 and library != "sklearn" else 1)
    assert max(found) == 8
    assert np.mean(found) > 7.5


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder, and the address at which this computer serves it."""
    folder = tmp_path / "served"
    folder.mkdir()
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    handler_class: Any = handler
    with ThreadingHTTPServer(("127.0.0.1", 0), handler_class) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield folder, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_download_is_kept_and_its_checksum_compared(served: tuple[Path, str], tmp_path: Path) -> None:
    folder, address = served
    (folder / "data").write_bytes(b"rows")
    path = tmp_path / "kept" / "data"
    paper.fetch(f"{address}/data", path, hashlib.sha256(b"rows").hexdigest())
    (folder / "data").unlink()
    paper.fetch(f"{address}/data", path)  # it is there
    path.write_bytes(b"others")
    with pytest.raises(ValueError, match="expected"):
        paper.fetch(f"{address}/data", path)
    with pytest.raises(OSError, match="404"):
        paper.fetch(f"{address}/none", tmp_path / "none")
    assert not list(tmp_path.glob("none*"))


def test_a_data_set_is_kept_once_it_is_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SCIKIT_LEARN_DATA", str(tmp_path))
    X, y = load_paper("fraud", 100, download=False).X, np.arange(100, dtype=np.float32)
    calls: list[int] = []
    whole = replace(PAPER["fraud"], rows=100, download=lambda: calls.append(1) or (X, y))
    monkeypatch.setitem(PAPER, "fraud", whole)
    table = load_paper("fraud", 40)
    assert not table.generated
    assert np.array_equal(table.X, X[table.y.astype(int)])
    assert len(load_paper("fraud").X) == 100
    assert calls == [1]
    monkeypatch.setitem(PAPER, "year", replace(whole, rows=99))
    with pytest.raises(ValueError, match="expected 99 rows"):
        load_paper("year")

    def offline() -> Any:
        raise OSError("no network")

    monkeypatch.setitem(PAPER, "higgs", replace(PAPER["higgs"], download=offline))
    assert load_paper("higgs", 50).generated
    assert "no network" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["epsilon", "higgs"])
def test_catboost_without_a_network_falls_back(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """CatBoost raises RuntimeError then, which once ended `python -m benchmarks paper`."""
    datasets = pytest.importorskip("catboost.datasets")

    def offline(*_: Any, **__: Any) -> None:
        raise OSError("no network")

    monkeypatch.setenv("SCIKIT_LEARN_DATA", str(tmp_path))
    monkeypatch.setattr(datasets.six.moves.urllib.request, "urlretrieve", offline)
    assert load_paper(name, 100).generated
    assert f"{name}: not downloaded (failed to download from" in capsys.readouterr().err


def test_airline_is_read_as_its_publisher_wrote_it(
    served: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, address = served
    lines = "1987,10,14,3,741,849,PS,1451,91,SAN,SFO,447,0,23\n1987,10,15,4,729,849,AA,1451,94,LAX,SFO,447,0,-1\n"
    (folder / "a.bz2").write_bytes(bz2.compress(lines.encode()))
    monkeypatch.setenv("SCIKIT_LEARN_DATA", str(tmp_path))
    monkeypatch.setattr(paper, "AIRLINE", f"{address}/a.bz2")
    X, y = PAPER["airline"].download()
    assert X.shape == (2, 13)
    assert X[:, [6, 9, 10]].tolist() == [[1, 1, 0], [0, 0, 0]]
    assert y.tolist() == [1, 0]
