/* sublet_memory.h: memory components from C: memory that is leased by the segment, on any machine, and grows as it is
written.
 *
 *     sublet_memory *memory;
 *     sublet_memory_plan plan = sublet_memory_plan_default();
 *     plan.limit_bytes = UINT64_C(1) << 30;
 *     sublet_status status = sublet_memory_create(invoker, &plan, &memory);
 *     if (status == SUBLET_OK) status = sublet_memory_write(memory, 0, values, sizeof values);
 *     ...
 *     sublet_memory_release(memory, &bill);
 *
 * A component is a list of segments. Each is a lease of only memory. The first access leases the first segment, and a
 * write beyond the last segment leases another one. To its user the component is one array of bytes. Segments on the
 * user's own machine are mapped, and an access copies memory. Segments on other machines are read and written over a
 * connection, through a cache.
 *
 * The rules of sublet.h hold, and these:
 *
 * - Any number of threads may use a component at once. Resizing and releasing must not overlap with anything else on it.
 * - A read that overlaps a concurrent write returns a mixture of old and new bytes.
 * - A writer reads its own writes. Others read them after its sublet_memory_sync, followed by one of their own.
 * - When one segment has ended, the whole component has ended, and its bytes are lost: every access returns the reason,
 *   SUBLET_LEASE_EXPIRED, SUBLET_LEASE_ENDED, SUBLET_NODE_RECLAIMED or SUBLET_AGENT_UNREACHABLE.
 */
#ifndef SUBLET_MEMORY_H
#define SUBLET_MEMORY_H

#include "sublet.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A memory component. It may outlive the invoker that made it. */
typedef struct sublet_memory sublet_memory;

/* Properties of a new component; initialize them with sublet_memory_plan_default. */
typedef struct sublet_memory_plan {
    uint32_t size_bytes;      /* size of this structure */
    uint64_t initial_bytes;   /* size of the first segment, in whole pages; 16 MiB */
    uint64_t increment_bytes; /* size of each further segment; 16 MiB */
    uint64_t limit_bytes;     /* maximum size; 1 TiB. It reserves address space, but no memory */
    uint64_t timeout_ns;      /* duration of each segment's lease, in steps of a millisecond; 0: the manager's default */
    uint64_t wait_ns;         /* maximum time in the manager's queue for each segment; 0 */
    uint64_t cache_bytes;     /* size of the cache for other machines, which takes memory as it fills; 0: no cache, and a
                                 write returns when the other machine has the bytes; 64 MiB */
    uint64_t line_bytes;      /* size of a cache line: a power of two from 64 to 1 MiB, at most 1/128 of the cache; 4 KiB */
    const char *near;         /* preferred nodes, in this order: names, separated by commas; NULL: any */
    const char *fabric;       /* fabric for segments: "auto", "shm", "tcp" or "tcp+tls"; NULL: shared memory on this
                                 machine, TCP elsewhere */
    const char *pool;         /* use only nodes of this pool: "compute", "memory", "balanced", or "flash", whose bytes are
                                 on disks: read and written over tcp, and not mapped; NULL: prefer the memory pool */
} sublet_memory_plan;

SUBLET_STATIC_ASSERT(sizeof(sublet_memory_plan) == 88, "the library is built for 64-bit machines");

/* Returns the defaults given above. */
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

/* Creates a component. The first access leases its first segment. Errors: SUBLET_INVALID_ARGUMENT (sizes, fabric). */
SUBLET_API sublet_status sublet_memory_create(const sublet_invoker *invoker, const sublet_memory_plan *plan,
                                              sublet_memory **memory);

/* Copies bytes out. Errors: SUBLET_INVALID_ARGUMENT (beyond the end), and the reason of the component's end. */
SUBLET_API sublet_status sublet_memory_read(const sublet_memory *memory, uint64_t offset, void *into, size_t len_bytes);

/* Copies bytes in. The component grows for bytes beyond its end; a gap is filled with zeros.
 *
 * Errors: SUBLET_MEMORY_EXCEEDED (beyond the limit); SUBLET_INSUFFICIENT_RESOURCES, SUBLET_NO_CAPACITY,
 * SUBLET_QUOTA_EXCEEDED, SUBLET_MANAGER_UNREACHABLE (it cannot grow); the reason of the component's end. */
SUBLET_API sublet_status sublet_memory_write(const sublet_memory *memory, uint64_t offset, const void *from,
                                             size_t len_bytes);

/* Starts to copy bytes out. The copy is complete after sublet_memory_wait or sublet_memory_sync; until then `into` must not
 * be used. Errors: those of sublet_memory_read. */
SUBLET_API sublet_status sublet_memory_read_async(const sublet_memory *memory, uint64_t offset, void *into,
                                                  size_t len_bytes);

/* Copies bytes in without waiting until others can read them. `from` may be changed when the function returns. Errors:
 * those of sublet_memory_write. */
SUBLET_API sublet_status sublet_memory_write_async(const sublet_memory *memory, uint64_t offset, const void *from,
                                                   size_t len_bytes);

/* Waits for reads that sublet_memory_read_async has started, on any thread. Errors: that of the first failed read; the
 * others are complete. */
SUBLET_API sublet_status sublet_memory_wait(const sublet_memory *memory);

/* Waits as sublet_memory_wait, makes this program's writes visible to others, and makes writes that they have synced
 * visible here. Segments on one machine do not need it. Errors: the reason of the component's end. */
SUBLET_API sublet_status sublet_memory_sync(const sublet_memory *memory);

/* Starts to fetch bytes that will be read soon, without waiting for them. Ignores bytes on this machine and beyond the
 * end. */
SUBLET_API sublet_status sublet_memory_prefetch(const sublet_memory *memory, uint64_t offset, uint64_t len_bytes);

/* Returns the address of bytes in this process, for access in place. It is valid until the component is resized or
 * released. Errors: SUBLET_FABRIC_UNAVAILABLE (on another machine), and those of sublet_memory_read. */
SUBLET_API sublet_status sublet_memory_mapped(const sublet_memory *memory, uint64_t offset, uint64_t len_bytes,
                                              void **data);

/* Returns the size of the component and of its leased memory. Either may be NULL. */
SUBLET_API sublet_status sublet_memory_size(const sublet_memory *memory, uint64_t *len_bytes, uint64_t *capacity_bytes);

/* Resizes the component. New bytes are 0; segments beyond the new end are released. Waits for started reads, as
 * sublet_memory_wait. Errors: those of sublet_memory_write. */
SUBLET_API sublet_status sublet_memory_resize(sublet_memory *memory, uint64_t len_bytes);

/* Renews all segments to end this long from now, in steps of a millisecond; 0: the manager's default. Errors: those of
 * sublet_invoker_renew. */
SUBLET_API sublet_status sublet_memory_renew(const sublet_memory *memory, uint64_t timeout_ns);

/* Releases all segments and frees the component, whatever the function returns. `bill`, the sum over the last segments, may
 * be NULL. A null `memory` is ignored. Errors: the reason if the component had ended before. */
SUBLET_API sublet_status sublet_memory_release(sublet_memory *memory, sublet_bill *bill);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* SUBLET_MEMORY_H */
