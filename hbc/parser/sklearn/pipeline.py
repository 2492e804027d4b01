"""What holds other estimators without computing anything itself: sklearn.pipeline, sklearn.compose, the searches of
sklearn.model_selection, and FrozenEstimator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from hbc.errors import UnsupportedOperatorError
from hbc.ir.graph import Node
from hbc.ir.signature import FRAME_LIBRARIES
from hbc.ir.types import NUMPY_DTYPES, dtype_name
from hbc.ops import tensor as t
from hbc.ops.columns import SelectColumns
from hbc.parser.frame import Frame, Refusal, as_frame, as_matrix, untouched
from hbc.parser.front_door import (
    NO_INTEGER,
    columns_by_name,
    columns_in_order,
    frames_must_be_of,
    given_as_pandas,
    given_as_polars,
    given_to_a_function,
    sparse_matrices_differ,
    stacked_as_given,
)
from hbc.parser.registry import (
    DESCRIPTIONS,
    GIVES_BACK,
    WITHOUT_ROWS,
    Described,
    Outputs,
    Result,
    WithoutRows,
    converts,
    describes,
    items_of,
    public_name,
    returns_without_rows,
    takes_items,
)
from hbc.parser.set_output import hands_on, keeps_parts_apart
from hbc.parser.sklearn.shared.common import hstack, without_missing
from hbc.parser.sparsity import gives_sparse, is_sparse, may_be_sparse
from hbc.parser.walk import child, note_unconvertible, transformed_child

PIPELINE, UNION, COLUMNS = (
    "sklearn.pipeline.Pipeline",
    "sklearn.pipeline.FeatureUnion",
    "sklearn.compose.ColumnTransformer",
)
SEARCHES = tuple(
    f"sklearn.model_selection.{name}"
    for name in ("GridSearchCV", "RandomizedSearchCV", "HalvingGridSearchCV", "HalvingRandomSearchCV")
)
FROZEN = "sklearn.frozen.FrozenEstimator"
FUNCTION = "sklearn.preprocessing.FunctionTransformer"


def is_identity(step: Any) -> bool:
    """Whether a step leaves its input as it is. A fitted ColumnTransformer or FeatureUnion holds a FunctionTransformer
    without a function where the user wrote "passthrough"."""
    if step is None or isinstance(step, str):
        return step is None or step == "passthrough"
    if public_name(type(step)) != FUNCTION:
        return False
    return step.func is None and not step.validate


GIVES_BACK[FUNCTION] = is_identity
GIVES_BACK[PIPELINE] = lambda m: all(is_identity(step) for _, step in m.steps)


def _named(what: str, pairs: Iterable[tuple[Any, ...]]) -> Iterator[tuple[str, str, Any]]:
    """(place, name, estimator) of a container's members."""
    for i, (name, member, *_) in enumerate(pairs):
        yield f"{what}[{i}] {name!r}", name, member


@converts(PIPELINE, frame=True)
def pipeline(m: Any, x: Node | Frame) -> Result:
    """The steps one after the other; every method of the last one."""
    steps = list(_named("steps", m.steps))
    for i, (place, _, step) in enumerate(steps[:-1]):
        if not is_identity(step):
            try:
                x = _transformed(step, x, place)
                if hands_on(step) == "polars":
                    given_as_polars(x)
                elif hands_on(step) == "pandas" and isinstance(x, Frame):
                    x = given_as_pandas(step, x)
                elif hands_on(step) == "pandas" and isinstance(x, Node) and x.type.dtype == "str" and None in untouched(x):
                    # In a new frame, pandas makes NaN of None where the others are strings.
                    x = without_missing(step, x, none=True)
            except UnsupportedOperatorError:
                _survey(steps[i + 1 :])
                raise
    place, _, last = steps[-1]
    if last is None or last == "passthrough":
        framed = any(hands_on(step) for _, _, step in steps[:-1] if not is_identity(step))
        return x if isinstance(x, Frame) and framed else as_matrix(x)
    return own_methods(m, child(last, x, place))


