/* A program by which `sublet bench graph` measures the cost of components: it fills an array, passes over it, and adds it up.
 * It exists as a whole, with an array of its own; as one component with the array in memory of the run; and as three
 * components, one for each step. Built by build.rs and carried inside of the command. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <sublet_function.h>

/* The input of each function. */
struct work {
  uint64_t words;
  uint64_t passes;
};

static uint64_t mixed(uint64_t word) {
  word ^= word >> 29;
  return word * 0x9e3779b97f4a7c15u + 1;
}

static void fill(uint64_t* array, const struct work* work) {
  for (uint64_t at = 0; at < work->words; at++) array[at] = mixed(at);
}

static void pass(uint64_t* array, const struct work* work) {
  for (uint64_t passes = 0; passes < work->passes; passes++) {
    uint64_t before = passes;
    for (uint64_t at = 0; at < work->words; at++) before = array[at] = mixed(array[at] ^ before);
  }
}

static uint32_t add(const uint64_t* array, const struct work* work, void* out) {
  uint64_t sum = 0;
  for (uint64_t at = 0; at < work->words; at++) sum += array[at];
  memcpy(out, &sum, sizeof sum);
  return sizeof sum;
}

/* Finds the array in memory of the run, which is on this machine. Returns NULL after it has failed the call. */
static uint64_t* array_of(const void* in, uint32_t size, struct work* work, sublet_context* context) {
  sublet_channel samples;
  void* at;
  if (size != sizeof *work) {
    sublet_fail(context, "the input is not a number of words and one of passes");
    return NULL;
  }
  memcpy(work, in, sizeof *work);
  uint64_t bytes = work->words * sizeof(uint64_t);
  if (sublet_channel_open(context, "samples", &samples) || sublet_channel_grow(context, samples, bytes) ||
      sublet_channel_map(context, samples, 0, bytes, &at)) {
    sublet_fail(context, sublet_why(context));
    return NULL;
  }
  return at;
}

static uint32_t hand_on(const struct work* work, void* out) {
  memcpy(out, work, sizeof *work);
  return sizeof *work;
}

/* All steps, with an array of the process. */
SUBLET_FUNCTION uint32_t whole(void* in, uint32_t size, void* out, sublet_context* context) {
  struct work work;
  if (size != sizeof work) return sublet_fail(context, "the input is not a number of words and one of passes");
  memcpy(&work, in, sizeof work);
  uint64_t* array = malloc(work.words * sizeof *array);
  if (!array) return sublet_fail(context, "there is no memory for the array");
  fill(array, &work);
  pass(array, &work);
  uint32_t written = add(array, &work, out);
  free(array);
  return written;
}

/* All steps, with the array in memory of the run. */
SUBLET_FUNCTION uint32_t merged(void* in, uint32_t size, void* out, sublet_context* context) {
  struct work work;
  uint64_t* array = array_of(in, size, &work, context);
  if (!array) return 0;
  fill(array, &work);
  pass(array, &work);
  return add(array, &work, out);
}

/* The first step, whose output is its input. */
SUBLET_FUNCTION uint32_t load(void* in, uint32_t size, void* out, sublet_context* context) {
  struct work work;
  uint64_t* array = array_of(in, size, &work, context);
  if (!array) return 0;
  fill(array, &work);
  return hand_on(&work, out);
}

/* The second step, whose output is its input. */
SUBLET_FUNCTION uint32_t train(void* in, uint32_t size, void* out, sublet_context* context) {
  struct work work;
  uint64_t* array = array_of(in, size, &work, context);
  if (!array) return 0;
  pass(array, &work);
  return hand_on(&work, out);
}

/* The last step, which returns the sum. */
SUBLET_FUNCTION uint32_t validate(void* in, uint32_t size, void* out, sublet_context* context) {
  struct work work;
  uint64_t* array = array_of(in, size, &work, context);
  return array ? add(array, &work, out) : 0;
}
