/* Graphs of components by the C interface, against a running Sublet that has the package of components.c. */
#include <stdlib.h>
#include <string.h>

#include <sublet_graph.h>

#include "check.h"

#define COMPUTE(name, function, more)                                                                                  \
    "{\"type\": \"compute\", \"name\": \"" name "\", \"package\": \"libcomponents\", \"function\": \"" function "\"" more "}"
#define EDGE(kind, from, to, more) "{\"type\": \"" kind "\", \"from\": \"" from "\", \"to\": \"" to "\"" more "}"
#define GRAPH(components, edges)                                                                                       \
    "{\"version\": 1, \"name\": \"counted\", \"components\": [" components "], \"edges\": [" edges "]}"

/* Counts, and adds up by two instances. */
static const char *const COUNTED =
    GRAPH(COMPUTE("count", "count", ", \"entry\": true") "," COMPUTE("add", "add", ", \"parallelism\": 2") ","
          "{\"type\": \"memory\", \"name\": \"numbers\"}",
          EDGE("trigger", "count", "add", "") "," EDGE("access", "count", "numbers", ", \"rights\": \"write\"") ","
          EDGE("access", "add", "numbers", ", \"rights\": \"read\""));

static sublet_invoker *invoker;

static sublet_application *deployed(const char *document, const sublet_run_options *options) {
    sublet_application *application = NULL;
    CHECK_OK(sublet_application_deploy(invoker, document, strlen(document), options, &application));
    return application;
}

/* Events that a listener has counted, and the count at which it stops waiting. */
typedef struct heard {
    unsigned began, ended, lost;
    unsigned enough;
    char latest[64];
} heard;

static int hear(const sublet_news *news, void *user) {
    heard *all = user;
    all->began += news->event == SUBLET_BEGAN;
    all->ended += news->event == SUBLET_ENDED && news->status == SUBLET_OK && news->message == NULL;
    all->lost += news->event == SUBLET_LOST && news->status == SUBLET_WORKER_DIED && strlen(news->message) > 0;
    strncpy(all->latest, news->component, sizeof all->latest - 1);
    return all->enough != 0 && all->began >= all->enough;
}

static void check_sum(const sublet_outcome *outcome, uint64_t most) {
    sublet_output outputs[3];
    uint64_t sum = 0, part;
    size_t count = 0;
    CHECK_OK(sublet_outcome_outputs(outcome, outputs, 3, &count));
    CHECK(count == 2);
    for (uint32_t i = 0; i < 2; i++) {
        CHECK(strcmp(outputs[i].component, "add") == 0 && outputs[i].instance == i && outputs[i].len_bytes == sizeof part);
        memcpy(&part, outputs[i].data, sizeof part);
        sum += part;
    }
    CHECK(sum == most * (most + 1) / 2);
}

static void a_graph_is_run_and_says_what_it_had(void) {
    sublet_application *application = deployed(COUNTED, NULL);
    uint64_t most = 1000;
    heard all = {0, 0, 0, 0, ""};
    sublet_outcome *outcome = NULL;
    sublet_component_use used[8];
    sublet_channel_use moved[4];
    size_t count = 0;
    const char *run = NULL;
    CHECK_OK(sublet_application_run(application, &most, sizeof most, hear, &all, &outcome));
    check_sum(outcome, most);
    CHECK(all.began == 2 && all.ended == 2 && all.lost == 0 && strcmp(all.latest, "add") == 0);
    CHECK_OK(sublet_outcome_run(outcome, &run));
    CHECK(strlen(run) == 32);
    CHECK_OK(sublet_outcome_components(outcome, used, 8, &count));
    CHECK(count == 3 && used[1].instances == 2 && used[1].attempts == 1 && used[0].end_us >= used[0].begin_us);
    CHECK(strcmp(used[2].component, "numbers") == 0 && used[2].used_bytes == most * 8);
    CHECK_OK(sublet_outcome_channels(outcome, moved, 4, &count));
    CHECK(count == 2 && strcmp(moved[0].component, "count") == 0 && strcmp(moved[0].memory, "numbers") == 0);
    CHECK(moved[0].writes > 0 && moved[0].written_bytes == most * 8 && moved[0].reads == 0);
    CHECK(strcmp(moved[1].component, "add") == 0 && moved[1].reads > 0 && moved[1].read_bytes == most * 8);
    sublet_outcome_free(outcome);
    sublet_application_free(application);
}

