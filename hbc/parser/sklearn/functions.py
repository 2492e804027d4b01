"""The converter for FunctionTransformer. It traces the function: it calls it with a stand-in for the array that records each operation.

numpy itself says in which dtype it computes an operation for the dtype of x (`ufunc.resolve_dtypes`). A function cannot be traced if it
looks at single numbers or at the number of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from hbc.ir.graph import Node
from hbc.ir.signature import Arrays, Column, Frames, Sparse
from hbc.ir.types import NUMPY_DTYPES, dtype_name
from hbc.ops import tensor as t
from hbc.ops.checks import CheckValues
from hbc.ops.columns import SelectColumns
from hbc.parser.frame import Frame, Refusal, as_matrix, untouched
from hbc.parser.front_door import ANY_INTEGER, NO_INTEGER, held_alike, in_dtype_of, note, note_given, note_input
from hbc.parser.registry import Result, converts
from hbc.parser.sklearn.shared.common import checked, hstack
from hbc.parser.sklearn.shared.ufuncs import ADVICE, EXACT, ONLY_BOOLS, ONLY_FLOATS, RULES, Rule
from hbc.parser.sparsity import is_sparse, may_be_sparse
from hbc.parser.walk import handed_through

OF_ROWS = "No row depends on how many rows come with it. Where this number is always the same, write the number itself."
REDUCTIONS: dict[str, Rule] = {"sum": t.sum_, "max": t.max_, "min": t.min_}


class _Rows:
    """Stands for the number of rows in a shape. It equals itself, and all that asks for more is refused, since no result may depend on it:
    `x.shape[0] == 1` that was False here would be another function for one row."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Rows) or self._refuse()

    def __ne__(self, other: object) -> bool:
        return not self == other

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise Refusal("its function computes with the number of rows, or asks for it.", OF_ROWS)

    __hash__ = __bool__ = __index__ = __int__ = __float__ = __lt__ = __le__ = __gt__ = __ge__ = __neg__ = __array__ = _refuse
    __add__ = __sub__ = __mul__ = __truediv__ = __floordiv__ = __mod__ = __pow__ = _refuse
    __radd__ = __rsub__ = __rmul__ = __rtruediv__ = __rfloordiv__ = __rmod__ = __rpow__ = _refuse


class _NoAttribute(Refusal, AttributeError):
    """Refuses an attribute that arrays do not have, or a protocol of numpy's. As an AttributeError, it makes `hasattr` False and `getattr`
    give its default, as for an array."""


