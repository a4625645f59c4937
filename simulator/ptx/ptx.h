// The PTX interpreter: runs a kernel's PTX on the CPU and computes what a GPU would compute.
//
// Who uses it: the simulated card (links this), `ptx run` (main.cpp), tests (the C API in ptx_c.h).
//
//   Card card;                                      // your Memory
//   auto module = ptx::Module::load(text);          // throws Error: what is no PTX, with its line
//   const ptx::Kernel* kernel = module->kernel("_Z3addPfS_i");
//   ptx::Result result = ptx::launch({.kernel = kernel, .grid = {4}, .block = {128},
//                                     .parameters = block, .parameter_bytes = 20, .memory =
//                                     &card});
//   if (result.fault) print(result.fault->text());
//
// Addresses are addresses of this process: a kernel that stores to 0x7f.. writes there, once
// `Memory` says that an allocation holds it.  A module's own variables are memory of the module.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace ptx {

// A text that is no PTX, or a launch that no card would take.
struct Error : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// An allocation of the card.
struct Range {
    std::uint64_t base = 0, size = 0;
    // Real bytes are there.  False: a hole (memory that is accounted for and never written); an
    // access to it is a fault.
    bool backed = true;
};

// What the card has allocated.  Called from several threads at once, for the first access to each
// allocation; allocations must not go away during a launch.
class Memory {
public:
    virtual ~Memory() = default;
    // The allocation that holds `address`; nothing: no allocation does.
    virtual std::optional<Range> find(std::uint64_t address) const = 0;
    // The allocation nearest to `address`, for the message about a bad access.
    virtual std::optional<Range> nearest(std::uint64_t address) const = 0;
};

struct Parameter {
    std::string name;
    std::uint32_t offset = 0, size = 0, alignment = 1;  // in the parameter block, in bytes
};

// A `__device__`, `__constant__` or `__managed__` variable.  Its bytes are at `address` from the
// load of the module on, with their initial values: read and write them there.
struct Variable {
    std::string name;
    std::uint64_t address = 0, size = 0;
    bool constant = false;
};

struct Fault;
struct Program;  // a kernel's code in the compact form (program.h)
struct ModuleData;

class Kernel {
public:
    const std::string& name() const { return name_; }
    const std::vector<Parameter>& parameters() const { return parameters_; }
    std::uint32_t parameter_bytes() const;
    // Bytes of a block's static shared memory, and of a thread's local memory.
    std::uint32_t shared_bytes() const;
    std::uint32_t local_bytes() const;
    // `.maxntid`; 0: not stated.
    std::uint32_t most_threads() const { return most_threads_; }
    // The opcodes of this kernel that the interpreter does not compute, each once.  A launch ends
    // at the first of them that a thread reaches.  Empty: everything is computed.
    const std::vector<std::string>& lacks() const;
    // Translated at the first call, once; throws Error.
    const Program& program() const;

private:
    friend struct ModuleData;
    friend class Module;
    friend std::optional<Fault> early_access(const Kernel& kernel);  // order.h
    std::string name_;
    std::vector<Parameter> parameters_;
    std::uint32_t most_threads_ = 0;
    ModuleData* module_ = nullptr;
    std::size_t function_ = 0;
    mutable std::shared_ptr<const Program> program_;
};

class Module {
public:
    // Kernels are found now and translated when they are first launched.
    static std::unique_ptr<Module> load(std::string_view text);
    ~Module();
    const std::vector<std::unique_ptr<Kernel>>& kernels() const;
    const Kernel* kernel(std::string_view mangled_name) const;  // null: no such kernel
    const std::vector<Variable>& variables() const;
    const Variable* variable(std::string_view name) const;  // null: no such variable

private:
    Module();
    std::unique_ptr<ModuleData> data_;
};

struct Size {
    std::uint32_t x = 1, y = 1, z = 1;
    std::uint64_t volume() const { return std::uint64_t{x} * y * z; }
};

struct Options {
    unsigned threads = 0;                 // of the host; 0: one for each core
    bool races = false;                   // find races of warps and of blocks (slow)
    bool uninitialized = false;           // find reads of shared memory that nothing wrote (slow)
    bool checksum = false;                // of all bytes that the kernel stored to global memory
    // What shared and local memory and registers hold, byte by byte, at the start of a block.
    std::uint8_t fill = 0;
    std::uint64_t most_instructions = 0;  // of a warp, then `Fault::Kind::endless`; 0: no limit
};

class Overlap;  // order.h

struct Launch {
    const Kernel* kernel = nullptr;
    Size grid, block;
    std::uint32_t shared = 0;  // dynamic, in bytes
    const void* parameters = nullptr;
    std::uint32_t parameter_bytes = 0;
    const Memory* memory = nullptr;
    // All blocks make progress at once, so that barriers of the whole grid work.  Their registers
    // and shared memory exist at once, too.
    bool cooperative = false;
    Options options;
    // What orders this launch and other works that touch the same memory; null: not watched.
    Overlap* overlap = nullptr;
};

// Why a kernel ended early; or a finding: a race or an uninitialized read.
struct Fault {
    enum class Kind {
        not_computed,   // an instruction that the interpreter lacks: `what` is the opcode
        out_of_bounds,  // also: a hole, read-only memory
        misaligned,
        barrier,  // not all threads reach it, or a deadlock
        race,
        uninitialized,
        trap,     // `trap`, a failed assertion
        endless,  // more instructions than the launch allows
        invalid,  // undefined by the ISA, as far as it is noticed
    };
    Kind kind = Kind::invalid;
    std::string what;  // one sentence
    std::string kernel;
    std::string instruction;  // as in the PTX
    std::uint32_t line = 0;   // of the PTX
    std::string source;       // "file:line" where `.loc` says so
    std::uint64_t address = 0;
    Size block, thread;  // indices: blockIdx, threadIdx
    std::uint32_t warp = 0, lane = 0;
    bool at_thread = false;  // `block`, `thread`, `warp` and `lane` are known
    std::string text() const;
    static const char* name(Kind kind);
};

struct Result {
    std::optional<Fault> fault;
    std::vector<Fault> findings;  // the first of each line; the kernel went on
    std::uint64_t warp_instructions = 0, lane_instructions = 0;
    double seconds = 0;          // from start to end
    double cpu_seconds = 0;      // of all threads of the host together
    std::uint64_t checksum = 0;  // does not depend on the order of blocks and threads
    std::string printed;         // what `printf` printed
};

// Runs the kernel to its end.  Throws Error where the launch itself is wrong.
Result launch(const Launch& launch);

// The instruction set that the interpreter's own loops use on this machine: "avx512", ...
const char* machine();

}  // namespace ptx
