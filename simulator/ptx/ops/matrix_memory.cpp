// ldmatrix, stmatrix, movmatrix (PTX ISA 9.7.14.5.15 ff.): 8x8 matrices of 16-bit elements, whose
// rows the lanes 8j .. 8j + 7 address for matrix j.  Lane 4g + t holds elements 2t and 2t + 1 of
// row g; with .trans, of column g.  Matrices of bytes:
//
//   m8n16          rows as above; lane 4g + t holds elements 4t .. 4t + 3 of row g
//   m16n16.trans   the lanes 16j .. 16j + 15 address rows; lane 4g + t holds elements 4t .. 4t + 3
//                  of column g in the first register of the matrix, of column g + 8 in the second
//   m16n8.trans    (stmatrix) the lanes 8j .. 8j + 7 address what they store: 16 bytes each; lane
//                  4g + t has bytes g of rows 2t, 2t + 1, then bytes g + 8 of these
//
// A row takes 16 bytes in memory.  16 elements of 4 bits are in the first 8 of them, of 6 bits in
// the first 12; each becomes the low bits of a byte.
#include "address.h"

namespace ptx::PTX_VARIANT {

namespace {

constexpr u32 kRowBytes = 16;

// A lane names a row; which lanes read or write its words is the watch's business.
void rows_of(Warp& w, const Insn& i, Use use, Lanes& out) {
    const u32 used = i.count == 4 ? kAll : (u32{1} << (8 * i.count)) - 1;
    Insn named = i;
    named.later = true;
    locate(w, named, 0, used, kRowBytes, use, out);
    if (__builtin_expect(w.block->watch == nullptr, 1)) return;
    const u8* at[kLanes];
    for (u32 j = 0; j < i.count; ++j) {
        const auto element = [&](u32 row, u32 column) { return out.at[8 * j + row] + 2 * column; };
        if (i.extra == 0) {
            for (u32 l = 0; l < kLanes; ++l) at[l] = element(l >> 2, 2 * (l & 3));
            watch_access(w, i, kAll, at, 4, use, true);
            continue;
        }
        for (u32 half = 0; half < 2; ++half) {
            for (u32 l = 0; l < kLanes; ++l) at[l] = element(2 * (l & 3) + half, l >> 2);
            watch_access(w, i, kAll, at, 2, use, true);
        }
    }
}

void ldmatrix_h(Warp& w, const Insn& i, u32 lanes) {
    need_all(w, i, lanes);
    Lanes rows;
    rows_of(w, i, Use::read, rows);
    for (u32 j = 0; j < i.count; ++j) {
        alignas(64) u16 m[8][8];
        for (u32 r = 0; r < 8; ++r) std::memcpy(m[r], rows.at[8 * j + r], kRowBytes);
        u32* const d = slot<u32>(w, i, 1 + j);
        if (i.extra == 0) {
            std::memcpy(d, m, sizeof m);
        } else {
            for (u32 l = 0; l < kLanes; ++l)
                d[l] = m[2 * (l & 3)][l >> 2] | static_cast<u32>(m[2 * (l & 3) + 1][l >> 2]) << 16;
        }
    }
    together(w, i, lanes);
}
void stmatrix_h(Warp& w, const Insn& i, u32 lanes) {
    need_all(w, i, lanes);
    Lanes rows;
    rows_of(w, i, Use::write, rows);
    for (u32 j = 0; j < i.count; ++j) {
        const u32* const a = slot<u32>(w, i, 1 + j);
        alignas(64) u16 m[8][8];
        if (i.extra == 0) {
            std::memcpy(m, a, sizeof m);
        } else {
            for (u32 l = 0; l < kLanes; ++l) {
                m[2 * (l & 3)][l >> 2] = static_cast<u16>(a[l]);
                m[2 * (l & 3) + 1][l >> 2] = static_cast<u16>(a[l] >> 16);
            }
        }
        for (u32 r = 0; r < 8; ++r) std::memcpy(rows.at[8 * j + r], m[r], kRowBytes);
    }
    together(w, i, lanes);
}
// The bytes of a row of 16 elements of `bits` bits.
void widen(const u8* row, u32 bits, u8* to) {
    u128 all;
    std::memcpy(&all, row, sizeof all);
    for (u32 e = 0; e < 16; ++e) to[e] = static_cast<u8>(all >> (e * bits) & ((1U << bits) - 1));
}
// Insn::extra: bits of an element; Insn::count: registers, of 8 rows each.
template <bool kTransposed>
void ldmatrix_bytes(Warp& w, const Insn& i, u32 lanes) {
    need_all(w, i, lanes);
    Lanes rows;
    rows_of(w, i, Use::read, rows);
    alignas(64) u8 m[kLanes][16];
    for (u32 r = 0; r < 8u * i.count; ++r) widen(rows.at[r], i.extra, m[r]);
    for (u32 j = 0; j < i.count; ++j) {
        u32* const d = slot<u32>(w, i, 1 + j);
        for (u32 l = 0; l < kLanes; ++l) {
            const u32 g = l >> 2, t = l & 3;
            u32 word = 0;
            for (u32 b = 0; b < 4; ++b) {
                const u8 element = kTransposed ? m[16 * (j / 2) + 4 * t + b][g + 8 * (j & 1)]
                                               : m[8 * j + g][4 * t + b];
                word |= static_cast<u32>(element) << (8 * b);
            }
            d[l] = word;
        }
    }
}
void stmatrix_bytes(Warp& w, const Insn& i, u32 lanes) {
    need_all(w, i, lanes);
    Lanes rows;
    rows_of(w, i, Use::write, rows);
    for (u32 j = 0; j < i.count; ++j) {
        const u32* const a = slot<u32>(w, i, 1 + j);
        for (u32 l = 0; l < kLanes; ++l) {
            for (u32 b = 0; b < 4; ++b)
                rows.at[8 * j + 2 * (l & 3) + (b & 1)][(l >> 2) + 8 * (b >> 1)] =
                    static_cast<u8>(a[l] >> (8 * b));
        }
    }
}
void movmatrix_h(Warp& w, const Insn& i, u32 lanes) {
    need_all(w, i, lanes);
    alignas(64) u16 m[8][8];
    std::memcpy(m, slot<u32>(w, i, 1), sizeof m);
    u32* const d = slot<u32>(w, i, 0);
    for (u32 l = 0; l < kLanes; ++l)
        d[l] = m[2 * (l & 3)][l >> 2] | static_cast<u32>(m[2 * (l & 3) + 1][l >> 2]) << 16;
    together(w, i, lanes);
}

// The handler, and how many registers a matrix takes; null: no such form.
Handler matrix_form(Lowering& l, bool loads, u32* registers) {
    Insn& insn = l.insn();
    *registers = 1;
    const bool trans = l.take("trans");
    if (l.take("m8n8")) {
        insn.extra = trans;
        return l.type() == Type::b16 ? loads ? ldmatrix_h : stmatrix_h : nullptr;
    }
    if (!loads) return l.take("m16n8") && trans && l.type() == Type::b8 ? stmatrix_bytes : nullptr;
    const bool four = l.take("b4x16_p64"), six = l.take("b6x16_p32"), wide = l.take("b8x16");
    insn.extra = four ? 4 : six ? 6 : 8;
    if (wide != (four || six) || (!wide && l.type() != Type::b8)) return nullptr;
    if (l.take("m8n16")) return wide && !trans ? ldmatrix_bytes<false> : nullptr;
    *registers = 2;
    return l.take("m16n16") && trans ? ldmatrix_bytes<true> : nullptr;
}
bool matrix_access(Lowering& l, bool loads) {
    l.ignore({"sync", "aligned"});
    u32 count = l.take("x4") ? 4 : l.take("x2") ? 2 : 1;
    l.take("x1");
    u32 registers = 1;
    const Handler handler = matrix_form(l, loads, &registers);
    count *= registers;
    const Space space = take_space(l);
    const Operand &values = l.operand(loads ? 0 : 1), &address = l.operand(loads ? 1 : 0);
    if (handler == nullptr || count > 4 || !l.address(address, space)) return false;
    const std::size_t words = values.kind == Operand::Kind::vector ? values.items.size() : 1;
    if (words != count) return false;
    for (std::size_t n = 0; n < words; ++n) {
        const Operand& value = values.kind == Operand::Kind::vector ? values.items[n] : values;
        loads ? l.destination(value, 32) : l.source(value, 32);
    }
    l.insn().count = static_cast<u8>(count);
    l.insn().run = handler;
    return true;
}
bool ldmatrix(Lowering& l) { return matrix_access(l, true); }
bool stmatrix(Lowering& l) { return matrix_access(l, false); }
bool movmatrix(Lowering& l) {
    l.ignore({"sync", "aligned"});
    return l.take("m8n8") && l.take("trans") && operands(l, 32, 1, movmatrix_h);
}

}  // namespace

extern const Entry kMatrixMemory[];
const Entry kMatrixMemory[] = {
    {"ldmatrix", ldmatrix}, {"stmatrix", stmatrix}, {"movmatrix", movmatrix}, {nullptr, nullptr}};

}  // namespace ptx::PTX_VARIANT
