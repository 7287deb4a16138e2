/* sublet_graph.h: deploy graphs of components and run them on leased cores and memory, from C.
 *
 *     sublet_application *application;
 *     sublet_outcome *outcome;
 *     sublet_output total;
 *     size_t count;
 *     sublet_status status = sublet_application_deploy(invoker, json, strlen(json), NULL, &application);
 *     if (status == SUBLET_OK) status = sublet_application_run(application, input, size, NULL, NULL, &outcome);
 *     if (status == SUBLET_OK) status = sublet_outcome_outputs(outcome, &total, 1, &count);
 *     ...
 *     sublet_outcome_free(outcome);
 *     sublet_application_free(application);
 *
 * A graph is a document of compute components, which are functions of deployed packages, of memory components, and of edges,
 * which are triggers, accesses and messages (docs/graphs.md). Functions of components are written with sublet_function.h.
 *
 * The rules of sublet.h hold, and these:
 *
 * - Any number of threads may run an application at once.
 * - The thread that starts a run drives it until the function returns; the run then holds no leases. If the program ends
 *   before, sublet_application_resume continues the run, on any machine.
 */
#ifndef SUBLET_GRAPH_H
#define SUBLET_GRAPH_H

#include "sublet.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A deployed graph. It may outlive the invoker that deployed or opened it. */
typedef struct sublet_application sublet_application;

/* Outcome of a run. */
typedef struct sublet_outcome sublet_outcome;

/* A run that another process drives. It may outlive the application or the invoker from which it comes. */
typedef struct sublet_run sublet_run;

/* Options for runs; initialize them with sublet_run_options_default. */
typedef struct sublet_run_options {
    uint32_t size_bytes;       /* size of this structure */
    uint32_t retries;          /* maximum number of restarts of a lost component; 3 */
    uint64_t patience_ns;      /* maximum time that a component waits for cores or memory; 30 s */
    uint64_t prewarm_ns;       /* time after the start of a component until the environments of its successors are prepared;
                                  SUBLET_NO_PREWARM: prepare them when they start; 0: at once */
    uint64_t keep_alive_ns;    /* time that idle workers are kept for the application's next run; 0 */
    uint64_t hot_timeout_ns;   /* time that workers poll after a call; 0 */
    uint64_t lease_timeout_ns; /* duration of leases, in steps of a millisecond; an hour */
    const char *fabric;        /* fabric for calls, and for memory of other machines, as in sublet_allocation; NULL: the best */
} sublet_run_options;

#define SUBLET_NO_PREWARM UINT64_MAX

SUBLET_STATIC_ASSERT(sizeof(sublet_run_options) == 56, "the library is built for 64-bit machines");

/* Returns the defaults given above. */
static inline sublet_run_options sublet_run_options_default(void) {
    sublet_run_options options;
    options.size_bytes = (uint32_t)sizeof options;
    options.retries = 3;
    options.patience_ns = UINT64_C(30000000000);
    options.prewarm_ns = 0;
    options.keep_alive_ns = 0;
    options.hot_timeout_ns = 0;
    options.lease_timeout_ns = UINT64_C(3600000000000);
    options.fabric = NULL;
    return options;
}

/* Event of a component. Later versions may add events. */
typedef enum sublet_event {
    SUBLET_BEGAN = 1, /* started, for the first or a further time */
    SUBLET_ENDED = 2,
    SUBLET_WAITS = 3, /* waiting for the resources to start */
    SUBLET_LOST = 4   /* worker or memory is lost */
} sublet_event;

/* Report of an event. The strings are valid during the callback. */
typedef struct sublet_news {
    uint32_t event;        /* a sublet_event */
    uint32_t attempt;      /* SUBLET_BEGAN: number of the attempt, from 1 */
    const char *component; /* name of the component */
    uint64_t took_ns;      /* SUBLET_ENDED: time since the call of its instances */
    sublet_status status;  /* SUBLET_WAITS and SUBLET_LOST: reason */
    const char *message;   /* SUBLET_WAITS and SUBLET_LOST: reason for people; otherwise NULL */
} sublet_news;

SUBLET_STATIC_ASSERT(sizeof(sublet_news) == 40, "the library is built for 64-bit machines");

