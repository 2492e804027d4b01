"""Writes a model as a library that stands alone: `.so`, `.o` or `.a`, and its header."""

from __future__ import annotations

import importlib.metadata
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tvm_ffi

from hbc.compiler.base import About, CompileOptions, refuse_strings
from hbc.compiler.tvm.build import Kernel
from hbc.compiler.tvm.library.entries import Call, Constants, Entry, entry_functions, fact_functions, whole_module
from hbc.compiler.tvm.library.input_test import InputTest, input_test, test_function, untestable
from hbc.compiler.tvm.library.interface import Interface, Matrix, Method, Result, header
from hbc.compiler.tvm.library.plain import compile_plain
from hbc.compiler.tvm.library.processors import (
    ARM_32,
    BIG_ENDIAN,
    described,
    oldest,
    processor_test,
    target_named,
)
from hbc.compiler.tvm.run.llvm_ir import object_of
from hbc.compiler.tvm.run.methods import GraphMethods, told
from hbc.compiler.tvm.run.targets import Machine
from hbc.errors import ArtifactError
from hbc.ir.graph import Constant, Graph, Node
from hbc.ir.signature import Limits, input_layout
from hbc.ir.store import write_atomically
from hbc.ir.types import Array
from hbc.lazy import record
from hbc.linker.archive import archive
from hbc.linker.shared_library import shared_library
from hbc.ops.tensor import Take
from hbc.process import building

LINKED = ("x86_64", "aarch64")
"""The beginnings of the triples that hbc.linker links for."""


@record
class Library:
    """A library before it has a format: its object file, and what is in it."""

    code: bytes
    interface: Interface


@record
class FileOptions:
    """The options of `CompiledModel.export` for a library.

    target: the processor, as a target of TVM; None for the model's own, or the usual one. name: all functions begin with `hbc_` and this
    name, so that one program can have several models; "" for `hbc_` alone. header: the path of the C header to write; "" for none.
    """

    target: Mapping[str, Any] | None = None
    name: str = ""
    header: str = ""

    @classmethod
    def checked(cls, chosen: Mapping[str, Any]) -> FileOptions:
        """The caller's options. Raises ValueError for bad ones."""
        target, name, path = (chosen.get(option) for option in ("target", "name", "header"))
        if not (target is None or isinstance(target, (str, Mapping))):
            raise ValueError(
                f"target: found {target!r}, expected a name such as 'x86-64-v3', or a dict as hbc.convert takes it"
            )
        if name is not None and not (isinstance(name, str) and re.fullmatch(r"\w+", name, re.ASCII)):
            raise ValueError(
                f"name: found {name!r}, expected letters, digits and _, since it becomes part of the names of functions"
            )
        parsed = target_named(target) if isinstance(target, str) else target
        return cls(parsed, name or "", os.fspath(path) if path is not None else "")

    @staticmethod
    def require_none(chosen: Mapping[str, Any]) -> None:
        """Raise ValueError for options that code of CUDA does not take."""
        if unknown := sorted({"name", "header"} & set(chosen)):
            raise ValueError(f"{', '.join(unknown)}: only libraries for CPUs take it; code of CUDA is called through TVM")


@building
def export(graph: Graph, options: CompileOptions, where: Machine, path: str, about: About, files: FileOptions) -> None:
    """Write a library of all methods of a graph. Raises ValueError for what a library cannot hold, before anything is compiled."""
    suffix = Path(path).suffix.lower()
    triple = where.triple
    if suffix == ".so" and not triple.startswith(LINKED):
        raise ValueError(f"{path}: hbc links libraries for Linux on x86-64 and aarch64. Export a .o, and link it for {triple}.")
    if triple.startswith(ARM_32):
        raise ValueError(
            f"{path}: code for {triple} computes wrong results for some models, so hbc writes none for 32-bit ARM."
        )
    if triple.startswith(BIG_ENDIAN):
        raise ValueError(f"{path}: {triple} keeps the highest byte of a number first, which the tables of a library do not.")
    if files.header and not Path(files.header).absolute().parent.is_dir():
        raise ArtifactError(path=files.header, found="no such folder", expected="an existing folder to write to")
    made = library(graph, options, where, path, about, f"hbc_{files.name}" if files.name else "hbc")
    if suffix == ".so":
        data = shared_library(made.code, made.interface.exports, Path(path).name)
    elif suffix == ".a":
        data = archive(made.code, made.interface.exports)
    else:
        data = made.code
    write_atomically(path, lambda file: file.write(data))
    if files.header:
        text = header(made.interface).encode()
        write_atomically(files.header, lambda file: file.write(text))


