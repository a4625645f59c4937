// Cases that a test-backend-ops of 2024 lacks, included before its list of cases (kernel_test.py,
// modern): the attention that it calls, and a fork's own quantizations and operations.
#pragma once
#undef test_flash_attn_ext

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
        const int64_t padded = GGML_PAD(hsk, ggml_blck_size(type_KV));
        ggml_tensor * q = of(context, GGML_TYPE_F32, padded, nb, nh * nr23[0]);
        ggml_tensor * k = of(context, type_KV, hsk, kv, nh);
        ggml_tensor * v = of(context, type_KV, hsv, kv, nh);
        ggml_tensor * m = nullptr;
        if (mask) {
            const int64_t rows = GGML_PAD(nb, GGML_KQ_MASK_PAD);
            m = ggml_new_tensor_2d(context, GGML_TYPE_F16, kv, rows);
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
        if (name.find("_bn") != std::string::npos) {  // of BitNet: rows of 512 and more
            cases.emplace_back(new test_mul_mat(type, GGML_TYPE_F32, 16, 16, 1024, {1, 1}, {1, 1}));
            continue;
        }
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

// An operation of ik_llama.cpp's that its list does not name, by a function that builds it.
struct test_of_fork : public test_case {
    using Build = std::function<ggml_tensor *(test_of_fork &, ggml_context *)>;
    const std::string parameters;
    const Build build;
    const double limit;

    test_of_fork(const std::string & parameters, double limit, const Build & build)
        : parameters(parameters), build(build), limit(limit) {}

    std::string vars() override {
        return parameters;
    }

    double max_nmse_err() override {
        return limit;
    }

    ggml_tensor * build_graph(ggml_context * context) override {
        return build(*this, context);
    }

    ggml_tensor * numbers(ggml_context * context, int64_t columns, int64_t rows, int64_t more = 1) {
        return ggml_new_tensor_3d(context, GGML_TYPE_F32, columns, rows, more);
    }

    // Experts, or rows: 0, 1, 2, ... as long as the tensor.
    void initialize_tensors(ggml_context * context) override {
        for (ggml_tensor * each = ggml_get_first_tensor(context); each != nullptr;
             each = ggml_get_next_tensor(context, each)) {
            if (each->type != GGML_TYPE_I32) {
                init_tensor_uniform(each);
            } else if (each->view_src == nullptr) {
                std::vector<int32_t> data(ggml_nelements(each));
                for (size_t at = 0; at < data.size(); at++) data[at] = at % each->ne[0];
                ggml_backend_tensor_set(each, data.data(), 0, ggml_nbytes(each));
            }
        }
    }
};

template <class Cases>
static void add_operations(Cases & cases) {
    const auto add = [&](const std::string & parameters, double limit,
                         const test_of_fork::Build & build) {
        cases.emplace_back(new test_of_fork(parameters, limit, build));
    };
    for (int columns : {128, 2048}) {
        const std::string sizes = "n=" + std::to_string(columns) + ",rows=5";
        add(sizes, 1e-6, [=](test_of_fork & test, ggml_context * context) {
            return ggml_fused_rms_norm(context, test.numbers(context, columns, 5),
                                       test.numbers(context, columns, 1), 1e-6f);
        });
        add(sizes, 1e-6, [=](test_of_fork & test, ggml_context * context) {
            return ggml_fused_norm(context, test.numbers(context, columns, 5),
                                   test.numbers(context, columns, 1), 1e-6f);
        });
        add(sizes, 1e-6, [=](test_of_fork & test, ggml_context * context) {
            ggml_tensor * weights = test.numbers(context, columns, 1);
            return ggml_fused_rms_rms_add(context, test.numbers(context, columns, 5), weights,
                                          test.numbers(context, columns, 5),
                                          test.numbers(context, columns, 1), 1e-6f);
        });
        add(sizes, 1e-6, [=](test_of_fork & test, ggml_context * context) {
            return ggml_hadamard(context, test.numbers(context, columns, 5), 128);
        });
        add(sizes, 1e-6, [=](test_of_fork & test, ggml_context * context) {
            return ggml_mul_multi_add(context, test.numbers(context, columns, 8, 5),
                                      test.numbers(context, 1, 8, 5));
        });
        add(sizes, 1e-6, [=](test_of_fork & test, ggml_context * context) {
            return ggml_softcap(context, test.numbers(context, columns, 5), 0.1f, 10.0f);
        });
        add(sizes, 1e-6, [=](test_of_fork & test, ggml_context * context) {
            return ggml_l2_norm(context, test.numbers(context, columns, 5), 1e-6f);
        });
    }
    for (ggml_unary_op unary : {GGML_UNARY_OP_SILU, GGML_UNARY_OP_GELU, GGML_UNARY_OP_RELU}) {
        const std::string name = std::string("op=") + ggml_unary_op_name(unary);
        add(name + ",n=256,rows=5", 1e-6, [=](test_of_fork & test, ggml_context * context) {
            return ggml_fused_mul_unary(context, test.numbers(context, 256, 5),
                                        test.numbers(context, 256, 5), unary);
        });
    }
    for (ggml_type type : {GGML_TYPE_Q8_0, GGML_TYPE_Q4_K, GGML_TYPE_IQ4_KS, GGML_TYPE_IQ2_K}) {
        for (int columns : {1, 16}) {
            const std::string name = std::string("type_a=") + ggml_type_name(type) +
                                     ",m=64,n=" + std::to_string(columns) + ",k=256";
            add(name, 5e-4, [=](test_of_fork & test, ggml_context * context) {
                ggml_tensor * up = test.ggml_new_tensor_2d(context, type, 256, 64);
                ggml_tensor * gate = test.ggml_new_tensor_2d(context, type, 256, 64);
                return ggml_fused_up_gate(context, up, gate, test.numbers(context, 256, columns),
                                          GGML_UNARY_OP_SILU);
            });
            add(name + ",n_mats=4,n_used=2", 5e-4, [=](test_of_fork & test, ggml_context * context) {
                ggml_tensor * up = test.ggml_new_tensor_3d(context, type, 256, 64, 4);
                ggml_tensor * gate = test.ggml_new_tensor_3d(context, type, 256, 64, 4);
                ggml_tensor * all = test.ggml_new_tensor_2d(context, GGML_TYPE_I32, 4, columns);
                ggml_tensor * ids = ggml_view_2d(context, all, 2, columns, all->nb[1], 0);
                return ggml_moe_up_gate(context, up, gate, test.numbers(context, 256, 1, columns),
                                        ids, GGML_UNARY_OP_SILU);
            });
        }
    }
}
