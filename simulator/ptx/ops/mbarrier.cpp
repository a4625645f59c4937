// mbarrier (PTX ISA 9.7.13.15), and what addresses blocks of a cluster, which have one here.
#include "mbarrier.h"

namespace ptx::PTX_VARIANT {

u8* locate_one(Warp& w, const Insn& i, const Place& place, u32 lane, u32 bytes, u32 alignment,
               Use use) {
    Insn part = i;
    part.immediate = place.offset;
    part.flags = place.flags;
    alignas(64) u64 a[kLanes];
    read_addresses(w, part, place.operand, a);
    const u64 address = a[lane];
    for (u64& each : a) each = address;
    if (address % alignment != 0) raise_misaligned(w, i, lane, address, alignment);
    Lanes out;
    find_lanes(w, i, u32{1} << lane, a, static_cast<Space>(place.space), bytes, use, out);
    return out.at[lane];
}

u8* find_barrier(Warp& w, const Insn& i, const Place& place, u32 lane, bool initialized) {
    u8* const at = locate_one(w, i, place, lane, 8, 8, Use::atomic);
    const Block& block = *w.block;
    const auto offset = static_cast<u64>(at - block.shared);
    if (offset >= block.shared_size)
        raise(w, i, lane, Fault::Kind::invalid, "an mbarrier that is not in shared memory");
    u64 word;
    std::memcpy(&word, at, sizeof word);
    if (initialized && !Barrier::is_one(word))
        raise(w, i, lane, Fault::Kind::invalid,
              "shared memory at offset " + std::to_string(offset) +
                  " is no mbarrier: nothing initialized it, or something was written over it");
    return at;
}

namespace {

enum Verb : u8 { kInit, kInvalidate, kExpect, kComplete, kArrive, kDrop };
struct Plan {
    Place object;
    Verb verb;
    bool expects;   // arrive.expect_tx: the number is one of transactions
    bool stays;     // noComplete
    bool has_state;
};
const Plan& plan_of(const Insn& i) { return *reinterpret_cast<const Plan*>(i.immediate); }

// operands: state, address, count
void change_h(Warp& w, const Insn& i, u32 lanes) {
    const Plan& p = plan_of(i);
    for (u32 l = 0; l < kLanes; ++l) {
        if (!has(lanes, l)) continue;
        u8* const at = find_barrier(w, i, p.object, l, p.verb != kInit);
        const u32 number = slot<u32>(w, i, 2)[l];
        const auto check = [&](bool good, const char* what) {
            if (!good) raise(w, i, l, Fault::Kind::invalid, what);
        };
        Barrier b = read_barrier(at);
        const u64 before = b.word();
        const u32 arrivals = p.verb != kArrive && p.verb != kDrop ? 0 : p.expects ? 1 : number;
        if (p.verb == kInit) {
            check(number >= 1 && number <= Barrier::kMost,
                  "an mbarrier for no arrival, or for more than 1048575");
            b = Barrier(0);
            b.pending = b.expected = number;
        }
        if (p.expects || p.verb == kExpect) b.transactions += static_cast<s32>(number);
        if (p.verb == kComplete) b.transactions -= static_cast<s32>(number);
        const auto most = static_cast<s32>(Barrier::kMost);
        check(b.transactions <= most && b.transactions >= -most,
              "an mbarrier that waits for more than 1048575 bytes");
        check(arrivals <= b.pending, "more arrivals than the mbarrier expects in this phase");
        b.pending -= arrivals;
        if (p.verb == kDrop) b.expected -= arrivals;
        check(!p.stays || b.pending != 0, "noComplete, and the phase completes");
        if (p.verb != kInit) b.settle();
        if (p.has_state) slot<u64>(w, i, 0)[l] = before;
        if (p.verb == kInvalidate) std::memset(at, 0, 8);
        else write_barrier(at, b);
        if (w.block->watch != nullptr) give_clock(w, clock_of(w, at));
    }
    w.block->fruitless = 0;
}

// operands: predicate, address, state or parity.  Insn::count: by parity.  What is missing for the
// phase may be copies: they arrive now, and not before.
void wait_h(Warp& w, const Insn& i, u32 lanes) {
    const Plan& p = plan_of(i);
    u32 complete = 0;
    for (u32 l = 0; l < kLanes; ++l) {
        if (!has(lanes, l)) continue;
        u8* const at = find_barrier(w, i, p.object, l);
        const u32 phase =
            i.count != 0 ? slot<u32>(w, i, 2)[l] : Barrier(slot<u64>(w, i, 2)[l]).phase;
        if (phase > 1)
            raise(w, i, l, Fault::Kind::invalid,
                  "the parity of a phase is 0 or 1, not " + std::to_string(phase));
        if (read_barrier(at).phase == phase) complete_on(*w.block, at);
        if (read_barrier(at).phase == phase) continue;
        complete |= u32{1} << l;
        if (w.block->watch != nullptr) take_clock(w, clock_of(w, at));
    }
    set_predicate(slot<u32>(w, i, 0), lanes, complete);
    if (complete == lanes) w.block->fruitless = 0;
    else w.stop = Stop::poll;
}

void pending_h(Warp& w, const Insn& i, u32 lanes) {
    const u64* const state = slot<u64>(w, i, 1);
    write(slot<u32>(w, i, 0), lanes, [=](u32 l) { return Barrier(state[l]).pending; });
}

void keep_plan(Lowering& l, const Plan& plan) {
    l.insn().immediate = reinterpret_cast<u64>(l.keep(&plan, sizeof plan));
}

bool wait(Lowering& l) {
    l.insn().count = l.take("parity");
    Plan plan{};
    l.destination(0, 0);
    if (!take_place(l, l.operand(1), take_space(l), 1, &plan.object)) return false;
    l.source(2, l.insn().count != 0 ? 32 : 64);
    keep_plan(l, plan);
    l.insn().run = wait_h;
    return l.operands() == 3 || l.operands() == 4;  // a hint how long to wait
}

bool mbarrier(Lowering& l) {
    l.ignore({"release", "acquire", "relaxed", "cta", "cluster"});
    if (l.take("pending_count")) {
        l.destination(0, 32), l.source(1, 64);
        l.insn().run = pending_h;
        return true;
    }
    if (l.take("test_wait") || l.take("try_wait")) return wait(l);
    static constexpr std::pair<std::string_view, Verb> kVerbs[] = {
        {"init", kInit},     {"inval", kInvalidate},      {"complete_tx", kComplete},
        {"arrive", kArrive}, {"arrive_drop", kDrop}};
    Plan plan{};
    plan.expects = l.take("expect_tx");
    plan.verb = kExpect;
    bool named = false;
    for (const auto& [name, verb] : kVerbs) {
        if (l.take(name)) plan.verb = verb, named = true;
    }
    if (plan.verb == kExpect && !plan.expects) return false;
    if (!named) plan.expects = false;
    plan.stays = l.take("noComplete");
    const bool first = l.operand(0).kind == Operand::Kind::address;
    plan.has_state = !first && l.operand(0).kind == Operand::Kind::reg;
    l.destination(first ? Operand{} : l.operand(0), 64);
    const std::size_t at = first ? 0 : 1;
    if (!take_place(l, l.operand(at), take_space(l), 1, &plan.object)) return false;
    Operand one;
    one.kind = Operand::Kind::integer;
    one.bits = 1;
    l.source(l.operands() > at + 1 ? l.operand(at + 1) : one, 32);
    keep_plan(l, plan);
    l.insn().run = change_h;
    return l.operands() <= at + 2;
}

// mapa: the same address, of the cluster's only block.
template <class T>
void mapa_h(Warp& w, const Insn& i, u32 lanes) {
    const T* const a = slot<T>(w, i, 1);
    const u32* const rank = slot<u32>(w, i, 2);
    for (u32 l = 0; l < kLanes; ++l) {
        if (has(lanes, l) && rank[l] != 0)
            raise(w, i, l, Fault::Kind::invalid,
                  "block " + std::to_string(rank[l]) + " of a cluster of one");
    }
    write(slot<T>(w, i, 0), lanes, [=](u32 l) { return a[l]; });
}
bool mapa(Lowering& l) {
    l.take("shared::cluster");
    const u32 bits = bits_of(l.type());
    l.destination(0, bits), l.source(1, bits), l.source(2, 32);
    l.insn().run = bits == 64 ? mapa_h<u64> : mapa_h<u32>;
    return true;
}
void rank_h(Warp& w, const Insn& i, u32 lanes) {
    write(slot<u32>(w, i, 0), lanes, [](u32) { return u32{0}; });
}
bool getctarank(Lowering& l) {
    l.take("shared::cluster");
    l.destination(0, 32), l.source(1, bits_of(l.type()));
    l.insn().run = rank_h;
    return true;
}

}  // namespace

extern const Entry kBarriers[];
const Entry kBarriers[] = {
    {"mbarrier", mbarrier}, {"mapa", mapa}, {"getctarank", getctarank}, {nullptr, nullptr}};

}  // namespace ptx::PTX_VARIANT
