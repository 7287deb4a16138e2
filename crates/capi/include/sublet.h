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
 *   SUBLET_OK; otherwise sublet_error_message(), on the same thread, describes the failure.
 * - Pointers must not be null unless their description allows it. For a null pointer, a string that is not UTF-8, or a
 *   structure of another version of this header, functions return SUBLET_INVALID_ARGUMENT.
 * - The end of a number's name is its unit: _bytes, _ns, _unix_ms (milliseconds since 1970), _nano (1e-9).
 * - Returned strings belong to the library. Each description says how long they stay valid.
 * - One invoker may be used by any number of threads at once to allocate buffers, find functions and submit calls.
 *   Leasing (allocate, grow, deallocate) and sublet_invoker_free must not overlap with anything else on the same invoker.
 * - Any thread, but only one at a time, may wait for a submitted call while others use its invoker.
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

/* Status of an operation or a call. The numbers are Sublet's error codes, which are also the exit status of the `sublet`
 * command. An assigned number keeps its meaning; later versions may add numbers. */
typedef enum sublet_status {
    SUBLET_OK = 0,
    /* An argument has a value that the operation does not accept. */
    SUBLET_INVALID_ARGUMENT = 10,
    /* The package has no such function. */
    SUBLET_UNKNOWN_FUNCTION = 11,
    /* No package of that name or digest is deployed. */
    SUBLET_UNKNOWN_PACKAGE = 12,
    /* No lease has this identifier. */
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
    /* A document, a layer or a file of the image is malformed or malicious. */
    SUBLET_INVALID_IMAGE = 23,
    /* The document is not a valid graph; the message lists all errors. */
    SUBLET_INVALID_GRAPH = 24,
    /* No graph of this name or digest is deployed. */
    SUBLET_UNKNOWN_GRAPH = 25,
    /* No run has this identifier, or it has ended. */
    SUBLET_UNKNOWN_RUN = 26,
    /* Another process drives the run. */
    SUBLET_RUN_TAKEN = 27,
    /* The run was cancelled. */
    SUBLET_RUN_CANCELLED = 28,
    /* No node has the requested resources, even when idle. */
    SUBLET_INSUFFICIENT_RESOURCES = 30,
    /* The requested resources exist, but are leased at the moment. */
    SUBLET_NO_CAPACITY = 31,
    /* The lease has expired. */
    SUBLET_LEASE_EXPIRED = 32,
    /* The lease was ended before its time. */
    SUBLET_LEASE_ENDED = 33,
    /* The caller lacks the right, or the lease's ticket is too old or belongs to another user. */
    SUBLET_PERMISSION_DENIED = 34,
    /* The access token is missing, unknown, expired or revoked. */
    SUBLET_UNAUTHENTICATED = 35,
    /* The request exceeds the tenant's quota. */
    SUBLET_QUOTA_EXCEEDED = 36,
    /* The manager has too many requests waiting: try later. */
    SUBLET_TRY_LATER = 37,
    /* The lease was granted before its node registered again: request another one. */
    SUBLET_TICKET_SUPERSEDED = 38,
    /* The operator has withdrawn the lease's node. */
    SUBLET_NODE_RECLAIMED = 39,
    /* The function reported an error, which is the message, or threw an exception. */
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
    /* A peer sent an invalid message. */
    SUBLET_PROTOCOL = 52,
    /* The state folder's disk is full. */
    SUBLET_STORE_FULL = 53,
    /* A system call failed. */
    SUBLET_SYSTEM = 54,
    /* The state folder is in use by another running process. */
    SUBLET_ALREADY_RUNNING = 55,
    /* The store behind the manager does not answer. */
    SUBLET_STORE_UNREACHABLE = 56,
    /* No network, or not the requested one, can carry calls between this client and the node. */
    SUBLET_FABRIC_UNAVAILABLE = 57,
    /* The peer has an incompatible version. */
    SUBLET_VERSION_MISMATCH = 58,
    /* The key for memory of another node is invalid or has been revoked. */
    SUBLET_KEY_REFUSED = 59,
    /* Sublet itself has a bug. */
    SUBLET_INTERNAL = 60,
    /* A limit of this machine is too low; the message says which, and how to raise it. */
    SUBLET_LIMIT_TOO_LOW = 61,
    /* The image registry does not answer. */
    SUBLET_REGISTRY_UNREACHABLE = 62,
    /* Records of the store are damaged or missing; the message says which. */
    SUBLET_STORE_DAMAGED = 63
} sublet_status;

