#include "json.h"

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <system_error>

namespace hello::json {

namespace {

constexpr int kMaxDepth = 32;
constexpr int kMaxValues = 10000;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20; }

bool is_high_surrogate(std::uint32_t code) { return code >= 0xD800 && code < 0xDC00; }
bool is_low_surrogate(std::uint32_t code) { return code >= 0xDC00 && code < 0xE000; }

void append_utf8(std::string& text, std::uint32_t code) {
    const auto put = [&text](std::uint32_t byte) { text += static_cast<char>(byte); };
    if (code < 0x80) {
        put(code);
    } else if (code < 0x800) {
        put(0xC0 | code >> 6);
        put(0x80 | (code & 0x3F));
    } else if (code < 0x10000) {
        put(0xE0 | code >> 12);
        put(0x80 | (code >> 6 & 0x3F));
        put(0x80 | (code & 0x3F));
    } else {
        put(0xF0 | code >> 18);
        put(0x80 | (code >> 12 & 0x3F));
        put(0x80 | (code >> 6 & 0x3F));
        put(0x80 | (code & 0x3F));
    }
}

class Parser {
public:
    explicit Parser(std::string_view text) : text_(text) {}

    Value document() {
        skip_space();
        Value value = parse_value(0);
        skip_space();
        if (position_ != text_.size()) fail("text after the value");
        return value;
    }

private:
    [[noreturn]] void fail(const char* what) const {
        throw ParseError(std::string(what) + " at byte " + std::to_string(position_));
    }

    // Returns '\0' at the end, which no rule accepts.
    char peek() const { return position_ < text_.size() ? text_[position_] : '\0'; }

    bool accept(char expected) {
        if (peek() != expected) return false;
        ++position_;
        return true;
    }

    void expect(char expected, const char* complaint) {
        if (!accept(expected)) fail(complaint);
    }

    void skip_space() {
        while (peek() == ' ' || peek() == '\t' || peek() == '\n' || peek() == '\r') ++position_;
    }

    Value parse_value(int depth) {
        if (depth > kMaxDepth) fail("too deeply nested");
        if (++values_ > kMaxValues) fail("too many values");
        switch (peek()) {
            case '{': return parse_object(depth);
            case '[': return parse_array(depth);
            case '"': return parse_string_value();
            case 't': return parse_word("true", Value::Type::boolean, true);
            case 'f': return parse_word("false", Value::Type::boolean, false);
            case 'n': return parse_word("null", Value::Type::null, false);
            default: return parse_number();
        }
    }

    Value parse_object(int depth) {
        Value value;
        value.type = Value::Type::object;
        ++position_;
        skip_space();
        if (accept('}')) return value;
        do {
            skip_space();
            if (peek() != '"') fail("expected a name in quotes");
            std::string name = parse_string();
            skip_space();
            expect(':', "expected ':'");
            skip_space();
            value.object.emplace_back(std::move(name), parse_value(depth + 1));
            skip_space();
        } while (accept(','));
        expect('}', "expected ',' or '}'");
        return value;
    }

    Value parse_array(int depth) {
        Value value;
        value.type = Value::Type::array;
        ++position_;
        skip_space();
        if (accept(']')) return value;
        do {
            skip_space();
            value.array.push_back(parse_value(depth + 1));
            skip_space();
        } while (accept(','));
        expect(']', "expected ',' or ']'");
        return value;
    }

    Value parse_string_value() {
        Value value;
        value.type = Value::Type::string;
        value.string = parse_string();
        return value;
    }

    Value parse_word(std::string_view word, Value::Type type, bool boolean) {
        if (text_.substr(position_, word.size()) != word) fail("expected a value");
        position_ += word.size();
        Value value;
        value.type = type;
        value.boolean = boolean;
        return value;
    }

    void skip_digits() {
        if (!is_digit(peek())) fail("expected a value");
        while (is_digit(peek())) ++position_;
    }

