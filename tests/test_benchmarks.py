"""The benchmark harness: it judges answers as exact, inexact or wrong, computes ratios, and always reports a failing engine."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from installed import older
from random_trees import random_ensemble

from benchmarks import (
    engines,
    figures,
    grammar,
    limits,
    losses,
    machine,
    pages,
    paper,
    pictures,
    pipelines500,
    report,
    scaling,
    scoring,
    sentences,
    strategies,
)
from benchmarks.__main__ import ORDER, OTHERS, WITHOUT_A_RUN, listing, main
from benchmarks.answers import check
from benchmarks.engines import Engine, Task
from benchmarks.engines.process import EngineError, Process
from benchmarks.peers.install import pins
from benchmarks.session import Run, parser_of
from benchmarks.side_by_side import in_turns
from benchmarks.timing import measure
from hbc.compiler.base import load_compiler
from hbc.ir.graph import Graph, Input
from hbc.ir.types import N
from hbc.ops import tensor as t

EXPECTED = np.stack([1 - np.linspace(0.1, 0.9, 1000), np.linspace(0.1, 0.9, 1000)], 1)


def test_answers_are_judged() -> None:
    assert check(EXPECTED.astype(np.float32), EXPECTED)["verdict"] == "exact"
    assert check(EXPECTED[:, 1:], EXPECTED)["verdict"] == "exact"  # the second class alone, in any shape
    assert check(EXPECTED + 1e-4, EXPECTED)["verdict"] == "inexact"
    some = EXPECTED.copy()
    some[:10] += 0.5  # 1 % of the rows
    assert check(some, EXPECTED)["verdict"] == "inexact"
    some[:11] = np.nan
    assert check(some, EXPECTED)["verdict"] == "wrong"
    with pytest.raises(ValueError, match="answer"):
        check(EXPECTED[:10], EXPECTED)


def test_ratios_are_to_the_fastest_peer_that_is_not_wrong() -> None:
    def engine(status: str, *p50: float) -> dict[str, Any]:
        return {"status": status, "times_us": {"1": [{"p50": each, "p99": 2 * each} for each in p50]}}

    workload = {"engines": {"hbc:tvm": engine("exact", 9, 2, 1), "native": engine("exact", 30, 20, 10)}}
    assert report.ratio(workload, "hbc:tvm", 1) == 10
    workload["engines"] |= {"inexact": engine("inexact", 8, 8, 8), "wrong": engine("wrong", 1), "failed": engine("failed", 1)}
    assert report.fastest_peer(workload, 1) == (8, "inexact")
    assert report.ratio(workload, "hbc:tvm", 1) == 4
    assert report.ratio(workload, "hbc:torch", 1) is None


def test_a_measurement_cycles_through_its_batches() -> None:
    seen: list[int] = []
    found = measure(seen.append, [1, 2, 3], budget=0.01)
    assert seen[:4] == [1, 2, 3, 1]
    assert 0 < found["min"] <= found["p50"] <= found["p99"]
    assert found["calls"] <= len(seen)


def test_strategies_run_only_if_they_are_named() -> None:
    assert [engine.name for engine in engines.matching(["hbc:tvm"])] == ["hbc:tvm"]
    assert all(engine.name.count(":") == 2 for engine in engines.matching(["hbc:numpy:*"]))
    assert [engine.name for engine in engines.matching(["hbc:tvm:auto:haswell"])] == ["hbc:tvm:auto:haswell"]
    assert engines.matching(["hbc:tvm:nonsense"]) == ()


def test_work_that_takes_no_time_by_a_fit_of_few_points_is_compared_all_the_same() -> None:
    model = strategies.Model(4, 30, 16, 10, "f32", 1, False, 255, 0)
    point = strategies.Point(model, strategies.Shape.of(strategies.ensemble(model)), 10, {"scan": 1e-6, "walk": 1e-6})
    no_time = {"scan": {"call": 0.0}, "walk": {"call": 5.0}}
    for known in (True, False):
        assert strategies.chosen("torch", no_time, [point], known) == ["scan"]


def test_a_fit_keeps_strategies_and_backends_that_were_not_measured() -> None:
    """Only the scan of torch was measured here, at twice the time of what is known, for so many rows that none are walked."""
    known = json.loads(strategies.FILE.read_text())
    before = known["nanoseconds"]
    model, scan = strategies.Model(4, 30, 16, 10, "f32", 1, False, 255, 0), load_compiler("torch").work["scan"]  # type: ignore[attr-defined]
    shape = strategies.Shape.of(strategies.ensemble(model))
    times = {rows: 2e-9 * strategies.estimate(before["torch"]["scan"], scan(shape, rows)) for rows in strategies.RANGE[3:]}
    points = [strategies.Point(model, shape, rows, {"scan": seconds}) for rows, seconds in times.items()]
    measured = {"machine": {"time": "2100-01-01"}, "measured": strategies.as_json(points)}
    found = strategies.cost_model(known, {"a": {"workloads": {"torch": measured}}, "b": {"workloads": {}}})
    assert found["machines"] == known["machines"] | {"torch": [{"time": "2100-01-01"}]}
    after = found["nanoseconds"]
    assert {name: list(each) for name, each in after.items()} == {name: list(each) for name, each in before.items()}
    assert after["torch"] | {"scan": None} == before["torch"] | {"scan": None}
    assert all(
        strategies.estimate(after["torch"]["scan"], scan(shape, rows)) == pytest.approx(1e9 * times[rows], rel=0.05)
        for rows in times
    )
    assert {name: each for name, each in after.items() if name != "torch"} == {
        name: each for name, each in before.items() if name != "torch"
    }
    assert known["nanoseconds"] is before


@pytest.mark.parametrize(("first", "kept"), [("numpy", "Haswell"), ("json", "None")])
def test_kernels_of_blas_are_chosen_before_numpy_only(first: str, kept: str) -> None:
    """Children of a process that imports the benchmarks late, such as that of the tests, have the kernels that it has itself."""
    code = f"import {first}, os, benchmarks; print(os.environ.get('OPENBLAS_CORETYPE'))"
    environment = {**os.environ, "OPENBLAS_CORETYPE": "Haswell", "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == kept


def test_an_engine_that_fails_says_why(tmp_path: Path) -> None:
    task = Task("lightgbm", str(tmp_path), 3, "float32", 1, "")
    with pytest.raises(EngineError, match="not installed"):
        Process(Engine("native", "nowhere", ()), task)
    np.save(tmp_path / "rows.npy", np.zeros((2, 3), np.float32))
    cores = sorted(os.sched_getaffinity(0))[:1]
    with pytest.raises(EngineError, match=r"start: \w+"):
        Process(Engine("native", "main", ()), task).start(tmp_path / "rows.npy", cores, 60)  # there is no model.txt
    with pytest.raises(EngineError, match="not done in 0 s"):
        Process(Engine("native", "main", ()), task).start(tmp_path / "rows.npy", cores, 0)


def test_the_table_of_operators_begins_with_the_slowest() -> None:
    from benchmarks import operators

    def workload(ours: float, peer: float, status: str = "exact") -> dict[str, Any]:
        times = {operators.OURS: ours, operators.NATIVE: peer, operators.ONNX: 2 * peer}
        found = {name: {"status": "exact", "times_us": {"1000": [{"p50": each}]}} for name, each in times.items()}
        if status != "exact":
            found[operators.ONNX] = {"status": "failed", "reason": "no converter for type this"}
        return {"method": "transform", "rows": 1000, "columns": 4, "engines": found}

    known = {"a.Fast": workload(1, 10), "a.Slow": workload(20, 10, "failed"), "a.Text": {"skipped": "its input is text"}}
    results = {"workloads": known, "machine": machine.describe(), "settings": {"size": {"name": "quick"}, "threads": 1}}
    results["machine"]["load_after"] = [0.0]
    text = operators.markdown(results)
    assert text.index("| Slow |") < text.index("| Fast | transform | 1,000 | 0.01 | 0.02 | 0.001 | 10× | 20× |")
    assert "1 of 2 operators ahead of scikit-learn" in text
    assert "* onnxruntime: no converter: Slow" in text
    assert "* Text: its input is text" in text


def run_of(tmp_path: Path, *arguments: str) -> Run:
    options = parser_of("test", "", {}).parse_args([*arguments, "--out", str(tmp_path / "run.json.gz")])
    return Run("test", options, lambda found: report.heading(found, "A run", "A legend"))


def times(**p50: float) -> dict[str, Any]:
    """An engine's results: µs of calls of so many rows."""
    return {"status": "exact", "times_us": {rows[1:]: [{"p50": each}] for rows, each in p50.items()}}


