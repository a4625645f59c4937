#include "arg.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <vector>

#include "build-info.h"
#include "ggml.h"
#include "llama.h"
#include "mini/mini.h"

#ifdef LLAMA_USE_OPENSSL
#include <openssl/crypto.h>
#include <openssl/ssl.h>
#endif

namespace {

using strings = std::vector<std::string>;

struct common_arg {
    strings args;       // "-p" and "--prompt"
    std::string value;  // how --help calls it
    std::string help;
    std::function<void(const std::string&)> set;
    const char* environment = nullptr;

    common_arg& set_env(const char* name) {
        environment = name;
        return *this;
    }
};

const std::vector<ggml_type> kv_cache_types = {
    GGML_TYPE_F32,
    GGML_TYPE_F16,
    GGML_TYPE_Q8_0,
};

std::string joined(const strings& words, const char* between) {
    std::string text;
    for (const std::string& word : words) text += (text.empty() ? "" : between) + word;
    return text;
}

std::function<void(const std::string&)> one_of(const strings& allowed, std::string& target) {
    return [allowed, &target](const std::string& value) {
        for (const std::string& word : allowed) {
            if (word == value) target = value;
        }
        if (target != value) throw std::invalid_argument("unknown value " + value);
    };
}

int number_of(const std::string& text, const char* what) {
    char* end = nullptr;
    const long number = std::strtol(text.c_str(), &end, 10);
    if (text.empty() || *end != '\0' || number < 0 || number > 65535) {
        throw std::invalid_argument(text + " is no " + what);
    }
    return static_cast<int>(number);
}

strings kv_cache_names() {
    strings names;
    for (const ggml_type type : kv_cache_types) names.push_back(ggml_type_name(type));
    return names;
}

std::string get_all_kv_cache_types() { return joined(kv_cache_names(), ", "); }

std::vector<common_arg> options_of(common_params& params) {
    std::vector<common_arg> options;
    const auto add_opt = [&](const common_arg& known) { options.push_back(known); };
    add_opt(common_arg{
        {"-p", "--prompt"}, "PROMPT", "prompt to start with",
        [&](const std::string& value) { params.prompt = value; }
    });
    add_opt(common_arg{
        {"-ctk", "--cache-type-k"}, "TYPE",
        "KV cache data type for K\nallowed values: " + get_all_kv_cache_types() +
            "\n(default: f16)",
        one_of(kv_cache_names(), params.cache_type_k)
    }.set_env("LLAMA_ARG_CACHE_TYPE_K"));
    add_opt(common_arg{
        {"--spec-type"}, "[none|draft-mtp|ngram-simple]",
        "kind of speculative decoding without a draft model (default: none)",
        one_of({"none", "draft-mtp", "ngram-simple"}, params.spec_type)
    });
    add_opt(common_arg{
        {"-m", "--model"}, "FNAME", "model path to load",
        [&](const std::string& value) { params.model = value; }
    }.set_env("LLAMA_ARG_MODEL"));
    add_opt(common_arg{
        {"-c", "--ctx-size"}, "N", "size of the prompt context", [](const std::string&) {}
    }.set_env("LLAMA_ARG_CTX_SIZE"));
    add_opt(common_arg{
        {"--host"}, "HOST", "address to listen on (default: 127.0.0.1)",
        [&](const std::string& value) { params.host = value; }
    }.set_env("LLAMA_ARG_HOST"));
    add_opt(common_arg{
        {"--port"}, "PORT", "port to listen on (default: 8080)",
        [&](const std::string& value) { params.port = number_of(value, "port"); }
    }.set_env("LLAMA_ARG_PORT"));
    add_opt(common_arg{
        {"-ngl", "--n-gpu-layers"}, "N", "layers to put on the GPU (default: all)",
        [&](const std::string& value) { params.gpu_layers = number_of(value, "number"); }
    }.set_env("LLAMA_ARG_N_GPU_LAYERS"));
    add_opt(common_arg{
        {"-lv", "--verbosity"}, "N", "how much is logged", [](const std::string&) {}
    }.set_env("LLAMA_LOG_VERBOSITY"));
    return options;
}

// "-p,    --prompt PROMPT": long names line up.
std::string signature(const common_arg& known) {
    std::string text = known.args.size() > 1 ? known.args.front() + "," : "";
    if (!text.empty()) text.resize(7, ' ');
    return text + known.args.back() + " " + known.value;
}

// Names to the left of column 40, the text to its right; a long name has a line of its own.
void print_option(const std::string& names, const std::string& text) {
    constexpr std::size_t column = 40;
    const std::string margin(column, ' ');
    std::string line = names.size() < column ? names + margin.substr(names.size())
                                             : names + "\n" + margin;
    for (const char c : text) line += c == '\n' ? "\n" + margin : std::string(1, c);
    std::printf("%s\n", line.c_str());
}

void print_help(const std::vector<common_arg>& options) {
    std::printf("----- common params -----\n\n");
    print_option("-h,    --help, --usage", "print usage and exit");
    print_option("--version", "show version and build info");
    for (const common_arg& known : options) {
        std::string text = known.help;
        if (known.environment) text += std::string("\n(env: ") + known.environment + ")";
        print_option(signature(known), text);
    }
}

void print_version() {
    std::fprintf(stderr, "version: %d (%s)\n", LLAMA_BUILD_NUMBER, LLAMA_BUILD_COMMIT);
    std::fprintf(stderr, "built with %s for %s\n", LLAMA_COMPILER, LLAMA_BUILD_TARGET);
    std::fprintf(stderr, "flash attention: heads up to %d\n", ggml_backend_largest_head());
    std::fprintf(stderr, "vendored: %s\n", MINI_NAME);
#ifdef LLAMA_USE_OPENSSL
    OPENSSL_init_ssl(0, nullptr);
    std::fprintf(stderr, "https: %s\n", OpenSSL_version(OPENSSL_VERSION));
#endif
}

const common_arg& find(const std::vector<common_arg>& options, const std::string& name) {
    for (const common_arg& known : options) {
        for (const std::string& arg : known.args) {
            if (name == arg) return known;
        }
    }
    throw std::invalid_argument("invalid argument: " + name);
}

std::optional<int> parse(int argc, char** argv, common_params& params) {
    // First of all, as in llama.cpp: what it says of the GPU stands above what --help prints.
    llama_device();
    const std::vector<common_arg> options = options_of(params);
    for (const common_arg& known : options) {
        const char* value = known.environment ? std::getenv(known.environment) : nullptr;
        if (value) known.set(value);
    }
    for (int i = 1; i < argc; ++i) {
        const std::string name = argv[i];
        if (name == "-h" || name == "--help" || name == "--usage") {
            print_help(options);
            return 0;
        }
        if (name == "--version") {
            print_version();
            return 0;
        }
        const common_arg& known = find(options, name);
        if (++i == argc) throw std::invalid_argument("expected value for argument " + name);
        known.set(argv[i]);
    }
    return std::nullopt;
}

}  // namespace

std::optional<int> common_params_parse(int argc, char** argv, common_params& params) {
    try {
        return parse(argc, argv, params);
    } catch (const std::invalid_argument& error) {
        std::fprintf(stderr, "error: %s\n", error.what());
        return 1;
    }
}