    Value parse_number() {
        const std::size_t start = position_;
        accept('-');
        if (!accept('0')) skip_digits();
        if (accept('.')) skip_digits();
        if (accept('e') || accept('E')) {
            if (!accept('+')) accept('-');
            skip_digits();
        }
        Value value;
        value.type = Value::Type::number;
        const auto [end, error] =
            std::from_chars(text_.data() + start, text_.data() + position_, value.number);
        if (error != std::errc() || end != text_.data() + position_) fail("number out of range");
        return value;
    }

    std::string parse_string() {
        ++position_;
        std::string result;
        while (true) {
            if (position_ == text_.size()) fail("unfinished string");
            const char c = text_[position_];
            if (is_control(c)) fail("control character in a string");
            ++position_;
            if (c == '"') return result;
            if (c == '\\') {
                append_escape(result);
            } else {
                result += c;
            }
        }
    }

    void append_escape(std::string& result) {
        const char c = peek();
        ++position_;
        switch (c) {
            case '"':
            case '\\':
            case '/': result += c; return;
            case 'b': result += '\b'; return;
            case 'f': result += '\f'; return;
            case 'n': result += '\n'; return;
            case 'r': result += '\r'; return;
            case 't': result += '\t'; return;
            case 'u': append_utf8(result, parse_code_point()); return;
            default: --position_; fail("unknown escape");
        }
    }

    std::uint32_t parse_code_point() {
        const std::uint32_t code = parse_hex();
        if (is_low_surrogate(code)) fail("half of a surrogate pair");
        if (!is_high_surrogate(code)) return code;
        if (!accept('\\') || !accept('u')) fail("half of a surrogate pair");
        const std::uint32_t low = parse_hex();
        if (!is_low_surrogate(low)) fail("half of a surrogate pair");
        return 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    }

    std::uint32_t parse_hex() {
        const std::string_view digits = text_.substr(position_, 4);
        std::uint32_t code = 0;
        const auto [end, error] =
            std::from_chars(digits.data(), digits.data() + digits.size(), code, 16);
        if (error != std::errc() || end != digits.data() + 4) fail("expected four hex digits");
        position_ += 4;
        return code;
    }

    std::string_view text_;
    std::size_t position_ = 0;
    int values_ = 0;
};

// Returns the length of the UTF-8 sequence at the start of the text, or 0 if there is none.
// Overlong forms, surrogates and codes beyond U+10FFFF are none.
std::size_t utf8_length(std::string_view text) {
    const auto byte = [&text](std::size_t i) { return static_cast<unsigned char>(text[i]); };
    const unsigned char first = byte(0);
    if (first < 0x80) return 1;
    const std::size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
    if (first < 0xC2 || first > 0xF4 || text.size() < length) return 0;
    for (std::size_t i = 1; i < length; ++i) {
        if ((byte(i) & 0xC0) != 0x80) return 0;
    }
    const unsigned char second = byte(1);
    if ((first == 0xE0 && second < 0xA0) || (first == 0xED && second > 0x9F)) return 0;
    if ((first == 0xF0 && second < 0x90) || (first == 0xF4 && second > 0x8F)) return 0;
    return length;
}

}  // namespace

const Value* Value::find(std::string_view name) const {
    for (auto member = object.rbegin(); member != object.rend(); ++member) {
        if (member->first == name) return &member->second;
    }
    return nullptr;
}

Value parse(std::string_view text) {
    if (!is_utf8(text)) throw ParseError("not UTF-8");
    return Parser(text).document();
}

std::string quote(std::string_view text) {
    std::string result = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\') {
            result += '\\';
            result += c;
        } else if (is_control(c)) {
            char escape[7];
            std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned>(c));
            result += escape;
        } else {
            result += c;
        }
    }
    return result += '"';
}

bool is_utf8(std::string_view text) {
    while (!text.empty()) {
        const std::size_t length = utf8_length(text);
        if (length == 0) return false;
        text.remove_prefix(length);
    }
    return true;
}

}  // namespace hello::json