/* Returns the name of a status, as "worker_died"; "ok" for SUBLET_OK, "internal" for unknown numbers. Never null, always
 * valid. */
SUBLET_API const char *sublet_status_name(sublet_status status);

/* Returns the message of the latest failure on this thread; "" if there was none. Never null; valid until the next
 * failure on this thread. */
SUBLET_API const char *sublet_error_message(void);

/* Returns the version of the library, as "0.1.0"; the header's version is SUBLET_VERSION. Always valid. */
SUBLET_API const char *sublet_version(void);

/* A client of the managers of one store. It allocates buffers, holds the leases of one allocation and of its growth, and
 * submits calls to their workers. The workers may be on several nodes, with a lease for each; their numbers run over all
 * nodes. */
typedef struct sublet_invoker sublet_invoker;

/* Values of `hot_ns` for workers that always poll, or sleep after every call. */
#define SUBLET_ALWAYS_HOT UINT64_MAX
#define SUBLET_ALWAYS_WARM UINT64_C(0)

/* Function that is called with each step of a worker's start that takes time, as "pulling the image NAME" or "importing torch".
 * It is called on any thread, once at a time, until the leases are released or sublet_invoker_allocate has failed; a start may
 * also follow the end of a worker. The text is valid during the call. The function must not allocate or end leases, throw a
 * C++ exception, or leave by longjmp. */
typedef void (*sublet_step_callback)(const char *step, void *user);

/* Request for leases; initialize it with sublet_allocation_default. */
typedef struct sublet_allocation {
    uint32_t size_bytes;     /* size of this structure */
    uint32_t cores;          /* number of cores, each with a worker; 1 */
    const char *package;     /* name or digest of a deployed package, or the path of a folder or shared object, which is
                                deployed first: a path contains a slash, ends with .so, or is "." */
    uint64_t memory_bytes;   /* memory for all cores together; 0: the manager's default */
    uint64_t timeout_ns;     /* duration of the lease, in steps of a millisecond; 0: the manager's default */
    uint64_t slot_bytes;     /* maximum size of inputs outside of the invoker's buffers; 64 KiB */
    uint64_t hot_ns;         /* time that a worker polls after a call before it sleeps; 1 ms */
    uint64_t spin_ns;        /* time that a waiting thread polls for a result before it sleeps; 50 us */
    uint32_t slots;          /* queued calls per worker besides the executing one, rounded up to a power of two; 8 */
    uint32_t max_nodes;      /* maximum number of nodes; 1 keeps all workers together; 0: no limit; 0 */
    uint64_t wait_ns;        /* maximum time in the manager's queue for capacity; 0 */
    uint64_t idle_timeout_ns; /* time without a call after which a lease ends; 0: the node's default */
    const char *pu;          /* kind of processing unit: "cpu", "opencl" or "cuda"; NULL: the cheapest free one for
                                which the package has builds or profiles */
    uint32_t shared;         /* 1: workers share their cores with other leases, and a call whose core is busy goes to
                                another worker; not for SUBLET_ALWAYS_HOT; 0 */
    uint32_t time_weight_permille; /* weight of execution time against price in the choice among kinds of processing
                                units, from 0 (only price) to 1000 (only time); 0 */
    const char *fabric;      /* fabric for calls: "auto", "shm", "tcp", "tcp+tls", "ofi" or "ofi:PROVIDER"; NULL:
                                $SUBLET_FABRIC, or the best that client and node have in common */
    const char *interface;   /* network interface for other machines, by name or address; NULL: $SUBLET_INTERFACE, or
                                the routing table's choice */
    const char *pool;        /* use only nodes of this pool: "compute", "memory" or "balanced"; NULL: prefer the pool
                                that fits the lease's memory */
    const char *const *variables; /* environment variables of functions, as "NAME=VALUE", and a NULL after the last; NULL:
                                none */
    const char *const *secrets; /* secrets of the tenant that functions get as environment variables, as "NAME" or
                                "VARIABLE=NAME", and a NULL after the last; NULL: none */
    const char *const *folders; /* names of folders that nodes lend, which functions see as /folders/NAME, and a NULL
                                after the last; NULL: none */
    uint64_t temporary_bytes; /* size of the temporary files of each worker process, part of its memory; 0: 64 MiB */
    const char *isolation;   /* isolation that functions must have from the rest of their node: "process", "container",
                                "crun", "runc", "runsc", "apptainer" or "weak"; NULL: the package's, or any that the node
                                offers */
    uint64_t start_timeout_ns; /* maximum time of a worker's start, with fetching what it needs and its imports; 0: until
                                the lease ends */
    sublet_step_callback on_step; /* called with each step of a start; NULL: none */
    void *step_user;         /* passed to on_step */
} sublet_allocation;

