/* The C interface against a running Sublet: calls PACKAGE, where that is the shared object of functions.c. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <sublet.h>

#include "check.h"

#define MS UINT64_C(1000000)
#define CALLS_IN_FLIGHT 1024 /* most of one worker */

unsigned long count_allocations(void);

static const char *package;

/* An invoker with a lease. */
static sublet_invoker *leased(uint64_t hot_ns) {
    sublet_invoker *invoker = NULL;
    CHECK_OK(sublet_invoker_connect(NULL, &invoker));
    sublet_allocation allocation = sublet_allocation_default(package);
    allocation.hot_ns = hot_ns;
    CHECK_OK(sublet_invoker_allocate(invoker, &allocation));
    return invoker;
}

static sublet_function find(const sublet_invoker *invoker, const char *name) {
    sublet_function function;
    CHECK_OK(sublet_invoker_function(invoker, name, &function));
    return function;
}

static sublet_status submit(const sublet_invoker *invoker, const char *name, const void *input, size_t input_bytes,
                            void *output, size_t output_bytes, sublet_invocation *invocation) {
    sublet_call call = {.input = input,
                        .input_bytes = input_bytes,
                        .output = output,
                        .output_bytes = output_bytes,
                        .function = find(invoker, name)};
    return sublet_invoker_submit(invoker, &call, invocation);
}

/* Submits a call and waits for its end. */
static sublet_status call(const sublet_invoker *invoker, const char *name, const void *input, size_t input_bytes,
                          void *output, size_t output_bytes, sublet_completion *done) {
    sublet_invocation invocation;
    sublet_status status = submit(invoker, name, input, input_bytes, output, output_bytes, &invocation);
    return status == SUBLET_OK ? sublet_invocation_wait(&invocation, done) : status;
}

static void start_nap(const sublet_invoker *invoker, const uint32_t *ms, sublet_invocation *invocation) {
    CHECK_OK(submit(invoker, "nap", ms, sizeof *ms, NULL, 0, invocation));
}

static void check_alive(const sublet_invoker *invoker) {
    char output[4] = "";
    CHECK_OK(call(invoker, "echo", "abc", 4, output, 4, NULL));
    CHECK(strcmp(output, "abc") == 0);
}

static void library_and_header_have_one_version(void) { CHECK(strcmp(sublet_version(), SUBLET_VERSION) == 0); }

static void no_manager_is_an_error_that_names_the_address(void) {
    sublet_invoker *invoker = NULL;
    CHECK_STATUS(sublet_invoker_connect("unix:/nowhere/manager.sock", &invoker), SUBLET_MANAGER_UNREACHABLE);
    CHECK(invoker == NULL);
    CHECK(strstr(sublet_error_message(), "/nowhere/manager.sock") != NULL);
    CHECK_STATUS(sublet_invoker_connect("homing pigeon", &invoker), SUBLET_INVALID_ARGUMENT);
    CHECK_STATUS(sublet_invoker_connect(NULL, NULL), SUBLET_INVALID_ARGUMENT);
}

static void without_a_lease_there_is_nothing_to_call(void) {
    sublet_invoker *invoker;
    sublet_function function;
    sublet_lease lease;
    sublet_bill bill = {.calls = 1};
    CHECK_OK(sublet_invoker_connect(NULL, &invoker));
    CHECK_STATUS(sublet_invoker_function(invoker, "echo", &function), SUBLET_NOT_ALLOCATED);
    CHECK_STATUS(sublet_invoker_lease(invoker, &lease), SUBLET_NOT_ALLOCATED);
    CHECK_OK(sublet_invoker_deallocate(invoker, &bill));
    CHECK(bill.calls == 0);
    sublet_invoker_free(invoker);
    sublet_invoker_free(NULL);
}

/* Counts the steps of a start; a quick one has none. */
static void note_step(const char *step, void *user) {
    if (strlen(step) > 0) ++*(unsigned *)user;
}

