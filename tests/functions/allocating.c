/* Functions of WebAssembly with a C library, whose allocator must not give away what the call's bytes lie in. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../crates/capi/include/sublet_function.h"

/* Takes and fills as much memory as it gets, then answers with its input. */
SUBLET_FUNCTION uint32_t fill_and_echo(void *in, uint32_t size, void *out, sublet_context *context) {
    for (int i = 0; i < 64; i++) {
        const size_t bytes = (size_t)1 << (i % 16);
        char *taken = malloc(bytes);
        if (taken == NULL) return sublet_fail(context, "no memory");
        memset(taken, 0xee, bytes);
    }
    memcpy(out, in, size);
    return size;
}

/* Answers the square root as text, and writes it to the log as well. */
SUBLET_FUNCTION uint32_t square_root_of(void *in, uint32_t size, void *out, sublet_context *context) {
    char text[32] = {0};
    memcpy(text, in, size < sizeof text ? size : sizeof text - 1);
    const int written = snprintf(out, sublet_capacity(context), "%.3f", __builtin_sqrt(atof(text)));
    printf("the root of %s is %.3f\n", text, __builtin_sqrt(atof(text)));
    fflush(stdout);
    return written < 0 ? 0 : (uint32_t)written;
}
