"""Walks through an ONNX graph: takes its inputs from the columns of the model's input, converts its operators in their order, and makes
methods of its outputs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from hbc.ir.graph import Node
from hbc.ir.types import Array
from hbc.lazy import cached_property, record
from hbc.ops import tensor as t
from hbc.ops.checks import Check, CheckWhole
from hbc.parser.frame import Frame, Refusal, StringsNeeded, as_frame, as_matrix
from hbc.parser.onnxml.values import OPERATORS, Call, Dicts, Series, Value, dtype_of
from hbc.parser.registry import Outputs

OWNER = "onnx.ModelProto"
TAKEN = frozenset(
    {"backend", "bind", "device", "explain", "export", "graph", "info", "methods", "module", "save", "spec", "variants"}
)
"""Attributes of a compiled model, which cannot be names of methods."""
CLASSIFIERS = ("TreeEnsembleClassifier", "LinearClassifier", "SVMClassifier")
PREDICTORS = (*CLASSIFIERS, "TreeEnsembleRegressor", "TreeEnsemble", "LinearRegressor", "SVMRegressor")
LABELS = ("classlabels_strings", "classlabels_int64s", "classlabels_ints")
FREE = "Export it with a free number of rows ([None, F])."
NO_MAP = "Export it without its map, with a tensor for the columns that the map gives."
LARGEST = {"i8": 127, "u8": 255, "i16": 32767, "u16": 65535, "i32": 2**31 - 1}


@record
class InputTensor:
    """An input of the ONNX graph."""

    name: str
    dtype: str
    """"dicts" for a map of strings to float32."""
    width: int | None
    """The number of its columns; None if the file does not say."""
    rank: int
    """1 for a vector [N], 2 for a matrix [N, width]."""
    rows: int | None = None
    """The number of rows that it is declared with; None if it takes any."""


@record
class Source:
    """Reads the protobuf message of a model: its constants, inputs and class labels. `run` converts its graph."""

    proto: Any

    @cached_property
    def constants(self) -> dict[str, Array]:
        import onnx

        return {tensor.name: _array(onnx.numpy_helper.to_array(tensor)) for tensor in self.proto.graph.initializer}

    @cached_property
    def opsets(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for entry in self.proto.opset_import:
            domain = "" if entry.domain == "ai.onnx" else entry.domain
            found[domain] = max(found.get(domain, 0), int(entry.version))
        return found

    @cached_property
    def inputs(self) -> tuple[InputTensor, ...]:
        """The inputs of the graph. Raises Refusal for one that does not convert, and for a map beside other inputs."""
        found = tuple(_input(info) for info in self.proto.graph.input if info.name not in self.constants)
        if len(found) > 1 and any(tensor.dtype == "dicts" for tensor in found):
            raise Refusal("it has a map beside other inputs.", NO_MAP)
        return found

    @property
    def takes_dicts(self) -> bool:
        """Whether the input is a map, so that X is a sequence of dicts."""
        return self.inputs[:1] != () and self.inputs[0].dtype == "dicts"

    @cached_property
    def rows(self) -> int | None:
        """The number of rows that all inputs are declared with; None if they take any. It is no limit: where every operator works row
        by row, the graph says what other numbers of rows give. Raises Refusal if the inputs differ, since one may stand for all rows."""
        found = {tensor.rows for tensor in self.inputs}
        if len(found) > 1:
            declared = ", ".join(
                f"{tensor.name!r} {'any' if tensor.rows is None else tensor.rows}" for tensor in self.inputs[:5]
            )
            raise Refusal(f"its inputs are declared with different numbers of rows ({declared}).", FREE)
        return next(iter(found), None)

    @property
    def width(self) -> int | None:
        widths = [tensor.width for tensor in self.inputs]
        return None if None in widths else sum(width for width in widths if width is not None)

    @property
    def names(self) -> tuple[str, ...] | None:
        """The names of the columns, if there are several inputs of one column each: the names of these inputs. Otherwise None."""
        if len(self.inputs) < 2 or any(tensor.width != 1 for tensor in self.inputs):
            return None
        return tuple(tensor.name for tensor in self.inputs)

    @cached_property
    def classes(self) -> Array | None:
        """The labels of the last classifier in the graph, in the order of the columns of its probabilities; None if it has none, and
        if the graph gives those of several classifiers."""
        if "SequenceConstruct" in self.operators():
            return None
        for node in reversed(self.proto.graph.node):
            if node.op_type == "ZipMap" or node.op_type in CLASSIFIERS:
                values = attributes_of(node)
                for name in LABELS:
                    if len(values.get(name, ())):
                        return np.array(values[name], object if name.endswith("strings") else np.int64)
        return None

    def operators(self) -> list[str]:
        return [node.op_type for node in self.proto.graph.node]

    def run(self, x: Node | Frame) -> list[tuple[str, Value]]:
        """(name, value) of each output of the graph, computed from the columns x, or from the dicts x. Raises Refusal for inputs, operators
        or attributes that do not convert."""
        self._require_known()
        entries = self._dicts(as_matrix(x)) if self.takes_dicts else self._entries(as_frame(x))
        values: dict[str, Value] = {**self.constants, **entries}
        rows = next(value.node if isinstance(value, Dicts) else value for value in entries.values())
        for node in self.proto.graph.node:
            try:
                inputs = tuple(values[name] if name else None for name in node.input)
                results = self._apply(node, inputs, rows)
            except Refusal as refusal:
                raise Refusal(f"{_named(node)}: {refusal.reason}", refusal.advice) from refusal
            except (TypeError, ValueError, KeyError, IndexError) as error:
                raise Refusal(f"{_named(node)} cannot be converted: {error}") from error
            values.update((name, value) for name, value in zip(node.output, results, strict=False) if name)
        return [(info.name, values[info.name]) for info in self.proto.graph.output]

    def _require_known(self) -> None:
        """Raises Refusal if the graph has operators without an implementation, or sparse constants."""
        graph = self.proto.graph
        functions = {(function.domain, function.name) for function in self.proto.functions}
        unknown: dict[str, None] = {}
        for node in graph.node:
            key = _domain(node), node.op_type
            if key in functions or (key not in OPERATORS and key != ("", "Constant")):
                unknown[f"{key[0]}.{key[1]}".lstrip(".")] = None
        if unknown:
            raise Refusal(
                f"its graph has operators that hbc does not convert: {', '.join(unknown)}.", "Export it without them."
            )
        if graph.sparse_initializer:
            raise Refusal("its graph has sparse initializers.", "Export it with dense ones.")

    def _dicts(self, x: Node) -> dict[str, Node | Dicts]:
        """Name of the input → its dicts. Raises StringsNeeded if they were taken for numbers."""
        if x.type.dtype != "str":
            raise StringsNeeded([0])
        return {self.inputs[0].name: Dicts(x)}

    def _entries(self, x: Frame) -> dict[str, Node | Dicts]:
        """Name of an input → its value. The inputs take the columns of x one after the other. If one input has no known width, it takes the
        columns that the others leave."""
        widths = [tensor.width for tensor in self.inputs]
        if widths.count(None) > 1:
            raise Refusal("several of its inputs have no known number of columns.", "Export it with fixed numbers of columns.")
        free = len(x) - sum(width for width in widths if width is not None)
        entries: dict[str, Node | Dicts] = {}
        start = 0
        strings: list[int] = []
        for tensor in self.inputs:
            stop = start + (free if tensor.width is None else tensor.width)
            strings += range(start, stop) if tensor.dtype == "str" else []
            start = stop
        x.need_strings(strings)
        start = 0
        for tensor in self.inputs:
            stop = start + (free if tensor.width is None else tensor.width)
            columns = x.select(range(start, stop)).matrix(strings=tensor.dtype == "str")
            entries[tensor.name] = _entry(columns, tensor)
            start = stop
        if not entries:
            raise Refusal("its graph has no inputs.")
        return entries

    def _apply(self, node: Any, inputs: tuple[Value | None, ...], rows: Node) -> tuple[Value, ...]:
        """The outputs of a node of the graph. A node of ONNX's own domain whose inputs are all constants is computed at once."""
        import onnx

        values = attributes_of(node)
        domain = _domain(node)
        if (domain, node.op_type) == ("", "Constant"):
            return (_constant(values),)
        implementation = OPERATORS[domain, node.op_type]
        opset = self.opsets.get(domain, 1)
        if domain == "" and inputs and all(value is None or isinstance(value, np.ndarray) for value in inputs):
            names = [f"input{i}" if value is not None else "" for i, value in enumerate(inputs)]
            alone = onnx.NodeProto()
            alone.CopyFrom(node)
            del alone.input[:]
            alone.input.extend(names)
            return tuple(map(_array, _evaluate(alone, dict(zip(names, inputs, strict=True)), opset)))
        left_out = sorted(values.keys() - implementation.attributes)
        if left_out:
            raise Refusal(f"its attribute {', '.join(left_out)} is not supported.")
        call = Call(node.op_type, inputs, values, opset, len(node.output), rows, self.rows)
        results = implementation.function(call)
        return results if isinstance(results, tuple) else (results,)


