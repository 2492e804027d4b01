"""A nightly job: `hbc score` over files of Parquet, beside reading and writing the same files with pyarrow alone, beside scikit-learn's
pipeline, ONNX Runtime, and LightGBM as a function of DuckDB; and `hbc score` killed at random moments.

Every engine is a process with the same number of threads, told to its libraries and by the cores that it may use. The answers are compared
before anything is timed. The files were just written, so that they are read from the system's cache of them, by all alike."""

from __future__ import annotations

import os
import pickle
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from lightgbm import LGBMClassifier
from sklearn.compose import ColumnTransformer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

import hbc
from benchmarks import machine, report
from benchmarks.answers import check
from benchmarks.session import Run, versions

FLOATS, SINGLES, INTEGERS, TEXTS = 12, 4, 4, 10
GROUP = 100_000
"""Rows of a row group."""
FILES = 5
"""The number of files with such groups. One more file is a single group."""
KILLED_FILES = 10
DISTRIBUTIONS = ("hbc", "apache-tvm", "scikit-learn", "lightgbm", "pandas", "pyarrow", "onnxruntime", "duckdb")
PEERS = {"sklearn": "scikit-learn", "onnxruntime": "ONNX Runtime", "duckdb": "DuckDB + LightGBM"}
SCORE, ALONE, LOOP = "hbc:score", "pyarrow", "hbc:arrow"
WORKLOADS = ("grouped", "single", "one file", "part", "killed")
QUICK_WORKLOADS = ("grouped", "part", "killed")
READ_AND_WRITE, OF_SOURCE, MEMORY = 1.5, 10, 1024
"""The goals: times pyarrow's time, times scikit-learn's speed, and MiB."""

LEGEND = (
    "30 columns (12 float64, 3 of them with missing values, 4 float32, 4 int64, 10 strings): scaled, one-hot, ordinal → LightGBM of 100 "
    "trees of 31 leaves; predict_proba. Seconds and MiB (peak of memory) are of a whole process, from its start; medians over the rounds. "
    f"grouped: {FILES} files with row groups of {GROUP:,} rows. single: one file that is a single group. one file: the first of the five. "
    "part: some rows in one file, where rows a second are of the loop alone, without imports and without loading the model (of hbc "
    "score: with them). *pyarrow*: it reads all columns, and writes numbers that cost nothing. *hbc:arrow*: m.arrow in a loop."
)


@dataclass(frozen=True)
class Size:
    name: str = "full"
    rows: int = 20_000_000
    part: int = 500_000
    train: int = 50_000
    trees: int = 100
    killed: int = 1_000_000
    kills: int = 20


FULL, QUICK = Size(), Size("quick", 200_000, 20_000, 5_000, 20, 40_000, 3)
OPTIONS: dict[str, dict[str, Any]] = {
    "--rows": {"type": int, "help": "rows of all files"},
    "--part": {"type": int, "help": "rows that the other engines score"},
    "--kills": {"type": int, "help": "how often hbc score is killed"},
    "--threads": {"type": int, "help": "threads of every engine; by default the number of cores"},
}


# --- files and models ---------------------------------------------------------------------------------------------------


def table(rows: int, seed: int) -> Any:
    """Generated rows: a table of 30 columns."""
    rng = np.random.default_rng(seed)
    columns: dict[str, Any] = {}
    for j in range(FLOATS):
        values = rng.normal(size=rows)
        columns[f"f{j}"] = pa.array(values, mask=rng.random(rows) < 0.05 if j % 4 == 3 else None)
    columns |= {f"g{j}": pa.array(rng.normal(size=rows).astype("f4")) for j in range(SINGLES)}
    columns |= {f"i{j}": pa.array(rng.integers(0, 10 ** (j + 1), rows)) for j in range(INTEGERS)}
    for j in range(TEXTS):
        words = pa.array([f"category-{j}-{code}" for code in range(4 + 3 * j)])
        codes = pa.array(rng.integers(0, len(words), rows).astype("i4"))
        columns[f"s{j}"] = pa.DictionaryArray.from_arrays(codes, words).cast(pa.string())
    return pa.table(columns)


