// griddepcontrol (PTX ISA 9.7.13.13).  Grids run one after the other, so that what is waited for is
// complete; whether the kernel did wait is for the watch over works (overlap.cpp).
#include "lanes.h"

namespace ptx::PTX_VARIANT {

namespace {

void wait_h(Warp& w, const Insn&, u32) { wait_for_grids(w); }
void launch_h(Warp& w, const Insn&, u32) { launch_dependents(w); }

bool select_griddepcontrol(Lowering& l) {
    const bool wait = l.take("wait");
    l.insn().run = wait ? wait_h : launch_h;
    return wait || l.take("launch_dependents");
}

}  // namespace

extern const Entry kGrids[];
const Entry kGrids[] = {{"griddepcontrol", select_griddepcontrol}, {nullptr, nullptr}};

}  // namespace ptx::PTX_VARIANT
