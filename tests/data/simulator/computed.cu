// What test_computed.py runs on a simulated card that computes: `computed NAME` runs one case.
//
// Every line that is printed is `name value`, or the name of the error that a call returned. "wrong"
// counts the results that differ from the host's.
#include <cooperative_groups.h>
#include <cublasLt.h>
#include <cublas_v2.h>
#include <cuda.h>
#include <cuda/barrier>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <numeric>
#include <string>
#include <vector>

using std::size_t;

void tell(const char* name, long long value) { std::printf("%s %lld\n", name, value); }
void tell(const char* name, cudaError_t error) { std::printf("%s %s\n", name, cudaGetErrorName(error)); }
void tell(const char* name, cublasStatus_t status) { tell(name, static_cast<long long>(status)); }

__global__ void add(const float* a, const float* b, float* sum, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) sum[i] = a[i] + b[i];
}

// The condition lets one thread too many write.
__global__ void add_beyond(const float* a, float* sum, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i <= n) sum[i] = a[min(i, n - 1)];
}

template <bool kWaits>
__global__ void reduce(const float* values, float* sums) {
    extern __shared__ float part[];
    part[threadIdx.x] = values[blockIdx.x * blockDim.x + threadIdx.x];
    for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
        if (kWaits) __syncthreads();
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
    }
    if (threadIdx.x == 0) sums[blockIdx.x] = part[0];
}

__global__ void histogram(const unsigned char* bytes, int n, unsigned* counts, float* total) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    atomicAdd(&counts[bytes[i]], 1u);
    atomicAdd(total, 1.0f);
}

__constant__ float factors[4] = {1, 2, 3, 4};
__device__ int launches = 40;
__managed__ int shown = 7;

__global__ void scale(float* values) {
    values[threadIdx.x] *= factors[threadIdx.x % 4];
    if (threadIdx.x == 0) {
        ++launches;
        shown += launches;
    }
}

__global__ void odd(const char* bytes, float* out) { *out = *reinterpret_cast<const float*>(bytes + 2); }

__global__ void together(int* values) {
    cooperative_groups::grid_group grid = cooperative_groups::this_grid();
    values[grid.thread_rank()] = static_cast<int>(grid.thread_rank());
    grid.sync();
    const int other = values[grid.size() - 1 - grid.thread_rank()];
    grid.sync();
    values[grid.thread_rank()] += other;
}

__global__ void lacks(int* out) { asm volatile("vadd4.u32.u32.u32 %0, %1, %1, %1;" : "=r"(*out) : "r"(threadIdx.x)); }

// Tiles of 64 columns and 32 rows, two on the way at a time: each is doubled and written elsewhere,
// as NVIDIA's programming guide does it. Swizzled by 128 bytes, as matrix instructions want it.
namespace bulk = cuda::device::experimental;
using Arrivals = cuda::barrier<cuda::thread_scope_block>;
constexpr int kColumns = 64, kRows = 32;
__global__ void tiles(const __grid_constant__ CUtensorMap from, const __grid_constant__ CUtensorMap to, int count) {
    __shared__ alignas(1024) __half tile[2][kRows][kColumns];
#pragma nv_diag_suppress static_var_with_dynamic_init
    __shared__ Arrivals arrivals[2];
    if (threadIdx.x == 0) {
        for (Arrivals& each : arrivals) init(&each, blockDim.x);
        bulk::fence_proxy_async_shared_cta();
    }
    __syncthreads();
    Arrivals::arrival_token tokens[2];
    const auto ask = [&](int n) {
        Arrivals& arrival = arrivals[n % 2];
        if (threadIdx.x == 0) {
            bulk::cp_async_bulk_tensor_2d_global_to_shared(&tile[n % 2], &from, n * kColumns, blockIdx.x * kRows - 5, arrival);
            tokens[n % 2] = cuda::device::barrier_arrive_tx(arrival, 1, sizeof tile[0]);
        } else {
            tokens[n % 2] = arrival.arrive();
        }
    };
    ask(0);
    for (int n = 0; n < count; ++n) {
        if (n + 1 < count) ask(n + 1);
        arrivals[n % 2].wait(std::move(tokens[n % 2]));
        for (int i = threadIdx.x; i < kRows * kColumns; i += blockDim.x) {
            const int row = i / kColumns, column = i % kColumns ^ row % 8 * 8;
            tile[n % 2][row][column] = tile[n % 2][row][column] + __int2half_rn(row);
        }
        bulk::fence_proxy_async_shared_cta();
        __syncthreads();
        if (threadIdx.x == 0) {
            bulk::cp_async_bulk_tensor_2d_shared_to_global(&to, n * kColumns, blockIdx.x * kRows - 5, &tile[n % 2]);
            bulk::cp_async_bulk_commit_group();
            bulk::cp_async_bulk_wait_group_read<0>();
        }
        __syncthreads();
    }
}

