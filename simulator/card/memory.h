// Memory of the simulated cards: addresses without pages behind them, and the accounting.
#pragma once

#include "simulator.h"

namespace simulator {

constexpr std::uint64_t kSegment = 2 << 20;  // what cards map at once, and VMM's granularity
constexpr std::uint64_t kGranule = 512;      // of allocations that share a segment

enum class Kind { device, host, managed };

// An allocation or a mapping, by its addresses.
struct Range {
    std::uintptr_t address = 0;
    std::uint64_t size = 0;  // as asked for
    Kind kind = Kind::device;
    int card = 0;            // host memory: the card that was current
    bool registered = false;  // host memory that belongs to the program
    unsigned flags = 0;       // of cudaHostAlloc, cudaHostRegister
};

// cudaMalloc and its like: `function` stands in the report. *pointer: null where it fails.
// cudaErrorMemoryAllocation: the card is full; the report says so before this returns.
SIMULATOR_API cudaError_t allocate(int card, std::uint64_t size, const char* function,
                                   void** pointer, Kind kind = Kind::device);
// cudaErrorInvalidValue: not the start of an allocation. Null is freed without an error.
SIMULATOR_API cudaError_t release(void* pointer);
SIMULATOR_API void memory_info(int card, std::uint64_t* free, std::uint64_t* total);

// Host memory that the program may touch: backed by pages as they are touched.
SIMULATOR_API cudaError_t allocate_host(std::uint64_t size, unsigned flags, void** pointer);
SIMULATOR_API cudaError_t release_host(void* pointer);
SIMULATOR_API cudaError_t register_host(void* pointer, std::uint64_t size, unsigned flags);
SIMULATOR_API cudaError_t unregister_host(void* pointer);

// The range that holds the address; false: not known to the driver (pageable host memory).
SIMULATOR_API bool find_range(const void* pointer, Range* range);

// Whether all these bytes are in memory that a card can reach: one allocation, or mappings that
// follow each other.
SIMULATOR_API bool reachable(const void* data, std::uint64_t size);

// ---- Virtual memory management, for libcuda: addresses and physical memory apart ----

// Addresses only; `alignment` 0: 2 MiB.
SIMULATOR_API cudaError_t reserve_addresses(std::uint64_t size, std::uint64_t alignment,
                                            std::uintptr_t* address);
SIMULATOR_API cudaError_t free_addresses(std::uintptr_t address, std::uint64_t size);
// Memory of a card without addresses, counted as `allocate` does; a multiple of 2 MiB.
SIMULATOR_API cudaError_t create_physical(int card, std::uint64_t size, const char* function,
                                          std::uint64_t* handle);
// Drops the program's reference; the memory is freed when no mapping is left.
SIMULATOR_API cudaError_t release_physical(std::uint64_t handle);
SIMULATOR_API cudaError_t map_physical(std::uintptr_t address, std::uint64_t size,
                                       std::uint64_t offset, std::uint64_t handle);
SIMULATOR_API cudaError_t unmap(std::uintptr_t address, std::uint64_t size);

// ---- Pools (cudaMallocAsync) ----

struct Pool;
SIMULATOR_API Pool* default_pool(int card);
SIMULATOR_API Pool* current_pool(int card);
SIMULATOR_API cudaError_t set_current_pool(int card, Pool* pool);
SIMULATOR_API Pool* create_pool(int card, std::uint64_t most);  // `most` 0: not limited
// The pool goes with its last allocation; from now on nothing can be allocated from it.
SIMULATOR_API cudaError_t destroy_pool(Pool* pool);
SIMULATOR_API cudaError_t pool_allocate(Pool* pool, std::uint64_t size, const char* function,
                                        void** pointer);
// cudaMemPoolAttr's values; sizes are 64 bits, flags an int, as driver_types.h says.
SIMULATOR_API cudaError_t pool_get(Pool* pool, cudaMemPoolAttr attribute, void* value);
// What a captured stream allocates is a pool's memory here, from the capture on: graphs have none.
SIMULATOR_API cudaError_t graph_memory_get(int attribute, void* value);
SIMULATOR_API cudaError_t graph_memory_set(int attribute, const void* value);
SIMULATOR_API cudaError_t pool_set(Pool* pool, cudaMemPoolAttr attribute, const void* value);
SIMULATOR_API cudaError_t pool_trim(Pool* pool, std::uint64_t keep);
// At a synchronization: pools give back what is above their release threshold.
SIMULATOR_API void trim_pools();

// ---- Contents (contents.cpp) ----

// A copy whose direction follows from the addresses; counts it, and makes what can be made:
// host to host always, to a card below the configured bound, from a card what was kept there,
// else logits or zeros. cudaErrorInvalidValue: a range that leaves its allocation.
SIMULATOR_API cudaError_t copy(void* destination, const void* source, std::uint64_t size);
SIMULATOR_API cudaError_t copy_2d(void* destination, std::uint64_t destination_pitch,
                                  const void* source, std::uint64_t source_pitch,
                                  std::uint64_t width, std::uint64_t height);
// `size` bytes of elements of 1, 2 or 4 bytes.
SIMULATOR_API cudaError_t fill(void* destination, unsigned value, std::uint64_t size,
                               unsigned element = 1);
// Forgets what was kept of these addresses.
void forget_contents(std::uintptr_t address, std::uint64_t size);
// Nothing that was written is known any more; the caller locks.
void forget_all_contents();
// A number on a card, 0 where nothing is kept there; and what a kernel stored. The caller locks.
std::int32_t kept_number(const std::int32_t* on_card);
void keep_result(void* on_card, std::vector<unsigned char> bytes);

}  // namespace simulator
