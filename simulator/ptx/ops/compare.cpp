// Comparison and selection: setp, set, selp, slct (PTX ISA 9.7.6, 9.7.7), in all formats.
#include "formats.h"
#include "lanes.h"

namespace ptx::PTX_VARIANT {

namespace {

enum class Cmp : u8 { eq, ne, lt, le, gt, ge, equ, neu, ltu, leu, gtu, geu, num, nan };

template <Cmp c, class T>
PTX_INLINE bool compare(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) {
        const bool unordered = a != a || b != b;
        switch (c) {
            case Cmp::eq: return a == b;
            case Cmp::ne: return !unordered && a != b;
            case Cmp::lt: return a < b;
            case Cmp::le: return a <= b;
            case Cmp::gt: return a > b;
            case Cmp::ge: return a >= b;
            case Cmp::equ: return unordered || a == b;
            case Cmp::neu: return a != b;
            case Cmp::ltu: return !(a >= b);
            case Cmp::leu: return !(a > b);
            case Cmp::gtu: return !(a <= b);
            case Cmp::geu: return !(a < b);
            case Cmp::num: return !unordered;
            case Cmp::nan: return unordered;
        }
    } else {
        switch (c) {
            case Cmp::eq: return a == b;
            case Cmp::ne: return a != b;
            case Cmp::lt: return a < b;
            case Cmp::le: return a <= b;
            case Cmp::gt: return a > b;
            default: return a >= b;
        }
    }
    return false;
}

// How a lane's value is read: as it is, flushed, or widened from half precision.
template <class T>
struct Plain {
    using Value = T;
    static T get(const T* a, u32 l) { return a[l]; }
};
struct Ftz {
    using Value = float;
    static float get(const float* a, u32 l) { return flush(a[l]); }
};
struct Half {
    using Value = float;
    static float get(const u16* a, u32 l) { return f16_to_f32(a[l]); }
};
struct HalfFtz {
    using Value = float;
    static float get(const u16* a, u32 l) { return f16_to_f32(flush_f16(a[l])); }
};
struct Brain {
    using Value = float;
    static float get(const u16* a, u32 l) { return bf16_to_f32(a[l]); }
};

// operands: p, q, a, b, c, !c; q and c where there are some.  Insn::count: 0 none, 1 and, 2 or, 3
// xor.
template <class R, class S, Cmp c>
void setp_h(Warp& w, const Insn& i, u32 m) {
    const S *const a = slot<S>(w, i, 2), *const b = slot<S>(w, i, 3);
    u32 bits = 0;
    PTX_LANES bits |=
        compare<c, typename R::Value>(R::get(a, l), R::get(b, l)) ? u32{1} << l : u32{0};
    if (i.count == 0) return set_predicate(slot<u32>(w, i, 0), m, bits);
    const u32 other = *slot<u32>(w, i, 4) ^ i.operands[5];
    const auto combine = [&](u32 v) {
        return i.count == 1 ? v & other : i.count == 2 ? v | other : v ^ other;
    };
    set_predicate(slot<u32>(w, i, 0), m, combine(bits));
    set_predicate(slot<u32>(w, i, 1), m, combine(~bits));
}
void setp_both(Warp& w, const Insn& i, u32 m) {  // q = !p, after the first of the pair
    set_predicate(slot<u32>(w, i, 1), m, ~*slot<u32>(w, i, 0));
}
template <class R, class S, Cmp c>
void setp_pair(Warp& w, const Insn& i, u32 m) {
    setp_h<R, S, c>(w, i, m);
    if (i.count == 0) setp_both(w, i, m);
}

template <class R, class S>
Handler setp_integer(Cmp c) {
    switch (c) {
        case Cmp::eq: return setp_pair<R, S, Cmp::eq>;
        case Cmp::ne: return setp_pair<R, S, Cmp::ne>;
        case Cmp::lt: return setp_pair<R, S, Cmp::lt>;
        case Cmp::le: return setp_pair<R, S, Cmp::le>;
        case Cmp::gt: return setp_pair<R, S, Cmp::gt>;
        case Cmp::ge: return setp_pair<R, S, Cmp::ge>;
        default: return nullptr;
    }
}
template <class R, class S>
Handler setp_float(Cmp c) {
    switch (c) {
        case Cmp::equ: return setp_pair<R, S, Cmp::equ>;
        case Cmp::neu: return setp_pair<R, S, Cmp::neu>;
        case Cmp::ltu: return setp_pair<R, S, Cmp::ltu>;
        case Cmp::leu: return setp_pair<R, S, Cmp::leu>;
        case Cmp::gtu: return setp_pair<R, S, Cmp::gtu>;
        case Cmp::geu: return setp_pair<R, S, Cmp::geu>;
        case Cmp::num: return setp_pair<R, S, Cmp::num>;
        case Cmp::nan: return setp_pair<R, S, Cmp::nan>;
        default: return setp_integer<R, S>(c);
    }
}
Handler setp_of(Type type, Cmp c, bool ftz) {
    switch (type) {
        case Type::b16:
        case Type::u16_: return setp_integer<Plain<u16>, u16>(c);
        case Type::s16_: return setp_integer<Plain<s16>, s16>(c);
        case Type::b32:
        case Type::u32_: return setp_integer<Plain<u32>, u32>(c);
        case Type::s32_: return setp_integer<Plain<s32>, s32>(c);
        case Type::b64:
        case Type::u64_: return setp_integer<Plain<u64>, u64>(c);
        case Type::s64_: return setp_integer<Plain<s64>, s64>(c);
        case Type::f32: return ftz ? setp_float<Ftz, float>(c) : setp_float<Plain<float>, float>(c);
        case Type::f64: return setp_float<Plain<double>, double>(c);
        case Type::f16: return ftz ? setp_float<HalfFtz, u16>(c) : setp_float<Half, u16>(c);
        case Type::bf16: return setp_float<Brain, u16>(c);
        default: return nullptr;
    }
}

bool take_comparison(Lowering& l, Type type, Cmp* c) {
    static constexpr std::pair<std::string_view, Cmp> kNames[] = {
        {"eq", Cmp::eq},   {"ne", Cmp::ne},   {"lt", Cmp::lt},   {"le", Cmp::le},
        {"gt", Cmp::gt},   {"ge", Cmp::ge},   {"lo", Cmp::lt},   {"ls", Cmp::le},
        {"hi", Cmp::gt},   {"hs", Cmp::ge},  // unsigned
        {"equ", Cmp::equ}, {"neu", Cmp::neu}, {"ltu", Cmp::ltu}, {"leu", Cmp::leu},
        {"gtu", Cmp::gtu}, {"geu", Cmp::geu}, {"num", Cmp::num}, {"nan", Cmp::nan}};
    (void)type;
    for (const auto& [name, cmp] : kNames) {
        if (l.take(name)) {
            *c = cmp;
            return true;
        }
    }
    return false;
}
u8 take_combination(Lowering& l) {
    return l.take("and") ? 1 : l.take("or") ? 2 : l.take("xor") ? 3 : 0;
}

// setp.f16x2 and bf16x2: p from the low halves, q from the high ones.
template <bool kBrain>
void setp_halves(Warp& w, const Insn& i, u32 m) {
    const u32 *const a = slot<u32>(w, i, 2), *const b = slot<u32>(w, i, 3);
    const u32 other = i.count == 0 ? 0 : *slot<u32>(w, i, 4) ^ i.operands[5];
    for (u32 half = 0; half < 2; ++half) {
        u32 bits = 0;
        for (u32 l = 0; l < kLanes; ++l) {
            const auto x = static_cast<u16>(a[l] >> (16 * half)),
                       y = static_cast<u16>(b[l] >> (16 * half));
            const float fx = kBrain ? bf16_to_f32(x) : f16_to_f32(i.flags ? flush_f16(x) : x);
            const float fy = kBrain ? bf16_to_f32(y) : f16_to_f32(i.flags ? flush_f16(y) : y);
            bool v = false;
            switch (static_cast<Cmp>(i.extra)) {
                case Cmp::eq: v = compare<Cmp::eq>(fx, fy); break;
                case Cmp::ne: v = compare<Cmp::ne>(fx, fy); break;
                case Cmp::lt: v = compare<Cmp::lt>(fx, fy); break;
                case Cmp::le: v = compare<Cmp::le>(fx, fy); break;
                case Cmp::gt: v = compare<Cmp::gt>(fx, fy); break;
                case Cmp::ge: v = compare<Cmp::ge>(fx, fy); break;
                case Cmp::equ: v = compare<Cmp::equ>(fx, fy); break;
                case Cmp::neu: v = compare<Cmp::neu>(fx, fy); break;
                case Cmp::ltu: v = compare<Cmp::ltu>(fx, fy); break;
                case Cmp::leu: v = compare<Cmp::leu>(fx, fy); break;
                case Cmp::gtu: v = compare<Cmp::gtu>(fx, fy); break;
                case Cmp::geu: v = compare<Cmp::geu>(fx, fy); break;
                case Cmp::num: v = compare<Cmp::num>(fx, fy); break;
                case Cmp::nan: v = compare<Cmp::nan>(fx, fy); break;
            }
            bits |= static_cast<u32>(v) << l;
        }
        if (i.count == 1) bits &= other;
        if (i.count == 2) bits |= other;
        if (i.count == 3) bits ^= other;
        set_predicate(slot<u32>(w, i, half), m, bits);
    }
}

bool setp(Lowering& l) {
    Cmp c{};
    const Type type = l.type();
    if (!take_comparison(l, type, &c)) return false;
    const bool ftz = l.take("ftz");
    l.insn().count = take_combination(l);
    const Operand& d = l.operand(0);
    if (d.pair) {
        l.destination(d.items[0], 0), l.destination(d.items[1], 0);
    } else {
        l.destination(d, 0), l.destination(Operand{}, 0);
    }
    const u32 bits = bits_of(type);
    l.source(1, bits), l.source(2, bits);
    if (l.insn().count != 0) l.predicate(l.operand(3));
    if (type == Type::f16x2 || type == Type::bf16x2) {
        l.insn().extra = static_cast<u32>(c);
        l.insn().flags = ftz;
        l.insn().run = type == Type::f16x2 ? setp_halves<false> : setp_halves<true>;
    } else {
        l.insn().run = setp_of(type, c, ftz);
    }
    return l.insn().run != nullptr;
}

// set: a comparison that gives 0 or ~0 (integers) or 0.0 or 1.0.  Runs setp into words of its own.
void set_h(Warp& w, const Insn& i, u32 m) {
    // operands: p, q, a, b, c, !c, d
    reinterpret_cast<Handler>(i.immediate)(w, i, kAll);
    const u32 bits = *slot<u32>(w, i, 0);
    const u32 one = i.extra;
    if (i.flags == 2)
        write(slot<u16>(w, i, 6), m,
              [=](u32 l) { return static_cast<u16>(has(bits, l) ? one : 0); });
    else write(slot<u32>(w, i, 6), m, [=](u32 l) { return has(bits, l) ? one : 0; });
}
bool set(Lowering& l) {
    Cmp c{};
    if (!take_comparison(l, l.type(1), &c)) return false;
    const bool ftz = l.take("ftz");
    l.insn().count = take_combination(l);
    const Type to = l.type(0), from = l.type(1);
    const Handler compare = setp_of(from, c, ftz);
    if (compare == nullptr) return false;
    l.constant(0), l.constant(4);  // p and q: in the words that nobody reads
    l.source(1, bits_of(from)), l.source(2, bits_of(from));
    if (l.insn().count != 0) l.predicate(l.operand(3));
    else l.constant(0), l.constant(0);
    l.destination(0, bits_of(to));
    l.insn().immediate = reinterpret_cast<u64>(compare);
    l.insn().extra = to == Type::f32    ? 0x3f800000
                     : to == Type::f16  ? 0x3c00
                     : to == Type::bf16 ? 0x3f80
                                        : kAll;
    l.insn().flags = bits_of(to) == 16 ? 2 : 4;
    l.insn().run = set_h;
    return bits_of(to) == 16 || bits_of(to) == 32;
}

template <class T>
void selp_h(Warp& w, const Insn& i, u32 m) {
    const T *const a = slot<T>(w, i, 1), *const b = slot<T>(w, i, 2);
    const u32 p = *slot<u32>(w, i, 3) ^ i.operands[4];
    write(slot<T>(w, i, 0), m, [=](u32 l) { return has(p, l) ? a[l] : b[l]; });
}
bool selp(Lowering& l) {
    const u32 bits = bits_of(l.type());
    l.destination(0, bits), l.source(1, bits), l.source(2, bits), l.predicate(l.operand(3));
    l.insn().run = bits == 16 ? selp_h<u16> : bits == 32 ? selp_h<u32> : selp_h<u64>;
    return bits == 16 || bits == 32 || bits == 64;
}
template <class T, class C>
void slct_h(Warp& w, const Insn& i, u32 m) {
    const T *const a = slot<T>(w, i, 1), *const b = slot<T>(w, i, 2);
    const C* const c = slot<C>(w, i, 3);
    const bool ftz = i.flags != 0;
    write(slot<T>(w, i, 0), m, [=](u32 l) {
        if constexpr (std::is_floating_point_v<C>)
            return (ftz ? flush(c[l]) : c[l]) >= 0 ? a[l] : b[l];
        else return c[l] >= 0 ? a[l] : b[l];
    });
}
bool slct(Lowering& l) {
    const u32 bits = bits_of(l.type(0));
    l.insn().flags = l.take("ftz");
    l.destination(0, bits), l.source(1, bits), l.source(2, bits), l.source(3, 32);
    const bool real = l.type(1) == Type::f32;
    if (bits == 16) l.insn().run = real ? slct_h<u16, float> : slct_h<u16, s32>;
    if (bits == 32) l.insn().run = real ? slct_h<u32, float> : slct_h<u32, s32>;
    if (bits == 64) l.insn().run = real ? slct_h<u64, float> : slct_h<u64, s32>;
    return l.insn().run != nullptr;
}

}  // namespace

extern const Entry kCompare[];
const Entry kCompare[] = {
    {"setp", setp}, {"set", set}, {"selp", selp}, {"slct", slct}, {nullptr, nullptr}};

}  // namespace ptx::PTX_VARIANT
