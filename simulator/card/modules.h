// Modules and kernels as modules.cpp registers and launch.cpp checks them.
#pragma once

#include <functional>
#include <memory>

#include "internal.h"

namespace simulator {

struct Kernel {
    Module* module = nullptr;
    std::string name;
    bool in_code = false;  // the code table has its attributes
    Attributes attributes;
    std::map<int, std::uint64_t> dynamic_shared;  // by card: what cudaFuncSetAttribute allowed
    bool nonportable_cluster = false;
};

struct Program;  // a module's PTX for one card, as mode compute has it: compute.cpp

struct Module {
    std::string file;
    const void* image = nullptr;  // as the program registered it
    std::map<int, std::shared_ptr<Program>> programs;  // by card
    const Code* code = nullptr;  // null: not in the code table
    std::map<std::string, std::unique_ptr<Kernel>, std::less<>> kernels;
};

void each_module(const std::function<void(Module&)>& act);

}  // namespace simulator
