/* sublet_swap.h: swapped arrays from C: ordinary memory of which only a limited part is on this machine. The rest lies in
leased memory, on any machine.
 *
 *     sublet_swapped *swapped;
 *     sublet_swap_plan plan = sublet_swap_plan_default(UINT64_C(8) << 30, UINT64_C(1) << 30);
 *     sublet_memory_plan space = sublet_memory_plan_default();
 *     void *data;
 *     sublet_status status = sublet_swapped_create(invoker, &plan, &space, &swapped);
 *     if (status == SUBLET_OK) status = sublet_swapped_data(swapped, &data);
 *     ...
 *     sublet_swapped_free(swapped);
 *
 * Any thread, and any system call, reads and writes the array in place. A thread that touches an absent page sleeps until the
 * page is fetched; pages that are touched in order are fetched ahead. A child process does not inherit the array: touching it
 * there ends the child.
 *
 * When leased memory is lost, with a node or by expiry, the pages there are lost: the library writes the reason to standard
 * error, sublet_swapped_check returns it, and a thread that touches a lost page gets SIGBUS. It never reads zeros.
 *
 * The rules of sublet.h hold. Swapped arrays need Linux, and the right to handle page faults (userfaultfd); without it
 * functions fail with SUBLET_LIMIT_TOO_LOW, and the message says how to get it.
 */
#ifndef SUBLET_SWAP_H
#define SUBLET_SWAP_H

#include "sublet_memory.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A swapped array. It may outlive the invoker that made it. */
typedef struct sublet_swapped sublet_swapped;

/* Properties of a new array; initialize them with sublet_swap_plan_default. */
typedef struct sublet_swap_plan {
    uint32_t size_bytes;    /* size of this structure */
    uint32_t one_at_a_time; /* 1: only one thread at a time touches the array, directly or by system calls, so that pages that are
                               only read need not be written back. Concurrent writes may then be lost; 0 */
    uint64_t len_bytes;     /* size of the array: up to 1 TiB, rounded up to 2 MiB */
    uint64_t local_bytes;   /* maximum size of the local part: at least 16 MiB, rounded down to 2 MiB */
} sublet_swap_plan;

SUBLET_STATIC_ASSERT(sizeof(sublet_swap_plan) == 24, "the library is built for 64-bit machines");

/* Returns the properties of an array of these sizes that any threads may use. */
static inline sublet_swap_plan sublet_swap_plan_default(uint64_t len_bytes, uint64_t local_bytes) {
    sublet_swap_plan plan;
    plan.size_bytes = (uint32_t)sizeof plan;
    plan.one_at_a_time = 0;
    plan.len_bytes = len_bytes;
    plan.local_bytes = local_bytes;
    return plan;
}

/* Counters since an array was created. */
typedef struct sublet_swap_statistics {
    uint64_t faults;         /* number of times that a thread waited for a page, or to write one */
    uint64_t ahead;          /* regions of 2 MiB that were fetched before they were touched */
    uint64_t in_bytes;       /* bytes paged in, including zeros */
    uint64_t out_bytes;      /* bytes paged out */
    uint64_t written_bytes;  /* bytes paged out that had to be written to leased memory */
    uint64_t resident_bytes; /* bytes on this machine now */
} sublet_swap_statistics;

SUBLET_STATIC_ASSERT(sizeof(sublet_swap_statistics) == 48, "the library is built for 64-bit machines");

/* Creates an array of zeros. `space` describes the memory component for absent pages, whose segments are leased when pages
 * are written to them, and whose cache is not used. Errors: SUBLET_INVALID_ARGUMENT (sizes, fabric, pool),
 * SUBLET_LIMIT_TOO_LOW, SUBLET_SYSTEM (the kernel lacks support). */
SUBLET_API sublet_status sublet_swapped_create(const sublet_invoker *invoker, const sublet_swap_plan *plan,
                                               const sublet_memory_plan *space, sublet_swapped **swapped);

/* Returns the address of the array, which is valid until the array is freed. */
SUBLET_API sublet_status sublet_swapped_data(const sublet_swapped *swapped, void **data);

/* Returns SUBLET_OK, or the reason why pages are lost. Pages on this machine are still valid then. */
SUBLET_API sublet_status sublet_swapped_check(const sublet_swapped *swapped);

/* Returns the counters of the array. */
SUBLET_API sublet_status sublet_swapped_statistics(const sublet_swapped *swapped, sublet_swap_statistics *statistics);

/* Frees the array and releases its leased memory. NULL is ignored. */
SUBLET_API void sublet_swapped_free(sublet_swapped *swapped);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* SUBLET_SWAP_H */
