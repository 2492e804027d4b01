"""Joins results of one benchmark from one machine: each workload is taken from the run that measured it last. Nothing is measured.

    python -m benchmarks join FILE … --out FILE

A workload keeps the machine of its run, with time, commit and load, and the tables list the runs."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import report

SAME = ("size", "threads", "batches")
"""The settings in which the runs must agree. Rounds, seconds and cores may differ: they change how sure a figure is, and not what it is."""


def main(arguments: Sequence[str]) -> int:
    """Exit status 2 if the files do not belong together."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks join", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "files", nargs="+", type=Path, metavar="FILE", help="files of results; the order of the workloads is theirs"
    )
    parser.add_argument("--out", type=Path, required=True, help="the joined file; the tables go beside it")
    options = parser.parse_args(arguments)
    try:
        joined = join([report.read(path) for path in options.files])
    except ValueError as error:
        print(f"join: {error}")
        return 2
    report.write(joined, options.out, importlib.import_module(f"benchmarks.{joined['benchmark']}").markdown)
    print(f"written: {options.out} and {report.tables_of(options.out)}")
    return 0


def join(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The results of all parts. Each workload is of the part that measured it last, and has that part's machine. The rest is of the newest
    part. Raises ValueError if the parts differ in the benchmark, the processor, or a setting of SAME."""
    newest = max(parts, key=lambda part: str(part["machine"]["time"]))
    for part in parts:
        for what, found, other in _facts(part, newest):
            if found != other:
                raise ValueError(f"the runs differ in {what}: {found} and {other}")
    workloads: dict[str, Any] = {}
    for part in parts:
        for name, workload in part["workloads"].items():
            own = {**workload, "machine": report.machine_of(part, workload)}
            known = workloads.get(name)
            if known is None or known["machine"]["time"] < own["machine"]["time"]:
                workloads[name] = own
    left = dict.fromkeys(name for part in parts for name in part.get("not_begun", ()) if name not in workloads)
    joined = {**newest, "workloads": workloads}
    joined.pop("not_begun", None)
    return {**joined, "not_begun": list(left)} if left else joined


def _facts(part: dict[str, Any], newest: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """(what it is, of a part, of the newest part) of all that must be the same."""
    return [
        ("the benchmark", part.get("benchmark", newest["benchmark"]), newest["benchmark"]),
        ("the processor", part["machine"]["processor"], newest["machine"]["processor"]),
        ("whether the processor has AVX-512", *("avx512f" in each["machine"]["flags"] for each in (part, newest))),
        *((f"the setting {name!r}", part["settings"].get(name), newest["settings"].get(name)) for name in SAME),
    ]
