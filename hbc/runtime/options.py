"""The options of `predict` in LightGBM and XGBoost. Those that ask for another output name another method of the compiled model. Those that
ask for other computations raise an error that says what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy import ndarray

from hbc.errors import InvalidInputError, shown

ELSEWHERE = {"raw_score": "raw_score", "output_margin": "raw_score", "pred_leaf": "apply"}
"""Option that asks for another output → the method that returns it."""

FIRST = 0
"""The usual `start_iteration`. CPython has one object for it, which `is` finds in 0.03 µs less than a look at the type and the value."""
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


def _lightgbm(name: str) -> Callable[..., Any]:
    # The usual way is that of every method (`_plain_method` in model.py), here once more: a call of it would take 30 ns.
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
        if (
            raw_score is not False
            or start_iteration is not FIRST
            or num_iteration is not None
            or pred_leaf is not False
            or pred_contrib is not False
            or validate_features is not False
        ):
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
            if given:
                return _by_options(self, name, X, given)
        quick = self._calls[name].quick
        result = quick(X)
        if result is not None:
            return result
        if type(X) is ndarray:
            short = self._short[name].get(X.dtype)
            if short is not None:
                shape = X.shape
                if len(shape) == 2 and shape[1] == self._width and shape[0] >= short[1] and X.flags.carray:
                    result = short[0](X, shape[0])
                    if result is not None:
                        return result
        return self._calls[name](X)

    return method


def _of_xgboost(validate_features: Any, base_margin: Any, iteration_range: tuple[int, int] | None) -> dict[str, Any]:
    """Those of these options that are not XGBoost's defaults."""
    options = {
        "validate_features": None if _on(validate_features) else validate_features,
        "base_margin": base_margin,
        "iteration_range": None if _all_rounds(iteration_range) else iteration_range,
    }
    return {option: value for option, value in options.items() if value is not None}


def _xgboost(name: str) -> Callable[..., Any]:
    def method(
        self: Any,
        X: Any,
        output_margin: bool = False,
        validate_features: bool = True,
        base_margin: Any = None,
        iteration_range: tuple[int, int] | None = None,
        pred_leaf: bool = False,
    ) -> Any:
        if (
            output_margin is not False
            or validate_features is not True
            or base_margin is not None
            or iteration_range is not None
            or pred_leaf is not False
        ):
            first = {} if _off(output_margin) else {"output_margin": output_margin}
            last = {} if _off(pred_leaf) else {"pred_leaf": pred_leaf}
            if given := {**first, **_of_xgboost(validate_features, base_margin, iteration_range), **last}:
                return _by_options(self, name, X, given)
        quick = self._calls[name].quick
        result = quick(X)
        if result is not None:
            return result
        if type(X) is ndarray:
            short = self._short[name].get(X.dtype)
            if short is not None:
                shape = X.shape
                if len(shape) == 2 and shape[1] == self._width and shape[0] >= short[1] and X.flags.carray:
                    result = short[0](X, shape[0])
                    if result is not None:
                        return result
        return self._calls[name](X)

    return method


def _xgboost_probabilities(name: str) -> Callable[..., Any]:
    def method(
        self: Any,
        X: Any,
        validate_features: bool = True,
        base_margin: Any = None,
        iteration_range: tuple[int, int] | None = None,
    ) -> Any:
        if (validate_features is not True or base_margin is not None or iteration_range is not None) and (
            given := _of_xgboost(validate_features, base_margin, iteration_range)
        ):
            return _by_options(self, name, X, given)
        quick = self._calls[name].quick
        result = quick(X)
        if result is not None:
            return result
        if type(X) is ndarray:
            short = self._short[name].get(X.dtype)
            if short is not None:
                shape = X.shape
                if len(shape) == 2 and shape[1] == self._width and shape[0] >= short[1] and X.flags.carray:
                    result = short[0](X, shape[0])
                    if result is not None:
                        return result
        return self._calls[name](X)

    return method


WITH_OPTIONS: dict[tuple[str, str], Callable[[str], Callable[..., Any]]] = {
    ("lightgbm", "predict"): _lightgbm,
    ("lightgbm", "predict_proba"): _lightgbm,
    ("xgboost", "predict"): _xgboost,
    ("xgboost", "predict_proba"): _xgboost_probabilities,
}
"""(library of the source, method) → what makes the method, with the options that the source's has."""
