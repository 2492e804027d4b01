"""The values of an ONNX graph while it is converted, and the registry of operators. Each operator is one function:

    @implements("Relu")
    def relu(call): return t.maximum(call.node(0), 0.0)

Rows are the first axis of every value that depends on them. Operators, attributes and uses of them that have no test are refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np

from hbc.ir.graph import Node
from hbc.ir.types import Array, Dim, DType, dtype_name
from hbc.lazy import record
from hbc.ops import tensor as t
from hbc.parser.frame import Refusal

ML = "ai.onnx.ml"


@record
class Dims:
    """A shape that the operator Shape returns, in which one number is the number of rows. `scalar`: a single number of it."""

    dims: tuple[Dim, ...]
    scalar: bool = False


@record
class Row:
    """A value of shape [1, N], held as the vector [N]; or of shape [1, N · J], held as [N, J]. ArrayFeatureExtractor makes them."""

    node: Node


@record
class Layers:
    """A value of shape [K, N, …], held as [N, K, …]: results of K estimators for each row, before their mean is taken."""

    node: Node

    def axis(self, axis: int) -> int:
        """The axis of the node that holds an axis of the value. Raises Refusal for that of rows, and for one that is not there."""
        rank = len(self.node.type.shape)
        place = axis + rank if axis < 0 else axis
        if place == 1 or not 0 <= place < rank:
            raise Refusal(f"it works along axis {axis} of {rank}, where axis 1 holds the rows: no operator may mix rows.")
        return place or 1


@record
class Series:
    """A sequence of tensors."""

    nodes: tuple[Node, ...]


@record
class Dicts:
    """A map for each row of the input: its dicts, str[N]. Only DictVectorizer reads them."""

    node: Node


Value = Node | Array | Dims | Row | Layers | Series | Dicts


@record
class Call:
    """One node of the ONNX graph, as an implementation of its operator sees it."""

    op: str
    """The name of the operator."""
    inputs: tuple[Value | None, ...]
    """Its inputs; None for an optional one that is left out."""
    attributes: Mapping[str, Any]
    """Its attributes: floats as float32, strings decoded."""
    opset: int
    """The version of its operator set."""
    n_outputs: int
    rows: Node
    """Some value of the graph with a row for each row of the input: it gives constants their number of rows."""
    declared_rows: int | None = None
    """The number of rows that the inputs are declared with, which exporters write into shapes; None if it is free."""

    def has(self, i: int) -> bool:
        """Whether input i is there."""
        return i < len(self.inputs) and self.inputs[i] is not None

    def value(self, i: int) -> Value:
        """Input i, of any kind. Raises Refusal if it is missing."""
        value = self.inputs[i] if i < len(self.inputs) else None
        if value is None:
            raise Refusal(f"input {i} is missing.")
        return value

    def node(self, i: int) -> Node:
        """Input i as a Node, also if it is a constant. Raises Refusal for a shape, for a value whose rows are not its first axis, for a
        sequence and for a map."""
        value = self.value(i)
        if isinstance(value, Node):
            return value
        if isinstance(value, np.ndarray):
            return t.constant(value)
        raise Refusal(f"input {i} is a shape, a sequence or a map, or has its rows on the second axis.")

    def rows_of(self, i: int) -> Node:
        """Input i as a Node with a value for every row. Raises Refusal if it does not depend on the rows."""
        node = self.node(i)
        if not node.type.batched:
            raise Refusal(f"input {i} does not depend on the rows.")
        return node

    def matrix(self, i: int = 0) -> Node:
        """Input i as a matrix [N, F]. Raises Refusal for other shapes."""
        node = self.rows_of(i)
        if len(node.type.shape) != 2:
            raise Refusal(f"input {i} is {node.type}, expected a matrix.")
        return node

    def array(self, i: int) -> Array:
        """Input i as an array. Raises Refusal if it is not a constant."""
        value = self.value(i)
        if not isinstance(value, np.ndarray):
            raise Refusal(f"input {i} is computed from the data, expected a constant.")
        return value

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute, or the default if the node does not have it."""
        return self.attributes.get(name, default)

    def axes(self, i: int = 1) -> list[int] | None:
        """The node's axes: newer versions of operators take them as input i, older ones as an attribute. None if they are not given."""
        if "axes" in self.attributes:
            return [int(axis) for axis in self.attributes["axes"]]
        return [int(axis) for axis in self.array(i).ravel()] if self.has(i) else None


Result = Value | tuple[Value, ...]


@record
class Implementation:
    """The function that converts an operator, and the attributes that it reads. Nodes with other attributes are refused."""

    function: Callable[[Call], Result]
    attributes: frozenset[str]


OPERATORS: dict[tuple[str, str], Implementation] = {}
"""(domain, name) → implementation. ONNX's own domain is ""."""


def implements(
    *names: str, attributes: tuple[str, ...] = (), domain: str = ""
) -> Callable[[Callable[[Call], Result]], Callable[[Call], Result]]:
    """A decorator that registers a function for operators by their names in a domain."""

    def register(function: Callable[[Call], Result]) -> Callable[[Call], Result]:
        for name in names:
            OPERATORS[domain, name] = Implementation(function, frozenset(attributes))
        return function

    return register


def as_dtype(x: Node, dtype: str) -> Node:
    """x cast to a dtype."""
    return t.cast(x, cast(DType, dtype))


def dtype_of(element_type: int) -> DType:
    """hbc's dtype for an ONNX element type. Raises Refusal for types that hbc does not have (float16, uint64, …)."""
    import onnx

    try:
        kind = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(element_type))
        return "str" if element_type == onnx.TensorProto.STRING else dtype_name(kind)
    except (TypeError, KeyError):
        names = {number: name for name, number in onnx.TensorProto.DataType.items()}
        raise Refusal(f"values of the type {names.get(element_type, element_type)} are not supported.") from None


def inner_axis(axis: int, x: Node) -> int:
    """The axis of x, counted from the front. Raises Refusal if it is the axis of rows, or does not exist."""
    rank = len(x.type.shape)
    place = axis + rank if axis < 0 else axis
    if not 0 <= place < rank or (place == 0 and x.type.batched):
        raise Refusal(f"it works along axis {axis} of {x.type}: no operator may mix rows.")
    return place


def map_columns(x: Node, function: Callable[[Node], Node]) -> Node:
    """function applied to each column [N, 1] of a vector or matrix; the result has x's shape. Raises Refusal for more axes."""
    rank = len(x.type.shape)
    if rank == 1:
        return t.reshape(function(t.reshape(x, "N", 1)), "N")
    if rank != 2:
        raise Refusal(f"its input is {x.type}, expected a vector or a matrix.")
    from hbc.parser.frame import select_columns

    return t.concat([function(select_columns(x, [i])) for i in range(x.type.columns)])
