/* The steps as components of a graph, which share memory components: text, training, validation and model. */
#include <string.h>
#include <sublet_function.h>

#include "regression.h"

/* The message that one component hands to the next. */
typedef struct message {
    uint64_t samples;
    uint64_t steps;
} message;

/* Lines that are generated before the memory component grows again. */
#define PIECE_LINES 900

static uint32_t failed(sublet_context *context) { return sublet_fail(context, sublet_why(context)); }

static int understand(const void *in, uint32_t size, message *said) {
    if (size != sizeof *said) return 0;
    memcpy(said, in, sizeof *said);
    return said->samples >= FOLDS && said->samples < UINT64_C(1) << 40;
}

static uint32_t hand_on(void *out, const message *said) {
    memcpy(out, said, sizeof *said);
    return sizeof *said;
}

/* Grows a component to a size in bytes, and maps it. */
static int made(sublet_context *context, const char *component, uint64_t bytes, void **at) {
    sublet_channel channel;
    return sublet_channel_open(context, component, &channel) == 0 && sublet_channel_grow(context, channel, bytes) == 0 &&
           sublet_channel_map(context, channel, 0, bytes, at) == 0;
}

/* Maps a component that another one has grown. */
static int there(sublet_context *context, const char *component, uint64_t bytes, void **at) {
    sublet_channel channel;
    return sublet_channel_open(context, component, &channel) == 0 &&
           sublet_channel_map(context, channel, 0, bytes, at) == 0;
}

SUBLET_FUNCTION uint32_t regression_load(void *in, uint32_t size, void *out, sublet_context *context) {
    message said;
    if (!understand(in, size, &said)) return sublet_fail(context, "how many samples, and how many steps?");
    for (uint64_t from = 0; from < said.samples; from += PIECE_LINES) {
        uint64_t lines = said.samples - from < PIECE_LINES ? said.samples - from : PIECE_LINES;
        void *text;
        if (!made(context, "text", (from + lines) * LINE_BYTES, &text)) return failed(context);
        load((char *)text + from * LINE_BYTES, from, lines);
    }
    return hand_on(out, &said);
}

SUBLET_FUNCTION uint32_t regression_split(void *in, uint32_t size, void *out, sublet_context *context) {
    message said;
    void *text, *training, *validation;
    if (!understand(in, size, &said)) return sublet_fail(context, "how many samples?");
    if (!there(context, "text", said.samples * LINE_BYTES, &text) ||
        !made(context, "training", training_samples(said.samples) * sizeof(sample), &training) ||
        !made(context, "validation", validation_samples(said.samples) * sizeof(sample), &validation))
        return failed(context);
    if (split(text, said.samples, training, validation)) return sublet_fail(context, "a line that is no sample");
    return hand_on(out, &said);
}

SUBLET_FUNCTION uint32_t regression_train(void *in, uint32_t size, void *out, sublet_context *context) {
    message said;
    void *training, *fitted;
    if (!understand(in, size, &said)) return sublet_fail(context, "how many samples?");
    if (!there(context, "training", training_samples(said.samples) * sizeof(sample), &training) ||
        !made(context, "model", sizeof(model), &fitted))
        return failed(context);
    train(training, training_samples(said.samples), (uint32_t)said.steps, fitted);
    return hand_on(out, &said);
}

/* Validates the model. The output is the model, and after it the number of samples that it classifies correctly. */
SUBLET_FUNCTION uint32_t regression_validate(void *in, uint32_t size, void *out, sublet_context *context) {
    message said;
    void *validation, *fitted;
    if (!understand(in, size, &said)) return sublet_fail(context, "how many samples?");
    if (!there(context, "validation", validation_samples(said.samples) * sizeof(sample), &validation) ||
        !there(context, "model", sizeof(model), &fitted))
        return failed(context);
    uint64_t right = validate(validation, validation_samples(said.samples), fitted);
    memcpy(out, fitted, sizeof(model));
    memcpy((char *)out + sizeof(model), &right, sizeof right);
    return sizeof(model) + sizeof right;
}
