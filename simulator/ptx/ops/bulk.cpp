// Bulk copies, also of boxes of tensors (PTX ISA 9.7.9.25.4 ff.): cp.async.bulk and
// cp.reduce.async.bulk, their groups, tensormap.
//
// A copy happens when it is waited for and not before: by an mbarrier when a wait for it would fail
// otherwise, by a group when it is waited for or the block ends.  Addresses are checked when it is
// issued.
#include <algorithm>

#include "../tensor_map.h"
#include "formats.h"
#include "mbarrier.h"

namespace ptx::PTX_VARIANT {

namespace {

enum Reduce : u8 { kCopy, kAdd, kMin, kMax, kInc, kDec, kAnd, kOr, kXor };

// ---- copies that were issued ----

float reduced(Reduce how, float a, float b) {
    return how == kAdd ? a + b : how == kMin ? std::fmin(a, b) : std::fmax(a, b);
}
template <class T>
T reduced_integer(Reduce how, T old, T b) {
    using Bits = std::make_unsigned_t<T>;
    switch (how) {
        case kAdd: return static_cast<T>(static_cast<Bits>(old) + static_cast<Bits>(b));
        case kMin: return std::min(old, b);
        case kMax: return std::max(old, b);
        case kInc: return old >= b ? T{0} : static_cast<T>(old + 1);
        case kDec: return old == 0 || old > b ? b : static_cast<T>(old - 1);
        case kAnd: return old & b;
        case kOr: return old | b;
        default: return old ^ b;
    }
}
template <class T, class F>
void reduce_each(u8* to, const u8* from, u32 bytes, F f) {
    for (u32 at = 0; at < bytes; at += sizeof(T)) {
        T b;
        std::memcpy(&b, from + at, sizeof b);
        T* const cell = reinterpret_cast<T*>(to + at);
        T old = __atomic_load_n(cell, __ATOMIC_SEQ_CST);
        while (!__atomic_compare_exchange_n(cell, &old, f(old, b), false, __ATOMIC_SEQ_CST,
                                            __ATOMIC_SEQ_CST)) {
        }
    }
}
void reduce(u8* to, const u8* from, u32 bytes, Type type, Reduce how) {
    const auto integers = [&]<class T>(T) {
        using Bits = std::make_unsigned_t<T>;
        reduce_each<Bits>(to, from, bytes, [how](Bits old, Bits b) {
            return static_cast<Bits>(
                reduced_integer<T>(how, static_cast<T>(old), static_cast<T>(b)));
        });
    };
    switch (type) {
        case Type::f16:
            return reduce_each<u16>(to, from, bytes, [how](u16 old, u16 b) {
                return f32_to_f16(reduced(how, f16_to_f32(old), f16_to_f32(b)));
            });
        case Type::bf16:
            return reduce_each<u16>(to, from, bytes, [how](u16 old, u16 b) {
                return f32_to_bf16(reduced(how, bf16_to_f32(old), bf16_to_f32(b)));
            });
        case Type::f32:
            return reduce_each<u32>(to, from, bytes, [how](u32 old, u32 b) {
                return as<u32>(reduced(how, as<float>(old), as<float>(b)));
            });
        case Type::f64:
            return reduce_each<u64>(to, from, bytes, [](u64 old, u64 b) {
                return as<u64>(as<double>(old) + as<double>(b));
            });
        case Type::s32_: return integers(s32{});
        case Type::s64_: return integers(s64{});
        case Type::u64_:
        case Type::b64: return integers(u64{});
        default: return integers(u32{});
    }
}

void perform(Block& block, const BulkCopy& copy) {
    Warp& warp = block.warps[copy.warp];
    for (const BulkCopy::Piece& piece : copy.pieces) {
        if (copy.how != kCopy) {
            reduce(piece.to, piece.from, piece.bytes, copy.type, static_cast<Reduce>(copy.how));
        } else if (piece.from == nullptr) {
            std::memset(piece.to, copy.fill, piece.bytes);
        } else {
            std::memcpy(piece.to, piece.from, piece.bytes);
            if (copy.barrier == nullptr && block.launch->options.checksum)
                add_checksum(warp, piece.to, piece.bytes);
        }
    }
    if (copy.arrives) complete_async(warp);
    if (copy.barrier == nullptr) return;
    Barrier b = read_barrier(copy.barrier);
    b.transactions -= static_cast<s32>(copy.bytes);
    b.pending -= copy.arrives;
    b.settle();
    write_barrier(copy.barrier, b);
    block.fruitless = 0;
}

// Performs those that `which` names, in their order.
template <class Which>
void perform_some(Block& block, Which which) {
    std::vector<BulkCopy> left;
    for (BulkCopy& copy : block.bulk) {
        if (which(copy)) perform(block, copy);
        else left.push_back(std::move(copy));
    }
    block.bulk = std::move(left);
}

}  // namespace

void complete_on(Block& block, const u8* barrier) {
    perform_some(block, [=](const BulkCopy& copy) { return copy.barrier == barrier; });
}

void finish_block(Block& block) {
    perform_some(block, [](const BulkCopy& copy) { return copy.barrier == nullptr; });
}

namespace {

// ---- a copy, as the instruction describes it ----

struct Plan {
    Place shared, other, barrier;  // `other`: global memory, or the tensor map
    bool loads = false;            // into shared memory
    bool tensor = false;
    u32 dimensions = 0;
    Reduce how = kCopy;
    Type type = Type::none;
    // Operands: the three places, then size or coordinates.
    static constexpr u32 kFirst = 3;
};

[[noreturn]] void refuse_copy(Warp& w, const Insn& i, u32 lane, const std::string& what) {
    raise(w, i, lane, Fault::Kind::invalid, what);
}

// A run of bytes.
void flat(Warp& w, const Insn& i, const Plan& p, u32 lane, BulkCopy& copy) {
    const u32 bytes = slot<u32>(w, i, Plan::kFirst)[lane];
    if (bytes % 16 != 0)
        refuse_copy(w, i, lane,
                    "a bulk copy of " + std::to_string(bytes) +
                        " bytes, which are no multiple of 16");
    copy.bytes = bytes;
    if (bytes == 0) return;
    const Use there = p.loads ? Use::read : p.how == kCopy ? Use::write : Use::atomic;
    u8* const shared =
        locate_one(w, i, p.shared, lane, bytes, 16, p.loads ? Use::write : Use::read);
    u8* const other = locate_one(w, i, p.other, lane, bytes, 16, there);
    copy.pieces.push_back({p.loads ? shared : other, p.loads ? other : shared, bytes});
}

// A box of a tensor: rows of dimension 0 lie one after the other in shared memory, where swizzling
// exchanges 16 bytes within 128.
class Box {
public:
    Box(Warp& w, const Insn& i, const Plan& p, u32 lane, BulkCopy& copy)
        : w_(w), i_(i), p_(p), lane_(lane), copy_(copy) {
        std::memcpy(&map_, locate_one(w, i, p.other, lane, sizeof map_, 64, Use::read),
                    sizeof map_);
        check();
    }

