/* Functions that fail, each in its own way. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/mman.h>

#include "echo.h"

SUBLET_FUNCTION uint32_t segfault(void *in, uint32_t size, void *out) {
    volatile int *volatile nowhere = NULL;
    (void)in, (void)size, (void)out;
    *nowhere = 1;
    return 0;
}

SUBLET_FUNCTION uint32_t divide(void *in, uint32_t size, void *out) {
    volatile int one = 1, zero = 0;
    (void)in, (void)size, (void)out;
    return (uint32_t)(one / zero);
}

/* The first word of its input, if it has one, says when it has begun. */
SUBLET_FUNCTION uint32_t spin(void *in, uint32_t size, void *out) {
    (void)out;
    if (size >= sizeof(uint32_t)) *(volatile uint32_t *)in = 1;
    for (volatile unsigned n = 0;; n++) {}
}

SUBLET_FUNCTION uint32_t leave(void *in, uint32_t size, void *out) {
    (void)in, (void)size, (void)out;
    exit(3);
}

/* Returns one byte more than the output's capacity. */
SUBLET_FUNCTION uint32_t boast(void *in, uint32_t size, void *out, sublet_context *context) {
    (void)in, (void)size, (void)out;
    return sublet_capacity(context) + 1;
}

/* Does not look whether there was memory. */
SUBLET_FUNCTION uint32_t devour(void *in, uint32_t size, void *out) {
    const size_t step = 1 << 20;
    (void)in, (void)size, (void)out;
    for (;;) memset(malloc(step), 1, step);
}

/* The same of memory that no limit of the process counts. */
SUBLET_FUNCTION uint32_t devour_shared(void *in, uint32_t size, void *out) {
    const size_t step = 1 << 20;
    (void)in, (void)size, (void)out;
    for (;;) memset(mmap(0, step, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0), 1, step);
}

SUBLET_FUNCTION uint32_t refuse(void *in, uint32_t size, void *out, sublet_context *context) {
    (void)in, (void)size, (void)out;
    sublet_fail(context, "the ink is dry");
    return sublet_fail(context, "a second reason");
}

SUBLET_FUNCTION uint32_t refuse_at_length(void *in, uint32_t size, void *out, sublet_context *context) {
    char message[1000];
    (void)in, (void)size, (void)out;
    memset(message, 'x', sizeof message - 1);
    message[sizeof message - 1] = 0;
    return sublet_fail(context, message);
}

SUBLET_FUNCTION uint32_t refuse_silently(void *in, uint32_t size, void *out, sublet_context *context) {
    (void)in, (void)size, (void)out;
    return sublet_fail(context, NULL);
}
