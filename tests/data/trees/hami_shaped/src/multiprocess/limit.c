#include "limit.h"

#include <stdlib.h>

size_t limit_of(int device) {
    const char * text = getenv("CUDA_DEVICE_MEMORY_LIMIT");
    return text == NULL ? 0 : strtoull(text, NULL, 10);
}
