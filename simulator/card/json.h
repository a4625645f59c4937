// JSON text, written as it is built: values in turn, commas by themselves.
#pragma once

#include <vector_types.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

namespace simulator {

class Json {
public:
    std::string text;

    Json& open(char bracket) {
        separate();
        text += bracket;
        return *this;
    }
    Json& close(char bracket) {
        text += bracket;
        return *this;
    }
    Json& key(std::string_view name) {
        value(name);
        text += ':';
        return *this;
    }
    Json& value(std::string_view words) {
        separate();
        text += '"';
        for (const char c : words) append(c);
        text += '"';
        return *this;
    }
    Json& value(std::uint64_t number) {
        separate();
        text += std::to_string(number);
        return *this;
    }
    Json& value(int number) { return value(static_cast<std::uint64_t>(number)); }
    Json& value(const dim3& size) {
        return open('[').value(std::uint64_t{size.x}).value(std::uint64_t{size.y})
            .value(std::uint64_t{size.z}).close(']');
    }
    template <typename Value>
    Json& pair(std::string_view name, const Value& of) {
        return key(name).value(of);
    }

private:
    void separate() {
        const char last = text.empty() ? '[' : text.back();
        if (last != '[' && last != '{' && last != ':') text += ',';
    }
    void append(char c) {
        if (c == '"' || c == '\\') {
            text += '\\';
            text += c;
        } else if (static_cast<unsigned char>(c) < 0x20) {
            char escaped[8];
            std::snprintf(escaped, sizeof escaped, "\\u%04x", c);
            text += escaped;
        } else {
            text += c;
        }
    }
};

}  // namespace simulator
