// Streams, events and graphs as their handles point to them.
#pragma once

#include <memory>
#include <thread>
#include <unordered_set>

#include "internal.h"
#include "streams.h"

namespace simulator {

// A capture, shared by the streams that take part.
struct Capture {
    cudaGraph_t graph = nullptr;
    bool owned = true;  // the graph is made by this capture
    cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
    cudaStream_t origin = nullptr;
    std::thread::id thread;
    bool valid = true;
    unsigned long long id = 0;
};

// The live handles of one type: others are answered with an error instead of a crash.
template <typename Object>
SIMULATOR_API std::unordered_set<Object*>& live();

// The stream of a handle, also of the default streams; null: not a stream.
cudaStream_t find_stream(cudaStream_t stream);
cudaStream_t legacy_stream(int card);
// All streams of a card that are in use, the default ones too; the caller locks.
void each_stream(int card, const std::function<void(cudaStream_t)>& act);
std::unordered_set<Capture*>& captures();
// Ends a capture without a graph.
void abandon(Capture* capture);
// Adds work to the capture of a stream.
cudaError_t capture_work(cudaStream_t stream, Work work);
// The legacy default stream waits for all blocking streams: not while one of them is captured.
cudaError_t check_implicit(cudaStream_t stream);
// The executable's works, in an order that respects the dependencies.
std::vector<Work> ordered_works(cudaGraph_t graph);

}  // namespace simulator

namespace simulator {
struct StreamOrder;  // works.h
struct EventOrder;
}  // namespace simulator

struct CUstream_st {
    int card = 0;
    unsigned flags = 0;
    int priority = 0;
    unsigned long long id = 0;
    bool legacy = false;  // the default stream that waits for the others
    simulator::Capture* capture = nullptr;
    std::vector<cudaGraphNode_t> dependencies;  // of what is captured next
    std::shared_ptr<simulator::StreamOrder> order;
};

struct CUevent_st {
    int card = 0;
    unsigned flags = 0;
    bool recorded = false;
    std::int64_t nanoseconds = 0;
    unsigned long long capture = 0;             // the capture it was recorded in, by id; 0: none
    std::vector<cudaGraphNode_t> dependencies;  // of a stream that waits for it in that capture
    std::shared_ptr<simulator::EventOrder> order;
};

struct CUgraphNode_st {
    cudaGraph_t graph = nullptr;
    simulator::Work work;
    std::vector<cudaGraphNode_t> dependencies;
    bool enabled = true;
};

struct CUgraph_st {
    std::vector<std::unique_ptr<CUgraphNode_st>> nodes;
};

struct CUgraphExec_st {
    struct Node {
        cudaGraphNode_t origin = nullptr;
        simulator::Work work;
        std::vector<std::size_t> dependencies;  // positions in `nodes`
        bool enabled = true;
    };
    std::vector<Node> nodes;  // in an order that respects the dependencies
    unsigned long long flags = 0;
};
