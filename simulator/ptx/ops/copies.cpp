// cp.async (PTX ISA 9.7.9.25.1): a copy happens when it is waited for, not before, so that a kernel
// that forgets to wait reads what was there.
#include <algorithm>

#include "mbarrier.h"

namespace ptx::PTX_VARIANT {

namespace {

void perform(const AsyncCopy& copy) {
    for (u32 l = 0; l < kLanes; ++l) {
        if (!has(copy.lanes, l)) continue;
        auto* const to = reinterpret_cast<u8*>(copy.to[l]);
        const u32 bytes = copy.source_bytes[l];
        std::memcpy(to, reinterpret_cast<const u8*>(copy.from[l]), bytes);
        std::memset(to + bytes, 0, copy.bytes - bytes);  // the rest is zeros
    }
}

void perform(Warp& w, u32 count) {
    for (u32 n = 0; n < count; ++n) {
        const AsyncCopy& copy = w.copies[n];
        if (copy.knows == nullptr) perform(copy);
        else watch_copy(w, copy, [&] { perform(copy); });
    }
    w.copies.erase(w.copies.begin(), w.copies.begin() + count);
}

// The number of committed groups that are not complete.
u32 groups(const Warp& w) {
    u32 count = 0;
    for (const AsyncCopy& copy : w.copies) count += copy.committed;
    return count;
}

// operands: to, from, source size, !ignore-source; Insn::extra: bytes; Insn::count: what is there
void copy_h(Warp& w, const Insn& i, u32 lanes) {
    AsyncCopy copy{};
    copy.lanes = lanes;
    copy.bytes = i.extra;
    const u32* const size = i.count & 1 ? slot<u32>(w, i, 2) : nullptr;
    const u32 ignored = i.count & 2 ? *slot<u32>(w, i, 2) ^ i.operands[3] : 0;
    if (w.block->watch != nullptr) copy.insn = i, copy.knows = known_now(w);
    Insn part = i;
    part.later = true;
    part.immediate = i.immediate & 0xffffffff;
    part.immediate = static_cast<u64>(static_cast<s64>(static_cast<s32>(part.immediate)));
    part.flags = i.flags & 3;
    part.space = static_cast<u8>(Space::shared);
    Lanes to;
    locate(w, part, 0, lanes, i.extra, Use::write, to);
    u32 reads = 0;
    for (u32 l = 0; l < kLanes; ++l) {
        copy.to[l] = reinterpret_cast<u64>(to.at[l]);
        copy.source_bytes[l] = has(ignored, l)   ? 0
                               : size != nullptr ? std::min(size[l], i.extra)
                                                 : i.extra;
        if (has(lanes, l) && copy.source_bytes[l] == i.extra) reads |= u32{1} << l;
    }
    part.immediate = static_cast<u64>(static_cast<s64>(i.immediate) >> 32);
    part.flags = static_cast<u8>(i.flags >> 4);
    part.space = i.space;
    const auto find = [&](u32 some, u32 bytes) {
        Lanes from;
        locate(w, part, 1, some, bytes, Use::read, from);
        for (u32 l = 0; l < kLanes; ++l) {
            if (has(some, l)) copy.from[l] = reinterpret_cast<u64>(from.at[l]);
        }
    };
    if (reads != 0) find(reads, i.extra);
    for (u32 l = 0; l < kLanes; ++l) {
        const bool partial = has(lanes, l) && !has(reads, l) && copy.source_bytes[l] > 0;
        if (!partial) continue;
        // A size that is no power of two: the last byte decides.
        alignas(64) u64 a[kLanes] = {};
        read_addresses(w, part, 1, a);
        const u64 first = a[l];
        for (u32 n = 0; n < kLanes; ++n) a[n] = first;
        Lanes from;
        find_lanes(w, part, u32{1} << l, a, static_cast<Space>(part.space), copy.source_bytes[l],
                   Use::read, from);
        copy.from[l] = reinterpret_cast<u64>(from.at[l]);
    }
    w.copies.push_back(copy);
}

void commit(Warp& w, const Insn&, u32) {
    // An empty group counts, too.
    if (w.copies.empty() || w.copies.back().committed) w.copies.push_back({});
    w.copies.back().committed = true;
}
void wait_group(Warp& w, const Insn& i, u32) {
    const u32 all = groups(w), left = static_cast<u32>(i.immediate);
    if (all <= left) return;
    u32 complete = all - left, count = 0;
    while (complete > 0) complete -= w.copies[count++].committed;
    perform(w, count);
}
void wait_all(Warp& w, const Insn&, u32) { perform(w, static_cast<u32>(w.copies.size())); }

bool cp(Lowering& l) {
    if (!l.take("async")) return false;
    Insn& insn = l.insn();
    if (l.take("commit_group")) {
        insn.run = commit;
        return true;
    }
    if (l.take("wait_all")) {
        insn.run = wait_all;
        return true;
    }
    if (l.take("wait_group")) {
        insn.immediate = l.operand(0).bits;
        insn.run = wait_group;
        return l.operand(0).kind == Operand::Kind::integer;
    }
    l.ignore({"ca", "cg", "shared", "shared::cta", "global"});
    l.ignore_prefix("L2::");
    if (l.operands() < 3 || l.operand(2).kind != Operand::Kind::integer) return false;
    insn.extra = static_cast<u32>(l.operand(2).bits);
    if (!l.address(l.operand(0), Space::shared)) return false;
    const auto to_offset = static_cast<u64>(insn.immediate);
    const u8 to_flags = insn.flags;
    insn.flags = 0;
    if (!l.address(l.operand(1), Space::global)) return false;
    insn.immediate = insn.immediate << 32 | (to_offset & 0xffffffff);
    insn.flags = static_cast<u8>(to_flags | insn.flags << 4);
    if (l.operands() > 3) {
        const Operand& last = l.operand(3);
        const bool predicate =
            last.negated || (last.kind == Operand::Kind::reg && l.register_bits(last, 32) == 0);
        if (predicate) l.predicate(last), insn.count = 2;
        else if (l.register_bits(last, 32) == 32) l.source(last, 32), insn.count = 1;
        // else a cache policy of 64 bits
    }
    insn.run = copy_h;
    return insn.extra == 4 || insn.extra == 8 || insn.extra == 16;
}

}  // namespace

void complete_async(Warp& w) { perform(w, static_cast<u32>(w.copies.size())); }

extern const Entry kCopies[];
const Entry kCopies[] = {{"cp", cp}, {nullptr, nullptr}};

}  // namespace ptx::PTX_VARIANT
