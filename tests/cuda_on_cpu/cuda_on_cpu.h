// Runs generated CUDA C under g++, so that kernels are tested on a computer without a GPU. The threads of a block are fibres of one CPU
// thread: each runs until it waits for others. cuda_on_cpu.cpp has the scheduler and says what it finds; emulator.py writes the rest.
//
// Which thread runs next, and which block, is drawn from a seed: a missing barrier gives other results for another seed.
// Memory that a kernel must not count on (shared memory at the start of a block) is filled with a pattern.
// Not the same as on a card: floats out of range that become integers, shifts by the width or more (here as x86 does it), the last bits of
// exp, log and their like. Of tensor cores there is mma.sync of 8-bit integers only. Threads change places only where they wait, so a lost
// x[0] += 1 shows only in `races` (races.inc).
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

struct uint3 { unsigned x, y, z; };

#define LINE int line = __builtin_LINE()

namespace emu {
enum Wait { NOTHING, BLOCK, WARP, SHUFFLE, BALLOT, PRODUCT };
struct Thread { uint3 index; int number; };
extern Thread* current;
extern uint3 block_index, block_size, grid_size;
void barrier(int line);
void pause();             // others may run before this thread goes on
void set_atomic(bool on);  // whether accesses are those of an atomic function
uint64_t meet(Wait kind, unsigned mask, uint64_t value, int source, int line);
// mma.sync of a warp: d = a · b + c, of 16 × k times k × 8 bytes, k = 16 or 32. 'u' or 's' says how those of a and b are read. The words are
// a lane's fragments. All 32 lanes have to come, from the same place of the code.
void multiply(int k, char of_a, char of_b, const uint32_t* a, const uint32_t* b, const uint32_t* c, uint32_t* d, LINE);
char* dynamic_memory();
unsigned shared_address(const void* at);                          // of shared memory, as PTX has it
// cp.async. Without a seed it is done when the thread waits for it, else chance says whether it is done at once or then. What lies in the
// place of a copy that is not done yet is a pattern.
void copy_later(unsigned to, const void* from, int bytes);
void commit_copies();
void wait_for_copies(int groups_left);
void wait_for_all_copies();

struct Any { int32_t type; uint32_t padding; union { int64_t integer; double real; void* pointer; }; };  // TVMFFIAny
struct Kernel { const char* name; void (*body)(const Any*); int parameters, bounds, dynamic; };
int launch(const Kernel& kernel, const Any* arguments, int count, Any* result);

template <class T> uint64_t bits(T value) {
  static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
  uint64_t raw = 0;
  memcpy(&raw, &value, sizeof value);
  return raw;
}
template <class T> T from_bits(uint64_t raw) {
  T value;
  memcpy(&value, &raw, sizeof value);
  return value;
}
}  // namespace emu

#define threadIdx (emu::current->index)
#define blockIdx emu::block_index
#define blockDim emu::block_size
#define gridDim emu::grid_size
#define __global__
#define __device__ static
#define __constant__ static const
#define __forceinline__ inline __attribute__((always_inline))
#define __restrict__
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __shared__ static __attribute__((section("emu_shared")))
#define alignas(n) __attribute__((aligned(n)))
#define warpSize 32

inline void __syncthreads(LINE) { emu::barrier(line); }
inline void __syncwarp(unsigned mask = ~0u, LINE) { emu::meet(emu::WARP, mask, 0, 0, line); }
inline unsigned __ballot_sync(unsigned mask, int vote, LINE) { return emu::meet(emu::BALLOT, mask, vote != 0, 0, line); }
inline int __any_sync(unsigned mask, int vote, LINE) { return __ballot_sync(mask, vote, line) != 0; }
inline int __all_sync(unsigned mask, int vote, LINE) { return __ballot_sync(mask, !vote, line) == 0; }
template <class T> T __shfl_sync(unsigned mask, T value, int source, int width = 32, LINE) {
  int lane = emu::current->number % 32;
  return emu::from_bits<T>(emu::meet(emu::SHUFFLE, mask, emu::bits(value), lane / width * width + (source & (width - 1)), line));
}
template <class T> T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32, LINE) {
  int lane = emu::current->number % 32, to = lane % width + int(by) < width ? lane + int(by) : lane;
  return emu::from_bits<T>(emu::meet(emu::SHUFFLE, mask, emu::bits(value), to, line));
}
template <class T> T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32, LINE) {
  int lane = emu::current->number % 32, to = lane % width >= int(by) ? lane - int(by) : lane;
  return emu::from_bits<T>(emu::meet(emu::SHUFFLE, mask, emu::bits(value), to, line));
}
template <class T> T __shfl_xor_sync(unsigned mask, T value, int with, int width = 32, LINE) {
  int lane = emu::current->number % 32, other = lane ^ with;
  return emu::from_bits<T>(emu::meet(emu::SHUFFLE, mask, emu::bits(value), other / width <= lane / width ? other : lane, line));
}

