"""Where another engine is faster than hbc, in all results of benchmarks that are kept. A page of the docs begins with it."""

from __future__ import annotations

from typing import NamedTuple

from benchmarks import figures, report
from benchmarks.report import MAIN, fastest_peer, microseconds

BENCHMARKS = ("trees", "paper", "scaling", "pipelines500", "operators", "frames", "text")
"""The benchmarks with peers, whose results have the times of engines by the rows of a call."""
CAUSES = {
    (
        "operators",
        "Binarizer",
    ): "one comparison a number: both read and write memory, and wait for it. On Zen 3 the virtual machine "
    "gave new memory for results at 0.3 GB/s, to scikit-learn too, and ONNX Runtime keeps its own. 1.02× in a run before",
    ("operators", "NeighborhoodComponentsAnalysis"): "measured with older kernels, and not again there; 2.1× on Zen 5",
    (
        "pipelines500",
        "272 ",
    ): "products of one-hot codes; since then their tables' rows are added: 17× on Zen 3, and not measured again there",
    ("pipelines500", "048 "): "a row's time goes into support vectors of 617 columns, which come from memory; 2.4× on Intel",
    ("pipelines500", "198 "): "a row's time goes into support vectors of 500 columns, which come from memory",
    (
        "text",
        "CountVectorizer",
    ): "measured before one document had a short way; 4.2× on Zen 3 since, and not measured again there",
    ("pipelines500", "200 "): "nearest rows among all that were learned: both multiply matrices, scikit-learn with OpenBLAS",
    ("text", "DictVectorizer"): "measured before one dict had a short way; 4.3× on Zen 3 since, and not measured again there",
    (
        "text",
        "FeatureHasher",
    ): "measured before one dict had a short way: 3× for one on Zen 3, 1.04× for 100, 1.16× for 3,000, and names are hashed faster since",
}
"""(benchmark, a part of a workload's name) → why hbc loses there."""


class Cell(NamedTuple):
    """The fastest peer of a workload beside hbc, for calls of so many rows. processor: a folder of results. `ratio`: its time over hbc's;
    below 1, hbc is slower."""

    processor: str
    benchmark: str
    workload: str
    rows: int
    peer: str
    ratio: float

    @property
    def cause(self) -> str:
        """Why hbc is slower. Raises KeyError where CAUSES does not say it."""
        for (benchmark, part), cause in CAUSES.items():
            if benchmark == self.benchmark and part in self.workload:
                return cause
        raise KeyError(f"benchmarks/losses.py: CAUSES must say why hbc loses at {self}")


def cells() -> list[Cell]:
    """Every workload and number of rows at which hbc and a peer were measured on a processor."""
    found = []
    for benchmark in BENCHMARKS:
        for path in report.RESULTS.glob(f"*/{benchmark}.json.gz"):
            for name, workload in report.read(path)["workloads"].items():
                own = workload.get("engines", {}).get(MAIN, {})
                for rows in own.get("times_us", {}):
                    time, peer = microseconds(own, rows), fastest_peer(workload, rows)
                    if time is not None and peer is not None:
                        found.append(Cell(path.parent.name, benchmark, name, int(rows), peer[1], peer[0] / time))
    return found


def section() -> str:
    """The losses of hbc as a table, the worst first."""
    measured = cells()
    lost = sorted((cell for cell in measured if cell.ratio < 1), key=lambda cell: cell.ratio)
    lines = [
        f"Another engine is faster than hbc's TVM at {len(lost)} of {len(measured):,} points: a model, the rows of a call, and a "
        "processor.\n",
        "| processor | benchmark | model | rows | faster engine | its time over hbc's | why |",
        "|---|---|---|---|---|---|---|",
    ]
    for cell in lost:
        name = cell.workload.removeprefix("sklearn.")
        processor = figures.PROCESSORS.get(cell.processor, cell.processor)
        shown = (processor, cell.benchmark, name, f"{cell.rows:,}", cell.peer, report.times(cell.ratio), cell.cause)
        lines.append(f"| {' | '.join(shown)} |")
    return "\n".join(lines) + "\n"
