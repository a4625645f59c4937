#include "limit.h"

size_t limit_of(size_t total) {
    return total / 2;
}
