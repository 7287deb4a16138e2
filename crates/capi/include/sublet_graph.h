/* sublet_graph.h: graphs of components from C: deployed, and run on leased cores and memory.
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
 * A graph is a document of compute components, which are functions of deployed packages, of memory components, and of edges that
 * say who triggers whom, accesses what, and exchanges messages (docs/graphs.md). Functions of components are written with
 * sublet_function.h.
 *
 * The rules of sublet.h hold, and these:
 *
 * - Any number of threads may run an application at once.
 * - A run is driven by the thread that called for it, until it returns; nothing of the run is held then. If the program ends before,
 *   sublet_application_resume goes on, on whichever machine.
 */
#ifndef SUBLET_GRAPH_H
#define SUBLET_GRAPH_H

#include "sublet.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A deployed graph. It may outlive the invoker that deployed or opened it. */
typedef struct sublet_application sublet_application;

/* What a run has come to. */
typedef struct sublet_outcome sublet_outcome;

/* How an application is run; begin with sublet_run_options_default. */
typedef struct sublet_run_options {
    uint32_t size_bytes;       /* of this structure */
    uint32_t retries;          /* how often a component may be lost and begin again; 3 */
    uint64_t patience_ns;      /* how long a component waits for cores or memory; 30 s */
    uint64_t prewarm_ns;       /* the environments of the next components are made ready so long after those before them have
                                  begun; SUBLET_NO_PREWARM: when they begin; 0: at once */
    uint64_t keep_alive_ns;    /* how long workers are kept for the application's next run; 0 */
    uint64_t hot_timeout_ns;   /* how long workers poll after a call; 0 */
    uint64_t lease_timeout_ns; /* leases end by themselves after so long, in steps of a millisecond; an hour */
    const char *fabric;        /* what carries calls, and the bytes of memory to and from other machines, as in sublet_allocation;
                                  NULL: the best */
} sublet_run_options;

#define SUBLET_NO_PREWARM UINT64_MAX

SUBLET_STATIC_ASSERT(sizeof(sublet_run_options) == 56, "the library is built for 64-bit machines");

/* The values above. */
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

/* What happens to a component. New events may be added. */
typedef enum sublet_event {
    SUBLET_BEGAN = 1, /* for the first or a further time */
    SUBLET_ENDED = 2,
    SUBLET_WAITS = 3, /* it is to begin, and waits for what it needs */
    SUBLET_LOST = 4   /* what executed it, or held its bytes, is gone */
} sublet_event;

/* That it does. The strings are valid during the callback. */
typedef struct sublet_news {
    uint32_t event;        /* a sublet_event */
    uint32_t attempt;      /* of SUBLET_BEGAN: from 1 */
    const char *component; /* its name */
    uint64_t took_ns;      /* of SUBLET_ENDED: since its instances were called */
    sublet_status status;  /* of SUBLET_WAITS and SUBLET_LOST: why, */
    const char *message;   /* and in words; otherwise NULL */
} sublet_news;

SUBLET_STATIC_ASSERT(sizeof(sublet_news) == 40, "the library is built for 64-bit machines");

/* Is told, on the thread that runs the application. It returns 0; anything else gives the run up, which then ends with
 * SUBLET_LEASE_ENDED and cannot be resumed. It must not throw. */
typedef int (*sublet_news_callback)(const sublet_news *news, void *user);

/* What an instance of a component has returned. */
typedef struct sublet_output {
    const char *component; /* its name */
    const void *data;
    size_t len_bytes;
    uint32_t instance;     /* from 0 */
} sublet_output;

SUBLET_STATIC_ASSERT(sizeof(sublet_output) == 32, "the library is built for 64-bit machines");

/* What a component had. Times count from the beginning of the run. */
typedef struct sublet_component_use {
    const char *component;      /* its name */
    uint32_t attempts;          /* how often it began */
    uint32_t instances;         /* of a compute component */
    uint64_t begin_us;
    uint64_t end_us;
    uint64_t allocated_bytes;   /* of memory, at most */
    uint64_t used_bytes;
    uint64_t allocated_byte_us; /* the same over time: bytes times microseconds */
    uint64_t used_byte_us;
} sublet_component_use;

SUBLET_STATIC_ASSERT(sizeof(sublet_component_use) == 64, "the library is built for 64-bit machines");

/* Deploys a graph: a document of so many bytes of JSON. `options` may be NULL. Errors: SUBLET_INVALID_GRAPH (the message says all
 * that is wrong with it), SUBLET_UNKNOWN_PACKAGE, SUBLET_UNKNOWN_FUNCTION, SUBLET_INVALID_ARGUMENT (fabric),
 * SUBLET_PERMISSION_DENIED, SUBLET_MANAGER_UNREACHABLE. */
SUBLET_API sublet_status sublet_application_deploy(const sublet_invoker *invoker, const char *document, size_t len_bytes,
                                                   const sublet_run_options *options, sublet_application **application);

/* Opens a graph that was deployed, by its name or digest. Errors: SUBLET_UNKNOWN_GRAPH, and as above. */
SUBLET_API sublet_status sublet_application_open(const sublet_invoker *invoker, const char *name,
                                                 const sublet_run_options *options, sublet_application **application);

/* The digest of its document, by which it can be opened: valid until the application is freed. */
SUBLET_API sublet_status sublet_application_digest(const sublet_application *application, const char **digest);

/* Runs it, with this input of its entry. `news`, which may be NULL, is told what happens, with `user`.
 *
 * Errors: that of the first component that fails, with its name, as SUBLET_FUNCTION_FAILED; of one that is lost too often, as
 * SUBLET_WORKER_DIED; SUBLET_STORE_FULL and others of the managers if something cannot be recorded. */
SUBLET_API sublet_status sublet_application_run(const sublet_application *application, const void *input, size_t input_bytes,
                                                sublet_news_callback news, void *user, sublet_outcome **outcome);

/* Goes on with a run whose program is gone, from what it has recorded. Nobody else may do so at the same time. Errors:
 * SUBLET_UNKNOWN_RUN if there is none that has not ended, SUBLET_WORKER_DIED if a component with external effects had begun whose
 * memory is lost, and as for sublet_application_run. */
SUBLET_API sublet_status sublet_application_resume(const sublet_application *application, const char *run,
                                                   sublet_news_callback news, void *user, sublet_outcome **outcome);

/* Frees an application, and gives workers back that it has kept. It stays deployed. NULL is ignored. */
SUBLET_API void sublet_application_free(sublet_application *application);

/* The run's identifier, 32 hexadecimal digits: valid until the outcome is freed. */
SUBLET_API sublet_status sublet_outcome_run(const sublet_outcome *outcome, const char **run);

/* What the components have returned that trigger no other, instance by instance: at most `capacity` of them, and how many there
 * are. What they point to is valid until the outcome is freed. `outputs` may be NULL if `capacity` is 0. */
SUBLET_API sublet_status sublet_outcome_outputs(const sublet_outcome *outcome, sublet_output *outputs, size_t capacity,
                                                size_t *count);

/* What each component had, in the same way. */
SUBLET_API sublet_status sublet_outcome_components(const sublet_outcome *outcome, sublet_component_use *components,
                                                   size_t capacity, size_t *count);

/* Frees an outcome. NULL is ignored. */
SUBLET_API void sublet_outcome_free(sublet_outcome *outcome);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* SUBLET_GRAPH_H */