def test_a_cliff_is_where_time_grows_more_than_the_limit() -> None:
    def workload(leaves: int, own: float, limit: float | None, work: float) -> dict[str, Any]:
        engines = {"hbc:tvm": times(_100=100 * own), "native": times(_100=100 * 5.0)}
        facts = {"curve": "leaves", "value": leaves, "batches": [100], "work": work, "limit": limit and {"us": limit}}
        return {**facts, "engines": engines}

    known = [workload(31, 1, 0.5, 5), workload(63, 2, 1.0, 6), workload(127, 8, 1.5, 7), workload(255, 9, None, 8)]
    steps = scaling.curves({"workloads": {f"leaves: {each['value']}": each for each in known}})["leaves, 100 rows a call"]
    assert [step.cliff for step in steps] == [False, False, True, False]
    assert steps[2].growth == 4
    assert steps[2].allowed == 1.5
    assert steps[0].peer == (5.0, "native")


def test_the_limit_counts_the_ranks_of_columns() -> None:
    narrow, wide = np.zeros(3, np.float32), np.zeros(63, np.float64)  # 2 levels in 16 lanes, 6 levels in 8
    assert limits.rank_instructions([narrow]) == (2 * 2 + 4) / 16
    assert limits.rank_instructions([narrow, wide]) == (2 * 2 + 4) / 16 + (2 * 6 + 3) / 8


