/* Memory components by the C interface, against a running Sublet. */
#include <stdlib.h>
#include <string.h>

#include <sublet_memory.h>

#include "check.h"

#define KIB UINT64_C(1024)
#define MIB (KIB * 1024)

static sublet_invoker *invoker;

/* A component of segments of 1 MiB, up to 8 MiB. */
static sublet_memory *component(const char *fabric) {
    sublet_memory *memory = NULL;
    sublet_memory_plan plan = sublet_memory_plan_default();
    plan.initial_bytes = MIB;
    plan.increment_bytes = MIB;
    plan.limit_bytes = 8 * MIB;
    plan.fabric = fabric;
    CHECK_OK(sublet_memory_create(invoker, &plan, &memory));
    return memory;
}

static unsigned char *pattern(size_t len, unsigned seed) {
    unsigned char *bytes = malloc(len);
    CHECK(bytes != NULL);
    for (size_t i = 0; i < len; i++) bytes[i] = (unsigned char)((i * 31 + seed) >> 3);
    return bytes;
}

static void check_size(const sublet_memory *memory, uint64_t len, uint64_t capacity) {
    uint64_t len_bytes = 1, capacity_bytes = 1;
    CHECK_OK(sublet_memory_size(memory, &len_bytes, &capacity_bytes));
    CHECK(len_bytes == len && capacity_bytes == capacity);
}

static void grows_and_is_given_back(const char *fabric) {
    sublet_memory *memory = component(fabric);
    size_t len = 3 * MIB + 100;
    unsigned char *bytes = pattern(len, 1), *back = malloc(len);
    sublet_bill bill;
    CHECK(back != NULL);
    check_size(memory, 0, 0);
    CHECK_OK(sublet_memory_write(memory, 0, bytes, len));
    check_size(memory, len, 4 * MIB);
    CHECK_OK(sublet_memory_read(memory, 0, back, len));
    CHECK(memcmp(bytes, back, len) == 0);
    CHECK_OK(sublet_memory_renew(memory, UINT64_C(60000000000)));
    CHECK_OK(sublet_memory_resize(memory, 10));
    check_size(memory, 10, MIB);
    CHECK_OK(sublet_memory_resize(memory, 20));
    CHECK_OK(sublet_memory_read(memory, 0, back, 20));
    CHECK(memcmp(bytes, back, 10) == 0 && back[10] == 0 && back[19] == 0);
    CHECK_OK(sublet_memory_release(memory, &bill));
    CHECK(bill.allocated_ns > 0 && bill.calls == 0);
    free(bytes);
    free(back);
}

static void memory_grows_and_is_given_back(void) { grows_and_is_given_back(NULL); }
static void memory_over_tcp_is_the_same(void) { grows_and_is_given_back("tcp"); }
static void memory_over_tls_is_the_same(void) { grows_and_is_given_back("tcp+tls"); }

static void what_is_asked_for_is_there_when_it_is_waited_for(void) {
    static const char *const fabrics[] = {NULL, "tcp"};
    for (size_t i = 0; i < 2; i++) {
        sublet_memory *memory = component(fabrics[i]);
        unsigned char *bytes = pattern(2 * MIB, 2), *back = calloc(1, 2 * MIB);
        CHECK(back != NULL);
        for (uint64_t at = 0; at < 2 * MIB; at += 64 * KIB)
            CHECK_OK(sublet_memory_write_async(memory, at, bytes + at, 64 * KIB));
        CHECK_OK(sublet_memory_sync(memory));
        CHECK_OK(sublet_memory_prefetch(memory, 0, 2 * MIB));
        for (uint64_t at = 0; at < 2 * MIB; at += 16 * KIB)
            CHECK_OK(sublet_memory_read_async(memory, at, back + at, 16 * KIB));
        CHECK_OK(sublet_memory_wait(memory));
        CHECK(memcmp(bytes, back, 2 * MIB) == 0);
        CHECK_OK(sublet_memory_wait(memory));
        CHECK_OK(sublet_memory_release(memory, NULL));
        free(bytes);
        free(back);
    }
}

static void memory_of_this_machine_is_mapped(void) {
    sublet_memory *memory = component("shm"), *far = component("tcp");
    void *data = NULL;
    char back[4] = "";
    CHECK_OK(sublet_memory_write(memory, 4096, "abc", 4));
    CHECK_OK(sublet_memory_mapped(memory, 4096, 4, &data));
    CHECK(strcmp(data, "abc") == 0);
    memcpy(data, "xyz", 4);
    CHECK_OK(sublet_memory_read(memory, 4096, back, 4));
    CHECK(strcmp(back, "xyz") == 0);
    CHECK_OK(sublet_memory_write(far, 0, "abc", 4));
    CHECK_STATUS(sublet_memory_mapped(far, 0, 4, &data), SUBLET_FABRIC_UNAVAILABLE);
    CHECK_OK(sublet_memory_release(memory, NULL));
    CHECK_OK(sublet_memory_release(far, NULL));
}

