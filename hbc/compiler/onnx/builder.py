"""Makes a ModelProto from a graph, node by node. Nothing is traced, and the number of rows stays symbolic."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import numpy as np
import onnx
from onnx import TensorProto, helper

from hbc.ir.graph import Constant, Graph, Input, Node, Operator, array_key
from hbc.ir.types import Array, DType, TensorType, type_of
from hbc.lazy import record

PROTO_DTYPES: dict[str, int] = {
    "bool": TensorProto.BOOL,
    "i8": TensorProto.INT8,
    "u8": TensorProto.UINT8,
    "i16": TensorProto.INT16,
    "u16": TensorProto.UINT16,
    "i32": TensorProto.INT32,
    "i64": TensorProto.INT64,
    "f32": TensorProto.FLOAT,
    "f64": TensorProto.DOUBLE,
    "str": TensorProto.STRING,
}

# ONNX strings are UTF-8 texts and nothing else. These texts stand for None and NaN in a column of strings.
NONE_MARKER = "\N{REPLACEMENT CHARACTER}hbc:None"
NAN_MARKER = "\N{REPLACEMENT CHARACTER}hbc:NaN"

Operand = str | Array
Emitter = Callable[["Builder", Any, Node], str]
"""(builder, operator, its node) → the name of the result. An emitter adds ONNX nodes to the builder; the node's inputs are already
there."""


@record
class Dialect:
    """The ONNX that a model is written in."""

    opset: int
    """The version of the standard operators, at least `OLDEST`."""
    ir: int
    """The version of the file format."""
    ml: int
    """The version of the operators of ai.onnx.ml. 5 has TreeEnsemble, those before TreeEnsembleRegressor."""
    plain: bool = False
    """Whether only standard operators are used, none of ai.onnx.ml."""
    one_thread: bool = False
    """Whether the model will run in one thread, where all kernels of ONNX Runtime add in the order of the reference."""


# The opsets with which the emitters were tested, newest first: (opset, IR version, version of ai.onnx.ml) that one release of ONNX has.
VERSIONS = (
    (26, 13, 5),
    (25, 13, 5),
    (24, 12, 5),
    (23, 11, 5),
    (22, 10, 5),
    (21, 10, 5),
    (20, 9, 4),
    (19, 9, 3),
    (18, 8, 3),
    (17, 8, 3),
    (16, 8, 3),
)
NEWEST, OLDEST = VERSIONS[0][0], VERSIONS[-1][0]
"""Opset 15 has version 2 of ai.onnx.ml, in which trees have no thresholds of float64."""


class Predicate(Protocol):
    """A condition on an operator."""

    def __call__(self, op: Any) -> bool: ...


EMITTERS: dict[type[Operator], Emitter] = {}
CONDITIONS: dict[type[Operator], Predicate] = {}
"""For some operators, the condition under which their emitter is exact. Other emitters are always exact."""

OF_ML: set[type[Operator]] = set()
"""The operators whose emitters always write an operator of ai.onnx.ml."""

EmitterType = TypeVar("EmitterType", bound=Emitter)


def emits(
    *operators: type[Operator], when: Predicate | None = None, of_ml: bool = False
) -> Callable[[EmitterType], EmitterType]:
    """A decorator that registers an emitter for operators. `when`: the condition under which it is exact. `of_ml`: it writes an operator of
    ai.onnx.ml, whatever the dialect."""

    def register(emitter: EmitterType) -> EmitterType:
        for op in operators:
            EMITTERS[op] = emitter
            if when is not None:
                CONDITIONS[op] = when
            if of_ml:
                OF_ML.add(op)
        return emitter

    return register


def emittable(op: Operator, plain: bool = False) -> bool:
    """Whether there is an emitter whose ONNX nodes compute this operator exactly. `plain`: by standard operators only."""
    condition = CONDITIONS.get(type(op))
    return type(op) in EMITTERS and (condition is None or condition(op)) and not (plain and type(op) in OF_ML)


class Builder:
    """Collects the ONNX nodes and initializers of one graph. All names of values begin with `prefix`."""

    def __init__(self, dialect: Dialect, prefix: str = "") -> None:
        self.dialect = dialect
        self.prefix = prefix
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: dict[tuple[Any, ...], onnx.TensorProto] = {}
        self.names: dict[Node, str] = {}
        self._count = 0

    def __call__(self, op_type: str, *operands: Operand, domain: str = "", **attributes: Any) -> str:
        """Adds one ONNX node and returns the name of its first output. Operands are names of values, or arrays, which become
        initializers."""
        name = self.new_name()
        inputs = [operand if isinstance(operand, str) else self.constant(operand) for operand in operands]
        self.nodes.append(helper.make_node(op_type, inputs, [name], domain=domain, **attributes))
        return name

    def new_name(self) -> str:
        """A name that no other value has."""
        self._count += 1
        return f"{self.prefix}v{self._count - 1}"

    def constant(self, value: Array) -> str:
        """The name of the initializer that holds an array; equal arrays share one."""
        key = array_key(value) if value.dtype != object else ("object", value.shape, tuple(value.ravel().tolist()))
        if key not in self.initializers:
            self.initializers[key] = tensor_proto(f"{self.prefix}c{len(self.initializers)}", value)
        return self.initializers[key].name

    def cast(self, x: str, dtype: DType) -> str:
        return self("Cast", x, to=PROTO_DTYPES[dtype])

    def body(self) -> Builder:
        """A builder for the body of a Loop, which shares the initializers. `resume` has to follow it: names are unique in a model."""
        inner = Builder(self.dialect, self.prefix)
        inner.initializers, inner._count = self.initializers, self._count
        return inner

    def resume(self, inner: Builder) -> None:
        """Goes on behind a body."""
        self._count = inner._count

    def extreme(self, kind: str, x: str, axis: int | None = None, keepdims: bool = False) -> str:
        """ReduceMax or ReduceMin along an axis, or over all. Until opset 18 the axis is an attribute."""
        if axis is None:
            return self(kind, x, keepdims=int(keepdims))
        if self.dialect.opset < 18:
            return self(kind, x, axes=[axis], keepdims=int(keepdims))
        return self(kind, x, np.asarray([axis]), keepdims=int(keepdims))

    def any(self, x: str, axis: int | None = None, keepdims: bool = False) -> str:
        """Whether some bool along an axis is true. ReduceMax takes bool from opset 20 on."""
        if self.dialect.opset >= 20:
            return self.extreme("ReduceMax", x, axis, keepdims)
        return self.cast(self.extreme("ReduceMax", self.cast(x, "u8"), axis, keepdims), "bool")

    def rename(self, outputs: Iterable[tuple[str, str]]) -> None:
        """Makes values outputs: (value, its new name). A value takes the new name where it is made. An input, or a value that has a new
        name already, is copied by an Identity node."""
        made = {name for node in self.nodes for name in node.output}
        names: dict[str, str] = {}
        copies = []
        for value, name in outputs:
            if value in made and value not in names:
                names[value] = name
            else:
                copies.append(helper.make_node("Identity", [value], [name]))
        self.nodes += copies
        for node in self.nodes:
            node.input[:] = [names.get(name, name) for name in node.input]
            node.output[:] = [names.get(name, name) for name in node.output]

    def name(self, node: Node) -> str:
        return self.names[node]

    def inputs(self, node: Node) -> list[str]:
        return [self.names[source] for source in node.inputs]

    def emit(self, node: Node) -> None:
        """Adds the ONNX nodes of a node of the graph, whose inputs have been added before."""
        if isinstance(node.op, Input):
            self.names.setdefault(node, node.op.name)  # `build` may have made it of columns
        elif isinstance(node.op, Constant):
            self.names[node] = self.constant(node.op.value)
        else:
            self.names[node] = EMITTERS[type(node.op)](self, node.op, node)


def tensor_proto(name: str, value: Array) -> onnx.TensorProto:
    """An initializer. Strings are UTF-8, None and NaN among them the texts that stand for them."""
    dtype = type_of(value).dtype
    if dtype == "str":
        return helper.make_tensor(name, TensorProto.STRING, value.shape, [encode(text) for text in value.ravel().tolist()])
    return onnx.numpy_helper.from_array(np.asarray(value, order="C"), name)


def encode(text: object) -> bytes:
    """A value of a column of strings as bytes for ONNX. Raises ValueError for texts that are not Unicode (lone surrogates)."""
    if text is None:
        return NONE_MARKER.encode()
    if isinstance(text, float) and text != text:
        return NAN_MARKER.encode()
    return str(text).encode()


def value_info(name: str, kind: TensorType) -> onnx.ValueInfoProto:
    """The declaration of an input or output."""
    return helper.make_tensor_value_info(name, PROTO_DTYPES[kind.dtype], list(kind.shape))


def output_names(outputs: Mapping[str, tuple[Node, ...]]) -> dict[str, list[str]]:
    """The names of the outputs of each method: the method's name, with _0, _1 … behind it if it has several outputs."""
    return {
        method: [method] if len(group) == 1 else [f"{method}_{i}" for i in range(len(group))]
        for method, group in outputs.items()
    }


