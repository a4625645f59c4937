// Streams, events and graphs. A stream's work is done when it is asked for, in that order.
#pragma once

#include <functional>
#include <variant>

#include "kernels.h"

namespace simulator {

// ---- What a stream does ----

struct CopyWork {
    cudaMemcpy3DParms parameters;  // one-dimensional copies: extent {bytes, 1, 1}
};
struct FillWork {
    cudaMemsetParams parameters;
};
struct HostWork {
    cudaHostFn_t function;
    void* data;
};
struct EventWork {
    cudaEvent_t event;
    bool wait;  // else: record
};
struct MemoryWork {  // an allocation or a release in stream order
    void* pointer;
    bool release;
};
struct ChildWork {
    cudaGraph_t graph;
};
// What a library of CUDA's does there, such as a product; nothing: as in mode count.
struct EmptyWork {
    std::function<cudaError_t()> compute;
};
struct KernelWork {
    Launch launch;
    const void* function = nullptr;  // as a graph's node names it
};
using Work = std::variant<KernelWork, CopyWork, FillWork, HostWork, ChildWork, EmptyWork, EventWork,
                          MemoryWork>;

// Does the work now or, while the stream is captured, adds it to the graph; *captured says which.
// cudaErrorInvalidResourceHandle: not a stream.
SIMULATOR_API cudaError_t submit(cudaStream_t stream, Work work, bool* captured = nullptr);
// Frees memory of a card in the stream's order: at once or, while it is captured, as a node.
SIMULATOR_API cudaError_t release_in_order(cudaStream_t stream, void* pointer);
// Does it now; used by graph launches. May call host functions of the program: holds no lock.
cudaError_t perform(const Work& work);

// A copy that is complete when this returns, in the order of the legacy default stream; from one
// place of a card to another, it may be complete later (CUDA Runtime API, "API synchronization
// behavior").
SIMULATOR_API cudaError_t copy_now(void* to, std::uint64_t to_pitch, const void* from,
                                   std::uint64_t from_pitch, std::uint64_t width,
                                   std::uint64_t height);
// That such a copy was submitted by its caller.
SIMULATOR_API void copied_now(const void* to, const void* from);
// All cards' work comes before what follows, as copies between cards have it.
SIMULATOR_API void order_cards();

// ---- Streams ----

// The priorities that all cards since compute capability 7.0 have. A priority outside of the range is moved to its end.
constexpr int kLeastPriority = 0, kGreatestPriority = -5;
SIMULATOR_API cudaError_t create_stream(unsigned flags, int priority, cudaStream_t* stream);
SIMULATOR_API cudaError_t destroy_stream(cudaStream_t stream);
// cudaErrorStreamCaptureUnsupported: the stream is captured, which the wait would end.
SIMULATOR_API cudaError_t synchronize_stream(cudaStream_t stream);
// Waits for all streams of the card.
SIMULATOR_API void synchronize_card(int card);
// As synchronize_stream, for a program that does not wait.
SIMULATOR_API cudaError_t query_stream(cudaStream_t stream);
SIMULATOR_API cudaError_t stream_info(cudaStream_t stream, int* card = nullptr,
                                      unsigned* flags = nullptr, int* priority = nullptr,
                                      unsigned long long* id = nullptr);
SIMULATOR_API cudaError_t wait_event(cudaStream_t stream, cudaEvent_t event);
// Whether a call that is not allowed during a capture may be made now; else
// cudaErrorStreamCaptureUnsupported, and the capture is invalid. `function` is named in the report.
SIMULATOR_API cudaError_t check_unsafe_call(const char* function = __builtin_FUNCTION());

// ---- Events ----

SIMULATOR_API cudaError_t create_event(unsigned flags, cudaEvent_t* event);
SIMULATOR_API cudaError_t destroy_event(cudaEvent_t event);
SIMULATOR_API cudaError_t record_event(cudaEvent_t event, cudaStream_t stream);
SIMULATOR_API cudaError_t query_event(cudaEvent_t event);
SIMULATOR_API cudaError_t elapsed(cudaEvent_t start, cudaEvent_t end, float* milliseconds);

// ---- Capture ----

SIMULATOR_API cudaError_t begin_capture(cudaStream_t stream, cudaStreamCaptureMode mode,
                                        cudaGraph_t into);
SIMULATOR_API cudaError_t end_capture(cudaStream_t stream, cudaGraph_t* graph);
SIMULATOR_API cudaError_t capture_status(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                         unsigned long long* id = nullptr,
                                         cudaGraph_t* graph = nullptr,
                                         const cudaGraphNode_t** dependencies = nullptr,
                                         std::size_t* count = nullptr);
SIMULATOR_API cudaError_t set_capture_dependencies(cudaStream_t stream, cudaGraphNode_t* nodes,
                                                   std::size_t count, bool add);
SIMULATOR_API cudaStreamCaptureMode exchange_capture_mode(cudaStreamCaptureMode mode);

// ---- Graphs ----

SIMULATOR_API cudaGraph_t create_graph();
SIMULATOR_API cudaError_t destroy_graph(cudaGraph_t graph);
SIMULATOR_API cudaError_t add_node(cudaGraph_t graph, Work work, const cudaGraphNode_t* dependencies,
                                   std::size_t count, cudaGraphNode_t* node);
SIMULATOR_API cudaError_t instantiate(cudaGraph_t graph, unsigned long long flags,
                                      cudaGraphExec_t* executable);
SIMULATOR_API cudaError_t destroy_executable(cudaGraphExec_t executable);
SIMULATOR_API cudaError_t update(cudaGraphExec_t executable, cudaGraph_t graph,
                                 cudaGraphExecUpdateResultInfo* result);
SIMULATOR_API cudaError_t launch_graph(cudaGraphExec_t executable, cudaStream_t stream);

}  // namespace simulator
