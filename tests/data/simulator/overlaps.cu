// What test_overlaps.py runs on a simulated card that looks for races: `overlaps NAME` runs one case.
//
// Each case is a way in which works of streams may run at once. Those whose name begins with "no_"
// are correct. Every line that is printed is `name value`.
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <vector>

constexpr int kCount = 1024, kBlock = 256;
constexpr size_t kBytes = kCount * sizeof(float);

__device__ void wait_for_grids() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ void trigger() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
__device__ int place() { return blockIdx.x * blockDim.x + threadIdx.x; }

// Kernels that wait for the grids before them.
__global__ void twice(const float* in, float* out) {
    wait_for_grids();
    out[place()] = in[place()] * 2;
    trigger();
}
__global__ void plus_one(const float* in, float* out) {
    wait_for_grids();
    trigger();
    out[place()] = in[kCount - 1 - place()] + 1;
}
// ggml-org/llama.cpp#23615: no wait.
__global__ void forgets(const float* in, float* out) { out[place()] = in[kCount - 1 - place()] + 1; }
// Triggers before it waits, so that the kernel behind it may also overlap the one before it.
__global__ void triggers_early(const float* in, float* out) {
    trigger();
    wait_for_grids();
    out[place()] = in[place()] + 1;
}
// Reads weights before the wait, as kernels are meant to.
__global__ void reads_weights(const float* __restrict__ weights, const float* in, float* out) {
    const float weight = __ldg(weights + place());
    wait_for_grids();
    out[place()] = weight + in[place()];
}
// One thread waits, the others of the block behind a barrier.
__global__ void one_waits(const float* in, float* out) {
    if (threadIdx.x == 0) wait_for_grids();
    __syncthreads();
    out[place()] = in[place()] + 1;
}
__global__ void leaves(const float* in, float* out, int count) {
    if (place() >= count) return;
    wait_for_grids();
    out[place()] = in[place()];
}
__global__ void counts(unsigned* total) { atomicAdd(total, 1u); }
__global__ void marks(unsigned char* bytes, int first) { bytes[2 * threadIdx.x + first] = 1; }

void told(const char* what) { std::printf("%s %s\n", what, cudaGetErrorName(cudaGetLastError())); }

template <typename... P>
void launch(void (*kernel)(P...), cudaStream_t stream, bool dependent, P... arguments) {
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = dependent;
    cudaLaunchConfig_t config{};
    config.gridDim = kCount / kBlock;
    config.blockDim = kBlock;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    cudaLaunchKernelEx(&config, kernel, arguments...);
}

// The same through the driver.
template <typename... P>
void launch_by_driver(void (*kernel)(P...), cudaStream_t stream, P... arguments) {
    cudaFunction_t function;
    cudaGetFuncBySymbol(&function, reinterpret_cast<const void*>(kernel));
    CUlaunchAttribute attribute{};
    attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    attribute.value.programmaticStreamSerializationAllowed = 1;
    CUlaunchConfig config{};
    config.gridDimX = kCount / kBlock;
    config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1;
    config.blockDimX = kBlock;
    config.hStream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    void* each[] = {&arguments...};
    cuLaunchKernelEx(&config, function, each, nullptr);
}

struct Buffers {
    float *a, *b, *c, *d;
    cudaStream_t s, t;
    cudaEvent_t done;
    Buffers() {
        for (float** each : {&a, &b, &c, &d}) cudaMalloc(each, kBytes);
        const std::vector<float> ones(kCount, 1);
        for (float* each : {a, b, c, d}) cudaMemcpy(each, ones.data(), kBytes, cudaMemcpyHostToDevice);
        cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
        cudaStreamCreateWithFlags(&t, cudaStreamNonBlocking);
        cudaEventCreateWithFlags(&done, cudaEventDisableTiming);
    }
    float first(const float* from, cudaStream_t stream) const {
        float value = 0;
        cudaMemcpyAsync(&value, from, sizeof value, cudaMemcpyDeviceToHost, stream);
        return value;
    }
};

// Work of stream `to` waits for that of `from`; while one is captured, this is a fork or a join.
void order(const Buffers& x, cudaStream_t from, cudaStream_t to) {
    cudaEventRecord(x.done, from);
    cudaStreamWaitEvent(to, x.done);
}

// What is submitted, as a graph.
cudaGraphExec_t captured(Buffers& x, void (*submit)(Buffers&)) {
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    cudaStreamBeginCapture(x.s, cudaStreamCaptureModeRelaxed);
    submit(x);
    cudaStreamEndCapture(x.s, &graph);
    cudaGraphInstantiate(&executable, graph, 0);
    return executable;
}

