/* A program that functions of neighbours.c spawn: it says in the FIFO of its first argument what there is of it, and waits for its end. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../crates/capi/include/sublet_xpu.h"

int main(int count, char **words) {
    char said[512];
    uint32_t to, other = 0;
    sublet_xpu_pid own;
    if (count < 2 || sublet_get_xpupid(&own) || sublet_xfifo_connect(words[1], 5000, &to)) {
        fprintf(stderr, "child: %s\n", sublet_xpu_why());
        return 3;
    }
    const char *colour = getenv("COLOUR");
    const char *name = strrchr(words[0], '/');
    const uint32_t refused = count > 2 ? sublet_xfifo_connect(words[2], 0, &other) : 0;
    const int size = snprintf(said, sizeof said, "%llx %s %s %d %s", (unsigned long long)own, name ? name + 1 : words[0],
                              colour ? colour : "-", getenv("PATH") != NULL, refused ? sublet_xpu_why() : "-");
    if (sublet_xfifo_write(to, said, (uint64_t)size, 5000)) return 4;
    if (count > 3 && !strcmp(words[3], "end")) return 0;
    for (;;) pause();
}
