/* sublet_memory.h: memory components from C: memory that is leased by the segment, grows while it is written, may lie on
 * any machine, and is given back.
 *
 *     sublet_memory *memory;
 *     sublet_memory_plan plan = sublet_memory_plan_default();
 *     plan.limit_bytes = UINT64_C(1) << 30;
 *     sublet_status status = sublet_memory_create(invoker, &plan, &memory);
 *     if (status == SUBLET_OK) status = sublet_memory_write(memory, 0, values, sizeof values);
 *     ...
 *     sublet_memory_release(memory, &bill);
 *
 * A component is a list of segments. Each is a lease of its own, of memory alone. The first comes with the first access,
 * a further one when something is written beyond the last. To its user it is one stretch of bytes from 0 on. On the
 * user's own machine segments are mapped, and an access copies memory. Those of other machines are read and written
 * over a connection, past a cache.
 *
 * The rules of sublet.h hold, and these:
 *
 * - Any number of threads may use a component at once. Resizing and releasing must not overlap with anything else on it.
 * - Who reads what another writes at the same time gets some of both.
 * - Who writes reads what it wrote. Others do from its sublet_memory_sync on, once they have synced themselves.
 * - When one segment has ended, all of the component has: every access says why, by SUBLET_LEASE_EXPIRED,
 *   SUBLET_LEASE_ENDED, SUBLET_NODE_RECLAIMED or SUBLET_AGENT_UNREACHABLE. Its bytes are gone then.
 */
#ifndef SUBLET_MEMORY_H
#define SUBLET_MEMORY_H

#include "sublet.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A memory component. It may outlive the invoker that made it. */
typedef struct sublet_memory sublet_memory;

/* What a component is to be; begin with sublet_memory_plan_default. */
typedef struct sublet_memory_plan {
    uint32_t size_bytes;      /* of this structure */
    uint64_t initial_bytes;   /* of the first segment, in whole pages; 16 MiB */
    uint64_t increment_bytes; /* of each further one; 16 MiB */
    uint64_t limit_bytes;     /* it grows no further; 1 TiB. It is address space, and no memory before it is needed */
    uint64_t timeout_ns;      /* each segment's time, in steps of a millisecond; 0: the manager's default */
    uint64_t wait_ns;         /* how long to wait for each segment, in the manager's queue; 0 */
    uint64_t cache_bytes;     /* how much of what is on other machines is kept here; 0: nothing, and what was written is
                                 there when the write returns; 64 MiB. It takes memory as it fills */
    uint64_t line_bytes;      /* the lines of that: a power of two from 64 to 1 MiB, of which 128 fit; 4 KiB */
    const char *near;         /* rather on these nodes, the first with room: names, separated by commas; NULL: any */
    const char *fabric;       /* how segments are reached: "auto", "shm", "tcp" or "tcp+tls"; NULL: shared memory on this
                                 machine, TCP elsewhere */
    const char *pool;         /* "compute", "memory" or "balanced": on nodes of this pool and on no others; NULL: rather on
                                 those of the memory pool */
} sublet_memory_plan;

SUBLET_STATIC_ASSERT(sizeof(sublet_memory_plan) == 88, "the library is built for 64-bit machines");

/* The values above. */
static inline sublet_memory_plan sublet_memory_plan_default(void) {
    sublet_memory_plan plan;
    plan.size_bytes = (uint32_t)sizeof plan;
    plan.initial_bytes = UINT64_C(16) << 20;
    plan.increment_bytes = UINT64_C(16) << 20;
    plan.limit_bytes = UINT64_C(1) << 40;
    plan.timeout_ns = 0;
    plan.wait_ns = 0;
    plan.cache_bytes = UINT64_C(64) << 20;
    plan.line_bytes = UINT64_C(4) << 10;
    plan.near = NULL;
    plan.fabric = NULL;
    plan.pool = NULL;
    return plan;
}

