// The doctor: can this build work on this machine?
#pragma once

#include <string>

#include "hello_base.h"

namespace hello {

// Exit codes of the server; 2 is a wrong command line.
enum ExitCode : int {
    kExitOk = 0,
    kExitFailure = 1,
    kExitUsage = 2,
    kExitNoDevice = 3,
    kExitNoKernelImage = 4,
};

// Returns why the GPU cannot be used, in CUDA's words and with what they leave out.
std::string explain(const BackendError& error);

// Returns the exit code for an error that keeps the GPU from being used.
ExitCode exit_code(const BackendError& error);

// Prints on stdout what GPU there is, and whether it gives the same text as the CPU.
ExitCode run_check(const Model& model);

}  // namespace hello
