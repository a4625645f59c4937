// What test_simulator.py runs on simulated cards: `card NAME` runs one case.
//
// Every line that is printed is `name value`, or the name of the error that a call returned. All cases
// but `stale` run on a card, too: kernels write to memory that they have.
#include <cuda.h>
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using std::size_t;

constexpr size_t KiB = 1 << 10, MiB = 1 << 20, GiB = 1 << 30;
std::string directory;  // of this program

void tell(const char* name, long long value) { std::printf("%s %lld\n", name, value); }
void tell(const char* name, cudaError_t error) { std::printf("%s %s\n", name, cudaGetErrorName(error)); }

__global__ void plain(float* values) { values[threadIdx.x] = 1; }

__global__ void __launch_bounds__(256) bounded(float* values) { values[threadIdx.x] = 1; }

// All 200 values are alive at once: some 200 registers.
__global__ void hungry(float* values, int stride) {
    float own[200];
#pragma unroll
    for (int i = 0; i < 200; ++i) own[i] = values[i * stride + threadIdx.x];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 200; ++i) values[(199 - i) * stride + threadIdx.x] = own[i] * own[(i * 7) % 200];
}

__global__ void fixed(float* values) {
    __shared__ float own[8 * KiB / sizeof(float)];
    own[threadIdx.x] = values[threadIdx.x];
    __syncthreads();
    values[threadIdx.x] = own[255 - threadIdx.x];
}

// Kernels by the names, and with the parameters, of those that results.cpp knows.
struct curandStateXORWOW;
namespace turbomind {
template <typename T, int kThreads>
__global__ void sampling(const T*, int, const int*, const int*, curandStateXORWOW*, const int*,
                         int* tokens, int* lengths, T*, int*, int*) {
    tokens[blockIdx.x] = 0;
    ++lengths[blockIdx.x];
}
__global__ void length_criterion_v2(bool* finished, const int* lengths, const int* limits, int requests) {
    for (int i = 0; i < requests; ++i) finished[i] |= lengths[i] >= limits[i];
}
}  // namespace turbomind

template <typename T>
struct MulFunctor {};
template <typename Functor>
__global__ void elementwise(bool* value) { *value = true; }
__global__ void and_kernel_cuda(bool* value) { *value = true; }
__global__ void logical_and_kernel_cuda(bool* value) { *value = false; }

__device__ int variable;
#ifndef STATIC  // mode count knows no variables of the driver API, by which the static runtime asks
__managed__ int managed = 7;
#endif

size_t left() {
    size_t free = 0, total = 0;
    cudaMemGetInfo(&free, &total);
    return free;
}

void* allocated(size_t size) {
    void* pointer = nullptr;
    cudaMalloc(&pointer, size);
    return pointer;
}

long long peak_of_the_process() {  // KiB
    char line[256];
    long long peak = -1;
    std::FILE* file = std::fopen("/proc/self/status", "r");
    while (std::fgets(line, sizeof line, file) != nullptr) std::sscanf(line, "VmHWM: %lld", &peak);
    std::fclose(file);
    return peak;
}

void full() {
    std::vector<void*> all;
    void* pointer = nullptr;
    cudaError_t error;
    while ((error = cudaMalloc(&pointer, GiB)) == cudaSuccess) {
        all.push_back(pointer);
        cudaMemset(pointer, 1, GiB);
    }
    tell("gibibytes", all.size());
    tell("then", error);
    tell("null", pointer == nullptr);
    tell("last", cudaGetLastError());
    tell("again", cudaGetLastError());
    std::vector<char> weights(64 * MiB);
    for (void* each : all) cudaMemcpy(each, weights.data(), weights.size(), cudaMemcpyHostToDevice);
    tell("peak", peak_of_the_process());
    for (void* each : all) cudaFree(each);
    tell("freed", cudaFree(nullptr));
    tell("twice", cudaFree(all[0]));
}

void arithmetic() {
    size_t free = 0, total = 0;
    cudaMemGetInfo(&free, &total);
    tell("total", total);
    tell("free", free);
    void* byte = allocated(1);
    tell("one byte", free - left());
    std::vector<void*> small;
    for (int i = 0; i < 1000; ++i) small.push_back(allocated(1 * KiB));
    tell("and 1000 KiB", free - left());
    tell("aligned", reinterpret_cast<std::uintptr_t>(small[7]) % 512);
    void* large = allocated(3 * MiB);
    tell("and 3 MiB", free - left());
    cudaFree(large);
    for (void* each : small) cudaFree(each);
    cudaFree(byte);
    tell("all freed", free - left());
}

