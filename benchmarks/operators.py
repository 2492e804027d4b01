"""The paper's operator tables (11 and 12), for every estimator that converts: iris tiled to a million rows of float32, one core,
scikit-learn, ONNX Runtime and hbc side by side. Models have their default parameters, and are fitted to the
150 rows of iris. Answers are checked first; the engines take turns; an operator whose slowest engine would need more than its budget for
a call gets fewer rows (for all engines), and one that there is no time left for is listed."""

from __future__ import annotations

import pickle
import sys
import tempfile
import warnings
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_iris
from sklearn.utils import get_tags

from benchmarks import engines as registry
from benchmarks import report
from benchmarks.engines import Task
from benchmarks.engines.process import EngineError, Process
from benchmarks.session import Run
from benchmarks.side_by_side import Processes, Settings, measure_round, processes, start

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from defaults import CONVERTIBLE, made, refused_by_default

METHODS = ("predict_proba", "predict", "transform", "score_samples", "kneighbors", "mahalanobis")
"""The first that an estimator has is measured, as in the paper."""

IN_THE_PAPER = {
    "LogisticRegression": (970, 1540, 47),
    "SGDClassifier": (180, 1540, 49),
    "LinearSVC": (110, 69, 51),
    "NuSVC": (3240, 4410, 3000),
    "SVC": (1690, 2670, 1560),
    "BernoulliNB": (280, 1670, 65),
    "MLPClassifier": (930, 1860, 1430),
    "DecisionTreeClassifier": (59, 1610, 35),
    "Binarizer": (98, 75, 59),
    "MinMaxScaler": (92, 200, 57),
    "Normalizer": (94, 140, 97),
    "PolynomialFeatures": (4030, 29160, 3130),
    "StandardScaler": (150, 200, 58),
}
"""Operator → ms a call in the paper: scikit-learn, ONNX-ML, Hummingbird's TVM. These operators have the paper's 20 columns here too, the
others iris's 4."""

ENGINES = (registry.hbc_engine("tvm"), registry.PEERS[0], registry.PEERS[1])
OURS, NATIVE, ONNX = (engine.name for engine in ENGINES)
CHECKED = 10_000

LEGEND = (
    "ms a call of so many rows: median over the rounds of a round's median call, results included; one core. The slowest of hbc first, by "
    "its ratio to the faster of the two. ≈: some rows' answers are outside the contract's tolerance (rtol 1e-5, atol 1e-6)."
)


@dataclass(frozen=True)
class Size:
    """The largest number of rows, and the seconds that a call of the slowest engine may take before rows are taken away."""

    name: str = "full"
    rows: int = 1_000_000
    limit: float = 0.4


FULL, QUICK = Size(), Size("quick", 20_000, 0.1)


OPTIONS: dict[str, dict[str, Any]] = {"--rows": {"type": int, "help": "of a call, where there is time for so many"}}
BY_NAME = {name.rpartition(".")[2]: name for name in sorted(CONVERTIBLE)}
"""Class → its dotted name."""


def run(run: Run) -> None:
    size = QUICK if run.quick else FULL
    size = replace(size, rows=run.given("rows", size.rows, size.rows))
    rounds, budget = run.given("rounds", 2, 1), run.given("budget", 0.1, 0.01)
    # The first limit holds for the imports of an engine too, which took more than 20 s on a machine with a load of 6.
    settings = Settings((size.rows,), rounds, budget, 1, convert_limit=60.0, call_limit=60.0)
    run.settings.update({"size": asdict(size), **asdict(settings), "cores": settings.cores})
    ordered = sorted(BY_NAME, key=lambda name: (name not in IN_THE_PAPER, name))
    names = run.asked(ordered, [*ordered[: len(IN_THE_PAPER)], *ordered[len(IN_THE_PAPER) :: 20]])
    with tempfile.TemporaryDirectory(prefix="hbc-operators-") as folder, processes(lasting=True) as alive:
        rows = {columns: tile(columns, size.rows, Path(folder)) for columns in (4, 20)}
        for name in run.steps(names):
            run.results["workloads"][BY_NAME[name]] = one(BY_NAME[name], rows, Path(folder), alive, size, settings)


