"""Products that absorb neighbouring operators, products with one-hot codes as look-ups, and pruned trees. Each rewrite is a picture,
which is executed before and after with NaN, inf and -0.0 rows. Beside it are pictures that must stay as they are."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from random_trees import random_tree, rows_at_thresholds, stump

from hbc.compiler.base import CompileOptions, load_compiler
from hbc.ir.graph import Graph, Input, Node
from hbc.ir.rewrite import Noted
from hbc.ir.types import NUMPY_DTYPES, N
from hbc.ops import tensor as t
from hbc.ops.checks import Check
from hbc.ops.columns import SelectColumns
from hbc.ops.encoding import Lookup, OneHot
from hbc.ops.linear import Linear, TableSum
from hbc.ops.missing import Impute
from hbc.ops.scaling import Affine, Clip, Standardize
from hbc.ops.tree import Tree, TreeEnsemble, join
from hbc.optimizer.columns.simplify import MergeColumns, RemoveChecks
from hbc.optimizer.linear.algebra import FoldLinear
from hbc.optimizer.trees.prune import PruneTrees

FOLD_LINEAR = FoldLinear(load_compiler("numpy"), CompileOptions())
ROWS = np.array(
    [
        [1.0, -2.0, 3.0, 0.5],
        [0.25, 7.0, -0.5, 2.0],
        [-0.0, 5e-324, 0.0, -0.0],
        [np.nan, 1, 2, 3],
        [np.inf, 1, 2, 3],
        [1, -np.inf, 2, 3],
    ]
)
CODES = np.array([[0, 3], [-1, 1], [2, 2], [9, 0], [1, -9], [2, 9]])
OFFSET, SCALE = np.array([1.0, -2.0, 0.5, 50.0]), np.array([2.0, 0.5, 4.0, 1.0])
W = np.array([[1.0, 0.5], [0.0, -1.0], [2.0, 0.25], [-0.5, 3.0]])
B = np.array([0.125, -1.0])
DOWN, UP = np.arange(1.0, 13.0).reshape(4, 3) / 4, np.arange(12.0).reshape(2, 6) / 8
TALL = np.linspace(-1, 1, 18).reshape(9, 2)


def scaled(x: Node, offset: Any = OFFSET, scale: Any = SCALE) -> Node:
    return Standardize(offset, scale)(x)


def check(x: Node) -> Node:
    return Check("owner")(x)


def places(codes: Node) -> Node:
    """The places of the codes of `both(12)` in a table with eight rows for each column."""
    inside = t.minimum(t.maximum(codes, np.array([-1, -1])), np.array([6, 6]))
    return t.add(t.cast(inside, "i32"), np.array([1, 9], np.int32))


def both(columns: int) -> Callable[[Node], Node]:
    """A function that makes one-hot codes of two columns, alternately from the first and the second."""
    return OneHot(np.arange(columns) % 2, np.arange(columns) // 2, "f64")


def table(weights: np.ndarray, bias: Any = 0.0) -> np.ndarray:
    rows = np.zeros((16, 2))
    rows[1:7], rows[9:15] = weights[::2], weights[1::2]
    rows[:8] += bias
    return rows


@dataclass
class Picture:
    name: str
    before: Callable[[Node, Node], Node | tuple[Node, ...]]
    after: Callable[[Node, Node], Node | tuple[Node, ...]] | None  # None: the pass must not fire
    dtype: Any = "f64"
    step: FoldLinear | MergeColumns = FOLD_LINEAR


TWELVE = np.linspace(-2, 2, 24).reshape(12, 2)
WEIGHTS = W / SCALE[:, None]
PICTURES = [
    Picture("a scaler", lambda x, c: Linear(W, B)(scaled(x)), lambda x, c: Linear(WEIGHTS, B - OFFSET @ WEIGHTS)(x)),
    Picture(
        "min and max",
        lambda x, c: Linear(W, B)(Affine(SCALE, OFFSET)(x)),
        lambda x, c: Linear(W * SCALE[:, None], B + OFFSET @ W)(x),
    ),
    Picture(
        "a scaler for several",
        lambda x, c: tuple(Linear(W, b)(check(scaled(x))) for b in (B, 2 * B)),
        lambda x, c: tuple(Linear(WEIGHTS, b - OFFSET @ WEIGHTS)(x) for b in (B, 2 * B)),
    ),
    Picture(
        "only its scale, where the offset is large",
        lambda x, c: Linear(W, B)(scaled(x, OFFSET * 3)),
        lambda x, c: Linear(WEIGHTS, B)(scaled(x, OFFSET * 3, None)),
    ),
    Picture("nothing of what is only centred", lambda x, c: Linear(W, B)(scaled(x, OFFSET, None)), None),
    Picture("nothing with parameters out of range", lambda x, c: Linear(W, B)(scaled(x, None, np.full(4, 1e300))), None),
    Picture("no scaler that is returned, too", lambda x, c: (Linear(W, B)(scaled(x)), scaled(x)), None),
    Picture(
        "no scaler that is read otherwise",
        lambda x, c: t.add(Linear(W, B)(scaled(x)), t.sum_(scaled(x), 1, keepdims=True)),
        None,
    ),
    Picture("nothing before trees", lambda x, c: stump()(Linear(W, B)(scaled(x))), None),
    Picture("not what is rounded between", lambda x, c: Linear(W, B)(t.cast(scaled(x, OFFSET / 100), "f64")), None, "f32"),
    Picture(
        "float32, small shifts",
        lambda x, c: Linear(W.astype("f4"), B.astype("f4"))(scaled(x, OFFSET / 16)),
        lambda x, c: Linear(WEIGHTS.astype("f4"), (B - OFFSET / 16 @ WEIGHTS).astype("f4"))(x),
        "f32",
    ),
    Picture("before a product without intercept", lambda x, c: t.matmul(scaled(x, None), W), lambda x, c: t.matmul(x, WEIGHTS)),
    Picture("no shift where it is longer then", lambda x, c: t.matmul(scaled(x, OFFSET), np.ones((4, 5))), None),
    Picture(
        "a product's quotient",
        lambda x, c: t.div(Linear(W, B)(x), np.array([2.0, -4.0])),
        lambda x, c: Linear(W / [2.0, -4.0], B / [2.0, -4.0])(x),
    ),
    Picture("a product's sum", lambda x, c: t.sub(t.matmul(x, W), B), lambda x, c: Linear(W, -B)(x)),
    Picture(
        "a scaled product",
        lambda x, c: scaled(t.matmul(x, W), B, SCALE[:2]),
        lambda x, c: Linear(W / SCALE[:2], -B / SCALE[:2])(x),
    ),
    Picture("no quotient by 0", lambda x, c: t.div(Linear(W, B)(x), np.array([0.0, 1.0])), None),
    Picture(
        "two scalers, then a shift",
        lambda x, c: Linear(W, B)(t.sub(Affine(SCALE, OFFSET)(x), np.ones(4))),
        lambda x, c: Linear(W * SCALE[:, None], B + (OFFSET - 1) @ W)(x),
    ),
    Picture("two scalers that are returned keep their bits", lambda x, c: Affine(SCALE, OFFSET)(scaled(x)), None),
    Picture(
        "products",
        lambda x, c: Linear(np.ones((3, 1)), np.ones(1))(check(Linear(DOWN, np.ones(3))(x))),
        lambda x, c: Linear(DOWN @ np.ones((3, 1)), np.full(1, 4.0))(x),
    ),
    Picture("no products where that is longer", lambda x, c: Linear(UP, np.ones(6))(check(Linear(W, B)(x))), None),
    Picture("no products of what may be infinite", lambda x, c: t.matmul(t.matmul(x, DOWN), np.ones((3, 1))), None),
    Picture(
        "no column that becomes several",
        lambda x, c: Linear(W, B)(t.mul(SelectColumns(np.array([1]))(x), SCALE[None])),
        None,
    ),
    Picture(
        "no products that cancel",
        lambda x, c: t.matmul(t.matmul(check(x), W + 1e3), np.array([[1.0], [-1.0]])),
        None,
    ),
    Picture(
        "no products of large numbers in float32, which may cancel with what a row holds",
        lambda x, c: t.matmul(t.matmul(check(x), (1e3 * DOWN).astype("f4")), np.ones((3, 1), "f4")),
        None,
        "f32",
    ),
    Picture(
        "chosen columns of a product",
        lambda x, c: t.matmul(SelectColumns(np.array([2, 0]))(t.matmul(check(x), DOWN)), np.ones((2, 1))),
        lambda x, c: t.matmul(x, DOWN[:, [2, 0]] @ np.ones((2, 1))),
    ),
    Picture(
        "one-hot codes",
        lambda x, c: Linear(TWELVE, B)(both(12)(c)),
        lambda x, c: TableSum(table(TWELVE, B))(places(c)),
    ),
    Picture("few of them", lambda x, c: Linear(TALL[:8], B)(both(8)(c)), None),
    Picture("not before trees", lambda x, c: stump()(Linear(TWELVE, B)(both(12)(c))), None),
    Picture(
        "beside numbers",
        lambda x, c: Linear(np.concatenate([W, TWELVE]), B)(check(t.concat([scaled(x), both(12)(c)]))),
        lambda x, c: t.add(Linear(WEIGHTS, B - OFFSET @ WEIGHTS)(x), TableSum(table(TWELVE))(places(c))),
    ),
    Picture(
        "rows in another order",
        lambda x, c: Linear(W, B)(SelectColumns(np.array([2, 0, 3, 1]))(x)),
        lambda x, c: Linear(W[[1, 3, 0, 2]], B)(x),
        step=MergeColumns(),
    ),
    Picture("not of some", lambda x, c: Linear(W[:2], B)(SelectColumns(np.array([2, 0]))(x)), None, step=MergeColumns()),
    Picture(
        "not of some twice", lambda x, c: Linear(W, B)(SelectColumns(np.array([2, 0, 1, 1]))(x)), None, step=MergeColumns()
    ),
]


def graph(x: Node, c: Node, outputs: Any) -> Graph:
    return Graph((x, c), {"transform": outputs if isinstance(outputs, tuple) else (outputs,)}).verify()


@pytest.mark.parametrize("picture", PICTURES, ids=lambda p: p.name)
def test_picture(picture: Picture) -> None:
    x, c = Input("X", picture.dtype, (N, 4))(), Input("C", "i64", (N, 2))()
    before = graph(x, c, picture.before(x, c))
    found = picture.step(before)
    found = (found.graph if isinstance(found, Noted) else found).verify()
    if picture.after is None:
        assert found == before
        return
    expected = graph(x, c, picture.after(x, c))
    assert str(found) == str(expected)
    rows = ROWS.astype(NUMPY_DTYPES[picture.dtype])
    checked = any(isinstance(node.op, Check) for node in before.nodes)
    arrays = [rows[:3], CODES[:3]] if checked else [rows, CODES]
    tolerance = 1e-13 if picture.dtype == "f64" else 5e-7
    for one, other in zip(found.evaluate(*arrays)["transform"], before.evaluate(*arrays)["transform"], strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("offset", [0.0, 1e-3, 1.0, 99.0])
def test_a_shift_costs_no_more_than_the_bound(offset: float) -> None:
    """|error| ≤ 4 · u · (1 + 2S) · |W|, for rows about one scale from the mean, against sums in long double."""
    rng = np.random.default_rng(0)
    scale, weights = rng.lognormal(size=8), rng.normal(size=(8, 3))
    mean = offset * scale
    rows = mean + scale * rng.normal(size=(500, 8))
    x = Input("X", "f64", (N, 8))()
    folded = FOLD_LINEAR(Graph((x,), {"transform": (Linear(weights, np.zeros(3))(Standardize(mean, scale)(x)),)})).graph
    assert not any(isinstance(node.op, Standardize) for node in folded.nodes)
    (found,) = folded.evaluate(rows)["transform"]
    wide = np.longdouble
    exact = ((rows.astype(wide) - mean) / scale) @ weights.astype(wide)
    bound = 4 * 2.0**-53 * (1 + 2 * offset) * np.abs(weights).sum(axis=0)
    assert (np.abs(found - exact) <= bound).all()


def test_equal_operators_are_one() -> None:
    """Equal operators are computed once, where equal includes the sign of zero. Operators that nothing needs are not in the graph."""
    x = Input("X", "f64", (N, 4))()
    unused = scaled(x, 2 * OFFSET)
    twice = t.add(t.exp(scaled(x)), t.exp(scaled(x)))
    clipped = t.concat(
        [Clip(0.0, 1.0)(twice), Clip(-0.0, 1.0)(twice), Clip(0.0, 1.0)(t.add(t.exp(scaled(x)), t.exp(scaled(x))))]
    )
    after = RemoveChecks()(Graph((x,), {"transform": (clipped,)}))
    assert [type(node.op).__name__ for node in after.nodes] == ["Input", "Standardize", "Exp", "Add", "Clip", "Clip", "Concat"]
    assert unused not in after.nodes


# --- codes of every kind


def coded(kind: str, x: Node) -> Node:
    match kind:
        case "sparse":  # far from one another
            return OneHot(np.repeat([0, 1], 6), np.tile([0.0, 1.5, 2.0, 3.0, 7e5, np.nan], 2), "f64")(x)
        case "dense":
            return OneHot(np.repeat([1, 0], 6), np.tile([0.0, 1.0, 2.0, 3.0, 5.0, np.nan], 2), "f64")(x)
        case "repeated":
            return OneHot(np.zeros(12, int), np.repeat(np.arange(6.0), 2), "f64")(x)
        case "looked up":
            codes = Lookup(
                np.tile([0.0, 1.5, 2.0, 3.0, 7e5], (2, 1)),
                np.array([[4, 3, 2, 1, 0], [0, 1, 2, 3, 5]]),
                np.array([-1, 4]),
                np.array([5, -1]),
            )(x)
            return OneHot(np.repeat([0, 1], 6), np.tile(np.arange(6), 2), "f64")(codes)
        case _:
            column = t.cast(
                SelectColumns(np.array([0]))(Impute(np.array([2.0, 0.0]))(t.minimum(t.maximum(x, 0.0), 5.0))), "i64"
            )
            codes = t.take(np.array([5, 4, 3, -1, 1, 0]), column, 0)
            return OneHot(np.zeros(6, int), np.arange(6), "f64")(t.concat([codes, codes]))


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("kind", ["sparse", "dense", "repeated", "looked up", "taken"])
def test_codes_are_looked_up(kind: str, dtype: Any) -> None:
    """Rows hold known and unknown codes, fractions, NaN, infinities, -0.0 and numbers beyond every table."""
    x = Input("X", dtype, (N, 2))()
    rng = np.random.default_rng(0)
    special = [0.0, -0.0, 1.0, 1.5, 2.0, 3.0, 5.0, 6.0, -1.0, -2.0, 7e5, 1e30, -1e30, 0.5, np.nan, np.inf, -np.inf, 5e-324]
    rows = rng.choice(special, (300, 2)).astype(NUMPY_DTYPES[dtype])
    try:
        hot = coded(kind, x)
    except TypeError:  # parameters of float64 for float32
        hot = coded(kind, t.cast(x, "f64"))
    before = Graph((x,), {"predict": (Linear(rng.normal(size=(hot.type.columns, 3)), np.arange(3.0))(hot),)})
    after = FOLD_LINEAR(before).graph.verify()
    assert not any(isinstance(node.op, (OneHot, Linear)) for node in after.nodes)
    np.testing.assert_allclose(after.evaluate(rows)["predict"][0], before.evaluate(rows)["predict"][0], rtol=1e-13, atol=1e-13)


# --- trees


def pruned(op: TreeEnsemble) -> TreeEnsemble:
    x = Input("X", "f32" if op.threshold.dtype == np.float32 else "f64", (N, 3))()
    after = PruneTrees()(Graph((x,), {"predict": (op(x),)})).graph.verify().outputs["predict"][0].op
    assert isinstance(after, TreeEnsemble)
    return after


def chain(*splits: tuple[int, float, bool], leaves: list[float], left: bool = True, **options: Any) -> TreeEnsemble:
    """A tree whose splits (feature, threshold, missing_left) each stand on the left (or right) side of the one before."""
    size = 2 * len(splits) + 1
    inner = np.arange(size) % 2 == 0
    inner[-1] = False
    feature, threshold, missing = np.full(size, -1), np.zeros(size), np.zeros(size, bool)
    feature[inner], threshold[inner], missing[inner] = zip(*splits, strict=True)
    here, there = np.where(inner, np.arange(size) + 2, np.arange(size)), np.where(inner, np.arange(size) + 1, np.arange(size))
    values = np.zeros((size, 1))
    values[~inner, 0] = leaves
    tree = Tree(feature, threshold, here if left else there, there if left else here, missing, values)
    return replace(join([tree], np.zeros(1)), **options)


TREES = [
    ("a looser test below", chain((0, 1.0, True), (0, 2.0, True), leaves=[1, 2, 3]), 1),
    ("the same test below", chain((0, 1.0, True), (0, 1.0, True), leaves=[1, 2, 3]), 1),
    ("a looser test on the right", chain((0, 1.0, False), (0, 0.5, False), leaves=[1, 2, 3], left=False), 1),
    ("NaN takes the other side", chain((0, 1.0, True), (0, 2.0, False), leaves=[1, 2, 3]), 2),
    ("NaN is not there", chain((0, 1.0, False), (0, 2.0, True), leaves=[1, 2, 3]), 1),
    ("a tighter test", chain((0, 1.0, True), (0, 0.5, True), leaves=[1, 2, 3]), 2),
    ("another column", chain((0, 1.0, True), (1, 2.0, True), leaves=[1, 2, 3]), 2),
    ("behind infinity", chain((0, np.inf, True), leaves=[1, 2]), 0),
    ("-inf is not below -inf", chain((0, -np.inf, False), leaves=[1, 2]), 1),
    ("equal leaves", chain((0, 1.0, True), (1, 2.0, True), leaves=[1, 2, 2]), 1),
    ("all equal leaves", chain((0, 1.0, True), (1, 2.0, True), leaves=[2, 2, 2]), 0),
    ("0 and -0", chain((0, 1.0, True), leaves=[0.0, -0.0]), 1),
    ("numbers of leaves", chain((0, 1.0, True), (0, 2.0, True), leaves=[2, 2, 2], output="leaf"), 2),
]


@pytest.mark.parametrize(("op", "splits"), [case[1:] for case in TREES], ids=[case[0] for case in TREES])
def test_branches(op: TreeEnsemble, splits: int) -> None:
    after = pruned(op)
    assert (after.feature >= 0).sum() == splits
    rows = rows_at_thresholds(np.random.default_rng(0), op, 200, 3)
    np.testing.assert_array_equal(after.evaluate(rows), op.evaluate(rows))
    if splits == (op.feature >= 0).sum():
        assert after is op or after.n_trees == op.n_trees


def leaf(value: float) -> Any:
    return random_tree(np.random.default_rng(0), 1, 3, "f8", np.array([[value]]), False)


PRODUCTS = """
import hashlib
import numpy as np
from hbc.compiler.base import CompileOptions, load_compiler
from hbc.ir.graph import Graph, Input
from hbc.ir.types import N
from hbc.ops.linear import Linear
from hbc.ops.scaling import Standardize
from hbc.optimizer.linear.algebra import FoldLinear

