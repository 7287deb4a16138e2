/* Helps the test programs: a test is a function, and the first false condition ends it. */
#ifndef CHECK_H
#define CHECK_H

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct test {
    const char *name;
    void (*run)(void);
} test;

static jmp_buf failed;
/* The name of the running test. */
static const char *running;

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            printf("%s:%d: %s; the latest error is: %s\n", __FILE__, __LINE__, #condition, sublet_error_message());    \
            longjmp(failed, 1);                                                                                        \
        }                                                                                                              \
    } while (0)

#define CHECK_STATUS(status, expected) CHECK((status) == (expected))
#define CHECK_OK(status) CHECK_STATUS(status, SUBLET_OK)

/* Says that the running test checks nothing, since this machine lacks the device that it needs. A machine that has the device
 * fails the test if CI is true. */
static inline void skip_without(const char *device, const char *why) {
    const char *ci = getenv("CI");
    FILE *file = fopen(device, "r+");
    int is_here = file != NULL;
    if (file != NULL) fclose(file);
    CHECK(ci == NULL || strcmp(ci, "true") != 0 || !is_here);
    printf("skipped: %s: %s\n", running, why);
}

/* Runs each and says what became of it, as run.sh expects. */
static inline int run_tests(const test *tests, size_t count) {
    volatile int failures = 0;
    for (volatile size_t i = 0; i < count; i++) {
        running = tests[i].name;
        if (setjmp(failed) == 0) {
            tests[i].run();
            printf("test %s ... ok\n", tests[i].name);
        } else {
            failures++;
            printf("test %s ... FAILED\n", tests[i].name);
        }
        fflush(stdout);
    }
    return failures == 0 ? 0 : 1;
}

#endif