SUBLET_STATIC_ASSERT(sizeof(sublet_allocation) == 184, "the library is built for 64-bit machines");

/* Returns a request for one core for the functions of a package, with the defaults given last above. The structure keeps
 * the pointer to the string. */
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
    allocation.variables = NULL;
    allocation.secrets = NULL;
    allocation.folders = NULL;
    allocation.temporary_bytes = 0;
    allocation.isolation = NULL;
    allocation.start_timeout_ns = 0;
    allocation.on_step = NULL;
    allocation.step_user = NULL;
    return allocation;
}

/* The first lease, which has most of the workers. The strings belong to the invoker and are valid until it
 * deallocates. */
typedef struct sublet_lease {
    const char *id;            /* 32 hexadecimal digits */
    const char *node;          /* name of the node */
    const char *package;       /* name of the package */
    const char *owner;         /* tenant that owns the package; empty if the manager does not report it */
    const char *isolation;     /* isolation of the workers from the rest of their node, by its name; empty if the agent does
                                  not report it */
    uint64_t memory_bytes;
    uint64_t granted_unix_ms;
    uint64_t expires_unix_ms;  /* includes the latest renewal */
    uint64_t start_ns;         /* duration of the latest start of the workers */
    uint32_t workers;          /* workers of all leases: one for each core, numbered from 0 */
    uint32_t functions;        /* number of functions of the package */
} sublet_lease;

SUBLET_STATIC_ASSERT(sizeof(sublet_lease) == 80, "the library is built for 64-bit machines");

/* Usage of a lease, and its costs in units of 1e-9 of the manager's currency:
 * total = price of memory * allocated + price of computing * executing + price of polling * polling. */
typedef struct sublet_bill {
    uint64_t allocated_ns;     /* time from the reservation to the end of the lease */
    uint64_t executing_ns;     /* time in functions, summed over workers */
    uint64_t polling_ns;       /* time polling for calls, summed over workers */
    uint64_t calls;            /* includes failed calls */
    uint64_t failed_calls;
    uint64_t allocation_nano;
    uint64_t compute_nano;
    uint64_t polling_nano;
    uint64_t total_nano;
} sublet_bill;

SUBLET_STATIC_ASSERT(sizeof(sublet_bill) == 72, "the library is built for 64-bit machines");

/* Connects to managers at addresses such as "unix:/run/sublet/manager.sock" or "https://host:port", separated by commas;
 * if one does not answer, the next is tried. NULL: $SUBLET_MANAGER, or this machine's own `sublet up`. The trusted
 * authorities come from $SUBLET_CA, the credentials from $SUBLET_TOKEN_FILE or $SUBLET_TOKEN.
 *
 * Errors: SUBLET_INVALID_ARGUMENT (no such address, or https without an authority), SUBLET_MANAGER_UNREACHABLE,
 * SUBLET_UNAUTHENTICATED. */