__attribute__((noinline)) void leak() {
    for (int i = 0; i < 10; ++i) allocated(MiB);
}

void block() {
    auto* values = static_cast<float*>(allocated(MiB));
    plain<<<1, 2048>>>(values);
    tell("2048 threads", cudaGetLastError());
    cudaLaunchConfig_t config = {};
    config.gridDim = 1;
    config.blockDim = 2048;
    tell("2048 by attributes", cudaLaunchKernelEx(&config, plain, values));
    cudaGetLastError();
    plain<<<1, dim3(1, 1, 65)>>>(values);
    tell("65 deep", cudaGetLastError());
    plain<<<0, 32>>>(values);
    tell("no blocks", cudaGetLastError());
    plain<<<dim3(1, 65536), 32>>>(values);
    tell("65536 rows", cudaGetLastError());
    plain<<<1, 1024>>>(values);
    tell("1024 threads", cudaGetLastError());
}

void shared() {
    auto* values = static_cast<float*>(allocated(MiB));
    fixed<<<1, 256, 40 * KiB>>>(values);
    tell("48 KiB", cudaGetLastError());
    fixed<<<1, 256, 40 * KiB + 1>>>(values);
    tell("more", cudaGetLastError());
    constexpr auto attribute = cudaFuncAttributeMaxDynamicSharedMemorySize;
    tell("92 KiB", cudaFuncSetAttribute(fixed, attribute, 92 * KiB));
    cudaGetLastError();
    tell("91 KiB", cudaFuncSetAttribute(fixed, attribute, 91 * KiB));
    fixed<<<1, 256, 91 * KiB>>>(values);
    tell("99 KiB", cudaGetLastError());
    fixed<<<1, 256, 91 * KiB + 1>>>(values);
    tell("too much", cudaGetLastError());
    cudaFuncAttributes attributes = {};
    cudaFuncGetAttributes(&attributes, fixed);
    tell("static", attributes.sharedSizeBytes);
    tell("dynamic", attributes.maxDynamicSharedSizeBytes);
}

void registers() {
    cudaFuncAttributes attributes = {};
    cudaFuncGetAttributes(&attributes, hungry);
    tell("registers", attributes.numRegs);
    tell("most", attributes.maxThreadsPerBlock);
    auto* values = static_cast<float*>(allocated(MiB));
    hungry<<<1, 256>>>(values, 1);
    tell("256 threads", cudaGetLastError());
    hungry<<<1, 1024>>>(values, 1);
    tell("1024 threads", cudaGetLastError());
    bounded<<<1, 256>>>(values);
    tell("within bounds", cudaGetLastError());
    bounded<<<1, 288>>>(values);
    tell("beyond bounds", cudaGetLastError());
}

cudaError_t clustered(float* values, unsigned grid, unsigned size) {
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {size, 1, 1};
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = 32;
    config.attrs = &attribute;
    config.numAttrs = 1;
    cudaLaunchKernelEx(&config, plain, values);
    return cudaGetLastError();
}

void clusters() {
    int most = 0;
    auto* values = static_cast<float*>(allocated(MiB));
    const cudaLaunchConfig_t config = {};
    cudaOccupancyMaxPotentialClusterSize(&most, plain, &config);
    tell("most", most);
    tell("2 of 4", clustered(values, 4, 2));
    tell("2 of 3", clustered(values, 3, 2));
    tell("16 of 16", clustered(values, 16, 16));
    cudaFuncSetAttribute(plain, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    tell("16 allowed", clustered(values, 16, 16));
    tell("32 of 32", clustered(values, 32, 32));
    cudaOccupancyMaxPotentialClusterSize(&most, plain, &config);
    tell("most allowed", most);
}

void cooperative() {
    int blocks = 0, multiprocessors = 0;
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, plain, 512, 0);
    cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0);
    tell("blocks", blocks);
    auto* values = static_cast<float*>(allocated(MiB));
    void* arguments[] = {&values};
    auto* const kernel = reinterpret_cast<const void*>(plain);
    const unsigned most = blocks * multiprocessors;
    tell("all", cudaLaunchCooperativeKernel(kernel, most, 512, arguments, 0, nullptr));
    tell("one more", cudaLaunchCooperativeKernel(kernel, most + 1, 512, arguments, 0, nullptr));
}

