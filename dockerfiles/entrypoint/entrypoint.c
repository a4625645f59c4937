// The first program of every engine's image: it looks for a card that the engine can use, and then
// becomes the engine.
//
//     entrypoint ENGINE [ARGUMENT...] -- [ARGUMENT...]
//
// The words before the first "--" are the engine's entrypoint, those after it the container's
// arguments.  Without any before it, the engine is that of the file `needs`: an image that extends
// a published one keeps its entrypoint and its command.
//
// If "--check" is the container's only argument, or followed by "--json" alone, all that is found is
// printed instead; with "--report" alone, what can be handed on: no path, no message.  Every other
// argument is the engine's; --help or --version alone needs no card.
//
// BUILDER_CPU=1 starts the engine without a card.  Exit status: 78 (EX_CONFIG, sysexits.h) without a
// usable card, or on a CPU that lacks instructions of the engine; 126 or 127 where the engine cannot
// be run, as a shell has it.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "entrypoint.h"

enum { kConfiguration = 78, kNotExecutable = 126, kNotFound = 127 };

static struct needs needs;
static struct facts facts;

static struct verdict examine(void) {
    ask_probe(&facts);
    if (facts.error != 0 || facts.card_count == 0) open_devices(&facts);
    const struct verdict verdict = judge(&needs, &facts);
    return facts.missing[0] != '\0' ? judge_cpu(&facts) : verdict;
}

typedef void printer(const struct needs *, const struct facts *, const struct verdict *);

static int check(printer *print) {
    const struct verdict verdict = examine();
    print(&needs, &facts, &verdict);
    return verdict.problem == NULL ? 0 : kConfiguration;
}

// Whether BUILDER_CPU is set to 1; ends the program where it is anything else but 0.
static bool on_cpu(void) {
    const char *value = getenv("BUILDER_CPU");
    if (value == NULL || value[0] == '\0' || strcmp(value, "0") == 0) return false;
    if (strcmp(value, "1") == 0) return true;
    fprintf(stderr,
            "error: BUILDER_CPU is \"%s\"\n  to do: set it to 1 to run on the CPU, or remove it\n",
            value);
    exit(kConfiguration);
}

// Whether the engine only prints something about itself.
static bool only_prints(int arguments, char **given) {
    if (arguments != 1) return false;
    const char *word = given[0];
    return strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || strcmp(word, "--version") == 0;
}

static int become(char **engine) {
    if (engine[0] == NULL) {
        fputs("error: this image names no program to start\n", stderr);
        return kNotFound;
    }
    execvp(engine[0], engine);
    const int error = errno;
    fprintf(stderr, "error: %s cannot be run: %s\n", engine[0], strerror(error));
    return error == ENOENT ? kNotFound : kNotExecutable;
}

int main(int count, char **words) {
    int end = 1;
    while (end < count && strcmp(words[end], "--") != 0) ++end;
    if (end == count) {
        fputs("usage: entrypoint ENGINE [ARGUMENT...] -- [ARGUMENT...]\n", stderr);
        return kNotFound;
    }
    char **given = words + end + 1;
    const int arguments = count - end - 1;
    read_needs(&needs);
    look(&facts);
    look_at_cpu(&needs, &facts);
    if (arguments > 0 && strcmp(given[0], "--check") == 0) {
        if (arguments == 1) return check(print_text);
        if (arguments == 2 && strcmp(given[1], "--json") == 0) return check(print_json);
    }
    if (arguments == 1 && strcmp(given[0], "--report") == 0) return check(print_report);
    const bool needs_card = !on_cpu() && !only_prints(arguments, given);
    if (needs_card || facts.missing[0] != '\0') {
        const struct verdict verdict = needs_card ? examine() : judge_cpu(&facts);
        if (verdict.problem != NULL) {
            print_refusal(&verdict);
            return kConfiguration;
        }
        if (facts.simulated) fputs("note: the cards are simulated\n", stderr);
    }
    char **engine = calloc((size_t)count + kMostWords, sizeof *engine);
    if (engine == NULL) return kNotExecutable;
    int length = 0;
    for (int i = 1; i < end; ++i) engine[length++] = words[i];
    if (end == 1) {
        for (int i = 0; i < needs.entrypoint; ++i) engine[length++] = needs.words[i];
        for (int i = 0; arguments == 0 && i < needs.command; ++i)
            engine[length++] = needs.words[needs.entrypoint + i];
    }
    for (int i = 0; i < arguments; ++i) engine[length++] = given[i];
    return become(engine);
}