// Reads slots of shared memory and of `fresh` that nobody writes.
__global__ void unwritten(const float* fresh, float* out) {
    __shared__ float slots[64];
    if (threadIdx.x < 32) slots[threadIdx.x] = 1;
    __syncthreads();
    out[threadIdx.x] = slots[threadIdx.x + 32];
    out[threadIdx.x + 32] = fresh[threadIdx.x];
}

__global__ void say(int number) { printf("said %d\n", number + static_cast<int>(threadIdx.x)); }

template <typename T>
struct OnCard {
    T* data = nullptr;
    size_t count = 0;
    explicit OnCard(size_t n) : count(n) { cudaMalloc(&data, n * sizeof(T)); }
    explicit OnCard(const std::vector<T>& from) : OnCard(from.size()) {
        cudaMemcpy(data, from.data(), count * sizeof(T), cudaMemcpyHostToDevice);
    }
    ~OnCard() { cudaFree(data); }
    std::vector<T> host() const {
        std::vector<T> to(count);
        cudaMemcpy(to.data(), data, count * sizeof(T), cudaMemcpyDeviceToHost);
        return to;
    }
};

std::vector<float> numbers(size_t count, unsigned seed) {
    std::vector<float> values(count);
    for (float& value : values) {
        seed = seed * 1664525u + 1013904223u;
        value = static_cast<float>(static_cast<int>(seed >> 20) - 2048) / 1024.0f;
    }
    return values;
}

template <typename T>
long long differing(const std::vector<T>& one, const std::vector<T>& other) {
    long long count = one.size() != other.size();
    for (size_t i = 0; i < std::min(one.size(), other.size()); ++i) count += one[i] != other[i];
    return count;
}

void adds() {
    const int n = 100000;
    const std::vector<float> a = numbers(n, 1), b = numbers(n, 2);
    std::vector<float> wanted(n);
    for (int i = 0; i < n; ++i) wanted[i] = a[i] + b[i];
    OnCard<float> x(a), y(b), z(n);
    add<<<(n + 255) / 256, 256>>>(x.data, y.data, z.data, n);
    tell("launch", cudaGetLastError());
    tell("wrong", differing(z.host(), wanted));
}

template <bool kWaits>
void reduces() {
    const int blocks = 7, threads = 256;
    const std::vector<float> values = numbers(blocks * threads, 3);
    OnCard<float> x(values), sums(blocks);
    reduce<kWaits><<<blocks, threads, threads * sizeof(float)>>>(x.data, sums.data);
    tell("launch", cudaGetLastError());
    std::vector<float> wanted(blocks);
    for (int block = 0; block < blocks; ++block) {  // sums of multiples of 1/1024 are exact
        const auto start = values.begin() + block * threads;
        wanted[block] = std::accumulate(start, start + threads, 0.0f);
    }
    if (kWaits) tell("wrong", differing(sums.host(), wanted));
}

