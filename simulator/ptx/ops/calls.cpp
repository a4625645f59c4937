// Calls of functions that no module has: vprintf, and named ends for the others (PTX ISA
// "Writing PTX: system calls"; the CUDA headers declare them).
#include "address.h"

namespace ptx::PTX_VARIANT {

namespace {

// call (result), vprintf, (format, arguments): operands: format at, arguments at, result at:
// offsets in local memory.
u64 read_local(Warp& w, u32 lane, u32 offset) {
    const Block& block = *w.block;
    u64 v;
    std::memcpy(&v, block.local + (u64{w.number} * kLanes + lane) * block.local_stride + offset,
                sizeof v);
    return v;
}
void vprintf_h(Warp& w, const Insn& i, u32 lanes) {
    u64 format[kLanes], arguments[kLanes];
    for (u32 l = 0; l < kLanes; ++l) {
        if (!has(lanes, l)) continue;
        format[l] = read_local(w, l, i.operands[0]);
        arguments[l] = read_local(w, l, i.operands[1]);
        const u32 one = 1;
        if (i.flags)
            std::memcpy(w.block->local + (u64{w.number} * kLanes + l) * w.block->local_stride +
                            i.operands[2],
                        &one, sizeof one);
    }
    print_lanes(w, i, lanes, format, arguments);
}
void assert_h(Warp& w, const Insn& i, u32 lanes) {
    const u32 lane = first_lane(lanes);
    const auto text = [&](u32 n) {
        const u64 at = read_local(w, lane, i.operands[n]);
        return at == 0 ? std::string() : read_string(w, i, lane, at);
    };
    raise(w, i, lane, Fault::Kind::trap,
          "the assertion " + text(0) + " failed, " + text(1) + ":" +
              std::to_string(static_cast<u32>(read_local(w, lane, i.operands[2]))));
}

bool call(Lowering& l) {
    l.ignore({"uni"});
    if (l.operands() < 3) return false;
    const std::string_view name = l.operand(1).name;
    const auto& arguments = l.operand(2).items;
    for (const Operand& argument : arguments) {
        if (argument.symbol == nullptr) return false;
        l.constant(static_cast<u32>(argument.symbol->address));
    }
    if (name == "vprintf" && arguments.size() == 2) {
        const auto& results = l.operand(0).items;
        l.insn().flags = !results.empty() && results[0].symbol != nullptr;
        if (l.insn().flags) l.constant(static_cast<u32>(results[0].symbol->address));
        l.insn().run = vprintf_h;
        return true;
    }
    if (name == "__assertfail" && arguments.size() >= 3) {
        l.insn().run = assert_h;
        return true;
    }
    return false;  // malloc, free, cudaLaunchDevice: not computed
}

}  // namespace

extern const Entry kCalls[];
const Entry kCalls[] = {{"call", call}, {nullptr, nullptr}};

}  // namespace ptx::PTX_VARIANT
