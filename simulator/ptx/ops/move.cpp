// mov, cvta, isspacep (PTX ISA 9.7.9).
#include "lanes.h"

namespace ptx::PTX_VARIANT {

namespace {

template <class T>
void mov_h(Warp& w, const Insn& i, u32 m) {
    const T* const a = slot<T>(w, i, 1);
    write(slot<T>(w, i, 0), m, [=](u32 l) { return a[l]; });
}
void mov_predicate(Warp& w, const Insn& i, u32 m) {
    set_predicate(slot<u32>(w, i, 0), m, *slot<u32>(w, i, 1) ^ i.operands[2]);
}
void mov_time(Warp& w, const Insn& i, u32 m) {
    const u64 now = time_now(i.count == 1 ? "%clock" : i.count == 2 ? "%clock_hi" : "%clock64");
    if (i.flags != 0) write(slot<u64>(w, i, 0), m, [=](u32) { return now; });
    else write(slot<u32>(w, i, 0), m, [=](u32) { return static_cast<u32>(now); });
}
template <class P, class V>
void pack(Warp& w, const Insn& i, u32 m) {  // d, a, b, ...
    constexpr u32 kParts = sizeof(V) / sizeof(P);
    alignas(64) V made[kLanes] = {};
    for (u32 n = 0; n < kParts; ++n) {
        const P* const a = slot<P>(w, i, 1 + n);
        PTX_LANES made[l] |= static_cast<V>(a[l]) << (n * 8 * sizeof(P));
    }
    merge(slot<V>(w, i, 0), made, m);
}
template <class P, class V>
void unpack(Warp& w, const Insn& i, u32 m) {  // d0, d1, ..., a
    constexpr u32 kParts = sizeof(V) / sizeof(P);
    const V* const a = slot<V>(w, i, kParts);
    for (u32 n = 0; n < kParts; ++n)
        write(slot<P>(w, i, n), m,
              [=](u32 l) { return static_cast<P>(a[l] >> (n * 8 * sizeof(P))); });
}
template <class V>
void pack_bytes(Warp& w, const Insn& i, u32 m) {  // b8 is in registers of 16 bits
    alignas(64) V made[kLanes] = {};
    for (u32 n = 0; n < sizeof(V); ++n) {
        const u16* const a = slot<u16>(w, i, 1 + n);
        PTX_LANES made[l] = static_cast<V>(made[l] | static_cast<V>(a[l] & 0xff) << (8 * n));
    }
    merge(slot<V>(w, i, 0), made, m);
}
template <class V>
void unpack_bytes(Warp& w, const Insn& i, u32 m) {
    const V* const a = slot<V>(w, i, sizeof(V));
    for (u32 n = 0; n < sizeof(V); ++n)
        write(slot<u16>(w, i, n), m,
              [=](u32 l) { return static_cast<u16>(a[l] >> (8 * n) & 0xff); });
}

bool mov_vector(Lowering& l, const Operand& vector, const Operand& whole, bool packs) {
    const u32 bits = bits_of(l.type()), parts = static_cast<u32>(vector.items.size());
    if (parts == 0 || bits % parts != 0) return false;
    const u32 part = bits / parts, lane_bits = part == 8 ? 16 : part;
    if (packs) l.destination(whole, bits);
    for (const Operand& item : vector.items)
        packs ? l.source(item, lane_bits) : l.destination(item, lane_bits);
    if (!packs) l.source(whole, bits);
    Handler& run = l.insn().run;
    if (bits == 32 && part == 16) run = packs ? pack<u16, u32> : unpack<u16, u32>;
    else if (bits == 64 && part == 32) run = packs ? pack<u32, u64> : unpack<u32, u64>;
    else if (bits == 64 && part == 16) run = packs ? pack<u16, u64> : unpack<u16, u64>;
    else if (bits == 128 && part == 64) run = packs ? pack<u64, u128> : unpack<u64, u128>;
    else if (bits == 128 && part == 32) run = packs ? pack<u32, u128> : unpack<u32, u128>;
    else if (bits == 32 && part == 8) run = packs ? pack_bytes<u32> : unpack_bytes<u32>;
    else if (bits == 16 && part == 8) run = packs ? pack_bytes<u16> : unpack_bytes<u16>;
    else return false;
    return true;
}

bool mov(Lowering& l) {
    if (l.type() == Type::pred) {
        l.destination(0, 0), l.predicate(l.operand(1));
        l.insn().run = mov_predicate;
        return true;
    }
    if (l.operand(1).kind == Operand::Kind::vector)
        return mov_vector(l, l.operand(1), l.operand(0), true);
    if (l.operand(0).kind == Operand::Kind::vector)
        return mov_vector(l, l.operand(0), l.operand(1), false);
    const u32 bits = bits_of(l.type());
    const std::string_view special = l.special(l.operand(1));
    if (special.substr(0, 6) == "%clock" || special.substr(0, 12) == "%globaltimer") {
        l.destination(0, bits);
        l.insn().count = special.ends_with("_hi")                               ? 2
                         : special.ends_with("64") || special == "%globaltimer" ? 3
                                                                                : 1;
        l.insn().flags = bits == 64;
        l.insn().run = mov_time;
        return true;
    }
    l.destination(0, bits), l.source(1, bits);
    l.insn().run = bits == 16   ? mov_h<u16>
                   : bits == 32 ? mov_h<u32>
                   : bits == 64 ? mov_h<u64>
                                : mov_h<u128>;
    return bits >= 16;
}

u64 window_of(Lowering& l) {
    if (l.take("shared::cta") || l.take("shared") || l.take("shared::cluster"))
        return kSharedWindow;
    if (l.take("local")) return kLocalWindow;
    if (l.take("param") || l.take("param::entry")) return kParamWindow;
    l.ignore({"global", "const"});
    return 0;
}
void cvta_to_generic(Warp& w, const Insn& i, u32 m) {
    const u64* const a = slot<u64>(w, i, 1);
    write(slot<u64>(w, i, 0), m, [=, window = i.immediate](u32 l) { return a[l] | window; });
}
void cvta_to_space(Warp& w, const Insn& i, u32 m) {
    const u64* const a = slot<u64>(w, i, 1);
    write(slot<u64>(w, i, 0), m, [=, window = i.immediate](u32 l) { return a[l] & ~window; });
}
bool cvta(Lowering& l) {
    const bool to = l.take("to");
    l.insn().immediate = window_of(l);
    return bits_of(l.type()) == 64 && operands(l, 64, 1, to ? cvta_to_space : cvta_to_generic);
}
void isspacep_h(Warp& w, const Insn& i, u32 m) {
    const u64* const a = slot<u64>(w, i, 1);
    write_predicate(slot<u32>(w, i, 0), m,
                    [=, window = i.immediate](u32 l) { return (a[l] & kWindow) == window; });
}
bool isspacep(Lowering& l) {
    l.insn().immediate = window_of(l);
    l.destination(0, 0), l.source(1, 64);
    l.insn().run = isspacep_h;
    return true;
}

}  // namespace

extern const Entry kMove[];
const Entry kMove[] = {{"mov", mov}, {"cvta", cvta}, {"isspacep", isspacep}, {nullptr, nullptr}};

}  // namespace ptx::PTX_VARIANT
