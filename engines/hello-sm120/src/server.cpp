#include <unistd.h>

#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <utility>

#include "api.h"
#include "build_info.h"
#include "check.h"
#include "hello_cuda.h"
#include "http.h"
#include "options.h"

namespace {

using namespace hello;

void print_version() {
    std::fprintf(stderr, "version: %s\nbuilt with CUDA %s for %s\n", kVersion, kCudaVersion,
                 kArchitectures);
}

struct Engine {
    std::unique_ptr<Backend> backend;
    Properties properties;
};

Engine cuda_engine(const Model& model) {
    Engine engine;
    engine.backend = cuda::make_backend(model);
    const cuda::Device device = cuda::query_device();
    engine.properties = {device.name, cuda::driver_version(), cuda::capability(device)};
    return engine;
}

// Throws BackendError if only a GPU would do and there is none that works.
Engine make_engine(const Model& model, DeviceChoice choice) {
    if (choice != DeviceChoice::cpu) {
        try {
            return cuda_engine(model);
        } catch (const BackendError& error) {
            if (choice == DeviceChoice::cuda) throw;
            std::fprintf(stderr, "cuda: %s, serving from the CPU\n", explain(error).c_str());
        }
    }
    return {make_cpu_backend(model), {"", cuda::driver_version(), ""}};
}

std::string url(const std::string& host, int port) {
    const bool v6 = host.find(':') != std::string::npos;
    return "http://" + (v6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

ExitCode serve(const Model& model, const Options& options) {
    // First, so that a stop while the GPU is being set up is not lost.
    const http::StopSignal stop;
    Engine engine = make_engine(model, options.device);
    Api api(std::move(engine.backend), std::move(engine.properties), options, stop.requested());
    http::Server server(options.host, options.port, stop,
                        [&api](const http::Request& request) { return api.handle(request); });
    std::printf("listening on %s\n", url(options.host, server.port()).c_str());
    std::fflush(stdout);
    // Threads that did not end still use the objects of this scope: they may not be destroyed.
    if (!server.run()) _exit(kExitOk);
    return kExitOk;
}

ExitCode run(const Options& options) {
    switch (options.action) {
        case Action::print_help: std::fputs(help_text().c_str(), stdout); return kExitOk;
        case Action::print_version: print_version(); return kExitOk;
        case Action::check: return run_check(make_model());
        default: return serve(make_model(), options);
    }
}

}  // namespace

int main(int argc, char** argv) {
    try {
        return run(parse_options(argc, argv));
    } catch (const UsageError& error) {
        std::fprintf(stderr, "error: %s\nSee hello-server --help.\n", error.what());
        return kExitUsage;
    } catch (const BackendError& error) {
        std::fprintf(stderr, "cuda: %s\n", explain(error).c_str());
        return exit_code(error);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "error: %s\n", error.what());
        return kExitFailure;
    }
}
