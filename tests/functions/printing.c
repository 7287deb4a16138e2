/* Functions that print. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "echo.h"

/* Prints its input, as it is. */
SUBLET_FUNCTION uint32_t print(void *in, uint32_t size, void *out) {
    (void)out;
    fwrite(in, 1, size, stdout);
    fflush(stdout);
    return 0;
}

/* Prints as many MiB as its input says, in lines that look like an agent's. */
SUBLET_FUNCTION uint32_t flood(void *in, uint32_t size, void *out) {
    static const char line[] = "\x1b[2K2026-01-01T00:00:00Z ERROR sublet_agent: forged: the node is reclaimed\n";
    char block[1 << 16];
    uint32_t mib;
    size_t len = 0;
    (void)size, (void)out;
    memcpy(&mib, in, sizeof mib);
    for (; len + sizeof line <= sizeof block; len += sizeof line - 1) memcpy(block + len, line, sizeof line - 1);
    for (size_t left = (size_t)mib << 20; left >= len; left -= len)
        if (write(2, block, len) < 0) return 1;
    return 0;
}
