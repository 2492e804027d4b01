"""From a fitted model to its graphs: one for each dtype of input, since a source library computes float32 and float64 differently."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hbc.errors import InvalidInputError
from hbc.ir.graph import Graph, Node
from hbc.ir.signature import InputSpec, Kinds, ModelInfo, Sample, input_layout
from hbc.ir.types import DType
from hbc.ops.checks import Check, CheckValues
from hbc.ops.columns import SelectColumns
from hbc.ops.encoding import OneHot
from hbc.ops.hashed_categories import HashText
from hbc.ops.nearest import Present, PresentEntries, Scatter, ScatterEntries
from hbc.ops.sparse import held_entries, held_one_hot
from hbc.ops.tensor import Concat
from hbc.parser import registry
from hbc.parser.frame import Frame, StringsNeeded, dtype_givers, source_frame, untouched
from hbc.parser.once import reading
from hbc.parser.set_output import computed, frame_output
from hbc.parser.sparsity import gives_sparse, sparse_class, sparse_format
from hbc.parser.walk import convert, require_convertible, walk

NARROW = 32
"""Bits of the integers that numpy's common dtype with float32 is float64 for."""

UNIFORM: tuple[DType, ...] = ("f32", "f64", "i64")
"""The dtypes of the variants that every model gets; other integers and bool are given as i64."""


@dataclass(frozen=True)
class Parsed:
    """A model's graphs by the dtypes of their input columns, and the sample with its columns in the order of fitting."""

    info: ModelInfo
    spec: InputSpec
    variants: dict[Kinds, Graph]
    sample: Sample | None = None


def parse(model: Any, sample: Sample | None = None) -> Parsed:
    """Parse a fitted model. `sample` gives names and dtypes of columns where the model does not hold them.

    Raises UnsupportedOperatorError (every culprit at once), NotFittedError, InvalidInputError.
    """
    name = registry.public_name(type(model))
    registry.load_converters(name)
    spec, sample = _describe(model, name, sample)
    variants: dict[Kinds, Graph] = {}
    own_dtypes = set()
    with reading():
        for dtype in UNIFORM:
            kinds: Kinds = tuple(dtype for _ in range(spec.n_features))
            if sample is not None:
                kinds = tuple("str" if kind == "str" else dtype for kind in sample.kinds)
            spec, kinds, graph = _variant(model, spec, kinds)
            variants[kinds] = graph
            own_dtypes.add(spec.own_dtype)
        spec = replace(spec, own_dtype=spec.own_dtype if len(own_dtypes) == 1 else ())
        if sample is not None and spec.dtype_by_column and len(set(sample.kinds) - {"str"}) > 1:
            mixed, kinds, graph = _variant(model, spec, sample.kinds)
            variants[kinds] = graph
            spec = replace(spec, integer_bits=mixed.integer_bits)
    graph = next(iter(variants.values()))
    info = _info(model, name, graph)
    if "transform" in graph.outputs and (output := frame_output(model, spec.n_features)) is not None:
        info = replace(info, frames={"transform": output}, sparse={})
        if min(output.origins, default=-1) < 0:
            spec = _own_integers(model, spec, variants)
    return Parsed(info, spec, variants, sample)


def _own_integers(model: Any, spec: InputSpec, variants: Mapping[Kinds, Graph]) -> InputSpec:
    """The columns of a frame have their dtypes for the caller to see: where they follow the integers of the input, these must be int64.
    Where each column has a dtype of its own, so does a frame of several dtypes."""
    found = [[node.type.dtype for node in graph.outputs["transform"]] for graph in variants.values()]
    follows = [
        len(set(dtypes)) > 1 and not all(dtype.startswith("f") for dtype in dtypes) for dtypes in zip(*found, strict=True)
    ]
    if not any(follows):
        return spec
    return replace(spec, integer_bits=(64,) * spec.n_features, dtypes_apart=spec.dtype_by_column)


