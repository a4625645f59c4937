// What the program knows: the image's needs, the CPU, the host's driver and its cards, the verdict.
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
    kMostCode = 64,
    kMostInstructions = 32,
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
    char instructions[kMostInstructions][24];  // of the CPU: "avx2"; none: not known
    int instruction_count;
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
    bool prohibited;   // its compute mode allows no program
};

// A device file.
struct device {
    char path[24];
    int major, minor;  // -1: it is no character device
    int error;         // of opening it, looked at where the driver finds no card; 0: none
};

// What the kernel, the file system and the driver's library tell.
struct facts {
    char cpu[96];        // its model; empty: not known
    bool virtual;        // a hypervisor hides what the machine's CPU can do
    char missing[kText]; // instructions that the engine needs and the CPU lacks, with commas
    char unjudged[kText];  // instructions that it needs and this program does not know
    struct device devices[kMostDevices];
    int device_count;
    bool control, dxg, uvm, card;  // /dev/nvidiactl, /dev/dxg, /dev/nvidia-uvm, /dev/nvidiaN
    int major, uvm_major;    // of the kernel modules nvidia and nvidia-uvm; 0: not loaded, -1: not known
    bool wsl;                // the kernel is that of WSL 2
    bool tegra;              // a Jetson, whose driver has none of these devices: /dev/nvmap is there
    char driver[32];         // of the kernel module; empty: none is loaded
    char library[PATH_MAX];  // the file of libcuda.so.1; empty: it cannot be loaded
    const char *own;         // the directory of the driver's own libcuda.so; NULL: not found
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
    const char *or;  // the other way
};

// facts.c
void read_needs(struct needs *needs);
void look(struct facts *facts);
void ask_probe(struct facts *facts);
// Opens the devices, which starts a card: only where the driver finds none.
void open_devices(struct facts *facts);

// cpu.c
void look_at_cpu(const struct needs *needs, struct facts *facts);

// verdict.c
const char *code_for(const struct needs *needs, int major, int minor);
struct verdict judge(const struct needs *needs, struct facts *facts);
// The engine would end with SIGILL.
struct verdict judge_cpu(const struct facts *facts);

// report.c
void print_refusal(const struct verdict *verdict);
void print_text(const struct needs *needs, const struct facts *facts, const struct verdict *verdict);
void print_json(const struct needs *needs, const struct facts *facts, const struct verdict *verdict);
// As JSON without paths and messages, to hand on.
void print_report(const struct needs *needs, const struct facts *facts,
                  const struct verdict *verdict);
