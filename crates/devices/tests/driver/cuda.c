/* A driver that accepts CUDA's calls without a GPU: the host is the device. It executes no program; it recognizes the
 * tests' kernels by their text. It checks that the binding calls existing functions with valid arguments, releases each
 * object once, and releases no object in use: it aborts otherwise. Types and names are those of NVIDIA's documentation of
 * the driver interface. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { INVALID = 1, OUT_OF_MEMORY = 2, INVALID_IMAGE = 200, NO_CONTEXT = 201, INVALID_PTX = 218, NOT_FOUND = 500 };
enum { CONTEXT = 0xC0, MODULE, FUNCTION, STREAM, LINK };
enum { HEADER_BYTES = 64, ERROR_LOG = 5, ERROR_LOG_BYTES = 6 };

typedef struct object {
    int kind;
    int uses;
    struct object *of;
    char *text;
    char name[64];
    char *log;
    size_t log_bytes;
} object;

typedef struct {
    uint64_t input;
    uint32_t size;
    uint64_t output;
    uint32_t capacity;
    uint64_t written;
} arguments;

static __thread object *current;

static void must(int holds, const char *what) {
    if (!holds) {
        fprintf(stderr, "the driver was misused: %s\n", what);
        abort();
    }
}

static object *make(int kind, object *of) {
    object *made = calloc(1, sizeof *made);
    made->kind = kind;
    made->of = of;
    if (of)
        __atomic_add_fetch(&of->uses, 1, __ATOMIC_SEQ_CST);
    return made;
}

static int release(object *gone, int kind) {
    must(gone && gone->kind == kind, "an object is released twice, or as another");
    must(gone->uses == 0, "an object is released while another is in it");
    if (gone->of)
        __atomic_sub_fetch(&gone->of->uses, 1, __ATOMIC_SEQ_CST);
    gone->kind = 0; /* Kept, so that a second release shows. */
    return 0;
}

static object *here(void) {
    must(current && current->kind == CONTEXT, "no context was entered");
    return current;
}

int cuInit(unsigned flags) { return flags == 0 ? 0 : INVALID; }
int cuDriverGetVersion(int *version) { return *version = 12000, 0; }
int cuDeviceGetCount(int *count) { return *count = 1, 0; }
int cuDeviceGet(int *device, int number) { return *device = 7, number == 0 ? 0 : INVALID; }
int cuDeviceGetName(char *name, int len, int device) { return device == 7 ? snprintf(name, len, "none") < 0 : INVALID; }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { return *bytes = 1 << 30, device == 7 ? 0 : INVALID; }

int cuDeviceGetAttribute(int *value, int which, int device) {
    *value = which == 1 ? 1024 : which == 16 ? 4 : which == 75 ? 5 : 0;
    return device == 7 ? 0 : INVALID;
}

int cuGetErrorName(int error, const char **name) { return *name = "AN_ERROR_OF_THE_TESTS", error == 0; }

int cuCtxCreate_v2(object **context, unsigned flags, int device) {
    if (flags || device != 7)
        return INVALID;
    current = *context = make(CONTEXT, NULL);
    return 0;
}

int cuCtxDestroy_v2(object *context) { return release(context, CONTEXT); }

int cuCtxSetCurrent(object *context) {
    must(context->kind == CONTEXT, "a context is entered that is gone");
    current = context;
    return 0;
}

int cuLinkCreate_v2(unsigned count, const int *options, void *const *values, object **link) {
    *link = make(LINK, here());
    for (unsigned at = 0; at < count; at++) {
        if (options[at] == ERROR_LOG)
            (*link)->log = values[at];
        else if (options[at] == ERROR_LOG_BYTES)
            (*link)->log_bytes = (size_t)values[at];
        else
            return INVALID;
    }
    return 0;
}

int cuLinkAddData_v2(object *link, int type, const char *data, size_t len, const char *name, unsigned count,
                     const int *options, void *const *values) {
    (void)name, (void)options, (void)values;
    must(link->kind == LINK && type == 1 && count == 0, "what is linked is PTX");
    must(len > 0 && data[len - 1] == 0 && strlen(data) == len - 1, "PTX ends in zero");
    if (strstr(data, "no.such") || strstr(data, "garbage") || strstr(data, "sm_999")) {
        snprintf(link->log, link->log_bytes, "ptxas fatal : no such thing");
        return INVALID_PTX;
    }
    link->text = calloc(1, HEADER_BYTES + len);
    memcpy(link->text, "\177ELF\2\1", 6);
    link->text[18] = (char)190;
    memcpy(link->text + HEADER_BYTES, data, len);
    return 0;
}

