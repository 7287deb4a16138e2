/* Lets tests observe a worker: a mark in the trace of its system calls, and the counts of counting.c. */
#include <dlfcn.h>
#include <stdint.h>
#include <unistd.h>

/* No process has this number: asking for its group fails, and is seen in a trace. */
enum { MARKER = 5943783 };

/* Count that counting.c keeps for this thread, or all ones if counting.c is not loaded. */
static inline uint64_t counted(void) {
    uint64_t (*count)(void) = (uint64_t(*)(void))dlsym(RTLD_DEFAULT, "counted_allocations");
    return count ? count() : UINT64_MAX;
}
