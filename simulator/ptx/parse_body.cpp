// The body of a function: registers, labels, statements (PTX ISA 4.1, 4.3, 4.6).
#include <algorithm>

#include "lexer.h"
#include "machine.h"

namespace ptx {

std::unique_ptr<Symbol> declare(Lexer& in, Space space);  // parse_module.cpp

namespace {

using Kind = Operand::Kind;

// Names of one `{ }`: `%r<100>` is kept as its prefix.
struct Scope {
    struct Names {
        u32 first = 0, count = 0, bits = 0;
    };
    std::unordered_map<std::string_view, Names> ranges;
    std::unordered_map<std::string_view, u32> registers;
    std::unordered_map<std::string_view, Symbol*> symbols;
    std::unordered_map<std::string_view, std::string_view> labels;  // to a name of the body's own
    std::size_t first = 0;  // statement
};

u32 digits_of(std::string_view name, std::string_view* prefix) {
    std::size_t end = name.size();
    while (end > 0 && name[end - 1] >= '0' && name[end - 1] <= '9') --end;
    *prefix = name.substr(0, end);
    u32 value = 0;
    for (std::size_t i = end; i < name.size(); ++i)
        value = value * 10 + static_cast<u32>(name[i] - '0');
    return end == name.size() ? kAll : value;
}

class BodyParser {
public:
    BodyParser(ModuleData& module, const Function& function, Body& body)
        : module_(module), body_(body), in_(function.body, function.line) {
        scopes_.emplace_back();
        for (const auto* list : {&function.results, &function.parameters}) {
            for (const auto& parameter : *list) {
                if (parameter->space == Space::none) {
                    scopes_.back().registers[parameter->name] =
                        add_register(bits_of(parameter->type));
                } else {
                    scopes_.back().symbols[parameter->name] = parameter.get();
                }
            }
        }
    }

    void run() {
        while (!in_.at_end()) {
            if (in_.accept('{')) {
                scopes_.emplace_back();
                scopes_.back().first = body_.statements.size();
            } else if (in_.accept('}')) {
                if (scopes_.size() == 1) in_.fail("a '}' too many");
                close();
            } else if (in_.accept(';')) {
            } else if (in_.peek() == '.') {
                directive(in_.word());
            } else {
                statement();
            }
        }
    }

private:
    u32 add_register(u32 bits, std::string_view special = {}) {
        body_.registers.push_back({bits == 8 ? 16 : bits, special});
        return static_cast<u32>(body_.registers.size() - 1);
    }

    void directive(std::string_view word) {
        if (word == ".reg") {
            const Type type = parse_type(in_.word().substr(1));
            do {
                const std::string_view name = in_.word();
                if (in_.accept('<')) {
                    const auto count = static_cast<u32>(in_.integer());
                    in_.expect('>');
                    scopes_.back().ranges[name] = {static_cast<u32>(body_.registers.size()), count,
                                                   bits_of(type)};
                    for (u32 i = 0; i < count; ++i) add_register(bits_of(type));
                } else {
                    scopes_.back().registers[name] = add_register(bits_of(type));
                }
            } while (in_.accept(','));
            in_.expect(';');
        } else if (word == ".loc") {
            // .loc file line column [, function_name symbol, inlined_at file line column]
            location_.file = static_cast<u32>(in_.integer());
            location_.line = static_cast<u32>(in_.integer());
            in_.integer();
            while (in_.accept(',')) {
                const std::string_view key = in_.word();
                if (key == "function_name") {
                    in_.word();
                    if (in_.accept('+')) in_.integer();
                } else {
                    in_.integer(), in_.integer(), in_.integer();
                }
            }
        } else if (word == ".pragma") {
            in_.string();
            in_.expect(';');
        } else if (word == ".local" || word == ".shared" || word == ".param" || word == ".global" ||
                   word == ".const") {
            do {
                auto symbol = declare(in_, word == ".local"    ? Space::local
                                           : word == ".shared" ? Space::shared
                                                               : Space::param);
                if (word == ".global" || word == ".const" || in_.peek() == '=')
                    in_.fail("a " + std::string(word) + " variable in a function is not supported");
                scopes_.back().symbols[symbol->name] = symbol.get();
                body_.symbols.push_back(std::move(symbol));
            } while (in_.accept(','));
            in_.expect(';');
        } else {
            in_.fail("an unknown directive " + std::string(word));
        }
    }

