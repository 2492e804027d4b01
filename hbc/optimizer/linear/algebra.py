"""Linear algebra done once instead of for every row: maps of columns and products that follow one another become one product, and
products with one-hot codes become look-ups in tables.

A rewrite may change only the last bits of sums, whose order the compilers choose anyway (`MatMul`). With u = 2⁻⁵³ (2⁻²⁴ in float32):

* A product of products, (x·A + a)·B + b as x·(A·B) + (a·B + b): the source's own error bound is about (F + K)·u·(|x|·|A| + |a|)·|B|,
  and the new sum's is F·u·|x|·|A·B| + K·u·(|x|·|A| + |a|)·|B|, which is no more.
* A map of columns before a product, y = x·A + B: x·A and B may be much larger than y and cancel, where the source subtracts first and loses
  nothing. |x·A| ≤ |y| + |B|, so the error is about u·(|y| + 2·S)·|W|, where S is the sum of the magnitudes that make up B. After a scaler,
  y is about 1. `LARGEST_SHIFT` bounds S: in float64 the error stays below 100·2·2⁻⁵³ ≈ 2e-14 of |W|, in float32 below 5e-7.
  A map that only centres is left alone. Its scale is unknown: x - m may be far smaller than m.
* Where the source rounds to float32 before a product in float64, nothing is changed.

Nothing is rewritten before an operator that jumps (trees, bins, categories): the last bit can decide there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from hbc.compiler.base import CompileOptions, Compiler
from hbc.ir.graph import Constant, Graph, Node, topological
from hbc.ir.rewrite import Noted, rewrite
from hbc.ir.types import NUMPY_DTYPES, Array, DType
from hbc.lazy import record
from hbc.ops import tensor as t
from hbc.ops.checks import Check
from hbc.ops.columns import SelectColumns
from hbc.ops.encoding import OneHot
from hbc.ops.linear import Linear
from hbc.ops.scaling import Affine, Standardize
from hbc.optimizer.linear.tables import made_of, table_sum

LARGEST_SHIFT = {"f64": 100.0, "f32": 4.0}
"""How many times its own scale a column may be shifted, if the following product takes over the shift (see above)."""
MOST_CANCELLED = 100.0
"""How many times larger than a product of weights its terms may be. A projection onto noise has 1e16 there."""
LARGEST_NOISE = 1e-4
"""How large the source's own rounding errors may become in a product of products, where x is about 1. Beyond it, the order of the
sums shows in numbers that nearly cancel. A Nystroem of a singular kernel has weights of 1e6: in float32 a decision value was
1.104 instead of 1.087."""
SAFE = {"f64": (1e-200, 1e200), "f32": (1e-25, 1e25)}
"""(least, most) magnitude that parameters may have: neither they nor their products with ordinary numbers leave the range of the
dtype."""

Readers = Mapping[Node, list[Node | None]]


@record
class FoldLinear:
    """Products absorb the maps of columns before and after them:

    `Linear(Standardize(x))` → `Linear'(x)`; `Linear(Linear(x))` → `Linear'(x)` where that is fewer multiplications;
    `Div(Linear(x), c)` → `Linear'(x)`; the same through SelectColumns and parts of a Concat; `Linear(Concat(x, OneHot(codes)))`
    → `Add(Linear'(x), TableSum(places of codes))`, where that is faster in the compiler.
    """

    compiler: Compiler
    options: CompileOptions

    def __call__(self, graph: Graph) -> Noted:
        notes: list[str] = []
        folded, turn, fired = rewrite(graph, lambda node: None), 0, False  # equal operands are one, before readers are counted
        while turn < len(_TURNS):
            step = _Step(_readers(folded), *_methods(folded), _before_jumps(folded), _TURNS[turn], notes, self._looks_up)
            folded = rewrite(folded, step)
            turn = 0 if step.fired else turn + 1
            fired = fired or step.fired
        return Noted(folded, tuple(notes)) if fired else Noted(graph)

    def _looks_up(self, op: OneHot, codes: Node, outputs: int, dtype: DType) -> bool:
        """Whether the product of one-hot codes and weights of a dtype becomes a `TableSum`."""
        count = len(np.unique(op.source))
        return count > 0 and self.compiler.looks_up(count, made_of(codes), len(op.source), outputs, dtype, self.options)


@record
class Map:
    """y = x · slope + shift, by columns [F], in float64. `size`: the sum of the magnitudes of which `shift` was made. `scales`:
    whether the map is more than a shift, so that y has a known scale."""

    slope: Array
    shift: Array
    size: Array
    scales: bool

    def then(self, after: Map) -> Map:
        """This map and then `after`, as one map."""
        shift = self.shift * after.slope + after.shift
        size = self.size * np.abs(after.slope) + after.size
        return Map(self.slope * after.slope, shift, size, self.scales or after.scales)

    def fits(self, dtype: str) -> bool:
        """Whether a product can absorb the map."""
        small = bool((self.size <= LARGEST_SHIFT[dtype]).all()) and self.scales
        return _is_safe(self.slope, dtype) and (small or not self.size.any())


@record
class _Part:
    """Some columns of a product's operand: all of `value`, or `columns` of it, and the `weights` they are multiplied with.
    `finite`: whether they were checked to be finite."""

    value: Node
    columns: Array | None
    weights: Array
    finite: bool

    @property
    def operand(self) -> Node:
        return self.value if self.columns is None else SelectColumns(self.columns)(self.value)

    def chosen(self, parameters: Array) -> Array:
        """The parameters of the part's columns, from parameters of all columns of the value."""
        return parameters if self.columns is None else parameters[self.columns]


