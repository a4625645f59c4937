// A driver's library that answers what the environment says: DRIVER_CUDA (13000), DRIVER_ERROR (of
// cuInit), DRIVER_CARDS ("12.0:BYTES:NAME;..."), DRIVER_SIGNAL (ends the process in cuInit), DRIVER_MODE
// (the compute mode of the first card).
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int number(const char *name, int otherwise) {
    const char *value = getenv(name);
    return value != NULL ? atoi(value) : otherwise;
}

static int card(int wanted, int *major, int *minor, unsigned long long *memory, char *name) {
    const char *text = getenv("DRIVER_CARDS");
    for (int i = 0; text != NULL && *text != '\0'; ++i) {
        if (sscanf(text, "%d.%d:%llu:%95[^;]", major, minor, memory, name) != 4) return 1;
        if (i == wanted) return 0;
        text += strcspn(text, ";");
        text += *text == ';';
    }
    return 101;
}

int cuInit(unsigned flags) {
    (void)flags;
    puts("noise of the driver");
    fflush(stdout);
    if (number("DRIVER_SIGNAL", 0) != 0) raise(number("DRIVER_SIGNAL", 0));
    return number("DRIVER_ERROR", 0);
}

int cuDriverGetVersion(int *version) {
    *version = number("DRIVER_CUDA", 13000);
    return 0;
}

int cuGetErrorName(int error, const char **name) {
    *name = error == 100 ? "CUDA_ERROR_NO_DEVICE" : error == 804 ? "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE" : "CUDA_ERROR_UNKNOWN";
    return 0;
}

int cuDeviceGetCount(int *count) {
    int major, minor;
    unsigned long long memory;
    char name[96];
    for (*count = 0; card(*count, &major, &minor, &memory, name) == 0; ++*count) continue;
    return 0;
}

int cuDeviceGet(int *device, int ordinal) {
    *device = ordinal;
    return 0;
}

int cuDeviceGetName(char *name, int length, int device) {
    int major, minor;
    unsigned long long memory;
    char found[96] = "";
    const int error = card(device, &major, &minor, &memory, found);
    snprintf(name, length, "%s", found);
    return error;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    int major, minor;
    unsigned long long memory;
    char name[96];
    const int error = card(device, &major, &minor, &memory, name);
    *value = attribute == 75 ? major : attribute == 76 ? minor : 0;
    if (attribute == 20 && device == 0) *value = number("DRIVER_MODE", 0);
    return error;
}

int cuDeviceTotalMem_v2(size_t *bytes, int device) {
    int major, minor;
    unsigned long long memory = 0;
    char name[96];
    const int error = card(device, &major, &minor, &memory, name);
    *bytes = memory;
    return error;
}
