/* Counts what the program and the libraries in it allocate, by standing before glibc's own allocator. */
#include <stdatomic.h>
#include <stddef.h>

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);

static atomic_ulong allocations;

unsigned long count_allocations(void);
unsigned long count_allocations(void) { return atomic_load(&allocations); }

void *malloc(size_t size) {
    atomic_fetch_add(&allocations, 1);
    return __libc_malloc(size);
}

void *calloc(size_t count, size_t size) {
    atomic_fetch_add(&allocations, 1);
    return __libc_calloc(count, size);
}

void *realloc(void *old, size_t size) {
    atomic_fetch_add(&allocations, 1);
    return __libc_realloc(old, size);
}

int posix_memalign(void **place, size_t alignment, size_t size) {
    atomic_fetch_add(&allocations, 1);
    *place = __libc_memalign(alignment, size);
    return *place == NULL ? 12 : 0;
}
