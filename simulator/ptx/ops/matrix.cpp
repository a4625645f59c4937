// mma.sync (PTX ISA 9.7.14.5 "Matrix multiply-accumulate operation using mma instruction").
//
// Products of all input formats are exact in single precision.  They are added to C in single
// precision, in the order of k; the ISA leaves order and precision open.  Integers are exact.
#include "small.h"
#ifdef __AVX512F__
#include <immintrin.h>
#endif

namespace ptx::PTX_VARIANT {

namespace {

// Element e of a value of `bits` bits in a word.
struct Format {
    u32 per;                                                   // elements in a word
    void (*decode)(const u32* words, u32 element, float* to);  // of 32 lanes
};

// to[8 t + g] = from[4 g + t], and back: fragments have lane 4g + t, tiles rows or columns g.
#ifdef __AVX512F__
PTX_INLINE void by_group(const void* from, float* to) {
    const __m512i even =
        _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29);
    const __m512i next = _mm512_add_epi32(even, _mm512_set1_epi32(2));
    const __m512 a = _mm512_loadu_ps(from),
                 b = _mm512_loadu_ps(static_cast<const float*>(from) + 16);
    _mm512_storeu_ps(to, _mm512_permutex2var_ps(a, even, b));
    _mm512_storeu_ps(to + 16, _mm512_permutex2var_ps(a, next, b));
}
PTX_INLINE void by_lane(const float* from, void* to) {
    const __m512i low = _mm512_setr_epi32(0, 8, 16, 24, 1, 9, 17, 25, 2, 10, 18, 26, 3, 11, 19, 27);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(4));
    const __m512 a = _mm512_loadu_ps(from), b = _mm512_loadu_ps(from + 16);
    _mm512_storeu_ps(to, _mm512_permutex2var_ps(a, low, b));
    _mm512_storeu_ps(static_cast<float*>(to) + 16, _mm512_permutex2var_ps(a, high, b));
}
#else
PTX_INLINE void by_group(const void* from, float* to) {
    const auto* const lanes = static_cast<const float*>(from);
    for (u32 t = 0; t < 4; ++t) {
        for (u32 g = 0; g < 8; ++g) to[8 * t + g] = lanes[4 * g + t];
    }
}
PTX_INLINE void by_lane(const float* from, void* to) {
    auto* const lanes = static_cast<float*>(to);
    for (u32 t = 0; t < 4; ++t) {
        for (u32 g = 0; g < 8; ++g) lanes[4 * g + t] = from[8 * t + g];
    }
}
#endif

void decode_f16(const u32* words, u32 e, float* to) {
    PTX_LANES to[l] = f16_to_f32(static_cast<u16>(words[l] >> (16 * e)));
}
void decode_bf16(const u32* words, u32 e, float* to) {
    PTX_LANES to[l] = bf16_to_f32(static_cast<u16>(words[l] >> (16 * e)));
}
// The low 13 bits of tf32 do not count (5.2.3).
void decode_tf32(const u32* words, u32, float* to) {
    PTX_LANES to[l] = f32_of_bits(words[l] & ~u32{0x1fff});
}
void decode_s8(const u32* words, u32 e, float* to) {
    PTX_LANES to[l] = static_cast<float>(static_cast<s8>(words[l] >> (8 * e)));
}
void decode_u8(const u32* words, u32 e, float* to) {
    PTX_LANES to[l] = static_cast<float>(static_cast<u8>(words[l] >> (8 * e)));
}
void decode_s4(const u32* words, u32 e, float* to) {
    PTX_LANES to[l] = static_cast<float>(static_cast<s32>(words[l] << (28 - 4 * e)) >> 28);
}
void decode_u4(const u32* words, u32 e, float* to) {
    PTX_LANES to[l] = static_cast<float>(words[l] >> (4 * e) & 15);
}

