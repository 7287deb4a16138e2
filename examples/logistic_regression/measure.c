/* Reads the arguments of the example's programs, and prints their measurements. */

#include "measure.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

uint64_t number(const char *text) {
    char *end;
    errno = 0;
    uint64_t value = strtoull(text, &end, 10);
    if (errno || end == text || *end || value == 0 || value > UINT64_C(1) << 40) {
        fprintf(stderr, "%s is no number of samples or steps\n", text);
        exit(2);
    }
    return value;
}

void *memory(uint64_t bytes, uint64_t *peak) {
    void *at = malloc(bytes);
    if (!at) {
        fprintf(stderr, "no memory for %" PRIu64 " bytes\n", bytes);
        exit(1);
    }
    *peak += bytes;
    return at;
}

void said(double seconds, uint64_t peak) {
    fprintf(stderr, "{\"seconds\":%.6f,\"peak_bytes\":%" PRIu64 "}\n", seconds, peak);
}
