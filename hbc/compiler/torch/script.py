"""The compiler of the backend "torchscript", which traces the module of the backend "torch"."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from hbc.compiler.base import About, CompileOptions
from hbc.compiler.costs import Work
from hbc.compiler.torch.costs import works
from hbc.compiler.torch.eager import TorchCompiler, checked_device
from hbc.compiler.torch.exact import quiet_jit
from hbc.compiler.torch.few import FEW
from hbc.compiler.torch.program import Program, entry
from hbc.compiler.torch.resident import MemoryOf
from hbc.compiler.torch.run import TorchExecutable
from hbc.compiler.torch.trace import trace
from hbc.ir.graph import Graph
from hbc.ir.signature import input_layout
from hbc.ir.store import write_atomically
from hbc.lazy import record
from hbc.process import SOURCE, show


@record
class TorchScriptExecutable(TorchExecutable):
    """Runs a traced Program."""

    def _function(self, method: str) -> Callable[..., Any]:
        compute = super()._function(method)

        def unoptimized(*tensors: Tensor) -> Any:
            # The optimizing executor would compile again in its first two calls, and on a GPU fuse Mul and Add into one rounding.
            # This switch applies to the calling thread only.
            with torch.jit.optimized_execution(False):  # type: ignore[attr-defined]
                return compute(*tensors)

        return unoptimized


class TorchScriptCompiler(TorchCompiler):
    """Compiles a graph to TorchScript: the same rules and strategies as TorchCompiler, traced once at compile time."""

    name = "torchscript"
    exports: Mapping[str, tuple[str, ...]] = {".pt": ()}
    work: Mapping[str, Work] = works(FEW)

    def compile(self, graph: Graph, options: CompileOptions) -> TorchScriptExecutable:
        device = checked_device(self.name, options)
        with MemoryOf(device):
            program = Program(graph).to(device).eval()
        widths = {name: program.width(name) for name in graph.outputs}
        traced = trace(program, graph, device)
        show(SOURCE, lambda: "\n".join(getattr(traced, entry(method)).code for method in graph.outputs))
        return TorchScriptExecutable(traced, graph, device, options.threads, widths)

    def export(self, graph: Graph, options: CompileOptions, path: str, about: About) -> None:
        """Writes TorchScript. `torch.jit.load(path)(x)` is `forward` of Program, and `torch.jit.load(path).predict(x)` one of its methods
        (`apply` is called `apply_`), with one tensor for each of the graph's inputs."""
        device, content = checked_device(self.name, options), io.BytesIO()
        with quiet_jit():
            torch.jit.save(
                trace(Program(graph, input_layout(about.kinds)).to(device).eval(), graph, device, forward=True), content
            )
        write_atomically(path, lambda file: file.write(content.getbuffer()))


COMPILER = TorchScriptCompiler()
