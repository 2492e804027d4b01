"""Limits of what kernels for CUDA take of a card, from nvcc's own output (tests/cuda_on_cpu/resources.py)."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")
pytest.importorskip("lightgbm")
pytest.importorskip("xgboost")
pytest.importorskip("sklearn")
from cuda_on_cpu.beside import loops_of
from cuda_on_cpu.counts import rank_reads, trees_of, units, walking_loop
from cuda_on_cpu.resources import ARCHES, Resources, golden_sources, no_nvcc, resources, sources_of, table
from golden.models import golden_models
from lightgbm import LGBMRegressor
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from xgboost import XGBRegressor

from hbc.compiler.tvm.nest.schedule import MOST_SHARED
from hbc.compiler.tvm.trees.gpu.int8_gemm import Int8Gemm
from hbc.compiler.tvm.trees.gpu.levels import MOST_ROWS, Levels
from hbc.compiler.tvm.trees.gpu.tiles import THREADS, WORD

pytestmark = pytest.mark.skipif(no_nvcc() is not None, reason=str(no_nvcc()))

LOCAL = {
    "trees of 31 leaves": 496,
    "trees of depth 6": 496,  # its leaf numbers, which are walked
    "forest of vectors in levels": 176,
    "forest of two classes in levels": 176,  # its leaf numbers, which are walked
    "forest in wide levels": 176,  # its leaf numbers, which are walked
    "forest of vectors in wide levels": 176,
    "linked trees of 31 leaves": 176,
    "forest on tensor cores": 176,  # its leaf numbers, which are walked
    "forest of forks": 176,  # its leaf numbers, which are walked
    "five classes of linked trees": 1392,  # its leaf numbers, which are walked
    "forest of ten vectors in levels": 560,
    "one tree": 176,
    "trees by the paper's strategies": 560,
    "forest of vectors": 176,
    "XGBClassifier multi": 176,
    "XGBRegressor categorical": 816,
    "OneHotEncoder dense": 240,
    "forest behind a scaler and one-hot codes": 368,
    "SVC probability, many classes": 2288,
}
"""The models whose kernels use local memory, and the most bytes of a thread: a row's keys and its intermediates lie there."""


NAMES = [golden.name for golden in golden_models() if "sm_90" in golden.targets]


def within_limits(found: list[Resources]) -> None:
    """None spills."""
    for row in found:
        model = row.kernel.partition(": ")[0].rsplit(", ", 1)[0]
        assert row.spills == 0, f"{row.kernel} spills\n{table(found)}"
        assert row.local <= LOCAL.get(model, 0), f"{row.kernel}: local memory\n{table(found)}"
        assert row.warps >= 16, f"{row.kernel} leaves an SM {row.warps} of 64 warps\n{table(found)}"
        assert row.shared <= MOST_SHARED


def test_trees_stay_within_their_limits() -> None:
    """One kernel; all in the slow tier."""
    sources = dict(golden_sources(["trees of 31 leaves"]))
    name = "trees of 31 leaves, walk: f32 predict"
    found = resources({name: sources[name]})
    within_limits(found)
    assert [(row.arch, row.threads, row.warps) for row in found] == [(arch, 128, 64) for arch in ARCHES]


@functools.cache
def resources_of(name: str) -> list[Resources]:
    """What the kernels of a model take. nvcc needs 1 to 8 seconds for each of its methods."""
    sources = {kernel: source for kernel, source in golden_sources([name]) if kernel.startswith(f"{name}, ")}
    return resources(sources)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_all_kernels_stay_within_their_limits(name: str) -> None:
    found = resources_of(name)
    print(table(found))
    assert found
    within_limits(found)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "local", "threads", "warps"),
    [
        ("trees of depth 6", 0, 256, 16),
        ("forest of vectors in levels", 0, 512, 32),
        ("forest in wide levels", 0, 512, 32),
        ("forest of vectors in wide levels", 0, 512, 32),
        ("linked trees of 31 leaves", 0, 512, 32),
        ("forest on tensor cores", 0, 256, 16),
        ("forest of forks", 0, 256, 24),
        ("five classes of linked trees", 240, 512, 32),
        ("forest of ten vectors in levels", 560, 512, 32),
    ],
)
def test_shared_trees_do_not_spill(name: str, local: int, threads: int, warps: int) -> None:
    """Local memory is for the results of several classes alone, which are written once a class and row."""
    found = [row for row in resources_of(name) if ": " in row.kernel and " apply" not in row.kernel.partition(": ")[2]]
    within_limits(found)
    assert found
    assert all(row.threads in (threads, 512) and row.local <= local for row in found)
    # Blocks for few rows may have tiles so large that an SM of sm_80 has room for one block.
    assert all(row.warps >= (16 if row.kernel.endswith("few rows") else warps) for row in found)


