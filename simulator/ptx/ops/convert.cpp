// cvt (PTX ISA 9.7.9.21) between integers, single, double and half precision.  The small formats:
// narrow.cpp.
#include <cfenv>

#include "formats.h"
#include "lanes.h"

namespace ptx::PTX_VARIANT {

bool select_narrow(Lowering& l);  // narrow.cpp

namespace {

enum Rounding : u8 { kNearest, kZero, kDown, kUp, kAway };

// ---- integer to integer ----

// The low part N of a register of type P, extended to a register of type R.
template <class N, class P, class R>
struct Extend {
    static R f(P v) { return static_cast<R>(static_cast<N>(v)); }
};
template <class N, class P>
Handler extend_to(u32 bits) {
    switch (bits) {
        case 16: return unary_to<u16, P, Extend<N, P, u16>>;
        case 32: return unary_to<u32, P, Extend<N, P, u32>>;
        default: return unary_to<u64, P, Extend<N, P, u64>>;
    }
}
template <class N>
Handler extend(u32 from_bits, u32 to_bits) {
    switch (from_bits) {
        case 16: return extend_to<N, u16>(to_bits);
        case 32: return extend_to<N, u32>(to_bits);
        default: return extend_to<N, u64>(to_bits);
    }
}
// Without .sat only the narrower type counts; null: a signed value into an unsigned type that is
// narrower than its register.
Handler integer(Type to, Type from, u32 to_bits, u32 from_bits) {
    const bool narrows = bits_of(to) <= bits_of(from);
    if (!narrows && is_signed(from) && !is_signed(to) && to_bits > bits_of(to)) return nullptr;
    switch (narrows ? to : from) {
        case Type::b8:
        case Type::u8_: return extend<u8>(from_bits, to_bits);
        case Type::s8_: return extend<s8>(from_bits, to_bits);
        case Type::b16:
        case Type::u16_: return extend<u16>(from_bits, to_bits);
        case Type::s16_: return extend<s16>(from_bits, to_bits);
        case Type::b32:
        case Type::u32_: return extend<u32>(from_bits, to_bits);
        case Type::s32_: return extend<s32>(from_bits, to_bits);
        default: return extend<u64>(from_bits, to_bits);
    }
}

// ---- a general way for the rest: through double, which holds all values but 64-bit integers ----

PTX_INLINE s64 read_integer(const void* base, u32 bits, u32 l) {
    switch (bits) {
        case 16: return static_cast<const s16*>(base)[l];
        case 32: return static_cast<const s32*>(base)[l];
        default: return static_cast<const s64*>(base)[l];
    }
}
s64 cut(s64 v, Type type) {
    switch (type) {
        case Type::b8:
        case Type::u8_: return static_cast<u8>(v);
        case Type::s8_: return static_cast<s8>(v);
        case Type::b16:
        case Type::u16_: return static_cast<u16>(v);
        case Type::s16_: return static_cast<s16>(v);
        case Type::b32:
        case Type::u32_: return static_cast<u32>(v);
        case Type::s32_: return static_cast<s32>(v);
        default: return v;
    }
}
// .sat: the nearest value of the destination's type.
u64 clamp(s64 v, bool is_unsigned, Type to, bool sat) {
    const u32 bits = bits_of(to);
    if (sat && is_signed(to)) {
        const s64 most = static_cast<s64>((u64{1} << (bits - 1)) - 1);
        if (is_unsigned && static_cast<u64>(v) > static_cast<u64>(most)) v = most;
        else if (v > most) v = most;
        else if (v < -most - 1) v = -most - 1;
    } else if (sat) {
        const u64 most = bits == 64 ? ~u64{0} : (u64{1} << bits) - 1;
        if (!is_unsigned && v < 0) v = 0;
        else if (static_cast<u64>(v) > most) v = static_cast<s64>(most);
    }
    return static_cast<u64>(cut(v, to));
}
int host_rounding(u8 r) {
    return r == kZero   ? FE_TOWARDZERO
           : r == kDown ? FE_DOWNWARD
           : r == kUp   ? FE_UPWARD
                        : FE_TONEAREST;
}

double round_to_integer(double v, u8 rounding) {
    switch (rounding) {
        case kZero: return std::trunc(v);
        case kDown: return std::floor(v);
        case kUp: return std::ceil(v);
        default: return std::nearbyint(v);
    }
}

// 9.7.9.21: values out of range clamp; NaN gives 0 "if source is not .f64 and destination is not
// .s64/.u64", else the highest bit.
u64 to_integer(double v, Type type, u8 rounding, bool from_double) {
    const u32 bits = bits_of(type);
    const bool is_neg = is_signed(type);
    if (v != v) return from_double || bits == 64 ? u64{1} << (bits - 1) : 0;
    const double r = round_to_integer(v, rounding);
    if (is_neg) {
        const double most = std::ldexp(1.0, static_cast<int>(bits) - 1);
        if (r >= most) return (u64{1} << (bits - 1)) - 1;
        if (r < -most) return static_cast<u64>(-static_cast<s64>((u64{1} << (bits - 1)) - 1) - 1);
        return static_cast<u64>(static_cast<s64>(r));
    }
    if (r <= 0) return 0;
    if (r >= std::ldexp(1.0, static_cast<int>(bits)))
        return bits == 64 ? ~u64{0} : (u64{1} << bits) - 1;
    return static_cast<u64>(r);
}

// Rounds a double to half precision or bfloat16 in the given direction; the nearest is exact too,
// because the double was.
u16 to_half(double v, u8 rounding, bool brain) {
    if (v != v) return 0x7fff;
    const int mantissa = brain ? 7 : 10, least = brain ? -126 : -14;
    if (v == 0) return static_cast<u16>(std::signbit(v) ? 0x8000 : 0);
    const u16 sign = std::signbit(v) ? 0x8000 : 0;
    const u16 infinity = brain ? 0x7f80 : 0x7c00;
    if (std::isinf(v)) return sign | infinity;
    int e;
    std::frexp(v, &e);
    e = std::max(e - 1, least);
    const double unit = std::ldexp(1.0, e - mantissa);
    double n = std::fabs(v) / unit;  // exact: a power of two
    switch (rounding) {
        case kNearest: n = std::nearbyint(n); break;
        case kAway: n = std::floor(n + 0.5); break;
        case kZero: n = std::floor(n); break;
        case kDown: n = sign ? std::ceil(n) : std::floor(n); break;
        default: n = sign ? std::floor(n) : std::ceil(n); break;
    }
    const auto count = static_cast<u32>(n);
    // The encoding is linear within and across binades.
    const u32 code = count == 0 ? 0 : (static_cast<u32>(e - least) << mantissa) + count;
    if (code >= infinity) {
        const bool stays =
            rounding == kZero || (rounding == kDown && !sign) || (rounding == kUp && sign);
        return static_cast<u16>(sign | (stays ? infinity - 1 : infinity));
    }
    return static_cast<u16>(sign | code);
}

constexpr u8 kFtz = 1, kSat = 2, kIntegral = 4, kRelu = 8;

double read_real(const void* base, Type type, u32 l) {
    switch (type) {
        case Type::f16: return static_cast<double>(f16_to_f32(static_cast<const u16*>(base)[l]));
        case Type::bf16: return static_cast<double>(bf16_to_f32(static_cast<const u16*>(base)[l]));
        case Type::f32: return static_cast<double>(static_cast<const float*>(base)[l]);
        default: return static_cast<const double*>(base)[l];
    }
}

void general(Warp& w, const Insn& i, u32 lanes) {
    const auto to = static_cast<Type>(i.extra & 0xff),
               from = static_cast<Type>(i.extra >> 8 & 0xff);
    const u32 to_bits = i.extra >> 16 & 0xff, from_bits = i.extra >> 24;
    const u8 rounding = i.count, flags = i.flags;
    const void* const a = w.bank[i.operands[1] & 1] + (i.operands[1] & ~1U);
    const int before = std::fegetround();
    for (u32 l = 0; l < kLanes; ++l) {
        if (!has(lanes, l)) continue;
        u64 out = 0;
        if (!is_float(from) && !is_float(to)) {
            out = clamp(cut(read_integer(a, from_bits, l), from), !is_signed(from), to,
                        (flags & kSat) != 0);
        } else if (!is_float(from)) {
            const s64 v = cut(read_integer(a, from_bits, l), from);
            const bool is_neg = is_signed(from) || bits_of(from) < 64;
            // From 64 bits to 24 or 53: one rounding, by the host.
            std::fesetround(host_rounding(rounding));
            if (to == Type::f64) {
                volatile double d =
                    is_neg ? static_cast<double>(v) : static_cast<double>(static_cast<u64>(v));
                out = as<u64>(static_cast<double>(d));
            } else if (to == Type::f32) {
                volatile float f =
                    is_neg ? static_cast<float>(v) : static_cast<float>(static_cast<u64>(v));
                out = as<u32>(static_cast<float>(f));
                if (flags & kSat)
                    out = as<u32>(std::min(std::max(as<float>(static_cast<u32>(out)), 0.0F), 1.0F));
            } else {
                // Half precision has 11 bits: round to odd first.
                std::fesetround(FE_TOWARDZERO);
                volatile double d =
                    is_neg ? static_cast<double>(v) : static_cast<double>(static_cast<u64>(v));
                double odd = d;
                const bool inexact = is_neg ? static_cast<__int128>(odd) != v
                                            : static_cast<u128>(odd) != static_cast<u64>(v);
                if (inexact) odd = as<double>(as<u64>(odd) | 1);
                std::fesetround(FE_TONEAREST);
                out = to_half(odd, rounding, to == Type::bf16);
            }
            std::fesetround(FE_TONEAREST);
        } else {
            double v = read_real(a, from, l);
            if ((flags & kFtz) && from == Type::f32)
                v = static_cast<double>(flush(static_cast<float>(v)));
            if (!is_float(to)) {
                out = to_integer(v, to, rounding, from == Type::f64);
            } else {
                if (flags & kIntegral) {
                    const double r = round_to_integer(v, rounding);
                    v = r == 0 ? std::copysign(0.0, v) : r;
                }
                if (flags & kSat) v = v > 0 ? std::min(v, 1.0) : 0.0;
                if (flags & kRelu) v = v > 0 ? v : v != v ? v : 0.0;
                if (to == Type::f64) {
                    out = v != v ? 0x7fffffffffffffffULL : as<u64>(v);
                } else if (to == Type::f32) {
                    std::fesetround(host_rounding(rounding));
                    volatile double d = v, large = v * kScale;
                    volatile float f = static_cast<float>(d), scaled = static_cast<float>(large);
                    std::fesetround(FE_TONEAREST);
                    const float rounded = f;
                    const float made = flags & kFtz ? flush(rounded, scaled) : rounded;
                    out = made != made ? 0x7fffffff : as<u32>(made);
                } else {
                    out = to_half(v, rounding, to == Type::bf16);
                }
            }
        }
        if (is_signed(to)) out = static_cast<u64>(cut(static_cast<s64>(out), to));
        switch (to_bits) {
            case 16: slot<u16>(w, i, 0)[l] = static_cast<u16>(out); break;
            case 32: slot<u32>(w, i, 0)[l] = static_cast<u32>(out); break;
            default: slot<u64>(w, i, 0)[l] = out; break;
        }
    }
    std::fesetround(before);
}

// ---- the frequent ones, as vector code ----

template <class S, class R>
struct ToFloat {
    static float f(R v) { return static_cast<float>(static_cast<S>(v)); }
};
struct F16ToF32 {
    static float f(u16 v) { return f16_to_f32(v); }
};
struct Bf16ToF32 {
    static float f(u16 v) { return bf16_to_f32(v); }
};
struct F32ToF16 {
    static u16 f(float v) { return f32_to_f16(v); }
};
struct F32ToF16Ftz {
    static u16 f(float v) { return f32_to_f16(flush(v)); }
};
struct F32ToBf16 {
    static u16 f(float v) { return f32_to_bf16(v); }
};
template <bool kUnsigned>
struct F32ToInt {
    static u32 f(float v) {
        const float r = std::trunc(v);
        if (kUnsigned) {
            const float c = r > 0 ? r : 0.0F;
            return c >= 4294967296.0F ? kAll : static_cast<u32>(static_cast<s64>(c));
        }
        const float c = r >= -2147483648.0F ? r : -2147483648.0F;
        const s32 inside = c < 2147483648.0F ? static_cast<s32>(c) : 0x7fffffff;
        return v != v ? 0 : static_cast<u32>(inside);
    }
};
template <int kMode>
struct Integral {
    static float f(float v) {
        return kMode == 0   ? std::nearbyint(v)
               : kMode == 1 ? std::trunc(v)
               : kMode == 2 ? std::floor(v)
                            : std::ceil(v);
    }
};

Handler frequent(Type to, Type from, u32 to_bits, u32 from_bits, u8 rounding, u8 flags) {
    const bool plain = flags == 0 || flags == kFtz;
    if (!plain) return nullptr;
    if (to == Type::f32 && rounding == kNearest) {
        switch (from) {
            case Type::s32_:
                return from_bits == 32 ? unary_to<float, s32, ToFloat<s32, s32>> : nullptr;
            case Type::u32_:
                return from_bits == 32 ? unary_to<float, u32, ToFloat<u32, u32>> : nullptr;
            case Type::s16_:
                return from_bits == 16   ? unary_to<float, s16, ToFloat<s16, s16>>
                       : from_bits == 32 ? unary_to<float, u32, ToFloat<s16, u32>>
                                         : nullptr;
            case Type::u16_:
                return from_bits == 16   ? unary_to<float, u16, ToFloat<u16, u16>>
                       : from_bits == 32 ? unary_to<float, u32, ToFloat<u16, u32>>
                                         : nullptr;
            case Type::s8_:
                return from_bits == 16   ? unary_to<float, u16, ToFloat<s8, u16>>
                       : from_bits == 32 ? unary_to<float, u32, ToFloat<s8, u32>>
                                         : nullptr;
            case Type::u8_:
                return from_bits == 16   ? unary_to<float, u16, ToFloat<u8, u16>>
                       : from_bits == 32 ? unary_to<float, u32, ToFloat<u8, u32>>
                                         : nullptr;
            case Type::f16: return unary_to<float, u16, F16ToF32>;
            case Type::bf16: return unary_to<float, u16, Bf16ToF32>;
            default: return nullptr;
        }
    }
    if (from == Type::f32 && rounding == kNearest && to == Type::f16)
        return flags == kFtz ? unary_to<u16, float, F32ToF16Ftz> : unary_to<u16, float, F32ToF16>;
    if (from == Type::f32 && rounding == kNearest && to == Type::bf16 && flags == 0)
        return unary_to<u16, float, F32ToBf16>;
    if (from == Type::f32 && to_bits == 32 && rounding == kZero) {
        if (to == Type::s32_) return unary_to<u32, float, F32ToInt<false>>;
        if (to == Type::u32_) return unary_to<u32, float, F32ToInt<true>>;
    }
    return nullptr;
}

// cvt.pack.sat: a above b, both saturated; above them c, if it is there.
void pack_h(Warp& w, const Insn& i, u32 lanes) {
    const auto to = static_cast<Type>(i.extra);
    const u32 bits = bits_of(to), mask = (1U << bits) - 1;
    const s32 most = static_cast<s32>(is_signed(to) ? mask >> 1 : mask),
              least = is_signed(to) ? -most - 1 : 0;
    const s32 *const a = slot<s32>(w, i, 1), *const b = slot<s32>(w, i, 2);
    const u32* const c = slot<u32>(w, i, 3);
    const auto part = [=](s32 v) {
        return static_cast<u32>(v < least ? least : v > most ? most : v) & mask;
    };
    write(slot<u32>(w, i, 0), lanes, [=](u32 l) {
        const u32 rest = bits == 16 ? 0 : c[l] << (2 * bits);
        return rest | part(a[l]) << bits | part(b[l]);
    });
}
bool pack(Lowering& l) {
    const Type to = l.type(0);
    const bool halves = to == Type::u16_ || to == Type::s16_,
               small = to == Type::u8_ || to == Type::s8_ || to == Type::u4 || to == Type::s4 ||
                       to == Type::u2 || to == Type::s2;
    if (!l.take("sat") || l.type(1) != Type::s32_ || !(halves || small) ||
        l.operands() != (halves ? 3 : 4) || (small && l.type(2) != Type::b32))
        return false;
    l.insn().extra = static_cast<u32>(to);
    l.destination(0, 32), l.source(1, 32), l.source(2, 32);
    l.source(small ? 3 : 2, 32);
    l.insn().run = pack_h;
    return true;
}

bool cvt(Lowering& l) {
    if (l.take("pack")) return pack(l);
    if (l.types().size() == 3) return select_narrow(l);
    const Type to = l.type(0), from = l.type(1);
    const auto simple = [](Type t) {
        return t == Type::f16 || t == Type::bf16 || t == Type::f32 || t == Type::f64 ||
               (!is_float(t) && t >= Type::b8 && t <= Type::s64_ && t != Type::b128);
    };
    if (!simple(to) || !simple(from)) return select_narrow(l);
    const u32 to_least = bits_of(to) == 8 ? 16 : bits_of(to),
              from_least = bits_of(from) == 8 ? 16 : bits_of(from);
    const u32 to_bits = l.register_bits(l.operand(0), to_least),
              from_bits = l.register_bits(l.operand(1), from_least);
    u8 flags = 0;
    if (l.take("ftz")) flags |= kFtz;
    if (l.take("sat")) flags |= kSat;
    if (l.take("relu")) flags |= kRelu;
    const std::string_view integral = l.first_of({"rni", "rzi", "rmi", "rpi"}),
                           real = l.first_of({"rn", "rz", "rm", "rp", "rna"});
    const std::string_view rounding = integral.empty() ? real : integral;
    const u8 mode = rounding.substr(0, 2) == "rz"   ? kZero
                    : rounding.substr(0, 2) == "rm" ? kDown
                    : rounding.substr(0, 2) == "rp" ? kUp
                    : rounding == "rna"             ? kAway
                                                    : kNearest;
    if (!integral.empty() && is_float(to)) flags |= kIntegral;
    l.destination(0, to_bits), l.source(1, from_bits);
    Insn& insn = l.insn();
    if (!is_float(to) && !is_float(from)) {
        insn.run = flags == 0 ? integer(to, from, to_bits, from_bits) : nullptr;
        if (insn.run != nullptr) return true;
    }
    if (!integral.empty() && to == Type::f32 && from == Type::f32 && (flags & kSat) == 0) {
        if (flags == kIntegral) {
            insn.run = mode == kZero   ? unary<float, Integral<1>>
                       : mode == kDown ? unary<float, Integral<2>>
                       : mode == kUp   ? unary<float, Integral<3>>
                                       : unary<float, Integral<0>>;
            return true;
        }
    }
    insn.run = frequent(to, from, to_bits, from_bits, mode, flags);
    if (insn.run != nullptr) return true;
    insn.count = mode;
    insn.flags = flags;
    insn.extra =
        static_cast<u32>(to) | static_cast<u32>(from) << 8 | to_bits << 16 | from_bits << 24;
    insn.run = general;
    return true;
}

}  // namespace

extern const Entry kConvert[];
const Entry kConvert[] = {{"cvt", cvt}, {nullptr, nullptr}};

}  // namespace ptx::PTX_VARIANT