class Traced:
    """Stands for an array x[N, F] or x[N] and records each operation on it
    as a Node. Raises Refusal for operations that no Node can express."""

    def __init__(self, node: Node, usage: Usage) -> None:
        self.node = node
        self.usage = usage

    # isinstance(x, np.ndarray) is True, for functions that ask.
    __class__ = property(lambda self: np.ndarray)  # type: ignore[assignment]

    @property
    def dtype(self) -> np.dtype[Any]:
        return NUMPY_DTYPES[self.node.type.dtype]

    @property
    def shape(self) -> tuple[Any, ...]:
        return (_Rows(), *self.node.type.shape[1:])

    @property
    def ndim(self) -> int:
        return len(self.node.type.shape)

    def __getattr__(self, name: str) -> Any:
        kind = Refusal if hasattr(np.ndarray, name) and not name.startswith("__") else _NoAttribute
        raise kind(f"its function uses .{name} of the array.", ADVICE)

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise Refusal("its function looks at single numbers, or writes into its input.", ADVICE)

    def __len__(self) -> int:
        return int(self.shape[0])

    __bool__ = __iter__ = __float__ = __int__ = __index__ = __setitem__ = __array__ = __contains__ = _refuse
    __iadd__ = __isub__ = __imul__ = __itruediv__ = __ipow__ = _refuse

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        if method != "__call__" or options:
            how = method if method != "__call__" else ", ".join(options)
            raise Refusal(f"its function uses np.{ufunc.__name__} with {how}.", ADVICE)
        if ufunc not in RULES:
            raise Refusal(f"its function uses {ufunc.__name__}.", ADVICE)
        self.usage.numbers |= any(type(value) in (int, float, bool) for value in inputs)
        return self.usage.compute(ufunc, inputs)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if function not in FUNCTIONS:
            raise Refusal(f"its function uses np.{getattr(function, '__name__', function)}.", ADVICE)
        try:
            return FUNCTIONS[function](self.usage, *args, **kwargs)
        except TypeError as error:
            raise Refusal(f"its function uses np.{function.__name__} with other arguments ({error}).", ADVICE) from error

    def __getitem__(self, key: Any) -> Traced:
        rows, columns = key if isinstance(key, tuple) and len(key) == 2 else (None, None)
        if rows != slice(None) or self.ndim != 2 or columns is None:
            raise Refusal(f"its function indexes the array with {key!r}.", "Take columns only: x[:, [0, 2]].")
        indices = np.arange(self.node.type.columns)[columns]
        self.usage.mixes = True
        chosen = SelectColumns(np.atleast_1d(indices).astype(np.int64))(self.node)
        return Traced(chosen if np.ndim(indices) else t.reshape(chosen, "N"), self.usage)

    def astype(self, dtype: Any, copy: bool = True) -> Traced:
        target = np.dtype(dtype)
        if target.kind not in "fiub" or target == np.float16 or (target.kind in "iub" and self.dtype.kind == "f"):
            raise Refusal(f"its function casts the array to {target}.", ADVICE)
        return Traced(t.cast(self.node, dtype_name(target)), self.usage)

    def copy(self, order: str = "C") -> Traced:
        return Traced(self.node, self.usage)

    def clip(self, min: Any = None, max: Any = None) -> Any:
        return _clip(self.usage, self, min, max)

    def reshape(self, *shape: Any) -> Traced:
        sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple) else shape
        flat = tuple(-1 if isinstance(size, _Rows) else size for size in sizes)
        if self.ndim != 1 or flat != (-1, 1):
            raise Refusal(f"its function reshapes the array to {flat}.", ADVICE)
        return Traced(t.reshape(self.node, "N", 1), self.usage)

    def sum(self, axis: Any = None, keepdims: bool = False) -> Traced:
        return _reduce(self.usage, "sum", self, axis, keepdims)

    def max(self, axis: Any = None, keepdims: bool = False) -> Traced:
        return _reduce(self.usage, "max", self, axis, keepdims)

    def min(self, axis: Any = None, keepdims: bool = False) -> Traced:
        return _reduce(self.usage, "min", self, axis, keepdims)

    def __pow__(self, exponent: Any) -> Any:
        self.usage.operators = True
        # numpy computes these powers by other ufuncs, if the exponent is a single number.
        shortcut = (
            {1: np.positive, 2: np.square, 0.5: np.sqrt, -1: np.reciprocal}.get(exponent) if np.ndim(exponent) == 0 else None
        )
        if shortcut is not None and (self.dtype.kind == "f" or (exponent == 2 and isinstance(exponent, (int, np.integer)))):
            return shortcut(self)
        return np.power(self, exponent)


def _operator(ufunc: np.ufunc, swapped: bool = False) -> Any:
    def operate(self: Traced, other: Any) -> Traced:
        self.usage.operators = True
        return self.usage.compute(ufunc, (other, self) if swapped else (self, other))

    return operate


for _name, _ufunc in {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "truediv": np.divide,
    "mod": np.remainder,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
}.items():
    setattr(Traced, f"__{_name}__", _operator(_ufunc))
    setattr(Traced, f"__r{_name}__", _operator(_ufunc, swapped=True))
for _name, _ufunc in {
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
}.items():
    setattr(Traced, f"__{_name}__", _operator(_ufunc))
_unary: dict[str, Any] = {"neg": np.negative, "pos": np.positive, "abs": np.absolute, "invert": np.invert}
for _name, _ufunc in _unary.items():
    setattr(Traced, f"__{_name}__", lambda self, ufunc=_ufunc: ufunc(self))


