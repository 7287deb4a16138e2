/* Functions that have others executed on other processors. */

#define _GNU_SOURCE
#include <time.h>

#include "global.h"

/* Ends only what hangs. */
#define PATIENCE_MS 180000

/* The number of a processor, and the longest input; answers the executor. */
SUBLET_FUNCTION uint32_t begin(void *in, uint32_t size, void *out, sublet_context *context) {
    uint32_t *words = in, unit, executor;
    (void)size;
    if (sublet_xpu_unit(words[0], &unit)) return failed(context);
    if (sublet_executor_start(unit, words[1], PATIENCE_MS, &executor)) return failed(context);
    return put(out, &executor, sizeof executor);
}

/* An executor; answers its process. */
SUBLET_FUNCTION uint32_t which(void *in, uint32_t size, void *out, sublet_context *context) {
    sublet_xpu_pid pid;
    (void)size;
    if (sublet_executor_process(*(uint32_t *)in, &pid)) return failed(context);
    return put(out, &pid, sizeof pid);
}

/* An executor, how long is waited, the function's name, ended by 0 within 24 bytes, and its input; answers its output. */
SUBLET_FUNCTION uint32_t ask(void *in, uint32_t size, void *out, sublet_context *context) {
    uint32_t *words = in;
    const char *bytes = in;
    uint64_t written;
    if (sublet_executor_call(words[0], bytes + 8, bytes + 32, size - 32, out, sublet_capacity(context), words[1], &written))
        return failed(context);
    return (uint32_t)written;
}

/* Executors; each has a number squared, all at once. Answers the sum. */
SUBLET_FUNCTION uint32_t spread(void *in, uint32_t size, void *out, sublet_context *context) {
    uint32_t *executors = in;
    uint64_t sum = 0;
    for (uint64_t at = 0; at < size / 4; at++)
        if (sublet_executor_submit(executors[at], "square", &at, sizeof at, PATIENCE_MS)) return failed(context);
    for (uint64_t at = 0; at < size / 4; at++) {
        uint64_t square;
        if (sublet_executor_result(executors[at], &square, sizeof square, PATIENCE_MS, NULL)) return failed(context);
        sum += square;
    }
    return put(out, &sum, sizeof sum);
}

/* An executor; more is submitted than it takes. */
SUBLET_FUNCTION uint32_t flood(void *in, uint32_t size, void *out, sublet_context *context) {
    const uint64_t number = 3;
    (void)size, (void)out;
    while (!sublet_executor_submit(*(uint32_t *)in, "square", &number, sizeof number, PATIENCE_MS)) {}
    return failed(context);
}

/* An executor, and an input that is submitted again and again, as long as it is taken. */
SUBLET_FUNCTION uint32_t pile(void *in, uint32_t size, void *out, sublet_context *context) {
    (void)out;
    while (!sublet_executor_submit(*(uint32_t *)in, "echo", (char *)in + 4, size - 4, UINT64_MAX)) {}
    return failed(context);
}

SUBLET_FUNCTION uint32_t stop(void *in, uint32_t size, void *out, sublet_context *context) {
    (void)size, (void)out;
    return sublet_executor_stop(*(uint32_t *)in) ? failed(context) : 0;
}

SUBLET_FUNCTION uint32_t square(void *in, uint32_t size, void *out, sublet_context *context) {
    const uint64_t number = *(uint64_t *)in, squared = number * number;
    (void)size, (void)context;
    return put(out, &squared, sizeof squared);
}

SUBLET_FUNCTION uint32_t echo(void *in, uint32_t size, void *out, sublet_context *context) {
    (void)context;
    return put(out, in, size);
}

SUBLET_FUNCTION uint32_t complain(void *in, uint32_t size, void *out, sublet_context *context) {
    (void)in, (void)size, (void)out;
    return sublet_fail(context, "no such colour");
}

/* Milliseconds; answers them. */
SUBLET_FUNCTION uint32_t nap(void *in, uint32_t size, void *out, sublet_context *context) {
    const uint64_t ms = *(uint64_t *)in;
    const struct timespec time = {(time_t)(ms / 1000), (long)(ms % 1000) * 1000000};
    (void)size, (void)context;
    nanosleep(&time, NULL);
    return put(out, &ms, sizeof ms);
}

/* Keeps its core busy for ever. */
SUBLET_FUNCTION uint32_t spin(void *in, uint32_t size, void *out) {
    (void)in, (void)size, (void)out;
    for (volatile unsigned n = 0;; n++) {}
}

SUBLET_FUNCTION uint32_t die(void *in, uint32_t size, void *out, sublet_context *context) {
    (void)in, (void)size, (void)out, (void)context;
    *(volatile int *)16 = 0;
    return 0;
}
