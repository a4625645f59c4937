// libcudart: streams, events, captures.
#include "cudart.h"

using namespace simulator;

extern "C" {

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
    SIMULATED();
    if (stream == nullptr) return remember(cudaErrorInvalidValue);
    return remember(create_stream(cudaStreamDefault, 0, stream));
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
    SIMULATED();
    if (stream == nullptr) return remember(cudaErrorInvalidValue);
    return remember(create_stream(flags, 0, stream));
}

// A priority outside of the range is moved to its end.
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
    SIMULATED();
    if (stream == nullptr) return remember(cudaErrorInvalidValue);
    if (priority > cudart::kLeastPriority) priority = cudart::kLeastPriority;
    if (priority < cudart::kGreatestPriority) priority = cudart::kGreatestPriority;
    return remember(create_stream(flags, priority, stream));
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    SIMULATED();
    return remember(destroy_stream(stream));
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    SIMULATED();
    return remember(synchronize_stream(stream));
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
    SIMULATED();
    return remember(query_stream(stream));
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    SIMULATED();
    return remember(wait_event(stream, event));
}

cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned* flags) {
    SIMULATED();
    if (flags == nullptr) return remember(cudaErrorInvalidValue);
    return remember(stream_info(stream, nullptr, flags));
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
    SIMULATED();
    if (priority == nullptr) return remember(cudaErrorInvalidValue);
    return remember(stream_info(stream, nullptr, nullptr, priority));
}

cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long* id) {
    SIMULATED();
    if (id == nullptr) return remember(cudaErrorInvalidValue);
    return remember(stream_info(stream, nullptr, nullptr, nullptr, id));
}

cudaError_t cudaStreamGetDevice(cudaStream_t stream, int* device) {
    SIMULATED();
    if (device == nullptr) return remember(cudaErrorInvalidValue);
    return remember(stream_info(stream, device));
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

// Called at once, in the caller's thread: all earlier work is done.
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
    SIMULATED();
    if (function == nullptr) return remember(cudaErrorInvalidValue);
    return remember(submit(stream, HostWork{function, data}));
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

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
    SIMULATED();
    if (event == nullptr) return remember(cudaErrorInvalidValue);
    return remember(create_event(flags, event));
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    SIMULATED();
    return remember(destroy_event(event));
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    SIMULATED();
    return remember(record_event(event, stream));
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
    SIMULATED();
    if ((flags & cudaEventRecordExternal) == 0) return remember(record_event(event, stream));
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    const cudaError_t error =
        capture_status(stream, &status);
    if (error != cudaSuccess) return remember(error);
    if (status == cudaStreamCaptureStatusActive) {
        return remember(submit(stream, EventWork{event, false}));
    }
    return remember(record_event(event, stream));
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    SIMULATED();
    return remember(query_event(event));
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    SIMULATED();
    return remember(query_event(event));
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
    SIMULATED();
    if (milliseconds == nullptr) return remember(cudaErrorInvalidValue);
    return remember(elapsed(start, end, milliseconds));
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
    SIMULATED();
    return remember(begin_capture(stream, mode, nullptr));
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

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
    SIMULATED();
    return remember(end_capture(stream, graph));
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
    SIMULATED();
    if (status == nullptr) return remember(cudaErrorInvalidValue);
    return remember(capture_status(stream, status));
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