    // A label is known in its own braces alone: inline assembly has the same ones again and again.
    void close() {
        const Scope& scope = scopes_.back();
        const std::size_t end = scope.labels.empty() ? scope.first : body_.statements.size();
        for (std::size_t i = scope.first; i < end; ++i) {
            for (Operand& operand : body_.statements[i].operands) {
                const auto found = scope.labels.find(operand.name);
                if (operand.kind == Kind::label && found != scope.labels.end())
                    operand.name = found->second;
            }
        }
        scopes_.pop_back();
    }

    // A name followed by one ':'.
    bool label() {
        Lexer ahead = in_;
        if (ahead.peek() == '@') return false;
        const std::string_view name = ahead.word();
        if (!ahead.accept(':') || ahead.peek_at(0) == ':') return false;
        in_ = ahead;
        if (in_.peek() == '.') {
            Lexer directive = in_;
            const std::string_view word = directive.word();
            if (word == ".callprototype") {
                in_ = directive;
                while (in_.peek() != ';') {
                    if (in_.peek() == '(') in_.braces('(', ')');
                    else in_.word();
                }
                in_.expect(';');
                return true;
            }
            if (word == ".branchtargets" || word == ".calltargets") {
                in_ = directive;
                do body_.targets[name].push_back(in_.word());
                while (in_.accept(','));
                in_.expect(';');
                return true;
            }
        }
        std::string_view own = name;
        if (scopes_.size() > 1) {
            body_.names.push_back(std::string(name) + "@" + std::to_string(body_.names.size()));
            own = scopes_.back().labels[name] = body_.names.back();
        }
        body_.labels[own] = static_cast<u32>(body_.statements.size());
        return true;
    }

    void statement() {
        if (label()) return;
        Statement made;
        made.line = in_.line();
        made.location = location_;
        const std::size_t start = in_.position();
        if (in_.accept('@')) {
            made.guarded = true;
            made.guard_negated = in_.accept('!');
            const Operand guard = operand();
            if (guard.kind != Kind::reg) in_.fail("a guard that is no register");
            made.guard = guard.reg;
        }
        made.opcode = in_.opcode();
        for (std::size_t at = 0; at <= made.opcode.size();) {
            std::size_t dot = made.opcode.find('.', at);
            if (dot == std::string_view::npos) dot = made.opcode.size();
            made.parts.push_back(made.opcode.substr(at, dot - at));
            at = dot + 1;
        }
        if (made.parts[0] == "call") {
            call(made);
        } else if (in_.peek() != ';') {
            do made.operands.push_back(operand());
            while (in_.accept(','));
        }
        made.text = in_.slice(start, in_.position());
        in_.expect(';');
        body_.statements.push_back(std::move(made));
    }

    // call [(results),] target [, (arguments)] [, prototype or targets]
    void call(Statement& made) {
        made.operands.resize(4);
        made.operands[0].kind = made.operands[2].kind = Kind::vector;
        if (in_.peek() == '(') {
            made.operands[0].items = list();
            in_.expect(',');
        }
        made.operands[1] = operand();
        while (in_.accept(',')) {
            if (in_.peek() == '(') made.operands[2].items = list();
            else made.operands[3] = operand();
        }
    }

    std::vector<Operand> list() {
        std::vector<Operand> out;
        in_.expect('(');
        while (in_.peek() != ')') {
            out.push_back(operand());
            if (!in_.accept(',')) break;
        }
        in_.expect(')');
        return out;
    }

