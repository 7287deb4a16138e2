/* Preloaded into a worker: counts what each of its threads allocates and frees. */
#include <stddef.h>
#include <stdint.h>

#define EXPORTED __attribute__((visibility("default")))

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *block, size_t size);
extern void *__libc_memalign(size_t alignment, size_t size);
extern void __libc_free(void *block);

/* Reached without a call that might allocate. */
static __thread uint64_t count __attribute__((tls_model("initial-exec")));

static void counted(void) { count++; }

/* How often the calling thread has allocated, resized or freed memory. */
EXPORTED uint64_t counted_allocations(void) { return count; }

EXPORTED void *malloc(size_t size) {
    counted();
    return __libc_malloc(size);
}

EXPORTED void *calloc(size_t number, size_t size) {
    counted();
    return __libc_calloc(number, size);
}

EXPORTED void *realloc(void *block, size_t size) {
    counted();
    return __libc_realloc(block, size);
}

EXPORTED void *aligned_alloc(size_t alignment, size_t size) {
    counted();
    return __libc_memalign(alignment, size);
}

EXPORTED int posix_memalign(void **block, size_t alignment, size_t size) {
    counted();
    *block = __libc_memalign(alignment, size);
    return *block == NULL ? 12 : 0;
}

EXPORTED void free(void *block) {
    counted();
    __libc_free(block);
}
