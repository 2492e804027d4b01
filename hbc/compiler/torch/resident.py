"""Methods of a model on a GPU for arrays that lie on it already."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import dlpack as torch_dlpack

from hbc.compiler import dlpack
from hbc.compiler.base import OnCard
from hbc.errors import DeviceMemoryError
from hbc.ir.types import NUMPY_DTYPES, Array, TensorType

NO_MEMORY = ("CUDA out of memory", "CUDA error: out of memory", "_STATUS_ALLOC_FAILED")
"""Words of errors that say so: TorchScript raises a RuntimeError with the text of PyTorch's own one, and cuBLAS and cuDNN have others."""


class MemoryOf:
    """Inside, an error that a GPU has no memory left is a DeviceMemoryError.

    It is no generator of contextlib. PyTorch's error would hold the frame of that, and this, from Python 3.13 on, the frame of contextlib
    that holds the error: a cycle, which would keep all values of a block while a smaller one is tried.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, torch.OutOfMemoryError) or (
            isinstance(error, RuntimeError) and any(words in str(error) for words in NO_MEMORY)
        ):
            free, total = torch.cuda.mem_get_info(self.device)
            raise DeviceMemoryError(device=str(self.device), wanted=None, free=free, total=total) from error


class OnThisCard(OnCard):
    """See hbc.compiler.base.OnCard. device: the GPU. kinds: the types of the results. fill: writes them for tensors of the input."""

    def __init__(
        self, device: torch.device, kinds: Sequence[TensorType], fill: Callable[[Sequence[Tensor], Sequence[Tensor]], None]
    ) -> None:
        self.device, self.fill, self.number = device, fill, device.index
        self.results = [(tuple(map(int, kind.shape[1:])), np.dtype(NUMPY_DTYPES[kind.dtype])) for kind in kinds]

    def __call__(self, X: Any, stream: int, room: Callable[..., Any] | None) -> list[Any]:
        with self._on(stream), MemoryOf(self.device):
            given = tensor_of(X, stream)
            results = [(room or self._room)((len(given), *shape), dtype) for shape, dtype in self.results]
            if len(given):
                self.fill([given], [tensor_of(result, stream) for result in results])
            if room is None:
                torch.cuda.current_stream().synchronize()  # libraries that take the memory of others may read it on any stream
        return results

    def to_host(self, X: Any, stream: int) -> Array:
        with self._on(stream):
            found: Array = tensor_of(X, stream).cpu().numpy()
        return found

    def _room(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Tensor:
        return torch.empty(shape, dtype=getattr(torch, dtype.name), device=self.device)

    def _on(self, stream: int) -> AbstractContextManager[Any]:
        """Inside, a stream of this GPU is the current one, and the GPU too."""
        cuda = torch.cuda
        return cuda.stream(cuda.ExternalStream(stream, self.device) if stream else cuda.default_stream(self.device))


def tensor_of(X: Any, stream: int) -> Tensor:
    """An array on a GPU as PyTorch's tensor: see hbc.compiler.dlpack."""
    found: Tensor = dlpack.tensor_of(X, stream, torch_dlpack.from_dlpack)
    return found
