/* Functions on bytes, of which staying.cl has the same as kernels. */

#include "../../crates/capi/include/sublet_function.h"

SUBLET_FUNCTION uint32_t echo(void *in, uint32_t size, void *out) {
    __builtin_memcpy(out, in, size);
    return size;
}

SUBLET_FUNCTION uint32_t twice(void *in, uint32_t size, void *out) {
    __builtin_memcpy(out, in, size);
    __builtin_memcpy((char *)out + size, in, size);
    return 2 * size;
}
