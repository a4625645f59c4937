// The code table: what the image's fat binaries hold for the card, as the ledger read it.
#include <limits.h>
#include <stdlib.h>

#include <cstdio>
#include <fstream>
#include <sstream>

#include "internal.h"

namespace simulator {

namespace {

using Table = std::map<std::pair<std::string, std::uint64_t>, Code>;

void read_attribute(const std::string& word, Attributes& attributes) {
    const std::size_t equals = word.find('=');
    if (equals == std::string::npos) return;
    const std::string name = word.substr(0, equals);
    const std::uint64_t value = std::strtoull(word.c_str() + equals + 1, nullptr, 0);
    if (name == "registers") attributes.registers = static_cast<int>(value);
    if (name == "shared") attributes.shared = value;
    if (name == "local") attributes.local = value;
    if (name == "threads") attributes.threads = static_cast<int>(value);
    if (name == "cluster") attributes.cluster = static_cast<int>(value);
}

std::string resolved(const std::string& path) {
    char buffer[PATH_MAX];
    return realpath(path.c_str(), buffer) == nullptr ? path : buffer;
}

// A space in a path is written %20.
std::string unescaped(std::string path) {
    for (std::size_t at = 0; (at = path.find("%20", at)) != std::string::npos; ++at) {
        path.replace(at, 3, " ");
    }
    return path;
}

bool read_fatbin(std::istringstream words, Code& code) {
    std::string path, address;
    if (!(words >> path >> address >> code.code)) return false;
    code.file = resolved(unescaped(path));
    code.address = std::strtoull(address.c_str(), nullptr, 0);
    return true;
}

Table read_table() {
    Table table;
    const char* directory = std::getenv("BUILDER_SIMULATOR");
    if (directory == nullptr) return table;
    std::ifstream file(std::string(directory) + "/code");
    Code* current = nullptr;
    for (std::string line; std::getline(file, line);) {
        line.resize(std::min(line.find('#'), line.size()));
        if (line.starts_with("fatbin ")) {
            Code code;
            if (!read_fatbin(std::istringstream(line.substr(7)), code)) continue;
            current = &(table[{code.file, code.address}] = code);
        } else if (line.starts_with("kernel ") && current != nullptr) {
            std::istringstream words(line.substr(7));
            std::string name;
            words >> name;
            Attributes& attributes = current->kernels[name];
            for (std::string word; words >> word;) read_attribute(word, attributes);
        }
    }
    return table;
}

}  // namespace

const Code* find_code(const std::string& file, std::uint64_t address) {
    static const auto* const table = new Table(read_table());
    const auto found = table->find({file, address});
    return found == table->end() ? nullptr : &found->second;
}

}  // namespace simulator