static void a_result_in_memory_is_read_until_its_outcome_is_freed(void) {
    sublet_application *application =
        deployed(GRAPH(COMPUTE("count", "count", ", \"entry\": true") ","
                       "{\"type\": \"memory\", \"name\": \"numbers\", \"result\": true}",
                       EDGE("access", "count", "numbers", ", \"rights\": \"write\"")),
                 NULL);
    sublet_outcome *outcome = NULL;
    const char *name = NULL;
    uint64_t most = 1000, len_bytes = 0, number = 0;
    CHECK_OK(sublet_application_run(application, &most, sizeof most, NULL, NULL, &outcome));
    CHECK_OK(sublet_outcome_result(outcome, &name, &len_bytes));
    CHECK(strcmp(name, "numbers") == 0 && len_bytes == most * 8);
    CHECK_OK(sublet_outcome_read(outcome, (most - 1) * 8, &number, sizeof number));
    CHECK(number == most);
    CHECK_STATUS(sublet_outcome_read(outcome, most * 8, &number, sizeof number), SUBLET_INVALID_ARGUMENT);
    sublet_outcome_free(outcome);
    sublet_application_free(application);
}

static void a_graph_is_opened_by_its_name_and_by_its_digest(void) {
    sublet_application *application = deployed(COUNTED, NULL), *opened = NULL;
    const char *digest = NULL;
    CHECK_OK(sublet_application_digest(application, &digest));
    const char *const names[] = {"counted", digest};
    for (size_t i = 0; i < 2; i++) {
        uint64_t most = 10;
        sublet_outcome *outcome = NULL;
        sublet_run_options options = sublet_run_options_default();
        options.fabric = "tcp";
        options.prewarm_ns = SUBLET_NO_PREWARM;
        CHECK_OK(sublet_application_open(invoker, names[i], &options, &opened));
        CHECK_OK(sublet_application_run(opened, &most, sizeof most, NULL, NULL, &outcome));
        check_sum(outcome, most);
        sublet_outcome_free(outcome);
        sublet_application_free(opened);
    }
    CHECK_STATUS(sublet_application_open(invoker, "absent", NULL, &opened), SUBLET_UNKNOWN_GRAPH);
    CHECK(strstr(sublet_error_message(), "absent") != NULL);
    sublet_application_free(application);
}

static void a_detached_run_is_waited_for_by_its_identifier(void) {
    sublet_application *application = deployed(COUNTED, NULL);
    sublet_run *begun = NULL, *opened = NULL;
    sublet_outcome *outcome = NULL;
    const char *id = NULL;
    uint64_t most = 10;
    CHECK_OK(sublet_application_detach(application, &most, sizeof most, &begun));
    sublet_application_free(application);
    CHECK_OK(sublet_run_id(begun, &id));
    CHECK(strlen(id) == 32);
    CHECK_OK(sublet_run_open(invoker, id, &opened));
    CHECK_OK(sublet_run_wait(opened, UINT64_MAX, &outcome));
    check_sum(outcome, most);
    sublet_outcome_free(outcome);
    outcome = NULL;
    CHECK_STATUS(sublet_run_cancel(begun), SUBLET_UNKNOWN_RUN);
    sublet_run_free(begun);
    sublet_run_free(opened);
    CHECK_OK(sublet_run_open(invoker, "absent", &opened));
    CHECK_STATUS(sublet_run_wait(opened, 0, &outcome), SUBLET_UNKNOWN_RUN);
    CHECK_STATUS(sublet_run_wait(NULL, 0, &outcome), SUBLET_INVALID_ARGUMENT);
    CHECK_STATUS(sublet_run_wait(opened, 0, NULL), SUBLET_INVALID_ARGUMENT);
    CHECK_STATUS(sublet_run_id(opened, NULL), SUBLET_INVALID_ARGUMENT);
    CHECK_STATUS(sublet_application_detach(NULL, NULL, 0, &begun), SUBLET_INVALID_ARGUMENT);
    CHECK(outcome == NULL);
    sublet_run_free(opened);
    sublet_run_free(NULL);
}

static void a_component_that_fails_or_dies_ends_its_run_with_the_reason(void) {
    sublet_application *application = deployed(COUNTED, NULL);
    sublet_outcome *outcome = NULL;
    heard all = {0, 0, 0, 0, ""};
    sublet_run_options options = sublet_run_options_default();
    CHECK_STATUS(sublet_application_run(application, NULL, 0, NULL, NULL, &outcome), SUBLET_FUNCTION_FAILED);
    CHECK(strstr(sublet_error_message(), "component count") != NULL && strstr(sublet_error_message(), "how many?") != NULL);
    sublet_application_free(application);

    options.retries = 1;
    application = deployed(GRAPH(COMPUTE("dying", "die", ", \"entry\": true"), ""), &options);
    CHECK_STATUS(sublet_application_run(application, NULL, 0, hear, &all, &outcome), SUBLET_WORKER_DIED);
    CHECK(strstr(sublet_error_message(), "dying was lost 2 times") != NULL);
    CHECK(all.began == 2 && all.lost == 1 + 1 && all.ended == 0);
    CHECK(outcome == NULL);
    sublet_application_free(application);
}