void unsupported() {
    cudaArray_t array = nullptr;
    const cudaChannelFormatDesc format = {8, 0, 0, 0, cudaChannelFormatKindUnsigned};
    tell("array", cudaMallocArray(&array, &format, 16, 16));
    tell("array", cudaMallocArray(&array, &format, 16, 16));
}

void aborted() {
    allocated(GiB);
    allocated(100 * GiB);
    std::abort();
}

void graph() {
    cudaStream_t one, other;
    cudaStreamCreateWithFlags(&one, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking);
    cudaEvent_t fork, join;
    cudaEventCreate(&fork);
    cudaEventCreate(&join);
    auto* values = static_cast<float*>(allocated(MiB));
    const auto capture = [&](bool joined, int kernels) {
        cudaGraph_t made = nullptr;
        cudaStreamBeginCapture(one, cudaStreamCaptureModeRelaxed);
        cudaMemsetAsync(values, 0, MiB, one);
        cudaEventRecord(fork, one);
        cudaStreamWaitEvent(other, fork, 0);
        for (int i = 0; i < kernels; ++i) plain<<<1, 64, 0, i % 2 == 0 ? one : other>>>(values);
        cudaEventRecord(join, other);
        if (joined) cudaStreamWaitEvent(one, join, 0);
        tell("captured", cudaStreamEndCapture(one, &made));
        return made;
    };
    const cudaGraph_t three = capture(true, 3);
    size_t nodes = 0;
    cudaGraphGetNodes(three, nullptr, &nodes);
    tell("nodes", nodes);
    cudaGraphExec_t executable = nullptr;
    tell("made", cudaGraphInstantiate(&executable, three, 0));
    for (int i = 0; i < 5; ++i) tell("launched", cudaGraphLaunch(executable, one));
    cudaGraphExecUpdateResultInfo result = {};
    tell("same", cudaGraphExecUpdate(executable, capture(true, 3), &result));
    tell("changed", cudaGraphExecUpdate(executable, capture(true, 4), &result));
    tell("why", static_cast<long long>(result.result));
    capture(false, 3);
    cudaGetLastError();
    cudaGraph_t none = nullptr;
    cudaStreamBeginCapture(one, cudaStreamCaptureModeGlobal);
    void* pointer = nullptr;
    tell("allocated", cudaMalloc(&pointer, 1));
    tell("ended", cudaStreamEndCapture(one, &none));
    cudaStreamBeginCapture(one, cudaStreamCaptureModeRelaxed);
    tell("waited", cudaStreamSynchronize(one));
    tell("ended", cudaStreamEndCapture(one, &none));
    cudaStreamBeginCapture(one, cudaStreamCaptureModeRelaxed);
    tell("queried", cudaStreamQuery(one));
    tell("ended", cudaStreamEndCapture(one, &none));
    cudaStreamBeginCapture(one, cudaStreamCaptureModeRelaxed);
    tell("by the driver", static_cast<cudaError_t>(cuStreamQuery(one)));
    tell("ended", cudaStreamEndCapture(one, &none));
    tell("not captured", cudaStreamQuery(one));
    float milliseconds = -1;
    cudaEventRecord(fork, one);
    cudaEventRecord(join, one);
    cudaEventSynchronize(join);
    tell("elapsed", cudaEventElapsedTime(&milliseconds, fork, join));
    tell("forward", milliseconds >= 0);
}

void two_cards() {
    int can = 0, count = 0;
    cudaGetDeviceCount(&count);
    tell("cards", count);
    cudaDeviceCanAccessPeer(&can, 0, 1);
    tell("can", can);
    tell("enabled", cudaDeviceEnablePeerAccess(1, 0));
    tell("twice", cudaDeviceEnablePeerAccess(1, 0));
    tell("itself", cudaDeviceEnablePeerAccess(0, 0));
    const int sent = 42;
    int received = 0;
    void* here = allocated(KiB);
    cudaStream_t stream;
    cudaStreamCreate(&stream);
    tell("third", cudaSetDevice(2));
    cudaSetDevice(1);
    const size_t before = left();
    void* there = allocated(4 * MiB);
    tell("taken", before - left());
    cudaMemcpy(here, &sent, sizeof sent, cudaMemcpyHostToDevice);
    cudaMemcpyPeer(there, 1, here, 0, sizeof sent);
    cudaMemcpy(&received, there, sizeof received, cudaMemcpyDefault);
    tell("received", received);
    plain<<<1, 32, 0, stream>>>(static_cast<float*>(here));
    tell("other card's stream", cudaGetLastError());
    cudaPointerAttributes attributes = {};
    cudaPointerGetAttributes(&attributes, there);
    tell("on", attributes.device);
}

