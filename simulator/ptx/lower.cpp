// Translates a flat kernel into the compact form.
#include "lower.h"

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <map>

namespace ptx {

using Kind = Operand::Kind;

// The registers begin with what nobody reads: 32 lanes of 128 bits.
constexpr u32 kSink = 0, kSinkBytes = 512;

struct UnreadOperand : Error {
    using Error::Error;
};

class Builder {
public:
    Builder(ModuleData& module, u32 function)
        : module_(module),
          function_(*module.functions[function]),
          flat_(flatten(module, function)),
          blocks_(find_blocks(flat_)),
          slots_(allocate_slots(flat_, blocks_)),
          program_(std::make_unique<Program>()) {}

    std::unique_ptr<const Program> run() {
        program_->kernel = function_.name;
        layout();
        emit();
        patch();
        finish();
        return std::move(program_);
    }

    // The operand of a register.
    u32 operand_of(u32 reg) const {
        const u32 slot = slots_.slot[reg];
        switch (flat_.registers[reg].bits) {
            case 0: return predicate_base_ + slot * 4;
            case 16: return half_base_ + slot * 64;
            case 32: return word_base_ + slot * 128;
            case 64: return double_base_ + slot * 256;
            default: return quad_base_ + slot * 512;
        }
    }
    u32 bits_of_register(u32 reg) const { return flat_.registers[reg].bits; }

    // A constant of all lanes, or of other bytes.
    u32 constant(const std::string& bytes) {
        const auto known = constants_.find(bytes);
        if (known != constants_.end()) return known->second;
        while (constant_bytes_.size() % 64 != 0) constant_bytes_.push_back(0);
        const auto at = static_cast<u32>(constant_bytes_.size());
        constant_bytes_.insert(constant_bytes_.end(), bytes.begin(), bytes.end());
        return constants_[bytes] = at | 1;
    }
    u32 splat(u64 low, u64 high, u32 bits) {
        std::string bytes;
        u64 parts[2] = {low, high};
        if (bits == 0) {
            const u32 all = low != 0 ? kAll : 0;
            bytes.assign(reinterpret_cast<const char*>(&all), sizeof all);
        } else {
            for (u32 lane = 0; lane < kLanes; ++lane)
                bytes.append(reinterpret_cast<const char*>(parts), bits / 8);
        }
        return constant(bytes);
    }

    std::vector<u32>& pool() { return program_->operands; }
    Program& program() { return *program_; }
    const Flat& flat() const { return flat_; }
    u64 place_of(const Symbol& symbol) const {
        if (symbol.space == Space::shared && symbol.address == ~u64{0})
            return program_->dynamic_offset;
        return symbol.address;
    }

private:
    void layout() {
        u32 at = kSinkBytes;
        predicate_base_ = at;
        at += (slots_.predicates * 4 + 63) / 64 * 64;
        half_base_ = at;
        at += slots_.halves * 64;
        word_base_ = at;
        at += slots_.words * 128;
        double_base_ = at;
        at += slots_.doubles * 256;
        quad_base_ = at;
        at += slots_.quads * 512;
        program_->register_bytes = at;
        const u32 alignment = std::max<u32>(flat_.dynamic_alignment, 16);
        program_->dynamic_offset = (flat_.shared_bytes + alignment - 1) / alignment * alignment;
        program_->shared_bytes = flat_.shared_bytes;
        program_->local_bytes = flat_.local_bytes;
        for (const auto& parameter : function_.parameters) {
            program_->parameter_bytes = std::max<u32>(
                program_->parameter_bytes, static_cast<u32>(parameter->address + parameter->size));
        }
        for (u32 r = 0; r < flat_.registers.size(); ++r) {
            const std::string_view special = flat_.registers[r].special;
            if (!special.empty() && slots_.slot[r] != kAll)
                program_->specials.push_back({std::string(special), operand_of(r)});
        }
    }

