"""Makes rows to measure with, if the caller of `hbc tune` gives none."""

from __future__ import annotations

import numpy as np

from hbc.errors import InvalidInputError
from hbc.ir.graph import Graph, Input, Node
from hbc.ir.types import NUMPY_DTYPES, Array
from hbc.ops.checks import Check
from hbc.ops.columns import SelectColumns
from hbc.ops.tensor import Cast
from hbc.ops.tree import TreeEnsemble
from hbc.runtime.model import CompiledModel


def rows_for(model: CompiledModel, rows: int) -> Array:
    """Random rows that the model accepts. Raises InvalidInputError for a model
    of strings, frames or several dtypes, and for one that rejects them."""
    graph, spec = model.graph, model.spec
    kinds = {node.type.dtype for node in graph.inputs}
    if (
        len(graph.inputs) != 1
        or spec.ndim != 2
        or spec.frames.required
        or kinds & {"str"}
        or graph.inputs[0].type.columns != spec.n_features
    ):
        advice = "Rows of strings, frames or columns of several dtypes cannot be made up. On the command line: --sample FILE."
        raise InvalidInputError(found="no X", expected="some of the data that the model is for", advice=advice)
    data = random_rows(graph, rows)
    try:
        getattr(model, model.methods[0])(data[:2])
    except InvalidInputError as error:
        found, advice = (
            f"no X, and random rows are rejected ({error})",
            "Pass some of the data; on the command line: --sample FILE.",
        )
        raise InvalidInputError(found=found, expected="rows that the model accepts", advice=advice) from error
    return data


def random_rows(graph: Graph, count: int) -> Array:
    """Random rows for a graph of one matrix of numbers. A column that trees read as it is gets values around their thresholds, so that the
    rows take all paths. Other columns are normal."""
    (source,) = graph.inputs
    random, width = np.random.default_rng(0), source.type.columns
    rows = random.normal(size=(count, width))
    for node in graph.nodes:
        columns = _columns(node.inputs[0], width) if isinstance(node.op, TreeEnsemble) else None
        if columns is None:
            continue
        for place in np.unique(node.op.feature[node.op.feature >= 0]):  # type: ignore[attr-defined]
            cuts = node.op.threshold[node.op.feature == place].astype(np.float64)  # type: ignore[attr-defined]
            cuts = cuts[np.abs(cuts) < np.finfo(np.float32).max / 4]
            if place < len(columns) and len(cuts):
                rows[:, columns[place]] = random.choice(cuts, count) + random.normal(size=count) * (0.1 * cuts.std() + 1e-3)
    dtype = NUMPY_DTYPES[source.type.dtype]
    return (np.round(rows) if dtype.kind == "i" else rows).astype(dtype)


def _columns(node: Node, width: int) -> Array | None:
    """For each column of a value, the column of the input that it is. None where the value is computed."""
    if isinstance(node.op, Input):
        return np.arange(width)
    if isinstance(node.op, SelectColumns):
        columns = _columns(node.inputs[0], width)
        return None if columns is None else columns[node.op.indices]
    return _columns(node.inputs[0], width) if isinstance(node.op, (Check, Cast)) else None
