#include "ggml.h"

#include <math.h>
#include <stddef.h>

const char* const ggml_type_names[] = {"f32", "f16", "q8_0", NULL};

float ggml_query_scale(int head) {
    return 1.0f / sqrtf((float) head);
}
