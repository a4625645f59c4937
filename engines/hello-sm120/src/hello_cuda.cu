#include "hello_cuda.h"

#include <cublas_v2.h>

#include <algorithm>

#include "cuda_error.h"
#include "device_memory.h"
#include "kernels.h"

namespace hello::cuda {

namespace {

void check_cublas(cublasStatus_t status) {
    if (status == CUBLAS_STATUS_SUCCESS) return;
    const auto kind = status == CUBLAS_STATUS_ARCH_MISMATCH ? BackendError::Kind::no_kernel_image
                                                            : BackendError::Kind::failed;
    throw BackendError(kind, std::string("cuBLAS: ") + cublasGetStatusString(status));
}

// CUDA packs 13.0 as 13000.
std::string version_text(int version) {
    return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

// Makes the first visible device current, which creates its context.
void select_device() {
    int count = 0;
    check(cudaGetDeviceCount(&count));
    if (count == 0) check(cudaErrorNoDevice);
    check(cudaSetDevice(0));
}

class Stream {
public:
    Stream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
    ~Stream() { cudaStreamDestroy(stream_); }
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;

    cudaStream_t get() const { return stream_; }

    // Waits for all that was launched. Faults of the kernels come out here.
    void wait() const { check(cudaStreamSynchronize(stream_)); }

private:
    cudaStream_t stream_ = nullptr;
};

class Blas {
public:
    explicit Blas(cudaStream_t stream) {
        check_cublas(cublasCreate(&handle_));
        const cublasStatus_t status = cublasSetStream(handle_, stream);
        if (status != CUBLAS_STATUS_SUCCESS) cublasDestroy(handle_);
        check_cublas(status);
    }
    ~Blas() { cublasDestroy(handle_); }
    Blas(const Blas&) = delete;
    Blas& operator=(const Blas&) = delete;

    // result = matrix * vector, for a row-major matrix of size x size in device memory.
    void multiply(const float* matrix, const float* vector, float* result, int size) const {
        const float one = 1;
        const float zero = 0;
        // cuBLAS reads column-major, so our matrix looks transposed to it.
        check_cublas(cublasSgemv(handle_, CUBLAS_OP_T, size, size, &one, matrix, size, vector, 1,
                                 &zero, result, 1));
    }

private:
    cublasHandle_t handle_ = nullptr;
};

std::size_t bytes_needed(const Model& model) {
    const auto size = DeviceMemory::bytes_for;
    return size(model.embedding.size()) + size(model.recurrent.size()) +
           size(model.output.size()) + size(model.bias.size()) + 2 * size(kHidden) +
           size(kVocabulary) + size(sizeof(StepOutput) / sizeof(float));
}

class CudaBackend : public Backend {
public:
    explicit CudaBackend(const Model& model)
        : blas_(stream_.get()),
          memory_(bytes_needed(model)),
          embedding_(upload(model.embedding)),
          recurrent_(upload(model.recurrent)),
          output_(upload(model.output)),
          bias_(upload(model.bias)),
          state_(memory_.floats(kHidden)),
          product_(memory_.floats(kHidden)),
          logits_(memory_.floats(kVocabulary)),
          result_(reinterpret_cast<StepOutput*>(
              memory_.floats(sizeof(StepOutput) / sizeof(float)))) {
        reset();
    }

    const char* name() const override { return "cuda"; }

    void reset() override {
        check(cudaMemsetAsync(state_, 0, kHidden * sizeof(float), stream_.get()));
        stream_.wait();
    }

    Step step(int symbol) override {
        blas_.multiply(recurrent_, state_, product_, kHidden);
        launch_update_state(embedding_ + symbol * kHidden, product_, state_, stream_.get());
        launch_logits(output_, bias_, state_, logits_, stream_.get());
        launch_softmax(logits_, result_, stream_.get());
        StepOutput output = {};
        check(cudaMemcpyAsync(&output, result_, sizeof output, cudaMemcpyDeviceToHost,
                              stream_.get()));
        stream_.wait();
        Step result;
        result.best = output.best;
        std::copy_n(output.probabilities, kVocabulary, result.probabilities.begin());
        return result;
    }

private:
    float* upload(const std::vector<float>& values) {
        float* device = memory_.floats(values.size());
        check(cudaMemcpyAsync(device, values.data(), values.size() * sizeof(float),
                              cudaMemcpyHostToDevice, stream_.get()));
        return device;
    }

    // In this order: memory is given back before the stream that works on it goes.
    Stream stream_;
    Blas blas_;
    DeviceMemory memory_;
    const float* embedding_;
    const float* recurrent_;
    const float* output_;
    const float* bias_;
    float* state_;
    float* product_;
    float* logits_;
    StepOutput* result_;
};

}  // namespace

std::string driver_version() {
    int version = 0;
    const bool known = cudaDriverGetVersion(&version) == cudaSuccess && version > 0;
    return known ? version_text(version) : "";
}

std::string runtime_version() {
    int version = 0;
    check(cudaRuntimeGetVersion(&version));
    return version_text(version);
}

Device query_device() {
    select_device();
    Device device;
    check(cudaGetDeviceCount(&device.count));
    cudaDeviceProp properties = {};
    check(cudaGetDeviceProperties(&properties, 0));
    device.name = properties.name;
    device.capability_major = properties.major;
    device.capability_minor = properties.minor;
    check(cudaMemGetInfo(&device.free_bytes, &device.total_bytes));
    return device;
}

std::string capability(const Device& device) {
    return std::to_string(device.capability_major) + "." + std::to_string(device.capability_minor);
}

std::unique_ptr<Backend> make_backend(const Model& model) {
    select_device();
    // First, so that missing code is told apart from a cuBLAS or memory fault.
    require_kernel_image();
    return std::make_unique<CudaBackend>(model);
}

}  // namespace hello::cuda
