// Options `races` and `uninitialized`: who touched each byte of shared memory, and when, and which
// block touched global memory.
#pragma once

#include <array>
#include <memory>
#include <unordered_map>

#include "machine.h"

namespace ptx {

void start_watch(Block& block);
void stop_watch(Block& block);

// Raises a fault if the last writes changed what another warp wrote or reads.
void settle_writes(Block& block);

// The blocks of one launch that touched global memory.  They run in any order, also at once: what
// one writes no other may read or write, unless the kernel orders that.
struct Sharing {
    static constexpr u64 kBytes = 2;  // to a cell
    static constexpr u64 kPage = 4096;
    struct Cell {
        // The block's number + 1; kAll: several. `same` wrote the value that the writer wrote.
        u32 writer = 0, reader = 0, same = 0;
    };
    struct Write {  // that is a race with `other`, if it changes the cell
        Warp* warp;
        Insn insn;
        u32 lane;
        u64 address;
        Cell* cell;
        u32 other;  // as in Cell
        const char* what;
        u16 before;
    };
    std::unordered_map<u64, std::unique_ptr<std::array<Cell, kPage / kBytes>>> pages;
    std::vector<Write> writes;  // of the last instruction

    Cell& cell(u64 address);
    void settle();  // raises a fault, as settle_writes()
};

}  // namespace ptx
