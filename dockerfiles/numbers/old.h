// What a test-backend-ops of 2024 needs before its first line to compile with a newer ggml
// (kernel_test.py, modern): ik_llama.cpp's was left behind.
#pragma once
#define BUILDER_OLD

#include <ggml.h>

// Arguments that functions got since.
#define ggml_quantize_chunk(...) ggml_quantize_chunk(__VA_ARGS__, nullptr)
#define ggml_upscale(...) ggml_upscale(__VA_ARGS__, GGML_SCALE_MODE_NEAREST)
#define ggml_upscale_ext(...) ggml_upscale_ext(__VA_ARGS__, GGML_SCALE_MODE_NEAREST)

// Its list of cases calls the attention of a newer tree, which old_cases.h has.
#define test_flash_attn_ext unused_flash_attn_ext

// Units that its list builds like the others, and that take two halves or two tensors.
static bool builder_gated(int op) {
    return op == GGML_UNARY_OP_SWIGLU || op == GGML_UNARY_OP_SWIGLU_OAI;
}
