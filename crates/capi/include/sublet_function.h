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
 * caller's buffers are Sublet's and whole. They belong to the function until it returns: the
 * next call has the same memory, so whatever is needed longer has to be copied.
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
/* A memory component that the function's component accesses: valid during the call that opened it. */
typedef uint32_t sublet_channel;
/* What the functions for memory components, and sublet_call, call. */
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

#ifndef __wasm__
/* Calls another function of this package, by its name, in place: on this thread, and without a way through a client or a server. It has
 * these bytes as its input and its output; how many it has written is put into `written`, which may be NULL. Returns 0, or an error's number as in sublet.h,
 * which sublet_why says in words, the name of the function that failed first: SUBLET_FUNCTION_FAILED with what that said,
 * SUBLET_UNKNOWN_FUNCTION, SUBLET_OUTPUT_TOO_LARGE. Functions call each other 64 deep at most. Its time counts as this call's.
 *
 *     if (sublet_call(context, "compress", pixels, size, out, sublet_capacity(context), &written))
 *         return sublet_fail(context, sublet_why(context));
 *     return written; */
static inline uint32_t sublet_call(sublet_context *context, const char *function, const void *in, uint32_t size, void *out,
                                   uint32_t capacity, uint32_t *written) {
    return context->components->call(context, function, in, size, out, capacity, written);
}

/* Components of a graph: what a function that is executed by a run shares with the others (Scad, Figure 3). A memory component
 * is one stretch of bytes from 0 on. What of it is on the worker's machine is mapped into the process: an access copies memory,
 * and sublet_channel_map says where it lies. The rest is read and written over connections, past a cache. Several instances
 * access it at once; who writes where when is the program's to say. What is mapped is at once where others read it, and the rest
 * from sublet_channel_sync on, or the end of the function.
 *
 * They return 0, or an error's number as in sublet.h: sublet_why says it in words. In a call that is not of a run, and without
 * an access edge to the component, SUBLET_INVALID_ARGUMENT; beyond the end likewise; where the edge is for reading,
 * SUBLET_PERMISSION_DENIED; beyond the component's limit SUBLET_MEMORY_EXCEEDED; and whatever keeps it from growing, or has ended
 * it. After an error return sublet_fail(context, sublet_why(context)): if a node was lost, the run repeats the component. */

/* Which instance of its component executes the call, from 0, of how many. Of a call alone: 0 of 1. */
static inline uint32_t sublet_instance(sublet_context *context) { return context->components->instance(context); }
static inline uint32_t sublet_instances(sublet_context *context) { return context->components->instances(context); }

/* Why the latest of these calls, or of sublet_call, failed. */
static inline const char *sublet_why(sublet_context *context) { return context->components->why(context); }

/* The way to a memory component, by its name in the graph. */
static inline uint32_t sublet_channel_open(sublet_context *context, const char *component, sublet_channel *channel) {
    return context->components->open(context, component, channel);
}

/* How many bytes there are to be read: up to the last that anybody wrote. */
static inline uint32_t sublet_channel_size(sublet_context *context, sublet_channel channel, uint64_t *size) {
    return context->components->size(context, channel, size);
}

/* Copies bytes out, */
static inline uint32_t sublet_channel_read(sublet_context *context, sublet_channel channel, uint64_t offset, void *into,
                                           uint64_t size) {
    return context->components->read(context, channel, offset, into, size);
}

/* and in: what is beyond the end makes the component grow, with zeros in between. */
static inline uint32_t sublet_channel_write(sublet_context *context, sublet_channel channel, uint64_t offset,
                                            const void *from, uint64_t size) {
    return context->components->write(context, channel, offset, from, size);
}

/* Makes it as many bytes long, if it is shorter. New bytes are 0. */
static inline uint32_t sublet_channel_grow(sublet_context *context, sublet_channel channel, uint64_t size) {
    return context->components->grow(context, channel, size);
}

/* Makes it so many bytes long. New bytes are 0. To be made shorter it must be this function's alone: while another instance or
 * component accesses it that has neither ended nor released it, SUBLET_INVALID_ARGUMENT. What was mapped behind the new end is
 * not the component's any more, and is not to be used. Its memory is given back by whole segments, if the function is executed
 * on the machine of the run's client; elsewhere it is kept for when it grows again. */