def _describe(model: Any, name: str, sample: Sample | None) -> tuple[InputSpec, Sample | None]:
    """What the model takes, and the sample with its columns in the order of fitting."""
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
        raise InvalidInputError(
            found=f"{name}, which does not know how many columns it takes",
            expected="a model that does, or a sample of its input",
            where="model",
            advice="Pass a sample: hbc.convert(model, backend, X).",
        )
    fitted_names = None if names is None else tuple(map(str, names))
    sample = _aligned(sample, fitted_names)
    if sample is not None and len(sample.kinds) != count:
        raise InvalidInputError(found=f"{len(sample.kinds)} columns", expected=f"{count}", where="the sample X")
    items = registry.items_of(model)
    ndim = 1 if name in registry.ONE_DIMENSIONAL or items else 2
    return InputSpec(int(count), fitted_names, sparse=_takes_sparse(model), ndim=ndim, items=items), sample


def _takes_sparse(model: Any) -> bool:
    """What scikit-learn's tags say; of a pipeline, those of every step that is given a sparse matrix."""
    if registry.public_name(type(model)) == "sklearn.pipeline.Pipeline":
        for _, step in model.steps:
            if step is not None and not isinstance(step, str) and not _takes_sparse(step):
                return False
            if not gives_sparse(step, True):
                return True
        return True
    if not type(model).__module__.startswith("sklearn."):
        return True
    try:
        return bool(model.__sklearn_tags__().input_tags.sparse)
    except (AttributeError, TypeError, ValueError):
        return True


def _aligned(sample: Sample | None, names: tuple[str, ...] | None) -> Sample | None:
    """A sample may have its columns in another order, further ones, and none where the model reads none (ColumnTransformer)."""
    if sample is None or sample.names is None or names is None or sample.names == names:
        return sample
    kinds = dict(zip(sample.names, sample.kinds, strict=True))
    if len(kinds) < len(sample.names) or not kinds.keys() & set(names):
        return sample
    return Sample(names, tuple(kinds.get(name, "f64") for name in names))


