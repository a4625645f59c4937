// Floating-point formats (PTX ISA 5.2.2, 5.2.3): half, bfloat16 and the small ones, to and from
// float.  Branch-free where it matters, so that loops over lanes become vector code.
#pragma once

#include <cstring>
#include <limits>

#include "lanes.h"

namespace ptx::PTX_VARIANT {

PTX_INLINE u32 bits_of_f32(float v) { return as<u32>(v); }
PTX_INLINE float f32_of_bits(u32 v) { return as<float>(v); }

// .ftz: subnormal numbers become zeros of the same sign.
PTX_INLINE float flush(float v) {
    const u32 b = bits_of_f32(v);
    return f32_of_bits((b & 0x7f800000) == 0 ? b & 0x80000000 : b);
}
// Cards flush a result that is subnormal when it is rounded as if the exponent had no lower end
// (IEEE 754's "after rounding"), also where the format itself would round it up to the smallest
// normal number.  `scaled`, the result times kScale, tells.
constexpr float kScale = 0x1p32F;
PTX_INLINE float flush(float v, float scaled) {
    const u32 b = bits_of_f32(v);
    const bool tiny = std::fabs(scaled) < kScale * std::numeric_limits<float>::min();
    return f32_of_bits(tiny ? b & 0x80000000 : b);
}
PTX_INLINE u16 flush_f16(u16 v) { return static_cast<u16>((v & 0x7c00) == 0 ? v & 0x8000 : v); }

PTX_INLINE float f16_to_f32(u16 h) {
    const u32 sign = static_cast<u32>(h & 0x8000) << 16, rest = static_cast<u32>(h & 0x7fff) << 13;
    // Moves the exponent by multiplication, which also makes subnormal numbers normal.
    const float scaled = f32_of_bits(rest) * f32_of_bits((254 - 15) << 23);
    const u32 special = rest | 0x7f800000;
    return f32_of_bits(((h & 0x7c00) == 0x7c00 ? special : bits_of_f32(scaled)) | sign);
}
PTX_INLINE float bf16_to_f32(u16 h) { return f32_of_bits(static_cast<u32>(h) << 16); }

// Round to nearest even.  A NaN becomes the canonical one, 0x7fff.
PTX_INLINE u16 f32_to_f16(float v) {
    const u32 b = bits_of_f32(v), sign = b >> 16 & 0x8000, a = b & 0x7fffffff;
    // Subnormal results: the addition of 0.5 leaves the rounded multiple of 2^-24 in the low bits.
    const u32 small = bits_of_f32(f32_of_bits(a) + 0.5F) - 0x3f000000;
    const u32 normal = (a - (u32{112} << 23) + 0xfff + (a >> 13 & 1)) >> 13;
    const u32 rounded = a < 0x38800000 ? small : normal;
    const u32 large = a >= 0x477ff000 ? 0x7c00 : rounded;
    return static_cast<u16>(a > 0x7f800000 ? 0x7fff : large | sign);
}
PTX_INLINE u16 f32_to_bf16(float v) {
    const u32 b = bits_of_f32(v);
    const u32 rounded = (b + 0x7fff + (b >> 16 & 1)) >> 16;
    return static_cast<u16>((b & 0x7fffffff) > 0x7f800000 ? 0x7fff : rounded);
}

// A double rounded to odd: the last bit says whether something was cut off, so that a second
// rounding to far fewer bits is right (Boldo, Melquiond, "Emulation of FMA and correctly rounded
// sums").  `error` is exact minus `sum`.
PTX_INLINE double to_odd(double sum, double error) {
    const u64 b = as<u64>(sum);
    const bool inexact = error != 0 && (b & 1) == 0 && error - error == 0 && sum - sum == 0;
    // Away from zero where the error has the sum's sign, else towards it.
    const bool same = (error > 0) == (sum > 0);
    const u64 odd = same ? b + 1 : b - 1;
    return as<double>(inexact ? odd : b);
}
// a * b + c for a, b, c of at most 24 bits each, rounded to odd.
PTX_INLINE double fma_odd(double a, double b, double c) {
    const double p = a * b, s = p + c;
    const double t = s - p, error = (p - (s - t)) + (c - t);
    return to_odd(s, error);
}
// A double, rounded to odd, to bfloat16: through float with the low bits gathered.
PTX_INLINE float odd_to_f32_odd(double v) {
    const auto f = static_cast<float>(v);
    const double back = f;
    const u32 b = bits_of_f32(f);
    const bool inexact = back != v && (b & 1) == 0 && v - v == 0;
    const bool up = (v > back) == (v > 0);
    // Overflow to infinity: the largest number is odd already.
    const bool infinite = (b & 0x7fffffff) == 0x7f800000;
    const u32 odd = infinite ? b - 1 : up ? b + 1 : b - 1;
    return f32_of_bits(inexact ? odd : b);
}

}  // namespace ptx::PTX_VARIANT
