"""Handle: a method of a model for servers. It takes arrays of one dtype and layout, converts nothing and can do without allocation."""

from __future__ import annotations

import operator
from functools import partial
from inspect import Parameter, Signature
from typing import Any, NoReturn

import numpy as np
from numpy import ndarray

from hbc.compiler.base import quick_of
from hbc.errors import InvalidInputError, counted, shown
from hbc.ir.types import NUMPY_DTYPES, Array
from hbc.runtime.calls import ArrayCall
from hbc.runtime.host import Labels

MOST_ROWS = 256
"""The most rows of an array that a handle remembers from one call to the next. For more rows the time to look at it does not matter."""

ANYHOW = Parameter.POSITIONAL_OR_KEYWORD


class Handle(partial[Any]):
    """One method of a model, for numpy arrays of one dtype. `CompiledModel.bind` makes it.

    Called with X, an array [rows, model.n_features_in_] of exactly `handle.dtype`, C-contiguous, it returns the result of the method. It
    writes into `out` and returns it, if given: an array as `handle.empty(rows)` makes it, of `handle.out_dtype`. Otherwise the result is
    new memory.

    A call is fastest with arrays that the handle has seen before, filled anew: reuse out, and X if you can. The handle keeps the last ones
    (of up to 256 rows) alive. Several threads may share a handle, each with its own `out`. With a handle for each thread, no thread makes
    another one's handle forget its arrays.

    Raises InvalidInputError for an array that the method would convert (another dtype or memory layout, lists, frames), and for values that
    the source model rejects (NaN if it has no rule for them, values that are too large). Nothing goes unchecked.

    Example:
        >>> handle = hbc.convert(forest).bind("predict_proba", np.float32)
        >>> out = handle.empty(1)
        >>> handle(X[:1], out) is out
        True
    """

    __slots__ = ("_answers", "dtype", "method", "out_dtype")
    _answers: Answers
    method: str
    dtype: np.dtype[Any]
    out_dtype: np.dtype[Any]
    __signature__ = Signature([Parameter("X", ANYHOW), Parameter("out", ANYHOW, default=None)])

    def __new__(cls, call: ArrayCall, dtype: np.dtype[Any]) -> Handle:
        # A call of a `partial` is one of its function, in C. That is the compiled code's own function, if it has one. A method `__call__`
        # would take 0.1 µs: a tenth of the time of one row of 500 trees of 31 leaves.
        answers = Answers(call, dtype)
        quick = quick_of(answers.direct, answers.least, answers)
        self = super().__new__(cls, answers if quick is None else quick.function)
        self._answers, self.method, self.dtype, self.out_dtype = answers, call.method, dtype, answers.out_dtype
        return self

    def empty(self, rows: int) -> Array:
        """A new array for the result of a call with so many rows, uninitialized: [rows, …] of
        `out_dtype`. Raises TypeError for a method that returns several arrays, ValueError for what is no number of rows."""
        returned = self._answers.returned
        if returned is None:
            raise TypeError(f"{self.method} returns several arrays: call the handle without out")
        try:
            return np.empty((operator.index(rows), *returned), self.out_dtype)
        except (TypeError, ValueError):  # a number below 0
            raise ValueError(f"rows: found {shown(rows)}, expected a number of rows") from None

    def __get__(self, instance: Any, owner: Any = None) -> Handle:
        """The handle itself. From Python 3.14 on, a `partial` in a class is a method of it."""
        return self

    def __copy__(self) -> Handle:
        return Handle(self._answers.call, self.dtype)

    def __deepcopy__(self, memo: dict[int, Any]) -> Handle:
        # The model never changes, so a copy shares it. Copying compiled code ended in an error of TVM, or killed the process.
        return Handle(self._answers.call, self.dtype)

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a Handle cannot be pickled: pickle the model, and bind {self.method} again where it is loaded")

    def __repr__(self) -> str:
        answers = self._answers
        return f"<{self.method} of {answers.call.shared.info.source} for {self.dtype} arrays of {counted(answers.width, 'column')}>"


