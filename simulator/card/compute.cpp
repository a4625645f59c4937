#include "compute.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>

#include "image.h"
#include "modules.h"
#include "ptx/order.h"
#include "works.h"

namespace simulator {

const bool kComputes = true;

struct Program {
    std::unique_ptr<ptx::Module> module;  // null: `why` says why there is none
    std::string why;
};

namespace {

// What the interpreter may touch: all that the driver knows.
class CardMemory : public ptx::Memory {
public:
    std::optional<ptx::Range> find(std::uint64_t address) const override {
        Range range;
        if (!find_range(reinterpret_cast<const void*>(address), &range)) return std::nullopt;
        return ptx::Range{range.address, range.size};
    }
    std::optional<ptx::Range> nearest(std::uint64_t address) const override {
        std::optional<ptx::Range> best;
        std::uint64_t least = ~std::uint64_t{0};
        each_range([&](const Range& range) {
            const std::uint64_t end = range.address + range.size;
            const std::uint64_t distance = address < range.address ? range.address - address
                                           : address < end         ? 0
                                                                   : address - end;
            if (distance >= least) return;
            least = distance;
            best = ptx::Range{range.address, range.size};
        });
        return best;
    }
};

// The PTX of a module for one card, or why there is none.
DeviceCode read_code(const Module& module, int card) {
    DeviceCode code = device_code(module.image, cards()[card]);
    if (code.name.empty()) throw std::runtime_error("the module has no code for the card");
    if (!code.ptx.empty()) return code;
    const std::string known = config().ptx + "/" + code.digest + ".ptx";
    std::ifstream file(known, std::ios::binary);
    if (config().ptx.empty() || !file) {
        throw std::runtime_error("no PTX is known for the machine code " + code.digest + " (" +
                                 code.name + ")");
    }
    code.ptx.assign(std::istreambuf_iterator<char>(file), {});
    return code;
}

std::mutex& programs_mutex() {
    static auto* const only = new std::mutex;
    return *only;
}

// The module as the interpreter has it, read at the first use.
Program& program_of(Module& module, int card) {
    const std::lock_guard lock(programs_mutex());
    std::shared_ptr<Program>& program = module.programs[card];
    if (program != nullptr) return *program;
    program = std::make_shared<Program>();
    try {
        const DeviceCode code = read_code(module, card);
        const bool other = std::ranges::any_of(module.programs, [](const auto& each) {
            return each.second->module != nullptr;
        });
        // Each card's program has variables of its own, and these must be one.
        if (other && code.ptx.find(".attribute(.managed)") != std::string::npos) {
            throw std::runtime_error("managed variables on two cards");
        }
        program->module = ptx::Module::load(code.ptx);
        for (const ptx::Variable& variable : program->module->variables()) {
            add_variable({.address = variable.address, .size = variable.size, .card = card});
        }
    } catch (const std::exception& error) {  // ptx::Error, std::runtime_error, no memory
        program->why = error.what();
    }
    return *program;
}

cudaError_t refuse(const Launch& launch, cudaError_t error, const std::string& why) {
    violate(launch.kernel->name, error, why, launch.grid, launch.block, launch.shared);
    return error;
}

cudaError_t error_of(ptx::Fault::Kind kind) {
    using Kind = ptx::Fault::Kind;
    switch (kind) {
        case Kind::out_of_bounds: return cudaErrorIllegalAddress;
        case Kind::misaligned: return cudaErrorMisalignedAddress;
        case Kind::not_computed: return cudaErrorNotSupported;
        case Kind::endless: return cudaErrorLaunchTimeout;
        default: return cudaErrorLaunchFailure;
    }
}

ptx::Size size_of(const dim3& size) { return {size.x, size.y, size.z}; }

// Null: there is none, which the report says.
const ptx::Kernel* kernel_of(const Launch& launch) {
    const Program& program = program_of(*launch.kernel->module, launch.card);
    const ptx::Kernel* const kernel =
        program.module == nullptr ? nullptr : program.module->kernel(launch.kernel->name);
    if (kernel == nullptr) {
        refuse(launch, cudaErrorNoKernelImageForDevice,
               "not computed: " +
                   (program.why.empty() ? "the PTX of its module lacks the kernel" : program.why) +
                   ", in " + launch.kernel->module->file);
    }
    return kernel;
}

// The packed arguments that the driver API's `extra` names (cuda.h); false: none.
bool packed(void* const* extra, const void** bytes, std::size_t* size) {
    const auto key = [](void* word) { return reinterpret_cast<std::uintptr_t>(word); };
    *bytes = nullptr;
    *size = 0;
    for (; extra != nullptr && key(*extra) != 0; extra += 2) {  // 0: CU_LAUNCH_PARAM_END
        if (key(*extra) == 1) *bytes = extra[1];
        if (key(*extra) == 2) *size = *static_cast<const std::size_t*>(extra[1]);
    }
    return *bytes != nullptr;
}

void count(const Launch& launch, const ptx::Result& result) {
    const Lock lock(mutex());
    LaunchCount& known = facts().launches[{launch.kernel, launch.card}];
    ++known.computed;
    known.instructions += result.lane_instructions;
    known.nanoseconds += static_cast<std::uint64_t>(result.seconds * 1e9);
    std::vector<Output>& outputs = facts().outputs;
    if (config().outputs && outputs.size() < kOutputs) {
        outputs.push_back({{launch.kernel, launch.card}, result.checksum});
    }
    changed();
}

cudaError_t run(const Launch& launch, const ptx::Kernel& kernel) {
    static const CardMemory memory;
    ptx::Launch wanted{.kernel = &kernel,
                       .grid = size_of(launch.grid),
                       .block = size_of(launch.block),
                       .shared = static_cast<std::uint32_t>(launch.shared),
                       .parameters = launch.arguments->bytes.data(),
                       .parameter_bytes = static_cast<std::uint32_t>(launch.arguments->bytes.size()),
                       .memory = &memory,
                       .cooperative = launch.cooperative,
                       .overlap = doing()};
    wanted.options.races = config().races;
    wanted.options.fill = 0xff;  // as poison() does: NaN, -1
    wanted.options.checksum = config().outputs;
    if (launch.dependent && watches()) {
        if (const std::optional<ptx::Fault> fault = ptx::early_access(kernel)) {
            break_card(launch.card, error_of(fault->kind));
            return refuse(launch, error_of(fault->kind), fault->text());
        }
    }
    const ptx::Result result = ptx::launch(wanted);
    std::fputs(result.printed.c_str(), stdout);
    count(launch, result);
    for (const ptx::Fault& each : result.findings) {  // computed all the same
        refuse(launch, cudaErrorLaunchFailure, each.text());
    }
    if (!result.fault) return cudaSuccess;
    const cudaError_t error = error_of(result.fault->kind);
    // What a card would compute does not end its context.
    if (result.fault->kind != ptx::Fault::Kind::not_computed) break_card(launch.card, error);
    return refuse(launch, error, result.fault->text());
}

}  // namespace

cudaError_t take_arguments(Launch& launch, void* const* each, void* const* extra) {
    const ptx::Kernel* const kernel = kernel_of(launch);
    if (kernel == nullptr) return cudaErrorNoKernelImageForDevice;
    auto arguments = std::make_shared<Arguments>();
    arguments->bytes.resize(kernel->parameter_bytes());
    for (const ptx::Parameter& parameter : kernel->parameters()) {
        arguments->each.push_back(arguments->bytes.data() + parameter.offset);
    }
    const void* bytes = nullptr;
    std::size_t size = 0;
    if (each != nullptr) {
        for (std::size_t i = 0; i < arguments->each.size(); ++i) {
            if (each[i] == nullptr) return refuse(launch, cudaErrorInvalidValue, "an argument is null");
            std::memcpy(arguments->each[i], each[i], kernel->parameters()[i].size);
        }
    } else if (packed(extra, &bytes, &size)) {
        // As too many arguments are (cuda.h); driver 580.159.04 refuses bytes of padding at the end.
        if (size > arguments->bytes.size()) {
            return refuse(launch, cudaErrorLaunchOutOfResources,
                          std::to_string(size) + " bytes of packed arguments; the kernel's parameters have " +
                              std::to_string(arguments->bytes.size()));
        }
        std::memcpy(arguments->bytes.data(), bytes, size);
    } else if (!arguments->each.empty()) {
        return refuse(launch, cudaErrorInvalidValue, "a launch without arguments");
    }
    launch.arguments = std::move(arguments);
    return cudaSuccess;
}

cudaError_t compute(const Launch& launch) {
    const Turn turn(turn_mutex());
    const ptx::Kernel* const kernel = kernel_of(launch);
    if (kernel == nullptr) return cudaErrorNoKernelImageForDevice;
    if (std::uint64_t{launch.cluster.x} * launch.cluster.y * launch.cluster.z > 1) {
        return refuse(launch, cudaErrorNotSupported, "not computed: clusters of several blocks");
    }
    try {
        return run(launch, *kernel);
    } catch (const std::exception& error) {  // PTX that cannot be translated
        return refuse(launch, cudaErrorInvalidPtx, std::string("not computed: ") + error.what());
    }
}

void reset_programs(int card) {
    const std::lock_guard lock(programs_mutex());
    each_module([card](Module& module) { module.programs.erase(card); });
    remove_variables(card);
}

void load_programs(Module* module) {
    if (!computes()) return;
    for (const Card& card : cards()) program_of(*module, card.index);
}

cudaError_t module_variable(Module* module, int card, const char* name, void** address,
                            std::size_t* size) {
    const Program& program = program_of(*module, card);
    const ptx::Variable* const variable =
        program.module == nullptr ? nullptr : program.module->variable(name);
    if (variable == nullptr) {
        violate(name, cudaErrorInvalidSymbol,
                "not computed: " + (program.why.empty()
                                        ? "the PTX of its module lacks the variable"
                                        : program.why) +
                    ", in " + module->file);
        return cudaErrorInvalidSymbol;
    }
    *address = reinterpret_cast<void*>(variable->address);
    *size = variable->size;
    return cudaSuccess;
}

}  // namespace simulator
