// Reads what is there: the needs of the image, the kernel's files, and the probe's answers.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include "entrypoint.h"

// Copies a text, cut where it is too long.
static void copy(char *place, size_t size, const char *text) {
    snprintf(place, size, "%s", text);
}

// The beginning of a file in a buffer of the caller's; false: it cannot be read.
static bool read_file(const char *path, char *buffer, size_t size) {
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return false;
    size_t length = 0;
    ssize_t got = 0;
    while (length < size - 1 && (got = read(file, buffer + length, size - 1 - length)) > 0)
        length += (size_t)got;
    close(file);
    buffer[length] = '\0';
    return got >= 0;
}

static void read_need(struct needs *needs, char *word, char *rest) {
    if (strcmp(word, "recipe") == 0) {
        copy(needs->recipe, sizeof needs->recipe, rest);
    } else if (strcmp(word, "code") == 0 && needs->codes < kMostCode) {
        copy(needs->code[needs->codes++], sizeof needs->code[0], rest);
    } else if (strcmp(word, "cpu") == 0 && needs->instruction_count < kMostInstructions) {
        copy(needs->instructions[needs->instruction_count++], sizeof needs->instructions[0], rest);
    } else if (strcmp(word, "cuda") == 0) {
        sscanf(rest, "%d.%d", &needs->cuda_major, &needs->cuda_minor);
    } else if (strcmp(word, "driver") == 0) {
        copy(needs->driver, sizeof needs->driver, rest);
    }
    const bool entrypoint = strcmp(word, "entrypoint") == 0;
    const int words = needs->entrypoint + needs->command;
    if ((entrypoint || strcmp(word, "command") == 0) && words < kMostWords - 1) {
        needs->words[words] = rest;
        ++*(entrypoint ? &needs->entrypoint : &needs->command);
    }
}

void read_needs(struct needs *needs) {
    static char text[1 << 16];  // `words` point into it
    if (read_file(NEEDS, text, sizeof text)) {
        char *next = NULL;
        for (char *line = strtok_r(text, "\n", &next); line; line = strtok_r(NULL, "\n", &next)) {
            char *space = strchr(line, ' ');
            if (space == NULL) continue;
            *space = '\0';
            read_need(needs, line, space + 1);
        }
    }
    // NVIDIA's own images, and those that are made from them, name their CUDA in the environment.
    const char *cuda = getenv("CUDA_VERSION");
    if (needs->cuda_major == 0 && cuda != NULL)
        sscanf(cuda, "%d.%d", &needs->cuda_major, &needs->cuda_minor);
}

static bool add_device(struct facts *facts, const char *name) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, ROOT "/dev/%s", name);
    struct stat status;
    if (stat(path, &status) != 0) return false;
    if (facts->device_count == kMostDevices) return true;
    struct device *device = &facts->devices[facts->device_count++];
    snprintf(device->path, sizeof device->path, "/dev/%s", name);
    const bool real = S_ISCHR(status.st_mode);
    device->major = real ? (int)major(status.st_rdev) : -1;
    device->minor = real ? (int)minor(status.st_rdev) : -1;
    return true;
}

// Lines such as "509 nvidia-uvm".  Older drivers call the first module nvidia-frontend.
static void read_modules(struct facts *facts) {
    char text[1 << 14], *next = NULL;
    facts->major = facts->uvm_major = -1;
    if (!read_file(ROOT "/proc/devices", text, sizeof text)) return;
    facts->major = facts->uvm_major = 0;
    char *end = strstr(text, "Block devices:");
    if (end != NULL) *end = '\0';
    for (char *line = strtok_r(text, "\n", &next); line; line = strtok_r(NULL, "\n", &next)) {
        int number = 0;
        char name[32];
        if (sscanf(line, "%d %31s", &number, name) != 2) continue;
        if (strcmp(name, "nvidia") == 0 || strcmp(name, "nvidia-frontend") == 0)
            facts->major = number;
        if (strcmp(name, "nvidia-uvm") == 0) facts->uvm_major = number;
    }
}

// The driver's own library has its version in its name; NVIDIA's toolkits mount it into one of these.
static void find_own_library(struct facts *facts) {
    static const char *const directories[] = {
        "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64",
        "/usr/lib",                  "/usr/local/nvidia/lib64",    NULL,
    };
    for (int i = 0; facts->driver[0] != '\0' && directories[i] != NULL; ++i) {
        char path[PATH_MAX];
        snprintf(path, sizeof path, ROOT "%s/libcuda.so.%s", directories[i], facts->driver);
        if (access(path, R_OK) != 0) continue;
        facts->own = directories[i];
        return;
    }
}

