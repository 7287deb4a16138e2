/* Logistic regression on samples that are lines of text. Each step works on memory that it is given, so that one process and
 * components that share memory execute the same instructions on the same bytes. */
#ifndef REGRESSION_H
#define REGRESSION_H

#include <stdint.h>

/* A sample has FEATURES features and, after them, its label: each feature as +0.12345, then 0 or 1 and a line break. */
#define FEATURES 32
#define FEATURE_BYTES 9
#define LINE_BYTES (FEATURES * FEATURE_BYTES + 2)
/* Every FOLDS-th sample is for validation. */
#define FOLDS 5

typedef struct sample {
    float features[FEATURES];
    float label;
} sample;

typedef struct model {
    float weights[FEATURES];
    float bias;
} model;

/* Return the number of samples for training and for validation, of all samples. */
uint64_t training_samples(uint64_t samples);
uint64_t validation_samples(uint64_t samples);

/* Writes samples from the number `from` on, one in each line. A sample depends on its number only. */
void load(char *text, uint64_t from, uint64_t samples);

/* Reads samples from text into those for training and those for validation. Returns 0, or the number of the bad line, from 1. */
uint64_t split(const char *text, uint64_t samples, sample *training, sample *validation);

/* Fits a model by gradient descent with this number of steps. */
void train(const sample *training, uint64_t samples, uint32_t steps, model *fitted);

/* Returns the number of samples that the model classifies correctly. */
uint64_t validate(const sample *validation, uint64_t samples, const model *fitted);

#endif
