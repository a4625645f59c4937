// Two accesses of one place, one of them a write, need an order (PTX ISA 8).
//
// Threads are lanes.  Each warp has a clock; what a lane does has the clock's time.  For each warp
// is known up to which time another warp's accesses came before (vector clocks; Flanagan and Freund,
// "FastTrack").  That is all while only whole warps and barriers order something; bar.warp.sync of a
// part, and values that are released and acquired, give single lanes a view of their own.
//
// Shuffles, votes and products of matrices bring lanes together and order no memory.  The report
// names such an instruction.  Only a write after another lane's read is left out behind one: cards
// have read by then, and ggml's attention relies on it in every loop.
//
// Blocks have no order at all.  Kernels with fences or ordered accesses beyond the block are not
// compared between blocks: they may hand data from block to block.
//
// A write that leaves a cell as it was is no race: whoever reads it finds one value, before the
// write and after it.  ggml's mmq has several warps write one value, in tiles with fewer rows than
// the tile is high.
#include "watch.h"

#include <algorithm>
#include <cstring>

#include "lower.h"

namespace ptx {

namespace {

u32 thread_of(const Warp& warp, u32 lane) { return warp.number * kLanes + lane; }
u32 alive(const Warp& warp) { return warp.started & ~warp.exited; }
Watch::Clock& clock_of(Warp& warp) { return warp.block->watch->clocks[warp.number]; }

View joined(const View& a, const View& b) {
    if (a == nullptr || a == b) return b;
    if (b == nullptr) return a;
    std::vector<u32> all(*a);
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = std::max(all[i], (*b)[i]);
    return std::make_shared<const std::vector<u32>>(std::move(all));
}

void raise_to(std::vector<u32>& times, const std::vector<u32>& others) {
    for (std::size_t i = 0; i < times.size(); ++i) times[i] = std::max(times[i], others[i]);
}

// What the lanes know and have heard, together.
View views_of(const Watch::Clock& clock, u32 lanes) {
    View all;
    for (const auto* views : {&clock.knows.lanes, &clock.heard}) {
        for (u32 lane = 0; lane < views->size(); ++lane) {
            if (lanes >> lane & 1) all = joined(all, (*views)[lane]);
        }
    }
    return all;
}

void set_views(Watch::Clock& clock, u32 lanes, const View& view) {
    auto& views = clock.knows.lanes;
    if (view == nullptr && views.empty() && clock.heard.empty()) return;
    if (views.empty()) views.resize(kLanes);
    for (u32 lane = 0; lane < kLanes; ++lane) {
        if ((lanes >> lane & 1) == 0) continue;
        views[lane] = view;
        if (!clock.heard.empty()) clock.heard[lane] = nullptr;
    }
    const auto none = [](const View& each) { return each == nullptr; };
    if (std::all_of(views.begin(), views.end(), none)) views.clear();
    if (std::all_of(clock.heard.begin(), clock.heard.end(), none)) clock.heard.clear();
}

// Null where the warps' times say all of it.
View beyond(View view, const std::vector<u32>& warps) {
    if (view == nullptr) return view;
    for (std::size_t thread = 0; thread < view->size(); ++thread) {
        if ((*view)[thread] > warps[thread / kLanes]) return view;
    }
    return nullptr;
}

std::vector<u32>& own_times(Knows& knows) {
    if (knows.warps.use_count() > 1)
        knows.warps = std::make_shared<std::vector<u32>>(*knows.warps);
    return *knows.warps;
}

// ---- reports ----

std::string_view opcode_of(const Program& program, u32 step) {
    const std::string_view text = program.lines[step].text;
    return text.substr(0, text.find_first_of(". "));
}

// The last instruction since `time` that brought all of the lanes together; null: none.
const Watch::Met* last_met(Warp& warp, u32 lanes, u32 time) {
    const auto& met = clock_of(warp).met;
    for (auto each = met.rbegin(); each != met.rend() && each->time >= time; ++each) {
        if ((each->lanes & lanes) == lanes) return &*each;
    }
    return nullptr;
}

// What stands between an access of another thread and this one of `lane`.
std::string between(Warp& warp, u32 lane, u32 thread, u32 time) {
    if (thread / kLanes != warp.number) return "with no barrier between";
    const auto* const met = last_met(warp, u32{1} << lane | u32{1} << thread % kLanes, time);
    if (met == nullptr) return "with nothing between";
    return "with only " + std::string(opcode_of(*warp.block->program, met->step)) +
           " between, which orders no memory";
}

void fail(Warp& warp, const Insn& insn, u32 lane, u64 address, Use use, bool global,
          u32 thread, u32 time, bool wrote) {
    const u64 place = global ? address : address - reinterpret_cast<u64>(warp.block->shared);
    report(warp, insn, lane, Fault::Kind::race, place, [&] {
        const u32 other = thread / kLanes;
        const std::string who =
            other == warp.number
                ? "lane " + std::to_string(thread % kLanes) + " of the warp"
                : "warp " + std::to_string(other) + (global ? " of the block" : "");
        return std::string(use == Use::read ? "reads " : "writes ") +
               (global ? "global memory" : "shared memory at offset " + std::to_string(place)) +
               ", which " + who + (wrote ? " wrote " : " reads ") +
               between(warp, lane, thread, time);
    });
}

void fail_between(Warp& warp, const Insn& insn, u32 lane, u64 address, u32 other, bool wrote,
                  Use use) {
    report(warp, insn, lane, Fault::Kind::race, address, [&] {
        const std::string who =
            other == kAll ? "other blocks" : "block " + std::to_string(other - 1);
        return std::string(use == Use::read ? "reads" : "writes") + " global memory, which " + who +
               (wrote ? " wrote" : " read") + ": blocks run in any order";
    });
}

// ---- cells ----

// An access of a lane to one cell.
struct Access {
    Watch& watch;
    Warp& warp;
    const Insn& insn;
    const Knows& knows;
    u32 now;
    Use use;
    bool strong;  // atomic, volatile, relaxed, ...: no race with another such
};

void drop(Watch& watch, u32 index) {
    watch.pool[index].next = watch.unused;
    watch.unused = index;
}

void clear(Watch& watch, Touch& first) {
    for (u32 at = first.next; at != 0;) {
        const u32 next = watch.pool[at].next;
        drop(watch, at);
        at = next;
    }
    first = {};
}

bool all_before(const Access& a, u32 lane, const Touch& touch) {
    const u32 warp = touch.warp - 1u;
    if ((*a.knows.warps)[warp] >= touch.time) return true;
    if (a.knows.lanes.empty()) return false;
    for (u32 left = touch.lanes; left != 0; left &= left - 1) {
        const auto other = static_cast<u32>(__builtin_ctz(left));
        if ((warp != a.warp.number || other != lane) &&
            !a.knows.before(lane, warp * kLanes + other, touch.time))
            return false;
    }
    return true;
}

// Those that came before this one are not needed any more.
[[gnu::noinline]] void record_among(const Access& a, Touch& first, u32 lane, u16 kind) {
    Watch& watch = a.watch;
    const auto warp = static_cast<u16>(a.warp.number + 1);
    Touch mine{warp, kind, u32{1} << lane, a.now, 0};
    Touch rest = first;
    first = mine;
    u32 last = 0;  // of the new list; 0: `first`
    const auto keep = [&](u32 at) { (last == 0 ? first.next : watch.pool[last].next) = at, last = at; };
    for (u32 at = 0;;) {  // 0: `rest` is not in the pool
        const u32 next = rest.next;
        if (rest.warp == warp && rest.kind == kind) {
            if (!all_before(a, lane, rest)) first.lanes |= rest.lanes;
            if (at != 0) drop(watch, at);
        } else if (all_before(a, lane, rest)) {
            if (at != 0) drop(watch, at);
        } else if (at != 0) {
            keep(at);
        } else {
            u32 free = watch.unused;
            if (free != 0) watch.unused = watch.pool[free].next;
            else free = static_cast<u32>(watch.pool.size()), watch.pool.emplace_back();
            watch.pool[free] = rest;
            keep(free);
        }
        if (next == 0) break;
        at = next;
        rest = watch.pool[at];
    }
    (last == 0 ? first.next : watch.pool[last].next) = 0;
}

inline void record(const Access& a, Touch& first, u32 lane, u16 kind) {
    if (first.warp == 0) {
        first = {static_cast<u16>(a.warp.number + 1), kind, u32{1} << lane, a.now, 0};
    } else if (first.warp == a.warp.number + 1 && first.kind == kind && a.knows.lanes.empty()) {
        const bool old = (*a.knows.warps)[a.warp.number] >= first.time;
        first.lanes = (old ? 0 : first.lanes) | u32{1} << lane;
        first.time = a.now;
    } else {
        record_among(a, first, lane, kind);
    }
}

// Another thread's write that has no order with the access.
inline bool races_with_writer(const Access& a, const Cell& cell, u32 lane) {
    if (cell.writer == 0 || (a.strong && cell.strong)) return false;
    const u32 thread = cell.writer - 1u;
    return thread != thread_of(a.warp, lane) && !a.knows.before(lane, thread, cell.written) &&
           // Lanes of one instruction: their values are compared when they are stored.
           !(a.use != Use::read && thread / kLanes == a.warp.number && cell.written == a.now);
}

// The first thread that touched the cell, with no order; 0: none. Numbers count from 1.
u32 races_with_touch(const Access& a, const Touch& first, u32 lane, const Touch** found) {
    const u32 me = thread_of(a.warp, lane);
    for (const Touch* touch = &first; touch->warp != 0; touch = &a.watch.pool[touch->next]) {
        const u32 from = (touch->warp - 1u) * kLanes;
        const bool own_read = touch->kind == Touch::kRead && from / kLanes == a.warp.number;
        u32 left = touch->lanes;
        // What lanes read before they come together, they have read when one of them writes.
        if (own_read && last_met(a.warp, left | u32{1} << lane, touch->time) != nullptr) left = 0;
        for (; left != 0; left &= left - 1) {
            const u32 thread = from + static_cast<u32>(__builtin_ctz(left));
            if (thread == me || a.knows.before(lane, thread, touch->time)) continue;
            const u32 both = u32{1} << lane | u32{1} << thread % kLanes;
            if (own_read && last_met(a.warp, both, touch->time) != nullptr) continue;
            if (touch->kind == Touch::kWrote && touch->time == a.now && from / kLanes == a.warp.number)
                continue;
            *found = touch;
            return thread + 1;
        }
        if (touch->next == 0) break;
    }
    return 0;
}

bool wrote_the_same(const Access& a, const Touch& first, u32 lane) {
    for (const Touch* touch = &first; touch->warp != 0; touch = &a.watch.pool[touch->next]) {
        if (touch->kind == Touch::kWrote && touch->warp == a.warp.number + 1 &&
            (touch->lanes >> lane & 1) != 0)
            return true;
        if (touch->next == 0) break;
    }
    return false;
}

u32 value_at(u64 address, u32 bytes) {
    u32 value = 0;
    std::memcpy(&value, reinterpret_cast<const void*>(address), bytes);
    return value;
}

void become_writer(const Access& a, Cell& cell, u32 lane) {
    const u32 last = cell.writer - 1u;
    // Lanes of one instruction write one value: each reads what it wrote.
    const bool beside = cell.writer != 0 && last / kLanes == a.warp.number && cell.written == a.now;
    if (beside) record(a, cell.first, last % kLanes, Touch::kWrote);
    else clear(a.watch, cell.first);
    cell.writer = static_cast<u16>(thread_of(a.warp, lane) + 1);
    cell.written = a.now;
    cell.strong = a.strong;
}

void read_cell(const Access& a, Cell& cell, u32 lane, u64 address, bool global) {
    if (races_with_writer(a, cell, lane) && !wrote_the_same(a, cell.first, lane))
        fail(a.warp, a.insn, lane, address, a.use, global, cell.writer - 1u, cell.written, true);
    if (!a.strong) record(a, cell.first, lane, Touch::kRead);
}

// What the write is a race with, if it changes the cell.
Watch::Write write_of(const Access& a, Cell& cell, u32 lane, u64 address, u32 bytes, bool global) {
    Watch::Write write{.lane = lane, .address = address, .cell = &cell, .global = nullptr,
                       .bytes = bytes, .other = 0, .other_time = 0, .other_kind = Touch::kWrote,
                       .other_block = 0, .other_block_wrote = false,
                       .before = value_at(address, bytes)};
    if (races_with_writer(a, cell, lane)) {
        write.other = cell.writer;
        write.other_time = cell.written;
    } else {
        const Touch* touch = nullptr;
        write.other = races_with_touch(a, cell.first, lane, &touch);
        if (touch != nullptr) write.other_time = touch->time, write.other_kind = touch->kind;
    }
    if (write.other != 0 && a.use == Use::atomic)
        fail(a.warp, a.insn, lane, address, a.use, global, write.other - 1, write.other_time,
             write.other_kind == Touch::kWrote);
    return write;
}

void access_cell(const Access& a, Cell& cell, u32 lane, u64 address, u32 bytes) {
    const Options& options = a.warp.block->launch->options;
    if (a.use == Use::read && cell.writer == 0 && options.uninitialized) {
        const u64 offset = address - reinterpret_cast<u64>(a.warp.block->shared);
        report(a.warp, a.insn, lane, Fault::Kind::uninitialized, offset, [&] {
            return "reads shared memory at offset " + std::to_string(offset) +
                   ", which nothing has written yet";
        });
    }
    if (!options.races) {
        if (a.use != Use::read) cell.writer = static_cast<u16>(thread_of(a.warp, lane) + 1);
        return;
    }
    if (a.use == Use::read) return read_cell(a, cell, lane, address, false);
    const Watch::Write write = write_of(a, cell, lane, address, bytes, false);
    if (write.other != 0 && a.use != Use::atomic) a.watch.writes.push_back(write);
    else become_writer(a, cell, lane);
}

// Which blocks accessed a cell: none (0), one by its number, or several (kAll).
u32 joined_blocks(u32 known, u32 block) { return known == 0 || known == block ? block : kAll; }

void access_cell(const Access& a, GlobalCell& cell, u32 lane, u64 address, u32 bytes) {
    const u32 block = a.warp.block->number + 1;
    if (cell.owner != block) {
        static_cast<Cell&>(cell) = {};  // of another block: no part of this one's pool
        cell.owner = block;
    }
    const bool across = a.watch.global->between_blocks && !a.strong;
    const bool written = across && cell.writing_block != 0 && cell.writing_block != block;
    if (a.use == Use::read) {
        // A block among several that wrote the same reads what it wrote.
        if (written && cell.same_block != block && cell.same_block != kAll)
            fail_between(a.warp, a.insn, lane, address, cell.writing_block, true, a.use);
        if (across) cell.reading_block = joined_blocks(cell.reading_block, block);
        return read_cell(a, cell, lane, address, true);
    }
    Watch::Write write = write_of(a, cell, lane, address, bytes, true);
    if (a.use == Use::atomic) return become_writer(a, cell, lane);
    write.global = &cell;
    if (across) {
        const bool read = cell.reading_block != 0 && cell.reading_block != block;
        write.other_block = written ? cell.writing_block : read ? cell.reading_block : 0;
        write.other_block_wrote = written;
    }
    a.watch.writes.push_back(write);
}

// Cells of `bytes` bytes at most: each is divided, with what is known of it.
template <class C>
void refine(Watch& watch, Shadow<C>& shadow, u32 shift) {
    std::vector<C> cells(shadow.cells.size() << (shadow.shift - shift));
    for (std::size_t i = 0; i < cells.size(); ++i) {
        cells[i] = shadow.cells[i >> (shadow.shift - shift)];
        if (cells[i].first.next == 0) continue;
        u32* link = &cells[i].first.next;  // each has a list of its own
        std::vector<Touch> list;
        for (u32 at = *link; at != 0; at = watch.pool[at].next) list.push_back(watch.pool[at]);
        u32 next = 0;
        for (auto each = list.rbegin(); each != list.rend(); ++each) {
            each->next = next;
            next = static_cast<u32>(watch.pool.size());
            watch.pool.push_back(*each);
        }
        *link = next;
    }
    shadow.cells = std::move(cells);
    shadow.shift = shift;
}

// body(shadow, base): for the part of each page that the bytes lie in.
template <class Body>
inline void for_each_page(Block& block, u64 address, u32 bytes, bool shared, Body body) {
    Watch& watch = *block.watch;
    if (shared) return body(watch.shared, reinterpret_cast<u64>(block.shared), address, bytes);
    for (const u64 end = address + bytes; address < end;) {
        const u64 page = address & ~(GlobalShadow::kPage - 1);
        const u64 next = std::min(end, page + GlobalShadow::kPage);
        body(watch.global->page(address), page, address, static_cast<u32>(next - address));
        address = next;
    }
}

// Small cells where a small access comes; before any cell of the instruction is looked at.
void make_fit(Block& block, u64 address, u32 bytes, bool shared) {
    const auto fits = static_cast<u32>(__builtin_ctzll(address | bytes | 4));
    if (__builtin_expect(fits == 2, 1)) return;
    for_each_page(block, address, bytes, shared, [&]<class C>(Shadow<C>& shadow, u64, u64, u32) {
        if (fits >= shadow.shift) return;
        if constexpr (std::is_same_v<C, GlobalCell>) {
            for (GlobalCell& cell : shadow.cells) {  // another block's list is in another pool
                if (cell.owner != block.number + 1) static_cast<Cell&>(cell) = {};
            }
        }
        refine(*block.watch, shadow, fits);
    });
}

void access_memory(const Access& a, u32 lane, u64 address, u32 bytes, bool shared) {
    for_each_page(*a.warp.block, address, bytes, shared,
                  [&](auto& shadow, u64 base, u64 first, u32 count) {
                      const u32 size = 1U << shadow.shift;
                      for (u64 at = first; at < first + count; at += size)
                          access_cell(a, shadow.cells[(at - base) >> shadow.shift], lane, at, size);
                  });
}

// ---- values that are handed over ----

bool acquires(Order order) { return order == Order::acquire || order == Order::acq_rel; }
bool releases(Order order) { return order == Order::release || order == Order::acq_rel; }

View whole_view(Watch::Clock& clock, u32 lane, u32 own) {
    const std::vector<u32>& warps = *clock.knows.warps;
    std::vector<u32> all(warps.size() * kLanes);
    for (std::size_t thread = 0; thread < all.size(); ++thread) all[thread] = warps[thread / kLanes];
    if (!clock.knows.lanes.empty() && clock.knows.lanes[lane] != nullptr)
        raise_to(all, *clock.knows.lanes[lane]);
    all[own] = clock.now;
    return std::make_shared<const std::vector<u32>>(std::move(all));
}

// A strong read takes over what came before a release of the value; a fence makes it known.
void hand_over(Warp& warp, const Insn& insn, u32 lanes, const u8* const* at, Use use) {
    Watch& watch = *warp.block->watch;
    Watch::Clock& clock = clock_of(warp);
    for (u32 lane = 0; lane < kLanes; ++lane) {
        if ((lanes >> lane & 1) == 0) continue;
        const auto address = reinterpret_cast<u64>(at[lane]);
        const auto found = watch.messages.find(address);
        if (use != Use::write && found != watch.messages.end()) {
            auto& views = acquires(insn.order) ? clock.knows.lanes : clock.heard;
            if (views.empty()) views.resize(kLanes);
            views[lane] = joined(views[lane], found->second);
        }
        if (use != Use::read && (releases(insn.order) || (clock.fenced >> lane & 1) != 0)) {
            View& message = watch.messages[address];
            message = joined(message, whole_view(clock, lane, thread_of(warp, lane)));
        }
    }
    ++clock.now;
}

}  // namespace

Shadow<GlobalCell>& GlobalShadow::page(u64 address) {
    const u64 number = address / kPage;
    Recent& recent = recent_[number % std::size(recent_)];
    if (recent.number == number) return *recent.page;
    auto& page = pages_[number];
    if (page == nullptr) {
        page = std::make_unique<Shadow<GlobalCell>>();
        page->cells.resize(kPage >> page->shift);
    }
    recent = {number, page.get()};
    return *page;
}

void start_watch(Block& block, GlobalShadow* global) {
    if (block.watch == nullptr) block.watch = std::make_shared<Watch>();
    Watch& watch = *block.watch;
    const std::size_t warps = block.warps.size();
    watch.clocks.assign(warps, {});
    const auto none = std::make_shared<std::vector<u32>>(warps, 0);
    for (Watch::Clock& clock : watch.clocks) clock.knows.warps = none;
    watch.shared.cells.assign((block.shared_size >> watch.shared.shift) + 1, {});
    watch.global = global;
    watch.pool.resize(1);
    watch.unused = 0;
    watch.given.clear();
    watch.messages.clear();
    watch.writes.clear();
}

namespace {

void settle(Block& block) {
    Watch& watch = *block.watch;
    const Access a{watch, *watch.writing, watch.insn, clock_of(*watch.writing).knows, watch.written,
                   Use::write, watch.insn.order != Order::weak};
    for (const Watch::Write& write : watch.writes) {
        GlobalCell* const global = write.global;
        const u32 number = block.number + 1;
        if (value_at(write.address, write.bytes) == write.before) {
            if (global != nullptr) global->same_block = joined_blocks(global->same_block, number);
            record(a, write.cell->first, write.lane, Touch::kWrote);
            continue;
        }
        if (write.other_block != 0)
            fail_between(a.warp, a.insn, write.lane, write.address, write.other_block,
                         write.other_block_wrote, Use::write);
        if (write.other != 0)
            fail(a.warp, a.insn, write.lane, write.address, Use::write, global != nullptr,
                 write.other - 1, write.other_time, write.other_kind == Touch::kWrote);
        become_writer(a, *write.cell, write.lane);
        if (global != nullptr) global->writing_block = number, global->same_block = 0;
    }
    watch.writes.clear();
}

}  // namespace

void settle_writes(Block& block) {
    if (!block.watch->writes.empty()) settle(block);
}

void watch_access(Warp& warp, const Insn& insn, u32 lanes, const u8* const* at, u32 bytes, Use use,
                  bool shared) {
    Block& block = *warp.block;
    settle_writes(block);
    Watch& watch = *block.watch;
    if (!shared && watch.global == nullptr) return;
    Watch::Clock& clock = clock_of(warp);
    const bool strong = use == Use::atomic || insn.order != Order::weak;
    if (use != Use::read) ++clock.now;  // so that an instruction has a time of its own
    if ((bytes & 3) != 0) {
        for (u32 left = lanes; left != 0; left &= left - 1)
            make_fit(block, reinterpret_cast<u64>(at[__builtin_ctz(left)]), bytes, shared);
    }
    const Access a{watch, warp, insn, clock.knows, clock.now, use, strong};
    watch.writing = &warp, watch.insn = insn, watch.written = clock.now;
    for (u32 left = lanes; left != 0; left &= left - 1) {
        const auto lane = static_cast<u32>(__builtin_ctz(left));
        access_memory(a, lane, reinterpret_cast<u64>(at[lane]), bytes, shared);
    }
    if (strong && block.program->fences) hand_over(warp, insn, lanes, at, use);
}

void watch_parted(Warp& warp, const Insn& insn, u32 lane, u32 lanes, u8* const* at, u32 bytes) {
    u32 other = lane;
    for (u32 each = 0; each < kLanes; ++each) {
        const bool beside = at[each] < at[lane] + bytes && at[lane] < at[each] + bytes;
        if (each != lane && (lanes >> each & 1) != 0 && beside) other = each;
    }
    const Block& block = *warp.block;
    const auto offset = static_cast<u64>(at[lane] - block.shared);
    const bool shared = offset < block.shared_size;
    const u64 place = shared ? offset : reinterpret_cast<u64>(at[lane]);
    report(warp, insn, lane, Fault::Kind::race, place, [&] {
        return "writes " +
               (shared ? "shared memory at offset " + std::to_string(offset)
                       : std::string("memory")) +
               ", where lane " + std::to_string(other) +
               " of the warp writes another value in the same instruction";
    });
}

// ---- what orders accesses ----

void watch_together(Warp& warp, const Insn& insn, u32 lanes) {
    settle_writes(*warp.block);
    Watch::Clock& clock = clock_of(warp);
    if ((insn.flags & kMovesNothing) != 0) return order_lanes(warp, lanes);
    const u32 time = clock.now++;
    if ((alive(warp) & ~lanes) == 0) clock.met.clear();
    else std::erase_if(clock.met, [&](const Watch::Met& met) { return met.lanes == lanes; });
    clock.met.push_back({lanes, time, insn.step});
}

void order_lanes(Warp& warp, u32 lanes) {
    Watch::Clock& clock = clock_of(warp);
    const View views = views_of(clock, lanes);
    if ((alive(warp) & ~lanes) == 0) {
        own_times(clock.knows)[warp.number] = clock.now++;
        clock.met.clear();
        if (views != nullptr) set_views(clock, kAll, beyond(views, *clock.knows.warps));
        return;
    }
    std::vector<u32> all(clock.knows.warps->size() * kLanes, 0);
    if (views != nullptr) all = *views;
    for (u32 lane = 0; lane < kLanes; ++lane) {
        if (lanes >> lane & 1) all[thread_of(warp, lane)] = clock.now;
    }
    set_views(clock, lanes, std::make_shared<const std::vector<u32>>(std::move(all)));
    ++clock.now;
}

void watch_fence(Warp& warp, u32 lanes) {
    Watch::Clock& clock = clock_of(warp);
    clock.fenced |= lanes;
    for (u32 lane = 0; lane < clock.heard.size(); ++lane) {
        if ((lanes >> lane & 1) == 0 || clock.heard[lane] == nullptr) continue;
        if (clock.knows.lanes.empty()) clock.knows.lanes.resize(kLanes);
        View& view = clock.knows.lanes[lane];
        view = joined(view, std::exchange(clock.heard[lane], nullptr));
    }
}

void give_clock(Warp& warp, u32 barrier) {
    settle_writes(*warp.block);
    Watch::Clock& clock = clock_of(warp);
    Watch::Given& given = warp.block->watch->given[barrier];
    given.warps.resize(clock.knows.warps->size(), 0);
    raise_to(given.warps, *clock.knows.warps);
    given.warps[warp.number] = clock.now++;
    given.lanes = joined(given.lanes, views_of(clock, alive(warp)));
}

void take_clock(Warp& warp, u32 barrier) {
    settle_writes(*warp.block);
    const auto found = warp.block->watch->given.find(barrier);
    if (found == warp.block->watch->given.end()) return;
    Watch::Clock& clock = clock_of(warp);
    std::vector<u32> all = *clock.knows.warps;
    raise_to(all, found->second.warps);
    clock.knows.warps = std::make_shared<std::vector<u32>>(std::move(all));
    if (found->second.lanes == nullptr) return;
    if (clock.knows.lanes.empty()) clock.knows.lanes.resize(kLanes);
    for (View& view : clock.knows.lanes) view = joined(view, found->second.lanes);
}

void sync_warps(Block& block, const std::vector<u32>& warps, u32 barrier) {
    settle_writes(block);
    auto& clocks = block.watch->clocks;
    Watch::Given given = std::exchange(block.watch->given[barrier], {});
    const auto all = std::make_shared<std::vector<u32>>(std::move(given.warps));
    all->resize(clocks.size(), 0);
    for (const u32 warp : warps) {
        Watch::Clock& clock = clocks[warp];
        raise_to(*all, *clock.knows.warps);
        (*all)[warp] = clock.now++;
        given.lanes = joined(given.lanes, views_of(clock, kAll));
        clock.met.clear();
    }
    given.lanes = beyond(given.lanes, *all);
    for (const u32 warp : warps) {
        clocks[warp].knows.warps = all;
        set_views(clocks[warp], kAll, given.lanes);
    }
}

// ---- cp.async ----

std::shared_ptr<const Knows> known_now(Warp& warp) {
    return std::make_shared<const Knows>(clock_of(warp).knows);
}

void watch_copy(Warp& warp, const AsyncCopy& copy, const std::function<void()>& perform) {
    Block& block = *warp.block;
    settle_writes(block);
    Watch& watch = *block.watch;
    Watch::Clock& clock = clock_of(warp);
    const u32 now = ++clock.now;
    watch.writing = &warp, watch.insn = copy.insn, watch.written = now;
    const Access read{watch, warp, copy.insn, *copy.knows, now, Use::read, false};
    const Access write{watch, warp, copy.insn, *copy.knows, now, Use::write, false};
    for (u32 left = copy.lanes; left != 0; left &= left - 1) {
        const auto lane = static_cast<u32>(__builtin_ctz(left));
        const u32 bytes = copy.source_bytes[lane];
        if (watch.global != nullptr && bytes != 0) {
            make_fit(block, copy.from[lane], bytes, false);
            access_memory(read, lane, copy.from[lane], bytes, false);
        }
        access_memory(write, lane, copy.to[lane], copy.bytes, true);
    }
    perform();
    settle_writes(block);
}

}  // namespace ptx
