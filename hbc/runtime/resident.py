"""Calls whose X lies on a GPU (DLPack): the result lies there too, in memory of the library of X. Nothing is copied over the bus."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from hbc.compiler.base import Executable, OnCard
from hbc.errors import InvalidInputError
from hbc.ir.types import NUMPY_DTYPES
from hbc.runtime.variant import Variant

Room = Callable[[tuple[int, ...], "np.dtype[Any]"], Any]


class Call(Protocol):
    """What is asked of an ArrayCall (calls.py)."""

    method: str
    shared: Any
    dtype: np.dtype[Any] | None
    keeps_dtype: bool


def _torch(X: Any) -> tuple[int, Room]:
    torch = sys.modules["torch"]
    stream = int(torch.cuda.current_stream(X.device).cuda_stream)
    return stream, lambda shape, dtype: torch.empty(shape, dtype=getattr(torch, dtype.name), device=X.device)


def _cupy(X: Any) -> tuple[int, Room]:
    cupy = sys.modules["cupy"]
    return int(cupy.cuda.get_current_stream().ptr), lambda shape, dtype: cupy.empty(shape, dtype)


KNOWN: dict[str, Callable[[Any], tuple[int, Room]]] = {"torch": _torch, "cupy": _cupy}
"""Library → the current stream of its array's GPU, and memory for results there."""


class Library:
    """The library of an array on a GPU. stream: the handle of its current stream there; 0 is the default one. room: (shape, dtype) → new
    memory on the card; None: hbc allocates it, and the library takes it by DLPack."""

    def __init__(self, X: Any) -> None:
        known = KNOWN.get(type(X).__module__.partition(".")[0])
        self.stream: int
        self.room: Room | None
        self.stream, self.room = (0, None) if known is None else known(X)
        self._taken: Callable[[Any], Any] = lambda tensor: tensor
        if self.room is None and hasattr(X, "__array_namespace__"):
            self._taken = X.__array_namespace__().from_dlpack

    def given(self, result: Any) -> Any:
        """A result as an array of the library; as a tensor of tvm_ffi if nobody knows how."""
        return result if self.room is not None else self._taken(result)


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
        call = self.call
        variant = self._variant(X)
        method = variant.ready.executable.on_card(call.method)
        assert method is not None
        if method.number != number:
            raise InvalidInputError(
                found=f"an array on cuda:{number}",
                expected=f"one on cuda:{method.number}, where the model is",
                advice=f'Copy it there, or load the model with device="cuda:{number}".',
            )
        library = Library(X)
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
        (result, *others), own = variant.facts.results[call.method], call.dtype
        if call.keeps_dtype:
            own = np.dtype(name)
        if not others and own is not None and NUMPY_DTYPES[result.dtype] != own:
            raise InvalidInputError(
                found=f"{name} on a GPU",
                expected="an array of the host",
                advice=f"The host makes {own} of the results of {call.method}. Copy X to the host.",
            )
        return variant

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
