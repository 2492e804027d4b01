"""Converters for sklearn.gaussian_process: predictions from kernels between x and the training rows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hbc.ir.graph import Node
from hbc.ir.signature import Column
from hbc.ir.types import NUMPY_DTYPES, Array, N, dtype_name
from hbc.ops import tensor as t
from hbc.ops.checks import Check
from hbc.ops.nearest import Distances
from hbc.parser.frame import Refusal
from hbc.parser.front_door import computed_if_it_can_be, note
from hbc.parser.labels import labels
from hbc.parser.registry import Result, converts, public_name
from hbc.parser.sklearn.shared.common import checked, promote
from hbc.parser.sklearn.shared.error_function import erf
from hbc.parser.sklearn.shared.kernels import dense, named, pairwise_kernel, self_kernel, whole_power
from hbc.parser.walk import child

KERNELS = "sklearn.gaussian_process.kernels."
ADVICE = "Compose it of scikit-learn's own kernels."
BINARY = "sklearn.gaussian_process._gpc._BinaryGaussianProcessClassifierLaplace"

Value = Node | float
"""The matrix of a kernel, [N, M], or one number if all its elements are equal."""


def _combined(op: type[t.Binary], a: Value, b: Value) -> Value:
    """a op b in their common dtype. A number counts as float64, because scikit-learn makes a float64 array of it."""
    if not isinstance(a, Node) and not isinstance(b, Node):
        return float(op().evaluate(np.asarray(a, np.float64), np.asarray(b, np.float64)))
    first, second = (value if isinstance(value, Node) else t.constant(np.float64(value)) for value in (a, b))
    common = dtype_name(np.result_type(NUMPY_DTYPES[first.type.dtype], NUMPY_DTYPES[second.type.dtype]))
    return op()(t.cast(first, common), t.cast(second, common))


def _raised(value: Value, exponent: Any) -> Value:
    """value ** exponent, where a numpy float64 as the exponent makes it float64."""
    if isinstance(value, Node):
        wide = isinstance(exponent, np.float64)
        return whole_power(t.cast(value, "f64") if wide else value, exponent)
    with np.errstate(all="ignore"):
        return float(np.float64(value) ** exponent)


def _shift(value: Node, number: Any) -> Node:
    """value + number. A numpy float64 makes it float64; a Python number takes the dtype of value."""
    return t.add(t.cast(value, "f64") if isinstance(number, np.float64) else value, float(number))


def _squared(x: Node, points: Array, length_scale: Any = None) -> Node:
    """Σ_f (x_f / l_f - points_f / l_f)², f64[N, M], as scipy.spatial.distance.cdist computes "sqeuclidean". `length_scale` (l): one number,
    or one for each feature. Raises Refusal for other shapes."""
    x, points = t.cast(x, "f64"), points.astype(np.float64)
    if length_scale is not None:
        scale = np.squeeze(length_scale).astype(np.float64)
        if scale.ndim > 1 or (scale.ndim == 1 and len(scale) != points.shape[1]):
            raise Refusal(f"its kernel has length scales of shape {scale.shape} for {points.shape[1]} columns.")
        x, points = t.div(x, scale), points / scale
    return Distances(points, "squared")(x)


def _matern(distances: Node, nu: float) -> Node:
    """The Matern kernel of scaled distances, in closed form for ν = 0.5, 1.5, 2.5 and infinity (kernels.Matern)."""
    if nu == 0.5:
        return t.exp(t.neg(distances))
    if nu in (1.5, 2.5):
        scaled = t.mul(distances, math.sqrt(2 * nu))
        factor = t.add(scaled, 1.0)
        if nu == 2.5:
            factor = t.add(factor, t.div(t.mul(scaled, scaled), 3.0))
        return t.mul(factor, t.exp(t.neg(scaled)))
    if nu == np.inf:
        return t.exp(t.div(t.neg(t.mul(distances, distances)), 2.0))
    return _bessel(distances, nu)


STEP, DEGREE, FARTHEST = 0.25, 10, 800.0
"""The interpolation in `_bessel`: the length of its intervals, the degree of its polynomials, and the largest z."""


def _bessel(distances: Node, nu: float) -> Node:
    """2^(1-ν) / Γ(ν) · z^ν · K_ν(z) with z = √(2ν) · distance, where K_ν is the modified Bessel function of the second kind.

    The logarithm of this, plus z, is a smooth function g of u = ln z. It is interpolated by polynomials of DEGREE on intervals of u of
    length STEP, to about 1e-14 (measured for ν from 0.1 to 17). Distances of 0 count as epsilon, as in the source. Raises Refusal for a ν
    so large that the source overflows.
    """
    from scipy.special import kve

    root, epsilon = math.sqrt(2 * nu), float(np.finfo(np.float64).eps)
    if nu * math.log(root * epsilon) < -660 or nu <= 0:
        raise Refusal(
            f"its Matern kernel has nu={nu}, for which the source itself overflows.", "Use at most nu=17, or infinity."
        )
    low = STEP * math.floor(math.log(root * epsilon) / STEP)
    count = math.ceil((math.log(FARTHEST) - low) / STEP)
    nodes = np.cos(np.pi * (np.arange(DEGREE + 1) + 0.5) / (DEGREE + 1))
    u = low + STEP * (np.arange(count)[:, None] + 0.5 + 0.5 * nodes)
    g = (1 - nu) * math.log(2) - math.lgamma(nu) + nu * u + np.log(kve(nu, np.exp(u)))
    table = np.linalg.solve(np.vander(nodes, DEGREE + 1, increasing=True), g.T)

    z = t.mul(t.maximum(distances, epsilon), root)
    place = t.div(t.sub(t.minimum(t.log(z), low + STEP * count), low), STEP)
    place = t.where(t.isnan(place), 0.0, place)
    interval = t.minimum(t.floor(place), float(count - 1))
    at, index = t.sub(t.mul(t.sub(place, interval), 2.0), 1.0), t.cast(interval, "i64")
    total = t.take(table[DEGREE], index, 0)
    for k in reversed(range(DEGREE)):
        total = t.add(t.mul(total, at), t.take(table[k], index, 0))
    # If z^ν overflows, the source multiplies infinity by 0, which is NaN.
    return t.where(t.less(z, float(np.finfo(np.float64).max ** (1 / max(nu, 1.0)))), t.exp(t.sub(total, z)), np.nan)


def _kernel(m: Any, k: Any, x: Node, points: Array) -> Value:
    """k(x, points): the kernel between every row and every point. Raises Refusal for kernels that are not scikit-learn's."""
    name = public_name(type(k))
    match name.removeprefix(KERNELS):
        case "Sum":
            return _combined(t.Add, _kernel(m, k.k1, x, points), _kernel(m, k.k2, x, points))
        case "Product":
            return _combined(t.Mul, _kernel(m, k.k1, x, points), _kernel(m, k.k2, x, points))
        case "Exponentiation":
            return _raised(_kernel(m, k.kernel, x, points), k.exponent)
        case "ConstantKernel":
            return float(k.constant_value)
        case "WhiteKernel":  # no noise between two rows, even if they are equal
            return 0.0
        case "RBF":
            return t.exp(t.mul(_squared(x, points, k.length_scale), -0.5))
        case "Matern":
            return _matern(t.sqrt(_squared(x, points, k.length_scale)), float(k.nu))
        case "RationalQuadratic":
            scale = float(2 * k.alpha * np.ravel(k.length_scale)[0] ** 2)
            return t.power(t.add(t.div(_squared(x, points), scale), 1.0), -float(k.alpha))
        case "ExpSineSquared":
            sine = t.sin(t.mul(t.sqrt(_squared(x, points)), float(np.pi / k.periodicity)))
            share = t.div(sine, float(k.length_scale))
            return t.exp(t.mul(t.mul(share, share), -2.0))
        case "DotProduct":
            wide, (fixed,) = promote(x, points)
            return _shift(t.matmul(wide, fixed.T), k.sigma_0**2)
        case "PairwiseKernel":
            return pairwise_kernel(m, x, points, named(k.metric), {**(k.pairwise_kernels_kwargs or {}), "gamma": k.gamma})
    raise Refusal(f"its kernel {name} has no converter.", ADVICE)


