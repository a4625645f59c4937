// Arithmetic with the roundings .rz, .rm and .rp: the host's own, set for 32 lanes at a time.
#include <cfenv>

#include "formats.h"
#include "lanes.h"

namespace ptx::PTX_VARIANT {

enum Operation { kAdd, kSub, kMul, kFma, kDiv, kRcp, kSqrt };
bool select_rounded(Lowering& l, std::string_view rounding, int operation, bool ftz, bool sat);

namespace {

// Kept from being moved across the changes of the rounding mode.
template <class T>
[[gnu::noinline]] T compute(int operation, T x, T y, T z) {
    volatile T a = x, b = y, c = z, v;
    switch (operation) {
        case kAdd: v = a + b; break;
        case kSub: v = a - b; break;
        case kMul: v = a * b; break;
        case kFma: v = std::fma(static_cast<T>(a), static_cast<T>(b), static_cast<T>(c)); break;
        case kDiv: v = a / b; break;
        case kRcp: v = T{1} / a; break;
        default: v = std::sqrt(static_cast<T>(a)); break;
    }
    return v;
}

// Only the smallest normal number can be a tiny one, rounded up.  The operands that give it are
// small, so that scaling them does not overflow.
float flush_result(float v, int operation, float x, float y, float z) {
    if (std::fabs(v) != std::numeric_limits<float>::min() || operation <= kSub) return flush(v);
    if (operation == kRcp) return flush(v, compute(kDiv, kScale, x, z));
    return flush(v, compute(operation, x * kScale, y, z * kScale));
}

template <class T>
void rounded(Warp& w, const Insn& i, u32 lanes) {
    const int operation = i.count;
    const bool ftz = i.flags & 1, sat = i.flags & 2;
    const bool second = operation <= kDiv, third = operation == kFma;
    const T* const a = slot<T>(w, i, 1);
    const T* const b = second ? slot<T>(w, i, 2) : a;
    const T* const c = third ? slot<T>(w, i, 3) : a;
    alignas(64) T made[kLanes];
    const int before = std::fegetround();
    std::fesetround(static_cast<int>(i.extra));
    for (u32 l = 0; l < kLanes; ++l) {
        if (!has(lanes, l)) continue;
        T x = a[l], y = b[l], z = c[l];
        if constexpr (sizeof(T) == 4) {
            if (ftz) x = flush(x), y = flush(y), z = flush(z);
        }
        T v = compute<T>(operation, x, y, z);
        if constexpr (sizeof(T) == 4) {
            if (ftz) v = flush_result(v, operation, x, y, z);
            if (sat) v = v > 0 ? (v < 1 ? v : T{1}) : T{0};
        }
        made[l] = v;
    }
    std::fesetround(before);
    merge(slot<T>(w, i, 0), made, lanes);
}

}  // namespace

bool select_rounded(Lowering& l, std::string_view rounding, int operation, bool ftz, bool sat) {
    l.insn().extra = static_cast<u32>(rounding == "rz"   ? FE_TOWARDZERO
                                      : rounding == "rm" ? FE_DOWNWARD
                                                         : FE_UPWARD);
    l.insn().count = static_cast<u8>(operation);
    l.insn().flags = static_cast<u8>((ftz ? 1 : 0) | (sat ? 2 : 0));
    l.insn().run = l.type() == Type::f64 ? rounded<double> : rounded<float>;
    return true;
}

}  // namespace ptx::PTX_VARIANT
