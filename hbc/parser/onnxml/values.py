"""What flows through an ONNX graph while it is parsed, and the registry of operators. One operator, one function:

    @implements("Relu")
    def relu(call): return t.maximum(call.node(0), 0.0)

Rows are the first axis of every value that depends on them. An operator, an attribute or a use of one that has no test is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from hbc.ir.graph import Node
from hbc.ir.types import Array, Dim, DType, dtype_name
from hbc.ops import tensor as t
from hbc.parser.frame import Refusal

ML = "ai.onnx.ml"


@dataclass(frozen=True)
class Dims:
    """What `Shape` gives, where one of the numbers is that of rows."""

    dims: tuple[Dim, ...]
    scalar: bool = False


@dataclass(frozen=True)
class Row:
    """A value of shape [1, N] (ArrayFeatureExtractor looks labels up into one), held as the vector [N]."""

    node: Node


Value = Node | Array | Dims | Row


@dataclass(frozen=True)
class Call:
    """One node of the ONNX graph: its inputs (None where one is left out), its attributes (floats as float32, strings decoded),
    the version of its operator set, and some value with rows."""

    op: str
    inputs: tuple[Value | None, ...]
    attributes: Mapping[str, Any]
    opset: int
    n_outputs: int
    rows: Node

    def has(self, i: int) -> bool:
        return i < len(self.inputs) and self.inputs[i] is not None

    def value(self, i: int) -> Value:
        value = self.inputs[i] if i < len(self.inputs) else None
        if value is None:
            raise Refusal(f"input {i} is missing.")
        return value

    def node(self, i: int) -> Node:
        """Input i as a value of the graph; constants included."""
        value = self.value(i)
        if isinstance(value, Node):
            return value
        if isinstance(value, np.ndarray):
            return t.constant(value)
        raise Refusal(f"input {i} is a shape, or has its rows on the second axis.")

    def rows_of(self, i: int) -> Node:
        """Input i, which must have a value for every row."""
        node = self.node(i)
        if not node.type.batched:
            raise Refusal(f"input {i} does not depend on the rows.")
        return node

    def matrix(self, i: int = 0) -> Node:
        """Input i, which must be [N, F]."""
        node = self.rows_of(i)
        if len(node.type.shape) != 2:
            raise Refusal(f"input {i} is {node.type}, expected a matrix.")
        return node

    def array(self, i: int) -> Array:
        """Input i, which must be a constant."""
        value = self.value(i)
        if not isinstance(value, np.ndarray):
            raise Refusal(f"input {i} is computed from the data, expected a constant.")
        return value

    def get(self, name: str, default: Any = None) -> Any:
        return self.attributes.get(name, default)

    def axes(self, i: int = 1) -> list[int] | None:
        """The axes that newer versions take as input i, and older ones as an attribute."""
        if "axes" in self.attributes:
            return [int(axis) for axis in self.attributes["axes"]]
        return [int(axis) for axis in self.array(i).ravel()] if self.has(i) else None


Result = Value | tuple[Value, ...]


@dataclass(frozen=True)
class Implementation:
    """How an operator is converted, and the attributes that are looked at; any other is refused."""

    function: Callable[[Call], Result]
    attributes: frozenset[str]


OPERATORS: dict[tuple[str, str], Implementation] = {}
"""(domain, name) → implementation; the domain of ONNX itself is ""."""


def implements(
    *names: str, attributes: tuple[str, ...] = (), domain: str = ""
) -> Callable[[Callable[[Call], Result]], Callable[[Call], Result]]:
    def register(function: Callable[[Call], Result]) -> Callable[[Call], Result]:
        for name in names:
            OPERATORS[domain, name] = Implementation(function, frozenset(attributes))
        return function

    return register


def as_dtype(x: Node, dtype: str) -> Node:
    return t.cast(x, cast(DType, dtype))


def dtype_of(element_type: int) -> DType:
    """The dtype of an ONNX element type. Raises Refusal for those without one (float16, uint64, …)."""
    import onnx

    try:
        kind = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(element_type))
        return "str" if element_type == onnx.TensorProto.STRING else dtype_name(kind)
    except (TypeError, KeyError):
        names = {number: name for name, number in onnx.TensorProto.DataType.items()}
        raise Refusal(f"values of the type {names.get(element_type, element_type)} are not supported.") from None


def inner_axis(axis: int, x: Node) -> int:
    """An axis counted from the front, which must not be the rows'."""
    rank = len(x.type.shape)
    place = axis + rank if axis < 0 else axis
    if not 0 <= place < rank or (place == 0 and x.type.batched):
        raise Refusal(f"it works along axis {axis} of {x.type}: no operator may mix rows.")
    return place


def map_columns(x: Node, function: Callable[[Node], Node]) -> Node:
    """function of every column [N, 1] of a vector or matrix, in x's shape."""
    rank = len(x.type.shape)
    if rank == 1:
        return t.reshape(function(t.reshape(x, "N", 1)), "N")
    if rank != 2:
        raise Refusal(f"its input is {x.type}, expected a vector or a matrix.")
    from hbc.parser.frame import select_columns

    return t.concat([function(select_columns(x, [i])) for i in range(x.type.columns)])
