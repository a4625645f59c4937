// A block: its warps run in turn until each waits at a barrier or has ended.
//
// Barriers: PTX ISA 9.7.13.1 "bar, barrier".
#include <algorithm>
#include <cstring>

#include "machine.h"

namespace ptx {

namespace {

// Backward branches before another warp runs; in a cooperative grid most of them only wait.
constexpr s64 kSlice = 20'000, kShortSlice = 200;
// Rounds in which all warps only wait for mbarriers, after which nobody is expected to come.
constexpr u32 kFruitless = 100'000;

u32 threads_of(const Warp& warp) {
    return static_cast<u32>(__builtin_popcount(warp.started & ~warp.exited));
}

bool waits(const Warp& warp) { return warp.stop == Stop::barrier; }

// What bar.red gives all threads: how many predicates, or whether all or any, were true.
void reduce(Block& block, const std::vector<u32>& warps) {
    u32 count = 0, members = 0;
    for (const u32 number : warps) {
        const Warp& warp = block.warps[number];
        const u32 lanes = warp.started & ~warp.exited;
        count += static_cast<u32>(__builtin_popcount(warp.reduce_input & lanes));
        members += static_cast<u32>(__builtin_popcount(lanes));
    }
    for (const u32 number : warps) {
        Warp& warp = block.warps[number];
        const u32 lanes = warp.started & ~warp.exited;
        if (warp.reduce_kind == 1) {  // popc
            u32* const to = lanes_of<u32>(warp, warp.reduce_operand);
            for (u32 lane = 0; lane < kLanes; ++lane) {
                if (lanes >> lane & 1) to[lane] = count;
            }
        } else if (warp.reduce_kind != 0) {  // and, or
            const bool value = warp.reduce_kind == 2 ? count == members : count > 0;
            u32& to = *lanes_of<u32>(warp, warp.reduce_operand);
            to = value ? to | lanes : to & ~lanes;
        }
    }
}

// A barrier of the whole block is one place of the kernel: warps that part before it read what
// others have not written yet (ggml-org/llama.cpp#27678).
void require_one_place(Block& block, const std::vector<u32>& warps) {
    Warp& first = block.warps[warps.front()];
    for (const u32 number : warps) {
        Warp& warp = block.warps[number];
        if (warp.pc == first.pc) continue;
        const Insn& insn = block.program->code[warp.pc - 1];
        const SourceLine& other =
            block.program->lines[block.program->code[first.pc - 1].step];
        raise(warp, insn, static_cast<u32>(__builtin_ctz(warp.lanes)), Fault::Kind::barrier,
              "barrier " + std::to_string(warp.barrier) + " is passed at two places: warp " +
                  std::to_string(first.number) + " waits at line " + std::to_string(other.line) +
                  (other.source.empty() ? "" : ", " + other.source));
    }
}

// Opens each barrier that all expected threads have reached.  False: none.
bool open_barriers(Block& block) {
    bool opened = false;
    for (u32 number = 0; number < 16; ++number) {
        std::vector<u32> here;
        u32 arrived = 0, expected = 0, alive = 0;
        for (const Warp& warp : block.warps) {
            alive += threads_of(warp);
            if (!waits(warp) || warp.barrier != number) continue;
            here.push_back(warp.number);
            arrived += threads_of(warp);
            expected = warp.barrier_threads;
        }
        if (here.empty()) continue;
        arrived += block.arrived[number];
        // Without a count all threads take part; those that have ended do not.
        const bool whole = expected == 0;
        if (whole) expected = alive;
        if (arrived < expected) continue;
        if (whole) require_one_place(block, here);
        block.arrived[number] = 0;
        reduce(block, here);
        if (block.watch != nullptr) {
            for (Warp& warp : block.warps)
                if (whole && warp.stop == Stop::done) give_clock(warp, number);
            sync_warps(block, here, number);
        }
        if (block.launch->overlap != nullptr) share_wait(block, here);
        for (const u32 warp : here) block.warps[warp].stop = Stop::no;
        opened = true;
    }
    return opened;
}

[[noreturn]] void raise_deadlock(Block& block) {
    for (Warp& warp : block.warps) {
        if (!waits(warp)) continue;
        u32 here = 0, alive = 0;
        for (const Warp& other : block.warps) {
            alive += threads_of(other);
            if (waits(other) && other.barrier == warp.barrier) here += threads_of(other);
        }
        const u32 expected = warp.barrier_threads == 0 ? alive : warp.barrier_threads;
        --warp.pc;
        const Insn& insn = block.program->code[warp.pc];
        raise(warp, insn, static_cast<u32>(__builtin_ctz(warp.lanes)), Fault::Kind::barrier,
              "barrier " + std::to_string(warp.barrier) + " is never passed: " +
                  std::to_string(here) + " threads wait, " + std::to_string(expected) +
                  " are expected, and no other thread of the block can run");
    }
    throw Raised{{Fault::Kind::barrier,
                  "the threads of the block wait for each other",
                  block.program->kernel,
                  {},
                  0,
                  {},
                  0,
                  block.index,
                  {},
                  0,
                  0,
                  false}};
}

[[noreturn]] void raise_incomplete(Block& block) {
    for (Warp& warp : block.warps) {
        if (warp.stop != Stop::poll) continue;
        const Insn* insn = &block.program->code[warp.pc];
        for (u32 pc = warp.pc; pc-- > 0 && pc + 64 > warp.pc;) {
            const Insn& before = block.program->code[pc];
            if (before.step == kAll ||
                block.program->lines[before.step].text.find("_wait") == std::string::npos)
                continue;
            insn = &before;
            break;
        }
        raise(warp, *insn, static_cast<u32>(__builtin_ctz(warp.lanes)), Fault::Kind::barrier,
              "the phase of an mbarrier is never completed: arrivals or bytes are missing, and all "
              "threads of the block wait");
    }
    raise_deadlock(block);
}

}  // namespace

void arrive(Warp& warp, const Insn& insn, u32 lanes, u32 barrier, u32 threads, bool waits) {
    Block& block = *warp.block;
    if (barrier >= 16)
        raise(warp, insn, static_cast<u32>(__builtin_ctz(lanes)), Fault::Kind::barrier,
              "barrier " + std::to_string(barrier) + ": a block has 16");
    const u32 alive = warp.started & ~warp.exited;
    if (lanes != alive) {
        const auto missing = static_cast<u32>(__builtin_ctz(alive & ~lanes));
        raise(warp, insn, static_cast<u32>(__builtin_ctz(lanes)), Fault::Kind::barrier,
              "not all threads of the warp reach barrier " + std::to_string(barrier) +
                  " together: lane " + std::to_string(missing) + " takes another way");
    }
    if (!waits) {
        block.arrived[barrier] += threads_of(warp);
        if (block.watch != nullptr) give_clock(warp, barrier);
        return;
    }
    warp.barrier = barrier;
    warp.barrier_threads = threads;
    warp.stop = Stop::barrier;
}

bool run_block(Block& block) {
    bool ran = false, only_polls = true;
    for (Warp& warp : block.warps) {
        if (warp.stop == Stop::done || waits(warp)) continue;
        warp.slice = block.launch->cooperative ? kShortSlice : kSlice;
        run_warp(warp, block.program->code.data());
        ran = true;
        only_polls &= warp.stop == Stop::poll || warp.stop == Stop::done;
        const u64 most = block.launch->options.most_instructions;
        if (most != 0 && warp.warp_instructions > most) {
            const Insn& insn = block.program->code[warp.pc];
            raise(warp, insn, static_cast<u32>(__builtin_ctz(warp.lanes | 1U << 31)),
                  Fault::Kind::endless,
                  "the warp executed more than " + std::to_string(most) + " instructions");
        }
        if (warp.stop == Stop::park) raise_deadlock(block);
    }
    bool all_done = true;
    for (const Warp& warp : block.warps) all_done &= warp.stop == Stop::done;
    if (all_done) return true;
    if (open_barriers(block)) return false;
    if (!ran) raise_deadlock(block);
    block.fruitless = only_polls ? block.fruitless + 1 : 0;
    if (block.fruitless > kFruitless && !block.launch->cooperative) raise_incomplete(block);
    return false;
}

}  // namespace ptx