static void memory_of_a_pool_is_on_a_node_of_it(void) {
    static const char *const pools[] = {"compute", "memory", "balanced"};
    unsigned had = 0;
    for (size_t i = 0; i < 3; i++) {
        sublet_memory_plan plan = sublet_memory_plan_default();
        sublet_memory *memory = NULL;
        plan.initial_bytes = MIB;
        plan.pool = pools[i];
        CHECK_OK(sublet_memory_create(invoker, &plan, &memory));
        if (sublet_memory_write(memory, 0, "abc", 3) == SUBLET_OK)
            had++;
        else
            CHECK(strstr(sublet_error_message(), pools[i]) != NULL);
        CHECK_OK(sublet_memory_release(memory, NULL));
    }
    /* The one node is in one of them. */
    CHECK(had == 1);
}

static void what_cannot_be_is_named_and_harms_nothing(void) {
    sublet_memory_plan plan = sublet_memory_plan_default();
    sublet_memory *memory = NULL;
    char byte = 1;
    plan.initial_bytes = 0;
    CHECK_STATUS(sublet_memory_create(invoker, &plan, &memory), SUBLET_INVALID_ARGUMENT);
    plan = sublet_memory_plan_default();
    plan.size_bytes = 8;
    CHECK_STATUS(sublet_memory_create(invoker, &plan, &memory), SUBLET_INVALID_ARGUMENT);
    plan = sublet_memory_plan_default();
    plan.fabric = "homing pigeon";
    CHECK_STATUS(sublet_memory_create(invoker, &plan, &memory), SUBLET_INVALID_ARGUMENT);
    plan = sublet_memory_plan_default();
    plan.pool = "puddle";
    CHECK_STATUS(sublet_memory_create(invoker, &plan, &memory), SUBLET_INVALID_ARGUMENT);
    CHECK_STATUS(sublet_memory_create(invoker, NULL, &memory), SUBLET_INVALID_ARGUMENT);
    CHECK_STATUS(sublet_memory_create(NULL, &plan, &memory), SUBLET_INVALID_ARGUMENT);
    CHECK(memory == NULL);

    memory = component(NULL);
    CHECK_STATUS(sublet_memory_read(memory, 0, &byte, 1), SUBLET_INVALID_ARGUMENT);
    CHECK(strstr(sublet_error_message(), "1 bytes at 0") != NULL);
    CHECK_STATUS(sublet_memory_read_async(memory, 0, &byte, 1), SUBLET_INVALID_ARGUMENT);
    CHECK_STATUS(sublet_memory_write(memory, 8 * MIB, &byte, 1), SUBLET_MEMORY_EXCEEDED);
    CHECK_STATUS(sublet_memory_write(memory, 0, NULL, 1), SUBLET_INVALID_ARGUMENT);
    CHECK_STATUS(sublet_memory_resize(memory, 9 * MIB), SUBLET_MEMORY_EXCEEDED);
    CHECK_OK(sublet_memory_write(memory, 0, NULL, 0));
    CHECK_OK(sublet_memory_write(memory, 0, &byte, 1));
    CHECK_STATUS(sublet_memory_read(memory, 0, NULL, 1), SUBLET_INVALID_ARGUMENT);
    CHECK_STATUS(sublet_memory_read_async(memory, 0, NULL, 1), SUBLET_INVALID_ARGUMENT);
    CHECK_STATUS(sublet_memory_mapped(memory, 0, 1, NULL), SUBLET_INVALID_ARGUMENT);
    CHECK_OK(sublet_memory_size(memory, NULL, NULL));
    CHECK_STATUS(sublet_memory_sync(NULL), SUBLET_INVALID_ARGUMENT);
    CHECK_OK(sublet_memory_release(memory, NULL));
    CHECK_OK(sublet_memory_release(NULL, NULL));
}

int main(void) {
    const test tests[] = {
        {"memory_grows_and_is_given_back", memory_grows_and_is_given_back},
        {"memory_over_tcp_is_the_same", memory_over_tcp_is_the_same},
        {"memory_over_tls_is_the_same", memory_over_tls_is_the_same},
        {"what_is_asked_for_is_there_when_it_is_waited_for", what_is_asked_for_is_there_when_it_is_waited_for},
        {"memory_of_this_machine_is_mapped", memory_of_this_machine_is_mapped},
        {"memory_of_a_pool_is_on_a_node_of_it", memory_of_a_pool_is_on_a_node_of_it},
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
