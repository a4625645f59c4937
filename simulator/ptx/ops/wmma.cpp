// wmma.load, wmma.mma, wmma.store (PTX ISA 9.7.14.4 "Matrix multiply-accumulate operation using
// wmma instructions").  The ISA leaves open which thread holds which element: here element i of a
// matrix, row by row, is in lane i mod 32, place i / 32.
#include <vector>

#include "address.h"
#include "formats.h"

namespace ptx::PTX_VARIANT {

namespace {

struct Shape {
    u32 m = 0, n = 0, k = 0;
};

bool take_shape(Lowering& l, Shape* out) {
    static constexpr std::pair<std::string_view, Shape> kShapes[] = {{"m16n16k16", {16, 16, 16}},
                                                                     {"m8n32k16", {8, 32, 16}},
                                                                     {"m32n8k16", {32, 8, 16}},
                                                                     {"m16n16k8", {16, 16, 8}}};
    for (const auto& [name, shape] : kShapes) {
        if (l.take(name)) {
            *out = shape;
            return true;
        }
    }
    return false;
}

struct Plan {
    u32 rows, columns;  // of the matrix that is loaded or stored
    Shape shape;
    bool by_column, saturates;
    Type type, a, b, c, d;
    u32 words, a_words, b_words, c_words, d_words;
};

u32 element_bits(Type type) { return type == Type::tf32 ? 32 : bits_of(type); }

// Place `place` of lane l: bits of an element.
PTX_INLINE u32 get(Warp& w, const Insn& i, u32 first, u32 bits, u32 place, u32 l) {
    const u32 per = 32 / bits;
    const u32 word = slot<u32>(w, i, first + place / per)[l];
    return bits == 32 ? word : word >> (place % per * bits) & ((1U << bits) - 1);
}
PTX_INLINE void put(Warp& w, const Insn& i, u32 first, u32 bits, u32 place, u32 l, u32 value) {
    const u32 per = 32 / bits;
    u32& word = slot<u32>(w, i, first + place / per)[l];
    if (bits == 32) {
        word = value;
        return;
    }
    const u32 shift = place % per * bits, mask = ((1U << bits) - 1) << shift;
    word = (word & ~mask) | (value << shift & mask);
}

// operands: address, stride, words
template <bool kLoads>
void access_h(Warp& w, const Insn& i, u32 lanes) {
    need_all(w, i, lanes);
    const Plan& p = *reinterpret_cast<const Plan*>(i.immediate);
    const u32 bits = element_bits(p.type), bytes = bits / 8;
    Insn base = i;
    base.immediate = static_cast<u64>(static_cast<s64>(static_cast<s32>(i.extra)));
    alignas(64) u64 from[kLanes];
    read_addresses(w, base, 0, from);
    const u64 stride = slot<u32>(w, i, 1)[0];
    if (kLoads) {
        for (u32 n = 0; n < p.words; ++n)
            std::memset(slot<u32>(w, i, 2 + n), 0, kLanes * sizeof(u32));
    }
    for (u32 place = 0; place * kLanes < p.rows * p.columns; ++place) {
        alignas(64) u64 a[kLanes];
        for (u32 l = 0; l < kLanes; ++l) {
            const u32 element = place * kLanes + l, row = element / p.columns,
                      column = element % p.columns;
            a[l] = from[0] + (p.by_column ? column * stride + row : row * stride + column) * bytes;
        }
        Lanes where;
        check_alignment(w, i, lanes, a, bytes);
        find_lanes(w, i, lanes, a, static_cast<Space>(i.space), bytes,
                   kLoads ? Use::read : Use::write, where);
        for (u32 l = 0; l < kLanes; ++l) {
            u32 value = 0;
            if (kLoads) {
                std::memcpy(&value, where.at[l], bytes);
                put(w, i, 2, bits, place, l, value);
            } else {
                value = get(w, i, 2, bits, place, l);
                std::memcpy(where.at[l], &value, bytes);
            }
        }
    }
    together(w, i, lanes);
}

float value_of(u32 code, Type type) {
    switch (type) {
        case Type::f16: return f16_to_f32(static_cast<u16>(code));
        case Type::bf16: return bf16_to_f32(static_cast<u16>(code));
        case Type::tf32: return f32_of_bits(code & ~u32{0x1fff});
        case Type::s8_: return static_cast<float>(static_cast<s8>(code));
        case Type::u8_: return static_cast<float>(code);
        default: return f32_of_bits(code);
    }
}

// operands: d, a, b, c
void mma_h(Warp& w, const Insn& i, u32 lanes) {
    need_all(w, i, lanes);
    const Plan& p = *reinterpret_cast<const Plan*>(i.immediate);
    const Shape& s = p.shape;
    std::vector<float> a(s.m * s.k), b(s.k * s.n);
    const u32 a_first = p.d_words, b_first = a_first + p.a_words, c_first = b_first + p.b_words;
    for (u32 e = 0; e < a.size(); ++e)
        a[e] = value_of(get(w, i, a_first, element_bits(p.a), e / kLanes, e % kLanes), p.a);
    for (u32 e = 0; e < b.size(); ++e)
        b[e] = value_of(get(w, i, b_first, element_bits(p.b), e / kLanes, e % kLanes), p.b);
    const bool integers = p.d == Type::s32_;
    std::vector<u32> made(s.m * s.n);
    for (u32 e = 0; e < made.size(); ++e) {
        const u32 row = e / s.n, column = e % s.n;
        const u32 c = get(w, i, c_first, element_bits(p.c), e / kLanes, e % kLanes);
        float sum = integers ? 0.0F : value_of(c, p.c);
        for (u32 k = 0; k < s.k; ++k) sum += a[row * s.k + k] * b[k * s.n + column];
        if (integers) {
            const s64 whole = static_cast<s64>(static_cast<s32>(c)) + static_cast<s64>(sum);
            const s64 clamped = std::min<s64>(std::max<s64>(whole, -0x80000000LL), 0x7fffffffLL);
            made[e] = static_cast<u32>(p.saturates ? clamped : whole);
        } else {
            made[e] = p.d == Type::f16 ? f32_to_f16(sum) : bits_of_f32(sum);
        }
    }
    for (u32 e = 0; e < made.size(); ++e)
        put(w, i, 0, element_bits(p.d), e / kLanes, e % kLanes, made[e]);
    together(w, i, lanes);
}

u32 add_words(Lowering& l, const Operand& o, bool destination) {
    const auto add = [&](const Operand& item) {
        destination ? l.destination(item, 32) : l.source(item, 32);
    };
    if (o.kind != Operand::Kind::vector) {
        add(o);
        return 1;
    }
    for (const Operand& item : o.items) add(item);
    return static_cast<u32>(o.items.size());
}

bool access(Lowering& l, bool loads) {
    Plan p{};
    p.by_column = l.take("col");
    l.take("row");
    if (!take_shape(l, &p.shape)) return false;
    const Shape& s = p.shape;
    const bool a = l.take("a"), b = l.take("b");
    l.ignore({"c", "d"});
    p.rows = b ? s.k : s.m;
    p.columns = a ? s.k : s.n;
    p.type = l.type();
    const Space space = take_space(l);
    const Operand &address = l.operand(loads ? 1 : 0), &words = l.operand(loads ? 0 : 1);
    if (!l.address(address, space)) return false;
    l.insn().extra = static_cast<u32>(l.insn().immediate);
    if (l.operands() > 2) {
        l.source(2, 32);
    } else {
        Operand natural;
        natural.kind = Operand::Kind::integer;
        natural.bits = p.by_column ? p.rows : p.columns;
        l.source(natural, 32);
    }
    p.words = add_words(l, words, loads);
    if (p.rows * p.columns * element_bits(p.type) > p.words * 32 * kLanes) return false;
    l.insn().immediate = reinterpret_cast<u64>(l.keep(&p, sizeof p));
    l.insn().run = loads ? access_h<true> : access_h<false>;
    return true;
}

bool multiply(Lowering& l) {
    Plan p{};
    if (!take_shape(l, &p.shape)) return false;
    l.ignore({"row", "col"});
    p.saturates = l.take("satfinite");
    const auto& types = l.types();
    if (types.size() != 2 && types.size() != 4) return false;
    p.d = types[0];
    p.c = types.back();
    p.a = types.size() == 4 ? types[1] : Type::f16;
    p.b = types.size() == 4 ? types[2] : Type::f16;
    const auto known = [](Type t) {
        return t == Type::f16 || t == Type::bf16 || t == Type::tf32 || t == Type::s8_ ||
               t == Type::u8_;
    };
    const auto sum = [](Type t) { return t == Type::f16 || t == Type::f32 || t == Type::s32_; };
    if (!known(p.a) || !known(p.b) || !sum(p.c) || !sum(p.d)) return false;
    p.d_words = add_words(l, l.operand(0), true);
    p.a_words = add_words(l, l.operand(1), false);
    p.b_words = add_words(l, l.operand(2), false);
    p.c_words = add_words(l, l.operand(3), false);
    l.insn().immediate = reinterpret_cast<u64>(l.keep(&p, sizeof p));
    l.insn().run = mma_h;
    return true;
}

bool wmma(Lowering& l) {
    if (!l.take("sync")) return false;
    l.take("aligned");
    if (l.take("load")) return access(l, true);
    if (l.take("store")) return access(l, false);
    return l.take("mma") && multiply(l);
}

}  // namespace

extern const Entry kWmma[];
const Entry kWmma[] = {{"wmma", wmma}, {nullptr, nullptr}};

}  // namespace ptx::PTX_VARIANT