def _diagonal(k: Any, x: Node) -> Value:
    """k(x, x) for every row with itself: [N, 1], or one number."""
    match public_name(type(k)).removeprefix(KERNELS):
        case "Sum":
            return _combined(t.Add, _diagonal(k.k1, x), _diagonal(k.k2, x))
        case "Product":
            return _combined(t.Mul, _diagonal(k.k1, x), _diagonal(k.k2, x))
        case "Exponentiation":
            return _raised(_diagonal(k.kernel, x), k.exponent)
        case "ConstantKernel":
            return float(k.constant_value)
        case "WhiteKernel":
            return float(k.noise_level)
        case "DotProduct":
            floats = _squared_in_own_dtype(x)
            return _shift(t.sum_(t.mul(floats, floats), 1, keepdims=True), k.sigma_0**2)
        case "PairwiseKernel":
            return self_kernel(
                _squared_in_own_dtype(x), named(k.metric), {**(k.pairwise_kernels_kwargs or {}), "gamma": k.gamma}
            )
    return 1.0


def _squared_in_own_dtype(x: Node) -> Node:
    """x as floats. The source multiplies x by itself in its own dtype: bool gives bool, and integers overflow. So narrow ones are rejected,
    and integers whose sum of squares int64 may not hold."""
    note(x, Column(integer_bits=64))
    if x.type.dtype != "i64":
        return x
    return Check(f"{KERNELS}DotProduct", limit=math.sqrt(2.0**62 / x.type.columns), min_rows=0)(t.cast(x, "f64"))


