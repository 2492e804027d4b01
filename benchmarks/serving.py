"""`hbc serve` beside the servers of others: requests a second, times at half of that load, memory, and the time to start.

Every server runs on one core, and the load generator on another. The answers are compared with the source library's first."""

from __future__ import annotations

import os
import pickle
import statistics
import tempfile
import warnings
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import hbc
from benchmarks import report
from benchmarks.answers import check
from benchmarks.servers import CONSTANT, HBC, NUMBERS, SERVERS, Server, Task, load
from benchmarks.servers.process import Running, ServerError, second_class
from benchmarks.session import CannotRun, Run

OPTIONS: dict[str, dict[str, Any]] = {
    "--servers": {"nargs": "+", "default": [], "metavar": "WORD", "help": "servers whose names have one of these words"},
    "--seconds": {"type": float, "help": "seconds of a load"},
    "--connections": {"type": int, "help": "connections of the load generator"},
}
WORKLOADS = ("row", "mixed", "batch")
QUICK = ("row", "mixed")
"""Those of a quick run, in which the servers of others are measured in the first only."""
SLOW = "Ray Serve"
"""It starts for 25 s, so a quick run leaves it out unless `--servers` names it."""
BATCH = 100
START_LIMIT = 300.0
"""Seconds in which a server has to give its first answer."""

LEGEND = (
    "Requests a second at saturation (16 connections, each with one request at a time), and the times of answers in µs at half of that "
    "rate, as h2load sees them: medians over the rounds. Memory: of all processes of the server, shared pages counted once, after the "
    "load. Start: from the start of the process to the first answer; hbc compiles in the first round, and finds the code later. "
    "*of the constant*: beside a uvicorn that reads the body and answers a constant. row: 20 numbers, LightGBM of 500 trees with 31 "
    "leaves. mixed: 30 columns of numbers and strings, imputed, scaled and one-hot encoded before the same. batch: 100 rows of 20 "
    "numbers. FastAPI, BentoML and Ray Serve call the library that trained the model; ONNX Runtime runs hbc's export."
)


def tasks(folder: Path, quick: bool) -> dict[str, Task]:
    """The models, fitted, converted and written down, with the rows of one request."""
    rng = np.random.default_rng(0)
    trees, rows = (20, 2_000) if quick else (500, 20_000)
    X = rng.normal(size=(rows, NUMBERS)).astype("float32")
    y = X[:, 0] * X[:, 1] + X[:, 2] > 0
    classifier = lightgbm.LGBMClassifier(n_estimators=trees, num_leaves=31, verbose=-1, n_jobs=1).fit(X, y)
    place = folder / "numbers"
    place.mkdir()
    classifier.booster_.save_model(place / "model.txt")
    compiled = hbc.convert(classifier, "tvm", X)
    compiled.save(place / "model.hbc")
    compiled.export(place / "model.onnx", methods="predict_proba")
    expected = classifier.predict_proba(X[:BATCH])[:, 1]
    names = [f"number_{i}" for i in range(NUMBERS)]
    found = {
        "row": Task("row", place, X[:1].tolist(), names, expected[:1]),
        "batch": Task("batch", place, X[:BATCH].tolist(), names, expected),
    }
    frame = mixed_frame(rng, rows)
    target = frame["amount_0"].fillna(0) * (frame["kind_0"] == "a") + frame["amount_1"].fillna(0) > 0
    pipeline = mixed_pipeline(frame, trees).fit(frame, target)
    place = folder / "mixed"
    place.mkdir()
    (place / "model.joblib").write_bytes(pickle.dumps(pipeline))
    compiled = hbc.convert(pipeline, "tvm", frame)
    compiled.save(place / "model.hbc")
    compiled.export(place / "model.onnx", methods="predict_proba", columns=True)
    whole = frame[frame.notna().all(axis=1)][:1]
    expected = pipeline.predict_proba(whole)[:, 1]
    found["mixed"] = Task("mixed", place, whole.to_numpy(object).tolist(), list(frame.columns), expected)
    return found


def mixed_frame(rng: np.random.Generator, rows: int) -> pd.DataFrame:
    """15 columns of numbers with missing values, and 15 of strings."""
    columns: dict[str, Any] = {}
    for i in range(15):
        columns[f"amount_{i}"] = np.where(rng.random(rows) < 0.05, np.nan, rng.normal(size=rows))
        columns[f"kind_{i}"] = rng.choice(list("abcdefgh"), rows)
    return pd.DataFrame(columns)


def mixed_pipeline(frame: pd.DataFrame, trees: int) -> Any:
    """Numbers are imputed and scaled, strings encoded, then comes LightGBM."""
    numbers = [name for name in frame.columns if name.startswith("amount")]
    texts = [name for name in frame.columns if name.startswith("kind")]
    columns = make_column_transformer(
        (make_pipeline(SimpleImputer(strategy="median"), StandardScaler()), numbers),
        (OneHotEncoder(handle_unknown="ignore", sparse_output=False), texts),
    )
    return make_pipeline(columns, lightgbm.LGBMClassifier(n_estimators=trees, num_leaves=31, verbose=-1, n_jobs=1))


