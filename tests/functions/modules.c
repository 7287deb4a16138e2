/* Functions of WebAssembly, some of them hostile. */
#include "../../crates/capi/include/sublet_function.h"

#define PAGE_BYTES 65536u
#define NOWHERE ((char *)0xffff0000u)

typedef volatile uint32_t word;

#define IMPORT(module, name) __attribute__((import_module(module), import_name(name)))
#define WASI(name) IMPORT("wasi_snapshot_preview1", name)
WASI("random_get") uint32_t random_get(void *at, uint32_t len);
WASI("clock_time_get") uint32_t clock_time_get(uint32_t id, uint64_t precision, uint64_t *time);
WASI("environ_sizes_get") uint32_t environ_sizes_get(uint32_t *count, uint32_t *bytes);
WASI("fd_write") uint32_t fd_write(uint32_t to, const void *pieces, uint32_t count, uint32_t *written);
WASI("fd_prestat_get") uint32_t fd_prestat_get(uint32_t descriptor, void *found);
WASI("path_open")
uint32_t path_open(uint32_t folder, uint32_t follow, const char *path, uint32_t len, uint32_t how, uint64_t rights,
                   uint64_t inherited, uint32_t flags, uint32_t *opened);
WASI("sock_accept") uint32_t sock_accept(uint32_t socket, uint32_t flags, uint32_t *accepted);
WASI("proc_exit") _Noreturn void proc_exit(uint32_t status);

static word counter = 7;
static word *kept;

static uint32_t put(void *out, uint32_t value) {
    *(word *)out = value;
    return sizeof value;
}

static uint32_t first(void *in, uint32_t size) { return size < sizeof(uint32_t) ? 0 : *(uint32_t *)in; }

/* Answers a variable before it was counted up, and how many bytes of memory that was never written are not 0. */
SUBLET_FUNCTION uint32_t traces(void *in, uint32_t size, void *out) {
    uint32_t *found = out, pages = first(in, size);
    found[0] = counter++;
    found[1] = kept != 0;
    found[2] = 0;
    char *fresh = (char *)(__builtin_wasm_memory_grow(0, pages) * PAGE_BYTES);
    for (uint32_t i = 0; i < pages * PAGE_BYTES; i++) found[2] += fresh[i] != 0;
    __builtin_memset(fresh, 0xaa, pages * PAGE_BYTES);
    kept = (word *)fresh;
    return 3 * sizeof *found;
}

SUBLET_FUNCTION uint32_t spin(void *in, uint32_t size, void *out) {
    (void)in, (void)size, (void)out;
    for (;;) counter++;
}

/* Takes memory until there is no more; how many pages there are then. Touches the last one of each step. */
SUBLET_FUNCTION uint32_t devour(void *in, uint32_t size, void *out) {
    const uint32_t step = first(in, size);
    for (;;) {
        const uint32_t before = __builtin_wasm_memory_grow(0, step);
        if (before == UINT32_MAX) return put(out, __builtin_wasm_memory_size(0));
        *(word *)((before + step) * PAGE_BYTES - sizeof(word)) = 1;
    }
}

static uint32_t descend(uint32_t depth) {
    word here[64];
    here[depth % 64] = depth;
    return depth == UINT32_MAX ? 0 : descend(depth + 1) + here[depth % 64];
}

SUBLET_FUNCTION uint32_t recurse(void *in, uint32_t size, void *out) {
    (void)in, (void)size;
    return put(out, descend(0));
}

static uint32_t fall(uint32_t depth) { return depth == UINT32_MAX ? 0 : fall(depth + 1) + counter; }

/* Recurses without memory of its own: the stack is the worker's. */
SUBLET_FUNCTION uint32_t fall_down(void *in, uint32_t size, void *out) {
    (void)in, (void)size;
    return put(out, fall(0));
}

SUBLET_FUNCTION uint32_t trap(void *in, uint32_t size, void *out) {
    (void)in, (void)size, (void)out;
    __builtin_trap();
}

SUBLET_FUNCTION uint32_t divide(void *in, uint32_t size, void *out) { return put(out, counter / first(in, size)); }

SUBLET_FUNCTION uint32_t read_outside(void *in, uint32_t size, void *out) {
    (void)in, (void)size;
    return put(out, *(word *)NOWHERE);
}

/* Calls what is no function. */
SUBLET_FUNCTION uint32_t leap(void *in, uint32_t size, void *out) {
    return put(out, ((uint32_t(*)(uint32_t))(uintptr_t)(first(in, size) + 1000000))(0));
}

/* Writes far beyond the output's capacity, and returns that it wrote nothing. */
SUBLET_FUNCTION uint32_t overflow(void *in, uint32_t size, void *out) {
    const uint32_t end = __builtin_wasm_memory_size(0) * PAGE_BYTES;
    (void)in, (void)size;
    __builtin_memset(out, 0xff, end - (uint32_t)(uintptr_t)out);
    return 0;
}

SUBLET_FUNCTION uint32_t leave(void *in, uint32_t size, void *out) {
    (void)out;
    proc_exit(first(in, size));
}

SUBLET_FUNCTION uint32_t fail_from_nowhere(void *in, uint32_t size, void *out, sublet_context *context) {
    (void)in, (void)size, (void)out;
    return sublet_fail(context, (const char *)UINT32_MAX);
}

SUBLET_FUNCTION uint32_t random_to_nowhere(void *in, uint32_t size, void *out) {
    (void)in, (void)size;
    return put(out, random_get(NOWHERE, PAGE_BYTES));
}

/* The pieces lie at the end of the memory and lead out of it. */
SUBLET_FUNCTION uint32_t print_nowhere(void *in, uint32_t size, void *out) {
    word *piece = (word *)(__builtin_wasm_memory_size(0) * PAGE_BYTES) - 2;
    uint32_t written;
    (void)in, (void)size;
    piece[0] = (uint32_t)(uintptr_t)NOWHERE;
    piece[1] = UINT32_MAX;
    return put(out, fd_write(1, (const void *)piece, UINT32_MAX, &written));
}

/* Prints its input; what was written. */
SUBLET_FUNCTION uint32_t print(void *in, uint32_t size, void *out) {
    const uint32_t piece[2] = {(uint32_t)(uintptr_t)in, size};
    uint32_t written = 0;
    return fd_write(2, piece, 1, &written) != 0 ? 0 : put(out, written);
}

/* Answers each result of WASI in a word of its own. */
SUBLET_FUNCTION uint32_t look_around(void *in, uint32_t size, void *out) {
    uint32_t *found = out, unused[8], count = 1, bytes = 1;
    uint64_t time = 0, random[2] = {0, 0};
    (void)in, (void)size;
    found[0] = fd_prestat_get(3, unused);
    found[1] = path_open(3, 0, "/etc/passwd", 11, 0, ~0ull, ~0ull, 0, unused);
    found[2] = sock_accept(3, 0, unused);
    found[3] = fd_write(5, unused, 0, unused);
    found[4] = environ_sizes_get(&count, &bytes);
    found[5] = count + bytes;
    found[6] = clock_time_get(0, 0, &time) == 0 && time > 1600000000ull * 1000000000;
    found[7] = random_get(random, sizeof random) == 0 && (random[0] | random[1]) != 0;
    return 8 * sizeof *found;
}
