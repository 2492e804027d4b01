"""The converter for TransformedTargetRegressor of sklearn.compose, and the inverses of transformers that it needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hbc.ir.graph import Node
from hbc.ir.types import NUMPY_DTYPES, Array, N, dtype_name
from hbc.ops import tensor as t
from hbc.ops.curves import Interpolate
from hbc.ops.scaling import Affine, Standardize
from hbc.parser.frame import Frame, Refusal
from hbc.parser.registry import Result, converts, public_name
from hbc.parser.sklearn.pipeline import gives_input_to, is_identity
from hbc.parser.sklearn.shared.common import as_float, checked
from hbc.parser.sklearn.shared.error_function import normal_distribution
from hbc.parser.sklearn.shared.members import as_columns, convert_members, value

TRANSFORMED = "sklearn.compose.TransformedTargetRegressor"
Inverse = Callable[[Any, Node], Node]
INVERSES: dict[str, Inverse] = {}
"""Public name of a transformer's class → its `inverse_transform` of a matrix."""


def inverts(name: str) -> Callable[[Inverse], Inverse]:
    """A decorator that registers a function for INVERSES."""

    def register(function: Inverse) -> Inverse:
        INVERSES[name] = function
        return function

    return register


@gives_input_to(TRANSFORMED)
def _regressor(m: Any) -> Sequence[Any]:
    return [m.regressor_]


@converts(TRANSFORMED, frame=True)
def transformed_target_regressor(m: Any, x: Node | Frame) -> Result:
    """`predict` gives transformer_.inverse_transform of the regressor's prediction: a vector if the targets were one."""
    (outputs,) = convert_members([m.regressor_], x, "regressor_")
    y = inverse(m.transformer_, as_columns(value(m.regressor_, outputs, "predict")))
    return {"predict": t.reshape(y, N) if m._training_dim == 1 and y.type.columns == 1 else y}


def inverse(m: Any, y: Node) -> Node:
    """m.inverse_transform(y). Raises Refusal for a transformer whose inverse is not known here."""
    if is_identity(m):
        return y
    name = public_name(type(m))
    if name not in INVERSES:
        known = ", ".join(sorted(other.rpartition(".")[2] for other in INVERSES))
        raise Refusal(f"the inverse of its transformer {name} is not known.", f"Use one of {known}.")
    return INVERSES[name](m, y)


def _numbers(m: Any, y: Node) -> Node:
    return as_float(checked(m, y, allow_nan=True))


@inverts("sklearn.pipeline.Pipeline")
def _pipeline(m: Any, y: Node) -> Node:
    for _, step in reversed(m.steps):
        y = inverse(step, y)
    return y


@inverts("sklearn.preprocessing.StandardScaler")
def _standard_scaler(m: Any, y: Node) -> Node:
    y = _numbers(m, y)
    dtype = NUMPY_DTYPES[y.type.dtype]  # the source casts its parameters to the dtype of y
    return _rescaled(y, m.scale_ if m.with_std else None, m.mean_ if m.with_mean else None, dtype)


@inverts("sklearn.preprocessing.RobustScaler")
def _robust_scaler(m: Any, y: Node) -> Node:
    return _rescaled(_numbers(m, y), m.scale_ if m.with_scaling else None, m.center_ if m.with_centering else None, None)


def _rescaled(y: Node, scale: Array | None, offset: Array | None, dtype: np.dtype[Any] | None) -> Node:
    """y · scale + offset, rounded to y's dtype after each step (numpy's `y *= scale; y += offset`). None leaves a step out. `dtype`: the
    dtype to which the parameters are cast first; None: their own."""
    own = NUMPY_DTYPES[y.type.dtype]
    parameters = [
        np.full(y.type.columns, neutral, own) if parameter is None else np.asarray(parameter, dtype)
        for parameter, neutral in ((scale, 1), (offset, 0))
    ]
    return Affine(*parameters)(y)


@inverts("sklearn.preprocessing.MinMaxScaler")
def _min_max_scaler(m: Any, y: Node) -> Node:
    return Standardize(m.min_, m.scale_)(_numbers(m, y))


@inverts("sklearn.preprocessing.MaxAbsScaler")
def _max_abs_scaler(m: Any, y: Node) -> Node:
    return _rescaled(_numbers(m, y), m.scale_, None, None)