@dataclass
class _Step:
    """The rewrite rule for one walk over the graph. Operands that change are looked at again in the next walk, since their readers
    are not known in this one."""

    readers: Readers
    methods: Mapping[Node, set[str]]
    returned: Mapping[Node, set[str]]
    jumping: set[Node]
    turn: Callable[[_Step, Node], Node | None]
    notes: list[str]
    looks_up: Callable[[OneHot, Node, int, DType], bool]
    fired: bool = field(default=False)

    def __call__(self, node: Node) -> Node | None:
        if node not in self.readers or node in self.jumping:
            return None
        after = self.turn(self, node)
        self.fired = self.fired or after is not None
        return after

    # --- maps before a product

    def product(self, node: Node) -> Node | None:
        product = _as_product(node)
        if product is None:
            return None
        x, weights, intercept = product
        bias = np.zeros(weights.shape[1]) if intercept is None else intercept.astype(np.float64)
        parts, tables, changed = [], [], False
        for part in _parts(x, weights):
            coded = self._one_hot(part, self.methods[node])
            if coded is not None:
                tables.append(coded)
                self.notes.append(f"{len(coded[0].source)} one-hot columns are looked up by {coded[1].type.columns} codes")
                continue
            folded = self._before_product(part, intercept is not None)
            if folded is not None:
                part, more = folded
                bias = bias + more
                changed = True
            parts.append(part)
        if not changed and not tables:
            return None
        dtype = NUMPY_DTYPES[node.type.dtype]
        has_bias = intercept is not None or bool(bias.any())
        looked_up = table_sum(tables, None if parts or not has_bias else bias, node.type.dtype) if tables else None
        if not parts:
            return looked_up
        operand = t.concat([part.operand for part in parts])
        rows = np.concatenate([part.weights for part in parts]).astype(dtype)
        y = Linear(rows, bias.astype(dtype))(operand) if has_bias else t.matmul(operand, rows)
        return y if looked_up is None else t.add(y, looked_up)

    def _before_product(self, part: _Part, has_intercept: bool) -> tuple[_Part, Array] | None:
        """(the part with its value replaced by the operand of the absorbed map or product, the addition to the intercept); None if
        nothing can be absorbed."""
        value, dtype = part.value, part.value.type.dtype
        if not self._is_absorbed(value):
            return None
        weights = part.weights.astype(np.float64)
        inner = _as_product(value)
        if inner is not None:
            x, before, shift = inner
            if not (part.finite or _is_finite(x)) or not self._is_shorter(value, before):
                return None
            before = before.astype(np.float64)
            chosen = before if part.columns is None else before[:, part.columns]
            both = _product_of(chosen, weights, dtype)
            if both is None or (shift is not None and not self._may_shift(value, has_intercept)):
                return None
            self.notes.append(f"products with {_size(chosen)} and {_size(weights)} weights became one with {_size(both)}")
            more = np.zeros(weights.shape[1]) if shift is None else _in_order(part.chosen(shift.astype(np.float64)), weights)
            return _Part(_past(x)[0], None, both, False), more
        mapped = _as_map(value)
        if mapped is None:
            return None
        x, by_column = mapped
        if not by_column.fits(dtype):
            centred = _centred(value)
            if centred is None or len(self.readers[value]) > 1:
                return None
            x, by_column = centred, Map(by_column.slope, np.zeros(1), np.zeros(1), True)
            if not by_column.fits(dtype):
                return None
        slope, shift = (part.chosen(np.broadcast_to(p, value.type.columns)) for p in (by_column.slope, by_column.shift))
        if shift.any() and not self._may_shift(value, has_intercept):
            return None
        scaled = _scaled(weights, slope, dtype)
        if scaled is None:
            return None
        self.notes.append(f"a product with {_size(weights)} weights took over the scaling of its operand")
        return _Part(x, part.columns, scaled, False), _in_order(shift, weights)

    def _one_hot(self, part: _Part, methods: set[str]) -> tuple[OneHot, Node, Array] | None:
        """(operator, codes, weights) of a part that consists of one-hot codes, which only products read in these methods; None for other
        parts. In other methods, operators may read them: those of PCA's `score_samples` do."""
        value = part.value
        while isinstance(value.op, (Check, t.Cast)):
            value = value.inputs[0]
        if type(value.op) is not OneHot or not self._is_absorbed(part.value, methods) or not np.isfinite(part.weights).all():
            return None
        op = OneHot(part.chosen(value.op.source), part.chosen(value.op.value), value.op.dtype)
        codes, _ = _past(value.inputs[0])
        worth_it = self.looks_up(op, codes, part.weights.shape[1], part.value.type.dtype)
        return (op, codes, part.weights) if worth_it and codes.type.dtype in ("f32", "f64", "i32", "i64") else None

    def _is_shorter(self, value: Node, before: Array) -> bool:
        """Whether x·(A·B) takes fewer multiplications than (x·A)·B, for all B that read x·A."""
        outer = sum(reader.type.columns for reader in self._products(value))
        rows, columns = before.shape
        return rows * outer < rows * columns + columns * outer

    def _may_shift(self, value: Node, has_intercept: bool) -> bool:
        """Whether it costs nothing to shift the results of products instead of their operand."""
        return has_intercept or sum(reader.type.columns for reader in self._products(value)) <= value.type.columns

    # --- maps after a product

    def behind_product(self, node: Node) -> Node | None:
        mapped = _as_map(node)
        if mapped is None:
            return None
        value, by_column = mapped
        product = _as_product(value)
        if product is None or len(self.readers[value]) > 1:
            return None
        x, weights, intercept = product
        scaled = _scaled(weights.astype(np.float64).T, by_column.slope, node.type.dtype)
        if scaled is None or not np.isfinite(by_column.shift).all():
            return None
        bias = (0.0 if intercept is None else intercept.astype(np.float64)) * by_column.slope + by_column.shift
        dtype = NUMPY_DTYPES[node.type.dtype]
        if intercept is None and not by_column.shift.any():
            return t.matmul(x, scaled.T.astype(dtype))
        return Linear(scaled.T.astype(dtype), np.broadcast_to(bias, weights.shape[1]).astype(dtype))(x)

    # --- maps of columns, one after the other

    def maps(self, node: Node) -> Node | None:
        outer = _as_map(node)
        if outer is None or node.type.dtype != "f64" or not self._is_absorbed(node):
            return None
        inner = _as_map(outer[0])
        if inner is None or len(self.readers[outer[0]]) > 1:
            return None
        both = inner[1].then(outer[1])
        if not both.fits("f64"):
            return None
        slope, shift = (np.broadcast_to(p, node.type.columns) for p in (both.slope, both.shift))
        return Affine(slope, shift)(inner[0]) if shift.any() else Standardize(None, 1 / slope)(inner[0])

    # --- who reads a value

    def _is_absorbed(self, value: Node, methods: set[str] | None = None) -> bool:
        """Whether only products read the value, so that they can absorb it. methods: in these methods; None: in all."""
        readers = self.readers.get(value, [])
        if methods is not None:
            readers = [each for each in readers if methods & (self.returned[value] if each is None else self.methods[each])]
        return bool(readers) and all(
            reader is not None
            and (self._is_absorbed(reader, methods) if _passes_columns(reader) else _as_product(reader) is not None)
            for reader in readers
        )

    def _products(self, value: Node) -> set[Node]:
        found: set[Node] = set()
        for reader in self.readers[value]:
            assert reader is not None
            found |= self._products(reader) if _passes_columns(reader) else {reader}
        return found


