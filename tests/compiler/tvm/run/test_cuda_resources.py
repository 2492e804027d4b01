"""Limits of what kernels for CUDA take of a card, from nvcc's own output (tests/cuda_on_cpu/resources.py)."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tvm")
pytest.importorskip("lightgbm")
pytest.importorskip("xgboost")
pytest.importorskip("sklearn")
from cuda_on_cpu.beside import loops_of
from cuda_on_cpu.counts import rank_reads, units, walking_loop
from cuda_on_cpu.resources import ARCHES, Resources, golden_sources, no_nvcc, resources, table

from hbc.compiler.tvm.nest.schedule import MOST_SHARED

pytestmark = pytest.mark.skipif(no_nvcc() is not None, reason=str(no_nvcc()))

LOCAL = {
    "trees of 31 leaves": 496,
    "trees of depth 6": 496,  # its leaf numbers, which are walked
    "forest of vectors in levels": 176,
    "linked trees of 31 leaves": 176,
    "forest of forks": 176,  # its leaf numbers, which are walked
    "five classes of linked trees": 1392,  # its leaf numbers, which are walked
    "forest of ten vectors in levels": 560,
    "trees by the paper's strategies": 560,
    "forest of vectors": 176,
    "XGBClassifier multi": 176,
    "XGBRegressor categorical": 816,
    "OneHotEncoder dense": 240,
    "forest behind a scaler and one-hot codes": 368,
    "SVC probability, many classes": 2288,
}
"""The models whose kernels use local memory, and the most bytes of a thread: a row's keys and its intermediates lie there."""


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
    assert [(row.arch, row.threads, row.warps) for row in found] == [(arch, 128, 40) for arch in ARCHES]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "local", "threads", "warps"),
    [
        ("trees of depth 6", 0, 256, 16),
        ("forest of vectors in levels", 0, 512, 32),
        ("linked trees of 31 leaves", 0, 512, 32),
        ("forest of forks", 0, 256, 24),
        ("five classes of linked trees", 240, 512, 32),
        ("forest of ten vectors in levels", 560, 512, 32),
    ],
)
def test_shared_trees_do_not_spill(name: str, local: int, threads: int, warps: int) -> None:
    """Local memory is for the results of several classes alone, which are written once a class and row."""
    sources = {method: source for method, source in golden_sources([name]) if not method.endswith("apply")}
    found = resources(sources)
    print(table(found))
    within_limits(found)
    assert all(row.threads in (threads, 512) and row.local <= local and row.spills == 0 for row in found)
    # Blocks for few rows may have tiles so large that an SM of sm_80 has room for one block.
    assert all(row.warps >= (16 if row.kernel.endswith("few rows") else warps) for row in found)


@pytest.mark.slow
def test_all_kernels_stay_within_their_limits() -> None:
    found = resources(dict(golden_sources()))
    print(table(found))
    assert len(found) > 60
    within_limits(found)


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
        /*0090*/              @!P1 BRA `(.L_x_2) ;
"""


def test_the_loop_that_is_counted() -> None:
    """The inner one that reads ranks, of the kernel of that name: not the one with more reads of words, nor the one around it."""
    code, walk = walking_loop(DISASSEMBLED, "many", 16)
    loop = [code[number] for number in walk]
    assert [(text.split()[0], line) for text, line in loop] == [("LDG.E.64", 7), ("LDS.U16", 8), ("@!P0", 8)]
    assert rank_reads(loop, 16) == 1
    assert rank_reads(loop, 8) == 0


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
