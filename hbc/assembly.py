"""Optimizer and compiler in sequence: a graph becomes a plan, the plan an executable or a file."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hbc.compiler.base import LOWERED_STRATEGIES, About, CompileOptions, Compiler, Executable, completed, refuse_strings
from hbc.errors import ArtifactError
from hbc.ir.graph import Graph, Node, Operator, gives_rows, takes_rows
from hbc.ir.rewrite import rewrite
from hbc.ir.signature import Limits
from hbc.ops.functions import Function
from hbc.optimizer.limits.checks import input_limits, looser_limits, lower_accepted
from hbc.optimizer.limits.row_test import surely_accepted
from hbc.optimizer.partition import Partition, join_codes, makes_rows_of_much, partition, sides
from hbc.optimizer.pipeline import optimize
from hbc.runtime.host import HostedExecutable
from hbc.runtime.variant import Facts, Launches, Plan


class Recipe(NamedTuple):
    """How graphs become executables: the compiler and its options, the strategy of tree ensembles, and a note on it for `explain()`."""

    compiler: Compiler
    options: CompileOptions
    strategy: str
    note: str


def plan(recipe: Recipe, graph: Graph) -> Plan:
    """A graph after the optimizer, and what calls must know of it. Raises UnsupportedOperatorError."""
    optimized = optimize(graph, *recipe)
    whole = _whole_on_device(optimized.graph, recipe.compiler)
    final = optimized.graph if whole else join_codes(optimized.graph)
    launches = _launches(final, recipe.compiler)
    side = {} if whole else sides(final)
    hosted = frozenset(node for node, where in side.items() if where != "device" and node.inputs)
    limits = lower_accepted(input_limits(graph), recipe.compiler)
    looser = {method: lower_accepted(limits, recipe.compiler) for method, limits in looser_limits(graph).items()}
    outputs = final.outputs
    results = {method: tuple(node.type for node in group) for method, group in outputs.items()}
    rows = frozenset(method for method, group in outputs.items() if len(group) == 1 and gives_rows(group[0]))
    return Plan(final, optimized.records, Facts(limits, looser, results, rows), launches, hosted)


def compile_plan(recipe: Recipe, plan: Plan) -> Executable:
    """The executable of a plan."""
    compiler = recipe.compiler
    if compiler.handles_strings and not _makes_rows(plan.graph):
        return _compiled(recipe, plan.graph)
    parts = partition(plan.graph)
    device = _compiled(recipe, parts.device) if parts.device.outputs else None
    if device is not None and parts.before is None and not parts.after:
        return device
    parts = parts.with_host(functools.partial(compiler.on_host, options=recipe.options))
    methods, in_blocks = frozenset(parts.device.outputs), makes_rows_of_much(plan.graph)
    return HostedExecutable(parts.before, device, methods, parts.after, parts.labels, in_blocks)


def row_test(recipe: Recipe, graph: Graph, limits: Limits) -> Executable | None:
    """The executable of the test of a graph's input, whose method "accepted" says of each row that it surely passes. None where no operator
    can tell."""
    test = surely_accepted(graph, limits)
    return None if test is None else _compiled(recipe, optimize(test, *recipe).graph)


def _compiled(recipe: Recipe, graph: Graph) -> Executable:
    return completed(recipe.compiler.compile(graph, recipe.options), Executable)  # type: ignore[type-abstract]


def export(
    recipe: Recipe, graph: Graph, path: str, about: About, methods: Sequence[str] | None, chosen: Mapping[str, Any]
) -> None:
    """Write some methods of a graph (None: all) to a file, with the options that the caller has `chosen`."""
    if not Path(path).absolute().parent.is_dir():
        raise ArtifactError(path=path, found="no such folder", expected="an existing folder to write to")
    _require_known(chosen, recipe.compiler, Path(path).suffix.lower(), path)
    compiler, options = recipe.compiler.for_file(chosen, recipe.options)
    parsed = graph if methods is None else graph.select(*methods)
    about = about._replace(asked=methods is not None)
    whole = _whole(recipe._replace(compiler=compiler, options=options), parsed, about, path, f"{Path(path).suffix} files")

    def limits(method: str) -> Limits:
        return lower_accepted(input_limits(parsed.select(method), computed=True), compiler)

    compiler.export(whole, options, path, about._replace(limits=limits))


def module(recipe: Recipe, graph: Graph, about: About) -> Any:
    """A graph as an `nn.Module` of PyTorch. Raises ValueError for a backend that makes none, and for what a module cannot hold."""
    compiler = recipe.compiler
    if not compiler.makes_module:
        raise ValueError(f"backend {compiler.name!r} has no nn.Module. Convert the model with backend='torch'.")
    return compiler.module(_whole(recipe, graph, about, "module", "modules of PyTorch"), recipe.options)


def _whole(recipe: Recipe, graph: Graph, about: About, place: str, holder: str) -> Graph:
    """The optimized graph for a file or a module, in which the host computes nothing. Raises ArtifactError or ValueError, which begins
    with `place`, for what the `holder` cannot hold."""
    compiler, options, strategy, note = recipe
    graph = rewrite(graph, _as_arrays)
    if not (compiler.handles_strings or compiler.writes_strings):
        graph = _without_strings(graph, place, holder, about)
    if strategy not in ("auto", *LOWERED_STRATEGIES, *compiler.strategies):
        strategy = "auto"
    graph = optimize(graph, compiler, options, strategy, note).graph
    hosted = sorted(
        {_operator_name(node.op) for node in graph.nodes if node.op.in_numpy or gives_rows(node) or takes_rows(node)}
    )
    if hosted:
        raise ArtifactError(
            path=place,
            found=f"a part that runs in numpy, outside the compiled code: {', '.join(hosted)}",
            expected=f"operators that {holder} can hold",
            advice="save() it instead.",
        )
    return graph


def _makes_rows(graph: Graph) -> bool:
    return any(node.op.rows == "makes" for node in graph.nodes)


def _whole_on_device(graph: Graph, compiler: Compiler) -> bool:
    return compiler.handles_strings and not _makes_rows(graph)


def _launches(graph: Graph, compiler: Compiler) -> dict[str, Launches]:
    parts = Partition(None, graph, {}) if _whole_on_device(graph, compiler) else partition(graph)
    found = {}
    for method in graph.outputs:
        device = _n_operators(parts.device.select(method)) if method in parts.device.outputs else 0
        around = [part for part in (parts.before, parts.after.get(method)) if part is not None]
        found[method] = Launches(min(device, 1) if compiler.one_launch else device, sum(map(_n_operators, around)))
    return found


def _n_operators(graph: Graph) -> int:
    return sum(1 for node in graph.nodes if node.inputs)


def _require_known(chosen: Mapping[str, Any], compiler: Compiler, suffix: str, path: str) -> None:
    """Raise ValueError for options that the compiler does not take for files of this suffix."""
    files = compiler.exports
    known = ("methods", "dtype", *(files[suffix] if isinstance(files, Mapping) else ()))
    if unknown := [name for name in chosen if name not in known]:
        raise ValueError(f"{path}: unknown option {', '.join(unknown)}; {suffix} files take {', '.join(known)}")


def _without_strings(graph: Graph, place: str, holder: str, about: About) -> Graph:
    """The graph for a `holder` that cannot hold strings: without the methods that return them, which warns; ValueError if the caller
    has asked for them. Raises ValueError for a graph that takes strings."""
    if any(node.type.dtype == "str" for node in graph.inputs):
        refuse_strings(place, holder, about.spec, about.kinds)
    texts = [method for method, group in graph.outputs.items() if any(node.type.dtype == "str" for node in group)]
    if not texts:
        return graph
    numeric = [method for method in graph.outputs if method not in texts]
    advice = "Use classes_ with predict_proba." if "predict_proba" in graph.outputs else "Export it to .onnx, or save() it."
    returned = f"{' and '.join(texts)} return{'s' if len(texts) == 1 else ''} strings, which {holder} cannot hold. {advice}"
    if about.asked or not numeric:
        raise ValueError(f"{place}: {returned}")
    warnings.warn(f"{place} leaves out methods: {returned}", UserWarning, stacklevel=6)
    return graph.select(*numeric)


def _operator_name(op: Operator) -> str:
    return f"{type(op).__name__} {op.function!r}" if isinstance(op, Function) else type(op).__name__


def _as_arrays(node: Node) -> Node | None:
    """A rewrite rule for files: the node that gives an array instead of Rows (hbc.ir.rows). None for nodes that stay."""
    if node.op.rows != "makes" or type(node.op).lower is Operator.lower:
        return None
    return node.op.lower(*node.inputs)