_TURNS = (_Step.behind_product, _Step.product, _Step.maps)
"""The rules in their order. Maps after a product come first: a product that then has an intercept absorbs shifts at no cost."""


# --- reading the graph


def _readers(graph: Graph) -> Readers:
    """node → the nodes that read it (through checks). None stands for the caller."""
    readers: dict[Node, list[Node | None]] = defaultdict(list)
    for node in graph.nodes:
        readers[node] += []
        if not isinstance(node.op, Check):
            for source in node.inputs:
                readers[_past(source)[0]].append(node)
    for group in graph.outputs.values():
        for node in group:
            readers[_past(node)[0]].append(None)
    return dict(readers)


def _methods(graph: Graph) -> tuple[Mapping[Node, set[str]], Mapping[Node, set[str]]]:
    """(node → the methods that compute it, node → the methods that return it, perhaps through checks)."""
    computed, returned = defaultdict(set), defaultdict(set)
    for method, group in graph.outputs.items():
        for node in topological(group):
            computed[node].add(method)
        for node in group:
            returned[_past(node)[0]].add(method)
    return computed, returned


def _before_jumps(graph: Graph) -> set[Node]:
    """The nodes from which an operator that jumps is computed."""
    found: set[Node] = set()
    for node in reversed(graph.nodes):
        if node.op.jumps or node in found:
            found.update(node.inputs)
    return found


