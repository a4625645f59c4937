// Floating-point arithmetic in single and double precision (PTX ISA 9.7.3), rounding to nearest.
// Other roundings: rounding.cpp.  Approximate functions: approx.cpp.
#include "formats.h"
#include "lanes.h"

namespace ptx::PTX_VARIANT {

// rounding.cpp
bool select_rounded(Lowering& l, std::string_view rounding, int operation, bool ftz, bool sat);
enum Operation { kAdd, kSub, kMul, kFma, kDiv, kRcp, kSqrt };

namespace {

struct Add {
    template <class T>
    static T f(T a, T b) {
        return a + b;
    }
};
struct Sub {
    template <class T>
    static T f(T a, T b) {
        return a - b;
    }
};
// Where the host has no such instruction, each lane calls the C library.
#ifdef __FP_FAST_FMAF
constexpr bool kFmaIsCalled = false;
#else
constexpr bool kFmaIsCalled = true;
#endif

// scaled: the result times kScale, for flush; one that overflows is not tiny.  Sums need none: tiny
// ones are exact.
struct Mul {
    template <class T>
    static T f(T a, T b) {
        return a * b;
    }
    static float scaled(float a, float b) { return f(a * kScale, b); }
};
struct Fma {
    static float f(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
    static float scaled(float a, float b, float c) { return f(a * kScale, b, c * kScale); }
    static double f(double a, double b, double c) { return __builtin_fma(a, b, c); }
};
struct Div {
    template <class T>
    static T f(T a, T b) {
        return a / b;
    }
    static float scaled(float a, float b) { return f(a * kScale, b); }
};
struct Rcp {
    template <class T>
    static T f(T a) {
        return 1 / a;
    }
    static float scaled(float a) { return kScale / a; }
};
struct Sqrt {
    static float f(float a) { return __builtin_sqrtf(a); }
    static double f(double a) { return __builtin_sqrt(a); }
};
struct Rsqrt {
    static double f(double a) { return 1 / __builtin_sqrt(a); }
};
struct Abs {
    static float f(float a) { return f32_of_bits(bits_of_f32(a) & 0x7fffffff); }
    static double f(double a) { return __builtin_fabs(a); }
};
struct Neg {
    static float f(float a) { return f32_of_bits(bits_of_f32(a) ^ 0x80000000); }
    static double f(double a) { return -a; }
};

// .sat: [0, 1], NaN becomes 0.
PTX_INLINE float saturate(float v) { return v > 0 ? (v < 1 ? v : 1.0F) : 0.0F; }

template <class Op, bool ftz, bool sat>
struct Single {
    static float in(float v) { return ftz ? flush(v) : v; }
    template <class... Floats>
    static float f(Floats... a) {
        float v = Op::f(in(a)...);
        if constexpr (ftz && requires { Op::scaled(a...); }) {
            // Only the smallest normal number can be a tiny one, rounded up: spares most calls.
            const bool decided = kFmaIsCalled && std::is_same_v<Op, Fma> &&
                                 std::fabs(v) != std::numeric_limits<float>::min();
            v = decided ? flush(v) : flush(v, Op::scaled(in(a)...));
        } else if (ftz) {
            v = flush(v);
        }
        return sat ? saturate(v) : v;
    }
};

template <class Op, int kSources, bool ftz, bool sat>
Handler single_of() {
    if constexpr (kSources == 1) return unary<float, Single<Op, ftz, sat>>;
    else if constexpr (kSources == 2) return binary<float, Single<Op, ftz, sat>>;
    else return ternary<float, Single<Op, ftz, sat>>;
}
template <class Op, int kSources>
Handler double_of() {
    if constexpr (kSources == 1) return unary<double, Op>;
    else if constexpr (kSources == 2) return binary<double, Op>;
    else return ternary<double, Op>;
}

template <class Op, int kSources, int kOperation>
bool arithmetic(Lowering& l) {
    if (l.types().size() != 1) return false;
    const bool f32 = l.type() == Type::f32;
    if (!f32 && l.type() != Type::f64) return false;
    const bool ftz = l.take("ftz"), sat = l.take("sat");
    if (!f32 && (ftz || sat)) return false;
    l.take("rn");
    const std::string_view rounding = l.first_of({"rz", "rm", "rp"});
    if (!rounding.empty()) {
        operands(l, f32 ? 32 : 64, kSources, nullptr);
        return select_rounded(l, rounding, kOperation, ftz, sat);
    }
    if (!f32) return operands(l, 64, kSources, double_of<Op, kSources>());
    if (sat)
        return operands(
            l, 32, kSources,
            ftz ? single_of<Op, kSources, true, true>() : single_of<Op, kSources, false, true>());
    return operands(
        l, 32, kSources,
        ftz ? single_of<Op, kSources, true, false>() : single_of<Op, kSources, false, false>());
}

template <class Op>
bool sign_only(Lowering& l) {  // abs, neg
    if (l.type() == Type::f64) return operands(l, 64, 1, unary<double, Op>);
    if (l.type() != Type::f32) return false;
    return operands(l, 32, 1,
                    l.take("ftz") ? unary<float, Single<Op, true, false>> : unary<float, Op>);
}

// f32x2 (sm_100): both halves of a 64-bit register.
template <class Op, int kSources, bool ftz>
void pairs(Warp& w, const Insn& i, u32 m) {
    const u64 *const a = slot<u64>(w, i, 1), *const b = slot<u64>(w, i, 2),
                     *const c = slot<u64>(w, i, kSources == 3 ? 3 : 2);
    using S = Single<Op, ftz, false>;
    write(slot<u64>(w, i, 0), m, [=](u32 l) {
        const auto half = [&](u32 n) {
            const float x = f32_of_bits(static_cast<u32>(a[l] >> (32 * n))),
                        y = f32_of_bits(static_cast<u32>(b[l] >> (32 * n)));
            if constexpr (kSources == 3)
                return static_cast<u64>(
                    bits_of_f32(S::f(x, y, f32_of_bits(static_cast<u32>(c[l] >> (32 * n))))));
            else return static_cast<u64>(bits_of_f32(S::f(x, y)));
        };
        return half(0) | half(1) << 32;
    });
}
template <class Op, int kSources>
bool pair_arithmetic(Lowering& l) {
    if (l.type() != Type::f32x2) return false;
    l.take("rn");
    return operands(l, 64, kSources,
                    l.take("ftz") ? pairs<Op, kSources, true> : pairs<Op, kSources, false>);
}
template <class Op, int kSources, int kOperation>
bool arithmetic_or_pairs(Lowering& l) {
    return l.type() == Type::f32x2 ? pair_arithmetic<Op, kSources>(l)
                                   : arithmetic<Op, kSources, kOperation>(l);
}

bool div(Lowering& l) {
    for (const std::string_view part : l.statement().parts) {
        if (part == "approx" || part == "full") return false;  // approx.cpp
    }
    return arithmetic<Div, 2, kDiv>(l);
}
template <class Op, int kOperation>
bool unless_approximate(Lowering& l) {
    for (const std::string_view part : l.statement().parts) {
        if (part == "approx") return false;
    }
    return arithmetic<Op, 1, kOperation>(l);
}
// rsqrt.approx.f64, rcp.approx.ftz.f64 (9.7.3.14, 9.7.3.18): relative error up to 2^-20; exact
// here.
bool rsqrt(Lowering& l) {
    if (l.type() != Type::f64) return false;
    l.ignore({"approx", "ftz"});
    return operands(l, 64, 1, unary<double, Rsqrt>);
}

// ---- min, max (9.7.3.11, 9.7.3.12): the number where one is NaN; -0 is less than +0 ----

template <bool kMax>
PTX_INLINE bool first_wins(float a, float b) {
    const s32 x = as<s32>(a), y = as<s32>(b);
    const s32 p = x < 0 ? x ^ 0x7fffffff : x,
              q = y < 0 ? y ^ 0x7fffffff : y;  // ordered as integers
    return kMax ? p >= q : p <= q;
}
template <bool kMax>
PTX_INLINE bool first_wins(double a, double b) {
    const s64 x = as<s64>(a), y = as<s64>(b);
    const s64 p = x < 0 ? x ^ 0x7fffffffffffffffLL : x, q = y < 0 ? y ^ 0x7fffffffffffffffLL : y;
    return kMax ? p >= q : p <= q;
}
template <class T>
T canonical_nan();
template <>
PTX_INLINE float canonical_nan<float>() {
    return f32_of_bits(0x7fffffff);
}
template <>
PTX_INLINE double canonical_nan<double>() {
    return as<double>(u64{0x7fffffffffffffff});
}

template <bool kMax, bool kNan, bool kXorsign>
struct Extreme {
    template <class T>
    static T f(T a, T b) {
        T x = a, y = b;
        if constexpr (kXorsign) {
            static_assert(true);
            x = Abs::f(a), y = Abs::f(b);
        }
        const bool na = a != a, nb = b != b;
        T v = first_wins<kMax>(x, y) ? x : y;
        v = na ? y : nb ? x : v;
        v = (kNan ? na || nb : na && nb) ? canonical_nan<T>() : v;
        if constexpr (kXorsign && sizeof(T) == 4) {
            const u32 sign = (bits_of_f32(a) ^ bits_of_f32(b)) & 0x80000000;
            v = v != v ? v : as<T>(as<u32>(v) | sign);
        }
        return v;
    }
    template <class T>
    static T f(T a, T b, T c) {
        return f(f(a, b), c);
    }
};
template <bool kMax, bool kNan, bool kXorsign>
Handler extreme_of(bool ftz, bool three) {
    using E = Extreme<kMax, kNan, kXorsign>;
    if (three)
        return ftz ? ternary<float, Single<E, true, false>>
                   : ternary<float, Single<E, false, false>>;
    return ftz ? binary<float, Single<E, true, false>> : binary<float, Single<E, false, false>>;
}
template <bool kMax>
bool extreme(Lowering& l) {
    if (l.type() == Type::f64)
        return operands(l, 64, 2, binary<double, Extreme<kMax, false, false>>);
    if (l.type() != Type::f32) return false;
    const bool ftz = l.take("ftz"), nan = l.take("NaN"), xorsign = l.take("xorsign"),
               three = l.operands() == 4;
    l.take("abs");
    Handler handler = nan ? (xorsign ? extreme_of<kMax, true, true>(ftz, three)
                                     : extreme_of<kMax, true, false>(ftz, three))
                          : (xorsign ? extreme_of<kMax, false, true>(ftz, three)
                                     : extreme_of<kMax, false, false>(ftz, three));
    return operands(l, 32, three ? 3 : 2, handler);
}

// ---- testp, copysign (9.7.3.1, 9.7.3.2) ----

enum Test { kFinite, kInfinite, kNumber, kNotANumber, kNormal, kSubnormal };
template <class U>
void testp_h(Warp& w, const Insn& i, u32 m) {
    constexpr u32 kMantissa = sizeof(U) == 4 ? 23 : 52;
    constexpr U kExponent = sizeof(U) == 4 ? U{0xff} : U{0x7ff};
    const U* const a = slot<U>(w, i, 1);
    write_predicate(slot<u32>(w, i, 0), m, [=, test = i.count](u32 l) {
        const U e = a[l] >> kMantissa & kExponent, f = a[l] & ((U{1} << kMantissa) - 1);
        switch (test) {
            case kFinite: return e != kExponent;
            case kInfinite: return e == kExponent && f == 0;
            case kNumber: return e != kExponent || f == 0;
            case kNotANumber: return e == kExponent && f != 0;
            case kNormal: return e != kExponent && e != 0;
            default: return e == 0 && f != 0;
        }
    });
}
bool testp(Lowering& l) {
    static constexpr std::string_view kTests[] = {"finite",     "infinite", "number",
                                                  "notanumber", "normal",   "subnormal"};
    for (u8 n = 0; n < 6; ++n) {
        if (l.take(kTests[n])) l.insn().count = n;
    }
    const u32 bits = bits_of(l.type());
    l.destination(0, 0), l.source(1, bits);
    l.insn().run = bits == 64 ? testp_h<u64> : testp_h<u32>;
    return true;
}
// The sign of a, the magnitude of b.
struct Copysign {
    template <class U>
    static U f(U a, U b) {
        constexpr U kSign = U{1} << (8 * sizeof(U) - 1);
        return (a & kSign) | (b & ~kSign);
    }
};
bool copysign(Lowering& l) {
    return bits_of(l.type()) == 64 ? operands(l, 64, 2, binary<u64, Copysign>)
                                   : operands(l, 32, 2, binary<u32, Copysign>);
}

}  // namespace

extern const Entry kFloat[];
const Entry kFloat[] = {{"add", arithmetic_or_pairs<Add, 2, kAdd>},
                        {"sub", arithmetic_or_pairs<Sub, 2, kSub>},
                        {"mul", arithmetic_or_pairs<Mul, 2, kMul>},
                        {"fma", arithmetic_or_pairs<Fma, 3, kFma>},
                        {"mad", arithmetic<Fma, 3, kFma>},
                        {"div", div},
                        {"rcp", unless_approximate<Rcp, kRcp>},
                        {"sqrt", unless_approximate<Sqrt, kSqrt>},
                        {"rsqrt", rsqrt},
                        {"abs", sign_only<Abs>},
                        {"neg", sign_only<Neg>},
                        {"min", extreme<false>},
                        {"max", extreme<true>},
                        {"testp", testp},
                        {"copysign", copysign},
                        {nullptr, nullptr}};

}  // namespace ptx::PTX_VARIANT