def _variant(model: Any, spec: InputSpec, kinds: Kinds) -> tuple[InputSpec, Kinds, Graph]:
    """Parse for one dtype. Starts again when an encoder turns out to want strings, and once more to leave out unread columns."""
    strings: set[int] = set(spec.strings)
    unread: frozenset[int] = frozenset()
    looked = False
    while True:
        current: Kinds = tuple("unread" if i in unread else "str" if i in strings else kind for i, kind in enumerate(kinds))
        inputs, value = source_frame(spec, current)
        try:
            with walk() as context:
                outputs = convert(model, value)
        except StringsNeeded as needed:
            strings |= set(needed.columns)
            # An encoder may have one category alone, and drop it: its column is checked all the same.
            unread -= set(needed.columns)
            continue
        output = frame_output(model, spec.n_features) if "transform" in outputs else None
        if output is None:
            outputs = _held_sparse(model, outputs)
        else:
            outputs = {**outputs, "transform": computed(model, outputs["transform"], output)}
        graph = Graph(inputs, outputs).verify()
        if context.columns_by_name and not looked:
            looked = True
            unread = _unread_columns(graph, current)
            if unread:
                continue
        found = tuple(sorted(strings | {i for i, kind in enumerate(current) if kind == "str"}))
        by_name = context.columns_by_name and not context.columns_in_order
        by_column = context.columns_by_name
        spec = replace(spec, strings=found, by_name=by_name, dtype_by_column=by_column, frames_only=context.frames_only)
        spec = replace(spec, integers_as_f64=context.integers_as_f64, absent_is_missing=context.absent_is_missing)
        rejects_sparse = context.rejects_sparse or (context.rounds_sparse and any(node.op.jumps for node in graph.nodes))
        spec = replace(
            spec, sparse=spec.sparse and not rejects_sparse, sparse_nan=spec.sparse_nan and not context.rejects_sparse_nan
        )
        apart = _by_column([(x, 1) for x in context.none_apart], inputs, current)
        spec = replace(spec, none_apart=tuple(sorted({*spec.none_apart, *np.flatnonzero(apart).tolist()})))
        digits = np.flatnonzero(_by_column([(x, 1) for x in context.digits], inputs, current))
        spec = replace(spec, digits=tuple(sorted(set(digits.tolist()) - _otherwise_read(graph, inputs, current))))
        functions = [context.functions.get(i, 0) for i in range(len(current))]
        spec = replace(spec, beside_numbers=tuple(sorted(context.beside_numbers | set(spec.beside_numbers))))
        if any(functions):
            spec = replace(spec, functions=tuple(map(max, functions, spec.functions or functions)))
        groups = {tuple(np.flatnonzero(_by_column([(x, 1)], inputs, current)).tolist()) for x in context.widened}
        spec = replace(spec, dates=tuple(sorted({*spec.dates, *filter(None, groups)})))
        wide = _by_column([(x, 1) for x in context.widened], inputs, current)
        spec = replace(spec, frames_as_f64=tuple(sorted({*spec.frames_as_f64, *np.flatnonzero(wide).tolist()})))
        outcome = [node for node in outputs.get("transform", ()) if node.type.dtype in current]
        own_dtype = _by_column(
            [(source, 1) for node in outcome for source in _given_dtype(node, context.kept)], inputs, current
        )
        spec = replace(spec, float_entries=spec.float_entries or context.float_entries, stacked=tuple(sorted(context.stacked)))
        spec = replace(spec, libraries=context.libraries)
        spec = replace(
            spec,
            native_order=spec.native_order or context.native_order,
            reader=context.reader,
            plain_floats=context.plain_floats,
        )
        spec = replace(spec, own_dtype=tuple(np.flatnonzero(own_dtype).tolist()))
        signed = np.flatnonzero(_by_column([(x, 1) for x in context.signed], inputs, current)).tolist()
        only = np.flatnonzero(_by_column([(x, 1) for x in context.texts_only], inputs, current)).tolist()
        stay = [min(level, 1 + ("transform" in outputs)) for level in _by_column(context.objects_stay, inputs, current)]
        origin = _origins(inputs, current)
        for place in (place for node in outputs.get("transform", ()) for place in untouched(node) if place is not None):
            if place in origin and place[0].type.dtype != "str":
                stay[origin[place]] = 2
        if any(stay):
            spec = replace(spec, objects_stay=tuple(map(max, stay, spec.objects_stay or stay)))
        spec = replace(spec, signed=tuple(sorted({*spec.signed, *signed})), texts_only=tuple(sorted({*spec.texts_only, *only})))
        spec = replace(spec, fixed_width=spec.fixed_width and not context.texts_as_objects)
        objects = np.flatnonzero(_by_column([(x, 1) for x in context.objects_only], inputs, current)).tolist()
        spec = replace(spec, objects_only=tuple(sorted({*spec.objects_only, *objects})))
        spec = replace(spec, dense_methods=tuple(name for name, nodes in outputs.items() if set(nodes) & context.dense_only))
        bits = _by_column(context.integer_bits, inputs, current)
        narrow = _by_column([(x, NARROW) for x in context.narrow], inputs, current)
        if any(narrow):
            # Where nobody else reads the input, it can be given as float32; otherwise it has to be wider.
            as_f32 = all(narrow) and not any(bits) and not context.columns_by_name
            spec = replace(spec, narrow_as_f32=as_f32)
            bits = bits if as_f32 else list(map(max, bits, narrow))
        spec = replace(spec, integer_bits=tuple(map(max, bits, spec.integer_bits or bits)) if any(bits) else spec.integer_bits)
        return spec, current, graph


def _origins(inputs: Sequence[Node], kinds: Kinds) -> dict[tuple[Node, int], int]:
    """The column of the model's input that each column of a graph input is."""
    return {
        (node, i): column
        for node, columns in zip(inputs, input_layout(kinds).values(), strict=True)
        for i, column in enumerate(columns)
    }


def _by_column(needs: Sequence[tuple[Node | Frame, int]], inputs: Sequence[Node], kinds: Kinds) -> list[int]:
    """The largest number that converters gave to values that have their dtype from an input column; 0 for other columns."""
    origin = _origins(inputs, kinds)
    bits = [0] * len(kinds)
    for x, least in needs:
        for place in dtype_givers(x):
            column = origin.get(place)
            if column is not None:
                bits[column] = max(bits[column], least)
    return bits


def _otherwise_read(graph: Graph, inputs: Sequence[Node], kinds: Kinds) -> set[int]:
    """The columns of strings that others read than HashText, to which any string is as good as another."""
    kept = (Check, Concat, SelectColumns)
    readers = [(node.op, source) for node in graph.nodes for source in node.inputs if source.type.dtype == "str"]
    others = [source for op, source in readers if not isinstance(op, (HashText, *kept)) or isinstance(op, CheckValues)]
    others += [node for group in graph.outputs.values() for node in group if node.type.dtype == "str"]
    return set(np.flatnonzero(_by_column([(x, 1) for x in others], inputs, kinds)).tolist())


