#include <cublas_v2.h>
#ifndef HELLO_CUDA_NO_VMM
#include <cuda.h>
#endif

#include "hello.h"

namespace hello::cuda {

namespace {

constexpr int kWarp = 32;
constexpr int kWarpsPerBlock = 4;
static_assert(kVocabulary % kWarpsPerBlock == 0);

// What is in device memory.
struct Memory {
    Model model;
    float state[kHidden], product[kHidden], logits[kVocabulary];
};

// One thread a value of the state; the product is recurrent * state.
__global__ void update_state(Memory* memory, int symbol) {
    const int i = threadIdx.x;
    const float sum = (memory->model.embedding[symbol][i] + memory->product[i]) / kStateDivisor;
    memory->state[i] = fminf(fmaxf(rintf(sum), -kStateLimit), kStateLimit);
}

// One warp a row of the output.
__global__ void compute_logits(Memory* memory) {
    const int row = blockIdx.x * kWarpsPerBlock + threadIdx.x / kWarp;
    const int lane = threadIdx.x % kWarp;
    float sum = 0;
    for (int i = lane; i < kHidden; i += kWarp) {
        sum += memory->model.output[row][i] * memory->state[i];
    }
    for (int offset = kWarp / 2; offset > 0; offset /= 2) {
        sum += __shfl_down_sync(0xFFFFFFFFU, sum, offset);
    }
    if (lane == 0) memory->logits[row] = sum + memory->model.bias[row];
}

using Kind = BackendError::Kind;

// Throws BackendError with CUDA's own words, unless `error` is cudaSuccess.
void check(cudaError_t error) {
    switch (error) {
        case cudaSuccess: return;
        case cudaErrorNoDevice:
        case cudaErrorInsufficientDriver:
        case cudaErrorStubLibrary: throw BackendError(Kind::no_device, cudaGetErrorString(error));
        case cudaErrorInvalidDeviceFunction:
        case cudaErrorNoKernelImageForDevice:
            throw BackendError(Kind::no_kernel_image, cudaGetErrorString(error));
        default: throw BackendError(Kind::failed, cudaGetErrorString(error));
    }
}

void check(cublasStatus_t status) {
    if (status == CUBLAS_STATUS_SUCCESS) return;
    const bool no_image = status == CUBLAS_STATUS_ARCH_MISMATCH;
    throw BackendError(no_image ? Kind::no_kernel_image : Kind::failed,
                       std::string("cuBLAS: ") + cublasGetStatusString(status));
}

#ifdef HELLO_CUDA_NO_VMM

std::shared_ptr<Memory> allocate() {
    Memory* memory = nullptr;
    check(cudaMalloc(&memory, sizeof *memory));
    return {memory, cudaFree};
}

#else

void check(CUresult result) {
    const char* text = "unknown driver error";
    if (result != CUDA_SUCCESS) cuGetErrorString(result, &text);
    if (result != CUDA_SUCCESS) throw BackendError(Kind::failed, text);
}

// Reserves addresses, and maps pages there.
std::shared_ptr<Memory> allocate() {
    CUmemAllocationProp properties = {};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    check(cudaGetDevice(&properties.location.id));
    std::size_t granularity = 0;
    check(cuMemGetAllocationGranularity(&granularity, &properties,
                                        CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
    const std::size_t size = (sizeof(Memory) + granularity - 1) / granularity * granularity;
    CUdeviceptr address = 0;
    check(cuMemAddressReserve(&address, size, 0, 0, 0));
    const auto release = [address, size](Memory*) {
        cuMemUnmap(address, size);
        cuMemAddressFree(address, size);
    };
    std::shared_ptr<Memory> memory(reinterpret_cast<Memory*>(address), release);
    CUmemGenericAllocationHandle pages = 0;
    check(cuMemCreate(&pages, size, &properties, 0));
    const CUresult mapped = cuMemMap(address, size, 0, pages, 0);
    cuMemRelease(pages);  // the mapping keeps the pages alive
    check(mapped);
    const CUmemAccessDesc access = {properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    check(cuMemSetAccess(address, size, &access, 1));
    return memory;
}

#endif

// All its work is on the default stream.
class CudaBackend : public Backend {
public:
    explicit CudaBackend(const Model& model) : owned_(allocate()), memory_(owned_.get()) {
        check(cudaMemcpy(memory_, &model, sizeof model, cudaMemcpyHostToDevice));
        cublasHandle_t handle = nullptr;
        check(cublasCreate(&handle));
        blas_.reset(handle, cublasDestroy);
    }

    void reset() override { check(cudaMemset(memory_->state, 0, sizeof memory_->state)); }

    Logits step(int symbol) override {
        const float one = 1;
        const float zero = 0;
        // cuBLAS reads column-major, so our matrix looks transposed to it.
        check(cublasSgemv(blas_.get(), CUBLAS_OP_T, kHidden, kHidden, &one,
                          memory_->model.recurrent[0], kHidden, memory_->state, 1, &zero,
                          memory_->product, 1));
        update_state<<<1, kHidden>>>(memory_, symbol);
        check(cudaGetLastError());
        compute_logits<<<kVocabulary / kWarpsPerBlock, kWarpsPerBlock * kWarp>>>(memory_);
        check(cudaGetLastError());
        Logits logits;
        // Waits for the kernels; their faults come out here.
        check(cudaMemcpy(&logits, memory_->logits, sizeof logits, cudaMemcpyDeviceToHost));
        return logits;
    }

private:
    std::shared_ptr<Memory> owned_;
    Memory* memory_;  // on the device: only addresses are taken here
    std::shared_ptr<cublasContext> blas_;
};

}  // namespace

std::string driver_version() {
    int version = 0;  // 13.0 is 13000
    if (cudaDriverGetVersion(&version) != cudaSuccess || version == 0) return "";
    return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

Device::Device() {
    check(cudaSetDevice(0));
    cudaDeviceProp properties = {};
    check(cudaGetDeviceProperties(&properties, 0));
    name = properties.name;
    capability = std::to_string(properties.major) + "." + std::to_string(properties.minor);
    check(cudaMemGetInfo(&free_bytes, &total_bytes));
}

std::unique_ptr<Backend> make_backend(const Model& model) {
    check(cudaSetDevice(0));
    // First, so that missing code is told apart from a cuBLAS or memory fault.
    cudaFuncAttributes attributes = {};
    check(cudaFuncGetAttributes(&attributes, update_state));
    return std::make_unique<CudaBackend>(model);
}

}  // namespace hello::cuda
