"""Processor seconds from the start of a process to the first answer for one row.

Each figure is of whole processes, one after the other on one core, in turns with the same model in ONNX Runtime and in its own library.
The answers are compared first. Python's own start is in all of them."""

from __future__ import annotations

import os
import pickle
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import hbc
from benchmarks import report, trees
from benchmarks.pipelines import PIPELINES
from benchmarks.session import Run

ROOT = Path(__file__).parents[1]
READ = "import sys, pickle, numpy as np\nX = np.load(sys.argv[2])[:1]\n"
FRAME = "import sys, pandas as pd\nX = pd.read_pickle(sys.argv[2])[:1]\n"
HBC = "import hbc\nfound = hbc.load(sys.argv[1]).predict_proba(X)\n"
ORT = "import onnxruntime\nfound = onnxruntime.InferenceSession(sys.argv[1]).run(['predict_proba'], {'X': X})[0]\n"
LIGHTGBM = "import lightgbm\nfound = lightgbm.Booster(model_file=sys.argv[1]).predict(X)\nfound = np.stack([1 - found, found], axis=1)\n"
SOURCE = "import pickle\nfound = pickle.load(open(sys.argv[1], 'rb')).predict_proba(X)\n"
CHECK = "if len(sys.argv) > 3: import numpy as np; np.save(sys.argv[3], found)\n"

CONVERTED = ("lightgbm-500x31", "lightgbm-500x255")
"""The models whose conversion is timed too."""
QUICK = ("lightgbm-500x31", "titanic, a frame")
"""The models of a quick run."""

CONVERT = """
import os, pickle, sys, time, numpy as np, hbc
X = np.load(sys.argv[2])[:1]
model = pickle.load(open(sys.argv[1], "rb"))
warm = pickle.load(open(sys.argv[3], "rb"))
hbc.convert(warm).predict_proba(X[:, : warm.n_features_in_])
start = time.process_time()
hbc.convert(model).predict_proba(X)
print(time.process_time() - start)
"""
"""A warm process: another model was converted before."""

LEGEND = (
    "Processor seconds (user and system) of a whole process on one core: median over the rounds, least in brackets. *cache*: the code is "
    "in hbc's cache on disk; *empty*: it is not, and is written there. *pandas alone*: reading the frame, which the others contain. "
    "torch and scikit-learn are installed."
)


