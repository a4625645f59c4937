// Half precision and bfloat16 arithmetic (PTX ISA 9.7.4), one or two values in a register.
#include "formats.h"
#include "lanes.h"

namespace ptx::PTX_VARIANT {

namespace {

struct F16 {
    static constexpr u16 kNan = 0x7fff, kOne = 0x3c00;
    // What is below is flushed (formats.h): the smallest normal number, less half a unit of the
    // numbers below it.
    static constexpr float kTiny = 0x1.ffep-15F;
    static float in(u16 v) { return f16_to_f32(v); }
    static u16 out(float v) { return f32_to_f16(v); }
    static u16 flush(u16 v) { return flush_f16(v); }
};
struct Bf16 {
    static constexpr u16 kNan = 0x7fff, kOne = 0x3f80;
    static float in(u16 v) { return bf16_to_f32(v); }
    static u16 out(float v) { return f32_to_bf16(v); }
    static u16 flush(u16 v) { return v; }
};

// Sum and product in single precision, then rounded: 24 bits are enough for both roundings to give
// what one would (Figueroa, "When is double rounding innocuous?").
struct Add {
    static float f(float a, float b) { return a + b; }
};
struct Sub {
    static float f(float a, float b) { return a - b; }
};
struct Mul {
    static float f(float a, float b) { return a * b; }
};

enum Modifier { kNone = 0, kFtz = 1, kSat = 2, kRelu = 4 };

template <class H, int kModifiers>
PTX_INLINE u16 finish(float wide) {
    u16 v = H::out(wide);
    if constexpr (kModifiers & kFtz)
        v = static_cast<u16>(std::fabs(wide) < H::kTiny ? v & 0x8000 : v);
    if (kModifiers & kSat) {
        const float f = H::in(v);
        v = f > 0 ? (f < 1 ? v : H::kOne) : u16{0};
    }
    if (kModifiers & kRelu) {
        const float f = H::in(v);
        v = f > 0 ? v : f != f ? H::kNan : u16{0};
    }
    return v;
}
template <class H, int kModifiers>
PTX_INLINE u16 begin(u16 v) {
    return kModifiers & kFtz ? H::flush(v) : v;
}

template <class H, class Op, int m>
struct Two {
    static u16 f(u16 a, u16 b) {
        return finish<H, m>(Op::f(H::in(begin<H, m>(a)), H::in(begin<H, m>(b))));
    }
};
// One rounding: to odd first in double, then in single precision, then to the format.
template <class H, int m>
struct Fma {
    static u16 f(u16 a, u16 b, u16 c) {
        const double v = fma_odd(static_cast<double>(H::in(begin<H, m>(a))),
                                 static_cast<double>(H::in(begin<H, m>(b))),
                                 static_cast<double>(H::in(begin<H, m>(c))));
        return finish<H, m>(odd_to_f32_odd(v));
    }
};
template <class H, bool kMax, bool kNan, bool kXorsign, bool ftz>
struct Extreme {
    static u16 f(u16 a, u16 b) {
        if (ftz) a = H::flush(a), b = H::flush(b);
        const u16 x = kXorsign ? a & 0x7fff : a, y = kXorsign ? b & 0x7fff : b;
        const float fx = H::in(x), fy = H::in(y);
        // -0 is less than +0: compared as ordered integers.
        const s16 p = static_cast<s16>(x), q = static_cast<s16>(y);
        const s32 i = p < 0 ? p ^ 0x7fff : p, j = q < 0 ? q ^ 0x7fff : q;
        u16 v = (kMax ? i >= j : i <= j) ? x : y;
        const bool na = fx != fx, nb = fy != fy;
        v = na ? y : nb ? x : v;
        if (kXorsign) v = static_cast<u16>(v | ((a ^ b) & 0x8000));
        return (kNan ? na || nb : na && nb) ? H::kNan : v;
    }
    static u16 f(u16 a, u16 b, u16 c) { return f(f(a, b), c); }
};
struct Neg {
    static u16 f(u16 a) { return a ^ 0x8000; }
};
struct Abs {
    static u16 f(u16 a) { return a & 0x7fff; }
};
template <class Op>
struct NegFtz {
    static u16 f(u16 a) { return Op::f(flush_f16(a)); }
};

// Both halves of a word.
template <class Op>
struct Halves {
    static u32 pack(u16 low, u16 high) { return low | static_cast<u32>(high) << 16; }
    static u32 f(u32 a) {
        return pack(Op::f(static_cast<u16>(a)), Op::f(static_cast<u16>(a >> 16)));
    }
    static u32 f(u32 a, u32 b) {
        return pack(Op::f(static_cast<u16>(a), static_cast<u16>(b)),
                    Op::f(static_cast<u16>(a >> 16), static_cast<u16>(b >> 16)));
    }
    static u32 f(u32 a, u32 b, u32 c) {
        return pack(
            Op::f(static_cast<u16>(a), static_cast<u16>(b), static_cast<u16>(c)),
            Op::f(static_cast<u16>(a >> 16), static_cast<u16>(b >> 16), static_cast<u16>(c >> 16)));
    }
};

template <class Op, int kSources>
bool either(Lowering& l) {
    const bool pair = bits_of(l.type()) == 32;
    if constexpr (kSources == 1)
        return operands(l, pair ? 32 : 16, 1, pair ? unary<u32, Halves<Op>> : unary<u16, Op>);
    else if constexpr (kSources == 2)
        return operands(l, pair ? 32 : 16, 2, pair ? binary<u32, Halves<Op>> : binary<u16, Op>);
    else return operands(l, pair ? 32 : 16, 3, pair ? ternary<u32, Halves<Op>> : ternary<u16, Op>);
}

bool is_half(Lowering& l) { return l.type() == Type::f16 || l.type() == Type::f16x2; }
bool is_brain(Lowering& l) { return l.type() == Type::bf16 || l.type() == Type::bf16x2; }

// add.f32.f16 and the like (sm_100): the narrow operand is exact in single precision.
template <class H, bool kSub>
void mixed(Warp& w, const Insn& i, u32 m) {
    const u16* const a = slot<u16>(w, i, 1);
    const float* const c = slot<float>(w, i, 2);
    write(slot<float>(w, i, 0), m,
          [=](u32 l) { return kSub ? H::in(a[l]) - c[l] : H::in(a[l]) + c[l]; });
}
template <class H>
void mixed_fma(Warp& w, const Insn& i, u32 m) {
    const u16 *const a = slot<u16>(w, i, 1), *const b = slot<u16>(w, i, 2);
    const float* const c = slot<float>(w, i, 3);
    write(slot<float>(w, i, 0), m,
          [=](u32 l) { return __builtin_fmaf(H::in(a[l]), H::in(b[l]), c[l]); });
}
bool is_mixed(Lowering& l) {
    return l.types().size() == 2 && l.type(0) == Type::f32 &&
           (l.type(1) == Type::f16 || l.type(1) == Type::bf16);
}

template <class Op, bool kSub, bool kAdditive>
bool two(Lowering& l) {
    l.take("rn");
    if (kAdditive && is_mixed(l)) {
        l.destination(0, 32), l.source(1, 16), l.source(2, 32);
        l.insn().run = l.type(1) == Type::f16 ? mixed<F16, kSub> : mixed<Bf16, kSub>;
        return true;
    }
    if (is_brain(l)) return either<Two<Bf16, Op, kNone>, 2>(l);
    if (!is_half(l)) return false;
    const bool ftz = l.take("ftz"), sat = l.take("sat");
    if (sat)
        return ftz ? either<Two<F16, Op, kFtz | kSat>, 2>(l) : either<Two<F16, Op, kSat>, 2>(l);
    return ftz ? either<Two<F16, Op, kFtz>, 2>(l) : either<Two<F16, Op, kNone>, 2>(l);
}
bool fma(Lowering& l) {
    l.take("rn");
    if (is_mixed(l)) {
        l.destination(0, 32), l.source(1, 16), l.source(2, 16), l.source(3, 32);
        l.insn().run = l.type(1) == Type::f16 ? mixed_fma<F16> : mixed_fma<Bf16>;
        return true;
    }
    const bool relu = l.take("relu");
    if (is_brain(l)) return relu ? either<Fma<Bf16, kRelu>, 3>(l) : either<Fma<Bf16, kNone>, 3>(l);
    if (!is_half(l)) return false;
    const bool ftz = l.take("ftz"), sat = l.take("sat");
    if (relu) return ftz ? either<Fma<F16, kFtz | kRelu>, 3>(l) : either<Fma<F16, kRelu>, 3>(l);
    if (sat) return ftz ? either<Fma<F16, kFtz | kSat>, 3>(l) : either<Fma<F16, kSat>, 3>(l);
    return ftz ? either<Fma<F16, kFtz>, 3>(l) : either<Fma<F16, kNone>, 3>(l);
}
template <class Op>
bool sign_only(Lowering& l) {
    if (is_brain(l)) return either<Op, 1>(l);
    if (!is_half(l)) return false;
    return l.take("ftz") ? either<NegFtz<Op>, 1>(l) : either<Op, 1>(l);
}
template <class H, bool kMax, bool ftz>
bool extreme_of(Lowering& l) {
    const bool nan = l.take("NaN"), xorsign = l.take("xorsign");
    l.take("abs");
    if (nan)
        return xorsign ? either<Extreme<H, kMax, true, true, ftz>, 2>(l)
                       : either<Extreme<H, kMax, true, false, ftz>, 2>(l);
    return xorsign ? either<Extreme<H, kMax, false, true, ftz>, 2>(l)
                   : either<Extreme<H, kMax, false, false, ftz>, 2>(l);
}
template <bool kMax>
bool extreme(Lowering& l) {
    if (l.operands() != 3) return false;
    if (is_brain(l)) return extreme_of<Bf16, kMax, false>(l);
    if (!is_half(l)) return false;
    return l.take("ftz") ? extreme_of<F16, kMax, true>(l) : extreme_of<F16, kMax, false>(l);
}

}  // namespace

extern const Entry kHalf[];
const Entry kHalf[] = {{"add", two<Add, false, true>},
                       {"sub", two<Sub, true, true>},
                       {"mul", two<Mul, false, false>},
                       {"fma", fma},
                       {"neg", sign_only<Neg>},
                       {"abs", sign_only<Abs>},
                       {"min", extreme<false>},
                       {"max", extreme<true>},
                       {nullptr, nullptr}};

}  // namespace ptx::PTX_VARIANT
