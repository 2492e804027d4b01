"""A graph that is read when something first asks for it. What identifies it is known without reading it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping

from hbc.ir.graph import Graph, array_digest
from hbc.ir.printer import print_graph
from hbc.lazy import cached_property


class LazyGraph:
    """A graph, and what is known of it before it is read.

    methods: the names of the graph's methods, in order. mixes_rows: whether the rows of a call must be computed together. identify: returns
    the identity, see `identity_of`. read: returns the graph, or raises ArtifactError.
    """

    def __init__(
        self, methods: tuple[str, ...], mixes_rows: bool, identify: Callable[[], str], read: Callable[[], Graph]
    ) -> None:
        self.methods = methods
        self.mixes_rows = mixes_rows
        self._identify = identify
        self._read = read

    @classmethod
    def of(cls, graph: Graph) -> LazyGraph:
        """The same for a graph in memory."""
        return cls(tuple(graph.outputs), graph.mixes_rows, lambda: _identify(graph), lambda: graph)

    @cached_property
    def identity(self) -> str:
        """A digest that equal graphs share, bit by bit, and no others."""
        return self._identify()

    @cached_property
    def graph(self) -> Graph:
        """The graph. Raises ArtifactError if what should hold it is damaged."""
        found = self._read()
        self._read = lambda: found  # lets go of the file
        return found

    def glance(self) -> Graph:
        """The graph, for a caller that soon lets go of it: read again and not kept, unless it is kept already. A forest of 4.5 million
        nodes takes 166 MB. Raises ArtifactError if what should hold it is damaged."""
        return self._read()


def identity_of(text: str, digests: Mapping[str, str]) -> str:
    """The identity of a graph, given its text (`print_graph`) and, by key, the `array_digest` of the arrays that the text refers to.

    It is the SHA-256 of both, as hexadecimal digits. Whoever takes digests from a file must compare them with the arrays before it uses
    these: otherwise one file could pass for another.
    """
    found = hashlib.sha256(text.encode())
    for key in sorted(digests):
        found.update(f"\n{key} {digests[key]}".encode())
    return found.hexdigest()


def _identify(graph: Graph) -> str:
    text, arrays = print_graph(graph)
    return identity_of(text, {key: array_digest(array) for key, array in arrays.items()})
