// libcudart: what the host code of nvcc calls by itself: fat binaries, kernels, variables.
//
// Declared in crt/host_runtime.h; the wrapper's layout is fatbinary_section.h.
#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <fatbinary_section.h>

#include "cudart.h"

using namespace simulator;

namespace {

struct Place {
    void* address = nullptr;
    unsigned resets = 0;  // of the card, when the address was made
};

struct Variable {
    void** module = nullptr;
    std::size_t size = 0;
    std::string name;             // in the device code
    void** managed = nullptr;     // the host's pointer to a managed variable
    std::map<int, Place> places;  // by card, when it is first asked for
};

std::mutex registry_lock;

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

// Memory is made without the lock: a library that is being loaded may wait for it
// (registry_mutex).
cudaError_t make_variable(const void* symbol, int card, std::size_t size, void** address) {
    const unsigned now = resets(card);
    void* made = nullptr;
    if (const cudaError_t error = allocate(card, size, "__cudaRegisterVar", &made)) return error;
    {
        const std::lock_guard guard(registry_lock);
        Place& known = variables()[symbol].places[card];
        if (known.address == nullptr || known.resets != now) {
            known = {std::exchange(made, nullptr), now};
        }
        *address = known.address;
    }
    return release(made);  // another thread was faster; else null
}

// A managed variable lives where both can use it, and stays there.
cudaError_t make_managed(void** host, std::size_t size, void** address) {
    void* made = nullptr;
    if (const cudaError_t error = allocate_host(size, 0, &made)) return error;
    {
        const std::lock_guard guard(registry_lock);
        if (*host == nullptr) std::swap(*host, made);
        *address = *host;
    }
    return release_host(made);  // another thread was faster; else null
}

// By the host side's address or, as programs name a managed variable, by its memory's address.
auto find_variable(const void* symbol) {
    const auto found = variables().find(symbol);
    if (found != variables().end()) return found;
    return std::ranges::find_if(variables(), [symbol](const auto& entry) {
        return entry.second.managed != nullptr && *entry.second.managed == symbol;
    });
}

cudaError_t address_of(const void* symbol, void** address, std::size_t* size) {
    const int card = current_card();
    const unsigned now = resets(card);
    void** managed = nullptr;
    Module* module = nullptr;
    std::string name;
    {
        const std::lock_guard guard(registry_lock);
        const auto found = find_variable(symbol);
        if (found == variables().end()) return cudaErrorInvalidSymbol;
        module = reinterpret_cast<Module*>(found->second.module);
        name = found->second.name;
        *size = found->second.size;
        managed = found->second.managed;
        const Place& place = found->second.places[card];
        *address = managed != nullptr ? *managed : place.resets == now ? place.address : nullptr;
    }
    if (computes()) {
        if (const cudaError_t error = use_card(card)) return error;
        const cudaError_t error = module_variable(module, card, name.c_str(), address, size);
        if (error == cudaSuccess && managed != nullptr) *managed = *address;
        return error;
    }
    if (*address != nullptr) return cudaSuccess;
    return managed != nullptr ? make_managed(managed, *size, address)
                              : make_variable(symbol, card, *size, address);
}

std::vector<const void*> managed_variables(void** module) {
    const std::lock_guard guard(registry_lock);
    std::vector<const void*> found;
    for (const auto& [symbol, variable] : variables()) {
        if (variable.managed != nullptr && variable.module == module) found.push_back(symbol);
    }
    return found;
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

// The memory of its variables is not freed: a destructor must not wait for the simulator's lock.
void __cudaUnregisterFatBinary(void** handle) {
    SIMULATED();
    {
        const std::lock_guard guard(registry_lock);
        std::erase_if(variables(),
                      [handle](const auto& entry) { return entry.second.module == handle; });
    }
    unregister_module(reinterpret_cast<Module*>(handle));
}

void __cudaRegisterFunction(void** handle, const char* host, char*, const char* name, int, uint3*,
                            uint3*, dim3*, dim3*, int*) {
    SIMULATED();
    register_kernel(reinterpret_cast<Module*>(handle), host, name);
}

void __cudaRegisterVar(void** handle, char* host, char*, const char* name, int, std::size_t size,
                       int, int) {
    SIMULATED();
    const std::lock_guard guard(registry_lock);
    variables()[host] = {.module = handle, .size = size, .name = name};
}

void __cudaRegisterHostVar(void**, const char*, char*, std::size_t) { SIMULATED(); }

// Makes no memory: a constructor must not wait for the simulator's lock (registry_mutex).
void __cudaRegisterManagedVar(void** handle, void** host, char*, const char* name, int,
                              std::size_t size, int, int) {
    SIMULATED();
    const std::lock_guard guard(registry_lock);
    variables()[host] = {.module = handle, .size = size, .name = name, .managed = host};
}

// Called before the program's first use of a managed variable (crt/host_runtime.h).
char __cudaInitModule(void** handle) {
    SIMULATED();
    for (const void* const symbol : managed_variables(handle)) {
        void* address = nullptr;
        std::size_t size = 0;
        if (address_of(symbol, &address, &size) != cudaSuccess) return 0;
    }
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
