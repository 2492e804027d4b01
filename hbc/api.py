"""The one file that sees every room: parser → optimizer → compiler → CompiledModel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hbc.compiler.base import CompileOptions, Compiler, Executable, backend_name, load_compiler
from hbc.ir.graph import Graph
from hbc.optimizer.checks import input_limits
from hbc.optimizer.partition import partition
from hbc.optimizer.pipeline import optimize
from hbc.parser.parse import parse
from hbc.runtime.host import HostedExecutable
from hbc.runtime.inputs import describe
from hbc.runtime.model import CompiledModel, Variant


def convert(
    model: Any,
    backend: str = "tvm",
    X: Any = None,
    device: str = "cpu",
    *,
    strategy: str = "auto",
    batch_size: int | None = None,
    threads: int | None = None,
    target: Mapping[str, Any] | None = None,
) -> CompiledModel:
    """Compile a fitted model."""
    name = backend_name(backend)
    compiler = load_compiler(name)
    options = CompileOptions(device, threads, target, batch_size)
    parsed = parse(model, None if X is None else describe(X))
    variants = {}
    for kinds, graph in parsed.variants.items():
        variants[kinds] = Variant(graph, lambda graph: _build(graph, compiler, options, strategy))
    return CompiledModel(parsed.info, parsed.spec, variants, name, device)


def _build(graph: Graph, compiler: Compiler, options: CompileOptions, strategy: str) -> tuple[Executable, Any, Any]:
    """Optimize and compile one variant."""
    optimized = optimize(graph, compiler, options, strategy)
    limits = input_limits(graph)
    if compiler.handles_strings:
        return compiler.compile(optimized.graph, options), limits, optimized
    parts = partition(optimized.graph)
    device = compiler.compile(parts.device, options) if parts.device.outputs else None
    if device is not None and parts.before is None and not parts.after:
        return device, limits, optimized
    return HostedExecutable(parts.before, device, frozenset(parts.device.outputs), parts.after), limits, optimized
