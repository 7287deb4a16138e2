/* Logistic regression on samples that are lines of text. Each step works on memory that it is given, so that one process and
 * components that share memory execute the same instructions on the same bytes. */
#ifndef REGRESSION_H
#define REGRESSION_H

#include <stdint.h>

/* A sample has so many features and, behind them, its label: each feature as +0.12345, then 0 or 1 and a line break. */
#define FEATURES 32
#define FEATURE_BYTES 9
#define LINE_BYTES (FEATURES * FEATURE_BYTES + 2)
/* Of so many samples the last is for validation. */
#define FOLDS 5

typedef struct sample {
    float features[FEATURES];
    float label;
} sample;

typedef struct model {
    float weights[FEATURES];
    float bias;
} model;

/* How many samples of so many are for training, and for validation. */
uint64_t training_samples(uint64_t samples);
uint64_t validation_samples(uint64_t samples);

/* Writes samples from one number on, each made from its number alone, into as many lines. */
void load(char *text, uint64_t from, uint64_t samples);

/* Reads samples from text into those for training and those for validation. Returns 0, or the number of the bad line, from 1. */
uint64_t split(const char *text, uint64_t samples, sample *training, sample *validation);

/* Fits a model by so many steps of gradient descent. */
void train(const sample *training, uint64_t samples, uint32_t steps, model *fitted);

/* How many samples of so many the model tells right. */
uint64_t validate(const sample *validation, uint64_t samples, const model *fitted);

#endif