def _of_rows(x: Node, value: Value, columns: int) -> Node:
    """A kernel as a matrix [N, columns], also if it is one number."""
    if isinstance(value, Node):
        return value
    first = t.take(x, np.array([0]), axis=1)
    never = t.less(first, first)  # False for every row: it gives the matrix its number of rows
    return t.where(never, t.constant(np.nan), t.constant(np.full((1, columns), value)))


@converts("sklearn.gaussian_process.GaussianProcessRegressor")
def gaussian_process_regressor(m: Any, x: Node) -> Result:
    """`predict` gives the mean of the posterior: std · (k(x, X_train_) · alpha_) + mean."""
    x = checked(m, x)
    points = dense(m.X_train_)
    kernel, (alpha,) = promote(_of_rows(x, _kernel(m, m.kernel_, x, points), len(points)), np.asarray(m.alpha_))
    y = t.matmul(kernel, alpha.reshape(len(alpha), -1))
    std, mean = (np.asarray(value, np.float64).reshape(-1) for value in (m._y_train_std, m._y_train_mean))
    y = t.add(t.mul(t.cast(y, "f64"), std), mean)
    return {"predict": t.reshape(y, N) if y.type.columns == 1 else y}


@converts("sklearn.gaussian_process.GaussianProcessClassifier")
def gaussian_process_classifier(m: Any, x: Node) -> Result:
    """The methods of its one binary classifier, of its OneVsRestClassifier, or of its OneVsOneClassifier (which has no probabilities)."""
    outputs = child(m.base_estimator_, checked(m, x), "base_estimator_")
    has = ["predict"] if m.n_classes_ > 2 and m.multi_class == "one_vs_one" else ["predict", "predict_proba"]
    return {method: outputs[method] for method in has}


LAMBDAS = np.array([0.41, 0.4, 0.37, 0.44, 0.39])
COEFS = np.array([-1854.8214151, 3516.89893646, 221.29346712, 128.12323805, -2010.49422654])
"""The logistic function as a sum of error functions: their scales (LAMBDAS) and weights (COEFS), from sklearn.gaussian_process._gpc."""


@converts(BINARY)
def binary_gaussian_process(m: Any, x: Node) -> Result:
    """`predict` and `predict_proba` by Algorithm 3.2 of Rasmussen and Williams. The sign of f[N] = k(x, X_train_) · (y_train_ - π) decides.
    The probability is the integral of a logistic function over the normal distribution of f."""
    points = dense(m.X_train_)
    kernel = t.cast(_of_rows(x, _kernel(m, m.kernel_, x, points), len(points)), "f64")
    mean = t.matmul(kernel, np.asarray(m.y_train_ - m.pi_, np.float64).reshape(-1, 1))
    # v = L⁻¹ · W^½ · kᵀ; L is well conditioned, since L · Lᵀ = I + W^½ · K · W^½.
    v = computed_if_it_can_be(
        lambda: np.linalg.solve(m.L_, np.diag(m.W_sr_)).T,
        # The source's scipy.linalg.solve rejects NaN and infinite numbers.
        lambda weights: t.matmul(checked(m, kernel), weights),
        len(points),
    )
    prior = _diagonal(m.kernel_, x)
    variance = _combined(t.Sub, prior, t.sum_(t.mul(v, v), 1, keepdims=True))
    assert isinstance(variance, Node)
    alpha = t.div(1.0, t.mul(variance, 2.0))
    gamma = t.mul(mean, LAMBDAS)
    inner = t.mul(gamma, t.sqrt(t.div(alpha, t.add(alpha, LAMBDAS**2))))
    scale = t.mul(t.sqrt(t.mul(t.mul(variance, 2.0), np.pi)), 2.0)
    integrals = t.div(t.mul(t.sqrt(t.div(np.pi, alpha)), erf(inner)), scale)
    second = t.add(t.sum_(t.mul(integrals, COEFS), 1, keepdims=True, ordered=True), float(0.5 * COEFS.sum()))
    return {
        "predict": labels(m.classes_, t.cast(t.less(0.0, t.reshape(mean, N)), "i64")),
        "predict_proba": t.concat([t.sub(1.0, second), second]),
    }
