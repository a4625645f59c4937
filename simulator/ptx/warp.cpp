// The paths of a warp: threads that part at a branch meet again at its immediate post-dominator.
//
// Threads also make progress where others of their warp wait (PTX ISA 9.7.13 "…until all non-exited
// threads …", independent thread scheduling): a path that waits is parked, and another one runs.
#include "lower.h"

namespace ptx {

namespace {

s32 add_path(Warp& warp, u32 pc, u32 meet, u32 lanes, s32 parent) {
    std::size_t at = 0;
    while (at < warp.paths.size() && warp.paths[at].alive) ++at;
    if (at == warp.paths.size()) warp.paths.emplace_back();
    warp.paths[at] = {pc, meet, lanes, parent, 0, true, false};
    ++warp.live_paths;
    return static_cast<s32>(at);
}

void save(Warp& warp) {
    if (warp.current < 0) return;
    Path& path = warp.paths[static_cast<std::size_t>(warp.current)];
    path.pc = warp.pc;
    path.lanes = warp.lanes;
}

void load(Warp& warp, s32 index) {
    const Path& path = warp.paths[static_cast<std::size_t>(index)];
    warp.current = index;
    warp.pc = path.pc;
    warp.lanes = path.lanes;
    warp.meet = path.meet;
}

// Another path that can run; the newest first, as a stack would.
bool pick(Warp& warp) {
    for (std::size_t i = warp.paths.size(); i-- > 0;) {
        const Path& path = warp.paths[i];
        if (path.alive && path.children == 0 && !path.parked) {
            load(warp, static_cast<s32>(i));
            return true;
        }
    }
    warp.current = -1;
    return false;
}

// The path's lanes have left it, at `meet` or by exit.
void finish_path(Warp& warp, s32 index) {
    for (;;) {
        Path& path = warp.paths[static_cast<std::size_t>(index)];
        path.alive = false;
        --warp.live_paths;
        const s32 parent = path.parent;
        if (parent < 0) break;
        Path& waiting = warp.paths[static_cast<std::size_t>(parent)];
        if (--waiting.children > 0) break;
        waiting.lanes &= ~warp.exited;
        if (waiting.lanes != 0) break;
        index = parent;
    }
    if (!pick(warp)) {
        bool parked = false;
        for (const Path& path : warp.paths) parked |= path.alive && path.parked;
        warp.stop = parked ? Stop::park : Stop::done;
    }
}

}  // namespace

void start_warp(Warp& warp, u32 lanes) {
    warp.started = lanes;
    warp.exited = ~lanes;
    warp.paths.clear();
    warp.live_paths = 0;
    warp.stop = Stop::no;
    load(warp, add_path(warp, 0, kAll, lanes, -1));
}

void part(Warp& warp, u32 taken, u32 target, u32 next, u32 meet) {
    const u32 others = warp.lanes & ~taken;
    if (warp.meet == meet) {
        // The lanes that are where the whole path ends leave it; the path is split otherwise.
        const bool taken_ends = target == meet, others_end = next == meet;
        if (taken_ends && others_end) {
            warp.pc = meet;
        } else if (taken_ends) {
            warp.lanes = others;
            warp.pc = next;
        } else if (others_end) {
            warp.lanes = taken;
            warp.pc = target;
        } else {
            const s32 parent = warp.paths[static_cast<std::size_t>(warp.current)].parent;
            if (parent >= 0) ++warp.paths[static_cast<std::size_t>(parent)].children;
            warp.lanes = taken;
            warp.pc = target;
            save(warp);
            load(warp, add_path(warp, next, meet, others, parent));
        }
        return;
    }
    const s32 waiting = warp.current;
    warp.pc = meet;
    save(warp);
    s32 run = -1;
    const auto branch = [&](u32 pc, u32 lanes) {
        if (pc == meet) return;
        ++warp.paths[static_cast<std::size_t>(waiting)].children;
        run = add_path(warp, pc, meet, lanes, waiting);
    };
    branch(target, taken);
    branch(next, others);
    load(warp, run < 0 ? waiting : run);
}

bool meet_here(Warp& warp, u32 pc) {
    while (warp.meet == pc) {
        save(warp);
        finish_path(warp, warp.current);
        if (warp.stop != Stop::no || warp.pc != pc) return false;
    }
    warp.pc = pc + 1;
    return true;
}

void exit_lanes(Warp& warp, u32 lanes) {
    warp.exited |= lanes;
    warp.lanes &= ~lanes;
    for (Path& path : warp.paths) path.parked = false;  // they may have waited for these
    if (warp.lanes == 0) {
        save(warp);
        finish_path(warp, warp.current);
    }
}

bool wait_for(Warp& warp, const Insn& insn, u32 members, u32* lanes) {
    members &= ~warp.exited;
    if ((members & ~warp.lanes) == 0) return false;
    // Not everybody is here.  Which paths wait at this same instruction?
    const u32 pc = warp.pc - 1;
    u32 here = *lanes;
    for (const Path& path : warp.paths) {
        if (path.alive && path.parked && path.pc == pc) here |= path.lanes;
    }
    if ((members & ~here) == 0) {
        for (Path& path : warp.paths) {
            if (!path.alive || !path.parked || path.pc != pc || (path.lanes & members) == 0)
                continue;
            path.parked = false;
            path.pc = pc + 1;
        }
        *lanes = here & members;
        return false;
    }
    Path& path = warp.paths[static_cast<std::size_t>(warp.current)];
    warp.pc = pc;
    save(warp);
    path.parked = true;
    if (pick(warp)) return true;
    // Nobody can run.  Paths at different instructions meet only in bar.warp.sync, which moves no
    // values between lanes.
    u32 parked = 0;
    for (const Path& other : warp.paths) {
        if (other.alive && other.parked) parked |= other.lanes;
    }
    if ((members & ~parked) == 0 && (insn.flags & kMovesNothing) != 0) {
        for (Path& other : warp.paths) {
            if (other.alive && other.parked) ++other.pc, other.parked = false;
        }
        if (warp.block->watch != nullptr) order_lanes(warp, parked & members);
        pick(warp);
        return true;
    }
    raise(warp, insn, static_cast<u32>(__builtin_ctz(*lanes)), Fault::Kind::barrier,
          "the threads of the mask do not all reach this instruction: some wait at another one, or "
          "the "
          "mask names threads that take another way");
}

void run_warp(Warp& warp, const Insn* code) {
    warp.stop = Stop::no;
    while (warp.stop == Stop::no) {
        const Insn& insn = code[warp.pc++];
        u32 lanes = warp.lanes;
        if (insn.guard != kNoGuard) {
            const u32 guard = *lanes_of<u32>(warp, insn.guard);
            lanes &= insn.guard_negated ? ~guard : guard;
            ++warp.warp_instructions;
            if (lanes == 0) continue;
        } else {
            ++warp.warp_instructions;
        }
        warp.lane_instructions +=
            lanes == kAll ? kLanes : static_cast<u64>(__builtin_popcount(lanes));
        insn.run(warp, insn, lanes);
    }
    if ((warp.stop == Stop::yield || warp.stop == Stop::poll) && warp.live_paths > 1) {
        // Threads that spin must not keep the others of their warp from running.
        const s32 spinning = warp.current;
        save(warp);
        for (std::size_t i = 1; i <= warp.paths.size(); ++i) {
            const std::size_t at = (static_cast<std::size_t>(spinning) + i) % warp.paths.size();
            const Path& path = warp.paths[at];
            if (!path.alive || path.children > 0 || path.parked) continue;
            load(warp, static_cast<s32>(at));
            break;
        }
    }
}

}  // namespace ptx
