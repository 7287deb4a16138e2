/* The steps of the regression as stateless functions that exchange data through Redis: stage STEP SAMPLES STEPS SOCKET,
 * where STEP is load, split, train or validate. The last one has the output of single. Each step fetches its whole
 * input before it begins, and stores its whole output before it ends, as such functions do (Scad, section 5.1). Its
 * memory does not include the copies in the connection's library. */
#include <hiredis/hiredis.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>

#include "measure.h"
#include "regression.h"

static uint64_t peak;

/* Returns a reply of the expected type. Prints an error and ends the process if the reply has another type. */
static redisReply *checked(redisContext *redis, void *answer, int type, const char *what) {
    redisReply *reply = answer;
    if (reply && reply->type == type) return reply;
    fprintf(stderr, "stage: %s: %s\n", what, !reply ? redis->errstr : reply->type == REDIS_REPLY_ERROR ? reply->str : "it is not there");
    exit(1);
}

/* Returns the value of a key, which must have this number of bytes. The bytes stay until the process ends. */
static const void *fetch(redisContext *redis, const char *key, uint64_t bytes) {
    redisReply *reply = checked(redis, redisCommand(redis, "GET %s", key), REDIS_REPLY_STRING, key);
    if (reply->len != bytes) {
        fprintf(stderr, "stage: %s has %zu bytes and not %" PRIu64 "\n", key, reply->len, bytes);
        exit(1);
    }
    peak += bytes;
    return reply->str;
}

static void store(redisContext *redis, const char *key, const void *from, uint64_t bytes) {
    freeReplyObject(checked(redis, redisCommand(redis, "SET %s %b", key, from, (size_t)bytes), REDIS_REPLY_STATUS, key));
}

static void discard(redisContext *redis, const char *key) {
    freeReplyObject(checked(redis, redisCommand(redis, "DEL %s", key), REDIS_REPLY_INTEGER, key));
}

static void run_load(redisContext *redis, uint64_t samples) {
    char *text = memory(samples * LINE_BYTES, &peak);
    load(text, 0, samples);
    store(redis, "text", text, samples * LINE_BYTES);
}

static void run_split(redisContext *redis, uint64_t samples) {
    uint64_t train_bytes = training_samples(samples) * sizeof(sample), check_bytes = validation_samples(samples) * sizeof(sample);
    const char *text = fetch(redis, "text", samples * LINE_BYTES);
    sample *training = memory(train_bytes, &peak), *validation = memory(check_bytes, &peak);
    uint64_t bad = split(text, samples, training, validation);
    if (bad) {
        fprintf(stderr, "stage: line %" PRIu64 " is no sample\n", bad);
        exit(1);
    }
    discard(redis, "text");
    store(redis, "training", training, train_bytes);
    store(redis, "validation", validation, check_bytes);
}

static void run_train(redisContext *redis, uint64_t samples, uint64_t steps) {
    const sample *training = fetch(redis, "training", training_samples(samples) * sizeof(sample));
    model fitted;
    train(training, training_samples(samples), (uint32_t)steps, &fitted);
    discard(redis, "training");
    store(redis, "model", &fitted, sizeof fitted);
}

static int run_validate(redisContext *redis, uint64_t samples) {
    const sample *validation = fetch(redis, "validation", validation_samples(samples) * sizeof(sample));
    const model *fitted = fetch(redis, "model", sizeof *fitted);
    uint64_t right = validate(validation, validation_samples(samples), fitted);
    discard(redis, "validation");
    return fwrite(fitted, sizeof *fitted, 1, stdout) == 1 && fwrite(&right, sizeof right, 1, stdout) == 1;
}

int main(int count, char **arguments) {
    if (count != 5) {
        fprintf(stderr, "usage: stage load|split|train|validate SAMPLES STEPS SOCKET\n");
        return 2;
    }
    const char *step = arguments[1];
    uint64_t samples = number(arguments[2]), steps = number(arguments[3]);
    double began = now();
    redisContext *redis = redisConnectUnix(arguments[4]);
    if (!redis || redis->err) {
        fprintf(stderr, "stage: %s: %s\n", arguments[4], redis ? redis->errstr : "no memory");
        return 1;
    }
    int well = 1;
    if (strcmp(step, "load") == 0) run_load(redis, samples);
    else if (strcmp(step, "split") == 0) run_split(redis, samples);
    else if (strcmp(step, "train") == 0) run_train(redis, samples, steps);
    else if (strcmp(step, "validate") == 0) well = run_validate(redis, samples);
    else {
        fprintf(stderr, "stage: there is no step %s\n", step);
        return 2;
    }
    said(now() - began, peak);
    redisFree(redis);
    return well ? 0 : 1;
}
