"""`make demo`: real pipelines compiled by every backend, checked against their source library, with their speeds; then a model saved,
loaded in a fresh process without scikit-learn, and scored there."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console
from rich.progress import track
from rich.table import Table

import hbc
from benchmarks.pipelines import PIPELINES, Workload
from benchmarks.timing import measure

ROWS = 10_000
OUT = Path("demo-out")


def main() -> int:
    """Prints the table. Returns the exit status: 1 if any backend disagrees with its source."""
    console = Console(width=max(110, Console().width))
    console.print(f"hbc {hbc.__version__}: {len(PIPELINES)} pipelines, every backend, {ROWS:,} rows a call, one thread")
    table = Table(caption="largest difference: of probabilities or predictions to the source's own; labels must be equal")
    for heading in ("pipeline", "backend", "largest difference", "labels", "source rows/s", "hbc rows/s", "speed"):
        table.add_column(heading, justify="left" if heading in ("pipeline", "backend") else "right")
    backends = [name for name, available in hbc.backends().items() if available]
    failures = 0
    for workload in track(PIPELINES, "fitting and compiling", console=Console(stderr=True), transient=True):
        failures += _add_rows(table, workload, backends)
        table.add_section()
    console.print(table)
    failures += _fresh_process(console)
    console.print("[green]all backends agree[/green]" if not failures else f"[red]{failures} disagreements[/red]")
    return 1 if failures else 0


def _add_rows(table: Table, workload: Workload, backends: list[str]) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of MLP and LightGBM about fitting
        model, X = workload.make()
        many = _repeat(X, ROWS)
        expected = getattr(model, workload.method)(many)
        expected_labels = model.predict(many)
        source_seconds = measure(getattr(model, workload.method), [many], 0.5)["p50"] / 1e6
    failures = 0
    for backend in backends:
        compiled = hbc.convert(model, backend, threads=_threads(backend))
        found = getattr(compiled, workload.method)(many)
        difference = float(np.abs(np.asarray(found, float) - np.asarray(expected, float)).max())
        labels_agree = _same_labels(compiled.predict(many), expected_labels)
        agrees = labels_agree and bool(np.allclose(found, expected, rtol=1e-5, atol=1e-6))
        failures += not agrees
        seconds = measure(getattr(compiled, workload.method), [many], 0.5)["p50"] / 1e6
        table.add_row(
            workload.name if backend == backends[0] else "",
            backend,
            f"{difference:.1e}" if agrees else f"[red]{difference:.1e}[/red]",
            "equal" if labels_agree else "[red]differ[/red]",
            f"{ROWS / source_seconds:,.0f}",
            f"{ROWS / seconds:,.0f}",
            f"{source_seconds / seconds:.2f}×",
        )
    return failures


def _threads(backend: str) -> int | None:
    """The option `threads` that gives a backend one thread. PyTorch's number of threads belongs to the process; OMP_NUM_THREADS sets it
    above."""
    return None if backend.startswith("torch") else 1


def _repeat(X: Any, rows: int) -> Any:
    index = np.arange(rows) % len(X)
    return X.iloc[index].reset_index(drop=True) if isinstance(X, pd.DataFrame) else X[index]


def _same_labels(found: Any, expected: Any) -> bool:
    if expected.dtype.kind == "f":
        return bool(np.allclose(found, expected, rtol=1e-5, atol=1e-6))
    return bool((found == expected).all())


FRESH = """
import sys, numpy as np, hbc
for name in ("sklearn", "lightgbm", "xgboost"):
    assert name not in sys.modules
import pandas as pd
model = hbc.load("titanic.hbc")
rows = pd.read_json("titanic.json", dtype={"sex": object, "embarked": object})
found = model.predict_proba(rows)
expected = np.load("expected.npy")
assert not any(name in sys.modules for name in ("sklearn", "lightgbm", "xgboost"))
print(f"fresh process: {model!r} scored {len(rows)} rows, largest difference {np.abs(found - expected).max():.1e}")
sys.exit(not np.allclose(found, expected, rtol=1e-5, atol=1e-6))
"""


def _fresh_process(console: Console) -> int:
    OUT.mkdir(exist_ok=True)
    workload = next(workload for workload in PIPELINES if "LightGBM" in workload.name)
    model, X = workload.make()
    backend = next(name for name, available in hbc.backends().items() if available)
    hbc.convert(model, backend).save(OUT / "titanic.hbc")
    X.to_json(OUT / "titanic.json", double_precision=15)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        np.save(OUT / "expected.npy", model.predict_proba(X))
    size = (OUT / "titanic.hbc").stat().st_size
    console.print(
        f"saved {OUT / 'titanic.hbc'} ({size / 1e3:.0f} kB); loading it in a fresh process without scikit-learn or LightGBM"
    )
    done = subprocess.run([sys.executable, "-c", FRESH], cwd=OUT, capture_output=True, text=True)
    console.print(done.stdout.strip() or done.stderr.strip())
    return done.returncode != 0


if __name__ == "__main__":
    sys.exit(main())
