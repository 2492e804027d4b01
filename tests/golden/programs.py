"""Renders golden programs, keeps them, and prints how they differ."""

from __future__ import annotations

import difflib
import lzma
import re
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import hbc
from golden.models import TARGETS, Golden, golden_models
from hbc.api import Builder
from hbc.compiler.base import CompileOptions, load_compiler
from hbc.compiler.tvm.host.descent import sweep
from hbc.compiler.tvm.host.text_count import item_sums, term_counts, term_table
from hbc.compiler.tvm.host.topics import iteration
from hbc.compiler.tvm.run.methods import GraphMethods
from hbc.compiler.tvm.run.targets import machine
from hbc.ir.printer import print_graph
from hbc.optimizer.partition import partition

KEPT = Path(__file__).parent / "programs"

NUMBERS = re.compile(r"(\bf(?:32|64)\[[^\]]*\])(?:\([^)]*\)| @ k\w+)")
"""An array of floats in a printed graph. Their last bits depend on the computer on which the model was fitted."""


def render(golden: Golden, values: bool = False) -> str:
    """The optimized graphs and the TIR of all methods, by target, strategy and dtype. `values`: with the floats of the graphs, too."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, X = golden.make()
    parsed = hbc.convert(model, "numpy", X if golden.sample else None)
    parts = []
    for target in golden.targets:
        for strategy in golden.strategies:
            first = target == golden.targets[0] and strategy == golden.strategies[0]
            for kinds, variant in _rendered(parsed, every=first):
                title = f"=== {target}, {strategy}, {kinds}"
                parts += [title, *_program(variant.graph, target, strategy, golden.batch_size, values, every=first)]
    return "\n".join(parts) + "\n"


def _rendered(parsed: hbc.CompiledModel, every: bool) -> list[tuple[str, Any]]:
    """The variants of a model that are rendered, by their dtypes: of floats `every` one, or the first alone."""
    named = {"/".join(sorted(set(kinds))): variant for kinds, variant in parsed.variants.items()}
    return [item for item in named.items() if "i64" not in item[0]][: None if every else 1]


def _program(graph: Any, target: str, strategy: str, batch_size: int | None, values: bool, every: bool) -> Iterator[str]:
    """The optimized graph, and the TIR of its first method or of `every` one."""
    options = CompileOptions(target=TARGETS[target], batch_size=batch_size, threads=1)
    plan = Builder("tvm", options, strategy).plan(graph)
    text, _ = print_graph(plan.graph)
    yield text if values else NUMBERS.sub(r"\1 …", text)
    device = partition(plan.graph).device
    if not device.outputs:
        return
    compiler = load_compiler("tvm")
    with mock.patch.object(GraphMethods, "compile_all"):  # nvcc takes seconds, and its code is not ours
        executable = compiler.compile(device, options)
    first = next(iter(device.outputs))
    for method in device.outputs if every else (first,):
        yield f"--- {method}\n{script(executable.methods.kernel(method).function)}"
    if every and target != "sm_90" and all(node.type.is_float for node in device.inputs) and len(device.inputs) == 1:
        executable = compiler.compile(device, options)
        yield f"--- {first}, which tests its input\n{script(executable.methods.kernel(first, True, True).function)}"


def render_host() -> str:
    """The TIR of what runs on the host around a compiled graph: texts, dicts, topics, NMF."""
    parts = []
    for target in ("haswell", "avx512"):
        dialect = machine("cpu", TARGETS[target]).dialect
        parts.append(f"=== {target}, topics\n{script(iteration(dialect))}")
        parts += [f"=== {target}, NMF {kind}\n{script(sweep(kind, dialect))}" for kind in ("f32", "f64")]
    for analyzer in ("word", "char", "char_wb"):
        parts += [f"=== {analyzer}, hashed={hashed}\n{script(term_counts(analyzer, hashed))}" for hashed in (False, True)]
        parts.append(f"=== {analyzer}, table\n{script(term_table(analyzer))}")
    parts.append(f"=== dicts\n{script(item_sums())}")
    return "\n".join(parts) + "\n"


NAME = re.compile(r"(?<![\w\"'.])([A-Za-z_]\w*?)(?:_(\d+))?(?![\w\"'])")


def script(function: Any) -> str:
    """A TIR function as text. TVM numbers variables of one name by their places in memory. Here they are numbered in the order of the
    text, and their declarations, which TVM prints first, are left out."""
    seen: dict[str, dict[str, str]] = {}

    def numbered(match: re.Match[str]) -> str:
        name = match[1]
        known = seen.setdefault(name, {})
        return known.setdefault(match[0], f"{name}_{len(known)}" if known else name)

    lines = (line for line in function.script().splitlines() if "= TypeVar(" not in line)
    return NAME.sub(numbered, "\n".join(lines))


def programs() -> dict[str, Callable[[], str]]:
    """Name → what renders it."""
    rendered: dict[str, Callable[[], str]] = {golden.name: partial(render, golden) for golden in golden_models()}
    return {**rendered, "on the host": render_host}


def file_of(name: str) -> Path:
    return KEPT / (re.sub(r"\W+", "-", name).strip("-").lower() + ".txt.xz")


def kept(name: str) -> str:
    """What is kept under a name; "" if nothing is."""
    path = file_of(name)
    return lzma.decompress(path.read_bytes()).decode() if path.exists() else ""


def keep(name: str, text: str) -> bool:
    """Keep a text under a name. Returns whether it is another one than before."""
    if kept(name) == text:
        return False
    file_of(name).write_bytes(lzma.compress(text.encode(), preset=9))
    return True


def difference(name: str, text: str, lines: int = 200) -> str:
    """The unified difference of a text from the one that is kept, cut after so many lines; "" if there is none."""
    before = kept(name)
    if before == text:
        return ""
    found = list(
        difflib.unified_diff(before.splitlines(), text.splitlines(), f"kept: {name}", f"now: {name}", lineterm="", n=2)
    )
    more = [f"… {len(found) - lines} lines more"] if len(found) > lines else []
    return "\n".join([*found[:lines], *more])
