// Tensor maps in tiled mode, as the interpreter reads them (ptx/tensor_map.h).  What is refused:
// cuda.h, at cuTensorMapEncodeTiled.
#include <algorithm>

#include "driver.h"
#include "ptx/tensor_map.h"

using namespace simulator;

namespace {

// CUtensorMapDataType to TensorMap::type.
constexpr std::uint8_t kTensorTypes[] = {0, 1, 2, 3, 4, 5, 6, 7, 9, 10, 8, 11, 12, 13, 14, 15};

bool tile_is_possible(const ptx::TensorMap& map) {
    const std::uint64_t bytes = ptx::kTensorTypeBytes[map.type];
    if (map.address % 16 != 0 || (map.interleave != 0 && map.last < 2)) return false;
    for (unsigned d = 0; d <= map.last; ++d) {
        if (map.box[d] == 0 || map.box[d] > 256 || map.steps[d] == 0 || map.steps[d] > 8)
            return false;
    }
    for (unsigned d = 0; d < map.last; ++d) {
        if (map.strides[d] % 16 != 0 || map.strides[d] >= std::uint64_t{1} << 40) return false;
    }
    if (bytes == 0) return map.box[0] % 128 == 0 || map.type == 13;
    const std::uint64_t row = map.box[0] * bytes, swizzled = std::uint64_t{16} << map.swizzle;
    return map.interleave != 0 || (row % 16 == 0 && (map.swizzle == 0 || row <= swizzled));
}

}  // namespace

extern "C" {

CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank,
                                void* address, const cuuint64_t* sizes, const cuuint64_t* strides,
                                const cuuint32_t* box, const cuuint32_t* steps,
                                CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion, CUtensorMapFloatOOBfill fill) {
    DRIVER();
    static_assert(sizeof(CUtensorMap) == sizeof(ptx::TensorMap));
    if (map == nullptr || reinterpret_cast<std::uintptr_t>(map) % 64 != 0 || rank - 1 > 4 ||
        static_cast<std::size_t>(type) >= std::size(kTensorTypes) || address == nullptr ||
        sizes == nullptr || (strides == nullptr && rank > 1) || box == nullptr || steps == nullptr)
        return CUDA_ERROR_INVALID_VALUE;
    ptx::TensorMap made;
    made.address = reinterpret_cast<std::uint64_t>(address);
    made.last = static_cast<std::uint8_t>(rank - 1);
    made.type = kTensorTypes[type];
    made.interleave = static_cast<std::uint8_t>(interleave);
    // Numbers from 4 on are 128 bytes with another unit, of other capabilities.
    made.swizzle = static_cast<std::uint8_t>(std::min<unsigned>(swizzle, 3));
    made.atomicity = static_cast<std::uint8_t>(swizzle - made.swizzle);
    made.fill = static_cast<std::uint8_t>(fill);
    for (unsigned d = 0; d < rank; ++d) {
        if (sizes[d] == 0 || sizes[d] > std::uint64_t{1} << 32 || steps[d] > 8)
            return CUDA_ERROR_INVALID_VALUE;
        made.sizes[d] = static_cast<std::uint32_t>(sizes[d]);
        made.box[d] = box[d];
        made.steps[d] = static_cast<std::uint8_t>(steps[d]);
        if (d + 1 < rank) made.strides[d] = strides[d];
    }
    if (!tile_is_possible(made)) return CUDA_ERROR_INVALID_VALUE;
    *reinterpret_cast<ptx::TensorMap*>(map) = made;
    return CUDA_SUCCESS;
}

// A map that the driver made has it.
CUresult cuTensorMapReplaceAddress(CUtensorMap* map, void* address) {
    DRIVER();
    if (map == nullptr || reinterpret_cast<std::uintptr_t>(address) % 16 != 0)
        return CUDA_ERROR_INVALID_VALUE;
    reinterpret_cast<ptx::TensorMap*>(map)->address = reinterpret_cast<std::uint64_t>(address);
    return CUDA_SUCCESS;
}

}  // extern "C"
