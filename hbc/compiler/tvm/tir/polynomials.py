"""Polynomials through points, for kernels of functions. The coefficients are the same on every machine."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction


def interpolated(x: Sequence[float | Decimal], y: Sequence[float | Decimal]) -> list[float]:
    """The coefficients of the polynomial of degree len(x) - 1 through all points (x[i], y[i]), the constant one first.

    It is computed exactly, by Newton's divided differences, and rounded at the end. `numpy.polynomial.polyfit` goes through LAPACK, whose
    last digits depend on the processor: the generated code would too."""
    nodes, rest = [Fraction(each) for each in x], [Fraction(each) for each in y]
    for order in range(1, len(nodes)):
        for i in range(len(nodes) - 1, order - 1, -1):
            rest[i] = (rest[i] - rest[i - 1]) / (nodes[i] - nodes[i - order])
    coefficients = [rest[-1]]
    for node, difference in zip(reversed(nodes[:-1]), reversed(rest[:-1]), strict=True):
        shifted = [Fraction(0), *coefficients]  # times (x - node), plus the difference
        coefficients = [a - node * b for a, b in zip(shifted, [*coefficients, Fraction(0)], strict=True)]
        coefficients[0] += difference
    return [float(each) for each in coefficients]
