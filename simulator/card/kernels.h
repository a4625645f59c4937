// Modules, kernels and launches: registered by the program, checked, counted; run in mode compute.
#pragma once

#include <vector_types.h>

#include <memory>

#include "simulator.h"

namespace simulator {

// What the code table says about a kernel, for the code that the card takes.
struct Attributes {
    int registers = 0, threads = 0, cluster = 0;  // threads, cluster 0: not limited
    int binary_version = 0, ptx_version = 0;      // 120: compute capability 12.0
    std::uint64_t shared = 0, local = 0;          // static shared and local memory, in bytes
};

struct Kernel;
struct Module;

// A fat binary of the program: its kernels are looked up in the code table by file and address.
// `data`: the region itself (the wrapper's pointer).
SIMULATOR_API Module* register_module(const void* data);
SIMULATOR_API void unregister_module(Module* module);
// `host`: the stub's address, null for a kernel that is found by name (cuModuleGetFunction).
SIMULATOR_API Kernel* register_kernel(Module* module, const void* host, const char* name);
// The kernel of a stub's address or of a handle (a Kernel* itself); null: not registered.
SIMULATOR_API Kernel* find_kernel(const void* function);
// The module's kernel of this name, registered or, where the code table has it, made now.
SIMULATOR_API Kernel* find_kernel(Module* module, const char* name);
// In mode compute: reads the module's PTX now, as the program may free the image; its variables.
SIMULATOR_API void load_programs(Module* module);
SIMULATOR_API cudaError_t module_variable(Module* module, int card, const char* name,
                                          void** address, std::size_t* size);
SIMULATOR_API const char* kernel_name(const Kernel* kernel);
SIMULATOR_API Module* kernel_module(const Kernel* kernel);

// cudaErrorNoKernelImageForDevice, cudaErrorInvalidDeviceFunction: no code for the card; the
// report says so. Else *attributes, all 0 where the code table does not know the code.
SIMULATOR_API cudaError_t kernel_attributes(Kernel* kernel, int card, Attributes* attributes);
// Dynamic shared memory that a launch may ask for on this card, and raising it.
SIMULATOR_API std::uint64_t dynamic_shared_limit(Kernel* kernel, int card);
SIMULATOR_API cudaError_t set_dynamic_shared_limit(Kernel* kernel, int card, std::uint64_t size);
SIMULATOR_API void set_nonportable_cluster(Kernel* kernel, bool allowed);
// The blocks that a cluster of this kernel may have on the card; 1: it has no clusters.
SIMULATOR_API int cluster_limit(const Kernel* kernel, int card);
// Blocks of this size that a multiprocessor holds at once; 0: none fits.
SIMULATOR_API cudaError_t resident_blocks(Kernel* kernel, int card, int threads,
                                          std::uint64_t dynamic_shared, int* blocks);

// A kernel's arguments, packed as its parameters lie.
struct Arguments {
    std::vector<unsigned char> bytes;
    std::vector<void*> each;  // where each of them is in `bytes`
};

struct Launch {
    Kernel* kernel = nullptr;
    int card = 0;
    dim3 grid{1, 1, 1}, block{1, 1, 1}, cluster{0, 0, 0};  // cluster 0: none asked for
    std::uint64_t shared = 0;                              // dynamic, in bytes
    bool cooperative = false;
    bool dependent = false;  // programmatic stream serialization: may start before the launch before it ends
    // Where no launch may have the grid or the block: the driver's error; CUDA 12's runtime has another.
    cudaError_t size_error = cudaErrorInvalidValue;
    std::shared_ptr<Arguments> arguments;  // null in mode count: no kernel reads them
};

// Checks the launch as the driver would, and takes its arguments: `each` by its address, or all
// packed in `extra`. What it finds is written to the report before it returns.
SIMULATOR_API cudaError_t check_launch(Launch& launch, void* const* each,
                                       void* const* extra = nullptr);
// Counts a launch that was checked (a graph launches its kernels many times).
SIMULATOR_API void count_launch(const Launch& launch);
// check_launch, then done or, while the stream is captured, added to its graph.
SIMULATOR_API cudaError_t launch(Launch launch, void* const* each, void* const* extra,
                                 cudaStream_t stream);

// The number that the driver API returns for an error of the runtime API.
SIMULATOR_API int driver_error(cudaError_t error);

}  // namespace simulator
