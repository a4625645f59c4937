// Modules and kernels: what the program registered, and what the code table says about it.
#include <algorithm>
#include <cstdlib>
#include <memory>

#include "internal.h"
#include "modules.h"

namespace simulator {

namespace {

struct Modules {
    std::vector<std::unique_ptr<Module>> modules;  // unregistered ones too: the report names them
    std::unordered_map<const void*, Kernel*> functions;  // by stub and by handle
};

Modules& all() {
    static auto* const modules = new Modules;
    return *modules;
}

Kernel* add_kernel(Module* module, const char* name) {
    auto kernel = std::make_unique<Kernel>();
    kernel->module = module;
    kernel->name = name;
    if (module->code != nullptr) {
        const auto found = module->code->kernels.find(name);
        kernel->in_code = found != module->code->kernels.end();
        if (kernel->in_code) kernel->attributes = found->second;
    }
    Kernel* const added = kernel.get();
    all().functions[added] = added;
    module->kernels[added->name] = std::move(kernel);
    return added;
}

// From the code that the card takes, "sm_120a" or "compute_90". PTX is compiled for the card. From
// which PTX machine code was compiled is not known: its own version stands for it.
void add_versions(const std::string& code, int card, Attributes* attributes) {
    attributes->binary_version = attributes->ptx_version = card;
    const std::size_t digits = code.find('_');
    if (digits == std::string::npos) return;
    attributes->ptx_version = std::atoi(code.c_str() + digits + 1);
    if (code.starts_with("sm_")) attributes->binary_version = attributes->ptx_version;
}

}  // namespace

Module* register_module(const void* data) {
    auto module = std::make_unique<Module>();
    const Place place = place_of(data);
    module->image = data;
    module->file = place.file;
    module->code = place.file.empty() ? nullptr : find_code(place.file, place.offset);
    if (module->file.empty()) module->file = "made at run time";
    const RegistryLock lock(registry_mutex());
    all().modules.push_back(std::move(module));
    return all().modules.back().get();
}

// Its functions can no longer be found; what was launched stays in the report.
void unregister_module(Module* module) {
    const RegistryLock lock(registry_mutex());
    std::erase_if(all().functions,
                  [module](const auto& entry) { return entry.second->module == module; });
}

Kernel* register_kernel(Module* module, const void* host, const char* name) {
    const RegistryLock lock(registry_mutex());
    const auto found = module->kernels.find(name);
    Kernel* const kernel =
        found == module->kernels.end() ? add_kernel(module, name) : found->second.get();
    if (host != nullptr) all().functions[host] = kernel;
    return kernel;
}

Kernel* find_kernel(const void* function) {
    const RegistryLock lock(registry_mutex());
    const auto found = all().functions.find(function);
    return found == all().functions.end() ? nullptr : found->second;
}

Kernel* find_kernel(Module* module, const char* name) {
    const RegistryLock lock(registry_mutex());
    const auto found = module->kernels.find(name);
    if (found != module->kernels.end()) return found->second.get();
    const bool known = module->code == nullptr || module->code->kernels.contains(name);
    return known ? add_kernel(module, name) : nullptr;
}

const char* kernel_name(const Kernel* kernel) { return kernel->name.c_str(); }
Module* kernel_module(const Kernel* kernel) { return kernel->module; }

void each_module(const std::function<void(Module&)>& act) {
    const RegistryLock lock(registry_mutex());
    for (const auto& module : all().modules) act(*module);
}

void reset_kernels(int card) {
    each_module([card](Module& module) {
        for (const auto& [name, kernel] : module.kernels) kernel->dynamic_shared.erase(card);
    });
}

std::map<std::string, std::vector<std::string>> unknown_code() {
    const RegistryLock lock(registry_mutex());
    std::map<std::string, std::vector<std::string>> found;
    for (const auto& module : all().modules) {
        if (module->code != nullptr) continue;
        for (const auto& [name, kernel] : module->kernels) found[module->file].push_back(name);
    }
    return found;
}

cudaError_t kernel_attributes(Kernel* kernel, int card, Attributes* attributes) {
    if (const cudaError_t error = use_card(card)) return error;
    const Lock lock(mutex());
    const Code* const code = kernel->module->code;
    const Card& on = cards()[card];
    *attributes = kernel->attributes;
    add_versions(code == nullptr ? "" : code->code, on.major * 10 + on.minor, attributes);
    if (code == nullptr || kernel->in_code) return cudaSuccess;
    const std::string capability = std::to_string(on.major) + "." + std::to_string(on.minor);
    if (code->code == "none") {
        violate(kernel->name, cudaErrorNoKernelImageForDevice,
                kernel->module->file + " has no code for compute capability " + capability);
        return cudaErrorNoKernelImageForDevice;
    }
    // PTX: nothing is known about the kernels before the driver compiles it.
    if (code->code.starts_with("compute_") || code->kernels.empty()) return cudaSuccess;
    violate(kernel->name, cudaErrorInvalidDeviceFunction,
            "the fat binary of " + kernel->module->file + " has code for " + code->code +
                ", but not this kernel");
    return cudaErrorInvalidDeviceFunction;
}

}  // namespace simulator