class Answers:
    """What a handle answers where there is no quick way into the compiled code, or where it does not take the arrays."""

    __slots__ = (
        *("_input", "_names_classes", "_output", "_prepared", "_seen"),
        *("call", "direct", "dtype", "least", "out_dtype", "returned", "width"),
    )

    def __init__(self, call: ArrayCall, dtype: np.dtype[Any]) -> None:
        self.call, self.dtype = call, dtype
        variant = call.shared.plain[dtype]
        results = variant.facts.results[call.method]
        self.width = call.shared.spec.n_features
        self.least = call.least_rows(variant)
        self.returned = tuple(int(size) for size in results[0].shape[1:]) if len(results) == 1 else None
        """The shape of a row of the result. None if there are several."""
        self.out_dtype: np.dtype[Any] = NUMPY_DTYPES[results[0].dtype] if call.dtype is None else call.dtype
        self.direct = call.direct(variant)
        self._names_classes = isinstance(self.direct, Labels)
        self._prepared = variant.ready.executable.prepared
        # The input and the output that came twice in a row: the array, its shape, and its prepared form for the compiled code.
        self._input: tuple[Any, Any, Any] = (object(), None, None)
        self._output: tuple[Any, Any, Any] = (object(), None, None)
        self._seen: list[Any] = [None, None]

    def __call__(self, X: Array, out: Array | None = None) -> Any:
        known, shape, x = self._input
        if X is not known or X.shape != shape or X.dtype != self.dtype:
            if type(X) is not ndarray or X.dtype != self.dtype or not X.flags.carray:
                return self._slowly(X, out)
            shape = X.shape
            if len(shape) != 2 or shape[1] != self.width or shape[0] < self.least or self.direct is None:
                return self._slowly(X, out)
            x = self._again(0, X)
        rows = shape[0]
        if out is None:
            result = self.direct(x, rows)  # type: ignore[misc]
            return self._slowly(X, out) if result is None else result
        known, shape, y = self._output
        if out is not known or out.shape != shape or out.dtype != self.out_dtype or shape[0] != rows:
            if not self._takes(out, rows):
                return self._slowly(X, out)
            y = self._again(1, out)
        return self._slowly(X, out) if self.direct(x, rows, y) is None else out  # type: ignore[misc]

    def _again(self, which: int, array: Array) -> Any:
        """The form in which an array is passed to the compiled code: the array itself at first, its prepared form when it comes again."""
        if array is not self._seen[which] or (which and self._names_classes):
            self._seen[which] = array if len(array) <= MOST_ROWS else None
            return array
        passed = self._prepared(array)
        if which:
            self._output = array, array.shape, passed
        else:
            self._input = array, array.shape, passed
        return passed

    def _takes(self, out: Array, rows: int) -> bool:
        return (
            type(out) is ndarray and out.dtype == self.out_dtype and out.flags.carray and out.shape == (rows, *self.returned)  # type: ignore[misc]
        )

    def _slowly(self, X: Array, out: Array | None) -> Any:
        """The result of the call if the direct function does not take the arrays: read-only arrays, backends
        without such a function, and errors. Raises InvalidInputError for arrays that do not fit the handle."""
        if type(X) is not ndarray or X.dtype != self.dtype or X.ndim != 2 or X.shape[1] != self.width:
            self._reject(X)
        if not (X.flags.c_contiguous and X.flags.aligned):
            self._reject(X)
        if out is not None and (self.returned is None or not self._takes(out, len(X))):
            expected = "no array: the method returns several"
            if self.returned is not None:
                expected = f"a C-contiguous array, {self.out_dtype}{[len(X), *self.returned]}, as handle.empty(len(X)) makes it"
            locked = ", read-only" if isinstance(out, ndarray) and not out.flags.writeable else ""
            raise InvalidInputError(found=_described(out) + locked, expected=expected, where="out")
        result = self.call(X)
        if out is None:
            return result
        out[...] = result
        return out

    def _reject(self, X: Any) -> NoReturn:
        raise InvalidInputError(
            found=_described(X),
            expected=f"a C-contiguous array, {self.dtype}[rows, {self.width}]",
            where="X",
            advice=f"A handle converts nothing: use the model's {self.call.method}, or np.ascontiguousarray(X, np.{self.dtype}).",
        )


def _described(X: Any) -> str:
    if not isinstance(X, ndarray):
        return f"a {type(X).__name__}"
    layout = ", not C-contiguous" * (not X.flags.c_contiguous) + ", not aligned" * (not X.flags.aligned)
    kind = "" if type(X) is ndarray else f" ({type(X).__name__})"
    return f"{X.dtype}{list(X.shape)}{kind}{layout}"
