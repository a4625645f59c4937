#pragma once

#include "ggml.h"

#ifdef __cplusplus
extern "C" {
#endif

const struct ggml_backend* ggml_backend_cpu(void);

#ifdef __cplusplus
}
#endif
