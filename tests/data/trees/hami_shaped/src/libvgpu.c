// Stands in front of the driver: who asks the loader for one of its functions gets ours.
#include <cuda.h>
#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#include "limit.h"
#include "static_config.h"

#define VISIBLE __attribute__((visibility("default")))

fp_dlsym real_dlsym = NULL;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void begin(void) {
    try_lock_unified_lock();
    init_utilization_watcher();
}

int real_driver(const char * name, void * argument) {
    const char * text;
    void * driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NODELETE);
    int (*real)(void *) = driver == NULL ? NULL : real_dlsym(driver, name);
    return real != NULL ? real(argument) : cuGetErrorName(CUDA_ERROR_UNKNOWN, &text);
}

VISIBLE void * dlsym(void * handle, const char * name) {
    if (real_dlsym == NULL) {
        real_dlsym = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    }
#ifdef DLSYM_HOOK_ENABLE
    if (strncmp(name, "cu", 2) == 0) {
        pthread_once(&once, begin);
        return real_dlsym(RTLD_DEFAULT, name);
    }
#endif
    return real_dlsym(handle, name);
}
