// Kernels of the model. All pointers are to device memory; all launches are asynchronous on
// `stream`, and their errors are thrown as BackendError.
#pragma once

#include <cuda_runtime_api.h>

#include "hello_base.h"

namespace hello::cuda {

// What one step gives back to the host; plain memory, copied as it is.
struct StepOutput {
    float probabilities[kVocabulary];
    int best;
};

// Throws BackendError, no_kernel_image if the binary has no code for the current device.
void require_kernel_image();

// state = clamp(rint((embedding + product) / kStateDivisor), +-kStateLimit), kHidden values each.
void launch_update_state(const float* embedding, const float* product, float* state,
                         cudaStream_t stream);

// logits = output * state + bias, with output of kVocabulary rows.
void launch_logits(const float* output, const float* bias, const float* state, float* logits,
                   cudaStream_t stream);

// Softmax and the largest of kVocabulary logits.
void launch_softmax(const float* logits, StepOutput* result, cudaStream_t stream);

}  // namespace hello::cuda
