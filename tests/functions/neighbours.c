/* Functions that are global processes: they make FIFOs, connect to them, grant and revoke. */

#define _GNU_SOURCE
#include <stdio.h>
#include <unistd.h>

#include "counted.h"
#include "global.h"

/* The text of the input, ended by 0. */
static const char *text(const void *in, uint32_t size, char *into, uint32_t room) {
    if (size >= room) size = room - 1;
    memcpy(into, in, size);
    into[size] = 0;
    return into;
}

/* The name; answers the FIFO's id and the descriptor. */
SUBLET_FUNCTION uint32_t make(void *in, uint32_t size, void *out, sublet_context *context) {
    char name[256];
    uint64_t made[2] = {0, 0};
    uint32_t fd;
    if (sublet_xfifo_init(text(in, size, name, sizeof name), NULL, &fd)) return failed(context);
    if (sublet_xfifo_object(fd, &made[0])) return failed(context);
    made[1] = fd;
    return put(out, made, sizeof made);
}

/* Process, FIFO, rights. */
SUBLET_FUNCTION uint32_t allow(void *in, uint32_t size, void *out, sublet_context *context) {
    uint64_t *words = in;
    (void)size, (void)out;
    return sublet_grant_cap(words[0], words[1], (uint32_t)words[2]) ? failed(context) : 0;
}

SUBLET_FUNCTION uint32_t forbid(void *in, uint32_t size, void *out, sublet_context *context) {
    uint64_t *words = in;
    (void)size, (void)out;
    return sublet_revoke_cap(words[0], words[1], (uint32_t)words[2]) ? failed(context) : 0;
}

/* A FIFO; answers the rights to it. */
SUBLET_FUNCTION uint32_t may(void *in, uint32_t size, void *out, sublet_context *context) {
    uint32_t rights;
    (void)size;
    if (sublet_cap_rights(*(uint64_t *)in, &rights)) return failed(context);
    return put(out, &rights, sizeof rights);
}

/* The name; answers the descriptor. */
SUBLET_FUNCTION uint32_t join(void *in, uint32_t size, void *out, sublet_context *context) {
    char name[256];
    uint32_t fd;
    if (sublet_xfifo_connect(text(in, size, name, sizeof name), 5000, &fd)) return failed(context);
    return put(out, &fd, sizeof fd);
}

/* The descriptor, then the message. */
SUBLET_FUNCTION uint32_t say(void *in, uint32_t size, void *out, sublet_context *context) {
    (void)out;
    return sublet_xfifo_write(*(uint32_t *)in, (char *)in + 4, size - 4, 5000) ? failed(context) : 0;
}

/* The descriptor and how long is waited; answers whose, and the message. */
SUBLET_FUNCTION uint32_t hear(void *in, uint32_t size, void *out, sublet_context *context) {
    uint32_t *words = in;
    uint64_t len, from;
    (void)size;
    if (sublet_xfifo_read(words[0], (char *)out + 8, sublet_capacity(context) - 8, words[1], &len, &from))
        return failed(context);
    put(out, &from, sizeof from);
    return 8 + (uint32_t)len;
}

/* The processor, a FIFO and rights to it, if any; then, each ended by 0, the path, arguments and NAME=VALUE. Answers the process. */
SUBLET_FUNCTION uint32_t spawn(void *in, uint32_t size, void *out, sublet_context *context) {
    uint64_t *words = in;
    char text[5000];
    const char *argv[16] = {0}, *envp[16] = {0};
    uint32_t args = 0, variables = 0;
    const sublet_xpu_cap capability = {words[1], (uint32_t)words[2]};
    sublet_xpu_pid child;
    size -= 24;
    if (size == 0 || size > sizeof text) return sublet_fail(context, "no path");
    memcpy(text, (char *)in + 24, size);
    text[size - 1] = 0;
    for (uint32_t at = 0; at < size; at += strlen(text + at) + 1) {
        if (strchr(text + at, '=') && variables < 15) envp[variables++] = text + at;
        else if (args < 15) argv[args++] = text + at;
    }
    if (sublet_xspawn((uint32_t)words[0], text, argv, envp, &capability, words[2] ? 1 : 0, &child)) return failed(context);
    return put(out, &child, sizeof child);
}

SUBLET_FUNCTION uint32_t shut(void *in, uint32_t size, void *out, sublet_context *context) {
    (void)size, (void)out;
    return sublet_xfifo_close(*(uint32_t *)in) ? failed(context) : 0;
}

static uint32_t rounds(uint32_t count, const uint32_t *words) {
    static _Thread_local char message[4096];
    uint64_t len;
    while (count-- > 0) {
        if (words[4] && sublet_xfifo_write(words[1], message, words[3], 5000)) return 1;
        if (sublet_xfifo_read(words[0], message, sizeof message, 5000, &len, NULL)) return 1;
        if (!words[4] && sublet_xfifo_write(words[1], message, len, 5000)) return 1;
    }
    return 0;
}

/* Sends a message to and fro: descriptors of both ways, how often, its size, whether this process begins, and how many calls of the
 * kernel it makes meanwhile on purpose. Answers what was allocated or freed; marks begin and end. Who is here first has waited for the
 * other before that. */
SUBLET_FUNCTION uint32_t hop(void *in, uint32_t size, void *out, sublet_context *context) {
    uint32_t *words = in;
    (void)size;
    if (rounds(100, words)) return failed(context);
    const uint64_t before = counted();
    (void)!getpgid(MARKER);
    if (rounds(words[2], words)) return failed(context);
    for (uint32_t count = 0; count < words[5]; count++) (void)!getsid(0);
    (void)!getpgid(MARKER);
    const uint64_t allocated = before == UINT64_MAX ? before : counted() - before;
    return put(out, &allocated, sizeof allocated);
}

SUBLET_FUNCTION uint32_t die(void *in, uint32_t size, void *out) {
    (void)in, (void)size, (void)out;
    *(volatile int *)16 = 0;
    return 0;
}

/* Answers how many sockets this process has. */
SUBLET_FUNCTION uint32_t sockets(void *in, uint32_t size, void *out, sublet_context *context) {
    uint32_t count = 0;
    char path[32], is[16];
    (void)in, (void)size, (void)context;
    for (int fd = 0; fd < 256; fd++) {
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        if (readlink(path, is, sizeof is) >= 7 && !memcmp(is, "socket:", 7)) count++;
    }
    return put(out, &count, sizeof count);
}
