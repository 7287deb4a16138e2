/* sublet.h: run functions on leased cores from C.
 *
 *     sublet_invoker *invoker;
 *     sublet_allocation allocation = sublet_allocation_default("./libhello.so");
 *     sublet_status status = sublet_invoker_connect(NULL, &invoker);
 *     if (status == SUBLET_OK) status = sublet_invoker_allocate(invoker, &allocation);
 *     ...
 *     if (status != SUBLET_OK)
 *         fprintf(stderr, "%s: %s\n", sublet_status_name(status), sublet_error_message());
 *
 * A complete program is examples/c/hello.c. Functions to be called are written with sublet_function.h; C++ programs
 * include sublet.hpp.
 *
 * Rules that hold everywhere:
 *
 * - A function that can fail returns a sublet_status. It writes its outputs, which come last, only if that is
 *   SUBLET_OK; sublet_error_message() then says what failed, on the thread where it did.
 * - Pointers must not be null unless it is said that they may. A null pointer, a string that is not UTF-8, and a
 *   structure of another version of this header are answered by SUBLET_INVALID_ARGUMENT.
 * - A number's unit is the end of its name: _bytes, _ns, _unix_ms (milliseconds since 1970), _nano (1e-9).
 * - Strings that are returned belong to the library and stay valid for as long as is said with them.
 * - One invoker may be used by any number of threads at once to allocate buffers, find functions and submit calls.
 *   Leasing (allocate, grow, deallocate) and sublet_invoker_free must not overlap with anything else on the same invoker.
 * - A submitted call may be waited for on any thread, by one at a time, while its invoker does something else.
 */
#ifndef SUBLET_H
#define SUBLET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SUBLET_VERSION "0.1.0"

#if defined(__GNUC__)
#define SUBLET_API __attribute__((visibility("default")))
#else
#define SUBLET_API
#endif

