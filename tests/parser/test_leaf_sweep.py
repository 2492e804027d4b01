"""No leaf differs from the source's own: a sample of leaf_sweep.py, and over ten million (row, tree) pairs a library in the slow tier."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
from backends import installed
from leaf_sweep import BATCHES, LIBRARIES, WAYS, Figures, compare, subject, sweep

SAMPLE = [(library, name) for library, (_, names) in LIBRARIES.items() for name in names]


@pytest.mark.parametrize(("library", "name"), SAMPLE)
@pytest.mark.parametrize("backend", installed("numpy", "torch", "onnx"))
def test_sample_of_leaves(library: str, name: str, backend: str) -> None:
    figures = compare(subject(library, name, 0, 12), backend, "auto", "leaf", 0, 300)
    assert figures.pairs
    assert not figures.differing


@pytest.mark.parametrize("way", [("tvm", "walk", "leaf"), ("tvm", "scan", "sum")], ids=" ".join)
@pytest.mark.parametrize(
    ("library", "name"),
    [
        ("LightGBM", "any threshold, missing type and side"),
        ("LightGBM", "category sets"),
        ("XGBoost", "3 classes of forests"),
        ("XGBoost", "category sets"),
        ("scikit-learn", "RandomForestClassifier"),
        ("HistGradientBoosting", "HistGradientBoostingClassifier"),
    ],
)
def test_sample_of_kernels(library: str, name: str, way: tuple[str, str, str]) -> None:
    """A scan does not return leaves. It returns sums, and leaf values are so different that a wrong leaf shows in them."""
    assert not compare(subject(library, name, 0, 12), *way, 0, 400).differing


ON_CUDA = (("tvm:cuda", "walk", "leaf"), ("tvm:cuda", "walk", "sum"))


def emulator() -> Any:
    """What runs code for CUDA here; the test is skipped where nothing does."""
    cuda_on_cpu = pytest.importorskip("cuda_on_cpu")
    if why := cuda_on_cpu.cannot_run():
        pytest.skip(why)
    return cuda_on_cpu


@pytest.mark.parametrize("way", ON_CUDA, ids=" ".join)
@pytest.mark.parametrize(("library", "name"), SAMPLE)
def test_sample_of_leaves_on_cuda(library: str, name: str, way: tuple[str, str, str]) -> None:
    with emulator().emulated(seed=len(name)):
        figures = compare(subject(library, name, 0, 12), *way, 0, 300)
    assert figures.pairs
    assert not figures.differing


SHARED = {"levels": 8, "wide_levels": 8, "int8_gemm": 5, "links": None, "far_links": None, "wide_links": None}
"""The strategies for CUDA whose trees lie in shared memory, with the greatest depth that each takes (None: any)."""


def shared(library: str, name: str, strategy: str, trees: int, rows: int) -> int:
    """Compares the sums of a model's trees that a strategy takes.

    Returns the (row, tree) pairs; 0 if the rows have too many planes, so that the trees were walked by another kernel.
    """
    choice = pytest.importorskip("hbc.compiler.tvm.trees.gpu.choice")
    with emulator().emulated(seed=len(name)) as card, mock.patch.multiple(choice, FEW_ROWS=max(BATCHES), LANE_ROWS=8):
        figures = compare(subject(library, name, 0, trees), "tvm:cuda", strategy, "sum", 0, rows, SHARED[strategy])
    assert not figures.differing, (name, figures)
    return figures.pairs if all(launch.dynamic for launch in card.launches) else 0


OF_ANY_DEPTH = (
    ("LightGBM", "any threshold, missing type and side"),
    ("XGBoost", "3 classes of forests"),
    ("scikit-learn", "ExtraTreesClassifier"),
    ("HistGradientBoosting", "HistGradientBoostingRegressor, categories"),
)
SHALLOW = (
    ("LightGBM", "linear leaves, dart"),
    ("XGBoost", "any, stumps"),
    ("scikit-learn", "GradientBoostingClassifier"),
    ("HistGradientBoosting", "HistGradientBoostingClassifier, shallow"),
)


@pytest.mark.parametrize(
    ("strategy", "library", "name"),
    [(strategy, *each) for strategy in SHARED for each in (SHALLOW if strategy == "int8_gemm" else OF_ANY_DEPTH)],
)
def test_sample_of_shared_trees_on_cuda(library: str, name: str, strategy: str) -> None:
    assert shared(library, name, strategy, 12, 400)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", SHARED)
@pytest.mark.parametrize("library", LIBRARIES)
def test_no_leaf_differs_in_shared_trees_on_cuda(library: str, strategy: str) -> None:
    """Over a million (row, tree) pairs of every library, where its trees are not too deep."""
    rows = 12_000 if strategy == "wide_levels" else 7_000  # it takes neither deep trees nor those of many category sets
    pairs = sum(shared(library, name, strategy, 60, rows) for name in LIBRARIES[library][1])
    print(f"{library} {strategy}: {pairs:,} pairs")
    assert pairs >= 1_000_000


@pytest.mark.slow
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("way", ON_CUDA, ids=" ".join)
def test_no_leaf_differs_on_cuda(library: str, way: tuple[str, str, str]) -> None:
    """Over a million (row, tree) pairs of every library."""
    pairs = 0
    with emulator().emulated(seed=1):
        for name, seed, figures in sweep(library, way, 60, 2_000, range(1)):
            assert not figures.differing, (name, seed, figures)
            pairs += figures.pairs
    print(f"{library} {' '.join(way)}: {pairs:,} pairs")
    assert pairs >= 1_000_000


@pytest.mark.slow
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("way", WAYS, ids=" ".join)
def test_no_leaf_differs(library: str, way: tuple[str, str, str], record_property: Any) -> None:
    """10,000 rows on numpy and tvm, which are 28 to 72 million (row, tree) pairs; a tenth of that on torch and onnx."""
    total, differing = Figures(), []
    for name, seed, figures in sweep(library, way, 120, 10_000 if way[0] in ("numpy", "tvm") else 1_000, range(2)):
        total += figures
        if figures.differing:
            differing.append((name, seed, figures))
    record_property("pairs", total.pairs)
    print(f"{library} {' '.join(way)}: {total.pairs:,} pairs, {total.differing} differ")
    assert not differing
    assert total.pairs >= (10_000_000 if way[0] in ("numpy", "tvm") else 1_000_000)
