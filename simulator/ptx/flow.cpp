// Basic blocks and immediate post-dominators, where the threads of a warp that parted meet again.
//
// Algorithm: Cooper, Harvey, Kennedy, "A Simple, Fast Dominance Algorithm", on the reversed graph.
#include <algorithm>

#include "flat.h"

namespace ptx {

namespace {

void find_leaders(const Flat& flat, Blocks& out) {
    const auto count = static_cast<u32>(flat.steps.size());
    std::vector<bool> leader(count + 1, false);
    leader[0] = true;
    for (u32 i = 0; i < count; ++i) {
        const Step& step = flat.steps[i];
        if (step.jumps || step.ends) leader[i + 1] = true;
        for (const u32 target : step.targets) leader[target] = true;
    }
    out.block_of.resize(count);
    for (u32 i = 0; i < count; ++i) {
        if (leader[i]) out.blocks.push_back({i, i, {}, false});
        out.blocks.back().last = i + 1;
        out.block_of[i] = static_cast<u32>(out.blocks.size() - 1);
    }
}

void link(const Flat& flat, Blocks& out) {
    for (u32 b = 0; b < out.blocks.size(); ++b) {
        Blocks::Block& block = out.blocks[b];
        const Step& last = flat.steps[block.last - 1];
        for (const u32 target : last.targets) block.next.push_back(out.block_of[target]);
        const bool always = !last.statement.guarded && (last.jumps || last.ends);
        block.exits = last.ends;
        if (!always && b + 1 < out.blocks.size()) block.next.push_back(b + 1);
        std::sort(block.next.begin(), block.next.end());
        block.next.erase(std::unique(block.next.begin(), block.next.end()), block.next.end());
    }
}

// The end of the kernel is one more node, numbered blocks.size().
void find_post_dominators(Blocks& out) {
    const auto end = static_cast<u32>(out.blocks.size());
    std::vector<std::vector<u32>> before(end + 1);  // predecessors
    for (u32 b = 0; b < end; ++b) {
        for (const u32 next : out.blocks[b].next) before[next].push_back(b);
        if (out.blocks[b].exits || out.blocks[b].next.empty()) before[end].push_back(b);
    }
    // Post-order of the reversed graph from the end.
    std::vector<u32> order, number(end + 1, kAll);
    std::vector<std::pair<u32, std::size_t>> work{{end, 0}};
    std::vector<bool> seen(end + 1, false);
    seen[end] = true;
    while (!work.empty()) {
        auto& [node, at] = work.back();
        if (at < before[node].size()) {
            const u32 next = before[node][at++];
            if (!seen[next]) {
                seen[next] = true;
                work.emplace_back(next, 0);
            }
        } else {
            number[node] = static_cast<u32>(order.size());
            order.push_back(node);
            work.pop_back();
        }
    }
    std::vector<u32> dominator(end + 1, kAll);
    dominator[end] = end;
    const auto meet = [&](u32 a, u32 b) {
        while (a != b) {
            while (number[a] < number[b]) a = dominator[a];
            while (number[b] < number[a]) b = dominator[b];
        }
        return a;
    };
    for (bool changed = true; changed;) {
        changed = false;
        for (auto node = order.rbegin(); node != order.rend(); ++node) {
            if (*node == end) continue;
            u32 found = kAll;
            const auto consider = [&](u32 next) {
                if (number[next] == kAll || dominator[next] == kAll) return;
                found = found == kAll ? next : meet(found, next);
            };
            const Blocks::Block& block = out.blocks[*node];
            for (const u32 next : block.next) consider(next);
            if (block.exits || block.next.empty()) consider(end);
            if (found != kAll && dominator[*node] != found) {
                dominator[*node] = found;
                changed = true;
            }
        }
    }
    out.post_dominator.resize(end);
    for (u32 b = 0; b < end; ++b) {
        out.post_dominator[b] = dominator[b] == end ? kAll : dominator[b];
    }
}

}  // namespace

Blocks find_blocks(const Flat& flat) {
    Blocks out;
    find_leaders(flat, out);
    link(flat, out);
    find_post_dominators(out);
    return out;
}

}  // namespace ptx