def _unread_columns(graph: Graph, kinds: Kinds) -> frozenset[int]:
    """The input columns that no operator reads and no method gives: the caller's values there are never looked at."""
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


def _returns_text(model: Any) -> bool:
    """Whether labels that are Python objects come as strings of a fixed width, by the estimator that predicts."""
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
                    return name in registry.TEXT_LABELS
                model = model.best_estimator_


def _kept(dtype: np.dtype[Any], graph: Graph) -> str:
    """The kind of a dtype of labels; "f16" for float16, which has no tensor type, where `predict` returns it (chains return float64)."""
    half = dtype == np.float16 and "predict" in graph.outputs and graph.outputs["predict"][0].type.dtype == "f32"
    return "f16" if half else dtype.kind


def _given_dtype(y: Node, kept: Sequence[tuple[Node, Node]]) -> list[Node]:
    """The columns of the model's input in whose dtype the source gives y: those that y has as they are, or says (`in_dtype_of`)."""
    if y.type.dtype == "str":
        return []
    source = next((x for made, x in kept if made is y and x is not y), None)
    if source is not None:
        return _given_dtype(source, kept)
    if None not in untouched(y):
        return _read_with(y)
    parts = [_given_dtype(part, kept) for part in y.inputs] if isinstance(y.op, (Check, Concat, SelectColumns)) else []
    return [node for part in parts for node in part] if all(parts) else []


def _read_with(x: Node) -> list[Node]:
    """What the source has made one array of: x, or those of which an estimator has kept the columns x."""
    sources = x.inputs if isinstance(x.op, (Concat, SelectColumns)) else ()
    found = [node for source in sources for node in _read_with(source)]
    return found if any(isinstance(node.op, Check) for node in found) else [x]


def _info(model: Any, name: str, graph: Graph) -> ModelInfo:
    attributes: dict[str, object] = {}
    for attribute in ("classes_", "n_features_in_", "feature_names_in_", "n_outputs_"):
        value = getattr(model, attribute, None)
        if value is not None:
            attributes[attribute] = value
    attributes.update(registry.ATTRIBUTES.get(name, lambda _: {})(model))
    classes = attributes.get("classes_")
    if isinstance(classes, list) and {_kept(np.asarray(each).dtype, graph) for each in classes} in ({"u"}, {"O"}, {"f16"}):
        classes = np.concatenate(classes)  # of several targets, whose labels stand side by side
    dtypes = {}
    if (
        isinstance(classes, np.ndarray)
        and "predict" in graph.outputs
        and not (classes.dtype == object and _returns_text(model))
    ):
        # Not every `predict` of a classifier returns labels: a custom objective's gives the sums of leaves.
        labelled = not graph.outputs["predict"][0].type.is_float or classes.dtype.kind == "f"
        dtypes = {method: classes.dtype.str for method in ("predict", "staged_predict") if labelled and method in graph.outputs}
    if name in registry.OBJECT_STRINGS:
        dtypes |= {method: "|O" for method, (first, *_) in graph.outputs.items() if first.type.dtype == "str"}
    without_rows = registry.WITHOUT_ROWS.get(name, lambda _: {})(model)
    given_back = ("transform",) if registry.GIVES_BACK.get(name, lambda _: False)(model) else ()
    return ModelInfo(name, attributes, dtypes, without_rows, _sparse(model, graph), given_back=given_back)


def _held_sparse(model: Any, outputs: registry.Outputs) -> registry.Outputs:
    """Where `transform` returns one-hot codes or distances in a sparse matrix, or what it computes from a dense matrix's entries, the
    host only puts the entries together."""
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
    """The same matrix, held as entries."""
    if _is_one_hot(node):
        return held_one_hot([node])
    match node.op:
        case Scatter(width):
            return ScatterEntries(width)(*node.inputs)
        case Present():
            return PresentEntries()(*node.inputs)
    return None


def _sparse(model: Any, graph: Graph) -> dict[str, tuple[str, ...]]:
    """Of scikit-learn's `transform`, where what it returns is sparse."""
    if "transform" not in graph.outputs or not type(model).__module__.startswith("sklearn."):
        return {}
    found = tuple(sparse_format(model, given) for given in ("", "csr *", "csc *"))
    kind = sparse_class()
    return {"transform": tuple(name and f"{name[:3]}_{kind}{name[3:]}" for name in found)} if any(found) else {}
