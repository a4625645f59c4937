// Device code as a program hands it to the driver: a fat binary, a cubin, or PTX.
#pragma once

#include <string>

#include "simulator.h"

namespace simulator {

// What a card takes of an image.
struct DeviceCode {
    std::string name;    // "sm_120a", "compute_90"; empty: the card takes nothing of it
    std::string digest;  // of the machine code: SHA-256; empty: it is PTX
    std::string ptx;     // the PTX that the image has for just this code; empty: none
};

// Throws std::runtime_error: the image is damaged, or nothing that is known.
DeviceCode device_code(const void* image, const Card& card);

}  // namespace simulator