def spent(command: Sequence[str], cache: Path | None) -> float:
    """Processor seconds of a process."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    environment["HBC_CACHE"] = "" if cache is None else str(cache)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, env=environment, cwd=tempfile.gettempdir(), stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def models(folder: Path, size: trees.Size) -> dict[str, dict[str, tuple[str, str, str]]]:
    """Model → engine → (code, file of the model, file of its input)."""
    found: dict[str, dict[str, tuple[str, str, str]]] = {}
    for name in CONVERTED:
        prepared = trees.prepare(trees.BY_NAME[name], size)
        compiled = hbc.convert(prepared.model)
        compiled.save(folder / f"{name}.hbc")
        compiled.export(folder / f"{name}.onnx", methods="predict_proba")
        rows = str(prepared.rows)
        found[name] = {
            "hbc, cache": (READ + HBC, f"{folder}/{name}.hbc", rows),
            "hbc, empty": (READ + HBC, f"{folder}/{name}.hbc", rows),
            "ONNX Runtime": (READ + ORT, f"{folder}/{name}.onnx", rows),
            "LightGBM": (READ + LIGHTGBM, str(prepared.folder / "model.txt"), rows),
        }
    titanic = next(workload for workload in PIPELINES if "titanic" in workload.name.lower())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, X = titanic.make()
    hbc.convert(model, "tvm", X).save(folder / "titanic.hbc")
    (folder / "titanic.pkl").write_bytes(pickle.dumps(model))
    X.to_pickle(folder / "titanic_X.pkl")
    frame = str(folder / "titanic_X.pkl")
    found["titanic, a frame"] = {
        "hbc, cache": (FRAME + HBC, f"{folder}/titanic.hbc", frame),
        "hbc, empty": (FRAME + HBC, f"{folder}/titanic.hbc", frame),
        "pandas alone": (FRAME + "found = 0\n", "", frame),
        "scikit-learn": (FRAME + SOURCE, f"{folder}/titanic.pkl", frame),
    }
    return found


def measured(folder: Path, name: str, engines: dict[str, tuple[str, str, str]], rounds: int) -> dict[str, list[float]]:
    """Engine → processor seconds, by round. Raises ValueError where answers differ."""
    times: dict[str, list[float]] = {engine: [] for engine in engines}
    answers = {}
    for engine, (code, *files) in engines.items():
        spent([sys.executable, "-W", "ignore", "-c", code + CHECK, *files, str(folder / "answer.npy")], folder / "cache")
        answers[engine] = np.load(folder / "answer.npy")
    expected = answers["hbc, cache"]
    for engine, answer in answers.items():
        if answer.shape and not np.allclose(answer, expected, rtol=1e-5, atol=1e-6):
            raise ValueError(f"{name}: {engine} answers {answer}, hbc {expected}")
    for _ in range(rounds):
        for engine, (code, *files) in engines.items():
            cache = folder / "cache"
            if "empty" in engine:
                cache = folder / "empty"
                shutil.rmtree(cache, ignore_errors=True)
            times[engine].append(spent([sys.executable, "-W", "ignore", "-c", code, *files], cache))
    return times


def conversions(folder: Path, names: Sequence[str], rounds: int, size: trees.Size) -> dict[str, list[float]]:
    """Seconds of `hbc.convert` and the first answer in a warm process, by model, with the code in the cache."""
    prepared = {name: trees.prepare(trees.BY_NAME[name], size) for name in names}
    warm = trees.prepare(trees.BY_NAME["xgboost-500-depth8"], size).folder / "model.pkl"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HBC_CACHE": str(folder / "cache"), "OPENBLAS_NUM_THREADS": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    times: dict[str, list[float]] = {name: [] for name in prepared}
    for turn in range(rounds + 1):
        for name, each in prepared.items():
            command = [sys.executable, "-W", "ignore", "-c", CONVERT, str(each.folder / "model.pkl"), str(each.rows), str(warm)]
            done = subprocess.run(command, check=True, env=environment, capture_output=True, text=True)
            if turn:  # the first one fills the cache
                times[name].append(float(done.stdout))
    return times


def markdown(results: dict[str, Any]) -> str:
    def cell(times: Sequence[float]) -> str:
        return f"{statistics.median(times):.2f} ({min(times):.2f})"

    lines = [report.heading(results, "From the start of a process to the first answer", LEGEND), ""]
    for name, engines in results["workloads"].items():
        lines += [f"**{name}**", "", "| engine | processor seconds |", "|---|---|"]
        lines += [f"| {engine} | {cell(times)} |" for engine, times in engines.items()]
        lines.append("")
    lines += [
        "**`hbc.convert` and the first answer in a warm process, code in the cache**",
        "",
        "| model | processor seconds |",
        "|---|---|",
    ]
    lines += [f"| {name} | {cell(times)} |" for name, times in results.get("conversions", {}).items()]
    return "\n".join(lines) + "\n"


OPTIONS: dict[str, dict[str, Any]] = {}


def run(run: Run) -> None:
    size = trees.QUICK if run.quick else trees.FULL
    rounds = run.given("rounds", 7, 1)
    os.environ["HBC_CACHE"] = ""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made = models(folder, size)
        for each in run.steps(run.asked(made, QUICK)):
            run.results["workloads"][each] = measured(folder, each, made[each], rounds)
        run.results["conversions"] = conversions(folder, CONVERTED[:1] if run.quick else CONVERTED, rounds, size)
