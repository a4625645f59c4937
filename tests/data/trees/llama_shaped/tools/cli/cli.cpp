#include <cstdio>
#include <string>

#include "arg.h"
#include "llama.h"

int main(int argc, char** argv) {
    common_params params;
    if (const auto status = common_params_parse(argc, argv, params)) return *status;
    const std::string word = llama_next_word(params.prompt);
    std::printf("%s %s\n", params.prompt.c_str(), word.c_str());
    return word.empty() ? 1 : 0;
}