    void run() {
        width_ = map_.box[0] * element_;
        u64 rows = 1;
        u32 count[5] = {1, 1, 1, 1, 1};
        for (u32 d = 1; d < p_.dimensions; ++d) {
            count[d] = (map_.box[d] + map_.steps[d] - 1) / map_.steps[d];
            rows *= count[d];
        }
        const u64 bytes = rows * width_;
        if (width_ % 16 != 0 || bytes > kMostBytes)
            refuse("a box with rows of " + std::to_string(width_) + " bytes, " +
                   std::to_string(bytes) + " in all");
        copy_.bytes = static_cast<u32>(bytes);
        copy_.fill = map_.fill != 0 ? 0xff : 0;
        // Swizzled, the last 16 bytes may stand behind the end, in the same 128.
        const u32 taken = mask_ != 0 ? (copy_.bytes + 127) / 128 * 128 : copy_.bytes;
        tile_ = locate_one(w_, i_, p_.shared, lane_, taken, 128,
                           p_.loads ? Use::write : Use::read);
        for (u32 row = 0; row < rows; ++row) {
            u32 at = row;
            bool inside = true;
            u64 address = map_.address;
            for (u32 d = 1; d < p_.dimensions; ++d) {
                const s64 index = s64{coordinate(d)} + u64{at % count[d]} * map_.steps[d];
                at /= count[d];
                inside &= index >= 0 && index < size(d);
                address += static_cast<u64>(index) * map_.strides[d - 1];
            }
            add_row(row * width_, inside, address);
        }
    }

private:
    static constexpr u64 kMostBytes = 1 << 20;

