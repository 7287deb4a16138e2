/* The functions that the tests call. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <sublet_function.h>

/* Doubles numbers. */
SUBLET_FUNCTION uint32_t task(void *in, uint32_t size, void *out) {
    const double *input = in;
    double *output = out;
    for (uint32_t i = 0; i < size / sizeof(double); i++)
        output[i] = 2.0 * input[i];
    return size;
}

SUBLET_FUNCTION uint32_t echo(void *in, uint32_t size, void *out) {
    memcpy(out, in, size);
    return size;
}

/* Sleeps for as many milliseconds as its input says, a 32-bit number. */
SUBLET_FUNCTION uint32_t nap(void *in, uint32_t size, void *out) {
    uint32_t ms = 0;
    (void)out;
    if (size == sizeof ms)
        memcpy(&ms, in, sizeof ms);
    struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
    nanosleep(&time, NULL);
    return 0;
}

/* Returns when its caller has set the first number of its input, which is in a buffer. */
SUBLET_FUNCTION uint32_t hold(void *in, uint32_t size, void *out) {
    const volatile uint32_t *told = in;
    const struct timespec time = {.tv_sec = 0, .tv_nsec = 1000000};
    (void)size, (void)out;
    while (*told == 0)
        nanosleep(&time, NULL);
    return 0;
}

SUBLET_FUNCTION uint32_t refuse(void *in, uint32_t size, void *out, sublet_context *context) {
    (void)in, (void)size, (void)out;
    return sublet_fail(context, "I would rather not");
}

/* Writes its output's size in bytes to its output. */
SUBLET_FUNCTION uint32_t capacity(void *in, uint32_t size, void *out, sublet_context *context) {
    uint32_t bytes = sublet_capacity(context);
    (void)in, (void)size;
    memcpy(out, &bytes, sizeof bytes);
    return sizeof bytes;
}

/* Returns one byte more than the output's capacity. */
SUBLET_FUNCTION uint32_t boast(void *in, uint32_t size, void *out, sublet_context *context) {
    (void)in, (void)size, (void)out;
    return sublet_capacity(context) + 1;
}

SUBLET_FUNCTION uint32_t crash(void *in, uint32_t size, void *out) {
    (void)in, (void)size, (void)out;
    abort();
}