SUBLET_API sublet_status sublet_invoker_connect(const char *manager, sublet_invoker **invoker);

/* Access to the managers; initialize it with sublet_access_default. Fields that are NULL come from the environment. */
typedef struct sublet_access {
    uint32_t size_bytes;     /* size of this structure */
    const char *managers;    /* addresses, as for sublet_invoker_connect */
    const char *ca_file;     /* PEM file of the only certificate authority that is trusted for managers */
    const char *token;       /* access token; not needed at a manager's own Unix socket */
    const char *token_file;  /* file with the access token; must not be combined with `token` */
} sublet_access;

SUBLET_STATIC_ASSERT(sizeof(sublet_access) == 40, "the library is built for 64-bit machines");

/* Returns an access whose fields all come from the environment. */
static inline sublet_access sublet_access_default(void) {
    sublet_access access;
    access.size_bytes = (uint32_t)sizeof access;
    access.managers = NULL;
    access.ca_file = NULL;
    access.token = NULL;
    access.token_file = NULL;
    return access;
}

/* Connects as sublet_invoker_connect, with the given access, which need not outlive the call. */
SUBLET_API sublet_status sublet_invoker_connect_with(const sublet_access *access, sublet_invoker **invoker);

/* Frees the invoker and releases its leases, as sublet_invoker_deallocate does. Its buffers stay until they are freed.
 * NULL is ignored. */
SUBLET_API void sublet_invoker_free(sublet_invoker *invoker);

/* Leases all of the cores, on one or more nodes, and starts their workers. Waits for capacity at most wait_ns, then
 * blocks for some milliseconds. Either all cores are leased, or none.
 *
 * Errors: SUBLET_ALREADY_ALLOCATED; those of the package; SUBLET_INSUFFICIENT_RESOURCES or
 * SUBLET_NO_CAPACITY if the nodes lack the resources, always or at the moment; SUBLET_QUOTA_EXCEEDED, SUBLET_TRY_LATER,
 * SUBLET_MANAGER_UNREACHABLE, SUBLET_AGENT_UNREACHABLE; SUBLET_DEADLINE_EXCEEDED after start_timeout_ns. */
SUBLET_API sublet_status sublet_invoker_allocate(sublet_invoker *invoker, const sublet_allocation *allocation);

/* Leases more cores on the terms of the present leases; their workers get the next numbers. Either all of these cores are
 * leased, or none. Errors: SUBLET_NOT_ALLOCATED, and those of sublet_invoker_allocate. */
SUBLET_API sublet_status sublet_invoker_grow(sublet_invoker *invoker, uint32_t cores);

/* Renews all leases to end this long from now, in steps of a millisecond; 0: the manager's default. Calls continue
 * meanwhile, and other threads may submit and wait. If one lease cannot be renewed, the others still are.
 *
 * Errors: SUBLET_NOT_ALLOCATED; SUBLET_UNKNOWN_LEASE, SUBLET_QUOTA_EXCEEDED, SUBLET_MANAGER_UNREACHABLE,
 * SUBLET_AGENT_UNREACHABLE. */
SUBLET_API sublet_status sublet_invoker_renew(const sublet_invoker *invoker, uint64_t timeout_ns);

/* Announcement that a lease will end. Calls continue until then; new calls go to other leases, if there are any. */
typedef struct sublet_notice {
    uint64_t left_ns;        /* time until the end; 0: it has ended */
    sublet_status status;    /* reason, which calls will return: SUBLET_NODE_RECLAIMED, ... */
    char lease[36];          /* 32 hexadecimal digits */
    char message[208];       /* reason for people, truncated if longer */
} sublet_notice;

SUBLET_STATIC_ASSERT(sizeof(sublet_notice) == 256, "the library is built for 64-bit machines");

/* Writes up to `capacity` announcements of ends of leases to `notices`, and their total number to `count`. `notices` may
 * be NULL if `capacity` is 0. Sends no message, so it is cheap between calls. */
