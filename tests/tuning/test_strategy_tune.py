"""`hbc tune`: its measurements, the place and form of its results, and the conversions that use them."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import hbc
from hbc.cli import main
from hbc.compiler.base import CompileOptions, load_compiler
from hbc.tuning import choices as tuned
from hbc.tuning import machine
from hbc.tuning import race as racing
from hbc.tuning import search as searching
from hbc.tuning.choices import Choice, Tuned
from hbc.tuning.rows import random_rows

X = np.random.default_rng(0).random((300, 4)).astype(np.float32)
Y = (X[:, 0] + X[:, 1] > 1) * 1


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HBC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tuned"


@pytest.fixture(scope="module")
def forest() -> Any:
    return RandomForestClassifier(4, max_depth=3, random_state=0).fit(X, Y)


def kept(model: Any, strategy: str, options: CompileOptions | None = None, **choice: int) -> Path:
    """Stores a result as if tune had found one strategy to be the best for single rows, and another one for many rows."""
    graph = hbc.convert(model, "numpy").graph
    found = Tuned((1, 1000), Choice(strategy, **choice), (Choice("tree_trav"), Choice("gemm")), "hbc tune, long ago")
    path = tuned.keep(found, graph, "numpy", options or CompileOptions())
    assert path is not None
    return path


def test_tune_measures_what_a_backend_has(forest: Any, cache: Path) -> None:
    found = hbc.tune(forest, (1, 40), backend="numpy")
    assert found.rows == (1, 40)
    assert {"auto", "gemm", "tree_trav", "perf_tree_trav"} <= set(found.seconds)
    assert found.left_out == {"reference": "the same as auto"}
    assert all(len(times) == 2 and min(times) > 0 for times in found.seconds.values())
    assert found.chosen in found.seconds
    assert "← chosen" in str(found)
    assert [found.path] == list(cache.iterdir())
    np.testing.assert_allclose(found.model.predict_proba(X), forest.predict_proba(X), rtol=1e-6)
    again = hbc.convert(forest, "numpy")
    assert "hbc tune, " in again.explain()
    assert again._builder.settings() == found.model._builder.settings()


def test_tune_takes_compiled_models_and_data(forest: Any) -> None:
    compiled = hbc.convert(forest, "numpy", strategy="gemm", batch_size=7)
    for data in (X.tolist(), pd.DataFrame(X).iloc[:3]):
        found = hbc.tune(compiled, [2], data)
        assert found.model.backend == "numpy"
        assert found.model._builder.settings()["batch_size"] == 7


def test_auto_stays_unless_it_is_beaten_everywhere_but_for_noise() -> None:
    times = {"auto": [1.0, 1.0], "a little faster": [0.97, 0.97], "slower once": [0.2, 1.2]}
    assert racing.overall(times, "auto") == "auto"
    assert racing.overall(times | {"faster": [1.03, 0.6]}, "auto") == "faster"
    assert racing.overall({"auto": [1.0]}, "auto") == "auto"


def test_the_fastest_wins_a_race() -> None:
    def worker(steps: int) -> Any:
        return lambda rows: sum(range(steps))

    for clock in (time.perf_counter, time.thread_time):
        seconds = racing.race({"slow": worker(20_000), "fast": worker(2_000)}, [None], clock)
        assert seconds["fast"] * 2 < seconds["slow"]


def test_what_one_thread_does_is_timed_by_its_own_clock() -> None:
    assert racing.clock_of("cpu", 1) is time.thread_time
    assert racing.clock_of("cpu", None) is racing.clock_of("cpu", 2) is racing.clock_of("cuda", 1) is time.perf_counter


def test_other_answers_are_left_out() -> None:
    calls = {"auto": np.sqrt, "same": lambda x: x**0.5, "float32": lambda x: np.sqrt(x.astype("f4")), "other": np.cbrt}
    with pytest.warns(UserWarning, match="does not give the same answers"):
        assert set(racing.agreeing(calls, np.arange(5.0), "auto")) == {"auto", "same"}


def test_convert_and_load_follow(forest: Any, tmp_path: Path) -> None:
    kept(forest, "perf_tree_trav", threads=1)
    compiled = hbc.convert(forest, "numpy")
    assert "perf_tree_trav (hbc tune, long ago)" in compiled.explain()
    assert compiled._builder.settings()["strategy"] == "perf_tree_trav"
    np.testing.assert_allclose(compiled.predict_proba(X), forest.predict_proba(X), rtol=1e-6)
    for rows, strategy in ((1, "tree_trav"), (9, "tree_trav"), (100, "gemm"), (10**6, "gemm")):  # the nearest, in powers
        assert hbc.convert(forest, "numpy", batch_size=rows)._builder.settings()["strategy"] == strategy
    assert "asked for by the caller" in hbc.convert(forest, "numpy", strategy="gemm").explain()
    assert "hbc tune" not in hbc.convert(forest, "numpy", threads=2).explain()  # other options are another question
    hbc.convert(forest, "numpy", strategy="auto").save(tmp_path / "model.hbc")
    loaded = hbc.load(tmp_path / "model.hbc")
    assert "perf_tree_trav (hbc tune, long ago)" in loaded.explain()
    assert loaded._builder.effective.threads == 1
    assert loaded._builder.moved("torch", None).settings()["strategy"] == "auto"


def test_a_saved_choice_outlives_the_cache(forest: Any, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = kept(forest, "gemm", threads=1)
    hbc.convert(forest, "numpy").save(tmp_path / "model.hbc")
    path.unlink()
    assert hbc.load(tmp_path / "model.hbc")._builder.choice == Choice("gemm", threads=1)
    monkeypatch.setattr(machine, "this_machine", lambda device: "another")
    assert hbc.load(tmp_path / "model.hbc")._builder.choice == Choice("gemm")  # how many threads are good is not known there


@pytest.mark.parametrize(("others", "run"), [(2.0, "tree_trav"), (1.03, "gemm")])
def test_calls_of_known_rows_run_what_was_measured_for_them(
    forest: Any, monkeypatch: pytest.MonkeyPatch, others: float, run: str
) -> None:
    """The choice of "auto" for one row is measured too, and stays unless another one is faster by more than noise."""

    def choose(self: object, op: object, options: CompileOptions) -> tuple[str, str]:
        return ("gemm" if options.batch_size == 1 else "tree_trav"), "said here"

    monkeypatch.setattr(type(load_compiler("numpy")), "choose_strategy", choose)
    monkeypatch.setattr(
        searching, "race", lambda calls, batches, clock: {c: 1.0 if c.strategy == "auto" else others for c in calls}
    )
    found = hbc.tune(forest, (1, 40), backend="numpy")
    assert found.left_out == {"tree_trav": "the same as auto"}
    assert f": {run} (" in hbc.convert(forest, "numpy", batch_size=1).explain()
    assert ": tree_trav (said here" in hbc.convert(forest, "numpy", batch_size=40).explain()


def test_the_structure_counts_and_leaves_do_not(forest: Any) -> None:
    graph, options = hbc.convert(forest, "numpy").graph, CompileOptions()
    path = tuned.path_of(graph, "numpy", options)
    other_labels = RandomForestClassifier(4, max_depth=3, random_state=0).fit(X, 1 - Y)  # the same splits
    assert tuned.path_of(hbc.convert(other_labels, "numpy").graph, "numpy", options) == path
    assert tuned.path_of(graph, "numpy", replace(options, batch_size=5)) == path
    different = [
        (hbc.convert(RandomForestClassifier(4, max_depth=3, random_state=1).fit(X, Y), "numpy").graph, "numpy", options),
        (hbc.convert(forest, "numpy").variants[("f64",) * 4].graph, "numpy", options),
        (graph, "torch", options),
        (graph, "numpy", replace(options, threads=1)),
        (graph, "numpy", replace(options, target={"kind": "llvm", "mcpu": "haswell"})),
    ]
    assert len({path, *(tuned.path_of(*facts) for facts in different)}) == 6


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"rows": [1], "each": [], "overall": {"strategy": "gemm"}, "note": ""}'],
)
def test_damage_is_said_and_ignored(forest: Any, text: str) -> None:
    kept(forest, "gemm").write_text(text)
    with pytest.warns(UserWarning, match=r"cannot be read and is ignored.*delete it"):
        assert hbc.convert(forest, "numpy")._builder.settings()["strategy"] == "auto"


@pytest.mark.parametrize(
    "entry", [{"strategy": "sorcery"}, {"strategy": "gemm", "threads": 0}, {"strategy": "gemm", "luck": 1}]
)
def test_what_cannot_be_is_damage(forest: Any, entry: dict[str, Any]) -> None:
    path = kept(forest, "gemm")
    path.write_text(json.dumps({**json.loads(path.read_text()), "overall": entry}))
    with pytest.warns(UserWarning, match="ignored"):
        hbc.convert(forest, "numpy")


def test_a_cache_that_cannot_be_written_is_said(forest: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HBC_CACHE", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="cannot be kept.*HBC_CACHE") as warned:
        found = hbc.tune(forest, [1], backend="numpy")
    assert warned[0].filename == __file__
    assert found.path is None


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HBC_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert tuned.folder() == Path("/somewhere/hbc/tuned")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert tuned.folder() == Path.home() / ".cache/hbc/tuned"


@pytest.mark.parametrize("rows", [[], [0], [-1, 5], [1.5], ["a"], 7, None])
def test_rows_are_positive_integers(forest: Any, rows: Any) -> None:
    with pytest.raises(ValueError, match=r"rows: found .*, expected positive integers"):
        hbc.tune(forest, rows, backend="numpy")


def test_rows_that_cannot_be_made_up() -> None:
    frame = pd.DataFrame({"a": ["x", "y"] * 20, "b": np.arange(40.0)})
    trees = RandomForestRegressor(2, max_depth=2, random_state=0)
    model = make_pipeline(ColumnTransformer([("a", OneHotEncoder(), ["a"])], remainder="passthrough"), trees).fit(
        frame, frame.b
    )
    with pytest.raises(hbc.InvalidInputError, match=r"X: found no X.*strings, frames"):
        hbc.tune(model, [1], backend="numpy")
    assert hbc.tune(model, [1, 100], frame, backend="numpy").seconds["gemm"]


def test_a_model_without_trees(cache: Path) -> None:
    found = hbc.tune(make_pipeline(StandardScaler(), LogisticRegression()).fit(X, Y), [1], backend="numpy")
    assert set(found.seconds) <= {"auto", "auto, 1 thread"}


def test_rows_are_drawn_around_thresholds(forest: Any) -> None:
    rows = random_rows(hbc.convert(forest, "numpy").graph, 500)
    leaves = forest.apply(rows)
    reached = sum(len(np.unique(column)) for column in leaves.T)
    assert reached >= 0.9 * sum(tree.get_n_leaves() for tree in forest.estimators_)


def test_the_command(forest: Any, tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, output = str(tmp_path / "model.hbc"), str(tmp_path / "tuned.hbc")
    hbc.convert(forest, "numpy").save(model)
    with pytest.raises(SystemExit) as done:
        main(["tune", model, "--rows", "1,30", "-o", output])
    said = capsys.readouterr()
    assert done.value.code == 0, said.err
    assert "perf_tree_trav" in said.out
    assert str(next(cache.iterdir())) in said.out
    assert "hbc tune" in hbc.load(output).explain()
    for arguments, message in (
        (["--rows", "1,many"], "--rows: found '1,many', expected positive whole numbers"),
        (["--rows", "0"], "--rows: found '0'"),
        (["-o", "model.so"], "model.so: found the suffix '.so'"),
        (["-o", model], "the file that is read"),
    ):
        with pytest.raises(SystemExit) as done:
            main(["tune", model, *arguments])
        assert done.value.code == 1
        assert message in capsys.readouterr().err
