// Contexts of the driver API: each card's primary one, and those that a program makes.
#include <mutex>
#include <set>
#include <vector>

#include "attributes.h"
#include "driver.h"
#include "memory.h"
#include "streams.h"

using namespace simulator;

namespace {

thread_local std::vector<CUcontext> stack_of_contexts;

std::mutex& contexts_mutex() {
    static auto* const only = new std::mutex;
    return *only;
}

std::vector<CUctx_st>& primary_contexts() {
    static auto* const all = [] {
        auto* const made = new std::vector<CUctx_st>(cards().size());
        for (const Card& card : cards()) {
            (*made)[card.index].card = card.index;
            (*made)[card.index].primary = true;
        }
        return made;
    }();
    return *all;
}

std::set<CUcontext>& made_contexts() {
    static auto* const all = new std::set<CUcontext>;
    return *all;
}

bool is_context(CUcontext context) {
    const std::lock_guard lock(contexts_mutex());
    for (CUctx_st& primary : primary_contexts()) {
        if (context == &primary) return primary.users > 0 || card_used(primary.card);
    }
    return made_contexts().count(context) != 0;
}

// The calling thread's context: the last pushed or set one, else the context of the runtime's card.
CUcontext current_context() {
    if (!stack_of_contexts.empty()) return stack_of_contexts.back();
    const int card = current_card();
    return card_used(card) ? &primary_contexts()[card] : nullptr;
}

CUresult create(CUcontext* context, unsigned flags, CUdevice device) {
    if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (!is_card(device)) return CUDA_ERROR_INVALID_DEVICE;
    if (const cudaError_t error = use_card(device)) return result(error);
    auto* const made = new CUctx_st{.card = device, .flags = flags};
    {
        const std::lock_guard lock(contexts_mutex());
        made_contexts().insert(made);
    }
    stack_of_contexts.push_back(made);
    set_current_card(device);
    *context = made;
    return CUDA_SUCCESS;
}

}  // namespace

CUcontext simulator::primary_context(int card) {
    const std::lock_guard lock(contexts_mutex());
    CUctx_st& context = primary_contexts()[card];
    ++context.users;
    return &context;
}

int simulator::context_card() {
    const CUcontext context = current_context();
    if (context == nullptr || !is_context(context)) return -1;
    return use_card(context->card) == cudaSuccess ? context->card : -1;
}

extern "C" {

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
    DRIVER();
    if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (!is_card(device)) return CUDA_ERROR_INVALID_DEVICE;
    if (const cudaError_t error = use_card(device)) return result(error);
    const std::lock_guard lock(contexts_mutex());
    *context = &primary_contexts()[device];
    ++(*context)->users;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    DRIVER();
    if (!is_card(device)) return CUDA_ERROR_INVALID_DEVICE;
    const std::lock_guard lock(contexts_mutex());
    CUctx_st& context = primary_contexts()[device];
    if (context.users == 0) return CUDA_ERROR_INVALID_CONTEXT;
    --context.users;
    return CUDA_SUCCESS;
}


CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
    DRIVER();
    if (!is_card(device)) return CUDA_ERROR_INVALID_DEVICE;
    reset_card(device);
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags) {
    DRIVER();
    if (!is_card(device)) return CUDA_ERROR_INVALID_DEVICE;
    const std::lock_guard lock(contexts_mutex());
    primary_contexts()[device].flags = flags;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
    DRIVER();
    if (!is_card(device)) return CUDA_ERROR_INVALID_DEVICE;
    if (flags == nullptr || active == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const std::lock_guard lock(contexts_mutex());
    *flags = primary_contexts()[device].flags;
    *active = card_used(device);
    return CUDA_SUCCESS;
}

CUresult cuCtxCreate_v2(CUcontext* context, unsigned flags, CUdevice device) {
    DRIVER();
    return create(context, flags, device);
}

CUresult cuCtxCreate_v4(CUcontext* context, CUctxCreateParams*, unsigned flags, CUdevice device) {
    DRIVER();
    return create(context, flags, device);
}

CUresult cuCtxDestroy_v2(CUcontext context) {
    DRIVER();
    {
        const std::lock_guard lock(contexts_mutex());
        if (made_contexts().erase(context) == 0) return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (!stack_of_contexts.empty() && stack_of_contexts.back() == context) {
        stack_of_contexts.pop_back();
    }
    delete context;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* context) {
    DRIVER();
    if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *context = current_context();
    return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) {
    DRIVER();
    if (!stack_of_contexts.empty()) stack_of_contexts.pop_back();
    if (context == nullptr) return CUDA_SUCCESS;
    if (!is_context(context)) return CUDA_ERROR_INVALID_CONTEXT;
    stack_of_contexts.push_back(context);
    return result(set_current_card(context->card));
}

CUresult cuCtxPushCurrent_v2(CUcontext context) {
    DRIVER();
    if (context == nullptr || !is_context(context)) return CUDA_ERROR_INVALID_CONTEXT;
    stack_of_contexts.push_back(context);
    return result(set_current_card(context->card));
}

CUresult cuCtxPopCurrent_v2(CUcontext* context) {
    DRIVER();
    if (stack_of_contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
    if (context != nullptr) *context = stack_of_contexts.back();
    stack_of_contexts.pop_back();
    if (stack_of_contexts.empty()) return CUDA_SUCCESS;
    return result(set_current_card(stack_of_contexts.back()->card));
}

CUresult cuCtxGetDevice(CUdevice* device) {
    IN_CONTEXT();
    if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *device = card;
    return CUDA_SUCCESS;
}

// The name of CUDA 13, by which the static runtime asks; a null context is the current one.
CUresult cuCtxGetDevice_v2(CUdevice* device, CUcontext context) {
    DRIVER();
    if (context == nullptr) return cuCtxGetDevice(device);
    if (!is_context(context)) return CUDA_ERROR_INVALID_CONTEXT;
    if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *device = context->card;
    return CUDA_SUCCESS;
}

// Different for each context of a process: cuda.h.
CUresult cuCtxGetId(CUcontext context, unsigned long long* number) {
    DRIVER();
    if (context == nullptr) context = current_context();
    if (context == nullptr || !is_context(context)) return CUDA_ERROR_INVALID_CONTEXT;
    if (number == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *number = reinterpret_cast<std::uintptr_t>(context);
    return CUDA_SUCCESS;
}

CUresult cuCtxGetFlags(unsigned* flags) {
    IN_CONTEXT();
    if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const CUcontext context = current_context();
    *flags = context == nullptr ? primary_contexts()[card].flags : context->flags;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetApiVersion(CUcontext, unsigned* version) {
    IN_CONTEXT();
    if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *version = 3020;  // of the context's interface: unchanged since CUDA 3.2
    return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize(void) {
    IN_CONTEXT();
    if (const cudaError_t error = check_unsafe_call()) return result(error);
    synchronize_card(card);
    return CUDA_SUCCESS;
}

CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
    IN_CONTEXT();
    if (least != nullptr) *least = kLeastPriority;
    if (greatest != nullptr) *greatest = kGreatestPriority;
    return CUDA_SUCCESS;
}

CUresult cuCtxSetLimit(CUlimit limit, size_t) {
    IN_CONTEXT();
    return limit < CU_LIMIT_MAX ? CUDA_SUCCESS : CUDA_ERROR_UNSUPPORTED_LIMIT;
}

}  // extern "C"
