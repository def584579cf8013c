#include "check/elements.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Float8_e4m3fn.h>
#include <c10/util/Float8_e4m3fnuz.h>
#include <c10/util/Float8_e5m2.h>
#include <c10/util/Float8_e5m2fnuz.h>
#include <c10/util/Half.h>
#include <c10/util/complex.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <complex>
#include <cstdio>
#include <cstring>
#include <limits>
#include <type_traits>

namespace retape::detail {

namespace {

// Sign and magnitude, as all floating formats here have it. Bits: unsigned, of the same size.
template <typename Float, typename Bits, int kDigits>
struct Floating {
  using Element = Float;
  static constexpr Bits kSign = Bits(1) << (8 * sizeof(Bits) - 1);

  static bool is_nan(Float x) { return std::isnan(number(x)); }
  static bool is_zero(Float x) { return number(x) == 0; }
  static bool same(Float a, Float b) {
    return std::bit_cast<Bits>(a) == std::bit_cast<Bits>(b) || (is_nan(a) && is_nan(b));
  }
  static uint64_t distance(Float a, Float b) {
    if (is_nan(a) || is_nan(b)) {
      return 0;
    }
    const auto x = std::bit_cast<Bits>(a), y = std::bit_cast<Bits>(b);
    const uint64_t from = x & Bits(~kSign), to = y & Bits(~kSign);
    if ((x & kSign) != (y & kSign)) {
      return from + to;  // by way of zero; both are below 2^63
    }
    return from > to ? from - to : to - from;
  }
  static double number(Float x) {
    if constexpr (std::is_same_v<Float, double>) {
      return x;
    } else {
      return static_cast<float>(x);
    }
  }
  static std::string text(Float x) {
    char buffer[40];
    std::snprintf(buffer, sizeof buffer, "%.*g", kDigits, number(x));
    return is_nan(x) ? "nan" : buffer;
  }
};

template <typename Part>
struct Complex {
  using Element = c10::complex<typename Part::Element>;
  static bool is_nan(const Element& x) { return Part::is_nan(x.real()) || Part::is_nan(x.imag()); }
  static bool is_zero(const Element& x) {
    return Part::is_zero(x.real()) && Part::is_zero(x.imag());
  }
  static bool same(const Element& a, const Element& b) {
    return Part::same(a.real(), b.real()) && Part::same(a.imag(), b.imag());
  }
  static uint64_t distance(const Element& a, const Element& b) {
    return std::max(Part::distance(a.real(), b.real()), Part::distance(a.imag(), b.imag()));
  }
  static std::complex<double> number(const Element& x) {
    return {Part::number(x.real()), Part::number(x.imag())};
  }
  static std::string text(const Element& x) {
    const auto imaginary = Part::text(x.imag());
    return Part::text(x.real()) + (imaginary.front() == '-' ? "" : "+") + imaginary + "j";
  }
};

template <typename Int>
struct Integer {
  using Element = Int;
  static bool is_nan(Int) { return false; }
  static bool is_zero(Int x) { return x == 0; }
  static bool same(Int a, Int b) { return a == b; }
  static uint64_t distance(Int a, Int b) {
    return a > b ? static_cast<uint64_t>(a) - static_cast<uint64_t>(b)
                 : static_cast<uint64_t>(b) - static_cast<uint64_t>(a);
  }
  static double number(Int x) { return static_cast<double>(x); }
  static std::string text(Int x) { return std::to_string(x); }
};

struct Boolean : Integer<uint8_t> {  // read as a byte: another one than 0 and 1 is no bool
  static std::string text(uint8_t x) {
    return x == 0 ? "false" : x == 1 ? "true" : "byte " + std::to_string(x);
  }
};

using Float = Floating<float, uint32_t, 9>;
using Double = Floating<double, uint64_t, 17>;
using Half = Floating<c10::Half, uint16_t, 5>;
using BFloat16 = Floating<c10::BFloat16, uint16_t, 4>;

// Calls visit with the kind of the dtype; of one that is not known here, byte by byte.
template <typename Visit>
auto with_kind(c10::ScalarType dtype, Visit visit) {
  switch (dtype) {
    case c10::kFloat:
      return visit(Float());
    case c10::kDouble:
      return visit(Double());
    case c10::kHalf:
      return visit(Half());
    case c10::kBFloat16:
      return visit(BFloat16());
    case c10::kComplexHalf:
      return visit(Complex<Half>());
    case c10::kComplexFloat:
      return visit(Complex<Float>());
    case c10::kComplexDouble:
      return visit(Complex<Double>());
    case c10::kChar:
      return visit(Integer<int8_t>());
    case c10::kShort:
      return visit(Integer<int16_t>());
    case c10::kInt:
      return visit(Integer<int32_t>());
    case c10::kLong:
      return visit(Integer<int64_t>());
    case c10::kUInt16:
      return visit(Integer<uint16_t>());
    case c10::kUInt32:
      return visit(Integer<uint32_t>());
    case c10::kUInt64:
      return visit(Integer<uint64_t>());
    case c10::kBool:
      return visit(Boolean());
    case c10::kFloat8_e5m2:
      return visit(Floating<c10::Float8_e5m2, uint8_t, 4>());
    case c10::kFloat8_e4m3fn:
      return visit(Floating<c10::Float8_e4m3fn, uint8_t, 4>());
    case c10::kFloat8_e5m2fnuz:
      return visit(Floating<c10::Float8_e5m2fnuz, uint8_t, 4>());
    case c10::kFloat8_e4m3fnuz:
      return visit(Floating<c10::Float8_e4m3fnuz, uint8_t, 4>());
    default:
      return visit(Integer<uint8_t>());
  }
}

template <typename Kind>
bool close(
    const typename Kind::Element& a, const typename Kind::Element& b, const Tolerance& tolerance) {
  if (Kind::same(a, b)) {
    return true;
  }
  const auto x = Kind::number(a), y = Kind::number(b);
  if (x == y) {
    return true;  // zeros, and infinities of a complex number
  }
  const double bound = tolerance.atol + tolerance.rtol * std::abs(x);
  return std::abs(y - x) <= bound && bound < std::numeric_limits<double>::infinity();
}

// One, but for dtypes that are not known here: these are so many bytes.
template <typename Kind>
int64_t per_element(c10::ScalarType dtype) {
  return static_cast<int64_t>(c10::elementSize(dtype) / sizeof(typename Kind::Element));
}

template <typename Kind>
int64_t length(c10::ScalarType dtype, int64_t count) {
  return count * per_element<Kind>(dtype);
}

}  // namespace

Counted count_differing(
    c10::ScalarType dtype,
    const void* plain,
    const void* recomputed,
    int64_t count,
    const Tolerance* tolerance) {
  return with_kind(dtype, [&](auto kind) {
    using Kind = decltype(kind);
    const auto* a = static_cast<const typename Kind::Element*>(plain);
    const auto* b = static_cast<const typename Kind::Element*>(recomputed);
    Counted counted;
    for (int64_t i = 0; i < length<Kind>(dtype, count); ++i) {
      if (tolerance == nullptr ? Kind::same(a[i], b[i]) : close<Kind>(a[i], b[i], *tolerance)) {
        continue;
      }
      if (counted.differing++ == 0) {
        counted.first = i / per_element<Kind>(dtype);
      }
      counted.ulps = std::max(counted.ulps, Kind::distance(a[i], b[i]));
    }
    return counted;
  });
}

bool all_zero(c10::ScalarType dtype, const void* data, int64_t count) {
  return with_kind(dtype, [&](auto kind) {
    using Kind = decltype(kind);
    const auto* a = static_cast<const typename Kind::Element*>(data);
    return std::all_of(
        a, a + length<Kind>(dtype, count), [](const auto& x) { return Kind::is_zero(x); });
  });
}

bool all_nan(c10::ScalarType dtype, const void* data, int64_t count) {
  return with_kind(dtype, [&](auto kind) {
    using Kind = decltype(kind);
    const auto* a = static_cast<const typename Kind::Element*>(data);
    return std::all_of(
        a, a + length<Kind>(dtype, count), [](const auto& x) { return Kind::is_nan(x); });
  });
}

std::string element_text(c10::ScalarType dtype, const void* data, int64_t index) {
  return with_kind(dtype, [&](auto kind) {
    using Kind = decltype(kind);
    return Kind::text(
        static_cast<const typename Kind::Element*>(data)[index * per_element<Kind>(dtype)]);
  });
}

}  // namespace retape::detail
