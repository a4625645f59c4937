// The order of works: what of a card's streams may run at the same time (../ptx/order.h), where races
// are looked for. Elsewhere every function here does nothing.
#pragma once

#include <functional>
#include <memory>

#include "internal.h"
#include "streams.h"

namespace ptx {
class Overlap;
}

namespace simulator {

struct StreamOrder;  // of a stream: how far it has come, and what it knows of others
struct EventOrder;

// Whether works are watched: mode compute, with races.
bool watches();

// A work of a stream, while the calling thread does it. May wait for another thread's turn: made
// without the lock.
class Doing {
public:
    Doing(cudaStream_t stream, const Work& work);
    // A call without a stream, in the order of the legacy default stream.
    Doing(const char* name, int card);
    ~Doing();
    Doing(const Doing&) = delete;
    Doing& operator=(const Doing&) = delete;

private:
    std::shared_ptr<ptx::Overlap> before_;
};
// What the calling thread does; null: nothing, or it is not watched.
ptx::Overlap* doing();

// A graph's nodes as works: each after those it depends on, by their positions.
struct Node {
    Work work;
    std::vector<std::size_t> dependencies;
    bool enabled = true;
};
cudaError_t perform_graph(cudaStream_t stream, const std::vector<Node>& nodes);

// The calling thread's work uses these bytes. Memory that no card can reach is not looked at.
// cudaErrorLaunchFailure: another work uses them, too, and nothing orders the two; the report says
// so, and the card is lost as after a race of a kernel.
cudaError_t uses(const void* address, std::uint64_t size, bool writes, const char* verb = nullptr);
// The host frees a pool's memory itself, in no stream's order: its work must be complete (CUDA
// Programming Guide, "Stream Ordered Memory Allocator"). The caller has the turn.
cudaError_t host_frees(std::uintptr_t address, std::uint64_t size);
// What was there is gone: freed, unmapped. The caller locks.
void forget_uses(std::uintptr_t address, std::uint64_t size);

// ---- What orders works; the caller locks ----

void event_recorded(cudaEvent_t event, cudaStream_t stream);
void event_awaited(cudaStream_t stream, cudaEvent_t event);
void host_waited(cudaStream_t stream);
void host_waited(cudaEvent_t event);
void host_waited_for_card(int card);
// The host knows that the calling thread's work is done: a copy to memory of the program's own.
void host_waited_for_this();

}  // namespace simulator