    void emit() {
        for (u32& meet : blocks_.post_dominator) {
            if (meet != kAll && only_ends(meet)) meet = kAll;
        }
        // Where paths may meet: the post-dominators of conditional branches.
        std::vector<bool> meets(blocks_.blocks.size(), false);
        for (u32 b = 0; b < blocks_.blocks.size(); ++b) {
            if (blocks_.blocks[b].next.size() > 1 && blocks_.post_dominator[b] != kAll)
                meets[blocks_.post_dominator[b]] = true;
        }
        first_insn_.resize(blocks_.blocks.size());
        for (u32 b = 0; b < blocks_.blocks.size(); ++b) {
            first_insn_[b] = static_cast<u32>(program_->code.size());
            if (meets[b]) {
                Insn meet;
                meet.run = variant().meet;
                meet.guard = kNoGuard;
                meet.step = kAll;
                program_->code.push_back(meet);
                first_operand_.push_back(0);
            }
            for (u32 i = blocks_.blocks[b].first; i < blocks_.blocks[b].last; ++i) step(i, b);
        }
    }

    // Threads that go to such a block have left the kernel: nobody waits for them there.
    bool only_ends(u32 block) const {
        const Statement& first = flat_.steps[blocks_.blocks[block].first].statement;
        return !first.guarded && (first.parts[0] == "ret" || first.parts[0] == "exit");
    }

    Handler branch_of(const Statement& statement, u32 index, u32 target) const {
        if (only_ends(target)) return variant().leave;
        if (!statement.guarded) return variant().branch_always;
        return index + 1 < flat_.steps.size() && only_ends(blocks_.block_of[index + 1])
                   ? variant().branch_or_leave
                   : variant().branch;
    }

    void step(u32 index, u32 block) {
        const Step& step = flat_.steps[index];
        const Statement& statement = step.statement;
        Insn insn;
        insn.step = index;
        insn.guard = statement.guarded ? operand_of(statement.guard) : kNoGuard;
        insn.guard_negated = statement.guard_negated;
        const auto first = static_cast<u32>(program_->operands.size());
        insn.meet = blocks_.post_dominator[block];  // a block until patch()
        const std::string_view base = statement.parts[0];
        Lowering lowering(*this, step, insn);
        bool known = false;
        if (base == "bra") {
            insn.target = blocks_.block_of[step.targets[0]];
            insn.run = branch_of(statement, index, insn.target);
            lowering.ignore({"uni"});
            known = lowering.all_taken();
        } else if (base == "brx") {
            lowering.ignore({"idx", "uni"});
            lowering.source(0, 32);
            insn.immediate = program_->branch_tables.size();
            insn.extra = static_cast<u32>(step.targets.size());
            for (const u32 target : step.targets)
                program_->branch_tables.push_back(blocks_.block_of[target]);
            insn.run = variant().branch_table;
            known = lowering.all_taken();
        } else if (base == "ret" || base == "exit") {
            lowering.ignore({"uni"});
            insn.run = variant().leave;
            known = lowering.all_taken();
        } else {
            known = knows_specials(statement) && select(lowering, base);
            take_order(insn);
        }
        if (!known) {
            program_->operands.resize(first);
            insn.run = variant().not_computed;
            insn.extra = static_cast<u32>(program_->not_computed.size());
            std::string opcode(statement.opcode);
            if (base == "call" && statement.operands.size() > 1)
                opcode += " " + std::string(statement.operands[1].name);
            if (base == "call" && statement.operands.empty())
                opcode += " " + std::string(statement.parts.back());
            program_->not_computed.push_back(opcode);
            auto& missing = program_->missing;
            if (std::find(missing.begin(), missing.end(), opcode) == missing.end())
                missing.push_back(opcode);
        }
        first_operand_.push_back(first);
        program_->code.push_back(insn);
    }

    // Not by an instruction of the block's own memory or scope may blocks order what they do.
    void take_order(const Insn& insn) {
        program_->fences |= insn.order > Order::relaxed;
        const auto space = static_cast<Space>(insn.space);
        program_->orders |= insn.order != Order::weak && insn.scope > Scope::cta &&
                            space != Space::shared && space != Space::local;
    }

    bool knows_specials(const Statement& statement) const {
        std::vector<u32> written, read;
        registers_of(statement, &written, &read);
        return std::all_of(read.begin(), read.end(), [&](u32 r) {
            const std::string_view special = flat_.registers[r].special;
            return special.empty() || is_special(special);
        });
    }

    // A form of the instruction that a selector cannot read is one that it does not compute.
    static bool selected(const Entry& entry, Lowering& lowering) {
        try {
            return entry.select(lowering) && lowering.all_taken();
        } catch (const UnreadOperand&) {
            return false;
        } catch (const Error&) {  // no PTX, if it is a form that the selector knows
            if (lowering.all_taken()) throw;
            return false;
        }
    }

