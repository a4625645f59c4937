// What the files of libsimulator.so share with each other only.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kernels.h"
#include "memory.h"

namespace simulator {

// One lock for all state. Recursive: public functions call each other.
SIMULATOR_API std::recursive_mutex& mutex();
using Lock = std::lock_guard<std::recursive_mutex>;
// Whoever does a stream's work, or frees memory that such work may use, has the turn: as on a card,
// memory stays while a kernel runs. Taken before `mutex`, which computed kernels need.
std::recursive_mutex& turn_mutex();
using Turn = std::lock_guard<std::recursive_mutex>;
// Guards the registrations of libraries that are loaded. The loader calls their constructors with its own
// lock held, which naming a stack needs (dladdr): they must not wait for `mutex`. Whoever holds this
// one takes no other and asks nothing of the loader.
std::mutex& registry_mutex();
using RegistryLock = std::lock_guard<std::mutex>;

// ---- The code table (code.cpp) ----

// A fat binary in the image, and its kernels' attributes for the card.
struct Code {
    std::string file;            // resolved path
    std::uint64_t address = 0;   // virtual address in the file
    std::string code;            // sm_…, compute_… or none
    std::map<std::string, Attributes, std::less<>> kernels;
};
// Reads the file `code` at the first call. Null: not in the table.
const Code* find_code(const std::string& file, std::uint64_t address);

// ---- Where an address belongs (stacks.cpp) ----

// The file that holds an address, resolved, and the address within it as its ELF headers count.
// An empty path: no loaded file.
struct Place {
    std::string file, symbol;
    std::uint64_t offset = 0;
};
Place place_of(const void* address);
// All stacks seen, by their number; each frame as the report shows it.
const std::vector<std::vector<std::string>>& stacks();

// ---- What the report shows besides (report.cpp writes, the others fill) ----

struct AllocationCount {
    std::uint64_t count = 0, live = 0, at_peak = 0, largest = 0;
};
struct Failure {
    int stack = 0, card = 0;
    std::string function;
    std::uint64_t requested = 0, free = 0;
};
struct Violation {
    std::string kernel, error, why;
    dim3 grid, block;
    std::uint64_t shared = 0;
    int stack = 0;
    std::uint64_t count = 0;
};
struct LaunchCount {
    std::string kernel, file, code;
    int card = 0;
    std::uint64_t count = 0;
    dim3 grid{0, 0, 0}, block{0, 0, 0};  // the largest seen, by volume
    std::uint64_t shared = 0;
    std::uint64_t computed = 0, instructions = 0, nanoseconds = 0;  // launches; of all lanes
};
// A launch that was computed: its kernel and card, and the checksum of what it stored.
struct Output {
    std::pair<const Kernel*, int> launch;
    std::uint64_t checksum = 0;
};
constexpr std::size_t kOutputs = 1 << 14;  // of a process, the first ones: what a report may have
struct CopyCount {
    std::uint64_t count = 0, bytes = 0, kept = 0;
};
struct CardUse {
    std::uint64_t used = 0, peak = 0;  // with the context
    bool started = false;              // the context's memory is taken
    unsigned resets = 0;
    cudaError_t error = cudaSuccess;  // of a kernel that failed
};

// All that the report shows, under the lock.
struct Facts {
    std::map<std::string, int> unsupported_stacks;
    std::map<std::string, std::uint64_t> unsupported;
    std::map<std::tuple<int, int, std::string>, AllocationCount> allocations;  // stack, card, function
    std::vector<Failure> failed;
    std::vector<Violation> violations;
    std::map<std::pair<const Kernel*, int>, LaunchCount> launches;  // kernel, card
    std::vector<Output> outputs;  // in the order of the launches
    CopyCount to_device, to_host, on_device;
    std::vector<CardUse> cards;
};
Facts& facts();

// ---- Accounting (accounts.cpp) ----

// Whose memory it is: stack, card and function of the allocation.
using Account = std::tuple<int, int, std::string>;
// Takes `bytes` of the card for an allocation of `requested` bytes, and books it.
// cudaErrorMemoryAllocation: the card is full, which the report says before this returns.
cudaError_t charge(int card, std::uint64_t bytes, std::uint64_t requested, const char* function,
                   Account* account);
void refund(int card, std::uint64_t bytes, std::uint64_t requested, const Account& account);
std::uint64_t free_bytes(int card);
// After `used` of the card has grown.
void note_peak(int card);

// ---- Address space (vmm.cpp) ----

// Addresses without pages; 0: there are none left.
std::uintptr_t reserve(std::uint64_t size, std::uint64_t alignment);
void unreserve(std::uintptr_t address, std::uint64_t size);
// Addresses for memory of a card, a multiple of 2 MiB: with pages in mode compute. There, something
// that is nothing's memory follows, so that an index out of bounds meets no other allocation.
std::uintptr_t reserve_pages(std::uint64_t size);
void unreserve_pages(std::uintptr_t address, std::uint64_t size);
// In mode compute: memory that nothing wrote is no zeros, but NaNs and -1.
void poison(void* memory, std::uint64_t size);
// Whether the address is within `reserve`d ones: it is not the program's own memory.
bool has_no_pages(std::uintptr_t address);
// The largest multiple of the unit for a size that has no larger one: no card has so much.
constexpr std::uint64_t round_up(std::uint64_t size, std::uint64_t unit) {
    const std::uint64_t largest = ~std::uint64_t{0} / unit * unit;
    return size > largest ? largest : (size + unit - 1) / unit * unit;
}
// The last range that starts at or before the address, if it holds the address.
template <typename Ranges, typename Get = std::identity>
bool find_in(const Ranges& ranges, std::uintptr_t address, Range* range, Get get = {}) {
    const auto next = ranges.upper_bound(address);
    if (next == ranges.begin()) return false;
    const Range& candidate = std::invoke(get, std::prev(next)->second);
    if (address - candidate.address >= std::max<std::uint64_t>(candidate.size, 1)) return false;
    *range = candidate;
    return true;
}
// The VMM mapping that holds the address; false: none (vmm.cpp).
bool find_mapping(std::uintptr_t address, Range* range);
// Calls `act` for every range that the driver knows; under the lock.
void each_range(const std::function<void(const Range&)>& act);
void each_mapping(const std::function<void(const Range&)>& act);  // vmm.cpp
void each_pooled(const std::function<void(const Range&)>& act);   // pools.cpp
// Variables of modules, in mode compute: memory that the card has and nobody allocated (memory.cpp).
void add_variable(const Range& range);
void remove_variables(int card);
// The pool that `address` was allocated from takes it back; false: no pool's (pools.cpp).
bool pool_release(std::uintptr_t address);
bool find_pooled(std::uintptr_t address, Range* range);

// ---- What kernels store, in mode count (results.cpp) ----

// A launch was done, with `each` argument's address; null: not known.
void store_results(const Launch& launch, void* const* each);
// A kernel was launched, also by a graph.
void note_kernel(std::string_view name);
// Whether the last kernel of this thread found that all values are finite; asked once.
bool take_all_finite();

// ---- What a reset of the card destroys (reset_card) ----

void reset_allocations(int card);  // memory.cpp
void reset_physical(int card);     // vmm.cpp
void reset_streams(int card);      // streams.cpp
void reset_kernels(int card);      // modules.cpp: what cudaFuncSetAttribute allowed

// Counts a wrong call in the report, which is written at the first time.
void add_violation(Violation made);  // refusals.cpp
void violate(const std::string& kernel, cudaError_t error, const std::string& why,
             const dim3& grid = {0, 0, 0}, const dim3& block = {0, 0, 0}, std::uint64_t shared = 0);


// Every hand-written function of the loaded libraries.
std::vector<Entry*> entries();
// The kernels of code that the table does not have, by file (modules.cpp).
std::map<std::string, std::vector<std::string>> unknown_code();

}  // namespace simulator
