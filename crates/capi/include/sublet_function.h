/* sublet_function.h: write functions that Sublet calls, in C or C++.
 *
 *     #include <sublet_function.h>
 *
 *     SUBLET_FUNCTION uint32_t greet(void *in, uint32_t size, void *out, sublet_context *context) {
 *         if (size == 0) return sublet_fail(context, "the name is empty");
 *         ...
 *     }
 *
 *     cc -O2 -shared -fPIC -o libhello.so hello.c
 *     clang --target=wasm32-wasi -mexec-model=reactor -O2 -Wl,--export-dynamic -o hello.wasm hello.c
 *
 * The header needs no library: a shared object of functions links with nothing of Sublet, and a WebAssembly module of the
 * same source imports one function. A function has one of two forms, which Sublet calls in the same way:
 *
 *     uint32_t f(void *in, uint32_t size, void *out);
 *     uint32_t f(void *in, uint32_t size, void *out, sublet_context *context);
 *
 * `in` has `size` bytes, which may be 0. `out` has sublet_capacity(context) bytes. The function returns the number of
 * bytes that it has written; more than the capacity is an error of the call. Input and output are aligned to at least 8
 * bytes if the caller passes whole buffers of Sublet. They belong to the function until it returns: the next call uses the
 * same memory, so a function must copy what it needs longer.
 *
 * Several threads, one for each leased core, may call functions of one shared object at once, in one process that lives as
 * long as the lease. A function that crashes ends that process, not the client; a C++ exception ends only its call.
 *
 * In WebAssembly every call has an instance of its own: variables do not keep their values for the next call, and a trap
 * ends only its call.
 */
#ifndef SUBLET_FUNCTION_H
#define SUBLET_FUNCTION_H

#include <stdint.h>
#ifdef __wasi__
#include <stdlib.h>
#endif

