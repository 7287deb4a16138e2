/* sublet_swap.h: swapped arrays from C: ordinary memory of which only so much is on this machine as the program may use. The
 * rest lies in memory that is leased, of whichever machine has some.
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
 * Any thread, and any system call, reads and writes it in place. Who touches what is not here sleeps until it has come; what is
 * touched in order comes ahead of that. A child process does not have the array: to touch it there ends the child.
 *
 * When memory that was leased for it is lost, with a node or at the end of its time, what lay there is lost: the reason is
 * written to standard error and told by sublet_swapped_check, and who touches it is sent SIGBUS. It is never read as zeros.
 *
 * The rules of sublet.h hold. Linux alone has it, for programs that may see to their page faults: others are told by
 * SUBLET_LIMIT_TOO_LOW what would allow it.
 */
#ifndef SUBLET_SWAP_H
#define SUBLET_SWAP_H

#include "sublet_memory.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A swapped array. It may outlive the invoker that made it. */
typedef struct sublet_swapped sublet_swapped;

/* What an array is to be; begin with sublet_swap_plan_default. */
typedef struct sublet_swap_plan {
    uint32_t size_bytes;    /* of this structure */
    uint32_t one_at_a_time; /* 1: never do two threads touch it at the same time, nor a thread and the kernel on another's behalf,
                               so that what is only read need not be written back. If two do, writes may be lost; 0 */
    uint64_t len_bytes;     /* up to 1 TiB, rounded up to 2 MiB */
    uint64_t local_bytes;   /* so much of it is here at a time: 16 MiB at least, rounded down to 2 MiB */
} sublet_swap_plan;

SUBLET_STATIC_ASSERT(sizeof(sublet_swap_plan) == 24, "the library is built for 64-bit machines");

/* Of so many bytes, of which so many are here, for any threads. */
static inline sublet_swap_plan sublet_swap_plan_default(uint64_t len_bytes, uint64_t local_bytes) {
    sublet_swap_plan plan;
    plan.size_bytes = (uint32_t)sizeof plan;
    plan.one_at_a_time = 0;
    plan.len_bytes = len_bytes;
    plan.local_bytes = local_bytes;
    return plan;
}

/* What went to and fro since an array was made. */
typedef struct sublet_swap_statistics {
    uint64_t faults;         /* how often a thread waited for a page, or to write one */
    uint64_t ahead;          /* regions of 2 MiB that were there already when they were touched */
    uint64_t in_bytes;       /* that were put in, zeros included */
    uint64_t out_bytes;      /* that were taken out, */
    uint64_t written_bytes;  /* and of these, that were written to leased memory */
    uint64_t resident_bytes; /* that are here now */
} sublet_swap_statistics;

SUBLET_STATIC_ASSERT(sizeof(sublet_swap_statistics) == 48, "the library is built for 64-bit machines");

/* Makes an array, all of it 0. `space` is the memory component in which what is not here lies; nothing of it is leased before
 * something goes there, and of its cache nothing is used. Errors: SUBLET_INVALID_ARGUMENT (sizes, fabric, pool),
 * SUBLET_LIMIT_TOO_LOW, SUBLET_SYSTEM (the kernel cannot). */
SUBLET_API sublet_status sublet_swapped_create(const sublet_invoker *invoker, const sublet_swap_plan *plan,
                                               const sublet_memory_plan *space, sublet_swapped **swapped);

/* Where it lies: until it is freed. */
SUBLET_API sublet_status sublet_swapped_data(const sublet_swapped *swapped, void **data);

/* Whether all of it is still there, and otherwise why not. What is here now is still good then. */
SUBLET_API sublet_status sublet_swapped_check(const sublet_swapped *swapped);

/* What went to and fro. */
SUBLET_API sublet_status sublet_swapped_statistics(const sublet_swapped *swapped, sublet_swap_statistics *statistics);

/* Frees the array, and gives back what was leased for it. NULL is ignored. */
SUBLET_API void sublet_swapped_free(sublet_swapped *swapped);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* SUBLET_SWAP_H */