def library(graph: Graph, options: CompileOptions, where: Machine, path: str, about: About, prefix: str) -> Library:
    """The library of all methods of a graph, compiled. See `export`."""
    graph, labels = _with_class_numbers(graph)
    _require_numbers(graph, path, about)
    assert about.limits is not None
    limits = {method: about.limits(method) for method in graph.outputs}
    _require_testable(limits, path)
    interface = _interface(graph, where, about, prefix, labels)
    compiler = GraphMethods(graph, options, where)
    types = [node.type for node in graph.inputs]
    tests = {method: input_test(limits[method], types) for method in graph.outputs}
    kernels = {
        method: compiler.kernel(method, test.bound is not None, test.missing, test.accepted) for method, test in tests.items()
    }
    functions, names = _different({method: kernel.function for method, kernel in kernels.items()})
    for number, kind in enumerate(types):
        if any(test.columns[number] is not None for test in tests.values()):
            functions[f"test_{number}"] = test_function(f"test_{number}", kind)
    outputs = [node for nodes in graph.outputs.values() for node in nodes]
    plain = compile_plain(functions, told(where, outputs, all(kernel.few_values for kernel in kernels.values())))
    constants = Constants()
    exported = []
    for method in interface.methods:
        function = names[method.name]
        entry = _entry(method, interface, tests[method.name], kernels[method.name], function, plain.sizes[function], constants)
        exported.append(entry_functions(entry, interface, plain.workspace[function], plain.size_t))
    facts = [fact_functions(interface, constants, oldest(where), plain.size_t), processor_test(where)]
    text = whole_module(plain, constants, [*exported, *facts])
    return Library(object_of(text), interface)


