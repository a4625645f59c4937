// Registers share places: a warp's registers then stay in the cache.  nvcc writes each value to a
// register of its own, some kernels have 20,000 of them.
//
// Liveness is one thread's, which is enough in a warp too: an instruction writes only the
// lanes that execute it, so a thread's slots are overwritten by its own instructions alone.
#include <algorithm>

#include "flat.h"

namespace ptx {

namespace {

bool has_no_result(const Statement& statement) {
    static constexpr std::string_view kNone[] = {"st",
                                                 "red",
                                                 "bra",
                                                 "brx",
                                                 "ret",
                                                 "exit",
                                                 "trap",
                                                 "bar",
                                                 "barrier",
                                                 "membar",
                                                 "fence",
                                                 "cp",
                                                 "prefetch",
                                                 "prefetchu",
                                                 "nanosleep",
                                                 "griddepcontrol",
                                                 "brkpt",
                                                 "discard",
                                                 "stmatrix",
                                                 "pmevent",
                                                 "applypriority",
                                                 "call",
                                                 "setmaxnreg",
                                                 "tensormap"};
    const std::string_view base = statement.parts[0];
    if (std::find(std::begin(kNone), std::end(kNone), base) == std::end(kNone)) return false;
    // bar.red has one.
    return statement.parts.size() < 2 || std::find(statement.parts.begin(), statement.parts.end(),
                                                   "red") == statement.parts.end();
}

void collect(const Operand& operand, std::vector<u32>* into) {
    if (operand.kind == Operand::Kind::reg || operand.has_reg) into->push_back(operand.reg);
    for (const Operand& item : operand.items) collect(item, into);
}

struct Interval {
    u32 reg, first, last;
};

class Liveness {
public:
    Liveness(const Flat& flat, const Blocks& blocks) : flat_(flat), blocks_(blocks) {}

    std::vector<Interval> run() {
        scan();
        iterate();
        std::vector<Interval> out;
        for (u32 r = 0; r < flat_.registers.size(); ++r) {
            if (!flat_.registers[r].special.empty() && first_[r] != kAll) first_[r] = 0;
            if (first_[r] != kAll) out.push_back({r, first_[r], last_[r]});
        }
        return out;
    }

private:
    void touch(u32 reg, u32 position) {
        first_[reg] = std::min(first_[reg], position);
        last_[reg] = std::max(last_[reg], position);
    }

    // Registers that are read in a block before it writes them, and those that it surely writes.
    void scan() {
        const std::size_t registers = flat_.registers.size();
        first_.assign(registers, kAll);
        last_.assign(registers, 0);
        std::vector<u32> written_in(registers, kAll);
        reads_.resize(blocks_.blocks.size());
        writes_.resize(blocks_.blocks.size());
        std::vector<u32> written, read;
        for (u32 b = 0; b < blocks_.blocks.size(); ++b) {
            for (u32 i = blocks_.blocks[b].first; i < blocks_.blocks[b].last; ++i) {
                written.clear(), read.clear();
                const Statement& statement = flat_.steps[i].statement;
                registers_of(statement, &written, &read);
                for (const u32 r : read) {
                    touch(r, i);
                    if (written_in[r] != b) reads_[b].push_back(r);
                }
                for (const u32 r : written) {
                    touch(r, i);
                    if (!statement.guarded && written_in[r] != b) {
                        written_in[r] = b;
                        writes_[b].push_back(r);
                    }
                }
            }
        }
    }

