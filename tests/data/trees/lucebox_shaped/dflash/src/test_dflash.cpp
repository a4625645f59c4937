// The program behind the server: says that it runs, and on what.
#include <cstdio>

#include "ggml.h"

int main(int count, char ** arguments) {
    std::printf("test_dflash: %d arguments\n", count - 1);
    for (int index = 1; index < count; index++) {
        std::printf("  %s\n", arguments[index]);
    }
    return 0;
}
