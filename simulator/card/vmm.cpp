// Virtual memory management: addresses, physical memory, and mappings of one to the other.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "works.h"

namespace simulator {

namespace {

struct Physical {
    int card = 0;
    std::uint64_t size = 0;
    int mappings = 0;
    bool released = false;  // by the program
    int file = -1;          // the memory itself, in mode compute
    Account account;
};

struct Mapping {
    Range range;
    std::uint64_t handle = 0;
};

struct Virtual {
    std::map<std::uintptr_t, std::uint64_t> reserved;  // address: size
    std::map<std::uint64_t, Physical> physical;
    std::map<std::uintptr_t, Mapping> mappings;
    std::uint64_t next = 1;
};

Virtual& virtual_memory() {
    static auto* const all = new Virtual;
    return *all;
}

// All addresses of `reserve`: start and size.
std::map<std::uintptr_t, std::uint64_t>& without_pages() {
    static auto* const all = new std::map<std::uintptr_t, std::uint64_t>;
    return *all;
}

// Whether [address, address + size) is within one reservation.
bool is_reserved(std::uintptr_t address, std::uint64_t size) {
    const auto next = virtual_memory().reserved.upper_bound(address);
    if (next == virtual_memory().reserved.begin()) return false;
    const auto& [start, length] = *std::prev(next);
    return address - start < length && size <= length - (address - start);
}

bool is_mapped(std::uintptr_t address, std::uint64_t size) {
    const auto next = virtual_memory().mappings.lower_bound(address + size);
    if (next == virtual_memory().mappings.begin()) return false;
    const Range& last = std::prev(next)->second.range;
    return last.address + last.size > address;
}

void drop_if_unused(std::uint64_t handle) {
    const Physical& physical = virtual_memory().physical.at(handle);
    if (!physical.released || physical.mappings > 0) return;
    refund(physical.card, physical.size, physical.size, physical.account);
    if (physical.file >= 0) close(physical.file);
    virtual_memory().physical.erase(handle);
}

// The pages that the addresses of a mapping get, and lose again.
bool map_pages(std::uintptr_t address, std::uint64_t size, std::uint64_t offset, int file) {
    return mmap(reinterpret_cast<void*>(address), size, PROT_READ | PROT_WRITE,
                MAP_SHARED | MAP_FIXED, file, static_cast<off_t>(offset)) != MAP_FAILED;
}
void unmap_pages(std::uintptr_t address, std::uint64_t size) {
    mmap(reinterpret_cast<void*>(address), size, PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

}  // namespace

std::uintptr_t reserve(std::uint64_t size, std::uint64_t alignment) {
    const std::uint64_t length = size + alignment;
    void* const pages = mmap(nullptr, length, PROT_NONE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pages == MAP_FAILED) return 0;
    const auto start = reinterpret_cast<std::uintptr_t>(pages);
    const std::uintptr_t aligned = round_up(start, alignment);
    if (aligned > start) munmap(pages, aligned - start);
    const std::uintptr_t end = aligned + size;
    if (start + length > end) munmap(reinterpret_cast<void*>(end), start + length - end);
    without_pages()[aligned] = size;
    return aligned;
}

void unreserve(std::uintptr_t address, std::uint64_t size) {
    munmap(reinterpret_cast<void*>(address), size);
    without_pages().erase(address);
}

std::uintptr_t reserve_pages(std::uint64_t size) {
    if (!computes()) return reserve(size, kSegment);
    const std::uintptr_t address = reserve(size + kSegment, kSegment);
    void* const start = reinterpret_cast<void*>(address);
    if (address == 0 || mprotect(start, size, PROT_READ | PROT_WRITE) == 0) return address;
    unreserve(address, size + kSegment);
    return 0;
}

void poison(void* memory, std::uint64_t size) {
    constexpr std::uint64_t kMost = 64 << 20;  // what is never used costs no memory of the host
    if (computes()) std::memset(memory, 0xff, std::min(size, kMost));
}

void unreserve_pages(std::uintptr_t address, std::uint64_t size) {
    unreserve(address, size + (computes() ? kSegment : 0));
}

bool has_no_pages(std::uintptr_t address) {
    const auto next = without_pages().upper_bound(address);
    if (next == without_pages().begin()) return false;
    const auto& [start, size] = *std::prev(next);
    return address - start < size;
}

cudaError_t reserve_addresses(std::uint64_t size, std::uint64_t alignment,
                              std::uintptr_t* address) {
    if (size == 0 || size % kSegment != 0) return cudaErrorInvalidValue;
    const Lock lock(mutex());
    *address = reserve(size, alignment == 0 ? kSegment : round_up(alignment, kSegment));
    if (*address == 0) return cudaErrorMemoryAllocation;
    virtual_memory().reserved[*address] = size;
    return cudaSuccess;
}

cudaError_t free_addresses(std::uintptr_t address, std::uint64_t size) {
    const Lock lock(mutex());
    const auto found = virtual_memory().reserved.find(address);
    if (found == virtual_memory().reserved.end() || found->second != size || is_mapped(address, size)) {
        return cudaErrorInvalidValue;
    }
    unreserve(address, size);
    virtual_memory().reserved.erase(found);
    return cudaSuccess;
}

cudaError_t create_physical(int card, std::uint64_t size, const char* function,
                            std::uint64_t* handle) {
    if (size == 0 || size % kSegment != 0) return cudaErrorInvalidValue;
    const Lock lock(mutex());
    Physical physical{.card = card, .size = size};
    const cudaError_t error = charge(card, size, size, function, &physical.account);
    if (error != cudaSuccess) return error;
    if (computes()) {
        physical.file = memfd_create("memory of a simulated card", MFD_CLOEXEC);
        if (physical.file < 0 || ftruncate(physical.file, static_cast<off_t>(size)) != 0) {
            refund(card, size, size, physical.account);
            if (physical.file >= 0) close(physical.file);
            return cudaErrorMemoryAllocation;
        }
        void* const pages =
            mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, physical.file, 0);
        if (pages != MAP_FAILED) {
            poison(pages, size);
            munmap(pages, size);
        }
    }
    *handle = virtual_memory().next++;
    virtual_memory().physical.emplace(*handle, std::move(physical));
    return cudaSuccess;
}

cudaError_t release_physical(std::uint64_t handle) {
    const Lock lock(mutex());
    const auto found = virtual_memory().physical.find(handle);
    if (found == virtual_memory().physical.end() || found->second.released) return cudaErrorInvalidValue;
    found->second.released = true;
    drop_if_unused(handle);
    return cudaSuccess;
}

cudaError_t map_physical(std::uintptr_t address, std::uint64_t size, std::uint64_t offset,
                         std::uint64_t handle) {
    const Lock lock(mutex());
    const auto found = virtual_memory().physical.find(handle);
    const bool whole = size != 0 && size % kSegment == 0 && address % kSegment == 0;
    if (found == virtual_memory().physical.end() || !whole || offset > found->second.size ||
        size > found->second.size - offset || !is_reserved(address, size) ||
        is_mapped(address, size)) {
        return cudaErrorInvalidValue;
    }
    if (computes() && !map_pages(address, size, offset, found->second.file)) {
        return cudaErrorMemoryAllocation;
    }
    ++found->second.mappings;
    virtual_memory().mappings[address] = {{.address = address, .size = size, .card = found->second.card},
                                  handle};
    return cudaSuccess;
}

// One mapping or several that follow each other.
cudaError_t unmap(std::uintptr_t address, std::uint64_t size) {
    const Turn turn(turn_mutex());
    const Lock lock(mutex());
    std::uintptr_t next = address;
    while (next < address + size) {
        const auto found = virtual_memory().mappings.find(next);
        if (found == virtual_memory().mappings.end()) return cudaErrorInvalidValue;
        next += found->second.range.size;
    }
    if (next != address + size) return cudaErrorInvalidValue;
    forget_contents(address, size);
    forget_uses(address, size);
    if (computes()) unmap_pages(address, size);
    for (next = address; next < address + size;) {
        const Mapping mapping = virtual_memory().mappings.at(next);
        virtual_memory().mappings.erase(next);
        --virtual_memory().physical.at(mapping.handle).mappings;
        drop_if_unused(mapping.handle);
        next += mapping.range.size;
    }
    return cudaSuccess;
}

void reset_physical(int card) {
    std::erase_if(virtual_memory().mappings, [card](const auto& entry) {
        if (entry.second.range.card != card) return false;
        forget_contents(entry.second.range.address, entry.second.range.size);
        if (computes()) unmap_pages(entry.second.range.address, entry.second.range.size);
        return true;
    });
    std::erase_if(virtual_memory().physical, [card](const auto& entry) {
        const Physical& physical = entry.second;
        if (physical.card != card) return false;
        refund(card, physical.size, physical.size, physical.account);
        if (physical.file >= 0) close(physical.file);
        return true;
    });
}

void each_mapping(const std::function<void(const Range&)>& act) {
    for (const auto& [address, mapping] : virtual_memory().mappings) act(mapping.range);
}

bool find_mapping(std::uintptr_t address, Range* range) {
    return find_in(virtual_memory().mappings, address, range, &Mapping::range);
}

}  // namespace simulator
