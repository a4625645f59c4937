// Which instructions of the engine the CPU lacks: the engine would end with SIGILL, without a word.
//
// Names are gcc's: of its options -mavx2 and of the parts of -march=armv8.2-a+dotprod.
#include <stdio.h>
#include <string.h>

#include "entrypoint.h"

#ifdef __x86_64__
#include <cpuid.h>

enum { kEax, kEbx, kEcx, kEdx };
// What the system must save of the registers (Intel SDM, volume 1, "XSAVE-Supported Features").
enum { kNone = 0, kYmm = 0x6, kZmm = 0xe6, kTiles = 0x60000 };

// Bits of CPUID (Intel SDM, volume 2, "CPUID"; AMD APM, volume 3, appendix E).
static const struct {
    const char *name;
    unsigned leaf, subleaf;
    int in, bit;
    unsigned saved;
} bits[] = {
    {"sse3", 1, 0, kEcx, 0, kNone},
    {"ssse3", 1, 0, kEcx, 9, kNone},
    {"fma", 1, 0, kEcx, 12, kYmm},
    {"cx16", 1, 0, kEcx, 13, kNone},
    {"sse4.1", 1, 0, kEcx, 19, kNone},
    {"sse4.2", 1, 0, kEcx, 20, kNone},
    {"movbe", 1, 0, kEcx, 22, kNone},
    {"popcnt", 1, 0, kEcx, 23, kNone},
    {"avx", 1, 0, kEcx, 28, kYmm},
    {"f16c", 1, 0, kEcx, 29, kYmm},
    {"bmi", 7, 0, kEbx, 3, kNone},
    {"avx2", 7, 0, kEbx, 5, kYmm},
    {"bmi2", 7, 0, kEbx, 8, kNone},
    {"avx512f", 7, 0, kEbx, 16, kZmm},
    {"avx512dq", 7, 0, kEbx, 17, kZmm},
    {"avx512cd", 7, 0, kEbx, 28, kZmm},
    {"avx512bw", 7, 0, kEbx, 30, kZmm},
    {"avx512vl", 7, 0, kEbx, 31, kZmm},
    {"avx512vbmi", 7, 0, kEcx, 1, kZmm},
    {"avx512vnni", 7, 0, kEcx, 11, kZmm},
    {"amx-bf16", 7, 0, kEdx, 22, kTiles},
    {"amx-tile", 7, 0, kEdx, 24, kTiles},
    {"amx-int8", 7, 0, kEdx, 25, kTiles},
    {"avxvnni", 7, 1, kEax, 4, kYmm},
    {"avx512bf16", 7, 1, kEax, 5, kZmm},
    {"lzcnt", 0x80000001, 0, kEcx, 5, kNone},
};

static bool is_set(unsigned leaf, unsigned subleaf, int in, int bit) {
    unsigned found[4] = {0};
    return __get_cpuid_count(leaf, subleaf, &found[kEax], &found[kEbx], &found[kEcx],
                             &found[kEdx]) &&
           (found[in] >> bit & 1) != 0;
}

// XCR0, where the system has enabled XGETBV (OSXSAVE).
static unsigned saved_registers(void) {
    unsigned low = 0, high = 0;
    if (is_set(1, 0, kEcx, 27)) __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

// 1: the CPU and the system have it, 0: not, -1: the name is not known.
static int has(const char *name) {
    for (size_t i = 0; i < sizeof bits / sizeof *bits; ++i)
        if (strcmp(name, bits[i].name) == 0)
            return is_set(bits[i].leaf, bits[i].subleaf, bits[i].in, bits[i].bit) &&
                   (saved_registers() & bits[i].saved) == bits[i].saved;
    return -1;
}

static bool hypervisor(void) { return is_set(1, 0, kEcx, 31); }

#elif defined __aarch64__
#include <asm/hwcap.h>
#include <sys/auxv.h>

// Arm ARM, "Armv8.1 and Armv8.2 architecture extensions", as Linux shows them (elf_hwcaps.rst).
static const struct {
    const char *name;
    unsigned long first, second;  // of AT_HWCAP, AT_HWCAP2
} bits[] = {
    {"armv8-a", HWCAP_ASIMD, 0},
    {"armv8.1-a", HWCAP_ATOMICS | HWCAP_CRC32 | HWCAP_ASIMDRDM, 0},
    {"armv8.2-a", HWCAP_ATOMICS | HWCAP_CRC32 | HWCAP_ASIMDRDM, 0},
    {"dotprod", HWCAP_ASIMDDP, 0},
    {"fp16", HWCAP_FPHP | HWCAP_ASIMDHP, 0},
    {"sve", HWCAP_SVE, 0},
    {"sve2", 0, HWCAP2_SVE2},
    {"i8mm", 0, HWCAP2_I8MM},
    {"bf16", 0, HWCAP2_BF16},
};

static int has(const char *name) {
    for (size_t i = 0; i < sizeof bits / sizeof *bits; ++i)
        if (strcmp(name, bits[i].name) == 0)
            return (getauxval(AT_HWCAP) & bits[i].first) == bits[i].first &&
                   (getauxval(AT_HWCAP2) & bits[i].second) == bits[i].second;
    return -1;
}

static bool hypervisor(void) { return false; }

#else
static int has(const char *name) { return (void)name, -1; }

static bool hypervisor(void) { return false; }
#endif

static void append(char *list, const char *name) {
    const size_t length = strlen(list);
    snprintf(list + length, kText - length, "%s%s", length > 0 ? ", " : "", name);
}

// "model name : ..."; arm64 has no such line.
static void read_model(struct facts *facts) {
    FILE *file = fopen(ROOT "/proc/cpuinfo", "re");
    char line[256];
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "model name%*[\t ]: %95[^\n]", facts->cpu) == 1) break;
    if (file != NULL) fclose(file);
}

void look_at_cpu(const struct needs *needs, struct facts *facts) {
    read_model(facts);
    facts->virtual = hypervisor();
    for (int i = 0; i < needs->instruction_count; ++i) {
        const int found = has(needs->instructions[i]);
        if (found == 0) append(facts->missing, needs->instructions[i]);
        if (found < 0) append(facts->unjudged, needs->instructions[i]);
    }
}
