/* Tries file operations as a function. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "../../crates/capi/include/sublet_function.h"

static FILE *open_named(const char *name, uint32_t size, const char *how) {
    char path[256] = {0};
    memcpy(path, name, size < sizeof path - 1 ? size : sizeof path - 1);
    return fopen(path, how);
}

/* The first bytes of a file. */
uint32_t read_file(const char *name, uint32_t size, char *output, struct sublet_context *context) {
    FILE *file = open_named(name, size, "r");
    if (!file)
        return sublet_fail(context, "it cannot be read");
    uint32_t length = fread(output, 1, context->capacity, file);
    fclose(file);
    return length;
}

/* Writes "written" into a file. */
uint32_t write_file(const char *name, uint32_t size, char *output, struct sublet_context *context) {
    FILE *file = open_named(name, size, "w");
    if (!file || fputs("written", file) < 0)
        return sublet_fail(context, "it cannot be written");
    fclose(file);
    (void)output;
    return 0;
}
