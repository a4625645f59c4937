// ptx: kernels by hand.  `ptx --help` says how.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>

#include "base.h"
#include "ptx.h"

namespace {

using ptx::u32;
using ptx::u64;
using ptx::u8;

constexpr const char* kHelp = R"(usage:
  ptx list FILE.ptx                the kernels: parameters, shared memory, opcodes that are not computed
  ptx run FILE.ptx --kernel NAME [--grid X,Y,Z] [--block X,Y,Z] [--shared BYTES] [--arg ARG]...

An ARG is a parameter of the kernel, in their order:
  u32:7  s32:-1  u64:7  f32:0.5  f64:0.5  u16:7  u8:7    a number
  hex:0100000002000000   a structure, byte by byte
  zeros:BYTES        the address of memory that holds zeros
  random:TYPE:COUNT  ... that holds random numbers: f32 in [-1, 1), u8 or u32 of all values
  file:PATH          ... that holds a file

  --print N:TYPE:COUNT  after the run: the first numbers of parameter N's memory (N from 0)
  --save N:PATH         after the run: writes parameter N's memory to a file
  --races               find races: of warps on shared memory, of blocks on global memory
  --uninitialized       find reads of shared memory that nothing wrote
  --cooperative         all blocks make progress at once
  --threads N           threads of the host; else one for each core
  --checksum            of everything that was stored to global memory
  --most N              end a warp after N instructions

Exit status: 0, 1 when the kernel ended early, 2 when the call is wrong.
)";

[[noreturn]] void fail(const std::string& why) {
    std::fprintf(stderr, "ptx: %s\nptx: see `ptx --help`\n", why.c_str());
    std::exit(2);
}

std::string read_file(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    if (!in) fail("cannot read " + path + ": " + std::strerror(errno));
    return {std::istreambuf_iterator<char>(in), {}};
}

class Buffers : public ptx::Memory {
public:
    std::vector<u8>& add(std::vector<u8> bytes) {
        buffers_.push_back(std::make_unique<std::vector<u8>>(std::move(bytes)));
        return *buffers_.back();
    }
    std::optional<ptx::Range> find(u64 address) const override {
        for (const auto& buffer : buffers_) {
            const auto base = reinterpret_cast<u64>(buffer->data());
            if (address - base < buffer->size()) return ptx::Range{base, buffer->size(), true};
        }
        return std::nullopt;
    }
    std::optional<ptx::Range> nearest(u64 address) const override {
        std::optional<ptx::Range> best;
        u64 least = ~u64{0};
        for (const auto& buffer : buffers_) {
            const auto base = reinterpret_cast<u64>(buffer->data());
            const u64 distance = address < base ? base - address : address - base;
            if (distance < least) least = distance, best = ptx::Range{base, buffer->size(), true};
        }
        return best;
    }

private:
    std::vector<std::unique_ptr<std::vector<u8>>> buffers_;
};

std::vector<std::string> split(const std::string& text, char at) {
    std::vector<std::string> out{""};
    for (const char c : text) {
        if (c == at) out.emplace_back();
        else out.back() += c;
    }
    return out;
}

struct Argument {
    std::vector<u8> bytes;              // in the parameter block
    std::vector<u8>* memory = nullptr;  // what it points to
};

template <class T>
std::vector<u8> bytes_of(T value) {
    std::vector<u8> out(sizeof value);
    std::memcpy(out.data(), &value, sizeof value);
    return out;
}

std::vector<u8> random_bytes(const std::string& type, u64 count) {
    std::mt19937 random(1);
    std::vector<u8> out;
    for (u64 i = 0; i < count; ++i) {
        std::vector<u8> one;
        if (type == "f32") one = bytes_of(static_cast<float>(random()) / 2147483648.0F - 1.0F);
        else if (type == "u8") one = bytes_of(static_cast<u8>(random()));
        else if (type == "u32") one = bytes_of(static_cast<u32>(random()));
        else fail("random numbers of type " + type + ": f32, u8 or u32");
        out.insert(out.end(), one.begin(), one.end());
    }
    return out;
}

std::vector<u8> parse_hex(const std::string& digits) {
    if (digits.size() % 2 || digits.find_first_not_of("0123456789abcdefABCDEF") != digits.npos)
        fail("hex:" + digits + ": expected two hexadecimal digits for each byte");
    std::vector<u8> out;
    for (std::size_t i = 0; i < digits.size(); i += 2)
        out.push_back(static_cast<u8>(std::stoul(digits.substr(i, 2), nullptr, 16)));
    return out;
}

