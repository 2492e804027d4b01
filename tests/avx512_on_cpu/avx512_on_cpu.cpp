// The instructions of AVX-512 that hbc asks LLVM for by name, in plain C++: one function each, named as LLVM's intrinsic without
// "llvm.x86.avx512." and with _ for each dot. Operands are read, and the result is written, through pointers, in the order of the intrinsic.
// The source is volume 2 of Intel's Software Developer's Manual.

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>

template <class T> struct Whole;  // the integer with the bits of a number
template <> struct Whole<float> { typedef uint32_t Type; };
template <> struct Whole<double> { typedef uint64_t Type; };

template <class T> typename Whole<T>::Type bits_of(T x) {
  typename Whole<T>::Type bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

template <class T> T of_bits(typename Whole<T>::Type bits) {
  T x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

const int NEAREST = 4;  // "the current direction" of rounding, which is to the nearest number: the only one that hbc asks for

// --- permutations: of an index only the bits count that the table has places for

template <class T, class I> void permute(const T* table, const I* index, T* result, int lanes) {
  for (int i = 0; i < lanes; ++i) result[i] = table[index[i] & (lanes - 1)];
}

template <class T, class I> void permute_two(const T* low, const I* index, const T* high, T* result, int lanes) {
  for (int i = 0; i < lanes; ++i) result[i] = (index[i] & lanes ? high : low)[index[i] & (lanes - 1)];
}

// --- arithmetic, of one lane. What gives NaN gives the quiet one of its operand, or the manual's "indefinite".

template <class T> bool is_quiet(T x) { return bits_of(x) >> (std::numeric_limits<T>::digits - 2) & 1; }
template <class T> T quiet(T x) { return of_bits<T>(bits_of(x) | typename Whole<T>::Type(1) << (std::numeric_limits<T>::digits - 2)); }
template <class T> T indefinite() { return -std::numeric_limits<T>::quiet_NaN(); }

template <class T> T scalef(T a, T b) {  // a · 2^floor(b)
  const T infinity = std::numeric_limits<T>::infinity();
  if (std::isnan(a)) return is_quiet(a) && std::isinf(b) ? (b > 0 ? infinity : T(0)) : quiet(a);
  if (std::isnan(b)) return quiet(b);
  if ((std::isinf(a) && b == -infinity) || (a == 0 && b == infinity)) return indefinite<T>();
  if (std::isinf(b)) return std::copysign(b > 0 ? infinity : T(0), a);
  const T least = -20000, most = 20000;
  const T count = std::floor(b < least ? least : b > most ? most : b);
  return std::ldexp(a, int(count));
}

template <class T> T getexp(T x) {  // floor(log2 |x|)
  if (std::isnan(x)) return quiet(x);
  return std::logb(x);  // -∞ for 0, ∞ for ±∞
}

template <class T> T getmant(T x, int code) {
  const int interval = code & 3, sign = code >> 2 & 3;  // sign: 1 makes it positive, 2 and 3 are for positive numbers only
  if (std::isnan(x)) return quiet(x);
  const bool negative = std::signbit(x);
  if (negative && x != 0 && sign & 2) return indefinite<T>();
  T mantissa = 1;
  if (x != 0 && !std::isinf(x)) {
    int exponent;
    mantissa = 2 * std::frexp(std::fabs(x), &exponent);  // from 1 to below 2
    exponent -= 1;
    if (interval == 1 ? exponent & 1 : interval == 2 || (interval == 3 && mantissa >= T(1.5))) mantissa /= 2;
  }
  return negative && !(sign & 1) ? -mantissa : mantissa;
}

template <class T> T fixup(T kept, T x, uint32_t answers) {
  typedef std::numeric_limits<T> Limits;
  const T infinity = Limits::infinity();
  int kind;
  if (std::isnan(x)) kind = is_quiet(x) ? 0 : 1;
  else if (x == 0) kind = 2;
  else if (x == 1) kind = 3;
  else if (std::isinf(x)) kind = x < 0 ? 4 : 5;
  else kind = x < 0 ? 6 : 7;
  switch (answers >> (4 * kind) & 15) {
    case 0: return kept;
    case 1: return x;
    case 2: return std::isnan(x) ? quiet(x) : Limits::quiet_NaN();  // as Zen 5 answers for numbers
    case 3: return indefinite<T>();
    case 4: return -infinity;
    case 5: return infinity;
    case 6: return std::signbit(x) ? -infinity : infinity;
    case 7: return T(-0.0);
    case 8: return 0;
    case 9: return -1;
    case 10: return 1;
    case 11: return T(0.5);
    case 12: return 90;
    case 13: return T(1.5707963267948966);
    case 14: return Limits::max();
    default: return -Limits::max();
  }
}

void require_nearest(const int32_t* rounding) {
  if (*rounding != NEAREST) std::abort();
}

// --- the instructions

#define PERMUTE(suffix, Element, Index, lanes)                                                                                \
  extern "C" void permvar_##suffix(const Element* table, const Index* index, Element* result) {                               \
    permute(table, index, result, lanes);                                                                                     \
  }
PERMUTE(qi_256, uint8_t, uint8_t, 32)
PERMUTE(qi_512, uint8_t, uint8_t, 64)
PERMUTE(sf_512, float, int32_t, 16)
PERMUTE(df_512, double, int64_t, 8)
PERMUTE(si_512, int32_t, int32_t, 16)
PERMUTE(di_512, int64_t, int64_t, 8)

#define PERMUTE_TWO(suffix, Element, Index, lanes)                                                                            \
  extern "C" void vpermi2var_##suffix(const Element* low, const Index* index, const Element* high, Element* result) {         \
    permute_two(low, index, high, result, lanes);                                                                             \
  }
