/* What has the stages executed: all of them here, or every second one on another processor. */

#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <sublet_function.h>
#include <sublet_xpu.h>

#include "stages.h"

enum { PATIENCE_MS = 20000 };

static const char *const ASSISTANT[] = {"frontend", "dialogue", "home", "door", "light", NULL};
static const char *const WORDS[] = {"split", "map", "reduce", NULL};

static double now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

/* Once through a chain, and whether that has failed. Stages with an odd number are executed by the executor, if there is one. Each
 * writes to the other buffer: the output is in the first after an even number of them. */
static int pass(const char *const *stages, const uint32_t *executor, char buffers[2][STAGE_BYTES], uint32_t *size,
                sublet_context *context) {
    for (int at = 0; stages[at]; at++) {
        char *in = buffers[at % 2], *out = buffers[(at + 1) % 2];
        uint64_t written;
        uint32_t len;
        if (executor && at % 2) {
            if (sublet_executor_call(*executor, stages[at], in, *size, out, STAGE_BYTES, PATIENCE_MS, &written)) {
                sublet_fail(context, sublet_xpu_why());
                return 1;
            }
            len = (uint32_t)written;
        } else if (sublet_call(context, stages[at], in, *size, out, STAGE_BYTES, &len)) {
            sublet_fail(context, sublet_why(context));
            return 1;
        }
        *size = len;
    }
    return 0;
}

/* The input is a line, "assistant|words here|across ROUNDS", and the text. Answers the mean of a round, in nanoseconds, and the output. */
SUBLET_FUNCTION uint32_t run(void *in, uint32_t size, void *out, sublet_context *context) {
    static char buffers[2][STAGE_BYTES];
    const char *text = memchr(in, '\n', size);
    char chain[16], where[16];
    unsigned rounds;
    uint32_t unit, executor, written = 0;
    if (!text || sscanf(in, "%15s %15s %u", chain, where, &rounds) != 3 || rounds == 0)
        return sublet_fail(context, "the first line is: assistant|words here|across ROUNDS");
    const uint32_t text_bytes = size - (uint32_t)(++text - (char *)in);
    if (text_bytes > STAGE_BYTES) return sublet_fail(context, "the text is longer than a stage takes");
    const char *const *stages = strcmp(chain, "words") ? ASSISTANT : WORDS;
    const int across = !strcmp(where, "across");
    if (across && (sublet_xpu_unit(1, &unit) || sublet_executor_start(unit, STAGE_BYTES, PATIENCE_MS, &executor)))
        return sublet_fail(context, sublet_xpu_why());
    double begun = now_ns();
    int failed = 0;
    /* The first is not counted. */
    for (unsigned round = 0; round <= rounds && !failed; round++) {
        if (round == 1) begun = now_ns();
        written = text_bytes;
        memcpy(buffers[0], text, text_bytes);
        failed = pass(stages, across ? &executor : NULL, buffers, &written, context);
    }
    const double round_ns = (now_ns() - begun) / rounds;
    if (across) sublet_executor_stop(executor);
    if (failed) return 0;
    int count = 0;
    while (stages[count]) count++;
    const int head = snprintf(out, sublet_capacity(context), "%.0f\n", round_ns);
    memcpy((char *)out + head, buffers[count % 2], written);
    return (uint32_t)head + written;
}
