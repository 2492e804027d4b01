"""`parse` turns a fitted model into graphs: one for each dtype of its input, since source libraries compute float32 and float64 in
different ways."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from operator import or_
from typing import Any

import numpy as np

from hbc.errors import Culprit, InvalidInputError, UnsupportedOperatorError, counted
from hbc.ir.graph import Graph, Node, topological
from hbc.ir.signature import Column, InputSpec, Kinds, ModelInfo, Sample, Sparse, input_layout
from hbc.ir.types import DType
from hbc.lazy import record
from hbc.ops.checks import Beside, Check
from hbc.ops.columns import SelectColumns
from hbc.ops.encoding import OneHot
from hbc.ops.nearest import Present, PresentEntries, Scatter, ScatterEntries
from hbc.ops.sparse import held_entries, held_one_hot
from hbc.ops.tensor import Concat
from hbc.parser import registry
from hbc.parser.frame import StringsNeeded, source_frame
from hbc.parser.front_door import failing_methods
from hbc.parser.input_spec import found_spec
from hbc.parser.once import reading
from hbc.parser.order_of_sums import with_needed_order
from hbc.parser.rounds import only
from hbc.parser.set_output import computed, frame_output
from hbc.parser.sparsity import gives_sparse, sparse_class, sparse_format, tagged_as_sparse
from hbc.parser.tools import kind_of, options_of, score_of
from hbc.parser.walk import convert, require_convertible, walk

UNIFORM: tuple[DType, ...] = ("f32", "f64", "i64")
"""The dtypes of the variants that every model gets; other integers and bool are given as i64."""


@record
class Parsed:
    """The result of `parse`."""

    info: ModelInfo
    spec: InputSpec
    variants: dict[Kinds, Graph]
    """A graph for each combination of dtypes of the input columns."""
    libraries: dict[str, str]
    """The versions of the packages that the classes of the model are from."""
    sample: Sample | None = None
    """The sample that the caller gave, with its columns in the order of fitting."""


def parse(model: Any, sample: Sample | None = None, rounds: tuple[int, int] | None = None) -> Parsed:
    """Parse a fitted model. `sample` gives names and dtypes of columns where the model does not hold them. `rounds`: the
    rounds of boosting that count (rounds.py).

    Raises ValueError for rounds that the model does not have; UnsupportedOperatorError (every culprit at once), NotFittedError,
    InvalidInputError.
    """
    name = registry.public_name(type(model))
    registry.load_converters(name)
    spec, sample = _describe(model, name, sample)
    variants: dict[Kinds, Graph] = {}
    failing: dict[str, str] = {}
    packages: set[str] = set()
    with only(rounds), reading():
        for dtype in UNIFORM:
            kinds: Kinds = tuple(dtype for _ in range(spec.n_features))
            if sample is not None:
                kinds = tuple("str" if kind == "str" else dtype for kind in sample.kinds)
            found, kinds, graph = _variant(model, spec, kinds, sample, failing, packages)
            variants[kinds] = graph
            spec |= found
        own = () if sample is None or not spec.frames.by_column else _kinds_of(sample, spec)
        if len(set(own) - {"str"}) > 1:
            found, kinds, graph = _variant(model, spec, own, sample, failing, packages)
            variants[kinds] = graph
            spec = _with_integer_bits(spec, [column.integer_bits for column in found.columns])
    graph = next(iter(variants.values()))
    info = replace(_info(model, name, graph), failing=failing)
    if "transform" in graph.outputs and (output := frame_output(model, spec.n_features)) is not None:
        info = replace(info, frames={"transform": output}, sparse={})
        if min(output.origins, default=-1) < 0:
            spec = _own_integers(spec, variants)
    return Parsed(info, spec, variants, _versions(packages), sample)


def _kinds_of(sample: Sample, spec: InputSpec) -> Kinds:
    """The dtypes of the sample's columns as they enter the graph: places of categories are floats, since some may be missing."""
    pairs = zip(sample.kinds, spec.columns, strict=True)
    return tuple("f64" if fact.category_values and not fact.strings else kind for kind, fact in pairs)


def _own_integers(spec: InputSpec, variants: Mapping[Kinds, Graph]) -> InputSpec:
    """The spec, for a model whose `transform` returns a frame with computed columns. If some of these columns are integers for integer
    input and floats for float input, the spec now accepts no integers but int64: the source would return int32 for int32, and the caller
    sees the dtype of each column. It then also keeps the columns of a frame of several dtypes apart."""
    found = [[node.type.dtype for node in graph.outputs["transform"]] for graph in variants.values()]
    follows = [
        len(set(dtypes)) > 1 and not all(dtype.startswith("f") for dtype in dtypes) for dtypes in zip(*found, strict=True)
    ]
    if not any(follows):
        return spec
    spec = replace(spec, frames=replace(spec.frames, apart=spec.frames.by_column))
    return _with_integer_bits(spec, [64] * spec.n_features)


