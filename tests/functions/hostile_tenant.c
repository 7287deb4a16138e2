/* Functions of a tenant that attacks its neighbours: by numbers that it guesses, and by memory that it shares with them. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "echo.h"
#include "global.h"

enum { EVERY_RIGHT = 7, NEARBY = 256 };

/* Answers the number of attempts and the number of successes. */
static uint32_t report(void *out, uint32_t tried, uint32_t done) {
    const uint32_t words[2] = {tried, done};
    return put(out, words, sizeof words);
}

/* Whether a call of the shim has done something, or has told more than that there is no such thing. */
static int learned(uint32_t status, const char *nothing) { return !status || !strstr(sublet_xpu_why(), nothing); }

/* Tries to reach a FIFO by its name, and every process and FIFO whose number is near this process's own. */
SUBLET_FUNCTION uint32_t trespass(void *in, uint32_t size, void *out, sublet_context *context) {
    char name[256] = {0};
    uint32_t tried = 2, done = 0, fd, rights;
    sublet_xpu_pid own;
    memcpy(name, in, size < sizeof name ? size : sizeof name - 1);
    if (sublet_get_xpupid(&own)) return failed(context);
    done += learned(sublet_xfifo_connect(name, 0, &fd), "there is no FIFO");
    done += learned(sublet_xfifo_connect_to_read(name, 0, &fd), "there is no FIFO");
    for (uint64_t guess = own - NEARBY; guess <= own + NEARBY; guess++) {
        if (guess == own) continue;
        tried += 5;
        done += !sublet_cap_rights(guess, &rights) && rights != 0;
        done += learned(sublet_xfifo_connect_to(guess, 0, &fd), "there is no FIFO");
        done += learned(sublet_grant_cap(own, guess, EVERY_RIGHT), "there is no FIFO");
        done += learned(sublet_grant_cap(guess, guess + 1, EVERY_RIGHT), "there is no FIFO");
        done += learned(sublet_revoke_cap(guess, guess + 1, EVERY_RIGHT), "there is no FIFO");
    }
    return report(out, tried, done);
}

/* Tries to signal every process by its number, and to open what other processes have. */
SUBLET_FUNCTION uint32_t stalk(void *in, uint32_t size, void *out) {
    uint32_t tried = 0, done = 0;
    char path[300] = {0};
    DIR *processes = opendir("/proc");
    (void)in, (void)size;
    for (pid_t pid = 2; pid < 40000; pid++) {
        if (pid == getpid()) continue;
        tried++;
        /* Processes of the own sandbox are its own. */
        if (kill(pid, 0) == 0) {
            snprintf(path, sizeof path, "/proc/%d/comm", pid);
            done += access(path, F_OK) != 0;
        }
    }
    for (struct dirent *entry; processes && (entry = readdir(processes));) {
        const int pid = atoi(entry->d_name);
        if (pid <= 0 || pid == getpid()) continue;
        tried++;
        snprintf(path, sizeof path, "/proc/%d/mem", pid);
        const int fd = open(path, O_RDWR);
        done += fd >= 0;
        if (fd >= 0) close(fd);
    }
    if (processes) closedir(processes);
    return report(out, tried, done);
}

/* Tries to open the paths of its input, each ended by 0, to read, to write and as a folder. */
SUBLET_FUNCTION uint32_t pry(void *in, uint32_t size, void *out) {
    static const int ways[] = {O_RDONLY, O_RDWR, O_RDONLY | O_DIRECTORY};
    uint32_t tried = 0, done = 0;
    const char *path = in, *end = path + size;
    for (; path < end; path += strlen(path) + 1)
        for (unsigned way = 0; way < sizeof ways / sizeof *ways; way++) {
            const int fd = open(path, ways[way]);
            tried++;
            done += fd >= 0;
            if (fd >= 0) close(fd);
        }
    return report(out, tried, done);
}

static volatile uint64_t *slot;
static volatile uint32_t *told;
static uint64_t slot_bits;
static uint32_t own_process;

/* Address at which the process has mapped a region for writing. */
static void *mapped(const char *name) {
    char line[512];
    void *found = NULL;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && !found && fgets(line, sizeof line, maps)) {
        unsigned long from, to;
        char rights[8];
        if (strstr(line, name) && sscanf(line, "%lx-%lx %7s", &from, &to, rights) == 3 && rights[1] == 'w') found = (void *)from;
    }
    if (maps) fclose(maps);
    return found;
}

/* Waits until a neighbour executes, unless it is not to name one, and then keeps the core's slot for a worker that
 * does not exist. */
static void *squat_for_ever(void *names_a_neighbour) {
    uint64_t process = UINT32_MAX;
    while (names_a_neighbour && (process == UINT32_MAX || process == 0 || process == own_process)) process = *slot >> 32;
    slot_bits = process << 32 | 99;
    for (;;) {
        *slot = slot_bits;
        if (told) *told = 1;
        usleep(200);
    }
    return NULL;
}

/* Has a thread hold the slot of this worker's shared core, whichever worker executes: in the name of a process that
 * does not exist, or if the input is 1, of the next neighbour that executes. Answers 1. The second word of the input, if there is
 * one, becomes 1 when the thread holds the slot. */
SUBLET_FUNCTION uint32_t squat(void *in, uint32_t size, void *out, sublet_context *context) {
    const uint32_t names_a_neighbour = size >= 4 ? *(uint32_t *)in : 0;
    const uint32_t begun = 1;
    pthread_t thread;
    slot = mapped("sublet-core");
    if (!slot) return sublet_fail(context, "no slot");
    own_process = (uint32_t)(*slot >> 32);
    told = size >= 8 ? (uint32_t *)in + 1 : NULL;
    if (pthread_create(&thread, NULL, squat_for_ever, names_a_neighbour ? (void *)1 : NULL)) return sublet_fail(context, "no thread");
    return put(out, &begun, sizeof begun);
}
