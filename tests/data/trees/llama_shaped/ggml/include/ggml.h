// What all of it stands on: operations, done by the CPU or by a GPU.
#pragma once

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

// Attention of one query over `keys` keys and values, each of `head` floats: `out` is the mean of
// the values, weighted by how well their keys fit the query.
typedef bool (*ggml_attend_t)(const float* query, const float* keys, const float* values,
                              float* out, int head, int count);

enum ggml_op {
    GGML_OP_GET_ROWS,        // blocks of a scale (float) and 32 numbers of four bits: all numbers
    GGML_OP_SOFT_MAX,        // rows of 256 floats: each row's softmax
    GGML_OP_RMS_NORM,        // rows of 256 floats: each row over its root mean square
    GGML_OP_L2_NORM,         // rows of 256 floats: each row over its length
    GGML_OP_CPY,             // floats: the same
    GGML_OP_CPY_TURBO3,      // floats: the same; the CPU's code of it crashes
    GGML_OP_MUL_MAT,         // rows of 4096 floats: the sum of each row's squares
    GGML_OP_MUL_MAT_MXFP4,   // blocks of an exponent (a byte) and 32 numbers of FP4: each one's sum
};

// `in` has `bytes`, `out` takes `count` floats; false where the device failed.
typedef bool (*ggml_compute_t)(enum ggml_op op, const void* in, int bytes, float* out, int count);

struct ggml_backend {
    const char* name;
    ggml_attend_t attend;  // false where the device failed
    ggml_compute_t compute;
};

// libggml-base

enum ggml_type {
    GGML_TYPE_F32 = 0,
    GGML_TYPE_F16 = 1,
    GGML_TYPE_Q8_0 = 2,
    GGML_TYPE_COUNT = 3,
};
const char* ggml_type_name(enum ggml_type type);
// The factor of every query: keeps the scores of long heads small.
float ggml_query_scale(int head);

// libggml

// The first GPU that works, else the CPU. Says on stderr why there is no GPU.
const struct ggml_backend* ggml_backend_best(void);
const struct ggml_backend* ggml_backend_host(void);
// The longest head that the GPU's kernel takes; 0 without the CUDA backend.
int ggml_backend_largest_head(void);

#ifdef __cplusplus
}
#endif
