// Whether the engine can use a card here; if not, what is missing and what to do.
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "entrypoint.h"

// CUresult (NVIDIA, CUDA Driver API reference); 35 is the CUDA runtime's word for 36.
enum {
    kStub = 34,
    kInsufficientDriver = 35,
    kNewerDriver = 36,
    kUnavailable = 46,
    kNoDevice = 100,
    kInvalidDevice = 101,
    kNotLicensed = 102,
    kEcc = 214,
    kSystemNotReady = 802,
    kDriverMismatch = 803,
    kCompatNotSupported = 804,
    kFirstOfMps = 805,
    kLastOfMps = 809,
};

#ifdef __aarch64__
#define CPU_DEFINITIONS "GGML_CPU_ARM_ARCH"
#define OWN_LIBRARIES "/usr/lib/aarch64-linux-gnu"
#else
#define CPU_DEFINITIONS "GGML_AVX2 = false and the like"
#define OWN_LIBRARIES "/usr/lib/x86_64-linux-gnu"
#endif

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

// "; NVIDIA_VISIBLE_DEVICES is void", where that hides every card from the container.
static const char *hidden_devices(void) {
    static char text[96];
    const char *value = getenv("NVIDIA_VISIBLE_DEVICES");
    if (value == NULL || (strcmp(value, "none") != 0 && strcmp(value, "void") != 0)) return "";
    snprintf(text, sizeof text, "; NVIDIA_VISIBLE_DEVICES is %s", value);
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
        say(verdict->what, "this container has no GPU, though the host has NVIDIA's driver %s%s",
            facts->driver, hidden_devices());
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

// "libcuda.so.580.65.06" has its version in its name, CUDA's compatibility libraries too; WSL's
// libcuda.so.1.1 has not.
static const char *library_version(const struct facts *facts) {
    const char *name = strstr(facts->library, "libcuda.so.");
    const char *version = name != NULL ? name + strlen("libcuda.so.") : "";
    return atoi(version) >= 100 ? version : "";
}

// Of the toolkits and cuda-compat packages of NVIDIA and conda: .../compat, .../cuda-compat.
static bool is_compat(const struct facts *facts) {
    return strstr(facts->library, "compat/") != NULL;
}

// The host's driver is newer than the library that was loaded in its place.
static bool is_hidden(const struct facts *facts) {
    const char *version = library_version(facts);
    if (facts->driver[0] == '\0') return facts->wsl && is_compat(facts);
    return version[0] != '\0' && compared(facts->driver, version) > 0;
}

// The directory of the library, as LD_LIBRARY_PATH names it; NULL: it does not.
static const char *listed_directory(const struct facts *facts) {
    static char text[PATH_MAX];
    const char *value = getenv("LD_LIBRARY_PATH");
    snprintf(text, sizeof text, "%s", value != NULL ? value : "");
    char *next = NULL;
    for (char *each = strtok_r(text, ":", &next); each; each = strtok_r(NULL, ":", &next)) {
        char real[PATH_MAX];
        if (realpath(each, real) == NULL) continue;
        const size_t length = strlen(real);
        if (strncmp(facts->library, real, length) == 0 && facts->library[length] == '/' &&
            strchr(facts->library + length + 1, '/') == NULL)
            return each;
    }
    return NULL;
}

static const char *directory(const char *file) {
    static char text[PATH_MAX];
    const char *slash = strrchr(file, '/');
    snprintf(text, sizeof text, "%.*s", slash != NULL ? (int)(slash - file) : 1, file);
    return text;
}

// Another library comes before the driver's own, which is good enough.
static const char *ignore_library(const struct facts *facts, struct verdict *verdict) {
    const char *own = facts->own != NULL ? facts->own : OWN_LIBRARIES;
    const char *listed = listed_directory(facts), *others = getenv("LD_LIBRARY_PATH");
    if (facts->driver[0] == '\0')
        say(verdict->remedy, "remove %s from %s: the library of Windows's driver comes first then",
            listed != NULL ? listed : directory(facts->library),
            listed != NULL ? "LD_LIBRARY_PATH" : "/etc/ld.so.conf.d of the image");
    else if (listed != NULL)
        say(verdict->remedy, "remove %s from LD_LIBRARY_PATH: the driver's own libcuda.so.%s is "
            "newer, and needs no compatibility library", listed, facts->driver);
    else
        say(verdict->remedy, "start the container with -e LD_LIBRARY_PATH=%s%s%s, where the driver's "
            "own libcuda.so.%s comes first, or remove %s from /etc/ld.so.conf.d of the image", own,
            others != NULL && others[0] != '\0' ? ":" : "", others != NULL ? others : "",
            facts->driver, directory(facts->library));
    return "compat";
}

// The library that was loaded is not that of the kernel's driver.
static const char *foreign_library(const struct needs *needs, const struct facts *facts,
                                   struct verdict *verdict) {
    const char *version = library_version(facts);
    const bool elsewhere = facts->own != NULL && strcmp(version, facts->driver) != 0;
    const bool compat = is_compat(facts);
    const bool enough = facts->driver[0] != '\0' &&
                        (needs->driver[0] != '\0' ? compared(facts->driver, needs->driver) >= 0
                         : version[0] != '\0'     ? compared(facts->driver, version) >= 0
                                                  : false);
    if (facts->driver[0] == '\0' && facts->wsl && compat) return ignore_library(facts, verdict);
    if (facts->driver[0] == '\0' && facts->wsl) {
        say(verdict->remedy, "run wsl --shutdown in Windows, and start again: its driver was "
            "upgraded while WSL ran");
        return "driver-mismatch";
    }
    if (enough && (compat || elsewhere)) return ignore_library(facts, verdict);
    if (compat || elsewhere ||
        (facts->error == kCompatNotSupported && version[0] == '\0' && !enough)) {
        // CUDA Compatibility, "Forward Compatibility": data center cards, and few others.
        say(verdict->remedy, "install NVIDIA's %s on the host: CUDA's compatibility libraries, which "
            "CDI puts first, do not work with this card", wanted_driver(needs));
        return "compat";
    }
    const bool older = version[0] != '\0' && facts->driver[0] != '\0'
                           ? compared(version, facts->driver) < 0
                           : enough && facts->cuda / 1000 < needs->cuda_major;
    if (older)
        say(verdict->remedy, "start a new container without a driver's library of its own; with "
            "CDI, run nvidia-ctk cdi generate on the host first");
    else
        say(verdict->remedy, "reboot the host, or reload the driver's kernel modules: the driver's "
            "libraries were upgraded%s%s, and the kernel still runs the older module%s%s",
            version[0] != '\0' ? " to " : "", version, facts->driver[0] != '\0' ? " " : "",
            facts->driver);
    return "driver-mismatch";
}

// What the user does on the host where a module is not loaded.
static const char *no_module(const char *path, bool uvm, struct verdict *verdict) {
    say(verdict->what, "%s is here, and the host's kernel has not loaded its module nvidia%s", path,
        uvm ? "-uvm" : "");
    say(verdict->remedy, "run nvidia-modprobe%s on the host, and start a new container; if that "
        "fails, the driver is not built for this kernel: install it again", uvm ? " -u -c=0" : "");
    return "no-module";
}

// Why a device cannot be used; NULL: it can, as far as this can be seen.
static const char *faulty_device(const struct facts *facts, const struct device *device,
                                 struct verdict *verdict) {
    const char *path = device->path;
    const bool uvm = strcmp(path, "/dev/nvidia-uvm") == 0, dxg = strcmp(path, "/dev/dxg") == 0;
    const int module = dxg ? -1 : uvm ? facts->uvm_major : facts->major;
    if (device->error == EISDIR) {
        say(verdict->what, "%s is a directory, and no device", path);
        say(verdict->remedy, "remove the mount of %s, and start the container with " GPUS, path);
        return "no-device";
    }
    if (module == 0) return no_module(path, uvm, verdict);
    if (module > 0 && device->major >= 0 && device->major != module) {
        say(verdict->what, "%s is stale: it has the number %d:%d, and the driver's is %d:%d", path,
            device->major, device->minor, module, device->minor);
        say(verdict->remedy, "start a new container; if %s has the number %d on the host, too, remove "
            "it there and run nvidia-modprobe %s-c=%d first", path, device->major, uvm ? "-u " : "",
            device->minor);
        return "stale-device";
    }
    if ((device->error == ENXIO || device->error == ENODEV) && module < 0)
        return no_module(path, uvm, verdict);
    if (device->error == EACCES) {
        say(verdict->what, "%s may not be opened by the user of this container", path);
        say(verdict->remedy,
            "start the container with " GPUS ", or allow the device for this user (--group-add)");
        return "forbidden";
    }
    if (device->error == EPERM) {
        // NVIDIA Container Toolkit, "Troubleshooting"; NVIDIA/nvidia-container-toolkit#48.
        say(verdict->what, "the container may not open %s: its cgroup forbids it", path);
        say(verdict->remedy, "start a new container with " GPUS "; systemctl daemon-reload takes "
            "the right from running ones, but not with \"exec-opts\": "
            "[\"native.cgroupdriver=cgroupfs\"] in /etc/docker/daemon.json");
        return "forbidden";
    }
    if (device->error != 0) {
        say(verdict->what, "%s cannot be opened: %s", path, strerror(device->error));
        say(verdict->remedy, "read the driver's reason on the host (dmesg | grep -e NVRM -e Xid); "
            "a card that is lost needs a restart of the host");
        return "driver-error";
    }
    return NULL;
}

// The first cause among the devices; NULL: they are as they should be, as far as this can be seen.
static const char *faulty_devices(const struct needs *needs, const struct facts *facts,
                                  struct verdict *verdict) {
    if (facts->simulated || (facts->tegra && !facts->control)) return NULL;
    if (!facts->control && !facts->dxg) return no_devices(needs, facts, verdict);
    for (int i = 0; i < facts->device_count; ++i) {
        const char *found = faulty_device(facts, &facts->devices[i], verdict);
        if (found != NULL) return found;
    }
    if (!facts->control) return NULL;  // WSL
    if (facts->major < 0 && facts->driver[0] == '\0')
        return no_module("/dev/nvidiactl", false, verdict);
    if (!facts->card) {
        say(verdict->what,
            "the container has /dev/nvidiactl, and the device of no card (/dev/nvidia0)%s",
            hidden_devices());
        say(verdict->remedy,
            "start the container with " GPUS ", and without NVIDIA_VISIBLE_DEVICES=none or void");
        return "no-device";
    }
    return NULL;
}

static const char *no_cards(const struct needs *needs, const struct facts *facts,
                            struct verdict *verdict) {
    const char *found = faulty_devices(needs, facts, verdict);
    if (found != NULL) return found;
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    // Any card would be the card 0.
    if (visible != NULL && visible[0] == '0' && (visible[1] == '\0' || visible[1] == ','))
        visible = NULL;
    if (facts->control && !facts->uvm && visible == NULL) {
        say(verdict->what, "the driver finds no card: /dev/nvidia-uvm is missing");
        say(verdict->remedy, "run nvidia-modprobe -u -c=0 on the host, and start a new container");
        return "no-device";
    }
    if (visible != NULL) {
        say(verdict->what, "CUDA_VISIBLE_DEVICES=\"%s\" leaves no card", visible);
        say(verdict->remedy, "remove the variable, or name a card that the container has: 0");
        return "hidden";
    }
    say(verdict->what, "the driver finds no card");
    say(verdict->remedy, "check that nvidia-smi -L lists the card on the host (in MIG mode also an "
        "instance), and start the container with " GPUS);
    return "no-card";
}

static const char *driver_error(const struct needs *needs, const struct facts *facts,
                                struct verdict *verdict);

static const char *old_driver(const struct needs *needs, const struct facts *facts,
                              struct verdict *verdict) {
    if (facts->error == kDriverMismatch || facts->error == kCompatNotSupported ||
        facts->error == kStub)
        return driver_error(needs, facts, verdict);
    const int major = facts->cuda / 1000, minor = facts->cuda % 1000 / 10;
    const bool enough = facts->driver[0] != '\0' && needs->driver[0] != '\0'
                            ? compared(facts->driver, needs->driver) >= 0
                            : is_hidden(facts);
    if (enough) {
        say(verdict->what, "%s supports CUDA %d.%d, this image has CUDA %d.%d, and the host's %s"
            "driver%s%s is not used", facts->library, major, minor, needs->cuda_major,
            needs->cuda_minor, facts->driver[0] != '\0' ? "newer " : "",
            facts->driver[0] != '\0' ? " " : "", facts->driver);
        return foreign_library(needs, facts, verdict);
    }
    char own[64] = "";
    if (facts->driver[0] != '\0') snprintf(own, sizeof own, " %s", facts->driver);
    say(verdict->what, "the driver%s supports CUDA %d.%d, and this image has CUDA %d.%d", own, major,
        minor, needs->cuda_major, needs->cuda_minor);
    say(verdict->remedy, "install NVIDIA's %s on the host%s", wanted_driver(needs),
        facts->wsl ? " (in Windows)" : "");
    return "old-driver";
}

static const char *driver_error(const struct needs *needs, const struct facts *facts,
                                struct verdict *verdict) {
    const int error = facts->error;
    char *const what = verdict->what, *const remedy = verdict->remedy;
    if (error == kNoDevice || (error == kInvalidDevice && getenv("CUDA_VISIBLE_DEVICES") != NULL))
        return no_cards(needs, facts, verdict);
    if (error == kDriverMismatch || error == kCompatNotSupported) {
        say(what, "%s does not belong to the host's driver%s%s (%s)", facts->library,
            facts->driver[0] != '\0' ? " " : "", facts->driver, facts->error_name);
        return foreign_library(needs, facts, verdict);
    }
    if (error == kStub) {
        say(what, "%s is CUDA's stub, which programs are linked with, and no driver",
            facts->library);
        say(remedy, "remove %s from LD_LIBRARY_PATH and from /etc/ld.so.conf.d of the image, and "
            "start the container with " GPUS, directory(facts->library));
        return "stub";
    }
    if (error == kInsufficientDriver || error == kNewerDriver) {
        say(what, "the driver%s%s is too old for this image: %s (%d)",
            facts->driver[0] != '\0' ? " " : "", facts->driver, facts->error_name, error);
        say(remedy, "install NVIDIA's newest driver on the host, at least the %s",
            wanted_driver(needs));
        return "old-driver";
    }
    say(what, "the driver does not start: %s (%d)", facts->error_name, error);
    if (error == kUnavailable) {
        say(remedy, "end the other programs on the card that nvidia-smi lists on the host; if its "
            "compute mode is Exclusive_Process or Prohibited, run nvidia-smi -c DEFAULT there");
        return "busy";
    }
    if (error == kNotLicensed) {
        say(remedy, "the virtual GPU has no license: check nvidia-smi -q on the machine that has "
            "the driver (\"License Status\")");
        return "driver-error";
    }
    if (error == kEcc) {
        say(remedy, "the card's memory has an error that ECC cannot correct: run nvidia-smi "
            "--gpu-reset on the host");
        return "driver-error";
    }
    if (error == kSystemNotReady) {
        say(remedy, "a service of the driver does not run on the host: with NVSwitch, run "
            "systemctl start nvidia-fabricmanager there");
        return "not-ready";
    }
    if (error >= kFirstOfMps && error <= kLastOfMps) {
        say(remedy, "CUDA's Multi-Process Service does not answer: start it on the host "
            "(nvidia-cuda-mps-control -d), or remove CUDA_MPS_PIPE_DIRECTORY and its mount");
        return "mps";
    }
    char reason[kText];
    snprintf(reason, sizeof reason, "%s", what);
    const char *found = faulty_devices(needs, facts, verdict);
    if (found != NULL) {
        char device[kText];
        snprintf(device, sizeof device, "%s", what);
        say(what, "%.300s; %.200s", device, reason);
        return found;
    }
    if (facts->control && !facts->uvm)
        say(remedy, "/dev/nvidia-uvm is missing: run nvidia-modprobe -u -c=0 on the host, and start "
            "a new container");
    else
        say(remedy, "check that nvidia-smi works on the host; if it does, start a new container, "
            "if not, restart the host");
    return "driver-error";
}

// Every card that runs the image's code refuses programs.
static const char *prohibited(const struct needs *needs, const struct facts *facts,
                              struct verdict *verdict) {
    for (int i = 0; i < facts->card_count; ++i) {
        const struct card *card = &facts->cards[i];
        if (needs->codes > 0 && card->code == NULL) continue;
        if (!card->prohibited) return NULL;
        say(verdict->what, "the compute mode of the %s is Prohibited: it runs no program",
            card->name);
    }
    say(verdict->remedy, "run nvidia-smi -c DEFAULT on the host");
    return "busy";
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
    if (is_hidden(facts)) {
        say(verdict->what, "%s supports CUDA %d.%d, and cannot compile this image's PTX (%s) of CUDA "
            "%d.%d", facts->library, facts->cuda / 1000, facts->cuda % 1000 / 10, code,
            needs->cuda_major, needs->cuda_minor);
        return ignore_library(facts, verdict);
    }
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
    // Where a compatibility library works, it counts as the driver of its version.
    if (needs->driver[0] != '\0' && facts->driver[0] != '\0' &&
        compared(facts->driver, needs->driver) < 0 &&
        compared(library_version(facts), needs->driver) < 0) {
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
    struct verdict verdict = {.or = "set BUILDER_CPU=1 to run on the CPU"};
    verdict.problem = problem(needs, facts, &verdict);
    if (verdict.problem == NULL) verdict.problem = prohibited(needs, facts, &verdict);
    return verdict;
}

struct verdict judge_cpu(const struct facts *facts) {
    struct verdict verdict = {.problem = "cpu"};
    say(verdict.what, "this CPU%s%s lacks instructions that the engine is compiled for: %.300s",
        facts->cpu[0] != '\0' ? ", " : "", facts->cpu, facts->missing);
    if (facts->virtual && !facts->wsl)  // WSL's kernel is a virtual machine with all of the CPU
        say(verdict.remedy, "give the virtual machine all instructions of the host's CPU (QEMU: "
            "-cpu host; Proxmox: type host)");
    else
        say(verdict.remedy, "run the image on a machine whose CPU has them");
    verdict.or = "build an image for this CPU: set " CPU_DEFINITIONS " in the define of the recipe's "
                 "[[cmake]]";
    return verdict;
}
