// cuGetExportTable: tables of functions by which the CUDA runtime that is linked statically
// (libcudart_static.a) reaches the driver.
//
// NVIDIA does not document them.  ZLUDA does: dark_api/src/lib.rs has the tables' identifiers,
// their lengths and the types of their functions; zluda/src/impl/driver.rs says what they do.
#include <array>
#include <cstdio>
#include <initializer_list>
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

// What ZLUDA does not name.
CUresult not_named() {
    unsupported("cuGetExportTable, a function of its tables");
    return CUDA_ERROR_NOT_SUPPORTED;
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
template <std::size_t count>
void give_buffer(void** buffer, std::size_t* size) {
    static unsigned zeros[count];
    *buffer = zeros;
    *size = count;
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

// A table of so many places.  The first one is its size in bytes unless a function is there.
template <std::size_t count>
std::array<Function, count> table_of(
    std::initializer_list<std::pair<std::size_t, Function>> functions) {
    std::array<Function, count> table;
    table.fill(entry(not_named));
    table[0] = reinterpret_cast<Function>(sizeof table);
    for (const auto& [place, function] : functions) table[place] = function;
    return table;
}

const auto kRuntime = table_of<13>({{1, entry(cuModuleLoadData)},
                                    {2, entry(give_primary_context)},
                                    {6, entry(load_wrapped_with)},
                                    {7, entry(ignored)},
                                    {8, entry(load_with)},
                                    {12, entry(load_compilers)}});
const auto kThreads = table_of<4>({{2, entry(cuCtxGetCurrent)}});
const auto kHooks = table_of<7>({{2, entry(give_buffer<1024>)}, {6, entry(give_buffer<14>)}});
const auto kKept = table_of<4>({{0, entry(keep)}, {1, entry(forget)}, {2, entry(find_kept)}});
const auto kProof = table_of<3>({{1, entry(prove)}});
const auto kContexts = table_of<4>({{2, entry(check_context)}, {3, entry(check)}});
// The static runtime of CUDA 13.4 starts only where this table is.
const auto kToolsContexts = table_of<95>({{4, entry(cuCtxGetId)}});

struct Table {
    const char* id;  // the bytes in hexadecimal digits
    const Function* functions;
};

const Table kTables[] = {
    {"6bd5fb6c5bf4e74a8987d93912fd9df9", kRuntime.data()},
    {"42d85a8123f6cb478298f6e78a3aecdc", kThreads.data()},
    {"a094798c2e742e7493f20800200c0a66", kHooks.data()},
    {"c693336e1121df11a8c368f355d89593", kKept.data()},
    {"d4082055bde6704b8d34ba123c66e1f2", kProof.data()},
    {"263e88607cd2614392f6bbd5006dfa7e", kContexts.data()},
    {"21318c60971432488ca641ff7324c8f2", kToolsContexts.data()},
};

std::string digits_of(const CUuuid& id) {
    char text[2 * sizeof id.bytes + 1] = {};
    for (std::size_t i = 0; i < sizeof id.bytes; ++i) {
        std::snprintf(text + 2 * i, 3, "%02x", static_cast<unsigned char>(id.bytes[i]));
    }
    return text;
}

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
                 static_cast<unsigned>(pthread_self()), kRuntime.data(), kProof.data(), kProof[1], seconds};
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
    const std::string wanted = digits_of(*id);
    for (const Table& known : kTables) {
        if (wanted != known.id) continue;
        *table = known.functions;
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_VALUE;
}

}  // extern "C"
