"""Trees that PyTorch walks in ranks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from random_trees import RANDOM, random_ensemble  # noqa: E402
from test_torch import BOTH, compiled, matrix  # noqa: E402

from hbc.compiler.torch import ranked, walk  # noqa: E402
from hbc.ir.graph import Graph  # noqa: E402


@BOTH
@pytest.mark.parametrize("kind", RANDOM)
def test_walks_in_ranks_are_the_references(name: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many rows of few columns walk in ranks. Here all rows do, if a tree has the levels."""
    for module, limit, value in (
        (walk, "ALIKE", 0),
        (walk, "FEW", 0),
        (walk, "FEW_EAGER", 0),
        (walk, "PADDING", 1 << 9),
        (ranked, "HALVINGS", 1 << 20),
    ):
        monkeypatch.setattr(module, limit, value)
    op, X = random_ensemble(kind, rows=130)
    op = replace(op, strategy="walk")
    x = matrix("f32" if op.threshold.dtype == np.float32 else "f64", X.shape[1])
    (columns, *_), parts = walk.pack(op)[walk.ENCODING + walk.TABLES :], []
    assert bool(len(columns)) == (int(op.depths.max()) >= ranked.TOP)
    executable = compiled(Graph((x,), {"predict": (op(x),), "apply": (replace(op, output="leaf")(x),)}), name)
    original = ranked.nodes
    monkeypatch.setattr(walk, "nodes", lambda *given: parts.append(given) or original(*given))
    for n in (130, 3, 1, 0):
        np.testing.assert_array_equal(executable.run("predict", [X[:n]])[0], op.evaluate(X[:n]))
        np.testing.assert_array_equal(executable.run("apply", [X[:n]])[0], replace(op, output="leaf").evaluate(X[:n]))
    assert name == "torchscript" or bool(parts) == bool(len(columns))


def test_ranks_are_numbers_of_lesser_edges() -> None:
    """At the edges, beside them, infinite, zeros of both signs, and NaN, which is less than all."""
    rng = np.random.default_rng(0)
    for dtype in (np.float32, np.float64):
        for most in (1, 2, 3, 255, 256, 1000):
            thresholds = [np.unique(rng.normal(size=size).astype(dtype)) for size in (most, max(most // 2, 1))]
            thresholds.append(np.array([-np.inf, 0.0, np.inf][:most], dtype))
            chosen = [rng.choice(each, 200) for each in thresholds]
            special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0])
            values = np.stack([np.concatenate([some, np.nextafter(some, -np.inf), special]) for some in chosen]).astype(dtype)
            found = ranked.ranks(torch.from_numpy(values), torch.from_numpy(ranked.edges_of(thresholds, np.dtype(dtype))))
            expected = [(each[:, None] < some).sum(axis=0) for each, some in zip(thresholds, values, strict=True)]
            np.testing.assert_array_equal(found.numpy(), np.stack(expected))
