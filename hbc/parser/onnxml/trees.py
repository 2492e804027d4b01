"""The trees of ONNX's operators: their nodes, read from the attributes, and the TreeEnsemble that they become. All tests of nodes become
`x <= threshold` (onnxruntime/core/providers/cpu/ml/tree_ensemble_common.h)."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np

from hbc.ir.graph import Node
from hbc.ir.types import NUMPY_DTYPES, Array, DType
from hbc.lazy import record
from hbc.ops import tensor as t
from hbc.ops.tree import CategoryPlanes, Tree, TreeEnsemble, join
from hbc.parser.frame import Refusal
from hbc.parser.once import find_once
from hbc.parser.onnxml.values import Call, as_dtype
from hbc.parser.order_of_sums import order_shows, with_order

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER")
LARGEST_TREE = 1 << 24
"""The largest number of nodes that is converted, after nodes with several parents have been copied. It takes about 1 GiB of tables."""
CATEGORY_LIMIT = 2.0**24
"""Sets of whole numbers below this limit are tested by CategoryPlanes."""


@record
class Nodes:
    """All M nodes of all T trees in one numbering. The file calls the two children of a node true and false, after its test."""

    mode: Array
    """The test of each node, an index into MODES; -1 at leaves. i64[M]."""
    feature: Array
    """The column that each node reads, i64[M]."""
    value: Array
    """The number with which a node compares, f32|f64[M]."""
    true: Array
    """The number of the child for rows that pass the test, i64[M]."""
    false: Array
    """The number of the other child, i64[M]."""
    missing: Array
    """Whether NaN goes to the true child, bool[M]."""
    weights: Array
    """What a leaf adds to each of K outputs, f32|f64[M, K]."""
    scored: Array
    """Whether a leaf has a weight for an output, bool[M, K]."""
    roots: Array
    """The number of each tree's root, i64[T]."""
    sets: dict[int, Array]
    """node → the values of its set, for nodes that test whether x is one of several values (BRANCH_MEMBER)."""

    @property
    def n_outputs(self) -> int:
        return self.weights.shape[1]


# --- reading the attributes --------------------------------------------------------------------------------------------


def floats(call: Call, name: str) -> Array:
    """The values of an attribute: a list of float32, or a tensor under the name with "_as_tensor" (which can be float64)."""
    tensor = call.get(f"{name}_as_tensor")
    return np.asarray(call.get(name, np.zeros(0, np.float32)) if tensor is None else tensor).ravel()


def read_nodes(call: Call, prefix: str, n_outputs: int, dtype: DType) -> Nodes:
    """The nodes of an operator of version 1 or 3. `prefix` is that of its attributes for weights: "class" or "target". Raises Refusal for
    attributes that contradict each other."""
    tree, number = call.get("nodes_treeids"), call.get("nodes_nodeids")
    places = _places(tree, number)
    names = list(MODES)
    mode = np.array([names.index(name) if name != "LEAF" else -1 for name in call.get("nodes_modes")], np.int64)
    inner = mode >= 0
    size = len(mode)
    true, false = (
        np.where(inner, _find(places, tree, np.where(inner, call.get(name), number)), 0)
        for name in ("nodes_truenodeids", "nodes_falsenodeids")
    )
    missing = np.zeros(size, bool)
    given = call.get("nodes_missing_value_tracks_true")
    if given is not None and len(given):
        missing = np.asarray(given) == 1
    at = _find(places, call.get(f"{prefix}_treeids"), call.get(f"{prefix}_nodeids"))
    column, weight = call.get(f"{prefix}_ids"), floats(call, f"{prefix}_weights")
    leaf = ~inner[at]  # like ONNX Runtime, ignore weights of inner nodes
    weights, scored = weights_of(at[leaf], column[leaf], weight[leaf], size, n_outputs, dtype)
    starts = np.flatnonzero(np.concatenate([[True], tree[1:] != tree[:-1]]))
    if len(np.unique(tree[starts])) < len(starts):
        raise Refusal("the nodes of a tree do not stand together.")
    value = exactly(floats(call, "nodes_values"), dtype)
    return Nodes(mode, call.get("nodes_featureids"), value, true, false, missing, weights, scored, starts, {})


def _places(tree: Array, number: Array) -> tuple[Array, Array]:
    """A table for `_find`: the keys of all nodes, ascending, and the position of the node of each key. Raises Refusal if two nodes of a
    tree have one number."""
    keys = _keys(tree, number)
    order = np.argsort(keys, kind="stable")
    if len(np.unique(keys)) < len(keys):
        raise Refusal("two nodes of a tree have the same number.")
    return keys[order], order


