/* Leases a core, calls two functions on it, and gives it back. The same program is in cpp/, rust/, python/,
 * fortran/ and go/; the functions are in functions/. With `sublet up` running:
 *
 *     cc -O2 hello.c $(pkg-config --cflags --libs sublet) -o hello
 *     ./hello ./libhello.so
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sublet.h>

#define OUTPUT_BYTES 64

static void check(sublet_status status) {
    if (status == SUBLET_OK)
        return;
    fprintf(stderr, "%s: %s\n", sublet_status_name(status), sublet_error_message());
    exit((int)status);
}

/* Submits a call, does not use the time that it takes for anything else, and waits for its end. */
static sublet_status call(sublet_invoker *invoker, const char *name, const char *input, size_t input_bytes,
                          char *output, size_t *output_bytes) {
    sublet_call call = {.input = input, .input_bytes = input_bytes, .output = output, .output_bytes = OUTPUT_BYTES};
    check(sublet_invoker_function(invoker, name, &call.function));
    sublet_invocation invocation;
    check(sublet_invoker_submit(invoker, &call, &invocation));
    sublet_completion done = {0};
    sublet_status status = sublet_invocation_wait(&invocation, &done);
    *output_bytes = done.output_bytes;
    return status;
}

int main(int argc, char **argv) {
    const char *package = argc > 1 ? argv[1] : "./libhello.so";

    /* A lease of one core. It takes some milliseconds; calls take less than one thousandth of that. */
    sublet_invoker *invoker;
    check(sublet_invoker_connect(NULL, &invoker));
    sublet_allocation allocation = sublet_allocation_default(package);
    check(sublet_invoker_allocate(invoker, &allocation));

    /* Memory that the worker shares, so that nothing is copied. */
    void *input, *greeting, *loud;
    check(sublet_buffer_allocate(invoker, OUTPUT_BYTES, &input));
    check(sublet_buffer_allocate(invoker, OUTPUT_BYTES, &greeting));
    check(sublet_buffer_allocate(invoker, OUTPUT_BYTES, &loud));
    memcpy(input, "world", 5);

    size_t size;
    check(call(invoker, "greet", input, 5, greeting, &size));
    printf("%.*s\n", (int)size, (char *)greeting);

    /* The output of one call is the input of the next. */
    check(call(invoker, "shout", greeting, size, loud, &size));
    printf("%.*s\n", (int)size, (char *)loud);

    /* A call that fails says why. */
    sublet_status status = call(invoker, "greet", input, 0, greeting, &size);
    printf("%s: %s\n", sublet_status_name(status), sublet_error_message());

    sublet_bill bill;
    check(sublet_invoker_deallocate(invoker, &bill));
    printf("%llu calls, %llu of them failed\n", (unsigned long long)bill.calls, (unsigned long long)bill.failed_calls);

    check(sublet_buffer_free(input));
    check(sublet_buffer_free(greeting));
    check(sublet_buffer_free(loud));
    sublet_invoker_free(invoker);
    return 0;
}
