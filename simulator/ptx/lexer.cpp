#include "lexer.h"

#include <charconv>
#include <cstdlib>
#include <cstring>

namespace ptx {

namespace {

bool is_word(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '$' || c == '%';
}

}  // namespace

void Lexer::skip() {
    while (at_ < text_.size()) {
        const char c = text_[at_];
        if (c == '\n') {
            ++line_;
            ++at_;
        } else if (c == ' ' || c == '\t' || c == '\r' || c == '\0') {
            ++at_;
        } else if (c == '/' && peek_at(1) == '/') {
            while (at_ < text_.size() && text_[at_] != '\n') ++at_;
        } else if (c == '/' && peek_at(1) == '*') {
            for (at_ += 2; at_ < text_.size() && !(text_[at_] == '*' && peek_at(1) == '/'); ++at_) {
                if (text_[at_] == '\n') ++line_;
            }
            at_ = std::min(at_ + 2, text_.size());
        } else {
            return;
        }
    }
}

void Lexer::fail(const std::string& what) {
    skip();
    std::string_view rest = text_.substr(at_, 60);
    rest = rest.substr(0, rest.find('\n'));
    throw Error("line " + std::to_string(line_) + ": " + what + ", at \"" + std::string(rest) +
                "\"");
}

bool Lexer::accept(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
}

void Lexer::expect(char c) {
    if (!accept(c)) fail(std::string("expected '") + c + "'");
}

std::string_view Lexer::word() {
    skip();
    const std::size_t start = at_;
    while (at_ < text_.size() && (is_word(text_[at_]) || text_[at_] == '.')) ++at_;
    if (at_ == start) fail("expected a word");
    return text_.substr(start, at_ - start);
}

std::string_view Lexer::opcode() {
    skip();
    const std::size_t start = at_;
    while (at_ < text_.size()) {
        if (is_word(text_[at_]) || text_[at_] == '.') {
            ++at_;
        } else if (text_[at_] == ':' && peek_at(1) == ':') {
            at_ += 2;
        } else {
            break;
        }
    }
    if (at_ == start) fail("expected an instruction");
    return text_.substr(start, at_ - start);
}

std::string_view Lexer::string() {
    expect('"');
    const std::size_t start = at_;
    while (at_ < text_.size() && text_[at_] != '"') at_ += text_[at_] == '\\' ? 2 : 1;
    if (at_ >= text_.size()) fail("a string without an end");
    return text_.substr(start, at_++ - start);
}

bool Lexer::at_number() {
    const char c = peek();
    if (c >= '0' && c <= '9') return true;
    return (c == '-' || c == '+') && peek_at(1) >= '0' && peek_at(1) <= '9';
}

// PTX ISA 4.5 "Constants".
Operand Lexer::number() {
    Operand out;
    bool minus = false;
    while (peek() == '-' || peek() == '+') minus ^= text_[at_++] == '-';
    skip();
    const std::size_t start = at_;
    const char second = peek_at(1);
    if (text_.substr(start, 1) == "0" &&
        (second == 'f' || second == 'F' || second == 'd' || second == 'D')) {
        at_ += 2;
        const u32 digits = second == 'f' || second == 'F' ? 8 : 16;
        const auto [end, error] = std::from_chars(
            text_.data() + at_, text_.data() + std::min<std::size_t>(at_ + digits, text_.size()),
            out.bits, 16);
        if (error != std::errc{}) fail("a number that cannot be read");
        at_ = static_cast<std::size_t>(end - text_.data());
        out.kind = Operand::Kind::real;
        out.real_bits = static_cast<u8>(digits * 4);
        if (minus) out.bits ^= u64{1} << (digits * 4 - 1);
        return out;
    }
    int base = 10;
    if (text_.substr(start, 1) == "0") {
        if (second == 'x' || second == 'X') base = 16, at_ += 2;
        else if (second == 'b' || second == 'B') base = 2, at_ += 2;
        else if (second >= '0' && second <= '7') base = 8, at_ += 1;
    }
    const std::size_t digits = at_;
    const auto [end, error] =
        std::from_chars(text_.data() + at_, text_.data() + text_.size(), out.bits, base);
    at_ = static_cast<std::size_t>(end - text_.data());
    const char next = peek_at(0);
    if (base == 10 && (next == '.' || next == 'e' || next == 'E')) {
        double value = 0;
        const auto [stop, bad] =
            std::from_chars(text_.data() + digits, text_.data() + text_.size(), value);
        if (bad != std::errc{}) fail("a number that cannot be read");
        at_ = static_cast<std::size_t>(stop - text_.data());
        if (minus) value = -value;
        std::memcpy(&out.bits, &value, sizeof value);
        out.kind = Operand::Kind::real;
        return out;
    }
    if (error != std::errc{}) fail("a number that cannot be read");
    if (next == 'U') ++at_;
    out.kind = Operand::Kind::integer;
    if (minus) out.bits = ~out.bits + 1;
    return out;
}

s64 Lexer::integer() {
    const Operand value = number();
    if (value.kind != Operand::Kind::integer) fail("expected an integer");
    return static_cast<s64>(value.bits);
}

std::string_view Lexer::braces(char open, char close) {
    expect(open);
    const std::size_t start = at_;
    for (int depth = 1;;) {
        skip();
        if (at_ >= text_.size()) fail(std::string("a '") + open + "' without '" + close + "'");
        const char c = text_[at_];
        if (c == '"') {
            string();
            continue;
        }
        ++at_;
        if (c == open) ++depth;
        if (c == close && --depth == 0) return text_.substr(start, at_ - 1 - start);
    }
}

}  // namespace ptx