Argument parse_argument(const std::string& text, Buffers& buffers) {
    const auto parts = split(text, ':');
    if (parts.size() < 2) fail("--arg " + text + ": expected KIND:VALUE");
    const std::string& kind = parts[0];
    const std::string value = text.substr(kind.size() + 1);
    const auto memory = [&](std::vector<u8> bytes) {
        Argument out;
        out.memory = &buffers.add(std::move(bytes));
        out.bytes = bytes_of(reinterpret_cast<u64>(out.memory->data()));
        return out;
    };
    if (kind == "zeros") return memory(std::vector<u8>(std::strtoull(value.c_str(), nullptr, 0)));
    if (kind == "file") {
        const std::string bytes = read_file(value);
        return memory({bytes.begin(), bytes.end()});
    }
    if (kind == "hex") return {parse_hex(value), nullptr};
    if (kind == "random" && parts.size() == 3)
        return memory(random_bytes(parts[1], std::strtoull(parts[2].c_str(), nullptr, 0)));
    const u64 integer = std::strtoull(value.c_str(), nullptr, 0);
    if (kind == "f32") return {bytes_of(std::strtof(value.c_str(), nullptr)), nullptr};
    if (kind == "f64") return {bytes_of(std::strtod(value.c_str(), nullptr)), nullptr};
    if (kind == "u32" || kind == "s32") return {bytes_of(static_cast<u32>(integer)), nullptr};
    if (kind == "u64" || kind == "s64") return {bytes_of(integer), nullptr};
    if (kind == "u16" || kind == "s16")
        return {bytes_of(static_cast<std::uint16_t>(integer)), nullptr};
    if (kind == "u8" || kind == "s8") return {bytes_of(static_cast<u8>(integer)), nullptr};
    fail("--arg " + text + ": an unknown kind of argument");
}

ptx::Size parse_size(const std::string& text) {
    u32 values[3] = {1, 1, 1};
    const auto parts = split(text, ',');
    for (std::size_t i = 0; i < parts.size() && i < 3; ++i)
        values[i] = static_cast<u32>(std::strtoul(parts[i].c_str(), nullptr, 0));
    return {values[0], values[1], values[2]};
}

void print_memory(const std::vector<u8>& memory, const std::string& type, u64 count) {
    const auto each = [&](auto zero, const char* format) {
        using T = decltype(zero);
        for (u64 i = 0; i < count && (i + 1) * sizeof(T) <= memory.size(); ++i) {
            T value;
            std::memcpy(&value, memory.data() + i * sizeof(T), sizeof value);
            std::printf(format, value);
        }
        std::printf("\n");
    };
    if (type == "f32") each(float{}, "%.9g ");
    else if (type == "f64") each(double{}, "%.17g ");
    else if (type == "u32") each(u32{}, "%u ");
    else if (type == "s32") each(int{}, "%d ");
    else if (type == "u64") each(u64{}, "%lu ");
    else if (type == "u16") each(std::uint16_t{}, "%u ");
    else if (type == "u8") each(u8{}, "%u ");
    else fail("--print: an unknown type " + type);
}

int list(const std::string& path) {
    const auto module = ptx::Module::load(read_file(path));
    for (const auto& kernel : module->kernels()) {
        std::printf("%s\n", kernel->name().c_str());
        for (const ptx::Parameter& parameter : kernel->parameters())
            std::printf("  parameter of %u bytes at %u\n", parameter.size, parameter.offset);
        std::printf("  shared %u, local %u bytes\n", kernel->shared_bytes(), kernel->local_bytes());
        for (const std::string& opcode : kernel->lacks())
            std::printf("  not computed: %s\n", opcode.c_str());
    }
    return 0;
}