def test_the_limit_counts_the_patches_of_a_path() -> None:
    pytest.importorskip("tvm")
    op, x = random_ensemble("four registers, classes by tree", 50)
    splits = limits.path_lengths(op, x, op.feature >= 0)
    for wide in (True, False):
        patches = limits.path_lengths(op, x, limits._patch_begins(op, wide, 0))
        assert op.n_trees <= patches < splits / 1.5
        assert limits.path_lengths(op, x, limits._patch_begins(op, wide, 2)) < patches - op.n_trees


def test_the_limit_counts_exponentials_and_results() -> None:
    x = Input("X", "f64", (N, 100))()
    powers = t.exp(x)
    softmax = t.div(powers, t.sum_(powers, axis=1, keepdims=True))
    assert limits.exponentials(Graph((x,), {"predict_proba": (x,)})) == (0, "float64", 100)
    assert limits.exponentials(Graph((x,), {"predict_proba": (softmax,)})) == (100 * (18 + 4) / 8, "float64", 100)
    narrow = t.cast(x, "f32")
    assert limits.exponentials(Graph((x,), {"predict": (t.sigmoid(narrow),)})) == (100 * 13 / 16, "float32", 100)
    assert 0 < limits.writing(1 << 10) < limits.writing(1 << 26)


def test_pictures_show_what_was_measured(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    engines = {
        "native": times(_1=90, _100=900),
        "onnxruntime": times(_1=9, _100=500),
        "hbc:tvm": times(_1=2, _100=16),
        "hummingbird:torch": times(_1=100, _100=90),
    }
    batches: dict[str, Any] = {"settings": {"batches": [1, 100], "backends": ["tvm"]}}
    scorers = {name: {"times": [{"loop": 1.0}]} for name in (scoring.SCORE, scoring.ALONE, scoring.LOOP)}
    known = {
        "paper": {"fraud forest": {"engines": engines}, "year xgboost": {"engines": engines}},
        "pipelines500": {"a": {"steps": ["SVC"], "engines": engines}, "b": {"skipped": "no"}},
        "operators": {"x.A": {"rows": 100, "engines": engines}, "x.B": {"skipped": "no"}},
        "scaling": {f"trees: {n}": {"curve": "trees", "batches": [1, 100], "work": n, "engines": engines} for n in (1, 2)},
        "scoring": {name: {"rows": 100, "engines": scorers} for name in ("part", "grouped", "single")},
    }
    words = {
        "paper": "Hummingbird in the paper",
        "pipelines500": "1 pipelines",
        "operators": "over scikit-learn",
        "scaling": "limit",
        "scoring": "millions of rows a second",
    }
    assert set(known) == set(words) == set(pictures.DRAWN)
    for name, draw in pictures.DRAWN.items():
        draw({**batches, "workloads": known[name]}, tmp_path / f"{name}.svg")
        drawn = (tmp_path / f"{name}.svg").read_text()
        assert words[name] in drawn
        draw({**batches, "workloads": known[name]}, tmp_path / "again.svg")
        assert (tmp_path / "again.svg").read_text() == drawn


def test_pages_include_the_tables_of_every_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    assert pages.section("trees") == "Not measured yet.\n"
    for machine_name in ("znver4", "z80"):
        (tmp_path / machine_name).mkdir()
        (tmp_path / machine_name / "trees.md").write_text("# Trees\n\n| table |\n\n### one (model: 2 MiB)\n")
    text = pages.section("trees")
    assert [line for line in text.splitlines() if line.startswith("###")] == ["### z80", "### AMD Zen 4"]
    assert text.count(':end-before: "### one (model: 2 MiB)"') == 2


def test_losses_have_a_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "RESULTS", tmp_path)

    def measured(machine_name: str, ours: dict[str, float]) -> None:
        """Results of `text` with hbc's times by workload, where a peer takes 1 µs."""
        workloads = {
            name: {"engines": {"hbc:tvm": times(_1=own), "native": times(_1=1.0), "hbc:torch": times(_1=0.1)}}
            for name, own in ours.items()
        }
        (tmp_path / machine_name).mkdir(exist_ok=True)
        report.write({"workloads": workloads}, tmp_path / machine_name / "text.json.gz", str)

    measured("znver4", {"DictVectorizer": 4.0, "CountVectorizer": 0.5})
    measured("znver5", {"DictVectorizer": 2.0})
    assert sorted((cell.processor, cell.workload, cell.rows, cell.peer, cell.ratio) for cell in losses.cells()) == [
        ("znver4", "CountVectorizer", 1, "native", 2.0),
        ("znver4", "DictVectorizer", 1, "native", 0.25),
        ("znver5", "DictVectorizer", 1, "native", 0.5),
    ]
    text = losses.section()
    assert "2 of 3 points" in text
    assert "| AMD Zen 5 | text | DictVectorizer | 1 | native | 0.5× |" in text
    measured("znver5", {"DictVectorizer": 2.0, "TfidfVectorizer": 2.0})
    with pytest.raises(KeyError, match="CAUSES must say why"):
        losses.section()


