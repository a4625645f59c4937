// ld, st and their kin (PTX ISA 9.7.9): any state space, vectors, values narrower than registers.
#include "address.h"
#include "lanes.h"

namespace ptx::PTX_VARIANT {

// The sum does not depend on the order of stores; addresses count from the allocation's start.
void add_checksum(Warp& w, const u8* at, u32 bytes) {
    const auto address = reinterpret_cast<u64>(at);
    u64 from = 0;
    for (const Warp::Known& k : w.known) from = address - k.from < k.to - k.from ? k.from : from;
    if (from == 0) return;  // not global memory
    for (u32 n = 0; n < bytes; ++n) {
        u64 v = (address - from + n) * 0x9e3779b97f4a7c15ULL + at[n];
        v = (v ^ v >> 32) * 0xd6e8feb86659fd93ULL;
        w.checksum += v ^ v >> 29;
    }
}

namespace {

template <class T>
PTX_INLINE T load(const u8* at) {
    T v;
    std::memcpy(&v, at, sizeof v);
    return v;
}

// A value of type M in memory, of type R in a register (wider ones are extended).
template <class M, class R>
void ld(Warp& w, const Insn& i, u32 lanes) {
    Lanes where;
    locate(w, i, 0, lanes, sizeof(M) * i.count, Use::read, where);
    if (where.same) {
        const u8* const from = where.at[first_lane(lanes)];
        for (u32 n = 0; n < i.count; ++n) {
            const R value = static_cast<R>(load<M>(from + n * sizeof(M)));
            write(slot<R>(w, i, 1 + n), lanes, [=](u32) { return value; });
        }
        return;
    }
    if (where.together && i.count == 1) {
        alignas(64) M values[kLanes];
        std::memcpy(values, where.at[0], sizeof values);
        R* const to = slot<R>(w, i, 1);
        PTX_LANES to[l] = static_cast<R>(values[l]);
        return;
    }
    if (i.count == 1) {
        alignas(64) R made[kLanes];
        for (u32 l = 0; l < kLanes; ++l) made[l] = static_cast<R>(load<M>(where.at[l]));
        R* const to = slot<R>(w, i, 1);
        if (lanes == kAll) std::memcpy(to, made, sizeof made);
        else merge(to, made, lanes);
        return;
    }
    alignas(64) R made[8][kLanes];
    for (u32 l = 0; l < kLanes; ++l) {
        for (u32 n = 0; n < i.count; ++n)
            made[n][l] = static_cast<R>(load<M>(where.at[l] + n * sizeof(M)));
    }
    for (u32 n = 0; n < i.count; ++n) {
        R* const to = slot<R>(w, i, 1 + n);
        write(to, lanes, [&](u32 l) { return made[n][l]; });
    }
}

[[gnu::noinline]] void add_checksums(Warp& w, const Lanes& where, u32 lanes, u32 bytes) {
    for (u32 l = 0; l < kLanes; ++l) {
        if (has(lanes, l)) add_checksum(w, where.at[l], bytes);
    }
}

// Stores of one instruction at one place have one value (PTX ISA 8.2: they are not ordered).
template <class M, class R>
[[gnu::noinline]] void watch_values(Warp& w, const Insn& i, u32 lanes, const Lanes& where) {
    for (u32 n = 0; n < i.count; ++n) {
        const R* const from = slot<R>(w, i, 1 + n);
        for (u32 l = 0; l < kLanes; ++l) {
            if (!has(lanes, l)) continue;
            const u8* const at = where.at[l] + n * sizeof(M);
            if (const M v = static_cast<M>(from[l]); std::memcmp(at, &v, sizeof v) != 0)
                return watch_parted(w, i, l, lanes, where.at, sizeof(M) * i.count);
        }
    }
}

template <class M, class R>
void st(Warp& w, const Insn& i, u32 lanes) {
    Lanes where;
    locate(w, i, 0, lanes, sizeof(M) * i.count, Use::write, where);
    if (where.together && i.count == 1) {
        const R* const from = slot<R>(w, i, 1);
        alignas(64) M values[kLanes];
        PTX_LANES values[l] = static_cast<M>(from[l]);
        std::memcpy(where.at[0], values, sizeof values);
    } else {
        for (u32 n = 0; n < i.count; ++n) {
            const R* const from = slot<R>(w, i, 1 + n);
            for (u32 l = 0; l < kLanes; ++l) {
                const M v = static_cast<M>(from[l]);
                std::memcpy(where.at[l] + n * sizeof(M), &v, sizeof v);
            }
        }
    }
    if (__builtin_expect(w.block->watch != nullptr, 0) && w.block->launch->options.races &&
        i.order == Order::weak)
        watch_values<M, R>(w, i, lanes, where);
    if (__builtin_expect(w.block->launch->options.checksum, 0))
        add_checksums(w, where, lanes, sizeof(M) * i.count);
}

template <class M>
Handler ld_into(u32 bits) {
    switch (bits) {
        case 16:
            if constexpr (sizeof(M) <= 2)
                return ld<M, std::conditional_t<std::is_signed_v<M>, s16, u16>>;
            return nullptr;
        case 32:
            if constexpr (sizeof(M) <= 4)
                return ld<M, std::conditional_t<std::is_signed_v<M>, s32, u32>>;
            return nullptr;
        case 64:
            if constexpr (sizeof(M) <= 8)
                return ld<M, std::conditional_t<std::is_signed_v<M>, s64, u64>>;
            return nullptr;
        default: return nullptr;
    }
}
Handler ld_of(Type type, u32 bits) {
    switch (type) {
        case Type::s8_: return ld_into<s8>(bits);
        case Type::s16_: return ld_into<s16>(bits);
        case Type::s32_: return ld_into<s32>(bits);
        case Type::b128: return ld<u128, u128>;
        default: break;
    }
    switch (bits_of(type)) {
        case 8: return ld_into<u8>(bits);
        case 16: return ld_into<u16>(bits);
        case 32: return ld_into<u32>(bits);
        case 64: return ld_into<u64>(bits);
        default: return nullptr;
    }
}
template <class M>
Handler st_from(u32 bits) {
    switch (bits) {
        case 16:
            if constexpr (sizeof(M) <= 2) return st<M, u16>;
            return nullptr;
        case 32:
            if constexpr (sizeof(M) <= 4) return st<M, u32>;
            return nullptr;
        case 64: return st<M, u64>;
        default: return nullptr;
    }
}
Handler st_of(Type type, u32 bits) {
    switch (bits_of(type)) {
        case 8: return st_from<u8>(bits);
        case 16: return st_from<u16>(bits);
        case 32: return st_from<u32>(bits);
        case 64: return st_from<u64>(bits);
        case 128: return st<u128, u128>;
        default: return nullptr;
    }
}

const Operand* any_register(const Operand& operand) {
    if (operand.kind == Operand::Kind::reg) return &operand;
    for (const Operand& item : operand.items) {
        if (item.kind == Operand::Kind::reg) return &item;
    }
    return nullptr;
}

// Both: the address, then the values.  All values of a vector have registers of one width.
bool access(Lowering& l, bool is_load) {
    const Space space = take_space(l);
    take_hints(l);
    l.ignore({"v2", "v4", "v8"});
    const Operand &address = l.operand(is_load ? 1 : 0), &value = l.operand(is_load ? 0 : 1);
    const Type type = l.type();
    const u32 memory_bits = bits_of(type), least = memory_bits == 8 ? 16 : memory_bits;
    if (memory_bits < 8 || !l.address(address, space)) return false;
    const Operand* const known = any_register(value);
    const u32 bits = known == nullptr ? least : l.register_bits(*known, least);
    const auto add = [&](const Operand& item) {
        is_load ? l.destination(item, bits) : l.source(item, bits);
    };
    if (value.kind == Operand::Kind::vector) {
        for (const Operand& item : value.items) add(item);
        l.insn().count = static_cast<u8>(value.items.size());
    } else {
        add(value);
        l.insn().count = 1;
    }
    l.insn().run = is_load ? ld_of(type, bits) : st_of(type, bits);
    return l.insn().run != nullptr;
}
bool select_ld(Lowering& l) {
    // A cache policy operand only advises.
    l.take("L2::cache_hint");
    return access(l, true);
}
bool select_st(Lowering& l) {
    l.take("L2::cache_hint");
    return access(l, false);
}
// ldu: as ld.
bool select_ldu(Lowering& l) { return access(l, true); }

void nothing(Warp&, const Insn&, u32) {}
bool select_nothing(Lowering& l) {
    for (const std::string_view part : l.statement().parts) l.take(part);
    l.insn().run = nothing;
    return true;
}
void fence_h(Warp& w, const Insn&, u32 lanes) {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (w.block->watch != nullptr) watch_fence(w, lanes);
}
bool select_fence(Lowering& l) {
    const bool other = l.take("proxy") || l.take("mbarrier_init");
    l.insn().order = other ? Order::weak : Order::acq_rel;
    take_order(l);
    if (other) l.insn().order = Order::weak;
    l.ignore({"sc", "acq_rel", "acquire", "release", "cta", "cluster", "gpu", "gl", "sys", "proxy",
              "alias", "async", "global", "mbarrier_init", "async::generic",
              "tensormap::generic"});
    l.ignore_prefix("shared::");
    l.ignore_prefix("sync_restrict::");
    l.insn().run = fence_h;
    return true;
}

}  // namespace

extern const Entry kMemory[];
const Entry kMemory[] = {
    {"ld", select_ld},
    {"ldu", select_ldu},
    {"st", select_st},
    {"prefetch", select_nothing},
    {"prefetchu", select_nothing},
    {"applypriority", select_nothing},
    {"discard", select_nothing},
    {"createpolicy", select_nothing},
    {"membar", select_fence},
    {"fence", select_fence},
    {"pmevent", select_nothing},
    {"setmaxnreg", select_nothing},
    {nullptr, nullptr}};

}  // namespace ptx::PTX_VARIANT
