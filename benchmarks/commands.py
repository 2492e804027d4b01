"""What `hbc verify` and `hbc bench` print for the example of docs/command-line.md: the page shows it. The times in it are those of the
machine."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import figures, report
from benchmarks.session import Run

PAGE = figures.ROOT / "docs" / "command-line.md"
SHOWN = ("hbc verify", "hbc bench")
"""How the commands begin whose output the page shows. The first one on the page counts."""
OPTIONS: dict[str, dict[str, Any]] = {}


def examples() -> tuple[str, list[str]]:
    """(the Python that makes the page's files, all commands of the page in order)."""
    text = PAGE.read_text()
    (python,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    commands = [line for block in re.findall(r"```bash\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]
    return python, [line for line in commands if line.startswith("hbc ")]


def run(run: Run) -> None:
    python, commands = examples()
    run.on_one_core()
    asked = run.asked([next(line for line in commands if line.startswith(start)) for start in SHOWN])
    with tempfile.TemporaryDirectory() as name:
        subprocess.run([sys.executable, "-c", python], cwd=name, check=True)
        for line in commands:
            if line.startswith("hbc convert") and ".onnx" not in line:  # of which no shown command reads a file
                printed(line, Path(name))
        for each in run.steps(asked):
            run.results["workloads"][each] = {"printed": printed(each, Path(name))}


def printed(command: str, folder: Path) -> str:
    """What a command prints. Raises CalledProcessError."""
    words = [sys.executable, "-m", "hbc", *command.split()[1:]]
    environment = {"PYTHONPATH": str(figures.ROOT), "HOME": str(folder), "PATH": "/usr/bin:/bin"}
    return subprocess.run(words, cwd=folder, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout


def markdown(results: dict[str, Any]) -> str:
    lines = [report.heading(results, "Commands", "What commands print. Times are of this machine."), ""]
    for name, found in results["workloads"].items():
        lines += [f"    $ {name}", *(f"    {line}".rstrip() for line in found["printed"].splitlines()), ""]
    return "\n".join(lines)