def attributes_of(node: Any) -> dict[str, Any]:
    """Name → value of the attributes that a node has: strings decoded, floats as numpy float32, integers as Python numbers, lists of
    numbers as arrays (float32 or int64), tensors as arrays."""
    import onnx

    kinds = onnx.AttributeProto
    found: dict[str, Any] = {}
    for attribute in node.attribute:
        value = onnx.helper.get_attribute_value(attribute)
        match attribute.type:
            case kinds.STRING:
                value = value.decode()
            case kinds.STRINGS:
                value = [text.decode() for text in value]
            case kinds.FLOAT:
                value = np.float32(value)
            case kinds.FLOATS:
                value = np.array(value, np.float32)
            case kinds.INTS:
                value = np.array(value, np.int64)
            case kinds.TENSOR:
                value = _array(onnx.numpy_helper.to_array(value))
        found[attribute.name] = value
    return found


def outputs_as_methods(source: Source, outputs: Sequence[tuple[str, Value]]) -> Outputs:
    """Method name → the node, or the nodes of a sequence, for the outputs of the graph. The label and the probabilities of a classifier
    become `predict` and `predict_proba`. A single output becomes `predict`, and also `transform` unless an operator of the graph shows that
    it is a prediction. Any other output is a method under its own name. Raises Refusal for an output that has no row for each row of the
    input."""
    nodes: Outputs = {}
    for name, value in outputs:
        found = value.nodes if isinstance(value, Series) else (value,)
        if not all(isinstance(node, Node) and node.type.batched for node in found):
            raise Refusal(f"its output {name!r} does not have a row for every row of the input.")
        nodes[name] = found  # type: ignore[assignment]
    if len(nodes) == 1:
        (found,) = nodes.values()
        known = any(op in PREDICTORS for op in source.operators())
        return {"predict": found} if known else {"predict": found, "transform": found}
    methods: Outputs = {}
    for name, (node, *more) in nodes.items():
        rank = len(node.type.shape)
        if "label" in name.lower() and not node.type.is_float and "predict" not in methods:
            method = "predict"
        elif "prob" in name.lower() and rank == 2 and node.type.is_float and "predict_proba" not in methods:
            method = "predict_proba"
        else:
            method = re.sub(r"\W", "_", name)
            method = (
                method if method.isidentifier() and not method.startswith("_") and method not in TAKEN else f"output_{method}"
            )
        while method in methods:
            method += "_"
        methods[method] = (node, *more)
    return methods