/* Callback for events, on the thread that runs the application. It returns 0; any other value abandons the run, which then
 * ends with SUBLET_LEASE_ENDED and cannot be resumed. It must not throw. */
typedef int (*sublet_news_callback)(const sublet_news *news, void *user);

/* Output of an instance of a component. */
typedef struct sublet_output {
    const char *component; /* name of the component */
    const void *data;
    size_t len_bytes;
    uint32_t instance;     /* number of the instance, from 0 */
} sublet_output;

SUBLET_STATIC_ASSERT(sizeof(sublet_output) == 32, "the library is built for 64-bit machines");

/* Resources of a component. Times count from the start of the run. */
typedef struct sublet_component_use {
    const char *component;      /* name of the component */
    uint32_t attempts;          /* number of starts */
    uint32_t instances;         /* number of instances of a compute component */
    uint64_t begin_us;
    uint64_t end_us;
    uint64_t allocated_bytes;   /* maximum of leased memory */
    uint64_t used_bytes;
    uint64_t allocated_byte_us; /* integral over time: bytes times microseconds */
    uint64_t used_byte_us;
    uint64_t cpu_ns;            /* processor time of the workers of a compute component */
} sublet_component_use;

SUBLET_STATIC_ASSERT(sizeof(sublet_component_use) == 72, "the library is built for 64-bit machines");

/* Data that the functions of a compute component moved to and from a memory component, in all of its attempts. Functions that
 * fail are not counted. */
typedef struct sublet_channel_use {
    const char *component;  /* name of the compute component */
    const char *memory;     /* name of the memory component; "a~b" for messages from a to b; "c/swap" for the swap space of c */
    uint64_t reads;         /* number of reads, of received messages, or of pages that were swapped in */
    uint64_t read_bytes;
    uint64_t writes;        /* number of writes, of sent messages, or of pages that were swapped out */
    uint64_t written_bytes;
    uint64_t maps;          /* number of requests for addresses of mapped memory */
    uint64_t mapped_bytes;  /* bytes whose addresses were returned; accesses through an address are not counted */
} sublet_channel_use;

SUBLET_STATIC_ASSERT(sizeof(sublet_channel_use) == 64, "the library is built for 64-bit machines");

/* Deploys a graph: a JSON document of `len_bytes` bytes. `options` may be NULL. Errors: SUBLET_INVALID_GRAPH (the message
 * lists all errors), SUBLET_UNKNOWN_PACKAGE, SUBLET_UNKNOWN_FUNCTION, SUBLET_INVALID_ARGUMENT (fabric),
 * SUBLET_PERMISSION_DENIED, SUBLET_MANAGER_UNREACHABLE. */
SUBLET_API sublet_status sublet_application_deploy(const sublet_invoker *invoker, const char *document, size_t len_bytes,
                                                   const sublet_run_options *options, sublet_application **application);

/* Opens a graph that was deployed, by its name or digest. Errors: SUBLET_UNKNOWN_GRAPH, and those of sublet_application_deploy. */
SUBLET_API sublet_status sublet_application_open(const sublet_invoker *invoker, const char *name,
                                                 const sublet_run_options *options, sublet_application **application);

/* Returns the digest of the document, by which the graph can be opened; valid until the application is freed. */
SUBLET_API sublet_status sublet_application_digest(const sublet_application *application, const char **digest);

/* Runs the application with this input for its entry. `news`, which may be NULL, is called for events, with `user`.
 *
 * Errors: the first component that fails, with its name, as SUBLET_FUNCTION_FAILED; a component that is lost too often, as
 * SUBLET_WORKER_DIED; SUBLET_STORE_FULL and other errors of the managers if the run cannot be recorded. */
SUBLET_API sublet_status sublet_application_run(const sublet_application *application, const void *input, size_t input_bytes,
                                                sublet_news_callback news, void *user, sublet_outcome **outcome);

/* Continues a run whose program is gone, from its records. Waits for some seconds if that program may still be there. Errors:
 * SUBLET_UNKNOWN_RUN if there is no unfinished run of this identifier, SUBLET_RUN_TAKEN if another process drives it,
 * SUBLET_RUN_CANCELLED if it was cancelled, SUBLET_WORKER_DIED if a component with external effects had started, and its
 * memory or its outcome is lost, and those of sublet_application_run. */
