"""Converters for estimators that only pass data to others: sklearn.pipeline, ColumnTransformer, the searches of
sklearn.model_selection, and FrozenEstimator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from hbc.errors import UnsupportedOperatorError
from hbc.ir.graph import Node
from hbc.ir.signature import FRAME_LIBRARIES, Arrays, Column, Frames, Sparse
from hbc.ir.types import NUMPY_DTYPES, dtype_name
from hbc.ops import tensor as t
from hbc.ops.columns import SelectColumns
from hbc.parser.frame import Frame, Refusal, as_frame, as_matrix, nodes_of, untouched
from hbc.parser.front_door import (
    ANY_INTEGER,
    NO_INTEGER,
    given_columns,
    handed_on,
    is_alone,
    maker,
    note,
    note_given,
    note_input,
    stacked_as_given,
)
from hbc.parser.registry import (
    DESCRIPTIONS,
    GIVES_BACK,
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
    without_rows_of,
)
from hbc.parser.set_output import hands_on, keeps_parts_apart
from hbc.parser.sklearn.shared.common import hstack, without_missing
from hbc.parser.sparsity import gives_sparse, is_sparse, may_be_sparse
from hbc.parser.tools import OF_PIPELINES, options_of
from hbc.parser.walk import child, children, handed_through, note_unconvertible, transformed_child

PIPELINE, UNION, COLUMNS = (
    "sklearn.pipeline.Pipeline",
    "sklearn.pipeline.FeatureUnion",
    "sklearn.compose.ColumnTransformer",
)
SEARCHES = tuple(
    f"sklearn.model_selection.{name}"
    for name in ("GridSearchCV", "RandomizedSearchCV", "HalvingGridSearchCV", "HalvingRandomSearchCV")
)
HISTOGRAMS = "sklearn.ensemble.HistGradientBoosting"
FROZEN = "sklearn.frozen.FrozenEstimator"
FUNCTION = "sklearn.preprocessing.FunctionTransformer"


def is_identity(step: Any) -> bool:
    """Whether a step returns its input unchanged: None, "passthrough", or a FunctionTransformer without a function. A fitted
    ColumnTransformer or FeatureUnion holds such a FunctionTransformer where the user wrote "passthrough"."""
    if step is None or isinstance(step, str):
        return step is None or step == "passthrough"
    if public_name(type(step)) != FUNCTION:
        return False
    return step.func is None and not step.validate


GIVES_BACK[FUNCTION] = is_identity
GIVES_BACK[PIPELINE] = lambda m: all(is_identity(step) for _, step in m.steps)


def _named(what: str, pairs: Iterable[tuple[Any, ...]]) -> Iterator[tuple[str, str, Any]]:
    """Yields (place, name, estimator) for the members of a container. A place is its path for messages: `steps[0] 'scaler'`."""
    for i, (name, member, *_) in enumerate(pairs):
        yield f"{what}[{i}] {name!r}", name, member


@converts(PIPELINE, frame=True)
def pipeline(m: Any, x: Node | Frame) -> Result:
    """Each step transforms the output of the step before. The methods are those of the last step. `predict` hands options on to that step,
    so the methods which stand for options of LightGBM and XGBoost are kept too."""
    steps = list(_named("steps", m.steps))
    for i, (place, _, step) in enumerate(steps[:-1]):
        library = hands_on(step)
        if _only_passes(step):
            x = _passed(step, x)
            continue
        try:
            x = _transformed(step, x, place)
            if library == "pandas" and isinstance(x, Node) and x.type.dtype == "str" and None in untouched(x):
                # pandas turns None among strings into NaN when it makes a new frame, so None is rejected.
                x = without_missing(step, x, none=True)
        except UnsupportedOperatorError:
            _survey(steps[i + 1 :])
            raise
        x = handed_on(step, x, library) if library else x
    place, _, last = steps[-1]
    if last is None or last == "passthrough":
        framed = any(hands_on(step) for _, _, step in steps[:-1] if not is_identity(step))
        if not isinstance(x, Frame) or framed:
            return x
        return as_matrix(x) if is_alone() else handed_through(x)
    (outputs,) = children([(last, x, place)])
    kept = OF_PIPELINES.get(options_of(m), ())
    own = own_methods(m, outputs) | {method: outputs[method] for method in kept if method in outputs}
    if outputs and not own:
        reason = f"its last step computes {' and '.join(outputs)} only, which a pipeline does not have."
        raise Refusal(reason, "Convert the last step alone, and the steps before it (model[:-1]).")
    return own


def _only_passes(m: Any) -> bool:
    """Whether a step is an identity, or a pipeline of such steps at any depth."""
    steps = m.steps if public_name(type(m)) == PIPELINE else ()
    return is_identity(m) or (bool(steps) and all(_only_passes(step) for _, step in steps))


def _passed(m: Any, x: Node | Frame) -> Node | Frame:
    """x behind an identity, or behind a pipeline of identities: the same columns, perhaps in a frame that one of them makes."""
    if not is_identity(m):
        for _, step in m.steps:
            x = _passed(step, x)
        return x
    library = hands_on(m)
    note_identity(m, x, library)
    return handed_on(m, x, library) if library else x


def note_identity(m: Any, x: Node | Frame, library: str) -> None:
    """Notes which containers a step that returns its input takes. `library`: it makes a frame of it, of this library."""
    if library:
        note_input(Sparse(accepted=False), x)  # the source cannot make a frame from a sparse matrix
        note_input(Arrays(lists=False, plain_floats=True), x)  # pandas and polars would find a dtype for each column
        note_input(Frames(libraries=(library,)), x)  # frames of another library would change their dtypes
    elif getattr(m, "feature_names_out", None) is not None:
        note_input(Frames(libraries=FRAME_LIBRARIES), x)  # FunctionTransformer cannot name the columns of other tables


def _transformed(m: Any, x: Node | Frame, place: str) -> Node | Frame:
    """The `transform` of a member. A member that returns frames (`set_output`)
    cannot make one from a sparse matrix, so sparse input is then rejected."""
    if hands_on(m) and any(map(may_be_sparse, nodes_of(x))) and gives_sparse(m, True):
        note_input(Sparse(accepted=False))
    return transformed_child(m, x, place)


def own_methods(m: Any, outputs: Outputs) -> Outputs:
    """The outputs whose methods m itself has. A pipeline, for example, has no `apply`, though its last step may have one."""
    return {method: nodes for method, nodes in outputs.items() if hasattr(m, method)}


def _survey(members: Iterable[tuple[str, str, Any]]) -> None:
    """Notes every class without a converter among members that cannot be
    converted, since their input is not known. One error then names all of them."""
    for place, _, member in members:
        if is_identity(member) or isinstance(member, str):
            continue
        with note_unconvertible(member, place):
            survey(member)


def survey(m: Any) -> None:
    """Notes every class without a converter inside a container of estimators, at every depth."""
    name = public_name(type(m))
    if name == PIPELINE:
        _survey(_named("steps", m.steps))
    elif name == UNION:
        _survey(_named("transformer_list", m.transformer_list))
    elif name == COLUMNS:
        _survey(_named("transformers", m.transformers_))


@converts(UNION, frame=True)
def feature_union(m: Any, x: Node | Frame) -> Result:
    """y = [w₁·f₁(x) | w₂·f₂(x) | …]: the weighted outputs of all transformers, side by side."""
    jobs = [
        (place, name, member, x)
        for place, name, member in _named("transformer_list", m.transformer_list)
        if not (isinstance(member, str) and member == "drop")
    ]
    given_to_all([member for _, _, member, _ in jobs], x)
    return _stacked(m, jobs)


def given_to_all(members: Iterable[Any], x: Node | Frame) -> None:
    """Notes that all of these estimators are given x. If some pick columns of the model's input by name and others do not, frames must have
    the fitted columns in their order."""
    named = [_picks_by_name(member) for member in members]
    if any(named) and not all(named):
        taken_in_order(x)


def taken_in_order(x: Node | Frame) -> None:
    """Notes that the order of x's columns matters, although some estimator may pick columns by name. The order of columns that another
    estimator has picked does not depend on that of the model's input."""
    makers = [made for node in nodes_of(x) if (made := maker(node)) is not None]
    if all(_only_passes(estimator) for estimator, _ in makers) and None not in untouched(x):
        note_input(Frames(in_order=True))