def _named(node: Any) -> str:
    return f"its node {node.name or node.output[0]!r} ({node.op_type})"


def _domain(node: Any) -> str:
    return "" if node.domain == "ai.onnx" else str(node.domain)


def _array(value: Any) -> Array:
    array = np.asarray(value)
    return array.astype(str) if array.dtype.kind == "O" else array


def _constant(values: dict[str, Any]) -> Array:
    for name in ("value", "value_float", "value_floats", "value_int", "value_ints", "value_string", "value_strings"):
        if name in values:
            return np.asarray(values[name])
    raise Refusal(f"it has the attributes {', '.join(values)}.")


def _evaluate(node: Any, values: dict[str, Any], opset: int) -> list[Any]:
    """The outputs of a node whose inputs are all constants, computed by onnx's reference implementation."""
    import onnx
    from onnx.reference import ReferenceEvaluator

    helper = onnx.helper
    inputs = [
        helper.make_tensor_value_info(
            name,
            onnx.TensorProto.STRING if value.dtype.kind in "UO" else helper.np_dtype_to_tensor_dtype(value.dtype),
            value.shape,
        )
        for name, value in values.items()
        if name
    ]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output]
    graph = helper.make_graph([node], "constants", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    return ReferenceEvaluator(model).run(None, {name: value for name, value in values.items() if name})


def _input(info: Any) -> InputTensor:
    """The input of the graph. Raises Refusal unless it is a tensor [rows] or [rows, columns], or a map of strings to float32."""
    import onnx

    kind = info.type.WhichOneof("value")
    if kind == "map_type":
        map_type = info.type.map_type
        types = map_type.key_type, map_type.value_type.tensor_type.elem_type
        if types != (onnx.TensorProto.STRING, onnx.TensorProto.FLOAT):
            key, value = (onnx.TensorProto.DataType.Name(number) for number in types)
            raise Refusal(f"its input {info.name!r} is a map of {key} to {value}; hbc takes those of STRING to FLOAT.", NO_MAP)
        return InputTensor(info.name, "dicts", 1, 1)
    if kind != "tensor_type":
        found = str(kind).removesuffix("_type").replace("_", " ")
        raise Refusal(f"its input {info.name!r} is a {found}, expected a tensor.", "Export it with a tensor [rows, columns].")
    tensor = info.type.tensor_type
    dtype = dtype_of(tensor.elem_type)
    dims = list(tensor.shape.dim) if tensor.HasField("shape") else [None, None]
    if len(dims) not in (1, 2):
        raise Refusal(f"its input {info.name!r} has {len(dims)} axes, expected [rows, columns].")
    rows, *columns = [int(dim.dim_value) if dim is not None and dim.HasField("dim_value") else None for dim in dims]
    return InputTensor(info.name, dtype, columns[0] if columns else 1, len(dims), rows if rows and rows > 0 else None)


def _entry(columns: Node, tensor: InputTensor) -> Node:
    """The columns in the dtype that the graph declares for this input, [N, F] or [N]. For an integer input, numbers that it cannot hold are
    rejected. (ONNX Runtime rejects all floats there.)"""
    kind = tensor.dtype
    if kind == "str":
        value = Check(OWNER, allow_nan=False, allow_inf=True, min_rows=0)(columns)
    elif kind in ("f32", "f64"):
        value = t.cast(columns, kind)  # type: ignore[arg-type]
    else:
        limit = float(LARGEST.get(kind, 2**63))
        if columns.type.is_float and kind != "bool":
            columns = CheckWhole(OWNER, limit=limit, min_rows=0)(columns)
        elif kind in LARGEST:
            columns = Check(OWNER, limit=limit, min_rows=0)(columns)
        value = t.cast(columns, kind)  # type: ignore[arg-type]
    return t.reshape(value, "N") if tensor.rank == 1 else value