template <class T, class F> T emu_atomic(T* at, F change) {
  emu::pause();
  emu::set_atomic(true);
  T old = *at;
  *at = change(old);
  emu::set_atomic(false);
  return old;
}
template <class T> T atomicAdd(T* at, T value) { return emu_atomic(at, [=](T old) { return T(old + value); }); }
template <class T> T atomicMin(T* at, T value) { return emu_atomic(at, [=](T old) { return value < old ? value : old; }); }
template <class T> T atomicMax(T* at, T value) { return emu_atomic(at, [=](T old) { return value > old ? value : old; }); }
template <class T> T atomicAnd(T* at, T value) { return emu_atomic(at, [=](T old) { return T(old & value); }); }
template <class T> T atomicOr(T* at, T value) { return emu_atomic(at, [=](T old) { return T(old | value); }); }
template <class T> T atomicExch(T* at, T value) { return emu_atomic(at, [=](T) { return value; }); }
template <class T> T atomicCAS(T* at, T expected, T value) { return emu_atomic(at, [=](T old) { return old == expected ? value : old; }); }
inline unsigned __cvta_generic_to_shared(const void* at) { return emu::shared_address(at); }
inline void __threadfence() {}
inline void __threadfence_block() {}

template <class T> T __ldg(const T* at) { return *at; }
inline double __longlong_as_double(long long bits) { return emu::from_bits<double>(uint64_t(bits)); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) { return uint64_t(high) << 32 >> 32 << (by & 31) | uint64_t(low) >> (32 - (by & 31)); }
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) { return (uint64_t(high) << 32 | low) >> (by & 31); }
inline double __hiloint2double(int high, int low) {
  const uint64_t bits = uint64_t(uint32_t(high)) << 32 | uint32_t(low);
  double value;
  memcpy(&value, &bits, sizeof value);
  return value;
}
inline int __double2hiint(double x) { return int(emu::bits(x) >> 32); }
inline int __double2loint(double x) { return int(emu::bits(x)); }
inline double __dadd_rd(double a, double b) {
  const double sum = a + b, part = sum - a, error = (a - (sum - part)) + (b - part);
  return error < 0 ? nextafter(sum, -INFINITY) : sum;
}
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  uint64_t all = uint64_t(b) << 32 | a;
  unsigned found = 0;
  for (int i = 0; i < 4; i++) {
    unsigned byte = all >> 8 * (selector >> 4 * i & 7) & 255;
    found |= (selector >> 4 * i & 8 ? (byte & 128 ? 255u : 0u) : byte) << 8 * i;
  }
  return found;
}

// CUDA's max and min of floats return the operand that is a number, and take -0.0 for less than 0.0.
#define EMU_FLOATS(T) \
  inline T max(T a, T b) { return a != a ? b : b != b ? a : a == b ? (signbit(a) ? b : a) : a > b ? a : b; } \
  inline T min(T a, T b) { return a != a ? b : b != b ? a : a == b ? (signbit(a) ? a : b) : a < b ? a : b; }
#define EMU_INTEGERS(T) \
  inline T max(T a, T b) { return a < b ? b : a; } \
  inline T min(T a, T b) { return b < a ? b : a; }
EMU_FLOATS(float) EMU_FLOATS(double)
EMU_INTEGERS(int) EMU_INTEGERS(unsigned) EMU_INTEGERS(long) EMU_INTEGERS(unsigned long)
EMU_INTEGERS(long long) EMU_INTEGERS(unsigned long long)
#define CUDART_INF_F __builtin_inff()
#define CUDART_INF __builtin_inf()
#define CUDART_NAN_F __builtin_nanf("")
#define CUDART_NAN __builtin_nan("")
#define isnan(x) __builtin_isnan(x)
#define isinf(x) __builtin_isinf(x)
#define isfinite(x) __builtin_isfinite(x)

#define EMU_VECTOR(name, T, bytes) \
  struct __attribute__((aligned(bytes * 2))) name##2 { T x, y; }; \
  struct __attribute__((aligned(bytes * 4 > 16 ? 16 : bytes * 4))) name##4 { T x, y, z, w; }; \
  inline name##2 make_##name##2(T x, T y) { return {x, y}; } \
  inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
EMU_VECTOR(char, signed char, 1) EMU_VECTOR(uchar, unsigned char, 1) EMU_VECTOR(short, short, 2) EMU_VECTOR(ushort, unsigned short, 2)
EMU_VECTOR(int, int, 4) EMU_VECTOR(uint, unsigned, 4) EMU_VECTOR(float, float, 4) EMU_VECTOR(longlong, long long, 8)
EMU_VECTOR(ulonglong, unsigned long long, 8) EMU_VECTOR(double, double, 8)

