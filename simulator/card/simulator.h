// The shared core of the simulated CUDA libraries (libsimulator.so): cards, memory, calls, report.
//
// libcudart, libcuda, libcublas and libcublasLt link with it, so that a process has one state.
// Errors are cudaError_t: the driver API's CUresult has the same numbers for what is common to both
// (driver_types.h, cuda.h), `driver_error` (kernels.h) maps those that differ.
// Every function locks for itself. None calls back into the program, except where it says so.
#pragma once

#include <driver_types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#define SIMULATOR_API __attribute__((visibility("default")))

namespace simulator {

// ---- Cards (config.cpp) ----

// One `card` of the file `cards`. Sizes are in bytes.
struct Card {
    int index = 0;
    std::string name;
    int major = 0, minor = 0;  // compute capability
    int multiprocessors = 0;
    std::uint64_t memory = 0;   // as cudaMemGetInfo's total
    std::uint64_t context = 0;  // taken when the card is first used
    std::uint64_t shared_per_block = 0, shared_per_block_optin = 0, shared_per_multiprocessor = 0;
    int registers_per_block = 0, registers_per_multiprocessor = 0;
    int threads_per_block = 0, threads_per_multiprocessor = 0;
    std::uint64_t l2 = 0;
    int bus_width = 0, memory_clock_khz = 0, clock_khz = 0;
    bool peer = false;  // peer access with the other cards is possible
};

struct Config {
    std::vector<Card> cards;
    std::uint64_t vocabulary = 0;  // of the model, in tokens; 0: unknown
    std::vector<std::uint32_t> tokens;
    // In mode count, a launch forgets all contents: what engines that sample or draft on the card read
    // back is then zeros, and not what was in the reused memory before.
    bool launches_write = false;
    bool compute = false;  // kernels run on the CPU, and memory has contents; else both are counted
    std::string ptx;       // where PTX is found by the digest of its machine code: DIGEST.ptx
    bool races = false;    // computed kernels are searched for races
    bool outputs = false;  // the report has a checksum of what each computed launch stored
};

// The configuration named by BUILDER_SIMULATOR; without cards where it is missing or wrong, which
// is printed to stderr once.
SIMULATOR_API const Config& config();
inline const std::vector<Card>& cards() { return config().cards; }
inline bool computes() { return config().compute; }

// ---- Calls (calls.cpp) ----

// One function of a simulated library. Collected in the linker's section "simulated" of each
// library, so that the report lists every function that is implemented by hand.
struct Entry {
    const char* name;
    std::atomic<std::uint64_t> count{0};
    constexpr explicit Entry(const char* function) : name(function) {}
};
SIMULATOR_API void add_entries(Entry** begin, Entry** end);

// First statement of every function that is implemented by hand: counts the call.
#define SIMULATED()                                                                              \
    static constinit ::simulator::Entry simulated_entry{__func__};                               \
    [[gnu::section("simulated"), gnu::used]] static ::simulator::Entry* simulated_pointer =      \
        &simulated_entry;                                                                        \
    simulated_entry.count.fetch_add(1, std::memory_order_relaxed)

// Once in each library: hands the library's entries to the report when it is loaded.
#define SIMULATED_LIBRARY()                                                                      \
    extern "C" {                                                                                 \
    [[gnu::visibility("hidden")]] extern ::simulator::Entry* __start_simulated[];                \
    [[gnu::visibility("hidden")]] extern ::simulator::Entry* __stop_simulated[];                 \
    }                                                                                            \
    [[gnu::constructor]] static void add_simulated_entries() {                                   \
        ::simulator::add_entries(__start_simulated, __stop_simulated);                           \
    }

// All that a generated stub does: counts the call, puts it into the report with its stack and
// writes the report at the first call of each function. The caller returns "not supported".
SIMULATOR_API void unsupported(const char* function);

// Starts the driver: the first call of every process that is not a registration of kernels.
// cudaErrorNoDevice: no cards; cudaErrorInitializationError: in a child of fork() whose parent
// used the cards, as with the real driver.
SIMULATOR_API cudaError_t start();

// ---- The calling thread's current card and last error (calls.cpp) ----

SIMULATOR_API int current_card();
SIMULATOR_API cudaError_t set_current_card(int card);
// Takes the context's memory when the card is first used. cudaErrorMemoryAllocation: no room.
// In mode compute, the error of a kernel that failed: the context is lost until cudaDeviceReset.
SIMULATOR_API cudaError_t use_card(int card);
void break_card(int card, cudaError_t error);
// Destroys all that the program has on the card (cudaDeviceReset): memory, pools, streams, events,
// and the context. Host memory and reserved addresses stay: they belong to no card.
SIMULATOR_API void reset_card(int card);
// How often the card was reset: addresses from before are no longer valid.
SIMULATOR_API unsigned resets(int card);

// As cudaGetErrorName and cudaGetErrorString return them.
SIMULATOR_API const char* error_name(cudaError_t error);
SIMULATOR_API const char* error_text(cudaError_t error);

// ---- Stacks and the report (stacks.cpp, report.cpp) ----

// The number of the caller's stack in the report; frames of the simulated libraries are left out.
SIMULATOR_API int stack();
// Something changed: the timer writes the report soon.
SIMULATOR_API void changed();
// Writes the report now.
SIMULATOR_API void write_report();

}  // namespace simulator
