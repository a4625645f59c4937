// Module scope: variables with their initial values, and where each function's body is
// (PTX ISA 5.4 "Variables", 11 "Directives").
#include <algorithm>
#include <cstring>

#include "lexer.h"

namespace ptx {

namespace {

constexpr u64 kRedZone = 256;  // between variables, so that an index out of bounds is noticed

struct Declaration {
    std::unique_ptr<Symbol> symbol;
    std::string initializer;
};

}  // namespace

// Parameters of functions and variables: [.align N] [.v2|.v4] .type name [dims].
std::unique_ptr<Symbol> declare(Lexer& in, Space space) {
    auto symbol = std::make_unique<Symbol>();
    symbol->space = space;
    u64 vector = 1, alignment = 0;
    for (;;) {
        std::string_view word = in.word();
        if (word[0] != '.') {
            symbol->name = word;
            break;
        }
        word.remove_prefix(1);
        if (word == "align") {
            alignment = static_cast<u64>(in.integer());
        } else if (word == "v2" || word == "v4" || word == "v8") {
            vector = static_cast<u64>(word[1] - '0');
        } else if (parse_type(word) != Type::none) {
            symbol->type = parse_type(word);
        } else if (word == "ptr") {
            // .ptr [.space] [.align N]: what the parameter points to
            while (in.peek() == '.') {
                if (in.word() == ".align") in.integer();
            }
        } else if (word == "const" || word == "global" || word == "shared" || word == "local" ||
                   word == "attribute" || word == "managed") {
            if (word == "attribute") in.braces('(', ')');
        } else {
            in.fail("an unknown directive ." + std::string(word));
        }
    }
    const u64 element = std::max<u64>(1, bits_of(symbol->type) / 8) * vector;
    u64 count = 1;
    while (in.accept('[')) {
        count *= in.peek() == ']' ? 0 : static_cast<u64>(in.integer());
        in.expect(']');
    }
    symbol->size = element * count;
    symbol->alignment = static_cast<u32>(std::max(alignment, alignment == 0 ? element : 1));
    return symbol;
}

namespace {

class ModuleParser {
public:
    explicit ModuleParser(ModuleData& module) : module_(module), in_(module.text, 1) {}

    void run() {
        bool seen_version = false;
        while (!in_.at_end()) {
            std::string_view word = in_.word();
            if (word == ".version") seen_version = true;
            if (!seen_version) in_.fail("no PTX: the text does not begin with .version");
            directive(word);
        }
        if (!seen_version) throw Error("no PTX: the text is empty");
        place_variables();
        make_kernels();
    }

private:
    void directive(std::string_view word) {
        if (word == ".version") {
            in_.word();
            external_ = false;
        } else if (word == ".target") {
            do in_.word();
            while (in_.accept(','));
        } else if (word == ".address_size") {
            if (in_.integer() != 64) in_.fail("addresses of 32 bits are not supported");
        } else if (word == ".file") {
            const auto number = static_cast<u32>(in_.integer());
            module_.files[number] = in_.string();
            while (in_.accept(',')) in_.number();
        } else if (word == ".section") {
            in_.word();
            in_.braces();
        } else if (word == ".pragma") {
            in_.string();
            in_.expect(';');
        } else if (word == ".alias") {
            const std::string_view name = in_.word();
            in_.expect(',');
            aliases_.emplace_back(name, in_.word());
            in_.expect(';');
        } else if (word == ".visible" || word == ".weak" || word == ".common") {
        } else if (word == ".extern") {
            external_ = true;
        } else if (word == ".entry" || word == ".func") {
            function(word == ".entry");
            external_ = false;
        } else if (word == ".global" || word == ".const" || word == ".shared" || word == ".local") {
            variables(word == ".global"   ? Space::global
                      : word == ".const"  ? Space::constant
                      : word == ".shared" ? Space::shared
                                          : Space::local);
            external_ = false;
        } else {
            in_.fail("an unknown directive " + std::string(word));
        }
    }

