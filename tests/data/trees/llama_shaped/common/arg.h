// The command line that all programs share.
#pragma once

#include <optional>
#include <string>

struct common_params {
    std::string host = "127.0.0.1";
    int port = 8080;
    int gpu_layers = 99;
    std::string model;
    std::string prompt = "hello";
    std::string cache_type_k = "f16";
    std::string spec_type = "none";
};

// Reads the environment, then the command line, which wins. Returns the exit status where there is
// nothing more to do: after --help, --version, or an error, which it has printed.
std::optional<int> common_params_parse(int argc, char** argv, common_params& params);
