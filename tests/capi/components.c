/* Components of a graph that count: what graphs.c and graphs.cpp run. */
#include <stdlib.h>
#include <string.h>

#include <sublet_function.h>

static uint32_t failed(sublet_context *context) { return sublet_fail(context, sublet_why(context)); }

/* Writes 1, 2, ... up to its input into "numbers". */
SUBLET_FUNCTION uint32_t count(void *in, uint32_t size, void *out, sublet_context *context) {
    uint64_t most;
    sublet_channel numbers;
    if (size != sizeof most) return sublet_fail(context, "how many?");
    memcpy(&most, in, sizeof most);
    if (sublet_channel_open(context, "numbers", &numbers)) return failed(context);
    for (uint64_t i = 0; i < most; i++) {
        uint64_t number = i + 1;
        if (sublet_channel_write_async(context, numbers, i * 8, &number, sizeof number)) return failed(context);
    }
    memcpy(out, in, size);
    return size;
}

/* Adds up its share of them. */
SUBLET_FUNCTION uint32_t add(void *in, uint32_t size, void *out, sublet_context *context) {
    uint64_t bytes, number, sum = 0;
    sublet_channel numbers;
    (void)in, (void)size;
    if (sublet_channel_open(context, "numbers", &numbers) || sublet_channel_size(context, numbers, &bytes))
        return failed(context);
    for (uint64_t i = sublet_instance(context); i < bytes / 8; i += sublet_instances(context)) {
        if (sublet_channel_read(context, numbers, i * 8, &number, sizeof number)) return failed(context);
        sum += number;
    }
    if (sublet_channel_release(context, numbers)) return failed(context);
    memcpy(out, &sum, sizeof sum);
    return sizeof sum;
}

/* Ends its process. */
SUBLET_FUNCTION uint32_t die(void *in, uint32_t size, void *out) {
    (void)in, (void)size, (void)out;
    abort();
}
