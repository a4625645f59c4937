// Modules, libraries, functions and launches of the driver API.
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>

#include "driver.h"
#include "streams.h"

using namespace simulator;

// A CUmodule and a CUlibrary are a Module, a CUfunction and a CUkernel are a Kernel.
namespace {

Module* module_of(CUmodule module) { return reinterpret_cast<Module*>(module); }
Module* module_of(CUlibrary library) { return reinterpret_cast<Module*>(library); }

Kernel* kernel_of(const void* handle) { return find_kernel(handle); }

// The code within an image: itself (a cubin, PTX, a fat binary), or what the wrapper of a fat
// binary points to (fatbinary_section.h).
const void* code_of(const void* image) {
    constexpr std::uint32_t kWrapper = 0x466243b1;
    struct Wrapper {
        std::uint32_t magic, version;
        const void* data;
    };
    const auto* const wrapper = static_cast<const Wrapper*>(image);
    std::uint32_t magic;
    std::memcpy(&magic, image, sizeof magic);
    return magic == kWrapper ? wrapper->data : image;
}

template <class Handle>
CUresult load(Handle* handle, const void* image) {
    if (handle == nullptr || image == nullptr) return CUDA_ERROR_INVALID_VALUE;
    Module* const module = register_module(code_of(image));
    load_programs(module);
    *handle = reinterpret_cast<Handle>(module);
    return CUDA_SUCCESS;
}

// The image is kept: a program may ask for its functions at any time.
template <class Handle>
CUresult load_file(Handle* handle, const char* path) {
    if (path == nullptr) return CUDA_ERROR_INVALID_VALUE;
    std::ifstream file(path, std::ios::binary);
    if (!file) return CUDA_ERROR_FILE_NOT_FOUND;
    auto* const image = new std::string(std::istreambuf_iterator<char>(file), {});
    return load(handle, image->c_str());
}

template <class Handle>
CUresult find(Handle* handle, Module* module, const char* name) {
    if (handle == nullptr || module == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
    Kernel* const kernel = find_kernel(module, name);
    *handle = reinterpret_cast<Handle>(kernel);
    return kernel == nullptr ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}

CUresult attribute(int* value, CUfunction_attribute wanted, const void* function, int card) {
    Kernel* const kernel = kernel_of(function);
    if (kernel == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
    Attributes found;
    if (const cudaError_t error = kernel_attributes(kernel, card, &found)) return result(error);
    const Card& on = cards()[card];
    switch (wanted) {
        case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
            *value = found.threads != 0 ? found.threads : on.threads_per_block;
            return CUDA_SUCCESS;
        case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: *value = found.shared; return CUDA_SUCCESS;
        case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES: *value = found.local; return CUDA_SUCCESS;
        case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = found.registers; return CUDA_SUCCESS;
        case CU_FUNC_ATTRIBUTE_PTX_VERSION: *value = found.ptx_version; return CUDA_SUCCESS;
        case CU_FUNC_ATTRIBUTE_BINARY_VERSION: *value = found.binary_version; return CUDA_SUCCESS;
        case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
            *value = dynamic_shared_limit(kernel, card);
            return CUDA_SUCCESS;
        case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT: *value = -1; return CUDA_SUCCESS;
        default: *value = 0; return CUDA_SUCCESS;
    }
}

CUresult set_attribute(CUfunction_attribute which, int value, const void* function, int card) {
    Kernel* const kernel = kernel_of(function);
    if (kernel == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (which == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
        if (value < 0) return CUDA_ERROR_INVALID_VALUE;
        return result(set_dynamic_shared_limit(kernel, card, value));
    }
    switch (which) {
        case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
            set_nonportable_cluster(kernel, value != 0);
            return CUDA_SUCCESS;
        case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
        case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
        case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
        case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
        case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE: return CUDA_SUCCESS;
        // Triton 3.8 tries an attribute of a newer CUDA first, and takes success for its effect.
        default: return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult blocks(int* count, const void* function, int threads, size_t shared, int card) {
    Kernel* const kernel = kernel_of(function);
    if (kernel == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return result(resident_blocks(kernel, card, threads, shared, count));
}

// In mode count, nothing is known of a module's variables.
CUresult variable(CUdeviceptr* pointer, size_t* size, Module* module, const char* name, int card,
                  const char* function) {
    if (module == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (!computes()) {
        unsupported(function);
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    void* found = nullptr;
    size_t bytes = 0;
    if (module_variable(module, card, name, &found, &bytes) != cudaSuccess) {
        return CUDA_ERROR_NOT_FOUND;
    }
    if (pointer != nullptr) *pointer = reinterpret_cast<CUdeviceptr>(found);
    if (size != nullptr) *size = bytes;
    return CUDA_SUCCESS;
}

CUresult start_kernel(Launch wanted, const void* function, CUstream stream, void** arguments,
                      void** extra = nullptr) {
    wanted.kernel = kernel_of(function);
    if (wanted.kernel == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    return result(launch(wanted, arguments, extra, stream));
}

}  // namespace

extern "C" {

CUresult cuModuleLoad(CUmodule* module, const char* path) {
    IN_CONTEXT();
    return load_file(module, path);
}

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
    IN_CONTEXT();
    return load(module, image);
}

CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned, CUjit_option*, void**) {
    IN_CONTEXT();
    return load(module, image);
}

CUresult cuModuleLoadFatBinary(CUmodule* module, const void* image) {
    IN_CONTEXT();
    return load(module, image);
}

// The default since CUDA 12.2 (CUDA_MODULE_LOADING).
CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode* mode) {
    DRIVER();
    if (mode == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *mode = CU_MODULE_LAZY_LOADING;
    return CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule module) {
    IN_CONTEXT();
    if (module == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    unregister_module(module_of(module));
    return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
    IN_CONTEXT();
    return find(function, module_of(module), name);
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr* pointer, size_t* size, CUmodule module,
                              const char* name) {
    IN_CONTEXT();
    return variable(pointer, size, module_of(module), name, card, __func__);
}

CUresult cuLibraryGetGlobal(CUdeviceptr* pointer, size_t* size, CUlibrary library,
                            const char* name) {
    IN_CONTEXT();
    return variable(pointer, size, module_of(library), name, card, __func__);
}

CUresult cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option*, void**, unsigned,
                           CUlibraryOption*, void**, unsigned) {
    DRIVER();
    return load(library, code);
}

CUresult cuLibraryLoadFromFile(CUlibrary* library, const char* path, CUjit_option*, void**,
                               unsigned, CUlibraryOption*, void**, unsigned) {
    DRIVER();
    return load_file(library, path);
}

CUresult cuLibraryUnload(CUlibrary library) {
    DRIVER();
    if (library == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    unregister_module(module_of(library));
    return CUDA_SUCCESS;
}

CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
    DRIVER();
    return find(kernel, module_of(library), name);
}

CUresult cuLibraryGetModule(CUmodule* module, CUlibrary library) {
    IN_CONTEXT();
    if (module == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *module = reinterpret_cast<CUmodule>(library);
    return CUDA_SUCCESS;
}

CUresult cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
    IN_CONTEXT();
    if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *function = reinterpret_cast<CUfunction>(kernel);
    return CUDA_SUCCESS;
}

CUresult cuFuncGetModule(CUmodule* module, CUfunction function) {
    DRIVER();
    const Kernel* const kernel = kernel_of(function);
    if (kernel == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (module == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *module = reinterpret_cast<CUmodule>(kernel_module(kernel));
    return CUDA_SUCCESS;
}

CUresult cuFuncGetName(const char** name, CUfunction function) {
    DRIVER();
    const Kernel* const kernel = kernel_of(function);
    if (kernel == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *name = kernel_name(kernel);
    return CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int* value, CUfunction_attribute which, CUfunction function) {
    IN_CONTEXT();
    return attribute(value, which, function, card);
}

CUresult cuKernelGetAttribute(int* value, CUfunction_attribute which, CUkernel kernel,
                              CUdevice device) {
    DRIVER();
    return attribute(value, which, kernel, device);
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute which, int value) {
    IN_CONTEXT();
    return set_attribute(which, value, function, card);
}

CUresult cuKernelSetAttribute(CUfunction_attribute which, int value, CUkernel kernel,
                              CUdevice device) {
    DRIVER();
    return set_attribute(which, value, kernel, device);
}

CUresult cuFuncSetCacheConfig(CUfunction function, CUfunc_cache) {
    IN_CONTEXT();
    return kernel_of(function) == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* count, CUfunction function, int threads,
                                                     size_t shared) {
    IN_CONTEXT();
    return blocks(count, function, threads, shared, card);
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* count, CUfunction function,
                                                              int threads, size_t shared,
                                                              unsigned) {
    IN_CONTEXT();
    return blocks(count, function, threads, shared, card);
}

CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                        unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                        CUstream stream, void** arguments, void** extra) {
    IN_CONTEXT();
    return start_kernel({.card = card,
                         .grid = {grid_x, grid_y, grid_z},
                         .block = {block_x, block_y, block_z},
                         .shared = shared},
                        function, stream, arguments, extra);
}

CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned grid_x, unsigned grid_y,
                                   unsigned grid_z, unsigned block_x, unsigned block_y,
                                   unsigned block_z, unsigned shared, CUstream stream,
                                   void** arguments) {
    IN_CONTEXT();
    return start_kernel({.card = card,
                         .grid = {grid_x, grid_y, grid_z},
                         .block = {block_x, block_y, block_z},
                         .shared = shared,
                         .cooperative = true},
                        function, stream, arguments);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** arguments,
                          void** extra) {
    IN_CONTEXT();
    if (config == nullptr) return CUDA_ERROR_INVALID_VALUE;
    Launch wanted{.card = card,
                  .grid = {config->gridDimX, config->gridDimY, config->gridDimZ},
                  .block = {config->blockDimX, config->blockDimY, config->blockDimZ},
                  .shared = config->sharedMemBytes};
    for (unsigned i = 0; i < config->numAttrs; ++i) {
        const CUlaunchAttribute& given = config->attrs[i];
        if (given.id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) {
            const auto& cluster = given.value.clusterDim;
            wanted.cluster = {cluster.x, cluster.y, cluster.z};
        }
        if (given.id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) {
            wanted.cooperative = given.value.cooperative != 0;
        }
        if (given.id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION) {
            wanted.dependent = given.value.programmaticStreamSerializationAllowed != 0;
        }
    }
    return start_kernel(wanted, function, config->hStream, arguments, extra);
}

}  // extern "C"