SUBLET_API sublet_status sublet_application_resume(const sublet_application *application, const char *run,
                                                   sublet_news_callback news, void *user, sublet_outcome **outcome);

/* Begins a run that a runner drives (`sublet up`, `sublet runner`), and returns when it is stored: it needs this program no more.
 * The application's keep-alive and hot timeout do not apply to it. Errors: SUBLET_INVALID_ARGUMENT if the graph has a result in
 * memory, SUBLET_STORE_FULL, SUBLET_QUOTA_EXCEEDED, SUBLET_MANAGER_UNREACHABLE. */
SUBLET_API sublet_status sublet_application_detach(const sublet_application *application, const void *input, size_t input_bytes,
                                                   sublet_run **run);

/* Opens a run of any program of the tenant by its identifier. That there is such a run shows when it is used. */
SUBLET_API sublet_status sublet_run_open(const sublet_invoker *invoker, const char *id, sublet_run **run);

/* Returns the run's identifier, 32 hexadecimal digits, valid until the handle is freed. */
SUBLET_API sublet_status sublet_run_id(const sublet_run *run, const char **id);

/* Waits until the run has ended, for at most `timeout_ns`; UINT64_MAX is no limit. Errors: that with which the run ended, as
 * SUBLET_FUNCTION_FAILED or SUBLET_RUN_CANCELLED; SUBLET_DEADLINE_EXCEEDED if it has not ended in time, and continues;
 * SUBLET_UNKNOWN_RUN; SUBLET_INVALID_ARGUMENT if it succeeded and was not detached: only its program has its outputs then. */
SUBLET_API sublet_status sublet_run_wait(const sublet_run *run, uint64_t timeout_ns, sublet_outcome **outcome);

/* Ends the run before it is done. A run that was cancelled before stays cancelled. Errors: SUBLET_UNKNOWN_RUN if there is no
 * such run, or it has ended. */
SUBLET_API sublet_status sublet_run_cancel(const sublet_run *run);

/* Frees the handle; the run continues. NULL is ignored. */
SUBLET_API void sublet_run_free(sublet_run *run);

/* Frees an application, and releases its idle workers. The graph stays deployed. NULL is ignored. */
SUBLET_API void sublet_application_free(sublet_application *application);

/* Returns the run's identifier, 32 hexadecimal digits, valid until the outcome is freed. */
SUBLET_API sublet_status sublet_outcome_run(const sublet_outcome *outcome, const char **run);

/* Writes the outputs of the components that trigger no other, instance by instance, at most `capacity`, and their total number
 * to `count`. Their pointers are valid until the outcome is freed. `outputs` may be NULL if `capacity` is 0. */
SUBLET_API sublet_status sublet_outcome_outputs(const sublet_outcome *outcome, sublet_output *outputs, size_t capacity,
                                                size_t *count);

/* Writes the resources of each component, in the same way. */
SUBLET_API sublet_status sublet_outcome_components(const sublet_outcome *outcome, sublet_component_use *components,
                                                   size_t capacity, size_t *count);

/* Writes the data that each compute component moved, for each memory component and each message edge, in the same way. */
SUBLET_API sublet_status sublet_outcome_channels(const sublet_outcome *outcome, sublet_channel_use *channels, size_t capacity,
                                                 size_t *count);

/* Returns the name and the length of the memory component that the graph declares as the result; NULL and 0 without one, or
 * if nothing has accessed it. The name is valid until the outcome is freed. */
SUBLET_API sublet_status sublet_outcome_result(const sublet_outcome *outcome, const char **component, uint64_t *len_bytes);

/* Copies bytes of the result, which may be on other machines. Errors: SUBLET_INVALID_ARGUMENT beyond its end or without a
 * result; the reason why it has ended, such as SUBLET_LEASE_EXPIRED after the run's lease timeout. */
SUBLET_API sublet_status sublet_outcome_read(const sublet_outcome *outcome, uint64_t offset, void *into, size_t len_bytes);

/* Frees an outcome, and gives the memory of its result back. NULL is ignored. */
SUBLET_API void sublet_outcome_free(sublet_outcome *outcome);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* SUBLET_GRAPH_H */
