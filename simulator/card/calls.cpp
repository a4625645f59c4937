// Calls: counting them, the driver's start, the current card and the last error of a thread.
#include <pthread.h>

#include <atomic>

#include "compute.h"
#include "works.h"

namespace simulator {

namespace {

thread_local int thread_card = 0;
std::atomic<bool> started = false;
std::atomic<bool> forked = false;  // in a child whose parent had started the driver

void note_fork() { forked = started.load(); }

std::vector<Entry*>& all_entries() {
    static auto* const all = new std::vector<Entry*>;
    return *all;
}

}  // namespace

std::recursive_mutex& mutex() {
    static auto* const only = new std::recursive_mutex;  // outlives every destructor
    return *only;
}

Facts& facts() {
    static auto* const only = new Facts{.cards = std::vector<CardUse>(cards().size())};
    return *only;
}

std::recursive_mutex& turn_mutex() {
    static auto* const only = new std::recursive_mutex;
    return *only;
}

std::mutex& registry_mutex() {
    static auto* const only = new std::mutex;
    return *only;
}

std::vector<Entry*> entries() {
    const RegistryLock lock(registry_mutex());
    return all_entries();
}

void add_entries(Entry** begin, Entry** end) {
    const RegistryLock lock(registry_mutex());
    all_entries().insert(all_entries().end(), begin, end);
}

cudaError_t start() {
    if (forked) return cudaErrorInitializationError;
    if (!started.exchange(true)) {
        pthread_atfork(nullptr, nullptr, note_fork);
        changed();  // a program that only asks for cards leaves a report, too
    }
    return cards().empty() ? cudaErrorNoDevice : cudaSuccess;
}

int current_card() { return thread_card; }

cudaError_t set_current_card(int card) {
    if (const cudaError_t error = start()) return error;
    if (card < 0 || card >= static_cast<int>(cards().size())) return cudaErrorInvalidDevice;
    thread_card = card;
    return cudaSuccess;
}

cudaError_t use_card(int card) {
    if (const cudaError_t error = start()) return error;
    if (card < 0 || card >= static_cast<int>(cards().size())) return cudaErrorInvalidDevice;
    const Lock lock(mutex());
    CardUse& use = facts().cards[card];
    if (use.started) return use.error;
    use.started = true;
    use.used += cards()[card].context;
    note_peak(card);
    changed();
    return use.used > cards()[card].memory ? cudaErrorMemoryAllocation : cudaSuccess;
}

void break_card(int card, cudaError_t error) {
    const Lock lock(mutex());
    facts().cards[card].error = error;
}

void reset_card(int card) {
    const Turn turn(turn_mutex());
    reset_programs(card);
    const Lock lock(mutex());
    host_waited_for_card(card);
    reset_streams(card);
    reset_physical(card);
    reset_allocations(card);
    reset_kernels(card);
    CardUse& use = facts().cards[card];
    if (use.started) use.used -= cards()[card].context;
    use.started = false;
    use.error = cudaSuccess;
    ++use.resets;
    changed();
}

unsigned resets(int card) {
    const Lock lock(mutex());
    return facts().cards[card].resets;
}

void unsupported(const char* function) {
    const Lock lock(mutex());
    const bool first = ++facts().unsupported[function] == 1;
    if (first) facts().unsupported_stacks[function] = stack();
    changed();
    if (first) write_report();
}

}  // namespace simulator