def tile(columns: int, rows: int, folder: Path) -> Path:
    """Iris, again and again in both directions."""
    X = np.tile(load_iris().data, (1, columns // 4)).astype(np.float32)
    path = folder / f"{columns}.npy"
    np.save(path, np.ascontiguousarray(np.tile(X, (rows // len(X) + 1, 1))[:rows]))
    return path


PARAMETERS: dict[str, dict[str, Any]] = {"KernelPCA": {"n_components": 4}, "MissingIndicator": {"features": "all"}}
"""Options of estimators in place of defaults. By default KernelPCA keeps components that are only rounding errors, so that no two engines
agree. MissingIndicator has no column for complete data by default."""


def fitted(name: str, columns: int) -> Any:
    """A model fitted to iris. It predicts the class, or the width of petals. Raises ValueError if the estimator takes no matrix of
    numbers."""
    model = made(name, **refused_by_default(name), **PARAMETERS.get(_short(name), {}))
    tags = get_tags(model)
    takes = tags.input_tags
    if not takes.two_d_array or (takes.pairwise and not takes.sparse):
        raise ValueError("its input is no matrix of numbers")
    X, classes = load_iris(return_X_y=True)
    y: Any = classes
    if tags.estimator_type == "regressor":
        y = X[:, 3] + 0.1 * X[:, 0]
    elif tags.estimator_type == "classifier" and (not tags.classifier_tags.multi_class or _short(name) == "ClassifierChain"):
        y = classes > 0  # a chain's predict_proba takes two classes only
    if not tags.target_tags.single_output:
        y = np.column_stack([y, y[::-1]])
    X = np.tile(X, (1, columns // 4))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a model that did not converge is measured too
        return model.fit(X.astype(np.float32), y)


def one(name: str, rows: dict[int, Path], folder: Path, alive: Processes, size: Size, settings: Settings) -> dict[str, Any]:
    """One operator on every engine: convert, check, find how many rows there is time for, then measure in turns."""
    columns = 20 if _short(name) in IN_THE_PAPER else 4
    try:
        model = fitted(name, columns)
    except (ValueError, TypeError) as error:
        return {"skipped": str(error).splitlines()[0]}
    method = next(method for method in METHODS if hasattr(model, method))
    (folder / "model.pkl").write_bytes(pickle.dumps(model))
    task = Task("sklearn", str(folder), columns, "float32", 1, "", method)
    results: dict[str, dict[str, Any]] = {engine.name: {} for engine in ENGINES}
    running: dict[str, Process] = {}
    slowest, expected = 0.0, None
    checked = min(CHECKED, size.rows)
    for engine in (ENGINES[1], ENGINES[0], ENGINES[2]):  # scikit-learn's answers are the right ones
        result = results[engine.name]
        try:
            process = alive.of(engine, replace(task, option=engine.option))
            answer = start(process, rows[columns], expected, settings, result)
            expected = answer[:checked] if expected is None else expected
            if result["status"] != "wrong":
                slowest = max(slowest, process.measure(checked, 0.0, settings.call_limit)["p50"] / 1e6 / checked)
                running[engine.name] = process
        except (EngineError, ValueError) as error:
            result |= {"status": "failed", "reason": str(error)}
            if engine is ENGINES[1]:
                return {"skipped": f"scikit-learn: {error}"}
    count = next((n for n in (size.rows, 100_000) if n <= size.rows and n * slowest <= size.limit), checked)
    for turn in range(settings.rounds):
        measure_round(running, replace(settings, batches=(count,)), results, turn)
    return {"method": method, "rows": count, "columns": columns, "engines": results}


def markdown(results: dict[str, Any]) -> str:
    """The tables: operators, the slowest first; those that were not measured; the paper's own figures."""
    workloads = _measured(results)
    lines = [
        "| operator | method | rows | scikit-learn, ms | ONNX Runtime, ms | hbc:tvm, ms | times scikit-learn | times ONNX Runtime "
        "| in the paper |",
        "|" + "---|" * 9,
    ]
    order = sorted(workloads, key=lambda name: report.ratio(workloads[name], OURS, workloads[name]["rows"]) or 0.0)
    for name in order:
        found = workloads[name]
        cells = [_short(name), found["method"], f"{found['rows']:,}" + (" × 20" if found["columns"] == 20 else "")]
        cells += [_cell(found, engine) for engine in (NATIVE, ONNX, OURS)]
        cells += [report.times(_against(found, engine)) for engine in (NATIVE, ONNX)]
        paper = IN_THE_PAPER.get(_short(name))
        cells.append("" if paper is None else f"{report.times(paper[0] / paper[2])}, {report.times(paper[1] / paper[2])}")
        lines.append(f"| {' | '.join(cells)} |")
    failed: dict[str, list[str]] = {}
    for engine in (OURS, ONNX):
        for name, found in workloads.items():
            result = found["engines"][engine]
            if result["status"] not in report.MARKS:
                reason = result.get("reason", "wrong answers").partition(" for type ")[0]
                failed.setdefault(f"{engine}: {reason}", []).append(_short(name))
    skipped = [f"* {name}: no time left" for name in results.get("not_begun", ())]
    skipped += [f"* {_short(name)}: {found['skipped']}" for name, found in results["workloads"].items() if "skipped" in found]
    parts = [report.heading({**results, "workloads": workloads}, "Operators", LEGEND), summary(workloads), "\n".join(lines)]
    parts += (
        ["## Failed or wrong\n\n" + "\n".join(f"* {why}: {', '.join(names)}" for why, names in failed.items())]
        if failed
        else []
    )
    parts += ["## Not measured\n\n" + "\n".join(skipped)] if skipped else []
    return "\n\n".join(parts) + "\n"


def summary(workloads: dict[str, Any]) -> str:
    """How many operators are ahead of each peer, and by how much in the middle."""
    sentences = []
    for engine, title in ((NATIVE, "scikit-learn"), (ONNX, "ONNX Runtime")):
        ratios = [each for found in workloads.values() if (each := _against(found, engine)) is not None]
        if ratios:
            ahead = sum(each >= 1 for each in ratios)
            sentences.append(
                f"{ahead} of {len(ratios)} operators ahead of {title}, {float(np.median(ratios)):.3g}× in the median."
            )
    return " ".join(sentences)


def _against(found: dict[str, Any], engine: str) -> float | None:
    """How many times faster than an engine hbc is."""
    own, other = (report.microseconds(found["engines"][each], found["rows"]) for each in (OURS, engine))
    return None if own is None or other is None else other / own


def _cell(found: dict[str, Any], engine: str) -> str:
    time_us = report.microseconds(found["engines"][engine], found["rows"])
    return report.figure(None if time_us is None else time_us / 1000) + report.MARKS.get(found["engines"][engine]["status"], "")


def _measured(results: dict[str, Any]) -> dict[str, Any]:
    return {name: found for name, found in results["workloads"].items() if "skipped" not in found}


def _short(name: str) -> str:
    return name.rpartition(".")[2]
