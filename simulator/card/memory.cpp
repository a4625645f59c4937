// Allocations of the cards' memory, and of host memory that the driver knows.
//
// NVIDIA does not document how cudaMalloc rounds. Addresses are multiples of 512 (measured:
// cupy/cupy#176). Assumed here: small allocations share segments of 2 MiB, larger ones take whole
// segments, as the granularity of virtual memory management is 2 MiB.
#include <sys/mman.h>

#include <algorithm>
#include <set>

#include "works.h"

namespace simulator {

namespace {

constexpr std::uint64_t kSmall = 1 << 20;  // larger allocations have segments of their own

// A segment that small allocations share: used ranges by offset.
struct Shared {
    int card = 0;
    std::map<std::uint64_t, std::uint64_t> used;  // offset: size
};

struct Allocation {
    Range range;
    std::uint64_t charged = 0;  // of the card; 0 within a shared segment
    std::uintptr_t segment = 0;  // the shared segment, or 0
    Account account;
};

struct Memory {
    std::map<std::uintptr_t, Allocation> allocations;
    std::map<std::uintptr_t, Shared> shared;
    std::map<std::uintptr_t, Range> host;
    std::map<std::uintptr_t, Range> variables;
};

Memory& memory() {
    static auto* const all = new Memory;
    return *all;
}

// The first gap of the segment that holds `size`; kSegment: none.
std::uint64_t gap(const Shared& segment, std::uint64_t size) {
    std::uint64_t offset = 0;
    for (const auto& [start, taken] : segment.used) {
        if (start - offset >= size) return offset;
        offset = start + taken;
    }
    return kSegment - offset >= size ? offset : kSegment;
}

std::uintptr_t find_gap(int card, std::uint64_t size, std::uint64_t* offset) {
    for (const auto& [address, segment] : memory().shared) {
        if (segment.card != card) continue;
        *offset = gap(segment, size);
        if (*offset != kSegment) return address;
    }
    *offset = 0;
    return 0;
}

cudaError_t allocate_small(Allocation& allocation, const char* function) {
    const std::uint64_t gap = computes() ? kGranule : 0;  // as reserve_pages has it
    const std::uint64_t size = round_up(allocation.range.size, kGranule) + gap;
    const int card = allocation.range.card;
    std::uint64_t offset = 0;
    std::uintptr_t segment = find_gap(card, size, &offset);
    const std::uint64_t more = segment == 0 ? kSegment : 0;
    const cudaError_t error =
        charge(card, more, allocation.range.size, function, &allocation.account);
    if (error != cudaSuccess) return error;
    if (segment == 0) segment = reserve_pages(kSegment);
    if (segment == 0) {  // a limit on the process's addresses
        refund(card, more, allocation.range.size, allocation.account);
        return cudaErrorMemoryAllocation;
    }
    memory().shared[segment].card = card;
    memory().shared[segment].used[offset] = size;
    allocation.segment = segment;
    allocation.range.address = segment + offset;
    return cudaSuccess;
}

cudaError_t allocate_large(Allocation& allocation, const char* function) {
    const std::uint64_t size = round_up(allocation.range.size, kSegment);
    const cudaError_t error = charge(allocation.range.card, size, allocation.range.size, function,
                                     &allocation.account);
    if (error != cudaSuccess) return error;
    allocation.charged = size;
    allocation.range.address = reserve_pages(size);
    if (allocation.range.address != 0) return cudaSuccess;
    refund(allocation.range.card, size, allocation.range.size, allocation.account);
    return cudaErrorMemoryAllocation;  // a limit on the process's addresses
}

void* host_pages(std::uint64_t size) {
    void* const pages = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return pages == MAP_FAILED ? nullptr : pages;
}

// Managed memory may be more than the card has: it takes what is left of it.
cudaError_t allocate_managed(Allocation& allocation, const char* function) {
    const int card = allocation.range.card;
    if (const cudaError_t error = use_card(card)) return error;
    const std::uint64_t size = round_up(allocation.range.size, kSegment);
    allocation.charged = std::min(size, free_bytes(card));
    const cudaError_t error = charge(card, allocation.charged, allocation.range.size, function,
                                     &allocation.account);
    if (error != cudaSuccess) return error;
    allocation.range.address = reinterpret_cast<std::uintptr_t>(host_pages(size));
    if (allocation.range.address != 0) return cudaSuccess;
    refund(card, allocation.charged, allocation.range.size, allocation.account);
    return cudaErrorMemoryAllocation;
}

void free_small(const Allocation& allocation) {
    Shared& segment = memory().shared[allocation.segment];
    segment.used.erase(allocation.range.address - allocation.segment);
    if (!segment.used.empty()) {
        refund(allocation.range.card, 0, allocation.range.size, allocation.account);
        return;
    }
    refund(allocation.range.card, kSegment, allocation.range.size, allocation.account);
    memory().shared.erase(allocation.segment);
    unreserve_pages(allocation.segment, kSegment);
}

void free_allocation(const Allocation& allocation) {
    forget_contents(allocation.range.address, allocation.range.size);
    forget_uses(allocation.range.address, allocation.range.size);
    if (allocation.segment != 0) {
        free_small(allocation);
    } else {
        const std::uint64_t size = round_up(allocation.range.size, kSegment);
        refund(allocation.range.card, allocation.charged, allocation.range.size,
               allocation.account);
        if (allocation.range.kind == Kind::managed) {
            munmap(reinterpret_cast<void*>(allocation.range.address), size);
        } else {
            unreserve_pages(allocation.range.address, size);
        }
    }
}

}  // namespace

cudaError_t allocate(int card, std::uint64_t size, const char* function, void** pointer,
                     Kind kind) {
    *pointer = nullptr;
    const Lock lock(mutex());
    if (size == 0) return use_card(card);  // cudaMalloc of nothing: null, no error
    Allocation allocation{.range = {.size = size, .kind = kind, .card = card}};
    const auto how = kind == Kind::managed ? allocate_managed
                     : size > kSmall       ? allocate_large
                                           : allocate_small;
    if (const cudaError_t error = how(allocation, function)) return error;
    *pointer = reinterpret_cast<void*>(allocation.range.address);
    if (kind == Kind::device) poison(*pointer, size);
    memory().allocations.emplace(allocation.range.address, std::move(allocation));
    return cudaSuccess;
}

cudaError_t release(void* pointer) {
    if (pointer == nullptr) return start();
    const Turn turn(turn_mutex());
    const Lock lock(mutex());
    const auto address = reinterpret_cast<std::uintptr_t>(pointer);
    const auto found = memory().allocations.find(address);
    if (found == memory().allocations.end()) {
        Range range;
        if (doing() == nullptr && find_pooled(address, &range)) {
            if (const cudaError_t error = host_frees(address, range.size)) return error;
        }
        return pool_release(address) ? cudaSuccess : cudaErrorInvalidValue;
    }
    host_waited_for_card(found->second.range.card);  // as drivers do
    free_allocation(found->second);
    memory().allocations.erase(found);
    return cudaSuccess;
}

void reset_allocations(int card) {
    std::erase_if(memory().allocations, [card](const auto& entry) {
        if (entry.second.range.card != card) return false;
        free_allocation(entry.second);
        return true;
    });
}

cudaError_t allocate_host(std::uint64_t size, unsigned flags, void** pointer) {
    *pointer = nullptr;
    if (const cudaError_t error = use_card(current_card())) return error;
    if (size == 0) return cudaSuccess;
    void* const pages = host_pages(size);
    if (pages == nullptr) return cudaErrorMemoryAllocation;
    const Lock lock(mutex());
    const auto address = reinterpret_cast<std::uintptr_t>(pages);
    memory().host[address] = {address, size, Kind::host, current_card(), false, flags};
    *pointer = pages;
    return cudaSuccess;
}

cudaError_t release_host(void* pointer) {
    if (pointer == nullptr) return start();
    const Turn turn(turn_mutex());
    const Lock lock(mutex());
    const auto found = memory().host.find(reinterpret_cast<std::uintptr_t>(pointer));
    if (found == memory().host.end() || found->second.registered) return cudaErrorInvalidValue;
    host_waited_for_card(found->second.card);  // as drivers do
    forget_uses(found->first, found->second.size);
    munmap(pointer, found->second.size);
    memory().host.erase(found);
    return cudaSuccess;
}

cudaError_t register_host(void* pointer, std::uint64_t size, unsigned flags) {
    if (pointer == nullptr || size == 0) return cudaErrorInvalidValue;
    if (const cudaError_t error = use_card(current_card())) return error;
    const Lock lock(mutex());
    const auto address = reinterpret_cast<std::uintptr_t>(pointer);
    Range range;
    if (find_range(pointer, &range)) return cudaErrorHostMemoryAlreadyRegistered;
    memory().host[address] = {address, size, Kind::host, current_card(), true, flags};
    return cudaSuccess;
}

cudaError_t unregister_host(void* pointer) {
    const Lock lock(mutex());
    const auto found = memory().host.find(reinterpret_cast<std::uintptr_t>(pointer));
    if (found == memory().host.end() || !found->second.registered) {
        return cudaErrorHostMemoryNotRegistered;
    }
    host_waited_for_card(found->second.card);
    forget_uses(found->first, found->second.size);
    memory().host.erase(found);
    return cudaSuccess;
}

bool find_range(const void* pointer, Range* range) {
    const Lock lock(mutex());
    const auto address = reinterpret_cast<std::uintptr_t>(pointer);
    return find_in(memory().allocations, address, range, &Allocation::range) ||
           find_in(memory().host, address, range) || find_in(memory().variables, address, range) ||
           find_mapping(address, range) || find_pooled(address, range);
}

bool reachable(const void* data, std::uint64_t size) {
    auto at = reinterpret_cast<std::uintptr_t>(data);
    const std::uintptr_t end = at + size;
    Range range;
    while (at < end) {
        if (!find_range(reinterpret_cast<const void*>(at), &range)) return false;
        if (range.address + range.size <= at) return false;
        at = range.address + range.size;
    }
    return true;
}

void each_range(const std::function<void(const Range&)>& act) {
    const Lock lock(mutex());
    for (const auto& [address, allocation] : memory().allocations) act(allocation.range);
    for (const auto& [address, range] : memory().host) act(range);
    for (const auto& [address, range] : memory().variables) act(range);
    each_mapping(act);
    each_pooled(act);
}

void add_variable(const Range& range) {
    const Lock lock(mutex());
    memory().variables[range.address] = range;
    forget_uses(range.address, range.size);
}

void remove_variables(int card) {
    const Lock lock(mutex());
    std::erase_if(memory().variables,
                  [card](const auto& entry) { return entry.second.card == card; });
}

}  // namespace simulator
