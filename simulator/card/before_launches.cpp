// libcudart.so.12: the error of a launch whose grid or block no launch may have.  NVIDIA's runtime 12.9
// makes it of the driver's CUDA_ERROR_INVALID_VALUE, 13.0 does not: both were run over the simulated
// driver.
#include "cudart.h"

cudaError_t cudart::size_error() { return cudaErrorInvalidConfiguration; }
