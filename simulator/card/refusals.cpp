#include "refusals.h"

#include "internal.h"

namespace simulator {

void add_violation(Violation made) {
    const Lock lock(mutex());
    made.stack = stack();
    for (Violation& known : facts().violations) {
        if (known.kernel == made.kernel && known.error == made.error && known.why == made.why &&
            known.stack == made.stack) {
            ++known.count;
            changed();
            return;
        }
    }
    made.count = 1;
    facts().violations.push_back(std::move(made));
    write_report();
}

void report_refusal(const char* function, const char* error, const std::string& why) {
    add_violation({.kernel = function, .error = error, .why = why});
}

}  // namespace simulator