struct Table {
    float value[256];
    Table(const Small& format, u32 shift, u32 bits) {
        for (u32 code = 0; code < 256; ++code)
            value[code] = decode_small(format, code >> shift & ((1U << bits) - 1));
    }
};
// In 8 bits, e2m1 stands in bits 2 to 5, the formats of 6 bits in the low ones.
template <int kFormat>
void decode_code(const u32* words, u32 e, float* to) {
    static const Table table = kFormat == 0   ? Table(kE4m3, 0, 8)
                               : kFormat == 1 ? Table(kE5m2, 0, 8)
                               : kFormat == 2 ? Table(kE2m1, 2, 4)
                               : kFormat == 3 ? Table(kE2m3, 0, 6)
                                              : Table(kE3m2, 0, 6);
    for (u32 l = 0; l < kLanes; ++l) to[l] = table.value[words[l] >> (8 * e) & 0xff];
}
// Two of e2m1 to a byte.
void decode_e2m1(const u32* words, u32 e, float* to) {
    PTX_LANES {
        const u32 code = words[l] >> (4 * e), sign = (code & 8) << 28, magnitude = code & 7;
        // 0, 0.5, 1, 1.5, 2, 3, 4, 6
        const u32 normal = ((magnitude >> 1) + 126) << 23 | (magnitude & 1) << 22;
        to[l] = f32_of_bits((magnitude < 2 ? (magnitude != 0 ? 0x3f000000 : 0) : normal) | sign);
    }
}

bool format_of(Type type, bool packed4, Format* out) {
    switch (type) {
        case Type::f16: *out = {2, decode_f16}; return true;
        case Type::bf16: *out = {2, decode_bf16}; return true;
        case Type::tf32: *out = {1, decode_tf32}; return true;
        case Type::s8_: *out = {4, decode_s8}; return true;
        case Type::u8_: *out = {4, decode_u8}; return true;
        case Type::s4: *out = {8, decode_s4}; return true;
        case Type::u4: *out = {8, decode_u4}; return true;
        case Type::e4m3: *out = {4, decode_code<0>}; return true;
        case Type::e5m2: *out = {4, decode_code<1>}; return true;
        case Type::e2m1:
            *out = packed4 ? Format{8, decode_e2m1} : Format{4, decode_code<2>};
            return true;
        case Type::e2m3: *out = {4, decode_code<3>}; return true;
        case Type::e3m2: *out = {4, decode_code<4>}; return true;
        default: return false;
    }
}

constexpr u32 kMostK = 64;
struct Tile {
    alignas(64) float a[kMostK][16];  // by k, then row
    alignas(64) float b[kMostK][8];   // by k, then column
    alignas(64) float c[8][16];       // by column, then row
};

// What an instruction is, kept as a constant of the kernel (Insn::immediate points to it).
struct Plan {
    u32 m, k;
    u32 a_words, b_words, c_words;
    Format a, b;
    enum { kF32, kF16, kS32, kS32Sat } c;
    u32 scales;  // of a row: 0 none, 1, 2, 4
    bool scale_is_e4m3;
};

// Fragments (9.7.14.5.1 ff.): lane 4g + t holds, in word r, row g + 8 (r mod 2) and the columns
// t per + i, in the upper half of k where r >= 2.  B: the same with its column g.
void gather(Warp& w, const Insn& i, const Plan& p, Tile& tile) {
    alignas(64) float values[kLanes], groups[kLanes];
    const u32 a_first = p.c_words, b_first = a_first + p.a_words;
    for (u32 r = 0; r < p.a_words; ++r) {
        const u32* const words = slot<u32>(w, i, a_first + r);
        const u32 row = p.m == 16 ? (r & 1) * 8 : 0, column = (p.m == 16 ? r >> 1 : r) * (p.k / 2);
        for (u32 e = 0; e < p.a.per; ++e) {
            p.a.decode(words, e, values);
            by_group(values, groups);
            for (u32 t = 0; t < 4; ++t)
                std::memcpy(&tile.a[column + t * p.a.per + e][row], groups + 8 * t,
                            8 * sizeof(float));
        }
    }
    for (u32 r = 0; r < p.b_words; ++r) {
        const u32* const words = slot<u32>(w, i, b_first + r);
        for (u32 e = 0; e < p.b.per; ++e) {
            p.b.decode(words, e, values);
            by_group(values, groups);
            for (u32 t = 0; t < 4; ++t)
                std::memcpy(tile.b[r * (p.k / 2) + t * p.b.per + e], groups + 8 * t,
                            8 * sizeof(float));
        }
    }
}

