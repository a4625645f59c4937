// Errors of the CUDA runtime as exceptions.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "hello_base.h"

namespace hello::cuda {

inline BackendError::Kind kind_of(cudaError_t error) {
    switch (error) {
        case cudaErrorNoDevice:
        case cudaErrorInsufficientDriver:
        case cudaErrorStubLibrary:
            return BackendError::Kind::no_device;
        case cudaErrorNoKernelImageForDevice:
            return BackendError::Kind::no_kernel_image;
        default:
            return BackendError::Kind::failed;
    }
}

// Throws BackendError with CUDA's own words, unless `error` is cudaSuccess.
inline void check(cudaError_t error) {
    if (error == cudaSuccess) return;
    throw BackendError(kind_of(error), cudaGetErrorString(error));
}

}  // namespace hello::cuda
