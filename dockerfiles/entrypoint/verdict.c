// Whether the engine can use a card here; if not, what is missing and what to do.
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "entrypoint.h"

// CUresult (NVIDIA, CUDA Driver API reference).
enum { kNoDevice = 100, kDriverMismatch = 803, kCompatNotSupported = 804 };

#define GPUS "--gpus all (with Podman or CDI: --device nvidia.com/gpu=all)"

static void say(char *place, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(place, kText, format, arguments);
    va_end(arguments);
}

// "sm_120a": machine code for 12.0 alone.  The rules are those of builder/kernels/selection.py.
static bool runs(const char *code, int major, int minor) {
    char kind[16], suffix = 0;
    int arch = 0;
    if (sscanf(code, "%15[a-z]_%d%c", kind, &arch, &suffix) < 2) return false;
    const int own = 10 * major + minor;
    if (suffix == 'a') return arch == own;
    if (arch > own) return false;
    return arch / 10 == major || (strcmp(kind, "compute") == 0 && suffix == 0);
}

// Machine code comes before PTX, which the driver compiles at the first start.
const char *code_for(const struct needs *needs, int major, int minor) {
    const char *found = NULL;
    for (int i = 0; i < needs->codes; ++i)
        if (runs(needs->code[i], major, minor) &&
            (found == NULL || strncmp(needs->code[i], "sm_", 3) == 0))
            found = needs->code[i];
    return found;
}

// -1, 0 or 1, as the numbers of two versions compare: 570.86 is before 580.
static int compared(const char *one, const char *other) {
    while (*one != '\0' || *other != '\0') {
        char *next_one = NULL, *next_other = NULL;
        const long first = strtol(one, &next_one, 10), second = strtol(other, &next_other, 10);
        if (first != second) return first < second ? -1 : 1;
        one = *next_one == '.' ? next_one + 1 : "";
        other = *next_other == '.' ? next_other + 1 : "";
    }
    return 0;
}

// "driver 580 or newer", "driver for CUDA 13 or newer", "driver"
static const char *wanted_driver(const struct needs *needs) {
    static char text[64];
    if (needs->driver[0] != '\0')
        snprintf(text, sizeof text, "driver %s or newer", needs->driver);
    else if (needs->cuda_major != 0)
        snprintf(text, sizeof text, "driver for CUDA %d or newer", needs->cuda_major);
    else
        snprintf(text, sizeof text, "driver");
    return text;
}

static const char *no_devices(const struct needs *needs, const struct facts *facts,
                              struct verdict *verdict) {
    if (facts->wsl) {
        say(verdict->what, "this container has no GPU: WSL's device /dev/dxg is missing");
        say(verdict->remedy,
            "start the container with " GPUS "; Windows needs NVIDIA's %s, and a Docker Engine "
            "inside WSL the NVIDIA Container Toolkit",
            wanted_driver(needs));
    } else if (facts->driver[0] != '\0') {
        say(verdict->what, "this container has no GPU, though the host has NVIDIA's driver %s",
            facts->driver);
        say(verdict->remedy,
            "start the container with " GPUS "; the host needs the NVIDIA Container Toolkit");
    } else {
        say(verdict->what,
            "this container has no GPU, and the host's kernel has not loaded NVIDIA's driver");
        say(verdict->remedy,
            "install NVIDIA's %s and the NVIDIA Container Toolkit on the host, then start "
            "the container with " GPUS, wanted_driver(needs));
    }
    return "no-gpu";
}

static bool has_compute(void) {
    const char *value = getenv("NVIDIA_DRIVER_CAPABILITIES");
    return value == NULL || strstr(value, "compute") != NULL || strstr(value, "all") != NULL;
}

static const char *no_library(const struct needs *needs, const struct facts *facts,
                              struct verdict *verdict) {
    // glibc's words; a library that libcuda.so.1 needs would be named instead.
    if (strncmp(facts->loading, "libcuda.so.1: cannot open", 25) != 0) {
        say(verdict->what, "the driver's library cannot be loaded: %s", facts->loading);
        say(verdict->remedy,
            "start the container with " GPUS ", without mounts of your own for the driver");
        return "driver-library";
    }
    if (!facts->control && !facts->dxg) return no_devices(needs, facts, verdict);
    const char *device = facts->control ? "/dev/nvidiactl" : "/dev/dxg";
    if (!has_compute()) {
        say(verdict->what, "the driver's library libcuda.so.1 is missing: "
            "NVIDIA_DRIVER_CAPABILITIES is %s", getenv("NVIDIA_DRIVER_CAPABILITIES"));
        say(verdict->remedy, "add compute to NVIDIA_DRIVER_CAPABILITIES");
        return "no-toolkit";
    }
    say(verdict->what, "%s is here, and the driver's library libcuda.so.1 is not%s", device,
        facts->dxg ? " (WSL has it in /usr/lib/wsl/lib)" : "");
    say(verdict->remedy, "install the NVIDIA Container Toolkit, which brings the library, and start "
        "the container with " GPUS);
    return "no-toolkit";
}

static const char *old_driver(const struct needs *needs, const struct facts *facts,
                              struct verdict *verdict) {
    char own[64] = "";
    if (facts->driver[0] != '\0') snprintf(own, sizeof own, " %s", facts->driver);
    say(verdict->what, "the driver%s supports CUDA %d.%d, and this image has CUDA %d.%d", own,
        facts->cuda / 1000, facts->cuda % 1000 / 10, needs->cuda_major, needs->cuda_minor);
    say(verdict->remedy, "install NVIDIA's %s on the host%s", wanted_driver(needs),
        facts->wsl ? " (in Windows)" : "");
    return "old-driver";
}

