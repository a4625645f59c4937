// Loops over the 32 lanes that the compiler turns into vector instructions.  These files are
// compiled once for each instruction set of the host (Makefile), each in a namespace of its own.
#pragma once

#include <cmath>
#include <cstring>

#include "../lower.h"

#ifndef PTX_VARIANT
#error "PTX_VARIANT names the instruction set of the host"
#endif

#define PTX_INLINE [[gnu::always_inline]] inline
// Slots are the same or apart, so lanes do not depend on each other.
#define PTX_LANES _Pragma("GCC ivdep") for (u32 l = 0; l < kLanes; ++l)

namespace ptx::PTX_VARIANT {

template <class T>
PTX_INLINE T* slot(Warp& w, const Insn& i, u32 operand) {
    return lanes_of<T>(w, i.operands[operand]);
}

PTX_INLINE bool has(u32 lanes, u32 l) { return lanes >> l & 1; }

template <class T>
PTX_INLINE void merge(T* to, const T* from, u32 lanes) {
    PTX_LANES to[l] = has(lanes, l) ? from[l] : to[l];
}

// to[l] = value(l) for the lanes of the mask.
template <class T, class F>
PTX_INLINE void write(T* to, u32 lanes, F value) {
    if (__builtin_expect(lanes == kAll, 1)) {
        PTX_LANES to[l] = value(l);
    } else {
        alignas(64) T made[kLanes];
        PTX_LANES made[l] = value(l);
        merge(to, made, lanes);
    }
}

template <class F>
PTX_INLINE void write_predicate(u32* to, u32 lanes, F value) {
    u32 bits = 0;
    PTX_LANES bits |= value(l) ? u32{1} << l : u32{0};
    *to = (*to & ~lanes) | (bits & lanes);
}

PTX_INLINE void set_predicate(u32* to, u32 lanes, u32 bits) {
    *to = (*to & ~lanes) | (bits & lanes);
}

// The lanes execute an instruction for which they wait for each other.
PTX_INLINE void together(Warp& w, const Insn& i, u32 lanes) {
    if (__builtin_expect(w.block->watch != nullptr, 0)) watch_together(w, i, lanes);
}

PTX_INLINE u32 first_lane(u32 lanes) { return static_cast<u32>(__builtin_ctz(lanes)); }

inline void need_all(Warp& w, const Insn& i, u32 lanes) {
    if (lanes == kAll) return;
    raise(w, i, first_lane(lanes), Fault::Kind::invalid,
          "all threads of the warp must execute this: lane " + std::to_string(first_lane(~lanes)) +
              " does not take part");
}

template <class To, class From>
PTX_INLINE To as(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}

// d = Op(a), Op(a, b), Op(a, b, c), all of one type.
template <class T, class Op>
void unary(Warp& w, const Insn& i, u32 lanes) {
    const T* const a = slot<T>(w, i, 1);
    write(slot<T>(w, i, 0), lanes, [=](u32 l) { return static_cast<T>(Op::f(a[l])); });
}
template <class T, class Op>
void binary(Warp& w, const Insn& i, u32 lanes) {
    const T *const a = slot<T>(w, i, 1), *const b = slot<T>(w, i, 2);
    write(slot<T>(w, i, 0), lanes, [=](u32 l) { return static_cast<T>(Op::f(a[l], b[l])); });
}
template <class T, class Op>
void ternary(Warp& w, const Insn& i, u32 lanes) {
    const T *const a = slot<T>(w, i, 1), *const b = slot<T>(w, i, 2), *const c = slot<T>(w, i, 3);
    write(slot<T>(w, i, 0), lanes, [=](u32 l) { return static_cast<T>(Op::f(a[l], b[l], c[l])); });
}
// d of type D, all others of type T.
template <class D, class T, class Op>
void unary_to(Warp& w, const Insn& i, u32 lanes) {
    const T* const a = slot<T>(w, i, 1);
    write(slot<D>(w, i, 0), lanes, [=](u32 l) { return static_cast<D>(Op::f(a[l])); });
}

// Destination and `sources` sources of `bits` bits.
inline bool operands(Lowering& l, u32 bits, u32 sources, Handler handler) {
    l.destination(0, bits);
    for (u32 i = 1; i <= sources; ++i) l.source(i, bits);
    l.insn().run = handler;
    return handler != nullptr;
}

}  // namespace ptx::PTX_VARIANT
