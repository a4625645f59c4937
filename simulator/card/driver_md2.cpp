// MD2: RFC 1319.
#include "md2.h"

#include <array>
#include <cstdint>
#include <cstring>

namespace simulator {

namespace {

constexpr std::size_t kBlock = 16;
using Block = std::array<std::uint8_t, kBlock>;

// A permutation of the bytes from the digits of pi: RFC 1319, 3.2.
constexpr std::uint8_t kPi[256] = {
    41,  46,  67,  201, 162, 216, 124, 1,   61,  54,  84,  161, 236, 240, 6,   19,  98,  167, 5,
    243, 192, 199, 115, 140, 152, 147, 43,  217, 188, 76,  130, 202, 30,  155, 87,  60,  253, 212,
    224, 22,  103, 66,  111, 24,  138, 23,  229, 18,  190, 78,  196, 214, 218, 158, 222, 73,  160,
    251, 245, 142, 187, 47,  238, 122, 169, 104, 121, 145, 21,  178, 7,   63,  148, 194, 16,  137,
    11,  34,  95,  33,  128, 127, 93,  154, 90,  144, 50,  39,  53,  62,  204, 231, 191, 247, 151,
    3,   255, 25,  48,  179, 72,  165, 181, 209, 215, 94,  146, 42,  172, 86,  170, 198, 79,  184,
    56,  210, 150, 164, 125, 182, 118, 252, 107, 226, 156, 116, 4,   241, 69,  157, 112, 89,  100,
    113, 135, 32,  134, 91,  207, 101, 230, 45,  168, 2,   27,  96,  37,  173, 174, 176, 185, 246,
    28,  70,  97,  105, 52,  64,  126, 15,  85,  71,  163, 35,  221, 81,  175, 58,  195, 92,  249,
    206, 186, 197, 234, 38,  44,  83,  13,  110, 133, 40,  132, 9,   211, 223, 205, 244, 65,  129,
    77,  82,  106, 220, 55,  200, 108, 193, 171, 250, 36,  225, 123, 8,   12,  189, 177, 74,  120,
    136, 149, 139, 227, 99,  232, 109, 233, 203, 213, 254, 59,  0,   29,  57,  242, 239, 183, 14,
    102, 88,  208, 228, 166, 119, 114, 248, 235, 117, 75,  10,  49,  68,  80,  180, 143, 237, 31,
    26,  219, 153, 141, 51,  159, 17,  131, 20,
};

// RFC 1319, 3.4: one block of 16 bytes.
void mix(std::array<std::uint8_t, 3 * kBlock>& state, const Block& block) {
    for (std::size_t i = 0; i < kBlock; ++i) {
        state[kBlock + i] = block[i];
        state[2 * kBlock + i] = static_cast<std::uint8_t>(block[i] ^ state[i]);
    }
    std::uint8_t last = 0;
    for (int round = 0; round < 18; ++round) {
        for (std::uint8_t& byte : state) last = byte ^= kPi[last];
        last = static_cast<std::uint8_t>(last + round);
    }
}

}  // namespace

std::string md2(std::string_view message) {
    const auto padding = static_cast<char>(kBlock - message.size() % kBlock);
    std::string padded(message);
    padded.append(static_cast<std::size_t>(padding), padding);
    std::array<std::uint8_t, 3 * kBlock> state{};
    Block sums{}, block;
    std::uint8_t last = 0;
    for (std::size_t at = 0; at < padded.size(); at += kBlock) {
        std::memcpy(block.data(), padded.data() + at, kBlock);
        mix(state, block);
        for (std::size_t i = 0; i < kBlock; ++i) last = sums[i] ^= kPi[block[i] ^ last];
    }
    mix(state, sums);
    return {reinterpret_cast<const char*>(state.data()), kBlock};
}

std::string hmac_md2(std::string_view key, std::string_view message) {
    std::string inner(key), outer(key);
    for (char& byte : inner) byte = static_cast<char>(byte ^ 0x36);
    for (char& byte : outer) byte = static_cast<char>(byte ^ 0x5c);
    return md2(outer + md2(inner.append(message)));
}

}  // namespace simulator