def test_claims_of_the_paper_hold_or_do_not() -> None:
    def cell(native: float, onnx: float, ours: float, original: float) -> dict[str, Any]:
        named = {"native": native, "onnxruntime": onnx, "hbc:tvm": ours, "hummingbird:torch": original}
        return {"engines": {name: times(_1=each, _100=each) for name, each in named.items()}, "model": {}}

    results: dict[str, Any] = {
        "settings": {"batches": [1, 100]},
        "workloads": {
            "fraud forest": cell(10, 10, 1, 50),
            "fraud xgboost": cell(10, 20, 2, 5),
            "year xgboost": cell(10, 20, 12, 5),
        },
    }
    lines = {
        line.split(":")[0] + line.split("|")[1][8:22]: line.split("|")[2:4] for line in paper.claims(results).splitlines()[2:]
    }
    (original, ours), *_ = [cells for name, cells in lines.items() if "boosted" in name]
    assert "holds (2 of 2 cells; 2× to 2×" in original
    assert "**does not hold** (1 of 2 cells" in ours
    assert (
        paper.losses(results)
        == "* year xgboost, 100 rows: 0.42× hummingbird:torch\n* year xgboost, 1 row: 0.42× hummingbird:torch"
    )
    assert paper.seconds("year xgboost", results["workloads"]["year xgboost"], "native", 100) == pytest.approx(
        10e-6 / 100 * 103_069
    )


