// The order of works: clocks of streams, events, graphs and the host.
//
// The host is one timeline, whatever its threads: how these tell each other what they know is not
// seen, and what one of them waited for is taken as known to all.
#include "works.h"

#include <optional>
#include <utility>

#include "compute.h"
#include "modules.h"
#include "objects.h"
#include "ptx/order.h"

namespace simulator {

struct StreamOrder {
    ptx::u32 timeline = 0;
    ptx::Clock clock;
    std::shared_ptr<ptx::Overlap> last;   // the launch that was the stream's last work; else null
    std::vector<ptx::u32> branches;  // timelines of graphs' branches: a graph waits for the one before
};

struct EventOrder {
    ptx::Clock clock;
};

namespace {

using ptx::Clock;
using ptx::u32;

struct State {
    ptx::Works works;
    Clock host;
    std::map<int, Clock> cards;  // all works of a card
    std::vector<u32> ticks;      // by timeline
    std::vector<const Kernel*> kernels = {nullptr};  // by work; null: no launch
    std::vector<std::pair<std::uintptr_t, std::uint64_t>> forgotten;  // before the next work
};

State& state() {
    static auto* const all = new State;
    return *all;
}

thread_local std::shared_ptr<ptx::Overlap> current;
thread_local int current_works_card = 0;

u32 new_timeline() {
    state().ticks.push_back(0);
    return static_cast<u32>(state().ticks.size() - 1);
}

StreamOrder& order_of(cudaStream_t stream) {
    if (stream->order == nullptr) {
        stream->order = std::make_shared<StreamOrder>();
        stream->order->timeline = new_timeline();
    }
    return *stream->order;
}

bool blocks(const CUstream_st& stream) {
    return !stream.legacy && (stream.flags & cudaStreamNonBlocking) == 0;
}

// What must be complete before the next work of the stream begins.
//
// CUDA Runtime API, "Stream synchronization behavior": the legacy default stream waits for all
// blocking streams of the card, and these for it.
Clock start_of(cudaStream_t stream) {
    Clock clock = order_of(stream).clock;
    clock.join(state().host);
    if (stream->legacy) {
        each_stream(stream->card, [&](cudaStream_t other) {
            if (blocks(*other) && other->order != nullptr) clock.join(other->order->clock);
        });
    } else if (blocks(*stream)) {
        const cudaStream_t legacy = legacy_stream(stream->card);
        if (legacy->order != nullptr) clock.join(legacy->order->clock);
    }
    return clock;
}

const Launch* launch_of(const Work& work) {
    const auto* const kernel = std::get_if<KernelWork>(&work);
    return kernel == nullptr ? nullptr : &kernel->launch;
}

struct Name {
    std::string operator()(const KernelWork& work) const {
        return std::string("the kernel ") + kernel_name(work.launch.kernel);
    }
    std::string operator()(const CopyWork&) const { return "a copy"; }
    std::string operator()(const FillWork&) const { return "a fill"; }
    std::string operator()(const HostWork&) const { return "a function of the host"; }
    std::string operator()(const ChildWork&) const { return "a graph in a graph"; }
    std::string operator()(const EmptyWork&) const { return "a product of cuBLAS"; }
    std::string operator()(const EventWork&) const { return "an event"; }
    std::string operator()(const MemoryWork& work) const {
        return work.release ? "a release in stream order" : "an allocation in stream order";
    }
};

std::string stream_name(const CUstream_st& stream) {
    if (stream.legacy) return "the default stream";
    return "stream " + std::to_string(stream.id);
}

// Under the turn and the lock: begins a work, and ends what is known of freed memory.
std::shared_ptr<ptx::Overlap> begin(const std::string& name, u32 timeline, const Clock& before,
                                    const Launch* launch, int card) {
    for (const auto& [address, size] : std::exchange(state().forgotten, {})) {
        state().works.forget(address, size);
    }
    current_works_card = card;
    state().kernels.push_back(launch == nullptr ? nullptr : launch->kernel);
    return state().works.begin(name, timeline, ++state().ticks[timeline], before);
}

// The work is done: the stream's, or a branch's, next one knows it.
Clock clock_after(const ptx::Overlap& work, u32 timeline, int card) {
    Clock clock = work.before;
    clock.set(timeline, state().ticks[timeline]);
    state().cards[card].join(clock);
    return clock;
}

void begin_in(cudaStream_t stream, const std::string& what, const Launch* launch) {
    StreamOrder& order = order_of(stream);
    const Clock before = start_of(stream);
    current = begin(what + " in " + stream_name(*stream), order.timeline, before, launch,
                    stream->card);
    if (launch != nullptr && launch->dependent && order.last != nullptr) {
        current->follow(*order.last, state().host);
    }
    order.clock = clock_after(*current, order.timeline, stream->card);
    order.last = launch == nullptr ? nullptr : current;
}

// As begin_in, for the nodes of a graph.
class GraphOrder {
public:
    GraphOrder(cudaStream_t stream, const std::vector<Node>& nodes)
        : stream_(stream), nodes_(nodes), made_(nodes.size()), clocks_(nodes.size()), timelines_(nodes.size()) {
        start_ = start_of(stream);
        tails_[order_of(stream).timeline] = kStart;
    }
    void begin(std::size_t at) {
        const Node& node = nodes_[at];
        Clock before = start_;
        for (const std::size_t each : node.dependencies) before.join(clocks_[each]);
        if (const auto* const event = std::get_if<EventWork>(&node.work)) {
            if (event->wait && event->event->order != nullptr) before.join(event->event->order->clock);
        }
        const u32 timeline = timeline_for(at);
        const Launch* const launch = launch_of(node.work);
        current = simulator::begin(std::visit(Name{}, node.work) + " of a graph in " + stream_name(*stream_),
                                   timeline, before, launch, stream_->card);
        if (launch != nullptr && launch->dependent && node.dependencies.size() == 1) {
            const std::size_t last = node.dependencies[0];
            if (launch_of(nodes_[last].work) != nullptr) current->follow(*made_[last], state().host);
        }
        made_[at] = current;
        clocks_[at] = clock_after(*current, timeline, stream_->card);
        if (const auto* const event = std::get_if<EventWork>(&node.work)) {
            if (!event->wait) note(event->event, clocks_[at]);
        }
    }
    // A node that is switched off: those behind it still come after those before it.
    void skip(std::size_t at) {
        clocks_[at] = start_;
        for (const std::size_t each : nodes_[at].dependencies) clocks_[at].join(clocks_[each]);
        timelines_[at] = ~u32{0};
    }
    void end() {
        StreamOrder& order = order_of(stream_);
        order.clock = start_;
        for (const Clock& clock : clocks_) order.clock.join(clock);
        order.last = nullptr;
    }

private:
    static constexpr std::size_t kStart = ~std::size_t{0};

