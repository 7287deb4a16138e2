/* The functions that `sublet bench` calls. Built by build.rs and carried inside of the command. */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Does nothing. */
uint32_t noop(void* in, uint32_t size, void* out) {
  (void)in, (void)size, (void)out;
  return 0;
}

/* Returns its input. */
uint32_t echo(void* in, uint32_t size, void* out) {
  memcpy(out, in, size);
  return size;
}

/* The head of the input of `raw`: a page with parameters and two flags, each on cache lines of its own, followed by
 * the bytes that are copied. The output has a page ahead of its bytes as well. */
struct parameters {
  uint64_t rounds;
  uint32_t copy_bytes;
  uint32_t sleeps;
};
enum { REQUEST_OFFSET = 128, RESPONSE_OFFSET = 256, HEAD_BYTES = 4096 };

/* The limit that calls are measured against: answers a flag with a flag, `rounds` times, from the very thread that
 * executes functions. With `copy_bytes` it makes the one copy that `echo` makes; with `sleeps` it sleeps on the flag. */
uint32_t raw(void* in, uint32_t size, void* out) {
  const struct parameters parameters = *(const struct parameters*)in;
  const char* source = (const char*)in + HEAD_BYTES;
  char* target = (char*)out + HEAD_BYTES;
  _Atomic uint32_t* request = (_Atomic uint32_t*)((char*)in + REQUEST_OFFSET);
  _Atomic uint32_t* response = (_Atomic uint32_t*)((char*)in + RESPONSE_OFFSET);
  (void)size;
  for (uint32_t round = 1; round <= parameters.rounds; round++) {
    for (;;) {
      uint32_t seen = atomic_load_explicit(request, memory_order_acquire);
      if (seen == round) break;
      if (parameters.sleeps) syscall(SYS_futex, request, FUTEX_WAIT, seen, NULL, NULL, 0);
    }
    if (parameters.copy_bytes) memcpy(target, source, parameters.copy_bytes);
    atomic_store_explicit(response, round, memory_order_release);
  }
  return 0;
}
