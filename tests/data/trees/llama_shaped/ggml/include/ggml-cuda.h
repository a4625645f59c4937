#pragma once

#include "ggml.h"

#ifdef __cplusplus
extern "C" {
#endif

// NULL, after a word on stderr, where there is no GPU or no driver.
const struct ggml_backend* ggml_backend_cuda(void);
int ggml_cuda_largest_head(void);

#ifdef __cplusplus
}
#endif
