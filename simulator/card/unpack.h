// What nvcc packs device code with, and the digest by which code is known.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace simulator {

// A zstd frame (by the system's libzstd.so.1) and an LZ4 block (lz4_Block_format.md) of `size`
// bytes unpacked. Both throw std::runtime_error where the data are damaged.
std::string unpack_zstd(std::string_view packed, std::size_t size);
std::string unpack_lz4(std::string_view packed, std::size_t size);

// SHA-256 in hexadecimal digits (FIPS 180-4).
std::string sha256(std::string_view bytes);

}  // namespace simulator