static void what_cannot_be_leased_is_refused(void) {
    unsigned steps = 0;
    sublet_invoker *invoker;
    CHECK_OK(sublet_invoker_connect(NULL, &invoker));
    sublet_allocation allocation = sublet_allocation_default("nobody-deployed-this");
    CHECK_STATUS(sublet_invoker_allocate(invoker, &allocation), SUBLET_UNKNOWN_PACKAGE);
    allocation = sublet_allocation_default("./no-such-file.so");
    CHECK_STATUS(sublet_invoker_allocate(invoker, &allocation), SUBLET_INVALID_ARGUMENT);
    allocation = sublet_allocation_default(package);
    allocation.cores = 1000;
    CHECK_STATUS(sublet_invoker_allocate(invoker, &allocation), SUBLET_INSUFFICIENT_RESOURCES);
    allocation.cores = 1;
    allocation.memory_bytes = UINT64_C(1) << 50;
    CHECK_STATUS(sublet_invoker_allocate(invoker, &allocation), SUBLET_INSUFFICIENT_RESOURCES);
    allocation.size_bytes = 12;
    CHECK_STATUS(sublet_invoker_allocate(invoker, &allocation), SUBLET_INVALID_ARGUMENT);
    allocation = sublet_allocation_default(NULL);
    CHECK_STATUS(sublet_invoker_allocate(invoker, &allocation), SUBLET_INVALID_ARGUMENT);
    allocation = sublet_allocation_default(package);
    allocation.fabric = "smoke";
    CHECK_STATUS(sublet_invoker_allocate(invoker, &allocation), SUBLET_INVALID_ARGUMENT);
    allocation.pool = "puddle";
    allocation.fabric = NULL;
    CHECK_STATUS(sublet_invoker_allocate(invoker, &allocation), SUBLET_INVALID_ARGUMENT);
    CHECK(strstr(sublet_error_message(), "puddle") != NULL);
    allocation.pool = NULL;
    allocation.isolation = "walls";
    CHECK_STATUS(sublet_invoker_allocate(invoker, &allocation), SUBLET_INVALID_ARGUMENT);
    CHECK(strstr(sublet_error_message(), "walls") != NULL);
    allocation.isolation = "weak";
    CHECK_STATUS(sublet_invoker_allocate(invoker, &allocation), SUBLET_INSUFFICIENT_RESOURCES);
    CHECK(strstr(sublet_error_message(), "weak") != NULL);
    allocation.isolation = NULL;
    allocation.fabric = "ofi:smoke";
    CHECK_STATUS(sublet_invoker_allocate(invoker, &allocation), SUBLET_FABRIC_UNAVAILABLE);
    allocation.fabric = "tcp";
    allocation.interface = "no-such-link";
    CHECK_STATUS(sublet_invoker_allocate(invoker, &allocation), SUBLET_FABRIC_UNAVAILABLE);
    CHECK(strstr(sublet_error_message(), "no-such-link") != NULL);
    allocation = sublet_allocation_default(package);
    allocation.start_timeout_ns = UINT64_C(60000000000);
    allocation.on_step = note_step;
    allocation.step_user = &steps;
    CHECK_OK(sublet_invoker_allocate(invoker, &allocation));
    CHECK_STATUS(sublet_invoker_allocate(invoker, &allocation), SUBLET_ALREADY_ALLOCATED);
    sublet_invoker_free(invoker);
}

static void a_lease_says_what_it_is_and_what_it_has_cost(void) {
    sublet_invoker *invoker = leased(SUBLET_ALWAYS_WARM);
    sublet_lease lease;
    CHECK_OK(sublet_invoker_lease(invoker, &lease));
    CHECK(strlen(lease.id) == 32 && strlen(lease.node) > 0 && strcmp(lease.package, "libfunctions") == 0);
    /* The tenant of a client without a token is its Unix user. */
    CHECK(strncmp(lease.owner, "uid:", 4) == 0);
    CHECK(strcmp(lease.isolation, "process") == 0);
    CHECK(lease.workers == 1 && lease.functions == 8 && lease.memory_bytes > 0 && lease.start_ns > 0);
    CHECK(lease.expires_unix_ms > lease.granted_unix_ms);
    check_alive(invoker);
    CHECK_STATUS(call(invoker, "refuse", NULL, 0, NULL, 0, NULL), SUBLET_FUNCTION_FAILED);
    sublet_bill bill;
    CHECK_OK(sublet_invoker_deallocate(invoker, &bill));
    CHECK(bill.calls == 2 && bill.failed_calls == 1 && bill.allocated_ns > 0 && bill.executing_ns > 0);
    CHECK(bill.total_nano == bill.allocation_nano + bill.compute_nano + bill.polling_nano);
    sublet_invoker_free(invoker);
}

