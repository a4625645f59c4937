// The command line.
#pragma once

#include <stdexcept>
#include <string>

#include "hello_base.h"

namespace hello {

enum class Action { serve, check, print_help, print_version };
enum class DeviceChoice { automatic, cpu, cuda };

struct Options {
    Action action = Action::serve;
    std::string host = "127.0.0.1";
    int port = 8080;
    int predict = 32;  // tokens, where a request does not say
    DeviceChoice device = DeviceChoice::automatic;
    Sampling sampling = Sampling::greedy;
};

inline constexpr int kMaxPredict = 4096;

// The command line or an environment variable is wrong; the text says how.
class UsageError : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

// Reads the environment, then the command line, which wins. --help and --version end the reading.
// Throws UsageError.
Options parse_options(int argc, const char* const* argv);

// Returns the text of --help.
std::string help_text();

}  // namespace hello