PERMUTE_TWO(qi_512, uint8_t, uint8_t, 64)
PERMUTE_TWO(ps_512, float, int32_t, 16)
PERMUTE_TWO(pd_512, double, int64_t, 8)
PERMUTE_TWO(d_512, int32_t, int32_t, 16)
PERMUTE_TWO(q_512, int64_t, int64_t, 8)

extern "C" void pshuf_b_512(const uint8_t* table, const uint8_t* index, uint8_t* result) {  // in each 16 bytes for themselves
  for (int i = 0; i < 64; ++i) result[i] = index[i] & 128 ? 0 : table[(i & ~15) | (index[i] & 15)];
}

extern "C" void pternlog_d_256(
    const uint32_t* a, const uint32_t* b, const uint32_t* c, const int32_t* table, uint32_t* result) {
  for (int i = 0; i < 8; ++i) {
    result[i] = 0;
    for (int bit = 0; bit < 32; ++bit) {
      const int place = (a[i] >> bit & 1) << 2 | (b[i] >> bit & 1) << 1 | (c[i] >> bit & 1);
      result[i] |= uint32_t(*table >> place & 1) << bit;
    }
  }
}

// Where a bit of the mask is 0, the result is `other`.
#define ARITHMETIC(suffix, T, Integer, Mask, lanes)                                                                           \
  extern "C" void mask_scalef_##suffix(                                                                                       \
      const T* a, const T* b, const T* other, const Mask* mask, const int32_t* rounding, T* result) {                         \
    require_nearest(rounding);                                                                                                \
    for (int i = 0; i < lanes; ++i) result[i] = *mask >> i & 1 ? scalef(a[i], b[i]) : other[i];                               \
  }                                                                                                                           \
  extern "C" void mask_getexp_##suffix(                                                                                       \
      const T* x, const T* other, const Mask* mask, const int32_t* rounding, T* result) {                                     \
    require_nearest(rounding);                                                                                                \
    for (int i = 0; i < lanes; ++i) result[i] = *mask >> i & 1 ? getexp(x[i]) : other[i];                                     \
  }                                                                                                                           \
  extern "C" void mask_getmant_##suffix(                                                                                      \
      const T* x, const int32_t* code, const T* other, const Mask* mask, const int32_t* rounding, T* result) {                \
    require_nearest(rounding);                                                                                                \
    for (int i = 0; i < lanes; ++i) result[i] = *mask >> i & 1 ? getmant(x[i], *code) : other[i];                             \
  }                                                                                                                           \
  extern "C" void mask_fixupimm_##suffix(                                                                                     \
      const T* kept, const T* x, const Integer* answers, const int32_t* flags, const Mask* mask, const int32_t* rounding,     \
      T* result) {                                                                                                            \
    require_nearest(rounding);                                                                                                \
    for (int i = 0; i < lanes; ++i) result[i] = *mask >> i & 1 ? fixup(kept[i], x[i], uint32_t(answers[i])) : kept[i];        \
  }
ARITHMETIC(ps_512, float, int32_t, uint16_t, 16)
ARITHMETIC(pd_512, double, int64_t, uint8_t, 8)

extern "C" void mask_compress_v64i8(const uint8_t* values, const uint8_t* others, const uint64_t* mask, uint8_t* result) {
  int count = 0;
  for (int i = 0; i < 64; ++i) {
    if (*mask >> i & 1) result[count++] = values[i];
  }
  for (; count < 64; ++count) result[count] = others[count];
}