static void a_call_works_in_buffers_and_outside_of_them(void) {
    sublet_invoker *invoker = leased(SUBLET_ALWAYS_WARM);
    enum { COUNT = 100000 }; /* more than a slot takes */
    void *in, *out;
    sublet_completion done;
    CHECK_OK(sublet_buffer_allocate(invoker, COUNT * sizeof(double), &in));
    CHECK_OK(sublet_buffer_allocate(invoker, COUNT * sizeof(double), &out));
    CHECK((uintptr_t)in % 4096 == 0 && (uintptr_t)out % 4096 == 0);
    double *input = in, *output = out;
    for (int i = 0; i < COUNT; i++)
        input[i] = i;
    CHECK_OK(call(invoker, "task", input, COUNT * sizeof(double), output, COUNT * sizeof(double), &done));
    CHECK(done.output_bytes == COUNT * sizeof(double));
    for (int i = 0; i < COUNT; i++)
        CHECK(output[i] == 2.0 * i);
    double few[3] = {1.0, 2.0, 3.0}, doubled[3];
    CHECK_OK(call(invoker, "libfunctions/task", few, sizeof few, doubled, sizeof doubled, &done));
    CHECK(done.output_bytes == sizeof few && doubled[0] == 2.0 && doubled[2] == 6.0);
    CHECK_OK(call(invoker, "echo", NULL, 0, NULL, 0, &done));
    CHECK(done.output_bytes == 0);
    double *large = calloc(COUNT, sizeof(double));
    CHECK_STATUS(call(invoker, "task", large, COUNT * sizeof(double), output, COUNT * sizeof(double), &done),
                 SUBLET_INPUT_TOO_LARGE);
    free(large);
    CHECK_OK(sublet_buffer_free(in));
    CHECK_OK(sublet_buffer_free(out));
    sublet_invoker_free(invoker);
}

static void buffers_are_checked_and_outlive_their_invoker(void) {
    sublet_invoker *invoker;
    void *data = NULL, *none = NULL;
    CHECK_OK(sublet_invoker_connect(NULL, &invoker));
    CHECK_STATUS(sublet_buffer_allocate(invoker, (size_t)UINT32_MAX + 1, &none), SUBLET_INVALID_ARGUMENT);
    CHECK(none == NULL);
    CHECK_OK(sublet_buffer_allocate(invoker, 0, &data));
    CHECK(data != NULL);
    CHECK_OK(sublet_buffer_free(data));
    CHECK_OK(sublet_buffer_allocate(invoker, 100, &data));
    sublet_invoker_free(invoker);
    memset(data, 1, 100);
    CHECK_STATUS(sublet_buffer_free((char *)data + 8), SUBLET_INVALID_ARGUMENT);
    CHECK_OK(sublet_buffer_free(data));
    CHECK_STATUS(sublet_buffer_free(data), SUBLET_INVALID_ARGUMENT);
    CHECK_OK(sublet_buffer_free(NULL));
}

