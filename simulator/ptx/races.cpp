// Two warps that touch a byte of shared memory, one of them writing, need a barrier between.
//
// Each warp has a clock that ticks at barriers, and knows of each other warp's clock what it had at
// the last barrier they shared (vector clocks; Flanagan and Freund, "FastTrack").  Threads of one
// warp run in step here, so what they do to each other is not looked at.
//
// Blocks have no order at all (Sharing).  Kernels with fences or ordered accesses are left out: they
// may hand data from block to block.
//
// A write that leaves a byte as it was is no race: whoever reads the byte finds one value, before
// the write and after it.  ggml's mmq has several warps write one value, in tiles with fewer rows
// than the tile is high.
#include "races.h"

#include <algorithm>
#include <map>
#include <cstring>
#include <utility>

namespace ptx {

struct Races {
    struct Byte {
        u32 writer = kAll, clock = 0;  // of the last write
        bool atomic = false;
        std::vector<u32> read;  // by warp: its clock + 1 at its last read since then
        std::vector<u32> same;  // other warps that wrote the same value
    };
    struct Write {  // that is a race if it changed the byte
        Warp* warp;
        Insn insn;
        u32 lane;
        std::size_t offset;
        u32 other;
        const char* what;  // the other warp did
        u8 before;
    };
    std::vector<Byte> bytes;
    std::vector<Write> writes;  // of the last instruction
    std::vector<std::vector<u32>> seen;  // [warp][other]: clock
    std::map<u32, std::vector<u32>> given;  // by barrier: clocks of warps that arrived and went on
};

namespace {

void fail(Warp& warp, const Insn& insn, u32 lane, std::size_t offset, u32 other, const char* what,
          Use use) {
    raise(warp, insn, lane, Fault::Kind::race,
          std::string(use == Use::read ? "reads" : "writes") + " shared memory at offset " +
              std::to_string(offset) + ", which warp " + std::to_string(other) + " " + what +
              " with no barrier between",
          offset);
}

}  // namespace

void settle_writes(Block& block) {
    const std::vector<Races::Write> writes = std::exchange(block.races->writes, {});
    for (const Races::Write& write : writes) {
        if (block.shared[write.offset] != write.before)
            fail(*write.warp, write.insn, write.lane, write.offset, write.other, write.what,
                 Use::write);
        block.races->bytes[write.offset].same.push_back(write.warp->number);
    }
}

void start_watch(Block& block) {
    stop_watch(block);
    block.races = new Races;
    block.races->bytes.resize(block.shared_size);
    const std::size_t warps = block.warps.size();
    block.races->seen.assign(warps, std::vector<u32>(warps, 0));
    for (std::size_t i = 0; i < warps; ++i) block.races->seen[i][i] = 1;
}

void stop_watch(Block& block) {
    delete block.races;
    block.races = nullptr;
}

namespace {

void raise_to(std::vector<u32>& clocks, const std::vector<u32>& others) {
    for (std::size_t i = 0; i < clocks.size(); ++i) clocks[i] = std::max(clocks[i], others[i]);
}

}  // namespace

void give_clock(Warp& warp, u32 barrier) {
    settle_writes(*warp.block);
    Races& races = *warp.block->races;
    std::vector<u32>& given = races.given[barrier];
    given.resize(races.seen.size(), 0);
    raise_to(given, races.seen[warp.number]);
    ++races.seen[warp.number][warp.number];
}

void take_clock(Warp& warp, u32 barrier) {
    settle_writes(*warp.block);
    Races& races = *warp.block->races;
    const std::vector<u32>& given = races.given[barrier];
    if (!given.empty()) raise_to(races.seen[warp.number], given);
}

void sync_warps(Block& block, const std::vector<u32>& warps, u32 barrier) {
    settle_writes(block);
    auto& seen = block.races->seen;
    std::vector<u32> all = std::exchange(block.races->given[barrier], {});
    all.resize(seen.size(), 0);
    for (const u32 warp : warps) raise_to(all, seen[warp]);
    for (const u32 warp : warps) {
        std::copy(all.begin(), all.end(), seen[warp].begin());
        ++seen[warp][warp];
    }
}

void watch_shared(Warp& warp, const Insn& insn, u32 lanes, const u8* const* at, u32 bytes,
                  Use use) {
    Block& block = *warp.block;
    settle_writes(block);
    Races& races = *block.races;
    const std::vector<u32>& seen = races.seen[warp.number];
    const auto conflict = [&](u32 lane, std::size_t offset, u32 other, const char* what) {
        if (use != Use::write) fail(warp, insn, lane, offset, other, what, use);
        races.writes.push_back({&warp, insn, lane, offset, other, what, block.shared[offset]});
    };
    for (u32 lane = 0; lane < kLanes; ++lane) {
        if ((lanes >> lane & 1) == 0) continue;
        const auto first = static_cast<std::size_t>(at[lane] - block.shared);
        for (std::size_t offset = first; offset < first + bytes; ++offset) {
            Races::Byte& byte = races.bytes[offset];
            if (use == Use::read && byte.writer == kAll && block.launch->options.uninitialized) {
                raise(warp, insn, lane, Fault::Kind::uninitialized,
                      "reads shared memory at offset " + std::to_string(offset) +
                          ", which nothing has written yet",
                      offset);
            }
            const bool both_atomic = use == Use::atomic && byte.atomic;
            const std::size_t known = races.writes.size();
            if (block.launch->options.races && !both_atomic) {
                const auto& same = byte.same;
                const bool own =
                    byte.writer == warp.number ||
                    (use == Use::read &&
                     std::find(same.begin(), same.end(), warp.number) != same.end());
                if (byte.writer != kAll && !own && seen[byte.writer] < byte.clock)
                    conflict(lane, offset, byte.writer, "wrote");
                for (u32 other = 0; use != Use::read && other < byte.read.size(); ++other) {
                    if (other != warp.number && byte.read[other] > seen[other])
                        conflict(lane, offset, other, "reads");
                }
            }
            if (races.writes.size() > known) continue;  // a fault, or the byte stays as it was
            if (use == Use::read) {
                byte.read.resize(races.seen.size(), 0);
                byte.read[warp.number] = seen[warp.number];
            } else {
                byte.writer = warp.number;
                byte.clock = seen[warp.number];
                byte.atomic = use == Use::atomic;
                byte.read.clear();
                byte.same.clear();
            }
        }
    }
}

namespace {

// Which blocks accessed a cell: none (0), one by its number, or several (kAll).
u32 joined(u32 known, u32 block) { return known == 0 || known == block ? block : kAll; }

[[noreturn]] void fail_between(Warp& warp, const Insn& insn, u32 lane, u64 address, u32 other,
                               const char* what, Use use) {
    const std::string who =
        other == kAll ? "other blocks" : "block " + std::to_string(other - 1);
    raise(warp, insn, lane, Fault::Kind::race,
          std::string(use == Use::read ? "reads" : "writes") + " global memory, which " + who + " " +
              what + ": blocks run in any order",
          address);
}

u16 value_at(u64 address) {
    u16 value;
    std::memcpy(&value, reinterpret_cast<const void*>(address), sizeof value);
    return value;
}

}  // namespace

Sharing::Cell& Sharing::cell(u64 address) {
    auto& page = pages[address / kPage];
    if (page == nullptr) page = std::make_unique<std::array<Cell, kPage / kBytes>>();
    return (*page)[address % kPage / kBytes];
}

void Sharing::settle() {
    for (const Write& write : std::exchange(writes, {})) {
        const u32 block = write.warp->block->number + 1;
        if (value_at(write.address) == write.before) {
            write.cell->same = joined(write.cell->same, block);
            continue;
        }
        if (write.other != 0)
            fail_between(*write.warp, write.insn, write.lane, write.address, write.other,
                         write.what, Use::write);
        write.cell->writer = block;
        write.cell->same = 0;
    }
}

void watch_global(Warp& warp, const Insn& insn, u32 lanes, const u8* const* at, u32 bytes, Use use) {
    Sharing& sharing = *warp.block->sharing;
    sharing.settle();
    if (use == Use::atomic || bytes < Sharing::kBytes) return;
    const u32 block = warp.block->number + 1;
    for (u32 lane = 0; lane < kLanes; ++lane) {
        if ((lanes >> lane & 1) == 0) continue;
        const auto first = reinterpret_cast<u64>(at[lane]);
        for (u64 address = first; address < first + bytes; address += Sharing::kBytes) {
            Sharing::Cell& cell = sharing.cell(address);
            const bool written = cell.writer != 0 && cell.writer != block;
            if (use == Use::read) {
                // A block among several that wrote the same reads what it wrote.
                if (written && cell.same != block && cell.same != kAll)
                    fail_between(warp, insn, lane, address, cell.writer, "wrote", use);
                cell.reader = joined(cell.reader, block);
                continue;
            }
            const bool read = cell.reader != 0 && cell.reader != block;
            const u32 other = written ? cell.writer : read ? cell.reader : 0;
            sharing.writes.push_back({&warp, insn, lane, address, &cell, other,
                                      written ? "wrote" : "read", value_at(address)});
        }
    }
}

}  // namespace ptx
