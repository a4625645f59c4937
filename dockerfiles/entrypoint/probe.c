// Asks the driver's library: what it is, which CUDA it supports, and which cards it has.
//
// A process of its own, because a static program cannot load libraries, and what the library does
// ends with it.  It calls no function that takes memory of a card.  One answer a line, to the
// descriptor 3:
//
//     library FILE      or  loading REASON    libcuda.so.1, found as every program finds it
//     simulated                               it is builder's own
//     cuda 13000                              cuDriverGetVersion
//     error 100 CUDA_ERROR_NO_DEVICE          of cuInit, or of the first call after it that fails
//     card 12 0 33680457728 NAME              compute capability, bytes of memory
//     prohibited                              the compute mode of the card above
//     end
//
// Prototypes and numbers: NVIDIA, CUDA Driver API reference.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

typedef int (*Function)();

enum { kAnswers = 3 };
enum { kComputeMode = 20, kCapabilityMajor = 75, kCapabilityMinor = 76 };  // CUdevice_attribute
enum { kProhibited = 2 };  // CUcomputemode

static void *cuda;

static int missing() { return 500; }  // CUDA_ERROR_NOT_FOUND

static Function find(const char *name) {
    const Function found = (Function)dlsym(cuda, name);
    return found != NULL ? found : missing;
}

// Writes the error, if there is one; true: the call succeeded.
static int succeeded(int error) {
    if (error == 0) return 1;
    const char *name = NULL;
    find("cuGetErrorName")(error, &name);
    dprintf(kAnswers, "error %d %s\n", error, name != NULL ? name : "CUDA_ERROR");
    return 0;
}

static void tell_library(void) {
    struct link_map *map = NULL;
    char *file = NULL;
    if (dlinfo(cuda, RTLD_DI_LINKMAP, &map) == 0) file = realpath(map->l_name, NULL);
    dprintf(kAnswers, "library %s\n", file != NULL ? file : "libcuda.so.1");
    if (dlopen("libsimulator.so", RTLD_LAZY | RTLD_NOLOAD) != NULL)
        dprintf(kAnswers, "simulated\n");
}

static int tell_card(int number) {
    int device = 0, major = 0, minor = 0, mode = 0;
    size_t memory = 0;
    char name[96] = "";
    const Function attribute = find("cuDeviceGetAttribute");
    if (!succeeded(find("cuDeviceGet")(&device, number)) ||
        !succeeded(find("cuDeviceGetName")(name, (int)sizeof name, device)) ||
        !succeeded(attribute(&major, kCapabilityMajor, device)) ||
        !succeeded(attribute(&minor, kCapabilityMinor, device)) ||
        !succeeded(find("cuDeviceTotalMem_v2")(&memory, device)))
        return 0;
    dprintf(kAnswers, "card %d %d %zu %s\n", major, minor, memory, name);
    if (attribute(&mode, kComputeMode, device) == 0 && mode == kProhibited)
        dprintf(kAnswers, "prohibited\n");
    return 1;
}

int main(void) {
    cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (cuda == NULL) {
        dprintf(kAnswers, "loading %s\nend\n", dlerror());
        _exit(0);
    }
    tell_library();
    int version = 0, cards = 0;
    if (find("cuDriverGetVersion")(&version) == 0) dprintf(kAnswers, "cuda %d\n", version);
    if (succeeded(find("cuInit")(0)) && succeeded(find("cuDeviceGetCount")(&cards)))
        for (int i = 0; i < cards && tell_card(i); ++i) continue;
    dprintf(kAnswers, "end\n");
    _exit(0);  // the library's destructors have nothing to do for us
}