static void calls_that_make_no_sense_are_refused(void) {
    sublet_invoker *invoker = leased(SUBLET_ALWAYS_WARM);
    sublet_function function;
    sublet_invocation invocation = SUBLET_INVOCATION_INIT;
    CHECK_STATUS(sublet_invoker_function(invoker, "nonsense", &function), SUBLET_UNKNOWN_FUNCTION);
    CHECK(strstr(sublet_error_message(), "nonsense") != NULL && strstr(sublet_error_message(), "echo") != NULL);
    CHECK_STATUS(sublet_invoker_function(invoker, "\xff", &function), SUBLET_INVALID_ARGUMENT);
    CHECK_STATUS(call(invoker, "echo", NULL, 1, NULL, 0, NULL), SUBLET_INVALID_ARGUMENT);
    CHECK_STATUS(call(invoker, "echo", "a", 1, NULL, 1, NULL), SUBLET_INVALID_ARGUMENT);
    CHECK_STATUS(call(invoker, "echo", "a", (size_t)1 << 33, NULL, 0, NULL), SUBLET_INVALID_ARGUMENT);
    sublet_call_options options = {.worker = 7};
    sublet_call call = {.options = &options, .function = find(invoker, "echo")};
    CHECK_STATUS(sublet_invoker_submit(invoker, &call, &invocation), SUBLET_INVALID_ARGUMENT);
    CHECK_STATUS(sublet_invocation_wait(&invocation, NULL), SUBLET_INVALID_ARGUMENT);
    sublet_invocation_close(&invocation);
    check_alive(invoker);
    sublet_invoker_free(invoker);
}

static void a_function_sees_its_capacity_and_its_errors_come_back(void) {
    sublet_invoker *invoker = leased(SUBLET_ALWAYS_WARM);
    uint32_t output[3] = {0};
    CHECK_OK(call(invoker, "capacity", NULL, 0, output, sizeof output, NULL));
    CHECK(output[0] == sizeof output);
    CHECK_STATUS(call(invoker, "refuse", NULL, 0, NULL, 0, NULL), SUBLET_FUNCTION_FAILED);
    CHECK(strstr(sublet_error_message(), "I would rather not") != NULL);
    CHECK(strcmp(sublet_status_name(SUBLET_FUNCTION_FAILED), "function_failed") == 0);
    CHECK_STATUS(call(invoker, "boast", NULL, 0, output, sizeof output, NULL), SUBLET_OUTPUT_TOO_LARGE);
    sublet_invoker_free(invoker);
}

static void a_crash_ends_its_call_and_not_the_lease(void) {
    sublet_invoker *invoker = leased(SUBLET_ALWAYS_WARM);
    CHECK_STATUS(call(invoker, "crash", NULL, 0, NULL, 0, NULL), SUBLET_WORKER_DIED);
    check_alive(invoker);
    sublet_invoker_free(invoker);
}

static void waiting_for_a_time_leaves_the_call_alone(void) {
    sublet_invoker *invoker = leased(SUBLET_ALWAYS_WARM);
    sublet_invocation invocation;
    void *buffer = NULL;
    CHECK_OK(sublet_buffer_allocate(invoker, sizeof(uint32_t), &buffer));
    volatile uint32_t *told = buffer;
    *told = 0;
    bool ended = true;
    CHECK_OK(submit(invoker, "hold", buffer, sizeof *told, NULL, 0, &invocation));
    CHECK_OK(sublet_invocation_is_ready(&invocation, &ended));
    CHECK(!ended);
    ended = true;
    CHECK_OK(sublet_invocation_wait_timeout(&invocation, 10 * MS, &ended));
    CHECK(!ended);
    *told = 1;
    CHECK_OK(sublet_invocation_wait_timeout(&invocation, UINT64_MAX, &ended));
    CHECK(ended);
    ended = false;
    CHECK_OK(sublet_invocation_is_ready(&invocation, &ended));
    CHECK(ended);
    sublet_completion done;
    CHECK_OK(sublet_invocation_wait(&invocation, &done));
    CHECK(done.executing_ns == 0);
    CHECK_STATUS(sublet_invocation_wait(&invocation, &done), SUBLET_INVALID_ARGUMENT);
    CHECK_OK(sublet_buffer_free(buffer));
    sublet_invoker_free(invoker);
}

