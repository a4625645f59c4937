// How programs find the driver's functions at run time, and what its results are called.
#include <dlfcn.h>

#include <cstring>

#include "driver.h"

using namespace simulator;

namespace {

// The function that this name had in the newest CUDA that is not newer than `version`; null: none.
// *known: the name exists, in a newer CUDA.
const char* symbol_for(const char* name, int version, bool* known) {
    const EntryPoint* best = nullptr;
    *known = false;
    for (const EntryPoint* entry = kEntryPoints; entry->name != nullptr; ++entry) {
        if (std::strcmp(entry->name, name) != 0) continue;
        *known = true;
        if (entry->version > version) continue;
        if (best == nullptr || entry->version > best->version) best = entry;
    }
    return best == nullptr ? nullptr : best->symbol;
}

// Null: no result of this number.
const char* name_of(CUresult result) {
    for (const ResultName* known = kResultNames; known->name != nullptr; ++known) {
        if (known->result == result) return known->name;
    }
    return nullptr;
}

// A function of this library, also where the program loaded another one of the same name.
void* own_function(const char* symbol) {
    Dl_info here;
    if (dladdr(reinterpret_cast<const void*>(&own_function), &here) == 0) return nullptr;
    void* const library = dlopen(here.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    if (library == nullptr) return nullptr;
    void* const function = dlsym(library, symbol);
    dlclose(library);
    return function;
}

}  // namespace

extern "C" {

// Where there is none, the function is null and the status says why: the call succeeds (cuda.h).
// Nothing runs on a stream, so the variants for a thread's own default stream are the same.
CUresult cuGetProcAddress_v2(const char* name, void** function, int version, cuuint64_t,
                             CUdriverProcAddressQueryResult* status) {
    SIMULATED();
    if (name == nullptr || function == nullptr) return CUDA_ERROR_INVALID_VALUE;
    bool known = false;
    const char* const symbol = symbol_for(name, version, &known);
    *function = symbol == nullptr ? nullptr : own_function(symbol);
    if (status != nullptr) {
        *status = *function != nullptr ? CU_GET_PROC_ADDRESS_SUCCESS
                  : known              ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                                       : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    }
    return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char** name) {
    SIMULATED();
    if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *name = name_of(error);
    return *name != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char** text) {
    SIMULATED();
    if (text == nullptr) return CUDA_ERROR_INVALID_VALUE;
    // The results that the runtime has too have the same numbers and texts.
    *text = name_of(error) == nullptr ? nullptr : error_text(static_cast<cudaError_t>(error));
    return *text != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// The card writes no log: what a program reads there is empty (CUDA Driver API, "Error Log
// Management Functions").
CUresult cuLogsRegisterCallback(CUlogsCallback callback, void*, CUlogsCallbackHandle* handle) {
    SIMULATED();
    if (callback == nullptr || handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *handle = reinterpret_cast<CUlogsCallbackHandle>(callback);
    return CUDA_SUCCESS;
}

CUresult cuLogsUnregisterCallback(CUlogsCallbackHandle handle) {
    SIMULATED();
    return handle == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

}  // extern "C"