def _keys(tree: Array, number: Array) -> Array:
    """One i64 key for each pair of a tree and a node's number in it. Raises Refusal for numbers outside 0 … 2^31 - 1."""
    tree, number = np.asarray(tree, np.int64), np.asarray(number, np.int64)
    if np.any((number < 0) | (number >= 2**31) | (tree < 0) | (tree >= 2**31)):
        raise Refusal("numbers of nodes or trees are negative.")
    return (tree << 31) | number


def _find(places: tuple[Array, Array], tree: Array, number: Array) -> Array:
    """The positions of nodes that are given by tree and number, i64. Raises Refusal if one does not exist."""
    keys, order = places
    wanted = _keys(tree, number)
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    if np.any(keys[at] != wanted):
        raise Refusal("it refers to a node that does not exist.")
    return order[at]


def weights_of(at: Array, column: Array, weight: Array, size: int, n_outputs: int, dtype: DType) -> tuple[Array, Array]:
    """(weights [size, n_outputs], scored bool[size, n_outputs]) from a list: leaf at[i] adds weight[i] to output column[i]. Raises Refusal
    for outputs that do not exist, and for two weights of a leaf for one output."""
    if n_outputs < 1 or np.any((column < 0) | (column >= n_outputs)):
        raise Refusal("leaves have weights for outputs that do not exist.")
    weights, scored = np.zeros((size, n_outputs), NUMPY_DTYPES[dtype]), np.zeros((size, n_outputs), bool)
    if len(np.unique(at * n_outputs + column)) < len(at):
        raise Refusal("a leaf has two weights for one output.")
    weights[at, column] = exactly(weight, dtype)
    scored[at, column] = True
    return weights, scored


def exactly(values: Array, dtype: DType) -> Array:
    """The parameters in the dtype of the computation. Raises Refusal if it cannot hold them exactly."""
    result = values.astype(NUMPY_DTYPES[dtype])
    if not np.array_equal(result.astype(values.dtype), values, equal_nan=True):
        raise Refusal("its parameters are float64, but its input is float32.")
    return result


# --- one rule for all tests --------------------------------------------------------------------------------------------


def copied_apart(nodes: Nodes) -> tuple[Array, Array, Array, Array]:
    """Copies nodes with several parents, so that each copy has one: (the number in `nodes` of each copy, the number of its true child among
    the copies, that of its false child, its tree), tree by tree, each root first.

    In a chain of BRANCH_EQ the nodes share their subtrees, but TreeEnsemble (the operator of hbc) takes trees only. Raises Refusal for a
    cycle, or if there would be more than LARGEST_TREE copies."""
    old, tree = [nodes.roots], [np.arange(len(nodes.roots))]
    children: list[Array] = []
    count, level = len(nodes.roots), 0
    while len(old[-1]):
        inner = nodes.mode[old[-1]] >= 0
        down = np.full((len(inner), 2), -1)
        down[inner] = count + np.arange(2 * int(inner.sum())).reshape(-1, 2)
        children.append(down)
        below = np.stack([nodes.true[old[-1]][inner], nodes.false[old[-1]][inner]], axis=1).ravel()
        tree.append(np.repeat(tree[-1][inner], 2))
        old.append(below)
        count, level = count + len(below), level + 1
        if count > LARGEST_TREE or level > len(nodes.mode):
            raise Refusal("its trees have a cycle, or nodes with too many parents.")
    number, place, member = np.concatenate(old), np.concatenate(children), np.concatenate(tree)
    order = np.argsort(member, kind="stable")
    inverse = np.empty_like(order)
    inverse[order] = np.arange(len(order))
    down = np.where(place >= 0, inverse[place], 0)[order]
    return number[order], down[:, 0], down[:, 1], member[order]


@record
class SetTest:
    """The test whether x[feature] is one of several values."""

    feature: int
    values: bytes
    """The values, as the bytes of an array of x's dtype."""
    missing: bool
    """Whether NaN passes the test."""
    truncated: bool
    """Whether the fraction of x is cut off before the test."""

    def of(self, dtype: DType) -> Array:
        """The values as an array; `dtype` is that of x."""
        return np.frombuffer(self.values, NUMPY_DTYPES[dtype])

    def is_whole(self, dtype: DType) -> bool:
        """Whether all values are whole numbers in 0 … CATEGORY_LIMIT - 1, so that CategoryPlanes can test for them."""
        values = self.of(dtype)
        return bool(np.all((values >= 0) & (values == np.floor(values)) & (values < CATEGORY_LIMIT)))


