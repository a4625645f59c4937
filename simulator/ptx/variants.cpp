// Chooses the loops that fit this machine.
#include <cstdlib>
#include <string_view>

#include "lower.h"

namespace ptx {

namespace portable {
extern const Variant kVariant;
}
namespace avx2 {
extern const Variant kVariant;
}
namespace avx512 {
extern const Variant kVariant;
}

namespace {

const Variant& choose() {
#if defined(PTX_HAS_avx2) || defined(PTX_HAS_avx512)
    const char* const wanted = std::getenv("PTX_MACHINE");  // for tests: a lesser one
    const std::string_view name = wanted == nullptr ? "" : wanted;
    __builtin_cpu_init();
#endif
#ifdef PTX_HAS_avx512
    if (name != "avx2" && name != "portable" && __builtin_cpu_supports("avx512f") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq")) {
        return avx512::kVariant;
    }
#endif
#ifdef PTX_HAS_avx2
    if (name != "portable" && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
        __builtin_cpu_supports("bmi2")) {
        return avx2::kVariant;
    }
#endif
#ifdef PTX_HAS_portable
    return portable::kVariant;
#else
    throw Error("this build has no loops for this machine");
#endif
}

}  // namespace

const Variant& variant() {
    static const Variant& chosen = choose();
    return chosen;
}

}  // namespace ptx