def write(path: Path, rows: int, group: int, seed: int) -> Path:
    """A file of so many rows, in row groups of so many."""
    piece = min(max(rows, 1), 10 * GROUP)
    whole = None
    writer = None
    for start in range(0, rows, piece):
        made = table(min(piece, rows - start), seed + start)
        whole = made if group < rows else pa.concat_tables([made] if whole is None else [whole, made])
        if group < rows:
            writer = writer or pq.ParquetWriter(path, made.schema, use_dictionary=texts(made))
            writer.write_table(made, row_group_size=group)
    if writer is not None:
        writer.close()
    elif whole is not None:
        pq.write_table(whole, path, row_group_size=rows, use_dictionary=texts(whole))
    return path


def texts(made: Any) -> list[str]:
    return [name for name in made.schema.names if name.startswith("s")]


def fitted(size: Size) -> tuple[Any, pd.DataFrame]:
    """(the pipeline, the frame that it was fitted on)."""
    frame = table(size.train, 1).to_pandas()
    words = [name for name in frame if name.startswith("s")]
    floats = [name for name in frame if name.startswith("f")]
    others = [name for name in frame if name[0] in "gi"]
    score = frame["f0"] + frame["f1"] ** 2 + (frame["s3"] == "category-3-1") + frame["g0"] * (frame["i0"] > 4)
    parts = [
        ("scaled", StandardScaler(), floats),
        ("others", "passthrough", others),
        ("one-hot", OneHotEncoder(handle_unknown="ignore"), words[::2]),
        ("ordinal", OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1), words[1::2]),
    ]
    noise = np.random.default_rng(2).normal(size=len(frame))
    trees = LGBMClassifier(n_estimators=size.trees, num_leaves=31, n_jobs=1, verbose=-1, random_state=0)
    return make_pipeline(ColumnTransformer(parts), trees).fit(frame, (score + noise > 1).astype(int)), frame


def write_models(folder: Path, size: Size, threads: int) -> dict[str, str]:
    """Writes model.hbc, model.pkl and model.onnx. Returns peer → why it has no model."""
    model, frame = fitted(size)
    hbc.convert(model, "tvm", frame, threads=threads).save(folder / "model.hbc")
    (folder / "model.pkl").write_bytes(pickle.dumps(model))
    try:
        onnx_model(model, frame, folder / "model.onnx")
    except Exception as error:  # of the converters: any
        return {"onnxruntime": f"{type(error).__name__}: {error}"[:200]}
    return {}


def onnx_model(model: Any, frame: pd.DataFrame, path: Path) -> None:
    from onnxmltools.convert.lightgbm.operator_converters.LightGbm import convert_lightgbm
    from skl2onnx import to_onnx, update_registered_converter
    from skl2onnx.common.data_types import FloatTensorType, StringTensorType
    from skl2onnx.common.shape_calculator import calculate_linear_classifier_output_shapes

    options = {"nocl": [True, False], "zipmap": [True, False, "columns"]}
    update_registered_converter(
        LGBMClassifier, "LGBM", calculate_linear_classifier_output_shapes, convert_lightgbm, options=options
    )
    types = [(name, (StringTensorType if name.startswith("s") else FloatTensorType)([None, 1])) for name in frame]
    made = to_onnx(
        model, initial_types=types, options={id(model[-1]): {"zipmap": False}}, target_opset={"": 17, "ai.onnx.ml": 3}
    )
    path.write_bytes(made.SerializeToString())


# --- processes ----------------------------------------------------------------------------------------------------------


class Failed(Exception):
    """A process that ended with another status than 0."""


