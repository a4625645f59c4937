#include "options.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdlib>
#include <string_view>
#include <system_error>
#include <vector>

namespace hello {

namespace {

struct Option {
    const char* section;
    std::vector<std::string_view> names;
    const char* value;  // how the help shows it; nullptr for a flag
    const char* help;   // lines
    const char* environment;
    void (*apply)(Options&, const std::string& value);
};

int parse_number(const std::string& text, int lowest, int highest) {
    int number = 0;
    const char* end = text.data() + text.size();
    const auto [stopped, error] = std::from_chars(text.data(), end, number);
    if (error != std::errc() || stopped != end || number < lowest || number > highest) {
        throw UsageError("'" + text + "' is not a number from " + std::to_string(lowest) + " to " +
                         std::to_string(highest));
    }
    return number;
}

DeviceChoice parse_device(const std::string& text) {
    if (text == "auto") return DeviceChoice::automatic;
    if (text == "cpu") return DeviceChoice::cpu;
    if (text == "cuda") return DeviceChoice::cuda;
    throw UsageError("'" + text + "' is none of auto, cpu, cuda");
}

Sampling parse_sampling(const std::string& text) {
    if (text == "greedy") return Sampling::greedy;
    if (text == "random") return Sampling::random;
    throw UsageError("'" + text + "' is none of greedy, random");
}

std::string parse_host(const std::string& text) {
    if (text.empty()) throw UsageError("a host cannot be empty");
    return text;
}

const std::vector<Option>& all_options() {
    static const std::vector<Option> options = {
        {"common params", {"-h", "--help", "--usage"}, nullptr, "print usage and exit", nullptr,
         [](Options& options, const std::string&) { options.action = Action::print_help; }},
        {"common params", {"--version"}, nullptr, "show version and build info", nullptr,
         [](Options& options, const std::string&) { options.action = Action::print_version; }},
        {"common params", {"--check"}, nullptr,
         "show the GPU, run the model on it, compare with the CPU, and exit\n"
         "(exit code 0: works, 1: fails, 3: no GPU or driver,\n"
         "4: no code for this GPU in the binary)", nullptr,
         [](Options& options, const std::string&) { options.action = Action::check; }},
        {"common params", {"-n", "--predict", "--n-predict"}, "N",
         "number of tokens to predict, up to 4096 (default: 32)", "HELLO_ARG_N_PREDICT",
         [](Options& options, const std::string& value) {
             options.predict = parse_number(value, 0, kMaxPredict);
         }},
        {"common params", {"--device"}, "[auto|cpu|cuda]",
         "where to run the model (default: auto, the GPU if there is one)", "HELLO_ARG_DEVICE",
         [](Options& options, const std::string& value) { options.device = parse_device(value); }},
        {"sampling params", {"--sampling"}, "NAME",
         "how the next token is chosen (default: greedy)\n"
         "allowed values: greedy, random", "HELLO_ARG_SAMPLING",
         [](Options& options, const std::string& value) {
             options.sampling = parse_sampling(value);
         }},
        {"example-specific params", {"--host"}, "HOST",
         "address to listen on (default: 127.0.0.1)", "HELLO_ARG_HOST",
         [](Options& options, const std::string& value) { options.host = parse_host(value); }},
        {"example-specific params", {"--port"}, "PORT",
         "port to listen on (default: 8080, 0 = any free port)", "HELLO_ARG_PORT",
         [](Options& options, const std::string& value) {
             options.port = parse_number(value, 0, 65535);
         }},
    };
    return options;
}

const Option& find_option(std::string_view name) {
    for (const Option& option : all_options()) {
        const auto& names = option.names;
        if (std::find(names.begin(), names.end(), name) != names.end()) return option;
    }
    throw UsageError("unknown argument: " + std::string(name));
}

// Applies the option; `source` is what a complaint calls it.
void apply(const Option& option, Options& options, const std::string& source,
           const std::string& value) {
    try {
        option.apply(options, value);
    } catch (const UsageError& error) {
        throw UsageError(source + ": " + error.what());
    }
}

void read_environment(Options& options) {
    for (const Option& option : all_options()) {
        if (option.environment == nullptr) continue;
        const char* value = std::getenv(option.environment);
        if (value != nullptr) apply(option, options, option.environment, value);
    }
}

// "-h,    --help, --usage": a short name takes seven columns, so that the long names line up.
std::string signature(const Option& option) {
    std::string text;
    for (std::size_t i = 0; i < option.names.size(); ++i) {
        text += option.names[i];
        if (i + 1 < option.names.size()) text += i == 0 && text.size() < 4 ? ",    " : ", ";
    }
    if (option.value != nullptr) text += std::string(" ") + option.value;
    return text;
}

std::string describe(const Option& option) {
    constexpr std::size_t kColumn = 40;
    std::string text = signature(option);
    if (text.size() >= kColumn) {
        text += '\n';
        text.append(kColumn, ' ');
    } else {
        text.append(kColumn - text.size(), ' ');
    }
    std::string help = option.help;
    if (option.environment != nullptr) help += std::string("\n(env: ") + option.environment + ")";
    for (const char c : help) {
        text += c;
        if (c == '\n') text.append(kColumn, ' ');
    }
    return text + '\n';
}

}  // namespace

Options parse_options(int argc, const char* const* argv) {
    // The command line first, to find out whether it only asks for help: then a wrong environment
    // variable must not stand in the way. Its values are applied again over the environment's.
    const auto read_arguments = [argc, argv](Options& options) {
        for (int i = 1; i < argc; ++i) {
            const std::string name = argv[i];
            const Option& option = find_option(name);
            const bool takes_value = option.value != nullptr;
            if (takes_value && i + 1 == argc) throw UsageError(name + ": expected a value");
            apply(option, options, name, takes_value ? argv[++i] : "");
            if (options.action == Action::print_help || options.action == Action::print_version) {
                return;
            }
        }
    };
    Options asked;
    read_arguments(asked);
    if (asked.action == Action::print_help || asked.action == Action::print_version) return asked;
    Options options;
    read_environment(options);
    read_arguments(options);
    return options;
}

std::string help_text() {
    std::string text = "usage: hello-server [options]\n";
    std::string_view section;
    for (const Option& option : all_options()) {
        if (section != option.section) {
            section = option.section;
            text += "\n----- " + std::string(section) + " -----\n\n";
        }
        text += describe(option);
    }
    return text;
}

}  // namespace hello