    static void note(cudaEvent_t event, const Clock& clock) {
        event->order = std::make_shared<EventOrder>(clock);
    }

    // The one of a work before it which nothing else follows yet; else a branch's.
    u32 timeline_for(std::size_t at) {
        const auto take = [&](u32 timeline) {
            tails_[timeline] = at;
            return timelines_[at] = timeline;
        };
        for (const std::size_t each : nodes_[at].dependencies) {
            if (timelines_[each] != ~u32{0} && tails_[timelines_[each]] == each) return take(timelines_[each]);
        }
        StreamOrder& order = order_of(stream_);
        if (tails_[order.timeline] == kStart) return take(order.timeline);
        if (used_ == order.branches.size()) order.branches.push_back(new_timeline());
        return take(order.branches[used_++]);
    }

    cudaStream_t stream_;
    const std::vector<Node>& nodes_;
    Clock start_;
    std::vector<std::shared_ptr<ptx::Overlap>> made_;
    std::vector<Clock> clocks_;
    std::vector<u32> timelines_;
    std::map<u32, std::size_t> tails_;  // timeline: the node that was its last
    std::size_t used_ = 0;
};

}  // namespace

bool watches() { return computes() && config().races; }

ptx::Overlap* doing() { return current.get(); }

Doing::Doing(cudaStream_t handle, const Work& work) : before_(current) {
    if (!watches()) return;
    const Turn turn(turn_mutex());
    const Lock lock(mutex());
    const cudaStream_t stream = find_stream(handle);
    if (stream == nullptr) return;
    begin_in(stream, std::visit(Name{}, work), launch_of(work));
    // Such a function tells the host's threads that the stream has come so far.
    if (std::holds_alternative<HostWork>(work)) host_waited_for_this();
}

Doing::Doing(const char* name, int card) : before_(current) {
    if (!watches()) return;
    const Turn turn(turn_mutex());
    const Lock lock(mutex());
    begin_in(legacy_stream(card), name, nullptr);
}

Doing::~Doing() { current = std::move(before_); }

cudaError_t perform_graph(cudaStream_t handle, const std::vector<Node>& nodes) {
    std::optional<GraphOrder> order;
    cudaStream_t stream = nullptr;
    const std::shared_ptr<ptx::Overlap> before = current;
    cudaError_t error = cudaSuccess;
    for (std::size_t at = 0; at < nodes.size() && error == cudaSuccess; ++at) {
        if (watches()) {
            const Turn turn(turn_mutex());
            const Lock lock(mutex());
            if (!order) {
                stream = find_stream(handle);
                if (stream == nullptr) return cudaErrorInvalidResourceHandle;
                order.emplace(stream, nodes);
            }
            if (nodes[at].enabled) order->begin(at);
            else order->skip(at);
            if (std::holds_alternative<HostWork>(nodes[at].work)) host_waited_for_this();
        }
        if (nodes[at].enabled) error = perform(nodes[at].work);
    }
    current = before;
    if (order) {
        const Lock lock(mutex());
        if (error == cudaSuccess) order->end();
    }
    return error;
}

cudaError_t uses(const void* address, std::uint64_t size, bool writes, const char* verb) {
    if (!watches() || current == nullptr || size == 0) return cudaSuccess;
    const Turn turn(turn_mutex());
    const Lock lock(mutex());
    Range range;  // else memory of the program's own: copied before the call returns
    if (!find_range(address, &range)) return cudaSuccess;
    const ptx::Conflict found =
        state().works.touch(*current, reinterpret_cast<std::uintptr_t>(address), size,
                            writes ? ptx::Touch::write : ptx::Touch::read);
    if (found.other == 0) return cudaSuccess;
    const std::string what = verb != nullptr ? verb : writes ? "writes" : "reads";
    const Kernel* const kernel = state().kernels[found.other];
    violate(kernel == nullptr ? "" : kernel_name(kernel), cudaErrorLaunchFailure,
            "race: " + state().works.name(current->number) + " " +
                ptx::sentence(*current, found, what, true));
    break_card(current_works_card, cudaErrorLaunchFailure);
    return cudaErrorLaunchFailure;
}

cudaError_t host_frees(std::uintptr_t address, std::uint64_t size) {
    if (!watches()) return cudaSuccess;
    static const u32 timeline = new_timeline();
    current = begin("the host", timeline, state().host, nullptr, current_card());
    const cudaError_t error = uses(reinterpret_cast<void*>(address), size, true, "frees");
    current = nullptr;
    return error;
}

void forget_uses(std::uintptr_t address, std::uint64_t size) {
    if (watches()) state().forgotten.emplace_back(address, size);
}

void event_recorded(cudaEvent_t event, cudaStream_t stream) {
    if (!watches()) return;
    event->order = std::make_shared<EventOrder>(start_of(stream));
    order_of(stream).last = nullptr;
}

void event_awaited(cudaStream_t stream, cudaEvent_t event) {
    if (!watches()) return;
    StreamOrder& order = order_of(stream);
    if (event->order != nullptr) order.clock.join(event->order->clock);
    order.last = nullptr;
}

void host_waited(cudaStream_t stream) {
    if (watches()) state().host.join(start_of(stream));
}

void host_waited(cudaEvent_t event) {
    if (watches() && event->order != nullptr) state().host.join(event->order->clock);
}

void host_waited_for_card(int card) {
    if (watches()) state().host.join(state().cards[card]);
}

void host_waited_for_this() {
    if (!watches() || current == nullptr) return;
    state().host.join(current->before);
    const auto [timeline, tick] = state().works.place(current->number);
    Clock own;
    own.set(timeline, tick);
    state().host.join(own);
}

}  // namespace simulator