// byte-id or thread-id, which all threads give alike: at most `most`, a multiple of `step`.
u32 selector(Warp& w, const Insn& i, u32 operand, u32 most, u32 step) {
    const u16* const ids = slot<u16>(w, i, operand);
    for (u32 l = 0; l < kLanes; ++l) {
        if (ids[l] == ids[0] && ids[l] <= most && ids[l] % step == 0) continue;
        raise(w, i, l, Fault::Kind::invalid,
              "a selector of scales is " + std::to_string(ids[l]) +
                  (ids[l] == ids[0] ? ", which names no byte or thread of this shape"
                                    : ", and another one in lane 0"));
    }
    return ids[0];
}

// Block scaling (9.7.14.3): row r of A takes bytes of lane 4 (r mod 8) + 2 thread-id-a + r / 8,
// column n of B bytes of lane 4 n + thread-id-b.  Numbers times scales are exact.
// operands: scale-a, byte-id-a, thread-id-a, scale-b, byte-id-b, thread-id-b
void scale(Warp& w, const Insn& i, const Plan& p, Tile& tile) {
    const u32 first = 2 * p.c_words + p.a_words + p.b_words, last_byte = 4 - p.scales;
    const u32 *const sa = slot<u32>(w, i, first), *const sb = slot<u32>(w, i, first + 3);
    const u32 byte_a = selector(w, i, first + 1, last_byte, p.scales),
              thread_a = selector(w, i, first + 2, 1, 1),
              byte_b = selector(w, i, first + 4, last_byte, p.scales),
              thread_b = selector(w, i, first + 5, 3, 1);
    const u32 each = p.k / p.scales;
    const auto value = [&](u32 word, u32 byte) {
        static const Table e4m3(kE4m3, 0, 7);
        const u32 code = word >> (8 * byte) & 0xff;
        if (p.scale_is_e4m3) return e4m3.value[code];
        return code == 0xff ? NAN
                            : f32_of_bits(code == 0 ? 0x00400000 : code << 23);  // 2^(code - 127)
    };
    for (u32 s = 0; s < p.scales; ++s) {
        alignas(64) float rows[16], columns[8];
        for (u32 r = 0; r < 16; ++r)
            rows[r] = value(sa[4 * (r & 7) + 2 * thread_a + (r >> 3)], byte_a + s);
        for (u32 n = 0; n < 8; ++n) columns[n] = value(sb[4 * n + thread_b], byte_b + s);
        for (u32 k = s * each; k < (s + 1) * each; ++k) {
            for (u32 r = 0; r < 16; ++r) tile.a[k][r] *= rows[r];
            for (u32 n = 0; n < 8; ++n) tile.b[k][n] *= columns[n];
        }
    }
}

// All columns at once: their sums are in registers, and none waits for another.
template <u32 kRows>
void multiply(Tile& tile, u32 depth) {
    typedef float Column __attribute__((vector_size(kRows * sizeof(float))));
    Column sum[8];
    for (u32 n = 0; n < 8; ++n) std::memcpy(&sum[n], tile.c[n], sizeof sum[n]);
    for (u32 k = 0; k < depth; ++k) {
        Column a;
        std::memcpy(&a, tile.a[k], sizeof a);
#pragma GCC unroll 8
        for (u32 n = 0; n < 8; ++n) sum[n] += a * tile.b[k][n];
    }
    for (u32 n = 0; n < 8; ++n) std::memcpy(tile.c[n], &sum[n], sizeof sum[n]);
}

