// libcudart: what the host code of nvcc calls by itself: fat binaries, kernels, variables.
//
// Declared in crt/host_runtime.h; the wrapper's layout is fatbinary_section.h.
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include <fatbinary_section.h>

#include "cudart.h"

using namespace simulator;

namespace {

struct Variable {
    std::size_t size = 0;
    std::map<int, void*> addresses;  // by card, when it is first asked for
};

std::mutex lock;

// The host side's address of a __device__ variable: the variable.
std::map<const void*, Variable>& variables() {
    static auto* const all = new std::map<const void*, Variable>;
    return *all;
}

struct Configuration {
    dim3 grid, block;
    std::size_t shared = 0;
    cudaStream_t stream = nullptr;
};
thread_local std::vector<Configuration> configurations;  // of <<<>>>

cudaError_t address_of(const void* symbol, void** address, std::size_t* size) {
    const int card = current_card();
    {
        const std::lock_guard guard(lock);
        const auto found = variables().find(symbol);
        if (found == variables().end()) return cudaErrorInvalidSymbol;
        *size = found->second.size;
        *address = found->second.addresses[card];
    }
    if (*address != nullptr) return cudaSuccess;
    // Without the lock: a library that is being loaded may wait for it (registry_mutex).
    void* made = nullptr;
    if (const cudaError_t error = allocate(card, *size, "__cudaRegisterVar", &made)) return error;
    {
        const std::lock_guard guard(lock);
        void*& known = variables()[symbol].addresses[card];
        if (known == nullptr) std::swap(known, made);
        *address = known;
    }
    return release(made);  // another thread was faster; else null
}

cudaError_t copy_symbol(const void* symbol, std::size_t offset, std::size_t count,
                        const void* from, void* to, cudaStream_t stream) {
    void* address = nullptr;
    std::size_t size = 0;
    if (const cudaError_t error = address_of(symbol, &address, &size)) return error;
    if (offset > size || count > size - offset) return cudaErrorInvalidValue;
    void* const at = static_cast<char*>(address) + offset;
    cudaMemcpy3DParms copy = {};
    copy.srcPtr = {const_cast<void*>(from == nullptr ? at : from), count, count, 1};
    copy.dstPtr = {to == nullptr ? at : to, count, count, 1};
    copy.extent = {count, 1, 1};
    return submit(stream, CopyWork{copy});
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

void** __cudaRegisterFatBinary(void* wrapper) {
    SIMULATED();
    const void* data = static_cast<const __fatBinC_Wrapper_t*>(wrapper)->data;
    return reinterpret_cast<void**>(register_module(data));
}

void __cudaRegisterFatBinaryEnd(void**) { SIMULATED(); }

void __cudaUnregisterFatBinary(void** handle) {
    SIMULATED();
    unregister_module(reinterpret_cast<Module*>(handle));
}

void __cudaRegisterFunction(void** handle, const char* host, char*, const char* name, int, uint3*,
                            uint3*, dim3*, dim3*, int*) {
    SIMULATED();
    register_kernel(reinterpret_cast<Module*>(handle), host, name);
}

void __cudaRegisterVar(void**, char* host, char*, const char*, int, std::size_t size, int, int) {
    SIMULATED();
    const std::lock_guard guard(lock);
    variables()[host].size = size;
}

void __cudaRegisterHostVar(void**, const char*, char*, std::size_t) { SIMULATED(); }

// A managed variable lives where both can use it.
void __cudaRegisterManagedVar(void**, void** host, char*, const char*, int, std::size_t size, int,
                              int) {
    SIMULATED();
    void* pointer = nullptr;
    if (allocate_host(size, 0, &pointer) == cudaSuccess) *host = pointer;
    const std::lock_guard guard(lock);
    variables()[host] = {size, {{0, pointer}}};
}

char __cudaInitModule(void**) {
    SIMULATED();
    return 1;
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, std::size_t shared, CUstream_st* stream) {
    SIMULATED();
    configurations.push_back({grid, block, shared, stream});
    return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, std::size_t* shared, void* stream) {
    SIMULATED();
    if (configurations.empty()) return remember(cudaErrorMissingConfiguration);
    const Configuration last = configurations.back();
    configurations.pop_back();
    *grid = last.grid;
    *block = last.block;
    *shared = last.shared;
    *static_cast<cudaStream_t*>(stream) = last.stream;
    return cudaSuccess;
}

cudaError_t __cudaGetKernel(cudaKernel_t* handle, const void* function) {
    SIMULATED();
    *handle = reinterpret_cast<cudaKernel_t>(find_kernel(function));
    return *handle == nullptr ? remember(cudaErrorInvalidDeviceFunction) : cudaSuccess;
}

}  // extern "C"
#pragma GCC visibility pop

extern "C" {

cudaError_t cudaGetSymbolAddress(void** address, const void* symbol) {
    SIMULATED();
    std::size_t size = 0;
    if (address == nullptr) return remember(cudaErrorInvalidValue);
    return remember(address_of(symbol, address, &size));
}

cudaError_t cudaGetSymbolSize(std::size_t* size, const void* symbol) {
    SIMULATED();
    void* address = nullptr;
    if (size == nullptr) return remember(cudaErrorInvalidValue);
    return remember(address_of(symbol, &address, size));
}

cudaError_t cudaMemcpyToSymbol(const void* symbol, const void* from, std::size_t count,
                               std::size_t offset, cudaMemcpyKind) {
    SIMULATED();
    return remember(copy_symbol(symbol, offset, count, from, nullptr, nullptr));
}

cudaError_t cudaMemcpyFromSymbol(void* to, const void* symbol, std::size_t count,
                                 std::size_t offset, cudaMemcpyKind) {
    SIMULATED();
    return remember(copy_symbol(symbol, offset, count, nullptr, to, nullptr));
}

cudaError_t cudaMemcpyToSymbolAsync(const void* symbol, const void* from, std::size_t count,
                                    std::size_t offset, cudaMemcpyKind, cudaStream_t stream) {
    SIMULATED();
    return remember(copy_symbol(symbol, offset, count, from, nullptr, stream));
}

cudaError_t cudaMemcpyFromSymbolAsync(void* to, const void* symbol, std::size_t count,
                                      std::size_t offset, cudaMemcpyKind, cudaStream_t stream) {
    SIMULATED();
    return remember(copy_symbol(symbol, offset, count, nullptr, to, stream));
}

}  // extern "C"
