// What is in the cards' memory: small writes are kept, the rest is defined but not stored.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "works.h"

namespace simulator {

namespace {

constexpr std::uint64_t kBudget = 64 << 20;  // bytes kept in all: then the older half is dropped
constexpr std::uint64_t kCopyLimit = 1 << 20;

struct Kept {
    std::vector<unsigned char> bytes;
    std::uint64_t turn = 0;  // when it was written
};

struct Contents {
    std::map<std::uintptr_t, Kept> kept;  // ranges that do not overlap
    std::uint64_t total = 0, turn = 0;
    std::size_t next_token = 0;
};

Contents& contents() {
    static auto* const all = new Contents;
    return *all;
}

void drop_older_half() {
    std::vector<std::uint64_t> turns;
    for (const auto& [address, kept] : contents().kept) turns.push_back(kept.turn);
    const auto middle = turns.begin() + static_cast<std::ptrdiff_t>(turns.size() / 2);
    std::nth_element(turns.begin(), middle, turns.end());
    std::erase_if(contents().kept, [limit = *middle](const auto& entry) {
        if (entry.second.turn > limit) return false;
        contents().total -= entry.second.bytes.size();
        return true;
    });
}

void keep(std::uintptr_t address, std::vector<unsigned char> bytes) {
    contents().total += bytes.size();
    contents().kept[address] = {std::move(bytes), ++contents().turn};
    if (contents().total > kBudget) drop_older_half();
}

// Calls `act(kept address, kept, from, to)` for every kept range that overlaps, in order.
template <typename Act>
void each_overlap(std::uintptr_t address, std::uint64_t size, Act act) {
    auto next = contents().kept.upper_bound(address);
    if (next != contents().kept.begin()) --next;
    while (next != contents().kept.end() && next->first < address + size) {
        const auto here = next++;
        const std::uintptr_t end = here->first + here->second.bytes.size();
        if (end > address) {
            act(here, std::max(address, here->first), std::min(address + size, end));
        }
    }
}

// The bytes of the range that were kept go to their places in `to`, the others are zeros; how many.
std::uint64_t gather(std::uintptr_t address, std::uint64_t size, unsigned char* to) {
    std::uint64_t found = 0;
    std::memset(to, 0, size);
    each_overlap(address, size, [&](auto here, std::uintptr_t from, std::uintptr_t until) {
        std::memcpy(to + (from - address), here->second.bytes.data() + (from - here->first),
                    until - from);
        found += until - from;
    });
    return found;
}

bool is_logits(std::uint64_t size) {
    const std::uint64_t row = config().vocabulary * sizeof(float);
    return row != 0 && size % row == 0;
}

// One row for each position: the next of the configured tokens wins.
void write_logits(unsigned char* to, std::uint64_t size) {
    const std::uint64_t row = config().vocabulary * sizeof(float);
    std::memset(to, 0, size);
    if (config().tokens.empty()) return;
    for (std::uint64_t offset = 0; offset < size; offset += row) {
        // Several rows are a draft that is verified: read again, they are the same, or an engine
        // that verifies again what it accepted never ends.
        const std::uint64_t turn = size == row ? contents().next_token++ : offset / row;
        const std::uint32_t token = config().tokens[turn % config().tokens.size()];
        // Far above the others: also sampling with a temperature takes it.
        const float winner = 100;
        if (token < config().vocabulary) {
            std::memcpy(to + offset + token * sizeof winner, &winner, sizeof winner);
        }
    }
}

void read(std::uintptr_t address, std::uint64_t size, unsigned char* to, CopyCount& count) {
    const auto whole = contents().kept.find(address);
    const bool same = whole != contents().kept.end() && whole->second.bytes.size() == size;
    if (is_logits(size) && !same) {
        write_logits(to, size);
    } else if (size == 1 && take_all_finite()) {
        *to = 1;
    } else {
        count.kept += gather(address, size, to);
    }
}

void write(std::uintptr_t address, std::uint64_t size, const unsigned char* from,
           CopyCount& count) {
    take_all_finite();  // of what was there
    forget_contents(address, size);
    if (size >= kCopyLimit) return;
    keep(address, {from, from + size});
    count.kept += size;
}

void move(std::uintptr_t to, std::uintptr_t from, std::uint64_t size, CopyCount& count) {
    std::vector<std::pair<std::uintptr_t, std::vector<unsigned char>>> parts;
    each_overlap(from, size, [&](auto here, std::uintptr_t start, std::uintptr_t until) {
        const auto first =
            here->second.bytes.begin() + static_cast<std::ptrdiff_t>(start - here->first);
        const auto length = static_cast<std::ptrdiff_t>(until - start);
        parts.push_back({to + (start - from), {first, first + length}});
    });
    forget_contents(to, size);
    for (auto& [address, bytes] : parts) {
        count.kept += bytes.size();
        keep(address, std::move(bytes));
    }
}

// Where an address is: on a card, or (also managed memory) on the host.
enum class Side { host, card, outside };

// Whether the program has memory there: a pointer that was freed is neither the host's nor a card's.
bool is_mapped(const void* pointer, std::uint64_t size) {
    const auto page = static_cast<std::uintptr_t>(getpagesize());
    const auto address = reinterpret_cast<std::uintptr_t>(pointer);
    unsigned char resident = 0;
    for (const std::uintptr_t end : {address, address + size - 1}) {
        if (has_no_pages(end)) return false;
        if (mincore(reinterpret_cast<void*>(end / page * page), page, &resident) != 0) return false;
    }
    return true;
}

Side side_of(const void* pointer, std::uint64_t size) {
    Range range;
    const bool known = find_range(pointer, &range);
    if (!known && !is_mapped(pointer, size)) {
        violate("", cudaErrorInvalidValue,
                "a copy of " + std::to_string(size) +
                    " bytes to or from an address that is not allocated");
        return Side::outside;
    }
    if (!known || range.kind != Kind::device) return Side::host;
    const auto end = reinterpret_cast<std::uintptr_t>(pointer) + size;
    // VMM: a range may be mapped in several pieces that follow each other.
    while (range.address + range.size < end) {
        const auto next = reinterpret_cast<const void*>(range.address + range.size);
        if (!find_range(next, &range)) {
            violate("", cudaErrorInvalidValue,
                    "a copy of " + std::to_string(size) + " bytes leaves its allocation by " +
                        std::to_string(end - reinterpret_cast<std::uintptr_t>(next)) + " bytes");
            return Side::outside;
        }
    }
    return Side::card;
}

constexpr std::uint64_t kPages = 64 << 10;  // zeros of this size take no memory

bool all_zero(const unsigned char* bytes, std::uint64_t size) {
    return bytes[0] == 0 && std::memcmp(bytes, bytes + 1, size - 1) == 0;
}

// Memory of a card without anything in it: its pages go. Pages of cuMemCreate are shared.
bool drop_pages(unsigned char* to) {
    return madvise(to, kPages, MADV_REMOVE) == 0 || madvise(to, kPages, MADV_DONTNEED) == 0;
}

// Calls `act(offset, size)` for the parts of a card's memory that are not whole pages of zeros; those
// are not stored, so that models without weights take no memory.
template <typename Zero, typename Act>
void each_part(unsigned char* to, std::uint64_t size, Zero is_zero, Act act) {
    const std::uint64_t start = -reinterpret_cast<std::uintptr_t>(to) % kPages;
    if (start + kPages > size) return act(0, size);
    act(0, start);
    std::uint64_t done = start;
    for (; size - done >= kPages; done += kPages) {
        if (!is_zero(done) || !drop_pages(to + done)) act(done, kPages);
    }
    act(done, size - done);
}

// A copy in mode compute.
void store(unsigned char* to, const unsigned char* from, std::uint64_t size, Side to_side) {
    if (to_side == Side::host) {
        std::memmove(to, from, size);
        return;
    }
    each_part(
        to, size, [&](std::uint64_t at) { return all_zero(from + at, kPages); },
        [&](std::uint64_t at, std::uint64_t part) { std::memmove(to + at, from + at, part); });
}

void set_bytes(unsigned char* to, unsigned value, std::uint64_t size, unsigned element) {
    if (element == 1) {
        std::memset(to, static_cast<int>(value & 255), size);
        return;
    }
    for (std::uint64_t offset = 0; offset < size; ++offset) {
        to[offset] = static_cast<unsigned char>(value >> (8 * (offset % element)));
    }
}

CopyCount& counter(Side to, Side from) {
    if (to == Side::card) return from == Side::card ? facts().on_device : facts().to_device;
    return facts().to_host;
}

void copy_row(unsigned char* to, const unsigned char* from, std::uint64_t size, Side to_side,
              Side from_side, CopyCount& count) {
    const auto to_address = reinterpret_cast<std::uintptr_t>(to);
    const auto from_address = reinterpret_cast<std::uintptr_t>(from);
    count.bytes += size;
    if (computes()) {
        count.kept += size;
        store(to, from, size, to_side);
    } else if (to_side == Side::card && from_side == Side::card) {
        move(to_address, from_address, size, count);
    } else if (to_side == Side::card) {
        write(to_address, size, from, count);
    } else {
        read(from_address, size, to, count);
    }
}

}  // namespace

std::int32_t kept_number(const std::int32_t* on_card) {
    std::int32_t number = 0;
    gather(reinterpret_cast<std::uintptr_t>(on_card), sizeof number,
           reinterpret_cast<unsigned char*>(&number));
    return number;
}

void keep_result(void* on_card, std::vector<unsigned char> bytes) {
    const auto address = reinterpret_cast<std::uintptr_t>(on_card);
    forget_contents(address, bytes.size());
    keep(address, std::move(bytes));
}

void forget_contents(std::uintptr_t address, std::uint64_t size) {
    std::vector<std::pair<std::uintptr_t, Kept>> rest;
    std::vector<std::uintptr_t> gone;
    each_overlap(address, size, [&](auto here, std::uintptr_t from, std::uintptr_t until) {
        const auto& [start, kept] = *here;
        const auto at = [&](std::uintptr_t where) {
            return kept.bytes.begin() + static_cast<std::ptrdiff_t>(where - start);
        };
        if (from > start) rest.push_back({start, {{kept.bytes.begin(), at(from)}, kept.turn}});
        if (at(until) != kept.bytes.end()) {
            rest.push_back({until, {{at(until), kept.bytes.end()}, kept.turn}});
        }
        contents().total -= until - from;
        gone.push_back(start);
    });
    for (const std::uintptr_t start : gone) contents().kept.erase(start);
    for (auto& [start, kept] : rest) contents().kept[start] = std::move(kept);
}

void forget_all_contents() {
    contents().kept.clear();
    contents().total = 0;
}

cudaError_t copy_2d(void* destination, std::uint64_t destination_pitch, const void* source,
                    std::uint64_t source_pitch, std::uint64_t width, std::uint64_t height) {
    if (width == 0 || height == 0) return cudaSuccess;
    if (destination == nullptr || source == nullptr) return cudaErrorInvalidValue;
    if (height > 1 && (destination_pitch < width || source_pitch < width)) {
        return cudaErrorInvalidPitchValue;
    }
    auto* to = static_cast<unsigned char*>(destination);
    const auto* from = static_cast<const unsigned char*>(source);
    const Turn turn(turn_mutex());
    const Lock lock(mutex());
    const Side to_side = side_of(to, (height - 1) * destination_pitch + width);
    const Side from_side = side_of(from, (height - 1) * source_pitch + width);
    if (to_side == Side::outside || from_side == Side::outside) return cudaErrorInvalidValue;
    const bool rows = height > 1 && (destination_pitch != width || source_pitch != width);
    const std::uint64_t count = rows ? height : 1, size = rows ? width : width * height;
    for (std::uint64_t row = 0; watches() && row < count; ++row) {
        if (const cudaError_t error = uses(from + row * source_pitch, size, false)) return error;
        if (const cudaError_t error = uses(to + row * destination_pitch, size, true)) return error;
    }
    // Memory of the program's own is written when the call returns (CUDA Runtime API, "API
    // synchronization behavior").
    Range range;
    if (to_side == Side::host && !find_range(to, &range)) host_waited_for_this();
    if (to_side == Side::host && from_side == Side::host) {
        for (std::uint64_t row = 0; row < count; ++row) {
            std::memmove(to + row * destination_pitch, from + row * source_pitch, size);
        }
        return cudaSuccess;
    }
    CopyCount& copies = counter(to_side, from_side);
    ++copies.count;
    for (std::uint64_t row = 0; row < count; ++row) {
        copy_row(to + row * destination_pitch, from + row * source_pitch, size, to_side, from_side,
                 copies);
    }
    changed();
    return cudaSuccess;
}

cudaError_t copy(void* destination, const void* source, std::uint64_t size) {
    return copy_2d(destination, size, source, size, size, 1);
}

cudaError_t fill(void* destination, unsigned value, std::uint64_t size, unsigned element) {
    if (element != 1 && element != 2 && element != 4) return cudaErrorInvalidValue;
    if (size == 0) return cudaSuccess;
    const Turn turn(turn_mutex());
    const Lock lock(mutex());
    const Side side = side_of(destination, size);
    Range range;  // the card cannot set pageable memory of the host
    if (side == Side::outside || !find_range(destination, &range)) return cudaErrorInvalidValue;
    const bool on_host = side == Side::host;
    if (const cudaError_t error = uses(destination, size, true)) return error;
    if (computes() && !on_host) {
        auto* const start = static_cast<unsigned char*>(destination);
        each_part(
            start, size, [&](std::uint64_t) { return value == 0; },
            [&](std::uint64_t at, std::uint64_t part) {
                set_bytes(start + at, value, part, element);
            });
        return cudaSuccess;
    }
    const auto address = reinterpret_cast<std::uintptr_t>(destination);
    if (!on_host) {
        take_all_finite();  // of what was there
        forget_contents(address, size);
    }
    if (!on_host && size >= kCopyLimit) return cudaSuccess;
    std::vector<unsigned char> bytes(on_host ? 0 : size);
    auto* const to = on_host ? static_cast<unsigned char*>(destination) : bytes.data();
    set_bytes(to, value, size, element);
    if (!on_host) keep(address, std::move(bytes));
    return cudaSuccess;
}

}  // namespace simulator
