"""What stands before a tree ensemble and keeps the order of numbers, moved into its thresholds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from hbc.compiler.base import CompileOptions, Compiler
from hbc.ir.graph import Constant, Graph, Node, gives_rows, topological
from hbc.ir.rewrite import rewrite, substitute
from hbc.ir.types import NUMPY_DTYPES, Array, DType
from hbc.ops import tensor as t
from hbc.ops.features import OneHot
from hbc.ops.tensor import Cast
from hbc.ops.tree import CategoryPlanes, TreeEnsemble
from hbc.optimizer.columns import Column, placed, side_by_side
from hbc.optimizer.cuts import Cuts, find_cuts, find_rising_cuts

MOST_TESTS = 1 << 19
"""Different ones of an ensemble: 120,000 cuts in float32 take 0.23 s of one core, in float64 about twice as long."""


@dataclass(frozen=True)
class NumbersIntoTrees:
    """`TreeEnsemble(Concat(Standardize(Impute(x)), OneHot(c)))` → `TreeEnsemble'(Concat(x, OneHot(c)))`;
    `TreeEnsemble(Cast("f64", x))` → `TreeEnsemble'(x)`, with thresholds in x's dtype.

    Each column is followed upwards through operators that are `monotone` there; a test `f(x) <= threshold` becomes `x <= cut` (the
    children swapped, where f falls), and NaN goes where f sends it. The cut is found by bisection over the floats, with the operators'
    own `evaluate`, so that every number is decided as before. There are as many different tests as before, or fewer.

    Logarithms, exponentials and roots (`rises_from`) are followed too, where each test has one cut: no float near it may be on the other
    side (`find_rising_cuts`). Where numbers of which the function is NaN go another way than the smallest others, they are made NaN
    before the trees: `TreeEnsemble(Function("log", x))` → `TreeEnsemble'(Where(x < 0, NaN, x))`. The cuts are those of the numpy
    that the plan is made with, where the model is loaded: vector units differ in last bits. (So do strides below 0 of numpy's
    arrays: hbc computes of them, with this pass or without, what the source does of a copy.)

    What stays: powers, whose rise is not proven; PowerTransformer, QuantileTransformer and other curves, which are parsed into several
    operators of which one column meets itself; encoders that give unknown numbers a code (then a test is a set of single floats).

    Not where that makes the trees slower: thresholds of float32 stay such (of float64, 100 trees of depth 8 take 0.73 µs a row
    with their scaler absorbed and 0.46 without); and where trees become tensor operators, which look for NaN by three more of them a step,
    imputation stays outside of trees that need not look for NaN.
    """

    compiler: Compiler
    options: CompileOptions
    strategy: str
    notes: list[str]

    def __call__(self, graph: Graph) -> Graph:
        return rewrite(graph, self._absorb)

    def _absorb(self, node: Node) -> Node | None:
        if type(node.op) is not TreeEnsemble or gives_rows(node.inputs[0]):
            return None
        absorbed = _absorbed(node.op, node.inputs[0], through_missing=True)
        if absorbed is not None and self._has_to_look_for_nan(node.op, absorbed.op):
            absorbed = _absorbed(node.op, node.inputs[0], through_missing=False)
        if absorbed is None:
            return None
        self.notes.append(absorbed.note)
        return absorbed.op(absorbed.x)

    def _has_to_look_for_nan(self, before: TreeEnsemble, after: TreeEnsemble) -> bool:
        if before.missing_left.any() or not after.missing_left.any():
            return False
        strategy = self.compiler.choose_strategy(after, self.options)[0] if self.strategy == "auto" else self.strategy
        return not self.compiler.supports(replace(after, strategy=strategy))


@dataclass(frozen=True)
class _Absorbed:
    op: TreeEnsemble
    x: Node
    note: str


def _absorbed(op: TreeEnsemble, x: Node, through_missing: bool) -> _Absorbed | None:
    """The trees over the columns that those of x are made of; None where nothing is gained."""
    features = np.unique(op.feature[op.feature >= 0]).tolist()
    up = _Upwards(through_missing, ("f32", "f64") if op.threshold.dtype == np.float64 else ("f32",))
    x = _narrow_codes(x, features, up)
    tests = _Tests.of(op)
    if len(tests.feature) > MOST_TESTS:
        return None
    kept: set[int] = set()  # features read as they are
    while True:
        chains = {feature: up.chain((x, feature))[: 1 if feature in kept else None] for feature in features}
        if not _is_worth_it(op, chains.values()):
            return None
        cuts, open_below = _cuts(tests, chains, up.guards)
        if open_below:
            up.guards.update((node, _guard(node)) for node in open_below)
            continue
        refused = {feature for feature in tests.feature[~cuts.found].tolist() if len(chains[feature]) > 1}
        if not refused:
            return _rebuilt(op, tests, cuts, chains)
        for feature in refused:
            functions = {node for node, _ in chains[feature][:-1] if _rises(node)}
            up.stays |= functions  # with all their columns: to call numpy takes about as long for one
            kept |= set() if functions else {feature}


def _guard(node: Node) -> Node:
    """What a function is computed from, NaN where the function is."""
    (x,) = node.inputs
    assert node.op.rises_from is not None
    return t.where(t.less(x, node.op.rises_from), np.nan, x)


@dataclass
class _Upwards:
    """What a column of a value is computed from. through_missing: also what is imputed. dtypes: what it may end with. guards: what
    some functions are computed from instead, and stays: functions that are not followed."""

    through_missing: bool
    dtypes: tuple[str, ...]
    guards: dict[Node, Node] = field(default_factory=dict)
    stays: set[Node] = field(default_factory=set)
    _monotone: dict[Node, Array] = field(default_factory=dict)

    def chain(self, column: Column) -> list[Column]:
        """The column itself, but for operators that only choose columns, and those that it is computed from, one from the other."""
        column = placed(column)
        found, floats = [column], 1
        while (source := self._source(column)) is not None:
            column = placed(source)
            found.append(column)
            if column[0].type.dtype in self.dtypes:
                floats = len(found)
        return found[:floats]

    def _source(self, column: Column) -> Column | None:
        node, index = column
        varying = [source for source in node.inputs if not isinstance(source.op, Constant)]
        if len(varying) != 1 or varying[0].type.shape != node.type.shape or len(node.type.shape) != 2:
            return None
        if gives_rows(varying[0]) or (node.op.removes_missing and not self.through_missing):
            return None
        if _rises(node):
            return None if node in self.stays else (self.guards.get(node, varying[0]), index)
        if node not in self._monotone:
            constants = [source.op.value if isinstance(source.op, Constant) else None for source in node.inputs]
            self._monotone[node] = np.broadcast_to(node.op.monotone(*constants), node.type.columns)
        return (varying[0], index) if self._monotone[node][index] else None


def _rises(node: Node) -> bool:
    return node.op.rises_from is not None


def _narrow_codes(x: Node, features: Iterable[int], up: _Upwards) -> Node:
    """x with the zeros and ones of encoders in float32, where all other columns are: they have no digits to lose."""
    bases = {up.chain((x, feature))[-1][0] for feature in features}
    codes = {node for node in bases if type(node.op) is OneHot and node.type.dtype == "f64"}
    if not codes or any(node.type.dtype != "f32" for node in bases - codes):
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


@dataclass(frozen=True)
class _Tests:
    """The different tests of an ensemble: `x[feature] <= threshold`, NaN to the left where missing_left; and which of them each split
    (node of feature ≥ 0, in order) makes."""

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


def _cuts(tests: _Tests, chains: dict[int, list[Column]], guards: Container[Node]) -> tuple[Cuts, set[Node]]:
    """The tests as tests of the columns that chains end with; and functions without a guard that need one, since what they are NaN of
    goes another way than the smallest other numbers."""
    count = len(tests.feature)
    cuts = Cuts(tests.threshold.astype(np.float64), np.zeros(count, bool), tests.missing_left.copy(), np.ones(count, bool))
    parts = {feature: _parts(chain) for feature, chain in chains.items()}
    open_below: set[Node] = set()
    for step in range(max(map(len, parts.values()), default=0)):
        now = {feature: found[step] for feature, found in parts.items() if step < len(found)}
        for dtype in ("f32", "f64"):
            moved = {feature: part for feature, part in now.items() if part[-1][0].type.dtype == dtype}
            exact = {feature: part for feature, part in moved.items() if not _rises(part[0][0])}
            here = np.flatnonzero(np.isin(tests.feature, list(exact)) & cuts.found)
            if len(here):
                decide = _decision(replace(tests, threshold=cuts.cut, missing_left=cuts.missing), here, exact)
                _compose(cuts, here, find_cuts(decide, len(here), NUMPY_DTYPES[dtype]))
            for node in {part[0][0] for feature, part in moved.items() if feature not in exact}:
                here = np.flatnonzero(
                    np.isin(tests.feature, [f for f, part in moved.items() if part[0][0] is node]) & cuts.found
                )
                start, missing = float(node.op.rises_from or 0), cuts.missing[here]
                with np.errstate(divide="ignore"):
                    with_smallest = missing & (node.op.evaluate(np.array([start])) <= cuts.cut[here])
                if start > -np.inf and node not in guards and not with_smallest.all():
                    open_below.add(node)
                else:
                    _compose(
                        cuts,
                        here,
                        find_rising_cuts(node.op.evaluate, start, cuts.cut[here].astype(NUMPY_DTYPES[dtype]), missing),
                    )
    return cuts, open_below


def _parts(chain: list[Column]) -> list[list[Column]]:
    """A chain in pieces, from the trees up: functions that are computed with errors, one by one, and what stands between them."""
    ends = sorted({0, len(chain) - 1} | {j for i, (node, _) in enumerate(chain[:-1]) if _rises(node) for j in (i, i + 1)})
    return [chain[i : j + 1] for i, j in pairwise(ends)]


def _compose(cuts: Cuts, here: Array, above: Cuts) -> None:
    """Tests of one column become those of the column that it is computed from."""
    cuts.cut[here] = above.cut
    cuts.swapped[here] ^= above.swapped
    cuts.missing[here] = above.missing
    cuts.found[here] = above.found


def _decision(tests: _Tests, here: Array, chains: dict[int, list[Column]]) -> Callable[[Array], Array]:
    """Some of the tests as a function of one number each, in the columns that the chains end with.

    Operators compute all their columns side by side, as in any call; a row has a number for one test of each column, and what no chain
    passes is 0.
    """
    source = {column: above for chain in chains.values() for column, above in pairwise(chain)}
    computed: dict[Node, list[int]] = defaultdict(list)
    for node, index in source:
        computed[node].append(index)
    nodes = [node for node in topological(chain[0][0] for chain in chains.values()) if node in computed]
    heads = {feature: i for i, feature in enumerate(chains)}
    bases = {base: i for i, base in enumerate(dict.fromkeys(chain[-1] for chain in chains.values()))}
    head = np.array([heads[feature] for feature in tests.feature[here].tolist()])
    base = np.array([bases[chain[-1]] for chain in chains.values()])[head]
    order = np.argsort(base, kind="stable")
    row = np.empty(len(here), np.int64)
    row[order] = np.arange(len(here)) - np.searchsorted(base[order], base[order])
    threshold, missing_left = tests.threshold[here], tests.missing_left[here]

    def decide(numbers: Array) -> Array:
        matrix = np.zeros((int(row.max()) + 1, len(bases)), numbers.dtype)
        matrix[row, base] = numbers
        values = dict(zip(bases, matrix.T, strict=True))
        with np.errstate(all="ignore"):
            for node in nodes:
                values.update(_computed(node, computed[node], source, values))
        found = np.stack([values[chain[0]] for chain in chains.values()], axis=1)[row, head]
        return (found <= threshold) | (np.isnan(found) & missing_left)

    return decide


def _computed(
    node: Node, indices: list[int], source: Mapping[Column, Column], values: Mapping[Column, Array]
) -> dict[Column, Array]:
    """Columns of a value, from those they are made of."""
    operands = []
    for operand in node.inputs:
        if isinstance(operand.op, Constant):
            operands.append(operand.op.value)
            continue
        columns = [values[source[node, index]] for index in indices]
        matrix = np.zeros((len(columns[0]), operand.type.columns), columns[0].dtype)
        matrix[:, indices] = np.stack(columns, axis=1)
        operands.append(matrix)
    y = node.op.evaluate(*operands)
    return {(node, index): y[:, index] for index in indices}


def _rebuilt(op: TreeEnsemble, tests: _Tests, cuts: Cuts, chains: Mapping[int, Sequence[Column]]) -> _Absorbed:
    """The trees with the cuts for thresholds, over the columns that the chains end with."""
    bases = [chain[-1] for chain in chains.values()]
    dtype: DType = "f32" if all(node.type.dtype == "f32" for node, _ in bases) else "f64"
    y, place = side_by_side(bases, dtype)
    number = np.zeros(max(chains) + 1, op.feature.dtype)
    for feature, chain in chains.items():
        number[feature] = place[chain[-1]]
    inner = np.flatnonzero(op.feature >= 0)
    columns, threshold = op.feature.copy(), np.zeros(len(op.feature), NUMPY_DTYPES[dtype])
    left, right, missing_left = op.left.copy(), op.right.copy(), op.missing_left.copy()
    columns[inner] = number[op.feature[inner]]
    threshold[inner] = cuts.cut[tests.of_split]
    missing_left[inner] = cuts.missing[tests.of_split]
    swapped = inner[cuts.swapped[tests.of_split]]
    left[swapped], right[swapped] = op.right[swapped], op.left[swapped]
    works = dict.fromkeys(type(node.op).__name__ for chain in chains.values() for node, _ in reversed(chain[:-1]))
    moved = sum(len(chain) > 1 for chain in chains.values())
    note = f"{', '.join(works)} before {moved} of {len(chains)} columns moved into {len(tests.feature)} thresholds ({dtype})"
    trees = replace(op, feature=columns, threshold=threshold, left=left, right=right, missing_left=missing_left)
    return _Absorbed(trees, y, note)
