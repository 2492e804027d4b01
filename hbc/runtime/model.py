"""CompiledModel: the source estimator's interface over compiled graphs."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hbc.compiler.base import Executable
from hbc.ir.graph import Graph
from hbc.ir.signature import InputSpec, Kinds, ModelInfo
from hbc.ir.types import Array
from hbc.runtime.inputs import prepare


@dataclass
class Variant:
    """One graph of a model with its executable, which is built at the first call that needs it."""

    graph: Graph
    build: Callable[[Graph], tuple[Executable, Any, str]]
    _built: tuple[Executable, Any, str] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def built(self) -> tuple[Executable, Any, str]:
        if self._built is None:
            with self._lock:
                if self._built is None:
                    self._built = self.build(self.graph)
        return self._built


class CompiledModel:
    """A compiled model. It has the methods of the source estimator, and its `classes_`, `n_features_in_`, `feature_names_in_`."""

    def __init__(self, info: ModelInfo, spec: InputSpec, variants: Mapping[Kinds, Variant], backend: str, device: str) -> None:
        self.info = info
        self.spec = spec
        self.variants = dict(variants)
        self.backend = backend
        self.device = device
        for name, value in info.attributes.items():
            setattr(self, name, value)
        for method in self.graph.outputs:
            setattr(self, method, functools.partial(self._run, method))

    @property
    def graph(self) -> Graph:
        """The parsed graph, before optimization, of the first variant."""
        return next(iter(self.variants.values())).graph

    def _run(self, method: str, X: Any) -> Any:
        kinds, arrays = prepare(X, self.spec, tuple(self.variants))
        executable, _, _ = self.variants[kinds].built
        results = [self._returned(method, result, arrays) for result in executable.run(method, arrays)]
        return results[0] if len(results) == 1 else results

    def _returned(self, method: str, result: Array, arrays: list[Array]) -> Array:
        dtype = self.info.output_dtypes.get(method)
        if dtype is not None and result.dtype != np.dtype(dtype):
            return result.astype(dtype)
        return result.copy() if any(np.shares_memory(result, array) for array in arrays) else result
