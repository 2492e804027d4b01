"""The walk through a model: it calls the converter of every estimator in it, and notes every refusal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hbc.errors import Culprit, NotFittedError, UnsupportedOperatorError
from hbc.ir.graph import Input, Node
from hbc.ir.signature import Sparse
from hbc.ir.types import DTypeError, N
from hbc.ops.columns import SelectColumns
from hbc.parser import registry
from hbc.parser.frame import Frame, Refusal, as_matrix, nodes_of
from hbc.parser.front_door import Notes, as_numbers, note_input, noting
from hbc.parser.registry import Outputs, load_converters, public_name
from hbc.parser.release import require_release
from hbc.parser.replaced import replaced_inside, replaced_methods
from hbc.parser.sparsity import rejects_sparse
from hbc.parser.unsupported import reason_against


@dataclass
class _Walk:
    """Where a walk stands, and every refusal so far."""

    notes: Notes
    culprits: list[Culprit] = field(default_factory=list)
    frames: dict[tuple[Node, ...], Frame] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)
    """The ids of the objects whose methods are known not to be replaced."""


_walk: ContextVar[_Walk] = ContextVar("hbc_parser_walk")


@contextmanager
def walk() -> Iterator[Notes]:
    """A context around the conversion of a whole model; it gives the notes of the converters. If an estimator is refused, the walk goes on.
    At the end one UnsupportedOperatorError with every culprit is raised."""
    with noting() as notes:
        state = _Walk(notes)
        token = _walk.set(state)
        try:
            yield notes
            if state.culprits:
                raise UnsupportedOperatorError(culprits=state.culprits)
        except UnsupportedOperatorError as error:
            culprits = dict.fromkeys([*state.culprits, *error.culprits])
            raise UnsupportedOperatorError(culprits=list(culprits)) from error.__cause__
        finally:
            _walk.reset(token)


def convert(model: Any, x: Node | Frame) -> Outputs:
    """All methods of one estimator. Raises UnsupportedOperatorError or NotFittedError."""
    state = _walk.get()
    path = ".".join(state.notes.path)
    name = public_name(type(model))
    state.notes.packages.add(name.partition(".")[0])
    load_converters(name)
    require_convertible(model)
    entry = registry.CONVERTERS[name]
    if rejects_sparse(model, x):
        note_input(Sparse(accepted=False))
    try:
        result = entry.function(model, x if entry.frame else as_numbers(x))
    except Refusal as refusal:
        culprit = Culprit(name, path, refusal.reason, refusal.advice)
        raise UnsupportedOperatorError(culprits=[culprit]) from refusal
    except DTypeError as error:
        reason = f"its input or its parameters have a dtype that hbc does not know: {error}."
        culprit = Culprit(name, path, reason, "Fit it on float32 or float64.")
        raise UnsupportedOperatorError(culprits=[culprit]) from error
    except np.linalg.LinAlgError as error:
        culprit = Culprit(
            name, path, f"the source library's own computation with its parameters fails: {error}.", "Fit it on other data."
        )
        raise UnsupportedOperatorError(culprits=[culprit]) from error
    if inside := [_replaced(each, f"{path}.{inner}", names) for inner, each, names in replaced_inside(model, state.seen)]:
        raise UnsupportedOperatorError(culprits=inside)
    if isinstance(result, Frame):
        blocks = result.blocks()
        state.frames[blocks] = result
        result = {"transform": blocks}
    outputs = result if isinstance(result, Mapping) else {"transform": result}
    values = {method: node if isinstance(node, tuple) else (node,) for method, node in outputs.items()}
    for method, nodes in values.items():
        if not str(method).isidentifier() or str(method).startswith("_") or not all(isinstance(node, Node) for node in nodes):
            kinds = ", ".join(type(node).__name__ for node in nodes)
            raise TypeError(
                f"the converter of {name} at {path} returned {kinds} for {method!r}, expected a Node (hbc.ops.tensor makes them), "
                "or a dict from public method names to Nodes."
            )
    return values


def require_convertible(model: Any) -> None:
    """Raise UnsupportedOperatorError or NotFittedError if the model cannot convert, for any input: its class has no converter, it is not
    fitted, or methods were replaced on the instance; BackendUnavailableError if its library is too old."""
    name, path = public_name(type(model)), ".".join(_walk.get().notes.path)
    if name not in registry.CONVERTERS:
        raise UnsupportedOperatorError(culprits=[_unknown(type(model), name, path)])
    require_release(name.partition(".")[0])
    if not _is_fitted(model):
        raise NotFittedError(operator=name, path=path)
    _walk.get().seen.add(id(model))
    if replaced := replaced_methods(model):
        raise UnsupportedOperatorError(culprits=[_replaced(model, path, replaced)])


def _replaced(model: Any, path: str, methods: Sequence[str]) -> Culprit:
    """The refusal of a model of which these methods were replaced on the instance."""
    were = "was" if len(methods) == 1 else "were"
    reason = f"its {' and '.join(methods)} {were} replaced on this instance, but hbc compiles the methods of the class."
    advice = f"Delete the attribute (del model.{methods[0]}), or write a subclass and register a converter for it."
    return Culprit(public_name(type(model)), path, reason, advice)


def child(model: Any, x: Node | Frame, path: str) -> Outputs:
    """The outputs of an estimator inside another, by method. `path` is its path from the outer one, such as `steps[0] 'scaler'`.

    If the child is refused, that is noted, and stand-ins with its output shapes are returned, so that one error can name every culprit.
    """
    state = _walk.get()
    state.notes.path.append(path)
    try:
        return convert(model, x)
    except UnsupportedOperatorError as error:
        state.culprits.extend(error.culprits)
        return _stand_in(model)
    finally:
        state.notes.path.pop()


def children(members: Iterable[tuple[Any, Node | Frame, str]]) -> list[Outputs]:
    """The outputs of several estimators inside another (`child`). If one is refused, the others are converted all the same, to find every
    culprit. Then UnsupportedOperatorError is raised, so that the caller never computes with stand-ins."""
    state = _walk.get()
    before = len(state.culprits)
    outputs = [child(*member) for member in members]
    if len(state.culprits) > before:
        raise UnsupportedOperatorError(culprits=state.culprits[before:])
    return outputs


@contextmanager
def note_unconvertible(model: Any, path: str) -> Iterator[None]:
    """A context in which the path leads to an estimator that cannot be converted because its input is not known. If its class has no
    converter, it is noted as a culprit."""
    state = _walk.get()
    state.notes.path.append(path)
    name = public_name(type(model))
    load_converters(name)
    if name not in registry.CONVERTERS:
        state.culprits.append(_unknown(type(model), name, ".".join(state.notes.path)))
    try:
        yield
    finally:
        state.notes.path.pop()


def transform_child(model: Any, x: Node | Frame, path: str) -> Node:
    """The `transform` of an estimator inside another, as one matrix."""
    return as_matrix(transformed_child(model, x, path))


def transformed_child(model: Any, x: Node | Frame, path: str) -> Node | Frame:
    """The `transform` of an estimator inside another; a Frame if its converter returned one."""
    nodes = child(model, x, path)["transform"]
    frame = _walk.get().frames.get(nodes)
    if frame is not None:
        return frame
    (node,) = nodes
    if node not in nodes_of(x):  # a node that is handed through keeps its own maker
        _walk.get().notes.makers.setdefault(node, (model, x))
    return node


def handed_through(x: Frame) -> Node:
    """x as one matrix, a new node of which `transformed_child` makes the frame again: the source hands on the very columns of x."""
    node = SelectColumns(np.arange(len(x)))(x.matrix())
    _walk.get().frames[(node,)] = x
    return node


def _stand_in(model: Any) -> Outputs:
    """Stand-ins of the right shapes for the outputs of a refused estimator, by method. They never reach a graph, since the refusal is
    raised in the end. Raises UnsupportedOperatorError at once if the width of `transform` is not known."""

    def value(name: str, *shape: int) -> tuple[Node, ...]:
        return (Input(f"refused_{name}", "f64", (N, *shape))(),)

    classes = np.size(getattr(model, "classes_", (0, 1)))
    outputs: Outputs = {
        "predict": value("predict"),
        "predict_proba": value("predict_proba", classes),
        "decision_function": value("decision_function"),
    }
    try:
        width = len(model.get_feature_names_out())
    except Exception:
        width = None
    if not width and hasattr(model, "transform"):
        # The estimators behind it cannot be converted without its output, so the culprits found so far are raised now.
        raise UnsupportedOperatorError(culprits=_walk.get().culprits)
    if width:
        outputs["transform"] = value("transform", width)
    return outputs


def _unknown(cls: type, name: str, path: str) -> Culprit:
    parents = [public_name(base) for base in cls.__mro__[1:] if public_name(base) in registry.CONVERTERS]
    reason = reason_against(cls, name) or "no converter is registered for this class."
    if parents:
        reason = f"no converter is registered for this subclass of {parents[0]}, which may compute something else."
    return Culprit(name, path, reason, f'Register one with @hbc.converts("{name}"), or replace it by a supported estimator.')


def _is_fitted(model: Any) -> bool:
    """Whether the model is fitted, by the rules of sklearn.utils.validation.check_is_fitted. An object without scikit-learn's interface
    counts as fitted, a class does not."""
    if isinstance(model, type) or not (hasattr(model, "fit") and hasattr(model, "get_params")):
        return not isinstance(model, type)
    if hasattr(model, "__sklearn_is_fitted__"):
        fitted = bool(model.__sklearn_is_fitted__())
    elif public_name(type(model)) in registry.FITTED_BY_MEMBER and _is_fitted(model.estimator):
        fitted = True
    elif public_name(type(model)).startswith("catboost."):
        fitted = model.is_fitted()  # a sum of models has no member whose name ends with "_"
    else:
        fitted = any(name.endswith("_") and not name.startswith("__") for name in vars(model))
    # The tags come last: those of CatBoost import scikit-learn.
    return fitted or (hasattr(model, "__sklearn_tags__") and not model.__sklearn_tags__().requires_fit)
