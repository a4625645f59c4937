// Approximate functions (PTX ISA 9.7.3, 9.7.4.10): ex2, lg2, sin, cos, tanh, rcp, rsqrt, sqrt, div.
//
// Computed in double precision to about 1e-11 and rounded once, so they are within the document's
// bounds: closer to the exact value than a card is.  Without calls, so that lanes run side by side.
#include "formats.h"
#include "lanes.h"

namespace ptx::PTX_VARIANT {

namespace {

PTX_INLINE double pow2(s32 n) {
    return as<double>(static_cast<u64>(static_cast<s64>(n) + 1023) << 52);
}
// To the nearest integer, |v| < 2^51: the addition drops the fraction.
PTX_INLINE double nearest(double v) {
    constexpr double kShift = 6755399441055744.0;  // 1.5 * 2^52
    return (v + kShift) - kShift;
}

// 2^v for -1000 < v < 1000.
PTX_INLINE double exp2_of(double v) {
    const double n = nearest(v), f = (v - n) * 0.693147180559945309417;  // |f| <= 0.347
    double p = 1.0 / 479001600;
    p = p * f + 1.0 / 39916800;
    p = p * f + 1.0 / 3628800;
    p = p * f + 1.0 / 362880;
    p = p * f + 1.0 / 40320;
    p = p * f + 1.0 / 5040;
    p = p * f + 1.0 / 720;
    p = p * f + 1.0 / 120;
    p = p * f + 1.0 / 24;
    p = p * f + 1.0 / 6;
    p = p * f + 0.5;
    p = p * f + 1.0;
    p = p * f + 1.0;
    return p * pow2(static_cast<s32>(n));
}
PTX_INLINE float ex2_of(float a) {
    const float limited = a < -200.0F ? -200.0F : a > 200.0F ? 200.0F : a;
    const auto v = static_cast<float>(exp2_of(static_cast<double>(limited)));
    return a != a ? f32_of_bits(0x7fffffff) : v;
}

// log2 of a positive normal double.
PTX_INLINE double log2_of(double v) {
    const u64 b = as<u64>(v);
    // v = m * 2^e, m in [0.7, 1.42)
    const u64 shifted = b - 0x3fe6a09e667f3bcdULL;
    const auto e = static_cast<s32>(static_cast<s64>(shifted) >> 52);
    const double m = as<double>(b - (static_cast<u64>(static_cast<s64>(e)) << 52));
    const double s = (m - 1) / (m + 1), q = s * s;  // |s| < 0.172
    double p = 1.0 / 17;
    p = p * q + 1.0 / 15;
    p = p * q + 1.0 / 13;
    p = p * q + 1.0 / 11;
    p = p * q + 1.0 / 9;
    p = p * q + 1.0 / 7;
    p = p * q + 1.0 / 5;
    p = p * q + 1.0 / 3;
    p = p * q + 1.0;
    return static_cast<double>(e) + 2 * s * p * 1.44269504088896340736;
}
PTX_INLINE float lg2_of(float a) {
    const float safe = a > 0 && a < f32_of_bits(0x7f800000) ? a : 1.0F;
    const auto v = static_cast<float>(log2_of(static_cast<double>(safe)));
    const float zero_or_negative = a == 0 ? f32_of_bits(0xff800000) : f32_of_bits(0x7fffffff);
    return a > 0 ? (a < f32_of_bits(0x7f800000) ? v : a) : zero_or_negative;
}

// sin(v + quarter * pi / 2); |v| below 2^30 keeps 1e-6.
PTX_INLINE double sine(double v, s64 quarter) {
    const double n = nearest(v * 0.63661977236758134308);
    const double r = (v - n * 1.57079632679489655800) - n * 6.12323399573676603587e-17;
    const double q = r * r;
    const double s =
        r * (1 + q * (-1.0 / 6 +
                      q * (1.0 / 120 +
                           q * (-1.0 / 5040 +
                                q * (1.0 / 362880 + q * (-1.0 / 39916800 + q / 6227020800.0))))));
    const double c =
        1 + q * (-0.5 +
                 q * (1.0 / 24 + q * (-1.0 / 720 +
                                      q * (1.0 / 40320 + q * (-1.0 / 3628800 + q / 479001600.0)))));
    const s64 turn = static_cast<s64>(static_cast<s32>(n)) + quarter;
    const double t = turn & 1 ? c : s;
    return turn & 2 ? -t : t;
}
template <int kQuarter>
PTX_INLINE float sine_of(float a) {
    const bool finite = (bits_of_f32(a) & 0x7f800000) != 0x7f800000;
    // Far out the cards' results mean nothing either; nearest() is good to 2^51.
    const float limited = a < -1e9F ? -1e9F : a > 1e9F ? 1e9F : a;
    const auto v = static_cast<float>(sine(static_cast<double>(finite ? limited : 0.0F), kQuarter));
    const float signed_zero = kQuarter == 0 && a == 0 ? a : v;
    return finite ? signed_zero : f32_of_bits(0x7fffffff);
}

PTX_INLINE float tanh_of(float a) {
    const float magnitude = f32_of_bits(bits_of_f32(a) & 0x7fffffff);
    const double x = static_cast<double>(magnitude < 20.0F ? magnitude : 20.0F);
    // Near 0 the quotient loses digits: a series does not.
    const double q = x * x,
                 series =
                     x *
                     (1 + q * (-1.0 / 3 + q * (2.0 / 15 + q * (-17.0 / 315 + q * (62.0 / 2835)))));
    const double e = exp2_of(x * 2.88539008177792681472);
    const auto v = static_cast<float>(x < 0.05 ? series : (e - 1) / (e + 1));
    const float out = f32_of_bits(bits_of_f32(v) | (bits_of_f32(a) & 0x80000000));
    return a != a ? f32_of_bits(0x7fffffff) : out;
}

struct Ex2 {
    static float f(float a) { return ex2_of(a); }
};
struct Lg2 {
    static float f(float a) { return lg2_of(a); }
};
struct Sin {
    static float f(float a) { return sine_of<0>(a); }
};
struct Cos {
    static float f(float a) { return sine_of<1>(a); }
};
struct Tanh {
    static float f(float a) { return tanh_of(a); }
};
struct Rcp {
    static float f(float a) { return 1 / a; }
};
struct Sqrt {
    static float f(float a) { return __builtin_sqrtf(a); }
};
struct Rsqrt {
    static float f(float a) {
        return static_cast<float>(1 / __builtin_sqrt(static_cast<double>(a)));
    }
};
// 9.7.3.8: for |b| beyond 2^126 the reciprocal is subnormal, and div.approx gives 0.
struct DivApprox {
    static float f(float a, float b) {
        const u32 m = bits_of_f32(b) & 0x7fffffff;
        const float v = a / b;
        const bool zero = m > 0x7e800000 && m < 0x7f800000;
        const float small = a - a == 0 ? f32_of_bits((bits_of_f32(a) ^ bits_of_f32(b)) & 0x80000000)
                                       : f32_of_bits(0x7fffffff);
        return zero ? small : v;
    }
};
struct DivFull {
    static float f(float a, float b) { return a / b; }
};

template <class Op, bool ftz>
struct Flushed {
    static float in(float v) { return ftz ? flush(v) : v; }
    static float f(float a) { return in(Op::f(in(a))); }
    static float f(float a, float b) { return in(Op::f(in(a), in(b))); }
};
// The same on half precision: computed from the exact value, rounded to the format.
template <class Op, bool kBrain>
struct Narrow {
    static u16 f(u16 a) {
        const float v = Op::f(kBrain ? bf16_to_f32(a) : f16_to_f32(a));
        return kBrain ? f32_to_bf16(v) : f32_to_f16(v);
    }
    static u32 f(u32 a) {
        return f(static_cast<u16>(a)) | static_cast<u32>(f(static_cast<u16>(a >> 16))) << 16;
    }
};

template <class Op>
bool function(Lowering& l) {
    if (!l.take("approx")) return false;
    const bool ftz = l.take("ftz");
    switch (l.type()) {
        case Type::f32:
            return operands(
                l, 32, 1, ftz ? unary<float, Flushed<Op, true>> : unary<float, Flushed<Op, false>>);
        case Type::f16: return operands(l, 16, 1, unary<u16, Narrow<Op, false>>);
        case Type::bf16: return operands(l, 16, 1, unary<u16, Narrow<Op, true>>);
        case Type::f16x2: return operands(l, 32, 1, unary<u32, Narrow<Op, false>>);
        case Type::bf16x2: return operands(l, 32, 1, unary<u32, Narrow<Op, true>>);
        default: return false;
    }
}
struct Rcp64 {
    static double f(double a) { return 1 / a; }
};
bool rcp(Lowering& l) {
    if (l.type() == Type::f64)
        return l.take("approx") && l.take("ftz") && operands(l, 64, 1, unary<double, Rcp64>);
    return l.type() == Type::f32 && function<Rcp>(l);
}
bool rsqrt(Lowering& l) { return l.type() == Type::f32 && function<Rsqrt>(l); }
bool sqrt(Lowering& l) { return l.type() == Type::f32 && function<Sqrt>(l); }
bool div(Lowering& l) {
    if (l.type() != Type::f32) return false;
    const bool full = l.take("full"), approx = l.take("approx"), ftz = l.take("ftz");
    if (full)
        return operands(
            l, 32, 2,
            ftz ? binary<float, Flushed<DivFull, true>> : binary<float, Flushed<DivFull, false>>);
    return approx && operands(l, 32, 2,
                              ftz ? binary<float, Flushed<DivApprox, true>>
                                  : binary<float, Flushed<DivApprox, false>>);
}

}  // namespace

extern const Entry kApprox[];
const Entry kApprox[] = {{"ex2", function<Ex2>}, {"lg2", function<Lg2>},   {"sin", function<Sin>},
                         {"cos", function<Cos>}, {"tanh", function<Tanh>}, {"rcp", rcp},
                         {"rsqrt", rsqrt},       {"sqrt", sqrt},           {"div", div},
                         {nullptr, nullptr}};

}  // namespace ptx::PTX_VARIANT