    void iterate() {
        // Only registers that some block reads from another need bits.
        std::vector<u32> number(flat_.registers.size(), kAll);
        std::vector<u32> global;
        for (const auto& list : reads_) {
            for (const u32 r : list) {
                if (number[r] == kAll) {
                    number[r] = static_cast<u32>(global.size());
                    global.push_back(r);
                }
            }
        }
        const std::size_t words = (global.size() + 63) / 64;
        const std::size_t count = blocks_.blocks.size();
        std::vector<u64> in(count * words), reads(count * words), writes(count * words), out(words);
        for (std::size_t b = 0; b < count; ++b) {
            for (const u32 r : reads_[b])
                reads[b * words + number[r] / 64] |= u64{1} << (number[r] % 64);
            for (const u32 r : writes_[b]) {
                if (number[r] != kAll)
                    writes[b * words + number[r] / 64] |= u64{1} << (number[r] % 64);
            }
        }
        for (bool changed = true; changed;) {
            changed = false;
            for (std::size_t b = count; b-- > 0;) {
                live_out(b, words, in, out);
                for (std::size_t w = 0; w < words; ++w) {
                    const u64 made = reads[b * words + w] | (out[w] & ~writes[b * words + w]);
                    changed |= made != in[b * words + w];
                    in[b * words + w] = made;
                }
            }
        }
        const auto extend = [&](u64 bits, std::size_t w, u32 position) {
            for (; bits != 0; bits &= bits - 1)
                touch(global[w * 64 + static_cast<u32>(__builtin_ctzll(bits))], position);
        };
        for (std::size_t b = 0; b < count; ++b) {
            live_out(b, words, in, out);
            for (std::size_t w = 0; w < words; ++w) {
                extend(in[b * words + w], w, blocks_.blocks[b].first);
                extend(out[w], w, blocks_.blocks[b].last - 1);
            }
        }
    }

    void live_out(std::size_t b, std::size_t words, const std::vector<u64>& in,
                  std::vector<u64>& out) const {
        std::fill(out.begin(), out.end(), 0);
        for (const u32 next : blocks_.blocks[b].next) {
            for (std::size_t w = 0; w < words; ++w) out[w] |= in[next * words + w];
        }
    }

    const Flat& flat_;
    const Blocks& blocks_;
    std::vector<u32> first_, last_;
    std::vector<std::vector<u32>> reads_, writes_;
};

}  // namespace

void registers_of(const Statement& statement, std::vector<u32>* written, std::vector<u32>* read) {
    if (statement.guarded) read->push_back(statement.guard);
    const bool none = has_no_result(statement);
    for (std::size_t i = 0; i < statement.operands.size(); ++i) {
        const Operand& operand = statement.operands[i];
        const bool result = statement.parts[0] == "call"
                                ? i == 0
                                : i == 0 && !none && operand.kind != Operand::Kind::address;
        collect(operand, result ? written : read);
    }
}

Slots allocate_slots(const Flat& flat, const Blocks& blocks) {
    std::vector<Interval> intervals = Liveness(flat, blocks).run();
    std::sort(intervals.begin(), intervals.end(),
              [](const Interval& a, const Interval& b) { return a.first < b.first; });
    Slots out;
    out.slot.assign(flat.registers.size(), kAll);
    const auto assign = [&](u32 bits) {
        u32 count = 0;
        std::vector<u32> free;
        std::vector<std::pair<u32, u32>> busy;  // last use, slot: a heap, the earliest first
        const auto later = [](const auto& a, const auto& b) { return a.first > b.first; };
        for (const Interval& interval : intervals) {
            if (flat.registers[interval.reg].bits != bits) continue;
            while (!busy.empty() && busy.front().first < interval.first) {
                free.push_back(busy.front().second);
                std::pop_heap(busy.begin(), busy.end(), later);
                busy.pop_back();
            }
            if (free.empty()) free.push_back(count++);
            out.slot[interval.reg] = free.back();
            // A special register keeps its slot: it is written once, when the warp starts.
            busy.emplace_back(flat.registers[interval.reg].special.empty() ? interval.last : kAll,
                              free.back());
            std::push_heap(busy.begin(), busy.end(), later);
            free.pop_back();
        }
        return count;
    };
    out.predicates = assign(0);
    out.halves = assign(16);
    out.words = assign(32);
    out.doubles = assign(64);
    out.quads = assign(128);
    return out;
}

}  // namespace ptx
