"""The graph: immutable operators applied to immutable nodes. `Op(params)(x, y)` makes a node; a Graph names inputs and outputs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import field, fields, replace
from typing import Any, ClassVar, Literal, TypeVar, dataclass_transform
from weakref import ref

import numpy as np

from hbc.ir.alike import of_columns, with_all_columns
from hbc.ir.coded_strings import CodedStrings, dense
from hbc.ir.magnitudes import by_column
from hbc.ir.ranges import Range
from hbc.ir.rows import Rows
from hbc.ir.spans import Span, span_of
from hbc.ir.types import Array, Dim, DType, TensorType, type_of
from hbc.lazy import cached_property, record

OPERATORS: dict[str, type[Operator]] = {}

OpType = TypeVar("OpType", bound="type[Operator]")


class Operator:
    """One operation with its parameters. Subclasses are frozen dataclasses made by `@operator`; the docstring is the equation.

    The facts below describe the operator to passes and compilers:

    - `level`: "tensor" if every compiler must run it; "model" if it may be lowered to tensor operators instead.
    - `columnwise`: output column j depends on input column j alone (scalers). The first axis of its array parameters is the
      column.
    - `elementwise`: the same of several operands. Each has that column, or one column for all.
    - `removes_missing`: no NaN of the input reaches the output (imputers, encoders). Infinities and large numbers of the input
      do not reach it either, unless `keeps_values`.
    - `keeps_values`: every number of the output is one of the input's or of the operator's own parameters (selections,
      imputers).
    - `creates_missing`: ordinary numbers can give NaN (logarithms, parameters that are NaN).
    - `jumps`: the last bit of the input can decide the result (a branch, a bin, a category).
    - `mixes_rows`: the result of a row depends on the other rows of the call. The call is then never cut into blocks.
    - `in_numpy`: the host computes it, and everything it is computed from, whatever the backend. True where `mixes_rows`.
    - `rows`: how it treats matrices that are mostly zeros (hbc.ir.rows), which stay on the host. It "makes" them and has
      `rows_of`, "keeps" the form of its operands and has `of_rows`, or "takes" such a matrix as first operand, gives an array,
      and has `of_rows`.
    - `of_coded_strings`: computes the result from CodedStrings (hbc.ir.coded_strings), once for each different string instead
      of once for each row. None: the strings are decoded and `evaluate` is called.
    """

    level: ClassVar[Literal["tensor", "model"]] = "model"
    columnwise: ClassVar[bool] = False
    elementwise: ClassVar[bool] = False
    removes_missing: ClassVar[bool] = False
    keeps_values: ClassVar[bool] = False
    jumps: ClassVar[bool] = False
    mixes_rows: ClassVar[bool] = False
    rows: ClassVar[Literal["", "makes", "keeps", "takes"]] = ""
    of_coded_strings: ClassVar[Any] = None
    places_ascend: ClassVar[bool] = False
    """Whether column i of the result names the i-th smallest number of the first operand."""

    # Facts about the numbers of the result. Every default is the neutral one, "not known". It costs time (a guard is computed at every
    # call, a curve is not absorbed into trees), but never gives a wrong answer.

    @property
    def creates_missing(self) -> bool:
        return False

    of_negative_only: ClassVar[bool] = False
    """Whether `creates_missing` is true of negative numbers only."""
    probability: ClassVar[bool] = False
    """Whether every number of the result lies in 0 … 1, and is above 0 but for rounding."""

    @property
    def non_negative(self) -> bool:
        """Whether no number of the result is negative, whatever the operands are (NaN aside)."""
        return self.probability

    @property
    def keeps_sign(self) -> bool:
        """Whether no number of the result is negative where no operand has a negative number."""
        return False

    def never_negative(self, inputs: Sequence[Node]) -> bool:
        """Whether no number of the result is negative, given the nodes it is computed from (NaN aside)."""
        return self.non_negative or (self.keeps_sign and all(map(never_negative, inputs)))

    def never_positive(self, inputs: Sequence[Node]) -> bool:
        """Whether no number of the result is positive (NaN aside)."""
        return False

    def divides_by_sum(self, inputs: Sequence[Node]) -> bool:
        """Whether no number of the result is negative and their sum is above
        0 but for rounding, so that each, divided by the sum, is at most 1."""
        return self.probability

    def magnitude(self, node: Node, bounds: Sequence[Array]) -> Array | None:
        """The largest |y| of each column of the result, float64[node.type.width], given the largest |x| of each column of every input.

        None: not known. Rounding errors are not included, so the reader leaves a margin (hbc.ir.magnitudes.MARGIN). If a magnitude is not
        known, a check of the value is computed in numpy at every call: with the magnitudes of distances and look-ups, Isomap went from
        0.63 to 11 times the source's speed.
        """
        return np.ones(node.type.width) if self.probability or node.type.dtype == "bool" else None

    @property
    def infinite(self) -> Array | bool:
        """The columns of the result that may be infinite for every input, not because a step overflows: bool[F], or for all."""
        return False

    def span(self, node: Node, spans: Sequence[Span]) -> Span:
        """The least and the largest integer of the result, given those of every input; None: not known. Asked of integers only, and of
        truth values, which are 0 or 1."""
        return (0, 1) if node.type.dtype == "bool" else None

    def looks_up(self, inputs: Sequence[Node]) -> Mapping[str | int, range]:
        """Name of a parameter, or number of an operand → the range that its integers must lie in, for integers that index a table.

        Compiled code does not check an index, so loading a file does (hbc.ir.soundness). A parameter of integers that is not named here
        must be no index; tests/test_house.py lists these parameters with the reason.
        """
        return {}

    def require_sound(self) -> None:
        """Raise ValueError for parameters from a file that contradict one another beyond what `infer` and `looks_up` find."""

    def enclose(self, *operands: Any, **_: Any) -> Range | None:
        """The range of the result, given the ranges of the operands (a constant has one number). None: nothing is known but `monotone`."""
        return None

    @property
    def encloses(self) -> bool:
        """Whether `enclose` knows a range."""
        return type(self).enclose is not Operator.enclose

    @property
    def in_numpy(self) -> bool:
        return self.mixes_rows

    # The signatures below are open so that each operator can name its own operands (mypy takes (*Any, **Any) for any override).

    def infer(self, *types: Any, **_: Any) -> TensorType:
        """The type of the result, given the TensorType of each input. Raises TypeError when they are wrong."""
        raise NotImplementedError

    def evaluate(self, *arrays: Any, **_: Any) -> Array:
        """The result for these arrays, computed by numpy. This is the meaning of the operator: backends are tested against it."""
        raise NotImplementedError

    def monotone(self, *constants: Array | None) -> bool | Array:
        """Whether each column of the result keeps or reverses the order of the varying operand's numbers: for all columns, or
        bool[F]. Infinities count as numbers, and no number becomes NaN; NaN may become anything. `constants`: the values of the
        constant operands, None for the one that varies.

        True only where it is a theorem of floating point. A sum, difference, product or quotient with a finite constant (≠ 0)
        keeps the order before it is rounded, and rounding to nearest keeps it. The same holds for casts between floats, for
        comparisons, and for any sequence of these. Logarithms, powers and interpolations do not count: their implementations
        promise nothing.
        """
        return False

    @property
    def rises_from(self) -> float | None:
        """The number from which on the operator is a strictly rising function of real numbers, the same for every element; it
        gives NaN for smaller numbers. None: it is no such function.

        The computed result lies within a few ulps of the exact one, and may fall from one float to the next.
        """
        return None

    def rows_of(self, *arrays: Any, **_: Any) -> Rows:
        """The result of `evaluate` as Rows, without the zeros."""
        raise NotImplementedError

    def row_of(self, item: Any) -> Rows | None:
        """The result of `rows_of` for one object, in the shortest time, for calls of one row. None for an object that `rows_of` has to
        look at: one of another type than most, or one that is rejected. By default always None."""
        return None

    def of_rows(self, *operands: Any, **_: Any) -> Rows | Array:
        """The result of `evaluate` for operands that are Rows."""
        raise NotImplementedError

    def lower(self, *inputs: Any, **_: Any) -> Node:
        """The same value in terms of tensor operators. Only model operators have it."""
        raise NotImplementedError(f"{type(self).__name__} has no lowering")

    def reads(self, kept: Array, inputs: Sequence[Node], finite: bool = False) -> tuple[Array, ...] | None:
        """For each input: which of its columns are needed for the result columns `kept`. Both are ascending. None: all columns are
        needed, or the operator cannot compute some columns alone.

        `finite`: no input holds NaN or ±inf, so that a weight of 0 needs no column. An input without a named column is left
        out; an operator that needs its rows names one column.
        """
        size = max((x.type.width for x in inputs), default=0)
        if not (self.columnwise or self.elementwise) or any(len(x.type.shape) > 2 for x in inputs):
            return None
        if any(array.ndim == 0 or len(array) != size for array in self._arrays.values()):
            return None
        return tuple(kept if x.type.width == size else np.arange(x.type.width) for x in inputs)

    def narrowed(self, kept: Array, columns: Sequence[Array], inputs: Sequence[Node]) -> tuple[Operator, Array] | None:
        """(the operator for narrower inputs, the columns of the old result that it gives). `columns`: for each input the columns
        that are left, which are those that `reads` named for `kept`, and perhaps more. The result has the columns `kept`, and
        perhaps more. None: the operator works only with exactly the columns that `reads` named."""
        size = max((x.type.width for x in inputs), default=0)
        first, *others = (found for found, x in zip(columns, inputs, strict=True) if x.type.width == size)
        if any(not np.array_equal(first, other) for other in others):
            return None
        return self._with({name: array[first] for name, array in self._arrays.items()}), first

    def alike(self, node: Node) -> Any:
        """Something hashable: nodes of equal ones compute their columns in the same way, and `joined` those of all. None: no such way."""
        return of_columns(self, node)

    def joined(self, nodes: Sequence[Node], operand: Callable[[int], Node]) -> Node:
        """The columns of all these nodes, which are `alike`, side by side. `operand`: those of the operands with a number."""
        return with_all_columns(nodes)(*map(operand, range(len(nodes[0].inputs))))

    def keeps(self, inputs: Sequence[Node]) -> bool:
        """`keeps_values` for these inputs: for a cast it hangs on their dtype."""
        return self.keeps_values

    def told_apart(self) -> Sequence[Array] | None:
        """For each column of the first operand: the values that the operator knows there as categories. None: it knows none."""
        return None

    def outermost(self) -> tuple[Array, Array] | None:
        """For each of the first operand's columns: the least and the largest number that the operator compares it with, +inf and -inf where
        it compares with none. Numbers beyond them are all alike to it. The columns behind the last one are not compared. None: none is."""
        return None

    @property
    def parameters(self) -> Iterator[str]:
        """The names of the parameters, on which results depend: all fields but those made by `beside`."""
        return (each.name for each in fields(self) if BESIDE not in each.metadata)  # type: ignore[arg-type]

    @property
    def facts(self) -> dict[str, Array]:
        """The fields made by `beside` that are known, by name."""
        values = {each.name: getattr(self, each.name) for each in fields(self) if BESIDE in each.metadata}  # type: ignore[arg-type]
        return {name: value for name, value in values.items() if value is not None}

    def without_facts(self) -> Operator:
        """The same operator without `facts`; what else was found out about it stays known."""
        other = copy(self)
        other.__dict__.update(dict.fromkeys(self.facts))
        return other

    @property
    def _arrays(self) -> dict[str, Array]:
        values = ((name, getattr(self, name)) for name in self.parameters)
        return {name: value for name, value in values if isinstance(value, np.ndarray)}

    def _with(self, parameters: Mapping[str, Array]) -> Operator:
        return replace(self, **parameters) if parameters else self  # type: ignore[type-var]

    def __call__(self, *inputs: Node) -> Node:
        return Node(self, inputs)

    def __post_init__(self) -> None:
        for each in fields(self):  # type: ignore[arg-type]
            value = getattr(self, each.name)
            if isinstance(value, np.ndarray):
                object.__setattr__(self, each.name, frozen(value))

    @cached_property
    def key(self) -> tuple[Any, ...]:
        """A tuple that is equal for equal operators. Arrays are compared by dtype, shape and bits: NaN equals NaN, and 0.0 is not
        -0.0."""
        values = (getattr(self, name) for name in self.parameters)
        return (type(self).__name__, *map(_parameter_key, values))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Operator) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


@dataclass_transform(frozen_default=True)
def operator(cls: OpType) -> OpType:
    """Class decorator: makes a frozen dataclass and registers it by its name, so that printed graphs can be read back. Raises
    ValueError if two classes have one name."""
    record(eq=False, repr=False)(cls)  # changes the class in place
    if OPERATORS.setdefault(cls.__name__, cls) is not cls:
        raise ValueError(f"two operators are named {cls.__name__}")
    return cls


BESIDE = "beside"


def beside() -> Any:
    """A field of an operator for an array on which no result depends, None if it is not known. Operators with different ones are equal,
    printed graphs leave it out, and so do the optimizer and all behind it. A saved model keeps it."""
    return field(default=None, metadata={BESIDE: True})


def frozen(array: Array) -> Array:
    """The array itself, or a copy of it, that is contiguous, native-endian and read-only, and that nobody else can write to."""
    if array.flags.c_contiguous and array.dtype.isnative and _stays(array):
        return array
    array = np.array(array, dtype=array.dtype.newbyteorder("="), order="C", copy=True)
    array.setflags(write=False)
    return array


def _stays(array: Array) -> bool:
    """Whether nobody can write to an array: it is read-only, and its memory is its own or that of `bytes`."""
    memory: Any = array
    while isinstance(memory, np.ndarray) and not memory.flags.owndata:
        memory = memory.base
    return not array.flags.writeable and (memory is array or isinstance(memory, bytes))


def _parameter_key(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return array_key(value)
    return float(value).hex() if isinstance(value, float) else value


def array_key(array: Array) -> tuple[Any, ...]:
    """(dtype, shape, beginning of the digest) of an array: alike for equal arrays, bit by bit, and for no others."""
    return str(array.dtype), array.shape, array_digest(array)[:16]


_digests: dict[int, tuple[ref[Array], str]] = {}
"""The digests of large arrays to which nobody can write, by `id`."""
LARGE = 1 << 16  # bytes, which take 0.2 ms


def array_digest(array: Array) -> str:
    """The SHA-256 of an array's dtype, shape and bits, as hexadecimal digits. Its beginning names the array in texts and files, where
    zeros of every dtype occur. That of a large array of a graph is computed once: 40 MB take 0.15 s."""
    if array.nbytes < LARGE or not _stays(array):
        return _digest(array)
    place = id(array)
    if place not in _digests:
        _digests[place] = ref(array, lambda _: _digests.pop(place, None)), _digest(array)
    return _digests[place][1]


def _digest(array: Array) -> str:
    found = hashlib.sha256(f"{array.dtype} {array.shape} ".encode())
    if array.dtype.kind in "OT":
        # The bytes of an array of objects are their places in memory. `repr` would depend on the Unicode version of Python.
        found.update(ascii(array.ravel().tolist()).encode())
    elif array.nbytes:
        found.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return found.hexdigest()


class Node:
    """A value: an operator applied to nodes. Its type is inferred when it is made; identity is the node itself."""

    __slots__ = ("inputs", "op", "type")

    def __init__(self, op: Operator, inputs: tuple[Node, ...]) -> None:
        self.type: TensorType
        try:
            self.type = op.infer(*(node.type for node in inputs))
        except TypeError as error:
            types = ", ".join(str(node.type) for node in inputs)
            raise type(error)(f"{type(op).__name__}({types}): {error}") from error
        self.op = op
        self.inputs = inputs

    def __repr__(self) -> str:
        return f"<{type(self.op).__name__}: {self.type}>"


@operator
class Input(Operator):
    """y = the value that the caller passes under `name`."""

    name: str
    dtype: DType
    shape: tuple[Dim, ...]

    level = "tensor"

    def infer(self) -> TensorType:
        return TensorType(self.dtype, self.shape)


def never_negative(node: Node) -> bool:
    """Whether no number of a value is negative (NaN aside)."""
    return node.op.never_negative(node.inputs)


def at_least_one(columns: Array) -> Array:
    """The given columns, or column 0 if there are none: rows need a column to be counted by."""
    return columns if len(columns) else np.zeros(1, np.int64)


def has_nan(*parameters: Array | None) -> bool:
    return any(p is not None and p.dtype.kind == "f" and bool(np.isnan(p).any()) for p in parameters)


def always(self: Operator, *constants: Array | None) -> bool:
    """True: for operators that are always `monotone`."""
    return True


def to_floats(self: Any, *constants: Array | None) -> bool:
    """Whether a cast is `monotone`: only casts to floats are. A number without a place among integers becomes any of them."""
    return self.dtype in ("f32", "f64")


def all_finite(*parameters: Array | None, nonzero: bool = False) -> Array:
    """For each column: whether its parameters are finite (and not 0, if `nonzero`). Parameters that are None are skipped."""
    fine = [np.isfinite(p) & ((p != 0) | (not nonzero)) for p in parameters if p is not None]
    return np.logical_and.reduce(fine) if fine else np.array(True)


@operator
class Constant(Operator):
    """y = value, the same for all rows."""

    value: Array

    level = "tensor"

    @property
    def creates_missing(self) -> bool:
        return has_nan(self.value)

    def infer(self) -> TensorType:
        return type_of(self.value)

    def evaluate(self) -> Array:
        return self.value

    def reads(self, kept: Array, inputs: Sequence[Node], finite: bool = False) -> tuple[Array, ...]:
        return ()

    def narrowed(self, kept: Array, columns: Sequence[Array], inputs: Sequence[Node]) -> tuple[Operator, Array]:
        return Constant(self.value[..., kept]), kept

    @property
    def non_negative(self) -> bool:
        return bool((self.value >= 0).all())

    def never_positive(self, inputs: Sequence[Node]) -> bool:
        return bool((self.value <= 0).all())

    def divides_by_sum(self, inputs: Sequence[Node]) -> bool:
        return self.non_negative

    def magnitude(self, node: Node, bounds: Sequence[Array]) -> Array:
        return np.asarray(by_column(self.value).max(axis=0))

    @property
    def infinite(self) -> bool:
        return True

    def span(self, node: Node, spans: Sequence[Span]) -> Span:
        return span_of(self.value) if self.value.dtype.kind in "iu" else super().span(node, spans)


@record(eq=False)
class Graph:
    """Inputs in the order of the call, and for every method of the model the values it returns."""

    inputs: tuple[Node, ...]
    outputs: Mapping[str, tuple[Node, ...]]

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """Every node that an output needs, and every input, each after its own inputs."""
        return tuple(topological(node for group in (self.inputs, *self.outputs.values()) for node in group))

    @cached_property
    def mixes_rows(self) -> bool:
        """Whether the rows of a call must be computed together, because an operator `mixes_rows`."""
        return any(node.op.mixes_rows for node in self.nodes)

    def verify(self) -> Graph:
        """The graph itself, after checks that construction cannot make. Raises TypeError for undeclared inputs, for types that no
        longer agree, and for outputs without a value for every row."""
        declared = set(self.inputs)
        names = [node.op.name for node in self.inputs if isinstance(node.op, Input)]
        if len(names) != len(self.inputs) or len(set(names)) != len(names):
            raise TypeError(f"graph inputs must be Input operators with different names, found {names}")
        for node in self.nodes:
            if isinstance(node.op, Input) and node not in declared:
                raise TypeError(f"input {node.op.name!r} is used but not declared")
            inferred = node.op.infer(*(source.type for source in node.inputs))
            if inferred != node.type:
                raise TypeError(f"{node!r}: the operator infers {inferred}")
        for method, group in self.outputs.items():
            for node in group:
                if not node.type.batched:
                    raise TypeError(f"output {method!r} is {node.type}: it has no row axis")
        return self

    def select(self, *methods: str) -> Graph:
        """The graph with the same inputs and only these outputs."""
        return Graph(self.inputs, {method: self.outputs[method] for method in methods})

    def evaluate(self, *arrays: Array, methods: Iterable[str] | None = None) -> dict[str, list[Array]]:
        """The outputs of the methods (all by default), computed by numpy. Arrays come in the order of `inputs`."""
        found = self.evaluate_rows(*arrays, methods=methods)
        return {method: [_dense(value) for value in values] for method, values in found.items()}

    def evaluate_rows(self, *arrays: Array, methods: Iterable[str] | None = None) -> dict[str, list[Array | Rows]]:
        """The same as `evaluate`, but matrices that are mostly zeros stay Rows."""
        wanted = tuple(self.outputs if methods is None else methods)
        order = self._orders.get(wanted)
        if order is None:
            order = tuple(topological(node for method in wanted for node in self.outputs[method]))
            self._orders[wanted] = order
        values: dict[Node, Array | Rows] = dict(zip(self.inputs, arrays, strict=True))
        with np.errstate(all="ignore"):
            for node in order:
                if node not in values:
                    values[node] = _evaluated(node, [values[source] for source in node.inputs])
        return {method: [values[node] for node in self.outputs[method]] for method in wanted}

    @cached_property
    def _orders(self) -> dict[tuple[str, ...], tuple[Node, ...]]:
        """The order of evaluation for each set of methods. It is kept, because to find it takes as long as to evaluate one row."""
        return {}

    def __eq__(self, other: object) -> bool:
        """Whether two graphs apply the same operators in the same way. The node objects may differ."""
        if not isinstance(other, Graph) or list(self.outputs) != list(other.outputs):
            return False
        return self._numbered == other._numbered

    __hash__ = None  # type: ignore[assignment]

    @cached_property
    def _numbered(self) -> tuple[Any, ...]:
        number = {node: i for i, node in enumerate(self.nodes)}
        body = tuple((node.op.key, tuple(number[source] for source in node.inputs)) for node in self.nodes)
        return body, tuple(tuple(number[node] for node in group) for group in self.outputs.values())

    def __str__(self) -> str:
        from hbc.ir.printer import print_graph

        return print_graph(self)[0]


def _dense(value: Array | Rows) -> Array:
    return value.dense() if isinstance(value, (Rows, CodedStrings)) else value


def _evaluated(node: Node, operands: list[Array | Rows]) -> Array | Rows:
    if node.op.rows != "makes" and not any(isinstance(operand, (CodedStrings, Rows)) for operand in operands):
        return node.op.evaluate(*operands)
    if any(isinstance(operand, CodedStrings) for operand in operands):
        if node.op.of_coded_strings is not None:
            return node.op.of_coded_strings(*operands)  # type: ignore[no-any-return]
        operands = [dense(operand) for operand in operands]
    if node.op.rows == "makes":
        return node.op.rows_of(*map(_dense, operands))
    if gives_rows(node) or takes_rows(node):
        return node.op.of_rows(*operands)
    return node.op.evaluate(*map(_dense, operands))


def gives_rows(node: Node) -> bool:
    """Whether the host holds the value as Rows (hbc.ir.rows)."""
    while node.op.rows == "keeps":
        varying = [source for source in node.inputs if not isinstance(source.op, Constant)]
        if len(varying) != 1 or varying[0] is not node.inputs[0]:
            return len(varying) == len(node.inputs) and all(map(gives_rows, varying))
        node = varying[0]
    return node.op.rows == "makes"


def takes_rows(node: Node) -> bool:
    """Whether an operator computes an array from Rows without expanding them."""
    others = all(isinstance(source.op, Constant) for source in node.inputs[1:])
    return node.op.rows == "takes" and others and gives_rows(node.inputs[0])


def topological(roots: Iterable[Node]) -> Iterator[Node]:
    """Every node that the roots need, inputs first. Iterative, since a graph may be deeper than Python's stack."""
    done: set[Node] = set()
    for root in roots:
        stack = [(root, iter(root.inputs))] if root not in done else []
        while stack:
            node, sources = stack[-1]
            source = next((source for source in sources if source not in done), None)
            if source is not None:
                stack.append((source, iter(source.inputs)))
                continue
            stack.pop()
            if node not in done:
                done.add(node)
                yield node
