// What test_unpack.py runs: `unpack zstd|lz4|sha256 SIZE < packed`.
#include "unpack.h"

#include <iostream>
#include <iterator>
#include <stdexcept>

int main(int, char** words) {
    const std::string packed(std::istreambuf_iterator<char>(std::cin), {}), kind = words[1];
    try {
        std::cout << (kind == "sha256" ? simulator::sha256(packed)
                      : kind == "zstd" ? simulator::unpack_zstd(packed, std::stoull(words[2]))
                                       : simulator::unpack_lz4(packed, std::stoull(words[2])));
    } catch (const std::runtime_error& error) {
        std::cerr << error.what() << "\n";
        return 1;
    }
    return 0;
}
