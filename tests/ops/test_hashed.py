"""Hash tables without collisions, and values looked up in them by the hashes of combined categories."""

from __future__ import annotations

import platform
from collections.abc import Sequence

import numpy as np
import pytest

from hbc.compiler.base import CompileOptions, load_compiler
from hbc.ir.graph import Graph, Input
from hbc.ir.types import Array
from hbc.ops.hash_tables import PerfectHash
from hbc.ops.hashed_categories import MULTIPLIER, HashedValues, chained

COUNTS = np.array([0, 1, 2, 0, 500, 3000, 7])


@pytest.mark.parametrize("shift", [0, 20, 40])
@pytest.mark.parametrize("first", [0, 2**63 - 1000])
def test_every_key_has_a_slot_to_itself(first: int, shift: int) -> None:
    """Keys are numbers that differ in few digits, with 0 among them."""
    keys = np.concatenate([np.arange(count, dtype=np.uint64) + np.uint64(first) << np.uint64(shift) for count in COUNTS])
    table = PerfectHash.of(keys, COUNTS)
    sets = np.repeat(np.arange(len(COUNTS)), COUNTS)
    slots = table.slots(keys, sets)
    np.testing.assert_array_equal(table.key_at[slots], np.arange(len(keys)))
    assert (table.key_at >= 0).sum() == len(keys)
    others = table.slots(
        np.random.default_rng(0).integers(2**64, size=(len(COUNTS), 99), dtype=np.uint64), np.arange(len(COUNTS))[:, None]
    )
    assert (others >= table.first_slot[:, None]).all()
    assert (others < (table.first_slot + table.sizes)[:, None]).all()


def test_a_key_twice_in_a_set() -> None:
    PerfectHash.of(np.array([5, 5], np.uint64), np.array([1, 1]))
    with pytest.raises(ValueError, match="twice"):
        PerfectHash.of(np.array([5, 5], np.uint64), np.array([2]))


def reference(op: HashedValues, x: Array) -> Array:
    """The definition, with Python's integers and a dict for each statistic."""
    factor, whole = int(MULTIPLIER), 1 << 64
    hashes = []
    for elements in op.elements:
        found = []
        for row in x.tolist():
            total = 0
            for element in elements[elements >= 0]:
                total = factor * (total + factor * row[element]) % whole
            found.append(total - whole if total >= whole // 2 else total)
        hashes.append(found)
    y, end = np.empty((len(x), len(op.of)), np.float32), 0
    for q, p in enumerate(op.of):
        known = op.known[op.starts[p] : op.starts[p + 1] - 1].tolist()
        values = op.values[end : end + len(known) + 1]
        end += len(values)
        place = {number: i for i, number in enumerate(known)}
        y[:, q] = values[[place.get(number, len(known)) for number in hashes[p]]]
    return y


def hashed_values(x: Array, elements: Sequence[Sequence[int]], known: Sequence[int], of: Sequence[int]) -> HashedValues:
    """An operator that knows, for each combination, the hashes of the first `known` rows of x. The place behind them holds the hash of the
    last row of x, which must not be found. Values are random bits."""
    longest = max(map(len, elements))
    padded = np.array([[*row, *[-1] * (longest - len(row))] for row in elements])
    hashes = chained(x, padded).view(np.int64)
    parts = [np.append(np.unique(row[:count]), row[-1]) for row, count in zip(hashes, known, strict=True)]
    starts = np.cumsum([0, *map(len, parts)])
    size = int(np.diff(starts)[np.array(of)].sum())
    values = np.random.default_rng(1).integers(2**32, size=size, dtype=np.uint64).astype(np.uint32).view(np.float32)
    values[: min(size, 6)] = np.array([-0.0, 1e-45, np.inf, -np.inf, np.nan, 3e38], np.float32)[:size]
    return HashedValues(padded, np.concatenate(parts), starts, np.array(of), values)


SOME = [[0, 1, 2], [2, 1, 0], [0, 1], [1, 0], [3, 3], [0], [1], [2], [3]]
CASES = {
    "one": ([[0]], [5], [0]),
    "nothing known": ([[0]], [0], [0]),
    "everything known": ([[1, 0]], [600], [0]),
    "more than are taken together, several values": (
        SOME,
        [300, 200, 20, 1, 0, 9, 100, 3, 50],
        [8, 0, 1, 2, 3, 3, 3, 0, 0, 0, 0, 5],
    ),
    "as many as are taken together": (SOME[1:], [600] * 8, list(range(8))),
    "without values": (SOME[:3], [7, 8, 9], [1, 1]),
}


TARGETS: list[tuple[str, dict[str, str] | None]] = [("numpy", None), ("tvm", None)]
TARGETS += [("tvm", {"mcpu": name}) for name in ("haswell", "x86-64") if platform.machine() == "x86_64"]


@pytest.mark.parametrize(("backend", "target"), TARGETS)
@pytest.mark.parametrize("name", CASES)
def test_values_of_combinations(name: str, backend: str, target: dict[str, str] | None) -> None:
    """All bits are right, for numbers of rows around the number that is computed at a time."""
    pytest.importorskip(backend)
    rng = np.random.default_rng(0)
    x = rng.integers(-(2**31), 2**31, (600, 4))
    x[::3, :2] = rng.integers(0, 3, (200, 2))
    x[:4, 0] = np.iinfo(np.int64).min, np.iinfo(np.int64).max, 0, -1
    op = hashed_values(x, *CASES[name])
    node = Input("x", "i64", ("N", 4))()
    graph = Graph((node,), {"predict": (op(node),)}).verify()
    executable = load_compiler(backend).compile(graph, CompileOptions(threads=1, target=target))
    expected = reference(op, x)
    for rows in (600, 0, 1, 15, 16, 17, 255, 256, 257):
        (found,) = executable.run("predict", [x[:rows]])
        np.testing.assert_array_equal(found.view(np.uint32), expected[:rows].view(np.uint32))


def test_elements_out_of_order() -> None:
    node = Input("x", "i64", ("N", 2))()
    known, of, values = np.zeros(1, np.int64), np.array([0]), np.zeros(1, np.float32)
    with pytest.raises(TypeError, match="first"):
        HashedValues(np.array([[-1, 0]]), known, np.array([0, 1]), of, values)(node)
    with pytest.raises(TypeError, match="every combination"):
        HashedValues(np.array([[0], [1]]), known, np.array([0, 1]), of, values)(node)
