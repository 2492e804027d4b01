"""The sections of docs/benchmarks.md: for each machine that has results of a benchmark, its picture and its tables, which are included."""

from __future__ import annotations

from pathlib import Path

from benchmarks import figures, pictures, report

SECTIONS: dict[str, str | None] = {
    "trees": "### ",
    "paper": "## Every engine",
    "pipelines500": "### By step",
    "scaling": None,
    "strategies": "## tvm: share",
    "frames": None,
    "few_rows": None,
    "records": None,
    "text": None,
    "cold_start": None,
    "operators": "## Failed or wrong",
    "serving": None,
    "soak": None,
    "scoring": None,
    "workers": None,
}
"""Benchmark → how the first line begins that its page leaves out; None: it shows the whole file."""
RUNS = {
    "haswell": "code for processors without AVX-512",
    "threads": "the curve of threads",
    "two-threads": "two threads",
    "13-cells": "13 of the 18 cells",
    "7-cells": "7 of the 18 cells, with later kernels",
    "8-cells": "8 of the 18 cells",
    "10-cells": "the other 10 cells",
    "149": "the first 149 pipelines",
    "270": "the first 270 pipelines",
    "more": "the next 168 pipelines",
    "six": "six of the ensembles, with later kernels",
    "five": "five of the ensembles, on a quiet core",
    "nine": "nine of the ensembles, while other work shared the machine",
    "rest": "some of these ensembles again, with later kernels",
    "again": "some operators again, with a later kernel of the argmax",
    "lone": "three operators again, with later kernels",
    "later": "26 operators again, with later kernels",
    "depth10": "forests of depth 10 and 12, as they are chosen since",
    "boosted": "the boosted ensembles again, while the machine was busy",
    "walks": "two of the ensembles again, with later walks, while the machine was busy",
    "unlimited": "two of the ensembles again, whose walks ask for nodes early, while the machine was busy",
    "cliffs": "the points at cliffs again, with later kernels",
    "350": "the next 350 pipelines",
    "mixed": "records of numbers and strings",
    "row": "rows of numbers",
}
"""What stands behind the name of a benchmark in the name of its file → the words for it."""


def section(name: str) -> str:
    """The text of a benchmark: a heading, the picture and the include for each of its files."""
    parts = []
    for tables in sorted(report.RESULTS.glob(f"*/{name}.md")) + sorted(report.RESULTS.glob(f"*/{name}-*.md")):
        words = [figures.PROCESSORS.get(tables.parent.name, tables.parent.name)]
        if run := tables.stem.removeprefix(name).lstrip("-"):
            words.append(RUNS.get(run, run))
        parts.append(f"### {', '.join(words)}")
        picture = pictures.path_of(tables)
        if name in pictures.DRAWN and picture.exists():
            parts.append(f"![{', '.join(words)}](pictures/{picture.name})")
        parts.append(_include(tables, SECTIONS.get(name)))
    return "\n\n".join(parts or ["Not measured yet."]) + "\n"


def _include(tables: Path, left_out: str | None) -> str:
    """The directive that includes a file up to a line, without its title; its headings become smaller."""
    options = [":start-line: 2", ":heading-offset: 2"]
    lines = tables.read_text().splitlines()
    if left_out is not None and (end := next((line for line in lines[2:] if line.startswith(left_out)), None)) is not None:
        options.append(f':end-before: "{end}"')
    place = f"../benchmarks/results/{tables.parent.name}/{tables.name}"
    return "\n".join([f":::{{include}} {place}", *options, ":::"])
