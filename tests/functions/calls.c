/* Functions that do what they are asked to. */
#define _GNU_SOURCE
#include <time.h>
#include <unistd.h>

#include "echo.h"

typedef volatile uint32_t word;

SUBLET_FUNCTION uint32_t noop(void *in, uint32_t size, void *out) {
    (void)in, (void)size, (void)out;
    return 0;
}

/* The size of its input. */
SUBLET_FUNCTION uint32_t measure(void *in, uint32_t size, void *out) {
    (void)in;
    memcpy(out, &size, sizeof size);
    return sizeof size;
}

/* Each value plus its index. */
SUBLET_FUNCTION uint32_t add_index(void *in, uint32_t size, void *out) {
    const uint32_t *from = in;
    uint32_t *to = out;
    for (uint32_t i = 0; i < size / sizeof *from; i++) to[i] = from[i] + i;
    return size;
}

/* Keeps its core busy for as many milliseconds as its input says. */
SUBLET_FUNCTION uint32_t busy(void *in, uint32_t size, void *out) {
    struct timespec start, now;
    uint32_t ms;
    (void)size, (void)out;
    memcpy(&ms, in, sizeof ms);
    clock_gettime(CLOCK_MONOTONIC, &start);
    do clock_gettime(CLOCK_MONOTONIC, &now);
    while ((now.tv_sec - start.tv_sec) * 1000000000LL + (now.tv_nsec - start.tv_nsec) < ms * 1000000LL);
    return 0;
}

/* Says in the first word of its input that it runs, waits for the second, and leaves that plus one in the third. */
SUBLET_FUNCTION uint32_t converse(void *in, uint32_t size, void *out) {
    word *words = in;
    (void)size, (void)out;
    words[0] = 1;
    while (words[1] == 0) {}
    words[2] = words[1] + 1;
    return 0;
}

/* Two functions that return only while the other one runs, too. */
SUBLET_FUNCTION uint32_t meet_second(void *in, uint32_t size, void *out) {
    word *words = in;
    (void)size, (void)out;
    words[0] = 1;
    while (words[1] == 0) {}
    return 0;
}

SUBLET_FUNCTION uint32_t meet_first(void *in, uint32_t size, void *out) {
    word *words = in;
    (void)size, (void)out;
    words[1] = 1;
    while (words[0] == 0) {}
    return 0;
}

/* The process that executes it. */
SUBLET_FUNCTION uint32_t process(void *in, uint32_t size, void *out) {
    const uint32_t pid = (uint32_t)getpid();
    (void)in, (void)size;
    memcpy(out, &pid, sizeof pid);
    return sizeof pid;
}

/* How much its caller lets it write. */
SUBLET_FUNCTION uint32_t room(void *in, uint32_t size, void *out, sublet_context *context) {
    const uint32_t capacity = sublet_capacity(context);
    (void)in, (void)size;
    memcpy(out, &capacity, sizeof capacity);
    return sizeof capacity;
}