static void a_timed_call_tells_how_long_it_took(void) {
    sublet_invoker *invoker = leased(SUBLET_ALWAYS_WARM);
    sublet_invocation invocation;
    sublet_completion done;
    const uint32_t ms = 50;
    const sublet_call_options options = {.worker = SUBLET_ANY_WORKER, .timed = 1};
    sublet_call call = {.input = &ms, .input_bytes = sizeof ms, .options = &options, .function = find(invoker, "nap")};
    CHECK_OK(sublet_invoker_submit(invoker, &call, &invocation));
    CHECK_OK(sublet_invocation_wait(&invocation, &done));
    CHECK(done.executing_ns >= 49 * MS);
    sublet_invoker_free(invoker);
}

static void a_deadline_ends_the_call(void) {
    sublet_invoker *invoker = leased(SUBLET_ALWAYS_WARM);
    sublet_invocation invocation;
    const uint32_t ms = 60000;
    start_nap(invoker, &ms, &invocation);
    CHECK_STATUS(sublet_invocation_wait_deadline(&invocation, 20 * MS, NULL), SUBLET_DEADLINE_EXCEEDED);
    check_alive(invoker);
    sublet_call_options options = {.worker = SUBLET_ANY_WORKER, .timeout_ns = 20 * MS};
    sublet_call call = {.input = &ms, .input_bytes = sizeof ms, .options = &options, .function = find(invoker, "nap")};
    CHECK_OK(sublet_invoker_submit(invoker, &call, &invocation));
    CHECK_STATUS(sublet_invocation_wait(&invocation, NULL), SUBLET_DEADLINE_EXCEEDED);
    const uint32_t short_ms = 1;
    start_nap(invoker, &short_ms, &invocation);
    CHECK_OK(sublet_invocation_wait_deadline(&invocation, UINT64_MAX, NULL));
    sublet_invoker_free(invoker);
}

static void access_is_said_by_the_environment_or_the_program(void) {
    sublet_access access = sublet_access_default();
    sublet_invoker *invoker;
    CHECK_OK(sublet_invoker_connect_with(&access, &invoker));
    sublet_invoker_free(invoker);
    access.token_file = "/nonexistent";
    CHECK_STATUS(sublet_invoker_connect_with(&access, &invoker), SUBLET_INVALID_ARGUMENT);
    access = sublet_access_default();
    access.managers = "https://localhost:1";
    CHECK_STATUS(sublet_invoker_connect_with(&access, &invoker), SUBLET_INVALID_ARGUMENT);
    CHECK(strstr(sublet_error_message(), "ca.pem") != NULL);
    access.size_bytes = 8;
    CHECK_STATUS(sublet_invoker_connect_with(&access, &invoker), SUBLET_INVALID_ARGUMENT);
    CHECK_STATUS(sublet_invoker_connect_with(NULL, &invoker), SUBLET_INVALID_ARGUMENT);
}

static void an_invoker_grows_by_workers(void) {
    sublet_invoker *invoker = leased(SUBLET_ALWAYS_WARM);
    sublet_lease lease;
    CHECK_OK(sublet_invoker_grow(invoker, 1));
    CHECK_OK(sublet_invoker_lease(invoker, &lease));
    CHECK(lease.workers == 2);
    const sublet_call_options options = {.worker = 1};
    char x = 'x', y = 0;
    sublet_call call = {&x, 1, &y, 1, &options, find(invoker, "echo")};
    sublet_invocation invocation;
    CHECK_OK(sublet_invoker_submit(invoker, &call, &invocation));
    CHECK_OK(sublet_invocation_wait(&invocation, NULL));
    CHECK(y == 'x');
    sublet_bill bill;
    CHECK_OK(sublet_invoker_deallocate(invoker, &bill));
    CHECK(bill.calls == 1);
    CHECK_STATUS(sublet_invoker_grow(invoker, 1), SUBLET_NOT_ALLOCATED);
    sublet_invoker_free(invoker);
}

