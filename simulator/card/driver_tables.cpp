// cuGetExportTable: tables of functions by which the CUDA runtime that is linked statically
// (libcudart_static.a) reaches the driver.
//
// NVIDIA does not document them.  ZLUDA does: dark_api/src/lib.rs has the tables' identifiers,
// their lengths and the types of their functions; zluda/src/impl/driver.rs says what they do.
#include <array>
#include <map>
#include <mutex>
#include <utility>

#include <pthread.h>
#include <unistd.h>

#include "attributes.h"
#include "driver.h"
#include "md2.h"

using namespace simulator;

namespace {

using Function = const void*;

template <class F>
Function entry(F* function) {
    return reinterpret_cast<Function>(function);
}

// The first place of most tables: their size in bytes.
template <std::size_t count>
Function size_of_table() {
    return reinterpret_cast<Function>(count * sizeof(Function));
}

// What ZLUDA does not name.
CUresult not_named() {
    unsupported("cuGetExportTable, a function of its tables");
    return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult load_wrapped(CUmodule* module, const void* wrapper) {
    return cuModuleLoadData(module, wrapper);
}

CUresult load_wrapped_with(CUmodule* module, const void* wrapper, void*, void*, unsigned) {
    return cuModuleLoadData(module, wrapper);
}

CUresult load_with(const void* binary, CUmodule* module, void*, void*, unsigned) {
    return cuModuleLoadData(module, binary);
}

CUresult give_primary_context(CUcontext* context, CUdevice device) {
    if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (!is_card(device)) return CUDA_ERROR_INVALID_DEVICE;
    *context = primary_context(device);
    return CUDA_SUCCESS;
}

void ignored(std::size_t) {}

CUresult load_compilers() { return CUDA_SUCCESS; }

// Buffers of the runtime's own, of which ZLUDA knows the sizes alone: in numbers of 32 bits.
void first_buffer(void** buffer, std::size_t* size) {
    static unsigned zeros[1024];
    *buffer = zeros;
    *size = std::size(zeros);
}

void second_buffer(void** buffer, std::size_t* size) {
    static unsigned zeros[14];
    *buffer = zeros;
    *size = std::size(zeros);
}

// What the runtime keeps for each context, by a key of its own.
std::mutex& kept_mutex() {
    static auto* const only = new std::mutex;
    return *only;
}

std::map<std::pair<CUcontext, void*>, void*>& kept() {
    static auto* const all = new std::map<std::pair<CUcontext, void*>, void*>;
    return *all;
}

CUresult current_if_null(CUcontext* context) {
    if (*context != nullptr) return CUDA_SUCCESS;
    const CUresult found = cuCtxGetCurrent(context);
    return found == CUDA_SUCCESS && *context == nullptr ? CUDA_ERROR_INVALID_CONTEXT : found;
}

CUresult keep(CUcontext context, void* key, void* value, void*) {
    if (const CUresult error = current_if_null(&context)) return error;
    const std::lock_guard lock(kept_mutex());
    kept()[{context, key}] = value;
    return CUDA_SUCCESS;
}

CUresult forget(CUcontext context, void* key) {
    if (const CUresult error = current_if_null(&context)) return error;
    const std::lock_guard lock(kept_mutex());
    kept().erase({context, key});
    return CUDA_SUCCESS;
}

CUresult find_kept(void** value, CUcontext context, void* key) {
    if (const CUresult error = current_if_null(&context)) return error;
    const std::lock_guard lock(kept_mutex());
    const auto found = kept().find({context, key});
    if (found == kept().end()) return CUDA_ERROR_INVALID_HANDLE;
    *value = found->second;
    return CUDA_SUCCESS;
}

CUresult check_context(CUcontext, unsigned* flags, const void**) {
    *flags = 0;
    return CUDA_SUCCESS;
}

unsigned check() { return 0; }

CUresult prove(unsigned version, std::uint64_t seconds, std::uint64_t proof[2]);

const Function kRuntime[13] = {
    size_of_table<13>(),
    entry(load_wrapped),
    entry(give_primary_context),
    entry(not_named),
    entry(not_named),
    entry(not_named),
    entry(load_wrapped_with),
    entry(ignored),
    entry(load_with),
    entry(not_named),
    entry(not_named),
    entry(not_named),
    entry(load_compilers),
};
const Function kThreads[4] = {size_of_table<4>(), entry(not_named), entry(cuCtxGetCurrent),
                              entry(not_named)};
const Function kHooks[7] = {
    size_of_table<7>(), entry(not_named), entry(first_buffer),  entry(not_named),
    entry(not_named),   entry(not_named), entry(second_buffer),
};
const Function kKept[4] = {entry(keep), entry(forget), entry(find_kept), entry(not_named)};
const Function kProof[3] = {size_of_table<3>(), entry(prove), entry(not_named)};
// The static runtime of CUDA 13.4 starts only where this table is.
const std::array<Function, 95> kToolsContexts = [] {
    std::array<Function, 95> functions;
    functions.fill(entry(not_named));
    functions[0] = size_of_table<95>();
    functions[4] = entry(cuCtxGetId);
    return functions;
}();
const Function kContexts[4] = {size_of_table<4>(), entry(not_named), entry(check_context),
                               entry(check)};

struct Table {
    unsigned char id[16];
    const Function* functions;
};

const Table kTables[] = {
    {{0x6B, 0xD5, 0xFB, 0x6C, 0x5B, 0xF4, 0xE7, 0x4A, 0x89, 0x87, 0xD9, 0x39, 0x12, 0xFD, 0x9D,
      0xF9},
     kRuntime},
    {{0x42, 0xD8, 0x5A, 0x81, 0x23, 0xF6, 0xCB, 0x47, 0x82, 0x98, 0xF6, 0xE7, 0x8A, 0x3A, 0xEC,
      0xDC},
     kThreads},
    {{0xA0, 0x94, 0x79, 0x8C, 0x2E, 0x74, 0x2E, 0x74, 0x93, 0xF2, 0x08, 0x00, 0x20, 0x0C, 0x0A,
      0x66},
     kHooks},
    {{0xC6, 0x93, 0x33, 0x6E, 0x11, 0x21, 0xDF, 0x11, 0xA8, 0xC3, 0x68, 0xF3, 0x55, 0xD8, 0x95,
      0x93},
     kKept},
    {{0xD4, 0x08, 0x20, 0x55, 0xBD, 0xE6, 0x70, 0x4B, 0x8D, 0x34, 0xBA, 0x12, 0x3C, 0x66, 0xE1,
      0xF2},
     kProof},
    {{0x26, 0x3E, 0x88, 0x60, 0x7C, 0xD2, 0x61, 0x43, 0x92, 0xF6, 0xBB, 0xD5, 0x00, 0x6D, 0xFA,
      0x7E},
     kContexts},
    {{0x21, 0x31, 0x8C, 0x60, 0x97, 0x14, 0x32, 0x48, 0x8C, 0xA6, 0x41, 0xFF, 0x73, 0x24, 0xC8,
      0xF2},
     kToolsContexts.data()},
};

// What the runtime checks the driver by: an HMAC (RFC 2104) with MD2 over the call and the cards,
// as ZLUDA's integrity_check computes it.
CUresult prove(unsigned version, std::uint64_t seconds, std::uint64_t proof[2]) {
    if (proof == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (version % 10 < 2) {
        proof[0] = version % 10 == 0 ? 0x3341181C03CB675C : 0x1841181C03CB675C;
        proof[1] = 0x8ED383AA1F4CD1E8;
        return CUDA_SUCCESS;
    }
    struct {
        unsigned driver, runtime, process, thread;
        const void *functions, *table, *function;
        std::uint64_t seconds;
    } const call{CUDA_VERSION, version, static_cast<unsigned>(getpid()),
                 static_cast<unsigned>(pthread_self()), kRuntime, kProof, kProof[1], seconds};
    std::string message(reinterpret_cast<const char*>(&call), sizeof call);
    for (const Card& card : cards()) {
        struct {
            unsigned char uuid[16];
            int domain, bus, device;
        } identity;
        card_uuid(card.index, identity.uuid);
        card_attribute(card.index, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, &identity.domain);
        card_attribute(card.index, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, &identity.bus);
        card_attribute(card.index, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, &identity.device);
        message.append(reinterpret_cast<const char*>(&identity), sizeof identity);
    }
    constexpr char kKey[] = "\x14\x6A\xDD\xAE\x53\xA9\xA7\x52\xAA\x08\x41\x36\x0B\xF5\x5A\x9F";
    const std::string answer = hmac_md2({kKey, 16}, message);
    std::memcpy(proof, answer.data(), answer.size());
    return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult cuGetExportTable(const void** table, const CUuuid* id) {
    SIMULATED();
    if (table == nullptr || id == nullptr) return CUDA_ERROR_INVALID_VALUE;
    for (const Table& known : kTables) {
        if (std::memcmp(known.id, id->bytes, sizeof known.id) != 0) continue;
        *table = known.functions;
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_VALUE;
}

}  // extern "C"
