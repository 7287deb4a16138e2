/* A client that calls until its standard input ends: `calling PACKAGE [FABRIC]`. It prints its lease and its node when
 * the first call has returned, and the number of its calls at the end. Any failed call ends it with that error's code. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <poll.h>

#include <sublet.h>

static void check(sublet_status status) {
    if (status == SUBLET_OK)
        return;
    fprintf(stderr, "%s: %s\n", sublet_status_name(status), sublet_error_message());
    exit((int)status);
}

static void echo(sublet_invoker *invoker, unsigned long number) {
    unsigned long answer = ~number;
    sublet_call call = {
        .input = &number, .input_bytes = sizeof number, .output = &answer, .output_bytes = sizeof answer};
    check(sublet_invoker_function(invoker, "echo", &call.function));
    sublet_invocation invocation;
    check(sublet_invoker_submit(invoker, &call, &invocation));
    sublet_completion done = {0};
    check(sublet_invocation_wait(&invocation, &done));
    if (done.output_bytes != sizeof answer || answer != number) {
        fprintf(stderr, "call %lu returned %zu bytes, %lu\n", number, done.output_bytes, answer);
        exit(1);
    }
}

int main(int argc, char **argv) {
    if (argc < 2 || argc > 3) {
        fprintf(stderr, "usage: calling PACKAGE [FABRIC]\n");
        return 2;
    }
    sublet_invoker *invoker;
    check(sublet_invoker_connect(NULL, &invoker));
    sublet_allocation allocation = sublet_allocation_default(argv[1]);
    allocation.wait_ns = UINT64_C(20000000000);
    allocation.fabric = argc > 2 ? argv[2] : NULL;
    check(sublet_invoker_allocate(invoker, &allocation));
    sublet_lease lease;
    check(sublet_invoker_lease(invoker, &lease));

    unsigned long calls = 0;
    echo(invoker, calls++);
    printf("%s %s\n", lease.id, lease.node);
    fflush(stdout);
    /* A call each millisecond. */
    struct pollfd input = {.fd = 0, .events = POLLIN};
    while (poll(&input, 1, 1) == 0)
        echo(invoker, calls++);
    check(sublet_invoker_deallocate(invoker, NULL));
    printf("%lu\n", calls);
    sublet_invoker_free(invoker);
    return 0;
}