def build(
    graph: Graph, inputs: Iterable[Node], dialect: Dialect, columns: Mapping[Node, Sequence[str]] | None = None
) -> onnx.ModelProto:
    """The ONNX model of a graph whose operators are all emittable, with the given inputs, and the outputs of all methods. `columns`: for
    each input the names of its columns, which then are the model's inputs, each [N, 1]."""
    taken = [name for names in (columns or {}).values() for name in names]
    prefix = ""
    while any(name.startswith(prefix or "v") or name.startswith(prefix or "c") for name in taken):
        prefix += "_"
    builder = Builder(dialect, prefix)
    declared = []
    for node in inputs:
        if columns is None:
            declared.append(value_info(input_name(node), node.type))
        else:
            one = replace(node.type, shape=(node.type.shape[0], 1))
            declared += [value_info(name, one) for name in columns[node]]
            builder.names[node] = columns[node][0] if len(columns[node]) == 1 else builder("Concat", *columns[node], axis=1)
    for node in graph.nodes:
        builder.emit(node)
    outputs, values = [], []
    for method, names in output_names(graph.outputs).items():
        for node, name in zip(graph.outputs[method], names, strict=True):
            outputs.append(value_info(name, node.type))
            values.append((builder.name(node), name))
    builder.rename(values)
    read = _read(builder.nodes)
    held = [tensor for tensor in builder.initializers.values() if tensor.name in read]
    body = helper.make_graph(builder.nodes, "hbc", declared, outputs, held)
    opsets = [helper.make_opsetid("", dialect.opset)]
    if any(node.domain == "ai.onnx.ml" for node in builder.nodes):
        opsets.append(helper.make_opsetid("ai.onnx.ml", dialect.ml))
    return helper.make_model(body, producer_name="hbc", opset_imports=opsets, ir_version=dialect.ir)


def _read(nodes: Iterable[onnx.NodeProto]) -> set[str]:
    """The names of the values that nodes read, and the bodies of their loops."""
    bodies = [attribute.g.node for node in nodes for attribute in node.attribute if attribute.HasField("g")]
    return {name for node in nodes for name in node.input}.union(*map(_read, bodies))


def input_name(node: Node) -> str:
    """The name of an input of a graph."""
    assert isinstance(node.op, Input)
    return node.op.name
