// main of a test-backend-ops of 2024 (kernel_test.py, modern), with newer ones' arguments and table:
// support|test -b BACKEND [-o "CASE,CASE"] --output csv.
#pragma once

static void print_row(const std::string & backends, const std::string & operation,
                      const std::string & parameters, bool supported, bool equal) {
    printf("\"%s\",\"%s\",\"%s\",\"%d\",\"%s\"\n", backends.c_str(), operation.c_str(),
           parameters.c_str(), supported, equal ? "" : "test failed");
}

static bool supports(ggml_backend_t backend, ggml_context * context) {
    for (ggml_tensor * each = ggml_get_first_tensor(context); each != nullptr;
         each = ggml_get_next_tensor(context, each)) {
        if (!ggml_backend_supports_op(backend, each)) return false;
    }
    return true;
}

int main(int argc, char ** argv) {
    bool computes = false;
    std::string wanted, selected;
    for (int i = 1; i < argc; i++) {
        const std::string argument = argv[i];
        computes |= argument == "test";
        if (argument == "-b" && i + 1 < argc) wanted = argv[++i];
        if (argument == "-o" && i + 1 < argc) selected = std::string(",") + argv[++i] + ",";
    }
    ggml_backend_t backend = nullptr, cpu = ggml_backend_cpu_init();
    for (size_t i = 0; i < ggml_backend_reg_get_count(); i++) {
        if (wanted == ggml_backend_reg_get_name(i)) backend = ggml_backend_reg_init_backend(i, nullptr);
    }
    if (backend == nullptr) {
        fprintf(stderr, "there is no backend %s\n", wanted.c_str());
        return 2;
    }
    printf("\"backend_name\",\"op_name\",\"op_params\",\"supported\",\"error_message\"\n");
    bool all = true;
    for (auto & test : make_test_cases_eval()) {
        ggml_context * context = ggml_init({ggml_tensor_overhead() * 128, nullptr, true});
        test->mode = MODE_PERF;  // without tensors between the case's
        const std::string operation = test->op_desc(test->build_graph(context));
        const std::string parameters = test->vars();
        const bool on_card = supports(backend, context), on_cpu = supports(cpu, context);
        ggml_free(context);
        if (!selected.empty() &&
            selected.find("," + operation + "(" + parameters + "),") == std::string::npos) {
            continue;
        }
        if (!on_card || (computes && !on_cpu)) {
            const char * lacking = on_cpu ? wanted.c_str() : "CPU";
            print_row(on_card || on_cpu ? lacking : wanted + ", CPU", operation, parameters, false, true);
            continue;
        }
        const bool equal = !computes || test->eval(backend, cpu, nullptr);
        print_row(wanted, operation, parameters, true, equal);
        all &= equal;
    }
    return all ? 0 : 1;
}