static void without_an_announced_end_there_is_no_notice(void) {
    sublet_invoker *invoker = leased(SUBLET_ALWAYS_WARM);
    sublet_notice notice;
    size_t count = 9;
    CHECK_OK(sublet_invoker_notices(invoker, &notice, 1, &count));
    CHECK(count == 0);
    CHECK_OK(sublet_invoker_notices(invoker, NULL, 0, &count));
    CHECK_STATUS(sublet_invoker_notices(invoker, NULL, 1, &count), SUBLET_INVALID_ARGUMENT);
    CHECK_STATUS(sublet_invoker_notices(invoker, &notice, 1, NULL), SUBLET_INVALID_ARGUMENT);
    CHECK_OK(sublet_invoker_deallocate(invoker, NULL));
    CHECK_STATUS(sublet_invoker_renew(invoker, 1000 * MS), SUBLET_NOT_ALLOCATED);
    sublet_invoker_free(invoker);
}

static void a_call_is_repeated_as_often_as_it_may_be(void) {
    sublet_invoker *invoker = leased(SUBLET_ALWAYS_WARM);
    sublet_invocation invocation;
    const sublet_call_options options = {.worker = SUBLET_ANY_WORKER, .retries = 2};
    sublet_call call = {.options = &options, .function = find(invoker, "crash")};
    CHECK_OK(sublet_invoker_submit(invoker, &call, &invocation));
    CHECK_STATUS(sublet_invocation_wait(&invocation, NULL), SUBLET_WORKER_DIED);
    check_alive(invoker);
    sublet_invoker_free(invoker);
}

static void closing_waits_and_may_be_repeated(void) {
    sublet_invoker *invoker = leased(SUBLET_ALWAYS_WARM);
    sublet_invocation invocation;
    const uint32_t ms = 100;
    struct timespec before, after;
    start_nap(invoker, &ms, &invocation);
    clock_gettime(CLOCK_MONOTONIC, &before);
    sublet_invocation_close(&invocation);
    clock_gettime(CLOCK_MONOTONIC, &after);
    CHECK((after.tv_sec - before.tv_sec) * 1000 + (after.tv_nsec - before.tv_nsec) / 1000000 >= 50);
    sublet_invocation_close(&invocation);
    sublet_invocation_close(NULL);
    sublet_invoker_free(invoker);
}

static void a_moved_invocation_is_the_same_call(void) {
    sublet_invoker *invoker = leased(SUBLET_ALWAYS_WARM);
    sublet_invocation invocation, moved;
    const uint32_t ms = 20;
    start_nap(invoker, &ms, &invocation);
    memcpy(&moved, &invocation, sizeof moved);
    memset(&invocation, 0xff, sizeof invocation);
    CHECK_OK(sublet_invocation_wait(&moved, NULL));
    sublet_invoker_free(invoker);
}

static void giving_the_lease_back_ends_its_calls(void) {
    sublet_invoker *invoker = leased(SUBLET_ALWAYS_WARM);
    sublet_invocation invocation;
    const uint32_t ms = 60000;
    start_nap(invoker, &ms, &invocation);
    CHECK_OK(sublet_invoker_deallocate(invoker, NULL));
    CHECK_STATUS(sublet_invocation_wait(&invocation, NULL), SUBLET_LEASE_ENDED);
    sublet_invoker_free(invoker);
}

/* Arguments with which a callback was called. */
typedef struct told {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int times;
    sublet_status status;
    pthread_t thread;
} told;

static void tell(sublet_invocation *invocation, void *user) {
    told *told = user;
    sublet_status status = sublet_invocation_wait(invocation, NULL);
    pthread_mutex_lock(&told->lock);
    told->times++;
    told->status = status;
    told->thread = pthread_self();
    pthread_cond_signal(&told->changed);
    pthread_mutex_unlock(&told->lock);
}

static void wait_until_told(told *told) {
    pthread_mutex_lock(&told->lock);
    while (told->times == 0)
        pthread_cond_wait(&told->changed, &told->lock);
    pthread_mutex_unlock(&told->lock);
}

#define TOLD_INIT {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, SUBLET_INTERNAL, 0}

