// What the files of libcuda share: results, contexts, entry points.
#pragma once

#include <cuda.h>

#include "kernels.h"
#include "simulator.h"

// A context belongs to a card. Each card has its primary context, which the runtime uses too.
struct CUctx_st {
    int card = 0;
    unsigned flags = 0;
    int users = 0;  // of the primary context: cuDevicePrimaryCtxRetain
    bool primary = false;
};

namespace simulator {

// A function by the name that cuGetProcAddress is asked for: from this CUDA version on it is this
// exported function. Made by generate.py from cudaTypedefs.h; ends with a null name.
struct EntryPoint {
    const char* name;
    int version;
    const char* symbol;
};
extern const EntryPoint kEntryPoints[];

// The names of CUresult's values, made by generate.py from cuda.h; ends with a null name.
struct ResultName {
    int result;
    const char* name;
};
extern const ResultName kResultNames[];

inline CUresult result(cudaError_t error) { return static_cast<CUresult>(driver_error(error)); }

// First statement of every function that needs a driver with cards.
#define DRIVER()                                                                    \
    SIMULATED();                                                                    \
    if (const cudaError_t not_started = ::simulator::start()) return result(not_started)

// First statement of every function that works in the calling thread's context: `card` is its card.
#define IN_CONTEXT()                                             \
    DRIVER();                                                    \
    [[maybe_unused]] const int card = ::simulator::context_card(); \
    if (card < 0) return CUDA_ERROR_INVALID_CONTEXT

// The card of the calling thread's context, whose memory is taken; below 0: it has none.
int context_card();

// A card's primary context for a runtime that may use it later; the card must exist.
CUcontext primary_context(int card);

inline bool is_card(CUdevice device) {
    return device >= 0 && device < static_cast<int>(cards().size());
}

inline void* address(CUdeviceptr pointer) { return reinterpret_cast<void*>(pointer); }

}  // namespace simulator
