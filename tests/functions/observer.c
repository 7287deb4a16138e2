/* Functions that look at the worker from the inside. */
#define _GNU_SOURCE
#include <stdlib.h>

#include "counted.h"
#include "echo.h"

SUBLET_FUNCTION uint32_t allocations(void *in, uint32_t size, void *out) {
    const uint64_t count = counted();
    (void)in, (void)size;
    memcpy(out, &count, sizeof count);
    return sizeof count;
}

SUBLET_FUNCTION uint32_t allocate_once(void *in, uint32_t size, void *out) {
    void *volatile block = malloc(1);
    (void)in, (void)size, (void)out;
    free(block);
    return 0;
}

SUBLET_FUNCTION uint32_t mark(void *in, uint32_t size, void *out) {
    (void)in, (void)size, (void)out;
    (void)!getpgid(MARKER);
    return 0;
}

SUBLET_FUNCTION uint32_t enter_the_kernel(void *in, uint32_t size, void *out) {
    (void)in, (void)size, (void)out;
    (void)!getsid(0);
    return 0;
}