    Operand operand() {
        Operand out;
        if (in_.accept('{')) {
            out.kind = Kind::vector;
            while (in_.peek() != '}') {
                out.items.push_back(operand());
                if (!in_.accept(',')) break;
            }
            in_.expect('}');
            return out;
        }
        if (in_.accept('[')) return address();
        if (in_.accept('!')) {
            out = operand();
            out.negated = true;
            return out;
        }
        if (in_.at_number()) return in_.number();
        if (in_.accept('-')) {  // -%r is no PTX; a sign before 0f.. is
            out = in_.number();
            out.bits = out.kind == Kind::integer
                           ? ~out.bits + 1
                           : out.bits ^ (u64{1} << (out.real_bits == 32 ? 31 : 63));
            return out;
        }
        out = named(in_.word());
        if (out.kind == Kind::symbol && (in_.peek() == '+' || in_.peek() == '-')) {
            if (in_.peek() == '+') in_.accept('+');
            out.offset = in_.integer();
        }
        if (in_.accept('|')) {
            Operand both;
            both.kind = Kind::vector;
            both.pair = true;
            both.items.push_back(std::move(out));
            both.items.push_back(operand());
            return both;
        }
        return out;
    }

    // [register], [register+offset], [symbol+offset], [offset]
    Operand address() {
        Operand out;
        out.kind = Kind::address;
        if (in_.at_number()) {
            out.offset = in_.integer();
        } else {
            const Operand base = named(in_.word());
            if (base.kind == Kind::reg) {
                out.has_reg = true;
                out.reg = base.reg;
            } else if (base.kind == Kind::symbol) {
                out.symbol = base.symbol;
                out.name = base.name;
            } else {
                in_.fail("an address that is neither a register nor a variable");
            }
            if (in_.peek() == '+' || in_.peek() == '-') {
                if (in_.peek() == '+') in_.accept('+');
                out.offset = in_.integer();
            }
        }
        while (in_.accept(',')) out.items.push_back(operand());  // tensor coordinates
        in_.expect(']');
        return out;
    }

    Operand named(std::string_view name) {
        Operand out;
        out.name = name;
        if (name == "_") {
            out.kind = Kind::sink;
            return out;
        }
        for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
            if (const auto found = scope->registers.find(name); found != scope->registers.end()) {
                out.kind = Kind::reg;
                out.reg = found->second;
                return out;
            }
            std::string_view prefix;
            const u32 number = digits_of(name, &prefix);
            if (const auto found = scope->ranges.find(prefix);
                found != scope->ranges.end() && number < found->second.count) {
                out.kind = Kind::reg;
                out.reg = found->second.first + number;
                return out;
            }
            if (const auto found = scope->symbols.find(name); found != scope->symbols.end()) {
                out.kind = Kind::symbol;
                out.symbol = found->second;
                return out;
            }
        }
        if (name == "WARP_SZ") {
            out.kind = Kind::integer;
            out.bits = kLanes;
            return out;
        }
        if (name[0] == '%') return special(out);
        if (const auto found = module_.by_name.find(name); found != module_.by_name.end()) {
            out.kind = Kind::symbol;
            out.symbol = found->second;
            return out;
        }
        out.kind = Kind::label;  // or a function
        return out;
    }

    // Special registers (PTX ISA 10) become registers with the name as their origin.
    Operand special(Operand out) {
        out.kind = Kind::reg;
        const auto known = specials_.find(out.name);
        if (known != specials_.end()) {
            out.reg = known->second;
            return out;
        }
        const std::string_view name = out.name;
        // Known to the ISA, and not to the interpreter: what reads them is not computed.
        const bool other = name.substr(0, 3) == "%pm" || name.substr(0, 14) == "%reserved_smem" ||
                           name == "%current_graph_exec";
        if (!other && !is_special(name))
            throw Error("line " + std::to_string(in_.line()) + ": " + std::string(name) +
                        " is not declared");
        const bool wide = name == "%clock64" || name == "%globaltimer" || name == "%gridid";
        const bool predicate = name == "%is_explicit_cluster";
        out.reg = add_register(predicate ? 0 : wide ? 64 : 32, name);
        specials_[name] = out.reg;
        return out;
    }

    ModuleData& module_;
    Body& body_;
    Lexer in_;
    Location location_;
    std::vector<Scope> scopes_;
    std::unordered_map<std::string_view, u32> specials_;
};

}  // namespace

const Body& ModuleData::body(u32 function) {
    const std::lock_guard lock(mutex);
    auto& known = bodies[function];
    if (known == nullptr) {
        auto made = std::make_unique<Body>();
        BodyParser(*this, *functions[function], *made).run();
        known = std::move(made);
    }
    return *known;
}

}  // namespace ptx
