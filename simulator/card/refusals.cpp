#include "refusals.h"

#include "internal.h"

namespace simulator {

void report_refusal(const char* function, const char* error, const std::string& why) {
    const Lock lock(mutex());
    const int caller = stack();
    for (Violation& known : facts().violations) {
        if (known.kernel == function && known.error == error && known.why == why &&
            known.stack == caller) {
            ++known.count;
            changed();
            return;
        }
    }
    Violation violation;
    violation.kernel = function;
    violation.error = error;
    violation.why = why;
    violation.stack = caller;
    violation.count = 1;
    facts().violations.push_back(violation);
    write_report();
}

}  // namespace simulator
