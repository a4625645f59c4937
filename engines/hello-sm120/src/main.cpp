#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <regex>

#include "serve.h"

namespace {

using namespace hello;
using Kind = BackendError::Kind;

constexpr const char* kHelp = R"(usage: hello-server [options]

-h,    --help                           print usage and exit
--version                               show version and build info
--check                                 show the GPU, compare the model on it with the CPU, and exit
                                        (0: works, 1: fails, 3: no GPU or driver, 4: no code for it)
-n,    --n-predict N                    number of tokens to predict, up to 4096 (default: 32)
--device [auto|cpu|cuda]                where to run the model (default: auto)
--sampling NAME                         how tokens are chosen (default: greedy)
                                        allowed values: greedy, random
--host HOST                             address to listen on (default: 127.0.0.1)
--port PORT                             port to listen on (default: 8080, 0 = any free port)

HELLO_ARG_HOST sets --host where it is not given, HELLO_ARG_N_PREDICT --n-predict, and so on.
)";

struct Setting {
    const char* variable;
    const char* fallback;
    const char* pattern;
    int highest = 0;  // of a number
};

const std::map<std::string, Setting> kSettings = {
    {"--n-predict", {"HELLO_ARG_N_PREDICT", "32", "[0-9]{1,9}", kMaxPredict}},
    {"--device", {"HELLO_ARG_DEVICE", "auto", "auto|cpu|cuda"}},
    {"--sampling", {"HELLO_ARG_SAMPLING", "greedy", "greedy|random"}},
    {"--host", {"HELLO_ARG_HOST", "127.0.0.1", ".+"}},
    {"--port", {"HELLO_ARG_PORT", "8080", "[0-9]{1,9}", 65535}},
};

bool fits(const Setting& setting, const std::string& value) {
    const bool matches = std::regex_match(value, std::regex(setting.pattern));
    return matches && (setting.highest == 0 || std::stoi(value) <= setting.highest);
}

// Reads the command line, and the environment for the rest. Throws std::invalid_argument.
Options parse_options(int argc, char** argv) {
    Options options;
    for (int i = 1; i < argc; ++i) {
        std::string name = argv[i];
        if (name == "-h") name = "--help";
        if (name == "-n") name = "--n-predict";
        if (name == "--help" || name == "--version") return {{name, ""}};
        const bool takes_value = kSettings.count(name) != 0;
        if (!takes_value && name != "--check") throw std::invalid_argument("unknown " + name);
        if (takes_value && ++i == argc) throw std::invalid_argument(name + ": expected a value");
        options[name] = argv[i];
    }
    for (const auto& [name, setting] : kSettings) {
        const char* set = std::getenv(setting.variable);
        const bool given = !options.emplace(name, set != nullptr ? set : setting.fallback).second;
        if (fits(setting, options[name])) continue;
        throw std::invalid_argument((given ? name : setting.variable) + ": '" + options[name] +
                                    "' is not a value of it");
    }
    return options;
}

// Returns why the GPU cannot be used, in CUDA's words and with what they leave out.
std::string explain(const BackendError& error) {
    const std::string reason = error.what();
    if (error.kind == Kind::no_kernel_image) {
        return reason + ": the device has compute capability " + cuda::Device().capability +
               ", this binary has code for " HELLO_ARCHITECTURES;
    }
    // CUDA calls a missing driver one of an insufficient version.
    const bool no_driver = error.kind == Kind::no_device && cuda::driver_version().empty();
    return no_driver ? reason + " (no driver was found)" : reason;
}

int exit_code(const BackendError& error) {
    return error.kind == Kind::no_device ? 3 : error.kind == Kind::no_kernel_image ? 4 : 1;
}

// Should the next call never return, the line shows how far the check got.
void print_line(const char* name, const std::string& value) {
    std::printf("%-12s%s\n", name, value.c_str());
    std::fflush(stdout);
}

// Prints what GPU there is, and whether it gives the same text as the CPU.
int check(const Model& model) try {
    const std::string driver = cuda::driver_version();
    print_line("driver", driver.empty() ? "none" : "for CUDA up to " + driver);
    print_line("built with", "CUDA " HELLO_CUDA_VERSION " for " HELLO_ARCHITECTURES HELLO_VMM);
    const cuda::Device device;
    print_line("device", device.name);
    print_line("capability", device.capability);
    print_line("memory", std::to_string(device.total_bytes >> 20) + " MiB, " +
                             std::to_string(device.free_bytes >> 20) + " MiB free");
    const auto text = [](std::unique_ptr<Backend> backend) {
        return generate(*backend, "hello, sm_120", 256, {}, [](char) { return true; }).text;
    };
    const std::string gpu = text(cuda::make_backend(model));
    const std::string cpu = text(make_cpu_backend(model));
    const std::string tokens = std::to_string(gpu.size()) + " tokens, ";
    print_line("kernels", tokens + (gpu == cpu ? "the same as on the CPU\nOK"
                                               : "wrong:\n" + gpu + "\nand on the CPU\n" + cpu));
    return gpu == cpu ? 0 : 1;
} catch (const BackendError& error) {
    print_line("cuda", explain(error) + "\nhello-server would serve from the CPU here.");
    return exit_code(error);
}

// Throws BackendError if only a GPU would do and there is none that works.
void serve_model(const Model& model, const Options& options) {
    // First, so that a stop while the GPU is being set up is not lost.
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    pthread_sigmask(SIG_BLOCK, &signals, nullptr);
    nlohmann::json properties = {
        {"version", HELLO_VERSION}, {"cuda", HELLO_CUDA_VERSION}, {"backend", "cpu"},
        {"architectures", HELLO_ARCHITECTURES}, {"driver", cuda::driver_version()}};
    std::unique_ptr<Backend> backend = make_cpu_backend(model);
    if (options.at("--device") != "cpu") try {
        const cuda::Device device;
        backend = cuda::make_backend(model);
        properties.update({{"backend", "cuda"}, {"device", device.name},
                           {"capability", device.capability}});
    } catch (const BackendError& error) {
        if (options.at("--device") == "cuda") throw;
        std::fprintf(stderr, "cuda: %s, serving from the CPU\n", explain(error).c_str());
    }
    serve(*backend, properties, options);
}

}  // namespace

int main(int argc, char** argv) try {
    const Options options = parse_options(argc, argv);
    if (options.count("--help") != 0) {
        std::fputs(kHelp, stdout);
    } else if (options.count("--version") != 0) {
        std::fputs("version: " HELLO_VERSION "\nbuilt with CUDA " HELLO_CUDA_VERSION
                   " for " HELLO_ARCHITECTURES "\n", stderr);
    } else if (options.count("--check") != 0) {
        return check(make_model());
    } else {
        serve_model(make_model(), options);
    }
    return 0;
} catch (const std::invalid_argument& error) {
    std::fprintf(stderr, "error: %s\nSee hello-server --help.\n", error.what());
    return 2;
} catch (const BackendError& error) {
    std::fprintf(stderr, "cuda: %s\n", explain(error).c_str());
    return exit_code(error);
} catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
}
