/* Functions that take more of the processor than their calls say. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "echo.h"

/* Processor time of the process. */
static long long used_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

/* Takes as many rounds as its input says, however long that is. */
SUBLET_FUNCTION uint32_t work(void *in, uint32_t size, void *out) {
    uint32_t rounds;
    (void)size, (void)out;
    memcpy(&rounds, in, sizeof rounds);
    for (volatile uint32_t round = 0; round < rounds; round++) {}
    return 0;
}

/* Leaves as many processes behind as its input says, each of which uses as many milliseconds of processor time as the
 * input says, too. */
SUBLET_FUNCTION uint32_t leave_spinning(void *in, uint32_t size, void *out) {
    uint32_t words[2], born = 0;
    (void)size;
    memcpy(words, in, sizeof words);
    for (uint32_t child = 0; child < words[0]; child++) {
        pid_t pid = fork();
        if (pid == 0) {
            long long until = used_ms() + words[1];
            while (used_ms() < until) {}
            _exit(0);
        }
        born += pid > 0;
    }
    memcpy(out, &born, sizeof born);
    return sizeof born;
}

static volatile char *counters;
static size_t counters_bytes;

static void *clear_counters(void *nothing) {
    for (;;) {
        for (size_t at = 0; at < counters_bytes; at++) counters[at] = 0;
        usleep(500);
    }
    return nothing;
}

/* Has a thread clear the counters that its worker keeps of its calls, for ever. Says how many bytes they have. */
SUBLET_FUNCTION uint32_t forge_counters(void *in, uint32_t size, void *out) {
    char line[512];
    pthread_t thread;
    uint32_t bytes;
    FILE *maps = fopen("/proc/self/maps", "r");
    (void)in, (void)size;
    while (maps && !counters && fgets(line, sizeof line, maps)) {
        unsigned long from, to;
        char rights[8];
        if (!strstr(line, "sublet-usage") || sscanf(line, "%lx-%lx %7s", &from, &to, rights) != 3) continue;
        if (rights[1] != 'w') continue;
        counters = (volatile char *)from;
        counters_bytes = to - from;
    }
    if (maps) fclose(maps);
    if (counters && pthread_create(&thread, NULL, clear_counters, NULL)) counters_bytes = 0;
    bytes = counters_bytes;
    memcpy(out, &bytes, sizeof bytes);
    return sizeof bytes;
}
