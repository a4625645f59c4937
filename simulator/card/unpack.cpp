// LZ4 blocks, zstd frames by libzstd, SHA-256.
#include "unpack.h"

#include <dlfcn.h>

#include <array>
#include <bit>
#include <cstdint>
#include <stdexcept>

namespace simulator {

namespace {

// The 64 constants of SHA-256 (FIPS 180-4, 4.2.2).
constexpr std::uint32_t kRounds[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

using State = std::array<std::uint32_t, 8>;

void add_block(State& state, const unsigned char* block) {
    std::uint32_t w[64];
    for (int i = 0; i < 16; ++i) {
        w[i] = std::uint32_t{block[4 * i]} << 24 | std::uint32_t{block[4 * i + 1]} << 16 |
               std::uint32_t{block[4 * i + 2]} << 8 | block[4 * i + 3];
    }
    for (int i = 16; i < 64; ++i) {
        const std::uint32_t before = w[i - 15], last = w[i - 2];
        w[i] = w[i - 16] + w[i - 7] +
               (std::rotr(before, 7) ^ std::rotr(before, 18) ^ (before >> 3)) +
               (std::rotr(last, 17) ^ std::rotr(last, 19) ^ (last >> 10));
    }
    auto [a, b, c, d, e, f, g, h] = state;
    for (int i = 0; i < 64; ++i) {
        const std::uint32_t one = h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) +
                                  ((e & f) ^ (~e & g)) + kRounds[i] + w[i];
        const std::uint32_t two = (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) +
                                  ((a & b) ^ (a & c) ^ (b & c));
        h = g, g = f, f = e, e = d + one, d = c, c = b, b = a, a = one + two;
    }
    const State added = {a, b, c, d, e, f, g, h};
    for (int i = 0; i < 8; ++i) state[i] += added[i];
}

}  // namespace

std::string sha256(std::string_view bytes) {
    State state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                   0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    const std::size_t whole = bytes.size() / 64 * 64;
    for (std::size_t at = 0; at < whole; at += 64) {
        add_block(state, reinterpret_cast<const unsigned char*>(bytes.data()) + at);
    }
    // The rest, a bit that is set, zeros, and the length in bits.
    std::string end(bytes.substr(whole));
    end += '\x80';
    end.resize(end.size() > 56 ? 128 : 64);
    for (int i = 0; i < 8; ++i) {
        end[end.size() - 1 - i] = static_cast<char>(std::uint64_t{bytes.size()} * 8 >> (8 * i));
    }
    for (std::size_t at = 0; at < end.size(); at += 64) {
        add_block(state, reinterpret_cast<const unsigned char*>(end.data()) + at);
    }
    std::string text;
    for (const std::uint32_t word : state) {
        for (int shift = 28; shift >= 0; shift -= 4) text += "0123456789abcdef"[word >> shift & 15];
    }
    return text;
}

std::string unpack_zstd(std::string_view packed, std::size_t size) {
    // Debian and Ubuntu have it wherever they have dpkg.
    static void* const library = dlopen("libzstd.so.1", RTLD_NOW | RTLD_LOCAL);
    using Decompress = std::size_t(void*, std::size_t, const void*, std::size_t);
    using IsError = unsigned(std::size_t);
    using ErrorName = const char*(std::size_t);
    static auto* const decompress = reinterpret_cast<Decompress*>(
        library == nullptr ? nullptr : dlsym(library, "ZSTD_decompress"));
    if (decompress == nullptr)
        throw std::runtime_error("a zstd frame needs libzstd.so.1, which is not there");
    static auto* const is_error = reinterpret_cast<IsError*>(dlsym(library, "ZSTD_isError"));
    static auto* const error_name =
        reinterpret_cast<ErrorName*>(dlsym(library, "ZSTD_getErrorName"));
    std::string out(size, '\0');
    const std::size_t found = decompress(out.data(), size, packed.data(), packed.size());
    if (is_error(found) != 0)
        throw std::runtime_error(std::string("a zstd frame is damaged: ") + error_name(found));
    if (found != size) throw std::runtime_error("a zstd frame is damaged: it has another size");
    return out;
}

std::string unpack_lz4(std::string_view packed, std::size_t size) {
    std::string out;
    out.reserve(size);
    std::size_t at = 0;
    const auto next = [&]() -> std::size_t {
        if (at >= packed.size()) throw std::runtime_error("an LZ4 block ends early");
        return static_cast<unsigned char>(packed[at++]);
    };
    const auto length = [&](std::size_t start) {
        if (start == 15) {
            for (std::size_t more = 255; more == 255;) start += more = next();
        }
        return start;
    };
    while (at < packed.size()) {
        const std::size_t token = next(), literals = length(token >> 4);
        if (literals > packed.size() - at) throw std::runtime_error("an LZ4 block ends early");
        out.append(packed, at, literals);
        at += literals;
        if (at == packed.size()) break;  // the last sequence has literals only
        const std::size_t low = next(), offset = low | next() << 8;
        if (offset == 0 || offset > out.size()) throw std::runtime_error("an LZ4 offset is wrong");
        const std::size_t count = length(token & 15) + 4;
        if (count > size || out.size() > size) throw std::runtime_error("an LZ4 block is too long");
        for (std::size_t i = 0; i < count; ++i) out += out[out.size() - offset];
    }
    if (out.size() != size) throw std::runtime_error("an LZ4 block has another size");
    return out;
}

}  // namespace simulator
