/* Helps functions of a global process. */
#ifndef GLOBAL_H
#define GLOBAL_H

#include <string.h>

#include "../../crates/capi/include/sublet_function.h"
#include "../../crates/capi/include/sublet_xpu.h"

static uint32_t put(void *out, const void *from, uint32_t size) {
    memcpy(out, from, size);
    return size;
}

static uint32_t failed(sublet_context *context) { return sublet_fail(context, sublet_xpu_why()); }

/* Answers its id. */
SUBLET_FUNCTION uint32_t pid(void *in, uint32_t size, void *out, sublet_context *context) {
    sublet_xpu_pid own;
    (void)in, (void)size;
    if (sublet_get_xpupid(&own)) return failed(context);
    return put(out, &own, sizeof own);
}

/* A number; answers the processor. */
SUBLET_FUNCTION uint32_t unit(void *in, uint32_t size, void *out, sublet_context *context) {
    uint32_t found;
    (void)size;
    if (sublet_xpu_unit(*(uint32_t *)in, &found)) return failed(context);
    return put(out, &found, sizeof found);
}

#endif
