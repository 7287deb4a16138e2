/* Components that allocate more than their lease has, and know nothing of where it is. Numbers are 64-bit integers of this machine. */
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../crates/capi/include/sublet_function.h"

#define MIB ((uint64_t)1 << 20)

/* Not in the headers of every C library. */
#ifndef PR_SET_VMA
#define PR_SET_VMA 0x53564d41
#define PR_SET_VMA_ANON_NAME 0
#endif

static uint64_t mixed(uint64_t number) {
    number = (number ^ number >> 31) * 0x9e3779b97f4a7c15u;
    return number ^ number >> 29;
}

static uint32_t answer(void *out, uint64_t number) {
    memcpy(out, &number, sizeof number);
    return sizeof number;
}

static void nap(uint64_t ms) {
    struct timespec time = {(time_t)(ms / 1000), (long)(ms % 1000) * 1000000};
    nanosleep(&time, NULL);
}

/* A part of an array that one thread has. */
struct part {
    uint64_t *words, count, seed, wrong;
};

static void *use(void *argument) {
    struct part *part = argument;
    uint64_t *words = part->words, count = part->count, seed = part->seed, at = seed;
    for (uint64_t i = 0; i < count; i++) words[i] = mixed(i + seed);
    for (uint64_t i = 0; i < count; i++) part->wrong += words[i] != mixed(i + seed);
    /* Here and there: each word that is met says what it is to be, and is it from then on. */
    for (uint64_t i = 0; i < 2000; i++) {
        at = mixed(at + i) % count;
        part->wrong += words[at] != mixed(at + seed) && words[at] != ~mixed(at + seed);
        words[at] = ~mixed(at + seed);
    }
    for (uint64_t i = count; i-- > 0;) part->wrong += words[i] != mixed(i + seed) && words[i] != ~mixed(i + seed);
    return NULL;
}

/* Three numbers: how many MiB, by how many threads, and for how many ms they are held before they are looked at once more. Answers
 * with the instance, and how many words were wrong. */
SUBLET_FUNCTION uint32_t large(void *in, uint32_t size, void *out, sublet_context *context) {
    uint64_t asked[3], wrong = 0, me = sublet_instance(context);
    if (size != sizeof asked) return sublet_fail(context, "how much?");
    memcpy(asked, in, sizeof asked);
    uint64_t threads = asked[1], count = asked[0] * MIB / 8 / threads;
    pthread_t *others = malloc(threads * sizeof *others);
    struct part *parts = calloc(threads, sizeof *parts);
    uint64_t *words = malloc(asked[0] * MIB);
    if (!words) return sublet_fail(context, "no memory");
    /* Stacks are not swapped. */
    pthread_attr_t attributes;
    pthread_attr_init(&attributes), pthread_attr_setstacksize(&attributes, MIB / 4);
    for (uint64_t i = 0; i < threads; i++) {
        parts[i] = (struct part){words + i * count, count, mixed(i + me * 1000), 0};
        if (pthread_create(&others[i], &attributes, use, &parts[i])) return sublet_fail(context, "no thread");
    }
    for (uint64_t i = 0; i < threads; i++) pthread_join(others[i], NULL);
    nap(asked[2]);
    for (uint64_t i = 0; i < threads; i++) {
        uint64_t *own = parts[i].words, seed = parts[i].seed;
        for (uint64_t at = 0; at < count; at++) wrong += own[at] != mixed(at + seed) && own[at] != ~mixed(at + seed);
        wrong += parts[i].wrong;
    }
    free(words), free(parts), free(others);
    uint64_t result[2] = {me, wrong};
    memcpy(out, result, sizeof result);
    return sizeof result;
}

/* Takes pieces of the given size in MiB until there are no more, gives them back, and does so again. Answers with
 * the number of pieces. */
