"""`python -m benchmarks join` makes one file of several runs, and benchmarks/results has one file of each benchmark for a processor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import machine, report
from benchmarks.__main__ import ORDER, OTHERS, main

SETTINGS = {"size": {"name": "full"}, "threads": 1, "batches": [1], "rounds": 3}


def engine(us: float) -> dict[str, Any]:
    """Results of an engine that takes so many µs for a row."""
    facts = {"answers": {"largest_difference": 0.0}, "convert_s": 1.0, "convert_peak_mib": 1.0}
    return {"status": "exact", "times_us": {"1": [{"p50": us, "p99": us}]}, **facts}


def run(file: Path, time: str, ours: dict[str, float], **changes: Any) -> str:
    """Writes results of `trees` with hbc's times by workload, where a peer takes 8 µs. Returns the path."""
    workloads = {
        name: {
            "engines": {"hbc:tvm": engine(us), "native": engine(8.0)},
            "goals": {"rows": None, "one_row": None},
            "model": {"model_mib": 1},
        }
        for name, us in ours.items()
    }
    about = {**machine.describe(), "time": time, "commit": "c" * 40, "uncommitted_changes": False, "load_after": [0.0]}
    settings = {**SETTINGS, **changes}
    report.write({"benchmark": "trees", "machine": about, "settings": settings, "workloads": workloads}, file, str)
    return str(file)


def ratios(path: Path) -> dict[str, float | None]:
    return {name: report.ratio(workload, "hbc:tvm", 1) for name, workload in report.read(path)["workloads"].items()}


def test_each_workload_is_of_the_last_run_that_measured_it(tmp_path: Path) -> None:
    parts = [
        run(tmp_path / "first.json.gz", "2026-01-01", {"a": 4.0, "b": 4.0}, rounds=5),
        run(tmp_path / "last.json.gz", "2026-01-03", {"b": 2.0, "c": 2.0}),
        run(tmp_path / "between.json.gz", "2026-01-02", {"b": 1.0}),
    ]
    out = tmp_path / "results" / "trees.json.gz"
    assert main(["join", *parts, "--out", str(out)]) == 0
    assert ratios(out) == {"a": 2.0, "b": 4.0, "c": 4.0}
    assert report.read(out)["machine"]["time"] == "2026-01-03"
    runs = [line for line in report.tables_of(out).read_text().splitlines() if line.startswith("* 2026")]
    assert [line.partition(",")[0] for line in runs] == ["* 2026-01-01", "* 2026-01-03"]
    assert [line.rpartition(": ")[2] for line in runs] == ["a", "b; c"]

    later = run(tmp_path / "later.json.gz", "2026-01-04", {"a": 8.0})
    assert main(["join", str(out), later, "--out", str(out)]) == 0  # what was joined can be joined again
    assert ratios(out) == {"a": 1.0, "b": 4.0, "c": 4.0}


def test_what_no_run_has_measured_stays_named(tmp_path: Path) -> None:
    parts = []
    for number, (name, left) in enumerate((("a", ["b", "c"]), ("b", []))):
        path = tmp_path / f"{number}.json.gz"
        run(path, f"2026-01-0{number + 1}", {name: 1.0})
        report.write({**report.read(path), "not_begun": left}, path, str)
        parts.append(str(path))
    assert main(["join", *parts, "--out", str(tmp_path / "all.json.gz")]) == 0
    assert report.read(tmp_path / "all.json.gz")["not_begun"] == ["c"]


def test_runs_that_differ_are_not_joined(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = run(tmp_path / "one.json.gz", "2026-01-01", {"a": 1.0})
    two = run(tmp_path / "two.json.gz", "2026-01-02", {"b": 1.0}, threads=2)
    assert main(["join", one, two, "--out", str(tmp_path / "all.json.gz")]) == 2
    assert "the runs differ in the setting 'threads': 1 and 2" in capsys.readouterr().out
    assert not (tmp_path / "all.json.gz").exists()


def test_a_processor_has_one_file_of_each_benchmark() -> None:
    known = {f"{name}{suffix}" for name in (*ORDER, *OTHERS) for suffix in (".json.gz", ".md")}
    others = {str(path) for path in report.RESULTS.glob("*/*") if path.name not in known}
    assert not others, "join them: python -m benchmarks join"