def cores() -> tuple[int, int]:
    """(the server's core, the generator's)."""
    known = sorted(os.sched_getaffinity(0))
    return known[-1], known[0]


def measure(server: Server, task: Task, seconds: float, connections: int) -> dict[str, Any]:
    """One round of one server: its start, its answers, both loads, its memory. Raises ServerError."""
    request = server.request(task)
    assert request is not None
    core, other = cores()
    with Running(server, task, core) as running:
        start, answer = running.wait(request, START_LIMIT)
        found: dict[str, Any] = {"start_s": start}
        if server.name != CONSTANT:
            found["answers"] = check(second_class(answer, len(task.rows)), task.expected[:, None])
            if found["answers"]["verdict"] == "wrong":
                raise ServerError(f"wrong answers: {found['answers']}")
        most = load.apply(request, running.port, seconds, other, connections)
        half = load.apply(request, running.port, seconds, other, connections, rate=most.requests_per_second / 2)
        found["memory_mib"] = running.memory_mib()
        found |= {"requests_per_second": most.requests_per_second, "p50": half.p50, "p99": half.p99, "p999": half.p999}
        found["failed"] = most.failed + half.failed
        return found


def run(run: Run) -> None:
    if not load.installed():
        raise CannotRun("h2load is not installed: apt-get install nghttp2-client")
    if len(os.sched_getaffinity(0)) < 2:
        raise CannotRun("two cores are needed: one for the server, one for the load generator")
    rounds = run.given("rounds", 3, 1)
    seconds = run.given("seconds", 10.0, 0.5)
    connections = run.given("connections", 16, 16)
    words = run.options.servers
    chosen = [server for server in SERVERS if not words or any(word.lower() in server.name.lower() for word in words)]
    if run.quick and not words:
        chosen = [server for server in chosen if server.name != SLOW]
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        known = tasks(Path(name), run.quick)
        for each in run.steps(run.asked(WORKLOADS, QUICK)):
            servers: dict[str, Any] = {}
            run.results["workloads"][each] = {"servers": servers}
            fitting = [server for server in chosen if server.request(known[each]) is not None]
            if run.quick and each != QUICK[0]:
                fitting = [server for server in fitting if server.name.startswith(HBC)]
            for turn in range(rounds):
                for server in fitting:
                    entry = servers.setdefault(server.name, {"status": "exact", "rounds": []})
                    if entry["status"] not in report.MARKS:
                        continue
                    run.say(f"{each}: {server.name}, round {turn + 1} of {rounds}")
                    try:
                        found = measure(server, known[each], seconds, connections)
                    except (ServerError, RuntimeError, ValueError) as error:
                        entry |= {"status": "failed", "reason": str(error)}
                        continue
                    entry["rounds"].append(found)
                    if found.get("answers", {"verdict": "exact"})["verdict"] != "exact":
                        entry["status"] = "inexact"


def status(results: dict[str, Any]) -> int:
    """1 if hbc failed, was inexact, or left a request without an answer."""
    for workload in results["workloads"].values():
        for name, found in workload["servers"].items():
            bad = found["status"] != "exact" or any(each["failed"] for each in found["rounds"])
            if name.startswith(HBC) and bad:
                return 1
    return 0


def markdown(results: dict[str, Any]) -> str:
    """A table for each workload."""
    parts = [report.heading(results, "Serving", LEGEND)]
    for name, workload in results["workloads"].items():
        servers = workload["servers"]
        constant = _median(servers.get(CONSTANT, {}), "requests_per_second")
        lines = ["| server | requests/s | of the constant | p50 | p99 | p99.9 | memory, MiB | start, s | failed |"]
        lines.append("|" + "---|" * 9)
        missing = []
        for server, found in servers.items():
            if not found["rounds"]:
                missing.append(f"- {server}: {found.get('reason', 'not measured')}")
                continue
            rate = _median(found, "requests_per_second")
            share = "–" if not constant or rate is None else f"{rate / constant:.2f}"
            cells = [report.figure(rate), share, *(report.figure(_median(found, key)) for key in ("p50", "p99", "p999"))]
            cells += [report.figure(_median(found, "memory_mib")), report.figure(_median(found, "start_s"))]
            cells.append(str(sum(each["failed"] for each in found["rounds"])))
            lines.append(f"| {server}{report.MARKS.get(found['status'], ' (failed later)')} | {' | '.join(cells)} |")
        parts += [f"## {name}", "\n".join(lines), *(["\n".join(missing)] if missing else [])]
    return "\n\n".join(parts) + "\n"


def _median(found: dict[str, Any], key: str) -> float | None:
    rounds = found.get("rounds")
    return statistics.median(each[key] for each in rounds) if rounds else None
