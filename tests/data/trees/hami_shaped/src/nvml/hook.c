// NVML's functions are looked up when they are called first: nothing is linked against it.
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <dlfcn.h>
#include <nvml.h>

#include "limit.h"

extern void * _dl_sym(void *, const char *, void *);

static void * real_nvml(const char * name) {
    if (real_dlsym == NULL) {
        real_dlsym = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
        if (real_dlsym == NULL) {
            real_dlsym = _dl_sym(RTLD_NEXT, "dlsym", dlsym);
        }
    }
    void * library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_NODELETE);
    return library == NULL ? NULL : real_dlsym(library, name);
}

nvmlReturn_t nvmlInit_v2(void) {
    nvmlReturn_t (*real)(void) = real_nvml("nvmlInit_v2");
    return real == NULL ? NVML_ERROR_LIBRARY_NOT_FOUND : real();
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int * count) {
    nvmlReturn_t (*real)(unsigned int *) = real_nvml("nvmlDeviceGetCount_v2");
    return real == NULL ? NVML_ERROR_LIBRARY_NOT_FOUND : real(count);
}

nvmlReturn_t nvmlDeviceGetCount(unsigned int * count) {
    return nvmlDeviceGetCount_v2(count);
}
