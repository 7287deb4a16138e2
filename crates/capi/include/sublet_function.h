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
 *     clang --target=wasm32-wasi -mexec-model=reactor -O2 -Wl,--export-dynamic -o hello.wasm hello.c
 *
 * The header is all there is: a shared object of functions links with nothing of Sublet's, and a WebAssembly module of
 * the same source imports one function. A function has one of two
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
 *
 * In WebAssembly every call has an instance of its own: nothing that a function leaves in variables is there for the next
 * call, and one that traps ends its call alone.
 */
#ifndef SUBLET_FUNCTION_H
#define SUBLET_FUNCTION_H

#include <stdint.h>
#ifdef __wasi__
#include <stdlib.h>
#endif

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
#ifndef __wasm__
    void (*fail)(sublet_context *context, const char *message);
#endif
};

#ifdef __wasm__
__attribute__((import_module("sublet"), import_name("fail"))) void sublet_host_fail(const char *message);
#endif

/* The short and the long form. */
typedef uint32_t (*sublet_short_function)(void *in, uint32_t size, void *out);
typedef uint32_t (*sublet_long_function)(void *in, uint32_t size, void *out, sublet_context *context);

/* How many bytes the output has. */
static inline uint32_t sublet_capacity(const sublet_context *context) { return context->capacity; }

/* Fails the call: whatever the function returns, its caller gets SUBLET_FUNCTION_FAILED with this message, cut after
 * 256 bytes, which may be NULL. The first failure of a call counts. Returns 0, so that a function can end with
 * `return sublet_fail(context, "...");`. */
static inline uint32_t sublet_fail(sublet_context *context, const char *message) {
#ifdef __wasm__
    (void)context;
    sublet_host_fail(message);
#else
    context->fail(context, message);
#endif
    return 0;
}

#ifdef __wasi__
/* Where inputs and outputs are put: memory that the module's own allocator does not give away again. Without such a
 * library, and so without an allocator, they are put behind all that the module has. */
__attribute__((weak, export_name("sublet_allocate"))) void *sublet_allocate(size_t bytes) { return malloc(bytes); }
#endif

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* SUBLET_FUNCTION_H */
