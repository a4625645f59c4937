// NVIDIA's driver as studies/silicon calls it, with the interpreter in the place of a card (cuda.h).
//
// DRIVER_LIES: each kernel's result is off by its lowest bit.  DRIVER_REFUSES: a module with this text
// is refused.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "../ptx_c.h"

struct function {
    ptx_module* module;
    char name[64];
};

static unsigned char* first;  // the oldest allocation, which has the result

int cuInit(unsigned flags) { return (int)flags; }
int cuDeviceGet(int* device, int ordinal) { return *device = ordinal, 0; }
int cuDeviceGetName(char* name, int size, int device) {
    return strncpy(name, "the interpreter", (size_t)size), device;
}
int cuDeviceGetAttribute(int* value, int attribute, int device) {
    return *value = attribute == 75 ? 12 : 0, device;
}
int cuDevicePrimaryCtxRetain(void** context, int device) { return *context = NULL, device; }
int cuCtxSetCurrent(void* context) { return context != NULL; }
int cuCtxSynchronize(void) { return 0; }

int cuModuleLoadData(ptx_module** module, const char* text) {
    const char* const refused = getenv("DRIVER_REFUSES");
    if (refused != NULL && strstr(text, refused) != NULL) return 218;  // CUDA_ERROR_INVALID_PTX
    *module = ptx_load(text, strlen(text));
    return *module == NULL ? 218 : 0;
}
int cuModuleUnload(ptx_module* module) { return ptx_unload(module), 0; }
int cuModuleGetFunction(struct function** function, ptx_module* module, const char* name) {
    *function = malloc(sizeof **function);
    (*function)->module = module;
    strncpy((*function)->name, name, sizeof (*function)->name);
    return 0;
}

int cuMemAlloc_v2(uint64_t* address, size_t size) {
    unsigned char* const bytes = malloc(size);
    if (first == NULL) first = bytes;
    *address = (uint64_t)bytes;
    return ptx_register(*address, size, 1), 0;
}
int cuMemFree_v2(uint64_t address) {
    ptx_unregister(address);
    if ((uint64_t)first == address) first = NULL;
    return free((void*)address), 0;
}
int cuMemcpyHtoD_v2(uint64_t to, const void* from, size_t size) {
    return memcpy((void*)to, from, size), 0;
}
int cuMemcpyDtoH_v2(void* to, uint64_t from, size_t size) {
    return memcpy(to, (const void*)from, size), 0;
}

int cuLaunchKernel(struct function* function, unsigned x, unsigned y, unsigned z, unsigned width,
                   unsigned height, unsigned depth, unsigned shared, void* stream, void** arguments,
                   void** extra) {
    (void)stream, (void)extra;
    ptx_launch_options options = {.grid = {x, y, z}, .block = {width, height, depth},
                                  .shared = shared};
    unsigned char parameters[4096];
    uint32_t offset, size;
    for (int i = 0; ptx_parameter(function->module, function->name, i, &offset, &size) == 0; ++i)
        memcpy(parameters + offset, arguments[i], size);
    const int64_t bytes = ptx_parameter_bytes(function->module, function->name);
    ptx_result result;
    if (ptx_run(function->module, function->name, &options, parameters, (uint32_t)bytes, &result))
        return 1;
    if (getenv("DRIVER_LIES") != NULL) first[0] ^= 1;
    free(function);
    return result.fault != 0 ? 719 : 0;  // CUDA_ERROR_LAUNCH_FAILED
}
