"""The passes, in their order, and the driver that runs them."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from hbc.compiler.base import CompileOptions, Compiler
from hbc.ir.graph import Graph
from hbc.optimizer.columns.select import PushSelection
from hbc.optimizer.columns.simplify import FoldConstants, MergeColumns, RemoveChecks
from hbc.optimizer.host import PlaceFunctions
from hbc.optimizer.linear.algebra import FoldLinear
from hbc.optimizer.lower import Lower
from hbc.optimizer.strategy import ChooseStrategy
from hbc.optimizer.trees.absorb import NumbersIntoTrees
from hbc.optimizer.trees.absorb_categories import CategoriesIntoTrees
from hbc.optimizer.trees.narrow_codes import NarrowCodes
from hbc.optimizer.trees.prune import PruneTrees
from hbc.process import CHOICES, GRAPHS, PASSES, debug_level

Pass = Callable[[Graph], Graph]


NEEDED = ("RemoveChecks", "PlaceFunctions", "ChooseStrategy", "Lower")
"""Without these a graph does not compile, or not to what the source computes."""


@dataclass(frozen=True)
class PassRecord:
    """One pass that ran: its name, whether the graph changed, its time in seconds, and what it has to say."""

    name: str
    changed: bool
    seconds: float
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Optimized:
    graph: Graph
    records: tuple[PassRecord, ...]


def optimize(graph: Graph, compiler: Compiler, options: CompileOptions, strategy: str = "auto", tuned: str = "") -> Optimized:
    """Every pass on a parsed graph, down to what the compiler runs. The graph is verified before and after each pass; an error
    names the pass. `HBC_DEBUG` prints: 1 passes and times, 2 their choices, 3 the graph after each pass. `HBC_WITHOUT` names passes,
    with commas between them, that are left out: to find a culprit, or to measure what a pass gains."""
    notes: list[str] = []
    passes: tuple[Pass, ...] = (
        PruneTrees(notes),  # first: what is only read by branches that no row reaches is not computed
        PushSelection(),  # early: checks say where a weight of 0 meets no NaN; before MergeColumns, which joins what it selects
        FoldLinear(notes),  # before RemoveChecks: what was checked is finite
        RemoveChecks(),  # before the others: checks stand between operators that later passes match together
        NumbersIntoTrees(compiler, options, strategy, notes),  # behind PushSelection: it looks at every column that trees read
        NarrowCodes(notes),  # behind NumbersIntoTrees, which takes away what stands between codes and trees
        MergeColumns(),  # before strategies: fewer columns may reach a tree ensemble
        PlaceFunctions(compiler, notes),  # before lowering, which leaves the host's operators as they are
        ChooseStrategy(compiler, options, strategy, notes, tuned),  # before lowering, which follows the choice
        CategoriesIntoTrees(compiler, notes),  # after the choice: a scan tests sets as fast as numbers, a walk does not
        Lower(compiler, options.device),
        FoldConstants(),  # last: lowering makes constants out of parameters
    )
    debug, without = debug_level(), _without(passes)
    records = []
    graph.verify()
    for step in passes:
        name = type(step).__name__
        if name in without:
            continue
        notes.clear()
        start = time.perf_counter()
        try:
            after = step(graph).verify()
        except (TypeError, RuntimeError) as error:
            if isinstance(error, NotImplementedError):
                raise
            raise type(error)(f"pass {name}: {error}") from error
        records.append(PassRecord(name, after.nodes != graph.nodes, time.perf_counter() - start, tuple(notes)))
        graph = after
        _trace(debug, records[-1], graph)
    return Optimized(graph, tuple(records))


def _without(passes: tuple[Pass, ...]) -> set[str]:
    """The names in HBC_WITHOUT."""
    names = {name.strip() for name in os.environ.get("HBC_WITHOUT", "").split(",") if name.strip()}
    optional = [name for name in (type(step).__name__ for step in passes) if name not in NEEDED]
    if unknown := names.difference(optional):
        raise ValueError(f"HBC_WITHOUT names {', '.join(sorted(unknown))}; what can be left out is {', '.join(optional)}")
    return names


def _trace(debug: int, record: PassRecord, graph: Graph) -> None:
    if debug >= PASSES:
        change = "changed" if record.changed else "-"
        print(f"hbc: pass {record.name:<16} {record.seconds * 1e3:8.2f} ms  {change}", file=sys.stderr)
    if debug >= CHOICES:
        for note in record.notes:
            print(f"hbc:   {note}", file=sys.stderr)
    if debug >= GRAPHS and record.changed:
        print(graph, file=sys.stderr)
