"""A model in the workers of Ray Data, Spark, Dask and Daft, beside `hbc.score` in this process, with as many workers: from files of Parquet
to files of Parquet. Also `hbc.score` that gives whole files to Ray, Spark or Dask.

Each engine is a process, which starts the engine, scores once (that is *first*: the workers load the model), compares the answers, and
scores again in rounds. It needs the engines in this Python: `pip install -c constraints.txt '.[ray,spark,dask,daft]'`."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

import hbc
from benchmarks import machine, report
from benchmarks.answers import check
from benchmarks.session import Run, versions

LOCAL = "hbc.score"
DATA = ("ray", "spark", "dask", "daft")
FILES = ("ray", "spark", "dask")
ENGINES = (LOCAL, *DATA, *(f"{LOCAL} --engine {name}" for name in FILES))
METHOD = "predict_proba"
OPTIONS: dict[str, dict[str, Any]] = {
    "--rows": {"type": int, "help": "rows of all files"},
    "--workers": {"type": int, "help": "workers of every engine"},
}
LEGEND = (
    "30 columns, of which 10 are strings, in 8 files; LightGBM behind scalers and encoders; predict_proba. *start*: imports, and the "
    "engine's own start. *first*: the first job, in which the workers load the model. *s*: the median of the jobs after it."
)


# --- one engine, in a process of its own ----------------------------------------------------------------------------------


@contextlib.contextmanager
def with_ray(files: list[str], model: Path, workers: int) -> Iterator[Callable[[str], Any]]:
    import ray.data

    from hbc.engines.ray import score

    ray.init(num_cpus=workers + 1, include_dashboard=False, log_to_driver=False)  # one of them to read
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield lambda out: score(ray.data.read_parquet(files), model, METHOD, workers=workers).write_parquet(out)


@contextlib.contextmanager
def with_spark(files: list[str], model: Path, workers: int) -> Iterator[Callable[[str], Any]]:
    from pyspark.sql import SparkSession

    from hbc.engines.spark import score

    os.environ["PYSPARK_PYTHON"] = sys.executable
    local = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1", "spark.ui.enabled": "false"}
    batch = {"spark.sql.execution.arrow.maxRecordsPerBatch": os.environ.get("ROWS_A_BATCH", "100000")}
    session = SparkSession.builder.master(f"local[{workers},4]").config(map=local | batch).getOrCreate()
    try:
        yield lambda out: score(session.read.parquet(*files), model, METHOD).write.parquet(out)
    finally:
        session.stop()


@contextlib.contextmanager
def with_dask(files: list[str], model: Path, workers: int) -> Iterator[Callable[[str], Any]]:
    import dask.dataframe
    import distributed

    from hbc.engines.dask import score

    options = {"n_workers": workers, "threads_per_worker": 1, "host": "127.0.0.1", "dashboard_address": None}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster):
        yield lambda out: score(dask.dataframe.read_parquet(files), model, METHOD).to_parquet(out)


@contextlib.contextmanager
def with_daft(files: list[str], model: Path, workers: int) -> Iterator[Callable[[str], Any]]:
    import daft

    from hbc.engines.daft import score

    yield lambda out: score(daft.read_parquet(files), model, METHOD).write_parquet(out)


STARTS = {"ray": with_ray, "spark": with_spark, "dask": with_dask, "daft": with_daft}


@contextlib.contextmanager
def started(engine: str, folder: Path, workers: int) -> Iterator[Callable[[str], Any]]:
    """A function that scores all files into a folder."""
    files, model = sorted(map(str, (folder / "rows").glob("*.parquet"))), folder / "model.hbc"
    start = STARTS.get(engine.rpartition(" ")[2])
    with contextlib.nullcontext() if start is None else start(files, model, workers) as job:
        if not engine.startswith(LOCAL):
            yield job  # type: ignore[misc]
        else:
            name = None if engine == LOCAL else engine.rpartition(" ")[2]
            yield lambda out: hbc.score(model, files, out, methods=METHOD, workers=workers, engine=name)


def measure(engine: str, folder: Path, workers: int, rounds: int) -> dict[str, Any]:
    """Start, first and further times of an engine in this process; its answers, sorted, go to a file."""
    begun = time.perf_counter()
    with started(engine, folder, workers) as job:
        found: dict[str, Any] = {"start": time.perf_counter() - begun, "times": []}
        for turn in range(rounds + 1):
            out = folder / "out"
            shutil.rmtree(out, ignore_errors=True)
            begun = time.perf_counter()
            job(str(out))
            found["times"].append(time.perf_counter() - begun)
            if not turn:
                answers = np.concatenate(
                    [pq.read_table(path)[f"{METHOD}_1"].to_numpy() for path in sorted(out.rglob("*.parquet"))]
                )
                np.save(folder / "answers.npy", np.sort(answers))  # engines keep the order of rows within a part only
    found["first"] = found["times"].pop(0)
    return found


# --- all of them ------------------------------------------------------------------------------------------------------------


def child(engine: str, folder: Path, workers: int, rounds: int) -> dict[str, Any]:
    environment = {**os.environ, **dict.fromkeys(machine.THREADS, "1"), "HBC_CACHE": str(folder / "cache")}
    root = Path(__file__).parents[1]
    environment["PYTHONPATH"] = os.pathsep.join([str(root), environment.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "benchmarks.workers", engine, str(folder), str(workers), str(rounds)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=root)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        return {"status": "failed", "reason": (done.stderr.strip() or "no result").splitlines()[-1][:200], "times": []}
    return json.loads(lines[-1])


def run(run: Run) -> None:
    from benchmarks import scoring

    size = scoring.QUICK if run.quick else scoring.FULL
    rows, workers = run.given("rows", 8_000_000, 200_000), run.given("workers", 2, 2)
    run.given("rounds", 3, 1)
    run.settings.update(distributions=versions(["hbc", "lightgbm", "pyarrow"]))
    asked = run.asked(ENGINES)
    report.CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=report.CACHE) as name:
        folder = Path(name)
        (folder / "rows").mkdir()
        scoring.write_models(folder, size, 1)
        each = rows // 8
        for i in range(8):
            scoring.write(folder / "rows" / f"{i}.parquet", each, min(scoring.GROUP, each), 1_000 + 100 * i)
        expected = None
        engines: dict[str, Any] = {}
        for engine in run.steps([LOCAL, *(engine for engine in asked if engine != LOCAL)]):
            found = child(engine, folder, workers, run.settings["rounds"])
            if found.get("status") != "failed":
                got = np.load(folder / "answers.npy")
                expected = got if expected is None else expected
                found |= {"status": check(got, expected)["verdict"]}
            engines[engine] = found
            run.results["workloads"]["parquet to parquet"] = {"rows": each * 8, "workers": workers, "engines": engines}


def markdown(results: dict[str, Any]) -> str:
    lines = [report.heading(results, "Engines with workers", LEGEND), ""]
    for found in results["workloads"].values():
        lines += [
            f"{found['rows']:,} rows, {found['workers']} workers",
            "",
            "| engine | answers | start, s | first, s | s | rows/s | times hbc.score |",
            "|---|---|---|---|---|---|---|",
        ]
        local = statistics.median(found["engines"][LOCAL]["times"] or [0])
        for engine, each in found["engines"].items():
            if not each["times"]:
                lines.append(f"| {engine} | {each['status']}: {each['reason']} | | | | | |")
                continue
            seconds = statistics.median(each["times"])
            lines.append(
                f"| {engine} | {each['status']} | {each['start']:.1f} | {each['first']:.1f} | {seconds:.2f} | "
                f"{found['rows'] / seconds:,.0f} | {seconds / local:.2f}× |"
            )
    return "\n".join([*lines, ""])


def main(arguments: Sequence[str]) -> None:
    engine, folder, workers, rounds = arguments
    print(json.dumps(measure(engine, Path(folder), int(workers), int(rounds))))


if __name__ == "__main__":
    main(sys.argv[1:])