def _with_integer_bits(spec: InputSpec, bits: Sequence[int]) -> InputSpec:
    """The spec, with the requirement that the integers of column i have at least `bits[i]` bits (0: no requirement)."""
    return replace(spec, columns=tuple(map(or_, spec.columns, (Column(integer_bits=least) for least in bits))))


def _describe(model: Any, name: str, sample: Sample | None) -> tuple[InputSpec, Sample | None]:
    """(the spec of the model's input as far as the model's own attributes tell it, the sample with its columns in the order of fitting).

    Raises InvalidInputError if the number of columns is not known, or the sample has another number of columns."""
    if name in registry.DESCRIPTIONS:
        count, names = registry.DESCRIPTIONS[name](model)
    else:
        count = getattr(model, "n_features_in_", None)
        names = getattr(model, "feature_names_in_", None)
    if count is None and sample is not None:
        count = len(sample.kinds)
        names = sample.names
    if count is None:
        with walk():
            require_convertible(model)
            if name.startswith("sklearn."):
                from hbc.parser.sklearn.pipeline import survey

                survey(model)  # no sample helps against a step without a converter, so it is named before one is asked for
        raise InvalidInputError(
            found=f"{name}, which does not know how many columns it takes",
            expected="a model that does, or a sample of its input",
            where="model",
            advice="Pass a sample: hbc.convert(model, backend, X), or --sample FILE on the command line.",
        )
    fitted_names = None if names is None else tuple(map(str, names))
    sample = _aligned(sample, fitted_names)
    if sample is not None and len(sample.kinds) != count:
        raise InvalidInputError(found=counted(len(sample.kinds), "column"), expected=f"{count}", where="the sample X")
    items = registry.items_of(model)
    ndim = 1 if name in registry.ONE_DIMENSIONAL or items else 2
    sparse = Sparse(accepted=_takes_sparse(model))
    return InputSpec((Column(),) * int(count), fitted_names, ndim, items, sparse=sparse), sample


def _takes_sparse(model: Any) -> bool:
    """Whether the model accepts sparse matrices, by scikit-learn's tags. A pipeline accepts them if every step that receives a sparse
    matrix does. Models of other libraries, and classes without readable tags, count as accepting them."""
    if registry.public_name(type(model)) == "sklearn.pipeline.Pipeline":
        for _, step in model.steps:
            if step is not None and not isinstance(step, str) and not _takes_sparse(step):
                return False
            if not gives_sparse(step, True):
                return True
        return True
    return tagged_as_sparse(model)


def _aligned(sample: Sample | None, names: tuple[str, ...] | None) -> Sample | None:
    """The sample with the columns `names` (those of fitting) in that order. The sample may have them in another order, may have further
    columns, and may lack columns that the model does not read (ColumnTransformer): a missing column counts as f64.

    The sample itself is returned if there are no names to compare, two of its columns have one name, or no name is a fitted one."""
    if sample is None or sample.names is None or names is None or sample.names == names:
        return sample
    kinds = dict(zip(sample.names, sample.kinds, strict=True))
    if len(kinds) < len(sample.names) or not kinds.keys() & set(names):
        return sample
    categorical = None if sample.categories is None else {sample.names[i] for i in sample.categories}
    places = None if categorical is None else tuple(i for i, name in enumerate(names) if name in categorical)
    return Sample(names, tuple(kinds.get(name, "f64") for name in names), places)