@dataclass
class Job:
    """What every process needs to know."""

    folder: Path
    threads: int
    cores: set[int]

    def command(self, engine: str, files: Sequence[Path], out: Path) -> list[str]:
        names = list(map(str, files))
        if engine == SCORE:
            command = [sys.executable, "-m", "hbc", "score", str(self.folder / "model.hbc"), *names, "-o", str(out)]
            return [*command, "--methods", "predict_proba"]
        name = "arrow" if engine == LOOP else engine
        return [sys.executable, "-m", "benchmarks.scorers", name, str(self.folder), str(out), str(self.threads), *names]

    def start(self, engine: str, files: Sequence[Path], out: Path) -> subprocess.Popen[str]:
        environment = {
            **os.environ,
            **dict.fromkeys(machine.THREADS, str(self.threads)),
            "HBC_CACHE": str(self.folder / "cache"),
        }
        environment |= {"ARROW_IO_THREADS": str(self.threads), "PYTHONPATH": str(Path(__file__).parents[1])}
        return subprocess.Popen(
            self.command(engine, files, out),
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=lambda: os.sched_setaffinity(0, self.cores),
        )

    def finish(self, engine: str, files: Sequence[Path], out: Path) -> dict[str, Any]:
        """Runs an engine. Returns its seconds, processor seconds, MiB, and what it says of its loop. Raises Failed."""
        start = time.perf_counter()
        process = self.start(engine, files, out)
        peak: list[float] = [0]
        watcher = threading.Thread(target=watch, args=(process.pid, peak))
        watcher.start()
        printed, errors = process.stdout.read(), process.stderr.read()  # type: ignore[union-attr]
        watcher.join()
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise Failed(f"status {process.returncode}: {errors.strip()[-300:]}")
        last = printed.strip().splitlines()[-1:] or [""]
        inner = float(last[0]) if engine != SCORE else seconds
        return {"seconds": seconds, "cpu": usage.ru_utime + usage.ru_stime, "mib": peak[0], "loop": inner}


def watch(pid: int, peak: list[float]) -> None:
    """Notes the peak of a process's memory in MiB until it ends. (What `wait4` says holds the memory of the process that started it.)"""
    while True:
        try:
            status = Path(f"/proc/{pid}/status").read_text()
            found = [line for line in status.splitlines() if line.startswith("VmHWM")]
        except OSError:
            return
        if not found:  # it has ended, and waits to be waited for
            return
        peak[0] = int(found[0].split()[1]) / 1024
        time.sleep(0.02)


def read(out: Path) -> Any:
    """The answers of all files in a folder, in their order."""
    files = sorted(path for path in out.rglob("*.parquet"))
    return np.concatenate([pq.read_table(path, memory_map=True).to_pandas().to_numpy() for path in files])


@contextmanager
def empty(folder: Path) -> Iterator[Path]:
    """A name for a folder, which is gone before and afterwards."""
    shutil.rmtree(folder, ignore_errors=True)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


# --- workloads ----------------------------------------------------------------------------------------------------------


def timed(run: Run, job: Job, engines: Sequence[str], files: Sequence[Path], rows: int, expected: Any = None) -> dict[str, Any]:
    """Engines in turns. Their answers are compared first, with `expected` or with those of hbc's loop."""
    found: dict[str, Any] = {}
    for engine in engines:
        run.say(f"{engine}: answers")
        with empty(job.folder / "out") as out:
            try:
                job.finish(engine, files, out)
                verdict = {"verdict": "exact"}
                if engine != ALONE:
                    got = read(out)
                    expected = got if expected is None else expected
                    verdict = check(got, expected)
                found[engine] = {"status": verdict.pop("verdict"), **verdict, "times": []}
            except Failed as error:
                found[engine] = {"status": "failed", "reason": str(error), "times": []}
    alive = [engine for engine in engines if found[engine]["status"] in ("exact", "inexact")]
    for turn in range(run.settings["rounds"]):
        for engine in alive[turn % len(alive) :] + alive[: turn % len(alive)]:
            run.say(f"{engine}: round {turn + 1}")
            with empty(job.folder / "out") as out:
                found[engine]["times"].append(job.finish(engine, files, out))
    return {"rows": rows, "files": len(files), "bytes": sum(file.stat().st_size for file in files), "engines": found}


