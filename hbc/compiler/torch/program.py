"""A graph as an `nn.Module`, whose buffers are the graph's constants and whose methods are those of the model."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from hbc.compiler.base import main_method
from hbc.compiler.torch.exact import Function, exporting, scripted, tracing
from hbc.compiler.torch.products import Products, by_parts
from hbc.compiler.torch.rules import OUTSIDE_DTYPES, PARAMETERS, ROW_BY_ROW, WORKSPACE, function_of
from hbc.errors import InvalidInputError
from hbc.ir.graph import Constant, Graph, Input, Node, Operator, array_key, topological
from hbc.ir.rewrite import rewrite
from hbc.ir.types import NUMPY_DTYPES, Array, TensorType
from hbc.lazy import record
from hbc.ops import tensor as t
from hbc.ops.columns import Rank
from hbc.ops.encoding import OneHot
from hbc.ops.linear import Linear
from hbc.ops.missing import Impute


@record
class Step:
    """One operator of a method: values[result] = function(*values[arguments]). Later steps do not need the values `dead`."""

    function: Function
    arguments: tuple[int, ...]
    result: int
    dead: tuple[int, ...]


class Width(NamedTuple):
    """The bytes of the widest value of a method, for one row: at least 1."""

    all: int
    """Of all values."""
    kept: int
    """Of those that the cache should keep: all but inputs that are read once, row by row."""


@record
class Method:
    """The steps of one method. Its values are numbered: first the graph's inputs, then the buffers that it reads, then the results of
    operators."""

    buffers: tuple[str, ...]
    """The names of the buffers."""
    steps: tuple[Step, ...]
    results: tuple[int, ...]
    """The numbers of the values that the method returns."""
    size: int
    """How many values there are."""
    width: Width
    """The bytes of the widest value for one row."""


class Program(nn.Module):
    """A graph as a module. It has a method for each method of the model, called `entry(name)`, which takes the graph's inputs as tensors
    and returns a tensor, or a tuple of several. The module itself, called, is `forward`. Constants are buffers. Results have gradients with
    respect to inputs, and to buffers that require them, wherever PyTorch's operators have them."""

    def __init__(self, graph: Graph, columns: Mapping[str, Sequence[int]] | None = None) -> None:
        """columns: input → the columns of the model's input that it holds (() if they are not known), for a Program whose inputs do not
        come from hbc. A tensor of another width is then an error. Otherwise its first columns would be taken for those of the model."""
        super().__init__()
        graph = rewrite(graph, by_parts)
        self.operators = graph
        """The graph that the module runs, operator by operator."""
        self._names: dict[tuple[Any, ...], str] = {}
        self._methods = {name: self._schedule(graph, group) for name, group in graph.outputs.items()}
        self._input_types = [node.type for node in graph.inputs]
        self._result_types = {name: [node.type for node in group] for name, group in graph.outputs.items()}
        self._columns = (
            None if columns is None else [tuple(columns[node.op.name]) for node in graph.inputs if isinstance(node.op, Input)]
        )
        self._main = main_method(graph.outputs)
        for name in graph.outputs:
            object.__setattr__(self, entry(name), functools.partial(self.compute, name))

    def _hold(self, array: Array) -> str:
        """The name of the buffer that holds this array; arrays with equal bits share one."""
        key = array_key(array)
        if key not in self._names:
            self._names[key] = f"constant{len(self._names)}"
            kind = t.constant(array).type.dtype
            self.register_buffer(
                self._names[key], torch.tensor(array.astype(np.int32) if kind == "u16" else array, device="cpu")
            )
        return self._names[key]

    def _schedule(self, graph: Graph, results: Sequence[Node]) -> Method:
        """The steps that compute these results."""
        operands: dict[Node, list[Node | str]] = {}  # a string is the name of a buffer
        for node in topological(results):
            if not isinstance(node.op, (Input, Constant)):
                sources = [self._hold(source.op.value) if isinstance(source.op, Constant) else source for source in node.inputs]
                parameters = PARAMETERS[type(node.op)](node.op) if type(node.op) in PARAMETERS else ()
                operands[node] = [*sources, *map(self._hold, parameters)]
        buffers = tuple(dict.fromkeys(source for sources in operands.values() for source in sources if isinstance(source, str)))
        values: list[Node | str] = [*graph.inputs, *buffers, *operands]
        number = {value: i for i, value in enumerate(values)}
        needed = {number[node] for node in results}
        columns, unsigned = _by_column(operands, results), _unsigned(operands, results)
        steps: list[Step] = []
        for node in reversed(operands):
            arguments = tuple(number[source] for source in operands[node])
            dead = tuple(sorted(set(arguments) - needed))
            needed.update(arguments)
            steps.append(Step(function_of(node, node in columns, node in unsigned), arguments, number[node], dead))
        inside = [WORKSPACE[type(node.op)](node.op) for node in operands if type(node.op) in WORKSPACE]
        readers = Counter(source for sources in operands.values() for source in sources)
        by_row = {source for node in operands if _row_by_row(node.op) for source in node.inputs}
        once = {node for node in graph.inputs if node in by_row and readers[node] == 1}
        kept = max([*(row_bytes(node.type) for node in (*operands, *graph.inputs) if node not in once), *inside, 1])
        width = Width(max([kept, *(row_bytes(node.type) for node in once)]), kept)
        return Method(buffers, tuple(reversed(steps)), tuple(number[node] for node in results), len(number), width)

    def compute(self, name: str, *inputs: Tensor) -> Any:
        """The result of the model's method `name`: a tensor, or a tuple of several."""
        method = self._methods[name]
        values: list[Any] = [None] * method.size
        for i, (value, kind) in enumerate(zip(inputs, self._input_types, strict=True)):
            if self._columns is not None:
                value = _of_type(value, kind, self._columns[i])
            values[i] = value.to(torch.int32) if kind.dtype == "u16" else value
        for i, buffer in enumerate(method.buffers, len(inputs)):
            values[i] = self._buffers[buffer]
        for step in method.steps:
            values[step.result] = step.function(*[values[i] for i in step.arguments])
            for i in step.dead:
                values[i] = None
        results = [
            values[i].to(torch.uint16) if kind.dtype == "u16" else values[i]
            for i, kind in zip(method.results, self._result_types[name], strict=True)
        ]
        return results[0] if len(results) == 1 else tuple(results)

    def forward(self, *inputs: Tensor) -> Any:
        """The result of the first of `predict_proba`, `transform` and `predict` that the model has, or else of its first method."""
        return self.compute(self._main, *inputs)

    def width(self, name: str) -> Width:
        """The bytes of the widest value of a method, for one row."""
        return self._methods[name].width


