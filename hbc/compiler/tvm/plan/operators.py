"""The table of all that the backend knows about each operator. The decorators `@emits`, `@element_of` and `@gives` fill it where the code
of an operator is written.

Planning reads these facts and never runs the code, so it needs no TVM. A new operator touches one file: the file of its kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from hbc.compiler.tvm.plan.sizes import elements
from hbc.ir.graph import Node, Operator
from hbc.lazy import record

Code = TypeVar("Code", bound=Callable[..., Any])


@record
class Emission:
    """How an operator is computed, and the facts about it that the plan of a function needs.

    kernel: `kernel(f, node)` writes the loops that fill the memory of a value. None: `element` is written for one element after the other.
    element: `element(node, dialect, *operands)` returns the expression of one element of the result, from the same elements of the
    operands. None: the operator needs loops of its own.
    rereads: whether it reads an element of an operand more than once, or in an order of its own. Its operands then need memory.
    costly: whether it takes dozens of instructions. Its results are then stored, so that they are never computed twice and statements
    stay small.
    skipped: whether it is worth testing first which rows need the result. A KNNImputer's distances took 160 ms for 100,000 rows without
    a gap.
    spreads: whether the rounds of the kernel's loop over `grid` may run in several threads: all of it is in such loops, and no round needs
    another one.
    nanoseconds: a rough time for one row, to decide on threads. None: 0.3 ns for each element read or written.
    gives: `gives(f, node, output)` writes the loops that fill the caller's array, for an output that nothing else reads, and that so needs
    no memory. None: it is copied from its memory.
    """

    kernel: Callable[..., None] | None = None
    element: Callable[..., Any] | None = None
    rereads: bool | Callable[[Node], bool] = False
    costly: bool = False
    skipped: bool = False
    spreads: bool = False
    nanoseconds: Callable[[Node], float] | None = None
    gives: Callable[..., None] | None = None


EMISSIONS: dict[type[Operator], Emission] = {}
"""The operators that this backend computes itself. All others are lowered to these."""

UNKNOWN = Emission()


def emission(op: Operator) -> Emission:
    """The `Emission` registered for an operator; one with the defaults if there is none."""
    return EMISSIONS.get(type(op), UNKNOWN)


def emits(*operators: type[Operator], **facts: Any) -> Callable[[Code], Code]:
    """A decorator that registers the kernel of operators, with other fields of `Emission` as keywords."""
    return _register(operators, "kernel", facts)


def element_of(*operators: type[Operator], **facts: Any) -> Callable[[Code], Code]:
    """A decorator that registers the expression of one element, with other fields of `Emission` as keywords."""
    return _register(operators, "element", facts)


def gives(*operators: type[Operator], **facts: Any) -> Callable[[Code], Code]:
    """A decorator that registers the code that writes an output to the caller's array, with other fields of `Emission` as keywords."""
    return _register(operators, "gives", facts)


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
    """A function for `Emission.nanoseconds`: so many nanoseconds for each element of a row's result."""
    return lambda node: nanoseconds * elements(node.type)


def nanoseconds(node: Node) -> float:
    """A rough time for one row of a node."""
    rule = emission(node.op).nanoseconds
    if rule is not None:
        return rule(node)
    return 0.3 * (elements(node.type) + sum(elements(source.type) for source in node.inputs if source.type.batched))
