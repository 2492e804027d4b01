"""The passes, in their order, and the driver that runs them."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

from hbc.compiler.base import CompileOptions, Compiler
from hbc.ir.graph import Graph
from hbc.ir.rewrite import Noted, without_facts
from hbc.lazy import record
from hbc.optimizer.columns.join import JoinColumns
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
from hbc.optimizer.trees.tables import LeavesIntoTables
from hbc.process import CHOICES, GRAPHS, PASSES, debug_level

Pass = Callable[[Graph], Graph | Noted]


@record
class Settings:
    """The settings that passes read: the compiler, the caller's options, the strategy, and the note on the choice of `hbc tune`."""

    compiler: Compiler
    options: CompileOptions
    strategy: str = "auto"
    tuned: str = ""


class Position(NamedTuple):
    """A pass in its place: how it is made, and why it stands there. `needed`: without
    it, some graphs do not compile, or do not compute the source's results."""

    kind: type[Pass]
    make: Callable[[Settings], Pass]
    reason: str
    needed: bool = False

    @property
    def name(self) -> str:
        return self.kind.__name__


ORDER: tuple[Position, ...] = (
    Position(PruneTrees, lambda s: PruneTrees(), "first: columns that only unreachable branches read are not computed"),
    Position(
        PushSelection,
        lambda s: PushSelection(),
        "early: checks say where a weight of 0 meets no NaN; before MergeColumns, which joins its selections",
    ),
    Position(FoldLinear, lambda s: FoldLinear(s.compiler, s.options), "before RemoveChecks: checked values are finite"),
    Position(
        RemoveChecks,
        lambda s: RemoveChecks(),
        "before the others: checks stand between operators that later passes match together",
        needed=True,
    ),
    Position(
        NumbersIntoTrees,
        lambda s: NumbersIntoTrees(s.compiler, s.options, s.strategy),
        "after PushSelection: it looks at every column that trees read",
    ),
    Position(
        PushSelection,
        lambda s: PushSelection(),
        "again, after NumbersIntoTrees: trees read some columns before their scaler now, and the scaler computes the others alone",
    ),
    Position(NarrowCodes, lambda s: NarrowCodes(), "after NumbersIntoTrees, which removes operators between codes and trees"),
    Position(MergeColumns, lambda s: MergeColumns(), "before ChooseStrategy: fewer columns may reach a tree ensemble"),
    Position(
        LeavesIntoTables,
        lambda s: LeavesIntoTables(s.compiler, s.options),
        "before ChooseStrategy: numbers of leaves and sums are best computed in different ways",
    ),
    Position(
        PlaceFunctions,
        lambda s: PlaceFunctions(s.compiler, s.options),
        "before Lower, which leaves the host's operators as they are",
        needed=True,
    ),
    Position(
        ChooseStrategy,
        lambda s: ChooseStrategy(s.compiler, s.options, s.strategy, s.tuned),
        "before Lower, which follows the choice",
        needed=True,
    ),
    Position(
        CategoriesIntoTrees,
        lambda s: CategoriesIntoTrees(s.compiler),
        "after ChooseStrategy: a scan tests sets as fast as numbers, a walk does not",
    ),
    Position(
        JoinColumns,
        lambda s: JoinColumns(),
        "after the passes that move operators into trees; before Lower, which makes many operators of one",
    ),
    Position(
        Lower, lambda s: Lower(s.compiler, s.options.device), "when all passes that match model operators are done", needed=True
    ),
    Position(FoldConstants, lambda s: FoldConstants(), "last: lowering makes constants out of parameters"),
)
"""The passes in their order, each with the reason for its position."""
NEEDED = tuple(position.name for position in ORDER if position.needed)


@record
class PassRecord:
    """One pass that ran: its name, whether the graph changed, its time in seconds, and its notes."""

    name: str
    changed: bool
    seconds: float
    notes: tuple[str, ...]


@record
class Optimized:
    graph: Graph
    records: tuple[PassRecord, ...]


def optimize(graph: Graph, compiler: Compiler, options: CompileOptions, strategy: str = "auto", tuned: str = "") -> Optimized:
    """The graph after all passes, as the compiler runs it, and a record of each pass. The graph is verified before the first and
    after each pass that changes it; an error names the pass.

    `HBC_DEBUG` prints: 1 passes and times, 2 their choices, 3 the graph after each pass. `HBC_WITHOUT` names passes, separated
    by commas, that are left out: to find a culprit, or to measure what a pass gains.
    """
    settings = Settings(compiler, options, strategy, tuned)
    debug, without = debug_level(), _without()
    records = []
    graph = without_facts(graph).verify()
    for position in ORDER:
        if position.name in without:
            continue
        start = time.perf_counter()
        try:
            found = position.make(settings)(graph)
            after, notes = found if isinstance(found, Noted) else (found, ())
            if after is not graph:
                after.verify()
        except (TypeError, RuntimeError) as error:
            if isinstance(error, NotImplementedError):
                raise
            raise type(error)(f"pass {position.name}: {error}") from error
        changed = after is not graph and after.nodes != graph.nodes
        records.append(PassRecord(position.name, changed, time.perf_counter() - start, notes))
        graph = after
        _trace(debug, records[-1], graph)
    return Optimized(graph, tuple(records))


def _without() -> set[str]:
    """The names in HBC_WITHOUT. Raises ValueError for names of no pass, and of passes that are needed."""
    names = {name.strip() for name in os.environ.get("HBC_WITHOUT", "").split(",") if name.strip()}
    optional = dict.fromkeys(position.name for position in ORDER if not position.needed)
    if unknown := names.difference(optional):
        raise ValueError(
            f"HBC_WITHOUT names {', '.join(sorted(unknown))}; the passes that can be left out are {', '.join(optional)}"
        )
    return names


def _trace(debug: int, record: PassRecord, graph: Graph) -> None:
    if debug >= PASSES:
        change = "changed" if record.changed else "-"
        print(f"hbc: pass {record.name:<20} {record.seconds * 1e3:8.2f} ms  {change}", file=sys.stderr)
    if debug >= CHOICES:
        for note in record.notes:
            print(f"hbc:   {note}", file=sys.stderr)
    if debug >= GRAPHS and record.changed:
        print(graph, file=sys.stderr)
