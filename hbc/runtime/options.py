"""The options of `predict` in LightGBM and XGBoost. Those that ask for another output name another method of the compiled model. Those that
ask for other computations raise an error that says what to do."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from hbc.errors import InvalidInputError, shown

Method = Callable[..., Any]

ELSEWHERE = {"raw_score": "raw_score", "output_margin": "raw_score", "pred_leaf": "apply"}
"""Option that asks for another output → the method that returns it."""

_ROUNDS = "Convert it for these rounds: hbc.convert(model, iteration_range=(first, end))."
ADVICE = {
    "start_iteration": _ROUNDS,
    "num_iteration": _ROUNDS,
    "iteration_range": _ROUNDS,
    "pred_contrib": "hbc computes no contributions (SHAP): ask the source.",
    "base_margin": "Add it to the result of raw_score.",
    "validate_features": "A compiled model compares the names of columns as the source does by default.",
}


def _off(value: Any) -> bool:
    """Whether an option is off: False, None or 0, also as scalars of numpy. An array never is."""
    return value is None or (isinstance(value, (bool, int, float, np.generic)) and not value)


def _on(value: Any) -> bool:
    """Whether an option is on: True or another number than 0. An array never is."""
    return isinstance(value, (bool, int, float, np.generic)) and bool(value)


def _all_rounds(value: Any) -> bool:
    """Whether this is XGBoost's range of all rounds: None, or (0, 0) as a tuple or list."""
    return value is None or (isinstance(value, (tuple, list)) and len(value) == 2 and all(map(_off, value)))


def _by_options(model: Any, method: str, X: Any, given: dict[str, Any]) -> Any:
    """The result of the method that the options ask for. given: those whose values are not the usual ones. Raises
    InvalidInputError."""
    others = {option: ELSEWHERE[option] for option in given if ELSEWHERE.get(option) in model.methods}
    for option, value in given.items():
        if option not in others or value is not True:
            raise InvalidInputError(
                found=shown(value),
                expected="the source's default" + (" or True" if option in others else ""),
                where=f"{method}, option {option}",
                advice=ADVICE.get(option) or ("" if option in others else f"The model has no method {ELSEWHERE[option]}."),
            )
    if len(given) > 1:
        raise InvalidInputError(found=" and ".join(given), expected="one of them", where=f"{method}, options")
    return getattr(model, others[next(iter(given))])(X)


def with_options(name: str, plain: Method, asked: Callable[[str, Method], Method]) -> Method:
    """The method `name`: `plain`, but with the options that `asked(name, plain)` takes. Calls without options do not even look at them: the
    defaults of seven options would cost one row 0.1 µs."""
    full = asked(name, plain)
    full.__name__, full.__qualname__ = name, f"CompiledModel.{name}"

    def method(self: Any, X: Any, *options: Any, **named: Any) -> Any:
        if options or named:
            return full(self, X, *options, **named)
        quick = self._calls[name].quick
        result = quick(X)
        return plain(self, X) if result is None else result

    method.__signature__ = inspect.signature(full)  # type: ignore[attr-defined]
    return method


def _lightgbm(name: str, plain: Method) -> Method:
    def method(
        self: Any,
        X: Any,
        raw_score: bool = False,
        start_iteration: int = 0,
        num_iteration: int | None = None,
        pred_leaf: bool = False,
        pred_contrib: bool = False,
        validate_features: bool = False,
    ) -> Any:
        options = {
            "raw_score": raw_score,
            "start_iteration": start_iteration,
            "pred_leaf": pred_leaf,
            "pred_contrib": pred_contrib,
            "validate_features": validate_features,
        }
        given = {option: value for option, value in options.items() if not _off(value)}
        if num_iteration is not None:
            given["num_iteration"] = num_iteration
        return _by_options(self, name, X, given) if given else plain(self, X)

    return method


def _of_xgboost(validate_features: Any, base_margin: Any, iteration_range: tuple[int, int] | None) -> dict[str, Any]:
    """Those of these options that are not XGBoost's defaults."""
    options = {
        "validate_features": None if _on(validate_features) else validate_features,
        "base_margin": base_margin,
        "iteration_range": None if _all_rounds(iteration_range) else iteration_range,
    }
    return {option: value for option, value in options.items() if value is not None}


def _xgboost(name: str, plain: Method) -> Method:
    def method(
        self: Any,
        X: Any,
        output_margin: bool = False,
        validate_features: bool = True,
        base_margin: Any = None,
        iteration_range: tuple[int, int] | None = None,
        pred_leaf: bool = False,
    ) -> Any:
        first = {} if _off(output_margin) else {"output_margin": output_margin}
        last = {} if _off(pred_leaf) else {"pred_leaf": pred_leaf}
        given = {**first, **_of_xgboost(validate_features, base_margin, iteration_range), **last}
        return _by_options(self, name, X, given) if given else plain(self, X)

    return method


def _xgboost_probabilities(name: str, plain: Method) -> Method:
    def method(
        self: Any,
        X: Any,
        validate_features: bool = True,
        base_margin: Any = None,
        iteration_range: tuple[int, int] | None = None,
    ) -> Any:
        given = _of_xgboost(validate_features, base_margin, iteration_range)
        return _by_options(self, name, X, given) if given else plain(self, X)

    return method


OPTIONS: dict[tuple[str, str], Callable[[str, Method], Method]] = {
    ("lightgbm", "predict"): _lightgbm,
    ("lightgbm", "predict_proba"): _lightgbm,
    ("xgboost", "predict"): _xgboost,
    ("xgboost", "predict_proba"): _xgboost_probabilities,
}
"""(library of the source, method) → what makes the method with the options that the source's has."""