class Planes:
    """Collects the tests of nodes for equality and membership, and makes a column behind x of each: 1 where it is true, else 0. Equal tests
    share a column."""

    def __init__(self, n_features: int) -> None:
        self.n_features = n_features
        self.tests: dict[SetTest, int] = {}

    def add(self, feature: int, values: Array, missing: bool, *, member: bool) -> int:
        """The number of the column that tests whether x[feature] is one of `values`. `member`: they are the set of a BRANCH_MEMBER. ONNX
        Runtime keeps such a set as integers and cuts off the fraction of x (BRANCH_MEMBER_BIGSET), unless it has at most 30 values, all in
        0 … 30. Raises Refusal for an empty set, NaN, and such integers beyond 32 bits."""
        values = np.unique(values + 0.0)  # -0.0 equals 0.0
        if np.isnan(values).any() or not len(values):
            raise Refusal("a node tests for NaN, or for an empty set of values.")
        big = member and (len(values) > 30 or values[0] < 0 or values[-1] > 30)
        if big and np.any((values != np.floor(values)) | (np.abs(values) >= 2.0**31)):
            raise Refusal("a node tests for a set of numbers that are not 32-bit integers.")
        test = SetTest(feature, values.tobytes(), missing, bool(big))
        return self.n_features + self.tests.setdefault(test, len(self.tests))

    def behind(self, x: Node) -> Node:
        """x with the columns of the tests behind it; x itself if there are none."""
        if not self.tests:
            return x
        dtype = x.type.dtype
        groups: dict[str, list[SetTest]] = {"exact": [], "truncated": [], "other": []}
        for test in self.tests:
            kind = ("truncated" if test.truncated else "exact") if test.is_whole(dtype) else "other"
            groups[kind].append(test)
        blocks = [_category_planes(x, tests, kind) for kind in ("exact", "truncated") if (tests := groups[kind])]
        blocks += [_equality(x, test) for test in groups["other"]]
        places = [self.tests[test] for tests in groups.values() for test in tests]
        planes = t.concat(blocks)
        return t.concat([x, planes if places == sorted(places) else t.take(planes, np.argsort(places), axis=1)])


def _category_planes(x: Node, tests: list[SetTest], kind: str) -> Node:
    """The columns of tests for sets of whole numbers, [N, len(tests)]. `kind`: "exact", or "truncated" if x loses its fraction first."""
    columns, place = np.unique([test.feature for test in tests], return_inverse=True)
    used = t.take(x, columns, axis=1)
    if kind == "exact":  # CategoryPlanes cuts off fractions, so a number with a fraction is replaced by -1, which is in no set
        used = t.where(t.logical_or(t.equal(t.floor(used), used), t.isnan(used)), used, -1.0)
    sets = [test.of(x.type.dtype) for test in tests]
    return CategoryPlanes.of_sets(
        place,
        sets,
        inside=np.ones(len(sets), bool),
        missing=np.array([test.missing for test in tests]),
        invalid=np.zeros(len(sets), bool),
        truncate_negative=kind == "truncated",
    )(used)


def _equality(x: Node, test: SetTest) -> Node:
    """The column [N, 1] of a test for any numbers."""
    column = t.take(x, np.array([test.feature]), axis=1)
    value = column
    if test.truncated:
        value = t.where(t.less(column, 0.0), t.neg(t.floor(t.neg(column))), t.floor(column))
    found = t.equal(value, test.of(x.type.dtype)[None, :])
    if test.missing:
        found = t.logical_or(found, t.isnan(column))
    return t.max_(as_dtype(found, x.type.dtype), axis=1, keepdims=True)


JOINED = range(1, 65)
"""ONNX Runtime tests such numbers, and more, by one mask of bits for a chain of BRANCH_EQ."""


def _require_equal_where_joined(nodes: Nodes) -> None:
    """Raises Refusal for chains of BRANCH_EQ that ONNX Runtime joins into one test though they are not one: it compares a single weight of
    the leaves (CheckIfSubtreesAreEqual), and not where NaN goes."""
    equal = nodes.mode == MODES.index("BRANCH_EQ")
    for parent in np.flatnonzero(equal).tolist():
        child = int(nodes.false[parent])
        pair = [parent, child]
        if not equal[child] or len(set(nodes.feature[pair])) > 1 or not all(value in JOINED for value in nodes.value[pair]):
            continue
        one, other = (int(nodes.true[node]) for node in pair)
        same, like = _alike(nodes, one, other)
        if like and (not same or nodes.missing[parent] < nodes.missing[child]):
            raise Refusal(
                "nodes test whether one feature equals one of several numbers, and ONNX Runtime joins tests that differ."
            )


