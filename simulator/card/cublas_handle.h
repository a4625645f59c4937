// What a cuBLAS handle holds, and how its functions refuse arguments.
#pragma once

#include <cublas_v2.h>

#include "refusals.h"

struct cublasContext {
    int card = 0;
    cudaStream_t stream = nullptr;
    cublasPointerMode_t pointer_mode = CUBLAS_POINTER_MODE_HOST;
    cublasMath_t math = CUBLAS_DEFAULT_MATH;
    cublasAtomicsMode_t atomics = CUBLAS_ATOMICS_NOT_ALLOWED;
    int multiprocessors = 0;      // cublasSetSmCountTarget; 0: all
    void* own_workspace = nullptr;  // what cublasCreate allocated
};

namespace simulator {

// The name of a status, as cublasGetStatusName returns it.
const char* status_name(cublasStatus_t status);

// Reports the call and returns the status.
inline cublasStatus_t refuse(const char* function, cublasStatus_t status, const std::string& why) {
    report_refusal(function, status_name(status), why);
    return status;
}

// Whether cublasCreate made this handle and cublasDestroy has not ended it.
bool is_handle(cublasHandle_t handle);

}  // namespace simulator
