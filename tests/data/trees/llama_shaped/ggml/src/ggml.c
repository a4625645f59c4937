#include "ggml.h"

#include <math.h>

struct ggml_type_traits {
    const char* type_name;
};

static const struct ggml_type_traits type_traits[GGML_TYPE_COUNT] = {
    [GGML_TYPE_F32] = {
        .type_name = "f32",
    },
    [GGML_TYPE_F16] = {
        .type_name = "f16",
    },
    [GGML_TYPE_Q8_0] = {
        .type_name = "q8_0",
    },
};

const char* ggml_type_name(enum ggml_type type) {
    return type < GGML_TYPE_COUNT ? type_traits[type].type_name : "none";
}

float ggml_query_scale(int head) {
    return 1.0f / sqrtf((float) head);
}
