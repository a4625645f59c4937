// The HTTP server.
#pragma once

#include <map>
#include <nlohmann/json.hpp>

#include "hello.h"

namespace hello {

inline constexpr int kMaxPredict = 4096;

// Values by name, such as "--port".
using Options = std::map<std::string, std::string>;

// Serves until SIGTERM or SIGINT, which must be blocked. `properties` is what GET /props answers.
// Throws std::runtime_error where it cannot listen.
void serve(Backend& backend, const nlohmann::json& properties, const Options& options);

}  // namespace hello
