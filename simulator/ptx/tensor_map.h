// A tensor map: what cuTensorMapEncodeTiled (card/driver_tensor_maps.cpp) and tensormap.replace
// write, and what cp.async.bulk.tensor reads (PTX ISA 5.5.8).  The card's own layout is not
// documented; kernels only pass maps on.
#pragma once

#include "base.h"

namespace ptx {

// All zeros is a map, too: Triton begins with one and replaces each field.
struct alignas(64) TensorMap {
    u64 address = 0;
    u64 strides[4] = {};  // of dimensions 1 to 4, in bytes
    u32 sizes[5] = {};    // in elements; 0: 2^32
    u32 box[5] = {};      // in elements of the tensor
    u8 steps[5] = {};     // from one element of the box to the next
    u8 last = 0;          // number of dimensions - 1
    // Numbers of tensormap.replace (PTX ISA 9.7.9.27.3, its table of fields).
    u8 type = 0, interleave = 0, swizzle = 0, fill = 0, atomicity = 0;
};
static_assert(sizeof(TensorMap) == 128);

// Bytes of an element by TensorMap::type; 0: packed in 4 or 6 bits.
constexpr u8 kTensorTypeBytes[] = {1, 2, 4, 4, 8, 8, 2, 4, 4, 8, 2, 4, 4, 0, 0, 0};

}  // namespace ptx