def _different(functions: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The functions of methods that differ in more than names, by a name of their own; and for each method the name of its function."""
    known: dict[Any, str] = {}
    names = {}
    for method, function in functions.items():
        key = tvm_ffi.StructuralKey(function.with_attr("global_symbol", "run"))  # type: ignore[call-arg]
        names[method] = known.setdefault(key, f"run_{method}")
    return {name: functions[method] for method, name in names.items() if name == f"run_{method}"}, names


def _entry(
    method: Method,
    interface: Interface,
    test: InputTest,
    kernel: Kernel,
    function: str,
    sizes: Sequence[tuple[int, int]],
    constants: Constants,
) -> Entry:
    """What the exported function of a method does. `function`: the name of its plain function. `sizes`: see Plain."""
    places = {matrix.name: matrix for matrix in interface.inputs}
    given = {f"x{i}": places[name] for i, name in enumerate(kernel.inputs)}
    tables = dict(zip(kernel.table_names, kernel.tables, strict=True))
    pointers = {
        **{name: f"%{matrix.name}" for name, matrix in given.items()},
        **{name: constants.table(table, kernel.parts.get(name, ())) for name, table in tables.items()},
        **{f"y{i}": f"%{result.name}" for i, result in enumerate(method.results)},
    }
    numbers = {"first": "i64 0", "end": "i64 %rows"}
    names = [parameter.name for parameter in kernel.function.params]

    def size(parameter: int, axis: int) -> str:
        buffer = names[parameter]
        if buffer in tables:
            return str(tables[buffer].size)
        return "%rows" if axis == 0 else str(len(given[buffer].columns))

    arguments = [numbers.get(name) or f"ptr {pointers[name]}" for name in names if name != "bound"]
    call = Call(function, arguments, [size(*place) for place in sizes], kernel.tests)
    tests = []
    for i, (matrix, columns) in enumerate(zip(interface.inputs, test.columns, strict=True)):
        if columns is not None:
            largest, missing = (f"ptr {constants.array(values)}" for values in (columns[0], columns[1].astype(np.uint8)))
            tests.append(Call(f"test_{i}", [f"ptr %{matrix.name}", largest, missing, "i64 0", "i64 %rows"], ["%rows"], True))
    # A method whose result is the same for all rows reads no input, so that its function tests none.
    return Entry(method, test.min_rows, tests, call, test.bound if kernel.tests else None)


# --- what a library can hold -----------------------------------------------------------------------------------------------


def _with_class_numbers(graph: Graph) -> tuple[Graph, dict[str, Array]]:
    """The graph with the places of labels where it looks up strings last; and these strings, by method."""
    outputs: dict[str, tuple[Node, ...]] = {}
    labels: dict[str, Array] = {}
    for method, group in graph.outputs.items():
        match group:
            case (Node(op=Take(), inputs=(Node(op=Constant(table)), place)),) if group[0].type.dtype == "str":
                outputs[method], labels[method] = (place,), table
            case _:
                outputs[method] = group
    return Graph(graph.inputs, outputs), labels


def _require_numbers(graph: Graph, path: str, about: About) -> None:
    """Raise ValueError for a graph that takes strings or computes with them."""
    if any(node.type.dtype == "str" for node in graph.inputs):
        refuse_strings(path, f"{Path(path).suffix} files", about.spec, about.kinds)
    for method in graph.outputs:
        texts = {type(node.op).__name__ for node in graph.select(method).nodes if node.type.dtype == "str"} - {"Constant"}
        if texts:
            others = [other for other in graph.outputs if other != method]
            advice = f"Leave it out: methods={others!r}." if others else "save() it."
            raise ValueError(
                f"{path}: {method} returns strings ({', '.join(sorted(texts))}), which a library that stands alone cannot. {advice}"
            )


def _require_testable(limits: Mapping[str, Limits], path: str) -> None:
    """Raise ValueError for a model of which a library could not tell what its source rejects."""
    for method, required in limits.items():
        owners = sorted({guard.require.__self__.owner for guard in untestable(required)})  # type: ignore[attr-defined]
        if owners:
            raise ValueError(
                f"{path}: {method} rejects input by numbers that are computed inside the model ({', '.join(owners)}), which a library that "
                "stands alone does not test. If it takes another dtype, export that one (dtype=); or leave the method out (methods=), "
                "export the model to .onnx, or save() it."
            )


def _interface(graph: Graph, where: Machine, about: About, prefix: str, labels: Mapping[str, Array]) -> Interface:
    layout = input_layout(about.kinds)
    inputs = tuple(Matrix(node.op.name, node.type.dtype, layout[node.op.name]) for node in graph.inputs)  # type: ignore[attr-defined]
    known = next(iter(labels.values())) if labels else np.asarray(about.info.attributes.get("classes_", ()))
    methods = []
    for method, group in graph.outputs.items():
        results = []
        for i, node in enumerate(group):
            shape = tuple(int(size) for size in node.type.shape[1:])
            results.append(Result(f"out{i or ''}", node.type.dtype, shape, method in labels))
        methods.append(Method(method, tuple(results)))
    return Interface(
        prefix=prefix,
        version=importlib.metadata.version("hbc"),
        source=about.info.source,
        processor=described(where),
        inputs=inputs,
        methods=tuple(methods),
        n_features=about.spec.n_features,
        feature_names=about.spec.feature_names or (),
        classes=tuple(known.tolist()) if known.ndim == 1 else (),
    )
