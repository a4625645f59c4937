// The head of an HTTP/1.1 request, without any input or output.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace hello::http {

// The request cannot be served; the client is told why.
struct Refusal {
    int status;
    std::string message;
};

struct Head {
    std::string method;
    std::string path;  // without the query
    std::size_t body_bytes = 0;
    bool waits_for_continue = false;
};

// Reads the request line and the fields. `text` is the head with the line end of its last line,
// without the empty line. Throws Refusal.
Head parse_head(std::string_view text);

}  // namespace hello::http