SUBLET_API sublet_status sublet_invoker_notices(const sublet_invoker *invoker, sublet_notice *notices, size_t capacity,
                                                size_t *count);

/* Releases all leases. Calls that have not ended fail with SUBLET_LEASE_ENDED. `bill`, the sum over all leases, may be
 * NULL. Without a lease the function does nothing, and the bill is zero. */
SUBLET_API sublet_status sublet_invoker_deallocate(sublet_invoker *invoker, sublet_bill *bill);

/* Describes the first lease. Errors: SUBLET_NOT_ALLOCATED. */
SUBLET_API sublet_status sublet_invoker_lease(const sublet_invoker *invoker, sublet_lease *lease);

/* Allocates memory that workers access without copying: a call with input and output in buffers costs the same for any
 * size. Buffers are aligned to a page; their contents are unspecified. They outlive leases, and may outlive the invoker,
 * but only calls of their own invoker access them without copying.
 *
 * Errors: SUBLET_INVALID_ARGUMENT (more than 4 GiB - 1), SUBLET_SYSTEM (no memory). */
SUBLET_API sublet_status sublet_buffer_allocate(const sublet_invoker *invoker, size_t len_bytes, void **data);

/* Frees a buffer by the pointer from its allocation. No call may be using it. NULL is ignored.
 *
 * Errors: SUBLET_INVALID_ARGUMENT (no such buffer: freed already, or another pointer). */
SUBLET_API sublet_status sublet_buffer_free(void *data);

/* A function of the leased package, valid until the lease is released. */
typedef struct sublet_function {
    uint16_t opaque;
} sublet_function;

/* Value of `worker` for calls that any worker may execute: an idle one is preferred. */
#define SUBLET_ANY_WORKER UINT32_MAX

/* Options of a call. */
typedef struct sublet_call_options {
    uint32_t worker;         /* number of the worker, or SUBLET_ANY_WORKER */
    uint32_t timed;          /* 1: measure executing_ns for the completion, which costs some nanoseconds; 0: do not */
    uint64_t timeout_ns;     /* time limit from submission, as by sublet_invocation_wait_deadline; 0: none */
    uint32_t retries;        /* maximum number of repetitions, on any worker, if the worker, its lease or its node ends
                                first: the function may then run partially, and more than once */
} sublet_call_options;

SUBLET_STATIC_ASSERT(sizeof(sublet_call_options) == 24, "the library is built for 64-bit machines");

/* Function, input and output of a call. Memory from sublet_buffer_allocate is used in place. Other input is copied once
 * and must fit an inbox slot; other output is copied once by the wait for the call. */
typedef struct sublet_call {
    const void *input;                   /* may be NULL if input_bytes is 0 */
    size_t input_bytes;                  /* at most 4 GiB - 1 */
    void *output;                        /* may be NULL if output_bytes is 0 */
    size_t output_bytes;                 /* maximum that the function may write; at most 4 GiB - 1 */
    const sublet_call_options *options;  /* NULL: any worker, not timed, no timeout, no retries */
    sublet_function function;
} sublet_call;

SUBLET_STATIC_ASSERT(sizeof(sublet_call) == 48, "the library is built for 64-bit machines");

/* A submitted call, in the caller's memory, so that calls allocate nothing. SUBLET_INVOCATION_INIT or a submission
 * initializes it. It must be closed, or waited for, before its memory is freed. Unless it awaits a callback, it may be
 * moved by copying its bytes; the original then counts as uninitialized. */
typedef struct sublet_invocation {
    uint64_t opaque[32];
} sublet_invocation;

/* An invocation without a call. */
#define SUBLET_INVOCATION_INIT {{0}}

/* Result of a call. */
typedef struct sublet_completion {
    uint64_t output_bytes;   /* bytes written to the output: the function's return value */
    uint64_t executing_ns;   /* time in the function; 0 if the call was not timed */
} sublet_completion;

/* Callback that is called once, when a call has ended, by the lease's background thread or by
 * sublet_invocation_on_complete itself. It should be short, since the thread serves all calls of the lease. It may wait
 * for the invocation, which no longer blocks, and free its memory. It must not submit calls, allocate or end leases,
 * throw a C++ exception, or leave by longjmp. */
