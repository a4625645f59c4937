// Bits of integers: popc, clz, bfind, fns, brev, bfe, bfi, bmsk, szext (PTX ISA 9.7.1.13 ff.), and
// the dot products dp4a, dp2a.
#include "lanes.h"
#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace ptx::PTX_VARIANT {

namespace {

struct Popc {
    static u32 f(u64 a) { return static_cast<u32>(__builtin_popcountll(a)); }
    static u32 f(u32 a) { return static_cast<u32>(__builtin_popcount(a)); }
};
struct Clz {
    static u32 f(u64 a) { return a == 0 ? 64 : static_cast<u32>(__builtin_clzll(a)); }
    static u32 f(u32 a) { return a == 0 ? 32 : static_cast<u32>(__builtin_clz(a)); }
};
// The highest bit that differs from the sign; kAll: none.
template <bool kShift>
struct Bfind {
    template <class T>
    static u32 f(T a) {
        using U = std::make_unsigned_t<T>;
        const U v = std::is_signed_v<T> && a < 0 ? static_cast<U>(~a) : static_cast<U>(a);
        if (v == 0) return kAll;
        const u32 clz = Clz::f(v);
        return kShift ? clz : static_cast<u32>(8 * sizeof(T) - 1) - clz;
    }
};
struct Brev {
    static u32 f(u32 v) {
        v = (v >> 1 & 0x55555555) | (v & 0x55555555) << 1;
        v = (v >> 2 & 0x33333333) | (v & 0x33333333) << 2;
        v = (v >> 4 & 0x0f0f0f0f) | (v & 0x0f0f0f0f) << 4;
        v = (v >> 8 & 0x00ff00ff) | (v & 0x00ff00ff) << 8;
        return v >> 16 | v << 16;
    }
    static u64 f(u64 v) {
        return static_cast<u64>(f(static_cast<u32>(v))) << 32 | f(static_cast<u32>(v >> 32));
    }
};
// 9.7.1.19: the sign of a field that reaches beyond the word is the word's highest bit.  Position
// and length are the lowest bytes of their operands; not so for 64 bits on cards, where ptxas makes
// shifts of this instruction, by the operands as they are.
template <class T>
T bfe_of(T a, u32 b, u32 c) {
    using U = std::make_unsigned_t<T>;
    constexpr u32 kTop = 8 * sizeof(T) - 1;
    const auto byte = [](u32 v) { return sizeof(T) == 4 ? v & 0xff : v > 0xff ? 0xff : v; };
    const u32 pos = byte(b), len = byte(c);
    const u32 end = pos + len > kTop + 1 ? kTop : pos + len - 1;  // of the field
    const U sign =
        !std::is_signed_v<T> || len == 0 ? U{0} : static_cast<U>(static_cast<U>(a) >> end & 1);
    const u32 count = pos > kTop ? 0 : len < kTop + 1 - pos ? len : kTop + 1 - pos;
    const U mask = count > kTop ? static_cast<U>(~U{0}) : static_cast<U>((U{1} << count) - 1);
    const U field = pos > kTop ? U{0} : static_cast<U>(static_cast<U>(a) >> pos);
    return static_cast<T>((field & mask) | (sign != 0 ? static_cast<U>(~mask) : U{0}));
}
template <class T>
void bfe_h(Warp& w, const Insn& i, u32 m) {
    const T* const a = slot<T>(w, i, 1);
    const u32 *const b = slot<u32>(w, i, 2), *const c = slot<u32>(w, i, 3);
    write(slot<T>(w, i, 0), m, [=](u32 l) { return bfe_of<T>(a[l], b[l], c[l]); });
}
template <class T>
void bfi_h(Warp& w, const Insn& i, u32 m) {
    const T *const a = slot<T>(w, i, 1), *const b = slot<T>(w, i, 2);
    const u32 *const c = slot<u32>(w, i, 3), *const d = slot<u32>(w, i, 4);
    constexpr u32 kBits = 8 * sizeof(T);
    write(slot<T>(w, i, 0), m, [=](u32 l) {
        const u32 pos = c[l] & 0xff, len = d[l] & 0xff;
        if (pos >= kBits || len == 0) return b[l];
        const T field = len >= kBits ? static_cast<T>(~T{0}) : static_cast<T>((T{1} << len) - 1);
        const T mask = static_cast<T>(field << pos);
        return static_cast<T>((b[l] & ~mask) | (static_cast<T>(a[l] << pos) & mask));
    });
}
template <bool kWrap>
struct Bmsk {
    static u32 f(u32 a, u32 b) {
        const u32 pos = kWrap ? a & 31 : (a > 32 ? 32 : a),
                  len = kWrap ? b & 31 : (b > 32 ? 32 : b);
        if (pos >= 32) return 0;
        const u32 field = len >= 32 ? kAll : (u32{1} << len) - 1;
        return field << pos;
    }
};
template <bool kWrap>
struct Szext {
    template <class T>
    static T f(T a, T b) {
        const u32 n = kWrap                      ? static_cast<u32>(b) & 31
                      : static_cast<u32>(b) > 32 ? 32
                                                 : static_cast<u32>(b);
        if (n == 0) return 0;
        if (n >= 32) return a;
        const u32 up = static_cast<u32>(a) << (32 - n);
        return std::is_signed_v<T> ? static_cast<T>(static_cast<s32>(up) >> (32 - n))
                                   : static_cast<T>(up >> (32 - n));
    }
};
// 9.7.1.17 "fns": the n-th set bit from `base` upwards (n > 0) or downwards (n < 0).
u32 fns_of(u32 mask, u32 base, s32 n) {
    if (n == -n && n != 0) return 0;  // -2^31 has no opposite: 0 on cards, whatever the others are
    if (base > 31) return kAll;
    if (n == 0) return mask >> base & 1 ? base : kAll;
    s32 left = n < 0 ? -n : n;
    for (s32 pos = static_cast<s32>(base); pos >= 0 && pos < 32; pos += n < 0 ? -1 : 1) {
        if (mask >> pos & 1 && --left == 0) return static_cast<u32>(pos);
    }
    return kAll;
}
void fns_h(Warp& w, const Insn& i, u32 m) {
    const u32 *const a = slot<u32>(w, i, 1), *const b = slot<u32>(w, i, 2);
    const s32* const c = slot<s32>(w, i, 3);
    write(slot<u32>(w, i, 0), m, [=](u32 l) { return fns_of(a[l], b[l], c[l]); });
}

template <class Op>
bool to_word(Lowering& l) {
    const u32 bits = bits_of(l.type());
    l.destination(0, 32), l.source(1, bits);
    l.insn().run = bits == 64 ? unary_to<u32, u64, Op> : unary_to<u32, u32, Op>;
    return bits == 32 || bits == 64;
}
template <bool kShift>
bool bfind_of(Lowering& l) {
    l.destination(0, 32), l.source(1, bits_of(l.type()));
    switch (l.type()) {
        case Type::u32_: l.insn().run = unary_to<u32, u32, Bfind<kShift>>; return true;
        case Type::s32_: l.insn().run = unary_to<u32, s32, Bfind<kShift>>; return true;
        case Type::u64_: l.insn().run = unary_to<u32, u64, Bfind<kShift>>; return true;
        case Type::s64_: l.insn().run = unary_to<u32, s64, Bfind<kShift>>; return true;
        default: return false;
    }
}
bool bfind(Lowering& l) { return l.take("shiftamt") ? bfind_of<true>(l) : bfind_of<false>(l); }
bool brev(Lowering& l) {
    return operands(l, bits_of(l.type()), 1,
                    bits_of(l.type()) == 64 ? unary<u64, Brev> : unary<u32, Brev>);
}
bool bfe(Lowering& l) {
    const u32 bits = bits_of(l.type());
    l.destination(0, bits), l.source(1, bits), l.source(2, 32), l.source(3, 32);
    switch (l.type()) {
        case Type::u32_: l.insn().run = bfe_h<u32>; return true;
        case Type::s32_: l.insn().run = bfe_h<s32>; return true;
        case Type::u64_: l.insn().run = bfe_h<u64>; return true;
        case Type::s64_: l.insn().run = bfe_h<s64>; return true;
        default: return false;
    }
}
bool bfi(Lowering& l) {
    const u32 bits = bits_of(l.type());
    l.destination(0, bits), l.source(1, bits), l.source(2, bits), l.source(3, 32), l.source(4, 32);
    l.insn().run = bits == 64 ? bfi_h<u64> : bfi_h<u32>;
    return true;
}
bool bmsk(Lowering& l) {
    const bool wrap = l.take("wrap");
    l.take("clamp");
    return operands(l, 32, 2, wrap ? binary<u32, Bmsk<true>> : binary<u32, Bmsk<false>>);
}
bool szext(Lowering& l) {
    const bool wrap = l.take("wrap");
    l.take("clamp");
    if (l.type() == Type::u32_)
        return operands(l, 32, 2, wrap ? binary<u32, Szext<true>> : binary<u32, Szext<false>>);
    return operands(l, 32, 2, wrap ? binary<s32, Szext<true>> : binary<s32, Szext<false>>);
}
bool fns(Lowering& l) { return operands(l, 32, 3, fns_h); }

// ---- dp4a, dp2a (9.7.1.23, 9.7.1.24) ----

template <class T>
s32 byte_of(u32 v, u32 n) {
    return static_cast<T>(v >> (8 * n));
}
template <class A, class B>
struct Dp4a {
    static u32 f(u32 a, u32 b, u32 c) {
        return c + static_cast<u32>(
                       byte_of<A>(a, 0) * byte_of<B>(b, 0) + byte_of<A>(a, 1) * byte_of<B>(b, 1) +
                       byte_of<A>(a, 2) * byte_of<B>(b, 2) + byte_of<A>(a, 3) * byte_of<B>(b, 3));
    }
};
#ifdef __AVX2__
// Signed bytes: even and odd ones as words, multiplied and added in pairs.
void dp4a_signed(Warp& w, const Insn& i, u32 lanes) {
    const u32 *const a = slot<u32>(w, i, 1), *const b = slot<u32>(w, i, 2),
                     *const c = slot<u32>(w, i, 3);
    alignas(64) u32 made[kLanes];
    u32* const to = lanes == kAll ? slot<u32>(w, i, 0) : made;
#ifdef __AVX512BW__
    for (u32 l = 0; l < kLanes; l += 16) {
        const __m512i x = _mm512_load_si512(a + l), y = _mm512_load_si512(b + l),
                      z = _mm512_load_si512(c + l);
        const __m512i even = _mm512_madd_epi16(_mm512_srai_epi16(_mm512_slli_epi16(x, 8), 8),
                                               _mm512_srai_epi16(_mm512_slli_epi16(y, 8), 8));
        const __m512i odd = _mm512_madd_epi16(_mm512_srai_epi16(x, 8), _mm512_srai_epi16(y, 8));
        _mm512_store_si512(to + l, _mm512_add_epi32(z, _mm512_add_epi32(even, odd)));
    }
#else
    for (u32 l = 0; l < kLanes; l += 8) {
        const auto at = [l](const u32* p) {
            return _mm256_load_si256(reinterpret_cast<const __m256i*>(p + l));
        };
        const __m256i x = at(a), y = at(b), z = at(c);
        const __m256i even = _mm256_madd_epi16(_mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8),
                                               _mm256_srai_epi16(_mm256_slli_epi16(y, 8), 8));
        const __m256i odd = _mm256_madd_epi16(_mm256_srai_epi16(x, 8), _mm256_srai_epi16(y, 8));
        _mm256_store_si256(reinterpret_cast<__m256i*>(to + l),
                           _mm256_add_epi32(z, _mm256_add_epi32(even, odd)));
    }
#endif
    if (lanes != kAll) merge(slot<u32>(w, i, 0), made, lanes);
}
#endif
template <class A, class B, u32 kFirst>
struct Dp2a {
    using H = std::conditional_t<std::is_signed_v<A>, s16, u16>;
    static u32 f(u32 a, u32 b, u32 c) {
        return c + static_cast<u32>(static_cast<H>(a)) * static_cast<u32>(byte_of<B>(b, kFirst)) +
               static_cast<u32>(static_cast<H>(a >> 16)) *
                   static_cast<u32>(byte_of<B>(b, kFirst + 1));
    }
};
template <template <class, class> class Op>
Handler by_signs(Lowering& l) {
    const bool a = is_signed(l.type(0)), b = is_signed(l.type(1));
    if (a) return b ? ternary<u32, Op<s8, s8>> : ternary<u32, Op<s8, u8>>;
    return b ? ternary<u32, Op<u8, s8>> : ternary<u32, Op<u8, u8>>;
}
template <class A, class B>
using Dp2aLo = Dp2a<A, B, 0>;
template <class A, class B>
using Dp2aHi = Dp2a<A, B, 2>;
bool dp4a(Lowering& l) {
#ifdef __AVX2__
    if (is_signed(l.type(0)) && is_signed(l.type(1))) return operands(l, 32, 3, dp4a_signed);
#endif
    return operands(l, 32, 3, by_signs<Dp4a>(l));
}
bool dp2a(Lowering& l) {
    if (l.take("hi")) return operands(l, 32, 3, by_signs<Dp2aHi>(l));
    return l.take("lo") && operands(l, 32, 3, by_signs<Dp2aLo>(l));
}

}  // namespace

extern const Entry kBits[];
const Entry kBits[] = {{"popc", to_word<Popc>}, {"clz", to_word<Clz>}, {"bfind", bfind},
                       {"brev", brev},          {"bfe", bfe},          {"bfi", bfi},
                       {"bmsk", bmsk},          {"szext", szext},      {"fns", fns},
                       {"dp4a", dp4a},          {"dp2a", dp2a},        {nullptr, nullptr}};

}  // namespace ptx::PTX_VARIANT
