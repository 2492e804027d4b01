"""scikit-learn's `set_output`: whether `transform` returns a frame, of which library, and where its columns come from.

An estimator's own configuration decides. Without one, `sklearn.set_config(transform_output=...)` decides, as it is when the model is
converted. From then on it belongs to the compiled model, wherever that is loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hbc.errors import Culprit, UnsupportedOperatorError
from hbc.ir.graph import Node
from hbc.ir.signature import FRAME_LIBRARIES, FrameOutput
from hbc.lazy import record
from hbc.parser.frame import Refusal, select_columns
from hbc.parser.registry import public_name
from hbc.parser.sparsity import gives_sparse

ADVICE = 'Call set_output(transform="default") before convert, and name the columns by get_feature_names_out().'


@record
class Value:
    """The container in which a value flows from one estimator to the next: an array, or a frame of some library."""

    library: str
    """The frame's library; "input" for the container that the caller passes, "" for an array."""
    origins: tuple[int, ...] = ()
    """For each column: the number of the input column that it is, unchanged and in its own dtype, or -1 if it is computed. Empty for an
    array, whose columns are all computed."""
    names: tuple[str, ...] | None = None
    """The names of its columns, if they are known."""
    index: bool = False
    """The rows have the index of the caller's frame."""
    mixed: bool = False
    """Computed columns may be of several dtypes."""
    native: bool = False
    """The source has computed with the caller's own frame, which must then be of the result's library."""
    checked: bool = False
    """An estimator that keeps columns has looked at their values, if they came in an array; it does not look into frames."""
    asked: bool = False
    """A frame was asked for."""

    def select(self, indices: Sequence[int]) -> Value:
        origins = tuple(self.origins[i] if self.origins else -1 for i in indices)
        names = None if self.names is None else tuple(self.names[i] for i in indices)
        return replace(self, origins=origins, names=names)


def configured(m: Any) -> str:
    """What an estimator's `transform` is set to return: "default", "pandas" or "polars"."""
    sklearn = sys.modules.get("sklearn")
    everywhere = "default" if sklearn is None else sklearn.get_config()["transform_output"]
    return str(getattr(m, "_sklearn_output_config", {}).get("transform", everywhere))


def library_of(m: Any) -> str:
    """The library of the frames that an estimator itself makes; "" if it makes none (scikit-learn's `_auto_wrap_is_configured`)."""
    kind = configured(m)
    wraps = "transform" in getattr(m, "_sklearn_auto_wrap_output_keys", ()) and hasattr(m, "get_feature_names_out")
    return kind if wraps and kind != "default" else ""


def frame_output(model: Any, n_features: int) -> FrameOutput | None:
    """The frame that the model's `transform` returns: library, names, origins. None if it returns an array. Raises
    UnsupportedOperatorError if its columns cannot be known."""
    try:
        value = _transformed(model, Value("input", tuple(range(n_features)), None, index=True))
        if value.library == "input" and value.asked:
            raise Refusal("it gives a frame for a frame, and an array for an array.")
        if value.library not in ("", "input", *FRAME_LIBRARIES):
            raise Refusal(f"no library is called {value.library}.")
    except Refusal as refusal:
        reason = f"set_output: {refusal.reason}"
        culprit = Culprit(public_name(type(model)), "model", reason, refusal.advice or ADVICE)
        raise UnsupportedOperatorError(culprits=[culprit]) from refusal
    if value.library in ("", "input"):
        return None
    names = value.names or ()
    if value.library == "polars" and len(set(names)) < len(names):
        reason = "set_output: polars has no frames with two columns of one name, and the source library raises an error."
        raise UnsupportedOperatorError(culprits=[Culprit(public_name(type(model)), "model", reason, ADVICE)])
    arrays = not value.checked or min(value.origins, default=-1) >= 0
    return FrameOutput(value.library, names, value.origins, value.index, value.native, arrays)


def computed(model: Any, nodes: tuple[Node, ...], output: FrameOutput) -> tuple[Node, ...]:
    """The columns that the graph has to compute, in blocks of one dtype. If there are none, all columns: arrays are checked with them."""
    widths = [node.type.columns if len(node.type.shape) == 2 else 1 for node in nodes]
    if sum(widths) != len(output.origins) or any(len(node.type.shape) > 2 for node in nodes):
        reason = f"set_output: it computes {sum(widths)} columns, but names {len(output.origins)}."
        raise UnsupportedOperatorError(culprits=[Culprit(public_name(type(model)), "model", reason, ADVICE)])
    kept, start = [], 0
    for node, width in zip(nodes, widths, strict=True):
        made = [j for j in range(width) if output.origins[start + j] < 0]
        if made:
            kept.append(node if len(made) == width else select_columns(node, made))
        start += width
    return tuple(kept) or nodes