def _transformed(m: Any, x: Node | Frame, place: str) -> Node | Frame:
    """What a member makes of x; where it is set to give frames, it makes none of a sparse matrix."""
    nodes = {column.node for column in x.columns} if isinstance(x, Frame) else {x}
    if hands_on(m) and any(map(may_be_sparse, nodes)) and gives_sparse(m, True):
        sparse_matrices_differ()
    return transformed_child(m, x, place)


def own_methods(m: Any, outputs: Outputs) -> Outputs:
    """A container passes on the usual methods only: a pipeline has no `apply`, though its last step may."""
    return {method: nodes for method, nodes in outputs.items() if hasattr(m, method)}


def _survey(members: Iterable[tuple[str, str, Any]]) -> None:
    """Note the classes without a converter among members whose input is not known, so that one error names them all."""
    for place, _, member in members:
        if is_identity(member) or isinstance(member, str):
            continue
        with note_unconvertible(member, place):
            name = public_name(type(member))
            if name == PIPELINE:
                _survey(_named("steps", member.steps))
            elif name == UNION:
                _survey(_named("transformer_list", member.transformer_list))
            elif name == COLUMNS:
                _survey(_named("transformers", member.transformers_))


@converts(UNION, frame=True)
def feature_union(m: Any, x: Node | Frame) -> Result:
    """y = [w₁·f₁(x) | w₂·f₂(x) | …]"""
    jobs = [
        (place, name, member, x)
        for place, name, member in _named("transformer_list", m.transformer_list)
        if not (isinstance(member, str) and member == "drop")
    ]
    given_to_all([member for _, _, member, _ in jobs], x)
    return _stacked(m, jobs)


def given_to_all(members: Iterable[Any], x: Node | Frame) -> None:
    """Called where all of these estimators are given x: some may pick columns of the model's input by name, others not."""
    named = [_picks_by_name(member) for member in members]
    if any(named) and not all(named):
        taken_in_order(x)


def taken_in_order(x: Node | Frame) -> None:
    """Called where the order of x's columns counts, though some estimator may pick them by name."""
    if all(place is not None for place in untouched(as_frame(x))):
        columns_in_order()


def _picks_by_name(m: Any) -> bool:
    """Whether everything that m gives its input to is a ColumnTransformer."""
    name = public_name(type(m))
    if name == PIPELINE:
        return next((_picks_by_name(step) for _, step in m.steps if not is_identity(step)), False)
    if name == UNION:
        return all(
            _picks_by_name(member) for _, member in m.transformer_list if not (isinstance(member, str) and member == "drop")
        )
    if name in MEMBERS:
        return all(_picks_by_name(member) for member in MEMBERS[name](m))
    return name == COLUMNS


MEMBERS: dict[str, Callable[[Any], Sequence[Any]]] = {
    **{name: lambda m: [m.best_estimator_] for name in SEARCHES},
    FROZEN: lambda m: [m.estimator],
}
"""By class: the estimators to which it gives its own input as it is."""


def gives_input_to(*names: str) -> Callable[[Callable[[Any], Sequence[Any]]], Callable[[Any], Sequence[Any]]]:
    """Register a function of a fitted model for MEMBERS; what it takes is described by the first of them that knows."""

    def register(function: Callable[[Any], Sequence[Any]]) -> Callable[[Any], Sequence[Any]]:
        for name in names:
            MEMBERS[name] = function
        describes(*names)(lambda m: _first_known(_members(function, m)))
        takes_items(*names)(lambda m: _first_items(_members(function, m)))
        return function

    return register


def _members(function: Callable[[Any], Sequence[Any]], m: Any) -> Sequence[Any]:
    try:
        return function(m)
    except AttributeError:  # it is not fitted, which is said later
        return ()