def _picks_by_name(m: Any) -> bool:
    """Whether m gives its input to ColumnTransformers only, or is or has one."""
    name = public_name(type(m))
    if name == PIPELINE:
        return next((_picks_by_name(step) for _, step in m.steps if not is_identity(step)), False)
    if name == UNION:
        return all(
            _picks_by_name(member) for _, member in m.transformer_list if not (isinstance(member, str) and member == "drop")
        )
    if name in MEMBERS:
        return all(_picks_by_name(member) for member in MEMBERS[name](m))
    return name == COLUMNS or (name.startswith(HISTOGRAMS) and m._preprocessor is not None)


MEMBERS: dict[str, Callable[[Any], Sequence[Any]]] = {
    **{name: lambda m: [m.best_estimator_] for name in SEARCHES},
    FROZEN: lambda m: [m.estimator],
}
"""Public class name → a function that lists the estimators to which such a model gives its own input as it is."""


def gives_input_to(*names: str) -> Callable[[Callable[[Any], Sequence[Any]]], Callable[[Any], Sequence[Any]]]:
    """A decorator that registers a function for MEMBERS: it lists the estimators to which a fitted model gives its input. The model's input
    is then described by the first of these estimators that knows its columns."""

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
    except AttributeError:  # m is not fitted; an error says so later
        return ()