def _transformed(m: Any, x: Value) -> Value:
    """The container of `m.transform`'s result for a value."""
    if m is None or (isinstance(m, str) and m == "passthrough"):
        return x
    name = public_name(type(m))
    if name == "sklearn.pipeline.Pipeline":
        for _, step in m.steps:
            x = _transformed(step, x)
        return x
    if name == "sklearn.frozen.FrozenEstimator" or hasattr(m, "best_estimator_"):
        return _transformed(getattr(m, "best_estimator_", None) or m.estimator, x)
    if name == "sklearn.preprocessing.FunctionTransformer" and not m.validate:
        return _function(m, x)
    if name == "sklearn.compose.ColumnTransformer":
        pairs = [(member, x.select(m._transformer_to_input_indices[key])) for key, member, _ in m.transformers_]
        return _stacked(m, [(member, part) for member, part in pairs if part.origins])
    if name == "sklearn.pipeline.FeatureUnion":
        return _stacked(m, [(member, x) for _, member in m.transformer_list])
    library = library_of(m)
    if not library:
        return Value("")
    if not name.startswith("sklearn."):
        raise Refusal(f"{name} may give frames of its own.")
    if name.startswith("sklearn.feature_selection.") and x.library:
        return _selected(m, x, library)
    if gives_sparse(m, False) or name.endswith("NeighborsTransformer"):
        raise Refusal(
            f"{name} gives a sparse matrix, which the source library does not put into a frame.", "Use sparse_output=False."
        )
    names = _names(m)
    index = library == "pandas" and x.index and x.library in ("input", "pandas")
    return Value(library, (-1,) * len(names), names, index, asked=True)


def _names(m: Any) -> tuple[str, ...]:
    try:
        return tuple(map(str, m.get_feature_names_out()))
    except Exception as error:  # whatever a third party's transformer raises
        name = public_name(type(m))
        raise Refusal(f"the columns of {name} have no names ({type(error).__name__}: {error}).", ADVICE) from error


def _function(m: Any, x: Value) -> Value:
    """The container of a FunctionTransformer's result. Its function receives the frame itself, not an array of it."""
    library = library_of(m)
    if m.func is not None and x.library and (library or x.asked or x.library != "input"):
        if not (isinstance(m.func, np.ufunc) and not m.kw_args and m.func(np.int64(1)).dtype.kind == "f"):
            raise Refusal("a FunctionTransformer computes with frames, whose columns may each have another dtype afterwards.")
        if -1 in x.origins and x.mixed:
            raise Refusal("a FunctionTransformer computes with a frame of several dtypes.")
        x = replace(x, origins=(-1,) * len(x.origins), native=x.native or x.library == "input", mixed=True)
    elif m.func is not None:
        x = Value("")
    if not library:
        return replace(x, asked=x.asked or configured(m) != "default")
    if x.library not in ("input", "", library):
        raise Refusal(f"a FunctionTransformer makes a frame of {library} of one of {x.library}.")
    names = _names(m)
    index = x.index and library == "pandas"
    native = x.native or x.library == "input"
    return replace(
        x, library=library, origins=x.origins or (-1,) * len(names), names=names, index=index, native=native, asked=True
    )


def _selected(m: Any, x: Value, library: str) -> Value:
    """The container of a selector's result. A selector keeps the columns
    of a pandas frame unchanged, and reads any other frame as an array."""
    computed_alone = x.library != "input" and max(x.origins, default=-1) < 0
    if (library != "pandas" or x.library == "polars") and not computed_alone:
        raise Refusal(f"{public_name(type(m))} gives columns in dtypes that hbc does not follow there.")
    if x.mixed:
        raise Refusal(f"{public_name(type(m))} is given a frame of several dtypes.")
    kept = x.select(np.flatnonzero(m.get_support()).tolist())
    native = x.native or x.library == "input"
    return replace(kept, library=library, names=_names(m), native=native, checked=True, asked=True)


def _stacked(m: Any, jobs: Sequence[tuple[Any, Value]]) -> Value:
    """The container of the results of several transformers side by side: a frame, if all results are frames of the configured library."""
    library = library_of(m)
    if not library:
        return Value("")
    parts = []
    for member, x in jobs:
        if isinstance(member, str) and member == "drop":
            continue
        part = _transformed(member, x)
        if part.library == "input" and min(part.origins, default=-1) >= 0:
            index = part.index and library == "pandas"
            part = replace(part, library=library, index=index, native=True, checked=True)  # a frame for a frame
        if part.library != library:
            raise Refusal(
                f"{public_name(type(m))} is configured to return frames of {library}, but a transformer in it is not."
            )
        parts.append(part)
    origins = tuple(origin for part in parts for origin in part.origins)
    if m.transformer_weights and max(origins, default=-1) >= 0:
        raise Refusal("transformer_weights multiply columns of the input, each in its own dtype.")
    if len({part.index for part in parts}) > 1:
        raise Refusal("its parts have different indices.")
    return Value(
        library,
        origins,
        _names(m),
        all(part.index for part in parts),
        len(parts) > 1 or any(part.mixed for part in parts),
        any(part.native for part in parts),
        any(part.checked for part in parts),
        asked=True,
    )


def keeps_parts_apart(m: Any) -> bool:
    """Whether a ColumnTransformer or FeatureUnion returns a frame. Every part then keeps its own dtypes."""
    return bool(library_of(m))


def hands_on(m: Any) -> str:
    """The library of the frames that a step hands to the next step; "" if it hands on arrays."""
    while (members := getattr(m, "steps", None)) or hasattr(m, "best_estimator_"):
        m = members[-1][1] if members else m.best_estimator_
    return library_of(m)
