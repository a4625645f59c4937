// Accesses that the fast way does not know yet, and what is wrong with those that are refused.
#include <algorithm>
#include <cstdio>

#include "machine.h"

namespace ptx {

namespace {

std::string hex(u64 value) {
    char text[24];
    std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(value));
    return text;
}

const char* verb(Use use) {
    return use == Use::read ? "reads" : use == Use::write ? "writes" : "updates";
}

std::string bytes_text(u64 bytes) {
    return bytes == 1 ? "1 byte" : std::to_string(bytes) + " bytes";
}

std::optional<Range> find_range(const Block& block, u64 address) {
    const auto& own = block.program->ranges;
    auto after = std::upper_bound(own.begin(), own.end(), address,
                                  [](u64 a, const Range& r) { return a < r.base; });
    if (after != own.begin() && address - (after - 1)->base < (after - 1)->size)
        return *(after - 1);
    if (address - block.workspace.base < block.workspace.size) return block.workspace;
    return block.launch->memory == nullptr ? std::nullopt : block.launch->memory->find(address);
}

// "8 bytes after the end of the allocation of 4096 bytes at 0x…"
std::string beside(const Block& block, u64 address) {
    const auto distance = [&](const Range& r) {
        return address < r.base ? r.base - address : address - std::min(address, r.base + r.size);
    };
    std::vector<std::pair<Range, std::string>> known;
    if (block.launch->memory != nullptr) {
        if (const auto found = block.launch->memory->nearest(address))
            known.emplace_back(*found, "allocation");
    }
    for (std::size_t i = 0; i < block.program->ranges.size(); ++i) {
        known.emplace_back(block.program->ranges[i], "variable " + block.program->range_names[i]);
    }
    if (known.empty()) return "no memory is allocated";
    const auto& [range, name] = *std::min_element(
        known.begin(), known.end(),
        [&](const auto& a, const auto& b) { return distance(a.first) < distance(b.first); });
    const Range* const near = &range;
    const std::string which =
        "the " + name + " of " + bytes_text(near->size) + " at " + hex(near->base);
    if (address < near->base) return bytes_text(near->base - address) + " before " + which;
    if (address >= near->base + near->size)
        return bytes_text(address - near->base - near->size) + " after the end of " + which;
    return "in " + which;
}

Size thread_index(const Block& block, u32 thread) {
    const Size& size = block.launch->block;
    return {thread % size.x, thread / size.x % size.y, thread / size.x / size.y};
}

}  // namespace

Fault fault_at(const Warp& warp, const Insn& insn, u32 lane, Fault::Kind kind,
               const std::string& what, u64 address) {
    const Block& block = *warp.block;
    Fault fault;
    fault.kind = kind;
    fault.what = what;
    fault.kernel = block.program->kernel;
    if (insn.step != kAll) {
        const SourceLine& line = block.program->lines[insn.step];
        fault.instruction = line.text;
        fault.line = line.line;
        fault.source = line.source;
    }
    fault.address = address;
    fault.block = block.index;
    fault.thread = thread_index(block, warp.number * kLanes + lane);
    fault.warp = warp.number;
    fault.lane = lane;
    fault.at_thread = true;
    return fault;
}

bool Findings::has(const Program& program, const Insn& insn) {
    steps_.resize(program.lines.size());
    return insn.step != kAll && steps_[insn.step];
}

void Findings::add(const Program& program, const Insn& insn, Fault fault) {
    if (insn.step != kAll) {
        const SourceLine& line = program.lines[insn.step];
        for (std::size_t step = 0; step < steps_.size(); ++step) {
            const SourceLine& other = program.lines[step];
            if (line.source.empty() ? other.line == line.line : other.source == line.source)
                steps_[step] = true;
        }
    }
    all.push_back(std::move(fault));
}

void raise(Warp& warp, const Insn& insn, u32 lane, Fault::Kind kind, const std::string& what,
           u64 address) {
    throw Raised{fault_at(warp, insn, lane, kind, what, address)};
}

void raise_misaligned(Warp& warp, const Insn& insn, u32 lane, u64 address, u32 bytes) {
    raise(warp, insn, lane, Fault::Kind::misaligned,
          "the address " + hex(address) + " is no multiple of " + std::to_string(bytes), address);
}

void raise_window(Warp& warp, const Insn& insn, u32 lane, Space space, u64 offset, u32 bytes,
                  u64 size, Use use) {
    const char* const name = space == Space::shared  ? "shared memory of the block"
                             : space == Space::local ? "local memory of the thread"
                                                     : "parameters of the kernel";
    const std::string end = use != Use::read && space == Space::param
                                ? ", which cannot be written"
                                : std::string(", which ") +
                                      (space == Space::param ? "have " : "has ") + bytes_text(size);
    raise(warp, insn, lane, Fault::Kind::out_of_bounds,
          std::string(verb(use)) + " " + bytes_text(bytes) + " at offset " +
              std::to_string(static_cast<s64>(offset)) + " of the " + name + end,
          offset);
}

void find_global(Warp& warp, const Insn& insn, u32 lanes, const u64* addresses, u32 bytes,
                 Use use) {
    const Block& block = *warp.block;
    for (u32 lane = 0; lane < kLanes; ++lane) {
        if ((lanes >> lane & 1) == 0) continue;
        const u64 address = addresses[lane];
        bool known = false;
        for (const Warp::Known& range : warp.known)
            known |= address - range.from < range.to - range.from && range.to - address >= bytes;
        if (known) continue;
        const std::optional<Range> range = find_range(block, address);
        if (range && range->backed && range->base + range->size - address >= bytes) {
            warp.known[warp.next_known++ % Warp::kKnown] = {range->base, range->base + range->size};
            continue;
        }
        std::string what =
            std::string(verb(use)) + " " + bytes_text(bytes) + " at " + hex(address) + ": ";
        if (range && !range->backed) what += "nothing backs this memory, ";
        const u64 bad =
            range && range->backed ? range->base + range->size : address;  // the first bad byte
        raise(warp, insn, lane, Fault::Kind::out_of_bounds, what + beside(block, bad), address);
    }
}

}  // namespace ptx
