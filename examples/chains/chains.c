/* Executes the stages of a chain: all of them here, or every second one on another processor or on a device. */

#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <sublet_function.h>
#include <sublet_xpu.h>

#include "stages.h"

enum { PATIENCE_MS = 20000 };

/* A chain: its stages, and the most bytes that a stage writes. */
struct chain {
    const char *name;
    uint32_t stage_bytes;
    const char *stages[6];
};

static const struct chain CHAINS[] = {
    {"assistant", STAGE_BYTES, {"frontend", "dialogue", "home", "door", "light"}},
    {"words", STAGE_BYTES, {"split", "map", "reduce"}},
    {"picture", PICTURE_BYTES, {"resize", "compress"}},
};

static const struct chain *find(const char *name) {
    for (size_t at = 0; at < sizeof CHAINS / sizeof *CHAINS; at++)
        if (!strcmp(CHAINS[at].name, name)) return &CHAINS[at];
    return NULL;
}

/* Starts the executor of every second stage, on the processor that is linked with this one or on a device. A device of
 * that processor's node is preferred to one of this node. */
static uint32_t begin(const struct chain *chain, const char *where, uint32_t *executor) {
    uint32_t unit, device;
    uint32_t failed = sublet_xpu_unit(1, &unit);
    if (!strcmp(where, "across"))
        return failed ? failed : sublet_executor_start(unit, chain->stage_bytes, PATIENCE_MS, executor);
    if (failed || sublet_xpu_device(unit, "opencl0", &device))
        failed = sublet_xpu_unit(0, &unit) || sublet_xpu_device(unit, "opencl0", &device);
    return failed ? failed : sublet_executor_start_of("chains-kernels", device, chain->stage_bytes, PATIENCE_MS, executor);
}

static double now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

/* Executes a chain once, and returns whether it failed. The executor, if there is one, executes the stages with an odd
 * number. Each stage writes to the other buffer: after an even number of stages the output is in the first buffer. */
static int pass(const struct chain *chain, const uint32_t *executor, char buffers[2][PICTURE_BYTES], uint32_t *size,
                sublet_context *context) {
    for (int at = 0; chain->stages[at]; at++) {
        char *in = buffers[at % 2], *out = buffers[(at + 1) % 2];
        uint64_t written;
        uint32_t len;
        if (executor && at % 2) {
            if (sublet_executor_call(*executor, chain->stages[at], in, *size, out, chain->stage_bytes, PATIENCE_MS, &written)) {
                sublet_fail(context, sublet_xpu_why());
                return 1;
            }
            len = (uint32_t)written;
        } else if (sublet_call(context, chain->stages[at], in, *size, out, chain->stage_bytes, &len)) {
            sublet_fail(context, sublet_why(context));
            return 1;
        }
        *size = len;
    }
    return 0;
}

/* Executes the rounds of a chain. The input is a line, "assistant|words|picture here|across|device ROUNDS", and the
 * text or the picture. The output is the mean time of a round, in nanoseconds, and the output of the chain. */
SUBLET_FUNCTION uint32_t run(void *in, uint32_t size, void *out, sublet_context *context) {
    static _Alignas(8) char buffers[2][PICTURE_BYTES];
    const char *given = memchr(in, '\n', size);
    char name[16], where[16];
    unsigned rounds;
    uint32_t executor, written = 0;
    const struct chain *chain = NULL;
    if (!given || sscanf(in, "%15s %15s %u", name, where, &rounds) != 3 || rounds == 0 || !(chain = find(name)))
        return sublet_fail(context, "the first line is: assistant|words|picture here|across|device ROUNDS");
    const uint32_t given_bytes = size - (uint32_t)(++given - (char *)in);
    if (given_bytes > chain->stage_bytes) return sublet_fail(context, "that is longer than what a stage takes");
    const int is_elsewhere = strcmp(where, "here") != 0;
    if (is_elsewhere && begin(chain, where, &executor)) return sublet_fail(context, sublet_xpu_why());
    double begun = now_ns();
    int failed = 0;
    /* The first round is not counted. */
    for (unsigned round = 0; round <= rounds && !failed; round++) {
        if (round == 1) begun = now_ns();
        written = given_bytes;
        memcpy(buffers[0], given, given_bytes);
        failed = pass(chain, is_elsewhere ? &executor : NULL, buffers, &written, context);
    }
    const double round_ns = (now_ns() - begun) / rounds;
    if (is_elsewhere) sublet_executor_stop(executor);
    if (failed) return 0;
    int count = 0;
    while (chain->stages[count]) count++;
    const int head = snprintf(out, sublet_capacity(context), "%.0f\n", round_ns);
    memcpy((char *)out + head, buffers[count % 2], written);
    return (uint32_t)head + written;
}
