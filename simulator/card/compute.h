// Mode compute: kernels run on the CPU, from their PTX.
#pragma once

#include "internal.h"

namespace simulator {

// Whether these libraries have mode compute: compute.cpp, or counts_only.cpp in its place.
extern const bool kComputes;
// The launch's arguments, as its kernel's parameters lie: `each` argument's address, or all packed
// in `extra` (cuda.h, CU_LAUNCH_PARAM_BUFFER_POINTER).
// cudaErrorNoKernelImageForDevice: no PTX is known for the kernel; the report says so.
cudaError_t take_arguments(Launch& launch, void* const* each, void* const* extra);
// Runs the kernel to its end. What is wrong is in the report before this returns; a fault of the
// kernel is the error of all later calls, too (break_card).
cudaError_t compute(const Launch& launch);
// Forgets what was loaded for the card: variables have their initial values again.
void reset_programs(int card);

}  // namespace simulator
