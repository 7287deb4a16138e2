/* The regression as one process: single SAMPLES STEPS writes the model, and after it the number of samples that the
 * model classifies correctly, to standard output; its times and memory, as JSON, to standard error. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "measure.h"
#include "regression.h"

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
    said(now() - began, peak);
    return fwrite(&fitted, sizeof fitted, 1, stdout) == 1 && fwrite(&right, sizeof right, 1, stdout) == 1 ? 0 : 1;
}
