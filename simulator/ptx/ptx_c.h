// The interpreter for callers in C, and for Python's ctypes.  Memory that kernels may touch is
// registered first.  Functions that fail return null or -1; ptx_error() has the reason.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ptx_module ptx_module;

typedef struct {
    uint32_t grid[3], block[3];
    uint32_t shared;  // dynamic, in bytes
    uint32_t cooperative;
    uint32_t threads;  // of the host; 0: one for each core
    uint32_t races, uninitialized, checksum;
    uint32_t fill;
    uint64_t most_instructions;
} ptx_launch_options;

typedef struct {
    int32_t fault;  // 0: none; else 1 + ptx::Fault::Kind, of its fault or first finding
    uint32_t line;
    uint64_t address;
    uint32_t block[3], thread[3];
    uint64_t warp_instructions, lane_instructions, checksum;
    double seconds, cpu_seconds;
} ptx_result;

const char* ptx_error(void);    // of this thread's last call
const char* ptx_fault(void);    // of this thread's last launch: the text of its fault, then of its findings
const char* ptx_printed(void);  // what the kernel printed
const char* ptx_machine(void);

ptx_module* ptx_load(const char* text, size_t size);
void ptx_unload(ptx_module* module);
int64_t ptx_kernels(const ptx_module* module);
const char* ptx_kernel_name(const ptx_module* module, int64_t index);
// A line for each opcode that the kernel has and the interpreter lacks.
const char* ptx_lacks(const ptx_module* module, const char* kernel);
int64_t ptx_shared_bytes(const ptx_module* module, const char* kernel);
int64_t ptx_parameter_bytes(const ptx_module* module, const char* kernel);
// Offset and size of a parameter; -1: no such parameter.
int ptx_parameter(const ptx_module* module, const char* kernel, int index, uint32_t* offset,
                  uint32_t* size);
int ptx_variable(const ptx_module* module, const char* name, uint64_t* address, uint64_t* size);

// Allocations of this process's memory; `backed` 0: a hole.
void ptx_register(uint64_t address, uint64_t size, int backed);
void ptx_unregister(uint64_t address);

// 0: the launch ran, perhaps to a fault.  -1: ptx_error().
int ptx_run(const ptx_module* module, const char* kernel, const ptx_launch_options* options,
            const void* parameters, uint32_t parameter_bytes, ptx_result* result);

#ifdef __cplusplus
}
#endif