    void variables(Space space) {
        do {
            Declaration declaration{declare(in_, space), {}};
            Symbol& symbol = *declaration.symbol;
            symbol.external = external_;
            if (in_.accept('=')) values(symbol);
            const auto known = module_.by_name.find(symbol.name);
            if (known != module_.by_name.end() && symbol.external) continue;
            module_.by_name[symbol.name] = &symbol;
            module_.symbols.push_back(std::move(declaration.symbol));
        } while (in_.accept(','));
        in_.expect(';');
    }

    // Initial values (PTX ISA 5.4.4): nested braces, numbers, addresses, generic(address).
    void values(Symbol& symbol) {
        const bool sized = symbol.size != 0;
        const u32 element = std::max<u32>(1, bits_of(symbol.type) / 8);
        u64 offset = 0;
        std::vector<u8>& bytes = bytes_[&symbol];
        int depth = 0;
        do {
            while (in_.accept('{')) ++depth;
            if (in_.peek() != '}') value(symbol, bytes, offset, element), offset += element;
            while (depth > 0 && in_.accept('}')) --depth;
            if (depth == 0) break;
        } while (in_.accept(','));
        if (!sized) symbol.size = offset;
        if (bytes.size() > symbol.size)
            in_.fail("more initial values than " + std::string(symbol.name) + " holds");
    }

    void value(Symbol& symbol, std::vector<u8>& bytes, u64 offset, u32 element) {
        u64 bits = 0;
        if (in_.at_number()) {
            const Operand number = in_.number();
            bits = number.bits;
            if (number.kind == Operand::Kind::real && number.real_bits == 0 && element == 4) {
                double wide;
                std::memcpy(&wide, &bits, sizeof wide);
                const auto narrow = static_cast<float>(wide);
                bits = 0;
                std::memcpy(&bits, &narrow, sizeof narrow);
            }
        } else {
            Initializer address{offset, element, in_.word(), 0};
            if (address.name == "generic" || address.name == "mask") {
                in_.expect('(');
                address.name = in_.word();
                if (in_.accept('+')) address.addend = in_.integer();
                in_.expect(')');
            }
            if (in_.accept('+')) address.addend += in_.integer();
            addresses_[&symbol].push_back(address);
        }
        if (bytes.size() < offset + element) bytes.resize(offset + element);
        std::memcpy(bytes.data() + offset, &bits, std::min<u32>(element, 8));
    }

    void parameters(std::vector<std::unique_ptr<Symbol>>& into) {
        in_.expect('(');
        u64 offset = 0;
        while (in_.peek() != ')') {
            const std::string_view space = in_.word();
            if (space != ".param" && space != ".reg") in_.fail("expected .param");
            into.push_back(declare(in_, space == ".param" ? Space::param : Space::none));
            Symbol& symbol = *into.back();
            offset = (offset + symbol.alignment - 1) / symbol.alignment * symbol.alignment;
            symbol.address = offset;
            offset += symbol.size;
            if (!in_.accept(',')) break;
        }
        in_.expect(')');
    }

    void function(bool entry) {
        auto made = std::make_unique<Function>();
        made->entry = entry;
        if (in_.peek() == '(') parameters(made->results);
        made->name = in_.word();
        if (in_.peek() == '(') parameters(made->parameters);
        // Performance-tuning directives (PTX ISA 11.4).
        while (in_.peek() == '.') {
            const std::string_view word = in_.word();
            u64 threads = 1;
            while (in_.at_number()) {
                threads *= static_cast<u64>(in_.integer());
                in_.accept(',');
            }
            if (word == ".maxntid" || word == ".reqntid")
                made->most_threads = static_cast<u32>(threads);
            if (word == ".pragma") in_.string(), in_.accept(';');
        }
        if (in_.peek() == '{') {
            made->line = in_.line();
            made->body = in_.braces();
        } else {
            in_.expect(';');
        }
        const auto known = module_.function_by_name.find(made->name);
        if (known == module_.function_by_name.end()) {
            module_.function_by_name[made->name] = static_cast<u32>(module_.functions.size());
            module_.functions.push_back(std::move(made));
        } else if (!made->body.empty()) {
            module_.functions[known->second] = std::move(made);
        }
    }

