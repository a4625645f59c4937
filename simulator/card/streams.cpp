// Streams and events. What a stream is given is done at once, so that all work is always complete.
#include <chrono>
#include <map>

#include "compute.h"
#include "objects.h"

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
    cudaError_t operator()(const MemoryWork&) const { return cudaSuccess; }
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

// The default streams of each card: the one that waits for others, and each thread's own.
std::map<std::pair<int, bool>, CUstream_st>& default_streams() {
    static auto* const all = new std::map<std::pair<int, bool>, CUstream_st>;
    return *all;
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
    const auto [found, added] = default_streams().try_emplace({current_card(), per_thread});
    if (added) {
        found->second.card = current_card();
        found->second.legacy = !per_thread;
        found->second.id = next_stream_id();
    }
    return &found->second;
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
    return perform(work);
}

cudaError_t release_in_order(cudaStream_t handle, void* pointer) {
    const Turn turn(turn_mutex());
    const Lock lock(mutex());
    const cudaStream_t stream = find_stream(handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    if (stream->capture != nullptr) return capture_work(stream, MemoryWork{pointer, true});
    if (const cudaError_t error = check_implicit(stream)) return error;
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
    *stream = new CUstream_st{.card = current_card(), .flags = flags, .priority = priority,
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
    trim_pools();
    return cudaSuccess;
}

cudaError_t query_stream(cudaStream_t handle) {
    if (const cudaError_t error = use_card(current_card())) return error;
    const Lock lock(mutex());
    return check_done(handle, "queried");
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
    return event->capture == 0 ? cudaSuccess : cudaErrorCapturedEvent;
}

cudaError_t elapsed(cudaEvent_t start, cudaEvent_t end, float* milliseconds) {
    const Lock lock(mutex());
    for (const cudaEvent_t event : {start, end}) {
        if (!live<CUevent_st>().contains(event) || !event->recorded ||
            (event->flags & cudaEventDisableTiming) != 0) {
            return cudaErrorInvalidResourceHandle;
        }
    }
    *milliseconds = static_cast<float>(end->nanoseconds - start->nanoseconds) / 1e6F;
    return cudaSuccess;
}

}  // namespace simulator