void counts() {
    const int n = 50000;
    std::vector<unsigned char> bytes(n);
    std::vector<unsigned> wanted(256);
    for (int i = 0; i < n; ++i) ++wanted[bytes[i] = static_cast<unsigned char>(i * 31 % 251)];
    OnCard<unsigned char> x(bytes);
    OnCard<unsigned> found(256);
    OnCard<float> total(1);
    cudaMemset(found.data, 0, 256 * sizeof(unsigned));
    cudaMemsetAsync(total.data, 0, sizeof(float));
    histogram<<<(n + 127) / 128, 128>>>(x.data, n, found.data, total.data);
    tell("wrong", differing(found.host(), wanted));
    tell("total", static_cast<long long>(total.host()[0]));
}

void variables() {
    OnCard<float> values(std::vector<float>(8, 1));
    scale<<<1, 8>>>(values.data);
    tell("wrong", differing(values.host(), {1, 2, 3, 4, 1, 2, 3, 4}));
    const float other[4] = {5, 6, 7, 8};
    tell("to", cudaMemcpyToSymbol(factors, other, sizeof other));
    scale<<<1, 8>>>(values.data);
    tell("wrong then", differing(values.host(), {5, 12, 21, 32, 5, 12, 21, 32}));
    int read = 0;
    tell("from", cudaMemcpyFromSymbol(&read, launches, sizeof read));
    tell("launches", read);
    cudaDeviceSynchronize();
    tell("shown", shown);
    int* address = nullptr;
    tell("address", cudaGetSymbolAddress(reinterpret_cast<void**>(&address), launches));
    cudaMemset(address, 0, sizeof *address);
    cudaMemcpyFromSymbol(&read, launches, sizeof read);
    tell("set", read);
    cudaDeviceReset();
    cudaMemcpyFromSymbol(&read, launches, sizeof read);
    tell("reset", read);
}

// The module has a managed variable, which both cards would have to share.
void two_cards() {
    OnCard<float> values(std::vector<float>(8, 1));
    scale<<<1, 8>>>(values.data);
    tell("first", cudaGetLastError());
    cudaSetDevice(1);
    OnCard<float> others(std::vector<float>(8, 1));
    scale<<<1, 8>>>(others.data);
    tell("second", cudaGetLastError());
    tell("ones", static_cast<long long>(others.host()[3]));
}

void replay() {
    const int n = 1000;
    OnCard<float> one(std::vector<float>(n, 1)), sum(n);
    cudaMemset(sum.data, 0, n * sizeof(float));
    cudaStream_t stream;
    cudaStreamCreate(&stream);
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
    {
        int count = n;  // gone when the graph runs
        add<<<4, 256, 0, stream>>>(one.data, sum.data, sum.data, count);
        add<<<4, 256, 0, stream>>>(sum.data, sum.data, sum.data, count);
    }
    cudaStreamEndCapture(stream, &graph);
    tell("before", static_cast<long long>(sum.host()[n - 1]));
    tell("made", cudaGraphInstantiate(&executable, graph, 0));
    for (int i = 0; i < 3; ++i) tell("launch", cudaGraphLaunch(executable, stream));
    cudaStreamSynchronize(stream);
    tell("sum", static_cast<long long>(sum.host()[n - 1]));  // 2 (s + 1), three times
    // The second node now adds ones, with arguments that were read back.
    cudaGraphNode_t nodes[2];
    size_t count = 2;
    cudaGraphGetNodes(graph, nodes, &count);
    cudaKernelNodeParams parameters;
    tell("read", cudaGraphKernelNodeGetParams(nodes[1], &parameters));
    void* changed[4];
    std::copy_n(parameters.kernelParams, 4, changed);
    const float* ones = one.data;
    changed[0] = &ones;
    parameters.kernelParams = changed;
    tell("set", cudaGraphExecKernelNodeSetParams(executable, nodes[1], &parameters));
    cudaGraphLaunch(executable, stream);
    tell("then", static_cast<long long>(sum.host()[n - 1]));
}

