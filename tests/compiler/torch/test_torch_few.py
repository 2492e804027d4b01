"""Trees of few rows in PyTorch: both strategies walk them, in blocks or level by level."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from random_trees import random_tree, rows_at_thresholds  # noqa: E402
from test_torch import BOTH, compiled, matrix  # noqa: E402

from hbc.compiler.torch import few, scan, walk  # noqa: E402
from hbc.compiler.torch.program import Program  # noqa: E402
from hbc.ir.graph import Graph  # noqa: E402
from hbc.ops.tree import Tree, join  # noqa: E402


@BOTH
@pytest.mark.parametrize("strategy", ["walk", "scan"])
@pytest.mark.parametrize("depth", [1, 3, 4, 5, 8, 9, 40])
def test_few_rows_are_walked_by_blocks(name: str, depth: int, strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They take blocks of up to four levels, by either strategy. Trees of other depths stand beside a chain of `depth` splits, and every
    row is at a threshold, one unit beside it, infinite or NaN."""
    rng = np.random.default_rng(depth)
    grown = [random_tree(rng, leaves, 4, "f8", rng.normal(size=(30, 1)), True) for leaves in (1, 2, 1 << min(depth, 5))]
    split, end = np.arange(2 * depth + 1) % 2 == 0, 2 * depth
    split[end] = False
    chain = Tree(
        np.where(split, rng.integers(0, 4, end + 1), -1),
        rng.normal(size=end + 1),
        *(np.where(split, np.arange(end + 1) + step, 0) for step in (1, 2)),
        rng.integers(0, 2, end + 1).astype(bool),
        rng.normal(size=(end + 1, 1)),
    )
    op = replace(join([*grown, chain], np.array([0.5])), strategy=strategy)
    X, x, taken = rows_at_thresholds(rng, op, 60, 4), matrix("f64", 4), []
    original = few.by_blocks
    executable = compiled(Graph((x,), {"predict": (op(x),), "apply": (replace(op, output="leaf")(x),)}), name)
    monkeypatch.setattr(walk, "by_blocks", lambda *given: taken.append(len(given[0])) or original(*given))
    for some in (*np.split(X, 60), *np.split(X, 12)):
        np.testing.assert_array_equal(executable.run("predict", [some])[0], op.evaluate(some))
        np.testing.assert_array_equal(executable.run("apply", [some])[0], replace(op, output="leaf").evaluate(some))
    assert name == "torchscript" or taken == [*[1] * 120, *[5] * 24]


@BOTH
def test_scans_of_few_and_many_rows(name: str) -> None:
    """Up to `walked_at_most` rows × trees are walked, in blocks or level by level, and more are scanned, LANES rows at once."""
    rng = np.random.default_rng(3)
    grown = [random_tree(rng, [2, 1, 40, 9][i % 4], 4, "f4", rng.normal(size=(30, 2)), i % 3 == 0) for i in range(200)]
    op = replace(join(grown, np.array([0.5, -1.0])), strategy="scan")
    numbers, most = replace(op, output="leaf"), scan.walked_at_most(40, int(op.depths.max())) // 200
    X, x = rows_at_thresholds(rng, op, 300, 4), matrix("f32", 4)
    executable = compiled(Graph((x,), {"predict": (op(x),), "apply": (numbers(x),)}), name)
    for n in (1, 2, most, most + 1, 64, 65, 127, 300, 0):
        np.testing.assert_array_equal(executable.run("predict", [X[:n]])[0], op.evaluate(X[:n]), err_msg=f"{n} rows")
        np.testing.assert_array_equal(executable.run("apply", [X[:n]])[0], numbers.evaluate(X[:n]), err_msg=f"{n} rows")


@BOTH
@pytest.mark.parametrize("values", [6, 9])
@pytest.mark.parametrize("strategy", ["walk", "scan"])
def test_many_values_of_a_leaf(name: str, strategy: str, values: int) -> None:
    """They are looked up as rows of a matrix: for one row, in blocks, and for some trees after the other."""
    rng = np.random.default_rng(values)
    grown = [random_tree(rng, 40, 4, "f4", rng.normal(size=(30, values)), True) for _ in range(50)]
    op = replace(join(grown, rng.normal(size=values)), strategy=strategy)
    X, x = rows_at_thresholds(rng, op, 3_000, 4), matrix("f32", 4)
    executable = compiled(Graph((x,), {"predict": (op(x),)}), name)
    for n in (1, 2, 100, 3_000, 0):
        np.testing.assert_array_equal(executable.run("predict", [X[:n]])[0], op.evaluate(X[:n]), err_msg=f"{n} rows")


@pytest.mark.parametrize("values", [1, 7])
@pytest.mark.parametrize("rows", [1, 100, 5_000])
@pytest.mark.parametrize("strategy", ["walk", "scan"])
def test_trees_change_no_buffer_and_have_gradients_of_leaves(strategy: str, rows: int, values: int) -> None:
    """In blocks, level by level, and many rows, NaN among them. All read the same values of leaves, so whatever is trained counts for
    all."""
    rng = np.random.default_rng(0)
    op = replace(
        join([random_tree(rng, 40, 4, "f8", rng.normal(size=(80, values)), True) for _ in range(40)], np.zeros(values)),
        strategy=strategy,
    )
    X, x = rng.normal(size=(rows, 4)), matrix("f64", 4)
    X[rng.random(X.shape) < 0.2] = np.nan
    program = Program(Graph((x,), {"predict": (op(x),)}))
    before = {name: buffer.clone() for name, buffer in program.named_buffers()}
    rows_in = torch.tensor(X, requires_grad=True)
    np.testing.assert_array_equal(program(rows_in).detach().numpy(), op.evaluate(X))
    assert all(torch.equal(before[name], buffer) for name, buffer in program.named_buffers())
    for buffer in program.buffers():
        if buffer.is_floating_point():
            buffer.requires_grad_()
    program(rows_in).sum().backward()
    trained = [buffer for buffer in program.buffers() if buffer.grad is not None]
    (leaves,) = (buffer for buffer in trained if max(buffer.shape) >= op.leaf_counts.sum())
    reached = replace(op, output="leaf").evaluate(X)
    counts = np.unique(reached + 1000 * np.arange(40), return_counts=True)[1]
    assert sorted(leaves.grad[leaves.grad != 0].tolist()) == sorted(np.repeat(counts, values))