const std::map<std::string, void (*)(Buffers&)> kCases = {
    // ---- Launches that overlap ----
    {"forgets", [](Buffers& x) {
        launch(twice, x.s, true, (const float*)x.a, x.b);
        launch(forgets, x.s, true, (const float*)x.b, x.c);
    }},
    {"forgets_by_driver", [](Buffers& x) {
        launch_by_driver(twice, x.s, (const float*)x.a, x.b);
        launch_by_driver(forgets, x.s, (const float*)x.b, x.c);
    }},
    {"no_forgets", [](Buffers& x) {
        launch(twice, x.s, true, (const float*)x.a, x.b);
        launch(plus_one, x.s, true, (const float*)x.b, x.c);
        launch(twice, x.s, true, (const float*)x.c, x.a);
        launch(plus_one, x.s, true, (const float*)x.a, x.b);
        std::printf("value %g\n", x.first(x.b, x.s));
    }},
    {"no_attribute", [](Buffers& x) {
        launch(twice, x.s, true, (const float*)x.a, x.b);
        launch(forgets, x.s, false, (const float*)x.b, x.c);
    }},
    {"weights", [](Buffers& x) {  // which the kernel before wrote
        launch(twice, x.s, true, (const float*)x.a, x.b);
        launch(reads_weights, x.s, true, (const float*)x.b, (const float*)x.a, x.c);
    }},
    {"no_weights", [](Buffers& x) {
        launch(twice, x.s, true, (const float*)x.a, x.b);
        launch(reads_weights, x.s, true, (const float*)x.d, (const float*)x.b, x.c);
    }},
    {"weights_of_the_one_before", [](Buffers& x) {  // by the chain rule
        launch(twice, x.s, true, (const float*)x.a, x.b);
        launch(triggers_early, x.s, true, (const float*)x.a, x.c);
        launch(reads_weights, x.s, true, (const float*)x.b, (const float*)x.c, x.d);
    }},
    {"no_weights_of_the_one_before", [](Buffers& x) {
        launch(twice, x.s, true, (const float*)x.a, x.b);
        launch(twice, x.s, true, (const float*)x.a, x.c);  // triggers behind its wait
        launch(reads_weights, x.s, true, (const float*)x.b, (const float*)x.c, x.d);
    }},
    {"no_one_waits", [](Buffers& x) {
        launch(twice, x.s, true, (const float*)x.a, x.b);
        launch(one_waits, x.s, true, (const float*)x.b, x.c);
    }},
    {"no_leaves", [](Buffers& x) {
        launch(twice, x.s, true, (const float*)x.a, x.b);
        launch(leaves, x.s, true, (const float*)x.b, x.c, 100);
    }},
    {"no_overlap_behind_a_wait", [](Buffers& x) {
        launch(twice, x.s, true, (const float*)x.a, x.b);
        cudaStreamSynchronize(x.s);
        launch(reads_weights, x.s, true, (const float*)x.b, (const float*)x.a, x.c);
    }},
    {"captured_weights", [](Buffers& x) {
        const cudaGraphExec_t graph = captured(x, [](Buffers& x) {
            launch(twice, x.s, true, (const float*)x.a, x.b);
            launch(reads_weights, x.s, true, (const float*)x.b, (const float*)x.a, x.c);
        });
        told("captured");
        cudaGraphLaunch(graph, x.s);
    }},
    // ---- Streams and events ----
    {"streams", [](Buffers& x) {
        forgets<<<kCount / kBlock, kBlock, 0, x.s>>>(x.a, x.b);
        forgets<<<kCount / kBlock, kBlock, 0, x.t>>>(x.b, x.c);
    }},
    {"no_streams", [](Buffers& x) {
        forgets<<<kCount / kBlock, kBlock, 0, x.s>>>(x.a, x.b);
        order(x, x.s, x.t);
        forgets<<<kCount / kBlock, kBlock, 0, x.t>>>(x.b, x.c);
    }},
    {"event_before", [](Buffers& x) {  // recorded too early
        cudaEventRecord(x.done, x.s);
        forgets<<<kCount / kBlock, kBlock, 0, x.s>>>(x.a, x.b);
        cudaStreamWaitEvent(x.t, x.done);
        forgets<<<kCount / kBlock, kBlock, 0, x.t>>>(x.b, x.c);
    }},
    {"overwrites", [](Buffers& x) {  // what the other stream still reads
        forgets<<<kCount / kBlock, kBlock, 0, x.s>>>(x.a, x.b);
        forgets<<<kCount / kBlock, kBlock, 0, x.t>>>(x.c, x.a);
    }},
    {"no_overwrites", [](Buffers& x) {  // both read one, write two
        forgets<<<kCount / kBlock, kBlock, 0, x.s>>>(x.a, x.b);
        forgets<<<kCount / kBlock, kBlock, 0, x.t>>>(x.a, x.c);
        cudaEventRecord(x.done, x.s);
        cudaEventSynchronize(x.done);
        cudaStreamSynchronize(x.t);
        forgets<<<kCount / kBlock, kBlock, 0, x.t>>>(x.b, x.a);
    }},
    {"two_readers", [](Buffers& x) {  // one of them is waited for
        forgets<<<kCount / kBlock, kBlock, 0, x.s>>>(x.a, x.b);
        forgets<<<kCount / kBlock, kBlock, 0, x.t>>>(x.a, x.c);
        forgets<<<kCount / kBlock, kBlock, 0, x.t>>>(x.d, x.a);
    }},
    {"no_polls", [](Buffers& x) {
        forgets<<<kCount / kBlock, kBlock, 0, x.s>>>(x.a, x.b);
        while (cudaStreamQuery(x.s) == cudaErrorNotReady) {
        }
        forgets<<<kCount / kBlock, kBlock, 0, x.t>>>(x.b, x.c);
    }},
    {"no_atomics", [](Buffers& x) {
        auto* const total = reinterpret_cast<unsigned*>(x.a);
        cudaDeviceSynchronize();
        counts<<<1, 32, 0, x.s>>>(total);
        counts<<<1, 32, 0, x.t>>>(total);
    }},
    {"no_bytes", [](Buffers& x) {  // each its own
        cudaDeviceSynchronize();
        marks<<<1, 32, 0, x.s>>>(reinterpret_cast<unsigned char*>(x.a), 0);
        marks<<<1, 32, 0, x.t>>>(reinterpret_cast<unsigned char*>(x.a), 1);
    }},
    {"no_default_stream", [](Buffers& x) {  // blocking streams wait for it, and it for them
        cudaStream_t blocking;
        cudaStreamCreate(&blocking);
        forgets<<<kCount / kBlock, kBlock, 0, blocking>>>(x.a, x.b);
        forgets<<<kCount / kBlock, kBlock>>>(x.b, x.c);
        forgets<<<kCount / kBlock, kBlock, 0, blocking>>>(x.c, x.d);
        forgets<<<kCount / kBlock, kBlock, 0, cudaStreamPerThread>>>(x.a, x.b);
        forgets<<<kCount / kBlock, kBlock>>>(x.b, x.c);
    }},
    {"default_stream", [](Buffers& x) {  // no other stream waits for it
        forgets<<<kCount / kBlock, kBlock>>>(x.a, x.b);
        forgets<<<kCount / kBlock, kBlock, 0, x.s>>>(x.b, x.c);
    }},
    {"per_thread", [](Buffers& x) {
        forgets<<<kCount / kBlock, kBlock, 0, cudaStreamPerThread>>>(x.a, x.b);
        std::thread([&] { forgets<<<kCount / kBlock, kBlock, 0, cudaStreamPerThread>>>(x.b, x.c); }).join();
    }},
    {"no_per_thread", [](Buffers& x) {
        forgets<<<kCount / kBlock, kBlock, 0, cudaStreamPerThread>>>(x.a, x.b);
        forgets<<<kCount / kBlock, kBlock, 0, cudaStreamPerThread>>>(x.b, x.c);
        cudaStreamSynchronize(cudaStreamPerThread);
        std::thread([&] { forgets<<<kCount / kBlock, kBlock, 0, cudaStreamPerThread>>>(x.c, x.d); }).join();
    }},
    // ---- Copies and the host ----
    {"copies", [](Buffers& x) {
        const std::vector<float> twos(kCount, 2);
        cudaMemcpyAsync(x.a, twos.data(), kBytes, cudaMemcpyHostToDevice, x.s);
        forgets<<<kCount / kBlock, kBlock, 0, x.t>>>(x.a, x.b);
    }},
    {"fills", [](Buffers& x) {  // a fill is not waited for by the host
        cudaMemset(x.a, 0, kBytes);
        forgets<<<kCount / kBlock, kBlock, 0, x.s>>>(x.a, x.b);
    }},
    {"reads_early", [](Buffers& x) {  // the stream is not waited for
        forgets<<<kCount / kBlock, kBlock, 0, x.s>>>(x.a, x.b);
        float value = 0;
        told("launched");
        cudaMemcpy(&value, x.b, sizeof value, cudaMemcpyDeviceToHost);
    }},
    {"no_reads_early", [](Buffers& x) {
        forgets<<<kCount / kBlock, kBlock, 0, x.s>>>(x.a, x.b);
        cudaStreamSynchronize(x.s);
        float value = 0;
        cudaMemcpy(&value, x.b, sizeof value, cudaMemcpyDeviceToHost);
        forgets<<<kCount / kBlock, kBlock, 0, x.t>>>(x.b, x.a);
        std::printf("value %g\n", x.first(x.a, x.t));
        cudaFree(x.a);
    }},
    {"frees_early", [](Buffers& x) {  // in the order of another stream
        float* fresh = nullptr;
        cudaMallocAsync(&fresh, kBytes, x.s);
        forgets<<<kCount / kBlock, kBlock, 0, x.s>>>(x.a, fresh);
        told("launched");
        cudaFreeAsync(fresh, x.t);
    }},
    {"host_frees_early", [](Buffers& x) {  // a pool's memory, which cudaFree does not wait for
        float* fresh = nullptr;
        cudaMallocAsync(&fresh, kBytes, x.s);
        forgets<<<kCount / kBlock, kBlock, 0, x.s>>>(x.a, fresh);
        told("launched");
        cudaFree(fresh);
    }},
    {"no_frees_early", [](Buffers& x) {
        for (int turn = 0; turn < 3; ++turn) {  // the address comes again
            float* fresh = nullptr;
            cudaMallocAsync(&fresh, kBytes, turn % 2 == 0 ? x.s : x.t);
            forgets<<<kCount / kBlock, kBlock, 0, turn % 2 == 0 ? x.s : x.t>>>(x.a, fresh);
            cudaFreeAsync(fresh, turn % 2 == 0 ? x.s : x.t);
        }
        float* plain = nullptr;
        cudaMalloc(&plain, kBytes);
        forgets<<<kCount / kBlock, kBlock, 0, x.s>>>(x.a, plain);
        cudaFree(plain);  // waits
    }},
    {"allocates", [](Buffers& x) {  // in another stream's order
        float* fresh = nullptr;
        cudaMallocAsync(&fresh, kBytes, x.s);
        forgets<<<kCount / kBlock, kBlock, 0, x.t>>>(x.a, fresh);
    }},
    {"no_callback", [](Buffers& x) {  // the function tells the host
        forgets<<<kCount / kBlock, kBlock, 0, x.s>>>(x.a, x.b);
        static bool ran = false;
        cudaLaunchHostFunc(x.s, [](void* flag) { *static_cast<bool*>(flag) = true; }, &ran);
        while (!ran) {
        }
        forgets<<<kCount / kBlock, kBlock, 0, x.t>>>(x.b, x.c);
    }},
    // ---- Graphs ----
    {"no_graph", [](Buffers& x) {  // a fork and a join, launched twice
        const cudaGraphExec_t graph = captured(x, [](Buffers& x) {
            forgets<<<kCount / kBlock, kBlock, 0, x.s>>>(x.a, x.b);
            order(x, x.s, x.t);
            forgets<<<kCount / kBlock, kBlock, 0, x.t>>>(x.b, x.c);
            forgets<<<kCount / kBlock, kBlock, 0, x.s>>>(x.b, x.d);
            order(x, x.t, x.s);
            forgets<<<kCount / kBlock, kBlock, 0, x.s>>>(x.c, x.a);
        });
        cudaGraphLaunch(graph, x.s);
        cudaGraphLaunch(graph, x.s);
        forgets<<<kCount / kBlock, kBlock, 0, x.s>>>(x.d, x.b);
    }},
    {"graph", [](Buffers& x) {  // one branch overwrites what the other reads
        const cudaGraphExec_t graph = captured(x, [](Buffers& x) {
            forgets<<<kCount / kBlock, kBlock, 0, x.s>>>(x.a, x.b);
            order(x, x.s, x.t);
            forgets<<<kCount / kBlock, kBlock, 0, x.t>>>(x.b, x.c);
            forgets<<<kCount / kBlock, kBlock, 0, x.s>>>(x.d, x.b);
            order(x, x.t, x.s);
        });
        told("captured");
        cudaGraphLaunch(graph, x.s);
    }},
    {"behind_a_graph", [](Buffers& x) {
        const cudaGraphExec_t graph = captured(
            x, [](Buffers& x) { forgets<<<kCount / kBlock, kBlock, 0, x.s>>>(x.a, x.b); });
        cudaGraphLaunch(graph, x.s);
        told("captured");
        forgets<<<kCount / kBlock, kBlock, 0, x.t>>>(x.b, x.c);
    }},
};

int main(int, char** arguments) {
    Buffers buffers;
    kCases.at(arguments[1])(buffers);
    told("last");
    std::printf("end %s\n", cudaGetErrorName(cudaDeviceSynchronize()));
}
