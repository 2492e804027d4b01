"""Trees that PyTorch walks in ranks, or in chunks of rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from random_trees import RANDOM, random_ensemble  # noqa: E402
from test_torch import BOTH, compiled, matrix  # noqa: E402

from hbc.compiler.torch import bits, ranked, walk, wide  # noqa: E402
from hbc.ir.graph import Graph  # noqa: E402


@BOTH
@pytest.mark.parametrize(
    ("halvings", "many", "slots", "columns"),
    [(1 << 20, 1 << 20, 0, 1000), (1 << 20, 0, 1 << 20, 1000), (1 << 20, 0, 50, 1000), (0, 0, 0, 1000), (0, 0, 0, 1)],
    ids=["ranks", "bits", "few-bits", "numbers", "chunks"],
)
@pytest.mark.parametrize("kind", RANDOM)
def test_walks_of_many_rows_are_the_references(
    name: str, kind: str, halvings: int, many: int, slots: int, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many rows of few columns walk in ranks, if a tree has the levels, and others with numbers, all rows or chunks of them. All have
    copies of columns for NaN, and rows without NaN do not make these. With bits, all full levels are tested as a whole, or as many as have
    few different tests."""
    for module, limit, value in (
        (walk, "ALIKE", 0),
        (walk, "FEW", 0),
        (walk, "FEW_EAGER", 0),
        (walk, "PADDING", 1 << 9),
        (walk, "MANY", many),
        (ranked, "HALVINGS", halvings),
        (bits, "MOST_SLOTS", slots),
        (wide, "COLUMNS", columns),
        (wide, "OF_A_TREE", 0),
    ):
        monkeypatch.setattr(module, limit, value)
    op, X = random_ensemble(kind, rows=130)
    op = replace(op, strategy="walk")
    x = matrix("f32" if op.threshold.dtype == np.float32 else "f64", X.shape[1])
    (in_ranks, *_), parts, in_chunks = walk.pack(op)[walk.ENCODING + walk.TABLES :], [], []
    assert bool(len(in_ranks)) == (halvings > 0 and int(op.depths.max()) >= ranked.TOP)
    executable = compiled(Graph((x,), {"predict": (op(x),), "apply": (replace(op, output="leaf")(x),)}), name)
    original, chunks_first = ranked.nodes, wide.by_chunks
    monkeypatch.setattr(walk, "nodes", lambda *given: parts.append(given) or original(*given))
    monkeypatch.setattr(walk, "by_chunks", lambda *given: in_chunks.append(given) or chunks_first(*given))
    whole = np.where(np.isnan(X), X.dtype.type(0.25), X)
    for rows in (X, X[:3], X[:1], X[:0], whole, whole[:3]):
        np.testing.assert_array_equal(executable.run("predict", [rows])[0], op.evaluate(rows))
        np.testing.assert_array_equal(executable.run("apply", [rows])[0], replace(op, output="leaf").evaluate(rows))
    assert name == "torchscript" or bool(parts) == bool(len(in_ranks))
    assert name == "torchscript" or bool(in_chunks) == (columns == 1 and int(op.depths.max()) > 0)


def test_bits_take_rows_by_pieces_and_trees_by_groups() -> None:
    """Rows that fill no byte, more than a piece, and memory for a few trees."""
    for op, X in (random_ensemble(kind, rows=203) for kind in RANDOM):
        columns, edges, *_, slots, bottoms, size, tests, _ = walk.pack(op)[walk.ENCODING + walk.TABLES :][: ranked.ARRAYS]
        if len(columns) == 0:
            continue
        values = np.where(np.isnan(X), X.dtype.type(0.25), X)[:, columns].T
        given = values, edges, ranked.reach_of(edges)
        found = ranked.ranks(*(torch.from_numpy(np.ascontiguousarray(each)) for each in given))
        found += torch.arange(len(columns), dtype=torch.int32)[:, None] * (edges.shape[1] + 1)
        arrays = [torch.from_numpy(each) for each in (slots, bottoms, size, tests)]
        all_at_once, in_parts = (
            bits.paths_by_bits(found, *arrays, torch.empty(memory, dtype=torch.uint8), piece)
            for memory, piece in ((1 << 20, 256), (1 << 16, 48))
        )
        assert tests.size > 0
        np.testing.assert_array_equal(all_at_once.numpy()[:, :203], in_parts.numpy()[:, :203])


