"""The compiler of the backend "torch": a graph becomes a Program, which PyTorch runs operator by operator."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from hbc.compiler.base import About, CompileOptions, Compiler, main_method
from hbc.compiler.costs import OneHotCosts, Work, choose, estimates, lowerable
from hbc.compiler.torch import coupling, ensembles, nearest  # noqa: F401 (they register rules)
from hbc.compiler.torch.costs import works
from hbc.compiler.torch.few import FEW_EAGER
from hbc.compiler.torch.program import Program
from hbc.compiler.torch.resident import MemoryOf
from hbc.compiler.torch.rules import RULES
from hbc.compiler.torch.run import TorchExecutable, thread_limits
from hbc.compiler.torch.table_sums import in_bag, one_hot_costs
from hbc.compiler.torch.trace import exported
from hbc.errors import BackendUnavailableError, InvalidInputError
from hbc.ir.graph import Constant, Graph, Input, Operator
from hbc.ir.store import write_atomically
from hbc.ir.types import DType
from hbc.ops.linear import TableSum
from hbc.ops.tree import TreeEnsemble
from hbc.process import SOURCE, show

PADDED_DEPTH = 10
"""The depth up to which trees are padded to perfect ones on a GPU, by the measurements of the Hummingbird paper."""


def checked_device(backend: str, options: CompileOptions) -> torch.device:
    """The device that the options name. Raises BackendUnavailableError if it does not exist, and InvalidInputError for a number of threads
    that this PyTorch cannot set."""
    kind, _, index = options.device.partition(":")
    if kind not in ("cpu", "cuda") or (index and not index.isdigit()) or (kind == "cpu" and index not in ("", "0")):
        reason = f"it has no device {options.device!r}, only 'cpu', 'cuda' and 'cuda:<number>'"
        raise BackendUnavailableError(backend=backend, reason=reason)
    if kind == "cuda" and not torch.cuda.is_available():
        raise BackendUnavailableError(
            backend=backend,
            reason=f"device {options.device!r} is not there: PyTorch {torch.__version__} sees no CUDA GPU",
            advice="Install a PyTorch built for CUDA on a machine with a GPU, or choose device='cpu'.",
        )
    if kind == "cuda" and index and int(index) >= torch.cuda.device_count():
        raise BackendUnavailableError(
            backend=backend, reason=f"device {options.device!r} is not there: PyTorch sees {torch.cuda.device_count()} GPUs"
        )
    if options.threads is not None and kind == "cpu" and thread_limits() is None:
        raise InvalidInputError(
            found=f"threads={options.threads}",
            expected="none",
            where="threads",
            advice="This PyTorch has one number of threads for the whole process only: call torch.set_num_threads yourself.",
        )
    # PyTorch's "cuda" would be the GPU that is the current one at the moment.
    return torch.device("cuda", int(index or 0)) if kind == "cuda" else torch.device("cpu")


class TorchCompiler(Compiler):
    """Compiles a graph to a Program that PyTorch runs eagerly, with the tree strategies of hbc.compiler.torch.costs."""

    name = "torch"
    strategies: tuple[str, ...] = ("scan", "walk")
    exports: Mapping[str, tuple[str, ...]] = {".pt2": ()}
    makes_module = True
    work: Mapping[str, Work] = works(FEW_EAGER)

    def supports(self, op: Operator) -> bool:
        if isinstance(op, TreeEnsemble):
            return ensembles.runs_as_it_is(op)
        if isinstance(op, TableSum):
            return in_bag(op)
        return type(op) in RULES or isinstance(op, (Input, Constant))

    def one_hot_costs(self, outputs: int, dtype: DType) -> OneHotCosts | None:
        return one_hot_costs(outputs, dtype)

    def choose_strategy(self, op: Operator, options: CompileOptions) -> tuple[str, str]:
        assert isinstance(op, TreeEnsemble)
        if options.device != "cpu":
            perfect = int(op.depths.max(initial=0)) <= PADDED_DEPTH and lowerable(op)["perf_tree_trav"]
            return (
                "perf_tree_trav" if perfect else "tree_trav",
                f"the paper's rule for GPUs: padding up to depth {PADDED_DEPTH}",
            )
        return choose(self.name, op, self.candidates(op, options), options.batch_size)

    def estimates(self, op: Operator, options: CompileOptions, rows: Sequence[int]) -> Mapping[str, Sequence[float]]:
        assert isinstance(op, TreeEnsemble)
        return estimates(self.name, op, self.candidates(op, replace(options, batch_size=rows[0])), rows)

    def candidates(self, op: TreeEnsemble, options: CompileOptions) -> Mapping[str, Work]:
        runs = {**{name: fits(op) for name, fits in ensembles.STRATEGIES.items()}, **lowerable(op)}
        return {name: work for name, work in self.work.items() if runs[name]}

    def compile(self, graph: Graph, options: CompileOptions) -> TorchExecutable:
        device = checked_device(self.name, options)
        with MemoryOf(device):
            program = Program(graph).to(device).eval()
        show(SOURCE, lambda: f"# run by PyTorch, operator by operator\n{program.operators}")
        return TorchExecutable(program, graph, device, options.threads, {name: program.width(name) for name in graph.outputs})

    def export(self, graph: Graph, options: CompileOptions, path: str, about: About) -> None:
        """Writes what `torch.export.load(path).module()(x)` runs: `forward` of Program, for any number of rows. Raises ValueError if the
        caller has asked for several methods, and ArtifactError for models that torch.export cannot hold."""
        if about.asked and len(graph.outputs) > 1:
            raise ValueError(
                f"{path}: methods: found {', '.join(graph.outputs)}, expected one, since a .pt2 file holds one method"
            )
        device, content = checked_device(self.name, options), io.BytesIO()
        alone = graph.select(main_method(graph.outputs))
        torch.export.save(exported(self.module(alone, options), alone, device, path), content)
        write_atomically(path, lambda file: file.write(content.getbuffer()))

    def module(self, graph: Graph, options: CompileOptions) -> Program:
        columns: dict[str, tuple[int, ...]] = {node.op.name: () for node in graph.inputs if isinstance(node.op, Input)}
        return Program(graph, columns).to(checked_device(self.name, options)).eval()


COMPILER = TorchCompiler()
