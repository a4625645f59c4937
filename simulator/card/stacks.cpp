// Stacks: the program's frames, numbered, named by file and offset.
#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdlib.h>
#include <unistd.h>
#include <unwind.h>

#include <algorithm>
#include <cstdio>

#include "internal.h"

namespace simulator {

namespace {

constexpr std::size_t kDepth = 64;  // frames in the report

struct Walk {
    std::vector<std::uintptr_t> frames;
};

_Unwind_Reason_Code visit(_Unwind_Context* context, void* argument) {
    auto& frames = static_cast<Walk*>(argument)->frames;
    // The return address is behind the call: one less is within it. The outermost frame has none.
    const std::uintptr_t address = _Unwind_GetIP(context);
    if (address != 0) frames.push_back(address - 1);
    return frames.size() < kDepth + 16 ? _URC_NO_REASON : _URC_END_OF_STACK;
}

std::string resolved(const char* path) {
    char buffer[PATH_MAX];
    return realpath(path, buffer) == nullptr ? path : buffer;
}

// The simulated libraries are the files in the directory of this one.
const std::string& own_directory() {
    static const auto* const directory = [] {
        Dl_info info{};
        dladdr(reinterpret_cast<const void*>(&own_directory), &info);
        const std::string path = resolved(info.dli_fname);
        return new std::string(path.substr(0, path.rfind('/') + 1));
    }();
    return *directory;
}

std::string shown(const Place& place, std::uintptr_t address) {
    char offset[32];
    std::snprintf(offset, sizeof offset, "+0x%llx",
                  static_cast<unsigned long long>(place.file.empty() ? address : place.offset));
    std::string text = (place.file.empty() ? "?" : place.file) + offset;
    if (!place.symbol.empty()) text += " " + place.symbol;
    return text;
}

struct Known {
    std::map<std::vector<std::uintptr_t>, int> numbers;  // of the frames as they were walked
    std::map<std::vector<std::string>, int> texts;
    std::vector<std::vector<std::string>> stacks;
    std::unordered_map<std::uintptr_t, std::string> frames;  // empty: a simulated library's
};

Known& known() {
    static auto* const all = new Known;
    return *all;
}

const std::string& frame(std::uintptr_t address) {
    const auto [found, added] = known().frames.try_emplace(address);
    if (added) {
        const Place place = place_of(reinterpret_cast<const void*>(address));
        if (!place.file.starts_with(own_directory())) found->second = shown(place, address);
    }
    return found->second;
}

}  // namespace

Place place_of(const void* address) {
    Dl_info info{};
    link_map* map = nullptr;
    if (dladdr1(address, &info, reinterpret_cast<void**>(&map), RTLD_DL_LINKMAP) == 0) return {};
    Place place;
    place.offset = reinterpret_cast<std::uintptr_t>(address) - (map == nullptr ? 0 : map->l_addr);
    const bool program = map == nullptr || map->l_name == nullptr || *map->l_name == '\0';
    place.file = resolved(program ? "/proc/self/exe" : map->l_name);
    if (info.dli_sname != nullptr) place.symbol = info.dli_sname;
    return place;
}

const std::vector<std::vector<std::string>>& stacks() { return known().stacks; }

int stack() {
    Walk walk;
    walk.frames.reserve(kDepth + 16);
    _Unwind_Backtrace(visit, &walk);
    const Lock lock(mutex());
    const auto seen = known().numbers.find(walk.frames);
    if (seen != known().numbers.end()) return seen->second;
    std::vector<std::string> frames;
    for (const std::uintptr_t address : walk.frames) {
        const std::string& text = frame(address);
        if (!text.empty() && frames.size() < kDepth) frames.push_back(text);
    }
    const int next = static_cast<int>(known().stacks.size());
    const auto [same, added] = known().texts.try_emplace(frames, next);
    if (added) known().stacks.push_back(std::move(frames));
    known().numbers.emplace(std::move(walk.frames), same->second);
    return same->second;
}

}  // namespace simulator
