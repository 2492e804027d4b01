"""Moves operators that keep the order of numbers from before a tree ensemble into its thresholds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np

from hbc.compiler.base import CompileOptions, Compiler
from hbc.ir.graph import Graph, Node, gives_rows, topological
from hbc.ir.rewrite import Noted, rewrite_noting, substitute
from hbc.ir.types import NUMPY_DTYPES, Array, DType
from hbc.lazy import record
from hbc.ops.encoding import OneHot
from hbc.ops.tensor import Cast
from hbc.ops.tree import CategoryPlanes, TreeEnsemble
from hbc.optimizer.columns.column import Column, side_by_side
from hbc.optimizer.host import belongs_on_host
from hbc.optimizer.trees.column_functions import ColumnFunctions, apart
from hbc.optimizer.trees.column_tracer import ColumnTracer, Guard, pieces_of
from hbc.optimizer.trees.cuts import MOST_ODD, Cuts, find_curve_cuts, find_cuts

MOST_TESTS = 1 << 19
"""The most different tests of an ensemble: 120,000 cuts in float32 take 0.23 s of one core, in float64 about twice as long."""

MOST_WIDE_TESTS = 1 << 13
"""The most splits of float32 trees whose thresholds may become float64: 6,000 behind normal quantiles take half a second of one core
to find, and 25,000 take 4 s, in vain if one column has no proven cuts."""


@record
class NumbersIntoTrees:
    """`TreeEnsemble(Concat(Standardize(Impute(x)), OneHot(c)))` → `TreeEnsemble'(Concat(x, OneHot(c)))`; `TreeEnsemble(Cast("f64",
    x))` → `TreeEnsemble'(x)`, with thresholds in x's dtype.

    Each column is followed towards the input through operators that are `monotone` there. A test `f(x) <= threshold` becomes `x
    <= cut` (with the children swapped where f falls), and NaN goes where f sends it. The cut is found by bisection over the
    floats, with the operators' own `evaluate`, so that every number is decided as before. The number of different tests does
    not grow.

    Other curves of one column are followed too if each test has one proven cut (`find_curve_cuts`): logarithms, exponentials,
    roots, and curves of several operators that read a column more than once (PowerTransformer, QuantileTransformer, functions
    of the user's own). A curve may give NaN for some numbers that must go another way than the smallest other numbers. These
    are made NaN before the trees: `TreeEnsemble(Function("log", x))` → `TreeEnsemble'(Where(x < 0, NaN, x))`. Single floats
    that go another way than their neighbours are moved beside the cut: `Where(x == 0.139…1, 0.139…0, x)`. The cuts are those of
    the numpy with which the plan is made, where the model is loaded, because vector units differ in the last bits. (So do
    numpy's arrays with negative strides: with this pass or without, hbc computes what the source computes from a contiguous
    copy.)

    Not absorbed: x to a power given by the user, since its errors are not known; curves that rise and fall, such as splines; encoders that
    give unknown numbers a code, since a test would become a set of single floats.

    Nothing is absorbed where the trees would become slower. Thresholds in float32 stay in float32 (100 trees of depth 8 take
    0.73 µs a row in float64 with their scaler absorbed, and 0.46 without), unless numpy would have to compute a function before
    them. Where trees become tensor operators, a look for NaN costs three more operators a step. There, imputation stays outside of
    trees that need not look for NaN.
    """

    compiler: Compiler
    options: CompileOptions
    strategy: str

    def __call__(self, graph: Graph) -> Noted:
        return rewrite_noting(graph, self._absorb)

    def _absorb(self, node: Node) -> tuple[Node, str] | None:
        if type(node.op) is not TreeEnsemble or gives_rows(node.inputs[0]):
            return None
        absorbed = None
        few = node.op.threshold.dtype == np.float32 and np.count_nonzero(node.op.feature >= 0) <= MOST_WIDE_TESTS
        if few and self._needs_host(node.inputs[0]):
            absorbed = self._without_nan(node, ("f32", "f64"))
            if absorbed is not None and self._needs_host(absorbed.x):
                absorbed = None  # trees of float64 for nothing
        if absorbed is None:
            absorbed = self._without_nan(node, ("f32",) if node.op.threshold.dtype == np.float32 else ("f32", "f64"))
        return None if absorbed is None else (absorbed.op(absorbed.x), absorbed.note)

    def _without_nan(self, node: Node, dtypes: tuple[str, ...]) -> _Absorbed | None:
        """The trees of a node over columns of these dtypes, and only where they need not look for NaN if that costs."""
        assert isinstance(node.op, TreeEnsemble)
        absorbed = _absorbed(node.op, node.inputs[0], True, dtypes)
        if absorbed is not None and self._has_to_look_for_nan(node.op, absorbed.op):
            return _absorbed(node.op, node.inputs[0], False, dtypes)
        return absorbed

    def _needs_host(self, x: Node) -> bool:
        """Whether numpy has to compute something in front of the trees, the dearest way: 20 columns of quantiles take 10 µs a row."""
        return any(belongs_on_host(node.op, self.compiler) for node in topological([x]))

    def _has_to_look_for_nan(self, before: TreeEnsemble, after: TreeEnsemble) -> bool:
        if before.missing_left.any() or not after.missing_left.any():
            return False
        strategy = self.compiler.choose_strategy(after, self.options)[0] if self.strategy == "auto" else self.strategy
        return not self.compiler.supports(replace(after, strategy=strategy))


@record
class _Absorbed:
    op: TreeEnsemble
    x: Node
    note: str


def _absorbed(op: TreeEnsemble, x: Node, through_missing: bool, dtypes: tuple[str, ...]) -> _Absorbed | None:
    """The trees over the earlier columns from which the columns of x are computed; None if nothing is gained."""
    features = np.unique(op.feature[op.feature >= 0]).tolist()
    up = ColumnTracer(through_missing, dtypes)
    x = _narrow_codes(x, features, up)
    kept: set[int] = set()  # features whose columns are not followed
    tests = None
    while True:
        chains = {feature: up.chain((x, feature))[: 1 if feature in kept else None] for feature in features}
        if not _is_worth_it(op, chains.values()):
            return None
        tests = tests or _Tests.of(op)
        if len(tests.feature) > MOST_TESTS:
            return None
        cuts, guards = _cuts(tests, chains, up)
        if guards:
            up.guards.update(guards)
            continue
        refused = {feature for feature in tests.feature[~cuts.found].tolist() if len(chains[feature]) > 1}
        if not refused:
            return _rebuilt(op, tests, cuts, chains, up)
        for feature in refused:
            curves = {column[0] for column in chains[feature][:-1] if column in up.curves}
            up.stays |= curves  # with all their columns: a call of numpy takes about as long for one column
            kept |= set() if curves else {feature}


def _narrow_codes(x: Node, features: Iterable[int], up: ColumnTracer) -> Node:
    """x with the zeros and ones of encoders in float32, if all other columns are float32. Zeros and ones lose no digits there."""
    ends = {up.chain((x, feature))[-1][0] for feature in features}
    codes = {node for node in ends if type(node.op) is OneHot and node.type.dtype == "f64"}
    if not codes or any(node.type.dtype != "f32" for node in ends - codes):
        return x
    (x,) = substitute([x], {node: Cast("f64")(replace(node.op, dtype="f32")(*node.inputs)) for node in codes})  # type: ignore[type-var]
    return x


def _is_worth_it(op: TreeEnsemble, chains: Iterable[Sequence[Column]]) -> bool:
    chains = list(chains)
    works = {type(node.op) for chain in chains for node, _ in chain[:-1]}
    narrow = all(chain[-1][0].type.dtype == "f32" for chain in chains)
    if any(isinstance(chain[-1][0].op, CategoryPlanes) for chain in chains):
        return False  # set tests look at the same columns as the others
    return bool(works - {Cast}) or (bool(works) and narrow and op.threshold.dtype == np.float64)


# --- the tests ---------------------------------------------------------------------------------------------------------


@record
class _Tests:
    """The different tests of an ensemble, `x[feature] <= threshold` with NaN to the left where missing_left. of_split: the number
    of the test that each split makes (nodes of feature ≥ 0, in order)."""

    feature: Array
    threshold: Array
    missing_left: Array
    of_split: Array

    @classmethod
    def of(cls, op: TreeEnsemble) -> _Tests:
        inner = op.feature >= 0
        keys = (op.missing_left[inner], op.threshold[inner] + 0, op.feature[inner])  # -0.0 and 0.0 are one
        order = np.lexsort(keys)
        missing, threshold, feature = (key[order] for key in keys)
        new = np.append(True, (feature[1:] != feature[:-1]) | (threshold[1:] != threshold[:-1]) | (missing[1:] != missing[:-1]))
        new = new[: len(order)]
        of_split = np.empty(len(order), np.int64)
        of_split[order] = np.cumsum(new) - 1
        return cls(feature[new].astype(np.int64), threshold[new], missing[new], of_split)


def _cuts(tests: _Tests, chains: Mapping[int, list[Column]], up: ColumnTracer) -> tuple[Cuts, dict[tuple[Node, Node], Node]]:
    """(the tests as tests of the columns at the ends of the chains, guards that are still needed). A guard is needed where the numbers for
    which a curve gives NaN go another way than the smallest other numbers, and where single floats go another way than their neighbours."""
    count = len(tests.feature)
    cuts = Cuts(tests.threshold.astype(np.float64), np.zeros(count, bool), tests.missing_left.copy(), np.ones(count, bool))
    pieces = {feature: pieces_of(chain, up) for feature, chain in chains.items()}
    guards: dict[tuple[Node, Node], Guard] = defaultdict(Guard)
    for step in range(max(map(len, pieces.values()), default=0)):
        now = {feature: found[step] for feature, found in pieces.items() if step < len(found)}
        for is_curve, dtype in product((False, True), ("f32", "f64")):
            part = {
                feature: piece
                for feature, piece in now.items()
                if (piece[0] in up.curves) == is_curve and piece[-1][0].type.dtype == dtype
            }
            for columns in apart(part, up.operands):
                here = np.flatnonzero(np.isin(tests.feature, list(columns)) & cuts.found)
                if not len(here):
                    continue
                flow = ColumnFunctions(columns, up.operands)
                feature, limit, missing = tests.feature[here], cuts.cut[here], cuts.missing[here]
                if not is_curve:
                    decide = partial(_goes_left, flow, feature, limit, missing)
                    _compose(cuts, here, find_cuts(decide, len(here), NUMPY_DTYPES[dtype]))
                    continue
                curves = [up.curves[columns[f][0]] for f in feature.tolist()]
                start = np.array([curve.start for curve in curves], NUMPY_DTYPES[dtype])
                other_way = (start > -np.inf) & (_goes_left(flow, feature, limit, missing, start) != missing)
                for i in np.flatnonzero(other_way).tolist():
                    (node, index), (top, _) = curves[i].argument, columns[feature[i]][0]
                    guards[node, top].starts[index] = curves[i].start
                key = (*((f, *piece) for f, piece in columns.items()), limit.tobytes(), missing.tobytes())
                if key not in up.found:  # as it is, once guards are there
                    up.found[key] = find_curve_cuts(flow.of(feature), start, limit, missing)
                found, odd = up.found[key]
                for column in {columns[feature[i]][0] for i in odd}:
                    node, index = up.curves[column].argument
                    on_top = [i for i, f in enumerate(feature.tolist()) if columns[f][0] == column]
                    moves = {x: other for i in on_top for x, other in odd.get(i, {}).items()}
                    if _can_move(moves, {i: odd.get(i, {}) for i in on_top}, found):
                        guards[node, column[0]].moves[index] = moves
                    else:
                        found.found[list(odd)] = False
                _compose(cuts, here, found)
    return cuts, {key: found(key[0]) for key, found in guards.items() if key not in up.guards}


def _can_move(moves: Mapping[float, float], odd: Mapping[int, Mapping[float, float]], cuts: Cuts) -> bool:
    """Whether the floats on the wrong side of a cut can be replaced by their neighbours without changing any other test of the
    column."""
    if len(moves) > MOST_ODD or 0.0 in moves or not moves.keys().isdisjoint(moves.values()):
        return False
    return all(
        ((x <= cuts.cut[i]) != (x in found)) == (other <= cuts.cut[i]) for i, found in odd.items() for x, other in moves.items()
    )


def _goes_left(flow: ColumnFunctions, features: Array, threshold: Array, missing_left: Array, numbers: Array) -> Array:
    y = flow.compute(features, numbers)
    return np.asarray((y <= threshold) | (np.isnan(y) & missing_left))


def _compose(cuts: Cuts, here: Array, above: Cuts) -> None:
    """Replace tests of one column by the tests of the column that it is computed from."""
    cuts.cut[here] = above.cut
    cuts.swapped[here] ^= above.swapped
    cuts.missing[here] = above.missing
    cuts.found[here] = above.found


def _rebuilt(
    op: TreeEnsemble, tests: _Tests, cuts: Cuts, chains: Mapping[int, Sequence[Column]], up: ColumnTracer
) -> _Absorbed:
    """The trees with the cuts as thresholds, over the columns at the ends of the chains."""
    ends = [chain[-1] for chain in chains.values()]
    dtype: DType = "f32" if all(node.type.dtype == "f32" for node, _ in ends) else "f64"
    y, position = side_by_side(ends, dtype)
    number = np.zeros(max(chains) + 1, op.feature.dtype)
    for feature, chain in chains.items():
        number[feature] = position[chain[-1]]
    inner = np.flatnonzero(op.feature >= 0)
    columns, threshold = op.feature.copy(), np.zeros(len(op.feature), NUMPY_DTYPES[dtype])
    left, right, missing_left = op.left.copy(), op.right.copy(), op.missing_left.copy()
    columns[inner] = number[op.feature[inner]]
    threshold[inner] = cuts.cut[tests.of_split]
    missing_left[inner] = cuts.missing[tests.of_split]
    swapped = inner[cuts.swapped[tests.of_split]]
    left[swapped], right[swapped] = op.right[swapped], op.left[swapped]
    works = dict.fromkeys(up.described(column) for chain in chains.values() for column in reversed(chain[:-1]))
    moved = sum(len(chain) > 1 for chain in chains.values())
    note = f"{', '.join(works)} before {moved} of {len(chains)} columns moved into {len(tests.feature)} thresholds ({dtype})"
    trees = replace(op, feature=columns, threshold=threshold, left=left, right=right, missing_left=missing_left)
    return _Absorbed(trees, y, note)