static inline uint32_t sublet_channel_resize(sublet_context *context, sublet_channel channel, uint64_t size) {
    return context->components->resize(context, channel, size);
}

/* Syncs it, and says that this function does not access it any more, so that it need not be kept until the function ends: when
 * all instances of all components that have begun have ended or released it, and no other is to begin that may access it, its
 * memory is given back. From then on SUBLET_LEASE_ENDED to all that this function does with it, opening included. */
static inline uint32_t sublet_channel_release(sublet_context *context, sublet_channel channel) {
    return context->components->release(context, channel);
}

/* Copies bytes in, which may be changed at once, and does not wait until they are where others read them, which
 * sublet_channel_sync does, and the end of the function. It waits where the component grows: who writes much makes it grow
 * before. */
static inline uint32_t sublet_channel_write_async(sublet_context *context, sublet_channel channel, uint64_t offset,
                                                  const void *from, uint64_t size) {
    return context->components->write_async(context, channel, offset, from, size);
}

/* Begins to copy bytes out. They are there when sublet_channel_sync has returned, and the memory that they go to is nobody
 * else's until then or the end of the call. */
static inline uint32_t sublet_channel_read_async(sublet_context *context, sublet_channel channel, uint64_t offset,
                                                 void *into, uint64_t size) {
    return context->components->read_async(context, channel, offset, into, size);
}

/* Asks for bytes of other machines that will be read soon, and does not wait for them. */
static inline uint32_t sublet_channel_prefetch(sublet_context *context, sublet_channel channel, uint64_t offset,
                                               uint64_t size) {
    return context->components->prefetch(context, channel, offset, size);
}

/* Waits for what was begun to be read, makes what was written be where others read it, and what they have synced before be read
 * here. When a function returns, that is done for it. */
static inline uint32_t sublet_channel_sync(sublet_context *context, sublet_channel channel) {
    return context->components->sync(context, channel);
}

/* Where bytes of it lie, within its size: to be read, and written if the edge says so, in place during the call. To write where
 * the edge is for reading ends the process. Bytes of another machine are nowhere: SUBLET_FABRIC_UNAVAILABLE. */
static inline uint32_t sublet_channel_map(sublet_context *context, sublet_channel channel, uint64_t offset, uint64_t size,
                                          void **at) {
    return context->components->map(context, channel, offset, size, at);
}

/* Messages between components that run at the same time and have a message edge, either way. Each instance has a queue for each
 * such component, in which messages of one sender keep their order. A message has at most this many bytes; more is for memory
 * components. */
enum { SUBLET_MAX_MESSAGE_BYTES = 65536 };

/* Sends a message to an instance of another component. It waits for room in that one's queue, at most so long (UINT64_MAX: as
 * long as it takes), and not until it is received. SUBLET_DEADLINE_EXCEEDED; SUBLET_LEASE_ENDED if the component has ended. */
static inline uint32_t sublet_send(sublet_context *context, const char *component, uint32_t instance, const void *from,
                                   uint64_t size, uint64_t timeout_ms) {
    return context->components->send(context, component, instance, from, size, timeout_ms);
}

/* Takes the next message that any instance of another component has sent to this one, and says which, and how many bytes it has; the
 * last two may be NULL. It waits at most so long; 0 only looks. SUBLET_DEADLINE_EXCEEDED; SUBLET_LEASE_ENDED when the component has
 * ended and nothing is left of it; SUBLET_OUTPUT_TOO_LARGE if there is not so much room: then the size is said, and it stays. */
static inline uint32_t sublet_receive(sublet_context *context, const char *component, void *into, uint64_t capacity,
                                      uint64_t timeout_ms, uint64_t *size, uint32_t *instance) {
    return context->components->receive(context, component, into, capacity, timeout_ms, size, instance);
}
#endif

#ifdef __wasi__
/* Where inputs and outputs are put: memory that the module's own allocator does not give away again. Without such a
 * library, and so without an allocator, they are put behind all that the module has. */
__attribute__((weak, export_name("sublet_allocate"))) void *sublet_allocate(size_t bytes) { return malloc(bytes); }
#endif

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* SUBLET_FUNCTION_H */
