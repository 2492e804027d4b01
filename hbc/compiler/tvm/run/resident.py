"""Methods of a GPU for arrays that lie on it already."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import tvm_ffi

from hbc.compiler.base import OnCard
from hbc.compiler.tvm.run.card import FROM_CARD, Card
from hbc.compiler.tvm.run.executable import Method
from hbc.errors import InvalidInputError
from hbc.ir.types import Array

DEFAULT = 1
"""DLPack's number for CUDA's default stream, whose handle is 0."""


class OnThisCard(OnCard):
    """See hbc.compiler.base.OnCard."""

    def __init__(self, card: Card, ready: Method) -> None:
        self.card, self.ready = card, ready
        self.number = card.number

    def __call__(self, X: Any, stream: int, room: Callable[..., Any] | None) -> list[Any]:
        ready, card, given = self.ready, self.card, tensor_of(X, stream)
        n = int(given.shape[0])
        results = [(room or card.memory)((n, *shape), dtype) for shape, dtype in ready.results]
        filled = [tensor_of(results[i], stream) for i in ready.filled]
        if n and filled:
            queue = ctypes.c_void_p(stream)
            inputs = (given,) if ready.places else ()
            card.launch(queue, ready.code, (*inputs, *ready.tables, *filled, 0, n))
            if room is None:
                card.wait(queue)  # libraries that take the memory of others may read it on any stream
        return results

    def to_host(self, X: Any, stream: int) -> Array:
        given = tensor_of(X, stream)
        found = np.empty(tuple(given.shape), str(given.dtype))
        queue = ctypes.c_void_p(stream)
        if found.size:
            self.card.copy(found, given, FROM_CARD, queue)
            self.card.wait(queue)
        return found


def tensor_of(X: Any, stream: int) -> Any:
    """An array on a GPU as TVM's tensor, ready to be used on a stream. Raises InvalidInputError for one that DLPack cannot express, or
    that is not contiguous."""
    if isinstance(X, tvm_ffi.Tensor):
        return X
    try:
        found = tvm_ffi.from_dlpack(X.__dlpack__(stream=stream or DEFAULT))
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise InvalidInputError(
            found=f"an array on a GPU that cannot be read ({error})",
            expected="a dense one of a numpy dtype, without a gradient",
            advice="Try X.detach().",
        ) from error
    if not found.is_contiguous():
        raise InvalidInputError(
            found="an array on a GPU whose rows do not lie one after the other",
            expected="a contiguous one",
            advice="Copy it: X.contiguous() of PyTorch, ascontiguousarray(X) of others.",
        )
    return found