void contents() {
    std::vector<char> sent(2 * MiB, 7), back(2 * MiB, 9);
    char* device = static_cast<char*>(allocated(4 * MiB));
    cudaMemcpy(device, sent.data(), 100, cudaMemcpyHostToDevice);
    cudaMemcpy(back.data(), device, 100, cudaMemcpyDeviceToHost);
    tell("kept", std::memcmp(sent.data(), back.data(), 100) == 0);
    cudaMemset(device + 50, 3, 10);
    cudaMemcpy(back.data(), device, 100, cudaMemcpyDeviceToHost);
    tell("set", back[49] * 100 + back[50] * 10 + back[60]);
    cudaMemcpy(device, sent.data(), 2 * MiB, cudaMemcpyHostToDevice);
    cudaMemcpy(back.data(), device, 2 * MiB, cudaMemcpyDeviceToHost);
    tell("large", back[0] + back[2 * MiB - 1]);
    std::vector<float> logits(3 * 1000, -1);
    cudaMemcpy(logits.data(), device, logits.size() * sizeof(float), cudaMemcpyDeviceToHost);
    for (int row = 0; row < 3; ++row) {
        int best = 0;
        for (int i = 0; i < 1000; ++i) best = logits[row * 1000 + i] > logits[row * 1000 + best] ? i : best;
        tell("token", best);
    }
    tell("outside", cudaMemcpy(device + 3 * MiB, sent.data(), 2 * MiB, cudaMemcpyHostToDevice));
    tell("freed", cudaFree(device));
    tell("after", cudaMemcpy(back.data(), device, 100, cudaMemcpyDeviceToHost));
}

void written() {
    int id = 7;
    int* device = static_cast<int*>(allocated(4));
    cudaMemcpy(device, &id, 4, cudaMemcpyHostToDevice);
    cudaMemcpy(&id, device, 4, cudaMemcpyDeviceToHost);
    tell("before", id);
    plain<<<1, 1>>>(reinterpret_cast<float*>(device));
    cudaMemcpy(&id, device, 4, cudaMemcpyDeviceToHost);
    tell("after", id);
}

void results() {
    constexpr int kRequests = 4;
    const int at_first[] = {9, 30}, limits[] = {11, 11};
    auto* const lengths = static_cast<int*>(allocated(kRequests * sizeof(int)));
    auto* const most = static_cast<int*>(allocated(kRequests * sizeof(int)));
    auto* const tokens = static_cast<int*>(allocated(kRequests * sizeof(int)));
    auto* const copied = static_cast<int*>(allocated(kRequests * sizeof(int)));
    auto* const finished = static_cast<bool*>(allocated(kRequests));
    cudaMemset(finished, 0, kRequests);
    cudaMemset(tokens, 1, kRequests * sizeof(int));
    cudaMemset(lengths + 3, 1, sizeof(int));
    cudaMemcpy(lengths, at_first, sizeof at_first, cudaMemcpyHostToDevice);
    cudaMemcpy(most, limits, sizeof limits, cudaMemcpyHostToDevice);
    for (const char* step : {"first", "second"}) {
        turbomind::sampling<float, 256><<<2, 1>>>(nullptr, 0, nullptr, nullptr, nullptr, nullptr,
                                                  tokens, lengths, nullptr, nullptr, nullptr);
        turbomind::length_criterion_v2<<<1, 1>>>(finished, lengths, most, 2);
        plain<<<1, 1>>>(static_cast<float*>(allocated(4)));
        cudaMemcpy(copied, lengths, kRequests * sizeof(int), cudaMemcpyDeviceToDevice);
        int counts[kRequests], ids[kRequests];
        bool ends[kRequests];
        cudaMemcpy(counts, copied, sizeof counts, cudaMemcpyDeviceToHost);
        cudaMemcpy(ids, tokens, sizeof ids, cudaMemcpyDeviceToHost);
        cudaMemcpy(ends, finished, sizeof ends, cudaMemcpyDeviceToHost);
        std::printf("%s %d,%d,%d/%d,%d,%d/%d,%d\n", step, counts[0], counts[1], counts[3], ids[0],
                    ids[1], ids[2], ends[0], ends[1]);
    }
    const auto told = [&](const char* name, bool is_set_after = false) {
        bool value = false;
        if (is_set_after) cudaMemset(finished + 3, 0, 1);
        cudaMemcpy(&value, finished + 3, sizeof value, cudaMemcpyDeviceToHost);
        tell(name, value);
    };
    elementwise<MulFunctor<bool>><<<1, 1>>>(finished + 2);
    and_kernel_cuda<<<1, 1>>>(finished + 3);
    told("all finite");
    elementwise<MulFunctor<bool>><<<1, 1>>>(finished + 2);
    logical_and_kernel_cuda<<<1, 1>>>(finished + 3);
    told("another kernel");
    elementwise<MulFunctor<bool>><<<1, 1>>>(finished + 2);
    and_kernel_cuda<<<1, 1>>>(finished + 3);
    told("set after", true);
}