def _plain(columns: Any) -> Any:
    """A column specification without its slice's step: what it is made of says whether columns go by name."""
    return [end for end in (columns.start, columns.stop) if end is not None] if isinstance(columns, slice) else columns


@converts(COLUMNS, frame=True)
def column_transformer(m: Any, x: Node | Frame) -> Result:
    """y = [w₁·f₁(x[:, c₁]) | w₂·f₂(x[:, c₂]) | …], the columns as they were resolved when it was fitted."""
    frame = as_frame(x)
    if all(column.origin == i for i, column in enumerate(frame.columns)):
        used = [columns for _, member, columns in m.transformers_ if not (isinstance(member, str) and member == "drop")]
        columns_by_name(
            frames_only=any(isinstance(c, str) for columns in used for c in np.atleast_1d(_plain(columns)).tolist())
        )
    if any(name == "remainder" for name, *_ in m.transformers):
        reason = "one of its transformers is named 'remainder', which is scikit-learn's name for the rest."
        raise Refusal(reason, "Rename it and fit again.")
    jobs = []
    for place, name, member in _named("transformers", m.transformers_):
        indices = list(m._transformer_to_input_indices[name])
        if indices and not (isinstance(member, str) and member == "drop"):
            jobs.append((place, name, member, frame.select(indices)))
    stacked = _stacked(m, jobs)
    given = {column.node for column in frame.columns}
    if isinstance(stacked, Node) and (stacked in given or (is_sparse(stacked) and not m.sparse_output_)):
        # a value of its own: an array, unlike the frame that is given, and dense, unlike the only block
        return SelectColumns(np.arange(stacked.type.columns))(stacked)
    return stacked


def _stacked(m: Any, jobs: Sequence[tuple[str, str, Any, Node | Frame]]) -> Node | Frame:
    """The transformed blocks side by side, each times its weight: in their common dtype (numpy.hstack), or each in its own where the
    source makes frames."""
    apart, weights = keeps_parts_apart(m), m.transformer_weights or {}
    blocks: list[Node | Frame] = []
    failure: UnsupportedOperatorError | None = None
    for i, (place, name, member, x) in enumerate(jobs):
        try:
            if not is_identity(member):
                block = _transformed(member, x, place)
            elif apart:
                block = as_frame(x)
                if any(may_be_sparse(column.node) for column in block.columns):
                    sparse_matrices_differ()  # of which there is no frame
            else:
                block = as_matrix_or_strings(x)
            _note_frames(member, x, apart, weights.get(name) is not None)
        except UnsupportedOperatorError as error:
            failure = failure or error  # look at the other blocks first: one error names every culprit
            continue
        except Refusal as refusal:
            if failure is None:
                raise
            _survey((place, name, member) for place, name, member, _ in jobs[i + 1 :])
            raise failure from refusal
        blocks.append(block if weights.get(name) is None else _weighted(as_matrix(block), weights[name]))
    if failure is not None:
        raise failure
    if not blocks:
        raise Refusal("every transformer is dropped or has no columns, so it gives none.", "Remove it from the pipeline.")
    if apart:
        return Frame(tuple(column for block in blocks for column in as_frame(block).columns))
    return hstack([as_matrix(block) for block in blocks])


def _note_frames(m: Any, x: Node | Frame, apart: bool, weighted: bool) -> None:
    """Note what a transformer that gives frames for frames asks of those that the model itself is given."""
    identity = GIVES_BACK.get(public_name(type(m)), is_identity)(m)
    if not isinstance(x, Frame) or not (identity or (public_name(type(m)) == FUNCTION and not m.validate)):
        return
    if identity and getattr(m, "feature_names_out", "one-to-one") is not None:
        frames_must_be_of(x, *FRAME_LIBRARIES)  # FunctionTransformer cannot name the columns of such a table
    if weighted:
        frames_must_be_of(x, "pandas")  # polars computes float32 · 2.0 in float64
    if not apart:
        stacked_as_given(x)
        if weighted or not identity:
            given_to_a_function(x, NO_INTEGER)  # which gives integers for integers