    void place_variables() {
        for (const auto& symbol : module_.symbols) {
            if (symbol->space != Space::global && symbol->space != Space::constant) continue;
            if (symbol->external) continue;
            const u64 alignment = std::max<u64>(symbol->alignment, 16);
            module_.storage.push_back(
                std::make_unique<u8[]>(symbol->size + alignment + 2 * kRedZone));
            auto address = reinterpret_cast<u64>(module_.storage.back().get()) + kRedZone;
            address = (address + alignment - 1) / alignment * alignment;
            symbol->address = address;
            const auto found = bytes_.find(symbol.get());
            if (found != bytes_.end()) {
                std::memcpy(reinterpret_cast<void*>(address), found->second.data(),
                            found->second.size());
            }
            module_.variable_by_name[symbol->name] = static_cast<u32>(module_.variables.size());
            module_.variables.push_back({std::string(symbol->name), address, symbol->size,
                                         symbol->space == Space::constant});
            module_.ranges.push_back({address, symbol->size, true});
        }
        std::sort(module_.ranges.begin(), module_.ranges.end(),
                  [](const Range& a, const Range& b) { return a.base < b.base; });
        for (const auto& [symbol, list] : addresses_) {
            for (const Initializer& value : list) {
                const auto known = module_.by_name.find(value.name);
                const auto function = module_.function_by_name.find(value.name);
                u64 bits = 0;
                if (known != module_.by_name.end()) {
                    bits = known->second->address + static_cast<u64>(value.addend);
                } else if (function != module_.function_by_name.end()) {
                    bits = kFunctionWindow + function->second;
                } else {
                    throw Error("the initial value of " + std::string(symbol->name) + " names " +
                                std::string(value.name) + ", which is not declared");
                }
                std::memcpy(reinterpret_cast<u8*>(symbol->address) + value.offset, &bits,
                            std::min<u32>(value.bytes, 8));
            }
        }
    }

    void make_kernels() {
        for (const auto& [alias, name] : aliases_) {
            const auto found = module_.function_by_name.find(name);
            if (found == module_.function_by_name.end())
                throw Error(".alias of " + std::string(name) + ", which is not declared");
            module_.function_by_name[alias] = found->second;
        }
        for (u32 i = 0; i < module_.functions.size(); ++i) {
            if (!module_.functions[i]->entry) continue;
            module_.make_kernel(i);
        }
    }

    ModuleData& module_;
    Lexer in_;
    bool external_ = false;
    std::vector<std::pair<std::string_view, std::string_view>> aliases_;
    std::unordered_map<const Symbol*, std::vector<u8>> bytes_;
    std::unordered_map<const Symbol*, std::vector<Initializer>> addresses_;
};

}  // namespace

void ModuleData::make_kernel(u32 index) {
    const Function& function = *functions[index];
    auto kernel = std::make_unique<Kernel>();
    kernel->name_ = function.name;
    kernel->most_threads_ = function.most_threads;
    kernel->module_ = this;
    kernel->function_ = index;
    for (const auto& parameter : function.parameters) {
        kernel->parameters_.push_back({std::string(parameter->name),
                                       static_cast<u32>(parameter->address),
                                       static_cast<u32>(parameter->size), parameter->alignment});
    }
    kernel_by_name[function.name] = kernel.get();
    kernels.push_back(std::move(kernel));
}

void ModuleData::parse() { ModuleParser(*this).run(); }

}  // namespace ptx
