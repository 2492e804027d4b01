"""The ranges of numbers that a model tells apart: from the least to the largest number that it compares a column with."""

from __future__ import annotations

import numpy as np

from hbc.ir.graph import Input
from hbc.ir.origins import Origins
from hbc.ir.signature import input_layout
from hbc.runtime.model import CompiledModel


def ranges_of(model: CompiledModel) -> dict[int, tuple[float, float]]:
    """Column → the least and the largest number that trees and bins of the model compare it with. A row with a number beyond them is
    computed as if it had the outermost one that was seen in training, or nearly so: a sign that the data have changed.

    Columns that the model computes with (linear models, neighbours), and those that are scaled before the trees, have none."""
    main = model.variants[model._main]
    layout, origins = input_layout(main.kinds), Origins()
    found: dict[int, tuple[float, float]] = {}
    for node in main.source.glance().nodes:
        outermost = node.op.outermost()
        if outermost is None:
            continue
        operand = node.inputs[0]
        for place, (low, high) in enumerate(zip(*outermost, strict=True)):
            if not low <= high or not origins.unchanged(operand, place):
                continue
            for source, column in origins.of(operand, place):
                assert isinstance(source.op, Input)
                number = layout[source.op.name][column]
                least, largest = found.get(number, (np.inf, -np.inf))
                found[number] = min(least, float(low)), max(largest, float(high))
    return found