def contents(out: Path) -> dict[str, bytes]:
    return {str(path.relative_to(out)): path.read_bytes() for path in sorted(out.rglob("*.parquet"))}


def killed(run: Run, job: Job, files: Sequence[Path], kills: int) -> dict[str, Any]:
    """hbc score, killed by SIGKILL at random moments and started again until it has ended by itself, beside an undisturbed run. A job that
    ends before it is killed begins anew in an empty folder."""
    random_moment = random.Random(0)
    with empty(job.folder / "undisturbed") as out:
        seconds = job.finish(SCORE, files, out)["seconds"]
        expected = contents(out)
    done, jobs, differing, kept = 0, 0, [], 0
    while done < kills:
        jobs += 1
        with empty(job.folder / "killed") as out:
            for _ in range(3):  # so often, a job is killed
                process = job.start(SCORE, files, out)
                time.sleep(random_moment.uniform(0, seconds))
                ended = process.poll() is not None
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
                if ended:
                    break
                done += 1
                run.say(f"killed {done} times")
                finished = contents(out) if out.exists() else {}
                kept += bool(finished)
                differing += [name for name, data in finished.items() if expected.get(name) != data]
                if done == kills:
                    break
            job.finish(SCORE, files, out)
            found = contents(out)
            differing += [name for name in {*found, *expected} if found.get(name) != expected.get(name)]
    return {
        "engines": {SCORE: {"status": "wrong" if differing or not expected else "exact", "times": []}},
        "kills": done,
        "jobs": jobs,
        "kills_that_left_whole_files": kept,
        "files": len(expected),
        "differing": sorted(set(differing)),
        "seconds": seconds,
    }


def run(run: Run) -> None:
    size = QUICK if run.quick else FULL
    if run.options.out is None and any(getattr(run.options, name) for name in ("rows", "part", "kills")):
        run.options.out = report.CACHE / "last" / "scoring.json.gz"  # a smaller run does not replace what is kept in git
    rows = run.given("rows", size.rows, size.rows)
    part, kills = run.given("part", size.part, size.part), run.given("kills", size.kills, size.kills)
    cores = os.sched_getaffinity(0)
    threads = run.given("threads", len(cores), len(cores))
    run.given("rounds", 3, 1)
    run.settings.update(size=asdict(size), distributions=versions(DISTRIBUTIONS))
    asked = run.asked(WORKLOADS, QUICK_WORKLOADS)
    each = rows // (FILES + 1)
    report.CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=report.CACHE) as name:
        folder = Path(name)
        job = Job(folder, threads, set(sorted(cores)[:threads]))
        reasons = write_models(folder, size, threads)
        data: list[Path] = []
        for workload in run.steps(asked):
            if workload in ("grouped", "one file") and not data:
                run.say("write the files")
                count = FILES if "grouped" in asked else 1
                data = [write(folder / f"{i}.parquet", each, GROUP, 1_000 + 100 * i) for i in range(count)]
            run.say(workload)
            if workload == "grouped":
                found = timed(run, job, (LOOP, SCORE, ALONE), data, each * FILES)
            elif workload == "single":
                found = timed(run, job, (LOOP, SCORE, ALONE), [write(folder / "single.parquet", each, each, 5_000)], each)
                (folder / "single.parquet").unlink()
            elif workload == "one file":
                found = timed(run, job, (LOOP, SCORE), data[:1], each)
            elif workload == "part":
                file = write(folder / "part.parquet", part, GROUP, 7_000)
                model = pickle.loads((folder / "model.pkl").read_bytes())
                expected = model.predict_proba(pq.read_table(file).to_pandas())
                peers = [peer for peer in PEERS if peer not in reasons]
                found = timed(run, job, (SCORE, LOOP, ALONE, *peers), [file], part, expected)
                found["engines"] |= {peer: {"status": "failed", "reason": why, "times": []} for peer, why in reasons.items()}
            else:
                count = size.killed // KILLED_FILES
                files = [write(folder / f"k{i}.parquet", count, GROUP, 9_000 + 100 * i) for i in range(KILLED_FILES)]
                found = killed(run, job, files, kills)
            run.results["workloads"][workload] = found