@pytest.mark.slow
@pytest.mark.parametrize("depth", [7, 8])
@pytest.mark.parametrize("kind", ["LightGBM", "XGBoost", "forest"])
def test_eight_rows_of_a_thread_have_room(kind: str, depth: int) -> None:
    """The deepest trees of eight rows a thread, which has up to 128 registers."""
    rng = np.random.default_rng(0)
    X = rng.integers(0, 50, (3_000, 12)).astype(np.float32)
    y = X[:, 0] * X[:, 1] + X[:, 2] + rng.normal(size=len(X))
    model = {
        "LightGBM": LGBMRegressor(n_estimators=8, max_depth=depth, num_leaves=1 << depth, min_child_samples=1, verbose=-1),
        "XGBoost": XGBRegressor(n_estimators=8, max_depth=depth),
        "forest": RandomForestRegressor(8, max_depth=depth, random_state=0),
    }[kind].fit(X, y)
    trees = trees_of(model)
    assert trees.depths.max() == depth
    assert Levels.rows_of_thread(trees) == MOST_ROWS
    found = resources({name: source for name, source in sources_of(model, strategy="levels") if name.endswith("predict")})
    print(table(found))
    within_limits(found)
    assert any(row.kernel.endswith("predict") and row.threads == THREADS[0] * WORD // MOST_ROWS for row in found)


@pytest.mark.slow
@pytest.mark.parametrize("depth", [3, 4, 5])
@pytest.mark.parametrize("kind", ["LightGBM", "forest"])
def test_fragments_have_room_in_registers(kind: str, depth: int) -> None:
    """With ranks of more than 14 planes, and as many float64 of a leaf as may be added in one pass."""
    rng = np.random.default_rng(0)
    X = rng.integers(0, 50, (3_000, 16)).astype(np.float32)
    y = X[:, 0] * X[:, 1] + X[:, 2] + X @ rng.normal(size=16)
    if kind == "LightGBM":
        model: Any = LGBMRegressor(
            n_estimators=90,
            boosting_type="rf",
            subsample=0.5,
            subsample_freq=1,
            colsample_bytree=0.3,
            max_depth=depth,
            num_leaves=1 << depth,
            min_child_samples=1,
            verbose=-1,
        )
    else:
        model, y = (
            RandomForestClassifier(9, max_depth=depth, random_state=0),
            np.digitize(y, np.quantile(y, [0.3, 0.5, 0.7][: 3 if depth < 5 else 2])),
        )
    trees = trees_of(model.fit(X, y))
    assert trees.depths.max() == depth
    assert Int8Gemm.fits(trees)
    assert Int8Gemm.planes(trees) > 14
    sources = {name: source for name, source in sources_of(model, strategy="int8_gemm") if name.startswith("f32 predict")}
    found = resources({name: source for name, source in sources.items() if "mma" in source.text})
    print(table(found))
    within_limits(found)
    assert any(row.threads == 256 for row in found)


def test_warps_of_an_sm() -> None:
    """Figures of NVIDIA's occupancy calculator."""
    few = Resources("k", "sm_90", 128, 32, 0, 0, 0)
    assert few.warps == 64
    assert few._replace(registers=33).warps == 48
    assert few._replace(registers=255).warps == 8
    assert few._replace(shared=80 << 10, threads=512).warps == 32
    assert few._replace(shared=80 << 10, threads=512, arch="sm_80").warps == 32
    assert few._replace(threads=32).warps == 32


DISASSEMBLED = """
	.section	.text.few,"ax",@progbits
.L_x_0:
        /*0000*/                   LDS.U16 R0, [R1] ;
        /*0010*/                   LDS.U16 R0, [R1] ;
        /*0020*/                   LDS.U16 R0, [R1] ;
        /*0030*/               @P0 BRA `(.L_x_0) ;
	.section	.text.many,"ax",@progbits
.L_x_1:
        /*0000*/                   LDS R0, [R1] ;
        /*0010*/                   LDS R0, [R1+0x4] ;
        /*0020*/                   LDS R0, [R1+0x8] ;
        /*0030*/               @P0 BRA `(.L_x_1) ;
.L_x_2:
        /*0040*/                   MOV R2, R3 ;
.L_x_3:
	//## File "/tmp/kernel.cu", line 7
        /*0050*/                   LDG.E.64 R4, [R2] ;
	//## File "/tmp/kernel.cu", line 8
	//## File "/cuda/intrinsics.hpp", line 151
        /*0060*/                   LDS.U16 R0, [R1] ;
        /*0070*/              @!P0 BRA `(.L_x_3) ;
        /*0080*/                   LDS.U16 R0, [R1] ;
	//## File "/tmp/kernel.cu", line 5
        /*0090*/              @!P1 BRA `(.L_x_2) ;
"""


def test_the_loop_that_is_counted() -> None:
    """The inner one that reads ranks, of the kernel of that name: not the one with more reads of words, nor the one around it."""
    code, walk = walking_loop(DISASSEMBLED, "many", 16)
    loop = [code[number] for number in walk]
    assert [(text.split()[0], line) for text, line, _ in loop] == [("LDG.E.64", 7), ("LDS.U16", 8), ("@!P0", 8)]
    assert rank_reads(loop, 16) == 1
    assert rank_reads(loop, 8) == 0
    assert [code[number].loops for number in (walk[0] - 1, walk[0], walk[-1] + 1)] == [{5}, {5, 8}, {5}]
    assert not code[0].loops - {0}


LOOPS = """
void f() {
  int first = 1;
  for (int a = 0; a < 2; ++a) {
    one();
    if (a) {
      two();
    } else {
      three();
    }
    while (1) {
      if (a) { break; }
    }
  }
  last();
}
void g() {
"""


def test_loops_of_a_source() -> None:
    """The loop of each line, also in the branches of an `if` and behind an inner loop."""
    found = loops_of(LOOPS.splitlines(), 2)
    outer, inner = found[5], found[12]
    assert {line for line, loop in found.items() if loop is outer} == {4, 5, 6, 7, 8, 9, 10, 13}
    assert {line for line, loop in found.items() if loop is inner} == {11, 12}
    assert inner.around() == [outer, inner]
    assert (outer.first, outer.last, inner.first, inner.last) == (4, 14, 11, 13)


def test_pieces_of_the_cards_memory() -> None:
    """Two warps: in the one all rows read the same node, in the other each reads the next one."""
    places = np.concatenate([np.full(32, 7), np.arange(32)])
    assert units(places, 8, 32) == (1 + 8) / 2
    assert units(places, 4, 128) == 1