void moves() {
    // Pools, memory of the host that the card can reach, and rows.
    float* pooled = nullptr;
    cudaMallocAsync(&pooled, 64 * sizeof(float), nullptr);
    float* pinned = nullptr;
    cudaMallocHost(&pinned, 64 * sizeof(float));
    std::iota(pinned, pinned + 64, 0.0f);
    cudaMemcpyAsync(pooled, pinned, 64 * sizeof(float), cudaMemcpyDefault, nullptr);
    add<<<1, 64>>>(pooled, pinned, pinned, 64);
    cudaDeviceSynchronize();
    tell("pooled", static_cast<long long>(pinned[63]));
    OnCard<float> square(64);
    cudaMemcpy2D(square.data, 8 * sizeof(float), pinned, 16 * sizeof(float), 8 * sizeof(float), 4,
                 cudaMemcpyHostToDevice);
    tell("row", static_cast<long long>(square.host()[8 + 3]));  // pinned[16 + 3]
    cudaMemset2D(square.data, 8 * sizeof(float), 0, 4 * sizeof(float), 4);
    tell("cleared", static_cast<long long>(square.host()[8 + 3] + square.host()[8 + 4]));
    cudaFreeAsync(pooled, nullptr);

    // The same memory at two addresses.
    CUmemAllocationProp wanted = {};
    wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    const size_t size = 2 << 20;
    CUmemGenericAllocationHandle handle;
    CUdeviceptr first = 0, second = 0;
    cuMemCreate(&handle, size, &wanted, 0);
    for (CUdeviceptr* each : {&first, &second}) {
        cuMemAddressReserve(each, size, 0, 0, 0);
        cuMemMap(*each, size, 0, handle, 0);
        const CUmemAccessDesc access = {wanted.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
        cuMemSetAccess(*each, size, &access, 1);
    }
    cuMemsetD32(first, 1077936128, 64);  // 3.0f
    add<<<1, 64>>>(reinterpret_cast<float*>(first), reinterpret_cast<float*>(second), square.data, 64);
    tell("mapped", static_cast<long long>(square.host()[5]));

    // A large hole, of which one byte is written.
    char* hole = nullptr;
    tell("hole", cudaMalloc(&hole, size_t{20} << 30));
    cudaMemset(hole, 0, size_t{20} << 30);
    cudaMemset(hole + (size_t{20} << 30) - 1, 9, 1);
    char last = 0;
    cudaMemcpy(&last, hole + (size_t{20} << 30) - 1, 1, cudaMemcpyDeviceToHost);
    tell("last", last);
    char line[256];
    long long peak = -1;  // of this process's memory, in KiB
    std::FILE* file = std::fopen("/proc/self/status", "r");
    while (std::fgets(line, sizeof line, file) != nullptr) std::sscanf(line, "VmHWM: %lld", &peak);
    std::fclose(file);
    tell("peak", peak);
}

void launches_of_all_kinds() {
    OnCard<int> values(1024);
    int* data = values.data;
    void* arguments[] = {&data};
    tell("cooperative", cudaLaunchCooperativeKernel(together, 4, 256, arguments, 0, nullptr));
    tell("wrong", differing(values.host(), std::vector<int>(1024, 1023)));
    const int blocks = 1, threads = 1024;
    OnCard<float> ones(std::vector<float>(threads, 1)), sum(blocks);
    cudaFuncSetAttribute(reduce<true>, cudaFuncAttributeMaxDynamicSharedMemorySize, 64 << 10);
    reduce<true><<<blocks, threads, 64 << 10>>>(ones.data, sum.data);
    tell("64 KiB", cudaGetLastError());
    tell("sum", static_cast<long long>(sum.host()[0]));
    CUfunction function;
    cudaGetFuncBySymbol(&function, reinterpret_cast<const void*>(&add));
    struct {
        const float *a, *b;
        float* sum;
        int n;
    } packed = {ones.data, ones.data, ones.data, threads};
    // One size is right: the driver refuses the padding at the structure's end.
    size_t size = sizeof packed;
    void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                     CU_LAUNCH_PARAM_END};
    tell("padded", static_cast<long long>(
                       cuLaunchKernel(function, 4, 1, 1, 256, 1, 1, 0, nullptr, nullptr, extra)));
    size = offsetof(decltype(packed), n) + sizeof packed.n;
    tell("packed", static_cast<long long>(
                       cuLaunchKernel(function, 4, 1, 1, 256, 1, 1, 0, nullptr, nullptr, extra)));
    tell("ones", static_cast<long long>(ones.host()[1023]));
    say<<<1, 2>>>(41);
    tell("said", cudaDeviceSynchronize());
}