/* Exports the function that follows under its plain name, even with -fvisibility=hidden. */
#ifdef __cplusplus
#define SUBLET_FUNCTION extern "C" __attribute__((visibility("default")))
extern "C" {
#else
#define SUBLET_FUNCTION __attribute__((visibility("default")))
#endif

/* Context of a call. Use it only during the call, by the functions below. Functions must neither copy nor create one: it
 * has more members than are declared here. */
typedef struct sublet_context sublet_context;
/* An open memory component of the graph, valid during the call that opened it. */
typedef uint32_t sublet_channel;
/* Functions behind sublet_call and the functions for memory components. */
typedef struct sublet_components {
    uint32_t (*instance)(sublet_context *context);
    uint32_t (*instances)(sublet_context *context);
    const char *(*why)(sublet_context *context);
    uint32_t (*open)(sublet_context *context, const char *component, sublet_channel *channel);
    uint32_t (*size)(sublet_context *context, sublet_channel channel, uint64_t *size);
    uint32_t (*read)(sublet_context *context, sublet_channel channel, uint64_t offset, void *into, uint64_t size);
    uint32_t (*write)(sublet_context *context, sublet_channel channel, uint64_t offset, const void *from, uint64_t size);
    uint32_t (*grow)(sublet_context *context, sublet_channel channel, uint64_t size);
    uint32_t (*map)(sublet_context *context, sublet_channel channel, uint64_t offset, uint64_t size, void **at);
    uint32_t (*read_async)(sublet_context *context, sublet_channel channel, uint64_t offset, void *into, uint64_t size);
    uint32_t (*prefetch)(sublet_context *context, sublet_channel channel, uint64_t offset, uint64_t size);
    uint32_t (*sync)(sublet_context *context, sublet_channel channel);
    uint32_t (*send)(sublet_context *context, const char *component, uint32_t instance, const void *from, uint64_t size,
                     uint64_t timeout_ms);
    uint32_t (*receive)(sublet_context *context, const char *component, void *into, uint64_t capacity, uint64_t timeout_ms,
                        uint64_t *size, uint32_t *instance);
    uint32_t (*write_async)(sublet_context *context, sublet_channel channel, uint64_t offset, const void *from,
                            uint64_t size);
    uint32_t (*resize)(sublet_context *context, sublet_channel channel, uint64_t size);
    uint32_t (*release)(sublet_context *context, sublet_channel channel);
    uint32_t (*call)(sublet_context *context, const char *function, const void *in, uint32_t size, void *out,
                     uint32_t capacity, uint32_t *written);
} sublet_components;
struct sublet_context {
    uint32_t size_bytes;
    uint32_t capacity;
#ifndef __wasm__
    void (*fail)(sublet_context *context, const char *message);
    const sublet_components *components;
#endif
};

#ifdef __wasm__
__attribute__((import_module("sublet"), import_name("fail"))) void sublet_host_fail(const char *message);
#endif

/* The short and the long form of a function. */
typedef uint32_t (*sublet_short_function)(void *in, uint32_t size, void *out);
typedef uint32_t (*sublet_long_function)(void *in, uint32_t size, void *out, sublet_context *context);

/* Returns the size of the output. */
static inline uint32_t sublet_capacity(const sublet_context *context) { return context->capacity; }

/* Fails the call: whatever the function returns, its caller gets SUBLET_FUNCTION_FAILED with this message, which is
 * truncated to 256 bytes and may be NULL. Only the first failure of a call counts. Returns 0, so that a function can end
 * with `return sublet_fail(context, "...");`. */
static inline uint32_t sublet_fail(sublet_context *context, const char *message) {
#ifdef __wasm__
    (void)context;
    sublet_host_fail(message);
#else
    context->fail(context, message);
#endif
    return 0;
}

#ifndef __wasm__
/* Calls another function of this package by its name, on this thread. The called function gets these bytes as its input and
 * output, and `written`, which may be NULL, the number of bytes that it has written. Returns 0 or an error number of
 * sublet.h, for which sublet_why returns a message that begins with the name of the failed function:
 * SUBLET_FUNCTION_FAILED with that function's message, SUBLET_UNKNOWN_FUNCTION, SUBLET_OUTPUT_TOO_LARGE. Calls nest at most
 * 64 deep. The time of the called function counts as time of this call.
 *
 *     if (sublet_call(context, "compress", pixels, size, out, sublet_capacity(context), &written))
 *         return sublet_fail(context, sublet_why(context));
 *     return written; */
static inline uint32_t sublet_call(sublet_context *context, const char *function, const void *in, uint32_t size, void *out,
                                   uint32_t capacity, uint32_t *written) {
    return context->components->call(context, function, in, size, out, capacity, written);
}

/* Memory components of a graph, which functions of a run share (Scad, Figure 3). A memory component is an array of bytes.
 * The part on the worker's machine is mapped into the process: an access copies memory, and sublet_channel_map returns its
 * address. The rest is read and written over connections, through a cache. Several instances may access a component at
 * once; the program has to coordinate writes. Others see writes to mapped memory at once, and other writes after
 * sublet_channel_sync or the end of the function.
 *
 * The functions return 0 or an error number of sublet.h; sublet_why returns the message. SUBLET_INVALID_ARGUMENT: the call
 * belongs to no run, there is no access edge to the component, or the access is beyond the end. SUBLET_PERMISSION_DENIED: the
 * edge is only for reading. SUBLET_MEMORY_EXCEEDED: the component has reached its limit. Other errors say why it cannot grow
 * or has ended. After an error, return sublet_fail(context, sublet_why(context)): if a node was lost, the run repeats the
 * component. */

/* Return the number of this instance of the component, from 0, and the number of instances; 0 and 1 outside of runs. */
static inline uint32_t sublet_instance(sublet_context *context) { return context->components->instance(context); }
static inline uint32_t sublet_instances(sublet_context *context) { return context->components->instances(context); }

/* Returns the message of the latest failure of these functions or of sublet_call. */
static inline const char *sublet_why(sublet_context *context) { return context->components->why(context); }

/* Opens a memory component by its name in the graph. */
static inline uint32_t sublet_channel_open(sublet_context *context, const char *component, sublet_channel *channel) {
    return context->components->open(context, component, channel);
}

/* Returns the size of the component: the end of the last byte that was written. */
static inline uint32_t sublet_channel_size(sublet_context *context, sublet_channel channel, uint64_t *size) {
    return context->components->size(context, channel, size);
}

/* Copies bytes out of the component. */
static inline uint32_t sublet_channel_read(sublet_context *context, sublet_channel channel, uint64_t offset, void *into,
                                           uint64_t size) {
    return context->components->read(context, channel, offset, into, size);
}

/* Copies bytes into the component, which grows for bytes beyond its end. A gap is filled with zeros. */
static inline uint32_t sublet_channel_write(sublet_context *context, sublet_channel channel, uint64_t offset,
                                            const void *from, uint64_t size) {
    return context->components->write(context, channel, offset, from, size);
}

/* Grows the component to this size, if it is smaller. New bytes are 0. */
static inline uint32_t sublet_channel_grow(sublet_context *context, sublet_channel channel, uint64_t size) {
    return context->components->grow(context, channel, size);
}

/* Resizes the component. New bytes are 0. Shrinking requires that no other instance or component accesses it:
 * SUBLET_INVALID_ARGUMENT while another one has neither ended nor released it. Memory that was mapped beyond the new end must
 * not be used any more. On the machine of the run's client, whole unused segments are released; on other machines they are
 * kept for later growth. */
static inline uint32_t sublet_channel_resize(sublet_context *context, sublet_channel channel, uint64_t size) {
    return context->components->resize(context, channel, size);
}

/* Syncs the component and ends this function's access to it. The memory is released when all started instances of all
 * components with access have ended or released it, and no further one will start. Afterwards every use by this function,
 * including opening it again, fails with SUBLET_LEASE_ENDED. */
static inline uint32_t sublet_channel_release(sublet_context *context, sublet_channel channel) {
    return context->components->release(context, channel);
}

/* Copies bytes into the component without waiting until others can read them, which sublet_channel_sync and the end of the
 * function do. `from` may be changed when the function returns. Growth is waited for: before many writes, call
 * sublet_channel_grow. */
static inline uint32_t sublet_channel_write_async(sublet_context *context, sublet_channel channel, uint64_t offset,
                                                  const void *from, uint64_t size) {
    return context->components->write_async(context, channel, offset, from, size);
}

/* Starts to copy bytes out of the component. The copy is complete when sublet_channel_sync has returned; until then, or the
 * end of the call, `into` must not be used. */
static inline uint32_t sublet_channel_read_async(sublet_context *context, sublet_channel channel, uint64_t offset,
                                                 void *into, uint64_t size) {
    return context->components->read_async(context, channel, offset, into, size);
}

/* Starts to fetch bytes from other machines that will be read soon, without waiting for them. */
static inline uint32_t sublet_channel_prefetch(sublet_context *context, sublet_channel channel, uint64_t offset,
                                               uint64_t size) {
    return context->components->prefetch(context, channel, offset, size);
}

/* Waits for started reads, makes this function's writes visible to others, and makes writes that they have synced visible
 * here. The return of a function does the same. */
static inline uint32_t sublet_channel_sync(sublet_context *context, sublet_channel channel) {
    return context->components->sync(context, channel);
}

/* Returns the address of bytes within the component's size, for access in place during the call. A write through an edge
 * that is only for reading ends the process. Bytes on another machine have no address: SUBLET_FABRIC_UNAVAILABLE. */
static inline uint32_t sublet_channel_map(sublet_context *context, sublet_channel channel, uint64_t offset, uint64_t size,
                                          void **at) {
    return context->components->map(context, channel, offset, size, at);
}

/* Maximum size of a message. Components that run at the same time and have a message edge, in either direction, exchange
 * messages. Each instance has a queue for each such component, in which messages of one sender keep their order. Larger data
 * belong in memory components. */
enum { SUBLET_MAX_MESSAGE_BYTES = 65536 };

/* Sends a message to an instance of another component. Waits for space in the queue, at most `timeout_ms` (UINT64_MAX: no
 * limit), but not for the receiver. SUBLET_DEADLINE_EXCEEDED; SUBLET_LEASE_ENDED if the component has ended. */
static inline uint32_t sublet_send(sublet_context *context, const char *component, uint32_t instance, const void *from,
                                   uint64_t size, uint64_t timeout_ms) {
    return context->components->send(context, component, instance, from, size, timeout_ms);
}

/* Receives the next message from any instance of another component, with its size and the number of the instance, which may
 * both be NULL. Waits at most `timeout_ms`; 0 does not wait. SUBLET_DEADLINE_EXCEEDED; SUBLET_LEASE_ENDED if the component has
 * ended and the queue is empty; SUBLET_OUTPUT_TOO_LARGE if the capacity is too small: `size` is then set, and the message
 * stays in the queue. */
static inline uint32_t sublet_receive(sublet_context *context, const char *component, void *into, uint64_t capacity,
                                      uint64_t timeout_ms, uint64_t *size, uint32_t *instance) {
    return context->components->receive(context, component, into, capacity, timeout_ms, size, instance);
}
#endif

#ifdef __wasi__
/* Allocates memory for inputs and outputs by the module's own allocator. In a module without a C library, and so without an
 * allocator, they lie behind the module's memory. */
__attribute__((weak, export_name("sublet_allocate"))) void *sublet_allocate(size_t bytes) { return malloc(bytes); }
#endif

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* SUBLET_FUNCTION_H */