def _past(node: Node) -> tuple[Node, bool]:
    """(the value before all checks, whether one of them excludes NaN and infinity)."""
    finite = False
    while isinstance(node.op, Check):
        finite = finite or not (node.op.allow_nan or node.op.allow_inf)
        (node,) = node.inputs
    return node, finite


def _passes_columns(node: Node) -> bool:
    return isinstance(node.op, SelectColumns) or (isinstance(node.op, t.Concat) and node.op.axis == 1)


def _is_finite(node: Node) -> bool:
    """Whether a value is finite for every input that the model accepts, unless its own numbers overflow."""
    value, finite = _past(node)
    if finite or not value.type.is_float:
        return True
    follows = (
        isinstance(value.op, (t.Cast, Standardize, Affine)) or _passes_columns(value) or _as_product(value) or _as_map(value)
    )
    varying = [source for source in value.inputs if not isinstance(source.op, Constant)]
    return bool(follows and varying) and all(map(_is_finite, varying))


def _as_product(node: Node) -> tuple[Node, Array, Array | None] | None:
    """(x, weights, intercept) if the node is a product with known weights; else None."""
    if isinstance(node.op, Linear):
        return node.inputs[0], node.op.coef, node.op.intercept
    if isinstance(node.op, t.MatMul) and isinstance(node.inputs[1].op, Constant):
        return node.inputs[0], node.inputs[1].op.value, None
    return None


def _parts(x: Node, weights: Array, finite: bool = False) -> list[_Part]:
    x, tested = _past(x)
    finite = finite or tested
    if isinstance(x.op, t.Concat) and x.op.axis == 1:
        found, start = [], 0
        for source in x.inputs:
            width = source.type.columns
            found += _parts(source, weights[start : start + width], finite) if width else []
            start += width
        return found
    if isinstance(x.op, SelectColumns):
        value, tested = _past(x.inputs[0])
        return [_Part(value, x.op.indices, weights, finite or tested)]
    return [_Part(x, None, weights, finite)]


def _as_map(node: Node) -> tuple[Node, Map] | None:
    """(x, map) if the node maps the columns of a float matrix x, which has no checks and the type of the node; else None."""
    found = _read_map(node) if node.type.is_float and len(node.type.shape) == 2 and node.inputs else None
    return found if found is not None and found[0].type == node.type else None