    bool select(Lowering& lowering, std::string_view base) {
        for (const Entry* const* table = variant().tables; *table != nullptr; ++table) {
            for (const Entry* entry = *table; entry->base != nullptr; ++entry) {
                if (entry->base != base) continue;
                const std::size_t before = program_->operands.size();
                const Insn saved = lowering.insn();
                if (selected(*entry, lowering)) return true;
                program_->operands.resize(before);
                lowering.insn() = saved;
            }
        }
        return false;
    }

    void patch() {
        for (std::size_t i = 0; i < program_->code.size(); ++i) {
            Insn& insn = program_->code[i];
            insn.operands = program_->operands.data() + first_operand_[i];
            if (insn.step == kAll) continue;
            if (insn.run == variant().branch || insn.run == variant().branch_always ||
                insn.run == variant().branch_or_leave)
                insn.target = first_insn_[insn.target];
            if (insn.meet != kAll) insn.meet = first_insn_[insn.meet];
        }
        for (u64& target : program_->branch_tables) target = first_insn_[target];
    }

    void finish() {
        program_->constant_store = std::make_unique<u8[]>(constant_bytes_.size() + 64);
        auto at = reinterpret_cast<u64>(program_->constant_store.get());
        program_->constants = reinterpret_cast<u8*>((at + 63) / 64 * 64);
        std::copy(constant_bytes_.begin(), constant_bytes_.end(), program_->constants);
        for (const Step& step : flat_.steps) {
            SourceLine line{step.statement.line, std::string(step.statement.text), {}};
            const auto file = module_.files.find(step.statement.location.file);
            if (step.statement.location.line != 0 && file != module_.files.end()) {
                line.source =
                    std::string(file->second) + ":" + std::to_string(step.statement.location.line);
            }
            program_->lines.push_back(std::move(line));
        }
        program_->ranges = module_.ranges;
        for (const Range& range : module_.ranges) {
            for (const Variable& variable : module_.variables) {
                if (variable.address == range.base) program_->range_names.push_back(variable.name);
            }
        }
    }