typedef void (*sublet_callback)(sublet_invocation *invocation, void *user);

/* Finds a function of the leased package by its name or as "package/function".
 *
 * Errors: SUBLET_NOT_ALLOCATED, SUBLET_UNKNOWN_FUNCTION. */
SUBLET_API sublet_status sublet_invoker_function(const sublet_invoker *invoker, const char *name,
                                                 sublet_function *function);

/* Submits a call. The input must not change, and the output must not be used, until the call has ended. `invocation` must
 * not hold a call; it is written without being read. With a hot worker, the invoker's buffers and a free slot, the
 * function neither enters the kernel nor allocates. It blocks while all slots of the worker are in use.
 *
 * Errors: SUBLET_NOT_ALLOCATED, SUBLET_INPUT_TOO_LARGE, SUBLET_TOO_MANY_IN_FLIGHT, SUBLET_INVALID_ARGUMENT (sizes,
 * worker), and the status that ended the lease. */
SUBLET_API sublet_status sublet_invoker_submit(const sublet_invoker *invoker, const sublet_call *call,
                                               sublet_invocation *invocation);

/* Reports whether the call has ended, in success or failure. Never blocks. Like the functions that wait, this sends a
 * call again that a busy core has rejected, or that is lost and may be repeated: no other thread may use the invocation
 * meanwhile. Errors: SUBLET_INVALID_ARGUMENT (no call). */
SUBLET_API sublet_status sublet_invocation_is_ready(const sublet_invocation *invocation, bool *ready);

/* Waits for the end of the call, collects the result, and closes the invocation, whether or not the call succeeded. The
 * thread polls for the allocation's `spin_ns`, then sleeps. `completion` may be NULL.
 *
 * Errors: SUBLET_FUNCTION_FAILED, SUBLET_OUTPUT_TOO_LARGE, SUBLET_WORKER_DIED, SUBLET_DEADLINE_EXCEEDED,
 * SUBLET_MEMORY_EXCEEDED, SUBLET_CORE_BUSY, SUBLET_LEASE_ENDED, SUBLET_LEASE_EXPIRED, SUBLET_NODE_RECLAIMED,
 * SUBLET_AGENT_UNREACHABLE; SUBLET_INVALID_ARGUMENT (no call). */
SUBLET_API sublet_status sublet_invocation_wait(sublet_invocation *invocation, sublet_completion *completion);

/* Waits for the end of the call, but at most this long from now. A call that has not ended continues, and its result must
 * be collected in either case. Errors: SUBLET_INVALID_ARGUMENT (no call). */
SUBLET_API sublet_status sublet_invocation_wait_timeout(sublet_invocation *invocation, uint64_t timeout_ns,
                                                        bool *ended);

/* Waits as sublet_invocation_wait, but ends the call with SUBLET_DEADLINE_EXCEEDED if it has not ended within this time
 * from now. Since nothing else can stop a function, its worker process is stopped, with all calls that it executes. The
 * next submission starts another process. */
SUBLET_API sublet_status sublet_invocation_wait_deadline(sublet_invocation *invocation, uint64_t timeout_ns,
                                                         sublet_completion *completion);

/* Registers a callback, which is called with the invocation and `user` once the call has ended. The result must be
 * collected in the callback or later; until the callback, the invocation must not be moved, waited for or closed. This
 * is slower than waiting, and allocates: the worker wakes a thread in this process, which calls the callback.
 *
 * Errors: SUBLET_INVALID_ARGUMENT (no call); the callback is then never called. */
SUBLET_API sublet_status sublet_invocation_on_complete(sublet_invocation *invocation, sublet_callback callback,
                                                       void *user);

/* Closes an invocation: waits for the end of its call and drops the result. Does nothing to an invocation without a call,
 * so it may be repeated. NULL is ignored. */
SUBLET_API void sublet_invocation_close(sublet_invocation *invocation);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* SUBLET_H */