// PTX that the program has as text, which it frees at once.
void texts() {
    cudaFree(nullptr);
    CUmodule module;
    {
        const std::string text = R"(
            .version 8.0
            .target sm_90
            .address_size 64
            .visible .global .align 4 .u32 step = 5;
            .visible .entry bump(.param .u64 at) {
                .reg .u64 %rd<2>;
                .reg .u32 %r<4>;
                ld.param.u64 %rd1, [at];
                ld.global.u32 %r1, [%rd1];
                ld.global.u32 %r2, [step];
                add.u32 %r3, %r1, %r2;
                st.global.u32 [%rd1], %r3;
                ret;
            })";
        tell("load", static_cast<long long>(cuModuleLoadData(&module, text.c_str())));
    }
    CUfunction bump;
    cuModuleGetFunction(&bump, module, "bump");
    constexpr auto newer = static_cast<CUfunction_attribute>(CU_FUNC_ATTRIBUTE_MAX + 1);
    tell("newer attribute", static_cast<long long>(cuFuncSetAttribute(bump, newer, 1)));
    constexpr auto shared = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    tell("shared memory", static_cast<long long>(cuFuncSetAttribute(bump, shared, 64 << 10)));
    CUdeviceptr step = 0;
    size_t size = 0;
    tell("global", static_cast<long long>(cuModuleGetGlobal(&step, &size, module, "step")));
    tell("size", static_cast<long long>(size));
    OnCard<int> value(std::vector<int>{10});
    void* arguments[] = {&value.data};
    tell("first", static_cast<long long>(
                      cuLaunchKernel(bump, 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr)));
    cuMemsetD32(step, 100, 1);
    cuLaunchKernel(bump, 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr);
    tell("value", value.host()[0]);
}

// The largest difference from a product that the host computes in double precision, in thousandths of
// the largest element.
template <typename T>
long long off(const std::vector<T>& found, const std::vector<float>& a, const std::vector<float>& b,
              int m, int n, int k, bool transa) {
    double worst = 0, largest = 0;
    for (int column = 0; column < n; ++column) {
        for (int row = 0; row < m; ++row) {
            double sum = 0;
            for (int l = 0; l < k; ++l) sum += double{a[transa ? row * k + l : l * m + row]} * b[column * k + l];
            worst = std::max(worst, std::abs(sum - static_cast<double>(static_cast<float>(found[column * m + row]))));
            largest = std::max(largest, std::abs(sum));
        }
    }
    return std::lround(worst / largest * 1e6);
}

template <typename T>
std::vector<T> rounded(const std::vector<float>& from) {
    return {from.begin(), from.end()};
}
template <typename T>
std::vector<float> as_float(const std::vector<T>& from) {
    std::vector<float> to;
    for (const T& value : from) to.push_back(static_cast<float>(value));
    return to;
}

