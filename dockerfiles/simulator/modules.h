// Modules and kernels as modules.cpp registers and launch.cpp checks them.
#pragma once

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

struct Module {
    std::string file;
    const Code* code = nullptr;  // null: not in the code table
    std::map<std::string, std::unique_ptr<Kernel>, std::less<>> kernels;
};

}  // namespace simulator
