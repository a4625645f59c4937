// The public face of a module (ptx.h).
#include "ast.h"
#include "lower.h"

namespace ptx {

Module::Module() = default;
Module::~Module() = default;

std::unique_ptr<Module> Module::load(std::string_view text) {
    std::unique_ptr<Module> module(new Module);
    module->data_ = std::make_unique<ModuleData>();
    module->data_->text = text;
    module->data_->parse();
    return module;
}

const std::vector<std::unique_ptr<Kernel>>& Module::kernels() const { return data_->kernels; }

const Kernel* Module::kernel(std::string_view name) const {
    const auto found = data_->kernel_by_name.find(name);
    return found == data_->kernel_by_name.end() ? nullptr : found->second;
}

const std::vector<Variable>& Module::variables() const { return data_->variables; }

const Variable* Module::variable(std::string_view name) const {
    const auto found = data_->variable_by_name.find(name);
    return found == data_->variable_by_name.end() ? nullptr : &data_->variables[found->second];
}

const Program& Kernel::program() const {
    const std::lock_guard lock(module_->mutex);
    if (program_ == nullptr) {
        try {
            program_ = translate(*module_, static_cast<u32>(function_));
        } catch (const Error& error) {
            throw Error("kernel " + name_ + ": " + error.what());
        }
    }
    return *program_;
}

u32 Kernel::parameter_bytes() const {
    u32 end = 0;
    for (const Parameter& parameter : parameters_)
        end = std::max(end, parameter.offset + parameter.size);
    return end;
}

u32 Kernel::shared_bytes() const { return program().shared_bytes; }
u32 Kernel::local_bytes() const { return program().local_bytes; }
const std::vector<std::string>& Kernel::lacks() const { return program().missing; }

const char* machine() { return variant().name; }

const char* Fault::name(Kind kind) {
    switch (kind) {
        case Kind::not_computed: return "not computed";
        case Kind::out_of_bounds: return "out of bounds";
        case Kind::misaligned: return "misaligned";
        case Kind::barrier: return "barrier";
        case Kind::race: return "race";
        case Kind::uninitialized: return "uninitialized";
        case Kind::trap: return "trap";
        case Kind::endless: return "endless";
        case Kind::invalid: return "invalid";
    }
    return "";
}

std::string Fault::text() const {
    const auto triple = [](const Size& s) {
        return std::to_string(s.x) + "," + std::to_string(s.y) + "," + std::to_string(s.z);
    };
    std::string out = std::string(name(kind)) + ": " + what + "\n  in " + kernel;
    if (line != 0) out += ", PTX line " + std::to_string(line);
    if (!instruction.empty()) out += ": " + instruction;
    if (!source.empty()) out += "\n  from " + source;
    if (at_thread) {
        out += "\n  block " + triple(block) + ", thread " + triple(thread) + " (warp " +
               std::to_string(warp) + ", lane " + std::to_string(lane) + ")";
    }
    return out;
}

}  // namespace ptx
