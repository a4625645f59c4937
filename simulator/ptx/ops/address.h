// From an instruction's address operand to the host addresses of 32 lanes, checked.
#pragma once

#include "lanes.h"

namespace ptx::PTX_VARIANT {

// Where the lanes that take no part read and write.
struct Nowhere {
    alignas(64) u8 bytes[64];
};
inline thread_local Nowhere nowhere;

struct Lanes {
    u8* at[kLanes];
    // The lanes' bytes lie side by side from at[0] on; or all at one address.
    bool together = false, same = false;
};

// The addresses, with the offset.
PTX_INLINE void read_addresses(Warp& w, const Insn& i, u32 operand, u64* to) {
    const u64 offset = i.immediate;
    if (i.flags & kNoBase) {
        PTX_LANES to[l] = offset;
    } else if (i.flags & kNarrowAddress) {
        const u32* const base = slot<u32>(w, i, operand);
        PTX_LANES to[l] = static_cast<u32>(base[l] + static_cast<u32>(offset));
    } else {
        const u64* const base = slot<u64>(w, i, operand);
        PTX_LANES to[l] = base[l] + offset;
    }
}

// Inactive lanes get the address of the first active one, so that minima and maxima need no mask.
PTX_INLINE void fill_inactive(u64* a, u32 lanes) {
    if (lanes == kAll) return;
    const u64 first = a[first_lane(lanes)];
    PTX_LANES a[l] = has(lanes, l) ? a[l] : first;
}

PTX_INLINE void check_alignment(Warp& w, const Insn& i, u32 lanes, const u64* a, u32 bytes) {
    u64 any = 0;
    PTX_LANES any |= a[l];
    if (__builtin_expect((any & (bytes - 1)) == 0, 1)) return;
    for (u32 l = 0; l < kLanes; ++l) {
        if (has(lanes, l) && (a[l] & (bytes - 1)) != 0) raise_misaligned(w, i, l, a[l], bytes);
    }
}

PTX_INLINE void extent(const u64* a, u64* low, u64* high) {
    u64 lo = ~u64{0}, hi = 0;
    PTX_LANES lo = a[l] < lo ? a[l] : lo;
    PTX_LANES hi = a[l] > hi ? a[l] : hi;
    *low = lo, *high = hi;
}

PTX_INLINE void place(Lanes& out, const u64* a, u64 base, u64 low, u64 high, u32 lanes, u32 bytes) {
    out.same = low == high;
    if (lanes == kAll && high - low == u64{31} * bytes) {
        u64 wrong = 0;
        PTX_LANES wrong |= a[l] ^ (low + l * bytes);
        out.together = wrong == 0;
    }
    u64* const at = reinterpret_cast<u64*>(out.at);
    const auto dummy = reinterpret_cast<u64>(nowhere.bytes);
    if (lanes == kAll) {
        PTX_LANES at[l] = base + a[l];
    } else {
        PTX_LANES at[l] = has(lanes, l) ? base + a[l] : dummy;
    }
}

inline void find_lanes(Warp& w, const Insn& i, u32 lanes, u64* a, Space space, u32 bytes, Use use,
                       Lanes& out);

// Generic addresses (and ld.param, whose variables may be in local memory): by their windows.
inline void find_by_window(Warp& w, const Insn& i, u32 lanes, u64* a, Space otherwise, u32 bytes,
                           Use use, Lanes& out) {
    u32 left = lanes;
    for (u32 l = 0; l < kLanes; ++l) out.at[l] = nowhere.bytes;
    while (left != 0) {
        const u64 window = a[first_lane(left)] & kWindow;
        u32 group = 0;
        PTX_LANES group |= (a[l] & kWindow) == window ? u32{1} << l : u32{0};
        group &= left;
        left &= ~group;
        const Space space = window == kSharedWindow  ? Space::shared
                            : window == kLocalWindow ? Space::local
                            : window == kParamWindow ? Space::param
                                                     : otherwise;
        alignas(64) u64 inner[kLanes];
        PTX_LANES inner[l] = has(group, l) ? a[l] & ~(space == otherwise ? u64{0} : kWindow) : 0;
        fill_inactive(inner, group);
        Lanes part;
        find_lanes(w, i, group, inner, space, bytes, use, part);
        if (group == lanes) {
            out = part;
            return;
        }
        for (u32 l = 0; l < kLanes; ++l) {
            if (has(group, l)) out.at[l] = part.at[l];
        }
    }
    out.together = out.same = false;
}

[[noreturn]] inline void refuse(Warp& w, const Insn& i, u32 lanes, const u64* a, Space space,
                                u32 bytes, u64 size, Use use) {
    for (u32 l = 0; l < kLanes; ++l) {
        if (has(lanes, l) && (a[l] > size || size - a[l] < bytes))
            raise_window(w, i, l, space, a[l], bytes, size, use);
    }
    raise_window(w, i, first_lane(lanes), space, a[first_lane(lanes)], bytes, size, use);
}

PTX_INLINE bool is_known(const Warp& w, u64 low, u64 high, u32 bytes) {
    for (u32 n = 0; n < Warp::kKnown; ++n) {
        const Warp::Known& k = w.known[n];
        if (low >= k.from && high < k.to && k.to - high >= bytes) return true;
    }
    return false;
}

// `a`: offsets in the space, or addresses; inactive lanes filled.
inline void find_lanes(Warp& w, const Insn& i, u32 lanes, u64* a, Space space, u32 bytes, Use use,
                       Lanes& out) {
    u64 low, high;
    extent(a, &low, &high);
    Block& block = *w.block;
    switch (space) {
        case Space::shared: {
            if (high >= block.shared_size || block.shared_size - high < bytes)
                refuse(w, i, lanes, a, space, bytes, block.shared_size, use);
            place(out, a, reinterpret_cast<u64>(block.shared), low, high, lanes, bytes);
            if (__builtin_expect(block.watch != nullptr, 0) && !i.later)
                watch_access(w, i, lanes, out.at, bytes, use, true);
            return;
        }
        case Space::local: {
            if (high >= block.local_stride || block.local_stride - high < bytes)
                refuse(w, i, lanes, a, space, bytes, block.local_stride, use);
            const u64 base =
                reinterpret_cast<u64>(block.local) + u64{w.number} * kLanes * block.local_stride;
            u64* const at = reinterpret_cast<u64*>(out.at);
            const auto dummy = reinterpret_cast<u64>(nowhere.bytes);
            PTX_LANES at[l] = has(lanes, l) ? base + u64{l} * block.local_stride + a[l] : dummy;
            return;
        }
        case Space::param: {
            if (use != Use::read || high >= block.parameter_size ||
                block.parameter_size - high < bytes)
                refuse(w, i, lanes, a, space, bytes, block.parameter_size, use);
            place(out, a, reinterpret_cast<u64>(block.parameters), low, high, lanes, bytes);
            return;
        }
        case Space::generic: {
            u64 any = 0;
            PTX_LANES any |= a[l];
            if ((any & kWindow) != 0) {
                // An address of no window at all is left to the search, which refuses it.
                if (((any & kWindow) >> 56) <= 3)
                    return find_by_window(w, i, lanes, a, Space::global, bytes, use, out);
            }
            [[fallthrough]];
        }
        default:
            if (__builtin_expect(!is_known(w, low, high, bytes), 0))
                find_global(w, i, lanes, a, bytes, use);
            place(out, a, 0, low, high, lanes, bytes);
            if (__builtin_expect(block.watch != nullptr, 0) && !i.later && space != Space::constant)
                watch_access(w, i, lanes, out.at, bytes, use, false);
            if (__builtin_expect(block.launch->overlap != nullptr, 0))
                watch_works(w, i, lanes, out.at, bytes, use);
            return;
    }
}

// The host addresses of `bytes` bytes for each lane.
PTX_INLINE void locate(Warp& w, const Insn& i, u32 operand, u32 lanes, u32 bytes, Use use,
                       Lanes& out) {
    alignas(64) u64 a[kLanes];
    read_addresses(w, i, operand, a);
    fill_inactive(a, lanes);
    check_alignment(w, i, lanes, a, bytes);
    const auto space = static_cast<Space>(i.space);
    if (space == Space::param && !(i.flags & kNoBase))
        return find_by_window(w, i, lanes, a, Space::param, bytes, use, out);
    find_lanes(w, i, lanes, a, space, bytes, use, out);
}

// Adds what was stored to global memory to the warp's checksum (memory.cpp).
void add_checksum(Warp& w, const u8* at, u32 bytes);

// Space::generic where the instruction names none.
inline Space take_space(Lowering& l) {
    Space space = Space::generic;
    if (l.take("global")) space = Space::global;
    if (l.take("shared") || l.take("shared::cta") || l.take("shared::cluster"))
        space = Space::shared;
    if (l.take("local")) space = Space::local;
    if (l.take("param") || l.take("param::entry") || l.take("param::func")) space = Space::param;
    if (l.take("const")) space = Space::constant;
    return space;
}

// Lanes access memory in the order of the program here, which satisfies all orders; the watch
// looks at them.
inline void take_order(Lowering& l) {
    Insn& insn = l.insn();
    const auto any = [&](std::initializer_list<std::string_view> words) {
        return !l.first_of(words).empty();
    };
    if (any({"relaxed", "volatile", "mmio"})) insn.order = Order::relaxed;
    if (any({"acquire"})) insn.order = Order::acquire;
    if (any({"release"})) insn.order = Order::release;
    if (any({"acq_rel"}) || any({"sc"})) insn.order = Order::acq_rel;
    const bool named = insn.order != Order::weak;
    if (named) insn.scope = Scope::sys;  // volatile
    const auto scope = [&](std::string_view word, Scope is) {
        if (l.take(word) && named) insn.scope = is;
    };
    scope("cta", Scope::cta), scope("cluster", Scope::cluster);
    scope("gpu", Scope::gpu), scope("gl", Scope::gpu), scope("sys", Scope::sys);
}

inline void take_hints(Lowering& l) {
    take_order(l);
    l.ignore({"weak", "ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc", "unified", "noftz"});
    l.ignore_prefix("L1::");
    l.ignore_prefix("L2::");
    l.ignore_prefix("level::");
}

}  // namespace ptx::PTX_VARIANT
