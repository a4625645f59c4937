// Pools: memory in stream order (cudaMallocAsync). A pool takes memory of its card in larger pieces
// and gives it back at synchronizations, above its release threshold. A reset of the card leaves pools
// and their memory (cuda_runtime_api.h, cudaDeviceReset).
#include <algorithm>
#include <memory>

#include "works.h"

namespace simulator {

struct Pool {
    int card = 0;
    std::uint64_t most = 0;  // 0: not limited
    std::uint64_t threshold = 0, reserved = 0, reserved_high = 0, used = 0, used_high = 0;
    int reuse[3] = {1, 1, 1};  // event dependencies, opportunistic, internal dependencies
    bool destroyed = false;    // by the program: the pool goes when no allocation is left
};

namespace {

// Seen with driver 580.159.04; NVIDIA does not document in which steps a pool grows.
constexpr std::uint64_t kStep = 32 << 20;

struct Pooled {
    Range range;
    Pool* pool = nullptr;
    Account account;
};

struct Pools {
    std::map<int, std::unique_ptr<Pool>> defaults;
    std::map<int, Pool*> current;
    std::map<Pool*, std::unique_ptr<Pool>> created;
    std::map<std::uintptr_t, Pooled> allocations;
};

Pools& pools() {
    static auto* const all = new Pools;
    return *all;
}

// What the pool must take of the card for `size` more bytes.
std::uint64_t growth(const Pool& pool, std::uint64_t size) {
    const std::uint64_t unused = pool.reserved - pool.used;
    if (size <= unused) return 0;
    const std::uint64_t missing = size - unused;
    const std::uint64_t step = round_up(missing, kStep);
    return step <= free_bytes(pool.card) ? step : round_up(missing, kSegment);
}

void trim(Pool& pool, std::uint64_t keep) {
    const std::uint64_t kept = std::max(round_up(pool.used, kStep), keep);
    if (kept >= pool.reserved) return;
    facts().cards[pool.card].used -= pool.reserved - kept;
    pool.reserved = kept;
}

template <typename Act>
void each_pool(Act act) {
    for (auto& [card, pool] : pools().defaults) act(*pool);
    for (auto& [key, pool] : pools().created) act(*pool);
}

// Whether a handle of the program is a pool: a default one, or a made one that is not destroyed.
bool is_pool(Pool* pool) {
    const auto made = pools().created.find(pool);
    if (made != pools().created.end()) return !pool->destroyed;
    return std::ranges::any_of(pools().defaults,
                               [pool](const auto& entry) { return entry.second.get() == pool; });
}

bool has_allocations(const Pool* pool) {
    return std::ranges::any_of(pools().allocations,
                               [pool](const auto& entry) { return entry.second.pool == pool; });
}

// Gives back the memory of a pool without allocations, and forgets the pool.
void drop(Pool* pool) {
    facts().cards[pool->card].used -= pool->reserved;
    pools().created.erase(pool);
    changed();
}

void free_pooled(std::uintptr_t address, const Pooled& allocation) {
    forget_contents(address, allocation.range.size);
    forget_uses(address, allocation.range.size);
    allocation.pool->used -= round_up(allocation.range.size, kGranule);
    refund(allocation.pool->card, 0, allocation.range.size, allocation.account);
    unreserve_pages(address, round_up(allocation.range.size, kSegment));
}

}  // namespace

Pool* default_pool(int card) {
    const Lock lock(mutex());
    auto& pool = pools().defaults[card];
    if (pool == nullptr) pool.reset(new Pool{.card = card});
    return pool.get();
}

Pool* current_pool(int card) {
    const Lock lock(mutex());
    const auto found = pools().current.find(card);
    return found == pools().current.end() ? default_pool(card) : found->second;
}

cudaError_t set_current_pool(int card, Pool* pool) {
    const Lock lock(mutex());
    if (!is_pool(pool) || pool->card != card) return cudaErrorInvalidValue;
    pools().current[card] = pool;
    return cudaSuccess;
}

Pool* create_pool(int card, std::uint64_t most) {
    const Lock lock(mutex());
    auto pool = std::make_unique<Pool>(Pool{.card = card, .most = most});
    Pool* const key = pool.get();
    pools().created[key] = std::move(pool);
    return key;
}

cudaError_t destroy_pool(Pool* pool) {
    const Lock lock(mutex());
    if (!is_pool(pool) || !pools().created.contains(pool)) return cudaErrorInvalidValue;
    std::erase_if(pools().current, [pool](const auto& entry) { return entry.second == pool; });
    pool->destroyed = true;
    if (!has_allocations(pool)) drop(pool);
    return cudaSuccess;
}

cudaError_t pool_allocate(Pool* pool, std::uint64_t size, const char* function, void** pointer) {
    *pointer = nullptr;
    const Lock lock(mutex());
    if (!is_pool(pool)) return cudaErrorInvalidValue;
    if (const cudaError_t error = use_card(pool->card)) return error;
    if (size == 0) return cudaSuccess;
    const std::uint64_t taken = round_up(size, kGranule);
    const std::uint64_t more =
        pool->most != 0 && taken > pool->most - pool->used ? ~std::uint64_t{0} : growth(*pool, taken);
    Pooled allocation{.range = {.size = size, .card = pool->card}, .pool = pool};
    const cudaError_t error = charge(pool->card, more, size, function, &allocation.account);
    if (error != cudaSuccess) return error;
    allocation.range.address = reserve_pages(round_up(size, kSegment));
    if (allocation.range.address == 0) {  // a limit on the process's addresses
        refund(pool->card, more, size, allocation.account);
        return cudaErrorMemoryAllocation;
    }
    pool->reserved += more;
    pool->used += taken;
    pool->reserved_high = std::max(pool->reserved_high, pool->reserved);
    pool->used_high = std::max(pool->used_high, pool->used);
    *pointer = reinterpret_cast<void*>(allocation.range.address);
    poison(*pointer, size);
    pools().allocations.emplace(allocation.range.address, std::move(allocation));
    return cudaSuccess;
}

bool pool_release(std::uintptr_t address) {
    const auto found = pools().allocations.find(address);
    if (found == pools().allocations.end()) return false;
    free_pooled(address, found->second);
    pools().allocations.erase(found);
    return true;
}

bool find_pooled(std::uintptr_t address, Range* range) {
    return find_in(pools().allocations, address, range, &Pooled::range);
}

void each_pooled(const std::function<void(const Range&)>& act) {
    for (const auto& [address, pooled] : pools().allocations) act(pooled.range);
}

cudaError_t pool_get(Pool* pool, cudaMemPoolAttr attribute, void* value) {
    const Lock lock(mutex());
    if (!is_pool(pool)) return cudaErrorInvalidValue;
    auto* const size = static_cast<std::uint64_t*>(value);
    switch (attribute) {
        case cudaMemPoolReuseFollowEventDependencies:
        case cudaMemPoolReuseAllowOpportunistic:
        case cudaMemPoolReuseAllowInternalDependencies:
            *static_cast<int*>(value) =
                pool->reuse[attribute - cudaMemPoolReuseFollowEventDependencies];
            return cudaSuccess;
        case cudaMemPoolAttrReleaseThreshold: *size = pool->threshold; return cudaSuccess;
        case cudaMemPoolAttrReservedMemCurrent: *size = pool->reserved; return cudaSuccess;
        case cudaMemPoolAttrReservedMemHigh: *size = pool->reserved_high; return cudaSuccess;
        case cudaMemPoolAttrUsedMemCurrent: *size = pool->used; return cudaSuccess;
        case cudaMemPoolAttrUsedMemHigh: *size = pool->used_high; return cudaSuccess;
        default: return cudaErrorInvalidValue;
    }
}

cudaError_t pool_set(Pool* pool, cudaMemPoolAttr attribute, const void* value) {
    const Lock lock(mutex());
    if (!is_pool(pool)) return cudaErrorInvalidValue;
    switch (attribute) {
        case cudaMemPoolReuseFollowEventDependencies:
        case cudaMemPoolReuseAllowOpportunistic:
        case cudaMemPoolReuseAllowInternalDependencies:
            pool->reuse[attribute - cudaMemPoolReuseFollowEventDependencies] =
                *static_cast<const int*>(value);
            return cudaSuccess;
        case cudaMemPoolAttrReleaseThreshold:
            pool->threshold = *static_cast<const std::uint64_t*>(value);
            return cudaSuccess;
        case cudaMemPoolAttrReservedMemHigh: pool->reserved_high = pool->reserved; return cudaSuccess;
        case cudaMemPoolAttrUsedMemHigh: pool->used_high = pool->used; return cudaSuccess;
        default: return cudaErrorInvalidValue;
    }
}

cudaError_t pool_trim(Pool* pool, std::uint64_t keep) {
    const Lock lock(mutex());
    if (!is_pool(pool)) return cudaErrorInvalidValue;
    trim(*pool, keep);
    return cudaSuccess;
}

void trim_pools() {
    const Lock lock(mutex());
    each_pool([](Pool& pool) { trim(pool, pool.threshold); });
    // Not at the last free, which is in the order of its stream: the memory of a destroyed pool was
    // still taken after it (driver 580.159.04).
    std::vector<Pool*> unused;
    each_pool([&unused](Pool& pool) {
        if (pool.destroyed && !has_allocations(&pool)) unused.push_back(&pool);
    });
    for (Pool* const pool : unused) drop(pool);
}

cudaError_t graph_memory_get(int attribute, void* value) {
    if (value == nullptr || attribute < cudaGraphMemAttrUsedMemCurrent ||
        attribute > cudaGraphMemAttrReservedMemHigh) {
        return cudaErrorInvalidValue;
    }
    *static_cast<std::uint64_t*>(value) = 0;
    return cudaSuccess;
}

cudaError_t graph_memory_set(int attribute, const void* value) {
    const bool settable =
        attribute == cudaGraphMemAttrUsedMemHigh || attribute == cudaGraphMemAttrReservedMemHigh;
    // Only to reset it to zero (cuda_runtime_api.h).
    const bool right = settable && value != nullptr && *static_cast<const std::uint64_t*>(value) == 0;
    return right ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace simulator