class Usage:
    """The operations of a traced function, as far as its result depends on the dtype and the class of its input."""

    def __init__(self) -> None:
        self.numbers = False
        """It called numpy's functions with Python numbers beside its input. For a frame of pandas these become float64 and int64."""
        self.operators = False
        """It used operators such as `+`. For a frame of polars these compute in other dtypes."""
        self.mixes = False
        """It combined columns, or selected some."""
        self.rounds = False
        """Its result is rounded, so that float16 would give other numbers."""
        self.bits = 0
        """The least width of integers for which it would give the same numbers; 0: any."""
        self.signed = False
        """These integers must be signed."""
        self.returns_given = False
        """It returned its input itself."""

    def compute(self, ufunc: np.ufunc, inputs: tuple[Any, ...]) -> Traced:
        """ufunc(*inputs) in the dtypes in which numpy computes it; Python numbers take the dtype of the arrays. Raises Refusal if it has no
        rule for these dtypes, or if the dimensions differ."""
        kinds = [_kind(value) for value in inputs]
        dated = any(isinstance(kind, np.dtype) and kind.kind in "OMm" for kind in kinds)  # numpy may have no loop for these
        *loop, result = kinds if dated else ufunc.resolve_dtypes((*kinds, None))
        if dated or any(kind.kind in "OMm" for kind in (*loop, result)):
            advice = "Make numbers of them before the pipeline, such as days since a fixed date."
            raise Refusal(f"its function uses np.{ufunc.__name__} of dates or other Python objects.", advice)
        if any(kind.kind not in "fiub" or kind == np.float16 for kind in (*loop, result)):
            raise Refusal(f"its function uses np.{ufunc.__name__}, which computes in {result} there.", "Cast to float before.")
        bools, floats = all(kind.kind == "b" for kind in loop), all(kind.kind == "f" for kind in loop)
        if (ufunc in ONLY_BOOLS and not bools) or (ufunc in ONLY_FLOATS and not floats):
            raise Refusal(f"its function uses np.{ufunc.__name__} of {loop[0]}.", "Cast to float before.")
        if bools and not (ufunc in ONLY_BOOLS or ufunc in (np.equal, np.not_equal, np.positive)):
            raise Refusal(f"its function uses np.{ufunc.__name__} of booleans.", "Cast to float before.")
        self._note_dtypes(ufunc, inputs, result)
        rank = max(value.ndim if isinstance(value, Traced) else np.ndim(value) for value in inputs)
        if any(isinstance(value, Traced) and value.ndim < rank for value in inputs) or rank > 2:
            raise Refusal("its function combines arrays of different dimensions.", "Keep columns as [:, [0]].")
        self.mixes |= sum(isinstance(value, Traced) for value in inputs) > 1 or any(
            np.size(v) > 1 for v in inputs if not isinstance(v, Traced)
        )
        operands = [self.operand(value, kind, rank) for value, kind in zip(inputs, loop, strict=True)]
        return Traced(RULES[ufunc](*operands), self)

    def _note_dtypes(self, ufunc: np.ufunc, inputs: tuple[Any, ...], result: np.dtype[Any]) -> None:
        """Updates `rounds`, `bits` and `signed` for one ufunc: which input dtypes would give the same numbers depends on how numpy promotes
        them beside the other inputs, which are Python numbers or typed numbers of numpy."""
        others = [value for value in inputs if not isinstance(value, Traced)]
        typed = any(type(value) not in (int, float, bool) for value in others)
        narrowed = any(isinstance(value, float) and np.float16(value) != value for value in others)
        self.rounds |= result.kind == "f" and (ufunc not in EXACT or ufunc in (np.remainder, np.fmod) or typed or narrowed)
        if not any(isinstance(value, Traced) and value.dtype.kind in "iu" for value in inputs):
            return
        if result.kind in "iu":
            whole = [value for value in others if type(value) is int]
            fits = 64 if ufunc not in EXACT or typed else _bits(whole)  # narrower integers overflow
            self.bits, self.signed = max(self.bits, fits), self.signed or min(whole, default=0) < 0
        elif result.kind == "f" and (len(inputs) == 1 or typed):
            self.bits = max(self.bits, 32)  # numpy computes int8 in float16, int16 in float32
        try:
            *_, flag = ufunc.resolve_dtypes((*(bool if isinstance(v, Traced) else _kind(v) for v in inputs), None))
        except TypeError:
            flag = None
        if flag is None or (result.kind in "iu" and flag.kind != "b"):
            self.bits = max(self.bits, 8)

    def operand(self, value: Any, kind: np.dtype[Any], rank: int) -> Node:
        """An input of an operation of `rank` dimensions as a Node of dtype `kind`. Raises Refusal for an array with several rows."""
        if isinstance(value, Traced):
            return t.cast(value.node, dtype_name(kind))
        array = np.asarray(value)
        if array.ndim == rank and array.size > 1 and array.shape[0] != 1:
            raise Refusal(f"its function combines the rows with an array of shape {array.shape}.", ADVICE)
        constant = array.astype(kind)
        return t.constant(constant.reshape(constant.shape[-1:]) if constant.ndim == rank else constant, dtype_name(kind))


