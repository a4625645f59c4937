// Which works of a card may run at the same time, and what they touched: launches, copies, fills.
//
// Execution stays immediate and in the order of the calls.  What a card may do instead follows from
// clocks: each stream is a timeline, each work a tick of it, and a work knows of every other
// timeline how far it has come for certain (vector clocks; Flanagan and Freund, "FastTrack").  Two
// works that touch the same bytes, one of them writing, must know each other.
//
// One lock for all, the caller's: nothing here locks.
#pragma once

#include <map>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base.h"
#include "ptx.h"

namespace ptx {

class Clock {
public:
    void join(const Clock& other);
    void set(u32 timeline, u32 tick);
    bool has(u32 timeline, u32 tick) const { return timeline < at_.size() && at_[timeline] >= tick; }

private:
    std::vector<u32> at_;
};

class Works;

enum class Touch : u8 { read, write, atomic };

// A work and another one that it is not ordered with; `other` 0: there is none.
struct Conflict {
    u32 other = 0;
    bool wrote = false;  // else the other one read
    u64 address = 0;
};

// A work while it runs, and while a later one may overlap it.
class Overlap {
public:
    Overlap(Works& works, u32 number, Clock before) : works(works), number(number), before(std::move(before)) {}

    // A launch with programmatic stream serialization, directly behind the launch `last`; `known`
    // is complete in any case.
    void follow(const Overlap& last, const Clock& known);
    // Whether the work `other` is complete, and its writes are visible; `ready`: this one has waited
    // for the grids before it, or need not.
    bool after(u32 other, bool ready) const;

    Works& works;
    const u32 number;
    const Clock before;
    bool dependent = false;          // follow() was called
    std::vector<u32> early, late;    // may still run at the start; also after griddepcontrol.wait
    bool waited = false;             // a thread executed griddepcontrol.wait
    bool late_trigger = false;       // a block waited first, and let dependents start then
    std::vector<u8> kinds;           // by step, of the kernel that runs (overlap.cpp)
    u32 known_writer[2] = {0, 0}, known_readers[2] = {0, 0};  // found in order; by `ready`
    u32 readers_from = 0, readers_to = 0;
};

// All works of a process, and the cells of memory that they touched.
class Works {
public:
    // `name`: as a finding says it, "the kernel k in stream 3".
    std::shared_ptr<Overlap> begin(std::string name, u32 timeline, u32 tick, Clock before);
    // Compares with what others did to these bytes, and notes it.
    Conflict touch(Overlap& by, u64 address, u64 bytes, Touch use, bool ready = true);
    void forget(u64 address, u64 bytes);
    const std::string& name(u32 work) const { return *all_[work].name; }
    std::pair<u32, u32> place(u32 work) const { return {all_[work].timeline, all_[work].tick}; }

private:
    friend class Overlap;
    struct Done {
        const std::string* name;
        u32 timeline, tick;
    };
    struct Cell {
        u32 writer = 0;   // the work's number, kAtomic
        u32 readers = 0;  // since then: a number, or kSet and the number of a set
    };
    // A page has cells as fine as its accesses need: one at first.
    struct Page {
        u32 shift = kPageShift;
        std::vector<Cell> cells = std::vector<Cell>(1);
    };
    static constexpr u32 kPageShift = 12, kAtomic = u32{1} << 31, kSet = u32{1} << 31;

    bool touch_cell(Overlap& by, Cell& cell, Touch use, bool ready, Conflict* found);
    u32 with_reader(Overlap& by, u32 readers, bool ready);
    static void refine(Page& page, u32 shift);

    std::vector<Done> all_ = std::vector<Done>(1);
    std::map<std::string, u32, std::less<>> names_;
    std::unordered_map<u64, Page> pages_;
    std::vector<std::vector<u32>> sets_;
    std::map<std::vector<u32>, u32> set_numbers_;
};

// The sentence about a conflict that was found for `by`, whose verb is "reads", "writes" or "frees".
std::string sentence(const Overlap& by, const Conflict& found, const std::string& verb, bool ready);

// A kernel that is launched with programmatic stream serialization must wait for the grids before
// it, before it touches what they touch: the first global access that a path from the entry reaches
// without griddepcontrol.wait; nothing: there is none.  A barrier that a thread reaches after its
// wait counts as a wait of all.  Loads by ld.global.nc (weights) count only in a kernel that never
// waits: what they read is judged when it runs.  Throws Error.
std::optional<Fault> early_access(const Kernel& kernel);

}  // namespace ptx