# --- tables -------------------------------------------------------------------------------------------------------------


def median(found: dict[str, Any], engine: str, figure: str) -> float | None:
    times = found["engines"].get(engine, {}).get("times", [])
    return statistics.median(each[figure] for each in times) if times else None


def speed(found: dict[str, Any], engine: str) -> float | None:
    """An engine's rows a second, None if it was not measured."""
    seconds = median(found, engine, "loop")
    return None if seconds is None else found["rows"] / seconds


def ratio(found: dict[str, Any], engine: str, other: str, figure: str = "seconds") -> float | None:
    """An engine's figure over the other's."""
    above, below = median(found, engine, figure), median(found, other, figure)
    return None if above is None or below is None else above / below


def goals(results: dict[str, Any]) -> list[str]:
    """A line for each goal: what was reached."""
    known, lines = results["workloads"], []
    for name in ("grouped", "single"):
        reached = ratio(known.get(name, {"engines": {}}), SCORE, ALONE)
        if reached is not None:
            lines.append(f"* {name}: {reached:.2f}× the time of pyarrow alone (goal: at most {READ_AND_WRITE}×)")
    if "grouped" in known and "part" in known:
        whole, loop = median(known["grouped"], SCORE, "seconds"), median(known["part"], "sklearn", "loop")
        if whole and loop:
            reached = known["grouped"]["rows"] / whole / (known["part"]["rows"] / loop)
            lines.append(
                f"* grouped: {reached:.1f}× the rows a second of scikit-learn on the part (goal: at least {OF_SOURCE}×)"
            )
    for name in ("grouped", "one file", "single"):
        peak = median(known.get(name, {"engines": {}}), SCORE, "mib")
        if peak is not None:
            lines.append(
                f"* {name}: {peak:,.0f} MiB at the peak (goal: at most {MEMORY:,} MiB; a single group is what Parquet needs)"
            )
    return lines


def markdown(results: dict[str, Any]) -> str:
    lines = [report.heading(results, "Scoring files", LEGEND), ""]
    for name, found in results["workloads"].items():
        if name == "killed":
            differing = ", ".join(found["differing"]) or "none"
            lines += [
                f"**{name}**: {found['kills']} times in {found['jobs']} jobs of {found['files']} files, "
                f"{found['kills_that_left_whole_files']} times with some files finished. Files that differ from those of an "
                f"undisturbed run of {found['seconds']:.1f} s: {differing}.",
                "",
            ]
            continue
        lines += [
            f"**{name}**: {found['rows']:,} rows, {found['files']} file(s), {found['bytes'] / 1e6:,.0f} MB",
            "",
            "| engine | answers | s | processor s | rows/s | times pyarrow | MiB |",
            "|---|---|---|---|---|---|---|",
        ]
        for engine, each in found["engines"].items():
            if not each["times"]:
                lines.append(f"| {PEERS.get(engine, engine)} | {each['status']}: {each.get('reason', '')} | | | | | |")
                continue
            seconds, cpu, mib = (median(found, engine, figure) for figure in ("seconds", "cpu", "mib"))
            beside = ratio(found, engine, ALONE)
            lines.append(
                f"| {PEERS.get(engine, engine)} | {each['status']} | {seconds:.2f} | {cpu:.2f} | {speed(found, engine):,.0f} | "
                f"{'' if beside is None else f'{beside:.2f}×'} | {mib:,.0f} |"
            )
        lines.append("")
    return "\n".join([*lines, *goals(results), ""])