def _bits(numbers: list[int]) -> int:
    """The least width, 8, 16, 32 or 64, of signed integers that hold these numbers; 8 if there are none, since bool is too narrow."""
    return next((bits for bits in (8, 16, 32) if all(-(1 << (bits - 1)) <= number < 1 << (bits - 1) for number in numbers)), 64)


def _kind(value: Any) -> Any:
    """The argument of ufunc.resolve_dtypes for a value: its dtype, or the type of a Python number."""
    if isinstance(value, Traced):
        return value.dtype
    return type(value) if type(value) in (int, float, bool) else np.asarray(value).dtype


def _clip(usage: Usage, x: Any, a_min: Any = None, a_max: Any = None, **options: Any) -> Any:
    low, high = options.pop("min", a_min), options.pop("max", a_max)
    if options or not isinstance(x, Traced) or isinstance(low, Traced) or isinstance(high, Traced):
        raise TypeError("hbc converts an array and two limits that are constants")
    y = x if low is None else np.maximum(x, low)
    return y if high is None else np.minimum(y, high)


def _where(usage: Usage, condition: Any, a: Any, b: Any) -> Traced:
    values = [value for value in (condition, a, b) if isinstance(value, Traced)]
    if not isinstance(condition, Traced) or condition.dtype.kind != "b" or len({value.ndim for value in values}) > 1:
        raise TypeError("the condition must be computed from the array")
    kind = np.result_type(*(value.dtype if isinstance(value, Traced) else value for value in (a, b)))
    if not (isinstance(a, Traced) or isinstance(b, Traced)) and kind.kind in "iu":
        kind = np.dtype(np.int64)
    usage.mixes |= len(values) > 1
    if kind.kind in "iu" and (isinstance(a, Traced) or isinstance(b, Traced)):
        usage.bits = 64
    return Traced(t.where(condition.node, *(usage.operand(value, kind, condition.ndim) for value in (a, b))), usage)


def _reduce(usage: Usage, name: str, x: Traced, axis: Any, keepdims: Any = False) -> Traced:
    if axis not in (1, -1) or x.ndim != 2 or x.dtype.kind == "b":
        raise Refusal(f"its function takes the {name} over the rows.", "Take it along axis 1.")
    usage.mixes = usage.rounds = True
    if x.dtype.kind in "iu":
        usage.bits = 64
    return Traced(REDUCTIONS[name](x.node, 1, bool(keepdims)), usage)


def _join(usage: Usage, arrays: Any, axis: int = 0) -> Traced:
    if axis not in (1, -1) or not all(isinstance(array, Traced) and array.ndim == 2 for array in arrays):
        raise TypeError("hbc converts matrices that are joined along axis 1")
    usage.mixes = True
    if len({array.dtype for array in arrays}) > 1:
        usage.bits = 64
    return Traced(hstack([array.node for array in arrays]), usage)


def _columns(usage: Usage, arrays: Any) -> Traced:
    return _join(usage, [a.reshape(-1, 1) if isinstance(a, Traced) and a.ndim == 1 else a for a in arrays], 1)


FUNCTIONS: dict[Any, Any] = {
    np.clip: _clip,
    np.where: _where,
    np.concatenate: _join,
    np.hstack: lambda usage, arrays: _join(usage, arrays, 1),
    np.column_stack: _columns,
    np.copy: lambda usage, x: x.copy(),
    np.sum: lambda usage, x, axis=None, keepdims=False: _reduce(usage, "sum", x, axis, keepdims),
    np.max: lambda usage, x, axis=None, keepdims=False: _reduce(usage, "max", x, axis, keepdims),
    np.min: lambda usage, x, axis=None, keepdims=False: _reduce(usage, "min", x, axis, keepdims),
}


def trace(function: Callable[..., Any], x: Node, arguments: Mapping[str, Any] | None = None) -> tuple[Node, Usage]:
    """(function(x, **arguments) as a Node, the Usage of what it did). Raises Refusal if the function cannot be traced, or if a second
    call differs from the first."""
    results = []
    for _ in range(2):
        usage = Usage()
        try:
            with np.errstate(all="ignore"):
                given = Traced(x, usage)
                y = function(given, **(arguments or {}))
        except Refusal:
            raise
        except Exception as error:
            raise Refusal(f"its function cannot be traced ({type(error).__name__}: {error}).", ADVICE) from error
        if not isinstance(y, Traced):
            raise Refusal("its function does not return an array that it has computed from its input.", ADVICE)
        usage.returns_given = y is given
        results.append((y.node, usage))
    if not _same(results[0][0], results[1][0]):
        raise Refusal("its function gives something else when it is called again.", ADVICE)
    return results[0]