def _alike(nodes: Nodes, one: int, other: int) -> tuple[bool, bool]:
    """(whether two nodes surely give the same, whether ONNX Runtime may take them for the same)."""
    if one == other:
        return True, True
    if nodes.mode[one] != nodes.mode[other]:
        return False, False
    if nodes.mode[one] >= 0:
        return False, bool(nodes.feature[one] == nodes.feature[other] and nodes.value[one] == nodes.value[other])
    first, second = (nodes.weights[node][nodes.scored[node]] for node in (one, other))
    same = np.array_equal(nodes.weights[one], nodes.weights[other]) and np.array_equal(nodes.scored[one], nodes.scored[other])
    # It looks for the weight of a leaf that has none in that of the next leaf.
    return bool(same), bool(same or not len(first) or not len(second) or np.isin(first, second).any())


def ensemble(nodes: Nodes, x: Node, *, exact: bool = False, base: Array | float = 0.0) -> tuple[TreeEnsemble, Node]:
    """(the trees as one TreeEnsemble, whose sums start from 0; the matrix that it reads). All kinds of tests become x <= threshold.
    `exact`: see TreeEnsemble; it is also set where the order of float32 sums shows, once `base` is added to them. Raises Refusal for
    comparisons with NaN or below -inf.

    ONNX Runtime adds float32 weights in float32. Precise sums of 500 trees with random leaves of size 1 were off by up to 13 tolerances in
    20,000 rows, of 100 trees with three outputs and leaves of size 100 by up to 92."""
    _require_equal_where_joined(nodes)
    number, true, false, tree = copied_apart(nodes)
    mode, value, feature = nodes.mode[number], nodes.value[number], nodes.feature[number].copy()
    missing = nodes.missing[number]
    inner = mode >= 0
    if np.any(feature[inner] >= x.type.columns) or np.any(feature[inner] < 0):
        raise Refusal(f"its trees read features beyond the {x.type.columns} of its input.")
    named = {name: inner & (mode == i) for i, name in enumerate(MODES)}
    strict = named["BRANCH_LT"] | named["BRANCH_GTE"]
    compared = named["BRANCH_LEQ"] | named["BRANCH_GT"] | strict
    if np.any(np.isnan(value[compared])) or np.any(np.isneginf(value[strict])):
        raise Refusal("a node compares with NaN, or tests whether a number is below -inf.")
    with np.errstate(over="ignore", under="ignore"):
        threshold = np.where(strict, np.nextafter(value, value.dtype.type(-np.inf)), value)
    swapped = named["BRANCH_GTE"] | named["BRANCH_GT"]
    missing_left = np.where(swapped, ~missing, missing)
    planes = Planes(x.type.columns)
    tests = named["BRANCH_EQ"] | named["BRANCH_NEQ"] | named["BRANCH_MEMBER"]
    for i in np.flatnonzero(tests):
        unequal = bool(named["BRANCH_NEQ"][i])
        values = nodes.sets.get(int(number[i]), value[i : i + 1])
        # NaN is unequal to every number: it passes a BRANCH_NEQ in any case.
        member = bool(named["BRANCH_MEMBER"][i])
        feature[i] = planes.add(int(feature[i]), values, bool(missing[i]) and not unequal, member=member)
    threshold[tests], missing_left[tests] = 0.5, False
    swapped |= named["BRANCH_EQ"] | named["BRANCH_MEMBER"]  # a column of 0 means false and goes left
    left, right = np.where(swapped, false, true), np.where(swapped, true, false)
    feature[~inner] = -1
    values, scored = nodes.weights[number], nodes.scored[number]
    bounds = np.searchsorted(tree, np.arange(len(nodes.roots) + 1))
    target = _only_column(scored, ~inner, bounds)
    if target is not None:
        values = np.take_along_axis(values, np.repeat(target, np.diff(bounds))[:, None], axis=1)
    trees = [
        Tree(feature[a:b], threshold[a:b], left[a:b] - a, right[a:b] - a, missing_left[a:b], values[a:b])
        for a, b in itertools.pairwise(bounds)
    ]
    operator = join(trees, np.zeros(nodes.n_outputs), target)
    if exact or values.dtype != np.float32:
        return replace(operator, exact=exact), planes.behind(x)
    shown = find_once(_order_shows, operator, tuple(np.atleast_1d(base).tolist()))  # 0.3 s for 500 trees of depth 18
    return with_order(operator, shown), planes.behind(x)


def _order_shows(trees: TreeEnsemble, base: tuple[float, ...]) -> float | None:
    """`order_shows` for sums to which base values are added, those of the outputs or 0 for all."""
    return order_shows(trees, (lambda sums: sums + np.array(base, sums.dtype)) if any(base) else None)


def _only_column(scored: Array, leaf: Array, bounds: Array) -> Array | None:
    """For each tree the one output for which its leaves have weights, i64[T]. None if a tree has several."""
    used = np.logical_or.reduceat(scored & leaf[:, None], bounds[:-1], axis=0)
    return used.argmax(axis=1) if np.all(used.sum(axis=1) <= 1) else None
