"""What runs kernels for CUDA without a card (tests/cuda_on_cpu): it computes what a card would, and finds what a card would not forgive."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")
from cuda_on_cpu import EmulationError, Launch, cannot_run, launched, sanitized, without_races

pytestmark = pytest.mark.skipif(cannot_run() is not None, reason=str(cannot_run()))

SEEDS = range(6)  # 0: threads and blocks in their own order


def kernel(body: str, parameters: str = "int* y") -> str:
    return f'extern "C" __global__ void k({parameters}) {{\n{body}\n}}\n'


def run(source: str, *arguments: Any, grid: int = 1, block: int = 64, dynamic: int = 0, seed: int = 0) -> None:
    launched(Launch(source, "k", arguments, grid, block, dynamic), seed)


REDUCTION = kernel(
    """  __shared__ int part[4];
  int lane = threadIdx.x % 32, sum = x[blockIdx.x * blockDim.x + threadIdx.x];
  for (int by = 16; by; by /= 2) sum += __shfl_down_sync(~0u, sum, by);
  if (!lane) part[threadIdx.x / 32] = sum;
  __syncthreads();
  if (!threadIdx.x) y[blockIdx.x] = part[0] + part[1] + part[2] + part[3];""",
    "int* x, int* y",
)


@pytest.mark.parametrize("seed", SEEDS)
def test_sums_of_blocks(seed: int) -> None:
    x, y = np.arange(128 * 9, dtype=np.int32), np.zeros(9, np.int32)
    run(REDUCTION, x, y, grid=9, block=128, seed=seed)
    np.testing.assert_array_equal(y, x.reshape(9, 128).sum(axis=1))


def test_a_missing_barrier_shows() -> None:
    """The sum of a block differs for some order of its threads."""
    source, right, found = REDUCTION.replace("  __syncthreads();\n", ""), int(np.arange(128).sum()), set()
    for seed in SEEDS:
        x, y = np.arange(128, dtype=np.int32), np.zeros(1, np.int32)
        run(source, x, y, block=128, seed=seed)
        found.add(int(y[0]))
    assert found - {right}


def test_the_order_of_blocks_changes_with_the_seed() -> None:
    orders = set()
    for seed in SEEDS:
        y, count = np.zeros(10, np.int32), np.zeros(1, np.int32)
        run(kernel("y[blockIdx.x] = atomicAdd(n, 1);", "int* y, int* n"), y, count, grid=10, block=1, seed=seed)
        assert sorted(y) == list(range(10))
        orders.add(tuple(y))
    assert tuple(range(10)) in orders
    assert len(orders) > 3


WRONG = {
    "a barrier that some threads never reach": ("if (threadIdx.x < 40) __syncthreads();", "24 threads have finished"),
    "a barrier after a return": ("if (threadIdx.x == 3) return;\n__syncthreads();", "1 threads have finished"),
    "two barriers": ("if (threadIdx.x < 32) __syncthreads();\nelse __syncthreads();", "different barriers"),
    "lanes that do not come": (
        "if (threadIdx.x % 32 < 9) y[0] = __ballot_sync(~0u, 1);\nelse __syncthreads();",
        "lanes of the mask 0xffffffff that do not come",
    ),
    "a lane that has finished": (
        "if (threadIdx.x % 32 < 9) y[0] = __shfl_sync(~0u, 1, 20);",
        "reads from lane 20, which takes no part",
    ),
    "a lane outside of its mask": ("__syncwarp(0xff);", "is not in the mask 0xff"),
    "too much shared memory": ("__shared__ double all[6200]; all[threadIdx.x] = 1; y[0] = all[3];", "of at most 49152"),
    "an address that is not shared": ("y[0] = __cvta_generic_to_shared(y);", "an address of other memory"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_a_card_would_not_forgive(name: str) -> None:
    body, message = WRONG[name]
    for seed in (0, 1):
        with pytest.raises(EmulationError, match=message):
            run(kernel(body), np.zeros(64, np.int32), seed=seed)


def test_limits_of_a_launch() -> None:
    y = np.zeros(2000, np.int32)
    source = kernel(
        "extern __shared__ __align__(16) int all[];\nall[threadIdx.x] = threadIdx.x;\ny[threadIdx.x] = all[threadIdx.x];"
    )
    run(source, y, block=1024, dynamic=227 << 10)
    np.testing.assert_array_equal(y[:1025], [*range(1024), 0])
    with pytest.raises(EmulationError, match="232452 bytes of shared memory in a block, of at most 232448"):
        run(source, y, dynamic=(227 << 10) + 4)
    with pytest.raises(EmulationError, match="1025 threads in a block, of at most 1024"):
        run(source, y, block=1025, dynamic=8192)
    with pytest.raises(EmulationError, match="0 blocks"):
        run(source, y, grid=0, dynamic=8192)
    bounded = source.replace("void k", "void __launch_bounds__(64) k")
    with pytest.raises(EmulationError, match="65 threads in a block, of at most 64"):
        run(bounded, y, block=65, dynamic=8192)
    with pytest.raises(EmulationError, match="4 arguments, of which 1"):
        run(kernel("y[0] = 1;"), y, dynamic=16)
    with pytest.raises(EmulationError, match="does not compile"):
        run(kernel("y[0] = none;"), y)


@pytest.mark.parametrize("memory", ["__shared__ int left[1];", "extern __shared__ int left[];"], ids=["fixed", "dynamic"])
def test_a_block_finds_nothing_that_another_one_left(memory: str) -> None:
    y = np.zeros(5, np.int32)
    source = kernel(memory + "\nif (!threadIdx.x) { y[blockIdx.x] = left[0]; left[0] = 7; }")
    run(source, y, grid=5, dynamic=0 if "extern" not in memory else 4)
    assert len(set(y)) == 1
    assert y[0] not in (0, 7)


def test_functions() -> None:
    """The functions that generated code calls, by CUDA's definitions."""
    lines = [
        "int lane = threadIdx.x; bool odd = lane % 2;",
        "if (lane < 32) {",
        "  y[0] = __ballot_sync(~0u, odd); y[1] = __any_sync(~0u, lane == 31); y[2] = __all_sync(~0u, lane < 31);",
        "  y[8 + lane] = __shfl_xor_sync(~0u, lane, 1); y[40 + lane] = __shfl_up_sync(~0u, lane, 3);",
        "  y[72 + lane] = __shfl_down_sync(~0u, lane, 3, 8); y[104 + lane] = __shfl_sync(~0u, lane, 9, 4);",
        "  __syncwarp();",
        "}",
        "atomicMax(y + 3, lane); atomicMin(y + 4, -lane); atomicAdd(y + 5, lane); atomicOr((unsigned*)y + 6, 1u << lane % 32);",
        "atomicCAS(y + 7, 0, lane + 1);",
        "if (!lane) {",
        "  y[136] = __popc(0xf0f0u); y[137] = __clz(1); y[138] = __ffs(8); y[139] = __byte_perm(0x33221100, 0x77665544, 0x7531);",
        "  y[140] = __funnelshift_l(0x80000000u, 1u, 1); y[141] = __funnelshift_r(1u, 3u, 1);",
        "  uint4 four = make_uint4(1, 2, 3, 4); y[142] = four.w + sizeof(uint4) + __ldg(y + 141) * 0;",
        "  f[0] = max(CUDART_NAN, 1.0); f[1] = min(2.0, CUDART_NAN); f[2] = max(-0.0, 0.0); f[3] = min(0.0, -0.0);",
        "  f[4] = max(CUDART_NAN, CUDART_NAN); f[5] = max(1.0, CUDART_INF); f[6] = isnan(f[4]) + max(2, 3) + min(-1, 4);",
        "  f[7] = __longlong_as_double(4607182418800017409LL);",
        "}",
    ]
    y, f, lanes = np.zeros(143, np.int32), np.zeros(8), np.arange(32)
    run(kernel("\n".join(lines), "int* y, double* f"), y, f, seed=1)
    assert (y[0], y[1], y[2]) == (-1431655766, 1, 0)
    assert (y[3], y[4], y[5], y[6]) == (63, -63, 64 * 63 // 2, -1)
    assert 1 <= y[7] <= 64
    np.testing.assert_array_equal(y[8:40], lanes ^ 1)
    np.testing.assert_array_equal(y[40:72], np.where(lanes >= 3, lanes - 3, lanes))
    np.testing.assert_array_equal(y[72:104], np.where(lanes % 8 + 3 < 8, lanes + 3, lanes))
    np.testing.assert_array_equal(y[104:136], lanes // 4 * 4 + 1)
    assert list(y[136:143]) == [8, 31, 4, 0x77553311, 3, np.int32(-(2**31)), 20]
    assert list(f[:2]) == [1, 2]
    assert [math.copysign(1, value) for value in f[2:4]] == [1, -1]
    assert math.isnan(f[4])
    assert list(f[5:]) == [np.inf, 3, np.nextafter(1, 2)]


ASM = """__device__ void wait() { asm volatile("cp.async.wait_group 0;" :  :  : "memory"); }
__device__ void wait_all() { asm volatile("cp.async.wait_all;" :  :  : "memory"); }
__device__ void commit() { asm volatile("cp.async.commit_group;" :  : ); }
__device__ void copy(uint32_t __dst_mem, const void* __src_mem) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :  : "r"(__dst_mem), "l"(__src_mem) : "memory");
}
"""
BEGIN = "  copy(__cvta_generic_to_shared(all + 4 * threadIdx.x), x + 4 * threadIdx.x);\n"
READ = "  for (int i = 0; i < 4; i++) y[4 * threadIdx.x + i] = all[4 * (blockDim.x - 1 - threadIdx.x) + i];\n"
BARRIER = "  __syncthreads();\n"


def copies(*steps: str) -> Launch:
    """A launch that writes four words of each thread's neighbour from the other end of the block."""
    body = "  extern __shared__ __align__(16) int all[];\n" + "".join(steps)
    arrays = np.arange(256, dtype=np.int32), np.zeros(256, np.int32)
    return Launch(ASM + kernel(body, "int* x, int* y"), "k", arrays, 1, 64, 1024)


def is_right(launch: Launch, seed: int) -> bool:
    x, y = launch.arguments
    assert isinstance(x, np.ndarray)
    assert isinstance(y, np.ndarray)
    y[:] = 0
    launched(launch, seed)
    return np.array_equal(y.reshape(-1, 4), x.reshape(-1, 4)[::-1])


@pytest.mark.parametrize("wait", ["  commit();\n  wait();\n", "  wait_all();\n"])
def test_asynchronous_copies(wait: str) -> None:
    """Whether they are done at once or when they are waited for, as chance says."""
    launch = copies(BEGIN, wait, BARRIER, READ, BARRIER, BEGIN, wait)
    assert all(is_right(launch, seed) for seed in range(4))
    without_races(launch, seed=1)


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([BEGIN, BARRIER, READ, BARRIER, "  wait_all();\n"], "copies, which has not waited for it"),
        ([BEGIN, "  wait();\n", BARRIER, READ, BARRIER, "  wait_all();\n"], "copies, which has not waited for it"),
        ([BEGIN, "  wait_all();\n", READ], "no barrier between"),
        (
            [BEGIN, "  wait_all();\n", BARRIER, READ, BEGIN.replace("x + 4", "y - 4 + 4"), "  wait_all();\n"],
            "no barrier between",
        ),
    ],
    ids=["no wait", "a wait for groups without the copy", "no barrier", "a copy to what others read"],
)
def test_wrong_asynchronous_copies(steps: list[str], message: str) -> None:
    """The results are wrong, and the look at every access says why."""
    launch = copies(*steps)
    assert not all(is_right(launch, seed) for seed in range(4))
    with pytest.raises(EmulationError, match=message):
        without_races(launch, seed=1)