def _plain(columns: Any) -> Any:
    """A column specification; for a slice, its ends. The type of its elements says whether columns are picked by name."""
    return [end for end in (columns.start, columns.stop) if end is not None] if isinstance(columns, slice) else columns


@converts(COLUMNS, frame=True)
def column_transformer(m: Any, x: Node | Frame) -> Result:
    """y = [w₁·f₁(x[:, c₁]) | w₂·f₂(x[:, c₂]) | …]: the weighted outputs of
    all transformers, side by side. Columns are those found in fitting."""
    frame = as_frame(x)
    if all(column.origin == i for i, column in enumerate(frame.columns)):
        used = [columns for _, member, columns in m.transformers_ if not (isinstance(member, str) and member == "drop")]
        note_input(
            Frames(
                by_column=True,
                required=any(isinstance(c, str) for columns in used for c in np.atleast_1d(_plain(columns)).tolist()),
            )
        )
        for name, member, _ in m.transformers_:
            if not (isinstance(member, str) and member == "drop"):
                note_given(frame.select(list(m._transformer_to_input_indices[name])), Column(picked=True))
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
        # A new node, since this output is not the same thing as its only block: an array instead of a frame, or dense instead of sparse.
        return SelectColumns(np.arange(stacked.type.columns))(stacked)
    return stacked


def _stacked(m: Any, jobs: Sequence[tuple[str, str, Any, Node | Frame]]) -> Node | Frame:
    """The transformed blocks side by side, each multiplied by its weight. They are a matrix in
    the common dtype (numpy.hstack), or a Frame of blocks in their own dtypes if the source makes
    frames. `jobs`: (place, name, transformer, its input). Raises Refusal if no block is left."""
    apart, weights = keeps_parts_apart(m), m.transformer_weights or {}
    blocks: list[Node | Frame] = []
    failure: UnsupportedOperatorError | None = None
    for i, (place, name, member, x) in enumerate(jobs):
        try:
            if not is_identity(member):
                block = _transformed(member, x, place)
                if isinstance(block, Frame) and not apart:
                    _stacked_from_frame(block)
            elif apart:
                block = as_frame(x)
                if public_name(type(m)) == UNION:
                    # It puts an array beside others before it makes a frame, and names its columns otherwise than those of a frame.
                    note(block, Column(f32_at_once=True, f64_between=True))
                    note_input(Frames(required=block.names is not None, unnamed=True), block)
                    if hands_on(m) == "polars":
                        # It makes columns of objects of a frame of pandas with bool or pandas' own dtypes.
                        note_input(Frames(libraries=("polars",)), block)
                if any(may_be_sparse(column.node) for column in block.columns):
                    note_input(Sparse(accepted=False))  # the source cannot make a frame from a sparse matrix
            else:
                block = as_matrix_or_strings(x)
                if public_name(type(m)) == UNION and block.type.dtype != "str" and gives_sparse(m, False):
                    # scipy puts neither Python objects nor float16 beside sparse columns. (A ColumnTransformer makes numbers of them.)
                    note(x, Column(integer_bits=ANY_INTEGER))
                    note_given(as_frame(x), Column(returned=True))
            _note_frames(member, x, apart, weights.get(name))
            if public_name(type(m)) == UNION and is_identity(member) and weights.get(name) is not None:
                note_input(Arrays(lists=False), x)  # it multiplies the list itself
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
        raise Refusal(
            "every transformer is dropped or has no columns, so that its output has no columns.", "Remove it from the pipeline."
        )
    if apart:
        return Frame(tuple(column for block in blocks for column in as_frame(block).columns))
    return hstack([as_matrix(block) for block in blocks])


def _stacked_from_frame(block: Frame) -> None:
    """Notes that the source makes an array of a frame that a transformer has made, and stacks it. It is one of Python objects if the frame
    holds columns of the input of pandas' own dtypes, or of bool, beside others."""
    if given := given_columns(block):
        note_input(Frames(stacked=(given if len(given) == len(block) else given * 2,)))
        note_input(Arrays(native_order=True))


