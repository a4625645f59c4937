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

struct option {
    std::string brief;  // "-p", or empty
    std::string name;
    std::string value;        // how --help calls it
    const char* environment;  // may be null
    std::string help;
    std::function<void(const std::string&)> set;
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

std::vector<option> options_of(common_params& params) {
    strings types;
    for (int i = 0; ggml_type_names[i] != nullptr; ++i) types.push_back(ggml_type_names[i]);
    const strings spec_types = {"none", "draft-mtp", "ngram-simple"};
    return {
        {"-p", "--prompt", "PROMPT", nullptr, "prompt to start with",
         [&](const std::string& value) { params.prompt = value; }},
        {"-ctk", "--cache-type-k", "TYPE", "LLAMA_ARG_CACHE_TYPE_K",
         "KV cache data type for K\nallowed values: " + joined(types, ", ") + "\n(default: f16)",
         one_of(types, params.cache_type_k)},
        {"", "--spec-type", "[" + joined(spec_types, "|") + "]", nullptr,
         "kind of speculative decoding without a draft model (default: none)",
         one_of(spec_types, params.spec_type)},
        {"-m", "--model", "FNAME", "LLAMA_ARG_MODEL", "model path to load",
         [&](const std::string& value) { params.model = value; }},
        {"-c", "--ctx-size", "N", "LLAMA_ARG_CTX_SIZE", "size of the prompt context",
         [](const std::string&) {}},
        {"", "--host", "HOST", "LLAMA_ARG_HOST", "address to listen on (default: 127.0.0.1)",
         [&](const std::string& value) { params.host = value; }},
        {"", "--port", "PORT", "LLAMA_ARG_PORT", "port to listen on (default: 8080)",
         [&](const std::string& value) { params.port = number_of(value, "port"); }},
        {"-ngl", "--n-gpu-layers", "N", "LLAMA_ARG_N_GPU_LAYERS",
         "layers to put on the GPU (default: all)",
         [&](const std::string& value) { params.gpu_layers = number_of(value, "number"); }},
        {"-lv", "--verbosity", "N", "LLAMA_LOG_VERBOSITY", "how much is logged",
         [](const std::string&) {}},
    };
}

// "-p,    --prompt PROMPT": long names line up.
std::string signature(const option& known) {
    std::string text = known.brief.empty() ? "" : known.brief + ",";
    if (!text.empty()) text.resize(7, ' ');
    return text + known.name + " " + known.value;
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

void print_help(const std::vector<option>& options) {
    std::printf("----- common params -----\n\n");
    print_option("-h,    --help, --usage", "print usage and exit");
    print_option("--version", "show version and build info");
    for (const option& known : options) {
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

const option& find(const std::vector<option>& options, const std::string& name) {
    for (const option& known : options) {
        if (name == known.name || (!name.empty() && name == known.brief)) return known;
    }
    throw std::invalid_argument("invalid argument: " + name);
}

std::optional<int> parse(int argc, char** argv, common_params& params) {
    // First of all, as in llama.cpp: what it says of the GPU stands above what --help prints.
    llama_device();
    const std::vector<option> options = options_of(params);
    for (const option& known : options) {
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
        const option& known = find(options, name);
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