@pytest.mark.skipif(older("sklearn", 1, 8), reason="the drawn pipelines have options of scikit-learn 1.8")
def test_pipelines_are_the_same_every_time_and_refusals_are_losses() -> None:
    drawn = grammar.draw(500)
    assert [str(each) for each in drawn[:40]] == [str(each) for each in grammar.draw(40)]
    assert {step for each in drawn for step in each.steps} >= {
        "SVC",
        "OneHotEncoder",
        "QuantileTransformer(normal)",
        "KernelPCA",
    }
    model, X = drawn[7].fitted(30)
    assert len(np.unique(X, axis=0)) == 30
    assert model.predict(X).shape == (30,)
    found: dict[str, Any] = {
        "a": {"steps": ["SVC"], "engines": {"native": times(_1=8, _100=8), "hbc:tvm": times(_1=2, _100=16)}},
        "b": {"steps": ["SVC"], "engines": {"native": times(_1=8, _100=8), "hbc:tvm": {"status": "failed", "reason": "no"}}},
        "c": {"steps": ["SVC"], "skipped": "a class is missing"},
    }
    results: dict[str, Any] = {"workloads": found, "settings": {"batches": [1, 100], "backends": ["tvm"]}}
    assert pipelines500.speedups(results, "hbc:tvm", 100) == {"a": 0.5, "b": 0.0}
    assert "* refused: b: no" in pipelines500.losses(results, "hbc:tvm")
    assert "* 0.5× at 100 rows: a" in pipelines500.losses(results, "hbc:tvm")
    assert "1 row: **50.0%** of 2 faster" in pipelines500.claims(results, "hbc:tvm")


def test_a_run_keeps_what_it_has_found_after_each_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_of(tmp_path, "--quick", "--only", "[ab]")
    assert run.given("rounds", 5, 1) == 1
    with pytest.raises(ValueError, match="nothing is called"):
        run.asked(["c"])
    for name in run.steps(run.asked(["a", "b", "c"])):
        run.results["workloads"][name] = {"engines": {"hbc:tvm": {"status": "inexact"}}}
        if name == "b":
            assert list(report.read(run.path)["workloads"]) == ["a"]
    assert run.finish() == 1  # not exact
    kept = report.read(run.path)
    assert list(kept["workloads"]) == ["a", "b"]
    assert kept["settings"]["rounds"] == 1
    assert "load_after" in kept["machine"]
    assert "A legend" in (tmp_path / "run.md").read_text()
    assert "A legend" in capsys.readouterr().out
    before = run.path.read_bytes()
    report.write(kept, run.path, str)
    assert run.path.read_bytes() == before  # no time of day is in the file


