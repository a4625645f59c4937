// Integer arithmetic (PTX ISA 9.7.1) and extended precision (9.7.2).
#include "lanes.h"

namespace ptx::PTX_VARIANT {

namespace {

// The type of twice as many bits.
template <class T, class Of16, class Of32, class Of64>
using BySize = std::conditional_t<sizeof(T) == 2, Of16, std::conditional_t<sizeof(T) == 4, Of32, Of64>>;
template <class T>
using Wide = std::conditional_t<std::is_signed_v<T>, BySize<T, s32, s64, __int128>,
                                BySize<T, u32, u64, u128>>;

struct Add {
    template <class T>
    static T f(T a, T b) {
        return static_cast<T>(a + b);
    }
};
struct Sub {
    template <class T>
    static T f(T a, T b) {
        return static_cast<T>(a - b);
    }
};
struct Mul {
    template <class T>
    static T f(T a, T b) {
        using U = std::make_unsigned_t<T>;
        return static_cast<T>(static_cast<U>(a) * static_cast<U>(b));
    }
};
struct MulHi {
    template <class T>
    static T f(T a, T b) {
        return static_cast<T>((static_cast<Wide<T>>(a) * static_cast<Wide<T>>(b)) >>
                              (8 * sizeof(T)));
    }
};
struct MadLo {
    template <class T>
    static T f(T a, T b, T c) {
        return static_cast<T>(Mul::f(a, b) + c);
    }
};
struct MadHi {
    template <class T>
    static T f(T a, T b, T c) {
        return static_cast<T>(MulHi::f(a, b) + c);
    }
};
// 9.7.1.10 ".sat" of add, sub, mad.hi: only s32.
template <class T>
s32 clamp_s32(T v) {
    return v > 0x7fffffffLL    ? 0x7fffffff
           : v < -0x80000000LL ? -0x7fffffff - 1
                               : static_cast<s32>(v);
}
struct AddSat {
    static s32 f(s32 a, s32 b) { return clamp_s32(static_cast<s64>(a) + b); }
};
struct SubSat {
    static s32 f(s32 a, s32 b) { return clamp_s32(static_cast<s64>(a) - b); }
};
struct MadHiSat {
    static s32 f(s32 a, s32 b, s32 c) { return clamp_s32(static_cast<s64>(MulHi::f(a, b)) + c); }
};
struct Min {
    template <class T>
    static T f(T a, T b) {
        return a < b ? a : b;
    }
};
struct Max {
    template <class T>
    static T f(T a, T b) {
        return a > b ? a : b;
    }
};
struct MinRelu {
    template <class T>
    static T f(T a, T b) {
        return Max::f<T>(Min::f(a, b), 0);
    }
};
struct MaxRelu {
    template <class T>
    static T f(T a, T b) {
        return Max::f<T>(Max::f(a, b), 0);
    }
};
struct Abs {
    template <class T>
    static T f(T a) {
        return static_cast<T>(a < 0 ? -a : a);
    }
};
struct Neg {
    template <class T>
    static T f(T a) {
        return static_cast<T>(-a);
    }
};
// The ISA leaves open what division by zero gives: all ones on cards, also as the remainder.
struct Div {
    template <class T>
    static T f(T a, T b) {
        if (b == 0) return static_cast<T>(~T{0});
        if (std::is_signed_v<T> && b == static_cast<T>(-1)) return static_cast<T>(-a);
        return static_cast<T>(a / b);
    }
};
struct Rem {
    template <class T>
    static T f(T a, T b) {
        if (b == 0) return static_cast<T>(~T{0});
        if (std::is_signed_v<T> && b == static_cast<T>(-1)) return 0;
        return static_cast<T>(a % b);
    }
};
struct Sad {
    template <class T>
    static T f(T a, T b, T c) {
        return static_cast<T>(c + (a < b ? b - a : a - b));
    }
};
template <class T>
s64 low24(T a) {
    return std::is_signed_v<T> ? static_cast<s32>(static_cast<u32>(a) << 8) >> 8
                               : static_cast<s64>(a & 0xffffff);
}
struct Mul24Lo {
    template <class T>
    static T f(T a, T b) {
        return static_cast<T>(low24(a) * low24(b));
    }
};
struct Mul24Hi {
    template <class T>
    static T f(T a, T b) {
        return static_cast<T>((low24(a) * low24(b)) >> 16);
    }
};
struct Mad24Lo {
    template <class T>
    static T f(T a, T b, T c) {
        return static_cast<T>(Mul24Lo::f(a, b) + c);
    }
};
struct Mad24Hi {
    template <class T>
    static T f(T a, T b, T c) {
        return static_cast<T>(Mul24Hi::f(a, b) + c);
    }
};

// u16x2, s16x2: both halves.
template <class H, class Op>
struct Halves {
    static u32 f(u32 a, u32 b) {
        return static_cast<u16>(Op::template f<H>(static_cast<H>(a), static_cast<H>(b))) |
               static_cast<u32>(static_cast<u16>(
                   Op::template f<H>(static_cast<H>(a >> 16), static_cast<H>(b >> 16))))
                   << 16;
    }
};

// A handler for each integer type.
template <template <class> class H>
Handler by_type(Type type) {
    switch (type) {
        case Type::u16_: return H<u16>::h;
        case Type::s16_: return H<s16>::h;
        case Type::u32_: return H<u32>::h;
        case Type::s32_: return H<s32>::h;
        case Type::u64_: return H<u64>::h;
        case Type::s64_: return H<s64>::h;
        default: return nullptr;
    }
}
template <class Op>
struct Two {
    template <class T>
    struct Of {
        static void h(Warp& w, const Insn& i, u32 m) { binary<T, Op>(w, i, m); }
    };
};
template <class Op>
struct Three {
    template <class T>
    struct Of {
        static void h(Warp& w, const Insn& i, u32 m) { ternary<T, Op>(w, i, m); }
    };
};
template <class Op>
struct One {
    template <class T>
    struct Of {
        static void h(Warp& w, const Insn& i, u32 m) { unary<T, Op>(w, i, m); }
    };
};

template <class Op>
bool two(Lowering& l) {
    return operands(l, bits_of(l.type()), 2, by_type<Two<Op>::template Of>(l.type()));
}

// ---- add, sub with carry (9.7.2): add.cc, addc, addc.cc, sub.cc, ... ----

template <class T, bool kSub, bool kIn, bool kOut>
void carried(Warp& w, const Insn& i, u32 lanes) {
    const T *const a = slot<T>(w, i, 1), *const b = slot<T>(w, i, 2);
    const u32 in = kIn ? w.carry : 0;
    u32 out = 0;
    alignas(64) T made[kLanes];
    for (u32 l = 0; l < kLanes; ++l) {
        const Wide<T> c = in >> l & 1;
        const Wide<T> v = kSub ? static_cast<Wide<T>>(static_cast<Wide<T>>(a[l]) - b[l] - c)
                               : static_cast<Wide<T>>(static_cast<Wide<T>>(a[l]) + b[l] + c);
        made[l] = static_cast<T>(v);
        out |= static_cast<u32>(v >> (8 * sizeof(T)) & 1) << l;
    }
    merge(slot<T>(w, i, 0), made, lanes);
    if (kOut) w.carry = (w.carry & ~lanes) | (out & lanes);
}

template <bool kSub, bool kIn>
bool select_carried(Lowering& l, bool out) {
    const u32 bits = bits_of(l.type());
    if (bits == 32)
        return operands(l, 32, 2,
                        out ? carried<u32, kSub, kIn, true> : carried<u32, kSub, kIn, false>);
    if (bits == 64)
        return operands(l, 64, 2,
                        out ? carried<u64, kSub, kIn, true> : carried<u64, kSub, kIn, false>);
    return false;
}

template <class T, bool kHi, bool kIn, bool kOut>
void mad_carried(Warp& w, const Insn& i, u32 lanes) {
    const T *const a = slot<T>(w, i, 1), *const b = slot<T>(w, i, 2), *const c = slot<T>(w, i, 3);
    using U = std::make_unsigned_t<T>;
    alignas(64) T made[kLanes];
    u32 out = 0;
    for (u32 l = 0; l < kLanes; ++l) {
        const auto product = static_cast<U>(kHi ? MulHi::f(a[l], b[l]) : Mul::f(a[l], b[l]));
        const Wide<U> v =
            static_cast<Wide<U>>(product) + static_cast<U>(c[l]) + (kIn ? w.carry >> l & 1 : 0);
        made[l] = static_cast<T>(v);
        out |= static_cast<u32>(v >> (8 * sizeof(T)) & 1) << l;
    }
    merge(slot<T>(w, i, 0), made, lanes);
    if (kOut) w.carry = (w.carry & ~lanes) | (out & lanes);
}

template <class T, bool kIn>
Handler mad_carried_of(bool hi, bool out) {
    if (hi) return out ? mad_carried<T, true, kIn, true> : mad_carried<T, true, kIn, false>;
    return out ? mad_carried<T, false, kIn, true> : mad_carried<T, false, kIn, false>;
}

template <bool kIn>
bool select_mad_carried(Lowering& l, bool hi, bool out) {
    switch (l.type()) {
        case Type::u32_: return operands(l, 32, 3, mad_carried_of<u32, kIn>(hi, out));
        case Type::s32_: return operands(l, 32, 3, mad_carried_of<s32, kIn>(hi, out));
        case Type::u64_: return operands(l, 64, 3, mad_carried_of<u64, kIn>(hi, out));
        case Type::s64_: return operands(l, 64, 3, mad_carried_of<s64, kIn>(hi, out));
        default: return false;
    }
}

bool add(Lowering& l) {
    if (is_float(l.type())) return false;
    if (l.take("cc")) return select_carried<false, false>(l, true);
    if (l.type() == Type::u16x2) return operands(l, 32, 2, binary<u32, Halves<u16, Add>>);
    if (l.type() == Type::s16x2) return operands(l, 32, 2, binary<u32, Halves<s16, Add>>);
    if (l.take("sat")) return l.type() == Type::s32_ && operands(l, 32, 2, binary<s32, AddSat>);
    return two<Add>(l);
}
bool sub(Lowering& l) {
    if (is_float(l.type())) return false;
    if (l.take("cc")) return select_carried<true, false>(l, true);
    if (l.take("sat")) return l.type() == Type::s32_ && operands(l, 32, 2, binary<s32, SubSat>);
    return two<Sub>(l);
}
bool addc(Lowering& l) {
    const bool out = l.take("cc");
    return select_carried<false, true>(l, out);
}
bool subc(Lowering& l) {
    const bool out = l.take("cc");
    return select_carried<true, true>(l, out);
}

template <class T>
void mul_wide(Warp& w, const Insn& i, u32 m) {
    const T *const a = slot<T>(w, i, 1), *const b = slot<T>(w, i, 2);
    write(slot<Wide<T>>(w, i, 0), m,
          [=](u32 l) { return static_cast<Wide<T>>(static_cast<Wide<T>>(a[l]) * b[l]); });
}
template <class T>
void mad_wide(Warp& w, const Insn& i, u32 m) {
    const T *const a = slot<T>(w, i, 1), *const b = slot<T>(w, i, 2);
    const Wide<T>* const c = slot<Wide<T>>(w, i, 3);
    write(slot<Wide<T>>(w, i, 0), m,
          [=](u32 l) { return static_cast<Wide<T>>(static_cast<Wide<T>>(a[l]) * b[l] + c[l]); });
}

bool wide(Lowering& l, bool mad) {
    const u32 bits = bits_of(l.type());
    l.destination(0, bits * 2);
    l.source(1, bits), l.source(2, bits);
    if (mad) l.source(3, bits * 2);
    switch (l.type()) {
        case Type::u16_: l.insn().run = mad ? mad_wide<u16> : mul_wide<u16>; return true;
        case Type::s16_: l.insn().run = mad ? mad_wide<s16> : mul_wide<s16>; return true;
        case Type::u32_: l.insn().run = mad ? mad_wide<u32> : mul_wide<u32>; return true;
        case Type::s32_: l.insn().run = mad ? mad_wide<s32> : mul_wide<s32>; return true;
        default: return false;
    }
}

bool mul(Lowering& l) {
    if (is_float(l.type())) return false;
    if (l.take("wide")) return wide(l, false);
    if (l.take("hi")) return two<MulHi>(l);
    return l.take("lo") && two<Mul>(l);
}
bool mad(Lowering& l) {
    if (is_float(l.type())) return false;
    if (l.take("wide")) return wide(l, true);
    const bool hi = l.take("hi");
    if (!hi && !l.take("lo")) return false;
    if (l.take("cc")) return select_mad_carried<false>(l, hi, true);
    if (l.take("sat"))
        return hi && l.type() == Type::s32_ && operands(l, 32, 3, ternary<s32, MadHiSat>);
    const u32 bits = bits_of(l.type());
    return operands(l, bits, 3,
                    hi ? by_type<Three<MadHi>::Of>(l.type()) : by_type<Three<MadLo>::Of>(l.type()));
}
bool madc(Lowering& l) {
    const bool hi = l.take("hi"), out = l.take("cc");
    l.take("lo");
    return select_mad_carried<true>(l, hi, out);
}
bool mul24(Lowering& l) {
    const bool hi = l.take("hi");
    l.take("lo");
    if (l.type() == Type::u32_)
        return operands(l, 32, 2, hi ? binary<u32, Mul24Hi> : binary<u32, Mul24Lo>);
    return l.type() == Type::s32_ &&
           operands(l, 32, 2, hi ? binary<s32, Mul24Hi> : binary<s32, Mul24Lo>);
}
bool mad24(Lowering& l) {
    const bool hi = l.take("hi");
    l.take("lo");
    if (l.type() == Type::u32_)
        return operands(l, 32, 3, hi ? ternary<u32, Mad24Hi> : ternary<u32, Mad24Lo>);
    return l.type() == Type::s32_ &&
           operands(l, 32, 3, hi ? ternary<s32, Mad24Hi> : ternary<s32, Mad24Lo>);
}
bool sad(Lowering& l) {
    return operands(l, bits_of(l.type()), 3, by_type<Three<Sad>::Of>(l.type()));
}
bool div(Lowering& l) { return !is_float(l.type()) && two<Div>(l); }
bool rem(Lowering& l) { return two<Rem>(l); }
bool abs(Lowering& l) {
    switch (l.type()) {
        case Type::s16_: return operands(l, 16, 1, unary<s16, Abs>);
        case Type::s32_: return operands(l, 32, 1, unary<s32, Abs>);
        case Type::s64_: return operands(l, 64, 1, unary<s64, Abs>);
        default: return false;
    }
}
bool neg(Lowering& l) {
    if (is_float(l.type())) return false;
    return operands(l, bits_of(l.type()), 1, by_type<One<Neg>::Of>(l.type()));
}
template <class Op, class Relu>
bool min_max(Lowering& l) {
    if (is_float(l.type())) return false;
    const bool relu = l.take("relu");
    if (l.type() == Type::u16x2) return operands(l, 32, 2, binary<u32, Halves<u16, Op>>);
    if (l.type() == Type::s16x2)
        return operands(l, 32, 2,
                        relu ? binary<u32, Halves<s16, Relu>> : binary<u32, Halves<s16, Op>>);
    if (relu) return l.type() == Type::s32_ && operands(l, 32, 2, binary<s32, Relu>);
    return two<Op>(l);
}

}  // namespace

extern const Entry kInteger[];
const Entry kInteger[] = {{"add", add},
                          {"sub", sub},
                          {"mul", mul},
                          {"mad", mad},
                          {"addc", addc},
                          {"subc", subc},
                          {"madc", madc},
                          {"mul24", mul24},
                          {"mad24", mad24},
                          {"sad", sad},
                          {"div", div},
                          {"rem", rem},
                          {"abs", abs},
                          {"neg", neg},
                          {"min", min_max<Min, MinRelu>},
                          {"max", min_max<Max, MaxRelu>},
                          {nullptr, nullptr}};

}  // namespace ptx::PTX_VARIANT
