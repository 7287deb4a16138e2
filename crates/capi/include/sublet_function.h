/* sublet_function.h: write functions that Sublet calls, in C or C++.
 *
 *     #include <sublet_function.h>
 *
 *     SUBLET_FUNCTION uint32_t greet(void *in, uint32_t size, void *out, sublet_context *context) {
 *         if (size == 0) return sublet_fail(context, "whom shall I greet?");
 *         ...
 *     }
 *
 *     cc -O2 -shared -fPIC -o libhello.so hello.c
 *
 * The header is all there is: a shared object of functions links with nothing of Sublet's. A function has one of two
 * forms, and Sublet calls both in the same way:
 *
 *     uint32_t f(void *in, uint32_t size, void *out);
 *     uint32_t f(void *in, uint32_t size, void *out, sublet_context *context);
 *
 * `in` has `size` bytes, which may be 0. `out` has sublet_capacity(context) bytes. The function returns how many it has
 * written; more than the capacity is an error of the call. Input and output are aligned to 8 bytes at least if the
 * caller's buffers are Sublet's and whole. They belong to the function until it returns.
 *
 * Several threads may call functions of one shared object at once, one for each leased core, in one process that lives
 * as long as the lease. A function that crashes ends that process, not the client; an exception in C++ ends its call.
 */
#ifndef SUBLET_FUNCTION_H
#define SUBLET_FUNCTION_H

#include <stdint.h>

/* Put before a function: it can be found by its plain name, even with -fvisibility=hidden. */
#ifdef __cplusplus
#define SUBLET_FUNCTION extern "C" __attribute__((visibility("default")))
extern "C" {
#else
#define SUBLET_FUNCTION __attribute__((visibility("default")))
#endif

/* What a call tells its function and hears from it. Use it by the functions below, and only during the call. More
 * members follow those that are declared: it is neither copied nor made by functions. */
typedef struct sublet_context sublet_context;
struct sublet_context {
    uint32_t size_bytes;
    uint32_t capacity;
    void (*fail)(sublet_context *context, const char *message);
};

/* The short and the long form. */
typedef uint32_t (*sublet_short_function)(void *in, uint32_t size, void *out);
typedef uint32_t (*sublet_long_function)(void *in, uint32_t size, void *out, sublet_context *context);

/* How many bytes the output has. */
static inline uint32_t sublet_capacity(const sublet_context *context) { return context->capacity; }

/* Fails the call: whatever the function returns, its caller gets SUBLET_FUNCTION_FAILED with this message, cut after
 * 256 bytes, which may be NULL. The first failure of a call counts. Returns 0, so that a function can end with
 * `return sublet_fail(context, "...");`. */
static inline uint32_t sublet_fail(sublet_context *context, const char *message) {
    context->fail(context, message);
    return 0;
}

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* SUBLET_FUNCTION_H */