def test_a_part_of_a_benchmark_does_not_replace_the_whole(tmp_path: Path) -> None:
    options = argparse.Namespace(quick=True, only=[], out=None)
    assert not Run("trees", options, str).path.is_relative_to(report.RESULTS)
    whole = Run("trees", argparse.Namespace(quick=False, only=[], out=None), str).path
    assert whole.is_relative_to(report.RESULTS / machine.name())


def test_calls_of_one_process_take_turns_after_their_answers_were_compared() -> None:
    seen: list[str] = []

    def engine(name: str, add: float) -> Any:
        return lambda x: seen.append(name) or np.full(len(x), 1.0 + add)

    X = np.zeros(4)
    calls = {"native": engine("native", 0), "hbc:tvm": engine("hbc:tvm", 1e-9), "off": engine("off", 1e-3)}
    found = in_turns(calls, "native", {2: [X[:2], X[2:]]}, [X], rounds=2, budget=0.001)
    assert {name: each["status"] for name, each in found.items()} == {"native": "exact", "hbc:tvm": "exact", "off": "inexact"}
    assert all(len(each["times_us"]["2"]) == 2 for each in found.values())
    assert list(dict.fromkeys(seen[4:])) == ["native", "hbc:tvm", "off"]


def test_every_benchmark_is_listed_with_what_it_measures(capsys: pytest.CaptureFixture[str]) -> None:
    lines = {line.split()[0]: line for line in listing().splitlines() if line.startswith("  ")}
    assert set(lines) == {*ORDER, *OTHERS, *WITHOUT_A_RUN, "all"}
    assert all(len(line.split()) > 4 for line in lines.values())
    assert main(["tres"]) == 2
    assert "did you mean trees?" in capsys.readouterr().out


def test_a_benchmark_that_cannot_run_here_is_left_out_and_said(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")  # no h2load
    assert main(["serving", "serving", "--quick"]) == 0
    assert capfd.readouterr().out.splitlines()[-1] == "left out, for the reasons above: serving, serving"
    assert main(["serving", "serving", "--unknown"]) == 1
    assert capfd.readouterr().out.splitlines()[-1] == "failed or not exact: serving, serving"


def test_one_benchmark_from_the_command_line(tmp_path: Path) -> None:
    out = tmp_path / "operators.json.gz"
    arguments = ["operators", "--quick", "--only", "Binarizer", "--rows", "100", "--out", str(out)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments], capture_output=True, text=True, cwd=report.RESULTS.parents[1]
    )
    assert done.returncode == 0, done.stderr
    engines = report.read(out)["workloads"]["sklearn.preprocessing.Binarizer"]["engines"]
    assert engines["hbc:tvm"]["status"] == "exact"
    assert report.microseconds(engines["hbc:tvm"], 100)
    assert "| Binarizer |" in done.stdout


def test_peers_get_the_pins_of_what_they_share_with_hbc() -> None:
    constraints = "torch==2.13.0\nonnx==1.23.2\nscikit-learn==1.9.1\n"
    assert pins("scikit-learn<1.9\ntorch\n", constraints) == ["torch==2.13.0"]
    assert pins("scikit-learn>=1.6\n", constraints) == ["torch==2.13.0", "scikit-learn==1.9.1"]


def test_the_figures_of_the_readme_are_those_of_the_results() -> None:
    trees = figures.read("trees", figures.NAMES)
    chart = figures.CHART.read_text()
    for name, own, peer, one, other in figures.figures(trees):
        assert name in chart
        for label in (f"{figures.two_digits(peer / own)}×", figures.two_digits(one), figures.two_digits(other)):
            assert f">{label}<" in chart


@pytest.mark.every_case
@pytest.mark.parametrize(("page", "name"), sentences.TEXTS)
def test_the_figures_of_the_pages_are_those_of_the_results(page: str, name: str) -> None:
    assert sentences.written(page, name) == sentences.TEXTS[page, name](), "run `python -m benchmarks render`"