SUBLET_FUNCTION uint32_t exhaust(void *in, uint32_t size, void *out, sublet_context *context) {
    enum { MOST = 4096 };
    static void *pieces[MOST];
    uint64_t mib, counts[2];
    if (size != sizeof mib) return sublet_fail(context, "how large?");
    memcpy(&mib, in, sizeof mib);
    for (int round = 0; round < 2; round++) {
        uint64_t count = 0;
        errno = 0;
        while (count < MOST && (pieces[count] = malloc(mib * MIB))) memset(pieces[count++], 7, 4096);
        if (errno != ENOMEM) return sublet_fail(context, "it does not say that there is no memory");
        for (uint64_t i = 0; i < count; i++) free(pieces[i]);
        counts[round] = count;
    }
    if (counts[0] != counts[1]) return sublet_fail(context, "what was given back cannot be had again");
    return answer(out, counts[0]);
}

#define SHOULD(what)                                                                        \
    do {                                                                                    \
        if (!(what)) return sublet_fail(context, "not so: " #what);                         \
    } while (0)

static int is_all(const unsigned char *bytes, unsigned char value, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (bytes[i] != value) return 0;
    return 1;
}

/* All of the family, and from one kind of memory to the other. */
SUBLET_FUNCTION uint32_t family(void *in, uint32_t size, void *out, sublet_context *context) {
    (void)in, (void)size;
    unsigned char *bytes = malloc(100);
    SHOULD(bytes && malloc_usable_size(bytes) >= 100);
    memset(bytes, 1, 100);
    /* Over the threshold, up and down. */
    SHOULD(bytes = realloc(bytes, 5 * MIB));
    SHOULD(is_all(bytes, 1, 100) && malloc_usable_size(bytes) >= 5 * MIB);
    memset(bytes, 2, 5 * MIB);
    SHOULD(bytes = realloc(bytes, 9 * MIB));
    SHOULD(is_all(bytes, 2, 5 * MIB));
    unsigned char *behind = malloc(3 * MIB);
    SHOULD(behind);
    memset(behind, 3, 3 * MIB);
    /* Now there is no free memory behind it. */
    SHOULD(bytes = reallocarray(bytes, 20, MIB));
    SHOULD(is_all(bytes, 2, 5 * MIB) && is_all(behind, 3, 3 * MIB));
    SHOULD(bytes = realloc(bytes, 3 * MIB));
    SHOULD(is_all(bytes, 2, 3 * MIB));
    SHOULD(bytes = realloc(bytes, 50));
    SHOULD(is_all(bytes, 2, 50));
    /* More than there can be. The compiler is not to know it. */
    volatile size_t all = (size_t)-1;
    void *volatile none = reallocarray(bytes, all, 2);
    SHOULD(!none && errno == ENOMEM);
    none = calloc(all, 2);
    SHOULD(!none && errno == ENOMEM);
    none = malloc(all >> 1);
    SHOULD(!none && errno == ENOMEM);
    free(bytes);
    /* Memory that was used before is zero. */
    free(behind);
    SHOULD(bytes = calloc(3, 4 * MIB));
    SHOULD(is_all(bytes, 0, 12 * MIB));
    free(bytes);
    for (size_t align = 16; align <= 16 * MIB; align *= 4) {
        void *aligned[3];
        SHOULD(!posix_memalign(&aligned[0], align, 3 * MIB));
        aligned[1] = aligned_alloc(align, 3 * MIB), aligned[2] = memalign(align, 100);
        for (int i = 0; i < 3; i++) {
            SHOULD(aligned[i] && (uintptr_t)aligned[i] % align == 0);
            memset(aligned[i], 4, 100);
        }
        for (int i = 0; i < 3; i++) free(aligned[i]);
    }
    void *odd = NULL;
    SHOULD(posix_memalign(&odd, 24, 3 * MIB) == EINVAL && !odd);
    SHOULD(posix_memalign(&odd, 64, (size_t)1 << 46) == ENOMEM && !odd);
    SHOULD(bytes = valloc(3 * MIB));
    free(bytes);
    /* Others of the C library's allocate so, too. */
    char *text = malloc(2 * MIB), *copy;
    SHOULD(text);
    memset(text, 'x', 2 * MIB - 1), text[2 * MIB - 1] = 0;
    SHOULD((copy = strdup(text)) && strlen(copy) == 2 * MIB - 1);
    /* A child process has none of it, and does not need any. */
    pid_t child = fork();
    if (child == 0) {
        char *own = malloc(2 * MIB);
        if (own) memset(own, 1, 2 * MIB);
        /* The child's own memory is the C library's, and can be resized. */
        char *larger = own ? realloc(own, 3 * MIB) : NULL;
        int is_good = larger && is_all((unsigned char *)larger, 1, 2 * MIB);
        free(larger), free(copy), free(text);
        _exit(is_good ? 0 : 1);
    }
    int status = -1;
    SHOULD(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    SHOULD(strlen(copy) == 2 * MIB - 1);
    free(copy), free(text), free(NULL);
    SHOULD(bytes = realloc(NULL, 3 * MIB));
    SHOULD(!realloc(bytes, 0));
    return answer(out, 1);
}

/* Whether the words from one byte to another are those that `mapped` wrote. */
static int are_words(const unsigned char *at, size_t from, size_t to) {
    const uint64_t *words = (const uint64_t *)at;
    for (size_t i = from / 8; i < to / 8; i++)
        if (words[i] != mixed(i)) return 0;
    return 1;
}

/* Whether the kernel shows a mapping of this name. */
static int has_named(const char *name) {
    char line[512];
    int found = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    if (!maps) return 1;
    while (fgets(line, sizeof line, maps)) found |= strstr(line, name) != NULL;
    fclose(maps);
    return found;
}

/* Maps as many MiB as allocators do that bypass malloc, and unmaps, discards and moves parts of them. Does so twice: memory that
 * is not returned is missing then. */
SUBLET_FUNCTION uint32_t mapped(void *in, uint32_t size, void *out, sublet_context *context) {
    enum { PAGE = 4096, BOTH = PROT_READ | PROT_WRITE, OWN = MAP_PRIVATE | MAP_ANONYMOUS };
    uint64_t mib;
    if (size != sizeof mib) return sublet_fail(context, "how much?");
    memcpy(&mib, in, sizeof mib);
    size_t bytes = mib * MIB, head = 16 * PAGE, tail = 3 * MIB + PAGE, from = 5 * MIB + PAGE, some = 7 * MIB + 2 * PAGE;
    for (int round = 0; round < 2; round++) {
        unsigned char *at = mmap(NULL, bytes, BOTH, OWN | MAP_NORESERVE, -1, 0), *other, *moved;
        SHOULD(at != MAP_FAILED && is_all(at, 0, MIB) && is_all(at + bytes - MIB, 0, MIB));
        /* Some allocators name their memory, in any pages. The kernel would divide the array's mapping there. */
        SHOULD(!prctl(PR_SET_VMA, PR_SET_VMA_ANON_NAME, at + from, some, "some pages") && !has_named("[anon:some pages]"));
        for (size_t i = 0; i < bytes / 8; i++) ((uint64_t *)at)[i] = mixed(i);
        SHOULD(are_words(at, 0, bytes));
        /* Programs that align a mapping cut both its ends off. */
        SHOULD(!munmap(at, head) && !munmap(at + bytes - tail, tail));
        SHOULD(are_words(at, head, bytes - tail));
        /* Pages of several regions, some of them whole. */
        SHOULD(!madvise(at + from, some, MADV_DONTNEED));
        SHOULD(is_all(at + from, 0, some) && are_words(at, head, from) && are_words(at, from + some, bytes - tail));
        SHOULD(!madvise(at + from, some, MADV_HUGEPAGE) && !madvise(at + from, PAGE, MADV_FREE));
        SHOULD(madvise(at + from + 1, PAGE, MADV_DONTNEED) == -1 && errno == EINVAL);
        SHOULD(!mprotect(at + from, some, BOTH));
        SHOULD(mprotect(at + from, PAGE, PROT_NONE) == -1 && errno == EACCES);
        SHOULD(mmap(NULL, bytes, BOTH, OWN, -1, 0) == MAP_FAILED && errno == ENOMEM);
        /* Other pages in their place. */
        unsigned char *there = at + from + some;
        SHOULD(mmap(there, 4 * PAGE, BOTH, OWN | MAP_FIXED, -1, 0) == there && is_all(there, 0, 4 * PAGE));
        SHOULD(mmap(there, PAGE, PROT_READ, OWN | MAP_FIXED, -1, 0) == MAP_FAILED && errno == EINVAL);
        SHOULD(mmap(at, PAGE, BOTH, OWN | MAP_FIXED, -1, 0) == MAP_FAILED && errno == EINVAL);
        SHOULD(are_words(at, from + some + 4 * PAGE, bytes - tail));
        SHOULD(mmap(at, PAGE, BOTH, OWN | MAP_FIXED_NOREPLACE, -1, 0) == MAP_FAILED && errno == EEXIST);
        /* The last page is mapped, and moved, as a whole. */
        size_t odd = 4 * MIB + 10, whole = 4 * MIB + PAGE;
        SHOULD((other = mmap(NULL, odd, BOTH, OWN, -1, 0)) != MAP_FAILED);
        memset(other, 5, whole);
        SHOULD(mremap(other, odd, 20 * MIB, 0) == MAP_FAILED && errno == ENOMEM);
        SHOULD((moved = mremap(other, odd, 20 * MIB, MREMAP_MAYMOVE)) != MAP_FAILED);
        SHOULD(is_all(moved, 5, whole) && is_all(moved + whole, 0, 20 * MIB - whole));
        SHOULD(mremap(moved, 20 * MIB, 2 * MIB + PAGE, 0) == moved && is_all(moved, 5, 2 * MIB + PAGE));
        SHOULD(!munmap(moved, 2 * MIB + PAGE) && !munmap(at, bytes));
        /* Discarded memory of malloc is zero, too. */
        SHOULD(!posix_memalign((void **)&other, PAGE, 5 * MIB));
        memset(other, 6, 5 * MIB);
        SHOULD(!madvise(other, 3 * MIB, MADV_DONTNEED));
        SHOULD(is_all(other, 0, 3 * MIB) && is_all(other + 3 * MIB, 6, 2 * MIB));
        free(other);
        /* Memory that a child process unmaps stays in this one. */
        SHOULD((other = mmap(NULL, 4 * MIB, BOTH, OWN, -1, 0)) != MAP_FAILED);
        memset(other, 7, 4 * MIB);
        pid_t child = fork();
        if (child == 0) {
            /* The mappings of the child are its own. */
            unsigned char *own = mmap(NULL, 4 * MIB, BOTH, OWN, -1, 0);
            if (own == MAP_FAILED) _exit(2);
            memset(own, 8, 4 * MIB);
            if (madvise(own, 4 * MIB, MADV_DONTNEED) || !is_all(own, 0, 4 * MIB)) _exit(3);
            if (mprotect(own, PAGE, PROT_NONE) || munmap(own, 4 * MIB)) _exit(4);
            _exit(munmap(other, 4 * MIB));
        }
        int status = -1;
        SHOULD(child > 0 && waitpid(child, &status, 0) == child && status == 0);
        SHOULD(is_all(other, 7, 4 * MIB) && !munmap(other, 4 * MIB));
        /* Small mappings are the kernel's. */
        SHOULD((other = mmap(NULL, 2 * MIB, BOTH, OWN, -1, 0)) != MAP_FAILED);
        SHOULD(!mprotect(other, PAGE, PROT_READ) && !munmap(other, 2 * MIB));
    }
    return answer(out, 1);
}

/* Looks for open descriptors of its program that handle page faults. Answers with 1 for one of the kernel, 2 for one
 * of a device. */
SUBLET_FUNCTION uint32_t reach(void *in, uint32_t size, void *out, sublet_context *context) {
    (void)in, (void)size, (void)context;
    uint64_t found = 0;
    for (int descriptor = 0; descriptor < 256; descriptor++) {
        char path[64], target[256] = "";
        snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
        if (readlink(path, target, sizeof target - 1) < 0) continue;
        if (strcmp(target, "anon_inode:[userfaultfd]") == 0) found |= 1;
        if (strcmp(target, "/dev/userfaultfd") == 0) found |= 2;
    }
    return answer(out, found);
}