void pools() {
    void* pointer = nullptr;
    cudaFree(nullptr);
    unsigned long long of_graphs = 1;
    tell("asked", cudaDeviceGetGraphMemAttribute(0, cudaGraphMemAttrUsedMemHigh, &of_graphs));
    tell("of graphs", static_cast<long long>(of_graphs));
    tell("reset", cudaDeviceSetGraphMemAttribute(0, cudaGraphMemAttrUsedMemHigh, &of_graphs));
    tell("not settable", cudaDeviceSetGraphMemAttribute(0, cudaGraphMemAttrUsedMemCurrent, &of_graphs));
    tell("no card", cudaDeviceGetGraphMemAttribute(7, cudaGraphMemAttrUsedMemHigh, &of_graphs));
    const size_t before = left();
    tell("allocated", cudaMallocAsync(&pointer, 1000, nullptr));
    tell("taken", before - left());
    tell("freed", cudaFreeAsync(pointer, nullptr));
    tell("until then", before - left());
    cudaDeviceSynchronize();
    tell("given back", before - left());
    cudaMemPoolProps properties = {};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location = {cudaMemLocationTypeDevice, 0};
    cudaMemPool_t pool = nullptr, standard = nullptr, current = nullptr;
    cudaMemPoolCreate(&pool, &properties);
    cudaDeviceSetMemPool(0, pool);
    cudaMallocAsync(&pointer, 1000, nullptr);
    tell("destroyed", cudaMemPoolDestroy(pool));
    void* more = nullptr;
    tell("from it", cudaMallocFromPoolAsync(&more, 1000, pool, nullptr));
    cudaDeviceGetDefaultMemPool(&standard, 0);
    cudaDeviceGetMemPool(&current, 0);
    tell("default again", current == standard);
    tell("its last", before - left());
    tell("freed last", cudaFreeAsync(pointer, nullptr));
    tell("not gone", before - left());
    cudaDeviceSynchronize();
    tell("gone", before - left());
    tell("default", cudaMemPoolDestroy(standard));
}

// Of each kind of what a program has on a card: 2, 128, 32, and 64 MiB of it.
struct Everything {
    static constexpr size_t size = 64 * MiB;
    void *variable = nullptr, *pooled = nullptr, *own = nullptr;
    cudaMemPool_t pool = nullptr;
    CUmemGenericAllocationHandle memory = 0;
    CUdeviceptr space = 0;
    cudaEvent_t event = nullptr;
    cudaStream_t stream = nullptr;

    Everything() {
        cudaGetSymbolAddress(&variable, ::variable);
        cudaMallocAsync(&pooled, 100 * MiB, nullptr);
        cudaMemPoolProps properties = {};
        properties.allocType = cudaMemAllocationTypePinned;
        properties.location = {cudaMemLocationTypeDevice, 0};
        cudaMemPoolCreate(&pool, &properties);
        cudaMallocFromPoolAsync(&own, 10 * MiB, pool, nullptr);
        CUmemAllocationProp wanted = {};
        wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
        wanted.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
        cuMemAddressReserve(&space, size, 0, 0, 0);
        cuMemCreate(&memory, size, &wanted, 0);
        cuMemMap(space, size, 0, memory, 0);
        cudaFuncSetAttribute(fixed, cudaFuncAttributeMaxDynamicSharedMemorySize, 91 * KiB);
        cudaEventCreate(&event);
        cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    }
};