def _note_frames(m: Any, x: Node | Frame, apart: bool, weight: Any) -> None:
    """Notes the requirements on the model's own frames if a transformer that returns a frame for a frame reads them: an identity, or a
    function without validation. `weight`: with which its result is multiplied, or None."""
    identity = GIVES_BACK.get(public_name(type(m)), is_identity)(m)
    if not isinstance(x, Frame) or not (identity or (public_name(type(m)) == FUNCTION and not m.validate)):
        return
    if identity and getattr(m, "feature_names_out", "one-to-one") is not None:
        note_input(Frames(libraries=FRAME_LIBRARIES), x)  # FunctionTransformer cannot name the columns of other tables
    if weight is not None:
        note_input(Frames(libraries=("pandas",)), x)  # polars computes float32 · 2.0 in float64
    if isinstance(weight, np.generic):
        note_given(x, Column(function_bits=ANY_INTEGER, beside_numbers=True))  # pandas takes it for a Python number
    if not apart:
        stacked_as_given(x)
        if weight is not None or not identity:
            note_given(x, Column(function_bits=NO_INTEGER))  # it gives integers for integers, where hbc would give float64


def as_matrix_or_strings(x: Node | Frame) -> Node:
    """The columns of x as a matrix: numbers in their common dtype, or strings if all are strings."""
    if isinstance(x, Frame) and set(x.dtypes) == {"str"}:
        return x.matrix(strings=True)
    return as_matrix(x)


NARROW = {4: np.bool_, 8: np.int8, 16: np.int16, 32: np.int32}
"""The dtypes of integers below int64, by their bits. Bool counts as less than int8."""


def _weighted(block: Node, weight: Any) -> Node:
    """block · weight in numpy's dtype (NEP 50): a weight that is a Python number takes the dtype of the block, a numpy scalar may widen it.
    Notes that dtypes are rejected in which the source would give other numbers. Raises Refusal for strings."""
    if block.type.dtype == "str":
        raise Refusal("transformer_weights multiply a column of strings.")
    result = np.result_type(NUMPY_DTYPES[block.type.dtype], weight)
    bits = [ANY_INTEGER]  # float16 would stay float16
    if block.type.dtype == "i64":
        bits += [2 * size for size, kind in NARROW.items() if np.result_type(kind, weight) != result]
    note(block, Column(integer_bits=max(bits), signed=result.kind == "i"))
    dtype = dtype_name(result)
    return t.mul(t.cast(block, dtype), np.asarray(weight, NUMPY_DTYPES[dtype]))


@converts(*SEARCHES, frame=True)
def search(m: Any, x: Node | Frame) -> Result:
    """The methods of the best estimator, which was fitted again on all data. Raises Refusal for refit=False."""
    if not hasattr(m, "best_estimator_"):
        raise Refusal("it was fitted with refit=False, so that it holds no fitted estimator.", "Fit it with refit=True.")
    return own_methods(m, child(m.best_estimator_, x, "best_estimator_"))


@converts(FROZEN, frame=True)
def frozen_estimator(m: Any, x: Node | Frame) -> Result:
    """The methods of the estimator in it."""
    return own_methods(m, child(m.estimator, x, "estimator"))


@returns_without_rows(PIPELINE, *SEARCHES, FROZEN)
def _as_the_last(m: Any) -> WithoutRows:
    """The outputs for zero rows are those of the last step, because the steps before it either reject zero rows or pass them on."""
    last = m.steps[-1][1] if public_name(type(m)) == PIPELINE else getattr(m, "best_estimator_", None) or m.estimator
    return without_rows_of(last)


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
    """The columns of a pipeline are those of its first step that is not a passthrough."""
    return next((described(step) for _, step in m.steps if step is not None and step != "passthrough"), (None, None))


@describes(UNION)
def _describe_union(m: Any) -> Described:
    """The columns of a union are those of its first transformer that knows them: all transformers are given the same columns."""
    return _first_known([member for _, member in m.transformer_list if not isinstance(member, str)])


def _first_known(members: Iterable[Any]) -> Described:
    """What the first of these estimators knows that has names, or the first that knows the number of columns: some, such as LightGBM's,
    ignore names, and others compare them."""
    known = [found for found in map(described, members) if found[0] is not None]
    return next((found for found in known if found[1] is not None), known[0] if known else (None, None))


@describes(*SEARCHES)
def _describe_search(m: Any) -> Described:
    if hasattr(m, "cv_results_") and not hasattr(m, "best_estimator_"):
        return 1, None  # any number will do: the converter refuses it
    return described(m.best_estimator_) if hasattr(m, "best_estimator_") else (None, None)


@describes(FROZEN)
def _describe_frozen(m: Any) -> Described:
    return described(m.estimator)
