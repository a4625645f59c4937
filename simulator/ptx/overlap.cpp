// What a launch touches while other works may run, and whether a kernel waits for the grids before it.
#include <algorithm>

#include "ast.h"
#include "flat.h"
#include "machine.h"
#include "order.h"

namespace ptx {

namespace {

// The kinds of an instruction that accesses memory: Overlap::kinds.
enum Kind : u8 { unknown, plain, strong };

Kind kind_of(std::string_view text) {
    if (text.starts_with('@')) text.remove_prefix(std::min(text.find_first_of(" \t"), text.size()));
    text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
    const std::string opcode = std::string(text.substr(0, text.find_first_of(" \t"))) + ".";
    const auto has = [&](const char* part) { return opcode.find(part) != std::string::npos; };
    for (const char* const part :
         {".volatile.", ".relaxed.", ".acquire.", ".release.", ".acq_rel.", ".sc.", ".mmio."}) {
        if (has(part)) return strong;
    }
    return plain;
}

}  // namespace

void watch_works(Warp& warp, const Insn& insn, u32 lanes, const u8* const* at, u32 bytes, Use use) {
    Block& block = *warp.block;
    Overlap& by = *block.launch->overlap;
    by.kinds.resize(block.program->lines.size());
    const bool known = insn.step < by.kinds.size();
    Kind kind = known ? static_cast<Kind>(by.kinds[insn.step]) : plain;
    if (kind == unknown) {
        kind = kind_of(block.program->lines[insn.step].text);
        by.kinds[insn.step] = kind;
    }
    // Flags that kernels of different streams poll are ordered by hand.
    if (kind == strong && use == Use::read) return;
    const Touch touch = use == Use::atomic || kind == strong ? Touch::atomic
                        : use == Use::write                  ? Touch::write
                                                             : Touch::read;
    const bool ready = !by.dependent || warp.waited;
    u64 first = 0, end = 0;
    const auto flush = [&] {
        if (first == end || first - block.workspace.base < block.workspace.size) return;
        const Conflict found = by.works.touch(by, first, end - first, touch, ready);
        if (found.other == 0) return;
        u32 lane = 0;
        while ((lanes >> lane & 1) == 0 ||
               found.address - reinterpret_cast<u64>(at[lane]) >= bytes) {
            if (++lane == kLanes) break;
        }
        if (lane == kLanes) lane = static_cast<u32>(__builtin_ctz(lanes));
        const char* const verb =
            use == Use::read ? "reads" : use == Use::write ? "writes" : "updates";
        report(warp, insn, lane, Fault::Kind::race, found.address,
               [&] { return sentence(by, found, verb, ready); });
    };
    for (u32 lane = 0; lane < kLanes; ++lane) {
        if ((lanes >> lane & 1) == 0) continue;
        const auto address = reinterpret_cast<u64>(at[lane]);
        if (address == end && first != end) {
            end += bytes;
            continue;
        }
        if (address >= first && address + bytes <= end) continue;
        flush();
        first = address;
        end = address + bytes;
    }
    flush();
}

void wait_for_grids(Warp& warp) {
    warp.waited = true;
    Overlap* const by = warp.block->launch->overlap;
    if (by == nullptr) return;
    by->waited = true;
    by->late_trigger |= std::ranges::none_of(warp.block->warps, &Warp::triggered);
}

void launch_dependents(Warp& warp) { warp.triggered = true; }

void share_wait(Block& block, const std::vector<u32>& warps) {
    const bool waited =
        std::ranges::any_of(warps, [&](u32 warp) { return block.warps[warp].waited; });
    for (const u32 warp : warps) block.warps[warp].waited |= waited;
}

namespace {

bool has_part(const Statement& statement, std::string_view part) {
    return std::ranges::find(statement.parts, part) != statement.parts.end();
}

bool waits_for_grids(const Statement& statement) {
    return statement.parts[0] == "griddepcontrol" && has_part(statement, "wait");
}

// Where a thread waits for others of its block.
bool waits_for_threads(const Statement& statement) {
    const std::string_view base = statement.parts[0];
    if (base == "bar" || base == "barrier") return !has_part(statement, "arrive");
    return base == "mbarrier" && (has_part(statement, "try_wait") || has_part(statement, "test_wait"));
}

bool is_global_access(const Statement& statement) {
    const std::string_view base = statement.parts[0];
    return (base == "ld" || base == "st" || base == "atom" || base == "red" || base == "cp") &&
           has_part(statement, "global");
}

// The steps that are executed from these on, as far as `passes` lets them.
template <class Passes>
std::vector<bool> reached(const Flat& flat, std::vector<u32> work, Passes passes) {
    std::vector<bool> seen(flat.steps.size(), false);
    while (!work.empty()) {
        const u32 at = work.back();
        work.pop_back();
        if (at >= flat.steps.size() || seen[at]) continue;
        seen[at] = true;
        const Step& step = flat.steps[at];
        if (!step.statement.guarded && !passes(step.statement, at)) continue;
        work.insert(work.end(), step.targets.begin(), step.targets.end());
        if (step.statement.guarded || !(step.jumps || step.ends)) work.push_back(at + 1);
    }
    return seen;
}

}  // namespace

std::optional<Fault> early_access(const Kernel& kernel) {
    const Program& program = kernel.program();
    const std::lock_guard lock(kernel.module_->mutex);
    const Flat flat = flatten(*kernel.module_, static_cast<u32>(kernel.function_));
    std::vector<u32> waits;
    for (u32 i = 0; i < flat.steps.size(); ++i) {
        if (waits_for_grids(flat.steps[i].statement)) waits.push_back(i);
    }
    const std::vector<bool> behind =
        reached(flat, waits, [](const Statement&, u32) { return true; });
    const std::vector<bool> early = reached(flat, {0}, [&](const Statement& statement, u32 at) {
        return !waits_for_grids(statement) && !(behind[at] && waits_for_threads(statement));
    });
    for (u32 i = 0; i < flat.steps.size(); ++i) {
        const Statement& statement = flat.steps[i].statement;
        if (!early[i] || !is_global_access(statement)) continue;
        if (has_part(statement, "nc") && !waits.empty()) continue;
        Fault fault;
        fault.kind = Fault::Kind::race;
        fault.what =
            std::string("accesses global memory on a path without griddepcontrol.wait, in a launch with "
                        "programmatic stream serialization: the kernel before it may still use that "
                        "memory. Call cudaGridDependencySynchronize() before the first access, or "
                        "launch without the attribute");
        fault.kernel = program.kernel;
        fault.instruction = program.lines[i].text;
        fault.line = program.lines[i].line;
        fault.source = program.lines[i].source;
        return fault;
    }
    return std::nullopt;
}

}  // namespace ptx
