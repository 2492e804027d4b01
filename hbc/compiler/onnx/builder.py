"""Makes a ModelProto from a graph, node by node. Nothing is traced, and the number of rows stays symbolic."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeVar

import numpy as np
import onnx
from onnx import TensorProto, helper

from hbc.ir.graph import Constant, Graph, Input, Node, Operator, array_key
from hbc.ir.types import Array, DType, TensorType, type_of

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
STRINGS_NOTE = (
    "S holds texts. A missing value has to be passed as one of two texts that stand for it: the metadata `hbc.none` for None and "
    "`hbc.nan` for NaN."
)
ONNX_ML_VERSION = 5

Operand = str | Array
Emitter = Callable[["Builder", Any, Node], str]
"""(builder, operator, its node) → the name of the result. An emitter adds ONNX nodes to the builder; the node's inputs are already
there."""


class Predicate(Protocol):
    """A condition on an operator."""

    def __call__(self, op: Any) -> bool: ...


EMITTERS: dict[type[Operator], Emitter] = {}
CONDITIONS: dict[type[Operator], Predicate] = {}
"""For some operators, the condition under which their emitter is exact. Other emitters are always exact."""

EmitterType = TypeVar("EmitterType", bound=Emitter)


def emits(*operators: type[Operator], when: Predicate | None = None) -> Callable[[EmitterType], EmitterType]:
    """A decorator that registers an emitter for operators; `when`: the condition under which it is exact."""

    def register(emitter: EmitterType) -> EmitterType:
        for op in operators:
            EMITTERS[op] = emitter
            if when is not None:
                CONDITIONS[op] = when
        return emitter

    return register


def emittable(op: Operator) -> bool:
    """Whether there is an emitter whose ONNX nodes compute this operator exactly."""
    condition = CONDITIONS.get(type(op))
    return type(op) in EMITTERS and (condition is None or condition(op))


class Builder:
    """Collects the ONNX nodes and initializers of one graph. `one_thread`: the model will run in one thread, where all kernels of ONNX
    Runtime add in the order of the reference."""

    def __init__(self, one_thread: bool) -> None:
        self.one_thread = one_thread
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: dict[tuple[Any, ...], onnx.TensorProto] = {}
        self.names: dict[Node, str] = {}
        self._count = 0

    def __call__(self, op_type: str, *operands: Operand, domain: str = "", **attributes: Any) -> str:
        """Adds one ONNX node and returns the name of its first output. Operands are names of values, or arrays, which become
        initializers."""
        name = f"v{self._count}"
        self._count += 1
        inputs = [operand if isinstance(operand, str) else self.constant(operand) for operand in operands]
        self.nodes.append(helper.make_node(op_type, inputs, [name], domain=domain, **attributes))
        return name

    def constant(self, value: Array) -> str:
        """The name of the initializer that holds an array; equal arrays share one."""
        key = array_key(value) if value.dtype != object else ("object", value.shape, tuple(value.ravel().tolist()))
        if key not in self.initializers:
            self.initializers[key] = tensor_proto(f"c{len(self.initializers)}", value)
        return self.initializers[key].name

    def cast(self, x: str, dtype: DType) -> str:
        return self("Cast", x, to=PROTO_DTYPES[dtype])

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
            self.names[node] = node.op.name
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


def build(graph: Graph, inputs: Iterable[Node], versions: tuple[int, int], one_thread: bool = False) -> onnx.ModelProto:
    """The ONNX model of a graph whose operators are all emittable, with the given inputs, and the outputs of all methods. `versions`: the
    opset and the IR version. `one_thread`: see Builder."""
    opset, ir_version = versions
    builder = Builder(one_thread)
    for node in graph.nodes:
        builder.emit(node)
    outputs, values = [], []
    for method, names in output_names(graph.outputs).items():
        for node, name in zip(graph.outputs[method], names, strict=True):
            outputs.append(value_info(name, node.type))
            values.append((builder.name(node), name))
    builder.rename(values)
    declared = [value_info(builder.name(node), node.type) for node in inputs]
    body = helper.make_graph(builder.nodes, "hbc", declared, outputs, list(builder.initializers.values()))
    opsets = [helper.make_opsetid("", opset)]
    if any(node.domain == "ai.onnx.ml" for node in builder.nodes):
        opsets.append(helper.make_opsetid("ai.onnx.ml", ONNX_ML_VERSION))
    model = helper.make_model(body, producer_name="hbc", opset_imports=opsets, ir_version=ir_version)
    if any(node.type.dtype == "str" for node in graph.inputs):
        model.doc_string = STRINGS_NOTE
        helper.set_model_props(model, {"hbc.none": NONE_MARKER, "hbc.nan": NAN_MARKER})
    return model