    [[noreturn]] void refuse(const std::string& what) { refuse_copy(w_, i_, lane_, what); }
    [[noreturn]] void lacks(const std::string& what) {
        raise(w_, i_, lane_, Fault::Kind::not_computed, "cp.async.bulk.tensor with " + what);
    }

    void check() {
        if (map_.type >= sizeof kTensorTypeBytes || map_.last > 4 || map_.address % 16 != 0)
            refuse("no tensor map is there");
        if (map_.last + 1u != p_.dimensions)
            refuse("a tensor map of " + std::to_string(map_.last + 1) + " dimensions");
        element_ = kTensorTypeBytes[map_.type];
        if (element_ == 0) lacks("elements of 4 or 6 bits");
        if (map_.interleave != 0) lacks("interleaved channels");
        if (map_.swizzle > 3 || map_.atomicity != 0) lacks("this swizzling");
        for (u32 d = 0; d < p_.dimensions; ++d) {
            if (map_.box[d] == 0 || map_.box[d] > 256 || (d > 0 && map_.steps[d] == 0))
                refuse("no tensor map is there");
        }
        mask_ = (1U << map_.swizzle) - 1;
        static constexpr Type kTypes[] = {Type::none, Type::none, Type::u32_, Type::s32_,
                                          Type::u64_, Type::s64_, Type::f16,  Type::f32,
                                          Type::f32,  Type::f64,  Type::bf16};
        if (p_.how == kCopy) return;
        if (map_.type >= std::size(kTypes) || kTypes[map_.type] == Type::none)
            lacks("a reduction of elements of this type");
        copy_.type = kTypes[map_.type];
    }

    s32 coordinate(u32 d) const {
        return slot<s32>(w_, i_, Plan::kFirst + d)[lane_];
    }
    s64 size(u32 d) const { return map_.sizes[d] == 0 ? s64{1} << 32 : s64{map_.sizes[d]}; }

    // A row whose elements [0, width) begin at `offset` of the tile.
    void add_row(u32 offset, bool inside, u64 address) {
        const s64 first = coordinate(0), count = map_.box[0];
        const s64 from = std::min(std::max<s64>(-first, 0), count),
                  to = std::max(std::min(size(0) - first, count), from);
        const u32 begin = inside ? static_cast<u32>(from) * element_ : width_,
                  end = inside ? static_cast<u32>(to) * element_ : width_;
        u8* row = nullptr;
        if (end > begin) {
            // The row's part that the tensor has, as one access.
            alignas(64) u64 a[kLanes];
            const u64 start = address + static_cast<u64>(first + from) * element_;
            for (u64& each : a) each = start;
            Lanes out;
            const Use use = p_.loads ? Use::read : p_.how == kCopy ? Use::write : Use::atomic;
            find_lanes(w_, i_, u32{1} << lane_, a, Space::global, end - begin, use, out);
            row = out.at[lane_] - begin;
        }
        if (p_.loads) add(offset, 0, begin, nullptr);
        add(offset, begin, end, row);
        if (p_.loads) add(offset, end, width_, nullptr);
    }

