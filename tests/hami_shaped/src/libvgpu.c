// Stands in front of the driver: who asks the loader for one of its functions gets ours.
#include <cuda.h>
#include <dlfcn.h>
#include <nvml.h>
#include <string.h>

#include "limit.h"

#define VISIBLE __attribute__((visibility("default")))

static CUresult limited(size_t * bytes, CUdevice device) {
    CUresult result = cuDeviceTotalMem(bytes, device);
    *bytes = limit_of(*bytes);
    return result;
}

VISIBLE void * dlsym(void * handle, const char * name) {
    if (strcmp(name, "cuDeviceTotalMem_v2") == 0) {
        return (void *) limited;
    }
    if (strcmp(name, "vgpu_devices") == 0) {
        static unsigned int count;
        return nvmlDeviceGetCount(&count) == NVML_SUCCESS ? &count : NULL;
    }
    return dlvsym(handle, name, "GLIBC_2.2.5");
}
