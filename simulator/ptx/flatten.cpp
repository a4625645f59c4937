// Calls are inlined (PTX ISA 9.7.12 "Control Flow Instructions: call", 7.1 "Function Declarations
// and Definitions"), so that a kernel is one graph and a warp needs no call stack.
//
// A call through a register becomes a comparison with each function of the same signature.
// Recursion cannot be inlined and ends the kernel as not computed.
#include <algorithm>

#include "flat.h"

namespace ptx {

namespace {

using Kind = Operand::Kind;
constexpr std::size_t kMostSteps = 4'000'000;

class Flattener {
public:
    explicit Flattener(ModuleData& module) : module_(module) {}

    Flat run(u32 function) {
        const Function& entry = *module_.functions[function];
        for (const auto& parameter : entry.parameters)
            place(*parameter, Space::param, parameter->address);
        emit(function, {});
        // A kernel without `ret` at its end ends all the same.
        Statement end;
        end.parts = {"ret"};
        end.opcode = end.text = "ret";
        if (!flat_.steps.empty()) end.line = flat_.steps.back().statement.line;
        add(std::move(end)).ends = true;
        for (const Fix& fix : fixes_) {
            auto& targets = flat_.steps[fix.step].targets;
            targets[fix.target] = *fix.label;
        }
        return std::move(flat_);
    }

private:
    struct Fix {
        u32 step, target;
        const u32* label;
    };
    // One inlined body.
    struct Instance {
        u32 first_register = 0;
        std::unordered_map<std::string_view, std::unique_ptr<u32>> labels;
        std::unique_ptr<u32> end;
        std::unordered_map<const Symbol*, const Symbol*> symbols;
        bool outermost = false;
    };

    Step& add(Statement statement) {
        if (flat_.steps.size() > kMostSteps)
            throw Error("a kernel of more than " + std::to_string(kMostSteps) + " instructions");
        flat_.steps.push_back({std::move(statement), {}, false, false});
        return flat_.steps.back();
    }

    const Symbol* place(const Symbol& symbol, Space space, u64 address) {
        auto copy = std::make_unique<Symbol>(symbol);
        copy->argument = symbol.space == Space::param && space == Space::local;
        copy->space = space;
        copy->address = address;
        flat_.symbols.push_back(std::move(copy));
        return placed_[&symbol] = flat_.symbols.back().get();
    }

    const Symbol* place_local(const Symbol& symbol) {
        u32& end = flat_.local_bytes;
        end = (end + symbol.alignment - 1) / symbol.alignment * symbol.alignment;
        const Symbol* const made = place(symbol, Space::local, end);
        end += static_cast<u32>(symbol.size);
        return made;
    }

    const Symbol* place_shared(const Symbol& symbol) {
        const auto known = placed_.find(&symbol);
        if (known != placed_.end()) return known->second;
        if (symbol.size == 0) {  // dynamic: after all static ones, known at the end
            flat_.dynamic_alignment = std::max(flat_.dynamic_alignment, symbol.alignment);
            return place(symbol, Space::shared, ~u64{0});
        }
        u32& end = flat_.shared_bytes;
        end = (end + symbol.alignment - 1) / symbol.alignment * symbol.alignment;
        const Symbol* const made = place(symbol, Space::shared, end);
        end += static_cast<u32>(symbol.size);
        return made;
    }

    void emit(u32 function, std::unordered_map<const Symbol*, const Symbol*> bound) {
        const Body& body = module_.body(function);
        stack_.push_back(function);
        Instance instance;
        instance.outermost = stack_.size() == 1;
        instance.first_register = static_cast<u32>(flat_.registers.size());
        instance.symbols = std::move(bound);
        instance.end = std::make_unique<u32>(0);
        flat_.registers.insert(flat_.registers.end(), body.registers.begin(), body.registers.end());
        for (const auto& symbol : body.symbols) {
            if (symbol->space == Space::shared)
                instance.symbols[symbol.get()] = place_shared(*symbol);
            else instance.symbols[symbol.get()] = place_local(*symbol);
        }
        // Labels by the statement that they stand before.
        std::vector<std::pair<u32, std::string_view>> labels;
        for (const auto& [name, index] : body.labels) {
            labels.emplace_back(index, name);
            instance.labels[name] = std::make_unique<u32>(0);
        }
        std::sort(labels.begin(), labels.end());
        std::size_t next = 0;
        for (u32 i = 0; i <= body.statements.size(); ++i) {
            for (; next < labels.size() && labels[next].first == i; ++next) {
                *instance.labels[labels[next].second] = static_cast<u32>(flat_.steps.size());
            }
            if (i < body.statements.size()) step(body, body.statements[i], instance);
        }
        *instance.end = static_cast<u32>(flat_.steps.size());
        stack_.pop_back();
        for (auto& [name, label] : instance.labels) kept_.push_back(std::move(label));
        kept_.push_back(std::move(instance.end));
    }

