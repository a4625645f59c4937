// Special registers (PTX ISA 10).  A grid has clusters of one block.
#include <chrono>
#include <cstring>

#include "machine.h"

namespace ptx {

namespace {

struct Thread {
    const Block& block;
    u32 warp, lane;
    Size index() const {
        const Size& size = block.launch->block;
        const u32 thread = warp * kLanes + lane;
        return {thread % size.x, thread / size.x % size.y, thread / size.x / size.y};
    }
};

u32 part(const Size& size, char axis) {
    return axis == 'x' ? size.x : axis == 'y' ? size.y : size.z;
}

// 10.1 to 10.40; false: not one of them.
bool value_of(std::string_view name, const Thread& thread, u64* value) {
    const Block& block = thread.block;
    const char axis = name.size() > 2 && name[name.size() - 2] == '.' ? name.back() : '\0';
    const std::string_view base = axis != '\0' ? name.substr(0, name.size() - 2) : name;
    const u32 bit = 1U << thread.lane;
    if (axis != '\0') {
        if (base == "%tid") *value = part(thread.index(), axis);
        else if (base == "%ntid") *value = part(block.launch->block, axis);
        else if (base == "%ctaid" || base == "%clusterid") *value = part(block.index, axis);
        else if (base == "%nctaid" || base == "%nclusterid")
            *value = part(block.launch->grid, axis);
        else if (base == "%cluster_ctaid") *value = 0;
        else if (base == "%cluster_nctaid") *value = 1;
        else return false;
        return true;
    }
    if (name == "%laneid") *value = thread.lane;
    else if (name == "%warpid") *value = thread.warp;
    else if (name == "%nwarpid") *value = (block.threads + kLanes - 1) / kLanes;
    else if (name == "%smid" || name == "%gridid") *value = 0;
    else if (name == "%nsmid") *value = 1;
    else if (name == "%lanemask_eq") *value = bit;
    else if (name == "%lanemask_lt") *value = bit - 1;
    else if (name == "%lanemask_le") *value = bit - 1 + bit;
    else if (name == "%lanemask_gt") *value = ~(bit - 1 + bit);
    else if (name == "%lanemask_ge") *value = ~(bit - 1);
    else if (name == "%dynamic_smem_size") *value = block.launch->shared;
    else if (name == "%total_smem_size" || name == "%aggr_smem_size") *value = block.shared_size;
    else if (name == "%cluster_ctarank" || name == "%is_explicit_cluster") *value = 0;
    else if (name == "%cluster_nctarank") *value = 1;
    else if (name == "%clock" || name == "%clock_hi" || name == "%clock64" ||
             name == "%globaltimer" || name == "%globaltimer_lo" || name == "%globaltimer_hi")
        *value = time_now(name);
    else if (name == "%envreg1") *value = block.workspace.base >> 32;
    else if (name == "%envreg2") *value = block.workspace.base & 0xffffffff;
    else if (name.substr(0, 7) == "%envreg") *value = 0;
    else return false;
    return true;
}

}  // namespace

u64 time_now(std::string_view name) {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    const auto time =
        static_cast<u64>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
    const bool high = name.size() > 3 && name.substr(name.size() - 3) == "_hi";
    return high ? time >> 32 : time;
}

bool is_special(std::string_view name) {
    static const Launch launch{};
    Block block;
    block.launch = &launch;
    u64 value;
    return value_of(name, {block, 0, 0}, &value);
}

void set_specials(Warp& warp) {
    for (const SpecialSlot& special : warp.block->program->specials) {
        const bool wide = special.name == "%clock64" || special.name == "%globaltimer" ||
                          special.name == "%gridid";
        u32 bits = 0;
        for (u32 lane = 0; lane < kLanes; ++lane) {
            u64 value = 0;
            value_of(special.name, {*warp.block, warp.number, lane}, &value);
            if (special.name == "%is_explicit_cluster") bits |= static_cast<u32>(value) << lane;
            else if (wide) lanes_of<u64>(warp, special.operand)[lane] = value;
            else lanes_of<u32>(warp, special.operand)[lane] = static_cast<u32>(value);
        }
        if (special.name == "%is_explicit_cluster") *lanes_of<u32>(warp, special.operand) = bits;
    }
}

}  // namespace ptx
