// atom and red (PTX ISA 9.7.13.5, 9.7.13.6).  The lanes of a warp update one after the other, in
// the order of their numbers; blocks on other cores are kept apart by the host's compare-and-swap.
#include "address.h"
#include "formats.h"

namespace ptx::PTX_VARIANT {

namespace {

enum Op : u8 { kAdd, kMin, kMax, kInc, kDec, kAnd, kOr, kXor, kExch, kCas };

template <class T>
struct Integer {
    using Bits = std::make_unsigned_t<T>;
    static Bits f(u8 op, Bits old, Bits b, Bits c) {
        const T x = static_cast<T>(old), y = static_cast<T>(b);
        switch (op) {
            case kAdd: return static_cast<Bits>(old + b);
            case kMin: return y < x ? b : old;
            case kMax: return y > x ? b : old;
            case kInc: return old >= b ? 0 : static_cast<Bits>(old + 1);
            case kDec: return old == 0 || old > b ? b : static_cast<Bits>(old - 1);
            case kAnd: return old & b;
            case kOr: return old | b;
            case kXor: return old ^ b;
            case kExch: return b;
            default: return old == b ? c : old;
        }
    }
};
template <class B, class F>
struct Real {
    using Bits = B;
    static B f(u8 op, B old, B b, B) {
        if (op == kAdd) return as<B>(as<F>(old) + as<F>(b));
        return as<B>(op == kMin ? std::fmin(as<F>(old), as<F>(b))
                                : std::fmax(as<F>(old), as<F>(b)));
    }
};
// atom.add.f32 on global memory flushes subnormal numbers, on shared memory it does not (9.7.13.5).
struct F32 {
    using Bits = u32;
    static u32 f(u8 op, u32 old, u32 b, u32) { return Real<u32, float>::f(op, old, b, 0); }
};
struct F32Ftz {
    using Bits = u32;
    static u32 f(u8 op, u32 old, u32 b, u32) {
        return as<u32>(flush(as<float>(Real<u32, float>::f(op, as<u32>(flush(as<float>(old))),
                                                           as<u32>(flush(as<float>(b))), 0))));
    }
};
u16 half_step(u8 op, u16 old, u16 b, bool brain) {
    const float x = brain ? bf16_to_f32(old) : f16_to_f32(old),
                y = brain ? bf16_to_f32(b) : f16_to_f32(b);
    const float v = op == kAdd ? x + y : op == kMin ? std::fmin(x, y) : std::fmax(x, y);
    return brain ? f32_to_bf16(v) : f32_to_f16(v);
}
template <bool kBrain>
struct Half {
    using Bits = u16;
    static u16 f(u8 op, u16 old, u16 b, u16) { return half_step(op, old, b, kBrain); }
};
template <bool kBrain>
struct Halves {
    using Bits = u32;
    static u32 f(u8 op, u32 old, u32 b, u32) {
        return half_step(op, static_cast<u16>(old), static_cast<u16>(b), kBrain) |
               static_cast<u32>(
                   half_step(op, static_cast<u16>(old >> 16), static_cast<u16>(b >> 16), kBrain))
                   << 16;
    }
};

// operands: address, d, b, c, elements of vectors one after the other (d0 d1 .. b0 b1 ..)
template <class Kind>
void atom_h(Warp& w, const Insn& i, u32 lanes) {
    using B = typename Kind::Bits;
    const u32 n = i.extra;
    Lanes where;
    locate(w, i, 0, lanes, sizeof(B) * n, Use::atomic, where);
    for (u32 e = 0; e < n; ++e) {
        B* const d = slot<B>(w, i, 1 + e);
        const B* const b = slot<B>(w, i, 1 + n + e);
        const B* const c = i.count == kCas ? slot<B>(w, i, 1 + 2 * n) : b;
        for (u32 l = 0; l < kLanes; ++l) {
            if (!has(lanes, l)) continue;
            B* const at = reinterpret_cast<B*>(where.at[l]) + e;
            B old = __atomic_load_n(at, __ATOMIC_SEQ_CST);
            const B bv = b[l], cv = c[l];
            while (!__atomic_compare_exchange_n(at, &old, Kind::f(i.count, old, bv, cv), false,
                                                __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
            }
            if (i.flags & kSingle) d[l] = old;  // red: no result
        }
    }
}

// 128 bits: exch and cas, under a lock of the interpreter's own.
void atom_128(Warp& w, const Insn& i, u32 lanes) {
    static std::atomic_flag busy = ATOMIC_FLAG_INIT;
    Lanes where;
    locate(w, i, 0, lanes, 16, Use::atomic, where);
    u128* const d = slot<u128>(w, i, 1);
    const u128 *const b = slot<u128>(w, i, 2), *const c = i.count == kCas ? slot<u128>(w, i, 3) : b;
    for (u32 l = 0; l < kLanes; ++l) {
        if (!has(lanes, l)) continue;
        while (busy.test_and_set()) {
        }
        u128 old;
        std::memcpy(&old, where.at[l], sizeof old);
        const u128 made = i.count == kExch ? b[l] : old == b[l] ? c[l] : old;
        std::memcpy(where.at[l], &made, sizeof made);
        busy.clear();
        if (i.flags & kSingle) d[l] = old;
    }
}

Handler handler_of(Type type, u8 op, Space space) {
    switch (type) {
        case Type::u32_:
        case Type::b32: return atom_h<Integer<u32>>;
        case Type::s32_: return atom_h<Integer<s32>>;
        case Type::u64_:
        case Type::b64: return atom_h<Integer<u64>>;
        case Type::s64_: return atom_h<Integer<s64>>;
        case Type::b16:
        case Type::u16_: return atom_h<Integer<u16>>;
        case Type::f32: return space == Space::shared || op != kAdd ? atom_h<F32> : atom_h<F32Ftz>;
        case Type::f64: return atom_h<Real<u64, double>>;
        case Type::f16: return atom_h<Half<false>>;
        case Type::bf16: return atom_h<Half<true>>;
        case Type::f16x2: return atom_h<Halves<false>>;
        case Type::bf16x2: return atom_h<Halves<true>>;
        case Type::b128: return op == kExch || op == kCas ? atom_128 : nullptr;
        default: return nullptr;
    }
}

bool select(Lowering& l, bool has_result) {
    const Space space = take_space(l);
    take_hints(l);
    if (l.insn().order == Order::weak) l.insn().order = Order::relaxed;  // of no scope
    l.ignore({"v2", "v4", "v8"});
    static constexpr std::string_view kNames[] = {"add", "min", "max", "inc",  "dec",
                                                  "and", "or",  "xor", "exch", "cas"};
    int op = -1;
    for (u8 n = 0; n < 10; ++n) {
        if (l.take(kNames[n])) op = n;
    }
    if (op < 0) return false;
    const std::size_t first = has_result ? 1 : 0;
    const u32 bits = bits_of(l.type());
    if (!l.address(l.operand(first), space)) return false;
    const Operand &d = l.operand(0), &b = l.operand(first + 1);
    const u32 count = b.kind == Operand::Kind::vector ? static_cast<u32>(b.items.size()) : 1;
    for (u32 e = 0; e < count; ++e) {
        if (!has_result) l.destination(Operand{}, bits);
        else l.destination(count > 1 ? d.items[e] : d, bits);
    }
    for (u32 e = 0; e < count; ++e) l.source(count > 1 ? b.items[e] : b, bits);
    if (op == kCas) l.source(first + 2, bits);
    const bool writes = has_result && (count > 1 || d.kind == Operand::Kind::reg);
    if (writes) l.insn().flags |= kSingle;
    l.insn().count = static_cast<u8>(op);
    l.insn().extra = count;
    l.insn().run = handler_of(l.type(), static_cast<u8>(op), space);
    return l.insn().run != nullptr;
}
bool atom(Lowering& l) { return select(l, true); }
bool red(Lowering& l) { return !l.take("async") && select(l, false); }

}  // namespace

extern const Entry kAtomics[];
const Entry kAtomics[] = {{"atom", atom}, {"red", red}, {nullptr, nullptr}};

}  // namespace ptx::PTX_VARIANT