def test_a_copy_that_nobody_waits_for() -> None:
    with pytest.raises(EmulationError, match="ends and has not waited for what it copies"):
        launched(copies(BEGIN))


def product(shape: str, kinds: tuple[str, str]) -> str:
    """A function with the text that TVM writes for an integer mma.sync."""
    k = int(shape.partition("k")[2])
    words = {"d": 4, "a": k // 8, "b": k // 16, "c": 4}
    names = {group: [f"__{group}{i}" for i in range(count)] for group, count in words.items()}
    numbers = iter(range(14))
    places = ", ".join("{" + ", ".join(f"%{next(numbers)}" for _ in group) + "}" for group in names.values())
    outputs = ", ".join(f'"=r"({name})' for name in names["d"])
    inputs = ", ".join(f'"r"({name})' for group in "abc" for name in names[group])
    parameters = [f"uint32_t& {name}" for name in names["d"]] + [f"uint32_t {name}" for group in "abc" for name in names[group]]
    asm = f"mma.sync.aligned.{shape}.row.col.s32.{kinds[0]}.{kinds[1]}.s32 {places};"
    return f'__forceinline__ __device__ void mma({", ".join(parameters)}) {{\n  asm volatile("{asm}" : {outputs} : {inputs});\n}}\n'


MULTIPLY = {
    16: "mma(d[0], d[1], d[2], d[3], own[0], own[1], own[2], own[3], own[4], own[5], own[6]);",
    32: "mma(d[0], d[1], d[2], d[3], own[0], own[1], own[2], own[3], own[4], own[5], own[6], own[7], own[8], own[9]);",
}
"""K → what multiplies the words of a lane, one after the other: those of A, of B, of C."""


def fragments(matrix: Any, places: list[tuple[Any, Any]]) -> Any:
    """u32[32, W]: the words of each lane. places: (row, column) of each of its elements, both for all lanes, as the PTX manual has it."""
    elements = np.stack([matrix[row, column] for row, column in places], axis=1)
    return np.ascontiguousarray(elements).view(np.uint32)


@pytest.mark.parametrize("kinds", [("u8", "s8"), ("s8", "s8"), ("s8", "u8"), ("u8", "u8")], ids=".".join)
@pytest.mark.parametrize("k", [16, 32])
def test_products_of_tensor_cores(k: int, kinds: tuple[str, str]) -> None:
    """Against numpy, with the fragments of PTX ISA 9.7.16.5 ("Matrix Fragments for mma.m16n8k16", "… .m16n8k32", integer types)."""
    rng = np.random.default_rng(k)
    lane = np.arange(32)
    group, thread = lane >> 2, lane % 4  # groupID and threadID_in_group
    of_a, of_b = ({"u8": np.uint8, "s8": np.int8}[kind] for kind in kinds)
    in_a = [(group + (8 if 4 <= i < 8 or i >= 12 else 0), thread * 4 + (i & 3) + (16 if i >= 8 else 0)) for i in range(k // 2)]
    in_b = [(thread * 4 + (i & 3) + (16 if i >= 4 else 0), group) for i in range(k // 4)]
    in_c = [(group + (8 if i >= 2 else 0), thread * 2 + (i & 1)) for i in range(4)]
    source = product(f"m16n8k{k}", kinds) + kernel(
        f"const uint32_t* own = x + threadIdx.x * {k // 8 + k // 16 + 4};\nuint32_t* d = y + threadIdx.x * 4;\n{MULTIPLY[k]}",
        "uint32_t* x, uint32_t* y",
    )
    for seed in SEEDS:
        a, b = (
            rng.integers(*np.iinfo(kind).min + np.array([0, 256]), shape, kind)
            for kind, shape in ((of_a, (16, k)), (of_b, (k, 8)))
        )
        c = rng.integers(-(2**31), 2**31, (16, 8)).astype(np.int32)
        words = np.concatenate([fragments(matrix, places) for matrix, places in ((a, in_a), (b, in_b), (c, in_c))], axis=1)
        x, y = np.tile(words, (2, 1)), np.zeros((64, 4), np.uint32)
        x[32:, -4:] = 0  # the second warp adds nothing to its products
        run(source, x, y, seed=seed)
        exact = a.astype(np.int64) @ b.astype(np.int64)
        for warp, expected in ((y[:32], exact + c), (y[32:], exact)):
            found = np.stack([expected[row, column] for row, column in in_c], axis=1)
            np.testing.assert_array_equal(warp.view(np.int32), found.astype(np.int32))  # sums wrap around


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (f"if (threadIdx.x != 7) {MULTIPLY[16]}", "lanes 0x80 do not multiply with the others"),
        (f"if (threadIdx.x != 7) {MULTIPLY[16]}\n__syncthreads();", "for lanes of the mask 0xffffffff that do not come"),
        (
            f"if (threadIdx.x < 9) {{ {MULTIPLY[16]} }} else {{ {MULTIPLY[16]} y[64] = 1; }}",
            "for lanes of the mask 0xffffffff that do not come",
        ),
    ],
    ids=["a lane has finished", "a lane waits", "another place of the code"],
)
def test_products_take_all_lanes_of_a_warp(body: str, message: str) -> None:
    source = product("m16n8k16", ("s8", "s8")) + kernel(f"uint32_t own[7] = {{}}, d[4];\n{body}", "uint32_t* y")
    for seed in (0, 1):
        with pytest.raises(EmulationError, match=message):
            run(source, np.zeros(65, np.uint32), block=32, seed=seed)


BEYOND = {
    "reads beyond an array": ("y[0] = y[64 + threadIdx.x % 2];", "heap-buffer-overflow"),
    "writes beyond dynamic memory": ("extern __shared__ int all[];\nall[threadIdx.x + 1] = 1;", "heap-buffer-overflow"),
    "writes beyond an array of its own": (
        "int own[4];\nown[threadIdx.x % 5] = 1; y[0] = own[y[1]];",
        "stack-buffer-overflow|out of bounds",
    ),
    "loads four words that are not aligned": ("uint4 v = *(uint4*)(y + 1); y[0] = v.x;", "misaligned address"),
    "shifts too far": ("y[0] = 1 << (32 + y[0]);", "shift exponent"),
}


@pytest.mark.slow  # the sanitizers' builds take 0.5 s each
@pytest.mark.parametrize("name", BEYOND)
def test_sanitizers_find(name: str) -> None:
    body, message = BEYOND[name]
    dynamic = 256 if "extern" in body else 0
    with pytest.raises(EmulationError, match=message):
        sanitized(Launch(kernel(body), "k", (np.zeros(64, np.int32),), 1, 64, dynamic))


def test_sanitizers_let_a_good_kernel_pass() -> None:
    x, y = np.arange(128 * 3, dtype=np.int32), np.zeros(3, np.int32)
    _, found = sanitized(Launch(REDUCTION, "k", (x, y), 3, 128, 0), seed=2)
    np.testing.assert_array_equal(found, x.reshape(3, 128).sum(axis=1))


RACES = {
    "a missing barrier": (
        "__shared__ int all[64];\nall[threadIdx.x] = 1; y[threadIdx.x] = all[63 - threadIdx.x];",
        "shared memory",
    ),
    "a missing barrier after reads": (
        "__shared__ int all[1];\nif (!threadIdx.x) all[0] = 1; __syncthreads();\n"
        "y[threadIdx.x] = all[0]; if (threadIdx.x == 63) all[0] = 2;",
        "thread 63 writes shared memory that .* reads",
    ),
    "an addition that is not atomic": ("y[0] += 1;", "global memory"),
    "an atomic addition beside a plain one": ("if (threadIdx.x) atomicAdd(y, 1);\nelse y[0] += 1;", "global memory"),
    "the rows of another block": ("y[threadIdx.x] = blockIdx.x;", "of block"),
    "a barrier of warps between warps": (
        "extern __shared__ int all[];\nall[threadIdx.x] = 1; __syncwarp(); y[threadIdx.x] = all[threadIdx.x ^ 32];",
        "shared memory",
    ),
}
NO_RACES = {
    "a barrier": (
        "__shared__ int all[64];\nall[threadIdx.x] = 1; __syncthreads(); y[64 * blockIdx.x + threadIdx.x] = all[63 - threadIdx.x];"
    ),
    "a barrier of warps": (
        "extern __shared__ int all[];\nall[threadIdx.x] = 1; __syncwarp(); y[64 * blockIdx.x + threadIdx.x] = all[threadIdx.x ^ 1];"
    ),
    "atomic additions": "atomicAdd(y, 1);",
    "reads": "y[64 + 64 * blockIdx.x + threadIdx.x] = y[0];",
}


def launch_of(body: str, grid: int) -> Launch:
    return Launch(kernel(body), "k", (np.zeros(256, np.int32),), grid, 64, 256 if "extern" in body else 0)


@pytest.mark.slow  # a build of 0.5 s each
@pytest.mark.parametrize("name", RACES)
def test_races_are_found(name: str) -> None:
    """Also where the results are right."""
    body, message = RACES[name]
    with pytest.raises(EmulationError, match=f"{message}.*no barrier between"):
        without_races(launch_of(body, 2 if name.endswith("block") else 1))


@pytest.mark.parametrize("name", NO_RACES)
def test_what_is_no_race(name: str) -> None:
    without_races(launch_of(NO_RACES[name], 3))
