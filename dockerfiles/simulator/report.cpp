// The report: what this process did with the cards, as JSON, in <report directory>/<pid>.json.
//
// Written when something fails, by a timer while something changes, and at the end, so that the
// report of a process that is killed or aborts is complete up to a quarter of a second.
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <new>
#include <set>
#include <thread>

#include "internal.h"
#include "json.h"

namespace simulator {

namespace {

std::atomic<bool> dirty = false;
std::atomic<bool> ticking = false;

// Of this process: when it first used the simulator, and when it ended; 0: not yet.
std::atomic<std::uint64_t> began = 0, ended = 0;

// Nanoseconds on the clock that all processes of a machine share (clock_gettime(2)).
std::uint64_t now() {
    timespec time{};
    clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000u +
           static_cast<std::uint64_t>(time.tv_nsec);
}

std::string directory() {
    const char* other = std::getenv("BUILDER_SIMULATOR_REPORT");
    return other == nullptr ? "/simulator/report" : other;
}

void add_command(Json& json) {
    json.key("command").open('[');
    std::ifstream file("/proc/self/cmdline", std::ios::binary);
    for (std::string word; std::getline(file, word, '\0');) json.value(std::string_view(word));
    json.close(']');
}

int add_library(dl_phdr_info* info, std::size_t, void* found) {
    const std::string path = info->dlpi_name;
    const std::string file = path.substr(path.rfind('/') + 1);
    if (file.starts_with("libcu")) static_cast<std::set<std::string>*>(found)->insert(path);
    return 0;
}

void add_libraries(Json& json) {
    std::set<std::string> found;
    dl_iterate_phdr(add_library, &found);
    json.key("libraries").open('[');
    for (const std::string& path : found) json.value(std::string_view(path));
    json.close(']');
}

void add_cards(Json& json) {
    json.key("cards").open('[');
    for (const Card& card : cards()) {
        const CardUse& use = facts().cards[card.index];
        json.open('{').pair("name", std::string_view(card.name)).pair("memory", card.memory)
            .pair("context", card.context).pair("used", use.used).pair("peak", use.peak).close('}');
    }
    json.close(']').key("stacks").open('[');
    for (const std::vector<std::string>& frames : stacks()) {
        json.open('[');
        for (const std::string& frame : frames) json.value(std::string_view(frame));
        json.close(']');
    }
    json.close(']');
}

void add_memory(Json& json) {
    json.key("allocations").open('[');
    for (const auto& [key, count] : facts().allocations) {
        const auto& [stack, card, function] = key;
        json.open('{').pair("stack", stack).pair("card", card)
            .pair("function", std::string_view(function)).pair("count", count.count)
            .pair("live", count.live).pair("at_peak", count.at_peak).pair("largest", count.largest)
            .close('}');
    }
    json.close(']').key("failed").open('[');
    for (const Failure& failure : facts().failed) {
        json.open('{').pair("stack", failure.stack).pair("card", failure.card)
            .pair("function", std::string_view(failure.function))
            .pair("requested", failure.requested).pair("free", failure.free).close('}');
    }
    json.close(']');
}

void add_launches(Json& json) {
    json.key("launches").open('[');
    for (const auto& [key, launch] : facts().launches) {
        json.open('{').pair("kernel", std::string_view(launch.kernel))
            .pair("file", std::string_view(launch.file)).pair("code", std::string_view(launch.code))
            .pair("card", launch.card).pair("count", launch.count).pair("grid", launch.grid)
            .pair("block", launch.block).pair("shared", launch.shared).close('}');
    }
    json.close(']').key("violations").open('[');
    for (const Violation& violation : facts().violations) {
        json.open('{').pair("kernel", std::string_view(violation.kernel))
            .pair("error", std::string_view(violation.error))
            .pair("why", std::string_view(violation.why)).pair("grid", violation.grid)
            .pair("block", violation.block).pair("shared", violation.shared)
            .pair("stack", violation.stack).pair("count", violation.count).close('}');
    }
    json.close(']').key("unknown_code").open('[');
    for (const auto& [file, kernels] : unknown_code()) {
        json.open('{').pair("file", std::string_view(file)).key("kernels").open('[');
        for (const std::string& kernel : kernels) json.value(std::string_view(kernel));
        json.close(']').close('}');
    }
    json.close(']');
}

void add_calls(Json& json) {
    json.key("unsupported").open('[');
    for (const auto& [function, count] : facts().unsupported) {
        json.open('{').pair("function", std::string_view(function)).pair("count", count)
            .pair("stack", facts().unsupported_stacks[function]).close('}');
    }
    json.close(']').key("called").open('{');
    std::map<std::string_view, std::uint64_t> all;
    const std::vector<Entry*> known = entries();
    for (const Entry* entry : known) all[entry->name] += entry->count;
    for (const auto& [function, count] : facts().unsupported) all[function] += count;
    for (const auto& [function, count] : all) {
        if (count != 0) json.pair(function, count);
    }
    json.close('}').key("implemented").open('[');
    std::set<std::string_view> names;
    for (const Entry* entry : known) names.insert(entry->name);
    for (const std::string_view name : names) json.value(name);
    json.close(']');
}

void add_copies(Json& json) {
    json.key("copies").open('{');
    const auto add = [&](std::string_view name, const CopyCount& copies) {
        json.key(name).open('{').pair("count", copies.count).pair("bytes", copies.bytes)
            .pair("kept", copies.kept).close('}');
    };
    add("to_device", facts().to_device);
    add("to_host", facts().to_host);
    add("device", facts().on_device);
    json.close('}');
}

std::string report() {
    const Lock lock(mutex());
    Json json;
    json.open('{').pair("version", 1).pair("pid", static_cast<int>(getpid()))
        .pair("began", began.load()).pair("ended", ended.load());
    add_command(json);
    add_libraries(json);
    add_cards(json);
    add_memory(json);
    add_launches(json);
    add_calls(json);
    add_copies(json);
    return json.close('}').text + "\n";
}

// Where the directory is missing or cannot be written, there is no report: nothing else can be done.
void write(const std::string& text) {
    const std::string path = directory() + "/" + std::to_string(getpid()) + ".json";
    const std::string temporary = path + ".part";
    const int file = open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (file < 0) return;
    std::size_t done = 0;
    while (done < text.size()) {
        const ssize_t written = ::write(file, text.data() + done, text.size() - done);
        if (written <= 0) break;
        done += static_cast<std::size_t>(written);
    }
    close(file);
    if (done == text.size()) rename(temporary.c_str(), path.c_str());
}

void tick() {
    for (;;) {
        std::this_thread::sleep_for(std::chrono::milliseconds(250));
        if (dirty.load(std::memory_order_relaxed)) write_report();
    }
}

// fork() is called with the locks held, so that the child's state is whole. The child has no timer.
void before_fork() {
    mutex().lock();
    registry_mutex().lock();
}
void in_parent() {
    registry_mutex().unlock();
    mutex().unlock();
}
void in_child() {
    new (&registry_mutex()) std::mutex;
    new (&mutex()) std::recursive_mutex;
    ticking = false;
    dirty = false;
    began = 0;
}

[[gnu::constructor]] void at_load() { pthread_atfork(before_fork, in_parent, in_child); }

[[gnu::destructor]] void at_exit() {
    if (began == 0) return;  // it called nothing
    ended = now();
    write_report();
}

}  // namespace

void changed() {
    if (!dirty.load(std::memory_order_relaxed)) dirty.store(true, std::memory_order_relaxed);
    if (ticking.load(std::memory_order_relaxed) || ticking.exchange(true)) return;
    began = now();
    sigset_t every, before;  // the program's signals are for its own threads
    sigfillset(&every);
    pthread_sigmask(SIG_SETMASK, &every, &before);
    std::thread(tick).detach();
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void write_report() {
    static auto* const writing = new std::mutex;  // one file at a time
    const Lock lock(mutex());
    const std::lock_guard<std::mutex> one(*writing);
    dirty = false;
    write(report());
}

}  // namespace simulator
