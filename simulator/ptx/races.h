// Options `races` and `uninitialized`: who touched each byte of shared memory, and when.
#pragma once

#include "machine.h"

namespace ptx {

void start_watch(Block& block);
void stop_watch(Block& block);

// Raises a fault if the last writes changed what another warp wrote or reads.
void settle_writes(Block& block);

}  // namespace ptx