// C and D: word r of lane 4g + t is row g + 8 (r / 2), column 2 t + r mod 2; of half precision,
// word r is row g + 8 r, columns 2 t and 2 t + 1.
void read_c(Warp& w, const Insn& i, const Plan& p, u32 first, Tile& tile) {
    alignas(64) float groups[kLanes], halves[kLanes];
    for (u32 r = 0; r < p.c_words; ++r) {
        const u32* const words = slot<u32>(w, i, first + r);
        if (p.c == Plan::kF32) {
            by_group(words, groups);
            for (u32 t = 0; t < 4; ++t)
                std::memcpy(&tile.c[2 * t + (r & 1)][8 * (r >> 1)], groups + 8 * t,
                            8 * sizeof(float));
            continue;
        }
        for (u32 half = 0; half < 2; ++half) {
            decode_f16(words, half, halves);
            by_group(halves, groups);
            for (u32 t = 0; t < 4; ++t)
                std::memcpy(&tile.c[2 * t + half][8 * r], groups + 8 * t, 8 * sizeof(float));
        }
    }
}

void write_d(Warp& w, const Insn& i, const Plan& p, u32 c_first, const Tile& tile) {
    alignas(64) float groups[kLanes], sums[kLanes];
    for (u32 r = 0; r < p.c_words; ++r) {
        u32* const d = slot<u32>(w, i, r);
        if (p.c == Plan::kF16) {
            alignas(64) u32 made[kLanes] = {};
            for (u32 half = 0; half < 2; ++half) {
                for (u32 t = 0; t < 4; ++t)
                    std::memcpy(groups + 8 * t, &tile.c[2 * t + half][8 * r], 8 * sizeof(float));
                by_lane(groups, sums);
                PTX_LANES made[l] |= static_cast<u32>(f32_to_f16(sums[l])) << (16 * half);
            }
            std::memcpy(d, made, sizeof made);
            continue;
        }
        for (u32 t = 0; t < 4; ++t)
            std::memcpy(groups + 8 * t, &tile.c[2 * t + (r & 1)][8 * (r >> 1)], 8 * sizeof(float));
        by_lane(groups, sums);
        if (p.c == Plan::kF32) {
            std::memcpy(d, sums, sizeof sums);
            continue;
        }
        // The sums of products of bytes are whole numbers below 2^24.
        const u32* const c = slot<u32>(w, i, c_first + r);
        if (p.c == Plan::kS32) {
            PTX_LANES d[l] = c[l] + static_cast<u32>(static_cast<s32>(sums[l]));
        } else {
            for (u32 l = 0; l < kLanes; ++l) {
                const s64 sum =
                    static_cast<s64>(static_cast<s32>(c[l])) + static_cast<s64>(sums[l]);
                d[l] = static_cast<u32>(
                    std::min<s64>(std::max<s64>(sum, -0x80000000LL), 0x7fffffffLL));
            }
        }
    }
}

void mma_h(Warp& w, const Insn& i, u32 lanes) {
    need_all(w, i, lanes);
    const Plan& p = *reinterpret_cast<const Plan*>(i.immediate);
    Tile tile;
    gather(w, i, p, tile);
    if (p.scales != 0) scale(w, i, p, tile);
    const u32 c_first = p.c_words + p.a_words + p.b_words;
    if (p.c == Plan::kF32 || p.c == Plan::kF16) read_c(w, i, p, c_first, tile);
    else std::memset(tile.c, 0, sizeof tile.c);
    if (p.m == 16) multiply<16>(tile, p.k);
    else multiply<8>(tile, p.k);
    write_d(w, i, p, c_first, tile);
    together(w, i, lanes);
}

u32 number_in(std::string_view text, char after) {
    const std::size_t at = text.find(after);
    u32 v = 0;
    for (std::size_t n = at + 1;
         at != std::string_view::npos && n < text.size() && text[n] >= '0' && text[n] <= '9'; ++n)
        v = v * 10 + static_cast<u32>(text[n] - '0');
    return v;
}