def _variant(
    model: Any, spec: InputSpec, kinds: Kinds, sample: Sample | None, failing: dict[str, str], packages: set[str]
) -> tuple[InputSpec, Kinds, Graph]:
    """(what the walk found out about the input, the dtypes of the columns as they turned out, the graph), for columns of the dtypes
    `kinds`.

    Methods that fail in the source library for every input are left out of the graph, and put into `failing` with the source's reason.
    The packages of the model's classes are put into `packages`.
    The walk starts again when an encoder turns out to need strings, and once more to leave out columns that nothing reads. Raises
    UnsupportedOperatorError with every culprit, or if all methods fail."""
    strings = set(spec.having("strings"))
    unread: frozenset[int] = frozenset()
    looked = False
    while True:
        current: Kinds = tuple("unread" if i in unread else "str" if i in strings else kind for i, kind in enumerate(kinds))
        inputs, value = source_frame(spec, current)
        try:
            with walk() as notes:
                notes.sampled = None if sample is None else sample.categories
                outputs = convert(model, value)
                packages |= notes.packages
                failing |= failing_methods(notes, outputs)
                outputs = {method: nodes for method, nodes in outputs.items() if method not in failing}
                if not outputs and failing:
                    reason = f"all its methods fail in the source library: {next(iter(failing.values()))}."
                    raise _refused(model, reason, "Fit it on other data.")
        except StringsNeeded as needed:
            strings |= set(needed.columns)
            # An encoder may drop the only category of a column. No operator reads the column then, but its values are still checked.
            unread -= set(needed.columns)
            continue
        if not outputs:
            raise _refused(
                model, "the converter of its last step gives no method that it has.", "Let it give 'predict' or 'transform'."
            )
        output = frame_output(model, spec.n_features) if "transform" in outputs else None
        if output is None:
            outputs = _held_sparse(model, outputs)
        else:
            own_only = output.native and not output.arrays and output.library == "polars"
            if own_only and notes.frames.unnamed and not spec.feature_names:  # frames of polars always have names
                reason = "set_output: it was fitted on an array, and returns columns of a frame of polars unchanged."
                raise _refused(model, reason, "Fit it on a frame of polars, or call set_output(transform='default').")
            outputs = {**outputs, "transform": computed(model, outputs["transform"], output)}
        graph = Graph(inputs, outputs)
        tested = with_needed_order(_with_dropped_checks(graph, notes.makers)).verify()
        if notes.frames.by_column and not looked:
            looked = True
            unread = _unread_columns(tested, current)
            if unread:
                continue
        returned = () if output is None else output.origins
        return found_spec(notes, graph, current, returned), current, tested


def _with_dropped_checks(graph: Graph, made: Iterable[Node]) -> Graph:
    """The graph, whose methods also need the checks of what estimators made and later ones dropped. The source computes it all the same: a
    ColumnTransformer may pick one column of the frame that the step before it returns (`set_output`)."""
    reached = set(graph.nodes)
    dropped: list[Node] = []
    for node in reversed(list(made)):
        new = [each for each in topological([node]) if each not in reached]
        if any(isinstance(each.op, Check) for each in new):
            dropped.append(node)
            reached.update(new)
    if not dropped:
        return graph
    outputs = {method: (Beside()(first, *dropped), *others) for method, (first, *others) in graph.outputs.items()}
    return Graph(graph.inputs, outputs)


def _refused(model: Any, reason: str, advice: str) -> UnsupportedOperatorError:
    return UnsupportedOperatorError(culprits=[Culprit(registry.public_name(type(model)), "model", reason, advice)])


def _versions(packages: Iterable[str]) -> dict[str, str]:
    """package → its version, of those that tell it."""
    found = {package: getattr(sys.modules.get(package), "__version__", None) for package in sorted(packages)}
    return {package: str(version) for package, version in found.items() if version is not None}


def _unread_columns(graph: Graph, kinds: Kinds) -> frozenset[int]:
    """The input columns that no operator reads and no method returns. Such a column may hold anything. Empty if it would be all columns."""
    given = {node for group in graph.outputs.values() for node in group}
    read: set[tuple[Node, int]] = {(source, i) for source in given & set(graph.inputs) for i in range(source.type.columns)}
    for node in graph.nodes:
        for source in node.inputs:
            if source in graph.inputs:
                indices = node.op.indices if isinstance(node.op, SelectColumns) else np.arange(source.type.columns)
                read |= {(source, int(i)) for i in indices}
    unread = set()
    for source, columns in zip(graph.inputs, input_layout(kinds).values(), strict=True):
        unread |= {column for i, column in enumerate(columns) if (source, i) not in read}
    return frozenset(unread) if len(unread) < len(kinds) else frozenset()


def _has_own_labels(model: Any) -> bool:
    """Whether the labels in the graph have the source's dtype, whatever that of `classes_`. The estimator inside the model that predicts
    decides it (registry.OWN_LABELS)."""
    while True:
        match registry.public_name(type(model)):
            case "sklearn.pipeline.Pipeline":
                model = model.steps[-1][1]
            case "sklearn.multioutput.MultiOutputClassifier":
                model = model.estimators_[0]
            case "sklearn.frozen.FrozenEstimator":
                model = model.estimator
            case name:
                if not hasattr(model, "best_estimator_"):
                    return registry.OWN_LABELS.get(name, lambda _: False)(model)
                model = model.best_estimator_


