// Names and texts of errors, as cudaGetErrorName and cudaGetErrorString of CUDA 13.0 return them:
// engines print the texts, and users search for them.
#include "internal.h"

namespace simulator {

namespace {

struct ErrorWords {
    const char* name;
    const char* text;
};

#define WORDS(error, text) \
    case error: return {#error, text}

ErrorWords error_words(cudaError_t error) {
    switch (error) {
        WORDS(cudaSuccess, "no error");
        WORDS(cudaErrorInvalidValue, "invalid argument");
        WORDS(cudaErrorMemoryAllocation, "out of memory");
        WORDS(cudaErrorInitializationError, "initialization error");
        WORDS(cudaErrorCudartUnloading, "driver shutting down");
        WORDS(cudaErrorProfilerDisabled, "profiler disabled while using external profiling tool");
        WORDS(cudaErrorProfilerNotInitialized,
              "profiler not initialized: call cudaProfilerInitialize()");
        WORDS(cudaErrorProfilerAlreadyStarted, "profiler already started");
        WORDS(cudaErrorProfilerAlreadyStopped, "profiler already stopped");
        WORDS(cudaErrorInvalidConfiguration, "invalid configuration argument");
        WORDS(cudaErrorInvalidPitchValue, "invalid pitch argument");
        WORDS(cudaErrorInvalidSymbol, "invalid device symbol");
        WORDS(cudaErrorInvalidHostPointer, "invalid host pointer");
        WORDS(cudaErrorInvalidDevicePointer, "invalid device pointer");
        WORDS(cudaErrorInvalidTexture, "invalid texture reference");
        WORDS(cudaErrorInvalidTextureBinding, "texture is not bound to a pointer");
        WORDS(cudaErrorInvalidChannelDescriptor, "invalid channel descriptor");
        WORDS(cudaErrorInvalidMemcpyDirection, "invalid copy direction for memcpy");
        WORDS(cudaErrorAddressOfConstant, "invalid address of constant");
        WORDS(cudaErrorTextureFetchFailed, "fetch from texture failed");
        WORDS(cudaErrorTextureNotBound, "cannot fetch from a texture that is not bound");
        WORDS(cudaErrorSynchronizationError, "incorrect use of __syncthreads()");
        WORDS(cudaErrorInvalidFilterSetting, "linear filtering not supported for non-float type");
        WORDS(cudaErrorInvalidNormSetting, "read as normalized float not supported for data type");
        WORDS(cudaErrorMixedDeviceExecution,
              "device emulation mode and device execution mode cannot be mixed");
        WORDS(cudaErrorNotYetImplemented, "feature not yet implemented");
        WORDS(cudaErrorMemoryValueTooLarge,
              "memory size or pointer value too large to fit in 32 bit");
        WORDS(cudaErrorStubLibrary, "CUDA driver is a stub library");
        WORDS(cudaErrorInsufficientDriver,
              "CUDA driver version is insufficient for CUDA runtime version");
        WORDS(cudaErrorCallRequiresNewerDriver,
              "API call is not supported in the installed CUDA driver");
        WORDS(cudaErrorInvalidSurface, "invalid surface reference");
        WORDS(cudaErrorDuplicateVariableName, "duplicate global variable looked up by string name");
        WORDS(cudaErrorDuplicateTextureName, "duplicate texture looked up by string name");
        WORDS(cudaErrorDuplicateSurfaceName, "duplicate surface looked up by string name");
        WORDS(cudaErrorDevicesUnavailable, "CUDA-capable device(s) is/are busy or unavailable");
        WORDS(cudaErrorIncompatibleDriverContext, "incompatible driver context");
        WORDS(cudaErrorMissingConfiguration, "__global__ function call is not configured");
        WORDS(cudaErrorPriorLaunchFailure, "unspecified launch failure in prior launch");
        WORDS(cudaErrorLaunchMaxDepthExceeded,
              "launch would exceed maximum depth of nested launches");
        WORDS(cudaErrorLaunchFileScopedTex,
              "launch failed because kernel uses unsupported, file-scoped textures (texture "
              "objects are supported)");
        WORDS(cudaErrorLaunchFileScopedSurf,
              "launch failed because kernel uses unsupported, file-scoped surfaces (surface "
              "objects are supported)");
        WORDS(cudaErrorSyncDepthExceeded,
              "cudaDeviceSynchronize failed because caller's grid depth exceeds "
              "cudaLimitDevRuntimeSyncDepth");
        WORDS(cudaErrorLaunchPendingCountExceeded,
              "launch failed because launch would exceed cudaLimitDevRuntimePendingLaunchCount");
        WORDS(cudaErrorInvalidDeviceFunction, "invalid device function");
        WORDS(cudaErrorNoDevice, "no CUDA-capable device is detected");
        WORDS(cudaErrorInvalidDevice, "invalid device ordinal");
        WORDS(cudaErrorDeviceNotLicensed, "device doesn't have valid Grid license");
        WORDS(cudaErrorSoftwareValidityNotEstablished, "integrity checks failed");
        WORDS(cudaErrorStartupFailure, "startup failure in cuda runtime");
        WORDS(cudaErrorInvalidKernelImage, "device kernel image is invalid");
        WORDS(cudaErrorDeviceUninitialized, "invalid device context");
        WORDS(cudaErrorMapBufferObjectFailed, "mapping of buffer object failed");
        WORDS(cudaErrorUnmapBufferObjectFailed, "unmapping of buffer object failed");
        WORDS(cudaErrorArrayIsMapped, "array is mapped");
        WORDS(cudaErrorAlreadyMapped, "resource already mapped");
        WORDS(cudaErrorNoKernelImageForDevice,
              "no kernel image is available for execution on the device");
        WORDS(cudaErrorAlreadyAcquired, "resource already acquired");
        WORDS(cudaErrorNotMapped, "resource not mapped");
        WORDS(cudaErrorNotMappedAsArray, "resource not mapped as array");
        WORDS(cudaErrorNotMappedAsPointer, "resource not mapped as pointer");
        WORDS(cudaErrorECCUncorrectable, "uncorrectable ECC error encountered");
        WORDS(cudaErrorUnsupportedLimit, "limit is not supported on this architecture");
        WORDS(cudaErrorDeviceAlreadyInUse,
              "exclusive-thread device already in use by a different thread");
        WORDS(cudaErrorPeerAccessUnsupported,
              "peer access is not supported between these two devices");
        WORDS(cudaErrorInvalidPtx, "a PTX JIT compilation failed");
        WORDS(cudaErrorInvalidGraphicsContext, "invalid OpenGL or DirectX context");
        WORDS(cudaErrorNvlinkUncorrectable,
              "uncorrectable NVLink error detected during the execution");
        WORDS(cudaErrorJitCompilerNotFound, "PTX JIT compiler library not found");
        WORDS(cudaErrorUnsupportedPtxVersion,
              "the provided PTX was compiled with an unsupported toolchain.");
        WORDS(cudaErrorJitCompilationDisabled, "PTX JIT compilation was disabled");
        WORDS(cudaErrorUnsupportedExecAffinity, "the provided execution affinity is not supported");
        WORDS(cudaErrorUnsupportedDevSideSync,
              "the provided PTX contains unsupported call to cudaDeviceSynchronize");
        WORDS(cudaErrorContained,
              "Invalid access of peer GPU memory over nvlink or a hardware error");
        WORDS(cudaErrorInvalidSource, "device kernel image is invalid");
        WORDS(cudaErrorFileNotFound, "file not found");
        WORDS(cudaErrorSharedObjectSymbolNotFound, "shared object symbol not found");
        WORDS(cudaErrorSharedObjectInitFailed, "shared object initialization failed");
        WORDS(cudaErrorOperatingSystem, "OS call failed or operation not supported on this OS");
        WORDS(cudaErrorInvalidResourceHandle, "invalid resource handle");
        WORDS(cudaErrorIllegalState, "the operation cannot be performed in the present state");
        WORDS(cudaErrorLossyQuery, "attempted introspection would be semantically lossy");
        WORDS(cudaErrorSymbolNotFound, "named symbol not found");
        WORDS(cudaErrorNotReady, "device not ready");
        WORDS(cudaErrorIllegalAddress, "an illegal memory access was encountered");
        WORDS(cudaErrorLaunchOutOfResources, "too many resources requested for launch");
        WORDS(cudaErrorLaunchTimeout, "the launch timed out and was terminated");
        WORDS(cudaErrorLaunchIncompatibleTexturing, "launch uses incompatible texturing mode");
        WORDS(cudaErrorPeerAccessAlreadyEnabled, "peer access is already enabled");
        WORDS(cudaErrorPeerAccessNotEnabled, "peer access has not been enabled");
        WORDS(cudaErrorSetOnActiveProcess, "cannot set while device is active in this process");
        WORDS(cudaErrorContextIsDestroyed, "context is destroyed");
        WORDS(cudaErrorAssert, "device-side assert triggered");
        WORDS(cudaErrorTooManyPeers, "peer mapping resources exhausted");
        WORDS(cudaErrorHostMemoryAlreadyRegistered,
              "part or all of the requested memory range is already mapped");
        WORDS(cudaErrorHostMemoryNotRegistered,
              "pointer does not correspond to a registered memory region");
        WORDS(cudaErrorHardwareStackError, "hardware stack error");
        WORDS(cudaErrorIllegalInstruction, "an illegal instruction was encountered");
        WORDS(cudaErrorMisalignedAddress, "misaligned address");
        WORDS(cudaErrorInvalidAddressSpace,
              "operation not supported on global/shared address space");
        WORDS(cudaErrorInvalidPc, "invalid program counter");
        WORDS(cudaErrorLaunchFailure, "unspecified launch failure");
        WORDS(cudaErrorCooperativeLaunchTooLarge, "too many blocks in cooperative launch");
        WORDS(cudaErrorTensorMemoryLeak, "tensor memory not completely freed");
        WORDS(cudaErrorNotPermitted, "operation not permitted");
        WORDS(cudaErrorNotSupported, "operation not supported");
        WORDS(cudaErrorSystemNotReady, "system not yet initialized");
        WORDS(cudaErrorSystemDriverMismatch,
              "system has unsupported display driver / cuda driver combination");
        WORDS(cudaErrorCompatNotSupportedOnDevice,
              "forward compatibility was attempted on non supported HW");
        WORDS(cudaErrorMpsConnectionFailed,
              "MPS client failed to connect to the MPS control daemon or the MPS server");
        WORDS(cudaErrorMpsRpcFailure,
              "the remote procedural call between the MPS server and the MPS client failed");
        WORDS(cudaErrorMpsServerNotReady,
              "MPS server is not ready to accept new MPS client requests");
        WORDS(cudaErrorMpsMaxClientsReached,
              "the hardware resources required to create MPS client have been exhausted");
        WORDS(cudaErrorMpsMaxConnectionsReached,
              "the hardware resources required to support device connections have been exhausted");
        WORDS(cudaErrorMpsClientTerminated, "the MPS client has been terminated by the server");
        WORDS(cudaErrorCdpNotSupported,
              "is using CUDA Dynamic Parallelism, but the current configuration, like MPS, "
              "does not support it");
        WORDS(cudaErrorCdpVersionMismatch,
              "unsupported interaction between different versions of CUDA Dynamic Parallelism");
        WORDS(cudaErrorStreamCaptureUnsupported,
              "operation not permitted when stream is capturing");
        WORDS(cudaErrorStreamCaptureInvalidated,
              "operation failed due to a previous error during capture");
        WORDS(cudaErrorStreamCaptureMerge,
              "operation would result in a merge of separate capture sequences");
        WORDS(cudaErrorStreamCaptureUnmatched,
              "capture was not ended in the same stream as it began");
        WORDS(cudaErrorStreamCaptureUnjoined, "capturing stream has unjoined work");
        WORDS(cudaErrorStreamCaptureIsolation,
              "dependency created on uncaptured work in another stream");
        WORDS(cudaErrorStreamCaptureImplicit,
              "operation would make the legacy stream depend on a capturing blocking stream");
        WORDS(cudaErrorCapturedEvent,
              "operation not permitted on an event last recorded in a capturing stream");
        WORDS(cudaErrorStreamCaptureWrongThread,
              "attempt to terminate a thread-local capture sequence from another thread");
        WORDS(cudaErrorTimeout, "wait operation timed out");
        WORDS(cudaErrorGraphExecUpdateFailure,
              "the graph update was not performed because it included changes which violated "
              "constraints specific to instantiated graph update");
        WORDS(cudaErrorExternalDevice,
              "an async error has occured in external entity outside of CUDA");
        WORDS(cudaErrorInvalidClusterSize,
              "a kernel launch error has occurred due to cluster misconfiguration");
        WORDS(cudaErrorFunctionNotLoaded,
              "the function handle is not loaded when calling an API that requires a loaded "
              "function");
        WORDS(cudaErrorInvalidResourceType,
              "one or more resources passed in are not valid resource types for the operation");
        WORDS(cudaErrorInvalidResourceConfiguration,
              "one or more resources are insufficient or non-applicable for the operation");
        WORDS(cudaErrorUnknown, "unknown error");
        WORDS(cudaErrorApiFailureBase, "api failure base");
        default: return {"unrecognized error code", "unrecognized error code"};
    }
}

#undef WORDS

}  // namespace

const char* error_name(cudaError_t error) { return error_words(error).name; }
const char* error_text(cudaError_t error) { return error_words(error).text; }

}  // namespace simulator