    ModuleData& module_;
    const Function& function_;
    Flat flat_;
    Blocks blocks_;
    Slots slots_;
    std::unique_ptr<Program> program_;
    u32 predicate_base_ = 0, half_base_ = 0, word_base_ = 0, double_base_ = 0, quad_base_ = 0;
    std::vector<u8> constant_bytes_;
    std::map<std::string, u32> constants_;
    std::vector<u32> first_insn_;     // by block
    std::vector<u32> first_operand_;  // by instruction
};

Lowering::Lowering(Builder& builder, const Step& step, Insn& insn)
    : builder_(builder), step_(step), insn_(insn) {
    const auto& parts = step.statement.parts;
    for (std::size_t i = 1; i < parts.size(); ++i) {
        const Type type = parse_type(parts[i]);
        if (type != Type::none) types_.push_back(type);
        modifiers_.push_back(parts[i]);
        taken_.push_back(type != Type::none);
    }
}

const Operand& Lowering::operand(std::size_t i) const {
    static const Operand none;
    return i < step_.statement.operands.size() ? step_.statement.operands[i] : none;
}

bool Lowering::take(std::string_view modifier) {
    bool found = false;
    for (std::size_t i = 0; i < modifiers_.size(); ++i) {
        if (modifiers_[i] == modifier) found = taken_[i] = true;
    }
    return found;
}

void Lowering::ignore(std::initializer_list<std::string_view> modifiers) {
    for (const std::string_view modifier : modifiers) take(modifier);
}

void Lowering::ignore_prefix(std::string_view prefix) {
    for (std::size_t i = 0; i < modifiers_.size(); ++i) {
        if (modifiers_[i].substr(0, prefix.size()) == prefix) taken_[i] = true;
    }
}

std::string_view Lowering::first_of(std::initializer_list<std::string_view> modifiers) {
    for (const std::string_view modifier : modifiers) {
        if (take(modifier)) return modifier;
    }
    return {};
}

bool Lowering::all_taken() const {
    return std::find(taken_.begin(), taken_.end(), false) == taken_.end();
}

void Lowering::push(u32 operand) { builder_.pool().push_back(operand); }

const void* Lowering::keep(const void* bytes, u32 size) {
    auto& plans = builder_.program().plans;
    plans.push_back(std::make_unique<u64[]>((size + 7) / 8));
    std::memcpy(plans.back().get(), bytes, size);
    return plans.back().get();
}

std::string_view Lowering::special(const Operand& operand) const {
    return operand.kind == Kind::reg ? builder_.flat().registers[operand.reg].special
                                     : std::string_view{};
}

u32 Lowering::register_bits(const Operand& operand, u32 otherwise) const {
    return operand.kind == Kind::reg ? builder_.bits_of_register(operand.reg) : otherwise;
}

namespace {

// An immediate as a value of `bits`; reals are rounded to the nearest.
u64 immediate(const Operand& operand, u32 bits) {
    if (operand.kind != Kind::real) return operand.bits;
    double value;
    if (operand.real_bits == 32) {
        if (bits == 32) return operand.bits;
        float narrow;
        const auto word = static_cast<u32>(operand.bits);
        std::memcpy(&narrow, &word, sizeof narrow);
        value = narrow;
    } else {
        std::memcpy(&value, &operand.bits, sizeof value);
    }
    u64 out = 0;
    if (bits == 32) {
        const auto narrow = static_cast<float>(value);
        std::memcpy(&out, &narrow, sizeof narrow);
    } else {
        std::memcpy(&out, &value, sizeof value);
    }
    return out;
}

}  // namespace

void Lowering::source(const Operand& operand, u32 bits) {
    if (operand.kind == Kind::reg) {
        const u32 has = builder_.bits_of_register(operand.reg);
        if (has != bits) {
            throw Error("line " + std::to_string(statement().line) + ": an operand of " +
                        std::to_string(has) + " bits where the instruction takes " +
                        std::to_string(bits) + ": " + std::string(statement().text));
        }
        push(builder_.operand_of(operand.reg));
    } else if (operand.kind == Kind::symbol) {
        // The address in the variable's own space (PTX ISA 9.7.9.7 "mov").
        // A call's argument is a variable in local memory: its address says so, since ld.param may
        // also mean the kernel's parameters.
        const u64 window = operand.symbol->argument ? kLocalWindow : 0;
        push(builder_.splat(
            window + builder_.place_of(*operand.symbol) + static_cast<u64>(operand.offset), 0,
            bits));
    } else if (operand.kind == Kind::integer || operand.kind == Kind::real) {
        const u64 value = immediate(operand, bits);
        push(builder_.splat(
            value, static_cast<s64>(value) < 0 && operand.kind == Kind::integer ? ~u64{0} : 0,
            bits));
    } else {
        throw UnreadOperand("line " + std::to_string(statement().line) +
                            ": an operand that cannot be read: " + std::string(statement().text));
    }
}

void Lowering::destination(const Operand& operand, u32 bits) {
    if (operand.kind == Kind::sink || operand.kind == Kind::none) {
        push(kSink);
        return;
    }
    if (operand.kind != Kind::reg) {
        throw UnreadOperand(
            "line " + std::to_string(statement().line) +
            ": a destination that is no register: " + std::string(statement().text));
    }
    const u32 has = builder_.bits_of_register(operand.reg);
    if (has != bits) {
        throw Error("line " + std::to_string(statement().line) + ": a destination of " +
                    std::to_string(has) + " bits where the instruction writes " +
                    std::to_string(bits) + ": " + std::string(statement().text));
    }
    push(builder_.operand_of(operand.reg));
}

void Lowering::predicate(const Operand& operand) {
    source(operand, 0);
    push(operand.negated ? kAll : 0);
}

bool Lowering::address(const Operand& operand, Space space) {
    if (operand.kind != Kind::address || !operand.items.empty()) return false;
    insn_.immediate = static_cast<u64>(operand.offset);
    if (operand.has_reg) {
        if (builder_.bits_of_register(operand.reg) == 32) insn_.flags |= kNarrowAddress;
        push(builder_.operand_of(operand.reg));
    } else {
        insn_.flags |= kNoBase;
        push(0);
        if (operand.symbol != nullptr) {
            insn_.immediate += builder_.place_of(*operand.symbol);
            // Parameters of calls are variables in local memory here.
            if (space == Space::param || space == Space::generic) space = operand.symbol->space;
        }
    }
    insn_.space = static_cast<u8>(space);
    return true;
}

std::unique_ptr<const Program> translate(ModuleData& module, u32 function) {
    return Builder(module, function).run();
}

}  // namespace ptx