def as_matrix_or_strings(x: Node | Frame) -> Node:
    """Columns that are passed through: numbers in their common dtype, or all of them strings."""
    if isinstance(x, Frame) and set(x.dtypes) == {"str"}:
        return x.matrix(strings=True)
    return as_matrix(x)


def _weighted(block: Node, weight: Any) -> Node:
    """block · weight, where a Python number takes the block's dtype if it can (NEP 50), and a numpy scalar keeps its own."""
    if block.type.dtype == "str":
        raise Refusal("transformer_weights multiply a column of strings.")
    dtype = dtype_name(np.result_type(NUMPY_DTYPES[block.type.dtype], weight))
    return t.mul(t.cast(block, dtype), np.asarray(weight, NUMPY_DTYPES[dtype]))


@converts(*SEARCHES, frame=True)
def search(m: Any, x: Node | Frame) -> Result:
    """The best estimator, fitted again on all data."""
    if not hasattr(m, "best_estimator_"):
        raise Refusal("it was fitted with refit=False, so that it holds no fitted estimator.", "Fit it with refit=True.")
    return own_methods(m, child(m.best_estimator_, x, "best_estimator_"))


@converts(FROZEN, frame=True)
def frozen_estimator(m: Any, x: Node | Frame) -> Result:
    """The estimator in it."""
    return own_methods(m, child(m.estimator, x, "estimator"))


@returns_without_rows(PIPELINE, *SEARCHES, FROZEN)
def _as_the_last(m: Any) -> WithoutRows:
    """What stands before it either rejects an input without rows or passes it on."""
    last = m.steps[-1][1] if public_name(type(m)) == PIPELINE else getattr(m, "best_estimator_", None) or m.estimator
    return WITHOUT_ROWS.get(public_name(type(last)), lambda _: {})(last)


# --- how many columns they take --------------------------------------------------------------------------------------


def described(model: Any) -> Described:
    """The number of input columns and their names, as far as the model knows them."""
    describe: Callable[[Any], Described] | None = DESCRIPTIONS.get(public_name(type(model)))
    if describe is not None:
        return describe(model)
    names = getattr(model, "feature_names_in_", None)
    return getattr(model, "n_features_in_", None), None if names is None else tuple(map(str, names))


@takes_items(PIPELINE)
def _items_of_pipeline(m: Any) -> str:
    return next((items_of(step) for _, step in m.steps if step is not None and step != "passthrough"), "")


@takes_items(UNION)
def _items_of_union(m: Any) -> str:
    return _first_items(member for _, member in m.transformer_list if not isinstance(member, str))


@takes_items(*SEARCHES, FROZEN)
def _items_of_member(m: Any) -> str:
    return _first_items(_members(MEMBERS[public_name(type(m))], m))


def _first_items(members: Iterable[Any]) -> str:
    return next(filter(None, map(items_of, members)), "")


@describes(PIPELINE)
def _describe_pipeline(m: Any) -> Described:
    """Its first step that does anything."""
    return next((described(step) for _, step in m.steps if step is not None and step != "passthrough"), (None, None))


@describes(UNION)
def _describe_union(m: Any) -> Described:
    """The first transformer that knows: all of them get the same columns."""
    return _first_known([member for _, member in m.transformer_list if not isinstance(member, str)])


def _first_known(members: Iterable[Any]) -> Described:
    return next((found for found in map(described, members) if found[0] is not None), (None, None))


@describes(*SEARCHES)
def _describe_search(m: Any) -> Described:
    if hasattr(m, "cv_results_") and not hasattr(m, "best_estimator_"):
        return 1, None  # refused by its converter, whatever the width
    return described(m.best_estimator_) if hasattr(m, "best_estimator_") else (None, None)


@describes(FROZEN)
def _describe_frozen(m: Any) -> Described:
    return described(m.estimator)
