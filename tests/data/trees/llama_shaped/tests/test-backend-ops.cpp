// Compares what the GPU computes with the CPU's code. The options and the table are those of
// llama.cpp's program of this name; the build does not know it.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "ggml.h"

using floats = std::vector<float>;
using bytes = std::vector<uint8_t>;
using computes = std::function<bool(const ggml_backend*, floats&)>;

struct test_case {
    const char* operation;
    std::string parameters;
    computes run;
    bool supported = true;
};

static const double LIMIT = 1e-9;  // of the normalized mean square error

static bytes noise(int count, unsigned seed) {
    bytes found(count);
    for (uint8_t& each : found) {
        seed = seed * 1664525u + 1013904223u;
        each = seed >> 24;
    }
    return found;
}

static floats numbers(int count, unsigned seed) {
    floats found;
    for (const uint8_t each : noise(count, seed)) found.push_back((each - 127.5f) / 128);
    return found;
}

static test_case attention(int head) {
    const int keys = 1024;
    return {"FLASH_ATTN_EXT",
            "hsk=" + std::to_string(head) + ",nr23=[4,1],kv=1024,nb=1,mask=1,type_KV=f32",
            [=](const ggml_backend* backend, floats& out) {
                const floats q = numbers(head, 1), k = numbers(head * keys, 2), v = numbers(head * keys, 3);
                out.resize(head);
                return backend->attend(q.data(), k.data(), v.data(), out.data(), head, keys);
            },
            head <= ggml_backend_largest_head()};
}

static computes of(ggml_op op, bytes in, int count) {
    return [=](const ggml_backend* backend, floats& out) {
        out.resize(count);
        return backend->compute(op, in.data(), static_cast<int>(in.size()), out.data(), count);
    };
}

static bytes as_bytes(const floats& from) {
    bytes found(from.size() * sizeof(float));
    std::memcpy(found.data(), from.data(), found.size());
    return found;
}

static std::vector<test_case> all() {
    bytes rows = noise(20 * 64, 4), blocks = noise(17 * 64, 5);
    for (int i = 0; i < 64; ++i) {
        const float scale = 0.25f + i;
        std::memcpy(&rows[20 * i], &scale, sizeof scale);
        blocks[17 * i] = 120 + i % 16;
    }
    const char* product = ",type_b=f32,m=16,n=1,k=256,bs=[1,1],nr=[1,1]";
    return {
        {"GET_ROWS", "type=q4_0,n=256,m=5,r=4,be1=1,v=0", of(GGML_OP_GET_ROWS, rows, 32 * 64)},
        {"CPY", "type_src=f32,type_dst=f32,ne=[256,4,4,4]", of(GGML_OP_CPY, as_bytes(numbers(1024, 6)), 1024)},
        {"CPY", "type_src=f32,type_dst=turbo3,ne=[256,4,4,4]", of(GGML_OP_CPY_TURBO3, as_bytes(numbers(1024, 6)), 1024)},
        {"MUL_MAT", std::string("type_a=f32") + product, of(GGML_OP_MUL_MAT, as_bytes(numbers(16 * 4096, 7)), 16)},
        {"MUL_MAT", std::string("type_a=mxfp4") + product, of(GGML_OP_MUL_MAT_MXFP4, blocks, 64)},
        {"SOFT_MAX", "type=f32,ne=[1024,16,1,1],mask=0", of(GGML_OP_SOFT_MAX, as_bytes(numbers(2048, 8)), 2048)},
        {"RMS_NORM", "type=f32,ne=[64,5,4,3],v=0,eps=0.000001", of(GGML_OP_RMS_NORM, as_bytes(numbers(2048, 9)), 2048)},
        {"L2_NORM", "type=f32,ne=[64,5,4,3],eps=0.000001,v=0", of(GGML_OP_L2_NORM, as_bytes(numbers(2048, 9)), 2048)},
        attention(64),
        attention(128),
        attention(256),
        attention(512),
    };
}

static double error(const test_case& test, const ggml_backend* gpu) {
    floats expected, found;
    test.run(ggml_backend_host(), expected);
    if (!test.run(gpu, found)) std::abort();
    double wrong = 0, whole = 0;
    for (std::size_t i = 0; i < found.size(); ++i) {
        wrong += std::pow(found[i] - expected[i], 2);
        whole += std::pow(expected[i], 2);
    }
    return wrong / whole;
}

static bool chosen(const test_case& test, const std::string& names) {
    const std::string name = test.operation + ("(" + test.parameters + ")");
    const std::string all = "," + names + ",";
    return names.empty() || all.find("," + name + ",") != all.npos ||
           all.find("," + std::string(test.operation) + ",") != all.npos;
}

int main(int count, char** words) {
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    bool compares = true, right = true;
    const ggml_backend* backend = ggml_backend_best();
    std::string names;
    for (int i = 1; i < count; ++i) {
        if (!std::strcmp(words[i], "support")) compares = false;
        if (!std::strcmp(words[i], "-o")) names = words[i + 1];
        if (!std::strcmp(words[i], "CPU")) backend = ggml_backend_host();
    }
    std::puts("\"backend_name\",\"op_name\",\"op_params\",\"supported\",\"error_message\"");
    for (const test_case& test : all()) {
        if (!chosen(test, names)) continue;
        const double found = compares && test.supported ? error(test, backend) : 0;
        const bool differs = !(found <= LIMIT);
        if (differs) std::printf("[%s] ERR = %.9f > %.9f ", test.operation, found, LIMIT);
        std::printf("\"%s\",\"%s\",\"%s\",\"%d\",\"%s\"\n", backend->name, test.operation,
                    test.parameters.c_str(), test.supported,
                    differs ? "test failed" : test.supported ? "" : "not supported");
        right &= !differs;
    }
    return right ? 0 : 1;
}
