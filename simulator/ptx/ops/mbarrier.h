// mbarrier objects (PTX ISA 9.7.13.15) and copies that complete on them or in bulk groups.
//
// An object is 64 bits of shared memory, opaque to kernels.  Here: pending arrivals (20 bits),
// expected arrivals (20), transactions (21, signed), phase, and two bits that neither zeros nor
// poison have.
#pragma once

#include "address.h"

namespace ptx::PTX_VARIANT {

struct Barrier {
    u32 pending = 0, expected = 0;
    s32 transactions = 0;
    u32 phase = 0;

    static constexpr u32 kMost = (1U << 20) - 1;  // of arrivals and of transactions
    static constexpr u64 kMark = u64{2} << 62;

    static bool is_one(u64 word) { return word >> 62 == 2; }
    explicit Barrier(u64 word)
        : pending(word & kMost),
          expected(word >> 20 & kMost),
          transactions(static_cast<s32>(static_cast<u32>(word >> 40) << 11) >> 11),
          phase(word >> 61 & 1) {}
    u64 word() const {
        return kMark | u64{phase} << 61 | (static_cast<u64>(transactions) & 0x1fffff) << 40 |
               u64{expected} << 20 | pending;
    }
    void settle() {
        if (pending != 0 || transactions != 0) return;
        phase ^= 1;
        pending = expected;
    }
};

// An address of an instruction that has several: what Lowering::address() leaves in Insn.
struct Place {
    u64 offset = 0;
    u32 operand = 0;
    u8 flags = 0, space = 0;
};
// Adds the operand; false: no address.
inline bool take_place(Lowering& l, const Operand& operand, Space space, u32 number, Place* out) {
    Insn& insn = l.insn();
    insn.flags = 0;
    if (!l.address(operand, space)) return false;
    *out = {insn.immediate, number, insn.flags, insn.space};
    insn.flags = 0;
    return true;
}
// The host address of a lane's bytes there, checked as any access.
u8* locate_one(Warp& w, const Insn& i, const Place& place, u32 lane, u32 bytes, u32 alignment,
               Use use);

// The object of a lane; raises where there is none, but for `initialized` false.
u8* find_barrier(Warp& w, const Insn& i, const Place& place, u32 lane, bool initialized = true);
// What clocks are handed over by, behind the 16 barriers of `bar`.
inline u32 clock_of(const Warp& w, const u8* barrier) {
    return 16 + static_cast<u32>(barrier - w.block->shared) / 8;
}
inline Barrier read_barrier(const u8* at) {
    u64 word;
    std::memcpy(&word, at, sizeof word);
    return Barrier(word);
}
inline void write_barrier(u8* at, const Barrier& barrier) {
    const u64 word = barrier.word();
    std::memcpy(at, &word, sizeof word);
}

// Performs the copies that complete on an object (bulk.cpp).
void complete_on(Block& block, const u8* barrier);
// The copies by cp.async that the warp has issued (copies.cpp).
void complete_async(Warp& w);

}  // namespace ptx::PTX_VARIANT
