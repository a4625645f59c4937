// The formats of 4, 6 and 8 bits and the scales (PTX ISA 5.2.3): one value at a time.
#pragma once

#include <cmath>

#include "formats.h"

namespace ptx::PTX_VARIANT {

struct Small {
    u32 exponent, mantissa;  // bits
    s32 bias;
    u32 most;       // the code of the largest number
    bool infinity;  // has infinities and NaNs as IEEE 754 does
    u32 nan;        // a code; 0: none
};
constexpr Small kE4m3{4, 3, 7, 0x7e, false, 0x7f};
constexpr Small kE5m2{5, 2, 15, 0x7b, true, 0x7f};
constexpr Small kE2m1{2, 1, 1, 0x7, false, 0};
constexpr Small kE2m3{2, 3, 1, 0x1f, false, 0};
constexpr Small kE3m2{3, 2, 3, 0x1f, false, 0};

inline bool small_format(Type type, Small* out) {
    switch (type) {
        case Type::e4m3:
        case Type::ue4m3:
        case Type::e4m3x2: *out = kE4m3; return true;
        case Type::e5m2:
        case Type::e5m2x2: *out = kE5m2; return true;
        case Type::e2m1:
        case Type::e2m1x2: *out = kE2m1; return true;
        case Type::e2m3:
        case Type::e2m3x2: *out = kE2m3; return true;
        case Type::e3m2:
        case Type::e3m2x2: *out = kE3m2; return true;
        default: return false;
    }
}

inline float decode_small(const Small& f, u32 code) {
    const u32 sign = code >> (f.exponent + f.mantissa) & 1,
              e = code >> f.mantissa & ((1U << f.exponent) - 1);
    const u32 m = code & ((1U << f.mantissa) - 1);
    float v;
    if (f.infinity && e == (1U << f.exponent) - 1) v = m == 0 ? INFINITY : NAN;
    else if (f.nan != 0 && !f.infinity && (code & 0x7f) == f.nan) v = NAN;
    else if (e == 0)
        v = std::ldexp(static_cast<float>(m), 1 - f.bias - static_cast<int>(f.mantissa));
    else
        v = std::ldexp(static_cast<float>(m + (1U << f.mantissa)),
                       static_cast<int>(e) - f.bias - static_cast<int>(f.mantissa));
    return sign != 0 ? -v : v;
}

// To the nearest, ties to even; beyond the largest number: that number (.satfinite).
inline u32 encode_small(const Small& f, float v) {
    const u32 sign_bit = 1U << (f.exponent + f.mantissa);
    if (v != v) return f.nan != 0 ? f.nan : f.most;
    const u32 sign = std::signbit(v) ? sign_bit : 0;
    const float a = std::fabs(v);
    if (a >= decode_small(f, f.most)) return sign | f.most;
    int e = 0;
    if (a > 0) std::frexp(a, &e);
    e = std::max(e - 1, 1 - f.bias);
    const double n =
        std::nearbyint(std::ldexp(static_cast<double>(a), static_cast<int>(f.mantissa) - e));
    const auto count = static_cast<u32>(n);
    const u32 code = count == 0 ? 0 : (static_cast<u32>(e - (1 - f.bias)) << f.mantissa) + count;
    return sign | std::min(code, f.most);
}

inline float decode_scale(u32 code) {
    return code == 0xff ? NAN : std::ldexp(1.0F, static_cast<int>(code) - 127);
}  // ue8m0

// cuda_fp8.hpp says the same for the host: .rz takes the exponent, .rp the next one where bits
// follow.
inline u32 encode_scale(float v, bool up, bool finite) {
    const u32 b = bits_of_f32(v) & 0x7fffffff;
    if (b > 0x7f800000) return 0xff;
    u32 e = b >> 23;
    if (up && (b & 0x7fffff) != 0 && b > 0x00400000 && b < 0x7f800000) ++e;
    return finite && e == 0xff ? 0xfe : e;
}

}  // namespace ptx::PTX_VARIANT
