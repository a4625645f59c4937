// Streams, events and captured graphs of the driver API.
#include "driver.h"
#include "streams.h"

using namespace simulator;

extern "C" {

CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
    IN_CONTEXT();
    if (stream == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return result(create_stream(flags, 0, stream));
}

CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int priority) {
    IN_CONTEXT();
    if (stream == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return result(create_stream(flags, priority, stream));
}

CUresult cuStreamDestroy_v2(CUstream stream) {
    IN_CONTEXT();
    return result(destroy_stream(stream));
}

CUresult cuStreamSynchronize(CUstream stream) {
    IN_CONTEXT();
    return result(synchronize_stream(stream));
}

CUresult cuStreamQuery(CUstream stream) {
    IN_CONTEXT();
    return result(query_stream(stream));
}

CUresult cuStreamGetFlags(CUstream stream, unsigned* flags) {
    IN_CONTEXT();
    return result(stream_info(stream, nullptr, flags));
}

CUresult cuStreamGetPriority(CUstream stream, int* priority) {
    IN_CONTEXT();
    return result(stream_info(stream, nullptr, nullptr, priority));
}

CUresult cuStreamGetDevice(CUstream stream, CUdevice* device) {
    IN_CONTEXT();
    return result(stream_info(stream, device));
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned) {
    IN_CONTEXT();
    return result(wait_event(stream, event));
}

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void* data) {
    IN_CONTEXT();
    if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return result(submit(stream, HostWork{function, data}));
}

CUresult cuEventCreate(CUevent* event, unsigned flags) {
    IN_CONTEXT();
    if (event == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return result(create_event(flags, event));
}

CUresult cuEventDestroy_v2(CUevent event) {
    IN_CONTEXT();
    return result(destroy_event(event));
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
    IN_CONTEXT();
    return result(record_event(event, stream));
}

CUresult cuEventQuery(CUevent event) {
    IN_CONTEXT();
    return result(query_event(event));
}

CUresult cuEventSynchronize(CUevent event) {
    IN_CONTEXT();
    return result(query_event(event));
}

CUresult cuEventElapsedTime(float* milliseconds, CUevent begin, CUevent end) {
    IN_CONTEXT();
    if (milliseconds == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return result(elapsed(begin, end, milliseconds));
}

CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
    IN_CONTEXT();
    return result(begin_capture(stream, static_cast<cudaStreamCaptureMode>(mode), nullptr));
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
    IN_CONTEXT();
    if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return result(end_capture(stream, graph));
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
    IN_CONTEXT();
    if (status == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return result(capture_status(stream, reinterpret_cast<cudaStreamCaptureStatus*>(status)));
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
    DRIVER();
    if (mode == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *mode = static_cast<CUstreamCaptureMode>(
        exchange_capture_mode(static_cast<cudaStreamCaptureMode>(*mode)));
    return CUDA_SUCCESS;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec* executable, CUgraph graph,
                                     unsigned long long flags) {
    IN_CONTEXT();
    if (executable == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return result(instantiate(graph, flags, executable));
}

CUresult cuGraphLaunch(CUgraphExec executable, CUstream stream) {
    IN_CONTEXT();
    return result(launch_graph(executable, stream));
}

CUresult cuGraphExecUpdate_v2(CUgraphExec executable, CUgraph graph,
                              CUgraphExecUpdateResultInfo* found) {
    IN_CONTEXT();
    static_assert(sizeof *found == sizeof(cudaGraphExecUpdateResultInfo));
    return result(
        update(executable, graph, reinterpret_cast<cudaGraphExecUpdateResultInfo*>(found)));
}

CUresult cuGraphExecDestroy(CUgraphExec executable) {
    IN_CONTEXT();
    return result(destroy_executable(executable));
}

CUresult cuGraphDestroy(CUgraph graph) {
    IN_CONTEXT();
    return result(destroy_graph(graph));
}

}  // extern "C"
