// The configuration: words in lines, in the directory that BUILDER_SIMULATOR names.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <stdexcept>

#include "compute.h"
#include "internal.h"

namespace simulator {

namespace {

using Words = std::istringstream;
using Setter = std::function<void(Card&, Words&)>;

template <typename Field>
Setter number(Field Card::* field) {
    return [field](Card& card, Words& words) { words >> card.*field; };
}

void read_capability(Card& card, Words& words) {
    char dot = 0;
    words >> card.major >> dot >> card.minor;
    if (dot != '.') words.setstate(std::ios::failbit);
}

void read_name(Card& card, Words& words) { std::getline(words >> std::ws, card.name); }

const std::map<std::string, Setter>& setters() {
    static const std::map<std::string, Setter> all = {
        {"name", read_name},
        {"capability", read_capability},
        {"multiprocessors", number(&Card::multiprocessors)},
        {"memory", number(&Card::memory)},
        {"context", number(&Card::context)},
        {"shared_per_block", number(&Card::shared_per_block)},
        {"shared_per_block_optin", number(&Card::shared_per_block_optin)},
        {"shared_per_multiprocessor", number(&Card::shared_per_multiprocessor)},
        {"registers_per_block", number(&Card::registers_per_block)},
        {"registers_per_multiprocessor", number(&Card::registers_per_multiprocessor)},
        {"threads_per_block", number(&Card::threads_per_block)},
        {"threads_per_multiprocessor", number(&Card::threads_per_multiprocessor)},
        {"l2", number(&Card::l2)},
        {"bus_width", number(&Card::bus_width)},
        {"memory_clock_khz", number(&Card::memory_clock_khz)},
        {"clock_khz", number(&Card::clock_khz)},
        {"peer", number(&Card::peer)},
    };
    return all;
}

void read_line(const std::string& word, Words& words, Config& config) {
    if (word == "vocabulary") {
        words >> config.vocabulary;
    } else if (word == "launches_write") {
        words >> config.launches_write;
    } else if (word == "mode") {
        std::string mode;
        words >> mode;
        config.compute = mode == "compute";
        const bool known = mode == "count" || (config.compute && kComputes);
        if (!known) words.setstate(std::ios::failbit);
    } else if (word == "ptx") {
        std::getline(words >> std::ws, config.ptx);
    } else if (word == "races") {
        words >> config.races;
    } else if (word == "outputs") {
        words >> config.outputs;
    } else if (word == "tokens") {
        for (std::uint32_t token = 0; words >> token;) config.tokens.push_back(token);
        if (words.eof()) words.clear();
    } else if (word == "card") {
        Card& card = config.cards.emplace_back();
        words >> card.index;
        if (card.index != static_cast<int>(config.cards.size()) - 1) words.setstate(std::ios::failbit);
    } else if (config.cards.empty() || !setters().contains(word)) {
        throw std::runtime_error("unknown word: " + word);
    } else {
        setters().at(word)(config.cards.back(), words);
    }
}

Config read_cards(const std::string& path) {
    Config config;
    std::ifstream file(path);
    if (!file) throw std::runtime_error("cannot be read");
    int number = 0;
    for (std::string line; std::getline(file, line);) {
        ++number;
        Words words(line.substr(0, line.find('#')));
        std::string word;
        if (!(words >> word)) continue;
        read_line(word, words, config);
        if (words.fail()) throw std::runtime_error("line " + std::to_string(number) + ": " + line);
    }
    if (config.cards.empty()) throw std::runtime_error("no card");
    return config;
}

Config read() {
    const char* directory = std::getenv("BUILDER_SIMULATOR");
    if (directory == nullptr) {
        std::fputs("simulated CUDA: BUILDER_SIMULATOR names no configuration: no cards\n", stderr);
        return {};
    }
    const std::string path = std::string(directory) + "/cards";
    try {
        return read_cards(path);
    } catch (const std::runtime_error& error) {
        std::fprintf(stderr, "simulated CUDA: %s: %s: no cards\n", path.c_str(), error.what());
        return {};
    }
}

}  // namespace

const Config& config() {
    static const Config* const read_once = new Config(read());  // outlives every destructor
    return *read_once;
}

}  // namespace simulator
