/* The functions by which `sublet bench` measures FIFOs between processes and calls of the shim. Built by build.rs and carried inside
 * of the command. */
#define _GNU_SOURCE
#include <stdint.h>
#include <string.h>
#include <time.h>

#include <sublet_function.h>
#include <sublet_xpu.h>

enum { PATIENCE_MS = 10000, MAX_BYTES = 1 << 20 };

static uint32_t failed(sublet_context* context) { return sublet_fail(context, sublet_xpu_why()); }

static uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static uint32_t answer(void* out, const uint64_t* words, uint32_t count) {
  memcpy(out, words, count * sizeof *words);
  return count * (uint32_t)sizeof *words;
}

/* Returns its own id. */
SUBLET_FUNCTION uint32_t self(void* in, uint32_t size, void* out, sublet_context* context) {
  sublet_xpu_pid pid;
  (void)in, (void)size;
  return sublet_get_xpupid(&pid) ? failed(context) : answer(out, &pid, 1);
}

/* Makes a FIFO with slots of the given size, and returns its descriptor and its id. */
SUBLET_FUNCTION uint32_t make(void* in, uint32_t size, void* out, sublet_context* context) {
  sublet_xfifo_shape shape = {16, (uint32_t)*(uint64_t*)in};
  uint64_t made[2];
  uint32_t fd;
  (void)size;
  if (sublet_xfifo_init(NULL, &shape, &fd) || sublet_xfifo_object(fd, &made[1])) return failed(context);
  made[0] = fd;
  return answer(out, made, 2);
}

/* Lets a process write to a FIFO: its id, the FIFO's. */
SUBLET_FUNCTION uint32_t allow(void* in, uint32_t size, void* out, sublet_context* context) {
  const uint64_t* words = in;
  (void)size, (void)out;
  return sublet_grant_cap(words[0], words[1], SUBLET_CAP_WRITE) ? failed(context) : 0;
}

/* Connects to a FIFO, and returns the descriptor. */
SUBLET_FUNCTION uint32_t join(void* in, uint32_t size, void* out, sublet_context* context) {
  uint32_t fd;
  (void)size;
  if (sublet_xfifo_connect_to(*(uint64_t*)in, PATIENCE_MS, &fd)) return failed(context);
  uint64_t word = fd;
  return answer(out, &word, 1);
}

/* Writes a short message to a descriptor. */
SUBLET_FUNCTION uint32_t say(void* in, uint32_t size, void* out, sublet_context* context) {
  (void)size, (void)out;
  return sublet_xfifo_write((uint32_t)*(uint64_t*)in, in, 8, PATIENCE_MS) ? failed(context) : 0;
}

/* Reads one from a descriptor. */
SUBLET_FUNCTION uint32_t hear(void* in, uint32_t size, void* out, sublet_context* context) {
  uint64_t word;
  (void)size;
  if (sublet_xfifo_read((uint32_t)*(uint64_t*)in, &word, sizeof word, PATIENCE_MS, NULL, NULL)) return failed(context);
  return answer(out, &word, 1);
}

struct rounds {
  uint64_t from, to; /* descriptors */
  uint64_t rounds, bytes;
  uint64_t begins;   /* this side writes first, and measures */
  uint64_t think_ns; /* pause before each round, so that the other sleeps */
};

/* Sends messages back and forth; returns the time of all of them, without the pauses. */
SUBLET_FUNCTION uint32_t rounds(void* in, uint32_t size, void* out, sublet_context* context) {
  /* Begins at a page, like the message of the baseline. */
  static _Alignas(4096) _Thread_local char message[MAX_BYTES];
  const struct rounds how = *(const struct rounds*)in;
  uint64_t took = 0, got;
  (void)size;
  for (uint64_t round = 0; round < how.rounds; round++) {
    uint64_t since = now_ns();
    if (how.begins) {
      while (how.think_ns && now_ns() - since < how.think_ns) {
      }
      since = now_ns();
      if (sublet_xfifo_write((uint32_t)how.to, message, how.bytes, PATIENCE_MS)) return failed(context);
    }
    if (sublet_xfifo_read((uint32_t)how.from, message, sizeof message, PATIENCE_MS, &got, NULL)) return failed(context);
    if (how.begins)
      took += now_ns() - since;
    else if (sublet_xfifo_write((uint32_t)how.to, message, got, PATIENCE_MS))
      return failed(context);
  }
  return answer(out, &took, 1);
}

/* Calls the shim, which answers alone. Input: a FIFO, and the number of calls. Returns the time of all calls. */
SUBLET_FUNCTION uint32_t calls(void* in, uint32_t size, void* out, sublet_context* context) {
  const uint64_t* words = in;
  uint32_t rights;
  uint64_t since = now_ns();
  (void)size;
  for (uint64_t call = 0; call < words[1]; call++)
    if (sublet_cap_rights(words[0], &rights)) return failed(context);
  uint64_t took = now_ns() - since;
  return answer(out, &took, 1);
}
