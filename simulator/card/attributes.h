// Attributes of the simulated cards, by the numbers that the runtime and the driver API share.
#pragma once

#include "simulator.h"

namespace simulator {

// The card's value of a cudaDeviceAttr, which is a CUdevice_attribute of the same number.
// cudaErrorInvalidDevice: no such card; cudaErrorInvalidValue: no such attribute.
SIMULATOR_API cudaError_t card_attribute(int card, int attribute, int* value);
// Blocks that a multiprocessor of this compute capability holds at once (cuda_occupancy.h).
SIMULATOR_API int blocks_per_multiprocessor(const Card& card);
// "0000:01:00.0", and the 16 bytes of a UUID: made of the card's name and index.
SIMULATOR_API std::string pci_address(int card);
SIMULATOR_API void card_uuid(int card, unsigned char uuid[16]);
// Whether the card's context exists (use_card).
SIMULATOR_API bool card_used(int card);

}  // namespace simulator
