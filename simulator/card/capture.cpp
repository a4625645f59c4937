// Captures: the work of streams becomes a graph instead of being done.
//
// Rules: CUDA Runtime API, "Stream Management", and cudaThreadExchangeStreamCaptureMode.
#include <algorithm>
#include <utility>

#include "objects.h"
#include "works.h"

namespace simulator {

namespace {

thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

Capture* find_capture(unsigned long long id) {
    for (Capture* const capture : captures()) {
        if (capture->id == id) return capture;
    }
    return nullptr;
}

// Whether all that was captured comes before the origin's end.
bool is_joined(const Capture& capture) {
    std::unordered_set<cudaGraphNode_t> seen(capture.origin->dependencies.begin(),
                                             capture.origin->dependencies.end());
    for (auto node = capture.graph->nodes.rbegin(); node != capture.graph->nodes.rend(); ++node) {
        if (!seen.contains(node->get())) return false;
        seen.insert((*node)->dependencies.begin(), (*node)->dependencies.end());
    }
    return true;
}

void leave(const Capture* capture) {
    for (const cudaStream_t stream : live<CUstream_st>()) {
        if (stream->capture != capture) continue;
        stream->capture = nullptr;
        stream->dependencies.clear();
    }
    if (capture->origin->capture == capture) capture->origin->capture = nullptr;
}

cudaError_t invalidate(Capture* capture, cudaError_t error, const std::string& why) {
    capture->valid = false;
    violate("", error, why);
    return error;
}

// The capture of a blocking stream that work in this stream would wait for; null: none.
Capture* waited_for(cudaStream_t stream) {
    if (!stream->legacy) return nullptr;
    for (Capture* const capture : captures()) {
        if (capture->origin->flags == cudaStreamDefault && capture->origin->card == stream->card &&
            !capture->origin->legacy) {
            return capture;
        }
    }
    return nullptr;
}

// Whether the calling thread may not make unsafe calls while this capture runs.
bool forbids(const Capture& capture) {
    if (thread_mode == cudaStreamCaptureModeRelaxed) return false;
    if (capture.thread == std::this_thread::get_id()) {
        return capture.mode != cudaStreamCaptureModeRelaxed;
    }
    return thread_mode == cudaStreamCaptureModeGlobal &&
           capture.mode == cudaStreamCaptureModeGlobal;
}

}  // namespace

void abandon(Capture* capture) {
    if (capture->owned) destroy_graph(capture->graph);
    leave(capture);
    captures().erase(capture);
    delete capture;
}

std::unordered_set<Capture*>& captures() {
    static auto* const all = new std::unordered_set<Capture*>;
    return *all;
}

cudaError_t capture_work(cudaStream_t stream, Work work) {
    if (!stream->capture->valid) return cudaErrorStreamCaptureInvalidated;
    cudaGraphNode_t node = nullptr;
    const cudaError_t error =
        add_node(stream->capture->graph, std::move(work), stream->dependencies.data(),
                 stream->dependencies.size(), &node);
    if (error != cudaSuccess) return error;
    stream->dependencies = {node};
    return cudaSuccess;
}

cudaError_t check_implicit(cudaStream_t stream) {
    Capture* const capture = waited_for(stream);
    if (capture == nullptr) return cudaSuccess;
    return invalidate(capture, cudaErrorStreamCaptureImplicit,
                      "the default stream is used while a blocking stream is captured");
}

cudaError_t check_unsafe_call(const char* function) {
    const Lock lock(mutex());
    for (Capture* const capture : captures()) {
        if (capture->valid && forbids(*capture)) {
            return invalidate(capture, cudaErrorStreamCaptureUnsupported,
                              std::string(function) + " is not allowed while a stream is captured");
        }
    }
    return cudaSuccess;
}

cudaStreamCaptureMode exchange_capture_mode(cudaStreamCaptureMode mode) {
    return std::exchange(thread_mode, mode);
}

cudaError_t begin_capture(cudaStream_t handle, cudaStreamCaptureMode mode, cudaGraph_t into) {
    if (const cudaError_t error = use_card(current_card())) return error;
    const Lock lock(mutex());
    static unsigned long long last = 0;
    const cudaStream_t stream = find_stream(handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    if (stream->legacy) return cudaErrorStreamCaptureUnsupported;
    if (stream->capture != nullptr) return cudaErrorIllegalState;
    stream->capture = new Capture{.graph = into == nullptr ? create_graph() : into,
                                  .owned = into == nullptr,
                                  .mode = mode,
                                  .origin = stream,
                                  .thread = std::this_thread::get_id(),
                                  .id = ++last};
    stream->dependencies.clear();
    captures().insert(stream->capture);
    return cudaSuccess;
}

cudaError_t end_capture(cudaStream_t handle, cudaGraph_t* graph) {
    const Lock lock(mutex());
    if (graph != nullptr) *graph = nullptr;
    const cudaStream_t stream = find_stream(handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    Capture* const capture = stream->capture;
    if (capture == nullptr) return cudaErrorIllegalState;
    if (capture->origin != stream) return cudaErrorStreamCaptureUnmatched;
    if (capture->mode != cudaStreamCaptureModeRelaxed &&
        capture->thread != std::this_thread::get_id()) {
        return cudaErrorStreamCaptureWrongThread;
    }
    cudaError_t error = capture->valid ? cudaSuccess : cudaErrorStreamCaptureInvalidated;
    if (error == cudaSuccess && !is_joined(*capture)) error = cudaErrorStreamCaptureUnjoined;
    if (error == cudaSuccess && graph != nullptr) {
        *graph = capture->graph;
        capture->owned = false;
    }
    abandon(capture);
    return error;
}

// A question alone does not end a capture (cudaStreamIsCapturing).
cudaError_t capture_status(cudaStream_t handle, cudaStreamCaptureStatus* status,
                           unsigned long long* id, cudaGraph_t* graph,
                           const cudaGraphNode_t** dependencies, std::size_t* count) {
    const Lock lock(mutex());
    const cudaStream_t stream = find_stream(handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    if (waited_for(stream) != nullptr) return cudaErrorStreamCaptureImplicit;
    const Capture* const capture = stream->capture;
    *status = capture == nullptr ? cudaStreamCaptureStatusNone
              : capture->valid   ? cudaStreamCaptureStatusActive
                                 : cudaStreamCaptureStatusInvalidated;
    const bool active = *status == cudaStreamCaptureStatusActive;
    if (id != nullptr) *id = active ? capture->id : 0;
    if (graph != nullptr) *graph = active ? capture->graph : nullptr;
    if (dependencies != nullptr) *dependencies = stream->dependencies.data();
    if (count != nullptr) *count = active ? stream->dependencies.size() : 0;
    return cudaSuccess;
}

cudaError_t set_capture_dependencies(cudaStream_t handle, cudaGraphNode_t* nodes, std::size_t count,
                                     bool add) {
    const Lock lock(mutex());
    const cudaStream_t stream = find_stream(handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    if (stream->capture == nullptr) return cudaErrorIllegalState;
    if (!add) stream->dependencies.clear();
    stream->dependencies.insert(stream->dependencies.end(), nodes, nodes + count);
    return cudaSuccess;
}

// An event of a capture makes the stream that waits take part in it.
cudaError_t wait_event(cudaStream_t handle, cudaEvent_t event) {
    const Lock lock(mutex());
    const cudaStream_t stream = find_stream(handle);
    if (stream == nullptr || !live<CUevent_st>().contains(event)) {
        return cudaErrorInvalidResourceHandle;
    }
    Capture* const capture = event->capture == 0 ? nullptr : find_capture(event->capture);
    if (capture == nullptr) {
        if (stream->capture == nullptr) {
            if (const cudaError_t error = check_implicit(stream)) return error;
            event_awaited(stream, event);
            return cudaSuccess;
        }
        return invalidate(stream->capture, cudaErrorStreamCaptureIsolation,
                          "a captured stream waits for an event that was recorded outside");
    }
    if (stream->legacy) return cudaErrorStreamCaptureImplicit;
    if (stream->capture != nullptr && stream->capture != capture) {
        stream->capture->valid = false;
        return invalidate(capture, cudaErrorStreamCaptureMerge, "two captures would become one");
    }
    stream->capture = capture;
    for (const cudaGraphNode_t node : event->dependencies) {
        if (std::ranges::find(stream->dependencies, node) == stream->dependencies.end()) {
            stream->dependencies.push_back(node);
        }
    }
    return cudaSuccess;
}

}  // namespace simulator
