// Lanes of a warp talk to each other: shfl (PTX ISA 9.7.9.6), vote, match, activemask, redux,
// bar.warp.sync, elect (9.7.13).
#include "formats.h"
#include "lanes.h"

namespace ptx::PTX_VARIANT {

namespace {

void check_group(Warp& w, const Insn& i, u32 members, u32 group, u32 lanes) {
    const u32 strangers = group & ~members, others = lanes & members & ~group;
    if ((strangers | others) == 0) return;
    char mask[16];
    std::snprintf(mask, sizeof mask, "0x%08x", members);
    raise(w, i, first_lane(strangers != 0 ? strangers : group), Fault::Kind::invalid,
          strangers != 0 ? "a thread executes this that is not in the mask " + std::string(mask)
                         : "its mask " + std::string(mask) + " names lane " +
                               std::to_string(first_lane(others)) + ", which has another mask");
}

// body(group): the threads that are here with one mask; groups have masks of their own (tiles of
// cooperative groups, PTX ISA 9.7.13 "membermask").  This path waits, and nothing is done, where
// threads of any mask are not here yet.
template <class Body>
PTX_INLINE void for_each_mask(Warp& w, const Insn& i, u32 operand, u32 lanes, Body compute) {
    const auto body = [&](u32 group) {
        compute(group);
        together(w, i, group);
    };
    const u32* const masks = slot<u32>(w, i, operand);
    u32 named = 0, shared = kAll;  // by any, by all
    PTX_LANES named |= has(lanes, l) ? masks[l] : 0;
    PTX_LANES shared &= has(lanes, l) ? masks[l] : kAll;
    if (__builtin_expect((named & ~w.lanes & ~w.exited) != 0, 0) && wait_for(w, i, named, &lanes))
        return;
    if (__builtin_expect(lanes == named && named == shared, 1)) return body(lanes);
    for (u32 left = lanes; left != 0;) {
        const u32 members = masks[first_lane(left)];
        u32 group = 0;
        PTX_LANES group |= has(left, l) && masks[l] == members ? u32{1} << l : u32{0};
        check_group(w, i, members, group, lanes);
        body(group);
        left &= ~group;
    }
}

// ---- shfl.sync: d, p, a, b, c, members; Insn::count: 0 up, 1 down, 2 bfly, 3 idx ----

constexpr u32 kUndefined = 0xffffffff;  // what a lane that takes no part gives: a NaN, -1

template <int kMode>
PTX_INLINE void shuffle(Warp& w, const Insn& i, u32 lanes) {
    const u32 *const a = slot<u32>(w, i, 2), *const b = slot<u32>(w, i, 3),
                     *const c = slot<u32>(w, i, 4);
    alignas(64) u32 made[kLanes];
    u32 valid = 0;
    PTX_LANES {
        const u32 bval = b[l] & 31, cval = c[l] & 31, segment = c[l] >> 8 & 31;
        const u32 most = (l & segment) | (cval & ~segment), least = l & segment;
        s32 j;
        bool p;
        if (kMode == 0) {
            j = static_cast<s32>(l) - static_cast<s32>(bval);
            p = j >= static_cast<s32>(most);
        } else if (kMode == 1) {
            j = static_cast<s32>(l + bval);
            p = j <= static_cast<s32>(most);
        } else if (kMode == 2) {
            j = static_cast<s32>(l ^ bval);
            p = j <= static_cast<s32>(most);
        } else {
            j = static_cast<s32>(least | (bval & ~segment));
            p = j <= static_cast<s32>(most);
        }
        const u32 from = p ? static_cast<u32>(j) & 31 : l;
        made[l] = has(lanes, from) ? a[from] : kUndefined;
        valid |= p ? u32{1} << l : u32{0};
    }
    u32* const d = slot<u32>(w, i, 0);
    if (lanes == kAll) std::memcpy(d, made, sizeof made);
    else merge(d, made, lanes);
    if (i.flags) set_predicate(slot<u32>(w, i, 1), lanes, valid);
}
template <int kMode>
void shfl_h(Warp& w, const Insn& i, u32 lanes) {
    for_each_mask(w, i, 5, lanes, [&](u32 group) { shuffle<kMode>(w, i, group); });
}
bool shfl(Lowering& l) {
    if (!l.take("sync")) return false;
    const std::string_view mode = l.first_of({"up", "down", "bfly", "idx"});
    const Operand& d = l.operand(0);
    l.insn().flags = d.pair;
    if (d.pair) l.destination(d.items[0], 32), l.destination(d.items[1], 0);
    else l.destination(d, 32), l.destination(Operand{}, 0);
    for (u32 n = 1; n <= 4; ++n) l.source(n, 32);
    l.insn().run = mode == "up"     ? shfl_h<0>
                   : mode == "down" ? shfl_h<1>
                   : mode == "bfly" ? shfl_h<2>
                                    : shfl_h<3>;
    return true;
}

// ---- vote.sync: d, p, !p, members ----

enum Vote : u8 { kAllOf, kAny, kUni, kBallot };
void vote_of(Warp& w, const Insn& i, u32 lanes) {
    const u32 votes = (*slot<u32>(w, i, 1) ^ i.operands[2]) & lanes;
    if (i.count == kBallot) return write(slot<u32>(w, i, 0), lanes, [=](u32) { return votes; });
    const bool result = i.count == kAllOf ? votes == lanes
                        : i.count == kAny ? votes != 0
                                          : votes == 0 || votes == lanes;
    set_predicate(slot<u32>(w, i, 0), lanes, result ? kAll : 0);
}
void vote_h(Warp& w, const Insn& i, u32 lanes) {
    for_each_mask(w, i, 3, lanes, [&](u32 group) { vote_of(w, i, group); });
}
bool vote(Lowering& l) {
    if (!l.take("sync")) return false;
    l.insn().count = l.take("all") ? kAllOf : l.take("any") ? kAny : l.take("uni") ? kUni : kBallot;
    l.take("ballot");
    l.destination(0, l.insn().count == kBallot ? 32 : 0);
    l.predicate(l.operand(1));
    l.source(2, 32);
    l.insn().run = vote_h;
    return true;
}

// ---- match.sync: d, p, a, members ----

template <class T>
void match_of(Warp& w, const Insn& i, u32 lanes) {
    const T* const a = slot<T>(w, i, 2);
    u32 made[kLanes] = {}, all = 0;
    for (u32 l = 0; l < kLanes; ++l) {
        for (u32 n = 0; n < kLanes; ++n) made[l] |= has(lanes, n) && a[n] == a[l] ? u32{1} << n : 0;
        if (made[l] == lanes) all |= u32{1} << l;
    }
    if (i.count == 0) return merge(slot<u32>(w, i, 0), made, lanes);
    const bool same = has(all, first_lane(lanes));
    write(slot<u32>(w, i, 0), lanes, [=](u32) { return same ? lanes : 0; });
    if (i.flags) set_predicate(slot<u32>(w, i, 1), lanes, same ? kAll : 0);
}
template <class T>
void match_h(Warp& w, const Insn& i, u32 lanes) {
    for_each_mask(w, i, 3, lanes, [&](u32 group) { match_of<T>(w, i, group); });
}
bool match(Lowering& l) {
    if (!l.take("sync")) return false;
    l.insn().count = l.take("all") ? 1 : 0;
    l.take("any");
    const Operand& d = l.operand(0);
    l.insn().flags = d.pair;
    if (d.pair) l.destination(d.items[0], 32), l.destination(d.items[1], 0);
    else l.destination(d, 32), l.destination(Operand{}, 0);
    const u32 bits = bits_of(l.type());
    l.source(1, bits), l.source(2, 32);
    l.insn().run = bits == 64 ? match_h<u64> : match_h<u32>;
    return true;
}

void activemask_h(Warp& w, const Insn& i, u32 lanes) {
    write(slot<u32>(w, i, 0), lanes, [=, active = w.lanes](u32) { return active; });
}
bool activemask(Lowering& l) {
    l.destination(0, 32);
    l.insn().run = activemask_h;
    return true;
}

// ---- redux.sync: d, a, members ----

enum Redux : u8 { kAdd, kMin, kMax, kAnd, kOr, kXor };
template <class T>
void redux_of(Warp& w, const Insn& i, u32 lanes) {
    const T* const a = slot<T>(w, i, 1);
    T v = a[first_lane(lanes)];
    for (u32 l = first_lane(lanes) + 1; l < kLanes; ++l) {
        if (!has(lanes, l)) continue;
        switch (i.count) {
            case kAdd: v = static_cast<T>(v + a[l]); break;
            case kMin: v = a[l] < v ? a[l] : v; break;
            case kMax: v = a[l] > v ? a[l] : v; break;
            case kAnd: v = static_cast<T>(v & a[l]); break;
            case kOr: v = static_cast<T>(v | a[l]); break;
            default: v = static_cast<T>(v ^ a[l]); break;
        }
    }
    write(slot<T>(w, i, 0), lanes, [=](u32) { return v; });
}
template <class T>
void redux_h(Warp& w, const Insn& i, u32 lanes) {
    for_each_mask(w, i, 2, lanes, [&](u32 group) { redux_of<T>(w, i, group); });
}
// redux.sync.{min,max}{.abs}{.NaN}.f32 (sm_100a)
void redux_f32_of(Warp& w, const Insn& i, u32 lanes) {
    const bool absolute = i.flags & 1, nan = i.flags & 2;
    const float* const a = slot<float>(w, i, 1);
    float v = f32_of_bits(0x7fffffff);
    bool any_nan = false;
    for (u32 l = 0; l < kLanes; ++l) {
        if (!has(lanes, l)) continue;
        const float x = absolute ? std::fabs(a[l]) : a[l];
        any_nan |= x != x;
        if (v != v || (i.count == kMin ? x < v : x > v) ||
            (x == v && std::signbit(x) == (i.count == kMin)))
            v = x == x ? x : v;
    }
    if (any_nan && nan) v = f32_of_bits(0x7fffffff);
    write(slot<float>(w, i, 0), lanes, [=](u32) { return v; });
}
void redux_f32(Warp& w, const Insn& i, u32 lanes) {
    for_each_mask(w, i, 2, lanes, [&](u32 group) { redux_f32_of(w, i, group); });
}
bool redux(Lowering& l) {
    if (!l.take("sync")) return false;
    static constexpr std::string_view kNames[] = {"add", "min", "max", "and", "or", "xor"};
    for (u8 n = 0; n < 6; ++n) {
        if (l.take(kNames[n])) l.insn().count = n;
    }
    l.destination(0, 32), l.source(1, 32), l.source(2, 32);
    if (l.type() == Type::f32)
        l.insn().flags = static_cast<u8>((l.take("abs") ? 1 : 0) | (l.take("NaN") ? 2 : 0));
    l.insn().run = l.type() == Type::f32    ? redux_f32
                   : l.type() == Type::s32_ ? redux_h<s32>
                                            : redux_h<u32>;
    return true;
}

// ---- bar.warp.sync, elect.sync ----

void warp_sync(Warp& w, const Insn& i, u32 lanes) {
    for_each_mask(w, i, 0, lanes, [](u32) {});
}
bool bar_warp(Lowering& l) {
    if (!l.take("warp")) return false;
    l.ignore({"sync"});
    l.source(0, 32);
    l.insn().flags |= kMovesNothing;
    l.insn().run = warp_sync;
    return true;
}
void elect_of(Warp& w, const Insn& i, u32 lanes) {
    const u32 leader = first_lane(lanes);
    write(slot<u32>(w, i, 0), lanes, [=](u32) { return leader; });
    set_predicate(slot<u32>(w, i, 1), lanes, u32{1} << leader);
}
void elect_h(Warp& w, const Insn& i, u32 lanes) {
    for_each_mask(w, i, 2, lanes, [&](u32 group) { elect_of(w, i, group); });
}
bool elect(Lowering& l) {
    l.take("sync");
    const Operand& d = l.operand(0);
    if (!d.pair) return false;
    l.destination(d.items[0], 32), l.destination(d.items[1], 0), l.source(1, 32);
    l.insn().run = elect_h;
    return true;
}

}  // namespace

extern const Entry kWarpWide[];
const Entry kWarpWide[] = {
    {"shfl", shfl},   {"vote", vote},    {"match", match}, {"activemask", activemask},
    {"redux", redux}, {"bar", bar_warp}, {"elect", elect}, {nullptr, nullptr}};

}  // namespace ptx::PTX_VARIANT