def _kept(dtype: np.dtype[Any], graph: Graph) -> str:
    """The kind of a dtype of labels; "f16" for float16, which has no tensor type, where `predict` returns it (chains return float64)."""
    half = dtype == np.float16 and "predict" in graph.outputs and graph.outputs["predict"][0].type.dtype == "f32"
    return "f16" if half else dtype.kind


def _info(model: Any, name: str, graph: Graph) -> ModelInfo:
    attributes: dict[str, object] = {}
    for attribute in ("classes_", "n_features_in_", "feature_names_in_", "n_outputs_"):
        value = getattr(model, attribute, None)
        if value is not None:
            attributes[attribute] = value
    attributes.update(registry.ATTRIBUTES.get(name, lambda _: {})(model))
    classes = attributes.get("classes_")
    if isinstance(classes, list) and {_kept(np.asarray(each).dtype, graph) for each in classes} in ({"u"}, {"O"}, {"f16"}):
        classes = np.concatenate(classes)  # one array for each target; `predict` returns their labels side by side
    dtypes = {}
    if isinstance(classes, np.ndarray) and "predict" in graph.outputs and not _has_own_labels(model):
        # Not every `predict` of a classifier returns labels: with a custom objective it returns sums of leaves.
        labelled = not graph.outputs["predict"][0].type.is_float or classes.dtype.kind == "f"
        dtypes = {method: classes.dtype.str for method in ("predict", "staged_predict") if labelled and method in graph.outputs}
    if "calc_leaf_indexes" in graph.outputs:
        dtypes["calc_leaf_indexes"] = "<u4"  # CatBoost's dtype, which no value of a graph can have
    if name in registry.OBJECT_STRINGS:
        dtypes |= {method: "|O" for method, (first, *_) in graph.outputs.items() if first.type.dtype == "str"}
    without_rows = registry.without_rows_of(model)
    given_back = ("transform",) if registry.GIVES_BACK.get(name, lambda _: False)(model) else ()
    found = ModelInfo(name, attributes, dtypes, without_rows, _sparse(model, graph), given_back=given_back)
    # What predicts labels is a classifier, also where its library has no kinds (ONNX).
    kind = kind_of(model) or ("classifier" if "classes_" in attributes and "predict" in graph.outputs else "")
    return replace(found, kind=kind, score=score_of(model), options=options_of(model))


def _held_sparse(model: Any, outputs: registry.Outputs) -> registry.Outputs:
    """The outputs, where possible with `transform` as nodes that compute the entries of a sparse matrix. This covers one-hot codes,
    distances, and functions of the entries of a dense matrix. The host then only puts the entries together. Other outputs are unchanged."""
    if "transform" not in outputs or not type(model).__module__.startswith("sklearn.") or not gives_sparse(model, False):
        return outputs
    (node,) = outputs["transform"]
    entries = held_entries(node)
    if entries is not None:
        return {**outputs, "transform": (entries,)}
    parts = node.inputs if isinstance(node.op, Concat) else (node,)
    if all(map(_is_one_hot, parts)):
        return {**outputs, "transform": (held_one_hot(list(parts)),)}
    held = [_entries(part) for part in parts]
    nodes = [part for part in held if part is not None]
    if len(nodes) < len(held):
        return outputs
    return {**outputs, "transform": (nodes[0] if len(nodes) == 1 else Concat(1)(*nodes),)}


def _is_one_hot(node: Node) -> bool:
    op = node.op
    return type(op) is OneHot and len(op.source) > 0 and bool((np.diff(op.source) >= 0).all())


def _entries(node: Node) -> Node | None:
    """The matrix of a node as a node that gives its entries. None if it is neither one-hot codes nor distances."""
    if _is_one_hot(node):
        return held_one_hot([node])
    match node.op:
        case Scatter(width):
            return ScatterEntries(width)(*node.inputs)
        case Present():
            return PresentEntries()(*node.inputs)
    return None


def _sparse(model: Any, graph: Graph) -> dict[str, tuple[str, ...]]:
    """ModelInfo.sparse: the sparse formats that scikit-learn's `transform` returns. Empty if it never returns a sparse matrix."""
    if "transform" not in graph.outputs or not type(model).__module__.startswith("sklearn."):
        return {}
    found = tuple(sparse_format(model, given) for given in ("", "csr *", "csc *"))
    kind = sparse_class(model)
    return {"transform": tuple(name and f"{name[:3]}_{kind}{name[3:]}" for name in found)} if any(found) else {}
