"""Calls whose X lies on a GPU (an array with DLPack, a frame of cuDF): the result lies there too, in memory of the library of X. Nothing
is copied over the bus."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple, Protocol

import numpy as np

from hbc.compiler.base import Executable, OnCard
from hbc.errors import InvalidInputError
from hbc.ir.types import NUMPY_DTYPES
from hbc.runtime.input.pandas_frame import PandasFrame
from hbc.runtime.places import card_of, require_own_signs
from hbc.runtime.variant import Variant

Room = Callable[[tuple[int, ...], "np.dtype[Any]"], Any]


class Call(Protocol):
    """What is asked of an ArrayCall (calls.py)."""

    method: str
    shared: Any
    dtype: np.dtype[Any] | None
    keeps_dtype: bool


class Library(NamedTuple):
    """The library of an array on a GPU. stream: the handle of its current stream there; 0 is the default one. room: (shape, dtype) → new
    memory on that GPU; None: the backend allocates it, and the library takes it by DLPack. given: makes its array of a result."""

    stream: int = 0
    room: Room | None = None
    given: Callable[[Any], Any] = lambda result: result


@contextmanager
def _torch(X: Any) -> Iterator[Library]:
    torch = sys.modules["torch"]
    with torch.cuda.device(X.device):  # it hands over no tensor of another GPU than the current one
        stream = int(torch.cuda.current_stream().cuda_stream)
        yield Library(stream, lambda shape, dtype: torch.empty(shape, dtype=getattr(torch, dtype.name), device=X.device))


@contextmanager
def _cupy(X: Any) -> Iterator[Library]:
    cupy = sys.modules["cupy"]
    with X.device:  # it allocates on the current one
        yield Library(int(cupy.cuda.get_current_stream().ptr), cupy.empty)


@contextmanager
def _other(X: Any) -> Iterator[Library]:
    # A result stays a tensor of the backend's own library if nobody knows how to make one of X's.
    yield Library(given=X.__array_namespace__().from_dlpack) if hasattr(X, "__array_namespace__") else Library()


KNOWN: dict[str, Callable[[Any], AbstractContextManager[Library]]] = {"torch": _torch, "cupy": _cupy}
"""The name of a library → a context for an array of it on a GPU, which yields its Library. In it, that GPU is the library's current one."""


def library_of(X: Any) -> AbstractContextManager[Library]:
    """The library of an array on a GPU, also if it is of a class that someone has derived."""
    names = [kind.__module__.partition(".")[0] for kind in type(X).__mro__]
    return next((KNOWN[name] for name in names if name in KNOWN), _other)(X)


