#include "ptx_c.h"

#include <map>
#include <mutex>

#include "ptx.h"

#define PTX_API extern "C" __attribute__((visibility("default")))

struct ptx_module {
    std::unique_ptr<ptx::Module> module;
    std::string lacks;
};

namespace {

thread_local std::string error, fault, printed;

// The allocations that callers registered.
class Registered : public ptx::Memory {
public:
    void add(ptx::Range range) {
        const std::lock_guard lock(mutex_);
        ranges_[range.base] = range;
    }
    void remove(std::uint64_t base) {
        const std::lock_guard lock(mutex_);
        ranges_.erase(base);
    }
    std::optional<ptx::Range> find(std::uint64_t address) const override {
        const std::lock_guard lock(mutex_);
        auto after = ranges_.upper_bound(address);
        if (after == ranges_.begin()) return std::nullopt;
        const ptx::Range& range = std::prev(after)->second;
        if (address - range.base >= range.size) return std::nullopt;
        return range;
    }
    std::optional<ptx::Range> nearest(std::uint64_t address) const override {
        const std::lock_guard lock(mutex_);
        if (ranges_.empty()) return std::nullopt;
        auto after = ranges_.upper_bound(address);
        if (after == ranges_.begin()) return after->second;
        const ptx::Range& below = std::prev(after)->second;
        if (after == ranges_.end() || address < below.base + below.size) return below;
        return after->second.base - address < address - below.base - below.size ? after->second
                                                                                : below;
    }

private:
    mutable std::mutex mutex_;
    std::map<std::uint64_t, ptx::Range> ranges_;
};

Registered& memory() {
    static auto* const all = new Registered;
    return *all;
}

template <class Body>
auto guarded(Body body, decltype(body()) otherwise) -> decltype(body()) {
    try {
        error.clear();
        return body();
    } catch (const std::exception& caught) {
        error = caught.what();
        return otherwise;
    }
}

const ptx::Kernel& kernel_of(const ptx_module* module, const char* name) {
    const ptx::Kernel* const kernel = module->module->kernel(name);
    if (kernel == nullptr) throw ptx::Error(std::string("no kernel ") + name);
    return *kernel;
}

}  // namespace

PTX_API const char* ptx_error() { return error.c_str(); }
PTX_API const char* ptx_fault() { return fault.c_str(); }
PTX_API const char* ptx_printed() { return printed.c_str(); }
PTX_API const char* ptx_machine() { return ptx::machine(); }

PTX_API ptx_module* ptx_load(const char* text, size_t size) {
    return guarded([&] { return new ptx_module{ptx::Module::load({text, size}), {}}; }, nullptr);
}
PTX_API void ptx_unload(ptx_module* module) { delete module; }
PTX_API int64_t ptx_kernels(const ptx_module* module) {
    return static_cast<int64_t>(module->module->kernels().size());
}
PTX_API const char* ptx_kernel_name(const ptx_module* module, int64_t index) {
    const auto& kernels = module->module->kernels();
    return index < 0 || index >= static_cast<int64_t>(kernels.size())
               ? nullptr
               : kernels[static_cast<std::size_t>(index)]->name().c_str();
}
PTX_API const char* ptx_lacks(const ptx_module* module, const char* name) {
    return guarded(
        [&]() -> const char* {
            thread_local std::string text;
            text.clear();
            for (const std::string& opcode : kernel_of(module, name).lacks()) text += opcode + "\n";
            return text.c_str();
        },
        nullptr);
}
PTX_API int64_t ptx_shared_bytes(const ptx_module* module, const char* name) {
    return guarded([&] { return static_cast<int64_t>(kernel_of(module, name).shared_bytes()); },
                   -1);
}
PTX_API int64_t ptx_parameter_bytes(const ptx_module* module, const char* name) {
    return guarded([&] { return static_cast<int64_t>(kernel_of(module, name).parameter_bytes()); },
                   -1);
}
PTX_API int ptx_parameter(const ptx_module* module, const char* name, int index, uint32_t* offset,
                          uint32_t* size) {
    return guarded(
        [&] {
            const auto& parameters = kernel_of(module, name).parameters();
            if (index < 0 || index >= static_cast<int>(parameters.size()))
                throw ptx::Error("no such parameter");
            *offset = parameters[static_cast<std::size_t>(index)].offset;
            *size = parameters[static_cast<std::size_t>(index)].size;
            return 0;
        },
        -1);
}
PTX_API int ptx_variable(const ptx_module* module, const char* name, uint64_t* address,
                         uint64_t* size) {
    const ptx::Variable* const variable = module->module->variable(name);
    if (variable == nullptr) return -1;
    *address = variable->address;
    *size = variable->size;
    return 0;
}
PTX_API void ptx_register(uint64_t address, uint64_t size, int backed) {
    memory().add({address, size, backed != 0});
}
PTX_API void ptx_unregister(uint64_t address) { memory().remove(address); }

PTX_API int ptx_run(const ptx_module* module, const char* name, const ptx_launch_options* options,
                    const void* parameters, uint32_t parameter_bytes, ptx_result* result) {
    return guarded(
        [&] {
            ptx::Launch launch;
            launch.kernel = &kernel_of(module, name);
            launch.grid = {options->grid[0], options->grid[1], options->grid[2]};
            launch.block = {options->block[0], options->block[1], options->block[2]};
            launch.shared = options->shared;
            launch.parameters = parameters;
            launch.parameter_bytes = parameter_bytes;
            launch.memory = &memory();
            launch.cooperative = options->cooperative != 0;
            launch.options = {options->threads,
                              options->races != 0,
                              options->uninitialized != 0,
                              options->checksum != 0,
                              static_cast<std::uint8_t>(options->fill),
                              options->most_instructions};
            const ptx::Result made = ptx::launch(launch);
            *result = {};
            printed = made.printed;
            fault.clear();
            std::vector<ptx::Fault> all;
            if (made.fault) all.push_back(*made.fault);
            all.insert(all.end(), made.findings.begin(), made.findings.end());
            for (const ptx::Fault& each : all) fault += (fault.empty() ? "" : "\n") + each.text();
            if (!all.empty()) {
                const ptx::Fault& first = all.front();
                result->fault = 1 + static_cast<int32_t>(first.kind);
                result->line = first.line;
                result->address = first.address;
                const auto copy = [](uint32_t* to, const ptx::Size& size) {
                    to[0] = size.x, to[1] = size.y, to[2] = size.z;
                };
                copy(result->block, first.block);
                copy(result->thread, first.thread);
            }
            result->warp_instructions = made.warp_instructions;
            result->lane_instructions = made.lane_instructions;
            result->checksum = made.checksum;
            result->seconds = made.seconds;
            result->cpu_seconds = made.cpu_seconds;
            return 0;
        },
        -1);
}