@inverts("sklearn.preprocessing.QuantileTransformer")
def _quantile_transformer(m: Any, y: Node) -> Node:
    """The quantiles, interpolated over their levels. For a normal output distribution the level is Φ(y); within 1e-7 of 0 or 1 it is the
    first or last quantile."""
    y = _numbers(m, y)
    quantiles = np.asarray(m.quantiles_, np.float64).T
    levels = np.broadcast_to(np.asarray(m.references_, np.float64), quantiles.shape)
    interpolated = Interpolate(levels, quantiles)
    if m.output_distribution == "uniform":
        return t.cast(interpolated(t.cast(y, "f64")), y.type.dtype)
    level = normal_distribution(t.cast(y, "f64"))
    lower, upper = t.less(t.sub(level, 1e-7), 0.0), t.less(1.0, t.add(level, 1e-7))
    inner = t.where(upper, quantiles[:, -1], interpolated(level))
    return t.cast(t.where(lower, quantiles[:, 0], inner), y.type.dtype)


@inverts("sklearn.preprocessing.PowerTransformer")
def _power_transformer(m: Any, y: Node) -> Node:
    y = _numbers(m, y)
    if m.standardize:
        y = _standard_scaler(m._scaler, y)
    invert = _inverse_box_cox if m.method == "box-cox" else _inverse_yeo_johnson
    each = [invert(t.take(y, np.array([i]), axis=1), np.float64(power)) for i, power in enumerate(m.lambdas_)]
    return t.concat([t.cast(one, y.type.dtype) for one in each])


def _inverse_box_cox(y: Node, power: np.float64) -> Node:
    """e^y if λ = 0, else e^(ln(1 + λy) / λ), in float64 (scipy.special.inv_boxcox)."""
    y = t.cast(y, "f64")
    return t.exp(y) if power == 0 else t.exp(t.div(t.log1p(t.mul(y, power)), power))


def _inverse_yeo_johnson(y: Node, power: np.float64) -> Node:
    """(λy + 1)^(1/λ) - 1 if y ≥ 0, else 1 - (1 - (2 - λ)y)^(1/(2-λ)), in the common dtype of y and λ."""
    y = t.cast(y, dtype_name(np.result_type(NUMPY_DTYPES[y.type.dtype], power.dtype)))
    other = 2 - power
    curved, other_curved = abs(power) >= np.spacing(1.0), abs(other) > np.spacing(1.0)
    upper = t.power(t.add(t.mul(y, power), 1.0), 1 / power) if curved else t.exp(y)
    lower = t.power(t.add(t.mul(y, -other), 1.0), 1 / other) if other_curved else t.exp(t.neg(y))
    return t.where(t.less_equal(0.0, y), t.sub(upper, 1.0), t.sub(1.0, lower))


def _in_float(function: Callable[[Node], Node]) -> Callable[[Node], Node]:
    """The same function, with integers cast to float64 first."""
    return lambda y: function(as_float(y))


# The backends' own exponentials and logarithms are good enough here: nothing behind a prediction branches on its last bit. (Functions
# before a tree need numpy's bits.)
FUNCTIONS: dict[Any, Callable[[Node], Node]] = {
    None: lambda y: y,
    np.positive: lambda y: y,
    np.exp: _in_float(t.exp),
    np.expm1: _in_float(t.expm1),
    np.exp2: _in_float(lambda y: t.exp(t.mul(y, np.log(2.0)))),
    np.log: _in_float(t.log),
    np.log1p: _in_float(t.log1p),
    np.log2: _in_float(lambda y: t.div(t.log(y), np.log(2.0))),
    np.log10: _in_float(lambda y: t.div(t.log(y), np.log(10.0))),
    np.sqrt: _in_float(t.sqrt),
    np.tanh: _in_float(t.tanh),
    np.square: lambda y: t.mul(y, y),
    np.negative: t.neg,
    np.absolute: t.absolute,
    np.reciprocal: _in_float(lambda y: t.div(1.0, y)),
}
"""inverse_func → how to compute it. The key is the function itself, so that no other function of the same name passes for it."""


@inverts("sklearn.preprocessing.FunctionTransformer")
def _function_transformer(m: Any, y: Node) -> Node:
    try:
        function = FUNCTIONS.get(m.inverse_func)
    except TypeError:  # unhashable
        function = None
    if function is None or m.inv_kw_args:
        known = ", ".join(f"np.{key.__name__}" for key in FUNCTIONS if key is not None)
        name = getattr(m.inverse_func, "__name__", repr(m.inverse_func))
        raise Refusal(f"its inverse_func {name} is arbitrary Python code.", f"Use one of {known}, without further arguments.")
    if not y.type.is_float and m.inverse_func is np.reciprocal:
        raise Refusal("numpy's reciprocal of integers is an integer.", "Predict floats.")
    return function(checked(m, y) if m.validate else y)
