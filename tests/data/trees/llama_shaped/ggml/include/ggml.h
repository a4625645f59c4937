// What all of it stands on: one operation, done by the CPU or by a GPU.
#pragma once

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

// Attention of one query over `keys` keys and values, each of `head` floats: `out` is the mean of
// the values, weighted by how well their keys fit the query.
typedef bool (*ggml_attend_t)(const float* query, const float* keys, const float* values,
                              float* out, int head, int count);

struct ggml_backend {
    const char* name;
    ggml_attend_t attend;  // false where the device failed
};

// libggml-base

// The types that a cache may have, up to a NULL.
extern const char* const ggml_type_names[];
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