static void a_callback_is_called_once_when_the_call_has_ended(void) {
    sublet_invoker *invoker = leased(SUBLET_ALWAYS_WARM);
    sublet_invocation invocation;
    const uint32_t ms = 50;
    told told = TOLD_INIT;
    start_nap(invoker, &ms, &invocation);
    CHECK_STATUS(sublet_invocation_on_complete(&invocation, NULL, NULL), SUBLET_INVALID_ARGUMENT);
    CHECK_OK(sublet_invocation_on_complete(&invocation, tell, &told));
    wait_until_told(&told);
    CHECK(told.times == 1 && told.status == SUBLET_OK && !pthread_equal(told.thread, pthread_self()));
    CHECK_STATUS(sublet_invocation_on_complete(&invocation, tell, &told), SUBLET_INVALID_ARGUMENT);
    check_alive(invoker);
    CHECK(told.times == 1);
    sublet_invoker_free(invoker);
}

static void a_callback_is_called_for_every_end(void) {
    sublet_invoker *invoker = leased(SUBLET_ALWAYS_WARM);
    sublet_invocation invocation;
    const uint32_t ms = 60000;
    bool ended;
    told told_ended = TOLD_INIT, told_died = TOLD_INIT, told_given_back = TOLD_INIT;
    CHECK_OK(submit(invoker, "echo", NULL, 0, NULL, 0, &invocation));
    CHECK_OK(sublet_invocation_wait_timeout(&invocation, UINT64_MAX, &ended));
    CHECK_OK(sublet_invocation_on_complete(&invocation, tell, &told_ended));
    CHECK(told_ended.times == 1 && pthread_equal(told_ended.thread, pthread_self()));
    CHECK_OK(submit(invoker, "crash", NULL, 0, NULL, 0, &invocation));
    CHECK_OK(sublet_invocation_on_complete(&invocation, tell, &told_died));
    wait_until_told(&told_died);
    CHECK_STATUS(told_died.status, SUBLET_WORKER_DIED);
    start_nap(invoker, &ms, &invocation);
    CHECK_OK(sublet_invocation_on_complete(&invocation, tell, &told_given_back));
    CHECK_OK(sublet_invoker_deallocate(invoker, NULL));
    wait_until_told(&told_given_back);
    CHECK_STATUS(told_given_back.status, SUBLET_LEASE_ENDED);
    sublet_invoker_free(invoker);
}

/* Callbacks race with the calls that they are for: each callback is called once. */
static void callbacks_of_quick_calls_are_never_lost(void) {
    enum { ROUNDS = 20000 };
    sublet_invoker *invoker = leased(SUBLET_ALWAYS_HOT);
    told told = TOLD_INIT;
    for (int round = 0; round < ROUNDS; round++) {
        sublet_invocation invocation;
        told.times = 0;
        CHECK_OK(submit(invoker, "echo", NULL, 0, NULL, 0, &invocation));
        for (volatile int delay = 0; delay < round % 500; delay++)
            ;
        CHECK_OK(sublet_invocation_on_complete(&invocation, tell, &told));
        wait_until_told(&told);
        CHECK(told.times == 1 && told.status == SUBLET_OK);
    }
    sublet_invoker_free(invoker);
}

static void uncollected_calls_have_a_bound(void) {
    static sublet_invocation invocations[CALLS_IN_FLIGHT + 1];
    sublet_invoker *invoker = leased(SUBLET_ALWAYS_WARM);
    for (int i = 0; i < CALLS_IN_FLIGHT; i++)
        CHECK_OK(submit(invoker, "echo", NULL, 0, NULL, 0, &invocations[i]));
    CHECK_STATUS(submit(invoker, "echo", NULL, 0, NULL, 0, &invocations[CALLS_IN_FLIGHT]), SUBLET_TOO_MANY_IN_FLIGHT);
    for (int i = 0; i < CALLS_IN_FLIGHT; i++)
        CHECK_OK(sublet_invocation_wait(&invocations[i], NULL));
    check_alive(invoker);
    sublet_invoker_free(invoker);
}

