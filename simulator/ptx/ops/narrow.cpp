// cvt to and from pairs of half precision, tf32, and the formats of 4, 6 and 8 bits
// (PTX ISA 9.7.9.21).  The first source of a pair is the upper half.
#include "small.h"

namespace ptx::PTX_VARIANT {

bool select_narrow(Lowering& l);

namespace {

constexpr u8 kRelu = 1, kFinite = 2, kUp = 4, kZero = 8, kAway = 16;

PTX_INLINE float relu_of(float v, u8 flags) {
    return flags & kRelu ? (v > 0 ? v : v != v ? v : 0.0F) : v;
}

// f32 to f16 or bf16, .rn or .rz.
template <bool kBrain>
u16 half_of(float v, u8 flags) {
    v = relu_of(v, flags);
    u16 h = kBrain ? f32_to_bf16(v) : f32_to_f16(v);
    const u16 infinity = kBrain ? 0x7f80 : 0x7c00;
    if (v != v) return 0x7fff;
    if (flags & kZero) {
        // One step back where rounding went away from zero.
        const float back = kBrain ? bf16_to_f32(h) : f16_to_f32(h);
        if (std::fabs(back) > std::fabs(v)) h = static_cast<u16>(h - 1);
    }
    if ((flags & kFinite) && (h & 0x7fff) == infinity) h = static_cast<u16>(h - 1);
    return h;
}

template <bool kBrain>
void pair_of_floats(Warp& w, const Insn& i, u32 m) {
    const float *const a = slot<float>(w, i, 1), *const b = slot<float>(w, i, 2);
    if (i.flags == 0) {
        write(slot<u32>(w, i, 0), m, [=](u32 l) {
            return kBrain ? static_cast<u32>(f32_to_bf16(a[l])) << 16 | f32_to_bf16(b[l])
                          : static_cast<u32>(f32_to_f16(a[l])) << 16 | f32_to_f16(b[l]);
        });
        return;
    }
    write(slot<u32>(w, i, 0), m, [=, flags = i.flags](u32 l) {
        return static_cast<u32>(half_of<kBrain>(a[l], flags)) << 16 | half_of<kBrain>(b[l], flags);
    });
}
template <bool kBrain>
void half_of_float(Warp& w, const Insn& i, u32 m) {
    const float* const a = slot<float>(w, i, 1);
    write(slot<u16>(w, i, 0), m,
          [=, flags = i.flags](u32 l) { return half_of<kBrain>(a[l], flags); });
}

// 19 bits of tf32 in a word (5.2.3); the low 13 bits are zero here.
void tf32_h(Warp& w, const Insn& i, u32 m) {
    const float* const a = slot<float>(w, i, 1);
    write(slot<u32>(w, i, 0), m, [=, flags = i.flags](u32 l) {
        const float v = relu_of(a[l], flags);
        const u32 b = bits_of_f32(v);
        if ((b & 0x7fffffff) > 0x7f800000) return u32{0x7fffffff};
        u32 r = flags & kZero ? b : flags & kAway ? b + 0x1000 : b + 0xfff + (b >> 13 & 1);
        if ((b & 0x7fffffff) == 0x7f800000) r = b;
        r &= ~u32{0x1fff};
        if ((flags & kFinite) && (r & 0x7fffffff) >= 0x7f800000) r = (r & 0x80000000) | 0x7f7fe000;
        return r;
    });
}

// Insn::extra: the small type | other type << 8; Insn::count: bits of a code in the result.
u32 code_of(Type type, float v, u8 flags) {
    if (type == Type::ue8m0x2) return encode_scale(v, flags & kUp, flags & kFinite);
    Small f{};
    small_format(type, &f);
    return encode_small(f, relu_of(v, flags));
}
void small_of_floats(Warp& w, const Insn& i, u32 m) {
    const float *const a = slot<float>(w, i, 1), *const b = slot<float>(w, i, 2);
    const auto type = static_cast<Type>(i.extra & 0xff);
    u16* const to = slot<u16>(w, i, 0);
    for (u32 l = 0; l < kLanes; ++l) {
        if (has(m, l))
            to[l] = static_cast<u16>(code_of(type, a[l], i.flags) << i.count |
                                     code_of(type, b[l], i.flags));
    }
}
void small_of_halves(Warp& w, const Insn& i, u32 m) {
    const u32* const a = slot<u32>(w, i, 1);
    const auto type = static_cast<Type>(i.extra & 0xff);
    const bool brain = static_cast<Type>(i.extra >> 8) == Type::bf16x2;
    u16* const to = slot<u16>(w, i, 0);
    for (u32 l = 0; l < kLanes; ++l) {
        if (!has(m, l)) continue;
        const auto low = static_cast<u16>(a[l]), high = static_cast<u16>(a[l] >> 16);
        const float x = brain ? bf16_to_f32(high) : f16_to_f32(high),
                    y = brain ? bf16_to_f32(low) : f16_to_f32(low);
        to[l] = static_cast<u16>(code_of(type, x, i.flags) << i.count | code_of(type, y, i.flags));
    }
}
// All formats are exact in half precision and bfloat16, but for the scales in half precision.
void halves_of_small(Warp& w, const Insn& i, u32 m) {
    const u16* const a = slot<u16>(w, i, 1);
    const auto type = static_cast<Type>(i.extra & 0xff);
    const bool brain = static_cast<Type>(i.extra >> 8) == Type::bf16x2;
    Small f{};
    small_format(type, &f);
    u32* const to = slot<u32>(w, i, 0);
    const u32 mask = (1U << i.count) - 1;
    for (u32 l = 0; l < kLanes; ++l) {
        if (!has(m, l)) continue;
        u32 out = 0;
        for (u32 n = 0; n < 2; ++n) {
            const u32 code = a[l] >> (n * i.count) & mask;
            const float v = relu_of(
                type == Type::ue8m0x2 ? decode_scale(code) : decode_small(f, code), i.flags);
            out |= static_cast<u32>(brain ? f32_to_bf16(v) : f32_to_f16(v)) << (16 * n);
        }
        to[l] = out;
    }
}

bool is_small(Type t) {
    Small f{};
    return t == Type::ue8m0x2 || small_format(t, &f);
}

}  // namespace

bool select_narrow(Lowering& l) {
    const Type to = l.type(0), from = l.type(1);
    u8 flags = 0;
    if (l.take("relu")) flags |= kRelu;
    if (l.take("satfinite")) flags |= kFinite;
    const std::string_view rounding = l.first_of({"rn", "rz", "rp", "rna"});
    if (rounding == "rz") flags |= kZero;
    if (rounding == "rp") flags |= kUp;
    if (rounding == "rna") flags |= kAway;
    Insn& insn = l.insn();
    insn.flags = flags;
    if (l.types().size() != 2) return false;
    if ((to == Type::f16x2 || to == Type::bf16x2) && from == Type::f32) {
        if (l.operands() != 3) return false;
        l.destination(0, 32), l.source(1, 32), l.source(2, 32);
        insn.run = to == Type::f16x2 ? pair_of_floats<false> : pair_of_floats<true>;
        return true;
    }
    if (to == Type::tf32 && from == Type::f32) {
        l.destination(0, 32), l.source(1, 32);
        insn.run = tf32_h;
        return true;
    }
    if ((to == Type::f16 || to == Type::bf16) && from == Type::f32) {
        l.destination(0, 16), l.source(1, 32);
        insn.run = to == Type::f16 ? half_of_float<false> : half_of_float<true>;
        return true;
    }
    const Type small = is_small(to) ? to : from, other = is_small(to) ? from : to;
    if (!is_small(small)) return false;
    insn.extra = static_cast<u32>(small) | static_cast<u32>(other) << 8;
    insn.count = small == Type::e2m1x2 ? 4 : 8;
    if (is_small(to)) {
        l.destination(0, 16), l.source(1, 32);
        if (from == Type::f32) l.source(2, 32);
        insn.run = from == Type::f32 ? small_of_floats : small_of_halves;
        return from == Type::f32 || from == Type::f16x2 || from == Type::bf16x2;
    }
    l.destination(0, 32), l.source(1, 16);
    insn.run = halves_of_small;
    return to == Type::f16x2 || to == Type::bf16x2;
}

}  // namespace ptx::PTX_VARIANT