rng = np.random.default_rng(0)
x = Input("X", "f64", (N, 60))()
inner = Linear(rng.normal(size=(60, 20)), np.ones(20))(Standardize(rng.normal(size=60), np.ones(60) + rng.random(60))(x))
fold = FoldLinear(load_compiler("numpy"), CompileOptions())
graph = fold(Graph((x,), {"y": (Linear(rng.normal(size=(20, 1)), np.ones(1))(inner),)})).graph
found = [node.op for node in graph.nodes if isinstance(node.op, Linear)]
parameters = [np.ascontiguousarray(each).tobytes() for op in found for each in (op.coef, op.intercept)]
print(hashlib.sha256(b"".join(parameters)).hexdigest())
"""


def test_weights_do_not_depend_on_the_kernels_of_blas() -> None:
    """OpenBLAS of an old processor (Prescott) adds up in another order than that of a new one."""
    found = set()
    for kernels in ("Prescott", "Haswell"):
        environment = {**os.environ, "OPENBLAS_CORETYPE": kernels}
        done = subprocess.run([sys.executable, "-c", PRODUCTS], env=environment, capture_output=True, text=True, check=True)
        found.add(done.stdout)
    assert len(found) == 1


def test_constants_are_added_first_only() -> None:
    one, other = (
        random_tree(np.random.default_rng(i), 6, 3, "f8", np.random.default_rng(i).normal(size=(9, 1)), True) for i in (1, 2)
    )
    op = join(
        [leaf(0.1), leaf(0.2), one, leaf(0.0), other, leaf(0.3), leaf(0.7)],
        np.array([0.5, 1.0]),
        np.array([0, 1, 0, 0, 0, 1, 0]),
    )
    after = pruned(op)
    np.testing.assert_array_equal(after.base, [0.5 + 0.1, 1.0 + 0.2 + 0.3])
    assert after.n_trees == 3  # 0.7 is added behind others, where it is rounded differently
    rows = rows_at_thresholds(np.random.default_rng(0), op, 200, 3)
    np.testing.assert_array_equal(after.evaluate(rows), op.evaluate(rows))


def test_equal_trees_are_one_where_sums_are_exact() -> None:
    rng = np.random.default_rng(0)
    for values, trees in ((np.array([[0.25], [1.0], [-3.0]]), 2), (np.array([[0.1], [0.2], [0.3]]), 4)):
        one, other = (random_tree(np.random.default_rng(i), 5, 3, "f8", values, True) for i in (4, 5))
        op = join([one, other, one, one], np.array([0.5]))
        after = pruned(op)
        assert after.n_trees == trees
        rows = rows_at_thresholds(rng, op, 200, 3)
        np.testing.assert_array_equal(after.evaluate(rows), op.evaluate(rows))


@pytest.mark.parametrize("seed", range(5))
def test_random_trees_are_pruned_exactly(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for dtype, vectors in (("f4", False), ("f8", True)):
        values = rng.integers(-2, 3, (6, 2 if vectors else 1)) / (3 if seed % 2 else 4)
        pool = [random_tree(rng, int(rng.integers(1, 12)), 3, dtype, values, True, 1) for _ in range(4)]
        op = join([pool[i] for i in rng.integers(4, size=7)], np.ones(2), None if vectors else rng.integers(0, 2, 7))
        rows = rows_at_thresholds(rng, op, 300, 3)
        after = pruned(op)
        assert len(after.feature) <= len(op.feature)
        np.testing.assert_array_equal(after.evaluate(rows), op.evaluate(rows))