int cuLinkComplete(object *link, void **cubin, size_t *len) {
    must(link->kind == LINK && link->text, "something was linked");
    *cubin = link->text;
    *len = HEADER_BYTES + strlen(link->text + HEADER_BYTES) + 1;
    return 0;
}

int cuLinkDestroy(object *link) { return free(link->text), release(link, LINK); }

int cuModuleLoadData(object **module, const char *image) {
    must((uintptr_t)image % 8 == 0, "an image is aligned");
    if (memcmp(image, "\177ELF\2\1", 6))
        return INVALID_IMAGE;
    *module = make(MODULE, here());
    (*module)->text = strdup(image + HEADER_BYTES);
    return 0;
}

int cuModuleUnload(object *module) {
    must(here() == module->of, "a module is unloaded in its context");
    return release(module, MODULE);
}

int cuModuleGetFunction(object **function, object *module, const char *name) {
    char entry[128];
    must(module->kind == MODULE && strlen(name) < sizeof module->name, "a module that is loaded is asked");
    snprintf(entry, sizeof entry, ".entry %s(", name);
    if (!strstr(module->text, entry))
        return NOT_FOUND;
    *function = calloc(1, sizeof **function);
    (*function)->kind = FUNCTION;
    (*function)->of = module;
    strcpy((*function)->name, name);
    return 0;
}

/* Not wiped: what was there before is left, as on a device. */
int cuMemAlloc_v2(uint64_t *address, size_t len) {
    uint8_t *bytes = malloc(len);
    memset(bytes, 0x5a, len);
    return here(), *address = (uint64_t)bytes, len ? 0 : INVALID;
}

int cuMemFree_v2(uint64_t address) { return here(), free((void *)address), 0; }

static void in_stream(const object *stream) {
    must(stream && stream->kind == STREAM && stream->of == here(), "a stream of the context is used");
}

int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t len, object *stream) {
    return in_stream(stream), memcpy((void *)to, from, len), 0;
}

int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t len, object *stream) {
    return in_stream(stream), memcpy(to, (void *)from, len), 0;
}

int cuMemsetD32Async(uint64_t to, unsigned word, size_t count, object *stream) {
    in_stream(stream);
    for (size_t at = 0; at < count; at++)
        ((uint32_t *)to)[at] = word;
    return 0;
}

int cuStreamCreate(object **stream, unsigned flags) { return *stream = make(STREAM, here()), flags == 1 ? 0 : INVALID; }
int cuStreamDestroy_v2(object *stream) { return release(stream, STREAM); }
int cuStreamSynchronize(object *stream) { return in_stream(stream), 0; }
int cuStreamQuery(object *stream) { return in_stream(stream), 0; }

static void execute(const object *function, const arguments *with, uint64_t items) {
    const uint8_t *input = (void *)with->input;
    uint8_t *output = (void *)with->output;
    uint32_t *written = (void *)with->written;
    const char *text = function->of->text;
    must(items >= with->size || !strstr(text, "WORD"), "there is a work-item for each byte");
    if (!strcmp(function->name, "fails")) {
        memcpy(output, "no luck", 8);
        *written = 0xffffffff;
    } else if (!strcmp(function->name, "lies")) {
        *written = with->capacity + 1;
    } else if (strstr(text, "mul.lo.u32")) {
        for (volatile uint32_t at = 0; at < input[0] * 1000000u; at++)
            ;
        output[0] = input[0];
        *written = 1;
    } else if (strstr(text, "LOOP")) {
        memcpy(output, input, with->capacity);
        *written = with->capacity;
    } else if (strstr(text, "WORD")) {
        for (uint32_t at = 0; at < with->size; at++)
            output[at] = strstr(text, "shl.b32") ? input[at] * 2 : input[at] + (strstr(text, "%r7, 1;") != NULL);
        *written = with->size;
    }
}

int cuLaunchKernel(object *function, unsigned x, unsigned y, unsigned z, unsigned group_x, unsigned group_y,
                   unsigned group_z, unsigned shared, object *stream, void **each, void **extra) {
    in_stream(stream);
    must(function->kind == FUNCTION && function->of->kind == MODULE, "a kernel of a loaded module is launched");
    must(y == 1 && z == 1 && group_y == 1 && group_z == 1 && shared == 0 && !each, "there is one dimension");
    must(extra[0] == (void *)1 && extra[2] == (void *)2 && !extra[4], "arguments come as one block");
    must(*(size_t *)extra[3] == sizeof(arguments), "the block has the kernel's size");
    execute(function, extra[1], (uint64_t)x * group_x);
    return x && group_x && group_x <= 1024 ? 0 : INVALID;
}
