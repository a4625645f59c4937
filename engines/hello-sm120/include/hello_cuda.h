// The CUDA backend. No CUDA type is part of this interface: who uses it needs no toolkit headers.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "hello_base.h"

namespace hello::cuda {

struct Device {
    std::string name;
    int count = 0;                // visible devices; this is the first of them
    int capability_major = 0;     // compute capability 12.0 is 12 and 0
    int capability_minor = 0;
    std::size_t total_bytes = 0;  // of device memory
    std::size_t free_bytes = 0;   // at the time of the call
};

// Returns "13.0" for the newest CUDA version that the installed driver supports, or "" where
// there is no driver.
HELLO_API std::string driver_version();

// Returns "13.0" for the CUDA runtime that this process has loaded.
HELLO_API std::string runtime_version();

// Returns the first visible device. Throws BackendError, no_device if there is none.
HELLO_API Device query_device();

// Returns "12.0" for compute capability 12.0.
HELLO_API std::string capability(const Device& device);

// Returns a backend on the first visible device, with a copy of the model's weights there.
// Throws BackendError: no_device, no_kernel_image, or failed.
HELLO_API std::unique_ptr<Backend> make_backend(const Model& model);

// True if device memory is taken through the driver's virtual memory management where the device
// can do that (built without HELLO_CUDA_NO_VMM).
HELLO_API bool built_with_vmm();

}  // namespace hello::cuda
