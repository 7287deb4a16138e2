/* Implements the steps of the logistic regression on memory that the caller provides. */

#include "regression.h"

#include <math.h>
#include <string.h>

/* The unit of a feature in text: a feature is written as a whole number of units. */
static const float UNIT = 1e-5f;
static const float RATE = 0.5f;

uint64_t validation_samples(uint64_t samples) { return samples / FOLDS; }
uint64_t training_samples(uint64_t samples) { return samples - validation_samples(samples); }

/* Maps each number to another one that looks random (the finalizer of SplitMix64). */
static uint64_t mixed(uint64_t number) {
    number += 0x9e3779b97f4a7c15u;
    number = (number ^ (number >> 30)) * 0xbf58476d1ce4e5b9u;
    number = (number ^ (number >> 27)) * 0x94d049bb133111ebu;
    return number ^ (number >> 31);
}

static void write_feature(char *into, int32_t value) {
    uint32_t left = (uint32_t)(value < 0 ? -value : value);
    into[0] = value < 0 ? '-' : '+';
    into[1] = '0';
    into[2] = '.';
    for (int digit = 7; digit > 2; digit--, left /= 10) into[digit] = (char)('0' + left % 10);
    into[8] = ' ';
}

void load(char *text, uint64_t from, uint64_t samples) {
    for (uint64_t i = from; i < from + samples; i++, text += LINE_BYTES) {
        int64_t score = (int64_t)(mixed(~i) % 60001) - 30000;
        for (int feature = 0; feature < FEATURES; feature++) {
            int32_t value = (int32_t)(mixed(i * FEATURES + (uint64_t)feature) % 199999) - 99999;
            write_feature(text + feature * FEATURE_BYTES, value);
            /* Later features have less weight, and every second one a negative weight. */
            score += (feature % 2 ? -1 : 1) * value / (1 + feature / 4);
        }
        text[LINE_BYTES - 2] = score > 0 ? '1' : '0';
        text[LINE_BYTES - 1] = '\n';
    }
}

static int read_feature(const char *from, float *value) {
    int32_t number = 0;
    if ((from[0] != '+' && from[0] != '-') || from[1] != '0' || from[2] != '.' || from[8] != ' ') return 0;
    for (int digit = 3; digit < 8; digit++) {
        if (from[digit] < '0' || from[digit] > '9') return 0;
        number = number * 10 + (from[digit] - '0');
    }
    *value = (float)(from[0] == '-' ? -number : number) * UNIT;
    return 1;
}

uint64_t split(const char *text, uint64_t samples, sample *training, sample *validation) {
    const sample *end = validation + validation_samples(samples);
    for (uint64_t i = 0; i < samples; i++, text += LINE_BYTES) {
        sample *into = i % FOLDS == FOLDS - 1 && validation < end ? validation++ : training++;
        for (int feature = 0; feature < FEATURES; feature++)
            if (!read_feature(text + feature * FEATURE_BYTES, &into->features[feature])) return i + 1;
        char label = text[LINE_BYTES - 2];
        if ((label != '0' && label != '1') || text[LINE_BYTES - 1] != '\n') return i + 1;
        into->label = (float)(label - '0');
    }
    return 0;
}

static float likelihood(const sample *of, const model *fitted) {
    float score = fitted->bias;
    for (int feature = 0; feature < FEATURES; feature++) score += of->features[feature] * fitted->weights[feature];
    return 1.0f / (1.0f + expf(-score));
}

void train(const sample *training, uint64_t samples, uint32_t steps, model *fitted) {
    memset(fitted, 0, sizeof *fitted);
    for (uint32_t step = 0; step < steps; step++) {
        float slope[FEATURES] = {0}, bias_slope = 0;
        for (uint64_t i = 0; i < samples; i++) {
            float error = likelihood(&training[i], fitted) - training[i].label;
            for (int feature = 0; feature < FEATURES; feature++) slope[feature] += error * training[i].features[feature];
            bias_slope += error;
        }
        float rate = RATE / (float)samples;
        for (int feature = 0; feature < FEATURES; feature++) fitted->weights[feature] -= rate * slope[feature];
        fitted->bias -= rate * bias_slope;
    }
}

uint64_t validate(const sample *validation, uint64_t samples, const model *fitted) {
    uint64_t right = 0;
    for (uint64_t i = 0; i < samples; i++) {
        int is_one = likelihood(&validation[i], fitted) > 0.5f;
        right += is_one == (validation[i].label > 0.5f);
    }
    return right;
}
