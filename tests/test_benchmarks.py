"""The benchmark harness: it judges answers as exact, inexact or wrong, computes ratios, and always reports a failing engine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import engines, figures, machine, report
from benchmarks.engines import Engine, Task
from benchmarks.engines.process import EngineError, Process
from benchmarks.engines.worker import measure
from benchmarks.run import check

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


def test_an_engine_that_fails_says_why(tmp_path: Path) -> None:
    task = Task("lightgbm", str(tmp_path), 2, 3, "float32", 1, "")
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


def test_a_run_is_written_with_the_load_behind_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results: dict[str, Any] = {
        "machine": machine.describe(),
        "settings": {"size": {"name": "quick"}, "threads": 1},
        "workloads": {},
    }
    report.finish(results, tmp_path / "run.json", lambda found: report.heading(found, "A run", "A legend"))
    assert "load_after" in results["machine"]
    assert "A legend" in (tmp_path / "run.md").read_text()
    assert "A legend" in capsys.readouterr().out


def test_the_figures_of_the_readme_are_those_of_the_results() -> None:
    trees = figures.read("trees")
    assert figures.written() == figures.summary(trees, figures.read("cold_start")), "run `python -m benchmarks.figures`"
    chart = figures.CHART.read_text()
    for name, own, peer, one, other in figures.figures(trees):
        assert name in chart
        for label in (f"{figures.two_digits(peer / own)}×", figures.two_digits(one), figures.two_digits(other)):
            assert f">{label}<" in chart
