// Hooks of the driver's functions for memory; what they count must stay below the limit.
#include <cuda.h>

#include "limit.h"
#include "static_config.h"

static size_t used[DEVICES];

CUresult cuCtxGetDevice(CUdevice * device) {
    return real_driver("cuCtxGetDevice", device);
}

CUresult cuMemAlloc(CUdeviceptr * address, size_t size) {
    CUdevice dev;
    cuCtxGetDevice(&dev);
    used[dev] += size;
    return used[dev] > limit_of(dev) ? CUDA_ERROR_OUT_OF_MEMORY : real_driver("cuMemAlloc_v2", address);
}

CUresult cuMemFree(CUdeviceptr address) {
    return real_driver("cuMemFree_v2", (void *) address);
}

CUresult cuMemCreate(CUmemGenericAllocationHandle * handle, size_t size,
                     const CUmemAllocationProp * prop, unsigned long long flags) {
    CUdevice dev;
    cuCtxGetDevice(&dev);
    used[dev] += size;
    return real_driver("cuMemCreate", handle);
}

#ifdef HOOK_MEMINFO_ENABLE
CUresult cuMemGetInfo(size_t * free, size_t * total) {
    *total = limit_of(0);
    *free = *total - used[0];
    return CUDA_SUCCESS;
}
#endif
