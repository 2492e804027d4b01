"""The input that a converter receives: a matrix (a Node), or a Frame, whose columns may have different dtypes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from hbc.ir.graph import Input, Node
from hbc.ir.signature import InputSpec, Kinds, input_layout
from hbc.ir.types import NUMPY_DTYPES, DType, N, dtype_name
from hbc.lazy import record
from hbc.ops import tensor as t
from hbc.ops.checks import Check
from hbc.ops.columns import SelectColumns
from hbc.ops.scaling import Binarize


class Refusal(Exception):
    """A converter's refusal of an estimator as it is configured: the reason, and what the user can do."""

    def __init__(self, reason: str, advice: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.advice = advice


class StringsNeeded(Exception):
    """An encoder was fitted on strings, but these columns of the model's input were assumed to be numbers."""

    def __init__(self, columns: Sequence[int]) -> None:
        super().__init__(f"columns {list(columns)} hold strings")
        self.columns = tuple(columns)


@record
class FrameColumn:
    """One column of a Frame: column `index` of the matrix `node`."""

    node: Node
    index: int
    origin: int | None = None
    """The number of this column in the model's input, if no operator has changed it."""


@record
class Frame:
    """Columns in order, and their names if they are known."""

    columns: tuple[FrameColumn, ...]
    names: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.columns)

    def select(self, indices: Sequence[int]) -> Frame:
        names = None if self.names is None else tuple(self.names[i] for i in indices)
        return Frame(tuple(self.columns[i] for i in indices), names)

    @property
    def dtypes(self) -> tuple[str, ...]:
        return tuple(column.node.type.dtype for column in self.columns)

    def name(self, index: int) -> str:
        return f"column {index}" if self.names is None else f"column {self.names[index]!r}"

    def need_strings(self, indices: Sequence[int]) -> None:
        """Require that these columns hold strings. Raises StringsNeeded if columns of the model's input were assumed to be numbers: the
        walk then starts again with strings. Raises Refusal if a column is computed, and so certainly holds numbers."""
        dtypes = self.dtypes
        wrong = [i for i in indices if dtypes[i] != "str"]
        origins = [self.columns[i].origin for i in wrong]
        if any(origin is None for origin in origins):
            raise Refusal(f"{self.name(wrong[0])} holds numbers, but the estimator was fitted on strings.")
        if wrong:
            raise StringsNeeded([origin for origin in origins if origin is not None])

    def blocks(self) -> tuple[Node, ...]:
        """All columns in order, as matrices of one dtype each: neighbours that are columns of one node stay together."""
        return tuple(select_columns(run[0].node, [column.index for column in run]) for run in self._runs())

    def _runs(self) -> list[list[FrameColumn]]:
        """The columns in order, in lists of neighbours that belong to one node."""
        runs: list[list[FrameColumn]] = []
        for column in self.columns:
            if runs and runs[-1][0].node is column.node:
                runs[-1].append(column)
            else:
                runs.append([column])
        return runs

    def column(self, index: int) -> Node:
        """One column as a matrix [N, 1]."""
        return self.select([index]).matrix(strings=True)

    def matrix(self, strings: bool = False) -> Node:
        """All columns as one matrix of their common dtype (numpy.result_type). Raises Refusal for columns of strings, unless all columns
        hold strings and `strings` is true, and for a frame without columns."""
        kinds = set(self.dtypes)
        if "str" in kinds and (len(kinds) > 1 or not strings):
            texts = [self.name(i) for i, kind in enumerate(self.dtypes) if kind == "str"]
            raise Refusal(
                f"{', '.join(texts[:5])} hold strings, where numbers are needed.",
                "Encode them before (OneHotEncoder, OrdinalEncoder), as the source library requires too.",
            )
        if not self.columns:
            raise Refusal("it is given no columns at all.", "Remove it from the pipeline.")
        common = "str" if "str" in kinds else dtype_name(np.result_type(*(NUMPY_DTYPES[kind] for kind in kinds)))
        return t.concat([_cast(block, common) for block in self.blocks()])


def _cast(node: Node, dtype: str) -> Node:
    return node if dtype == "str" else t.cast(node, dtype)  # type: ignore[arg-type]


def select_columns(x: Node, indices: Sequence[int]) -> Node:
    """x[:, indices]; x itself if these are all its columns in order."""
    if list(indices) == list(range(x.type.columns)):
        return x
    return SelectColumns(np.asarray(indices, np.int64))(x)


