// More cases for ggml's test-backend-ops, included in it: what servers do and its own list lacks.
//
// Attention with each type that a cache can have, at the head sizes of today's models, with grouped
// queries and so many tokens that the kernel splits them among blocks.  A type that a tree adds is
// found by its number.  Constructors: tests/test-backend-ops.cpp, test_flash_attn_ext; trees before
// June 2026 have one type for both K and V.

// False: the tree's test has another constructor.
template <class Test>
static bool add_attention(std::vector<std::unique_ptr<test_case>> & cases, int head, int columns,
                          ggml_type type) {
    const std::array<int64_t, 2> queries = {4, 1};  // for each of two heads of K and V
    const int tokens = 1024;
    if constexpr (std::is_constructible_v<Test, int64_t, int64_t, int64_t, std::array<int64_t, 2>,
                                          int64_t, int64_t, bool, bool, float, float, ggml_prec,
                                          ggml_type, ggml_type>) {
        cases.emplace_back(new Test(head, head, 2, queries, tokens, columns, true, false, 0.0f,
                                    0.0f, GGML_PREC_F32, type, type));
        return true;
    } else if constexpr (std::is_constructible_v<Test, int64_t, int64_t, int64_t,
                                                 std::array<int64_t, 2>, int64_t, int64_t, bool,
                                                 bool, float, float, ggml_prec, ggml_type>) {
        cases.emplace_back(new Test(head, head, 2, queries, tokens, columns, true, false, 0.0f,
                                    0.0f, GGML_PREC_F32, type));
        return true;
    }
    return false;
}

static bool add_attentions(std::vector<std::unique_ptr<test_case>> & cases) {
    bool added = false;
    for (int number = 0; number < GGML_TYPE_COUNT; number++) {
        const ggml_type type = (ggml_type) number;
        const auto * traits = ggml_get_type_traits(type);
        const bool whole = type == GGML_TYPE_F32;
        // The test writes the cache with the type's own quantization.
        if (traits->blck_size == 0 || traits->blck_size > 128 ||
            (!whole && (traits->to_float == nullptr || traits->from_float_ref == nullptr))) {
            continue;
        }
        for (int head : {64, 128, 256}) {
            for (int columns : {1, 16}) {
                if (head % traits->blck_size == 0) {
                    added |= add_attention<test_flash_attn_ext>(cases, head, columns, type);
                }
            }
        }
    }
    return added;
}

// Rows of a table of more than 2^31 bytes: an index of 32 bits does not reach the last one.  Only the
// rows that are asked for have numbers.
struct test_far_rows : public test_case {
    const int64_t columns = 4096, rows = 262400;
    const std::vector<int32_t> asked = {0, 131072, 262399};

    std::string vars() override {
        return "type=f16,n=4096,m=262400,r=3";
    }

    ggml_tensor * build_graph(ggml_context * context) override {
        ggml_tensor * table = ggml_new_tensor_2d(context, GGML_TYPE_F16, columns, rows);
        return ggml_get_rows(context, table, ggml_new_tensor_1d(context, GGML_TYPE_I32, 3));
    }

    void initialize_tensors(ggml_context * context) override {
        for (ggml_tensor * each = ggml_get_first_tensor(context); each != nullptr;
             each = ggml_get_next_tensor(context, each)) {
            if (each->type == GGML_TYPE_I32) {
                ggml_backend_tensor_set(each, asked.data(), 0, ggml_nbytes(each));
            } else if (each->type == GGML_TYPE_F16) {
                for (const int64_t row : asked) {
                    std::vector<ggml_fp16_t> numbers(columns);
                    for (int64_t at = 0; at < columns; at++) {
                        numbers[at] = ggml_fp32_to_fp16((float) (row % 1000 + at) / 4096.0f);
                    }
                    ggml_backend_tensor_set(each, numbers.data(), row * each->nb[1], each->nb[1]);
                }
            }
        }
    }
};

// Trees of autumn 2026 keep weights in a context of their own.
template <class Test>
static ggml_tensor * graph_of(Test & test, ggml_context * context) {
    if constexpr (requires { test.build_graph(context, context); }) {
        return test.build_graph(context, context);
    } else {
        return test.build_graph(context);
    }
}

// Mode support leaves out the chains of operations that one kernel computes.
static void list_chains(const std::vector<std::unique_ptr<test_case>> & cases) {
    for (const auto & test : cases) {
        if (!test->run_whole_graph()) continue;
        const ggml_context_ptr context(
            ggml_init({ggml_tensor_overhead() * 256 + ggml_graph_overhead(), nullptr, true}));
        test->mode = MODE_SUPPORT;
        test->gf = ggml_new_graph(context.get());
        const std::string name = test->op_desc(graph_of(*test, context.get()));
        printf("chain %s(%s)\n", name.c_str(), test->vars().c_str());
    }
}

static std::vector<std::unique_ptr<test_case>> make_test_cases_eval() {
    auto cases = tree_cases();
    const bool added = add_attentions(cases);
    cases.emplace_back(new test_far_rows());
    if (getenv("BUILDER_LISTING") != nullptr) {
        if (!added) {
            printf("not added: attention with each type of cache, because the tree's "
                   "test_flash_attn_ext has another constructor\n");
        }
        list_chains(cases);
    }
    return cases;
}

// A program that ends in the middle has printed all that came before.
static const int lines_are_written_at_once = setvbuf(stdout, nullptr, _IOLBF, 0);
