// One instruction on its way into the compact form: what the selectors (ops/*.cpp) see of it.
#pragma once

#include <string_view>

#include "flat.h"
#include "machine.h"

namespace ptx {

class Builder;

// A selector looks at the modifiers and types, sets the handler and adds the operands.  Modifiers
// that it does not take make the instruction one that is not computed.
class Lowering {
public:
    Lowering(Builder& builder, const Step& step, Insn& insn);

    const Statement& statement() const { return step_.statement; }
    const Operand& operand(std::size_t i) const;
    std::size_t operands() const { return step_.statement.operands.size(); }
    // True where the modifier is there; marks it as understood.
    bool take(std::string_view modifier);
    void ignore(std::initializer_list<std::string_view> modifiers);
    // Also understood: those that begin with this (`L2::`).
    void ignore_prefix(std::string_view prefix);
    // The types among the modifiers, in their order.
    const std::vector<Type>& types() const { return types_; }
    Type type(std::size_t i = 0) const { return i < types_.size() ? types_[i] : Type::none; }
    std::string_view first_of(std::initializer_list<std::string_view> modifiers);
    bool all_taken() const;

    // Add operands to the instruction.  `bits`: of one lane; 0: a predicate.
    void source(const Operand& operand, u32 bits);
    void destination(const Operand& operand, u32 bits);
    void source(std::size_t i, u32 bits) { source(operand(i), bits); }
    void destination(std::size_t i, u32 bits) { destination(operand(i), bits); }
    // A predicate with its `!`: the operand, then a word 0 or ~0 to combine with by xor.
    void predicate(const Operand& operand);
    // The operand's bits in its register, or `otherwise` for an immediate.
    u32 register_bits(const Operand& operand, u32 otherwise) const;
    // The lanes of the address's base, as 64 bits with the offset in Insn::immediate; sets
    // Insn::space and flag kNarrowAddress.
    bool address(const Operand& operand, Space space);
    // The name of the special register that the operand is; else empty.
    std::string_view special(const Operand& operand) const;
    void constant(u32 value) { push(value); }
    // A copy that lives as long as the kernel.
    const void* keep(const void* bytes, u32 size);
    Insn& insn() { return insn_; }
    void push(u32 operand);

private:
    Builder& builder_;
    const Step& step_;
    Insn& insn_;
    std::vector<Type> types_;
    std::vector<std::string_view> modifiers_;
    std::vector<bool> taken_;
};

constexpr u8 kNarrowAddress = 1;   // Insn::flags: the address register has 32 bits
constexpr u8 kNoBase = 2;          // the address is the immediate alone
constexpr u8 kSingle = 4;          // atom: has a result
constexpr u8 kMovesNothing = 128;  // bar.warp.sync: lanes at different ones may meet

using Selector = bool (*)(Lowering&);
struct Entry {
    const char* base;  // the opcode up to the first dot
    Selector select;
};
// The selectors of one instruction set of the host, ended by a null name.
struct Variant {
    const char* name;
    const Entry* const* tables;  // ended by null
    Handler branch, branch_always, branch_or_leave, branch_table, meet, leave, not_computed;
    void (*finish_block)(Block&);  // its threads ended
};
const Variant& variant();  // the best for this machine

std::unique_ptr<const Program> translate(ModuleData& module, u32 function);

}  // namespace ptx
