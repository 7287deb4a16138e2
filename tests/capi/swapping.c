/* Swapped arrays by the C interface, against a running Sublet. */
#include <stdlib.h>
#include <string.h>

#include <sublet_swap.h>

#include "check.h"

#define MIB (UINT64_C(1) << 20)

static sublet_invoker *invoker;

static void an_array_is_larger_than_what_is_here(void) {
    sublet_swapped *swapped = NULL;
    sublet_swap_plan plan = sublet_swap_plan_default(64 * MIB, 16 * MIB);
    sublet_memory_plan space = sublet_memory_plan_default();
    sublet_swap_statistics statistics;
    void *data = NULL;
    sublet_status status = sublet_swapped_create(invoker, &plan, &space, &swapped);
    if (status == SUBLET_LIMIT_TOO_LOW) {
        skip_without("/dev/userfaultfd", sublet_error_message());
        return;
    }
    CHECK_OK(status);
    CHECK_OK(sublet_swapped_data(swapped, &data));
    uint64_t *numbers = data, count = 64 * MIB / sizeof *numbers, sum = 0;
    for (uint64_t i = 0; i < count; i++) {
        CHECK(numbers[i] == 0);
        numbers[i] = i;
    }
    for (uint64_t i = 0; i < count; i++) sum += numbers[i];
    CHECK(sum == count * (count - 1) / 2);
    CHECK_OK(sublet_swapped_check(swapped));
    CHECK_OK(sublet_swapped_statistics(swapped, &statistics));
    CHECK(statistics.written_bytes >= 48 * MIB && statistics.resident_bytes <= 16 * MIB && statistics.faults > 0);
    CHECK(statistics.in_bytes >= 64 * MIB && statistics.out_bytes >= statistics.written_bytes);
    sublet_swapped_free(swapped);
}

static void what_cannot_be_is_named_and_harms_nothing(void) {
    sublet_swapped *swapped = NULL;
    sublet_swap_plan plan = sublet_swap_plan_default(64 * MIB, 1);
    sublet_memory_plan space = sublet_memory_plan_default();
    CHECK_STATUS(sublet_swapped_create(invoker, &plan, &space, &swapped), SUBLET_INVALID_ARGUMENT);
    CHECK(strstr(sublet_error_message(), "1 bytes of local memory") != NULL);
    plan = sublet_swap_plan_default(64 * MIB, 16 * MIB);
    space.pool = "puddle";
    CHECK_STATUS(sublet_swapped_create(invoker, &plan, &space, &swapped), SUBLET_INVALID_ARGUMENT);
    CHECK(strstr(sublet_error_message(), "puddle") != NULL);
    space = sublet_memory_plan_default();
    plan.size_bytes = 8;
    CHECK_STATUS(sublet_swapped_create(invoker, &plan, &space, &swapped), SUBLET_INVALID_ARGUMENT);
    CHECK_STATUS(sublet_swapped_create(invoker, NULL, &space, &swapped), SUBLET_INVALID_ARGUMENT);
    CHECK_STATUS(sublet_swapped_create(invoker, &plan, NULL, &swapped), SUBLET_INVALID_ARGUMENT);
    CHECK_STATUS(sublet_swapped_check(NULL), SUBLET_INVALID_ARGUMENT);
    CHECK(swapped == NULL);
    sublet_swapped_free(NULL);
}

int main(void) {
    const test tests[] = {
        {"an_array_is_larger_than_what_is_here", an_array_is_larger_than_what_is_here},
        {"what_cannot_be_is_named_and_harms_nothing", what_cannot_be_is_named_and_harms_nothing},
    };
    if (sublet_invoker_connect(NULL, &invoker) != SUBLET_OK) {
        printf("%s\n", sublet_error_message());
        return 1;
    }
    int status = run_tests(tests, sizeof tests / sizeof *tests);
    sublet_invoker_free(invoker);
    return status;
}