// "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build ...".
static void read_driver(struct facts *facts) {
    char text[1024], *next = NULL;
    if (!read_file(ROOT "/proc/driver/nvidia/version", text, sizeof text)) return;
    text[strcspn(text, "\n")] = '\0';
    for (char *word = strtok_r(text, " \t", &next); word; word = strtok_r(NULL, " \t", &next)) {
        int major = 0, minor = 0;
        if (sscanf(word, "%d.%d", &major, &minor) != 2 || major < 100) continue;
        copy(facts->driver, sizeof facts->driver, word);
        return;
    }
}

void look(struct facts *facts) {
    facts->control = add_device(facts, "nvidiactl");
    facts->uvm = add_device(facts, "nvidia-uvm");
    facts->dxg = add_device(facts, "dxg");
    facts->tegra = add_device(facts, "nvmap");
    for (int i = 0; i < kMostCards; ++i) {
        char name[16];
        snprintf(name, sizeof name, "nvidia%d", i);
        if (add_device(facts, name)) facts->card = true;
    }
    read_modules(facts);
    char release[256];
    // "5.15.167.4-microsoft-standard-WSL2"
    facts->wsl = read_file(ROOT "/proc/sys/kernel/osrelease", release, sizeof release) &&
                 strstr(release, "WSL2") != NULL;
    read_driver(facts);
    find_own_library(facts);
}

void open_devices(struct facts *facts) {
    for (int i = 0; i < facts->device_count; ++i) {
        struct device *device = &facts->devices[i];
        char path[PATH_MAX];
        snprintf(path, sizeof path, ROOT "%s", device->path);
        const int file = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
        device->error = file < 0 ? errno : 0;
        if (file >= 0) close(file);
    }
}

static void read_answer(struct facts *facts, const char *line) {
    struct card card = {0};
    if (strncmp(line, "library ", 8) == 0) copy(facts->library, sizeof facts->library, line + 8);
    if (strncmp(line, "loading ", 8) == 0) copy(facts->loading, sizeof facts->loading, line + 8);
    if (strncmp(line, "unrunnable ", 11) == 0)
        snprintf(facts->probe, sizeof facts->probe, "it cannot be run: %.200s", line + 11);
    if (strcmp(line, "simulated") == 0) facts->simulated = true;
    if (strcmp(line, "prohibited") == 0 && facts->card_count > 0)
        facts->cards[facts->card_count - 1].prohibited = true;
    sscanf(line, "cuda %d", &facts->cuda);
    sscanf(line, "error %d %63s", &facts->error, facts->error_name);
    if (sscanf(line, "card %d %d %llu %95[^\n]", &card.major, &card.minor, &card.memory,
               card.name) == 4 &&
        facts->card_count < kMostCards)
        facts->cards[facts->card_count++] = card;
}

static void read_answers(struct facts *facts, FILE *answers) {
    char line[PATH_MAX + 16];
    while (fgets(line, sizeof line, answers) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        if (strcmp(line, "end") == 0) return;  // a program of the driver's may hold the pipe open
        read_answer(facts, line);
    }
}

static _Noreturn void become_probe(int answers) {
    const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
    dup2(nowhere, STDOUT_FILENO);
    dup2(nowhere, STDERR_FILENO);
    dup2(dup(answers), kAnswers);  // twice: dup2 keeps O_CLOEXEC where both are the same
    execl(PROBE, PROBE, (char *)NULL);
    dprintf(kAnswers, "unrunnable %s\n", strerror(errno));
    _exit(127);
}

void ask_probe(struct facts *facts) {
    int ends[2];
    pid_t child = -1;
    if (pipe2(ends, O_CLOEXEC) == 0) child = fork();
    if (child < 0) {
        snprintf(facts->probe, sizeof facts->probe, "it cannot be started: %s", strerror(errno));
        return;
    }
    if (child == 0) become_probe(ends[1]);
    close(ends[1]);
    FILE *answers = fdopen(ends[0], "r");
    if (answers != NULL) {
        read_answers(facts, answers);
        fclose(answers);
    }
    int status = 0;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
    if (WIFSIGNALED(status))
        snprintf(facts->probe, sizeof facts->probe, "it was ended by signal %d (%s)",
                 WTERMSIG(status), strsignal(WTERMSIG(status)));
    else if (WEXITSTATUS(status) != 0 && facts->probe[0] == '\0')
        snprintf(facts->probe, sizeof facts->probe, "it ended with exit status %d",
                 WEXITSTATUS(status));
}
