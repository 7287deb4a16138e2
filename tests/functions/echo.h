/* A good function that every package of the tests has: called after a bad one, it shows that all still works. */
#ifndef SUBLET_TESTS_ECHO_H
#define SUBLET_TESTS_ECHO_H

#include <string.h>

#include "../../crates/capi/include/sublet_function.h"

SUBLET_FUNCTION uint32_t echo(void *in, uint32_t size, void *out) {
    memcpy(out, in, size);
    return size;
}

#endif
