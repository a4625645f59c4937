// The report: what this process did with the cards, as JSON, sent to the socket of the container.
//
// Sent when something fails, by a timer while something changes, and at the end, so that the
// report of a process that is killed or aborts is complete up to a quarter of a second.
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
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

// When this process first used the simulator, and when it ended; 0: not yet.
std::atomic<std::uint64_t> began = 0, ended = 0;

// Nanoseconds on the clock that all processes of a machine share (clock_gettime(2)).
std::uint64_t now() {
    timespec time{};
    clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000u +
           static_cast<std::uint64_t>(time.tv_nsec);
}

constexpr timeval kPatience{10, 0};  // for a receiver that does not receive

std::string place() {
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
    std::map<std::pair<const Kernel*, int>, int> numbers;
    json.key("launches").open('[');
    for (const auto& [key, launch] : facts().launches) {
        numbers.emplace(key, static_cast<int>(numbers.size()));
        json.open('{').pair("kernel", std::string_view(launch.kernel))
            .pair("file", std::string_view(launch.file)).pair("code", std::string_view(launch.code))
            .pair("card", launch.card).pair("count", launch.count).pair("grid", launch.grid)
            .pair("block", launch.block).pair("shared", launch.shared)
            .pair("computed", launch.computed).pair("instructions", launch.instructions)
            .pair("nanoseconds", launch.nanoseconds).close('}');
    }
    json.close(']').key("outputs").open('[');
    for (const Output& output : facts().outputs) {
        json.open('{').pair("launch", numbers.at(output.launch)).pair("checksum", output.checksum)
            .close('}');
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
        .pair("mode", std::string_view(computes() ? "compute" : "count"))
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

// A stream to whoever receives reports; -1: nobody does.
int connected() {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string path = place();
    if (path.size() >= sizeof address.sun_path) return -1;
    path.copy(address.sun_path, path.size());
    const int stream = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (stream < 0) return -1;
    setsockopt(stream, SOL_SOCKET, SO_SNDTIMEO, &kPatience, sizeof kPatience);
    int status;
    do {
        status = connect(stream, reinterpret_cast<const sockaddr*>(&address), sizeof address);
    } while (status != 0 && errno == EINTR);
    if (status == 0) return stream;
    close(stream);
    return -1;
}

// Where nobody receives it, there is no report: nothing else can be done.
void send(const std::string& report) {
    const int stream = connected();
    if (stream < 0) return;
    const std::string text =
        std::to_string(getpid()) + " " + std::to_string(report.size()) + "\n" + report;
    std::size_t done = 0;
    while (done < text.size()) {
        const ssize_t sent = ::send(stream, text.data() + done, text.size() - done, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent <= 0) break;
        done += static_cast<std::size_t>(sent);
    }
    close(stream);
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
    new (&turn_mutex()) std::recursive_mutex;
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
    static auto* const writing = new std::mutex;  // one report at a time
    const Lock lock(mutex());
    const std::lock_guard<std::mutex> one(*writing);
    dirty = false;
    send(report());
}

}  // namespace simulator