static void a_listener_that_has_enough_gives_the_run_up(void) {
    sublet_application *application = deployed(COUNTED, NULL);
    sublet_outcome *outcome = NULL;
    uint64_t most = 10;
    heard all = {0, 0, 0, 1, ""};
    CHECK_STATUS(sublet_application_run(application, &most, sizeof most, hear, &all, &outcome), SUBLET_LEASE_ENDED);
    CHECK(strstr(sublet_error_message(), "given up") != NULL && all.began == 1 && outcome == NULL);
    CHECK_STATUS(sublet_application_resume(application, "0123456789abcdef0123456789abcdef", NULL, NULL, &outcome),
                 SUBLET_UNKNOWN_RUN);
    sublet_application_free(application);
}

static void what_is_no_graph_is_refused_with_the_reason(void) {
    static const struct {
        const char *document;
        const char *why;
    } wrong[] = {
        {"{", "EOF while parsing"},
        {GRAPH(COMPUTE("a", "add", ""), ""), "entry"},
        {GRAPH(COMPUTE("a", "add", ", \"entry\": true") "," COMPUTE("b", "add", "") "," COMPUTE("c", "add", ""),
               EDGE("trigger", "a", "b", "") "," EDGE("trigger", "b", "c", "") "," EDGE("trigger", "c", "b", "")),
         "in a circle: b -> c -> b"},
        {GRAPH(COMPUTE("a", "add", ", \"entry\": true"), EDGE("trigger", "a", "nowhere", "")), "nowhere"},
    };
    sublet_application *application = NULL;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        CHECK_STATUS(sublet_application_deploy(invoker, wrong[i].document, strlen(wrong[i].document), NULL, &application),
                     SUBLET_INVALID_GRAPH);
        CHECK(strstr(sublet_error_message(), wrong[i].why) != NULL);
    }
    CHECK(application == NULL);
}

static void what_cannot_be_is_named_and_harms_nothing(void) {
    sublet_application *application = NULL, *good = deployed(COUNTED, NULL);
    sublet_outcome *outcome = NULL;
    sublet_run_options options = sublet_run_options_default();
    const char *text = NULL;
    size_t count = 0;
    options.size_bytes = 8;
    CHECK_STATUS(sublet_application_open(invoker, "counted", &options, &application), SUBLET_INVALID_ARGUMENT);
    options = sublet_run_options_default();
    options.fabric = "homing pigeon";
    CHECK_STATUS(sublet_application_open(invoker, "counted", &options, &application), SUBLET_INVALID_ARGUMENT);
    CHECK_STATUS(sublet_application_open(invoker, NULL, NULL, &application), SUBLET_INVALID_ARGUMENT);
    CHECK_STATUS(sublet_application_open(NULL, "counted", NULL, &application), SUBLET_INVALID_ARGUMENT);
    CHECK_STATUS(sublet_application_open(invoker, "counted", NULL, NULL), SUBLET_INVALID_ARGUMENT);
    CHECK_STATUS(sublet_application_deploy(invoker, NULL, 3, NULL, &application), SUBLET_INVALID_ARGUMENT);
    CHECK_STATUS(sublet_application_run(NULL, NULL, 0, NULL, NULL, &outcome), SUBLET_INVALID_ARGUMENT);
    CHECK_STATUS(sublet_application_run(good, NULL, 8, NULL, NULL, &outcome), SUBLET_INVALID_ARGUMENT);
    CHECK_STATUS(sublet_application_run(good, NULL, 0, NULL, NULL, NULL), SUBLET_INVALID_ARGUMENT);
    CHECK_STATUS(sublet_application_resume(good, NULL, NULL, NULL, &outcome), SUBLET_INVALID_ARGUMENT);
    CHECK_STATUS(sublet_application_digest(good, NULL), SUBLET_INVALID_ARGUMENT);
    CHECK_STATUS(sublet_outcome_run(NULL, &text), SUBLET_INVALID_ARGUMENT);
    CHECK_STATUS(sublet_outcome_outputs(NULL, NULL, 0, &count), SUBLET_INVALID_ARGUMENT);
    CHECK(application == NULL && outcome == NULL);
    sublet_application_free(good);
    sublet_application_free(NULL);
    sublet_outcome_free(NULL);
}

int main(void) {
    const test tests[] = {
        {"a_graph_is_run_and_says_what_it_had", a_graph_is_run_and_says_what_it_had},
        {"a_result_in_memory_is_read_until_its_outcome_is_freed", a_result_in_memory_is_read_until_its_outcome_is_freed},
        {"a_graph_is_opened_by_its_name_and_by_its_digest", a_graph_is_opened_by_its_name_and_by_its_digest},
        {"a_detached_run_is_waited_for_by_its_identifier", a_detached_run_is_waited_for_by_its_identifier},
        {"a_component_that_fails_or_dies_ends_its_run_with_the_reason",
         a_component_that_fails_or_dies_ends_its_run_with_the_reason},
        {"a_listener_that_has_enough_gives_the_run_up", a_listener_that_has_enough_gives_the_run_up},
        {"what_is_no_graph_is_refused_with_the_reason", what_is_no_graph_is_refused_with_the_reason},
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