def as_frame(x: Node | Frame) -> Frame:
    return x if isinstance(x, Frame) else Frame(tuple(FrameColumn(x, i) for i in range(x.type.columns)))


def as_matrix(x: Node | Frame) -> Node:
    return x.matrix() if isinstance(x, Frame) else x


def nodes_of(x: Node | Frame) -> list[Node]:
    """The values that hold the columns of x, each once: a frame of 5,000 columns may hold one."""
    return list(dict.fromkeys(column.node for column in x.columns)) if isinstance(x, Frame) else [x]


def untouched(x: Node | Frame) -> list[tuple[Node, int] | None]:
    """For each column of x: (the graph input, its column there) if x has that column unchanged, or None if the column is computed."""
    if isinstance(x, Frame):
        picked: dict[Node, list[int]] = {}
        for column in x.columns:
            picked.setdefault(column.node, []).append(column.index)
        found = {node: iter(_untouched_among(node, indices)) for node, indices in picked.items()}
        return [next(found[column.node]) for column in x.columns]
    return _untouched_among(x, range(x.type.columns if len(x.type.shape) == 2 else 1))


def _untouched_among(x: Node, picked: Sequence[int]) -> list[tuple[Node, int] | None]:
    """The same for these columns of x. (Each of 3,000 encoders picks one column: with all of them each time, that took 10 s.)"""
    match x.op:
        case Input():
            return [(x, i) for i in picked]
        case Check():
            return _untouched_among(x.inputs[0], picked)
        case SelectColumns(indices):
            return _untouched_among(x.inputs[0], indices[np.asarray(picked, np.int64)].tolist())
        case t.Concat():
            places = [column for source in x.inputs for column in untouched(source)]
            return [places[i] for i in picked]
    return [None] * len(picked)


def _places(x: Node | Frame) -> list[tuple[Node, int]]:
    """The columns of the model's input that x contains unchanged, as (graph input, column)."""
    places = untouched(x)
    if places.count(None) == len(places):  # 40 ms less for the million columns of a HashingVectorizer
        return []
    return [place for place in places if place is not None]


OF_OWN_DTYPE = (t.Unary, t.Binary, t.Where, t.Concat, Check, SelectColumns, Binarize)
"""Operators whose result may have the dtype of the model's input, such as abs(x)."""


def dtype_givers(x: Node | Frame) -> list[tuple[Node, int]]:
    """The columns of the model's input, as (graph input, column), whose dtype decides the dtype of x. These are the input columns that x
    contains unchanged, and the ones from which OF_OWN_DTYPE compute x without a change of dtype."""
    found = _places(x)
    waiting = nodes_of(x)
    seen: set[Node] = set()
    while waiting:
        node = waiting.pop()
        if node in seen or not isinstance(node.op, OF_OWN_DTYPE) or None not in untouched(node):
            continue
        seen.add(node)
        alike = [source for source in node.inputs if source.type.dtype == node.type.dtype and len(source.type.shape) == 2]
        found += [place for source in alike for place in _places(source)]
        waiting += alike
    return found


def source_frame(spec: InputSpec, kinds: Kinds) -> tuple[tuple[Node, ...], Node | Frame]:
    """(the graph inputs of the variant with columns of the dtypes `kinds`, the model's input as the first converter receives it)."""
    layout = input_layout(kinds)
    inputs = {}
    for name, columns in layout.items():
        shape = (N, len(columns)) if spec.ndim == 2 else (N,)
        inputs[name] = Input(name, cast(DType, kinds[columns[0]]), shape)()
    if spec.ndim == 1:
        (node,) = inputs.values()
        return (node,), node
    place = {
        origin: FrameColumn(inputs[name], i, origin) for name, columns in layout.items() for i, origin in enumerate(columns)
    }
    # A column that nobody reads can still be selected. Its stand-in is no declared input, so a graph that used it would be invalid.
    numeric: list[DType] = [kind for kind in kinds if kind != "unread" and kind != "str"]
    unread = Input("unread", numeric[0] if numeric else "f64", (N, 1))()
    by_origin = tuple(place.get(i, FrameColumn(unread, 0, i)) for i in range(len(kinds)))
    return tuple(inputs.values()), Frame(by_origin, spec.feature_names)