def _read_map(node: Node) -> tuple[Node, Map] | None:
    op = node.op
    x, _ = _past(node.inputs[0])
    zero, one = np.zeros(1), np.ones(1)
    with np.errstate(all="ignore"):
        match op:
            case Standardize():
                slope = one if op.scale is None else 1 / op.scale.astype(np.float64)
                shift = zero if op.offset is None else -op.offset.astype(np.float64) * slope
                return x, Map(slope, shift, np.abs(shift), op.scale is not None)
            case Affine():
                shift = op.offset.astype(np.float64)
                return x, Map(op.scale.astype(np.float64), shift, np.abs(shift), True)
            case t.Neg():
                return x, Map(-one, zero, zero, False)
            case t.Add() | t.Sub() | t.Mul() | t.Div():
                first, second = (_row(source, node) for source in node.inputs)
                if second is not None:
                    return x, _of_arithmetic(op, second)
                other, _ = _past(node.inputs[1])
                if first is not None and not isinstance(op, t.Div):
                    by_column = _of_arithmetic(op, first)
                    return other, by_column.then(Map(-one, zero, zero, False)) if isinstance(op, t.Sub) else by_column
    return None


def _of_arithmetic(op: object, c: Array) -> Map:
    """The map x op c, where c is a constant for each column."""
    zero, one = np.zeros(1), np.ones(1)
    if isinstance(op, (t.Add, t.Sub)):
        return Map(one, c if isinstance(op, t.Add) else -c, np.abs(c), False)
    return Map(c if isinstance(op, t.Mul) else 1 / c, zero, zero, True)


def _row(node: Node, result: Node) -> Array | None:
    """The numbers of a constant, one for each column of the result or one for all; None if the node is no such constant."""
    if not isinstance(node.op, Constant) or node.type.shape not in (
        (),
        (1,),
        (1, 1),
        result.type.shape[1:],
        (1, result.type.columns),
    ):
        return None
    return node.op.value.astype(np.float64).reshape(-1)


def _centred(value: Node) -> Node | None:
    """x - offset of a Standardize with a scale; else None. A product can absorb the scale alone, whatever the offset is."""
    op = value.op
    if not isinstance(op, Standardize) or op.offset is None or op.scale is None:
        return None
    return replace(op, scale=None)(_past(value.inputs[0])[0])


# --- parameters


def _size(weights: Array) -> str:
    return " · ".join(map(str, weights.shape))


def _is_safe(values: Array, dtype: str) -> bool:
    least, most = SAFE[dtype]
    size = np.abs(values)
    return bool(((size >= least) & (size <= most)).all())


def _scaled(weights: Array, slope: Array, dtype: str) -> Array | None:
    """slope[F] · weights[F, K]; None where the result leaves the safe range of the dtype. A weight that was not 0 must not become
    0."""
    with np.errstate(all="ignore"):
        result = np.asarray(weights * slope.reshape(-1, 1))
    return result if _is_safe(slope, dtype) and _is_safe(result[weights != 0], dtype) else None


def _in_order(before: Array, after: Array) -> Array:
    """before[..., K] · after[K, L], added up in the order of K. The sums of BLAS differ from one processor to the next in their last bits,
    and so would the code that is made from a file, and its answers."""
    total = np.zeros((*before.shape[:-1], after.shape[1]))
    for column, row in zip(np.moveaxis(before, -1, 0), after, strict=True):
        total += column[..., None] * row
    return total


def _product_of(before: Array, after: Array, dtype: str) -> Array | None:
    """before[F, K] · after[K, L], or None if it leaves the safe range or cancels (|sum| much smaller than the sum of magnitudes):
    there the fused product would not round as the source does."""
    with np.errstate(all="ignore"):
        result, size = _in_order(before, after), _in_order(np.abs(before), np.abs(after))
    safe = np.isfinite(size).all() and _is_safe(size[size != 0], dtype)
    terms = size.sum(axis=0)
    noise = np.finfo(NUMPY_DTYPES[dtype]).eps * terms  # type: ignore[index]
    return (
        result
        if safe and (terms <= MOST_CANCELLED * np.abs(result).sum(axis=0)).all() and (noise <= LARGEST_NOISE).all()
        else None
    )
