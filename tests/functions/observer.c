/* Functions that look at the worker from the inside. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

#include "echo.h"

/* No process has this number: asking for its group fails, and is seen in a trace. */
enum { MARKER = 5943783 };

/* What counting.c has counted, or all ones if it is not there. */
SUBLET_FUNCTION uint32_t allocations(void *in, uint32_t size, void *out) {
    uint64_t (*counted)(void) = (uint64_t(*)(void))dlsym(RTLD_DEFAULT, "counted_allocations");
    const uint64_t count = counted ? counted() : UINT64_MAX;
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
