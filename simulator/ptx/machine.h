// What executes: instructions in the compact form, warps, blocks.
//
// A register is an array of 32 lanes; predicates are the 32 bits of one word.  A handler executes
// one instruction for the lanes of `lanes`; the others keep their values.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base.h"
#include "ptx.h"

namespace ptx {

struct Warp;
struct Insn;
struct Knows;
struct Watch;

// PTX ISA 8 "Memory Consistency Model"; volatile and mmio are relaxed, sc is acq_rel.
enum class Order : u8 { weak, relaxed, acquire, release, acq_rel };
enum class Scope : u8 { none, cta, cluster, gpu, sys };

using Handler = void (*)(Warp& warp, const Insn& insn, u32 lanes);

// An operand is an offset in bytes into the warp's registers or, where bit 0 is set, into the
// kernel's constants.
struct Insn {
    Handler run = nullptr;
    const u32* operands = nullptr;
    u64 immediate = 0;  // offset of an address, barrier number, ...
    u32 guard = 0;      // operand: a predicate; kNoGuard
    u32 target = 0;     // bra: instruction
    u32 meet = 0;       // bra: where the lanes meet again; kAll: they do not
    u32 step = 0;       // of the flat kernel; kAll: made by the translation
    u8 guard_negated = 0;
    u8 space = 0;  // ld, st, atom: Space
    u8 count = 0;  // elements of a vector; other small numbers of the instruction
    u8 flags = 0;
    u32 extra = 0;
    Order order = Order::weak;
    Scope scope = Scope::none;
    bool later = false;  // a part of cp.async: the access happens when the copy is performed
};
constexpr u32 kNoGuard = kAll;

// Registers that are written when a warp starts (PTX ISA 10).
struct SpecialSlot {
    std::string name;
    u32 operand = 0;
};

struct SourceLine {
    u32 line = 0;
    std::string text, source;
};

struct Program {
    std::string kernel;
    std::vector<Insn> code;
    std::vector<u32> operands;  // that Insn::operands points into
    std::unique_ptr<u8[]> constant_store;
    u8* constants = nullptr;  // aligned to 64
    u32 register_bytes = 0;
    std::vector<SpecialSlot> specials;
    u32 shared_bytes = 0, dynamic_offset = 0, local_bytes = 0, parameter_bytes = 0;
    std::vector<u64> branch_tables;             // brx.idx
    std::vector<std::string> missing;           // opcodes
    std::vector<std::string> not_computed;      // Insn::extra -> opcode
    std::vector<SourceLine> lines;              // by step
    std::vector<Range> ranges;                  // of the module's variables, sorted
    std::vector<std::string> range_names;       // theirs
    std::vector<std::unique_ptr<u64[]>> plans;  // what instructions keep beside their operands
    bool fences = false;  // or accesses that acquire or release
    bool orders = false;  // beyond the block: blocks may wait for each other's data
};

// Threads of a warp that are at one place.  Those that parted from each other are the children of
// a path that waits for them at `pc`.
struct Path {
    u32 pc = 0;
    u32 meet = kAll;  // here the path ends, and its parent goes on when all children are here
    u32 lanes = 0;
    s32 parent = -1;
    u32 children = 0;  // > 0: waits for them
    bool alive = false;
    bool parked = false;  // at an instruction that other lanes must reach first
};

enum class Stop : u8 {
    no,
    barrier,
    done,
    yield,  // the slice is used up
    park,   // this path cannot go on, another one may
    poll,   // as yield, and it waits for an mbarrier
};

struct AsyncCopy {
    u64 to[kLanes], from[kLanes];
    u32 lanes, bytes, source_bytes[kLanes];
    bool committed;
    Insn insn;
    std::shared_ptr<const Knows> knows;  // of the warp when it was issued; null: not watched
};

// A bulk copy that was issued (ops/bulk.cpp).
struct BulkCopy {
    struct Piece {
        u8* to;
        const u8* from;  // null: BulkCopy::fill
        u32 bytes;
    };
    u32 warp = 0, lane = 0;
    u8* barrier = nullptr;  // the mbarrier it completes on; null: a group
    u32 bytes = 0;          // that it reports there
    bool arrives = false;   // an arrival after the warp's copies by cp.async
    u32 group = 0;          // of its thread, counted from 1; 0: not committed
    u8 fill = 0, how = 0;
    Type type = Type::none;
    std::vector<Piece> pieces;
};

struct Block;

struct alignas(64) Warp {
    u8* bank[2] = {nullptr, nullptr};  // registers, constants
    u32 pc = 0;
    u32 lanes = 0;    // of the current path
    u32 meet = kAll;  // of the current path
    Stop stop = Stop::no;
    s64 slice = 0;
    u64 warp_instructions = 0, lane_instructions = 0;
    // Allocations that accesses found: [from, to).
    struct Known {
        u64 from = 0, to = 0;
    };
    static constexpr u32 kKnown = 4;
    Known known[kKnown];
    u32 next_known = 0;
    Block* block = nullptr;
    u32 number = 0;   // in the block
    u32 started = 0;  // lanes that exist
    u32 exited = 0;
    s32 current = -1;
    std::vector<Path> paths;
    u32 live_paths = 0;
    // At a barrier: which, with how many threads, what comes out of a reduction.
    u32 barrier = 0, barrier_threads = 0;
    u32 reduce_operand = 0, reduce_kind = 0, reduce_input = 0;
    std::vector<AsyncCopy> copies;
    u32 bulk_groups[kLanes] = {};  // that each thread committed
    u64 checksum = 0;
    u32 carry = 0;  // CC.CF (PTX ISA 9.7.2), a bit a lane
    bool waited = false, triggered = false;  // griddepcontrol: by a thread of the warp
};

// What the watch of a launch found, each line once.
struct Findings {
    static constexpr std::size_t kMost = 16;
    std::vector<Fault> all;
    bool full() const { return all.size() >= kMost; }
    // Whether the instruction's line (of the source, else of the PTX) has a finding.
    bool has(const Program& program, const Insn& insn);
    void add(const Program& program, const Insn& insn, Fault fault);

private:
    std::vector<bool> steps_;  // lines that have one, by instruction
};

struct Block {
    const Program* program = nullptr;
    const Launch* launch = nullptr;
    Size index;
    u32 number = 0;  // of the index, in the order x, y, z
    u8* shared = nullptr;
    u32 shared_size = 0;
    u8* local = nullptr;  // of all threads, one after the other
    u32 local_stride = 0;
    const u8* parameters = nullptr;
    u32 parameter_size = 0;
    std::vector<Warp> warps;
    u32 threads = 0;
    u32 arrived[16] = {};  // threads that bar.arrive counted at each barrier
    Findings* findings = nullptr;  // of the launch
    std::shared_ptr<Watch> watch;  // null: races and uninitialized reads are not looked for
    std::vector<BulkCopy> bulk;  // not performed yet
    u32 fruitless = 0;  // rounds in which all warps only waited for mbarriers
    std::function<void(const std::string&)> print;
    // What cooperative groups find through %envreg1 and %envreg2 (driver_abi.h): its size and the
    // counter of the grid's barrier.  0: the launch is not cooperative.
    Range workspace{};
    std::vector<u8> store;  // behind the pointers
};

template <class T>
inline T* lanes_of(Warp& warp, u32 operand) {
    return reinterpret_cast<T*>(warp.bank[operand & 1] + (operand & ~u32{1}));
}

// ---- warp.cpp: paths ----

void start_warp(Warp& warp, u32 lanes);
// The lanes `taken` of the current path go to `target`, the others to `next`; all meet at `meet`.
void part(Warp& warp, u32 taken, u32 target, u32 next, u32 meet);
// The current path is at an instruction where paths meet.  True: it goes on behind it.
bool meet_here(Warp& warp, u32 pc);
void exit_lanes(Warp& warp, u32 lanes);
// Not all lanes of `members` are here: lets another path run.  False: go on, all are here; *lanes
// is then all that take part.
bool wait_for(Warp& warp, const Insn& insn, u32 members, u32* lanes);
// Runs until the warp stops.
void run_warp(Warp& warp, const Insn* code);

// ---- special.cpp: special registers ----

bool is_special(std::string_view name);
// Writes the special registers that the kernel reads.
void set_specials(Warp& warp);
// The value of %clock, %clock64 or %globaltimer now.
u64 time_now(std::string_view name);

// ---- block.cpp ----

// Runs the block for a while.  True: all its threads ended.
bool run_block(Block& block);
// A warp arrives at a barrier (PTX ISA 9.7.13.1).
void arrive(Warp& warp, const Insn& insn, u32 lanes, u32 barrier, u32 threads, bool waits);

// ---- access.cpp: slow ways of an access, and faults ----

struct Raised {
    Fault fault;
};
Fault fault_at(const Warp& warp, const Insn& insn, u32 lane, Fault::Kind kind,
               const std::string& what, u64 address);
// The kernel goes on: what it computes does not depend on a finding.  `what()` is its sentence.
template <class What>
void report(Warp& warp, const Insn& insn, u32 lane, Fault::Kind kind, u64 address, What what) {
    Findings& findings = *warp.block->findings;
    const Program& program = *warp.block->program;
    if (findings.full() || findings.has(program, insn)) return;
    findings.add(program, insn, fault_at(warp, insn, lane, kind, what(), address));
}
[[noreturn]] void raise(Warp& warp, const Insn& insn, u32 lane, Fault::Kind kind,
                        const std::string& what, u64 address = 0);
enum class Use : u8 { read, write, atomic };
// Host addresses of `bytes` bytes at each lane's global address; raises where one is not allowed.
void find_global(Warp& warp, const Insn& insn, u32 lanes, const u64* addresses, u32 bytes, Use use);
[[noreturn]] void raise_window(Warp& warp, const Insn& insn, u32 lane, Space space, u64 offset,
                               u32 bytes, u64 size, Use use);
[[noreturn]] void raise_misaligned(Warp& warp, const Insn& insn, u32 lane, u64 address, u32 bytes);

// ---- watch.cpp: options `races` and `uninitialized` ----

// `at`: in shared memory, or in global memory.
void watch_access(Warp& warp, const Insn& insn, u32 lanes, const u8* const* at, u32 bytes, Use use,
                  bool shared);
// A lane's value is not there after its store: another lane of the instruction wrote there, too.
void watch_parted(Warp& warp, const Insn& insn, u32 lane, u32 lanes, u8* const* at, u32 bytes);
// Lanes execute one instruction together: bar.warp.sync orders what they do, others do not.
void watch_together(Warp& warp, const Insn& insn, u32 lanes);
void order_lanes(Warp& warp, u32 lanes);
void watch_fence(Warp& warp, u32 lanes);
// The warps wait at a barrier that opens; others have given their clocks (bar.arrive).
void sync_warps(Block& block, const std::vector<u32>& warps, u32 barrier);
void give_clock(Warp& warp, u32 barrier);
// What the lanes know when a copy is issued, which counts when it is performed.
std::shared_ptr<const Knows> known_now(Warp& warp);
void watch_copy(Warp& warp, const AsyncCopy& copy, const std::function<void()>& perform);
// mbarrier: the warp goes on after all that gave theirs.
void take_clock(Warp& warp, u32 barrier);

// ---- overlap.cpp: this launch and other works, where Launch::overlap is given ----

// Reports where another work touches the memory and nothing orders the two.
void watch_works(Warp& warp, const Insn& insn, u32 lanes, const u8* const* at, u32 bytes, Use use);
// griddepcontrol.wait and .launch_dependents (PTX ISA 9.7.13).
void wait_for_grids(Warp& warp);
void launch_dependents(Warp& warp);
// These warps passed a barrier: what one of them waited for, all have.
void share_wait(Block& block, const std::vector<u32>& warps);

// ---- system.cpp: what leaves the arithmetic ----

std::string read_string(Warp& warp, const Insn& insn, u32 lane, u64 address);
void print_lanes(Warp& warp, const Insn& insn, u32 lanes, const u64* format, const u64* arguments);

}  // namespace ptx
