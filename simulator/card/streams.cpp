// Streams and events. What a stream is given is done at once, so that all work is always complete.
#include <chrono>
#include <map>

#include "compute.h"
#include "objects.h"
#include "works.h"

namespace simulator {

namespace {

unsigned long long next_stream_id() {
    static unsigned long long last = 0;
    return ++last;
}

cudaError_t copy_3d(const cudaMemcpy3DParms& copy3) {
    if (copy3.srcArray != nullptr || copy3.dstArray != nullptr) return cudaErrorNotSupported;
    const auto start = [](const cudaPitchedPtr& pointer, const cudaPos& at, std::size_t slice) {
        return static_cast<unsigned char*>(pointer.ptr) + at.x + at.y * pointer.pitch +
               (at.z + slice) * pointer.pitch * pointer.ysize;
    };
    for (std::size_t slice = 0; slice < copy3.extent.depth; ++slice) {
        const cudaError_t error =
            copy_2d(start(copy3.dstPtr, copy3.dstPos, slice), copy3.dstPtr.pitch,
                    start(copy3.srcPtr, copy3.srcPos, slice), copy3.srcPtr.pitch,
                    copy3.extent.width, copy3.extent.height);
        if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
}

cudaError_t fill_2d(const cudaMemsetParams& set) {
    const std::size_t row = set.width * set.elementSize;
    if (set.height <= 1 || set.pitch == row) {
        return fill(set.dst, set.value, row * std::max<std::size_t>(set.height, 1),
                    set.elementSize);
    }
    for (std::size_t y = 0; y < set.height; ++y) {
        void* const to = static_cast<unsigned char*>(set.dst) + y * set.pitch;
        if (const cudaError_t error = fill(to, set.value, row, set.elementSize)) return error;
    }
    return cudaSuccess;
}

void stamp(cudaEvent_t event) {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    event->nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
    event->recorded = true;
    event->capture = 0;
    event->dependencies.clear();
}

// Memory in stream order exists from the allocation on, and until the release.
cudaError_t use_whole(const MemoryWork& work) {
    Range range;
    if (!watches() || !find_range(work.pointer, &range)) return cudaSuccess;
    return uses(reinterpret_cast<void*>(range.address), range.size, true,
                work.release ? "frees" : "makes");
}

struct Perform {
    cudaError_t operator()(const KernelWork& work) const {
        count_launch(work.launch);
        if (computes()) return compute(work.launch);
        note_kernel(kernel_name(work.launch.kernel));
        return cudaSuccess;
    }
    cudaError_t operator()(const CopyWork& work) const { return copy_3d(work.parameters); }
    cudaError_t operator()(const FillWork& work) const { return fill_2d(work.parameters); }
    cudaError_t operator()(const HostWork& work) const {
        work.function(work.data);
        return cudaSuccess;
    }
    cudaError_t operator()(const ChildWork& work) const {
        for (const Work& each : ordered_works(work.graph)) {
            if (const cudaError_t error = perform(each)) return error;
        }
        return cudaSuccess;
    }
    cudaError_t operator()(const EmptyWork& work) const {
        const Turn turn(turn_mutex());
        return work.compute ? work.compute() : cudaSuccess;
    }
    cudaError_t operator()(const EventWork& work) const {
        const Lock lock(mutex());
        if (!work.wait && live<CUevent_st>().contains(work.event)) stamp(work.event);
        return cudaSuccess;
    }
    cudaError_t operator()(const MemoryWork& work) const { return use_whole(work); }
};

// Whether all work of a stream is done. Asking ends a capture of it (CUDA Programming Guide, "Graph
// Creation via Stream Capture: Prohibited and Unhandled Operations").
cudaError_t check_done(cudaStream_t handle, const char* asked) {
    const cudaStream_t stream = find_stream(handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    if (stream->capture != nullptr) {
        stream->capture->valid = false;
        violate("", cudaErrorStreamCaptureUnsupported,
                std::string("a stream is ") + asked + " while it is captured");
        return cudaErrorStreamCaptureUnsupported;
    }
    return check_implicit(stream);
}

// The default streams of each card: each thread's own, and under no thread the one that waits for
// others.
std::map<std::pair<int, std::thread::id>, CUstream_st>& default_streams() {
    static auto* const all = new std::map<std::pair<int, std::thread::id>, CUstream_st>;
    return *all;
}

cudaStream_t default_stream(int card, std::thread::id thread) {
    const auto [found, added] = default_streams().try_emplace({card, thread});
    if (added) {
        found->second.card = card;
        found->second.legacy = thread == std::thread::id{};
        found->second.id = next_stream_id();
    }
    return &found->second;
}

// The stream no longer takes part in a capture.
void leave_capture(cudaStream_t stream) {
    Capture* const capture = stream->capture;
    if (capture == nullptr) return;
    capture->valid = false;
    if (capture->origin == stream) abandon(capture);
    stream->capture = nullptr;
    stream->dependencies.clear();
}

}  // namespace

cudaError_t perform(const Work& work) { return std::visit(Perform{}, work); }

cudaStream_t find_stream(cudaStream_t stream) {
    const Lock lock(mutex());
    const bool per_thread = stream == cudaStreamPerThread;
    if (stream != nullptr && stream != cudaStreamLegacy && !per_thread) {
        return live<CUstream_st>().contains(stream) ? stream : nullptr;
    }
    return default_stream(current_card(), per_thread ? std::this_thread::get_id() : std::thread::id{});
}

cudaStream_t legacy_stream(int card) {
    const Lock lock(mutex());
    return default_stream(card, {});
}

void each_stream(int card, const std::function<void(cudaStream_t)>& act) {
    for (auto& [key, stream] : default_streams()) {
        if (stream.card == card) act(&stream);
    }
    for (const cudaStream_t stream : live<CUstream_st>()) {
        if (stream->card == card) act(stream);
    }
}

cudaError_t submit(cudaStream_t handle, Work work, bool* captured) {
    if (const cudaError_t error = use_card(current_card())) return error;
    {
        const Lock lock(mutex());
        cudaStream_t stream = find_stream(handle);
        if (stream == nullptr) return cudaErrorInvalidResourceHandle;
        if (captured != nullptr) *captured = stream->capture != nullptr;
        if (stream->capture != nullptr) return capture_work(stream, std::move(work));
        if (const cudaError_t error = check_implicit(stream)) return error;
    }
    const Doing doing(handle, work);
    return perform(work);
}

cudaError_t copy_now(void* to, std::uint64_t to_pitch, const void* from, std::uint64_t from_pitch,
                     std::uint64_t width, std::uint64_t height) {
    const Doing doing("a copy", current_card());
    const cudaError_t error = copy_2d(to, to_pitch, from, from_pitch, width, height);
    if (error == cudaSuccess) copied_now(to, from);
    return error;
}

void copied_now(const void* to, const void* from) {
    const Lock lock(mutex());
    for (const void* const side : {to, from}) {
        Range range;
        if (find_range(side, &range) && range.kind == Kind::device) continue;
        host_waited(legacy_stream(current_card()));
        return;
    }
}

void order_cards() {
    const Lock lock(mutex());
    for (const Card& card : cards()) host_waited_for_card(card.index);
}

cudaError_t release_in_order(cudaStream_t handle, void* pointer) {
    const Turn turn(turn_mutex());
    const Lock lock(mutex());
    const cudaStream_t stream = find_stream(handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    if (stream->capture != nullptr) return capture_work(stream, MemoryWork{pointer, true});
    if (const cudaError_t error = check_implicit(stream)) return error;
    const MemoryWork work{pointer, true};
    const Doing doing(handle, work);
    if (const cudaError_t error = use_whole(work)) return error;
    return release(pointer);
}

cudaError_t launch(Launch launch, void* const* each, void* const* extra, cudaStream_t handle) {
    if (const cudaError_t error = check_launch(launch, each, extra)) return error;
    const cudaStream_t stream = find_stream(handle);
    if (stream != nullptr && stream->card != launch.card) {
        violate(kernel_name(launch.kernel), cudaErrorInvalidResourceHandle,
                "a stream of card " + std::to_string(stream->card) + ", while card " +
                    std::to_string(launch.card) + " is current",
                launch.grid, launch.block, launch.shared);
        return cudaErrorInvalidResourceHandle;
    }
    bool captured = false;
    const cudaError_t error = submit(handle, KernelWork{launch}, &captured);
    if (!computes() && !captured && error == cudaSuccess) store_results(launch, each);
    return error;
}

cudaError_t create_stream(unsigned flags, int priority, cudaStream_t* stream) {
    if ((flags & ~static_cast<unsigned>(cudaStreamNonBlocking)) != 0) return cudaErrorInvalidValue;
    if (const cudaError_t error = use_card(current_card())) return error;
    const Lock lock(mutex());
    *stream = new CUstream_st{.card = current_card(), .flags = flags,
                              .priority = std::clamp(priority, kGreatestPriority, kLeastPriority),
                              .id = next_stream_id()};
    live<CUstream_st>().insert(*stream);
    return cudaSuccess;
}

cudaError_t destroy_stream(cudaStream_t stream) {
    const Lock lock(mutex());
    if (!live<CUstream_st>().contains(stream)) return cudaErrorInvalidResourceHandle;
    leave_capture(stream);
    live<CUstream_st>().erase(stream);
    delete stream;
    return cudaSuccess;
}

void reset_streams(int card) {
    for (auto& [key, stream] : default_streams()) {
        if (stream.card == card) leave_capture(&stream);
    }
    std::erase_if(live<CUstream_st>(), [card](cudaStream_t stream) {
        if (stream->card != card) return false;
        leave_capture(stream);
        delete stream;
        return true;
    });
    std::erase_if(live<CUevent_st>(), [card](cudaEvent_t event) {
        if (event->card != card) return false;
        delete event;
        return true;
    });
}

cudaError_t synchronize_stream(cudaStream_t handle) {
    if (const cudaError_t error = use_card(current_card())) return error;
    const Lock lock(mutex());
    if (const cudaError_t error = check_done(handle, "waited for")) return error;
    host_waited(find_stream(handle));
    trim_pools();
    return cudaSuccess;
}

void synchronize_card(int card) {
    const Lock lock(mutex());
    host_waited_for_card(card);
    trim_pools();
}

cudaError_t query_stream(cudaStream_t handle) {
    if (const cudaError_t error = use_card(current_card())) return error;
    const Lock lock(mutex());
    const cudaError_t error = check_done(handle, "queried");
    if (error == cudaSuccess) host_waited(find_stream(handle));
    return error;
}

cudaError_t stream_info(cudaStream_t handle, int* card, unsigned* flags, int* priority,
                        unsigned long long* id) {
    const Lock lock(mutex());
    const cudaStream_t stream = find_stream(handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    if (card != nullptr) *card = stream->card;
    if (flags != nullptr) *flags = stream->flags;
    if (priority != nullptr) *priority = stream->priority;
    if (id != nullptr) *id = stream->id;
    return cudaSuccess;
}

cudaError_t create_event(unsigned flags, cudaEvent_t* event) {
    if (const cudaError_t error = use_card(current_card())) return error;
    const Lock lock(mutex());
    *event = new CUevent_st{.card = current_card(), .flags = flags};
    live<CUevent_st>().insert(*event);
    return cudaSuccess;
}

cudaError_t destroy_event(cudaEvent_t event) {
    const Lock lock(mutex());
    if (live<CUevent_st>().erase(event) == 0) return cudaErrorInvalidResourceHandle;
    delete event;
    return cudaSuccess;
}

cudaError_t record_event(cudaEvent_t event, cudaStream_t handle) {
    const Lock lock(mutex());
    const cudaStream_t stream = find_stream(handle);
    if (stream == nullptr || !live<CUevent_st>().contains(event) || event->card != stream->card) {
        return cudaErrorInvalidResourceHandle;
    }
    if (stream->capture == nullptr) {
        if (const cudaError_t error = check_implicit(stream)) return error;
        stamp(event);
        event_recorded(event, stream);
        return cudaSuccess;
    }
    if (!stream->capture->valid) return cudaErrorStreamCaptureInvalidated;
    event->capture = stream->capture->id;
    event->dependencies = stream->dependencies;
    return cudaSuccess;
}

cudaError_t query_event(cudaEvent_t event) {
    const Lock lock(mutex());
    if (!live<CUevent_st>().contains(event)) return cudaErrorInvalidResourceHandle;
    if (event->capture != 0) return cudaErrorCapturedEvent;
    host_waited(event);
    return cudaSuccess;
}

cudaError_t elapsed(cudaEvent_t start, cudaEvent_t end, float* milliseconds) {
    const Lock lock(mutex());
    for (const cudaEvent_t event : {start, end}) {
        if (!live<CUevent_st>().contains(event) || !event->recorded ||
            (event->flags & cudaEventDisableTiming) != 0) {
            return cudaErrorInvalidResourceHandle;
        }
    }
    for (const cudaEvent_t event : {start, end}) host_waited(event);
    *milliseconds = static_cast<float>(end->nanoseconds - start->nanoseconds) / 1e6F;
    return cudaSuccess;
}

}  // namespace simulator
