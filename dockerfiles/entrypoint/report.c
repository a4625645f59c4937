// Prints the verdict: as three lines, as a table for people, and as JSON.
#include <stdio.h>
#include <string.h>

#include "entrypoint.h"

void print_refusal(const struct verdict *verdict) {
    fprintf(stderr,
            "error: %s\n  to do: %s\n  or: %s; --check as the only argument shows all that was "
            "found\n",
            verdict->what, verdict->remedy, verdict->or);
}

// A list with commas, or the word for an empty one.
static void print_list(const char *items, size_t size, int count, const char *none) {
    if (count == 0) fputs(none, stdout);
    for (int i = 0; i < count; ++i) printf("%s%s", i > 0 ? ", " : "", items + (size_t)i * size);
}

void print_text(const struct needs *needs, const struct facts *facts,
                const struct verdict *verdict) {
    printf("image    %s; code: ", needs->recipe);
    print_list(needs->code[0], sizeof needs->code[0], needs->codes, "not known");
    if (needs->cuda_major != 0) printf("; CUDA %d.%d", needs->cuda_major, needs->cuda_minor);
    if (needs->driver[0] != '\0') printf("; driver %s or newer", needs->driver);
    printf("\ncpu      %s; the engine needs ",
           facts->cpu[0] != '\0' ? facts->cpu : "model not known");
    print_list(needs->instructions[0], sizeof needs->instructions[0], needs->instruction_count,
               "instructions that are not known");
    if (facts->missing[0] != '\0') printf("; lacks %s", facts->missing);
    if (facts->unjudged[0] != '\0') printf("; whether it has %s is not known", facts->unjudged);
    printf("\ndevices  ");
    print_list(facts->devices[0].path, sizeof facts->devices[0], facts->device_count, "none");
    printf("\ndriver   %s", facts->driver[0] != '\0' ? facts->driver : "not in the kernel");
    if (facts->cuda != 0) printf("; CUDA %d.%d", facts->cuda / 1000, facts->cuda % 1000 / 10);
    printf("; %s%s\n", facts->library[0] != '\0' ? facts->library : "no libcuda.so.1",
           facts->simulated ? " (simulated)" : "");
    for (int i = 0; i < facts->card_count; ++i) {
        const struct card *card = &facts->cards[i];
        const char *otherwise = needs->codes > 0 ? "no code of this image" : "code that is not known";
        printf("card %-4d%s; compute capability %d.%d; %llu MiB; runs %s\n", i, card->name,
               card->major, card->minor, card->memory >> 20,
               card->code != NULL ? card->code : otherwise);
        if (card->prohibited) printf("         its compute mode is Prohibited: it runs no program\n");
    }
    if (verdict->problem == NULL)
        puts("result   the engine uses the card");
    else
        printf("result   %s\nto do    %s\nor       %s\n", verdict->what, verdict->remedy, verdict->or);
}

static void print_string(const char *text) {
    if (text == NULL || text[0] == '\0') {
        fputs("null", stdout);
        return;
    }
    putchar('"');
    for (; *text != '\0'; ++text) {
        const unsigned char each = (unsigned char)*text;
        if (each == '"' || each == '\\')
            printf("\\%c", each);
        else if (each < 0x20)
            printf("\\u%04x", each);
        else
            putchar(each);
    }
    putchar('"');
}

static void print_member(const char *name, const char *text) {
    printf("\"%s\": ", name);
    print_string(text);
}

static void print_strings(const char *items, size_t size, int count) {
    putchar('[');
    for (int i = 0; i < count; ++i) {
        if (i > 0) fputs(", ", stdout);
        print_string(items + (size_t)i * size);
    }
    putchar(']');
}

static void print_version(const char *name, int major, int minor) {
    printf("\"%s\": ", name);
    if (major != 0)
        printf("\"%d.%d\"", major, minor);
    else
        fputs("null", stdout);
}

static void print_card(const struct card *card) {
    printf("    {");
    print_member("name", card->name);
    printf(", ");
    print_version("capability", card->major, card->minor);
    printf(", \"memory\": %llu, ", card->memory);
    print_member("code", card->code);
    putchar('}');
}

static void print_image(const struct needs *needs) {
    printf("  \"image\": {");
    print_member("recipe", needs->recipe);
    printf(", \"code\": ");
    print_strings(needs->code[0], sizeof needs->code[0], needs->codes);
    printf(", \"cpu\": ");
    print_strings(needs->instructions[0], sizeof needs->instructions[0], needs->instruction_count);
    printf(", ");
    print_version("cuda", needs->cuda_major, needs->cuda_minor);
    printf(", ");
    print_member("driver", needs->driver);
    printf("},\n");
}

static void print_cards(const struct facts *facts) {
    printf("  \"wsl\": %s,\n  \"cpu\": {", facts->wsl ? "true" : "false");
    print_member("model", facts->cpu);
    printf(", ");
    print_member("missing", facts->missing);
    printf(", ");
    print_member("unknown", facts->unjudged);
    printf("},\n  \"cards\": [");
    for (int i = 0; i < facts->card_count; ++i) {
        printf("%s\n", i > 0 ? "," : "");
        print_card(&facts->cards[i]);
    }
    printf("%s]\n}\n", facts->card_count > 0 ? "\n  " : "");
}

static void print_result(const struct verdict *verdict) {
    printf("{\n  \"version\": 1,\n  \"usable\": %s,\n  ",
           verdict->problem == NULL ? "true" : "false");
    print_member("problem", verdict->problem);
    printf(",\n");
}

// The members of the driver that both documents have; its object stays open.
static void print_driver(const struct facts *facts) {
    printf("  \"driver\": {");
    print_member("version", facts->driver);
    printf(", ");
    print_version("cuda", facts->cuda / 1000, facts->cuda % 1000 / 10);
    printf(", \"simulated\": %s", facts->simulated ? "true" : "false");
}

void print_json(const struct needs *needs, const struct facts *facts,
                const struct verdict *verdict) {
    print_result(verdict);
    const char *lines[] = {verdict->what, verdict->remedy, verdict->or};
    printf("  \"lines\": [");
    for (int i = 0; verdict->problem != NULL && i < 3; ++i) {
        if (i > 0) printf(", ");
        print_string(lines[i]);
    }
    printf("],\n");
    print_image(needs);
    print_driver(facts);
    printf(", ");
    print_member("library", facts->library);
    printf(", \"error\": ");
    print_string(facts->error != 0 ? facts->error_name : facts->loading);
    printf("},\n  \"devices\": ");
    print_strings(facts->devices[0].path, sizeof facts->devices[0], facts->device_count);
    printf(",\n");
    print_cards(facts);
}

void print_report(const struct needs *needs, const struct facts *facts,
                  const struct verdict *verdict) {
    print_result(verdict);
    print_image(needs);
    print_driver(facts);
    printf("},\n");
    print_cards(facts);
}
