// JSON, as much as the API needs: parse a request, quote a string of an answer.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hello::json {

// What is wrong with a text, and at which byte.
class ParseError : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

struct Value {
    enum class Type { null, boolean, number, string, array, object };

    Type type = Type::null;
    bool boolean = false;
    double number = 0;
    std::string string;                                // UTF-8
    std::vector<Value> array;
    std::vector<std::pair<std::string, Value>> object;  // in the order of the text

    // Returns the member of that name, the last if there are several, or nullptr if there is none
    // or this is no object.
    const Value* find(std::string_view name) const;
};

// Parses one JSON text (RFC 8259), and nothing after it. Depth and number of values are limited,
// so that a small text cannot take much stack or memory. Throws ParseError.
Value parse(std::string_view text);

// Returns the text as a JSON string, with its quotes. The text must be UTF-8.
std::string quote(std::string_view text);

// Returns whether the text is well-formed UTF-8.
bool is_utf8(std::string_view text);

}  // namespace hello::json
