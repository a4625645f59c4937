// Options `races` and `uninitialized`: who touched each byte of shared memory, and when.
#pragma once

#include "machine.h"

namespace ptx {

void start_watch(Block& block);
void stop_watch(Block& block);

}  // namespace ptx
