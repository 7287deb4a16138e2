/* Functions that a graph connects, and those that have it called. */

#define _GNU_SOURCE
#include <string.h>
#include <time.h>

#include "counted.h"
#include "global.h"

/* Ends only what hangs. */
#define PATIENCE_MS 180000

/* The longest input, and a graph's document; answers the chain. */
SUBLET_FUNCTION uint32_t join(void *in, uint32_t size, void *out, sublet_context *context) {
    const uint32_t *words = in;
    uint32_t chain;
    if (sublet_chain_start((const char *)in + 4, size - 4, words[0], PATIENCE_MS, &chain)) return failed(context);
    return put(out, &chain, sizeof chain);
}

/* A chain, how long is waited, and its input; answers its output. */
SUBLET_FUNCTION uint32_t run(void *in, uint32_t size, void *out, sublet_context *context) {
    const uint32_t *words = in;
    uint64_t written;
    if (sublet_chain_call(words[0], (const char *)in + 8, size - 8, out, sublet_capacity(context), words[1], &written))
        return failed(context);
    return (uint32_t)written;
}

SUBLET_FUNCTION uint32_t part(void *in, uint32_t size, void *out, sublet_context *context) {
    (void)size, (void)out;
    return sublet_chain_stop(*(uint32_t *)in) ? failed(context) : 0;
}

/* A chain that is called so often, with inputs that go different ways; answers what was allocated or freed. Marks begin and end. */
SUBLET_FUNCTION uint32_t count(void *in, uint32_t size, void *out, sublet_context *context) {
    const uint32_t *words = in;
    char answer[64];
    uint64_t before = 0;
    (void)size;
    /* The first calls of each way touch everything once. */
    for (uint32_t call = 0; call < words[1] + 100; call++) {
        if (call == 100) {
            before = counted();
            (void)!getpgid(MARKER);
        }
        if (sublet_chain_call(words[0], call % 2 ? "cat" : "dog", 3, answer, sizeof answer, PATIENCE_MS, NULL)) return failed(context);
    }
    (void)!getpgid(MARKER);
    const uint64_t allocated = before == UINT64_MAX ? before : counted() - before;
    return put(out, &allocated, sizeof allocated);
}

/* The name of a kind, ended by 0; answers the unit. */
SUBLET_FUNCTION uint32_t find(void *in, uint32_t size, void *out, sublet_context *context) {
    uint32_t unit;
    (void)size;
    if (sublet_xpu_find(in, &unit)) return failed(context);
    return put(out, &unit, sizeof unit);
}

/* The output is the input with one letter more. */
static uint32_t append(const void *in, uint32_t size, void *out, char letter) {
    memcpy(out, in, size);
    ((char *)out)[size] = letter;
    return size + 1;
}

SUBLET_FUNCTION uint32_t a(void *in, uint32_t size, void *out, sublet_context *context) {
    (void)context;
    return append(in, size, out, 'a');
}

SUBLET_FUNCTION uint32_t b(void *in, uint32_t size, void *out, sublet_context *context) {
    (void)context;
    return append(in, size, out, 'b');
}

SUBLET_FUNCTION uint32_t c(void *in, uint32_t size, void *out, sublet_context *context) {
    (void)context;
    return append(in, size, out, 'c');
}

SUBLET_FUNCTION uint32_t echo(void *in, uint32_t size, void *out, sublet_context *context) {
    (void)context;
    memcpy(out, in, size);
    return size;
}

/* Answers the id of its process. */
SUBLET_FUNCTION uint32_t which(void *in, uint32_t size, void *out, sublet_context *context) {
    sublet_xpu_pid pid;
    (void)in, (void)size;
    return sublet_get_xpupid(&pid) ? failed(context) : put(out, &pid, sizeof pid);
}

/* Takes as many milliseconds as the text says. */
SUBLET_FUNCTION uint32_t nap(void *in, uint32_t size, void *out, sublet_context *context) {
    long ms = 0;
    for (uint32_t at = 0; at < size; at++) ms = ms * 10 + (((char *)in)[at] - '0');
    const struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    nanosleep(&time, NULL);
    return echo(in, size, out, context);
}

/* Answers its input if that is one letter long, and keeps its core busy for ever otherwise. */
SUBLET_FUNCTION uint32_t spin(void *in, uint32_t size, void *out, sublet_context *context) {
    for (volatile unsigned n = 0; size > 1; n++) {}
    return echo(in, size, out, context);
}

SUBLET_FUNCTION uint32_t complain(void *in, uint32_t size, void *out, sublet_context *context) {
    (void)in, (void)size, (void)out;
    return sublet_fail(context, "no such colour");
}

SUBLET_FUNCTION uint32_t die(void *in, uint32_t size, void *out, sublet_context *context) {
    (void)in, (void)size, (void)out, (void)context;
    _exit(3);
}
