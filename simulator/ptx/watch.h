// Options `races` and `uninitialized`: which accesses have an order, and who touched what when.
#pragma once

#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "machine.h"

namespace ptx {

// Times of threads (by number in the block).  Views are shared and never change.
using View = std::shared_ptr<const std::vector<u32>>;

// What came before anything that the lanes of a warp do next.
struct Knows {
    std::shared_ptr<std::vector<u32>> warps;  // by warp: all that its lanes did up to this time
    std::vector<View> lanes;                  // by lane: what this one knows beyond; mostly empty

    bool before(u32 lane, u32 thread, u32 time) const {
        return (*warps)[thread / kLanes] >= time ||
               (!lanes.empty() && lanes[lane] != nullptr && (*lanes[lane])[thread] >= time);
    }
};

// Lanes of a warp that read a cell, or wrote the value that was there, since it last changed.
struct Touch {
    static constexpr u16 kRead = 0, kWrote = 1;
    u16 warp = 0;  // + 1; 0: none
    u16 kind = kRead;
    u32 lanes = 0, time = 0;
    u32 next = 0;  // of another warp or kind, in Watch::pool; 0: none
};

// Some bytes that are always accessed together.
struct Cell {
    u16 writer = 0;  // thread + 1; 0: none
    bool strong = false;
    u32 written = 0;
    Touch first;
};

struct GlobalCell : Cell {
    u32 owner = 0;  // the block of what Cell says, + 1
    // The block's number + 1; kAll: several. `same_block` wrote the value that the writer wrote.
    u32 writing_block = 0, reading_block = 0, same_block = 0;
};

// Cells of 4 bytes, or of fewer since something smaller was accessed.
template <class C>
struct Shadow {
    u32 shift = 2;
    std::vector<C> cells;
};

// One for a launch.
struct GlobalShadow {
    static constexpr u64 kPage = 4096;
    bool between_blocks = false;
    Shadow<GlobalCell>& page(u64 address);

private:
    std::unordered_map<u64, std::unique_ptr<Shadow<GlobalCell>>> pages_;
    struct Recent {
        u64 number = ~u64{0};
        Shadow<GlobalCell>* page = nullptr;
    } recent_[64];
};

// One for a block, used again by the next one.
struct Watch {
    struct Met {  // of lanes, in an instruction that orders no memory
        u32 lanes, time, step;
    };
    struct Clock {  // of a warp
        u32 now = 1;
        Knows knows;
        std::vector<View> heard;  // by lane: came with values that it read; known behind a fence
        u32 fenced = 0;           // lanes
        std::vector<Met> met;     // since all lanes were synchronized
    };
    struct Write {  // of the last instruction: a race with `other`, if it changes the cell
        u32 lane;
        u64 address;
        Cell* cell;
        GlobalCell* global;
        u32 bytes;
        u32 other;  // thread + 1; 0: none
        u32 other_time;
        u16 other_kind;
        u32 other_block;  // as in GlobalCell; 0: none
        bool other_block_wrote;
        u32 before;
    };
    struct Given {  // by warps that arrived at a barrier and went on
        std::vector<u32> warps;
        View lanes;
    };
    std::vector<Clock> clocks;
    Shadow<Cell> shared;
    GlobalShadow* global = nullptr;  // null: not watched
    std::vector<Touch> pool{1};
    u32 unused = 0;  // in `pool`, a list
    std::vector<Write> writes;
    Warp* writing = nullptr;
    Insn insn;
    u32 written = 0;
    std::unordered_map<u32, Given> given;  // by barrier, or by mbarrier (ops/mbarrier.cpp)
    std::unordered_map<u64, View> messages;  // by address: what came before a release
};

void start_watch(Block& block, GlobalShadow* global);

// Finds out whether the last writes changed what another thread wrote or reads, with no order.
void settle_writes(Block& block);

}  // namespace ptx