class Resident:
    """A method for arrays on a GPU."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self._tests: dict[Variant, OnCard | None] = {}

    @property
    def runs_there(self) -> bool:
        """Whether the model runs on a GPU, and does all of the method there."""
        call, variants = self.call, self.call.shared.plain.values()
        on_card = [variant for variant in variants if variant.device.startswith("cuda")]
        return bool(on_card) and on_card[0].ready.executable.on_card(call.method) is not None

    def __call__(self, X: Any, number: int) -> Any:
        """The result for X. Raises InvalidInputError for what the source rejects, and for arrays that would have to be converted."""
        require_own_signs(X)
        return self._result(self._variant(X), X, number)

    def of_frame(self, X: Any) -> Any | None:
        """The result for a frame of cuDF, an array of CuPy. None if the host has to read the frame: a part of the method runs there, or the
        columns that the model reads are not all float32, and not all float64. Raises InvalidInputError for what the source rejects.

        The header of the frame is read as that of a frame of pandas is, so the same columns are found, with the same errors. A missing
        value becomes NaN, as it does in pandas. One copy on the GPU puts the rows one after the other: cuDF has columns."""
        shared = self.call.shared
        if not len(X) or shared.spec.ndim != 2 or shared.spec.items:
            return None
        header = X.head(0).to_pandas()
        kinds, inputs = shared.intake(shared.intake.frame_of(header))
        variant, dtype = shared.variants[kinds], inputs[0].dtype
        positions = shared.intake.positions(PandasFrame(header))
        places = [positions[i] for i in shared.intake.numbers]
        same = dtype.kind == "f" and all(place >= 0 and header.dtypes.iloc[place] == dtype for place in places)
        if (
            len(inputs) > 1
            or not same
            or variant.ready.executable.on_card(self.call.method) is None
            or self._host_makes(variant, dtype) is not None
        ):
            return None
        matrix = sys.modules["cupy"].ascontiguousarray(X.iloc[:, places].to_cupy(na_value=np.nan))
        number = card_of(matrix)
        assert number is not None
        return self._result(variant, matrix, number)

    def _result(self, variant: Variant, X: Any, number: int) -> Any:
        call = self.call
        method = variant.ready.executable.on_card(call.method)
        assert method is not None
        if method.number != number:
            raise InvalidInputError(
                found=f"an array on cuda:{number}",
                expected=f"one on cuda:{method.number}, where the model is",
                advice=f'Copy it there, or load the model with device="cuda:{number}".',
            )
        with library_of(X) as library:
            self._require_accepted(variant, X, library, method)
            results = [library.given(result) for result in method(X, library.stream, library.room)]
        return results[0] if len(results) == 1 else results

    def _variant(self, X: Any) -> Variant:
        """The variant for X. Raises InvalidInputError."""
        call, plain = self.call, self.call.shared.plain
        name, width = str(X.dtype).rpartition(".")[2], call.shared.spec.n_features
        variant = next((variant for dtype, variant in plain.items() if dtype.name == name), None)
        if variant is None:
            known = " or ".join(dtype.name for dtype in plain)
            raise InvalidInputError(
                found=f"{name} on a GPU",
                expected=known,
                advice=f"Convert it, for example with X.{'to' if hasattr(X, 'to') else 'astype'}.",
            )
        shape = tuple(int(size) for size in X.shape)
        if len(shape) != 2 or shape[1] != width:
            raise InvalidInputError(found=f"an array of shape {shape}", expected=f"[rows, {width}]")
        result = variant.facts.results[call.method][0]
        _, empty = call.shared.info.without_rows.get(call.method, ("", None))
        if not shape[0] and empty is not None and tuple(empty) != (0, *map(int, result.shape[1:])):
            raise InvalidInputError(
                found="0 rows on a GPU",
                expected="at least 1",
                advice=f"For none the source's {call.method} returns an array of another shape. Copy X to the host.",
            )
        own = self._host_makes(variant, np.dtype(name))
        if own is not None:
            raise InvalidInputError(
                found=f"{name} on a GPU",
                expected="an array of the host",
                advice=f"The host makes {own} of the results of {call.method}. Copy X to the host.",
            )
        return variant

    def _host_makes(self, variant: Variant, dtype: np.dtype[Any]) -> np.dtype[Any] | None:
        """The dtype that the host makes of the result for an X of `dtype`. None if the result stays as it is."""
        (result, *others), own = variant.facts.results[self.call.method], self.call.dtype
        if self.call.keeps_dtype:
            own = dtype
        return None if others or own is None or NUMPY_DTYPES[result.dtype] == own else own

    def _require_accepted(self, variant: Variant, X: Any, library: Library, method: OnCard) -> None:
        """Raise InvalidInputError for values that the source rejects. The card tests whether all rows surely pass, and sends a byte for
        each row. Only if some may not, X is copied, and the host looks which and why."""
        gate = variant.ready.gate_of(self.call.method)
        if gate.accepts_all and X.shape[0] >= gate.min_rows:
            return
        if variant not in self._tests:
            test: Executable | None = variant.row_test(self.call.method)
            self._tests[variant] = None if test is None else test.on_card("accepted")
        test_there = self._tests[variant]
        if test_there is not None and X.shape[0] >= gate.min_rows:
            (accepted,) = test_there(X, library.stream, library.room)
            if test_there.to_host(accepted, library.stream).all():
                return
        gate([method.to_host(X, library.stream)])
