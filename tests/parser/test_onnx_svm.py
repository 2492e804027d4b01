"""SVMClassifier and SVMRegressor of ONNX, against ONNX Runtime: kernels, votes, probabilities, labels, and attributes that do not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hbc

pytest.importorskip("onnx")
from backends import BACKENDS
from onnx import TensorProto as T
from onnx import helper
from onnx_models import DTYPES, ML, NAN, assert_agrees, graph, session

POSTS = ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO")
KERNELS = ("LINEAR", "POLY", "RBF", "SIGMOID")
ROWS = np.random.default_rng(8).normal(size=(300, 3)).astype(np.float32)
NAMES = {"names": ["a", "b", "é", "d", "e"], "numbers": [7, -3, 0, 11, 5]}


def machine(
    classes: int = 3,
    counts: tuple[int, ...] = (),
    *,
    sure: bool = False,
    names: str = "numbers",
    kind: int = T.FLOAT,
    width: int = 3,
    **changed: Any,
) -> Any:
    """A random SVMClassifier. `sure`: it has prob_a and prob_b. `changed`: attributes to replace; None leaves one out."""
    rng = np.random.default_rng(classes)
    counts = counts or (4, 2, 3, 1, 5)[:classes]
    total, pairs = sum(counts), classes * (classes - 1) // 2
    label = "classlabels_strings" if names == "names" else "classlabels_ints"
    attributes: dict[str, Any] = {
        "kernel_type": "RBF",
        "kernel_params": [0.3, 0.5, 3.0],
        "vectors_per_class": list(counts),
        "support_vectors": rng.normal(size=total * 3).tolist(),
        "coefficients": rng.normal(size=total * (classes - 1)).tolist(),
        "rho": (rng.normal(size=pairs) / 4).tolist(),
        label: NAMES[names][:classes],
    }
    if sure:
        attributes |= {"prob_a": (-1 - rng.random(pairs)).tolist(), "prob_b": (rng.normal(size=pairs) / 3).tolist()}
    return classifier({**attributes, **changed}, kind, width, names)


def linear(classes: int, names: str = "numbers", positive: bool = False, **changed: Any) -> Any:
    """An SVMClassifier without support vectors."""
    rng = np.random.default_rng(classes)
    coefficients = rng.normal(size=classes * 3)
    label = "classlabels_strings" if names == "names" else "classlabels_ints"
    attributes = {
        "kernel_params": [0.3, 0.5, 3.0],
        "coefficients": (abs(coefficients) if positive else coefficients).tolist(),
        "rho": [0.25],
        label: NAMES[names][:classes],
    }
    return classifier({**attributes, **changed}, T.FLOAT, 3, names)


def classifier(attributes: dict[str, Any], kind: int, width: int, names: str) -> Any:
    given = {name: value for name, value in attributes.items() if value is not None}
    node = helper.make_node("SVMClassifier", ["X"], ["label", "probabilities"], domain=ML, **given)
    outputs = {"label": T.STRING if names == "names" else T.INT64, "probabilities": T.FLOAT}
    return graph([node], {"X": (kind, width)}, outputs)


@pytest.mark.parametrize("post", POSTS)
@pytest.mark.parametrize("sure", [False, True])
@pytest.mark.parametrize("classes", [2, 3, 5])
def test_votes_and_probabilities(classes: int, sure: bool, post: str) -> None:
    model = machine(classes, sure=sure, post_transform=post)
    if (classes, sure, post) == (2, False, "LOGISTIC"):
        with pytest.raises(hbc.UnsupportedOperatorError, match="only some releases"):
            hbc.convert(model, "numpy")
    else:
        assert_agrees(model, ROWS)


@pytest.mark.parametrize("sure", [False, True])
@pytest.mark.parametrize("kernel", KERNELS)
def test_kernels(kernel: str, sure: bool) -> None:
    assert_agrees(machine(sure=sure, kernel_type=kernel, names="names"), ROWS)


@pytest.mark.parametrize("degree", [0.0, 1.0, 2.0, 2.5, 17.0, NAN, -np.inf])
def test_degrees(degree: float) -> None:
    assert_agrees(machine(kernel_type="POLY", kernel_params=[0.3, 2.0, degree]), np.abs(ROWS) / 4 if degree > 0 else ROWS)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("sure", [False, True])
def test_every_backend(sure: bool, backend: str) -> None:
    """Classes of one vector and of many; NaN, which makes all classes equally probable, and infinities."""
    X = np.concatenate([ROWS, [[NAN, 0, 0], [np.inf, 1, 2], [-np.inf, np.inf, 0], [1e30, -1e30, 3], [1e-40, 0, -0.0]]]).astype(
        "f4"
    )
    assert_agrees(machine(5, sure=sure, names="names"), X, backend)
    assert_agrees(machine(2, sure=sure), X, backend)


@pytest.mark.parametrize("sure", [False, True])
@pytest.mark.parametrize("kind", [T.DOUBLE, T.INT32, T.INT64])
def test_other_numbers_become_float32(kind: int, sure: bool) -> None:
    X = np.round(ROWS * 2).astype(DTYPES[kind]) if kind != T.DOUBLE else ROWS.astype(np.float64) + 1e-9
    assert_agrees(machine(sure=sure, kind=kind), X)


def test_rbf_has_the_bits_of_onnxruntime() -> None:
    """Nearly all of them: its exp errs in a few of a thousand numbers."""
    for sure in (False, True):
        model = machine(5, sure=sure)
        _, expected = session(model).run(None, {"X": ROWS})
        assert np.mean(hbc.convert(model, "numpy").predict_proba(ROWS) != expected) < 0.02


@pytest.mark.parametrize("counts", [(3, 0, 2), (0, 1, 1), (1, 1, 1), (9, 1, 2)])
def test_numbers_of_vectors(counts: tuple[int, ...]) -> None:
    assert_agrees(machine(counts=counts), ROWS)


def test_equal_votes_go_to_the_first_class() -> None:
    """A row far from all vectors has kernels of 0, so that rho alone decides: each class wins one pair, or none of them wins."""
    far = np.full((2, 3), 1e6, np.float32)
    for rho in ([1.0, -1.0, 1.0], [-1.0, 1.0, -1.0], [0.0, 0.0, 0.0], [-0.0, 1.0, -1.0]):
        assert_agrees(machine(rho=rho), far)


@pytest.mark.parametrize("rows", [0, 1, 7])
def test_numbers_of_rows(rows: int) -> None:
    for sure in (False, True):
        assert_agrees(machine(sure=sure), ROWS[:rows])


@pytest.mark.parametrize("post", POSTS)
@pytest.mark.parametrize("names", NAMES)
@pytest.mark.parametrize("classes", [1, 2, 3])
def test_without_vectors(classes: int, names: str, post: str) -> None:
    X = np.concatenate([ROWS, [[NAN, 0, 0]]]).astype(np.float32)
    assert_agrees(linear(classes, names, post_transform=post), X)


@pytest.mark.parametrize("sure", [False, True])
@pytest.mark.parametrize("positive", [False, True])
def test_label_of_two_classes_without_vectors(positive: bool, sure: bool) -> None:
    given = {"prob_a": [1.0], "prob_b": [1.0]} if sure else {}
    for rho in (-5.0, 0.0, 5.0):
        assert_agrees(linear(2, positive=positive, rho=[rho], **given), ROWS)


def test_several_classes_convert_to_few_nodes() -> None:
    """The sums of all pairs are one operator. A sum for each pair, or for each class, takes minutes to compile for 50 classes."""
    few, many = (len(hbc.convert(machine(classes, (2,) * classes), "numpy").graph.nodes) for classes in (3, 5))
    assert few == many


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("kernel is 'COSINE'", {"kernel_type": "COSINE"}),
    *((f"kernel_params are {n}", {"kernel_params": [0.3] * n or None}) for n in (0, 2, 4)),
    ("rho has 2 numbers, expected 3", {"rho": [0.1, 0.2]}),
    ("rho has 0 numbers", {"rho": None}),
    ("coefficients has 17 numbers, expected 18", {"coefficients": [0.5] * 17}),
    ("coefficients has 0 numbers", {"coefficients": None}),
    ("prob_b has 0 numbers", {"prob_a": [1.0, 2.0, 3.0]}),
    ("prob_a has 2 numbers", {"prob_a": [1.0, 2.0], "prob_b": [1.0, 2.0]}),
    ("9 support vectors have 26 numbers", {"support_vectors": [0.5] * 26}),
    ("9 support vectors have 27 numbers for 4 columns", {"width": 4}),
    ("2 numbers of support vectors for 3 classes", {"vectors_per_class": [4, 5]}),
    *(("3 numbers of support vectors for 3 classes", {"vectors_per_class": [n, -1, 6]}) for n in (4, -5)),
    ("no class labels", {"classlabels_ints": None}),
    ("post_transform is PROBIT", {"post_transform": "PROBIT"}),
    ("post_transform is 'CUBE'", {"post_transform": "CUBE"}),
    ("class 1 nor class 2 has support vectors", {"counts": (9, 0, 0)}),
    ("attribute shrinking is not supported", {"shrinking": 1}),
]


@pytest.mark.parametrize(("words", "changed"), REFUSED)
def test_what_does_not_fit_is_refused(words: str, changed: dict[str, Any]) -> None:
    with pytest.raises(hbc.UnsupportedOperatorError, match=words):
        hbc.convert(machine(**changed), "numpy")


@pytest.mark.parametrize(
    ("words", "changed"),
    [
        ("9 coefficients and 0 rho", {"rho": None}),
        ("8 coefficients and 1 rho", {"coefficients": [0.5] * 8}),
        ("no class labels", {"classlabels_ints": None}),
        ("kernel_params are 0", {"kernel_params": None}),
        ("prob_a has 1 numbers, its prob_b 0", {"prob_a": [1.0]}),
    ],
)
def test_what_does_not_fit_without_vectors_is_refused(words: str, changed: dict[str, Any]) -> None:
    with pytest.raises(hbc.UnsupportedOperatorError, match=words):
        hbc.convert(linear(3, **changed), "numpy")


@pytest.mark.parametrize("one_class", [0, 1])
@pytest.mark.parametrize("post", POSTS)
def test_regressor_without_vectors(post: str, one_class: int) -> None:
    node = helper.make_node(
        "SVMRegressor",
        ["X"],
        ["Y"],
        domain=ML,
        kernel_params=[0.3, 0.5, 3.0],
        kernel_type="RBF",
        coefficients=[0.5, -2.0, 0.25],
        rho=[0.125],
        n_supports=0,
        post_transform=post,
        one_class=one_class,
    )
    assert_agrees(graph([node], {"X": (T.FLOAT, 3)}, {"Y": T.FLOAT}), ROWS)


@pytest.mark.parametrize(
    ("words", "changed"),
    [
        ("has no rho", {"rho": []}),
        ("2 support vectors have 5 numbers", {"support_vectors": [0.5] * 5}),
        ("1 coefficients for 3 columns", {"coefficients": [0.5]}),
        ("2 coefficients for 3 columns", {"n_supports": 0}),
    ],
)
def test_what_does_not_fit_a_regressor_is_refused(words: str, changed: dict[str, Any]) -> None:
    attributes: dict[str, Any] = {"coefficients": [1.0, 2.0], "rho": [0.5], "n_supports": 2}
    attributes |= {"kernel_params": [0.3, 0.5, 3.0], "support_vectors": [0.5] * 6}
    given = {name: value for name, value in {**attributes, **changed}.items() if value != []}
    node = helper.make_node("SVMRegressor", ["X"], ["Y"], domain=ML, **given)
    with pytest.raises(hbc.UnsupportedOperatorError, match=words):
        hbc.convert(graph([node], {"X": (T.FLOAT, 3)}, {"Y": T.FLOAT}), "numpy")
