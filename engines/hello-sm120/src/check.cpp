#include "check.h"

#include <atomic>
#include <cstddef>
#include <cstdio>

#include "build_info.h"
#include "hello_cuda.h"

namespace hello {

namespace {

constexpr int kTokens = 256;
constexpr const char* kPrompt = "hello, sm_120";

void print_line(const char* name, const std::string& value) {
    std::printf("%-12s%s\n", name, value.c_str());
    // Lines that were printed show how far it got, should the next call never return.
    std::fflush(stdout);
}

std::string mebibytes(std::size_t bytes) { return std::to_string(bytes >> 20) + " MiB"; }

void print_versions() {
    const std::string driver = cuda::driver_version();
    print_line("driver", driver.empty() ? "none" : "for CUDA up to " + driver);
    print_line("runtime", "CUDA " + cuda::runtime_version());
    print_line("built with", std::string("CUDA ") + kCudaVersion + " for " + kArchitectures +
                             (cuda::built_with_vmm() ? "" : ", no driver calls"));
}

void print_device(const cuda::Device& device) {
    print_line("device", device.name + " (first of " + std::to_string(device.count) + ")");
    print_line("capability", cuda::capability(device));
    print_line("memory", mebibytes(device.total_bytes) + ", " + mebibytes(device.free_bytes) +
                             " free");
}

std::string greedy_text(Backend& backend) {
    const std::atomic<bool> never{false};
    return generate(backend, kPrompt, kTokens, Sampling::greedy, never).text;
}

ExitCode compare_with_cpu(const Model& model) {
    const std::string gpu = greedy_text(*cuda::make_backend(model));
    const std::string cpu = greedy_text(*make_cpu_backend(model));
    if (gpu != cpu) {
        print_line("kernels", "wrong: the GPU's text differs from the CPU's");
        print_line("gpu", gpu);
        print_line("cpu", cpu);
        return kExitFailure;
    }
    print_line("kernels", std::to_string(kTokens) + " tokens, the same as on the CPU");
    std::puts("OK");
    return kExitOk;
}

// Returns what the device is and what the binary was built for.
std::string missing_code() {
    std::string device;
    try {
        const cuda::Device found = cuda::query_device();
        device = found.name + " has compute capability " + cuda::capability(found);
    } catch (const BackendError&) {
        device = "the device's compute capability is unknown";
    }
    return device + ", this binary has code for " + kArchitectures;
}

}  // namespace

std::string explain(const BackendError& error) {
    const std::string reason = error.what();
    switch (error.kind()) {
        case BackendError::Kind::no_kernel_image:
            return reason + ": " + missing_code();
        case BackendError::Kind::no_device:
            // CUDA calls a missing driver one of an insufficient version.
            return cuda::driver_version().empty() ? reason + " (no driver was found)" : reason;
        default:
            return reason;
    }
}

ExitCode exit_code(const BackendError& error) {
    switch (error.kind()) {
        case BackendError::Kind::no_device: return kExitNoDevice;
        case BackendError::Kind::no_kernel_image: return kExitNoKernelImage;
        default: return kExitFailure;
    }
}

ExitCode run_check(const Model& model) {
    try {
        print_versions();
        print_device(cuda::query_device());
        return compare_with_cpu(model);
    } catch (const BackendError& error) {
        print_line("cuda", explain(error));
        std::puts("hello-server would serve from the CPU here.");
        return exit_code(error);
    }
}

}  // namespace hello