// ..., scale-a, {byte-id-a, thread-id-a}, scale-b, {byte-id-b, thread-id-b}.  The scales may stand
// in braces of their own, the selectors in registers, as CUTLASS writes them.
bool add_scales(Lowering& l) {
    for (const std::size_t n : {4U, 6U}) {
        const Operand &value = l.operand(n), &ids = l.operand(n + 1);
        const bool braces = value.kind == Operand::Kind::vector;
        if (ids.items.size() != 2 || (braces && value.items.size() != 1)) return false;
        l.source(braces ? value.items[0] : value, 32);
        for (const Operand& id : ids.items) l.source(id, 16);
    }
    return true;
}

bool mma(Lowering& l) {
    Plan p{};
    if (!l.take("sync") || !l.take("row") || !l.take("col") || l.types().size() < 4) return false;
    l.take("aligned");
    const std::string_view shape = l.first_of(
        {"m16n8k16", "m16n8k8", "m16n8k4", "m16n8k32", "m16n8k64", "m8n8k16", "m8n8k32"});
    if (shape.empty()) return false;
    p.m = number_in(shape, 'm'), p.k = number_in(shape, 'k');
    const bool block = l.take("block_scale");
    const bool mxf4 = l.take("kind::mxf4") || l.take("kind::mxf4nvf4");
    const bool mxf8 = l.take("kind::mxf8f6f4");
    l.take("kind::f8f6f4");
    const Type d = l.type(0), c = l.type(3);
    if (!format_of(l.type(1), mxf4, &p.a) || !format_of(l.type(2), mxf4, &p.b) || d != c)
        return false;
    if (block) {
        p.scales = l.take("scale_vec::4X")   ? 4
                   : l.take("scale_vec::2X") ? 2
                   : l.take("scale_vec::1X") ? 1
                   : mxf8                    ? 1
                                             : 2;
        const Type scale_type = l.type(4);
        p.scale_is_e4m3 = scale_type == Type::ue4m3;
        if (scale_type != Type::ue4m3 && scale_type != Type::ue8m0) return false;
    }
    p.c = d == Type::f32        ? Plan::kF32
          : d == Type::f16      ? Plan::kF16
          : l.take("satfinite") ? Plan::kS32Sat
                                : Plan::kS32;
    if (d != Type::f32 && d != Type::f16 && d != Type::s32_) return false;
    const auto words = [&](const Operand& o) {
        return o.kind == Operand::Kind::vector ? static_cast<u32>(o.items.size()) : 1U;
    };
    p.c_words = words(l.operand(0)), p.a_words = words(l.operand(1)),
    p.b_words = words(l.operand(2));
    if (p.a_words * p.a.per * kLanes != p.m * p.k || p.b_words * p.b.per * kLanes != 8 * p.k ||
        words(l.operand(3)) != p.c_words)
        return false;
    if (p.c_words != p.m * 8 / kLanes / (d == Type::f16 ? 2 : 1)) return false;
    const auto each = [&](const Operand& o, auto add) {
        if (o.kind == Operand::Kind::vector)
            for (const Operand& item : o.items) add(item);
        else add(o);
    };
    each(l.operand(0), [&](const Operand& o) { l.destination(o, 32); });
    for (std::size_t n = 1; n <= 3; ++n)
        each(l.operand(n), [&](const Operand& o) { l.source(o, 32); });
    if (l.operands() != (block ? 8 : 4) || l.types().size() != (block ? 5 : 4)) return false;
    if (block && !add_scales(l)) return false;
    l.insn().immediate = reinterpret_cast<u64>(l.keep(&p, sizeof p));
    l.insn().run = mma_h;
    return true;
}

}  // namespace

extern const Entry kMatrix[];
const Entry kMatrix[] = {{"mma", mma}, {nullptr, nullptr}};

}  // namespace ptx::PTX_VARIANT