@pytest.mark.parametrize("together", [1, 100, 1 << 14])
@pytest.mark.parametrize("kind", RANDOM)
def test_rows_walk_in_chunks(kind: str, together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last chunk begins with rows of the one before it. Some trees, or all, test their highest levels together."""
    monkeypatch.setattr(walk, "PADDING", 1 << 9)
    op, X = random_ensemble(kind, rows=203)
    packed = [torch.from_numpy(np.ascontiguousarray(each)) for each in walk.pack(op)]
    encoding, trees = packed[: walk.ENCODING], packed[walk.ENCODING : walk.ENCODING + walk.TABLES]

    if len(trees[0]) == 0:
        pytest.skip("trees without a level")

    def arguments(in_chunks: int) -> tuple[Any, ...]:
        x, used, above, row, step, numbers, places, memory, _, tested = walk.prepared(
            torch.from_numpy(X), encoding, trees, [torch.empty(0)], [0, 0, walk.AT_ONCE, walk.MANY, in_chunks], False
        )
        rows = (x, tested[0]) if in_chunks else (x, above, row)
        return *rows, used, 1, min(step, op.n_trees), numbers, places, memory

    found = wide.by_chunks(*arguments(1), chunk=48, together=together)
    np.testing.assert_array_equal(found.numpy(), walk.behind_full_levels(*arguments(0)).numpy())


def test_bits_are_transposed() -> None:
    planes = np.random.default_rng(0).integers(0, 256, (8, 5)).astype(np.uint8)
    expected = np.packbits(
        np.unpackbits(planes[..., None], axis=2, bitorder="little").transpose(2, 1, 0), axis=2, bitorder="little"
    )
    bits.transpose(torch.from_numpy(planes))
    np.testing.assert_array_equal(planes, expected[..., 0])


def test_ranks_are_numbers_of_lesser_edges() -> None:
    """At the edges, beside them, infinite, zeros of both signs, and NaN, which is less than all. In any order of the columns, and with
    copies of them."""
    rng = np.random.default_rng(0)
    for dtype in (np.float32, np.float64):
        for most in (1, 2, 3, 255, 256, 1000):
            thresholds = [np.unique(rng.normal(size=size).astype(dtype)) for size in (most, max(most // 2, 1))]
            thresholds.append(np.array([-np.inf, 0.0, np.inf][:most], dtype))
            chosen = [rng.choice(each, 200) for each in thresholds]
            special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0])
            values = np.stack([np.concatenate([some, np.nextafter(some, -np.inf), special]) for some in chosen]).astype(dtype)
            edges = ranked.edges_of(thresholds, np.dtype(dtype))
            expected = np.stack([(each[:, None] < some).sum(axis=0) for each, some in zip(thresholds, values, strict=True)])
            for order, copies in (([0, 1, 2], 0), ([2, 0, 1], 0), ([0, 1, 2, 0, 1, 2], 3)):
                reach = ranked.reach_of(edges[order[:3]])
                given = (torch.from_numpy(each) for each in (values[order], edges[order], reach))
                np.testing.assert_array_equal(ranked.ranks(*given, copies).numpy(), expected[order])


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (7, 1), (48, 130), (203, 17)])
def test_chunks_are_transposed(dtype: str, shape: tuple[int, int]) -> None:
    """All bits stay: those of NaN, of zeros of both signs, and of denormal numbers."""
    numbers = np.random.default_rng(0).integers(0, 256, (*shape, np.dtype(dtype).itemsize), dtype=np.uint8)
    x = numbers.view(dtype)[..., 0]
    for given in (x, np.asfortranarray(x)):
        found = wide.transposed(torch.from_numpy(given))
        assert found.is_contiguous()
        np.testing.assert_array_equal(found.numpy().view("u1"), np.ascontiguousarray(x.T).view("u1"))
