"""Prints graphs as text, and reads the text back. The text has the syntax of Python, so `ast` parses it. Nothing in it is ever executed.

    def graph(X: f64[N, 2]):
        v0: f64[N, 2] = Standardize(X, offset=f64[2](0.5, nan), scale=f64[2](1.0, 2.0))
        return {'transform': (v0,)}

Arrays of up to INLINE_LIMIT numbers are part of the text. Longer arrays, and arrays of strings, appear as `f64[500] @ k3fa2b1…` and are
kept beside the text under that key.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from hbc.errors import ArtifactError
from hbc.ir.graph import BESIDE, OPERATORS, Graph, Input, Node, Operator, array_key
from hbc.ir.types import NUMPY_DTYPES, Array, Dim, TensorType, dtype_name, type_of

INLINE_LIMIT = 8
NOTHING: Mapping[str, Any] = {}


def print_graph(graph: Graph) -> tuple[str, dict[str, Array]]:
    """(the text of the graph, the arrays that it refers to by key)."""
    arrays: dict[str, Array] = {}
    names = {node: node.op.name for node in graph.inputs}  # type: ignore[attr-defined]
    lines = [f"def graph({', '.join(f'{name}: {node.type}' for node, name in names.items())}):"]
    for node in graph.nodes:
        if node in names:
            continue
        names[node] = f"v{len(names) - len(graph.inputs)}"
        arguments = [names[source] for source in node.inputs]
        for name in node.op.parameters:
            arguments.append(f"{name}={_print_value(getattr(node.op, name), arrays)}")
        lines.append(f"    {names[node]}: {node.type} = {type(node.op).__name__}({', '.join(arguments)})")
    outputs = (f"{method!r}: ({', '.join(names[node] for node in group)},)" for method, group in graph.outputs.items())
    lines.append(f"    return {{{', '.join(outputs)}}}")
    return "\n".join(lines) + "\n", arrays


def facts_beside(graph: Graph) -> dict[str, dict[str, Array]]:
    """What the text leaves out (hbc.ir.graph.beside): by the name of a value in the text, the facts of its operator."""
    given = set(graph.inputs)
    computed = (node for node in graph.nodes if node not in given)
    return {f"v{i}": node.op.facts for i, node in enumerate(computed) if node.op.facts}


def read_graph(text: str, arrays: Mapping[str, Array], facts: Mapping[str, Mapping[str, Array]] = NOTHING) -> Graph:
    """The graph that `print_graph` printed as `text`, with its arrays by key. Raises ArtifactError if the text is not a valid graph."""
    try:
        return _Reader(arrays, facts).graph(ast.parse(text)).verify()
    except (SyntaxError, KeyError, TypeError, ValueError, IndexError, AttributeError, RecursionError) as error:
        raise ArtifactError(
            path="graph",
            found=f"a text that is not a graph ({type(error).__name__}: {error})",
            expected="a graph that hbc printed",
        ) from error


def _print_value(value: Any, arrays: dict[str, Array]) -> str:
    if isinstance(value, np.ndarray):
        return _print_array(value, arrays)
    if isinstance(value, tuple):
        return f"({''.join(_print_value(item, arrays) + ', ' for item in value)})"
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)
    raise TypeError(f"a parameter of type {type(value).__name__} cannot be printed")


def _print_array(array: Array, arrays: dict[str, Array]) -> str:
    head = str(type_of(array))
    if array.size <= INLINE_LIMIT and array.dtype.kind not in "UO":
        # str() of a numpy scalar is the shortest text that reads back to the same bits, except for the payload of a NaN.
        return f"{head}({', '.join(str(item) for item in array.ravel())})"
    key = "k" + array_key(array)[2]
    arrays[key] = array
    return f"{head} @ {key}"


class _Reader:
    def __init__(self, arrays: Mapping[str, Array], facts: Mapping[str, Mapping[str, Array]]) -> None:
        self.arrays = arrays
        self.facts = facts
        self.names: dict[str, Node] = {}

    def graph(self, tree: ast.Module) -> Graph:
        (function,) = tree.body
        if not isinstance(function, ast.FunctionDef):
            raise ValueError("no graph")
        inputs = []
        for argument in function.args.args:
            kind = self.type(argument.annotation)
            self.names[argument.arg] = Input(name=argument.arg, dtype=kind.dtype, shape=kind.shape)()
            inputs.append(self.names[argument.arg])
        *body, last = function.body
        for line in body:
            if not isinstance(line, ast.AnnAssign) or not isinstance(line.target, ast.Name):
                raise ValueError(f"line {line.lineno} is not an assignment")
            node = self.node(line.value, self.facts.get(line.target.id, NOTHING))
            if node.type != self.type(line.annotation):
                raise ValueError(f"line {line.lineno} declares {ast.unparse(line.annotation)} for {node!r}")
            self.names[line.target.id] = node
        if not isinstance(last, ast.Return) or not isinstance(last.value, ast.Dict):
            raise ValueError("no return")
        outputs = {}
        for key, group in zip(last.value.keys, last.value.values, strict=True):
            if not isinstance(group, ast.Tuple):
                raise ValueError("an output is not a tuple")
            outputs[self.value(key)] = tuple(self.names[item.id] for item in group.elts)  # type: ignore[attr-defined]
        return Graph(tuple(inputs), outputs)

    def type(self, tree: ast.expr | None) -> TensorType:
        if not isinstance(tree, ast.Subscript) or not isinstance(tree.value, ast.Name):
            raise ValueError("no type")
        items = tree.slice.elts if isinstance(tree.slice, ast.Tuple) else [tree.slice]
        shape: tuple[Dim, ...] = tuple("N" if isinstance(item, ast.Name) else self.value(item) for item in items)
        return TensorType(tree.value.id, shape)  # type: ignore[arg-type]

    def node(self, tree: ast.expr | None, facts: Mapping[str, Array]) -> Node:
        if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Name):
            raise ValueError("no operator")
        op: type[Operator] = OPERATORS[tree.func.id]
        parameters = {keyword.arg: self.value(keyword.value) for keyword in tree.keywords if keyword.arg}
        sources = [self.names[argument.id] for argument in tree.args]  # type: ignore[attr-defined]
        known = {field.name for field in fields(op) if BESIDE in field.metadata}  # type: ignore[arg-type]
        if not facts.keys() <= known or parameters.keys() & known:
            raise ValueError(f"{tree.func.id} with the facts {', '.join(facts)}")
        return op(**parameters, **facts)(*sources)

    def value(self, tree: ast.expr | None) -> Any:
        if isinstance(tree, ast.Call):
            kind = self.type(tree.func)
            numbers = [self.value(item) for item in tree.args]
            return np.array(numbers, NUMPY_DTYPES[kind.dtype]).reshape(kind.shape)  # type: ignore[arg-type]
        if isinstance(tree, ast.BinOp) and isinstance(tree.right, ast.Name):
            array, kind = self.arrays[tree.right.id], self.type(tree.left)
            if dtype_name(array.dtype) != kind.dtype or array.shape != kind.shape:
                raise ValueError(f"array {tree.right.id} is {array.dtype}{array.shape}, the text says {kind}")
            return array
        if isinstance(tree, ast.Tuple):
            return tuple(self.value(item) for item in tree.elts)
        if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub):
            return -self.value(tree.operand)
        if isinstance(tree, ast.Name):
            return {"nan": math.nan, "inf": math.inf}[tree.id]
        if isinstance(tree, ast.Constant):
            return tree.value
        raise ValueError(f"{ast.unparse(tree) if tree else tree} is not a parameter")