def _same(a: Node, b: Node) -> bool:
    """Whether two nodes compute the same: equal operators of equal inputs."""
    return a is b or (a.op == b.op and len(a.inputs) == len(b.inputs) and all(map(_same, a.inputs, b.inputs)))


OF_SPARSE = (
    *(np.absolute, np.negative, np.sqrt, np.expm1, np.log1p, np.rint, np.deg2rad, np.rad2deg),
    *(np.sin, np.tan, np.tanh, np.sinh, np.arctan, np.arcsinh),
)
"""numpy's functions that scipy's sparse matrices compute element by element as well. Found by trying: scipy rejects the others."""


@converts("sklearn.preprocessing.FunctionTransformer", frame=True)
def function_transformer(m: Any, x: Node | Frame) -> Result:
    if m.func is None:
        if m.validate:
            return checked(m, as_matrix(x))
        return x.matrix(strings=True) if isinstance(x, Frame) else x
    if m.func not in OF_SPARSE or m.kw_args:
        if is_sparse(x):
            raise Refusal("its function is given a sparse matrix.", "Use sparse_output=False before it.")
        if may_be_sparse(as_matrix(x)):
            note_input(Sparse(accepted=False))  # x * x (and numpy.square) of a sparse matrix is a matrix product
    if isinstance(x, Frame) and not m.validate and len(set(x.dtypes) - {"str"}) > 1:
        # numpy computes each column of a frame in its own dtype.
        parts = [trace(m.func, x.column(i), m.kw_args) for i in range(len(x))]
        if any(usage.mixes for _, usage in parts):
            raise Refusal("its function combines columns of different dtypes.", "Make them one dtype before.")
        if all(usage.returns_given for _, usage in parts):
            return held_alike(handed_through(x), x)
        for i, (_, usage) in enumerate(parts):
            _own_dtype(x.select([i]), parts[i][0], usage)
            _note_frame(x.select([i]), usage.bits, usage)
        return held_alike(hstack([node for node, _ in parts]), x)
    given, held = x if isinstance(x, Frame) and not m.validate else None, x
    x = as_matrix(x)
    source = checked(m, x) if m.validate else x
    widest = 0
    try:
        y, usage = trace(m.func, source, m.kw_args)
    except Refusal:
        if x.type.dtype != "i64" or None in untouched(x):
            raise
        # The function converts for floats only, so a call with integers is rejected.
        y, usage = trace(m.func, t.cast(_no_integers(source), "f64"), m.kw_args)
        widest = NO_INTEGER
    if given is not None and usage.returns_given:
        return held_alike(handed_through(given), given)
    _own_dtype(x, y, usage)
    if given is not None:
        _note_frame(given, max(usage.bits, widest), usage)
    return y if m.validate else held_alike(y, held)


def _no_integers(x: Node) -> Node:
    """x, an input of integers that is rejected at every call."""
    width = x.type.columns
    none = np.zeros(width, bool)
    return CheckValues(
        "sklearn.preprocessing.FunctionTransformer",
        allow_nan=True,
        allow_inf=True,
        min_rows=0,
        values=np.zeros((width, 0), np.int64),
        counts=np.zeros(width, np.int64),
        nan=none,
        none=none,
        columns=tuple(
            f"column {i} of integers, for which its function cannot be compiled: cast them to float" for i in range(width)
        ),
    )(x)


def _note_frame(x: Frame, bits: int, usage: Usage) -> None:
    """Notes the requirements on a frame under which the function computes the same from it as from an array."""
    note_given(x, Column(function_bits=max(bits, ANY_INTEGER), beside_numbers=usage.numbers))
    if usage.operators:
        note_input(Frames(libraries=("pandas",)), x)


def _own_dtype(x: Node | Frame, y: Node, usage: Usage) -> None:
    """Notes for which dtypes of x the function computes the same, and whether y has the dtype of x."""
    if usage.bits or usage.rounds:
        note(x, Column(integer_bits=max(usage.bits, ANY_INTEGER)))
    if usage.signed:
        note(x, Column(signed=True))
    x = as_matrix(x)
    if y.type.dtype == x.type.dtype:
        in_dtype_of(x, y)
        if None in untouched(y):
            note_input(Arrays(native_order=True))