SERVING_TASK = {"row": [[1.0, 2.5]], "mixed": [[1.5, "Ulm"], [2.0, "Köln"]]}


@pytest.mark.every_case
@pytest.mark.parametrize("kind", SERVING_TASK)
def test_requests_of_servers_hold_the_rows(kind: str, tmp_path: Path) -> None:
    import json
    import struct

    from benchmarks import servers

    rows = SERVING_TASK[kind]
    task = servers.Task(kind, tmp_path, rows, ["a", "b"], np.zeros(len(rows)))
    body = json.loads(servers.plain(task).body)
    assert body == ({"records": task.records} if kind == "mixed" else {"rows": rows})
    inputs = json.loads(servers.v2("m", "predict")(task).body)["inputs"]
    binary = servers.v2_binary("m", "predict")(task)
    length = int(dict(binary.headers)["inference-header-content-length"])
    head, raw = json.loads(binary.body[:length]), binary.body[length:]
    assert [tensor["name"] for tensor in inputs] == (["a", "b"] if kind == "mixed" else ["X"])
    assert sum(tensor["parameters"]["binary_data_size"] for tensor in head["inputs"]) == len(raw)
    if kind == "mixed":
        assert inputs[1]["data"] == ["Ulm", "Köln"]
        assert raw == struct.pack("<2d", 1.5, 2.0) + b"\3\0\0\0Ulm\5\0\0\0K\xc3\xb6ln"
    else:
        assert raw == struct.pack("<2f", 1.0, 2.5)


def test_a_load_is_read_from_the_log_of_h2load(tmp_path: Path) -> None:
    """The requests of the warm-up stand in the log too, and do not count; an answer that is not 200 is a failure."""
    from benchmarks.servers import load

    log = tmp_path / "log"
    start = 1_700_000_000_000_000
    lines = [f"{start + 100_000 * i}\t{500 if i == 25 else 200}\t{100 + i}" for i in range(31)]
    log.write_text("\n".join(lines) + "\n")
    found = load._found(
        "finished in 2.00s, 10.50 req/s, 1KB/s\nrequests: 21 total, 20 succeeded, 0 failed, 0 errored", log, 2.0
    )
    assert (found.answered, found.failed, found.requests_per_second) == (20, 1, 10.5)
    assert found.p50 == np.percentile([100 + i for i in range(10, 31) if i != 25], 50)


def test_the_table_of_servers_names_what_failed() -> None:
    from benchmarks import serving, soak

    good = {
        "start_s": 1.0,
        "memory_mib": 50.0,
        "requests_per_second": 900.0,
        "p50": 50.0,
        "p99": 90.0,
        "p999": 99.0,
        "failed": 0,
    }
    constant = {**good, "requests_per_second": 1000.0}
    servers = {
        serving.CONSTANT: {"status": "exact", "rounds": [constant]},
        "hbc serve, rows": {"status": "exact", "rounds": [good]},
        "MLServer": {"status": "failed", "reason": "not installed", "rounds": []},
    }
    results = {"machine": {**machine.describe(), "load_after": [0.0]}, "settings": {"size": {"name": "quick"}, "threads": 1}}
    results["workloads"] = {"row": {"servers": servers}}
    text = serving.markdown(results)
    assert "| hbc serve, rows | 900 | 0.90 | 50 | 90 | 99 | 50 | 1 | 0 |" in text
    assert "- MLServer: not installed" in text
    assert serving.status(results) == 0
    servers["hbc serve, rows"]["rounds"].append({**good, "failed": 1})
    assert serving.status(results) == 1
    soaked = {"memory": [(0.0, 48.0), (5.0, 49.0)], "reloads": 2, "terms": 1, "kills": 10, "answered": 7, "longest_s": 0.1}
    soaked |= {"lost": 1, "reasons": ["503"], "growth": None}
    results["workloads"] = {"row": soaked}
    assert "- row: 503" in soak.markdown(results)
    assert soak.status(results) == 1
    grown = {
        **soaked,
        "lost": 0,
        "reasons": [],
        "growth": soak.growth([60.0] * 5 + [67.0] * 5 + [67.0 + step for step in range(15)]),
    }
    assert grown["growth"] == 12.0
    assert [soak.status({"workloads": {"row": {**grown, "growth": each}}}) for each in (12.0, 1.0, None)] == [1, 0, 0]
    assert "+12.0" in soak.markdown({**results, "workloads": {"row": grown}})


