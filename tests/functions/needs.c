/* Tells what a function has been given beside its package: variables, folders, and space for temporary files. */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../crates/capi/include/sublet_function.h"

static void text_of(const char *input, uint32_t size, char *text, size_t capacity) {
    size_t length = size < capacity - 1 ? size : capacity - 1;
    memcpy(text, input, length);
    text[length] = 0;
}

static uint32_t fail_with(struct sublet_context *context) {
    return sublet_fail(context, strerror(errno));
}

/* The value of an environment variable. */
uint32_t variable(const char *name, uint32_t size, char *output, struct sublet_context *context) {
    char text[256];
    text_of(name, size, text, sizeof text);
    const char *value = getenv(text);
    if (!value)
        return sublet_fail(context, "it is not set");
    return (uint32_t)snprintf(output, context->capacity, "%s", value);
}

/* The content of a file. */
uint32_t read_file(const char *name, uint32_t size, char *output, struct sublet_context *context) {
    char path[256];
    text_of(name, size, path, sizeof path);
    FILE *file = fopen(path, "r");
    if (!file)
        return fail_with(context);
    uint32_t length = (uint32_t)fread(output, 1, context->capacity, file);
    fclose(file);
    return length;
}

/* Writes "written" into a file. */
uint32_t write_file(const char *name, uint32_t size, char *output, struct sublet_context *context) {
    char path[256];
    text_of(name, size, path, sizeof path);
    FILE *file = fopen(path, "w");
    if (!file)
        return fail_with(context);
    (void)output;
    int status = fputs("written", file) < 0;
    return fclose(file) || status ? fail_with(context) : 0;
}

/* The number of KiB that can be written into a file, and the error after them; the file is then removed. */
uint32_t fill(const char *name, uint32_t size, char *output, struct sublet_context *context) {
    static const char block[1024];
    char path[256];
    text_of(name, size, path, sizeof path);
    FILE *file = fopen(path, "w");
    if (!file)
        return fail_with(context);
    setvbuf(file, NULL, _IONBF, 0);
    unsigned long written = 0;
    while (fwrite(block, sizeof block, 1, file) == 1)
        written++;
    int error = errno;
    fclose(file);
    unlink(path);
    return (uint32_t)snprintf(output, context->capacity, "%lu %s", written, error == ENOSPC ? "ENOSPC" : strerror(error));
}

/* The user, the group and the mode of a file. */
uint32_t status(const char *name, uint32_t size, char *output, struct sublet_context *context) {
    char path[256];
    struct stat found;
    text_of(name, size, path, sizeof path);
    if (stat(path, &found))
        return fail_with(context);
    return (uint32_t)snprintf(output, context->capacity, "%u %o", found.st_uid, (unsigned)found.st_mode & 0777);
}
