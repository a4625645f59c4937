// One block of device memory, handed out in pieces.
#pragma once

#include <cstddef>

namespace hello::cuda {

class DeviceMemory {
public:
    // Takes at least `bytes` of the current device's memory. Throws BackendError.
    explicit DeviceMemory(std::size_t bytes);
    ~DeviceMemory();
    DeviceMemory(const DeviceMemory&) = delete;
    DeviceMemory& operator=(const DeviceMemory&) = delete;

    // Returns room for `count` floats, aligned for any kernel; it lives as long as this object.
    // Throws BackendError when the block is used up.
    float* floats(std::size_t count);

    // Returns what `floats(count)` takes, in bytes.
    static std::size_t bytes_for(std::size_t count);

private:
    void* base_ = nullptr;
    std::size_t size_ = 0;
    std::size_t used_ = 0;
    bool mapped_ = false;  // by the driver, rather than by cudaMalloc
};

}  // namespace hello::cuda