def test_a_server_is_started_and_ended(tmp_path: Path) -> None:
    """A server of Python's own: it answers, its memory is seen, and at the end it is gone with its children."""
    import sys

    from benchmarks.servers import Request, Server, Task
    from benchmarks.servers.process import Running, ServerError, processes_of

    code = (
        "import http.server as h, subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "class Handler(h.BaseHTTPRequestHandler):\n"
        "    def do_POST(self):\n"
        "        self.send_response(200); self.end_headers(); self.wfile.write(b'0.5')\n"
        "h.HTTPServer(('127.0.0.1', int(sys.argv[1])), Handler).serve_forever()\n"
    )
    task = Task("row", tmp_path, [[1.0]], ["a"], np.array([0.5]))
    server = Server("own", "main", lambda python, port, task, scratch: [str(python), "-c", code, str(port)], lambda task: None)
    with Running(server, task, None) as running:
        seconds, answer = running.wait(Request("/", b"", float), 60)
        assert answer == 0.5
        assert seconds > 0
        children = processes_of(running.process.pid)
        assert len(children) == 2
        assert running.memory_mib() > 1

    def lives(pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except (FileNotFoundError, ProcessLookupError):
            return False

    until = time.monotonic() + 10  # the signal is sent; a busy machine takes its time
    while any(map(lives, children)) and time.monotonic() < until:
        time.sleep(0.01)
    assert not any(map(lives, children))
    broken = Server("broken", "main", lambda *_: [sys.executable, "-c", "raise SystemExit('no model')"], lambda task: None)
    with Running(broken, task, None) as running, pytest.raises(ServerError, match="no model"):
        running.wait(Request("/", b"", float), 60)


def test_the_goals_of_scoring() -> None:
    from benchmarks import scoring

    def engine(seconds: float, mib: float = 100) -> dict[str, Any]:
        return {"status": "exact", "times": [{"seconds": seconds, "cpu": seconds, "mib": mib, "loop": seconds}]}

    grouped = {"rows": 1000, "files": 5, "bytes": 1, "engines": {scoring.SCORE: engine(3, 512), scoring.ALONE: engine(2)}}
    part = {"rows": 100, "files": 1, "bytes": 1, "engines": {"sklearn": engine(5), "duckdb": {"status": "failed", "times": []}}}
    kills = {"kills": 20, "jobs": 7, "files": 4, "kills_that_left_whole_files": 9, "differing": [], "seconds": 1.0}
    results = {"workloads": {"grouped": grouped, "part": part, "killed": kills}, "machine": machine.describe()}
    results |= {"settings": {"size": {"name": "quick"}, "threads": 1}}
    results["machine"]["load_after"] = [0.0]
    text = scoring.markdown(results)
    assert "grouped: 1.50× the time of pyarrow alone" in text
    assert "grouped: 16.7× the rows a second of scikit-learn" in text
    assert "grouped: 512 MiB" in text
    assert "undisturbed run of 1.0 s: none." in text


def test_files_of_scoring_have_their_row_groups(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    from benchmarks import scoring

    for group, groups in ((40, 3), (100, 1)):
        file = pq.ParquetFile(scoring.write(tmp_path / "x.parquet", 100, group, 0))
        assert (file.metadata.num_rows, file.num_row_groups, file.metadata.num_columns) == (100, groups, 30)
