// What a test-backend-ops of 2024 lacks, included before its list of cases (kernel_test.py, modern):
// ik_llama.cpp's has neither modes nor a table, and calls attention by a constructor that it lacks.
#pragma once

static const ggml_type_traits_t * ggml_get_type_traits(ggml_type type) {
    static ggml_type_traits_t traits;
    traits = ggml_internal_get_type_traits(type);
    return &traits;
}

// Attention as newer trees test it, and as the list of cases calls it.
struct test_flash_attn_ext : public test_case {
    const int64_t hsk, hsv, nh;
    const std::array<int64_t, 2> nr23;
    const int64_t kv, nb;
    const bool mask, sinks;
    const float max_bias, logit_softcap;
    const ggml_prec prec;
    const ggml_type type_KV;
    const std::array<int32_t, 4> permute;

    test_flash_attn_ext(int64_t hsk, int64_t hsv, int64_t nh, std::array<int64_t, 2> nr23, int64_t kv,
                        int64_t nb, bool mask, bool sinks, float max_bias, float logit_softcap,
                        ggml_prec prec, ggml_type type_KV,
                        std::array<int32_t, 4> permute = {0, 1, 2, 3})
        : hsk(hsk), hsv(hsv), nh(nh), nr23(nr23), kv(kv), nb(nb), mask(mask), sinks(sinks),
          max_bias(max_bias), logit_softcap(logit_softcap), prec(prec), type_KV(type_KV),
          permute(permute) {}

    std::string vars() override {
        return VARS_TO_STR10(hsk, hsv, nh, nr23, kv, nb, mask, sinks, max_bias, logit_softcap) +
               "," + VARS_TO_STR3(prec, type_KV, permute);
    }

    double max_nmse_err() override {
        return 5e-4;
    }

    // Rows of heads one after the other, or with ``permute`` the heads of a row.
    ggml_tensor * of(ggml_context * context, ggml_type type, int64_t size, int64_t rows,
                     int64_t heads) {
        const int64_t padded = GGML_PAD(size, ggml_blck_size(type));
        const bool turned = permute[1] == 2;
        ggml_tensor * made = ggml_new_tensor_4d(context, type, padded, turned ? heads : rows,
                                                turned ? rows : heads, nr23[1]);
        return turned ? ggml_permute(context, made, 0, 2, 1, 3) : made;
    }

    ggml_tensor * build_graph(ggml_context * context) override {
        ggml_tensor * q = of(context, GGML_TYPE_F32, hsk, nb, nh * nr23[0]);
        ggml_tensor * k = of(context, type_KV, hsk, kv, nh);
        ggml_tensor * v = of(context, type_KV, hsv, kv, nh);
        ggml_tensor * m = nullptr;
        if (mask) {
            const int64_t rows = GGML_PAD(nb, GGML_KQ_MASK_PAD);
            m = ggml_new_tensor_4d(context, GGML_TYPE_F16, kv, rows, 1, nr23[1]);
        }
        const float scale = 1.0f / sqrtf(hsk);
        ggml_tensor * out =
            ggml_flash_attn_ext(context, q, k, v, m, scale, max_bias, logit_softcap);
        if (sinks) {
            ggml_flash_attn_ext_add_sinks(
                out, ggml_new_tensor_1d(context, GGML_TYPE_F32, q->ne[2]));
        }
        ggml_flash_attn_ext_set_prec(out, prec);
        return out;
    }
};

// Products with each type that the list does not name: the quantizations of a fork.
template <class Cases>
static void add_products(Cases & cases) {
    std::vector<std::string> named;
    for (const auto & each : cases) named.push_back(each->vars());
    for (int number = 0; number < GGML_TYPE_COUNT; number++) {
        const ggml_type type = (ggml_type) number;
        const ggml_type_traits_t traits = ggml_internal_get_type_traits(type);
        if (traits.blck_size == 0 || traits.type_name == nullptr || !traits.is_quantized ||
            traits.to_float == nullptr || traits.from_float_ref == nullptr) {
            continue;
        }
        const std::string name = std::string("type_a=") + traits.type_name + ",";
        const auto has = [&](const std::string & vars) { return vars.rfind(name, 0) == 0; };
        if (std::any_of(named.begin(), named.end(), has)) continue;
        for (int columns : {1, 4, 16}) {
            cases.emplace_back(new test_mul_mat(type, GGML_TYPE_F32, 16, columns, 256, {1, 1}, {1, 1}));
        }
        // To quantize by a trellis takes minutes for so many numbers.
        if (name.find("_kt,") == std::string::npos) {
            for (int columns : {1, 32}) {
                cases.emplace_back(new test_mul_mat_id(type, GGML_TYPE_F32, 4, 2, false, 512, columns, 256));
            }
        }
    }
}
