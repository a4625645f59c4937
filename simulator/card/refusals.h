// Calls of a library whose arguments the real one would refuse, written to the report.
#pragma once

#include "simulator.h"

namespace simulator {

// Adds a violation to the report, under the function's name in place of a kernel's.
// `error`: the name of the status that the caller returns.
SIMULATOR_API void report_refusal(const char* function, const char* error, const std::string& why);

}  // namespace simulator