    // Bytes [begin, end) of a row, in pieces of 16 where swizzling takes them apart.
    void add(u32 offset, u32 begin, u32 end, u8* row) {
        while (begin < end) {
            const u32 stop = mask_ == 0 ? end : std::min(end, (begin / 16 + 1) * 16),
                      bytes = stop - begin;
            const auto plain = static_cast<u64>(tile_ - w_.block->shared) + offset + begin;
            u8* const tile = w_.block->shared + (plain ^ ((plain >> 7 & mask_) << 4));
            u8* const there = row == nullptr ? nullptr : row + begin;
            copy_.pieces.push_back({p_.loads ? tile : there, p_.loads ? there : tile, bytes});
            begin += bytes;
        }
    }

    Warp& w_;
    const Insn& i_;
    const Plan& p_;
    u32 lane_;
    BulkCopy& copy_;
    TensorMap map_;
    u32 element_ = 0, width_ = 0, mask_ = 0;
    u8* tile_ = nullptr;
};

void bulk_h(Warp& w, const Insn& i, u32 lanes) {
    const Plan& p = *reinterpret_cast<const Plan*>(i.immediate);
    for (u32 l = 0; l < kLanes; ++l) {
        if (!has(lanes, l)) continue;
        BulkCopy copy;
        copy.warp = w.number, copy.lane = l;
        copy.how = p.how, copy.type = p.type;
        if (p.loads) copy.barrier = find_barrier(w, i, p.barrier, l);
        if (p.tensor) Box(w, i, p, l, copy).run();
        else flat(w, i, p, l, copy);
        if (copy.barrier != nullptr && w.block->watch != nullptr) give_clock(w, clock_of(w, copy.barrier));
        w.block->bulk.push_back(std::move(copy));
    }
}

// ---- groups, of each thread ----

void commit_h(Warp& w, const Insn&, u32 lanes) {
    for (BulkCopy& copy : w.block->bulk) {
        if (copy.warp == w.number && has(lanes, copy.lane) && copy.barrier == nullptr &&
            copy.group == 0)
            copy.group = w.bulk_groups[copy.lane] + 1;
    }
    for (u32 l = 0; l < kLanes; ++l) w.bulk_groups[l] += has(lanes, l);
}
// With .read, too, a copy is performed as a whole.
void wait_group_h(Warp& w, const Insn& i, u32 lanes) {
    perform_some(*w.block, [&](const BulkCopy& copy) {
        return copy.warp == w.number && has(lanes, copy.lane) && copy.group != 0 &&
               copy.group + i.extra <= w.bulk_groups[copy.lane];
    });
}

// cp.async.mbarrier.arrive: the thread arrives when its copies by cp.async have. Insn::count: noinc
void async_arrive_h(Warp& w, const Insn& i, u32 lanes) {
    const Plan& p = *reinterpret_cast<const Plan*>(i.immediate);
    for (u32 l = 0; l < kLanes; ++l) {
        if (!has(lanes, l)) continue;
        BulkCopy copy;
        copy.warp = w.number, copy.lane = l;
        copy.arrives = true;
        copy.barrier = find_barrier(w, i, p.barrier, l);
        Barrier b = read_barrier(copy.barrier);
        if (i.count == 0) ++b.pending;
        if (b.pending == 0 || b.pending > Barrier::kMost)
            refuse_copy(w, i, l, "more arrivals than the mbarrier expects in this phase");
        write_barrier(copy.barrier, b);
        if (w.block->watch != nullptr) give_clock(w, clock_of(w, copy.barrier));
        w.block->bulk.push_back(std::move(copy));
    }
}

// ---- tensormap ----

struct Field {
    Place map;
    u32 offset, bytes, entries;
};
void replace_h(Warp& w, const Insn& i, u32 lanes) {
    const Field& f = *reinterpret_cast<const Field*>(i.immediate);
    for (u32 l = 0; l < kLanes; ++l) {
        if (!has(lanes, l)) continue;
        u8* const at = locate_one(w, i, f.map, l, sizeof(TensorMap), 64, Use::write);
        const u64 value = i.count == 64 ? slot<u64>(w, i, 1)[l] : slot<u32>(w, i, 1)[l];
        std::memcpy(at + f.offset, &value, f.bytes);
    }
}
// operands: to, from
void proxy_h(Warp& w, const Insn& i, u32 lanes) {
    const Plan& p = *reinterpret_cast<const Plan*>(i.immediate);
    const u32 lane = first_lane(lanes);
    const u8* const from = locate_one(w, i, p.shared, lane, sizeof(TensorMap), 128, Use::read);
    u8* const to = locate_one(w, i, p.other, lane, sizeof(TensorMap), 128, Use::write);
    std::memcpy(to, from, sizeof(TensorMap));
}

void nothing(Warp&, const Insn&, u32) {}

bool keep(Lowering& l, const Plan& plan, Handler handler) {
    l.insn().immediate = reinterpret_cast<u64>(l.keep(&plan, sizeof plan));
    l.insn().run = handler;
    return true;
}

// The operand of a map has coordinates: [map, {c0, c1}].
Operand base_of(const Operand& address) {
    Operand base = address;
    base.items.clear();
    return base;
}

bool groups(Lowering& l) {
    if (l.take("commit_group")) {
        l.insn().run = commit_h;
        return true;
    }
    if (!l.take("wait_group") || l.operand(0).kind != Operand::Kind::integer) return false;
    l.take("read");
    l.insn().extra = static_cast<u32>(l.operand(0).bits);
    l.insn().run = wait_group_h;
    return true;
}

bool bulk(Lowering& l, bool reduces) {
    if (l.take("prefetch")) {
        l.ignore({"L2", "global", "tensor", "1d", "2d", "3d", "4d", "5d", "tile"});
        l.ignore_prefix("L2::");
        l.insn().run = nothing;
        return true;
    }
    if (!reduces && !l.take("tensor") && groups(l)) return true;
    Plan plan;
    plan.tensor = l.take("tensor");
    static constexpr std::string_view kDimensions[] = {"1d", "2d", "3d", "4d", "5d"};
    for (u32 d = 0; d < 5; ++d) {
        if (l.take(kDimensions[d])) plan.dimensions = d + 1;
    }
    l.ignore({"tile", "L2::cache_hint", "multicast::cluster", "noftz", "shared::cta"});
    const bool cluster = l.take("shared::cluster"), global = l.take("global");
    plan.loads = l.take("mbarrier::complete_tx::bytes");
    if (!plan.loads && !l.take("bulk_group")) return false;
    if (reduces) {
        static constexpr std::string_view kNames[] = {"add", "min", "max", "inc",
                                                      "dec", "and", "or",  "xor"};
        for (u8 n = 0; n < 8; ++n) {
            if (l.take(kNames[n])) plan.how = static_cast<Reduce>(n + 1);
        }
        plan.type = l.type();
        // With a tensor map, the map has the type.  Between blocks of a cluster: not here.
        if (plan.how == kCopy || plan.loads || plan.tensor != (plan.type == Type::none))
            return false;
    }
    if (plan.loads ? !cluster && !global : !global) return false;
    const Operand &to = l.operand(0), &from = l.operand(1);
    const Operand& shared = plan.loads ? to : from;
    const Operand& other = plan.loads ? from : to;
    if (plan.tensor != !other.items.empty()) return false;
    const Space there = plan.tensor ? Space::generic : global ? Space::global : Space::shared;
    if (!take_place(l, shared, Space::shared, 0, &plan.shared) ||
        !take_place(l, base_of(other), there, 1, &plan.other))
        return false;
    const std::size_t next = plan.tensor ? 2 : 3;
    if (plan.loads) {
        if (!take_place(l, l.operand(next), Space::shared, 2, &plan.barrier)) return false;
    } else {
        l.constant(0);
    }
    if (!plan.tensor) {
        l.source(2, 32);
    } else {
        if (other.items.size() != 1 || other.items[0].items.size() != plan.dimensions) return false;
        for (const Operand& c : other.items[0].items) l.source(c, 32);
    }
    return keep(l, plan, bulk_h);
}

bool cp(Lowering& l) {
    const auto& parts = l.statement().parts;
    const bool reduces = parts.size() > 1 && parts[1] == "reduce";
    const std::size_t at = reduces ? 2 : 1;
    if (parts.size() < at + 2 || parts[at] != "async") return false;
    if (parts[at + 1] == "bulk") {
        l.ignore({"async", "bulk", "reduce"});
        return bulk(l, reduces);
    }
    if (parts[at + 1] != "mbarrier" || !l.take("arrive")) return false;
    l.ignore({"async", "mbarrier"});
    Plan plan;
    l.insn().count = l.take("noinc");
    if (!take_place(l, l.operand(0), take_space(l), 0, &plan.barrier)) return false;
    return keep(l, plan, async_arrive_h);
}

bool tensormap(Lowering& l) {
    if (l.take("cp_fenceproxy")) {
        l.ignore({"global", "shared::cta", "tensormap::generic", "release", "acquire", "cta",
                  "cluster", "gpu", "sys", "sync", "aligned"});
        Plan plan;
        if (!take_place(l, l.operand(1), Space::shared, 0, &plan.shared) ||
            !take_place(l, l.operand(0), Space::global, 1, &plan.other))
            return false;
        return keep(l, plan, proxy_h);
    }
    if (!l.take("replace") || !l.take("tile")) return false;
    l.take("b1024");
    struct Named {
        std::string_view name;
        std::size_t offset;
        u32 bytes, entries;
    };
    static constexpr Named kFields[] = {
        {"global_address", offsetof(TensorMap, address), 8, 1},
        {"rank", offsetof(TensorMap, last), 1, 1},
        {"box_dim", offsetof(TensorMap, box), 4, 5},
        {"global_dim", offsetof(TensorMap, sizes), 4, 5},
        {"global_stride", offsetof(TensorMap, strides), 8, 4},
        {"element_stride", offsetof(TensorMap, steps), 1, 5},
        {"elemtype", offsetof(TensorMap, type), 1, 1},
        {"interleave_layout", offsetof(TensorMap, interleave), 1, 1},
        {"swizzle_mode", offsetof(TensorMap, swizzle), 1, 1},
        {"swizzle_atomicity", offsetof(TensorMap, atomicity), 1, 1},
        {"fill_mode", offsetof(TensorMap, fill), 1, 1},
    };
    for (const Named& named : kFields) {
        if (!l.take(named.name)) continue;
        const bool many = named.entries > 1;
        const Operand& ordinal = l.operand(1);
        if (many && (ordinal.kind != Operand::Kind::integer || ordinal.bits >= named.entries))
            return false;
        Field field{{}, static_cast<u32>(named.offset), named.bytes, named.entries};
        if (many) field.offset += static_cast<u32>(ordinal.bits) * named.bytes;
        if (!take_place(l, l.operand(0), take_space(l), 0, &field.map)) return false;
        l.insn().count = static_cast<u8>(named.bytes == 8 ? 64 : 32);
        l.source(many ? 2 : 1, l.insn().count);
        l.insn().immediate = reinterpret_cast<u64>(l.keep(&field, sizeof field));
        l.insn().run = replace_h;
        return true;
    }
    return false;
}

}  // namespace

extern const Entry kBulk[];
const Entry kBulk[] = {{"cp", cp}, {"tensormap", tensormap}, {nullptr, nullptr}};

}  // namespace ptx::PTX_VARIANT