    void step(const Body& body, const Statement& original, Instance& instance) {
        Statement statement = original;
        statement.guard += instance.first_register;
        for (Operand& operand : statement.operands) rename(operand, instance, statement.parts[0]);
        const std::string_view base = statement.parts[0];
        if (base == "call") {
            call(std::move(statement));
        } else if (base == "bra") {
            const std::string_view name =
                original.operands.empty() ? "" : original.operands[0].name;
            Step& made = add(std::move(statement));
            made.jumps = true;
            jump(made, name, instance);
        } else if (base == "brx") {
            const std::string_view name =
                original.operands.size() < 2 ? "" : original.operands[1].name;
            const auto targets = body.targets.find(name);
            if (targets == body.targets.end())
                throw Error("line " + std::to_string(original.line) +
                            ": brx.idx without .branchtargets");
            Step& made = add(std::move(statement));
            made.jumps = true;
            for (const std::string_view target : targets->second) jump(made, target, instance);
        } else if (base == "ret" && !instance.outermost) {
            statement.parts = {"bra"};
            statement.operands.clear();
            Step& made = add(std::move(statement));
            made.jumps = true;
            made.targets.push_back(0);
            fixes_.push_back({static_cast<u32>(flat_.steps.size() - 1), 0, instance.end.get()});
        } else {
            add(std::move(statement)).ends = base == "ret" || base == "exit" || base == "trap";
        }
    }

    void jump(Step& made, std::string_view name, Instance& instance) {
        const auto found = instance.labels.find(name);
        if (found == instance.labels.end()) {
            throw Error("line " + std::to_string(made.statement.line) + ": a branch to " +
                        std::string(name) + ", which is not declared");
        }
        made.targets.push_back(0);
        fixes_.push_back({static_cast<u32>(flat_.steps.size() - 1),
                          static_cast<u32>(made.targets.size() - 1), found->second.get()});
    }

    void rename(Operand& operand, Instance& instance, std::string_view base) {
        if (operand.kind == Kind::reg || operand.has_reg) operand.reg += instance.first_register;
        for (Operand& item : operand.items) rename(item, instance, base);
        if (operand.symbol != nullptr) {
            const auto bound = instance.symbols.find(operand.symbol);
            if (bound != instance.symbols.end()) {
                operand.symbol = bound->second;
            } else if (operand.symbol->space == Space::shared) {
                operand.symbol = place_shared(*operand.symbol);
            } else if (operand.symbol->space == Space::param) {
                const auto known = placed_.find(operand.symbol);
                if (known != placed_.end()) operand.symbol = known->second;
            } else if (operand.symbol->external) {
                throw Error("the variable " + std::string(operand.symbol->name) +
                            " is external: no other module is linked");
            }
        }
        if (operand.kind == Kind::label && base != "bra" && base != "brx" && base != "call") {
            const auto function = module_.function_by_name.find(operand.name);
            if (function == module_.function_by_name.end())
                throw Error("the name " + std::string(operand.name) + " is not declared");
            operand.kind = Kind::integer;
            operand.bits = kFunctionWindow + function->second;
        }
    }

    static Operand reg(u32 number) {
        Operand out;
        out.kind = Kind::reg;
        out.reg = number;
        return out;
    }

    Statement synthetic(const Statement& like, std::vector<std::string_view> parts,
                        std::vector<Operand> operands) {
        Statement made;
        made.parts = std::move(parts);
        made.opcode = made.parts[0];
        made.operands = std::move(operands);
        made.text = like.text;
        made.line = like.line;
        made.location = like.location;
        return made;
    }

    void bra(const Statement& like, const u32* target, const Statement* guard) {
        Statement made = synthetic(like, {"bra"}, {});
        if (guard != nullptr) {
            made.guarded = true;
            made.guard = guard->guard;
            made.guard_negated = !guard->guard_negated;
        }
        Step& step = add(std::move(made));
        step.jumps = true;
        step.targets.push_back(0);
        fixes_.push_back({static_cast<u32>(flat_.steps.size() - 1), 0, target});
    }

    u32* new_label() {
        kept_.push_back(std::make_unique<u32>(0));
        return kept_.back().get();
    }