void products() {
    const int m = 65, n = 33, k = 130;
    const std::vector<float> a = numbers(m * k, 4), b = numbers(k * n, 5);
    OnCard<float> x(a), y(b), z(std::vector<float>(m * n, NAN));
    cublasHandle_t handle;
    cublasCreate(&handle);
    const float one = 1, zero = 0;
    tell("plain", cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, m, n, k, &one, x.data, m, y.data, k,
                              &zero, z.data, m));
    tell("millionths", off(z.host(), a, b, m, n, k, false));
    cublasSgemm(handle, CUBLAS_OP_T, CUBLAS_OP_N, m, n, k, &one, x.data, k, y.data, k, &zero, z.data, m);
    tell("millionths transposed", off(z.host(), a, b, m, n, k, true));
    const float two = 2, minus = -1;
    cublasSgemm(handle, CUBLAS_OP_T, CUBLAS_OP_N, m, n, k, &two, x.data, k, y.data, k, &minus, z.data, m);
    tell("millionths scaled", off(z.host(), a, b, m, n, k, true));

    const auto halves = rounded<__half>(a), other_halves = rounded<__half>(b);
    const std::vector<float> ha = as_float(halves), hb = as_float(other_halves);
    OnCard<__half> hx(halves), hy(other_halves), hz(m * n);
    tell("halves", cublasGemmEx(handle, CUBLAS_OP_T, CUBLAS_OP_N, m, n, k, &one, hx.data, CUDA_R_16F, k,
                                hy.data, CUDA_R_16F, k, &zero, z.data, CUDA_R_32F, m,
                                CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
    tell("millionths halves", off(z.host(), ha, hb, m, n, k, true));
    const __half half_one = 1.0f, half_zero = 0.0f;
    cublasGemmEx(handle, CUBLAS_OP_T, CUBLAS_OP_N, m, n, k, &half_one, hx.data, CUDA_R_16F, k, hy.data,
                 CUDA_R_16F, k, &half_zero, hz.data, CUDA_R_16F, m, CUBLAS_COMPUTE_16F,
                 CUBLAS_GEMM_DEFAULT);
    tell("millionths in halves", off(hz.host(), ha, hb, m, n, k, true));
    const auto brains = rounded<__nv_bfloat16>(a), other_brains = rounded<__nv_bfloat16>(b);
    OnCard<__nv_bfloat16> bx(brains), by(other_brains);
    cublasGemmEx(handle, CUBLAS_OP_T, CUBLAS_OP_N, m, n, k, &one, bx.data, CUDA_R_16BF, k, by.data,
                 CUDA_R_16BF, k, &zero, z.data, CUDA_R_32F, m, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
    tell("millionths bfloat16", off(z.host(), as_float(brains), as_float(other_brains), m, n, k, true));

    // Two products that share A, in a graph, by strides and by addresses.
    cudaStream_t stream;
    cudaStreamCreate(&stream);
    cublasSetStream(handle, stream);
    OnCard<float> both(std::vector<float>(2 * m * n, 0)), again(std::vector<float>(2 * m * n, 0));
    std::vector<float> second(b.rbegin(), b.rend()), pair = b;
    pair.insert(pair.end(), second.begin(), second.end());
    OnCard<float> ys(pair);
    OnCard<const float*> as(std::vector<const float*>{x.data, x.data});
    OnCard<const float*> bs(std::vector<const float*>{ys.data, ys.data + k * n});
    OnCard<float*> cs(std::vector<float*>{again.data, again.data + m * n});
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    cublasGemmStridedBatchedEx(handle, CUBLAS_OP_T, CUBLAS_OP_N, m, n, k, &one, x.data, CUDA_R_32F, k,
                               0, ys.data, CUDA_R_32F, k, k * n, &zero, both.data, CUDA_R_32F, m, m * n,
                               2, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
    cublasGemmBatchedEx(handle, CUBLAS_OP_T, CUBLAS_OP_N, m, n, k, &one,
                        reinterpret_cast<const void**>(as.data), CUDA_R_32F, k,
                        reinterpret_cast<const void**>(bs.data), CUDA_R_32F, k, &zero,
                        reinterpret_cast<void**>(cs.data), CUDA_R_32F, m, 2, CUBLAS_COMPUTE_32F,
                        CUBLAS_GEMM_DEFAULT);
    cudaStreamEndCapture(stream, &graph);
    tell("before", static_cast<long long>(both.host()[0]));
    cudaGraphInstantiate(&executable, graph, 0);
    tell("graph", cudaGraphLaunch(executable, stream));
    const std::vector<float> found = both.host();
    tell("millionths second", off(std::vector<float>(found.begin() + m * n, found.end()), a, second, m, n, k, true));
    tell("wrong", differing(found, again.host()));

    tell("vector", cublasSgemv(handle, CUBLAS_OP_T, k, m, &one, x.data, k, y.data, 1, &zero, z.data, 1));
    std::vector<float> column = z.host();
    column.resize(m);
    tell("millionths vector", off(column, a, b, m, 1, k, true));

    // L X = B, where L is A's lower triangle with ones: L X is B again.
    std::vector<float> lower(n * n);
    for (int i = 0; i < n; ++i) {
        for (int j = 0; j < n; ++j) lower[j * n + i] = i == j ? 1 : i > j ? a[j * n + i] / 64 : 0;
    }
    std::vector<float> sides(b.begin(), b.begin() + n * 4);
    OnCard<float> triangle(lower), solution(sides);
    OnCard<const float*> triangles(std::vector<const float*>{triangle.data});
    OnCard<float*> solutions(std::vector<float*>{solution.data});
    tell("solve", cublasStrsmBatched(handle, CUBLAS_SIDE_LEFT, CUBLAS_FILL_MODE_LOWER, CUBLAS_OP_N,
                                     CUBLAS_DIAG_NON_UNIT, n, 4, &one, triangles.data, n,
                                     solutions.data, n, 1));
    tell("millionths solved", off(sides, lower, solution.host(), n, 4, n, false));

    cublasLtHandle_t light;
    cublasLtCreate(&light);
    cublasLtMatmulDesc_t operation;
    cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    const cublasOperation_t transposed = CUBLAS_OP_T;
    cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed);
    cublasLtMatrixLayout_t of_a, of_b, of_d;
    cublasLtMatrixLayoutCreate(&of_a, CUDA_R_16F, k, m, k);
    cublasLtMatrixLayoutCreate(&of_b, CUDA_R_16F, k, n, k);
    cublasLtMatrixLayoutCreate(&of_d, CUDA_R_16F, m, n, m);
    tell("light", cublasLtMatmul(light, operation, &one, hx.data, of_a, hy.data, of_b, &zero, hz.data,
                                 of_d, hz.data, of_d, nullptr, nullptr, 0, stream));
    tell("millionths light", off(hz.host(), ha, hb, m, n, k, true));
    const cublasLtEpilogue_t relu = CUBLASLT_EPILOGUE_RELU;
    cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, &relu, sizeof relu);
    tell("not computed", cublasLtMatmul(light, operation, &one, hx.data, of_a, hy.data, of_b, &zero,
                                        hz.data, of_d, hz.data, of_d, nullptr, nullptr, 0, stream));

    OnCard<float*> outside(std::vector<float*>{again.data + m * n, again.data + m * n + 1});
    tell("outside", cublasSgemmBatched(handle, CUBLAS_OP_T, CUBLAS_OP_N, m, n, k, &one, as.data, k,
                                       bs.data, k, &zero, outside.data, m, 2));
}

// A kernel that fails loses the context, as on a card.
void beyond() {
    const int n = 1024;  // 4 KiB: the next allocation would follow at once
    OnCard<float> a(n), sum(n), other(n);
    add_beyond<<<5, 256>>>(a.data, sum.data, n);
    tell("launch", cudaGetLastError());
    tell("wait", cudaDeviceSynchronize());
    void* more = nullptr;
    tell("allocate", cudaMalloc(&more, 1));
    tell("reset", cudaDeviceReset());
    tell("allocate again", cudaMalloc(&more, 1));
}

void misaligned() {
    OnCard<float> out(4);
    odd<<<1, 1>>>(reinterpret_cast<const char*>(out.data), out.data);
    tell("launch", cudaGetLastError());
    tell("wait", cudaDeviceSynchronize());
}

// An instruction that the interpreter lacks: the kernel ends, and the card goes on.
void lacking() {
    OnCard<int> out(1);
    lacks<<<1, 1>>>(out.data);
    tell("launch", cudaGetLastError());
    tell("wait", cudaDeviceSynchronize());
}

// A tensor of 100 rows and 150 columns, whose rows are 160 apart; boxes begin before it and end behind.
void moves_tiles() {
    const int rows = 100, columns = 150, pitch = 160, count = 3;
    std::vector<__half> values(rows * pitch), wanted(values.size(), __half(0.0f));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 1000);
    OnCard<__half> from(values), to(wanted);
    for (int row = 0; row < rows; ++row) {
        for (int column = 0; column < columns; ++column) {
            const int i = row * pitch + column;
            wanted[i] = static_cast<float>(i % 1000 + (row + 5) % kRows);
        }
    }
    const auto encode = [&](CUtensorMap* map, void* data, cuuint64_t width, cuuint32_t edge) {
        const cuuint64_t sizes[] = {width, rows}, strides[] = {pitch * sizeof(__half)};
        const cuuint32_t box[] = {edge, kRows}, steps[] = {1, 1};
        return cuTensorMapEncodeTiled(map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 2, data, sizes, strides, box, steps,
                                      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                      CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    };
    CUtensorMap maps[2];
    tell("encode", encode(&maps[0], from.data, columns, kColumns) + encode(&maps[1], to.data, columns, kColumns));
    CUtensorMap refused;
    tell("no width", encode(&refused, from.data, 0, kColumns));
    tell("no multiple of 16 bytes", encode(&refused, from.data + 1, columns, kColumns));
    tell("wider than its swizzle", encode(&refused, from.data, columns, 128));
    tiles<<<(rows + 5 + kRows - 1) / kRows, 128>>>(maps[0], maps[1], count);
    tell("wait", cudaDeviceSynchronize());
    long long wrong = 0;
    const std::vector<__half> found = to.host();
    for (size_t i = 0; i < wanted.size(); ++i) wrong += __half2float(found[i]) != __half2float(wanted[i]);
    tell("wrong", wrong);
}

// Memory of the program that the card cannot reach.
void pageable() {
    std::vector<float> own(32, 1);
    OnCard<float> out(32);
    add<<<1, 32>>>(own.data(), own.data(), out.data, 32);
    tell("launch", cudaGetLastError());
    tell("wait", cudaDeviceSynchronize());
}

// 2 MiB of physical memory, mapped to addresses of the driver's.
float* mapped_memory() {
    const std::size_t size = 2 << 20;
    CUmemAllocationProp wanted = {};
    wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    CUdeviceptr space = 0;
    CUmemGenericAllocationHandle memory = 0;
    cuMemAddressReserve(&space, size, 0, 0, 0);
    cuMemCreate(&memory, size, &wanted, 0);
    tell("map", static_cast<cudaError_t>(cuMemMap(space, size, 0, memory, 0)));
    return reinterpret_cast<float*>(space);
}

// Fresh memory, memory that was freed before, memory of a pool, and mapped memory.
void reads_unwritten() {
    { OnCard<float> freed(std::vector<float>(32, 0)); }
    float* pooled = nullptr;
    tell("pool", cudaMallocAsync(&pooled, 32 * sizeof(float), nullptr));
    OnCard<float> fresh(32), out(64);
    int zeros = 0;
    float* const mapped = mapped_memory();
    for (float* const memory : {fresh.data, pooled, mapped}) {
        unwritten<<<1, 32>>>(memory, out.data);
        const char* const beside = memory == pooled ? "launch with the pool" : "launch";
        tell(memory == mapped ? "launch with the mapping" : beside, cudaDeviceSynchronize());
        for (const float value : out.host()) zeros += value == 0;
    }
    tell("zeros", zeros);
}

int main(int, char** words) {
    const std::map<std::string, void (*)()> cases = {
        {"adds", adds},
        {"reduces", reduces<true>},
        {"races", reduces<false>},
        {"counts", counts},
        {"variables", variables},
        {"two_cards", two_cards},
        {"replay", replay},
        {"moves", moves},
        {"launches", launches_of_all_kinds},
        {"texts", texts},
        {"products", products},
        {"beyond", beyond},
        {"misaligned", misaligned},
        {"lacking", lacking},
        {"pageable", pageable},
        {"tiles", moves_tiles},
        {"unwritten", reads_unwritten},
    };
    cases.at(words[1])();
    return 0;
}