class Command {
public:
    Command(int count, char** words) : path_(words[2]) {
        for (int i = 3; i < count; ++i) {
            const std::string option = words[i];
            const auto value = [&]() -> std::string {
                if (i + 1 == count) fail(option + " needs a value");
                return words[++i];
            };
            if (option == "--kernel") kernel_ = value();
            else if (option == "--grid") launch_.grid = parse_size(value());
            else if (option == "--block") launch_.block = parse_size(value());
            else if (option == "--shared") launch_.shared = static_cast<u32>(std::stoul(value()));
            else if (option == "--arg") arguments_.push_back(parse_argument(value(), buffers_));
            else if (option == "--print") prints_.push_back(split(value(), ':'));
            else if (option == "--save") saves_.push_back(split(value(), ':'));
            else if (option == "--races") launch_.options.races = true;
            else if (option == "--uninitialized") launch_.options.uninitialized = true;
            else if (option == "--cooperative") launch_.cooperative = true;
            else if (option == "--checksum") launch_.options.checksum = true;
            else if (option == "--threads")
                launch_.options.threads = static_cast<unsigned>(std::stoul(value()));
            else if (option == "--most") launch_.options.most_instructions = std::stoull(value());
            else fail("an unknown option " + option);
        }
    }

    int run() {
        const auto module = ptx::Module::load(read_file(path_));
        const ptx::Kernel* const kernel = kernel_.empty() && module->kernels().size() == 1
                                              ? module->kernels()[0].get()
                                              : module->kernel(kernel_);
        if (kernel == nullptr)
            fail(kernel_.empty() ? "--kernel is missing: the file has " +
                                       std::to_string(module->kernels().size()) + " kernels"
                                 : "no kernel " + kernel_ + " in " + path_);
        std::vector<u8> block(kernel->parameter_bytes());
        const auto& parameters = kernel->parameters();
        if (arguments_.size() != parameters.size())
            fail("the kernel has " + std::to_string(parameters.size()) + " parameters, the call " +
                 std::to_string(arguments_.size()));
        for (std::size_t i = 0; i < parameters.size(); ++i) {
            if (arguments_[i].bytes.size() != parameters[i].size)
                fail("parameter " + std::to_string(i) + " has " +
                     std::to_string(parameters[i].size) + " bytes, the argument " +
                     std::to_string(arguments_[i].bytes.size()));
            std::memcpy(block.data() + parameters[i].offset, arguments_[i].bytes.data(),
                        parameters[i].size);
        }
        launch_.kernel = kernel;
        launch_.parameters = block.data();
        launch_.parameter_bytes = static_cast<u32>(block.size());
        launch_.memory = &buffers_;
        const ptx::Result result = ptx::launch(launch_);
        return report(result);
    }

private:
    std::vector<u8>& memory_of(const std::string& number) {
        const auto at = std::strtoul(number.c_str(), nullptr, 10);
        if (at >= arguments_.size() || arguments_[at].memory == nullptr)
            fail("parameter " + number + " has no memory");
        return *arguments_[at].memory;
    }

    int report(const ptx::Result& result) {
        std::fputs(result.printed.c_str(), stdout);
        for (const auto& print : prints_) {
            if (print.size() != 3) fail("--print N:TYPE:COUNT");
            print_memory(memory_of(print[0]), print[1],
                         std::strtoull(print[2].c_str(), nullptr, 0));
        }
        for (const auto& save : saves_) {
            if (save.size() != 2) fail("--save N:PATH");
            const auto& memory = memory_of(save[0]);
            std::ofstream(save[1], std::ios::binary)
                .write(reinterpret_cast<const char*>(memory.data()),
                       static_cast<std::streamsize>(memory.size()));
        }
        std::fprintf(stderr, "%lu instructions of warps, %lu of lanes, %.6f s (%s)\n",
                     result.warp_instructions, result.lane_instructions, result.seconds,
                     ptx::machine());
        if (launch_.options.checksum) std::fprintf(stderr, "checksum %016lx\n", result.checksum);
        for (const ptx::Fault& each : result.findings)
            std::fprintf(stderr, "%s\n", each.text().c_str());
        if (result.fault) std::fprintf(stderr, "%s\n", result.fault->text().c_str());
        return result.fault || !result.findings.empty() ? 1 : 0;
    }

    std::string path_, kernel_;
    ptx::Launch launch_{};
    Buffers buffers_;
    std::vector<Argument> arguments_;
    std::vector<std::vector<std::string>> prints_, saves_;
};

}  // namespace

int main(int count, char** words) {
    const std::string verb = count > 1 ? words[1] : "";
    if (verb == "--help" || verb == "-h") {
        std::fputs(kHelp, stdout);
        return 0;
    }
    try {
        if (verb == "list" && count == 3) return list(words[2]);
        if (verb == "run" && count > 2) return Command(count, words).run();
    } catch (const std::exception& error) {
        fail(error.what());
    }
    fail(verb.empty() ? "no command" : "an unknown command " + verb);
}
