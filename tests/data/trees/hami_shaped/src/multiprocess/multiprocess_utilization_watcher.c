#include <nvml.h>
#include <pthread.h>
#include <stdint.h>

#include "limit.h"

#define CUDA_DEVICE_MAX_COUNT DEVICES

void* utilization_watcher() {
    nvmlInit();
    int userutil[CUDA_DEVICE_MAX_COUNT];
    int sysprocnum;

    unsigned int device_count;
    if (nvmlDeviceGetCount(&device_count) != NVML_SUCCESS) {
        return;
    }

    int64_t share[CUDA_DEVICE_MAX_COUNT] = {0};

    userutil[0] = sysprocnum = device_count;
    return (void *) (share[0] + userutil[0] + sysprocnum);
}

void init_utilization_watcher() {
    pthread_t thread;
    pthread_create(&thread, NULL, utilization_watcher, NULL);
}
