/* The same as one process: single SAMPLES STEPS writes the model, and behind it how many samples it tells right, to standard
 * output; its times and memory, as JSON, to standard error. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "regression.h"

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static uint64_t number(const char *text) {
    char *end;
    errno = 0;
    uint64_t value = strtoull(text, &end, 10);
    if (errno || end == text || *end || value == 0 || value > UINT64_C(1) << 40) {
        fprintf(stderr, "single: %s is no number of samples or steps\n", text);
        exit(2);
    }
    return value;
}

static void *memory(uint64_t bytes, uint64_t *peak) {
    void *at = malloc(bytes);
    if (!at) {
        fprintf(stderr, "single: no memory for %" PRIu64 " bytes\n", bytes);
        exit(1);
    }
    *peak += bytes;
    return at;
}

int main(int count, char **arguments) {
    if (count != 3) {
        fprintf(stderr, "usage: single SAMPLES STEPS\n");
        return 2;
    }
    uint64_t samples = number(arguments[1]), steps = number(arguments[2]), peak = sizeof(model);
    double began = now();
    char *text = memory(samples * LINE_BYTES, &peak);
    load(text, 0, samples);
    sample *training = memory(training_samples(samples) * sizeof(sample), &peak);
    sample *validation = memory(validation_samples(samples) * sizeof(sample), &peak);
    uint64_t bad = split(text, samples, training, validation);
    if (bad) {
        fprintf(stderr, "single: line %" PRIu64 " is no sample\n", bad);
        return 1;
    }
    free(text);
    model fitted;
    train(training, training_samples(samples), (uint32_t)steps, &fitted);
    uint64_t right = validate(validation, validation_samples(samples), &fitted);
    double took = now() - began;
    fprintf(stderr, "{\"seconds\":%.6f,\"peak_bytes\":%" PRIu64 "}\n", took, peak);
    return fwrite(&fitted, sizeof fitted, 1, stdout) == 1 && fwrite(&right, sizeof right, 1, stdout) == 1 ? 0 : 1;
}
