// libcudart: streams, events, captures.
#include "cudart.h"

using namespace simulator;

namespace {
using Mode = cudaStreamCaptureMode;
using Status = cudaStreamCaptureStatus;
using UpdateResult = cudaGraphExecUpdateResultInfo;
}  // namespace

extern "C" {

#define CALL(runtime, driver, parameters, valid, call)              \
    cudaError_t runtime parameters {                                \
        SIMULATED();                                                \
        if (!(valid)) return remember(cudaErrorInvalidValue);       \
        return remember(call);                                      \
    }
#include "stream_calls.h"
#undef CALL

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
    SIMULATED();
    if (stream == nullptr) return remember(cudaErrorInvalidValue);
    return remember(create_stream(cudaStreamDefault, 0, stream));
}

cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long* id) {
    SIMULATED();
    if (id == nullptr) return remember(cudaErrorInvalidValue);
    return remember(stream_info(stream, nullptr, nullptr, nullptr, id));
}

// Attributes are about how fast work is done: none is.
cudaError_t cudaStreamSetAttribute(cudaStream_t stream, cudaStreamAttrID,
                                   const cudaStreamAttrValue*) {
    SIMULATED();
    return remember(stream_info(stream));
}

cudaError_t cudaStreamGetAttribute(cudaStream_t stream, cudaStreamAttrID,
                                   cudaStreamAttrValue* value) {
    SIMULATED();
    if (value == nullptr) return remember(cudaErrorInvalidValue);
    *value = {};
    return remember(stream_info(stream));
}

cudaError_t cudaStreamCopyAttributes(cudaStream_t to, cudaStream_t from) {
    SIMULATED();
    const cudaError_t error = stream_info(to);
    if (error != cudaSuccess) return remember(error);
    return remember(stream_info(from));
}

cudaError_t cudaStreamAttachMemAsync(cudaStream_t stream, void* pointer, std::size_t, unsigned) {
    SIMULATED();
    Range range;
    if (!find_range(pointer, &range)) return remember(cudaErrorInvalidValue);
    return remember(submit(stream, EmptyWork{}));
}

cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t function, void* data,
                                  unsigned flags) {
    SIMULATED();
    if (function == nullptr || flags != 0) return remember(cudaErrorInvalidValue);
    const cudaError_t error = synchronize_stream(stream);
    if (error != cudaSuccess) return remember(error);
    function(stream, cudaSuccess, data);
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
    SIMULATED();
    if (event == nullptr) return remember(cudaErrorInvalidValue);
    return remember(create_event(cudaEventDefault, event));
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
    SIMULATED();
    if ((flags & cudaEventRecordExternal) == 0) return remember(record_event(event, stream));
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    const cudaError_t error = capture_status(stream, &status);
    if (error != cudaSuccess) return remember(error);
    if (status == cudaStreamCaptureStatusActive) {
        return remember(submit(stream, EventWork{event, false}));
    }
    return remember(record_event(event, stream));
}

cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t stream, cudaGraph_t graph,
                                          const cudaGraphNode_t* dependencies,
                                          const cudaGraphEdgeData*, std::size_t count,
                                          cudaStreamCaptureMode mode) {
    SIMULATED();
    if (graph == nullptr) return remember(cudaErrorInvalidValue);
    if (const cudaError_t error = begin_capture(stream, mode, graph)) return remember(error);
    return remember(set_capture_dependencies(stream, const_cast<cudaGraphNode_t*>(dependencies),
                                             count, false));
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                     unsigned long long* id, cudaGraph_t* graph,
                                     const cudaGraphNode_t** dependencies,
                                     const cudaGraphEdgeData** edges, std::size_t* count) {
    SIMULATED();
    if (status == nullptr) return remember(cudaErrorInvalidValue);
    if (edges != nullptr) *edges = nullptr;
    return remember(capture_status(stream, status, id, graph, dependencies, count));
}

cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t stream, cudaGraphNode_t* nodes,
                                                const cudaGraphEdgeData*, std::size_t count,
                                                unsigned flags) {
    SIMULATED();
    const bool add = flags == cudaStreamAddCaptureDependencies;
    return remember(set_capture_dependencies(stream, nodes, count, add));
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
    SIMULATED();
    if (mode == nullptr) return remember(cudaErrorInvalidValue);
    *mode = exchange_capture_mode(*mode);
    return cudaSuccess;
}

}  // extern "C"
