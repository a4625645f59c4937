// What the parser makes of a module: variables, functions, and on demand the body of a function.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base.h"
#include "ptx.h"

namespace ptx {

// A variable of any state space but .reg (PTX ISA 5.4).
struct Symbol {
    std::string_view name;
    Space space = Space::none;
    Type type = Type::none;
    u32 alignment = 1;
    u64 size = 0;  // bytes; 0 for `extern .shared name[]`
    bool external = false;
    bool argument = false;  // of a call: declared in .param, placed in local memory
    u64 address = 0;        // global, constant: of this process; shared, local, param: an offset
};

struct Register {
    u32 bits = 0;              // 0: a predicate
    std::string_view special;  // "%tid.x": written when a warp starts
};

struct Operand {
    enum class Kind : u8 { none, reg, integer, real, symbol, vector, address, sink, label };
    Kind kind = Kind::none;
    bool negated = false;            // !%p
    u8 real_bits = 0;                // 0f: 32, 0d: 64, decimal: 0 (bits hold a double)
    u32 reg = 0;                     // also the base of an address
    bool has_reg = false;            // address: has a base register
    u64 bits = 0;                    // integer or real
    s64 offset = 0;                  // address, symbol: + bytes
    const Symbol* symbol = nullptr;  // also the base of an address
    std::string_view name;           // label; a symbol that is not a variable
    std::vector<Operand> items;      // vector; `a|b` is a vector of two, marked `pair`
    bool pair = false;
};

// Source position of `.loc` (PTX ISA 11.5.2).
struct Location {
    u32 file = 0, line = 0;
};

struct Statement {
    std::string_view opcode;              // "ld.global.nc.v4.f32"
    std::vector<std::string_view> parts;  // "ld", "global", ...
    std::vector<Operand> operands;
    std::string_view text;
    u32 line = 0;
    Location location;
    bool guarded = false, guard_negated = false;
    u32 guard = 0;  // register
    // call: results, target, arguments and prototype are in operands[0], [1], [2], [3]
};

// A body with its own numbering of registers and labels.
struct Body {
    std::vector<Register> registers;
    std::vector<Statement> statements;
    std::unordered_map<std::string_view, u32> labels;  // index of the next statement
    std::deque<std::string> names;                     // of labels in braces of their own
    std::vector<std::unique_ptr<Symbol>> symbols;      // variables that are declared in the body
    std::unordered_map<std::string_view, std::vector<std::string_view>> targets;  // .branchtargets
};

struct Function {
    std::string_view name;
    bool entry = false;
    std::vector<std::unique_ptr<Symbol>> results, parameters;
    std::string_view body;  // without the outer braces; empty: a declaration
    u32 line = 0;           // of the body's start
    u32 most_threads = 0;
};

struct Initializer {
    u64 offset = 0;  // in the variable
    u32 bytes = 0;
    std::string_view name;  // a symbol's address
    s64 addend = 0;
};

struct ModuleData {
    std::string text;
    std::vector<std::unique_ptr<Symbol>> symbols;  // module scope
    std::unordered_map<std::string_view, Symbol*> by_name;
    std::vector<std::unique_ptr<Function>> functions;
    std::unordered_map<std::string_view, u32> function_by_name;
    std::unordered_map<u32, std::string_view> files;
    std::vector<std::unique_ptr<Kernel>> kernels;
    std::unordered_map<std::string_view, Kernel*> kernel_by_name;
    std::vector<Variable> variables;
    std::unordered_map<std::string_view, u32> variable_by_name;
    std::vector<Range> ranges;  // of the variables, sorted
    std::vector<std::unique_ptr<u8[]>> storage;
    std::recursive_mutex mutex;                   // of the translation on demand
    std::map<u32, std::unique_ptr<Body>> bodies;  // of functions, parsed once

    void parse();  // parse_module.cpp
    void make_kernel(u32 function);
    const Body& body(u32 function);  // parse_body.cpp
};

}  // namespace ptx