#ifdef __cplusplus
#define SUBLET_STATIC_ASSERT(condition, message) static_assert(condition, message)
extern "C" {
#else
#define SUBLET_STATIC_ASSERT(condition, message) _Static_assert(condition, message)
#endif

/* What became of an operation or a call. The numbers are those of Sublet's error codes everywhere, the exit status of
 * the `sublet` command included; a number, once given, keeps its meaning. New ones may be added. */
typedef enum sublet_status {
    SUBLET_OK = 0,
    /* A value is outside of what the operation takes. */
    SUBLET_INVALID_ARGUMENT = 10,
    /* The package has no such function. */
    SUBLET_UNKNOWN_FUNCTION = 11,
    /* No package of that name or digest is deployed. */
    SUBLET_UNKNOWN_PACKAGE = 12,
    /* No such lease. */
    SUBLET_UNKNOWN_LEASE = 13,
    /* The package is malformed: its manifest, a path in it, or its shared object. */
    SUBLET_INVALID_PACKAGE = 14,
    /* The shared object is for another processor. */
    SUBLET_WRONG_ARCHITECTURE = 15,
    /* The manifest names a symbol that the shared object does not export. */
    SUBLET_MISSING_SYMBOL = 16,
    /* The input is larger than an inbox slot and not in a buffer of the invoker. */
    SUBLET_INPUT_TOO_LARGE = 17,
    /* The function returned more bytes than the output has. */
    SUBLET_OUTPUT_TOO_LARGE = 18,
    /* 1024 calls of the worker are unfinished or uncollected: wait for some. */
    SUBLET_TOO_MANY_IN_FLIGHT = 19,
    /* There is no lease: allocate first. */
    SUBLET_NOT_ALLOCATED = 20,
    /* There is a lease already: deallocate first. */
    SUBLET_ALREADY_ALLOCATED = 21,
    /* There is no image of that name or digest. */
    SUBLET_UNKNOWN_IMAGE = 22,
    /* The image is malformed or hostile: a document of it, a layer, or a file in a layer. */
    SUBLET_INVALID_IMAGE = 23,
    /* The document is no graph of components; the message says all that is wrong with it. */
    SUBLET_INVALID_GRAPH = 24,
    /* No graph of this name or digest is deployed. */
    SUBLET_UNKNOWN_GRAPH = 25,
    /* There is no such run, or it has ended. */
    SUBLET_UNKNOWN_RUN = 26,
    /* No node has so much, even if it were idle. */
    SUBLET_INSUFFICIENT_RESOURCES = 30,
    /* Nodes have so much, but it is leased now. */
    SUBLET_NO_CAPACITY = 31,
    /* The lease's time is over. */
    SUBLET_LEASE_EXPIRED = 32,
    /* The lease was ended before its time. */
    SUBLET_LEASE_ENDED = 33,
    /* The lease's ticket is too old, or is for somebody else. */
    SUBLET_PERMISSION_DENIED = 34,
    /* The access token is missing, unknown, expired or revoked. */
    SUBLET_UNAUTHENTICATED = 35,
    /* The tenant's quota does not allow it. */
    SUBLET_QUOTA_EXCEEDED = 36,
    /* The manager has too many requests waiting: try later. */
    SUBLET_TRY_LATER = 37,
    /* The lease was granted before its node registered anew: ask for another. */
    SUBLET_TICKET_SUPERSEDED = 38,
    /* The lease's node was handed back to its owner. */
    SUBLET_NODE_RECLAIMED = 39,
    /* The function reported an error or threw; the message is its own. */
    SUBLET_FUNCTION_FAILED = 40,
    /* The worker process ended before the call did. The next call starts another. */
    SUBLET_WORKER_DIED = 41,
    /* The call's deadline passed; its worker process was stopped. */
    SUBLET_DEADLINE_EXCEEDED = 42,
    /* The function ran out of the lease's memory. */
    SUBLET_MEMORY_EXCEEDED = 43,
    /* A shared core was executing another call each time this one was sent. */
    SUBLET_CORE_BUSY = 44,
    /* No manager answers at the address. */
    SUBLET_MANAGER_UNREACHABLE = 50,
    /* The lease's agent does not answer or is gone. */
    SUBLET_AGENT_UNREACHABLE = 51,
    /* A peer's message makes no sense. */
    SUBLET_PROTOCOL = 52,
    /* The state folder's disk is full. */
    SUBLET_STORE_FULL = 53,
    /* A system call failed. */
    SUBLET_SYSTEM = 54,
    /* The state folder is in use by another running process. */
    SUBLET_ALREADY_RUNNING = 55,
    /* The store behind the manager does not answer. */
    SUBLET_STORE_UNREACHABLE = 56,
    /* No network carries calls between this client and the node, or the one that was asked for cannot. */
    SUBLET_FABRIC_UNAVAILABLE = 57,
    /* The peer is of another version, with which this one does not speak. */
    SUBLET_VERSION_MISMATCH = 58,
    /* An access to memory of another node with a key that is not, or no longer, good for it. */
    SUBLET_KEY_REFUSED = 59,
    /* A fault of Sublet's own. */
    SUBLET_INTERNAL = 60,
    /* A limit of this machine is too low; the message says which, and how to raise it. */
    SUBLET_LIMIT_TOO_LOW = 61,
    /* The registry of images does not answer. */
    SUBLET_REGISTRY_UNREACHABLE = 62,
    /* Records of the store are damaged or missing; the message says which. */
    SUBLET_STORE_DAMAGED = 63
} sublet_status;

/* The name of a status, as "worker_died"; "ok" for SUBLET_OK, "internal" for numbers that are none. Never null, valid
 * for ever. */
SUBLET_API const char *sublet_status_name(sublet_status status);

/* What the latest failure on this thread was, complete on its own; "" if there was none. Never null; valid until the
 * next failure on this thread. */
SUBLET_API const char *sublet_error_message(void);

/* The version of the library, as "0.1.0"; that of this header is SUBLET_VERSION. Valid for ever. */
SUBLET_API const char *sublet_version(void);

/* A client of the managers of one store: allocates buffers, holds what one allocation was granted and what it has grown
 * by, and submits calls to the workers of that. The workers may be on several nodes, with a lease for each; they are
 * numbered through. */
typedef struct sublet_invoker sublet_invoker;

/* `hot_ns` of workers that poll for ever, or sleep after every call. */
#define SUBLET_ALWAYS_HOT UINT64_MAX
#define SUBLET_ALWAYS_WARM UINT64_C(0)

/* What to lease; begin with sublet_allocation_default. */
typedef struct sublet_allocation {
    uint32_t size_bytes;     /* of this structure */
    uint32_t cores;          /* each with a worker; 1 */
    const char *package;     /* a deployed package's name or digest, or the path of a folder or shared object, which is
                                deployed on the way: it has a slash, ends with .so, or is "." */
    uint64_t memory_bytes;   /* for all cores together; 0: the manager's default */
    uint64_t timeout_ns;     /* the lease's time, in steps of a millisecond; 0: the manager's default */
    uint64_t slot_bytes;     /* the largest input that may lie outside of the invoker's buffers; 64 KiB */
    uint64_t hot_ns;         /* how long a worker polls after a call before it sleeps; 1 ms */
    uint64_t spin_ns;        /* how long whoever waits for a result polls before it sleeps; 50 us */
    uint32_t slots;          /* of each worker, rounded up to a power of two: calls that travel or wait while one
                                executes; 8 */
    uint32_t max_nodes;      /* 0: as many as it takes; 1 keeps all workers together; 0 */
    uint64_t wait_ns;        /* how long to wait for capacity, in the manager's queue; 0 */
    uint64_t idle_timeout_ns; /* a lease ends after so long without a call; 0: as its node says */
    const char *pu;          /* the kind of processing unit: "cpu", or as nodes call theirs, "opencl" or "cuda"; NULL: of
                                those for which the package has builds, or profiles, the cheapest that is free */
    uint32_t shared;         /* 1: workers share their cores with those of other leases, and a call that finds its core
                                taken goes to another worker; not for SUBLET_ALWAYS_HOT; 0 */
    uint32_t time_weight_permille; /* where the package can be executed on several kinds of processing units: how much the
                                time counts that its work takes, beside what it costs; 0: the price alone, to 1000 */
    const char *fabric;      /* what carries the calls: "auto", "shm", "tcp", "tcp+tls", "ofi" or "ofi:PROVIDER"; NULL: as
                                $SUBLET_FABRIC says, and else the best that client and node have */
    const char *interface;   /* connections to other machines go out by it: its name, or one of its addresses; NULL: as
                                $SUBLET_INTERFACE says, and else as the machine's routes do */
    const char *pool;        /* "compute", "memory" or "balanced": on nodes of this pool and on no others; NULL: rather on
                                those of the pool that its memory says */
} sublet_allocation;

SUBLET_STATIC_ASSERT(sizeof(sublet_allocation) == 120, "the library is built for 64-bit machines");

/* One core for the functions of a package, with the values above. The string is kept, not copied. */
static inline sublet_allocation sublet_allocation_default(const char *package) {
    sublet_allocation allocation;
    allocation.size_bytes = (uint32_t)sizeof allocation;
    allocation.cores = 1;
    allocation.package = package;
    allocation.memory_bytes = 0;
    allocation.timeout_ns = 0;
    allocation.slot_bytes = UINT64_C(65536);
    allocation.hot_ns = UINT64_C(1000000);
    allocation.spin_ns = UINT64_C(50000);
    allocation.slots = 8;
    allocation.max_nodes = 0;
    allocation.wait_ns = 0;
    allocation.idle_timeout_ns = 0;
    allocation.pu = NULL;
    allocation.shared = 0;
    allocation.time_weight_permille = 0;
    allocation.fabric = NULL;
    allocation.interface = NULL;
    allocation.pool = NULL;
    return allocation;
}

/* What was leased: the first lease, which has most of the workers. The strings belong to the invoker and are valid until
 * it deallocates. */
typedef struct sublet_lease {
    const char *id;            /* 32 hexadecimal digits */
    const char *node;          /* the name of the node */
    const char *package;       /* the name of the package */
    uint64_t memory_bytes;
    uint64_t granted_unix_ms;
    uint64_t expires_unix_ms;  /* the latest renewal included */
    uint64_t start_ns;         /* how long the latest start of the workers took */
    uint32_t workers;          /* of all leases: one for each core, numbered from 0 */
    uint32_t functions;        /* of the package */
} sublet_lease;

SUBLET_STATIC_ASSERT(sizeof(sublet_lease) == 64, "the library is built for 64-bit machines");

/* What a lease has used, and what that costs in units of 1e-9 of the manager's currency:
 * total = price of memory * allocated + price of computing * executing + price of polling * polling. */
typedef struct sublet_bill {
    uint64_t allocated_ns;     /* from the reservation to the end of the lease */
    uint64_t executing_ns;     /* in functions, summed over workers */
    uint64_t polling_ns;       /* waiting hot, summed over workers */
    uint64_t calls;            /* all, the failed ones included */
    uint64_t failed_calls;
    uint64_t allocation_nano;
    uint64_t compute_nano;
    uint64_t polling_nano;
    uint64_t total_nano;
} sublet_bill;

SUBLET_STATIC_ASSERT(sizeof(sublet_bill) == 72, "the library is built for 64-bit machines");

/* Connects to managers at addresses such as "unix:/run/sublet/manager.sock" or "https://host:port", separated by commas;
 * they are asked in turn if one does not answer. NULL: those at $SUBLET_MANAGER, or this machine's own `sublet up`. Whom
 * to trust and who one is, is said by $SUBLET_CA and by $SUBLET_TOKEN_FILE or $SUBLET_TOKEN.
 *
 * Errors: SUBLET_INVALID_ARGUMENT (no such address, or https without an authority), SUBLET_MANAGER_UNREACHABLE,
 * SUBLET_UNAUTHENTICATED. */
SUBLET_API sublet_status sublet_invoker_connect(const char *manager, sublet_invoker **invoker);

/* How to reach the managers; begin with sublet_access_default. What is NULL is as the environment says. */
typedef struct sublet_access {
    uint32_t size_bytes;     /* of this structure */
    const char *managers;    /* as for sublet_invoker_connect */
    const char *ca_file;     /* the certificates of the authority that signed the managers', PEM: nobody else is trusted */
    const char *token;       /* who one is; not needed at a manager's own Unix socket */
    const char *token_file;  /* the same in a file; not beside `token` */
} sublet_access;

SUBLET_STATIC_ASSERT(sizeof(sublet_access) == 40, "the library is built for 64-bit machines");

/* All as the environment says. */
static inline sublet_access sublet_access_default(void) {
    sublet_access access;
    access.size_bytes = (uint32_t)sizeof access;
    access.managers = NULL;
    access.ca_file = NULL;
    access.token = NULL;
    access.token_file = NULL;
    return access;
}

/* As sublet_invoker_connect, by what the program itself says. Nothing of it is kept. */
SUBLET_API sublet_status sublet_invoker_connect_with(const sublet_access *access, sublet_invoker **invoker);

/* Frees the invoker; a lease that it still holds is given back, as by sublet_invoker_deallocate. Its buffers stay
 * until they are freed. NULL is ignored. */
SUBLET_API void sublet_invoker_free(sublet_invoker *invoker);

/* Leases all of the cores, on as many nodes as that takes, and starts their workers. Blocks for the milliseconds that
 * this takes, and before that for wait_ns at most; done ahead of time it hides them. All of it is held afterwards, or
 * nothing.
 *
 * Errors: SUBLET_ALREADY_ALLOCATED; what is wrong with the package; SUBLET_INSUFFICIENT_RESOURCES or
 * SUBLET_NO_CAPACITY where the nodes do not have so much, ever or now; SUBLET_QUOTA_EXCEEDED, SUBLET_TRY_LATER,
 * SUBLET_MANAGER_UNREACHABLE, SUBLET_AGENT_UNREACHABLE. */
SUBLET_API sublet_status sublet_invoker_allocate(sublet_invoker *invoker, const sublet_allocation *allocation);

/* Leases so many cores more on the terms of what is held; their workers are numbered after those that there are. All of
 * them are held afterwards, or what was held before. Errors: SUBLET_NOT_ALLOCATED, and as for
 * sublet_invoker_allocate. */
SUBLET_API sublet_status sublet_invoker_grow(sublet_invoker *invoker, uint32_t cores);

/* Lets all leases end this long from now, in steps of a millisecond; 0: the manager's default. Calls go on meanwhile,
 * and other threads may submit and wait. If a lease cannot be renewed, the others are.
 *
 * Errors: SUBLET_NOT_ALLOCATED; SUBLET_UNKNOWN_LEASE, SUBLET_QUOTA_EXCEEDED, SUBLET_MANAGER_UNREACHABLE,
 * SUBLET_AGENT_UNREACHABLE. */
SUBLET_API sublet_status sublet_invoker_renew(const sublet_invoker *invoker, uint64_t timeout_ns);

/* The announced end of a lease. Calls go on until then; new ones go to other leases if there are any. */
typedef struct sublet_notice {
    uint64_t left_ns;        /* until it ends; 0: it has */
    sublet_status status;    /* why, as calls will say it: SUBLET_NODE_RECLAIMED, ... */
    char lease[36];          /* 32 hexadecimal digits */
    char message[208];       /* why, for people; cut if it is longer */
} sublet_notice;

SUBLET_STATIC_ASSERT(sizeof(sublet_notice) == 256, "the library is built for 64-bit machines");

/* The ends that have been announced: writes as many as there is room for, and to `count` how many there are. `notices`
 * may be NULL if `capacity` is 0. Costs no message, so it may be asked between calls. */
SUBLET_API sublet_status sublet_invoker_notices(const sublet_invoker *invoker, sublet_notice *notices, size_t capacity,
                                                size_t *count);

/* Gives everything back. Calls that have not ended fail with SUBLET_LEASE_ENDED. `bill`, of all leases together, may be
 * NULL. Without a lease it does nothing and the bill is all zero. */
SUBLET_API sublet_status sublet_invoker_deallocate(sublet_invoker *invoker, sublet_bill *bill);

/* What is leased. Errors: SUBLET_NOT_ALLOCATED. */
SUBLET_API sublet_status sublet_invoker_lease(const sublet_invoker *invoker, sublet_lease *lease);

/* Allocates memory that workers reach without copying: a call whose input and output lie in buffers costs the same
 * for any size. Aligned to a page; the contents are unspecified. Buffers outlive leases, and may outlive the invoker,
 * but are reached without copying by calls of their own invoker only.
 *
 * Errors: SUBLET_INVALID_ARGUMENT (more than 4 GiB - 1), SUBLET_SYSTEM (no memory). */
SUBLET_API sublet_status sublet_buffer_allocate(const sublet_invoker *invoker, size_t len_bytes, void **data);

/* Frees a buffer by the pointer that was given for it. No call may be using it. NULL is ignored.
 *
 * Errors: SUBLET_INVALID_ARGUMENT (no such buffer: freed already, or not the pointer that was given). */
SUBLET_API sublet_status sublet_buffer_free(void *data);

/* A function of the leased package. Good until the lease is given back. */
typedef struct sublet_function {
    uint16_t opaque;
} sublet_function;

/* `worker` of calls that any worker may execute: one that looks idle is chosen. */
#define SUBLET_ANY_WORKER UINT32_MAX

/* Choices for a call. */
typedef struct sublet_call_options {
    uint32_t worker;         /* SUBLET_ANY_WORKER, or the number of one */
    uint32_t timed;          /* 1: the completion tells executing_ns, which costs some nanoseconds; 0: it does not */
    uint64_t timeout_ns;     /* as by sublet_invocation_wait_deadline, from the submission on; 0: none */
    uint32_t retries;        /* how often it may be repeated, on another worker or its own anew, if its worker, its
                                lease or its node ends before it does: it may then run in part, and more than once */
} sublet_call_options;

SUBLET_STATIC_ASSERT(sizeof(sublet_call_options) == 24, "the library is built for 64-bit machines");

/* What to call, with what. Memory from sublet_buffer_allocate is used in place. Other input is copied once and must
 * fit an inbox slot; other output is copied once when the call is waited for. */
typedef struct sublet_call {
    const void *input;                   /* may be NULL if input_bytes is 0 */
    size_t input_bytes;                  /* at most 4 GiB - 1 */
    void *output;                        /* may be NULL if output_bytes is 0 */
    size_t output_bytes;                 /* what the function may write at most; at most 4 GiB - 1 */
    const sublet_call_options *options;  /* NULL: any worker, not timed, no timeout, not repeated */
    sublet_function function;
} sublet_call;

SUBLET_STATIC_ASSERT(sizeof(sublet_call) == 48, "the library is built for 64-bit machines");

/* A submitted call, in memory of the caller's, so that calling allocates nothing. It begins as SUBLET_INVOCATION_INIT
 * or by a submission, and must be closed, or waited for, before its memory goes. It may be moved by copying its bytes,
 * after which the original counts as uninitialised, but not while it awaits a callback. */
typedef struct sublet_invocation {
    uint64_t opaque[32];
} sublet_invocation;

/* An invocation without a call. */
#define SUBLET_INVOCATION_INIT {{0}}

/* What a call came to. */
typedef struct sublet_completion {
    uint64_t output_bytes;   /* that the function wrote to its output: what it returned */
    uint64_t executing_ns;   /* that the worker spent in the function; 0 if the call was not timed */
} sublet_completion;

/* Called once, when a call has ended: by the lease's background thread, or by sublet_invocation_on_complete itself.
 * It should be short, for the thread serves all calls of the lease. It may wait for the invocation, which does not block
 * any more, and free its memory. It must not submit calls, take or end a lease, throw a C++ exception, or end by
 * longjmp. */
typedef void (*sublet_callback)(sublet_invocation *invocation, void *user);

/* Finds a function of the leased package by its own name or as "package/function".
 *
 * Errors: SUBLET_NOT_ALLOCATED, SUBLET_UNKNOWN_FUNCTION. */
SUBLET_API sublet_status sublet_invoker_function(const sublet_invoker *invoker, const char *name,
                                                 sublet_function *function);

/* Submits a call. The input must stay as it is, and the output untouched, until the call has ended. `invocation` must
 * hold no call; it is written without being read. While the worker is hot, buffers are the invoker's, and a slot is
 * free, this neither enters the kernel nor allocates. Blocks while the worker has a call in each of its slots.
 *
 * Errors: SUBLET_NOT_ALLOCATED, SUBLET_INPUT_TOO_LARGE, SUBLET_TOO_MANY_IN_FLIGHT, SUBLET_INVALID_ARGUMENT (sizes,
 * worker), and whatever has ended the lease. */
SUBLET_API sublet_status sublet_invoker_submit(const sublet_invoker *invoker, const sublet_call *call,
                                               sublet_invocation *invocation);

/* Whether the call has ended, one way or another. Never blocks. A call that was turned away by a busy core, or lost and
 * may be repeated, is sent again by this, as by whatever waits: so nobody else may use the invocation meanwhile. Errors: SUBLET_INVALID_ARGUMENT (there is no call). */
SUBLET_API sublet_status sublet_invocation_is_ready(const sublet_invocation *invocation, bool *ready);

/* Waits for the end, collects the result, and closes the invocation, whether or not the call succeeded. Polls first,
 * for as long as the allocation's `spin_ns`, then sleeps. `completion` may be NULL.
 *
 * Errors: SUBLET_FUNCTION_FAILED, SUBLET_OUTPUT_TOO_LARGE, SUBLET_WORKER_DIED, SUBLET_DEADLINE_EXCEEDED,
 * SUBLET_MEMORY_EXCEEDED, SUBLET_CORE_BUSY, SUBLET_LEASE_ENDED, SUBLET_LEASE_EXPIRED, SUBLET_NODE_RECLAIMED,
 * SUBLET_AGENT_UNREACHABLE; SUBLET_INVALID_ARGUMENT (there is no call). */
SUBLET_API sublet_status sublet_invocation_wait(sublet_invocation *invocation, sublet_completion *completion);

/* Waits for the end, but at most this long from now. The call goes on otherwise, and its result stays to be collected
 * in either case. Errors: SUBLET_INVALID_ARGUMENT (there is no call). */
SUBLET_API sublet_status sublet_invocation_wait_timeout(sublet_invocation *invocation, uint64_t timeout_ns,
                                                        bool *ended);

/* As sublet_invocation_wait, but if the call has not ended within this time from now, it is ended by
 * SUBLET_DEADLINE_EXCEEDED. Since nothing else can stop a function, its worker process is stopped, with all calls that
 * it was executing, and the next submission starts another. */
SUBLET_API sublet_status sublet_invocation_wait_deadline(sublet_invocation *invocation, uint64_t timeout_ns,
                                                         sublet_completion *completion);

/* Has `callback` called with the invocation and `user` once the call has ended; the result stays to be collected, in
 * the callback or later. Until then the invocation must be left alone: neither moved nor waited for nor closed. This
 * is the slow way, which allocates: the worker wakes a thread in this process, and that makes the call.
 *
 * Errors: SUBLET_INVALID_ARGUMENT (there is no call); the callback is then never called. */
SUBLET_API sublet_status sublet_invocation_on_complete(sublet_invocation *invocation, sublet_callback callback,
                                                       void *user);

/* Ends the use of an invocation: waits for its call if that has not ended, and drops the result. Does nothing to one
 * that holds no call, so it may be repeated. NULL is ignored. */
SUBLET_API void sublet_invocation_close(sublet_invocation *invocation);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* SUBLET_H */
