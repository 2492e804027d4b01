"""Across: a model on several GPUs, which share the rows of a call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from hbc.errors import InvalidInputError

if TYPE_CHECKING:
    from hbc.ir.signature import ModelInfo
    from hbc.runtime.calls import ArrayCall
    from hbc.runtime.methods import Methods
else:
    Methods = object  # it has only the methods of its model

LEAST_ROWS = 16_384
"""The fewest rows that a GPU is given if another one could do without it: an H200 has so many in progress at once (docs/gpu.md)."""


class OnOneCard(Protocol):
    """A CompiledModel, as Across uses it."""

    _estimator: ModelInfo

    @property
    def _calls(self) -> Mapping[str, ArrayCall]: ...
    @property
    def device(self) -> str: ...
    @property
    def methods(self) -> tuple[str, ...]: ...


class Across(Methods):
    """A model on several GPUs. `CompiledModel.across` makes it.

    It has the model's methods, for numpy arrays [rows, n_features_in_] of numbers. The rows are cut into one part for each GPU. Parts
    differ by one row at most. Each GPU computes its part, in a thread of its own. A method returns what the model itself returns, with
    rows in the order of X, to the bit. Few rows go to fewer GPUs: each gets 16,384 or more, if it is not the only one.

    Raises the errors of the model. Errors of a GPU have a note that says which one it was, and its rows. Raises InvalidInputError for
    lists, frames and arrays on a GPU: nothing but arrays of the host is split.

    models: a CompiledModel for each GPU, in the order of `devices`. Each may be called by itself.

    Example:
        >>> gpus = hbc.convert(forest).across(["cuda:0", "cuda:1"])  # doctest: +SKIP
        >>> gpus.predict_proba(X)  # doctest: +SKIP
    """

    def __init__(self, models: Sequence[OnOneCard]) -> None:
        self.models: tuple[Any, ...] = tuple(models)

    @property
    def devices(self) -> tuple[str, ...]:
        """The GPUs."""
        return tuple(model.device for model in self.models)

    if not TYPE_CHECKING:  # with this function in sight, a type checker would accept any name

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_") or name == "models":
                raise AttributeError(f"'Across' object has no attribute {name!r}", name=name, obj=self)
            found = getattr(self.models[0], name)
            if name not in self.models[0].methods:
                if callable(found):
                    raise AttributeError(f"{name} is not split over GPUs: call it of one of `models`", name=name, obj=self)
                return found
            self._require_split(name)
            return lambda X, **options: self._answer(name, X, options)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.models[0].methods]

    def __repr__(self) -> str:
        return f"<{self.models[0]._estimator.source} across {', '.join(self.devices)}>"

    def _require_split(self, method: str) -> None:
        """Raise ValueError for a method whose rows cannot be computed apart, or whose result cannot be joined."""
        call = self.models[0]._calls[method]
        reason = ""
        if call.returns:
            reason = f"returns {call.returns}"
        elif method.startswith("staged_"):
            reason = "yields results one by one"
        elif call.shared.mixes_rows:
            reason = "looks at all rows at once"
        if reason:
            raise ValueError(f"{method} {reason}, and is not split over GPUs: call it of one of `models`")

    def _answer(self, method: str, X: Any, options: dict[str, Any]) -> Any:
        if type(X) is not np.ndarray or X.ndim != 2 or X.dtype.kind not in "biuf":
            shape = f" {X.dtype}{list(X.shape)}" if isinstance(X, np.ndarray) else ""
            raise InvalidInputError(
                found=f"a {type(X).__name__}{shape}",
                expected="a numpy array of numbers [rows, columns], to split it over several GPUs",
                advice=f"Make one of it (np.asarray(X)), or call models[0].{method}, which computes all rows on {self.devices[0]}.",
            )
        calls: list[Callable[..., Any]] = [getattr(model, method) for model in self.models]
        parts = min(len(calls), max(len(X) // LEAST_ROWS, 1))
        if parts == 1:
            return calls[0](X, **options)
        cuts = list(pairwise(len(X) * i // parts for i in range(parts + 1)))

        def part(number: int) -> Any:
            start, end = cuts[number]
            try:
                return calls[number](X[start:end], **options)
            except Exception as error:
                error.add_note(f"{self.devices[number]} had the rows {start:,} to {end - 1:,} of X.")
                raise

        try:
            with ThreadPoolExecutor(parts) as pool:
                return _joined(list(pool.map(part, range(parts))))
        except InvalidInputError:
            return calls[0](X, **options)  # the error that names the row of X, and not that of a part


def _joined(parts: list[Any]) -> Any:
    """The results of parts one after the other. They are arrays, or lists of as many."""
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    return [_joined(list(each)) for each in zip(*parts, strict=True)]
