"""`python -m benchmarks NAME … [--quick]`: the one entry of all benchmarks. Without a name it lists them."""

from __future__ import annotations

import argparse
import ast
import difflib
import importlib
import subprocess
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from benchmarks import machine
from benchmarks.session import CannotRun, Run, parser_of

ORDER = (
    "trees",
    "paper",
    "operators",
    "pipelines500",
    "optimizer",
    "strategies",
    "scaling",
    "frames",
    "few_rows",
    "records",
    "text",
    "tune",
    "cold_start",
    "files",
    "scoring",
    "commands",
    "serving",
)
"""The benchmarks that `all` names, in its order. Each is a module with OPTIONS, `run(Run)` and `markdown(results)`."""
OTHERS = ("checkouts", "soak", "workers", "gpu")
"""Those that need to be told something or other packages, or that take long and compare nothing."""
WITHOUT_A_RUN = ("join", "render")
"""What works on results that are there. Each is a module with `main(arguments)`."""

CANNOT_RUN = 3
"""The exit status of a benchmark that raised CannotRun."""


def main(arguments: Sequence[str]) -> int:
    """Exit status 1 if hbc failed or was not exact anywhere, 2 for a name that nothing has or options that make no sense, 3 if the
    one that is named cannot run here. Of several, those that cannot run here are left out and listed at the end."""
    if arguments and arguments[0] in WITHOUT_A_RUN:
        return int(importlib.import_module(f"benchmarks.{arguments[0]}").main(arguments[1:]))
    count = next((i for i, argument in enumerate(arguments) if argument.startswith("-")), len(arguments))
    names, options = list(arguments[:count]), list(arguments[count:])
    if not names:
        print(listing())
        return 2 if options and options[0] not in ("-h", "--help") else 0
    if names == ["all"]:
        names = list(ORDER)
    known = (*ORDER, *OTHERS, *WITHOUT_A_RUN)
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            print(f"no benchmark is called {name!r}; {f'did you mean {near[0]}?' if near else 'known are ' + ', '.join(known)}")
            return 2
    if len(names) > 1:  # each in a process of its own: its memory, imports and cores are not those of the ones before
        command = [sys.executable, "-m", "benchmarks"]
        status = {name: subprocess.run([*command, name, *options]).returncode for name in dict.fromkeys(names)}
        if absent := [name for name in names if status[name] == CANNOT_RUN]:
            print(f"left out, for the reasons above: {', '.join(absent)}")
        if failed := [name for name in names if status[name] not in (0, CANNOT_RUN)]:
            print(f"failed or not exact: {', '.join(failed)}")
        return 1 if failed else 0
    return one(names[0], options)


def one(name: str, arguments: Sequence[str]) -> int:
    """Runs one benchmark in this process."""
    machine.with_one_thread(["benchmarks", name, *arguments])
    module = importlib.import_module(f"benchmarks.{name}")
    options: argparse.Namespace = parser_of(name, module.__doc__ or "", module.OPTIONS).parse_args(arguments)
    warnings.simplefilter("ignore")  # models that did not converge are measured too
    run = Run(name, options, module.markdown)
    try:
        module.run(run)
    except CannotRun as error:
        print(f"{name}: {error}")
        return CANNOT_RUN
    except ValueError as error:
        if run.results["workloads"]:
            raise
        print(f"{name}: {error}")
        return 2
    return max(run.finish(), getattr(module, "status", lambda results: 0)(run.results))


def listing() -> str:
    """The names, each with the first sentence about it."""
    lines = [
        "python -m benchmarks NAME … [--quick] [options]; python -m benchmarks NAME --help lists a benchmark's options",
        "",
    ]
    for name in (*ORDER, *OTHERS, *WITHOUT_A_RUN):
        text = ast.get_docstring(ast.parse((Path(__file__).parent / f"{name}.py").read_text())) or ""
        lines.append(f"  {name:<14}{' '.join(text.split()).partition('. ')[0].rstrip('.')}")
    return "\n".join([*lines, f"  {'all':<14}All but {', '.join(OTHERS)}, one after the other"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