static const char *no_cards(const struct needs *needs, const struct facts *facts,
                            struct verdict *verdict) {
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (visible != NULL) {
        say(verdict->what, "CUDA_VISIBLE_DEVICES=\"%s\" leaves no card", visible);
        say(verdict->remedy, "remove the variable, or name a card that the container has: 0");
        return "hidden";
    }
    if (facts->forbidden) {
        say(verdict->what, "/dev/nvidiactl may not be opened by the user of this container");
        say(verdict->remedy,
            "start the container with " GPUS ", or allow the device for this user");
        return "forbidden";
    }
    if (!facts->control && !facts->dxg) return no_devices(needs, facts, verdict);
    say(verdict->what, "the driver finds no card");
    say(verdict->remedy,
        "check that nvidia-smi lists the card on the host, and start the container with " GPUS);
    return "no-card";
}

static const char *driver_error(const struct needs *needs, const struct facts *facts,
                                struct verdict *verdict) {
    if (facts->error == kNoDevice) return no_cards(needs, facts, verdict);
    if (facts->error == kDriverMismatch || facts->error == kCompatNotSupported) {
        say(verdict->what, "%s does not belong to the host's driver%s%s (%s)", facts->library,
            facts->driver[0] != '\0' ? " " : "", facts->driver, facts->error_name);
        // CUDA Compatibility, "Forward Compatibility": data center cards, and few others.
        say(verdict->remedy, "install NVIDIA's %s on the host: CUDA's compatibility libraries, which "
            "CDI puts first, do not work with this card", wanted_driver(needs));
        return "compat";
    }
    say(verdict->what, "the driver does not start: %s (%d)", facts->error_name, facts->error);
    if (facts->control && !facts->uvm)
        say(verdict->remedy, "/dev/nvidia-uvm is missing: run nvidia-modprobe -u -c=0 on the host, "
            "and start a new container");
    else
        say(verdict->remedy, "check that nvidia-smi works on the host; if not, restart the host");
    return "driver-error";
}

static const char *no_code(const struct needs *needs, const struct facts *facts,
                           struct verdict *verdict) {
    const struct card *card = &facts->cards[0];
    char codes[256] = "";
    for (int i = 0; i < needs->codes; ++i) {
        const size_t length = strlen(codes);
        snprintf(codes + length, sizeof codes - length, "%s%s", i > 0 ? ", " : "", needs->code[i]);
    }
    say(verdict->what, "the %s has compute capability %d.%d, and this image has code for %s alone",
        card->name, card->major, card->minor, codes);
    say(verdict->remedy, "choose an image with code for compute capability %d.%d", card->major,
        card->minor);
    return "no-code";
}

// A driver compiles the PTX of its own CUDA and of older ones: CUDA Compatibility, "Minor Version
// Compatibility", on PTX and JIT.
static bool too_new(const char *code, const struct needs *needs, const struct facts *facts) {
    return strncmp(code, "compute_", 8) == 0 && facts->cuda != 0 &&
           facts->cuda / 10 < 100 * needs->cuda_major + needs->cuda_minor;
}

static const char *new_ptx(const struct needs *needs, const struct facts *facts, const char *code,
                           struct verdict *verdict) {
    char own[64] = "";
    if (facts->driver[0] != '\0') snprintf(own, sizeof own, " %s", facts->driver);
    say(verdict->what, "the driver%s supports CUDA %d.%d, and cannot compile this image's PTX (%s) "
        "of CUDA %d.%d", own, facts->cuda / 1000, facts->cuda % 1000 / 10, code,
        needs->cuda_major, needs->cuda_minor);
    say(verdict->remedy, "install an NVIDIA driver for CUDA %d.%d or newer on the host%s, or choose "
        "an image with machine code for the card", needs->cuda_major, needs->cuda_minor,
        facts->wsl ? " (in Windows)" : "");
    return "old-driver";
}

static const char *problem(const struct needs *needs, struct facts *facts,
                           struct verdict *verdict) {
    if (facts->probe[0] != '\0') {
        say(verdict->what, "the program that asks the driver gave no answer: %s", facts->probe);
        say(verdict->remedy, "check that nvidia-smi works on the host; if not, restart the host");
        return "probe";
    }
    if (facts->library[0] == '\0') return no_library(needs, facts, verdict);
    // Drivers run programs of an older CUDA, and of every minor version of their own: CUDA
    // Compatibility, "Minor Version Compatibility".
    if (facts->cuda != 0 && facts->cuda / 1000 < needs->cuda_major)
        return old_driver(needs, facts, verdict);
    if (facts->error != 0) return driver_error(needs, facts, verdict);
    if (facts->card_count == 0) return no_cards(needs, facts, verdict);
    if (needs->driver[0] != '\0' && facts->driver[0] != '\0' &&
        compared(facts->driver, needs->driver) < 0) {
        say(verdict->what, "the driver is %s, and this image needs %s", facts->driver,
            needs->driver);
        say(verdict->remedy, "install NVIDIA's %s on the host", wanted_driver(needs));
        return "old-driver";
    }
    bool usable = needs->codes == 0;
    const char *unread = NULL;
    for (int i = 0; i < facts->card_count; ++i) {
        struct card *card = &facts->cards[i];
        card->code = code_for(needs, card->major, card->minor);
        if (card->code != NULL && too_new(card->code, needs, facts)) {
            unread = card->code;
            card->code = NULL;
        }
        usable = usable || card->code != NULL;
    }
    if (usable) return NULL;
    return unread != NULL ? new_ptx(needs, facts, unread, verdict) : no_code(needs, facts, verdict);
}

struct verdict judge(const struct needs *needs, struct facts *facts) {
    struct verdict verdict = {0};
    verdict.problem = problem(needs, facts, &verdict);
    return verdict;
}
