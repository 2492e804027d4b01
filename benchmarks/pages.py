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


def section(name: str) -> str:
    """The text of a benchmark: a heading, the picture and the include for each machine."""
    parts = []
    for tables in sorted(report.RESULTS.glob(f"*/{name}.md")):
        processor = figures.PROCESSORS.get(tables.parent.name, tables.parent.name)
        parts.append(f"### {processor}")
        picture = pictures.path_of(tables)
        if name in pictures.DRAWN and picture.exists():
            parts.append(f"![{processor}](pictures/{picture.name})")
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