def _of_type(x: Tensor, kind: TensorType, columns: tuple[int, ...]) -> Tensor:
    """x, which must have the dtype and the number of columns of `kind`. A trace keeps the check, whose error is then torch.jit.Error.
    torch.export keeps it too, in PyTorch's words. Raises InvalidInputError. columns: those of the model's input, for the message; () if
    they are not known."""
    width, dtype = (int(kind.shape[1]) if len(kind.shape) == 2 else -1), OUTSIDE_DTYPES[kind.dtype]
    listed = ": " + ", ".join(map(str, columns[:20])) + (", …" if len(columns) > 20 else "") + " (the first is 0)"
    expected = f"a matrix of {width} columns, those that the model reads{listed if columns else ''}"
    typed = f"a tensor of {dtype}, the dtype of the sample that the model was converted with (torch.float32 without one)"
    if exporting():
        torch.ops.aten._assert_tensor_metadata(x, dtype=dtype)
    if tracing():
        return scripted(_checked_in_a_trace)(x, width, dtype, f"expected {expected}", f"expected {typed}")
    if x.dtype != dtype:
        raise InvalidInputError(
            found=f"a tensor of {x.dtype}",
            expected=typed,
            advice=f"Call it with x.to({dtype}), or give convert "
            "a sample of your dtype. To scikit-learn these are different rows.",
        )
    if width >= 0 and (x.ndim != 2 or x.shape[1] != width):
        raise InvalidInputError(found=f"a tensor of shape {tuple(x.shape)}", expected=expected)
    return x


def _checked_in_a_trace(x: Tensor, width: int, dtype: torch.dtype, message: str, typed: str) -> Tensor:
    if x.dtype != dtype:
        raise ValueError(typed)
    if width >= 0 and (x.dim() != 2 or x.size(1) != width):
        raise ValueError(message)
    return x


PRODUCTS = (Linear, Products, t.MatMul)
ELEMENTWISE = (t.Unary, t.Binary, t.Cast, t.Where, Impute)


def _row_by_row(op: Operator) -> bool:
    """Whether an operator reads one row after the other."""
    return isinstance(op, PRODUCTS) or (type(op) in ROW_BY_ROW and ROW_BY_ROW[type(op)](op))


def _by_column(operands: dict[Node, list[Node | str]], results: Sequence[Node]) -> set[Node]:
    """The matrices that may be stored column after column, because in the end only products and ranks read them."""
    return _read_by((*PRODUCTS, Rank), (*ELEMENTWISE, OneHot), operands, results)


def _unsigned(operands: dict[Node, list[Node | str]], results: Sequence[Node]) -> set[Node]:
    """The matrices whose zeros may lose their sign, because only products read them."""
    return _read_by(PRODUCTS, (t.Cast,), operands, results)


def _read_by(
    ends: tuple[type[Operator], ...],
    joins: tuple[type[Operator], ...],
    operands: dict[Node, list[Node | str]],
    results: Sequence[Node],
) -> set[Node]:
    """The matrices all of whose readers are of two kinds: operators of the classes `ends`; or concatenations, selections of columns and
    operators of the classes `joins`, whose own results are such matrices."""
    found = {
        node
        for node in operands
        if node.type.batched and len(node.type.shape) == 2 and node.type.columns and node not in results
    }
    for node in reversed(operands):
        joined = isinstance(node.op, joins) or (isinstance(node.op, (t.Concat, t.Take)) and node.op.axis == 1)
        if not isinstance(node.op, ends) and not (joined and node in found):
            found.difference_update(node.inputs)
    return found


def entry(name: str) -> str:
    """The name of a method in a module: its own, or with _ behind it if modules have that name already (`apply` becomes `apply_`)."""
    return f"{name}_" if hasattr(nn.Module, name) else name


def row_bytes(kind: TensorType) -> int:
    """The bytes of a value for one row; 0 for a constant."""
    return math.prod(int(size) for size in kind.shape[1:]) * NUMPY_DTYPES[kind.dtype].itemsize if kind.batched else 0
