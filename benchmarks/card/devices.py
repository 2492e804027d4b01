"""What the measurements run on: a card, through PyTorch, or the emulator of the tests in its place."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
KERNEL_CALLS = 20


def emulator() -> Any:
    """The emulator of the tests."""
    tests = str(Path(__file__).parents[2] / "tests")
    if tests not in sys.path:
        sys.path.append(tests)
    import cuda_on_cpu

    return cuda_on_cpu


class Card:
    """The first GPU of this computer. Raises ValueError where PyTorch sees none."""

    emulated = False
    most_rows = 10_000_000

    def __init__(self) -> None:
        import torch

        if not torch.cuda.is_available():
            raise ValueError(f"PyTorch {torch.__version__} sees no GPU. --emulate rehearses without one")
        self.torch = torch
        self.device = torch.device("cuda:0")

    def describe(self) -> dict[str, Any]:
        properties = self.torch.cuda.get_device_properties(0)
        return {
            "name": properties.name,
            "multiprocessors": properties.multi_processor_count,
            "memory_gib": round(properties.total_memory / 2**30, 1),
            "torch": self.torch.__version__,
            "cuda": self.torch.version.cuda,
        }

    def there(self, array: Array) -> Any:
        """A copy of an array on the card."""
        return self.torch.from_numpy(array).to(self.device)

    def back(self, found: Any) -> Array:
        return np.asarray(found.cpu().numpy())

    def wait(self) -> None:
        self.torch.cuda.synchronize()

    def kernel(self, call: Callable[[Any], Any], X: Any, budget: float) -> dict[str, float]:
        """The time of a call between two events on its stream: what the card takes. In µs."""
        call(X)
        times, stop = [], time.perf_counter() + budget
        while not times or (time.perf_counter() < stop and len(times) < KERNEL_CALLS):
            start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            call(X)
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end) * 1e3)
        return {"p50": statistics.median(times), "p99": max(times), "min": min(times), "calls": len(times)}

    def copy_alone(self, rows: int, width: int) -> Callable[[Any], None]:
        """A copy of so many float32 rows from pinned memory to the card: the limit of calls with rows of the host."""
        here, there = (self.torch.empty((rows, width), **where) for where in ({"pin_memory": True}, {"device": self.device}))

        def copy(_: Any) -> None:
            there.copy_(here, non_blocking=True)
            self.wait()

        return copy

    def module(self, model: Any, method: str) -> Callable[[Any], Any]:
        """A model of hbc's torch backend as a function of tensors on the card."""
        module = model.module.to(self.device).eval()
        call = getattr(module, method)

        def answer(X: Any) -> Any:
            with self.torch.inference_mode():
                return call(X)

        return answer

    @contextmanager
    def running(self) -> Iterator[None]:
        """A context in which hbc uses the card."""
        yield


class Emulated(Card):
    """The emulator in the place of a card: answers are true, times say nothing."""

    emulated = True
    most_rows = 100

    def __init__(self) -> None:
        import torch

        self.torch = torch
        self.device = torch.device("cpu")
        self.card: Any = None

    def describe(self) -> dict[str, Any]:
        return {"name": "emulator", "torch": self.torch.__version__}

    def there(self, array: Array) -> Any:
        from hbc.compiler.tvm.run.card import AsOnCard

        card = self.card
        tensor = card.tensor(array)

        class OnCard:
            shape, dtype = array.shape, array.dtype

            def __dlpack_device__(self) -> tuple[int, int]:
                return 2, 0

            def __dlpack__(self, stream: int) -> Any:
                return AsOnCard(card.array(tensor), 0).__dlpack__()

        return OnCard()

    def back(self, found: Any) -> Array:
        return np.asarray(found) if isinstance(found, self.torch.Tensor) else np.array(self.card.array(found))

    def wait(self) -> None:
        return

    def kernel(self, call: Callable[[Any], Any], X: Any, budget: float) -> dict[str, float]:
        start = time.perf_counter()
        call(X)
        taken = (time.perf_counter() - start) * 1e6
        return {"p50": taken, "p99": taken, "min": taken, "calls": 1}

    def copy_alone(self, rows: int, width: int) -> Callable[[Any], None]:
        here = np.zeros((rows, width), np.float32)
        return lambda _: np.copyto(np.empty_like(here), here)

    @contextmanager
    def running(self) -> Iterator[None]:
        with emulator().emulated(seed=1, keeps_lanes=True) as self.card:
            yield