void reset() {
    cudaFree(nullptr);
    const size_t before = left();
    Everything all;
    tell("taken", before - left());
    tell("reset", cudaDeviceReset());
    tell("left", before - left());
    auto* values = static_cast<float*>(allocated(MiB));
    fixed<<<1, 256, 91 * KiB>>>(values);
    tell("attribute", cudaGetLastError());
    const int sent = 5;
    tell("variable", cudaMemcpyToSymbol(variable, &sent, sizeof sent));
    void* pointer = nullptr;
    tell("allocated", cudaMallocAsync(&pointer, 1, nullptr));
    tell("pool", cudaMallocFromPoolAsync(&pointer, 1, all.pool, nullptr));
    tell("pooled", cudaFreeAsync(all.pooled, nullptr));
}

// What is undefined on a card, whose driver may end the program: handles and addresses of before a
// reset.
void stale() {
    cudaFree(nullptr);
    Everything all;
    cudaStreamBeginCapture(all.stream, cudaStreamCaptureModeGlobal);
    tell("reset", cudaDeviceReset());
    tell("stream", cudaStreamQuery(all.stream));
    tell("event", cudaEventQuery(all.event));
    tell("handle", static_cast<cudaError_t>(cuMemRelease(all.memory)));
    tell("address", cudaMemset(reinterpret_cast<void*>(all.space), 0, 1));
    tell("space", static_cast<cudaError_t>(cuMemAddressFree(all.space, all.size)));
}

#ifndef STATIC
void managed_variable() {
    managed = managed + 1;
    int read = 0;
    void* address = nullptr;
    tell("address", cudaGetSymbolAddress(&address, managed));
    tell("same", address == &managed);
    cudaMemcpyFromSymbol(&read, managed, sizeof read);
    tell("read", read);
    cudaPointerAttributes attributes = {};
    cudaPointerGetAttributes(&attributes, address);
    tell("known", attributes.type != cudaMemoryTypeUnregistered);
}
#endif

void forked() {
    cudaFree(nullptr);
    std::fflush(stdout);
    if (fork() == 0) {
        void* pointer = nullptr;
        tell("child", cudaMalloc(&pointer, 1));
        std::fflush(stdout);
        _exit(0);
    }
    wait(nullptr);
    tell("parent", cudaFree(allocated(1)));
}

// Each allocation has a stack of its own, whose frames are not known yet.
template <int N>
__attribute__((noinline)) void allocate_here() {
    cudaFree(allocated(KiB + N));
}

template <int... N>
void allocate_everywhere(std::integer_sequence<int, N...>) {
    (allocate_here<N>(), ...);
}

// Kernels are registered by a library that is loaded while another thread allocates.
void loading() {
    alarm(20);
    cudaFree(nullptr);
    const std::string library = directory + "/library.so";
    std::atomic<bool> done{false};
    std::thread other([&done] {
        allocate_everywhere(std::make_integer_sequence<int, 800>{});
        done = true;
    });
    long long loaded = 0;
    for (; !done; ++loaded) {
        void* const handle = dlopen(library.c_str(), RTLD_NOW);
        if (handle == nullptr) std::abort();
        dlclose(handle);
    }
    other.join();
    tell("loaded", loaded);
}

void one() {
    cudaFuncAttributes attributes = {};
    if (cudaFuncGetAttributes(&attributes, plain) == cudaSuccess) {
        tell("binary", attributes.binaryVersion);
        tell("PTX", attributes.ptxVersion);
    }
    cudaGetLastError();
    plain<<<1, 32>>>(static_cast<float*>(allocated(KiB)));
    tell("launch", cudaGetLastError());
}

int main(int, char** words) {
    const std::map<std::string, void (*)()> cases = {
        {"full", full},         {"arithmetic", arithmetic},   {"leak", leak},
        {"block", block},       {"shared", shared},           {"registers", registers},
        {"clusters", clusters}, {"cooperative", cooperative}, {"unsupported", unsupported},
        {"aborted", aborted},   {"graph", graph},             {"two_cards", two_cards},
        {"contents", contents}, {"pools", pools},             {"forked", forked},
        {"one", one},           {"loading", loading},         {"reset", reset},
        {"written", written},   {"stale", stale},
        {"results", results},
#ifndef STATIC
        {"managed", managed_variable},
#endif
    };
    std::setvbuf(stdout, nullptr, _IOLBF, 0);  // what a case that crashes has found is written
    directory = words[0];
    directory.erase(directory.rfind('/'));
    cases.at(words[1])();
}
