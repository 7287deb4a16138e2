/* Functions that call each other in place. */

#include <ctype.h>
#include <string.h>

#include "../../crates/capi/include/sublet_function.h"

static uint32_t failed(sublet_context *context) { return sublet_fail(context, sublet_why(context)); }

SUBLET_FUNCTION uint32_t upper(void *in, uint32_t size, void *out, sublet_context *context) {
    if (size > sublet_capacity(context)) return size;
    for (uint32_t at = 0; at < size; at++) ((char *)out)[at] = (char)toupper(((unsigned char *)in)[at]);
    return size;
}

/* The name of a function, ended by 0, and what that is given. */
SUBLET_FUNCTION uint32_t relay(void *in, uint32_t size, void *out, sublet_context *context) {
    const char *name = in;
    const uint32_t head = (uint32_t)strnlen(name, size) + 1;
    uint32_t written;
    if (head > size) return sublet_fail(context, "no name");
    if (sublet_call(context, name, name + head, size - head, out, sublet_capacity(context), &written)) return failed(context);
    return written;
}

/* Answers both halves in upper case, the second first. */
SUBLET_FUNCTION uint32_t swap_halves(void *in, uint32_t size, void *out, sublet_context *context) {
    const uint32_t half = size / 2, capacity = sublet_capacity(context);
    uint32_t second, first;
    if (sublet_call(context, "upper", (char *)in + half, size - half, out, capacity, &second)) return failed(context);
    if (sublet_call(context, "upper", in, half, (char *)out + second, capacity - second, &first)) return failed(context);
    return second + first;
}

/* Calls itself as deep as it can, and answers the depth. A failed inner call does not fail the outer call. */
SUBLET_FUNCTION uint32_t deep(void *in, uint32_t size, void *out, sublet_context *context) {
    uint32_t depth = *(uint32_t *)in + 1;
    (void)size;
    if (sublet_call(context, "deep", &depth, sizeof depth, out, sublet_capacity(context), NULL)) memcpy(out, &depth, sizeof depth);
    return sizeof depth;
}

SUBLET_FUNCTION uint32_t refuse(void *in, uint32_t size, void *out, sublet_context *context) {
    (void)in, (void)size, (void)out;
    return sublet_fail(context, "not today");
}

/* Fails, and calls another one all the same. */
SUBLET_FUNCTION uint32_t go_on(void *in, uint32_t size, void *out, sublet_context *context) {
    sublet_fail(context, "failed before");
    (void)sublet_call(context, "upper", in, size, out, sublet_capacity(context), NULL);
    return 0;
}
