"""The command line of the golden programs: see the package's docstring."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import golden
from golden.models import golden_models
from golden.programs import difference, file_of, keep, programs, render


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m golden", description=golden.__doc__)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--write", action="store_true", help="render all programs and keep them")
    action.add_argument("--diff", action="store_true", help="print how they differ from those that are kept")
    action.add_argument("--values", metavar="FOLDER", type=Path, help="write them to a folder, with the floats of the graphs")
    parser.add_argument("--only", default="", help="those alone whose name contains this")
    options = parser.parse_args()
    wanted = {name: make for name, make in programs().items() if options.only in name}
    if options.values:
        options.values.mkdir(parents=True, exist_ok=True)
        wanted.update({model.name: partial(render, model, values=True) for model in golden_models() if model.name in wanted})
    changed = 0
    for name, make in wanted.items():
        text = make()
        if options.values:
            (options.values / file_of(name).stem).write_text(text)
        elif options.write:
            changed += (new := keep(name, text))
            print("changed  " if new else "same     ", name, flush=True)
        elif found := difference(name, text):
            changed += 1
            print(found, flush=True)
    if not options.values:
        print(f"{len(wanted)} programs, {changed} of them other than before")


main()
