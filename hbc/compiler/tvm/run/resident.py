"""Methods of a GPU for arrays that lie on it already."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import tvm_ffi

from hbc.compiler import dlpack
from hbc.compiler.base import OnCard
from hbc.compiler.tvm.run.card import FROM_CARD, Card
from hbc.compiler.tvm.run.executable import Method
from hbc.ir.types import Array

READ_AT_ONCE = 16
"""The bytes that kernels may read at once. They begin at a multiple of so many, else the card stops the program's work."""


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
            if given.data_ptr() % READ_AT_ONCE:  # a part of a larger array may begin anywhere
                given = card.copied(given, queue)
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
    """An array on a GPU as TVM's tensor: see hbc.compiler.dlpack."""
    return X if isinstance(X, tvm_ffi.Tensor) else dlpack.tensor_of(X, stream, tvm_ffi.from_dlpack)
