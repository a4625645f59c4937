// In the place of compute.cpp, in libraries that only count: compiled in a quarter of the time.
#include <cstdio>
#include <cstdlib>

#include "compute.h"
#include "kernels.h"
#include "works.h"

namespace simulator {

namespace {

// config.cpp has refused mode compute.
[[noreturn]] void refuse() {
    std::fputs("simulator: these libraries only count\n", stderr);
    std::abort();
}

}  // namespace

const bool kComputes = false;

cudaError_t take_arguments(Launch&, void* const*, void* const*) { refuse(); }
cudaError_t compute(const Launch&) { refuse(); }
bool watches() { return false; }
ptx::Overlap* doing() { return nullptr; }
Doing::Doing(cudaStream_t, const Work&) {}
Doing::Doing(const char*, int) {}
Doing::~Doing() = default;
cudaError_t perform_graph(cudaStream_t, const std::vector<Node>& nodes) {
    for (const Node& node : nodes) {
        if (!node.enabled) continue;
        if (const cudaError_t error = perform(node.work)) return error;
    }
    return cudaSuccess;
}
cudaError_t uses(const void*, std::uint64_t, bool, const char*) { return cudaSuccess; }
cudaError_t host_frees(std::uintptr_t, std::uint64_t) { return cudaSuccess; }
void forget_uses(std::uintptr_t, std::uint64_t) {}
void event_recorded(cudaEvent_t, cudaStream_t) {}
void event_awaited(cudaStream_t, cudaEvent_t) {}
void host_waited(cudaStream_t) {}
void host_waited(cudaEvent_t) {}
void host_waited_for_card(int) {}
void host_waited_for_this() {}
void reset_programs(int) {}
void load_programs(Module*) {}
cudaError_t module_variable(Module*, int, const char*, void**, std::size_t*) { refuse(); }

}  // namespace simulator
