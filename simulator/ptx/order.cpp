// Clocks of works, and the cells of memory that they touched.
#include "order.h"

#include <algorithm>

namespace ptx {

void Clock::join(const Clock& other) {
    if (at_.size() < other.at_.size()) at_.resize(other.at_.size(), 0);
    for (std::size_t i = 0; i < other.at_.size(); ++i) at_[i] = std::max(at_[i], other.at_[i]);
}

void Clock::set(u32 timeline, u32 tick) {
    if (at_.size() <= timeline) at_.resize(timeline + 1, 0);
    at_[timeline] = tick;
}

// PTX ISA 9.7.13.13: dependents may start once all blocks of the grid before have triggered or
// ended; their wait returns when that grid is complete, and its writes are visible.  Nothing is stated
// of grids before that one: they are complete only where it waited itself.
void Overlap::follow(const Overlap& last, const Clock& known) {
    dependent = true;
    const auto add = [&](std::vector<u32>& to, const std::vector<u32>& from) {
        for (const u32 work : from) {
            const Works::Done& done = works.all_[work];
            if (!known.has(done.timeline, done.tick)) to.push_back(work);
        }
    };
    add(early, {last.number});
    add(early, last.waited && last.late_trigger ? last.late : last.early);
    add(late, last.waited ? last.late : last.early);
}

bool Overlap::after(u32 other, bool ready) const {
    if (other == number) return true;
    const std::vector<u32>& running = ready ? late : early;
    if (std::find(running.begin(), running.end(), other) != running.end()) return false;
    const Works::Done& done = works.all_[other];
    return before.has(done.timeline, done.tick);
}

std::shared_ptr<Overlap> Works::begin(std::string name, u32 timeline, u32 tick, Clock before) {
    const auto known = names_.try_emplace(std::move(name), 0).first;
    all_.push_back({&known->first, timeline, tick});
    return std::make_shared<Overlap>(*this, static_cast<u32>(all_.size() - 1), std::move(before));
}

// The readers of a cell, with this one: those that are complete need not be kept.
u32 Works::with_reader(Overlap& by, u32 readers, bool ready) {
    std::vector<u32> all;
    const auto keep = [&](u32 reader) {
        if (reader != 0 && reader != by.number && !by.after(reader, ready)) all.push_back(reader);
    };
    if ((readers & kSet) == 0) keep(readers);
    else std::ranges::for_each(sets_[readers & ~kSet], keep);
    if (all.empty()) return by.number;
    all.push_back(by.number);
    const auto [known, added] = set_numbers_.try_emplace(all, static_cast<u32>(sets_.size()));
    if (added) sets_.push_back(std::move(all));
    return known->second | kSet;
}

// False: a conflict.
bool Works::touch_cell(Overlap& by, Cell& cell, Touch use, bool ready, Conflict* found) {
    const u32 writer = cell.writer & ~kAtomic;
    const bool both_atomic = use == Touch::atomic && (cell.writer & kAtomic) != 0;
    if (writer != by.number && writer != by.known_writer[ready] && writer != 0 && !both_atomic) {
        if (!by.after(writer, ready)) {
            *found = {writer, true, 0};
            return false;
        }
        by.known_writer[ready] = writer;
    }
    if (use == Touch::read) {
        if (writer == by.number || cell.readers == by.number) return true;
        if (cell.readers != by.readers_from || by.readers_to == 0) {
            by.readers_to = with_reader(by, cell.readers, ready);
            by.readers_from = cell.readers;
        }
        cell.readers = by.readers_to;
        return true;
    }
    const auto complete = [&](u32 reader) {
        if (by.after(reader, ready)) return true;
        *found = {reader, false, 0};
        return false;
    };
    if (cell.readers != 0 && cell.readers != by.number &&
        cell.readers != by.known_readers[ready]) {
        const bool fine = (cell.readers & kSet) == 0
                              ? complete(cell.readers)
                              : std::ranges::all_of(sets_[cell.readers & ~kSet], complete);
        if (!fine) return false;
        by.known_readers[ready] = cell.readers;
    }
    cell = {by.number | (use == Touch::atomic ? kAtomic : 0), 0};
    return true;
}

void Works::refine(Page& page, u32 shift) {
    if (shift >= page.shift) return;
    const std::size_t parts = std::size_t{1} << (page.shift - shift);
    std::vector<Cell> finer;
    finer.reserve(page.cells.size() * parts);
    for (const Cell& cell : page.cells) finer.insert(finer.end(), parts, cell);
    page.cells = std::move(finer);
    page.shift = shift;
}

Conflict Works::touch(Overlap& by, u64 address, u64 bytes, Touch use, bool ready) {
    constexpr u64 kPage = u64{1} << kPageShift;
    for (const u64 end = address + bytes; address < end;) {
        const u64 start = address % kPage, length = std::min(end - address, kPage - start);
        Page& page = pages_[address >> kPageShift];
        refine(page, static_cast<u32>(__builtin_ctzll(start | length)));
        for (u64 at = start; at < start + length; at += u64{1} << page.shift) {
            Conflict found;
            if (touch_cell(by, page.cells[at >> page.shift], use, ready, &found))
                continue;
            found.address = address - start + at;
            return found;
        }
        if (length == kPage && use == Touch::write && page.cells.size() > 1)
            page = {kPageShift, {page.cells[0]}};
        address += length;
    }
    return {};
}

void Works::forget(u64 address, u64 bytes) {
    constexpr u64 kPage = u64{1} << kPageShift;
    for (const u64 end = address + bytes; address < end;) {
        const u64 start = address % kPage, length = std::min(end - address, kPage - start);
        const auto found = pages_.find(address >> kPageShift);
        if (found != pages_.end() && length == kPage) {
            pages_.erase(found);
        } else if (found != pages_.end()) {
            Page& page = found->second;
            refine(page, static_cast<u32>(__builtin_ctzll(start | length)));
            std::fill_n(page.cells.begin() + static_cast<std::ptrdiff_t>(start >> page.shift),
                        length >> page.shift, Cell{});
        }
        address += length;
    }
}

std::string sentence(const Overlap& by, const Conflict& found, const std::string& verb, bool ready) {
    const std::string other = by.works.name(found.other);
    const std::string what = verb + " memory that " + other + (found.wrote ? " writes" : " reads");
    const auto may_run = [&](const std::vector<u32>& running) {
        return std::find(running.begin(), running.end(), found.other) != running.end();
    };
    if (!ready && may_run(by.early)) {
        return what +
               ", before griddepcontrol.wait: with programmatic stream serialization both may run at "
               "once. Call cudaGridDependencySynchronize() before";
    }
    if (ready && may_run(by.late)) {
        return what +
               ": griddepcontrol.wait waits for the kernel before this one only, and that one did not "
               "wait itself";
    }
    return what + ", and nothing orders the two: no event, no wait, no common stream";
}

}  // namespace ptx
