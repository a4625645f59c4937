// Reads words, numbers and punctuation of PTX (PTX ISA 4 "Syntax").
#pragma once

#include <string>
#include <string_view>

#include "ast.h"

namespace ptx {

class Lexer {
public:
    Lexer(std::string_view text, u32 line) : text_(text), line_(line) {}

    bool at_end() {
        skip();
        return at_ == text_.size();
    }
    u32 line() {
        skip();
        return line_;
    }
    std::size_t position() {
        skip();
        return at_;
    }
    char peek() {
        skip();
        return at_ < text_.size() ? text_[at_] : '\0';
    }
    char peek_at(std::size_t ahead) const {
        return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
    }
    bool accept(char c);
    void expect(char c);
    // Letters, digits, _, $, % and . (an identifier, a directive or an opcode without `::`).
    std::string_view word();
    // An opcode with its modifiers, `::` included.
    std::string_view opcode();
    std::string_view string();
    bool at_number();
    // Decimal, hexadecimal, octal, binary integers; 0f, 0d; decimal floating point; with a sign.
    Operand number();
    s64 integer();
    // What stands between an opening brace and the one that closes it; the brace is consumed.
    std::string_view braces(char open = '{', char close = '}');
    std::string_view slice(std::size_t from, std::size_t to) const {
        return text_.substr(from, to - from);
    }
    [[noreturn]] void fail(const std::string& what);

private:
    void skip();
    std::string_view text_;
    std::size_t at_ = 0;
    u32 line_;
};

}  // namespace ptx
