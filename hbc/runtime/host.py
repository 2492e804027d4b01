"""A compiled graph whose strings are encoded before the device and decoded after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hbc.compiler.base import Executable
from hbc.ir.graph import Graph
from hbc.ir.types import Array


@dataclass(frozen=True)
class HostedExecutable:
    """`before` and `after` run in numpy on the host, around `device` (optimizer/partition.py).
    The device has no part where strings alone are computed with: an encoder's categories, say."""

    before: Graph | None
    device: Executable | None
    methods: frozenset[str]
    """Those in which the device has a part."""
    after: Mapping[str, Graph]
    whole: Callable[[str], None] | None = None
    """Writes the graph in one piece, where the backend's files (not its calls) can have strings in them."""

    def run(self, method: str, arrays: Sequence[Array]) -> list[Array]:
        results: list[Array] = []
        if self.device is not None and method in self.methods:
            (entering,) = [arrays] if self.before is None else self.before.evaluate(*arrays).values()
            results = self.device.run(method, entering)
        after = self.after.get(method)
        return results if after is None else after.evaluate(*results, *arrays)[method]

    def export(self, path: str) -> None:
        if self.whole is not None:
            return self.whole(path)
        raise ValueError(
            f"{path}: a part of this model runs in numpy, outside the compiled code: strings, or logarithms and exponentials in front "
            "of trees and bins. Export it with backend='onnx' (strings only), or save() it."
        )
