// What the program knows: the image's needs, the host's driver and its cards, and the verdict.
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

// Tests put a directory before every path.
#ifndef ROOT
#define ROOT ""
#endif

#define NEEDS ROOT "/opt/builder/needs"
#define PROBE ROOT "/opt/builder/probe"

enum {
    kMostCode = 16,
    kMostCards = 16,
    kMostDevices = 20,
    kMostWords = 256,
    kAnswers = 3,  // the descriptor that the probe writes to: libraries print to the others
    kText = 512,
};

// The file `needs`: words in lines, written when the image is built.
struct needs {
    char recipe[128];
    char code[kMostCode][16];  // "sm_120a", "compute_120"; none: nothing is known of the code
    int codes;
    int cuda_major, cuda_minor;  // 0: not known
    char driver[24];             // the oldest driver; empty: not known
    char *words[kMostWords];     // a base image's own entrypoint, then its command
    int entrypoint, command;     // how many of each
};

struct card {
    char name[96];
    int major, minor;  // compute capability
    unsigned long long memory;  // bytes
    const char *code;  // the needs' code that it runs; NULL: none
};

// What the kernel, the file system and the driver's library tell.
struct facts {
    char devices[kMostDevices][24];  // paths below /dev
    int device_count;
    bool control, dxg, uvm;  // /dev/nvidiactl, /dev/dxg, /dev/nvidia-uvm
    bool forbidden;          // /dev/nvidiactl is there, and may not be opened
    bool wsl;                // the kernel is that of WSL 2
    char driver[32];         // of the kernel module; empty: none is loaded
    char library[PATH_MAX];  // the file of libcuda.so.1; empty: it cannot be loaded
    char loading[kText];     // why not, in the loader's words
    int cuda;                // that the driver supports: 13000 is 13.0
    int error;               // of cuInit; 0: none
    char error_name[64];
    bool simulated;
    struct card cards[kMostCards];
    int card_count;
    char probe[kText];  // why the probe gave no answer; empty: it gave one
};

struct verdict {
    const char *problem;  // NULL: the engine can use a card
    char what[kText], remedy[kText];
};

// facts.c
void read_needs(struct needs *needs);
void look(struct facts *facts);
void ask_probe(struct facts *facts);

// verdict.c
const char *code_for(const struct needs *needs, int major, int minor);
struct verdict judge(const struct needs *needs, struct facts *facts);

// report.c
void print_refusal(const struct verdict *verdict);
void print_text(const struct needs *needs, const struct facts *facts, const struct verdict *verdict);
void print_json(const struct needs *needs, const struct facts *facts, const struct verdict *verdict);
// As JSON without paths and messages, to hand on.
void print_report(const struct needs *needs, const struct facts *facts,
                  const struct verdict *verdict);