/* Makes a component. Nothing is leased before the first access. Errors: SUBLET_INVALID_ARGUMENT (sizes, fabric). */
SUBLET_API sublet_status sublet_memory_create(const sublet_invoker *invoker, const sublet_memory_plan *plan,
                                              sublet_memory **memory);

/* Copies bytes out. Errors: SUBLET_INVALID_ARGUMENT (beyond the end), and why it has ended. */
SUBLET_API sublet_status sublet_memory_read(const sublet_memory *memory, uint64_t offset, void *into, size_t len_bytes);

/* Copies bytes in. What is beyond the end makes it grow; what lies between is 0.
 *
 * Errors: SUBLET_MEMORY_EXCEEDED (beyond the limit); SUBLET_INSUFFICIENT_RESOURCES, SUBLET_NO_CAPACITY,
 * SUBLET_QUOTA_EXCEEDED, SUBLET_MANAGER_UNREACHABLE where it cannot grow; why it has ended. */
SUBLET_API sublet_status sublet_memory_write(const sublet_memory *memory, uint64_t offset, const void *from,
                                             size_t len_bytes);

/* Begins to copy bytes out: they are there after sublet_memory_wait or sublet_memory_sync, and until then `into` must be
 * left alone. Errors: as for sublet_memory_read. */
SUBLET_API sublet_status sublet_memory_read_async(const sublet_memory *memory, uint64_t offset, void *into,
                                                  size_t len_bytes);

/* Copies bytes in, and does not wait until others can read them: `from` may be changed at once. Errors: as for
 * sublet_memory_write. */
SUBLET_API sublet_status sublet_memory_write_async(const sublet_memory *memory, uint64_t offset, const void *from,
                                                   size_t len_bytes);

/* Waits for what sublet_memory_read_async has begun, on any thread. Errors: what failed first; the rest is there. */
SUBLET_API sublet_status sublet_memory_wait(const sublet_memory *memory);

/* As sublet_memory_wait; and what was written is then where others read it, and what others have synced before is read
 * from now on. On one machine that is so without it. Errors: why it has ended. */
SUBLET_API sublet_status sublet_memory_sync(const sublet_memory *memory);

/* Asks for bytes that will be read soon, and does not wait for them. Of what is on this machine, or beyond the end, nothing
 * is asked. */
SUBLET_API sublet_status sublet_memory_prefetch(const sublet_memory *memory, uint64_t offset, uint64_t len_bytes);

/* Where bytes lie in this process, to be read and written in place. They stay there until the component is resized or
 * released. Errors: SUBLET_FABRIC_UNAVAILABLE (on another machine), and as for sublet_memory_read. */
SUBLET_API sublet_status sublet_memory_mapped(const sublet_memory *memory, uint64_t offset, uint64_t len_bytes,
                                              void **data);

/* How many bytes there are to be read, and how many are leased. Either may be NULL. */
SUBLET_API sublet_status sublet_memory_size(const sublet_memory *memory, uint64_t *len_bytes, uint64_t *capacity_bytes);

/* Makes it so many bytes long. New bytes are 0; segments of which no byte is left are given back. It waits for what was
 * begun, as sublet_memory_wait does. Errors: as for sublet_memory_write. */
SUBLET_API sublet_status sublet_memory_resize(sublet_memory *memory, uint64_t len_bytes);

/* Lets all segments end this long from now, in steps of a millisecond; 0: the manager's default. Errors: as for
 * sublet_invoker_renew. */
SUBLET_API sublet_status sublet_memory_renew(const sublet_memory *memory, uint64_t timeout_ns);

/* Gives all of it back, and frees the component, whatever it returns. `bill`, of all segments that there were at the end,
 * may be NULL. A null `memory` is ignored. Errors: why it had ended before. */
SUBLET_API sublet_status sublet_memory_release(sublet_memory *memory, sublet_bill *bill);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* SUBLET_MEMORY_H */