    void call(Statement statement) {
        const Operand& target = statement.operands[1];
        u32* const after = new_label();
        if (target.kind == Kind::reg) {
            if (statement.guarded) bra(statement, after, &statement);
            indirect(statement, after);
        } else {
            const auto found = module_.function_by_name.find(target.name);
            if (found == module_.function_by_name.end())
                throw Error("line " + std::to_string(statement.line) + ": a call of " +
                            std::string(target.name) + ", which is not declared");
            const Function& function = *module_.functions[found->second];
            if (function.body.empty()) {
                add(std::move(statement));  // vprintf and the like: the interpreter's own
                return;
            }
            if (statement.guarded) bra(statement, after, &statement);
            inline_call(statement, found->second);
        }
        *after = static_cast<u32>(flat_.steps.size());
    }

    void indirect(const Statement& statement, const u32* after) {
        const u32 predicate = static_cast<u32>(flat_.registers.size());
        flat_.registers.push_back({0, {}});
        for (u32 i = 0; i < module_.functions.size(); ++i) {
            if (!matches(*module_.functions[i], statement)) continue;
            Operand number;
            number.kind = Kind::integer;
            number.bits = kFunctionWindow + i;
            add(synthetic(statement, {"setp", "ne", "u64"},
                          {reg(predicate), statement.operands[1], number}));
            u32* const next = new_label();
            Statement guard;
            guard.guard = predicate;
            guard.guard_negated = true;
            bra(statement, next, &guard);
            inline_call(statement, i);
            bra(statement, after, nullptr);
            *next = static_cast<u32>(flat_.steps.size());
        }
        add(synthetic(statement, {"$no_function"}, {})).ends = true;
    }

    bool matches(const Function& function, const Statement& statement) const {
        if (function.entry || function.body.empty() ||
            function.parameters.size() != statement.operands[2].items.size() ||
            function.results.size() != statement.operands[0].items.size()) {
            return false;
        }
        for (std::size_t i = 0; i < function.parameters.size(); ++i) {
            const Operand& argument = statement.operands[2].items[i];
            if (argument.symbol != nullptr && argument.symbol->size != function.parameters[i]->size)
                return false;
        }
        return true;
    }

    // Parameters in .param space are the caller's variables under another name; those in registers
    // are copied.
    void inline_call(const Statement& statement, u32 index) {
        if (std::find(stack_.begin(), stack_.end(), index) != stack_.end()) {
            add(synthetic(statement, {"call", "recursive"}, {}));
            return;
        }
        const Function& function = *module_.functions[index];
        const auto& arguments = statement.operands[2].items;
        const auto& results = statement.operands[0].items;
        if (arguments.size() != function.parameters.size() ||
            results.size() != function.results.size()) {
            throw Error("line " + std::to_string(statement.line) + ": a call of " +
                        std::string(function.name) +
                        " with another number of parameters than it has");
        }
        const auto first = static_cast<u32>(flat_.registers.size());
        std::unordered_map<const Symbol*, const Symbol*> bound;
        std::vector<Statement> copies_back;
        u32 number =
            first;  // the body numbers parameters in registers first, results before others
        const auto bind = [&](const Symbol& formal, const Operand& actual, bool result) {
            if (formal.space == Space::none) {
                const std::string_view type = bits_of(formal.type) == 64   ? "b64"
                                              : bits_of(formal.type) == 16 ? "b16"
                                                                           : "b32";
                if (result)
                    copies_back.push_back(
                        synthetic(statement, {"mov", type}, {actual, reg(number)}));
                else add(synthetic(statement, {"mov", type}, {reg(number), actual}));
                ++number;
            } else if (actual.symbol != nullptr) {
                bound[&formal] = actual.symbol;
            } else {
                throw Error("line " + std::to_string(statement.line) +
                            ": a parameter of a call that is not in .param space");
            }
        };
        for (std::size_t i = 0; i < results.size(); ++i)
            bind(*function.results[i], results[i], true);
        for (std::size_t i = 0; i < arguments.size(); ++i)
            bind(*function.parameters[i], arguments[i], false);
        emit(index, std::move(bound));
        for (Statement& copy : copies_back) add(std::move(copy));
    }

    ModuleData& module_;
    Flat flat_;
    std::vector<u32> stack_;
    std::vector<Fix> fixes_;
    std::vector<std::unique_ptr<u32>> kept_;
    std::unordered_map<const Symbol*, const Symbol*> placed_;
};

}  // namespace

Flat flatten(ModuleData& module, u32 function) {
    const std::lock_guard lock(module.mutex);
    return Flattener(module).run(function);
}

}  // namespace ptx
