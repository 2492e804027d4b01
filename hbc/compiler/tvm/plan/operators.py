"""All that the backend knows about an operator. The decorators `@emits` and `@element_of` register it where its code is written.

Planning reads these facts and never runs the code, so that it needs no TVM. Adding an operator touches one file: that of its kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from hbc.compiler.tvm.plan.sizes import elements
from hbc.ir.graph import Node, Operator

Code = TypeVar("Code", bound=Callable[..., Any])


@dataclass(frozen=True)
class Emission:
    """How an operator is computed, and what follows from that for the plan of a function.

    kernel: `kernel(f, node)` writes the loops that fill the memory of a value. None: one expression after the other (`element`).
    element: `element(node, dialect, *operands)` is the expression of one element of the result, from the same elements of the
    operands. None: the operator needs loops of its own.
    rereads: whether it reads an element of an operand more than once, or in an order of its own, so that operands need memory.
    costly: it takes dozens of instructions. Its results are stored, so that they are never computed twice and statements stay small.
    skipped: where its result is used for some rows only, a look at every row first pays: a KNNImputer's distances took 160 ms for
    100,000 rows without a gap.
    nanoseconds: a rough time for one row, to decide on threads. None: 0.3 ns for each element read or written.
    """

    kernel: Callable[..., None] | None = None
    element: Callable[..., Any] | None = None
    rereads: bool | Callable[[Node], bool] = False
    costly: bool = False
    skipped: bool = False
    nanoseconds: Callable[[Node], float] | None = None


EMISSIONS: dict[type[Operator], Emission] = {}
"""The table of operators that this backend computes itself; the others are lowered."""

UNKNOWN = Emission()


def emission(op: Operator) -> Emission:
    """What is registered for an operator; the neutral `Emission` if nothing is."""
    return EMISSIONS.get(type(op), UNKNOWN)


def emits(*operators: type[Operator], **facts: Any) -> Callable[[Code], Code]:
    """A decorator that registers the kernel of operators, with other fields of `Emission` as keywords."""
    return _register(operators, "kernel", facts)


def element_of(*operators: type[Operator], **facts: Any) -> Callable[[Code], Code]:
    """A decorator that registers the expression of one element, with other fields of `Emission` as keywords."""
    return _register(operators, "element", facts)


def _register(operators: tuple[type[Operator], ...], field: str, facts: dict[str, Any]) -> Callable[[Code], Code]:
    def register(code: Code) -> Code:
        for op in operators:
            known, said = EMISSIONS.get(op, UNKNOWN), {field: code, **facts}
            assert getattr(known, field) is None, f"{op.__name__} has two codes for its {field}"
            EMISSIONS[op] = replace(known, **said)
        return code

    return register


def is_elementwise(op: Operator) -> bool:
    """Whether each element of the result follows from the same elements of the operands."""
    return emission(op).element is not None


def rereads(node: Node) -> bool:
    """Whether a node reads elements of its operands more than once, or in an order of its own."""
    rule = emission(node.op).rereads
    return rule if isinstance(rule, bool) else rule(node)


def per_element(nanoseconds: float) -> Callable[[Node], float]:
    """So many nanoseconds for each element of a row's result."""
    return lambda node: nanoseconds * elements(node.type)


def nanoseconds(node: Node) -> float:
    """A rough time for one row of a node."""
    rule = emission(node.op).nanoseconds
    if rule is not None:
        return rule(node)
    return 0.3 * (elements(node.type) + sum(elements(source.type) for source in node.inputs if source.type.batched))
