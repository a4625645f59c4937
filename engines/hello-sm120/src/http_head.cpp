#include "http_head.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <map>
#include <optional>
#include <system_error>

#include "http.h"

namespace hello::http {

namespace {

bool is_token_character(char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
           std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
}

bool is_token(std::string_view text) {
    return !text.empty() && std::all_of(text.begin(), text.end(), is_token_character);
}

bool is_target(std::string_view text) {
    const auto printable = [](char c) { return c > ' ' && c < '\x7f'; };
    return !text.empty() && text.front() == '/' && std::all_of(text.begin(), text.end(), printable);
}

bool is_field_value(std::string_view text) {
    return std::all_of(text.begin(), text.end(), [](char c) {
        return c == '\t' || (static_cast<unsigned char>(c) >= ' ' && c != '\x7f');
    });
}

std::string lower(std::string_view text) {
    std::string result(text);
    for (char& c : result) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return result;
}

std::string_view trim(std::string_view text) {
    const std::size_t first = text.find_first_not_of(" \t");
    if (first == std::string_view::npos) return {};
    return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

// Takes the text up to `separator`, and the separator, off the front.
std::optional<std::string_view> take_until(std::string_view& text, std::string_view separator) {
    const std::size_t end = text.find(separator);
    if (end == std::string_view::npos) return std::nullopt;
    const std::string_view taken = text.substr(0, end);
    text.remove_prefix(end + separator.size());
    return taken;
}

void parse_request_line(std::string_view line, Head& head) {
    const auto method = take_until(line, " ");
    const auto target = take_until(line, " ");
    if (!method || !target || !is_token(*method) || !is_target(*target)) {
        throw Refusal{400, "malformed request line"};
    }
    if (line.size() != 8 || line.substr(0, 5) != "HTTP/") {
        throw Refusal{400, "malformed request line"};
    }
    if (line != "HTTP/1.1" && line != "HTTP/1.0") {
        throw Refusal{505, "only HTTP/1.1 is spoken here"};
    }
    head.method = *method;
    head.path = target->substr(0, target->find('?'));
}

// Returns the fields by name in lower case. Where two say how long the body is, neither counts:
// whoever stands in front of this server may have believed the other one.
std::map<std::string, std::string> parse_fields(std::string_view text) {
    std::map<std::string, std::string> fields;
    while (!text.empty()) {
        std::string_view line = *take_until(text, "\r\n");
        const auto name = take_until(line, ":");
        if (!name || !is_token(*name) || !is_field_value(line)) {
            throw Refusal{400, "malformed header field"};
        }
        const bool is_new = fields.emplace(lower(*name), trim(line)).second;
        if (!is_new && (lower(*name) == "content-length" || lower(*name) == "transfer-encoding")) {
            throw Refusal{400, "repeated header field"};
        }
    }
    return fields;
}

std::size_t parse_length(std::string_view text) {
    std::size_t length = 0;
    const char* end = text.data() + text.size();
    const auto [stopped, error] = std::from_chars(text.data(), end, length);
    if (error == std::errc::result_out_of_range) throw Refusal{413, "body larger than 1 MiB"};
    if (error != std::errc() || stopped != end) throw Refusal{400, "malformed Content-Length"};
    if (length > kMaxBodyBytes) throw Refusal{413, "body larger than 1 MiB"};
    return length;
}

}  // namespace

Head parse_head(std::string_view text) {
    Head head;
    parse_request_line(*take_until(text, "\r\n"), head);
    const auto fields = parse_fields(text);
    if (fields.count("transfer-encoding") != 0) {
        throw Refusal{501, "Transfer-Encoding is not supported, send a Content-Length"};
    }
    const auto length = fields.find("content-length");
    if (length != fields.end()) head.body_bytes = parse_length(length->second);
    const auto expect = fields.find("expect");
    head.waits_for_continue = expect != fields.end() && lower(expect->second) == "100-continue";
    return head;
}

}  // namespace hello::http
