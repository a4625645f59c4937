// Logic, shifts and permutation (PTX ISA 9.7.8, 9.7.9.8).
#include "lanes.h"

namespace ptx::PTX_VARIANT {

namespace {

struct And {
    template <class T>
    static T f(T a, T b) {
        return static_cast<T>(a & b);
    }
};
struct Or {
    template <class T>
    static T f(T a, T b) {
        return static_cast<T>(a | b);
    }
};
struct Xor {
    template <class T>
    static T f(T a, T b) {
        return static_cast<T>(a ^ b);
    }
};
struct Not {
    template <class T>
    static T f(T a) {
        return static_cast<T>(~a);
    }
};
struct Cnot {
    template <class T>
    static T f(T a) {
        return a == 0;
    }
};

template <class Op>
void predicates(Warp& w, const Insn& i, u32 m) {
    // operands: d, a, !a, b, !b
    const u32 a = *slot<u32>(w, i, 1) ^ i.operands[2], b = *slot<u32>(w, i, 3) ^ i.operands[4];
    set_predicate(slot<u32>(w, i, 0), m, Op::f(a, b));
}

template <class Op>
bool logic(Lowering& l) {
    if (l.type() == Type::pred) {
        l.destination(0, 0), l.predicate(l.operand(1)), l.predicate(l.operand(2));
        l.insn().run = predicates<Op>;
        return true;
    }
    switch (bits_of(l.type())) {
        case 16: return operands(l, 16, 2, binary<u16, Op>);
        case 32: return operands(l, 32, 2, binary<u32, Op>);
        case 64: return operands(l, 64, 2, binary<u64, Op>);
        default: return false;
    }
}

void not_predicate(Warp& w, const Insn& i, u32 m) {
    set_predicate(slot<u32>(w, i, 0), m, ~(*slot<u32>(w, i, 1) ^ i.operands[2]));
}

template <class Op>
bool logic_not(Lowering& l) {
    if (l.type() == Type::pred) {
        l.destination(0, 0), l.predicate(l.operand(1));
        l.insn().run = not_predicate;
        return true;
    }
    switch (bits_of(l.type())) {
        case 16: return operands(l, 16, 1, unary<u16, Op>);
        case 32: return operands(l, 32, 1, unary<u32, Op>);
        case 64: return operands(l, 64, 1, unary<u64, Op>);
        default: return false;
    }
}

// 9.7.8.6: bit n of immLut is the result where n = 4a + 2b + c.
void lop3_h(Warp& w, const Insn& i, u32 m) {
    const u32 *const a = slot<u32>(w, i, 1), *const b = slot<u32>(w, i, 2),
                     *const c = slot<u32>(w, i, 3);
    u32 t[8];
    for (u32 n = 0; n < 8; ++n) t[n] = i.count >> n & 1 ? kAll : 0;
    const u32 t0 = t[0], t1 = t[1], t2 = t[2], t3 = t[3], t4 = t[4], t5 = t[5], t6 = t[6],
              t7 = t[7];
    write(slot<u32>(w, i, 0), m, [=](u32 l) {
        const u32 A = a[l], B = b[l], C = c[l];
        const u32 n = (~B & ((~C & t0) | (C & t1))) | (B & ((~C & t2) | (C & t3)));
        const u32 y = (~B & ((~C & t4) | (C & t5))) | (B & ((~C & t6) | (C & t7)));
        return (~A & n) | (A & y);
    });
}
// The forms that nvcc writes most (a ^ b ^ c, a & b & c, a | b | c, (a & b) | c, ...) need no
// table.
template <u8 kTable>
void lop3_fixed(Warp& w, const Insn& i, u32 m) {
    const u32 *const a = slot<u32>(w, i, 1), *const b = slot<u32>(w, i, 2),
                     *const c = slot<u32>(w, i, 3);
    write(slot<u32>(w, i, 0), m, [=](u32 l) {
        const u32 A = a[l], B = b[l], C = c[l];
        if (kTable == 0x96) return A ^ B ^ C;
        if (kTable == 0x80) return A & B & C;
        if (kTable == 0xfe) return A | B | C;
        if (kTable == 0xea) return (A & B) | C;
        if (kTable == 0xf8) return A | (B & C);
        if (kTable == 0x6a) return (A & B) ^ C;
        return (A & B) | (~A & C);  // 0xca
    });
}
bool lop3(Lowering& l) {
    if (l.operands() != 5 || l.operand(4).kind != Operand::Kind::integer)
        return false;  // lop3.BoolOp: not computed
    l.insn().count = static_cast<u8>(l.operand(4).bits);
    Handler handler = lop3_h;
    switch (l.insn().count) {
        case 0x96: handler = lop3_fixed<0x96>; break;
        case 0x80: handler = lop3_fixed<0x80>; break;
        case 0xfe: handler = lop3_fixed<0xfe>; break;
        case 0xea: handler = lop3_fixed<0xea>; break;
        case 0xf8: handler = lop3_fixed<0xf8>; break;
        case 0x6a: handler = lop3_fixed<0x6a>; break;
        case 0xca: handler = lop3_fixed<0xca>; break;
        default: break;
    }
    return operands(l, 32, 3, handler);
}

// Shift amounts beyond the width clamp (9.7.8.7, 9.7.8.8).
template <class T>
void shl_h(Warp& w, const Insn& i, u32 m) {
    const T* const a = slot<T>(w, i, 1);
    const u32* const b = slot<u32>(w, i, 2);
    constexpr u32 kBits = 8 * sizeof(T);
    write(slot<T>(w, i, 0), m, [=](u32 l) {
        return b[l] < kBits ? static_cast<T>(a[l] << (b[l] & (kBits - 1))) : T{0};
    });
}
template <class T>
void shr_h(Warp& w, const Insn& i, u32 m) {
    const T* const a = slot<T>(w, i, 1);
    const u32* const b = slot<u32>(w, i, 2);
    constexpr u32 kTop = 8 * sizeof(T) - 1;
    write(slot<T>(w, i, 0), m, [=](u32 l) {
        if (std::is_signed_v<T>) return static_cast<T>(a[l] >> (b[l] < kTop ? b[l] : kTop));
        return b[l] <= kTop ? static_cast<T>(a[l] >> (b[l] & kTop)) : T{0};
    });
}
bool shift(Lowering& l, Handler handler) {
    const u32 bits = bits_of(l.type());
    l.destination(0, bits), l.source(1, bits), l.source(2, 32);
    l.insn().run = handler;
    return handler != nullptr;
}
bool shl(Lowering& l) {
    const u32 bits = bits_of(l.type());
    return shift(l, bits == 16   ? shl_h<u16>
                    : bits == 32 ? shl_h<u32>
                    : bits == 64 ? shl_h<u64>
                                 : nullptr);
}
bool shr(Lowering& l) {
    switch (l.type()) {
        case Type::s16_: return shift(l, shr_h<s16>);
        case Type::s32_: return shift(l, shr_h<s32>);
        case Type::s64_: return shift(l, shr_h<s64>);
        default: break;
    }
    const u32 bits = bits_of(l.type());
    return shift(l, bits == 16   ? shr_h<u16>
                    : bits == 32 ? shr_h<u32>
                    : bits == 64 ? shr_h<u64>
                                 : nullptr);
}
template <bool kLeft, bool kWrap>
struct Shf {  // 9.7.8.5
    static u32 f(u32 a, u32 b, u32 c) {
        const u32 n = kWrap ? c & 31 : c > 32 ? 32 : c;
        const u64 both = static_cast<u64>(b) << 32 | a;
        return kLeft ? static_cast<u32>(both << n >> 32) : static_cast<u32>(both >> n);
    }
};
bool shf(Lowering& l) {
    const bool left = l.take("l"), wrap = l.take("wrap");
    l.ignore({"r", "clamp"});
    if (left)
        return operands(l, 32, 3,
                        wrap ? ternary<u32, Shf<true, true>> : ternary<u32, Shf<true, false>>);
    return operands(l, 32, 3,
                    wrap ? ternary<u32, Shf<false, true>> : ternary<u32, Shf<false, false>>);
}

// 9.7.9.8 prmt: modes f4e, b4e, rc8, ecl, ecr, rc16, or a selector of four nibbles.
u32 selector_of(u32 mode, u32 c) {
    static constexpr u16 kTable[6][4] = {
        {0x3210, 0x4321, 0x5432, 0x6543}, {0x5670, 0x6701, 0x7012, 0x0123},
        {0x0000, 0x1111, 0x2222, 0x3333}, {0x3210, 0x3211, 0x3222, 0x3333},
        {0x0000, 0x1110, 0x2210, 0x3210}, {0x1010, 0x3232, 0x1010, 0x3232}};
    return mode == 0 ? c : kTable[mode - 1][c & 3];
}
PTX_INLINE u32 permute(u32 a, u32 b, u32 s) {
    const u64 both = static_cast<u64>(b) << 32 | a;
    u32 out = 0;
    for (u32 n = 0; n < 4; ++n) {
        const u32 nibble = s >> (4 * n) & 15;
        u32 byte = static_cast<u32>(both >> (8 * (nibble & 7))) & 0xff;
        byte = nibble & 8 ? (byte & 0x80 ? 0xff : 0) : byte;
        out |= byte << (8 * n);
    }
    return out;
}
void prmt_h(Warp& w, const Insn& i, u32 m) {
    const u32 *const a = slot<u32>(w, i, 1), *const b = slot<u32>(w, i, 2),
                     *const c = slot<u32>(w, i, 3);
    if (i.count == 0)
        write(slot<u32>(w, i, 0), m, [=](u32 l) { return permute(a[l], b[l], c[l]); });
    else
        write(slot<u32>(w, i, 0), m,
              [=, mode = i.count](u32 l) { return permute(a[l], b[l], selector_of(mode, c[l])); });
}
bool prmt(Lowering& l) {
    static constexpr std::string_view kModes[] = {"f4e", "b4e", "rc8", "ecl", "ecr", "rc16"};
    for (u8 n = 0; n < 6; ++n) {
        if (l.take(kModes[n])) l.insn().count = static_cast<u8>(n + 1);
    }
    return operands(l, 32, 3, prmt_h);
}

}  // namespace

extern const Entry kLogic[];
const Entry kLogic[] = {{"and", logic<And>},
                        {"or", logic<Or>},
                        {"xor", logic<Xor>},
                        {"not", logic_not<Not>},
                        {"cnot", logic_not<Cnot>},
                        {"lop3", lop3},
                        {"shl", shl},
                        {"shr", shr},
                        {"shf", shf},
                        {"prmt", prmt},
                        {nullptr, nullptr}};

}  // namespace ptx::PTX_VARIANT