static void *call_often(void *user) {
    enum { ROUNDS = 2000 };
    const sublet_invoker *invoker = user;
    void *data;
    if (sublet_buffer_allocate(invoker, 2 * sizeof(double), &data) != SUBLET_OK)
        return "a buffer";
    double *numbers = data;
    for (int i = 0; i < ROUNDS; i++) {
        sublet_function function;
        sublet_invocation invocation;
        numbers[0] = i;
        if (sublet_invoker_function(invoker, "task", &function) != SUBLET_OK)
            return "a function";
        sublet_call call = {.input = &numbers[0], .input_bytes = sizeof(double), .output = &numbers[1],
                            .output_bytes = sizeof(double), .function = function};
        if (sublet_invoker_submit(invoker, &call, &invocation) != SUBLET_OK)
            return "a submission";
        if (sublet_invocation_wait(&invocation, NULL) != SUBLET_OK)
            return "a call";
        if (numbers[1] != 2.0 * i)
            return "a result";
    }
    return sublet_buffer_free(data) == SUBLET_OK ? NULL : "a free";
}

static void threads_share_an_invoker(void) {
    enum { THREADS = 4 };
    sublet_invoker *invoker = leased(SUBLET_ALWAYS_WARM);
    pthread_t threads[THREADS];
    const char *wrong = NULL;
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, call_often, invoker) == 0);
    for (int i = 0; i < THREADS; i++) {
        void *said;
        CHECK(pthread_join(threads[i], &said) == 0);
        wrong = said != NULL ? said : wrong;
    }
    CHECK(wrong == NULL);
    sublet_bill bill;
    CHECK_OK(sublet_invoker_deallocate(invoker, &bill));
    CHECK(bill.calls == THREADS * 2000 && bill.failed_calls == 0);
    sublet_invoker_free(invoker);
}

static void a_call_allocates_nothing(void) {
    enum { ROUNDS = 1000 };
    sublet_invoker *invoker = leased(SUBLET_ALWAYS_HOT);
    void *data;
    CHECK_OK(sublet_buffer_allocate(invoker, 128, &data));
    CHECK_OK(call(invoker, "echo", data, 64, (char *)data + 64, 64, NULL));
    const unsigned long before = count_allocations();
    CHECK(before > 0);
    for (int i = 0; i < ROUNDS; i++)
        CHECK_OK(call(invoker, "echo", data, 64, (char *)data + 64, 64, NULL));
    CHECK(count_allocations() == before);
    CHECK_OK(sublet_buffer_free(data));
    sublet_invoker_free(invoker);
}

#define TEST(name) {#name, name}

int main(int argc, char **argv) {
    static const test tests[] = {
        TEST(library_and_header_have_one_version),
        TEST(no_manager_is_an_error_that_names_the_address),
        TEST(without_a_lease_there_is_nothing_to_call),
        TEST(what_cannot_be_leased_is_refused),
        TEST(a_lease_says_what_it_is_and_what_it_has_cost),
        TEST(a_call_works_in_buffers_and_outside_of_them),
        TEST(buffers_are_checked_and_outlive_their_invoker),
        TEST(calls_that_make_no_sense_are_refused),
        TEST(a_function_sees_its_capacity_and_its_errors_come_back),
        TEST(a_crash_ends_its_call_and_not_the_lease),
        TEST(waiting_for_a_time_leaves_the_call_alone),
        TEST(a_timed_call_tells_how_long_it_took),
        TEST(a_deadline_ends_the_call),
        TEST(access_is_said_by_the_environment_or_the_program),
        TEST(an_invoker_grows_by_workers),
        TEST(without_an_announced_end_there_is_no_notice),
        TEST(a_call_is_repeated_as_often_as_it_may_be),
        TEST(closing_waits_and_may_be_repeated),
        TEST(a_moved_invocation_is_the_same_call),
        TEST(giving_the_lease_back_ends_its_calls),
        TEST(a_callback_is_called_once_when_the_call_has_ended),
        TEST(a_callback_is_called_for_every_end),
        TEST(callbacks_of_quick_calls_are_never_lost),
        TEST(uncollected_calls_have_a_bound),
        TEST(threads_share_an_invoker),
        TEST(a_call_allocates_nothing),
    };
    if (argc != 2) {
        fprintf(stderr, "usage: calls PACKAGE\n");
        return 2;
    }
    package = argv[1];
    return run_tests(tests, sizeof tests / sizeof *tests);
}
