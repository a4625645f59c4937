// Branches (PTX ISA 9.7.12), barriers (9.7.13.1), and ends of kernels.
#include "lanes.h"

namespace ptx::PTX_VARIANT {

namespace {

PTX_INLINE void go(Warp& w, u32 target) {
    // Loops end a slice, so that others make progress.
    if (target < w.pc && --w.slice < 0) w.stop = Stop::yield;
    w.pc = target;
}

void branch_always(Warp& w, const Insn& i, u32) { go(w, i.target); }

void branch(Warp& w, const Insn& i, u32 lanes) {
    if (lanes == w.lanes) return go(w, i.target);
    if (i.target < w.pc && --w.slice < 0) w.stop = Stop::yield;
    part(w, lanes, i.target, w.pc, i.meet);
}

// What follows the branch ends the kernel.
void branch_or_leave(Warp& w, const Insn& i, u32 lanes) {
    if (lanes != w.lanes) exit_lanes(w, w.lanes & ~lanes);
    go(w, i.target);
}

void branch_table(Warp& w, const Insn& i, u32 lanes) {
    const u32* const index = slot<u32>(w, i, 0);
    const u32 first = index[first_lane(lanes)];
    if (first >= i.extra) {
        raise(w, i, first_lane(lanes), Fault::Kind::invalid,
              "the index " + std::to_string(first) + " of a table of " + std::to_string(i.extra) +
                  " branch targets");
    }
    u32 same = 0;
    PTX_LANES same |= index[l] == first ? u32{1} << l : u32{0};
    same &= lanes;
    const auto target = static_cast<u32>(w.block->program->branch_tables[i.immediate + first]);
    if (same == w.lanes) return go(w, target);
    // The other lanes come here again; those that the guard excludes go on.
    if (same == lanes) return part(w, same, target, w.pc, i.meet);
    part(w, same, target, w.pc - 1, i.meet);
}

void meet(Warp& w, const Insn&, u32 lanes) {
    // Not an instruction of the kernel: not counted.
    --w.warp_instructions;
    w.lane_instructions -= static_cast<u64>(__builtin_popcount(lanes));
    meet_here(w, w.pc - 1);
}

void leave(Warp& w, const Insn&, u32 lanes) { exit_lanes(w, lanes); }

void not_computed(Warp& w, const Insn& i, u32 lanes) {
    raise(w, i, first_lane(lanes), Fault::Kind::not_computed,
          w.block->program->not_computed[i.extra]);
}

void trap_h(Warp& w, const Insn& i, u32 lanes) {
    raise(w, i, first_lane(lanes), Fault::Kind::trap, "the kernel executed trap");
}
bool trap(Lowering& l) {
    l.insn().run = trap_h;
    return true;
}

// flatten.cpp: after the comparisons of an indirect call.
void no_function_h(Warp& w, const Insn& i, u32 lanes) {
    raise(w, i, first_lane(lanes), Fault::Kind::invalid,
          "the register holds the address of no function with this signature");
}
bool no_function(Lowering& l) {
    l.insn().run = no_function_h;
    return true;
}

void nothing(Warp&, const Insn&, u32) {}
bool nop(Lowering& l) {
    l.insn().run = nothing;
    return true;
}
void sleep_h(Warp& w, const Insn&, u32) { w.stop = Stop::yield; }
bool nanosleep(Lowering& l) {
    l.insn().run = sleep_h;
    return true;
}

// ---- bar, barrier ----

// operands: barrier, threads, then for a reduction: predicate, !predicate, destination
void bar_h(Warp& w, const Insn& i, u32 lanes) {
    const u32 lane = first_lane(lanes);
    const u32 barrier = slot<u32>(w, i, 0)[lane],
              threads = i.flags & 1 ? slot<u32>(w, i, 1)[lane] : 0;
    if (threads % kLanes != 0)
        raise(w, i, lane, Fault::Kind::barrier,
              "a barrier of " + std::to_string(threads) + " threads, which are no whole warps");
    // Without .aligned, threads of a warp may come by different ways: the first ones wait.
    if ((i.flags & 4) != 0 && lanes != (w.started & ~w.exited) &&
        wait_for(w, i, w.started, &lanes)) {
        return;
    }
    w.reduce_kind = i.count;
    if (i.count != 0) {
        w.reduce_input = *slot<u32>(w, i, 2) ^ i.operands[3];
        w.reduce_operand = i.operands[4];
    }
    // Threads of this warp that wait elsewhere would have to come here too.
    arrive(w, i, lanes, barrier, threads, (i.flags & 2) == 0);
}

bool bar(Lowering& l) {
    // bar.sync is barrier.sync.aligned (9.7.13.1).
    const bool aligned = l.take("aligned") || l.statement().parts[0] == "bar";
    l.ignore({"cta", "sync"});
    if (l.take("warp")) return false;  // warp_wide.cpp
    const bool arrives = l.take("arrive"), reduces = l.take("red");
    const u8 kind = !reduces ? 0 : l.take("popc") ? 1 : l.take("and") ? 2 : l.take("or") ? 3 : 0;
    if (reduces && kind == 0) return false;
    // bar.red d, a[, b], c
    const std::size_t first = reduces ? 1 : 0, count = l.operands() - first - (reduces ? 1 : 0);
    if (count < 1) return false;
    l.source(first, 32);
    const bool counted = count > 1;
    if (counted) l.source(first + 1, 32);
    else l.constant(0);
    if (reduces) {
        l.predicate(l.operand(l.operands() - 1));
        l.destination(0, kind == 1 ? 32 : 0);
    }
    l.insn().count = kind;
    l.insn().flags = static_cast<u8>((counted ? 1 : 0) | (arrives ? 2 : 0) | (aligned ? 0 : 4));
    l.insn().run = bar_h;
    return true;
}

// Clusters have one block here: a barrier of the cluster is one of the block (9.7.13.3).
void cluster_wait(Warp& w, const Insn& i, u32 lanes) {
    w.reduce_kind = 0;
    arrive(w, i, lanes, 15, 0, true);
}
bool barrier(Lowering& l) {
    if (l.take("cluster")) {
        const bool waits = l.take("wait");
        l.ignore({"arrive", "aligned", "release", "acquire", "relaxed"});
        l.insn().run = waits ? cluster_wait : nothing;
        return true;
    }
    return bar(l);
}

}  // namespace

extern const Entry kControl[];
const Entry kControl[] = {
    {"trap", trap}, {"$no_function", no_function}, {"brkpt", nop},    {"nanosleep", nanosleep},
    {"bar", bar},   {"barrier", barrier},          {nullptr, nullptr}};

extern const Entry kInteger[], kBits[], kFloat[], kApprox[], kLogic[], kMove[], kCompare[],
    kMemory[], kConvert[], kHalf[], kAtomics[], kWarpWide[], kMatrix[], kMatrixMemory[], kWmma[],
    kCopies[], kCalls[], kBarriers[], kBulk[], kGrids[];
void finish_block(Block& block);  // bulk.cpp

namespace {
const Entry* const kTables[] = {kLogic,    kMove,    kCompare, kInteger, kBits,
                                kFloat,    kMemory,  kConvert, kApprox,  kHalf,
                                kWarpWide, kAtomics, kControl, kMatrix,  kMatrixMemory,
                                kWmma,     kBulk,    kCopies,  kCalls,   kBarriers,     kGrids, nullptr};
}  // namespace

#define PTX_TEXT(x) PTX_TEXT_(x)
#define PTX_TEXT_(x) #x
extern const Variant kVariant;
const Variant kVariant = {PTX_TEXT(PTX_VARIANT), kTables, branch, branch_always, branch_or_leave,
                          branch_table,          meet,    leave,  not_computed,  finish_block};

}  // namespace ptx::PTX_VARIANT
