"""What kernels take of a GPU, as nvcc says it: registers, local memory, spills, shared memory; and how many warps of an SM that leaves.

cd tests && python -m cuda_on_cpu.resources [words of names]    # a table of the models with golden programs for sm_90
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import hbc
from hbc.builder import Builder
from hbc.compiler.base import CompileOptions
from hbc.compiler.tvm.nest.schedule import Schedule
from hbc.compiler.tvm.run.methods import GraphMethods, cuda_source
from hbc.compiler.tvm.run.targets import compile_module, machine
from hbc.compiler.tvm.trees.categories import join_sets
from hbc.compiler.tvm.trees.gpu.choice import schedule_for
from hbc.optimizer.partition import partition

from . import kernels_of

ARCHES = ("sm_80", "sm_90")  # A100; H100 and H200
WARPS, REGISTERS, BLOCKS = 64, 65536, 32  # of an SM of both
SHARED = {"sm_80": 164 << 10, "sm_90": 228 << 10}  # of an SM
PER_BLOCK = 1 << 10  # shared memory that the driver takes for each block


def no_nvcc() -> str | None:
    """Why nothing can be compiled here; None if it can."""
    return None if shutil.which("nvcc") else "no nvcc on the PATH: install NVIDIA's CUDA toolkit"


class Resources(NamedTuple):
    """What a kernel takes. local: the bytes of a thread's stack, which lie in local memory (L1 and L2). spills: bytes stored and loaded
    since there were too few registers. warps: how many an SM can hold of its 64."""

    kernel: str
    arch: str
    threads: int
    registers: int
    local: int
    spills: int
    shared: int

    @property
    def warps(self) -> int:
        own = -(-self.threads // 32)
        by_registers = REGISTERS // (-(-self.registers * 32 // 256) * 256 * own)  # registers are given to warps in 256s
        by_shared = SHARED[self.arch] // (self.shared + PER_BLOCK)
        return min(WARPS // own, by_registers, by_shared, BLOCKS) * own


ENTRY = re.compile(
    r"Compiling entry function '(\w+)' for '(\w+)'.*?(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
    r".*?Used (\d+) registers([^\n]*)",
    re.DOTALL,
)


class Source(NamedTuple):
    """CUDA C of the kernels of one method, and for each the bytes of dynamic shared memory of a block, which nvcc does not know."""

    text: str
    dynamic: tuple[int, ...] = (0,)


def resources(sources: Mapping[str, Source]) -> list[Resources]:
    """What the kernels take, by name, for every architecture."""
    found: list[Resources] = []
    known: dict[Source, list[Resources]] = {}
    for name, source in sources.items():
        if source not in known:
            known[source] = _resources(*source)
        found += [row._replace(kernel=name + row.kernel) for row in known[source]]
    return sorted(found)


def _resources(source: str, dynamic: tuple[int, ...]) -> list[Resources]:
    """The same for one text. A method's kernel is called "", and those beside it, if there are any, ", few rows" and ", a row a block".

    The text is compiled alone, as hbc does at a call: with sixty kernels in one file, ptxas gave 32 registers and 1,000 bytes of spills to
    some that have 96 registers and no spills alone.
    """
    kernels = sorted(kernels_of(source))
    assert len(kernels) == len(dynamic)
    names = ["", ", few rows", ", a row a block"][: len(kernels)][::-1]
    facts = {kernel.name: (name, kernel.bounds, size) for kernel, name, size in zip(kernels, names, dynamic, strict=True)}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cu"
        file.write_text(source)
        versions = [part for arch in ARCHES for part in ("-gencode", f"arch=compute_{arch[3:]},code={arch}")]
        command = ["nvcc", "--fatbin", "-O3", "--fmad=false", "-Xptxas", "-v", *versions, "-o", f"{file}.fatbin", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"nvcc failed:\n{done.stderr}")
    found = []
    for name, arch, local, stored, loaded, registers, rest in ENTRY.findall(done.stderr):
        fixed = re.search(r"(\d+) bytes smem", rest)
        label, threads, size = facts[name]
        shared = size + (int(fixed[1]) if fixed else 0)
        found.append(Resources(label, arch, threads, int(registers), int(local), int(stored) + int(loaded), shared))
    assert {row.arch for row in found} == set(ARCHES), done.stderr
    return found


def sources_of(model: Any, sample: Any = None, strategy: str = "auto") -> Iterator[tuple[str, Source]]:
    """(dtypes and method, source) of the kernels of a fitted model: of every method for the first dtypes, of one for the others."""
    where, options = machine("cuda", None), CompileOptions(device="cuda")
    parsed = hbc.convert(model, "numpy", sample)
    for number, (kinds, variant) in enumerate(parsed.variants.items()):
        graph = partition(Builder("tvm", options, strategy).plan(variant.graph).graph).device
        methods = GraphMethods(join_sets(graph, where.schedule.joins_sets), options, where)
        for method in list(graph.outputs)[: None if number == 0 else 1]:
            function = methods.kernel(method).function
            schedule = schedule_for(methods.graph.outputs[method], where.schedule)
            text = cuda_source(compile_module({method: function}, where))
            dynamic = tuple(getattr(each, "shared", 0) for each in by_rows(schedule))
            dynamic = dynamic if any(dynamic) else (0,) * len(kernels_of(text))
            yield f"{'/'.join(sorted(set(kinds)))} {method}", Source(text, dynamic)


def by_rows(schedule: Schedule) -> list[Schedule]:
    """A schedule and those beside it, that for the fewest rows first."""
    return [*(() if schedule.few is None else by_rows(schedule.few)), schedule]


def golden_sources(words: Sequence[str] = ()) -> Iterator[tuple[str, Source]]:
    """(name, source) of the kernels of the models with golden programs for sm_90. words: only models whose names have one of them."""
    from golden.models import golden_models

    for golden in golden_models():
        if "sm_90" not in golden.targets or (words and not any(word in golden.name for word in words)):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # fitting is not tested
            model, X = golden.make()
        for strategy in dict.fromkeys("walk" if name == "scan" else name for name in golden.strategies):
            for name, source in sources_of(model, X if golden.sample else None, strategy):
                yield f"{golden.name}, {strategy}: {name}", source


def table(rows: Sequence[Resources]) -> str:
    """The resources as a table in Markdown."""
    head = ("kernel", "arch", "threads", "registers", "local", "spills", "shared", "warps of 64")
    lines = [head, ("---",) * len(head)]
    lines += [tuple(str(value) for value in (*row, row.warps)) for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    print(table(resources(dict(golden_sources(sys.argv[1:])))))
