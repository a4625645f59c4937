// Streams, events and captured graphs of the driver API.
#include "driver.h"
#include "streams.h"

using namespace simulator;

namespace {
using Mode = CUstreamCaptureMode;
using Status = CUstreamCaptureStatus;
using UpdateResult = CUgraphExecUpdateResultInfo;
static_assert(sizeof(UpdateResult) == sizeof(cudaGraphExecUpdateResultInfo));
}  // namespace

extern "C" {

#define CALL(runtime, driver, parameters, valid, call)          \
    CUresult driver parameters {                                \
        IN_CONTEXT();                                           \
        if (!(valid)) return CUDA_ERROR_INVALID_VALUE;          \
        return result(call);                                    \
    }
#include "stream_calls.h"
#undef CALL

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
    DRIVER();
    if (mode == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *mode = static_cast<CUstreamCaptureMode>(
        exchange_capture_mode(static_cast<cudaStreamCaptureMode>(*mode)));
    return CUDA_SUCCESS;
}

}  // extern "C"
