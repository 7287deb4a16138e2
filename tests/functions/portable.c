/* Functions that mean the same as native code and as WebAssembly, with a C library and without. */
#include "../../crates/capi/include/sublet_function.h"

SUBLET_FUNCTION uint32_t echo(void *in, uint32_t size, void *out) {
    __builtin_memcpy(out, in, size);
    return size;
}

/* Each value plus its index. */
SUBLET_FUNCTION uint32_t add_index(void *in, uint32_t size, void *out) {
    const uint32_t *from = in;
    uint32_t *to = out;
    for (uint32_t i = 0; i < size / sizeof *from; i++) to[i] = from[i] + i;
    return size;
}

/* How much its caller lets it write. */
SUBLET_FUNCTION uint32_t room(void *in, uint32_t size, void *out, sublet_context *context) {
    const uint32_t capacity = sublet_capacity(context);
    (void)in, (void)size;
    __builtin_memcpy(out, &capacity, sizeof capacity);
    return sizeof capacity;
}

/* Fails with its input, which ends with 0, as the message, and once more; returns what would be good. */
SUBLET_FUNCTION uint32_t refuse(void *in, uint32_t size, void *out, sublet_context *context) {
    (void)out;
    sublet_fail(context, size == 0 ? 0 : in);
    sublet_fail(context, "the second failure of a call");
    return 1;
}

/* Returns more than the output's capacity. */
SUBLET_FUNCTION uint32_t boast(void *in, uint32_t size, void *out, sublet_context *context) {
    (void)in, (void)size, (void)out;
    return sublet_capacity(context) + 1;
}

/* Whether input and output are aligned to 8 bytes. */
SUBLET_FUNCTION uint32_t aligned(void *in, uint32_t size, void *out) {
    (void)size;
    *(uint8_t *)out = ((uintptr_t)in | (uintptr_t)out) % 8 == 0;
    return 1;
}
