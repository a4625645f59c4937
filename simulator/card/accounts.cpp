// Accounting: how much of each card is taken, by whom, and who asked for more than was left.
#include <algorithm>

#include "internal.h"

namespace simulator {

namespace {

constexpr std::size_t kFailures = 1000;  // in the report: an engine may try without end

void note_failure(int card, std::uint64_t requested, const char* function) {
    if (facts().failed.size() < kFailures) {
        facts().failed.push_back({stack(), card, function, requested, free_bytes(card)});
    }
    write_report();
}

}  // namespace

void note_peak(int card) {
    CardUse& use = facts().cards[card];
    if (use.used < use.peak) return;
    use.peak = use.used;
    for (auto& [account, count] : facts().allocations) {
        if (std::get<1>(account) == card) count.at_peak = count.live;
    }
}

std::uint64_t free_bytes(int card) {
    const std::uint64_t memory = cards()[card].memory, used = facts().cards[card].used;
    return memory > used ? memory - used : 0;
}

cudaError_t charge(int card, std::uint64_t bytes, std::uint64_t requested, const char* function,
                   Account* account) {
    const Lock lock(mutex());
    if (const cudaError_t error = use_card(card)) return error;
    if (bytes > free_bytes(card)) {
        note_failure(card, requested, function);
        return cudaErrorMemoryAllocation;
    }
    *account = {stack(), card, function};
    AllocationCount& count = facts().allocations[*account];
    ++count.count;
    count.live += requested;
    count.largest = std::max(count.largest, requested);
    facts().cards[card].used += bytes;
    note_peak(card);
    changed();
    return cudaSuccess;
}

void refund(int card, std::uint64_t bytes, std::uint64_t requested, const Account& account) {
    const Lock lock(mutex());
    facts().cards[card].used -= bytes;
    facts().allocations[account].live -= requested;
    changed();
}

void memory_info(int card, std::uint64_t* free, std::uint64_t* total) {
    const Lock lock(mutex());
    *free = free_bytes(card);
    *total = cards()[card].memory;
}

}  // namespace simulator
